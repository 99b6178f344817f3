r"""The popularity problem of a set of pairs, ready to be solved.

Pairs i, j have similarities sim_ij and potentials b_j = zeta_j / temperature.
Images are anchors (for texts as anchors, the sides are swapped). If the problem
has m of the n pairs in the data set, rho = (n - 1) / (m - 1), and N(i) are the
pairs that share neither image nor text with pair i, then

  D_i = log[ rho sum_{j in N(i)} exp(sim_ij / temperature - b_j)
             + exp(sim_ii / temperature - b_i) ]           (`log_denominators`)
  w_ij = exp(sim_ij / temperature - b_j - D_i)

and, where the popularities solve eq. (8) of the paper, the mean of
rho sum_{i in N(j)} w_ij + w_jj over the pairs j of each text is 1. For given D
this means b = `potentials(D)`: alternating the two is Sinkhorn's iteration.

Repeated images or texts are stored once and summed over once, as one "cell",
wherever the mask of shared ids allows it. Similarities are computed on the
devices, tile by tile; values per pair are float64 on the host.
"""

import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.pairwise import tiles
from nuclr_jax.popularity import progress
from nuclr_jax.types import AnyArray, Sides, both, each, swap

SAME = 1e-3  # how far apart embeddings of one id may be
MULTIPLE = 1024  # larger numbers of cells are padded to a multiple
UNRESOLVED = 1 / 8  # relative rounding error of weights that mean nothing
HALVINGS = 40  # steps of the bisection for a potential
BLOCK = 2**30  # similarities between two lines of progress
ROWS = 2**14  # that are checked at a time
PerPair = Float[np.ndarray, "pairs"]


class Groups(NamedTuple):
  """A partition of the pairs."""

  of_pair: Int[np.ndarray, "pairs"]  # group of each pair, in [0, groups)
  order: Int[np.ndarray, "pairs"]  # the pairs, group by group
  start: Int[np.ndarray, "groups"]  # where each group starts in that order

  def log_sum(self, values: PerPair) -> Float[np.ndarray, "groups"]:
    """Returns log sum exp over the pairs of each group."""
    return np.logaddexp.reduceat(values[self.order], self.start)

  def log_mean(self, values: PerPair) -> PerPair:
    """Returns, for each pair, log mean exp over the pairs of its group."""
    count = np.diff(self.start, append=len(self.order))
    return (self.log_sum(values) - np.log(count))[self.of_pair]

  @property
  def first(self) -> Int[np.ndarray, "groups"]:
    """The first pair of each group."""
    return self.order[self.start]


def make_groups(label: Int[np.ndarray, "pairs"]) -> Groups:
  """Groups pairs with equal labels, in the order of the labels."""
  _, of_pair = np.unique(label, return_inverse=True)
  order = np.argsort(of_pair, kind="stable")
  start = np.flatnonzero(np.diff(of_pair[order], prepend=-1))
  return Groups(of_pair, order, start)


class Cells(NamedTuple):
  """The embeddings of one side, on the devices, and which pairs have them.

  Numbers of cells above `MULTIPLE` are rounded up to a multiple of it, so that
  problems of similar size have the same shapes and are compiled once.
  """

  embedding: Float[Array, "cells dim"]
  ids: Int[Array, "cells spaces"]  # cells with an id in common are not compared
  groups: Groups


class Problem(NamedTuple):
  """Which images are compared with which texts, and how."""

  cells: Sides  # `Cells` of images and of texts
  ids: Sides  # `Groups` of the pairs that share an image, a text
  own: PerPair  # sim_ii / temperature
  log_ratio: float  # log of rho
  temperature: float

  def swap(self) -> "Problem":
    """Returns the same problem with texts as anchors."""
    return self._replace(cells=swap(self.cells), ids=swap(self.ids))


class Checked(NamedTuple):
  """Pairs that have passed the checks, on the host."""

  embedding: Sides  # [pairs, dim] each, of one dtype
  ids: Sides  # the distinct ids, sorted
  rows: Sides  # [pairs] each: the index of the pair's id in `ids`


def checked_pairs(image, text, image_id=None, text_id=None) -> Checked:
  """Checks the embeddings and ids that `solve` takes.

  Raises:
    ValueError: If shapes do not fit, values or norms are not finite, or equal
      ids have different embeddings.
  """
  image, text = map(np.asarray, (image, text))
  shape = image.shape
  if len(shape) != 2 or text.shape != shape or not image.size:
    raise ValueError(
      "image and text must be of one shape [pairs, dim] with at least one "
      f"pair, got {list(shape)} and {list(text.shape)}; give one row per pair, "
      "such as text[text_id]"
    )
  dtype = jax.dtypes.canonicalize_dtype(np.result_type(np.float32, image, text))
  embedding = each(lambda x: x.astype(dtype, copy=False), Sides(image, text))
  ids, rows = [], []
  for side, x, side_ids in zip(
    Sides._fields, embedding, (image_id, text_id), strict=True
  ):
    with np.errstate(all="ignore"):
      squares = np.einsum("nd,nd->n", x, x)
    lost = ~np.isfinite(squares) | ((squares == 0) & x.any(axis=1))
    if lost.any():
      raise ValueError(
        f"{side} must be finite, with norms that {x.dtype} can hold; row "
        f"{np.argmax(lost)} is not ({np.sum(lost)} such rows). Scale them to "
        "unit norm, or leave these pairs out"
      )
    side_ids = np.arange(len(x)) if side_ids is None else np.asarray(side_ids)
    if side_ids.shape != (len(x),) or side_ids.dtype.kind not in "iu":
      raise ValueError(
        f"{side}_id must be integers of shape [{len(x)}], got "
        f"{side_ids.dtype}{list(side_ids.shape)}"
      )
    distinct, first, row = np.unique(
      side_ids, return_index=True, return_inverse=True
    )
    apart = np.zeros(len(x))
    repeats = np.flatnonzero(first[row] != np.arange(len(x)))
    for start in range(0, len(repeats), ROWS):
      some = repeats[start : start + ROWS]
      apart[some] = np.abs(x[some] - x[first[row[some]]]).max(axis=1)
    if apart.max() > SAME:
      i = int(apart.argmax())
      raise ValueError(
        f"equal {side}_id must have equal embeddings; pairs {first[row[i]]} "
        f"and {i} have {side}_id {side_ids[i]} and differ by {apart[i]:.2g}. "
        "Embed without augmentation, or give them ids of their own"
      )
    ids.append(distinct)
    rows.append(row)
  return Checked(embedding, Sides(*ids), Sides(*rows))


def rounding_of_weights(temperature: float, **sides: AnyArray) -> float:
  """Returns how far rounding may change the weights, relative to them.

  That is the distance between numbers of the size of sim / temperature, so that
  in float32, embeddings of unit norm need a temperature well above 1e-6.

  Args:
    temperature: The temperature.
    **sides: The embeddings of both sides, by names for the message.

  Raises:
    ValueError: If the weights would mean nothing.

  Example:
    >>> eye = np.eye(3, dtype=np.float32)
    >>> print(f"{rounding_of_weights(0.05, image=eye, text=eye):.2g}")
    2.4e-06
  """
  squares = {
    name: np.einsum("nd,nd->n", x, x, dtype=float).max(initial=0)
    for name, x in sides.items()
  }
  dtype = np.result_type(np.float32, *sides.values())
  spacing = float(jnp.finfo(jax.dtypes.canonicalize_dtype(dtype)).eps)
  largest = math.sqrt(math.prod(squares.values())) / temperature
  if not largest * spacing <= UNRESOLVED:  # or not a number
    shown = " and ".join(f"{name} {x**0.5:.2g}" for name, x in squares.items())
    raise ValueError(
      f"similarities / temperature may reach {largest:.2g} (the greatest norms "
      f"are {shown}, the temperature is {temperature:g}), but from "
      f"{UNRESOLVED / spacing:.2g} on, rounding hides the weights; scale the "
      "embeddings to unit norm, or choose a temperature in proportion to the "
      "similarities"
    )
  return largest * spacing


def make_problem(
  pairs: Checked,
  *,
  temperature: float,
  num_pairs: int | None = None,
  sample: Int[np.ndarray, "sample"] | None = None,
) -> Problem:
  """Makes the problem of all pairs, or of a `sample` of them.

  If all images are distinct, equal texts can share a cell, because the mask
  depends on text ids only; the same holds with the sides swapped. If both
  repeat, the mask depends on both ids and every pair has its own cell.

  Args:
    pairs: All pairs.
    temperature: The temperature, greater than 0.
    num_pairs: The size of the data set; None means the number of `pairs`.
    sample: Indices of the pairs in the problem; None means all. `log_sums` can
      combine the cells of two problems made from the same `pairs`.

  Raises:
    ValueError: If `num_pairs` is smaller than the number of `pairs`.
  """
  n = len(pairs.rows.image)
  num_pairs = n if num_pairs is None else num_pairs
  if num_pairs < n:
    raise ValueError(f"num_pairs must be at least {n}, got {num_pairs}")
  everyone = np.arange(n)
  if len(pairs.ids.image) == n:
    cell_of, spaces = Sides(everyone, pairs.rows.text), ("text",)
  elif len(pairs.ids.text) == n:
    cell_of, spaces = Sides(pairs.rows.image, everyone), ("image",)
  else:
    cell_of, spaces = both(everyone), ("image", "text")
  shown = np.stack([getattr(pairs.rows, space) for space in spaces], axis=1)
  here = everyone if sample is None else np.asarray(sample)

  def cells(embedding, cell):
    groups = make_groups(cell[here])
    at = here[groups.first]
    length = len(at) + (-len(at) % MULTIPLE if len(at) > MULTIPLE else 0)

    def padded(x):
      rows = np.zeros((length, x.shape[1]), x.dtype)
      np.take(x, at, axis=0, out=rows[: len(at)], mode="clip")  # a single copy
      return rows

    on_device = padded(embedding), padded(shown.astype(np.int32))
    return Cells(*sharding.replicate(on_device), groups)

  image, text = each(lambda x: x[here], pairs.embedding)
  return Problem(
    cells=each(cells, pairs.embedding, cell_of),
    ids=each(lambda row: make_groups(row[here]), pairs.rows),
    own=np.einsum("nd,nd->n", image, text, dtype=float) / temperature,
    log_ratio=float(np.log(max(num_pairs - 1, 1) / max(len(here) - 1, 1))),
    temperature=temperature,
  )


def log_sums(
  to: Cells,
  over: Cells,
  log_weight: Float[np.ndarray, "others"],
  temperature: float,
) -> PerPair:
  """Returns log sum_j exp(sim_ij / temperature + log_weight_j) for each i.

  i are the pairs of `to`, j the pairs of `over` that are negatives of i.
  """
  weight = over.groups.log_sum(log_weight).astype(over.embedding.dtype)
  padding = (0, len(over.embedding) - len(weight))
  weight = np.pad(weight, padding, constant_values=-np.inf)
  sums = row_log_sums(
    to.embedding,
    over.embedding,
    weight,
    temperature=temperature,
    row_ids=to.ids,
    column_ids=over.ids,
  )
  return sums[to.groups.of_pair]


def row_log_sums(
  rows: Float[AnyArray, "rows dim"],
  columns: Float[AnyArray, "columns dim"],
  log_weight: Float[AnyArray, "columns"],
  *,
  temperature: float,
  row_ids: Int[AnyArray, "rows spaces"] | None = None,
  column_ids: Int[AnyArray, "columns spaces"] | None = None,
) -> Float[np.ndarray, "rows"]:
  """Returns `tiles.row_log_sum_exp`, and logs progress where it takes long."""
  # On the devices once, not once for each block.
  rows, columns, log_weight, row_ids, column_ids = jax.tree.map(
    jnp.asarray, (rows, columns, log_weight, row_ids, column_ids)
  )
  n, per_row = len(rows), max(1, len(columns))
  size = max(MULTIPLE, BLOCK // per_row // MULTIPLE * MULTIPLE)
  size, sums = min(n, size), np.empty(n)
  what = f"rows summed over {per_row} others"
  for part in progress.slices(what, n, size):
    # All blocks have one shape, which is compiled once: the last one overlaps.
    start = part.stop - size
    block, ids = jax.tree.map(
      lambda x, start=start: lax.dynamic_slice_in_dim(x, start, size),
      (rows, row_ids),
    )
    sums[start : part.stop] = sharding.fetch(
      tiles.row_log_sum_exp(
        block,
        columns,
        log_weight,
        temperature=temperature,
        row_ids=ids,
        column_ids=column_ids,
      )
    )
  return sums


def log_negatives(problem: Problem, potential: PerPair) -> PerPair:
  """Returns log[rho sum_{j in N(i)} exp(sim_ij / temperature - b_j)]."""
  sums = log_sums(*problem.cells, -potential, problem.temperature)
  return sums + problem.log_ratio


def log_denominators(problem: Problem, potential: PerPair) -> PerPair:
  """Returns D of every anchor, see the top of this file."""
  rest = log_negatives(problem, potential)
  return np.logaddexp(rest, problem.own - potential)


def potentials(problem: Problem, log_denominator: PerPair) -> PerPair:
  """Returns the b of every contrast for given D."""
  sums = log_sums(*swap(problem.cells), -log_denominator, problem.temperature)
  own = problem.own - log_denominator
  return problem.ids.text.log_mean(np.logaddexp(sums + problem.log_ratio, own))


def extend(
  full: Problem,
  part: Problem,
  potential: Float[np.ndarray, "sample"],
  log_ratio: PerPair,
) -> tuple[PerPair, PerPair]:
  """Returns b and `log_negatives` of all pairs, from the solution of a sample.

  With both sums taken over the sample, b is the value at which the mean of
  rho sum_i w_ij + w_jj over the pairs j of a text is 1. This mean decreases
  with b, so b is found by bisection.

  Args:
    full: The problem of all pairs.
    part: The problem of the sample.
    potential: The b of the sample.
    log_ratio: log of rho for each pair; it depends on whether the pair is in
      the sample.
  """
  tau, own, log_mean = full.temperature, full.own, full.ids.text.log_mean
  (image, text), (image_sample, text_sample) = full.cells, part.cells
  rest = log_sums(image, text_sample, -potential, tau) + log_ratio
  log_denominator = log_denominators(part, potential)
  anchors = log_sums(text, image_sample, -log_denominator, tau) + log_ratio
  # The bounds are b for w_jj = 0 and for w_jj = exp(own - rest - b).
  low = log_mean(anchors)
  high = log_mean(np.logaddexp(anchors, own - rest))
  for _ in range(HALVINGS):
    middle = (low + high) / 2
    positive = own - middle - np.logaddexp(rest, own - middle)
    above = log_mean(np.logaddexp(anchors - middle, positive)) > 0
    low, high = np.where(above, middle, low), np.where(above, high, middle)
  return (low + high) / 2, rest
