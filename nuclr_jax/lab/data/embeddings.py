"""Embeddings or features in files: pairs to train on without the towers.

A folder that `nuclr embed` wrote holds `image.npy` [images, dim], `text.npy`
[texts, dim], `images.parquet` (key, content, thumbnail) and `texts.parquet`
(image, caption). The tables have a row for each row of the arrays; `image` is
the row of the caption's image, `content` a hash of the image, and
thumbnails may be missing. Of texts without images, it has `text.npy` and
`texts.parquet` (caption) alone.
"""

from collections.abc import Iterable, Sequence
import json
import logging
import os
import pathlib
from typing import Any, NamedTuple
import zlib

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data.pair_index import (
  PairIndex,
  canonical,
  content_hash,
  index_keys,
  number_pairs,
  repeats,
)
from nuclr_jax.lab.data.source import Data, Files, HeldOut, ImageTextSet, Source
from nuclr_jax.types import Batch, Sides

log = logging.getLogger(__name__)

IMAGES, TEXTS = "images.parquet", "texts.parquet"
KEY, CONTENT, THUMBNAIL = "key", "content", "thumbnail"  # columns of IMAGES
IMAGE, CAPTION = "image", "caption"  # columns of TEXTS
TYPES = {  # of columns, by Arrow
  **dict.fromkeys((KEY, CAPTION), ("string", "large_string", "string_view")),
  THUMBNAIL: ("binary", "large_binary", "binary_view"),
  CONTENT: ("uint64",),
}
COUNTS = "counts.json"  # of what was embedded, rejected and cut
COMPARED = 500  # repeated captions, to check that all folders are of one model
TOLERANCE = 0.05  # of a row's norm: bfloat16 may differ between devices
ARRAYS = Sides("image.npy", "text.npy")
NO_CAPTION = "captions must be texts, and none may be missing"


class Cached(NamedTuple):
  """The contents of a folder; arrays are mapped into memory."""

  image: Float[np.ndarray, "images width"]
  text: Float[np.ndarray, "texts width"]
  image_of_text: Int[np.ndarray, "texts"]
  captions: Sequence[str]
  folder: pathlib.Path


def embeddings(
  *,
  train: str,
  validation: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
) -> Data:
  """Opens what `nuclr embed` wrote, as pairs for the model `heads`.

  Args:
    train: Folder of the training pairs.
    validation: Folders for retrieval during training.
    test: Folders for retrieval at the end.

  Raises:
    ValueError: If a folder does not hold what `nuclr embed` writes.
  """
  for paths in (validation, test):
    names = [pathlib.Path(path).name for path in paths]
    if len(set(names)) < len(names):
      raise ValueError(
        f"folders for retrieval must differ in their last parts, got {paths}"
      )
  folders = {
    path: open_embeddings(path) for path in (train, *validation, *test)
  }

  def retrieval_set(path):
    return set_of_rows(folders[path])

  pairs = folders[train]
  return Data(
    train=source_of_rows(pairs),
    tokenizer=Lookup(list(folders.values())),
    image_shape=pairs.image.shape[1:],
    held_out={
      split: HeldOut({pathlib.Path(x).name: retrieval_set(x) for x in paths})
      for split, paths in (("validation", validation), ("test", test))
    },
  )


class Lookup:
  """A stand-in for a tokenizer, which looks up the embeddings of captions.

  Captions are found by their hashes, at 24 bytes per caption.
  """

  vocab_size = 0

  def __init__(self, folders: Sequence[Cached]):
    """Collects the captions of all folders.

    Raises:
      ValueError: If the folders were not embedded by the same model.
    """
    sizes = [len(data.captions) for data in folders]
    hashes = _hashes(x.encode() for data in folders for x in data.captions)
    self._hashes, first, place = np.unique(
      hashes, return_index=True, return_inverse=True
    )
    folder = np.repeat(np.arange(len(folders)), sizes)
    row = np.concatenate([np.arange(n) for n in sizes])
    _check_one_model(folders, folder, row, first[place])
    self.folders, self._folder, self._row = folders, folder[first], row[first]
    self.length, checksum = folders[0].text.shape[1], 0
    for data in folders:
      checksum = zlib.crc32(np.ascontiguousarray(data.text[:1024]), checksum)
    self.text = json.dumps({"texts": len(first), "check": f"{checksum:08x}"})

  def encode(self, captions: Sequence[str]) -> Float[np.ndarray, "texts width"]:
    """Returns the rows of captions.

    Raises:
      ValueError: If none of the folders holds a caption.
    """
    hashes = _hashes(x.encode() for x in captions)
    at = np.searchsorted(self._hashes, hashes)
    at = np.minimum(at, len(self._hashes) - 1)
    rows = np.empty((len(captions), self.length), np.float32)
    for i, (caption, place) in enumerate(zip(captions, at, strict=True)):
      data, row = self.folders[self._folder[place]], self._row[place]
      if data.captions[row] != caption:
        raise ValueError(
          f"there is no cached embedding of {caption!r}; only captions that "
          "were embedded can be encoded"
        )
      rows[i] = data.text[row]
    return rows

  def is_cut(self, captions: Sequence[str]) -> np.ndarray:
    """Says of no caption that it is cut: rows are looked up as they are."""
    return np.zeros(len(captions), bool)

  def _asdict(self) -> dict[str, Any]:
    return {"text": self.text, "length": self.length}


def open_embeddings(folder: str | os.PathLike) -> Cached:
  """Opens a folder that `nuclr embed` wrote.

  Args:
    folder: The folder.

  Raises:
    ValueError: If a file is missing or damaged, or the files do not match each
      other.
  """
  from pyarrow import parquet

  folder = files.remote.fetch(folder).expanduser()
  missing = [x for x in (*ARRAYS, IMAGES, TEXTS) if not (folder / x).exists()]
  if is_of_texts(folder):
    raise ValueError(
      f"{folder} has embeddings of texts without images, which make no pairs; "
      "embed images with captions"
    )
  if missing:
    raise ValueError(
      f"{folder} lacks {', '.join(missing)}; write it with nuclr embed"
    )
  files.check_digests(folder)
  arrays = [open_array(folder / name) for name in ARRAYS]
  num_rows = {}
  for name in (IMAGES, TEXTS):
    with files.reading(folder / name) as path:
      num_rows[name] = parquet.read_metadata(path).num_rows
  sizes = [len(arrays[0]), num_rows[IMAGES], len(arrays[1]), num_rows[TEXTS]]
  if sizes[0] != sizes[1] or sizes[2] != sizes[3]:
    raise ValueError(
      f"{folder}: {ARRAYS.image} has {sizes[0]} rows, {IMAGES} {sizes[1]}; "
      f"{ARRAYS.text} has {sizes[2]}, {TEXTS} {sizes[3]}; write it again"
    )
  with files.reading(folder / TEXTS) as path:
    captions, image_of_text = (_read_column(path, x) for x in (CAPTION, IMAGE))
    if captions.null_count or image_of_text.null_count:
      raise ValueError(NO_CAPTION)
    cached = Cached(
      *arrays,
      image_of_text.cast("int64").to_numpy(),
      captions.to_pylist(),
      folder,
    )
  image = cached.image_of_text
  if image.min(initial=0) < 0 or image.max(initial=0) >= sizes[0]:
    raise ValueError(
      f"{folder / TEXTS} has images {image.min()} to {image.max()}, and there "
      f"are {sizes[0]}; write it again"
    )
  if not sizes[2]:
    raise ValueError(
      f"{folder} holds no captions, so there are no pairs; embed images that "
      "have captions"
    )
  return cached


def is_of_texts(folder: pathlib.Path) -> bool:
  """Returns whether a folder holds embeddings of texts without images."""
  found = [(folder / name).exists() for name in (*ARRAYS, IMAGES, TEXTS)]
  return found == [False, True, False, True]


def open_lookup(folder: str | os.PathLike) -> Lookup:
  """Opens a folder of texts as a stand-in for a tokenizer, see `open_texts`.

  Its rows are what `nuclr embed --features` wrote of the texts.

  Args:
    folder: A folder for which `is_of_texts`.
  """
  text, captions = open_texts(folder)
  none = np.zeros(len(text), np.int64)
  return Lookup([Cached(text[:0], text, none, captions, pathlib.Path(folder))])


def open_texts(
  folder: str | os.PathLike,
) -> tuple[Float[np.ndarray, "texts width"], list[str]]:
  """Opens a folder of texts that `nuclr embed` wrote.

  Args:
    folder: A folder for which `is_of_texts`.

  Returns:
    The embeddings, mapped into memory, and the texts.

  Raises:
    ValueError: If a file is damaged, or the files do not match each other.
  """
  folder = files.remote.fetch(folder).expanduser()
  files.check_digests(folder)
  text = open_array(folder / ARRAYS.text)
  with files.reading(folder / TEXTS) as path:
    captions = _read_column(path, CAPTION)
    if captions.null_count:
      raise ValueError(NO_CAPTION)
  if not len(text) == len(captions) > 0:
    raise ValueError(
      f"{folder}: {ARRAYS.text} has {len(text)} rows, {TEXTS} {len(captions)}; "
      "write it again"
    )
  return text, captions.to_pylist()


def read_column(folder: str | os.PathLike, name: str) -> list[Any] | None:
  """Reads a column of the table of images; None if it is missing or empty.

  Args:
    folder: A folder that `open_embeddings` opens.
    name: `KEY`, `CONTENT`, or `THUMBNAIL` for JPEG bytes.

  Raises:
    ValueError: If the table cannot be read.
  """
  from pyarrow import parquet

  folder = files.remote.fetch(folder).expanduser()
  with files.reading(folder / IMAGES) as path:
    if name not in parquet.read_metadata(path).schema.names:
      return None
    column = _read_column(path, name)
    return None if column.null_count else column.to_pylist()


def open_array(path: pathlib.Path) -> np.ndarray:
  """Maps an array of rows into memory.

  Raises:
    ValueError: If the file holds something else.
  """
  with files.reading(path):
    x = np.load(path, mmap_mode="r")
    if x.ndim != 2 or not x.shape[1] or x.dtype.kind != "f":
      raise ValueError(f"it holds {x.dtype}{x.shape}")
  return x


def _read_column(path: pathlib.Path, name: str):
  """Reads a column of a Parquet file, texts and bytes as a dictionary.

  A long text that all rows share is stored once, and stays so until its length
  is known in all of them.

  Raises:
    ValueError: If the column would fill many times the bytes of the file, or
      holds another type than it should.
  """
  from pyarrow import compute, parquet, types

  files.check_expansion(parquet.read_metadata(path))
  column = parquet.read_table(path, columns=[name], read_dictionary=[name])[
    name
  ]
  if types.is_dictionary(column.type):
    size = 0
    for chunk in column.chunks:
      lengths = compute.binary_length(chunk.dictionary)
      size += compute.sum(lengths.take(chunk.indices)).as_py() or 0
    if size > max(files.MAX_EXPANSION * path.stat().st_size, files.LITTLE):
      raise ValueError(
        f"column {name} has {size:.2g} bytes in a file of "
        f"{path.stat().st_size:.2g}"
      )
  kind, allowed = column.type, TYPES.get(name)
  kind = str(kind.value_type if types.is_dictionary(kind) else kind)
  if allowed and kind not in (*allowed, "null"):  # the type of no values
    raise ValueError(f"column {name} holds {kind}, and must hold {allowed[0]}")
  return column


def index_of_rows(data: Cached) -> PairIndex:
  """Numbers the pairs: one for each caption, in the order of the images.

  Args:
    data: The contents of a folder.

  Returns:
    The index; its `caption` is the row of each pair's text.
  """
  order = np.argsort(data.image_of_text, kind="stable")
  words = [canonical(data.captions[i]) for i in order]
  index = number_pairs(
    # By content, since several files may use the same keys.
    _hashes(row.tobytes() for row in np.asarray(data.image)),
    np.bincount(data.image_of_text, minlength=len(data.image)),
    _hashes(word.encode() for word in words),
  )
  return index._replace(caption=order)


def set_of_rows(data: Cached) -> ImageTextSet:
  """Makes a set for retrieval, of the images that have captions.

  Args:
    data: The contents of a folder.
  """
  chosen = np.unique(data.image_of_text)
  image, content = data.image, read_column(data.folder, CONTENT)
  if len(chosen) < len(image):
    log.warning(
      "%s: %d of %d images have no caption, and are left out",
      data.folder,
      len(image) - len(chosen),
      len(image),
    )
    image = image[chosen]
  if content is None:
    image_id = _hashes(row.tobytes() for row in image)
  else:
    image_id = np.array(content, np.uint64)[chosen]
  text_id = _hashes(canonical(x).encode() for x in data.captions)
  return ImageTextSet(
    image,
    chosen,
    data.captions,
    data.image_of_text,
    same=repeats(image_id, text_id),
  )


def source_of_rows(data: Cached) -> Source:
  """Makes the source of pairs of an image's row and a text's row.

  Args:
    data: The contents of a folder.
  """
  index = index_of_rows(data)

  def fetch(pair_ids, random=None):
    del random  # rows are not augmented
    return Batch(
      np.float32(data.image[index.record[pair_ids]]),
      np.float32(data.text[index.caption[pair_ids]]),
      np.asarray(pair_ids, np.int32),
      *index.ids(pair_ids),
    )

  def captions(text_ids):
    rows = index.caption[index.pairs_of_texts(text_ids)]
    return [data.captions[i] for i in rows]

  def names(rows):
    keys = read_column(data.folder, KEY)
    return [keys[i] if keys else f"image {i}" for i in rows]

  images = np.ascontiguousarray(data.image[:1024])
  checksum = zlib.crc32(images, index.checksum)
  return Source(
    index.sizes,
    fetch,
    index.ids,
    captions,
    index.fingerprint("embeddings", checksum),
    lambda: index_keys(index),
    Files(lambda pair_ids: index.record[pair_ids], names),
  )


def _check_one_model(folders: Sequence[Cached], folder, row, same) -> None:
  """Raises ValueError unless equal captions have equal rows.

  It compares some hundreds of the captions that occur more than once; `same`
  holds, for every place, the first place with the same caption.
  """
  widths = {(data.image.shape[1], data.text.shape[1]) for data in folders}
  if len(widths) > 1:
    raise ValueError(
      f"the folders hold rows of different widths (images, texts) {widths}; "
      "embed all by one model"
    )
  again = np.flatnonzero(same != np.arange(len(same)))
  for i in again[:: max(len(again) // COMPARED, 1)]:
    a, b = (folders[folder[x]].text[row[x]] for x in (i, same[i]))
    if np.linalg.norm(a - b) > TOLERANCE * np.linalg.norm(b):
      caption = folders[folder[i]].captions[row[i]]
      raise ValueError(
        f"the caption {caption!r} has two different rows; embed all folders by "
        "one model"
      )


def _hashes(contents: Iterable[bytes]) -> np.ndarray:
  return np.array(list(map(content_hash, contents)), np.uint64)
