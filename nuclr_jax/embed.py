"""Embeddings of a model in files: of any images and captions.

`write` leaves `image.npy` [images, dim] and `text.npy` [captions, dim], with
`images.parquet` (key) and `texts.parquet` (image, caption) beside them: a row
for each row of the arrays, `image` is the row of the caption's image. What
could not be read is in `rejected.jsonl`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
import contextlib
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from nuclr_jax import checkpoint, experiment, host, restore, settings, train
from nuclr_jax.data import images
from nuclr_jax.data.cached import ARRAYS, IMAGES, TEXTS
from nuclr_jax.evaluate import driver
from nuclr_jax.ingest import parts
from nuclr_jax.types import Metrics, Sides

REJECTED = "rejected.jsonl"

Write = Callable[[Any], None]


class Model(NamedTuple):
  """What embeds: functions of pictures and of captions, and its pictures."""

  encode: Sides
  size: int  # of the pictures, in pixels


@contextlib.contextmanager
def of_run(
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  checkpoints: str = checkpoint.NEWEST,
  features: bool = False,
) -> Iterator[Model]:
  """The model of a run; the data that it was trained on need not be there.

  Args:
    workdir: Folder of the run.
    data_dir: Folder of prepared data sets.
    checkpoints: See `train.load`.
    features: Whether the towers' features are wanted instead of embeddings of
      unit norm, as `heads` learns from them.

  Raises:
    ValueError: If there is no such run, or its images are not photos.
  """
  loaded, mesh, state = train.load(
    workdir, data_dir=data_dir, checkpoints=checkpoints, pairs=False
  )
  found = (state.params["model"], state.model_state)
  with jax.set_mesh(mesh):
    yield _embedder(loaded.model, loaded.data.inputs, mesh, found, features)


@contextlib.contextmanager
def of_config(
  config: settings.Config,
  *,
  data_dir: str | os.PathLike | None = None,
  features: bool = False,
) -> Iterator[Model]:
  """The model of a config before any training, with its pretrained weights.

  Args:
    config: Its data sets are only read if its tokenizer is made of them.
    data_dir: Folder of prepared data sets.
    features: See `of_run`.

  Raises:
    ValueError: As `experiment.build`, or if its images are not photos.
  """
  config = settings.complete(config)
  inputs = experiment.load_inputs(config["data"], data_dir=data_dir)
  model = experiment.make_model(config, inputs)
  mesh = experiment.make_mesh(config)
  with jax.set_mesh(mesh):
    found = restore.first_model(config, model, mesh)
    yield _embedder(model, inputs, mesh, found, features)


def write(
  folder: str | os.PathLike, items: Iterable[Any], model: Model
) -> Metrics:
  """Embeds items and writes the files, all of them or none.

  Args:
    folder: Is made; it must not be there.
    items: `parts.Item`, also without captions, and `parts.Rejected`.
    model: See `of_run`. Images are resized to its size whatever their shape.

  Returns:
    How many images and captions there are, and how many items were rejected.

  Raises:
    ValueError: If the folder is there, or there is no image.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  if folder.exists():
    raise ValueError(f"{folder} is there already; choose another --output")
  with host.complete_folder(folder) as work:
    return _write(work, items, model)


def _write(work: pathlib.Path, items: Iterable[Any], model: Model) -> Metrics:
  """Writes the files; raises ValueError if there is no image."""
  count, reasons = {"images": 0, "captions": 0, "rejected": 0}, Counter()
  show = host.progress("images")
  with contextlib.ExitStack() as stack:

    def opened(make, name):
      return stack.enter_context(make(work / name))

    arrays = Sides(*(opened(_array, name) for name in ARRAYS))
    keys, texts = opened(_table, IMAGES), opened(_table, TEXTS)
    rejected = opened(_lines, REJECTED)
    for chunk in _chunks(_cleaned(items), driver.CHUNK):
      kept, pictures = [], []
      for found in images.in_threads(
        lambda item: _picture(item, model.size), chunk
      ):
        if isinstance(found, parts.Rejected):
          rejected(found)
          reasons[found.reason] += 1
        else:
          kept.append(found[0])
          pictures.append(found[1])
      if kept:
        rows = [
          {"image": count["images"] + i, "caption": caption}
          for i, item in enumerate(kept)
          for caption in item.captions
        ]
        arrays.image(model.encode.image(np.stack(pictures)))
        keys([{"key": item.key} for item in kept])
        if rows:
          arrays.text(model.encode.text([row["caption"] for row in rows]))
          texts(rows)
        count["images"] += len(kept)
        count["captions"] += len(rows)
      show(count["images"])
  if not count["images"]:
    raise ValueError(
      f"no image could be embedded; rejected were {dict(reasons) or 'none'}"
    )
  return count | {"rejected": reasons.total()}


def _embedder(model, inputs, mesh, found, features) -> Model:
  """The functions of a model with its parameters and state."""
  shape = inputs.image_shape
  if len(shape) != 3 or shape[2] != 3:
    raise ValueError(f"the model takes images of shape {shape}, not photos")
  make = driver.make_embedder(model, inputs.tokenizer.encode, mesh)
  embed = make(*found)
  plain = Sides(embed.image, embed.text)
  return Model(embed.features if features else plain, shape[0])


def _cleaned(items: Iterable[Any]) -> Iterator[Any]:
  """Items whose texts can be written; empty captions are rejected."""
  for item in items:
    item, empty = parts.tidy(item)
    yield from empty
    yield item


def _picture(item, size) -> tuple[parts.Item, images.Picture] | parts.Rejected:
  """The item and its picture, or why there is none."""
  if isinstance(item, parts.Rejected):
    return item
  try:
    return item, images.resize(images.decode(item.image), size)
  except ValueError:
    return parts.Rejected(item.key, item.source, parts.UNREADABLE)


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
def _array(path: pathlib.Path) -> Iterator[Write]:
  """Appends rows to an .npy file; its header gets their number at the end."""
  shape = [0, 0]
  with path.open("wb") as file:

    def head():
      file.seek(0)
      what = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
      np.lib.format.write_array_header_1_0(file, what)  # of constant length

    def write(rows):
      if not shape[0]:
        shape[1] = rows.shape[1]
        head()
      shape[0] += len(rows)
      file.write(np.ascontiguousarray(rows, "<f4").tobytes())

    yield write
    head()


@contextlib.contextmanager
def _table(path: pathlib.Path) -> Iterator[Write]:
  """Appends rows, dicts of one kind, to a Parquet file."""
  import pyarrow
  from pyarrow import parquet

  fields = {
    IMAGES: [("key", pyarrow.string())],
    TEXTS: [("image", pyarrow.int64()), ("caption", pyarrow.string())],
  }
  schema = pyarrow.schema(fields[path.name])
  with parquet.ParquetWriter(path, schema) as writer:
    yield lambda rows: writer.write_table(
      pyarrow.Table.from_pylist(rows, schema)
    )


@contextlib.contextmanager
def _lines(path: pathlib.Path) -> Iterator[Write]:
  """Appends rejected items as lines of JSON."""
  with path.open("w", encoding="utf-8") as file:
    yield lambda item: file.write(json.dumps(item._asdict()) + "\n")
