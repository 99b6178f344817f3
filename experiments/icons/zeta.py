"""ζ on natural data: learned and exact, what it follows, and what it is for."""

import time
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np
from scipy.special import logsumexp

from experiments.harness import Row
from nuclr_jax import Pairs, Sides, popularity
from nuclr_jax.lab.data.source import Data
from nuclr_jax.lab.evaluate import agreement, suites
from nuclr_jax.lab.evaluate.evaluators import Embed, embed_pairs
from nuclr_jax.lab.evaluate.prior import COUNTS, make_prior
from nuclr_jax.objectives import Readout
from nuclr_jax.types import each, swap

NUM_ANCHORS = 512  # whose gradients are compared
SAMPLE = 4_096  # texts and drawings whose look-alikes are counted
ALIKE = 0.8  # the similarity of look-alikes
BATCHES = (16, 64, 128, 256, 1024)
DRAWS = 200  # batches for each anchor, in two halves
METRICS = tuple(f"mean_recall@{k}" for k in (1, 10))


def look(
  data: Data, embed: Embed, readout: Readout, *, temperature: float, seed: int
) -> Row:
  """Solves for the exact ζ of a trained model, and compares.

  Args:
    data: The training pairs and the held-out sets.
    embed: The model.
    readout: What the objective has learned.
    temperature: τ of the training.
    seed: The seed of anchors, samples and batches.
  """
  pairs = embed_pairs(embed, data.train)
  began = time.monotonic()
  exact = popularity.solve(
    *(pairs.image, pairs.text),
    temperature=temperature,
    image_id=pairs.ids.image,
    text_id=pairs.ids.text,
  )
  row: Row = {
    "solve": {
      "seconds": round(time.monotonic() - began, 1),
      "residual": exact.residual,
      "iterations": exact.iterations,
      "images": len(exact.ids.image),
      "texts": len(exact.ids.text),
    },
    "sd": _by_side(lambda x: float(np.std(x) / temperature), exact.zeta),
    "follows": follows(pairs, exact, temperature, seed),
  }
  if readout.zeta is not None:
    learned = each(lambda x, i: np.asarray(x)[i], readout.zeta, exact.ids)
    row["agreement"] = _by_side(agreement.compare, learned, exact.zeta)
  row["gradient"] = gradients(pairs, exact, readout, temperature, seed)
  row["retrieval"] = corrected(data, embed, temperature)
  return row


def _by_side(function, *sides: Sides) -> dict[str, object]:
  return each(function, *sides)._asdict()


def follows(
  pairs: Pairs, exact: popularity.Popularity, temperature: float, seed: int
) -> Row:
  """Correlates exact ζ / τ with frequency and with the number of look-alikes.

  Frequency is the logarithm of the number of pairs with a text, or a drawing.
  Look-alikes are the other texts, or drawings, with a similarity above `ALIKE`;
  1 is added before the logarithm.
  """
  random, row = np.random.default_rng([seed, 1]), {}
  for side, x, ids, zeta, distinct in zip(
    Sides._fields,
    *(Sides(pairs.image, pairs.text), pairs.ids, exact.zeta, exact.ids),
    strict=True,
  ):
    _, first, counts = np.unique(ids, return_index=True, return_counts=True)
    size = min(SAMPLE, len(distinct))
    some = np.sort(random.choice(len(distinct), size, replace=False))
    alike = count_alike(x[first], some)
    row[side] = {
      "frequency": _pearson(zeta[some], np.log(counts[some])),
      "look-alikes": _pearson(zeta[some], np.log1p(alike)),
      "share with look-alikes": float(np.mean(alike > 0)),
      # One unit is a popularity that grows as the frequency does.
      "slope of frequency": _slope(np.log(counts), zeta / temperature),
    }
  return row


def count_alike(
  x: Float[np.ndarray, "rows dim"], some: Int[np.ndarray, "some"]
) -> Int[np.ndarray, "some"]:
  """Counts the other rows that are similar to some rows.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.9, 0.44], [0.0, 1.0]])
    >>> count_alike(x, np.array([0, 2]))
    array([1, 0])
  """
  return np.concatenate(
    [
      np.sum(x[rows] @ x.T > ALIKE, axis=1) - 1
      for rows in np.split(some, range(256, len(some), 256))
    ]
  )


def _pearson(a: np.ndarray, b: np.ndarray) -> float | None:
  if np.ptp(a) == 0 or np.ptp(b) == 0:
    return None
  return float(np.corrcoef(a, b)[0, 1])


def _slope(x: np.ndarray, y: np.ndarray) -> float | None:
  return None if np.ptp(x) == 0 else float(np.polyfit(x, y, 1)[0])


class Anchors(NamedTuple):
  """Some anchors of one side, and what they are contrasted with."""

  row: Int[np.ndarray, "anchors"]
  sim: Float[np.ndarray, "anchors pairs"]
  negative: Bool[np.ndarray, "anchors pairs"]
  contrast: Float[np.ndarray, "pairs dim"]

  def logits(self, zeta, temperature: float):
    """Returns (sim_ij - sim_ii - zeta_j) / τ; -inf where j is no negative."""
    own = self.sim[np.arange(len(self.row)), self.row]
    logits = (self.sim - own[:, None] - zeta) / temperature
    return np.where(self.negative, logits, -np.inf)

  def gradient(self, weights, rows=slice(None)):
    """Returns sum_j weights_ij (y_j - y_i), over all pairs or some rows."""
    own = self.contrast[self.row]
    return weights @ self.contrast[rows] - weights.sum(1)[:, None] * own


def gradients(
  pairs: Pairs,
  exact: popularity.Popularity,
  readout: Readout,
  temperature: float,
  seed: int,
) -> Row:
  """Returns errors of anchors' gradients, relative to those with exact ζ.

  `zeta`: with the learned ζ, and the right denominators. `stored`: with the
  stored u as denominators, before the batch's own estimate is mixed in.
  `batch`: with those of a batch. The errors are of the mean over all batches;
  `noise` is the root mean square deviation of one batch from that mean, with
  the denominators of the batch or the stored ones.
  """
  random, row = np.random.default_rng([seed, 2]), {}
  n = len(pairs.image)
  chosen = np.sort(random.choice(n, min(NUM_ANCHORS, n), replace=False))
  zeta = _of_pairs(exact.zeta, exact.ids, pairs.ids)
  learned = each(np.zeros_like, zeta)
  if readout.zeta is not None:
    learned = each(lambda x, i: np.asarray(x)[i], readout.zeta, pairs.ids)
  for side, own, contrast, right, ours in zip(
    Sides._fields,
    *(
      Sides(pairs.image, pairs.text),
      swap(Sides(pairs.image, pairs.text)),
      swap(zeta),
      swap(learned),
    ),
    strict=True,
  ):
    equal = [ids[chosen][:, None] == ids for ids in pairs.ids]
    anchors = Anchors(
      *(chosen, own[chosen] @ contrast.T, ~(equal[0] | equal[1]), contrast)
    )
    logits = anchors.logits(right, temperature)
    positive = -right[chosen] / temperature
    weights = np.exp(
      logits - np.logaddexp(logsumexp(logits, axis=1), positive)[:, None]
    )
    target = anchors.gradient(weights)
    norm = np.linalg.norm(target)
    found: Row = {}
    if readout.log_u is not None:
      log_u = np.asarray(getattr(readout.log_u, side))[chosen]
      logits = anchors.logits(ours, temperature)
      total = logsumexp(logits, axis=1)
      for name, denominator in (("zeta", total), ("stored", log_u)):
        weights = np.exp(logits - denominator[:, None])
        error = anchors.gradient(weights) - target
        found[name] = float(np.linalg.norm(error) / norm)
      found["log u"] = float(np.sqrt(np.mean((log_u - total) ** 2)))
      found["noise"] = {
        str(size): of_batches(
          *(anchors, logits, target, size, random), log_u=log_u
        )["noise"]
        for size in BATCHES
        if size < n
      }
    else:
      logits = anchors.logits(0.0, temperature)
      of_sizes = {
        str(size): of_batches(anchors, logits, target, size, random)
        for size in BATCHES
        if size < n
      }
      for name in ("batch", "noise"):
        found[name] = {size: x[name] for size, x in of_sizes.items()}
    row[side] = found
  return row


def of_batches(
  anchors: Anchors, logits, target, size: int, random, *, log_u=None
) -> dict[str, float]:
  """Returns the error of the mean gradient of batches, and its noise.

  Args:
    anchors: The anchors.
    logits: Their logits with all pairs.
    target: Their right gradients.
    size: The pairs of a batch, the anchor among them.
    random: Draws the batches, which all anchors share.
    log_u: The logarithms of stored denominators; None = those of the batch,
      the positive among them.
  """
  n, norm = logits.shape[1], np.linalg.norm(target)
  # Each of the batch's negatives stands for as many pairs.
  log_stored = None if log_u is None else log_u - np.log((n - 1) / (size - 1))
  halves = np.zeros((2, *target.shape))
  square = 0.0
  for draw in range(DRAWS):
    rows = random.choice(n, size - 1, replace=False)
    some, log_total = logits[:, rows], log_stored
    if log_u is None:
      log_total = np.logaddexp(logsumexp(some, axis=1), 0.0)
    weights = np.exp(some - log_total[:, None])
    step = anchors.gradient(weights, rows)
    halves[draw % 2] += step / (DRAWS / 2)
    square += float(np.sum(step**2)) / DRAWS
  one, other = halves
  errors = float(np.sum((one - target) * (other - target)))
  noise = square - float(np.sum(one * other))
  return {
    "batch": max(errors, 0.0) ** 0.5 / float(norm),
    "noise": max(noise, 0.0) ** 0.5 / float(norm),
  }


def _of_pairs(rows: Sides, distinct: Sides, ids: Sides) -> Sides:
  """Returns rows of distinct ids at the ids of pairs."""
  return each(
    lambda x, known, asked: x[np.searchsorted(known, asked)],
    *(rows, distinct, ids),
  )


def corrected(data: Data, embed: Embed, temperature: float) -> Row:
  """Scores retrieval on test: plain, corrected for hubs, and with a prior."""
  sets = data.held_out.get("test")
  if sets is None:
    return {}
  some: suites.Suites = suites.choose_evaluators(
    data._replace(held_out={"test": sets})
  )
  some = suites.correct_hubs(
    some, data, ["csls", "zeta"], temperature=temperature
  )
  prior = make_prior(COUNTS, data.train)
  some = suites.add_prior(some, data, prior, temperature=temperature)
  found: dict[str, float] = {}
  for evaluate in some["test"]:
    found |= evaluate(embed)
  return {
    k: round(float(x), 6) for k, x in found.items() if k.endswith(METRICS)
  }
