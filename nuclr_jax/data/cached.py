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
ARRAYS = Sides("image.npy", "text.npy")


class Cached(NamedTuple):
  """What a folder holds; arrays are mapped into memory."""

  image: Float[np.ndarray, "images width"]
  text: Float[np.ndarray, "texts width"]
  keys: Sequence[str]  # of the images
  image_of_text: Int[np.ndarray, "texts"]
  captions: Sequence[str]


class Lookup:
  """Stands in for a tokenizer: captions to the rows that were computed of them.

  Example:
    >>> lookup = Lookup({"a dog": np.array([0.0, 1.0])}, width=2, text="")
    >>> lookup.encode(["a dog"])
    array([[0., 1.]], dtype=float32)
  """

  vocab_size = 0

  def __init__(self, rows, *, width: int, text: str):
    self._rows, self.length, self.text = rows, width, text

  def encode(self, captions: Sequence[str]) -> Float[np.ndarray, "texts width"]:
    """The rows of captions.

    Raises:
      ValueError: For a caption that is in none of the folders.
    """
    unknown = [caption for caption in captions if caption not in self._rows]
    if unknown:
      raise ValueError(
        f"there is no cached embedding of {unknown[0]!r}; only captions that "
        "were embedded can be encoded"
      )
    return np.stack([self._rows[x] for x in captions]).astype(np.float32)

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
  images = parquet.read_table(folder / IMAGES)
  texts = parquet.read_table(folder / TEXTS)
  found = Cached(
    image,
    text,
    images["key"].to_pylist(),
    texts["image"].to_numpy(),
    texts["caption"].to_pylist(),
  )
  sizes = [len(x) for x in (image, found.keys, text, found.captions)]
  if sizes[0] != sizes[1] or sizes[2] != sizes[3]:
    raise ValueError(
      f"{folder}: {ARRAYS.image} has {sizes[0]} rows, {IMAGES} {sizes[1]}; "
      f"{ARRAYS.text} has {sizes[2]}, {TEXTS} {sizes[3]}; write it again"
    )
  if not sizes[2]:
    raise ValueError(f"{folder} holds no captions, so there are no pairs")
  return found


def lookup(found: Sequence[Cached]) -> Lookup:
  """The rows of all captions of some folders."""
  rows, check = {}, 0
  for data in found:
    rows |= dict(zip(data.captions, data.text, strict=True))
    check = zlib.crc32(np.ascontiguousarray(data.text[:1024]), check)
  widths = {(data.image.shape[1], data.text.shape[1]) for data in found}
  if len(widths) > 1:
    raise ValueError(
      f"the folders hold rows of different widths (images, texts) {widths}; "
      "embed all by one model"
    )
  text = json.dumps({"texts": len(rows), "check": f"{check:08x}"})
  return Lookup(rows, width=widths.pop()[1], text=text)


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


def _hashes(contents: Iterable[bytes]) -> np.ndarray:
  return np.array(list(map(pair_index.content_hash, contents)), np.uint64)
