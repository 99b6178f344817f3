"""Writes a model's embeddings of images and captions, or of texts, to files.

`write_embeddings` makes a folder with `image.npy` [images, dim] and `text.npy`
[captions, dim]. `images.parquet` (key, content, and a thumbnail if asked for)
and `texts.parquet` (image, caption) have a row for each row of the arrays;
`image` is the row of the caption's image, and `content` a hash of the image
(see `images.content_of`). Items that could not be embedded are listed in
`rejected.jsonl`, and so are images that were, but have no caption.
`counts.json` counts all of them.

`write_texts` makes a folder of texts without images: `text.npy`,
`texts.parquet` (caption) and `counts.json`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import json
import logging
import os
import pathlib
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.config import Config
from nuclr_jax.lab.data import images
from nuclr_jax.lab.data.embeddings import (
  ARRAYS,
  CAPTION,
  CONTENT,
  COUNTS,
  IMAGE,
  IMAGES,
  KEY,
  TEXTS,
  THUMBNAIL,
)
from nuclr_jax.lab.data.other_sets import check_takes_photos
from nuclr_jax.lab.data.pair_index import content_hash
from nuclr_jax.lab.data.source import DEFAULT_RESIZE, AnyTokenizer, Resize
from nuclr_jax.lab.evaluate import evaluators
from nuclr_jax.lab.train import checkpoint, loop, untrained
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.settings import Settings
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.lab.user_files.items import Rejected, tidy, why_none
from nuclr_jax.types import Metrics, Sides

log = logging.getLogger(__name__)

REJECTED = "rejected.jsonl"
COUNTED = "images captions without_caption captions_cut rejected".split()

Append = Callable[[Any], None]


class Embedder(NamedTuple):
  """A model with its parameters, as functions of images and of captions.

  `encode.image` takes uint8 [n, image_size, image_size, 3], `encode.text` a
  list of captions; both return float32 [n, dim].
  """

  encode: Sides
  image_size: int  # in pixels
  resize: Resize = DEFAULT_RESIZE  # how images of any shape become such squares
  tokenizer: AnyTokenizer | None = None  # to count the captions that are cut


@contextlib.contextmanager
def embedder_of_run(
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  checkpoints: str = checkpoint.NEWEST,
  averaged: bool = True,
  features: bool = False,
  images: bool = True,
) -> Iterator[Embedder]:
  """Opens the model of a run; its training data no longer need to exist.

  Args:
    workdir: The run's folder.
    data_dir: The folder of prepared data sets.
    checkpoints: `checkpoint.NEWEST`, or `checkpoint.BEST` for the one that
      scored best on validation.
    averaged: Whether to use the averaged weights, if the run keeps an average.
    features: Whether to return the towers' features, on which the model `heads`
      is trained, instead of embeddings. These have unit norm, but for a model
      of texts alone that does not normalize.
    images: Whether the model must take RGB images, or else texts.

  Raises:
    ValueError: If there is no such run, or its model does not take what it
      must.
  """
  opened = loop.load(
    workdir,
    data_dir=data_dir,
    checkpoints=checkpoints,
    pairs=False,
    averaged=averaged,
  )
  with jax.set_mesh(opened[1]):
    yield embedder_of(*opened, features=features, images=images)


@contextlib.contextmanager
def embedder_of_config(
  config: Config | Settings,
  *,
  data_dir: str | os.PathLike | None = None,
  features: bool = False,
  images: bool = True,
) -> Iterator[Embedder]:
  """Opens a config's model before any training, with its pretrained weights.

  Args:
    config: The config. Its data sets are read only if its tokenizer is built
      from them.
    data_dir: The folder of prepared data sets.
    features: Whether to return the towers' features, as `embedder_of_run` does.
    images: Whether the model must take RGB images, or else texts.

  Raises:
    ValueError: If the model cannot be built, or does not take what it must.
  """
  opened = untrained.open_untrained(config, data_dir=data_dir, pairs=False)
  with jax.set_mesh(opened[1]):
    yield embedder_of(*opened, features=features, images=images)


def write_embeddings(
  embedder: Embedder,
  items: Iterable[Any],
  folder: str | os.PathLike,
  *,
  thumbnails: bool = False,
  pairs: bool = False,
) -> Metrics:
  """Embeds items and writes the files, all of them or none.

  Args:
    embedder: An open model (see `embedder_of_run`). Images of any shape are
      resized to its image size.
    items: Images, each with any number of captions (`user_files.Item`), and
      items that are already rejected (`user_files.Rejected`).
    folder: The folder to make, here or in a bucket; it must not exist.
    thumbnails: Whether to store a small JPEG of every image, for pages that
      show images.
    pairs: Whether at least one of the images must have a caption.

  Returns:
    The numbers of `images` and `captions` embedded; of images `without_caption`
    among them; of captions longer than the model takes, `captions_cut`; and of
    images and captions `rejected`.

  Raises:
    ValueError: If the folder exists, if no image could be embedded, or if none
      has a caption and `pairs` are asked for.
  """
  with files.remote.new_folder(folder) as work:
    counts = _write_files(embedder, items, work, thumbnails)
    if pairs and not counts["captions"]:
      raise ValueError(
        f"none of {counts['images']} images has a caption, so there are no "
        "pairs; a caption is in a text file beside the image, cat.txt beside "
        "cat.jpg, or in a column of a table"
      )
    files.write_json(work / COUNTS, counts)
    files.write_digests(work)
  _warn_of_cut(counts, embedder)
  return counts


def write_texts(
  embedder: Embedder,
  texts: Sequence[str],
  folder: str | os.PathLike,
  *,
  empty_lines: int = 0,
) -> Metrics:
  """Embeds texts without images and writes the files, all of them or none.

  Args:
    embedder: An open model (see `embedder_of_config`, with images=False).
    texts: The texts; each gets a row, in this order.
    folder: The folder to make, here or in a bucket; it must not exist.
    empty_lines: How many lines between the texts were left out, so that rows
      are not numbered as lines are; they are warned of.

  Returns:
    The numbers of `captions` embedded, of those longer than the model takes,
    `captions_cut`, and of `empty_lines` if there are any.

  Raises:
    ValueError: If the folder exists, or there are no texts.
  """
  if not texts:
    raise ValueError("there are no texts to embed; put one on each line")
  show = progress.reporter("texts", len(texts))
  count = {"captions": len(texts), "captions_cut": 0}
  count |= {"empty_lines": empty_lines} if empty_lines else {}
  with files.remote.new_folder(folder) as work:
    with (
      array_file(work / ARRAYS.text) as rows,
      table_file(work / TEXTS, with_images=False) as table,
    ):
      for start in range(0, len(texts), evaluators.CHUNK):
        chunk = texts[start : start + evaluators.CHUNK]
        rows(embedder.encode.text(chunk))
        table([{CAPTION: x} for x in chunk])
        count["captions_cut"] += _count_cut(chunk, embedder)
        show(start + len(chunk))
    files.write_json(work / COUNTS, count)
    files.write_digests(work)
  _warn_of_cut(count, embedder)
  if empty_lines:
    log.warning(
      "%d empty lines have no row; %s says what the text of each row is",
      empty_lines,
      TEXTS,
    )
  return count


def _count_cut(captions: Sequence[str], embedder: Embedder) -> int:
  words = embedder.tokenizer
  return int(words.is_cut(captions).sum()) if words else 0


def _warn_of_cut(counts: Metrics, embedder: Embedder) -> None:
  if counts["captions_cut"]:
    log.warning(
      "%d of %d captions were cut to %d tokens",
      counts["captions_cut"],
      counts["captions"],
      embedder.tokenizer.length,
    )


def _write_files(
  embedder: Embedder,
  items: Iterable[Any],
  work: pathlib.Path,
  thumbnails: bool,
) -> Metrics:
  """Writes the files; raises ValueError if no image could be embedded."""
  count, reasons = dict.fromkeys(COUNTED, 0), Counter()
  show = progress.reporter("images")
  with contextlib.ExitStack() as stack:

    def opened(make, name):
      return stack.enter_context(make(work / name))

    arrays = Sides(*(opened(array_file, name) for name in ARRAYS))
    keys, texts = opened(table_file, IMAGES), opened(table_file, TEXTS)
    rejected = opened(_lines, REJECTED)
    for chunk in _chunks(_cleaned(items), evaluators.CHUNK):
      kept, pixels, rows_of_images = [], [], []
      for result in images.in_threads(
        lambda cleaned: _decoded(*cleaned, embedder, thumbnails), chunk
      ):
        if isinstance(result, Rejected):
          rejected(result)
          reasons[result.reason] += 1
        else:
          item, why, square, row = result
          kept.append(item)
          pixels.append(square)
          rows_of_images.append(row)
          if not item.captions:
            rejected(Rejected(item.key, item.source, why))
            count["without_caption"] += 1
      if kept:
        rows = [
          {IMAGE: count["images"] + i, CAPTION: caption}
          for i, item in enumerate(kept)
          for caption in item.captions
        ]
        arrays.image(embedder.encode.image(np.stack(pixels)))
        keys(rows_of_images)
        if rows:
          captions = [row[CAPTION] for row in rows]
          arrays.text(embedder.encode.text(captions))
          texts(rows)
          count["captions_cut"] += _count_cut(captions, embedder)
        count["images"] += len(kept)
        count["captions"] += len(rows)
      show(count["images"])
  if not count["images"]:
    raise ValueError(
      f"no image could be embedded; rejected were {dict(reasons) or 'none'}"
    )
  return count | {"rejected": reasons.total()}


def embedder_of(
  parts: Experiment,
  mesh: Mesh,
  state: TrainState,
  *,
  features: bool = False,
  images: bool = True,
) -> Embedder:
  """Compiles the functions of a model that is open; its mesh must be set.

  Args:
    parts: What `loop.load` or `untrained.open_untrained` returned.
    mesh: The same.
    state: The same.
    features: As for `embedder_of_run`.
    images: As for `embedder_of_run`.

  Raises:
    ValueError: If the model does not take what it must.
  """
  inputs = parts.data.inputs
  shape, has_words = inputs.image_shape, inputs.tokenizer.vocab_size > 0
  of_texts = len(shape) == 1 and has_words
  if not images and not has_words:
    raise ValueError(
      "the model takes rows of features, and no texts; give the run or model "
      "that made them"
    )
  if images:
    check_takes_photos(inputs)
  embed = loop.embedder(parts, mesh)(state)
  embeddings = embed.outputs if of_texts else Sides(embed.image, embed.text)
  encode = embed.features if features else embeddings
  return Embedder(encode, shape[0], inputs.resize, inputs.tokenizer)


def _cleaned(items: Iterable[Any]) -> Iterator[tuple[Any, str]]:
  """Yields items whose captions can be written; rejects bad captions.

  An image that keeps none is listed once, with the reason, which comes with it.
  """
  for item in items:
    item, bad = tidy(item)
    if isinstance(item, Rejected) or item.captions:
      yield from ((x, "") for x in bad)
    yield item, why_none(bad)


def _decoded(item, why: str, embedder: Embedder, thumbnails: bool):
  """Returns an item, why it lacks captions, its pixels and its row.

  Of an item that is rejected, it returns the rejection.
  """
  if isinstance(item, Rejected):
    return item
  try:
    image = images.decode_input(item.image)
  except ValueError as error:
    return Rejected(item.key, item.source, str(error))
  row = {
    KEY: item.key,
    CONTENT: content_hash(images.content_of(item.image, image)),
    THUMBNAIL: images.thumbnail(image) if thumbnails else None,
  }
  square = images.resize(image, embedder.image_size, embedder.resize)
  return item, why, square, row


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
  chunk = []
  for item in items:
    chunk.append(item)
    if len(chunk) == size:
      yield chunk
      chunk = []
  if chunk:
    yield chunk


@contextlib.contextmanager
def array_file(path: pathlib.Path) -> Iterator[Append]:
  """Appends rows to an .npy file.

  The number of rows is known only at the end: the header, whose length does not
  depend on it, is then written again.
  """
  shape = [0, 0]
  with files.replacing(path) as new, new.open("wb") as file:

    def write_header():
      file.seek(0)
      header = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
      np.lib.format.write_array_header_1_0(file, header)

    def append(rows):
      if not shape[0]:
        shape[1] = rows.shape[1]
        write_header()
      shape[0] += len(rows)
      file.write(np.ascontiguousarray(rows, "<f4").tobytes())

    yield append
    write_header()


@contextlib.contextmanager
def table_file(
  path: pathlib.Path, *, with_images: bool = True
) -> Iterator[Append]:
  """Appends rows, dicts with the same keys, to a Parquet file."""
  import pyarrow
  from pyarrow import parquet

  fields = {
    IMAGES: [
      (KEY, pyarrow.string()),
      (CONTENT, pyarrow.uint64()),
      (THUMBNAIL, pyarrow.binary()),
    ],
    TEXTS: [(IMAGE, pyarrow.int64()), (CAPTION, pyarrow.string())],
  }
  schema = pyarrow.schema(
    [x for x in fields[path.name] if with_images or x[0] != IMAGE]
  )
  with (
    files.replacing(path) as new,
    parquet.ParquetWriter(new, schema) as writer,
  ):
    yield lambda rows: writer.write_table(
      pyarrow.Table.from_pylist(rows, schema)
    )


@contextlib.contextmanager
def _lines(path: pathlib.Path) -> Iterator[Append]:
  """Appends rejected items as lines of JSON."""
  with files.replacing(path) as new, new.open("w", encoding="utf-8") as file:
    yield lambda item: file.write(json.dumps(item._asdict()) + "\n")
