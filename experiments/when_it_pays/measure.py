"""Measures one run: trains, and scores letters in fonts never seen."""

import numpy as np

from experiments.harness import Place, Row, Run
from experiments.when_it_pays import data, duplicates, positive_weight, tabular
from experiments.when_it_pays.letters import (
  ARMS,
  by_caption,
  fit,
  make_config,
)
from experiments.when_it_pays.plan import TABLE


def measure(run: Run, place: Place) -> Row:
  """Measures one run, of any part."""
  if run.part == TABLE:
    return tabular.measure(seed=run.seed, **dict(run.values))
  if run.part == positive_weight.PART:
    return positive_weight.measure(run, place)
  if run.part == duplicates.PART:
    return duplicates.measure(run, place)
  return letters(run, place)


def letters(run: Run, place: Place) -> Row:
  """Trains on letters with long tails and scores them in all ways."""
  values = dict(run.values)
  arm, tau = ARMS[values["arm"]], values["temperature"]
  tails = data.make_tails(
    seed=run.seed,
    exponent=values["exponent"],
    num_items=values["num_items"],
    num_pairs=values["num_pairs"],
    marked=values.get("marked", False),
  )
  counts = np.bincount(tails.item, minlength=len(tails.p))
  log_p = {
    "true": tau * np.log(tails.p),
    "counted": tau * np.log((counts + 0.5) / (counts + 0.5).sum()),
  }
  config = make_config(values)
  config.seed = run.seed
  zeta = None
  if arm.oracle:
    by_letter = log_p[arm.oracle]
    mean = by_letter[tails.item].mean()
    marked = values.get("marked", False)
    zeta = (by_letter if marked else by_letter[tails.item]) - mean
  fitted = fit(config, place, tails, zeta)
  row = {"train_seconds": round(fitted.seconds, 1)}
  exact = by_caption(fitted.exact.text, tails)
  shifts = {
    "E": 0.0,
    "E + τ log p": log_p["true"],
    "E + τ log p, counted": log_p["counted"],
    "E - τ log p": -log_p["true"],
    "E - ζ exact": -exact,
    "E + ζ exact": exact,
  }
  if fitted.zeta is not None:
    learned = by_caption(fitted.zeta.text, tails)
    shifts |= {
      "E - ζ": -learned,
      "E + ζ": learned,
      "E - ζ + τ log p": log_p["true"] - learned,
    }
    row["zeta_sd"] = float(np.std(learned[counts > 0]) / tau)
  row["exact_sd"] = float(np.std(exact[counts > 0]) / tau)
  row["scores"] = {
    name: accuracies(fitted.similarity + shift, tails)
    for name, shift in shifts.items()
  }
  return row


def accuracies(score: np.ndarray, tails: data.Tails) -> dict[str, float]:
  """Returns how often the best score is right, in percent.

  "natural": letters are asked for as often as they are drawn; "balanced": all
  equally often. Every caption is a candidate once.
  """
  right = np.argmax(score, axis=1) == tails.test_item
  asked = np.bincount(tails.test_item)
  of_item = np.bincount(tails.test_item, right) / asked
  return {
    "natural": float(100 * tails.p @ of_item),
    "balanced": float(100 * np.mean(of_item)),
  }
