"""Measures one run: zeta after some of its epochs, learned and exact."""

import time
from typing import Any, NamedTuple

import jax
from jaxtyping import Float, Int
import numpy as np

from experiments.harness import Place, Row, Run, training
from experiments.popularity.over_training.plan import (
  EPOCHS,
  GLYPHS,
  NONE,
  make_config,
)
from experiments.when_it_pays import data
from nuclr_jax import Pairs, Sides, popularity
from nuclr_jax.lab.evaluate import agreement
from nuclr_jax.lab.evaluate.evaluators import embed_pairs
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.hooks import Hook

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
BINS = np.linspace(-4, 4, 81)  # of zeta / tau; the outermost hold the rest
SHOWN = 8  # images at either end, each with another caption
ENDS = 100  # images at either end whose neighbours are compared
PICTURED = 0  # the seed whose images are stored


class Frequency(NamedTuple):
  """How often every caption occurs."""

  caption: Int[np.ndarray, "pairs"]  # of each pair
  log_p: Float[np.ndarray, "captions"]


def measure(run: Run, place: Place) -> Row:
  """Trains, and looks at zeta on the way."""
  values, config = dict(run.values), make_config(run)
  if run.part == GLYPHS:
    parts = training.prepare(config, place)
    ids = parts.data.train.ids(np.arange(parts.data.train.sizes.num_pairs))
    counts = np.bincount(ids.text)
    frequency = Frequency(ids.text, np.log(counts / counts.sum()))
  else:
    tails = data.make_tails(
      seed=run.seed,
      exponent=values["exponent"],
      num_items=values["num_items"],
      num_pairs=values["num_pairs"],
      marked=values.get("marked", False),
    )
    parts = build.build(config, data=tails.data)
    frequency = Frequency(tails.item, np.log(tails.p))
  looks = []
  every = max(1, parts.num_steps // EPOCHS[run.part][-1])

  def apply(train_state, embed):
    epoch = int(train_state.step) // every
    if epoch in EPOCHS[run.part]:
      last = epoch == EPOCHS[run.part][-1]
      found = look(run, parts, frequency, train_state, embed, last=last)
      looks.append({"epoch": epoch} | found)
    return train_state

  began = time.monotonic()
  parts = parts._replace(hooks=(Hook(every, apply),))
  training.train(config, place, parts)
  return {"run_seconds": round(time.monotonic() - began, 1), "looks": looks}


def look(
  run: Run, parts, frequency: Frequency, train_state, embed, *, last: bool
) -> Row:
  """Compares learned zeta with exact ones, and both with frequencies.

  Args:
    run: The run.
    parts: The parts of its training.
    frequency: The captions.
    train_state: The state to look at.
    embed: The model.
    last: Whether the images at either end are stored, too.
  """
  values, objective = dict(run.values), parts.objective
  tau = parts.settings.objective.arguments["temperature"]
  pairs = embed_pairs(embed, parts.data.train)
  exact = popularity.solve_sampled(
    pairs.image,
    pairs.text,
    temperature=tau,
    image_id=pairs.ids.image,
    text_id=pairs.ids.text,
    max_pairs=values.get("sample", len(pairs.image)),
    key=jax.random.key(run.seed),
    tolerance=values.get("tolerance", 1e-3),
  )
  readout = objective.readout(
    train_state.params["objective"], train_state.objective
  )
  found = {"exact": exact.zeta}
  if run.setting != NONE:
    rows = zip(readout.zeta, exact.ids, strict=True)
    found["learned"] = Sides(*(np.asarray(x)[i] for x, i in rows))
  row = {name: described(zeta, tau) for name, zeta in found.items()}
  text = np.searchsorted(exact.ids.text, pairs.ids.text)
  row["frequency"] = {
    name: against_frequency(zeta.text[text] / tau, frequency)
    for name, zeta in found.items()
  }
  if "learned" in found:
    row["pearson"] = {
      side: agreement.compare(*both)["pearson"]
      for side, *both in zip(
        Sides._fields, found["learned"], exact.zeta, strict=True
      )
    }
    image = np.searchsorted(exact.ids.image, pairs.ids.image)
    order = np.argsort(found["learned"].image[image], kind="stable")
    row["nearest"] = nearest(pairs, order, frequency.caption)
    if last and run.seed == PICTURED:
      zeta = found["learned"].image[image] / tau
      row["pictures"] = pictures(parts.data.train, zeta, order, pairs.ids.text)
  return row


def described(zeta: Sides, tau: float) -> dict[str, Any]:
  """Returns spread, quantiles and histogram of zeta / tau, by side."""
  sides = {}
  for side, x in zip(Sides._fields, zeta, strict=True):
    x = (x - np.mean(x)) / tau
    inside = np.clip(x, BINS[0], BINS[-1])
    sides[side] = {
      "sd": float(np.std(x)),
      "quantiles": np.quantile(x, QUANTILES).tolist(),
      "histogram": np.histogram(inside, BINS)[0].tolist(),
    }
  return sides


def against_frequency(
  zeta: Float[np.ndarray, "pairs"], frequency: Frequency
) -> dict[str, float]:
  """Compares zeta / tau with log p over the captions that occur.

  Returns:
    `spearman`, and the `slope` of the least-squares line, which is 1 for
    zeta = tau log p. A caption with several zeta counts with their mean.

  Example:
    >>> caption, log_p = np.array([0, 1, 1, 2]), np.array([0.0, 1.0, 2.0])
    >>> zeta = np.array([0.0, 1.0, 0.0, 1.0])
    >>> scores = against_frequency(zeta, Frequency(caption, log_p))
    >>> round(scores["spearman"], 6), round(scores["slope"], 6)
    (1.0, 0.5)
  """
  counts = np.bincount(frequency.caption, minlength=len(frequency.log_p))
  totals = np.bincount(frequency.caption, zeta, minlength=len(counts))
  there = counts > 0
  mean, log_p = totals[there] / counts[there], frequency.log_p[there]
  return {
    "spearman": agreement.compare(mean, log_p)["spearman"],
    "slope": float(np.polyfit(log_p, mean, 1)[0]),
  }


def nearest(
  pairs: Pairs,
  order: Int[np.ndarray, "pairs"],
  caption: Int[np.ndarray, "pairs"],
) -> dict[str, float]:
  """Returns how near images with another caption are, at either end.

  Args:
    pairs: The embeddings.
    order: Pairs from the least popular image to the most popular one.
    caption: The caption of each pair.
  """
  found = {}
  for name, end in (("most", order[-ENDS:]), ("least", order[:ENDS])):
    similarity = pairs.image[end] @ pairs.image.T
    similarity[caption[end][:, None] == caption] = -1
    found[name] = float(similarity.max(axis=1).mean())
  return found


def pictures(source, zeta, order, text_id) -> dict[str, list[Row]]:
  """Returns the most and the least popular images, each of another text."""
  return {
    "most": _distinct(source, zeta, order[::-1], text_id),
    "least": _distinct(source, zeta, order, text_id),
  }


def _distinct(source, zeta, order, text_id) -> list[Row]:
  first = {}
  for pair in order:
    (name,) = source.captions(text_id[[pair]])
    first.setdefault(name, pair)
    if len(first) == SHOWN:
      break
  chosen = np.array(list(first.values()))
  images = np.squeeze(source.fetch(chosen).image, axis=-1)
  return [
    {
      "caption": name,
      "popularity": float(np.exp(zeta[pair] - zeta.mean())),
      "image": np.asarray(image).tolist(),
    }
    for (name, pair), image in zip(first.items(), images, strict=True)
  ]
