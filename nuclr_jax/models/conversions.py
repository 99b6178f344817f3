"""How arrays of published weights become ours, and ours theirs."""

from collections.abc import Callable, Sequence
import logging
import math
from typing import NamedTuple

import jax
import numpy as np

log = logging.getLogger(__name__)

Arrays = Sequence[np.ndarray]


class Conversion(NamedTuple):
  """Of the arrays of a rule of `layouts`."""

  read: Callable[[Arrays, Sequence[tuple[int, ...]]], Arrays]  # our shapes
  write: Callable[[Arrays, int], Arrays]  # how many theirs are
  any_length: int | None = None  # which of theirs may be longer than ours


def _read_grid(theirs, shapes):
  """Class token's and other positions, resized to another grid if need be."""
  first, rest = np.split(theirs[0].reshape(-1, theirs[0].shape[-1]), [1])
  rows, columns, width = shapes[1]
  side = math.isqrt(len(rest))
  if side**2 == len(rest):  # as all published ones
    rest = rest.reshape(side, side, width)
  elif len(rest) == rows * columns:
    rest = rest.reshape(shapes[1])
  else:
    raise ValueError(
      f"position embeddings of {len(rest)} patches, which are no square, "
      f"cannot be resized to {rows} x {columns}"
    )
  if rest.shape != shapes[1]:
    log.info("positions resized from %s to %s", rest.shape[:2], shapes[1][:2])
    rest = np.asarray(jax.image.resize(rest, shapes[1], "bicubic"))
  return [first[0], rest]


def _write_grid(ours):
  first, rest = ours
  return np.concatenate([first[None], rest.reshape(-1, len(first))])


CONVERSIONS = {  # by the kind of a rule
  "same": Conversion(
    lambda theirs, _: [np.concatenate(theirs)],
    lambda ours, count: np.split(ours[0], count),
  ),
  "flat": Conversion(
    lambda theirs, _: [theirs[0].reshape(-1)],
    lambda ours, _: [ours[0].reshape(1, 1, -1)],
  ),
  # PyTorch keeps [outputs, inputs].
  "matrix": Conversion(
    lambda theirs, _: [np.concatenate(theirs).T],
    lambda ours, count: np.split(ours[0].T, count),
  ),
  # And [outputs, inputs, height, width].
  "kernel": Conversion(
    lambda theirs, _: [theirs[0].transpose(2, 3, 1, 0)],
    lambda ours, _: [ours[0].transpose(3, 2, 0, 1)],
  ),
  "grid": Conversion(
    _read_grid, lambda ours, _: [_write_grid(ours)], any_length=0
  ),
  "batched_grid": Conversion(
    _read_grid, lambda ours, _: [_write_grid(ours)[None]], any_length=0
  ),
  # All texts are of type 0.
  "positions_and_types": Conversion(
    lambda theirs, _: [theirs[0] + theirs[1][:1]],
    lambda ours, _: [ours[0], np.zeros((2, ours[0].shape[1]), np.float32)],
    any_length=1,
  ),
}
