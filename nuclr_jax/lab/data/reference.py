"""Embeddings of the training pairs by a reference model, beside each batch.

They are those of a folder that `nuclr embed` wrote, in any width, and are read
from its files batch by batch. The pairs of the folder, in the order of its
images and their captions, must be the training pairs.
"""

from collections import Counter
import functools
import os
import pathlib
from typing import NamedTuple
import zlib

from jaxtyping import Int
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data.embeddings import (
  ARRAYS,
  CONTENT,
  Cached,
  open_array,
  open_embeddings,
  read_column,
)
from nuclr_jax.lab.data.pair_index import canonical, match_keys
from nuclr_jax.lab.data.source import Source
from nuclr_jax.types import Sides, each

CHUNK = 2**24  # numbers at a time
COMPARED = 1_000  # captions of a run that goes on
TOLERANCE = 0.01  # of a norm of 1; embeddings may have been stored in float16
AGAIN = (
  "embed the pairs that are trained on, all of them: nuclr embed "
  "--input=tfds:NAME:SPLIT with the names in config.data.train, or --workdir "
  "or --config without --input"
)


class Reference(NamedTuple):
  """A reference model's embeddings of the training pairs."""

  folder: pathlib.Path
  rows: Sides  # [num_pairs] each: the rows of the arrays, by pair id
  identity: str  # checkpoints record it

  def of(self, pair_ids: Int[np.ndarray, "batch"]) -> Sides:
    """Returns the embeddings of pairs, float32 [batch, width] each."""

    def read(name, rows):
      # Mapped here, so that processes that make batches are sent no arrays.
      return np.float32(_mapped(self.folder / name)[rows[pair_ids]])

    return each(read, ARRAYS, self.rows)

  def beside(self, source: Source) -> Source:
    """Makes the batches of a source hold the embeddings of their pairs."""

    def fetch(pair_ids, random=None):
      batch = source.fetch(pair_ids, random)
      return batch._replace(reference=self.of(pair_ids))

    return source._replace(fetch=fetch)


def open_folder(folder: str | os.PathLike | None) -> Cached | None:
  """Opens the folder of a reference, which needs no training pairs.

  Args:
    folder: A folder that `nuclr embed` wrote, or None.

  Raises:
    ValueError: If the folder is another one, or damaged.
  """
  if folder is None:
    return None
  try:
    data = open_embeddings(folder)
    width_of(folder)
  except ValueError as error:
    raise ValueError(f"config.reference: {error}") from error
  return data


def open_reference(
  data: Cached | None, source: Source, *, compare_all: bool = True
) -> Reference | None:
  """Opens embeddings of the training pairs, and checks that they are of these.

  The number of pairs and their captions must be the same, in the same order,
  and images may not be those of other pairs, where both sides have hashes of
  them. Rows must be finite and of unit norm.

  Args:
    data: What `open_folder` returned.
    source: The training pairs.
    compare_all: Whether to compare all captions, which may mean to read all
      records, or `COMPARED` of them.

  Raises:
    ValueError: If the rows are of other pairs, or not of unit norm.
  """
  if data is None:
    return None
  if source.open_stream is not None:
    raise ValueError(
      "config.reference needs pairs with ids, and config.data.train is a "
      "stream of tars; index the tars with nuclr ingest --in_place (they stay "
      "where they are), name that data set, and embed it"
    )
  _mapped.cache_clear()  # the folder may have been written again
  try:
    rows = _rows_of_pairs(data, source, compare_all)
    identity = _identity(data)
  except ValueError as error:
    raise ValueError(f"config.reference: {error}") from error
  return Reference(data.folder, each(np.int32, rows), identity)


def width_of(folder: str | os.PathLike) -> int:
  """Returns the width of the embeddings in a folder.

  Raises:
    ValueError: If there are none, or images and texts have two widths.
  """
  folder = files.remote.fetch(folder).expanduser()
  if missing := [name for name in ARRAYS if not (folder / name).exists()]:
    raise ValueError(
      f"{folder} lacks {', '.join(missing)}; write it with nuclr embed"
    )
  image, text = (open_array(folder / name).shape[1] for name in ARRAYS)
  if image != text:
    raise ValueError(
      f"{folder} has images of width {image} and texts of width {text}, which "
      "must be one, since they are compared with each other; embed both with "
      "one model, without --features"
    )
  return image


_mapped = functools.cache(open_array)


def _rows_of_pairs(data: Cached, source: Source, compare_all: bool) -> Sides:
  """Returns the rows of each pair.

  Pairs that were read from an input are in the order of their images, wherever
  their captions lie. Those that embed wrote of training pairs are in the order
  of the pairs, of which some may share an image.

  Raises:
    ValueError: If the folder has other pairs; it says of which, by the order of
      images.
  """
  errors = []
  by_image = np.argsort(data.image_of_text, kind="stable")
  for order in (by_image, np.arange(len(by_image))):
    rows = Sides(data.image_of_text[order], order)
    try:
      _check_pairs(data, rows, source, compare_all)
      return rows
    except ValueError as error:
      errors.append(error)
  raise errors[0]


def _check_pairs(
  data: Cached, rows: Sides, source: Source, compare_all: bool
) -> None:
  """Raises ValueError unless rows are those of the training pairs."""
  found, expected = len(rows.text), source.sizes.num_pairs
  if found != expected:
    raise ValueError(
      f"{data.folder} has {found} captions of {len(data.image)} images, and "
      f"there are {expected} training pairs of {source.sizes.num_images} "
      f"images (rejected.jsonl there lists what could not be embedded); {AGAIN}"
    )
  count = found if compare_all else min(found, COMPARED)
  _check_captions(data, rows.text, source, np.arange(count) * found // count)
  ids = source.ids(np.arange(found)).image
  _, first, place = np.unique(
    rows.image, return_index=True, return_inverse=True
  )
  wrong = ids != ids[first][place]
  hashes = read_column(data.folder, CONTENT) if compare_all else None
  if hashes is not None and source.keys is not None:
    known = match_keys(source.keys().image, np.array(hashes, np.uint64))
    known = known[rows.image]
    wrong |= (known >= 0) & (known != ids)
  if wrong.any():
    pair = np.argmax(wrong)
    raise ValueError(
      f"{data.folder} has the images of {wrong.sum()} of {found} pairs with "
      f"others, the first of them pair {pair}, its row {rows.image[pair]}: its "
      f"images are in another order, or of other data; {AGAIN}"
    )


def _check_captions(
  data: Cached, rows: np.ndarray, source: Source, pairs: np.ndarray
) -> None:
  """Raises ValueError unless the captions of pairs have the same words."""
  texts, place = np.unique(source.ids(pairs).text, return_inverse=True)
  words = list(map(canonical, source.captions(texts)))
  here = [words[i] for i in place]
  there = [canonical(data.captions[i]) for i in rows[pairs]]
  wrong = [
    i for i, (a, b) in enumerate(zip(here, there, strict=True)) if a != b
  ]
  if not wrong:
    return
  first = wrong[0]
  why = "of other data, or another version of them"
  if Counter(here) == Counter(there):
    why = "in another order"
  raise ValueError(
    f"{data.folder} has other captions than {len(wrong)} of {len(pairs)} "
    f"training pairs: pair {pairs[first]} is {_short(here[first])!r}, its row "
    f"{rows[pairs[first]]} is {_short(there[first])!r}. They are {why}; {AGAIN}"
  )


def _identity(data: Cached) -> str:
  """Describes the rows; raises ValueError unless all have unit norm."""
  checksum = 0
  for name, x in zip(ARRAYS, (data.image, data.text), strict=True):
    size = max(CHUNK // x.shape[1], 1)
    for start in range(0, len(x), size):
      chunk = np.ascontiguousarray(x[start : start + size])
      checksum = zlib.crc32(chunk, checksum)
      norm = np.linalg.norm(np.float32(chunk), axis=1)
      wrong = ~(np.abs(norm - 1) <= TOLERANCE)
      if wrong.any():
        row = np.argmax(wrong)
        raise ValueError(
          f"{data.folder / name} must hold embeddings of unit norm, and row "
          f"{start + row} has norm {norm[row]:.3g}; embed without --features, "
          "and leave out rows that are zeros or NaN"
        )
  shape = f"{len(data.text)} captions in width {data.text.shape[1]}"
  return f"{shape}, {checksum:08x}"


def _short(text: str) -> str:
  return text if len(text) <= 60 else f"{text[:57]}..."
