r"""The popularity problem of a set of pairs, ready to be solved.

Pairs i, j with similarities sim_ij and potentials b_j = zeta_j / temperature.
With images as anchors (texts likewise, the sides swapped), n pairs in the data
set of which m are here, rho = (n - 1) / (m - 1) and N(i) the pairs that share
neither image nor text with pair i,

  D_i = log[ rho sum_{j in N(i)} exp(sim_ij / temperature - b_j)
             + exp(sim_ii / temperature - b_i) ]           (`log_denominators`)
  w_ij = exp(sim_ij / temperature - b_j - D_i)

and the popularities that solve eq. (8) of the paper have, as the mean over the
pairs j of each text, rho sum_{i in N(j)} w_ij + w_jj = 1. For given D that
means b = `potentials(D)`: alternating the two is Sinkhorn's iteration.

Images or texts that repeat are embedded once and summed over once wherever the
mask of shared ids allows it ("cells"). Similarities live on the devices, tile
by tile; what is per pair is float64 on the host.
"""

from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Int
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import Sides, both, each, swap

SAME = 1e-3  # how far embeddings of one id may be apart
MULTIPLE = 1024  # more cells than this are padded, to compile less often
HALVINGS = 40  # of the interval in which a potential is sought
PerPair = Float[np.ndarray, "pairs"]


class Groups(NamedTuple):
  """A partition of the pairs."""

  of_pair: Int[np.ndarray, "pairs"]  # group of each pair, in [0, groups)
  order: Int[np.ndarray, "pairs"]  # the pairs, group by group
  start: Int[np.ndarray, "groups"]  # where each group starts in that order

  def log_sum(self, values: PerPair) -> Float[np.ndarray, "groups"]:
    """Log sum exp over the pairs of each group."""
    return np.logaddexp.reduceat(values[self.order], self.start)

  def log_mean(self, values: PerPair) -> PerPair:
    """Log mean exp over the pairs of each group, at each of its pairs."""
    count = np.diff(self.start, append=len(self.order))
    return (self.log_sum(values) - np.log(count))[self.of_pair]

  @property
  def first(self) -> Int[np.ndarray, "groups"]:
    """The first pair of each group."""
    return self.order[self.start]


def make_groups(label: Int[np.ndarray, "pairs"]) -> Groups:
  """Groups pairs with equal labels; groups are in the order of the labels."""
  _, of_pair = np.unique(label, return_inverse=True)
  order = np.argsort(of_pair, kind="stable")
  start = np.flatnonzero(np.diff(of_pair[order], prepend=-1))
  return Groups(of_pair, order, start)


class Cells(NamedTuple):
  """The embeddings of one side, on the devices, and which pairs have them.

  Their number is rounded up to whole tiles, so that samples of other data
  have the same shapes and nothing is compiled again.
  """

  embedding: Float[Array, "cells dim"]
  ids: Int[Array, "cells spaces"]  # cells with an id in common are not compared
  groups: Groups


class Problem(NamedTuple):
  """Who is compared with whom."""

  cells: Sides  # `Cells` of images and of texts
  ids: Sides  # `Groups` of the pairs with one image, with one text
  own: PerPair  # sim_ii / temperature
  log_ratio: float  # log of rho
  temperature: float

  def swap(self) -> "Problem":
    """The same with texts as anchors: what is said of images is of texts."""
    return self._replace(cells=swap(self.cells), ids=swap(self.ids))


class Checked(NamedTuple):
  """Pairs that make sense, on the host."""

  embedding: Sides  # [pairs, dim] each, of one type
  ids: Sides  # the distinct ids, sorted
  rows: Sides  # [pairs] each: which of the distinct ids a pair has


def checked_pairs(image, text, image_id=None, text_id=None) -> Checked:
  """Checks embeddings and ids as `solve` takes them, whatever they are.

  Raises:
    ValueError: For shapes that do not fit, values that are not finite, or
      equal ids with different embeddings.
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
  embedding = Sides(image.astype(dtype), text.astype(dtype))
  ids, rows = [], []
  for side, x, given in zip(
    Sides._fields, embedding, (image_id, text_id), strict=True
  ):
    wrong = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if wrong.size:
      raise ValueError(
        f"{side} must be finite; row {wrong[0]} is not ({wrong.size} such "
        "rows). Find out what made them, or leave these pairs out"
      )
    given = np.arange(len(x)) if given is None else np.asarray(given)
    if given.shape != (len(x),) or given.dtype.kind not in "iu":
      raise ValueError(
        f"{side}_id must be integers of shape [{len(x)}], got "
        f"{given.dtype}{list(given.shape)}"
      )
    distinct, first, row = np.unique(
      given, return_index=True, return_inverse=True
    )
    apart = np.abs(x - x[first][row]).max(axis=1)
    if apart.max() > SAME:
      i = int(apart.argmax())
      raise ValueError(
        f"equal {side}_id must have equal embeddings; pairs {first[row[i]]} "
        f"and {i} have {side}_id {given[i]} and differ by {apart[i]:.2g}. "
        "Embed without augmentation, or give them ids of their own"
      )
    ids.append(distinct)
    rows.append(row)
  return Checked(embedding, Sides(*ids), Sides(*rows))


def make_problem(
  pairs: Checked,
  *,
  temperature: float,
  num_pairs: int | None = None,
  sample: Int[np.ndarray, "sample"] | None = None,
) -> Problem:
  """Makes the problem of all pairs, or of a `sample` of them.

  If the images are all distinct, equal texts can be one cell, as the mask
  looks at texts only; likewise the other way round. If both repeat, the mask
  looks at both and every pair is its own cell.

  Args:
    pairs: All pairs.
    temperature: Greater than 0.
    num_pairs: Size of the data set; None = all pairs.
    sample: Indices of the pairs of the problem; None = all. The cells of two
      problems made from the same `pairs` go together, see `log_sums`.

  Raises:
    ValueError: If `num_pairs` is smaller than the number of pairs here.
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
    padding = [
      (0, -len(at) % MULTIPLE if len(at) > MULTIPLE else 0),
      (0, 0),
    ]
    on_device = (embedding[at], shown[at].astype(np.int32))
    on_device = sharding.replicate([np.pad(x, padding) for x in on_device])
    return Cells(*on_device, groups)

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
  """Log sum_j exp(sim_ij / temperature + log_weight_j), by pair i of `to`.

  The sum is over the pairs j of `over` that are negatives of i.
  """
  weight = over.groups.log_sum(log_weight).astype(over.embedding.dtype)
  found = tiles.log_sum_exp(
    to.embedding,
    over.embedding,
    np.pad(
      weight,
      (0, len(over.embedding) - len(weight)),
      constant_values=-np.inf,
    ),
    temperature=temperature,
    row_ids=to.ids,
    column_ids=over.ids,
  )
  return np.asarray(sharding.fetch(found), float)[to.groups.of_pair]


def log_negatives(problem: Problem, potential: PerPair) -> PerPair:
  """Log rho sum_{j in N(i)} exp(sim_ij / temperature - b_j), by anchor."""
  found = log_sums(*problem.cells, -potential, problem.temperature)
  return found + problem.log_ratio


def log_denominators(problem: Problem, potential: PerPair) -> PerPair:
  """D of every anchor, see the head of this file."""
  rest = log_negatives(problem, potential)
  return np.logaddexp(rest, problem.own - potential)


def potentials(problem: Problem, log_denominator: PerPair) -> PerPair:
  """The b of every contrast that belong to given D."""
  found = log_sums(*swap(problem.cells), -log_denominator, problem.temperature)
  own = problem.own - log_denominator
  return problem.ids.text.log_mean(np.logaddexp(found + problem.log_ratio, own))


def extend(
  full: Problem,
  part: Problem,
  potential: Float[np.ndarray, "sample"],
  log_ratio: PerPair,
) -> tuple[PerPair, PerPair]:
  """B and `log_negatives` of all pairs, from the solution of a sample of them.

  With both sums over the sample given, b is where the mean over the pairs j of
  a text of rho sum_i w_ij + w_jj is 1. That decreases in b; it is bisected.

  Args:
    full: The problem of all pairs.
    part: That of the sample.
    potential: b of the sample.
    log_ratio: log of rho for each pair; it depends on being in the sample.
  """
  tau, own, log_mean = full.temperature, full.own, full.ids.text.log_mean
  (image, text), (image_sample, text_sample) = full.cells, part.cells
  rest = log_sums(image, text_sample, -potential, tau) + log_ratio
  log_denominator = log_denominators(part, potential)
  anchors = log_sums(text, image_sample, -log_denominator, tau) + log_ratio
  low = log_mean(anchors)
  high = log_mean(np.logaddexp(anchors, own - rest))
  for _ in range(HALVINGS):
    middle = (low + high) / 2
    own_weight = own - middle - np.logaddexp(rest, own - middle)
    above = log_mean(np.logaddexp(anchors - middle, own_weight)) > 0
    low, high = np.where(above, middle, low), np.where(above, high, middle)
  return (low + high) / 2, rest
