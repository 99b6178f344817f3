r"""Scores of pairs by their embeddings: which of them to train on.

Pair i has an image x_i and a text y_i of unit norm, E_ij = x_i . y_j, and all
scores are higher for better pairs. `similarity` is E_ii, CLIPScore. It is high
for a caption that fits every image, too; the others subtract what the image and
the text have with the rest of the data:

  negCLIPLoss:  s_i = E_ii - tau/2 [log sum_{j in B} exp(E_ij / tau)
                                    + log sum_{j in B} exp(E_ji / tau)]

over a random batch B that has i, and

  exact weight: tau log w_ii,  w_ij = exp(E_ij / tau - b_j - D_i)

with the b and D for which all rows and columns of w sum to 1: tau b_j is zeta
of text j. With all pairs in one batch, negCLIPLoss is the same with b and D of
one half step each, from 0, in place of those of the fixed point. Another
question is which images training is for:

  NormSim:  s_i = (sum_z |x_i . z|^p)^(1/p)

over the images z of a target set, of unit norm, too; it ignores the texts.

Embeddings are `Blocks`, which are read as often as necessary, and never as a
whole.
"""

from collections.abc import Callable, Iterator
import logging
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from nuclr_jax import pairwise
from nuclr_jax.lab import progress
from nuclr_jax.lab.data.shards import Blocks
from nuclr_jax.pairwise import tiles
from nuclr_jax.popularity.problem import rounding_of_weights
from nuclr_jax.popularity.sinkhorn import Past, extrapolate
from nuclr_jax.types import Pairs, both, each

log = logging.getLogger(__name__)

ROWS, COLUMNS = 2**17, 2**15  # of a block of the matrix of similarities
READ = 2**14  # rows that are read at a time where no matrix is needed
TOLERANCE = 1e-3
DIGITS = 6  # of NormSim; float32 has errors of some 1e-7
PerPair = Float[np.ndarray, "pairs"]


def similarity(image: Blocks, text: Blocks) -> PerPair:
  """Returns E_ii of every pair.

  Raises:
    ValueError: If a row is zero or not finite.

  Example:
    >>> from nuclr_jax.lab.data.shards import InMemory
    >>> image, text = InMemory(np.eye(2)), InMemory(np.ones((2, 2)))
    >>> print(similarity(image, text).round(3))
    [0.707 0.707]
  """
  own = np.empty(len(image), np.float32)
  for rows in progress.slices("pairs compared", len(image), READ):
    own[rows] = np.einsum("nd,nd->n", image.unit(rows), text.unit(rows))
  return own


def negcliploss(
  image: Blocks,
  text: Blocks,
  *,
  temperature: float,
  batch_size: int,
  seed: tuple[int, ...] = (0,),
) -> PerPair:
  r"""Returns negCLIPLoss of every pair, over one random partition in batches.

    s_i = E_ii - tau/2 [log sum_{j in B} exp(E_ij / tau)
                        + log sum_{j in B} exp(E_ji / tau)]

  The batches are as even as possible: a last one that is smaller, as in the
  published code, would have higher scores. Sums over |B| of n pairs are smaller
  by a factor of about n / |B|, which adds about tau log(n / |B|) to all scores.

  Args:
    image: Embeddings of the images.
    text: Embeddings of the texts.
    temperature: tau, greater than 0.
    batch_size: The most pairs of a batch, at least 3, or else some would be
      alone; from the number of pairs on, all are in one batch.
    seed: What the partition is drawn from; for an average over several, give
      each another one.

  Returns:
    An array [pairs], between -2 - tau log |B| and 0.

  Example:
    >>> from nuclr_jax.lab.data.shards import InMemory
    >>> eye = InMemory(np.eye(4))
    >>> score = negcliploss(eye, eye, temperature=0.5, batch_size=4)
    >>> print(score.round(3), round(1 - 0.5 * np.log(np.exp(2) + 3), 3))
    [-0.17 -0.17 -0.17 -0.17] -0.17

  Source: Wang et al., CLIPLoss and Norm-Based Data Selection Methods for
    Multimodal Contrastive Learning, NeurIPS 2024.
  """
  n = len(image)
  order = np.random.default_rng(seed).permutation(n)
  batches = np.array_split(order, -(-n // batch_size))
  size = len(batches[0])
  size += -size % (jax.device_count() * 8)  # rows are split over devices
  score, done = np.empty(n), 0
  show = progress.reporter("pairs in batches", n, brief=True)
  for batch in map(np.sort, batches):  # files are read forwards
    some = (_padded(x.read(batch), size) for x in (image, text))
    score[batch] = _likelihood(*some, len(batch), temperature)[: len(batch)]
    done += len(batch)
    show(done)
  return score


def normsim(image: Blocks, target: Blocks, *, norm: float) -> PerPair:
  r"""Returns NormSim of every pair: how near its image is to a target's images.

    s_i = (sum_z |x_i . z|^p)^(1/p)

  over the images z of the target. For p = inf it is the greatest |x_i . z|, the
  cosine with the nearest image, and every image is compared with every z; it is
  rounded to 6 digits, so that all images of the target are equally near to it.
  For p = 2 the sum is x_i' (Z' Z) x_i, for which the target is read once.

  Args:
    image: Embeddings of the images of the pairs.
    target: Embeddings of the target's images, by the same model.
    norm: p, either 2 or infinity.

  Returns:
    An array [pairs], from 0 to 1 for p = inf, and to sqrt(len(target)) for
    p = 2.

  Raises:
    ValueError: If a row of the target is zero or not finite; for another p.

  Example:
    >>> from nuclr_jax.lab.data.shards import InMemory
    >>> image = InMemory(np.array([[1.0, 0.0], [-0.6, 0.8]]))
    >>> target = InMemory(np.array([[1.0, 0.0], [2.0, 0.0]]))
    >>> print(normsim(image, target, norm=np.inf).round(3))
    [1.  0.6]
    >>> print(normsim(image, target, norm=2).round(3))
    [1.414 0.849]

  Source: Wang et al., CLIPLoss and Norm-Based Data Selection Methods for
    Multimodal Contrastive Learning, NeurIPS 2024.
  """
  if norm == 2:
    return _root_of_squares(image, target)
  if norm != math.inf:
    raise ValueError(f"norm must be 2 or infinity, got {norm}")
  check_rows(target)
  height, width = (
    min(x, _even(len(y))) for x, y in ((ROWS, image), (COLUMNS, target))
  )
  score, done = np.zeros(len(image), np.float32), 0
  total = len(image) * len(target)
  show = progress.reporter("similarities", total, brief=True)
  for some in _slices(len(image), height):
    block = _padded(image.read(some), height)
    count = some.stop - some.start
    for part in _slices(len(target), width):
      # A row that is there twice changes no maximum.
      x = _padded(target.read(part), width, mode="edge")
      found = np.asarray(_greatest(block, x))[:count]
      score[some] = np.maximum(score[some], found)
      done += count * (part.stop - part.start)
      show(done)
  return score.round(DIGITS)


def check_rows(target: Blocks) -> None:
  """Reads all rows; raises ValueError if one is zero or not finite."""
  for rows in progress.slices("images of the target read", len(target), READ):
    target.unit(rows)


def _root_of_squares(image: Blocks, target: Blocks) -> PerPair:
  """Returns |R' x_i|, with R R' = Z' Z.

  Rounding errors of a root are relative to its own size: those of x' (Z' Z) x
  would be relative to the greatest eigenvalue, and could make it negative.
  """
  dim = target.read(slice(0, 1)).shape[1]
  gram = np.zeros((dim, dim))
  for rows in progress.slices("images of the target read", len(target), READ):
    x = target.unit(rows).astype(float)
    gram += x.T @ x
  values, vectors = np.linalg.eigh(gram)
  root = (vectors * np.sqrt(np.maximum(values, 0))).astype(np.float32)
  score = np.empty(len(image), np.float32)
  for rows in progress.slices("images compared", len(image), READ):
    score[rows] = np.linalg.norm(image.unit(rows) @ root, axis=1)
  return score


def _reporter(tolerance: float) -> Callable[[int, float], None]:
  """Returns what logs the residual now and then, with the remaining time."""
  began = shown = time.monotonic()
  first = None

  def show(iteration: int, residual: float) -> None:
    nonlocal shown, first
    now, first = time.monotonic(), first or residual
    if now < shown + progress.PERIOD and residual > tolerance:
      return
    shown, done = now, math.log(first / residual)
    todo = math.log(max(residual / tolerance, 1))
    log.info(
      "exact weights: iteration %d, residual %.2g of %.2g  ETA %s",
      iteration,
      residual,
      tolerance,
      progress.duration((now - began) * todo / done if done > 0 else math.inf),
    )

  return show


class Balance(NamedTuple):
  """The b and D at which all rows and columns of w sum to 1."""

  potential: PerPair  # b of the texts, zeta / temperature, with mean 0
  log_denominator: PerPair  # D of the images
  residual: float  # max_j |1 - sum_i w_ij|
  iterations: int


class Unfinished(NamedTuple):
  """Where `balance` was: the next b, and the past that leads on from it."""

  potential: PerPair
  past: Past
  iterations: int


def balance(
  image: Blocks,
  text: Blocks,
  *,
  temperature: float,
  num_pairs: int | None = None,
  begin: Unfinished | None = None,
  keep: Callable[[Unfinished], None] = lambda state: None,
  tolerance: float = TOLERANCE,
  max_iterations: int = 1000,
) -> Balance:
  r"""Finds exact popularities, as `popularity.solve`, from blocks.

    D_i = log[rho sum_{j != i} exp(E_ij / tau - b_j) + exp(E_ii / tau - b_i)]
    b_j = log[rho sum_{i != j} exp(E_ij / tau - D_i) + exp(E_jj / tau - D_j)]

  alternately, with Anderson's acceleration. An iteration takes two products of
  all images with all texts. It knows of no copies: they share the weight of
  their common text or image.

  Args:
    image: Embeddings of the images.
    text: Embeddings of the texts.
    temperature: tau, greater than 0.
    num_pairs: The size of the data set, if these pairs are a sample of it;
      rho = (num_pairs - 1) / (pairs - 1).
    begin: Where an earlier call was, to continue it.
    keep: Is called with where the iteration is, before each one.
    tolerance: The residual to reach.
    max_iterations: The most iterations; a warning says if they were too few.

  Raises:
    ValueError: If the temperature is so low that rounding hides the weights.
  """
  n = len(image)
  one = np.ones((1, 1), np.float32)
  rounding_of_weights(temperature, image=one, text=one)
  log_ratio = np.log(max((num_pairs or n) - 1, 1) / max(n - 1, 1))
  own = similarity(image, text) / temperature

  def half_step(rows, columns, potential):
    sums = log_sums(
      rows, columns, -potential, temperature=temperature, others=np.arange(n)
    )
    return np.logaddexp(sums + log_ratio, own - potential)

  show = _reporter(tolerance)
  state = begin or Unfinished(np.zeros(n), Past([], []), 0)
  b, past, first = state.potential, state.past, state.iterations
  for iteration in range(first, max_iterations + 1):
    keep(Unfinished(b, past, iteration))
    b = b - b.mean()
    log_denominator = half_step(image, text, b)
    step = half_step(text, image, log_denominator) - b
    residual = float(np.abs(np.expm1(step)).max())
    show(iteration, residual)
    if residual <= tolerance or iteration == max_iterations:
      break
    b = extrapolate(past, b, step - step.mean())
  if residual > tolerance:
    log.warning(
      "exact weights: not converged, residual %.4g after %d iterations, wanted "
      "%.4g; raise the temperature",
      residual,
      iteration,
      tolerance,
    )
  return Balance(b, log_denominator, residual, iteration)


def log_weight_of_positive(
  found: Balance,
  image: Blocks,
  text: Blocks,
  *,
  temperature: float,
  sample: Int[np.ndarray, "sample"] | None = None,
) -> PerPair:
  r"""Returns log w_ii of every pair.

  Where all pairs were balanced, log w_ii = E_ii / tau - b_i - D_i. From a
  sample S, the sums of all other weights of a row and of a column are estimated
  up to their own b_i and D_i, which then follow from both being 1: with

    A_i = rho_i sum_{j in S - i} exp(E_ij / tau - b_j)
    C_i = rho_i sum_{j in S - i} exp(E_ji / tau - D_j)
    G_i = A_i C_i / exp(E_ii / tau)

  w_ii = exp(-b_i - D_i + E_ii / tau), 1 - w_ii = C_i exp(-b_i) = A_i exp(-D_i)
  give (1 - w_ii)^2 = w_ii G_i, rho_i = (n - 1) / (|S| - [i in S]), and

    w_ii = 2 / (2 + G_i + sqrt(G_i^2 + 4 G_i)).

  Args:
    found: What `balance` returned.
    image: Embeddings of all images.
    text: Embeddings of all texts.
    temperature: tau, greater than 0.
    sample: Which pairs were balanced; None means all.
  """
  n, own = len(image), similarity(image, text) / temperature
  if sample is None:
    return own - found.potential - found.log_denominator
  others = len(sample) - np.isin(np.arange(n), sample)
  logs = [
    log_sums(
      rows,
      columns.subset(sample),
      -weight,
      temperature=temperature,
      others=sample,
    )
    for rows, columns, weight in (
      (image, text, found.potential),
      (text, image, found.log_denominator),
    )
  ]
  return weight_of_others(sum(logs) + 2 * np.log((n - 1) / others) - own)


def weight_of_others(log_others: PerPair) -> PerPair:
  """Returns log w for (1 - w)^2 = w G, from log G.

  Example:
    >>> print(np.exp(weight_of_others(np.log([0.5, 1e300, 1e-300]))).round(6))
    [0.5 0.  1. ]
  """
  g = np.asarray(log_others, float)
  small = np.exp(np.minimum(g, 0))
  large = np.exp(-np.maximum(g, 0))
  return np.log(2) - np.where(
    g < 0,
    np.log(2 + small + np.sqrt(small**2 + 4 * small)),
    g + np.log(2 * large + 1 + np.sqrt(1 + 4 * large)),
  )


def log_sums(
  rows: Blocks,
  columns: Blocks,
  log_weight: Float[np.ndarray, "columns"],
  *,
  temperature: float,
  others: Int[np.ndarray, "columns"],
) -> Float[np.ndarray, "rows"]:
  r"""Returns log sum_j exp(row_i . column_j / tau + log_weight_j), for j not i.

  Args:
    rows: Embeddings of one side.
    columns: Embeddings of the other side.
    log_weight: The log of each column's weight.
    temperature: tau, greater than 0.
    others: The row to which each column belongs, which leaves it out.
  """
  height, width = (
    min(x, _even(len(y))) for x, y in ((ROWS, rows), (COLUMNS, columns))
  )
  sums = np.full(len(rows), -np.inf)
  total, done = len(rows) * len(columns), 0
  show = progress.reporter("similarities", total, brief=True)
  for some in _slices(len(rows), height):
    block = _padded(rows.read(some), height)
    row_ids = _ids(np.arange(some.start, some.stop), height, -1)
    for part in _slices(len(columns), width):
      weight = np.full(width, -np.inf, np.float32)
      weight[: part.stop - part.start] = log_weight[part]
      found = _row_log_sums(
        block,
        _padded(columns.read(part), width),
        weight,
        row_ids,
        _ids(others[part], width, -2),
        temperature,
      )
      count = some.stop - some.start
      sums[some] = np.logaddexp(sums[some], np.asarray(found, float)[:count])
      done += count * (part.stop - part.start)
      show(done)
  return sums


def _even(count: int) -> int:
  """Rounds up, so that devices have equal shares of the rows."""
  return count + -count % (jax.device_count() * 8)


def _slices(n: int, size: int) -> Iterator[slice]:
  for start in range(0, n, size):
    yield slice(start, min(start + size, n))


def _ids(ids, length: int, fill: int) -> np.ndarray:
  padded = np.full((length, 1), fill, np.int32)
  padded[: len(ids), 0] = ids
  return padded


def _padded(x: np.ndarray, length: int, **how: Any) -> np.ndarray:
  """Appends rows, by default of ones, which no result shows."""
  if x.dtype.itemsize > 4:  # numbers may be out of the range of float32
    x = x / np.abs(x).max(axis=1, keepdims=True)
  how = how or {"constant_values": 1}
  return np.pad(x, [(0, length - len(x)), (0, 0)], **how)


def _unit(x: Float[Array, "rows dim"]) -> Float[Array, "rows dim"]:
  """Scales rows to unit norm, in float32; squares cannot overflow."""
  x = x.astype(jnp.float32)
  return pairwise.unit_norm(x / jnp.max(jnp.abs(x), axis=1, keepdims=True))


@jax.jit
def _row_log_sums(rows, columns, log_weight, row_ids, column_ids, temperature):
  return tiles.row_log_sum_exp(
    _unit(rows),
    _unit(columns),
    log_weight,
    temperature=temperature,
    row_ids=row_ids,
    column_ids=column_ids,
  )


@jax.jit
def _greatest(rows, columns):
  """Returns max_j |row_i . column_j|."""

  def step(rows, columns, greatest):
    cosines = jnp.abs(tiles.matmul(rows, columns.T))  # 0 beyond the end
    return jnp.maximum(greatest, jnp.max(cosines, axis=1))

  zeros = jnp.zeros(len(rows))
  return tiles.over_rows(step, _unit(rows), _unit(columns), zeros)


@jax.jit
def _likelihood(image, text, count, temperature):
  """Returns tau times the mean of both log-likelihoods of each pair."""
  numbers = jnp.arange(len(image))
  pairs = Pairs(_unit(image), _unit(text), numbers)
  beyond = jnp.where(numbers < count, 0.0, jnp.inf)  # in no sum
  logits = pairwise.logits(pairs, temperature=temperature, bias=both(beyond))
  rest = pairwise.log_sum_exp(logits)  # relative to the pair's own term
  losses = each(jax.nn.softplus, rest)
  return -temperature / 2 * (losses.image + losses.text)
