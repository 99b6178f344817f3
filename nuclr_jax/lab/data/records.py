"""Reads the records of a prepared data set into memory, and checks each.

The built-in data sets (glyphs, icons) are small enough to be kept decoded.
"""

from collections.abc import Iterator, Mapping
import contextlib
import logging
import os
import pathlib
from typing import Any

import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.data.source import Data, HeldOut, Records, in_memory
from nuclr_jax.lab.data.tfds_reader import (
  check_lengths,
  damaged,
  read_only_builder,
)
from nuclr_jax.lab.data.tokenizer import Tokenizer

READ = 20_000  # records at a time


def read_records(folder: str | os.PathLike, split: str) -> Records:
  """Reads a whole split into memory and checks every record on the way.

  Args:
    folder: A prepared TFDS data set (array_record) with features image,
      caption, index and text_id.
    split: Name of the split.

  Raises:
    ValueError: If a file is missing, truncated, altered or out of order; the
      message names it.
  """
  columns, fingerprint = read_columns(folder, split)
  text_ids = columns["text_id"].tolist()
  captions = dict(zip(text_ids, columns["caption"], strict=True))
  return Records(
    columns["image"],
    np.asarray(text_ids, np.int32),
    [captions[i] for i in range(len(captions))],
    fingerprint,
  )


def read_columns(
  folder: str | os.PathLike, split: str
) -> tuple[dict[str, Any], str]:
  """Reads all features of a split into memory, and checks every record.

  Args:
    folder: A prepared TFDS data set (array_record) whose features are a tensor
      "image", a number "index" that counts the records, and other whole numbers
      and texts.
    split: Name of the split.

  Returns:
    By name, arrays (numbers and images) and lists of texts; and the fingerprint
    of the split.

  Raises:
    ValueError: If a file is missing, truncated, altered or out of order; the
      message names it.
  """
  import tensorflow_datasets as tfds
  from tensorflow_datasets.proto import tf_example_pb2

  folder = pathlib.Path(folder)
  builder = read_only_builder(folder)
  parse = tf_example_pb2.Example.FromString
  features, info = builder.info.features, builder.info.splits[split]
  check_lengths(folder, info.filepaths, info.shard_lengths)
  # TFDS decodes records one by one; parsed here, reading is 15 times faster.
  data = builder.as_data_source(
    split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
  )
  of_image = features["image"].shape
  texts = [k for k, x in features.items() if isinstance(x, tfds.features.Text)]
  numbers = [k for k in features if k not in ("image", *texts)]
  columns, images, start = {k: [] for k in (*texts, *numbers)}, [], 0
  paths = map(pathlib.Path, info.filepaths)
  for path, length in zip(paths, info.shard_lengths, strict=True):
    for first in range(start, start + length, READ):
      ids = range(first, min(first + READ, start + length))
      try:
        with _in_order():
          records = data.__getitems__(list(ids))
        rows = [parse(x).features.feature for x in records]
        new = {k: [row[k].int64_list.value[0] for row in rows] for k in numbers}
        for k in texts:
          new[k] = [row[k].bytes_list.value[0].decode() for row in rows]
        pixels = b"".join(row["image"].bytes_list.value[0] for row in rows)
        image = np.frombuffer(pixels, np.uint8).reshape(len(ids), *of_image)
      except Exception as error:  # each library raises errors of its own
        reason = f"cannot be read ({progress.first_line(error)})"
        raise damaged(folder, path.name, reason) from error
      if new["index"] != list(ids):
        reason = f"does not hold the records {ids[0]} to {ids[-1]}"
        raise damaged(folder, path.name, reason)
      images.append(image)
      for k, values in new.items():
        columns[k] += values
    start += length
  arrays = {k: np.array(columns[k], np.int64) for k in numbers}
  fingerprint = f"{builder.info.full_name}/{split}/{start}"
  return {**columns, **arrays, "image": np.concatenate(images)}, fingerprint


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
  """Hides the error that array_record logs about groups of records.

  Groups slow down what reads in random order, and make files smaller.
  """

  def of_something_else(record: logging.LogRecord) -> bool:
    return "created with group size" not in record.getMessage()

  logger = logging.getLogger("absl")
  logger.addFilter(of_something_else)
  try:
    yield
  finally:
    logger.removeFilter(of_something_else)


def data_of_records(
  train: Records,
  held_out: Mapping[str, HeldOut],
  tokenizer: Tokenizer,
  *,
  shift: float,
  scale: float,
  share_texts: bool,
) -> Data:
  """Makes a data set of records.

  Args:
    train: The training split.
    held_out: The held-out sets, by split.
    tokenizer: Encodes captions.
    shift: Largest move of an augmented image along each axis, in pixels.
    scale: Largest change of the logarithm of its size along each axis.
    share_texts: Whether training knows which captions repeat; if not, see
      `hide_repetitions`.
  """
  # Not at the top: the core imports data sets without OpenCV.
  from nuclr_jax.lab.data.augment import augment

  if not share_texts:
    train = hide_repetitions(train)
  return Data(
    train=in_memory(
      train, tokenizer.encode(train.captions), augment(shift=shift, scale=scale)
    ),
    tokenizer=tokenizer,
    image_shape=train.image.shape[1:],
    held_out=held_out,
  )


def hide_repetitions(records: Records) -> Records:
  """Gives every pair its own text id, even where captions repeat.

  Pairs with the same caption then become negatives of each other, as in data
  sets whose repeated captions have not been identified.
  """
  return records._replace(
    text_id=np.arange(len(records.text_id), dtype=np.int32),
    captions=[records.captions[i] for i in records.text_id],
  )
