"""Converts single arrays of a file to ours, and back, by the kind of a rule."""

from collections.abc import Callable, Sequence
import functools
import logging
import math
from typing import NamedTuple

import jax
import numpy as np

log = logging.getLogger(__name__)
KEPT = 20  # positions of a text that stretching leaves alone

Arrays = Sequence[np.ndarray]


class Conversion(NamedTuple):
  """How the arrays of a rule are read and written."""

  # `read(their_arrays, our_shapes) -> our_arrays`
  read: Callable[[Arrays, Sequence[tuple[int, ...]]], Arrays]
  # `write(our_arrays, number_of_theirs) -> their_arrays`
  write: Callable[[Arrays, int], Arrays]
  # The index of their array, if any, of which only the last axis must match.
  any_length: int | None = None


def _read_grid(theirs, shapes):
  """Returns the position of the class token, if any, and those of the patches.

  The patches' positions are resized if our grid has another shape.
  """
  positions = theirs[0].reshape(-1, theirs[0].shape[-1])
  first, rest = np.split(positions, [len(shapes) - 1])
  shape = rows, columns, width = shapes[-1]
  side = math.isqrt(len(rest))
  # The file does not store the shape of its grid. All published grids are
  # square; one that is not must have as many patches as ours.
  if side**2 == len(rest) > 0:
    rest = rest.reshape(side, side, width)
  elif len(rest) == rows * columns:
    rest = rest.reshape(shape)
  else:
    raise ValueError(
      f"the position embeddings are of {len(rest)} patches, which do not form "
      f"a square, and cannot be resized to {rows} x {columns}"
    )
  if rest.shape != shape:
    log.info("positions resized from %s to %s", rest.shape[:2], shape[:2])
    rest = np.asarray(jax.image.resize(rest, shape, "bicubic"))
  return [*first, rest]


def _write_grid(ours):
  return np.concatenate([x.reshape(-1, x.shape[-1]) for x in ours])


def _read_stretched(theirs, shapes):
  """Returns the positions of a text, stretched if ours are more.

  As in Long-CLIP, position j >= 20 is that at 20 + (j - 20) / ratio, between
  two of the file or on the line through its last two.
  """
  old, length = theirs[0], shapes[0][0]
  if len(old) == length:
    return [old]
  if length < len(old) or len(old) < KEPT + 2:
    raise ValueError(
      f"the file has position embeddings of {len(old)} tokens, the text tower "
      f"of {length} (max_length); it may have as many or more, and more only "
      f"of a file with at least {KEPT + 2}"
    )
  log.info("positions of texts stretched from %d to %d", len(old), length)
  ratio = (length - KEPT) / (len(old) - KEPT)
  at = KEPT + np.arange(length - KEPT) / ratio
  before = np.minimum(at.astype(int), len(old) - 2)
  part = (at - before)[:, None]
  rest = (1 - part) * old[before] + part * old[before + 1]
  return [np.concatenate([old[:KEPT], rest]).astype(np.float32)]


def _read_types(theirs, shapes):
  del shapes
  return [theirs[0] + theirs[1][:1]]


def _write_types(types, ours, count):
  del count
  return [ours[0], np.zeros((types, ours[0].shape[1]), np.float32)]


def _split(x, count):
  """Splits queries, keys and values, which files have in up to three parts.

  Of two parts, the second holds keys and values.
  """
  return np.split(x, [len(x) // 3] if count == 2 else count)


CONVERSIONS = {  # by the kind of a rule
  "same": Conversion(
    lambda theirs, _: [np.concatenate(theirs)],
    lambda ours, count: _split(ours[0], count),
  ),
  "flat": Conversion(
    lambda theirs, _: [theirs[0].reshape(-1)],
    lambda ours, _: [ours[0].reshape(1, 1, -1)],
  ),
  # Factors of channels, which stand before height and width in PyTorch.
  "channels": Conversion(
    lambda theirs, _: [theirs[0].reshape(-1)],
    lambda ours, _: [ours[0].reshape(-1, 1, 1)],
  ),
  # PyTorch's linear layers store [outputs, inputs], ours [inputs, outputs]. Our
  # queries, keys and values are one matrix; theirs may be two or three.
  "matrix": Conversion(
    lambda theirs, _: [np.concatenate(theirs).T],
    lambda ours, count: _split(ours[0].T, count),
  ),
  # PyTorch's convolutions store [outputs, inputs, height, width].
  "kernel": Conversion(
    lambda theirs, _: [theirs[0].transpose(2, 3, 1, 0)],
    lambda ours, _: [ours[0].transpose(3, 2, 0, 1)],
  ),
  # Of patches: a convolution or, as in NaFlex, a linear layer on their pixels.
  "patches": Conversion(
    lambda theirs, _: [
      theirs[0].T if theirs[0].ndim == 2 else theirs[0].transpose(2, 3, 1, 0)
    ],
    lambda ours, _: [
      ours[0].T if ours[0].ndim == 2 else ours[0].transpose(3, 2, 0, 1)
    ],
  ),
  # Convolutions of single positions are linear layers here.
  "pointwise": Conversion(
    lambda theirs, _: [theirs[0][:, :, 0, 0].T],
    lambda ours, _: [ours[0].T[:, :, None, None]],
  ),
  "grid": Conversion(
    _read_grid, lambda ours, _: [_write_grid(ours)], any_length=0
  ),
  "batched_grid": Conversion(
    _read_grid, lambda ours, _: [_write_grid(ours)[None]], any_length=0
  ),
  "stretched": Conversion(
    _read_stretched, lambda ours, _: [ours[0]], any_length=0
  ),
  # BERT adds an embedding of the token's type, of which it has two and RoBERTa
  # one. Here every type is 0, so row 0 of that embedding is added to all
  # positions once; zeros are written back.
  "positions_and_types": Conversion(
    _read_types, functools.partial(_write_types, 2), any_length=1
  ),
  "positions_and_type": Conversion(
    _read_types, functools.partial(_write_types, 1), any_length=1
  ),
}
