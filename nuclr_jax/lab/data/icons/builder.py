"""Makes the prepared data set of icons from the package's file."""

from collections.abc import Iterator, Sequence
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.data.icons import (
  copies,
  drawing,
  families,
  names,
  render,
)
from nuclr_jax.lab.data.icons.drawing import REJECTED, SETS, Drawn
from nuclr_jax.lab.data.icons.package import (
  command,
  file_name,
  open_package,
)
from nuclr_jax.lab.data.tfds_reader import TEMPLATE, is_prepared, record_writer
from nuclr_jax.lab.ranges import FEWEST_PIXELS, MOST_PIXELS

FORMAT = 1  # of names, splits, images and records; another gets another folder
RENDERER = "resvg-py"
RENDERED_BY = "0.5.0"  # of the extra [icons]
DATA_SET, RECORDS_VERSION = "icons", "1.0.0"
WRITER_OPTIONS = "group_size:64,zstd"
PARTS = "drawn"  # the folder of sets that have been drawn
DESCRIPTION = "Icons of many designers, with the names that these gave them."

log = logging.getLogger(__name__)


def prepare_icons(
  data_dir: str | os.PathLike,
  *,
  version: str,
  size: int = 32,
  package: str | os.PathLike | None = None,
  sets: Sequence[str] = (),
  processes: int | None = None,
) -> pathlib.Path:
  """Draws the data set below `data_dir` unless it exists.

  A command that was killed goes on with the sets that it had not finished. What
  is made depends on the package and the arguments, but not on `processes`.

  Args:
    data_dir: Folder of prepared data sets; created if missing.
    version: The version of the package.
    size: Height and width of the grey images, in pixels.
    package: The .tgz file of `npm pack`; by default that in `data_dir`. It is
      not needed once the data set has been made.
    sets: Identifiers of the sets to draw; () = those that
      `families.why_left_out` does not exclude.
    processes: How many icons to draw at a time; None = as many as there are
      cores.

  Returns:
    The folder of the prepared TFDS data set (array_record files), with splits
    train, validation and test. The tables `sets.csv` and `rejected.csv` are in
    the folder around it.

  Raises:
    ValueError: If the package is missing, damaged, or of another version, or
      too many of its icons cannot be drawn; if `sets` is one string, or names
      none of its sets; if `size` is out of range.

  Example:
    >>> folder = prepare_icons(tmp_path, version="2.2.535")  # doctest: +SKIP
  """
  if not FEWEST_PIXELS <= size <= MOST_PIXELS:
    raise ValueError(
      f"size must be from {FEWEST_PIXELS} to {MOST_PIXELS} pixels, got {size}"
    )
  if isinstance(sets, str):  # its letters are no sets
    raise ValueError(f"sets is {sets!r}; give a tuple of sets, ({sets!r},)")
  data_dir = pathlib.Path(data_dir)
  name = f"{version}_{size}px_{fingerprint(sets)}"
  folder = data_dir / DATA_SET / name / RECORDS_VERSION
  if is_prepared(folder):
    return folder
  package = _find(package, data_dir, version, size)
  place = files.folder_in(data_dir, DATA_SET, name)
  with files.locked(place, wait=True):
    if folder.exists():
      return folder  # another process has made it meanwhile
    check_renderer()
    for old in place.glob(f"incomplete.{RECORDS_VERSION}.*"):
      shutil.rmtree(old)  # left by a process that was killed
    log.info("drawing the icons of %s into %s", package, folder)
    chosen = drawing.choose_sets(open_package(package, version), sets)
    drawn = drawing.draw_sets(
      chosen,
      files.folder_in(place, PARTS),
      size=size,
      processes=processes or distributed.num_cores(),
    )
    kinds = kinds_of_copies(drawn)
    counts = {k: int((x > 0).sum()) for k, x in kinds.items()}
    files.write_text(place / SETS, drawing.sets_table(drawn, counts))
    files.write_text(place / REJECTED, drawing.rejected_table(drawn))
    if rejected := sum(len(x.reasons) for x in drawn):
      log.info(
        "%d of %d icons are left out; %s has the reasons",
        *(rejected, sum(len(x.icon_set.icons) for x in drawn)),
        place / REJECTED,
      )
    log.info("writing the records")
    _write(folder, drawn, kinds, size)
    shutil.rmtree(place / PARTS)
  return folder


def fingerprint(sets: Sequence[str] = ()) -> str:
  """Hashes everything that decides which record has which id.

  Args:
    sets: The sets that were asked for.
  """
  rules = (
    FORMAT,
    sorted(set(sets)),
    families.SALT,
    families.BOUNDS,
    (families.CATEGORIES, families.ANIMATED),
    sorted(names.NUMBERS),
    (names.SHARE, names.COUNT),
    (copies.SIDE, copies.NEAR, render.FAINTEST),
    _renderer() or RENDERED_BY,
    json.dumps(families.table(), sort_keys=True),
  )
  return hashlib.sha256(repr(rules).encode()).hexdigest()[:12]


def _renderer() -> str | None:
  try:
    return importlib.metadata.version(RENDERER)
  except importlib.metadata.PackageNotFoundError:
    return None


def check_renderer() -> None:
  """Raises ValueError unless resvg is installed."""
  if _renderer() is None:
    raise ValueError(
      "drawing icons takes resvg, which is not installed: pip install "
      '"nuclr_jax[icons]"'
    )


def _find(
  package, data_dir: pathlib.Path, version: str, size: int
) -> pathlib.Path:
  """Finds the package's file."""
  if package is not None:
    path = pathlib.Path(package).expanduser()
  else:
    path = data_dir / file_name(version)
  if not path.exists():
    made = sorted((data_dir / DATA_SET).glob(f"{version}_{size}px_*/{SETS}"))
    other = made and (
      f". {made[0].parent} is of other sets, or was drawn by another version "
      f"of {RENDERER} than {_renderer() or RENDERED_BY}"
    )
    raise ValueError(
      f"{path} does not exist; get it (104 MB) with {command(version)}, "
      "and move it there or say where it is with --config.data.package=FILE"
      f"{other or ''}"
    )
  return path


def kinds_of_copies(drawn: Sequence[Drawn]) -> dict[str, np.ndarray]:
  """Says of each drawing whether a split that comes before has it, too.

  Args:
    drawn: All sets.

  Returns:
    By set, `copies.kinds` of its drawings: those of validation among drawings
    that are trained on, and those of test among both others.
  """
  log.info("looking for drawings that more than one split has")
  thumbs = {x.icon_set.prefix: copies.thumbnails(x.images()) for x in drawn}
  kinds = {k: np.zeros(len(x), np.int64) for k, x in thumbs.items()}
  for i, split in enumerate(families.SPLITS[1:], 1):
    before, mine = [], []
    for x in drawn:
      if x.split == split:
        mine.append(x.icon_set.prefix)
      elif x.split in families.SPLITS[:i]:
        before.append(thumbs[x.icon_set.prefix])
    found = copies.kinds(
      np.concatenate([thumbs[k] for k in mine]), np.concatenate(before)
    )
    ends = np.cumsum([len(thumbs[k]) for k in mine])
    kinds |= dict(zip(mine, np.split(found, ends[:-1]), strict=True))
  return kinds


def _write(folder: pathlib.Path, drawn, kinds, size: int) -> None:
  """Writes the records, and the files that TFDS needs to read them.

  TFDS itself would write the fields of a record in a random order.
  """
  import tensorflow_datasets as tfds

  text = tfds.features.Text()
  image = tfds.features.Tensor(
    shape=(size, size, 1), dtype=np.uint8, encoding="bytes"
  )
  info = tfds.core.DatasetInfo(
    builder=tfds.core.dataset_info.DatasetIdentity(
      name=DATA_SET,
      version=tfds.core.Version(folder.name),
      data_dir=os.fspath(folder),
      module_name="",
      config_name=folder.parent.name,
    ),
    description=DESCRIPTION,
    features=tfds.features.FeaturesDict(
      {
        "image": image,
        "caption": text,  # the words of the name
        "style": text,
        "size": text,
        "set": text,
        "icon": text,  # the name in the set
        "copy": np.int64,  # see `kinds_of_copies`
        "index": np.int64,
      }
    ),
  )
  info.set_file_format("array_record")
  with files.fresh_folder(folder) as stage:
    splits = []
    for split in families.SPLITS:
      template = tfds.core.ShardedFileTemplate(
        data_dir=os.fspath(stage),
        template=TEMPLATE,
        dataset_name=DATA_SET,
        split=split,
        filetype_suffix="array_record",
      )
      path = template.sharded_filepath(shard_index=0, num_shards=1)
      count = num_bytes = 0
      with record_writer(path, WRITER_OPTIONS) as writer:
        for row in _rows(drawn, kinds, split):
          data = _encode(row | {"index": count})
          writer.write(data)
          count, num_bytes = count + 1, num_bytes + len(data)
      splits.append(
        tfds.core.SplitInfo(
          name=split,
          shard_lengths=[count],
          num_bytes=num_bytes,
          filename_template=template,
        )
      )
    info.set_splits(tfds.core.splits.SplitDict(splits))
    info.write_to_directory(os.fspath(stage))


def _rows(drawn, kinds, split: str) -> Iterator[dict[str, Any]]:
  """Yields the records of a split, but for their numbers."""
  for x in drawn:
    if x.split != split:
      continue
    images, prefix = x.images(), x.icon_set.prefix
    rows = zip(x.names(), images, kinds[prefix], strict=True)
    for (icon, name), image, kind in rows:
      yield {
        "image": image.tobytes(),
        "caption": name.words,
        "style": name.style,
        "size": name.size,
        "set": prefix,
        "icon": icon,
        "copy": int(kind),
      }


def _encode(row: dict[str, Any]) -> bytes:
  """Makes the same bytes of the same record."""
  from tensorflow_datasets.proto import tf_example_pb2

  example = tf_example_pb2.Example()
  for key, value in row.items():
    feature = example.features.feature[key]
    if isinstance(value, int):
      feature.int64_list.value.append(value)
    else:
      raw = value.encode() if isinstance(value, str) else value
      feature.bytes_list.value.append(raw)
  return example.SerializeToString(deterministic=True)
