"""ζ on natural data: learned and exact, what it follows, and what it is for."""

from functools import partial
import time

from jaxtyping import Float, Int
import numpy as np
from scipy.special import logsumexp

from experiments.harness import Row
from experiments.popularity.at_scale.measure import (
  difference,
  gradient_of,
  weigh,
)
from experiments.popularity.at_scale.steps import relative
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
  exact = solve(pairs, temperature)
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


def solve(pairs: Pairs, temperature: float) -> popularity.Popularity:
  """Solves for the exact ζ of pairs that share names."""
  return popularity.solve(
    *(pairs.image, pairs.text),
    temperature=temperature,
    image_id=pairs.ids.image,
    text_id=pairs.ids.text,
  )


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
  found = agreement.compare(a, b)["pearson"]
  return None if np.isnan(found) else found


def _slope(x: np.ndarray, y: np.ndarray) -> float | None:
  return None if np.ptp(x) == 0 else float(np.polyfit(x, y, 1)[0])


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
  positive = np.zeros((len(chosen), n), bool)
  for ids in pairs.ids:
    positive |= ids[chosen][:, None] == ids
  exact_zeta = _of_pairs(exact.zeta, exact.ids, pairs.ids)
  learned = each(np.zeros_like, exact_zeta)
  if readout.zeta is not None:
    learned = each(lambda x, i: np.asarray(x)[i], readout.zeta, pairs.ids)
  vectors = Sides(pairs.image, pairs.text)
  for side, own, contrast, right, ours in zip(
    Sides._fields,
    *(vectors, swap(vectors), swap(exact_zeta), swap(learned)),
    strict=True,
  ):
    sim = own[chosen] @ contrast.T

    def terms(zeta, sim=sim):
      found = weigh(sim, zeta, temperature, chosen)
      found.others[positive] = -np.inf
      return found

    target, _ = gradient_of(contrast, terms(right), chosen)
    logits = terms(ours).others
    steps = partial(of_batches, contrast, chosen, logits, target, random=random)
    sizes, found = [size for size in BATCHES if size < n], {}
    if readout.log_u is None:
      of_sizes = {str(size): steps(size) for size in sizes}
      found["batch"] = {size: x["error"] for size, x in of_sizes.items()}
    else:
      log_u = np.asarray(getattr(readout.log_u, side))[chosen]
      total = logsumexp(logits, axis=1)
      for name, denominator in (("zeta", total), ("stored", log_u)):
        weights = np.exp(logits - denominator[:, None])
        error = difference(contrast, weights, chosen) - target
        found[name] = relative(error, error, target)
      found["log u"] = float(np.sqrt(np.mean((log_u - total) ** 2)))
      of_sizes = {str(size): steps(size, log_u=log_u) for size in sizes}
    found["noise"] = {size: x["noise"] for size, x in of_sizes.items()}
    row[side] = found
  return row


def of_batches(
  contrast: Float[np.ndarray, "pairs dim"],
  anchors: Int[np.ndarray, "anchors"],
  logits: Float[np.ndarray, "anchors pairs"],
  target: Float[np.ndarray, "anchors dim"],
  size: int,
  *,
  random: np.random.Generator,
  log_u: Float[np.ndarray, "anchors"] | None = None,
) -> dict[str, float]:
  """Returns the error of the mean gradient of batches, and its noise.

  Args:
    contrast: The vectors that anchors are contrasted with.
    anchors: The pairs of the anchors.
    logits: Their logits with all pairs.
    target: Their right gradients.
    size: The pairs of a batch, the anchor among them.
    random: Draws the batches, which all anchors share.
    log_u: The logarithms of stored denominators; None = those of the batch,
      the positive among them.
  """
  n = logits.shape[1]
  # Each of the batch's negatives stands for as many pairs.
  log_stored = None if log_u is None else log_u - np.log((n - 1) / (size - 1))
  halves, square = np.zeros((2, *target.shape)), 0.0
  for draw in range(DRAWS):
    rows = random.choice(n, size - 1, replace=False)
    some, log_total = logits[:, rows], log_stored
    if log_u is None:
      log_total = np.logaddexp(logsumexp(some, axis=1), 0.0)
    weights = np.exp(some - log_total[:, None])
    step = difference(contrast, weights, anchors, rows)
    halves[draw % 2] += step / (DRAWS / 2)
    square += float(np.sum(step**2)) / DRAWS
  one, other = halves
  noise = max(square - float(np.sum(one * other)), 0.0) ** 0.5
  return {
    "error": relative(one - target, other - target, target),
    "noise": noise / float(np.linalg.norm(target)),
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
