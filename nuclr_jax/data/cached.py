"""Embeddings or features in files: pairs to train on without the towers.

A folder as `nuclr embed` writes it: `image.npy` [images, dim] and `text.npy`
[texts, dim], `images.parquet` (key) and `texts.parquet` (image, caption), with
a row for each row of the arrays; `image` is the row of the caption's image.
"""

from collections.abc import Iterable, Sequence
import json
import os
import pathlib
from typing import Any, NamedTuple
import zlib

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.data import pair_index
from nuclr_jax.data.pair_index import PairIndex
from nuclr_jax.data.sources import Source
from nuclr_jax.types import Batch, Sides

IMAGES, TEXTS = "images.parquet", "texts.parquet"
COMPARED = 500  # repeated captions, to see that all folders are of one model
TOLERANCE = 0.05  # of a row's norm, as bfloat16 on other devices may differ
ARRAYS = Sides("image.npy", "text.npy")


class Cached(NamedTuple):
  """What a folder holds; arrays are mapped into memory."""

  image: Float[np.ndarray, "images width"]
  text: Float[np.ndarray, "texts width"]
  image_of_text: Int[np.ndarray, "texts"]
  captions: Sequence[str]


class Lookup:
  """Stands in for a tokenizer: captions to the rows that were computed of them.

  They are found by hashes, 24 bytes a caption.
  """

  vocab_size = 0

  def __init__(self, found: Sequence[Cached]):
    """Of all captions of some folders.

    Raises:
      ValueError: If they are not of one model.
    """
    sizes = [len(data.captions) for data in found]
    hashes = _hashes(x.encode() for data in found for x in data.captions)
    self._hashes, first, place = np.unique(
      hashes, return_index=True, return_inverse=True
    )
    folder = np.repeat(np.arange(len(found)), sizes)
    row = np.concatenate([np.arange(n) for n in sizes])
    _check_one_model(found, folder, row, first[place])
    self._found, self._folder, self._row = found, folder[first], row[first]
    self.length, check = found[0].text.shape[1], 0
    for data in found:
      check = zlib.crc32(np.ascontiguousarray(data.text[:1024]), check)
    self.text = json.dumps({"texts": len(first), "check": f"{check:08x}"})

  def encode(self, captions: Sequence[str]) -> Float[np.ndarray, "texts width"]:
    """The rows of captions.

    Raises:
      ValueError: For a caption that is in none of the folders.
    """
    hashes = _hashes(x.encode() for x in captions)
    at = np.searchsorted(self._hashes, hashes)
    at = np.minimum(at, len(self._hashes) - 1)
    rows = np.empty((len(captions), self.length), np.float32)
    for i, (caption, place) in enumerate(zip(captions, at, strict=True)):
      data, row = self._found[self._folder[place]], self._row[place]
      if data.captions[row] != caption:
        raise ValueError(
          f"there is no cached embedding of {caption!r}; only captions that "
          "were embedded can be encoded"
        )
      rows[i] = data.text[row]
    return rows

  def _asdict(self) -> dict[str, Any]:
    return {"text": self.text, "length": self.length}


def read(folder: str | os.PathLike) -> Cached:
  """Opens a folder that `nuclr embed` wrote.

  Raises:
    ValueError: If a file is missing, or they do not fit each other.
  """
  from pyarrow import parquet

  folder = pathlib.Path(folder).expanduser()
  missing = [x for x in (*ARRAYS, IMAGES, TEXTS) if not (folder / x).exists()]
  if missing:
    raise ValueError(
      f"{folder} lacks {', '.join(missing)}; write it with nuclr embed"
    )
  image, text = (np.load(folder / name, mmap_mode="r") for name in ARRAYS)
  texts = parquet.read_table(folder / TEXTS)
  found = Cached(
    image,
    text,
    texts["image"].to_numpy(),
    texts["caption"].to_pylist(),
  )
  keys = parquet.read_metadata(folder / IMAGES).num_rows
  sizes = [len(image), keys, len(text), len(found.captions)]
  if sizes[0] != sizes[1] or sizes[2] != sizes[3]:
    raise ValueError(
      f"{folder}: {ARRAYS.image} has {sizes[0]} rows, {IMAGES} {sizes[1]}; "
      f"{ARRAYS.text} has {sizes[2]}, {TEXTS} {sizes[3]}; write it again"
    )
  if not sizes[2]:
    raise ValueError(f"{folder} holds no captions, so there are no pairs")
  return found


def index_of(data: Cached) -> PairIndex:
  """The pairs: one for each caption, in the order of the images."""
  order = np.argsort(data.image_of_text, kind="stable")
  words = [pair_index.canonical(data.captions[i]) for i in order]
  index = pair_index.build(
    # Equal images have equal rows; keys of several files may repeat.
    _hashes(row.tobytes() for row in np.asarray(data.image)),
    np.bincount(data.image_of_text, minlength=len(data.image)),
    _hashes(word.encode() for word in words),
  )
  return index._replace(caption=order)  # the row of each pair's text


def source(data: Cached) -> Source:
  """Pairs of rows."""
  index = index_of(data)

  def fetch(pair_ids, random=None):
    del random  # nothing to augment
    return Batch(
      np.float32(data.image[index.record[pair_ids]]),
      np.float32(data.text[index.caption[pair_ids]]),
      np.asarray(pair_ids, np.int32),
      *index.ids(pair_ids),
    )

  def captions(text_ids):
    rows = index.caption[index.pairs_of_texts(text_ids)]
    return [data.captions[i] for i in rows]

  images = np.ascontiguousarray(data.image[:1024])
  check = zlib.crc32(images, index.checksum)
  fingerprint = f"embeddings/{len(index.record)}/{check:08x}"
  return Source(
    index.sizes,
    fetch,
    index.ids,
    captions,
    fingerprint,
    lambda: pair_index.keys(index),
  )


def _check_one_model(found: Sequence[Cached], folder, row, same) -> None:
  """Raises ValueError unless equal captions have equal rows.

  Of those that are there several times, some hundreds are compared; `same` is
  the first place of each place's caption.
  """
  widths = {(data.image.shape[1], data.text.shape[1]) for data in found}
  if len(widths) > 1:
    raise ValueError(
      f"the folders hold rows of different widths (images, texts) {widths}; "
      "embed all by one model"
    )
  again = np.flatnonzero(same != np.arange(len(same)))
  for i in again[:: max(len(again) // COMPARED, 1)]:
    a, b = (found[folder[x]].text[row[x]] for x in (i, same[i]))
    if np.linalg.norm(a - b) > TOLERANCE * np.linalg.norm(b):
      caption = found[folder[i]].captions[row[i]]
      raise ValueError(
        f"the caption {caption!r} has two different rows; embed all folders by "
        "one model"
      )


def _hashes(contents: Iterable[bytes]) -> np.ndarray:
  return np.array(list(map(pair_index.content_hash, contents)), np.uint64)
