"""Pairs with stable ids, read from prepared TFDS data sets.

A TFDS data set in array_record format is random access and needs no
TensorFlow. Record i of a split is the pair with id i, for ever.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax import host
from nuclr_jax.data.keys import Keys, content_keys
from nuclr_jax.data.transforms import Transform
from nuclr_jax.types import Batch, Sides, Sizes, both


class Source(NamedTuple):
  """A split: pairs with ids 0 ... n - 1, random access."""

  sizes: Sizes
  # (pair ids, random = None) -> NumPy batch; augmented by random numbers, if
  # there are any (see `transforms.random_numbers`).
  fetch: Callable[..., Batch]
  ids: Callable[[np.ndarray], Sides]  # pair ids -> image ids, text ids
  captions: Callable[[np.ndarray], list[str]]  # text ids -> captions
  fingerprint: str  # of the prepared data; a checkpoint remembers it
  keys: Callable[[], Keys] | None = None  # names of all ids that stay


def single(
  n: int,
  fetch: Callable[..., Batch],
  captions: Callable[[np.ndarray], list[str]],
  fingerprint: str,
  contents: Callable[[], Iterable[bytes]],
) -> Source:
  """A split where pair i is of thing i on both sides.

  Args:
    n: How many there are.
    fetch: See `Source`.
    captions: Likewise.
    fingerprint: Likewise.
    contents: What each thing is; its key follows from it.

  Example:
    >>> words = ["a dog", "a cat"]
    >>> source = single(
    ...   len(words),
    ...   lambda ids, random=None: Batch(ids, ids, ids),
    ...   lambda text_ids: [words[i] for i in text_ids],
    ...   "words/2",
    ...   lambda: map(str.encode, words),
    ... )
    >>> source.sizes.num_pairs, source.captions([1])
    (2, ['a cat'])
  """

  def keys():
    found = content_keys(contents())
    return Keys(pair=found, image=found, text=found)

  def ids(pair_ids):
    return both(pair_ids)

  return Source(Sizes(n, n, n), fetch, ids, captions, fingerprint, keys)


class Pictures:
  """Pictures that are read when they are asked for, some at a time.

  They are indexed like an array: `pictures[10:20]`, `pictures[np.array([3])]`.

  Example:
    >>> squares = Pictures(5, lambda ids: ids**2)
    >>> len(squares), squares[1:3].tolist()
    (5, [1, 4])
  """

  def __init__(self, count: int, fetch: Callable[[np.ndarray], np.ndarray]):
    self._ids, self._fetch = np.arange(count), fetch

  def __len__(self) -> int:
    return len(self._ids)

  def __getitem__(self, which) -> np.ndarray:
    return self._fetch(self._ids[which])


class Records(NamedTuple):
  """All records of a split, in memory, in the order of their ids."""

  image: np.ndarray  # uint8 [n, height, width, channels]
  text_id: np.ndarray  # int32 [n]
  captions: list[str]  # by text id
  fingerprint: str


def cache_dir(data_dir: str | os.PathLike | None = None) -> pathlib.Path:
  """Where prepared data sets are: the argument, $NUCLR_DATA_DIR or ~/.cache."""
  if data_dir is None:
    data_dir = os.environ.get("NUCLR_DATA_DIR", "~/.cache/nuclr_jax")
  return pathlib.Path(data_dir).expanduser().absolute()


def damaged(path: os.PathLike, reason: str) -> ValueError:
  """The error for a prepared file that cannot be trusted."""
  path = pathlib.Path(path)
  return ValueError(
    f"the prepared data set is damaged: {path}: {reason}. Delete the folder "
    f"{path.parent} and prepare it again: glyphs are drawn by the next run, "
    "other data sets need nuclr ingest, nuclr convert or TFDS"
  )


def read_records(folder: str | os.PathLike, split: str) -> Records:
  """Reads a whole split into memory, checking every record on the way.

  Args:
    folder: A prepared TFDS data set (array_record) with features image,
      caption, index and text_id.
    split: Name of the split.

  Raises:
    ValueError: If a file is missing, truncated, altered or out of order; the
      message names it.
  """
  import tensorflow_datasets as tfds
  from tensorflow_datasets.proto import tf_example_pb2

  folder = pathlib.Path(folder)
  builder = tfds.builder_from_directory(os.fspath(folder))
  parse = tf_example_pb2.Example.FromString
  shape = builder.info.features["image"].shape
  info = builder.info.splits[split]
  check_lengths(info.filepaths, info.shard_lengths)
  # TFDS decodes records one by one; parsed here, reading is 15 times faster.
  data = builder.as_data_source(
    split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
  )
  images, text_ids, captions, start = [], [], {}, 0
  for path, length in zip(info.filepaths, info.shard_lengths, strict=True):
    ids = range(start, start + length)
    try:
      raw = data.__getitems__(list(ids))
      rows = [parse(x).features.feature for x in raw]
      index = [row["index"].int64_list.value[0] for row in rows]
      text_id = [row["text_id"].int64_list.value[0] for row in rows]
      words = [row["caption"].bytes_list.value[0].decode() for row in rows]
      pixels = b"".join(row["image"].bytes_list.value[0] for row in rows)
      image = np.frombuffer(pixels, np.uint8).reshape(length, *shape)
    except Exception as error:  # of several libraries
      reason = f"cannot be read ({host.first_line(error)})"
      raise damaged(path, reason) from error
    if index != list(ids):
      raise damaged(path, f"does not hold the records {ids[0]} to {ids[-1]}")
    images.append(image)
    text_ids += text_id
    captions |= dict(zip(text_id, words, strict=True))
    start += length
  return Records(
    np.concatenate(images),
    np.asarray(text_ids, np.int32),
    [captions[i] for i in range(len(captions))],
    f"{builder.info.full_name}/{split}/{start}",
  )


def hide_repetitions(records: Records) -> Records:
  """Gives every pair a text id of its own, whichever captions repeat.

  Then pairs with the same caption are negatives of each other, as in data sets
  that nobody searched for repetitions.
  """
  return records._replace(
    text_id=np.arange(len(records.text_id), dtype=np.int32),
    captions=[records.captions[i] for i in records.text_id],
  )


def in_memory(
  records: Records, tokens: np.ndarray, transform: Transform | None = None
) -> Source:
  """Serves a split from memory.

  Args:
    records: The split.
    tokens: Token ids [num_texts, length] of `records.captions`.
    transform: Augmentation; None = none.
  """
  n = len(records.image)

  def fetch(pair_ids, random=None):
    image, text_ids = records.image[pair_ids], records.text_id[pair_ids]
    if transform is not None and random is not None:
      image = transform(image, random)
    return Batch(
      image=image,
      text=tokens[text_ids],
      pair_id=np.asarray(pair_ids, np.int32),
      text_id=text_ids,
    )

  return Source(
    Sizes(n, n, len(records.captions)),
    fetch,
    lambda pair_ids: Sides(pair_ids, records.text_id[pair_ids]),
    lambda text_ids: [records.captions[i] for i in text_ids],
    records.fingerprint,
    partial(_keys, records),
  )


def _keys(records: Records) -> Keys:
  """Keys by content; the pictures of equal pairs are equal, too."""
  text = content_keys(caption.encode() for caption in records.captions)
  pairs = zip(records.image, records.text_id, strict=True)
  pair = content_keys(
    image.tobytes() + text[text_id].tobytes() for image, text_id in pairs
  )
  return Keys(pair=pair, image=pair, text=text)


def check_lengths(paths: Sequence[Any], lengths: Sequence[int]) -> None:
  """Raises ValueError unless files hold as many records as were written."""
  for path, length in zip(paths, lengths, strict=True):
    path = pathlib.Path(path)
    if not path.exists():
      raise damaged(path, "it is missing")
    try:
      found = num_records(path)
    except Exception as error:
      reason = f"cannot be opened ({host.first_line(error)})"
      raise damaged(path, reason) from error
    if found != length:
      raise damaged(path, f"it holds {found} records instead of {length}")


def num_records(path: str | os.PathLike) -> int:
  """How many records an array_record file holds.

  Raises:
    RuntimeError: If it cannot be read.
  """
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(os.fspath(path))
  try:
    return reader.num_records()
  finally:
    reader.close()
