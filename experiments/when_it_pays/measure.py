"""Measures one run: trains, and scores letters in fonts never seen."""

import time

import jax
import numpy as np

from experiments.harness import Place, Row, Run, training
from experiments.when_it_pays import data, own_weight, tabular
from experiments.when_it_pays.plan import ARMS, TABLE, make_config
from nuclr_jax import Sides, popularity
from nuclr_jax.evaluate import evaluators
from nuclr_jax.train import build, loop
from nuclr_jax.types import Popularities, each

TOLERANCE = 1e-3  # of exact popularities


def measure(run: Run, place: Place) -> Row:
  """Measures one run, of any part."""
  if run.part == TABLE:
    return tabular.measure(seed=run.seed, **dict(run.values))
  if run.part == own_weight.PART:
    return own_weight.measure(run, place)
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
  )
  counts = np.bincount(tails.item, minlength=len(tails.p))
  log_p = {
    "true": tau * np.log(tails.p),
    "counted": tau * np.log((counts + 0.5) / (counts + 0.5).sum()),
  }
  config = make_config(values)
  config.seed = run.seed
  parts = build.build(config, data=tails.data)
  if arm.oracle:
    of_item = log_p[arm.oracle]
    zeta = of_item[tails.item]
    zeta = Sides(np.zeros(len(zeta)), zeta - zeta.mean())
    sizes = tails.data.train.sizes
    parts = parts._replace(
      popularities=Popularities(each(np.arange, sizes.ids), zeta)
    )
  began = time.monotonic()
  trained = training.train(config, place, parts)
  row = {"train_seconds": round(time.monotonic() - began, 1)}
  mesh = build.mesh_of(parts.config)
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(trained.state)
    pairs = evaluators.embed_pairs(embed, parts.data.train)
    image, text = embed.image(tails.test_image), embed.text(tails.captions)
    exact = popularity.solve(
      pairs.image, pairs.text, temperature=tau, tolerance=TOLERANCE
    )
  readout = parts.objective.readout(
    trained.state.params["objective"], trained.state.objective
  )

  def by_item(zeta):
    """The mean zeta of an item's texts; the mean of all for unseen ones."""
    total = np.bincount(tails.item, zeta, minlength=len(counts))
    return np.where(counts, total / np.maximum(counts, 1), np.mean(zeta))

  shifts = {
    "E": 0.0,
    "E + τ log p": log_p["true"],
    "E + τ log p, counted": log_p["counted"],
    "E - ζ exact": -by_item(exact.zeta.text),
    "E + ζ exact": by_item(exact.zeta.text),
  }
  if readout.zeta is not None:
    num_pairs = len(tails.item)
    learned = by_item(np.asarray(readout.zeta.text)[:num_pairs])
    shifts |= {
      "E - ζ": -learned,
      "E + ζ": learned,
      "E - ζ + τ log p": log_p["true"] - learned,
    }
    row["zeta_sd"] = float(np.std(learned[counts > 0]) / tau)
  row["exact_sd"] = float(np.std(by_item(exact.zeta.text)[counts > 0]) / tau)
  similarity = image @ text.T
  row["scores"] = {
    name: accuracies(similarity + shift, tails)
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
