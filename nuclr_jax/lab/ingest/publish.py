"""The end of an ingest: finished parts become splits of a TFDS data set.

Every step can be repeated after an interruption. A data set appears by a single
rename; a split that joins an existing data set appears when dataset_info.json
is replaced, which is the last step.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
import json
import logging
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import EMPTY_CAPTION, NO_UTF8
from nuclr_jax.lab.data.in_place import PLACE, write_tars
from nuclr_jax.lab.data.pair_index import load_index, number_pairs, save_index
from nuclr_jax.lab.data.tfds_reader import (
  INFO,
  TEMPLATE,
  is_prepared,
  read_only_builder,
)
from nuclr_jax.lab.ingest.records import record_features
from nuclr_jax.lab.user_files.items import NO_FILE

log = logging.getLogger(__name__)

DESCRIPTION = "Images with captions, from nuclr ingest."
HASHES = ("image_hash", "num_captions", "caption_hash")


def publish(
  written: Sequence[tuple[str, pathlib.Path]],
  work: pathlib.Path,
  folder: pathlib.Path,
  options: Mapping[str, Any],
) -> None:
  """Makes a data set from finished parts, or adds their splits to one.

  Args:
    written: Split and stem of each part, see `records.write_part`.
    work: Folder of the parts; it is removed at the end.
    folder: The data set, DATA_DIR/NAME/VERSION.
    options: The input and the options of the ingest, for `check_same_options`
      to compare later.

  Raises:
    ValueError: If the parts hold no record.
  """
  stems = {}
  for split, stem in written:
    stems.setdefault(split, []).append(stem)
  if not any(
    files.read_arrays(_file(stem, "npz"))["num_bytes"] for _, stem in written
  ):
    error = _nothing([_file(stem, "rejected.jsonl") for _, stem in written])
    shutil.rmtree(work)  # else it would block the next attempt
    raise error
  existing, name = published_splits(folder), folder.parent.name
  stage = files.folder_in(work, folder.name)
  infos, in_place = list(existing.values()), bool(options.get("in_place"))
  for split in stems:
    target = folder if existing else stage
    infos += _publish_split(
      split, stems[split], folder, stage, target, in_place=in_place
    )
    files.write_text(stage / _made_of(name, split), noted(options))
  _write_info(infos, stage, folder, in_place=in_place)
  if existing:
    # dataset_info.json comes last: replacing it makes the new splits appear.
    for path in sorted(stage.iterdir(), key=lambda x: x.name == INFO):
      old = folder / path.name
      if old.is_symlink():
        old.unlink()
      elif old.is_dir():
        shutil.rmtree(old)
      path.replace(old)
  else:
    stage.rename(folder)
  shutil.rmtree(work)
  _warn_of_shared_images(folder, list(stems))


def check_same_options(
  folder: pathlib.Path, split: str, options: Mapping[str, Any]
) -> None:
  """Raises ValueError if an existing split was made in another way.

  Args:
    folder: The data set.
    split: A split of it.
    options: The input and the options that would make the split now.
  """
  path = folder / _made_of(folder.parent.name, split)
  if not path.exists():
    return  # an earlier version of the library made it
  other = differing(path, options)
  if other:
    raise ValueError(
      f"{folder} has a split {split} already, of another {', '.join(other)}; "
      "choose another --split or --dataset, or delete the folder"
    )


def differing(path: pathlib.Path, options: Mapping[str, Any]) -> list[str]:
  """Lists the options that differ from those recorded in a file."""
  before, options = files.read_json(path), json.loads(noted(options))
  return [x for x in options if options[x] != before.get(x)]


def noted(options: Mapping[str, Any]) -> str:
  """Formats options for the file that `differing` reads."""
  return json.dumps(options, indent=2, default=os.fspath)


def published_splits(
  folder: pathlib.Path, *, in_place: bool | None = None
) -> dict[str, tfds.core.SplitInfo]:
  """Returns the splits of an ingested data set; {} if it does not exist.

  Args:
    folder: The data set, DATA_DIR/NAME/VERSION.
    in_place: Whether its images must be in tars; None = no matter.

  Raises:
    ValueError: If the folder holds something else.
  """
  if not is_prepared(folder):
    return {}
  info = read_only_builder(folder).info
  are_in_tars = PLACE in info.features
  if sorted(info.features) != sorted(record_features(in_place=are_in_tars)):
    raise ValueError(
      f"{folder} is another data set, with features {sorted(info.features)}; "
      "choose another name with --dataset"
    )
  if in_place not in (None, are_in_tars):
    raise ValueError(
      f"the images of {folder} are {'not ' if in_place else ''}in tar files; "
      "splits of both kinds do not go into one data set: choose another name "
      f"with --dataset, or {'leave out' if in_place else 'add'} --in_place"
    )
  return dict(info.splits)


def split_counts(folder: str | os.PathLike) -> dict[str, int]:
  """Counts images, captions and rejections of an ingested data set, by split.

  Args:
    folder: The data set, DATA_DIR/NAME/VERSION.

  Returns:
    Counts such as `{"train images": 5, "train captions": 9, "train rejected":
    1, "train rejected, no caption": 1}`.

  Example:
    >>> split_counts("cc3m/1.0.0")  # doctest: +SKIP
  """
  counts, folder = {}, pathlib.Path(folder)
  for split, info in sorted(published_splits(folder).items()):
    listed = folder / _listed(folder.parent.name, split)
    reasons = _reasons([listed])
    counts[f"{split} images"] = info.num_examples
    if index := load_index(folder, split):
      counts[f"{split} captions"] = index.sizes.num_pairs
    counts[f"{split} rejected"] = sum(reasons.values())
    for reason, count in reasons.most_common():
      counts[f"{split} rejected, {reason}"] = count
  return counts


def _publish_split(
  split, stems, folder, stage, target, *, in_place
) -> list[tfds.core.SplitInfo]:
  """Moves the files of a split into place; [] if it has no record."""
  name = folder.parent.name
  listed = [_file(stem, "rejected.jsonl") for stem in stems]
  with (
    files.replacing(stage / _listed(name, split)) as new,
    new.open("wb") as out,
  ):
    for path in listed:
      with open(path, "rb") as file:
        shutil.copyfileobj(file, out)
  loaded = [files.read_arrays(_file(stem, "npz")) for stem in stems]
  lengths = [len(x["image_hash"]) for x in loaded]
  _log(
    split,
    loaded,
    _reasons(listed),
    files.remote.original(folder / _listed(name, split)),
  )
  full = [stem for stem, n in zip(stems, lengths, strict=True) if n]
  if not full:
    return []
  template = tfds.core.ShardedFileTemplate(
    data_dir=os.fspath(target),
    template=TEMPLATE,
    dataset_name=name,
    split=split,
    filetype_suffix="array_record",
  )
  for old in target.glob(f"{name}-{split}.array_record-*"):
    if not old.name.endswith(f"-of-{len(full):05d}"):
      old.unlink()  # left by an ingest that was abandoned
  for number, stem in enumerate(full):
    path = _file(stem, "array_record")
    place = template.sharded_filepath(shard_index=number, num_shards=len(full))
    if path.exists():  # else an earlier attempt has moved it
      path.replace(place)
  pairs = f"pairs-{split}"  # in full: another split's name may begin so
  for old in [*stage.glob(pairs), *stage.glob(f"incomplete.{pairs}.*")]:
    shutil.rmtree(old)
  hashes = [np.concatenate([x[name] for x in loaded]) for name in HASHES]
  save_index(stage, split, number_pairs(*hashes))
  if in_place:
    stamps = [json.loads(str(x["stamp"])) for x in loaded]
    full = [x for x, n in zip(stamps, lengths, strict=True) if n]
    write_tars(stage, split, full)
    if copied := sum(int(x["num_images"]) for x in loaded):
      log.info(
        "split %s: %d images, which are not JPEG or were shrunk, have been "
        "copied",
        split,
        copied,
      )
  return [
    tfds.core.SplitInfo(
      name=split,
      shard_lengths=[n for n in lengths if n],
      num_bytes=sum(int(x["num_bytes"]) for x in loaded),
      filename_template=template,
    )
  ]


def _warn_of_shared_images(folder, new) -> None:
  """Warns of images that a new split shares with any other split."""
  found = {x: load_index(folder, x) for x in sorted(published_splits(folder))}
  images = {split: x.image_hash for split, x in found.items() if x}
  for a, b in combinations(images, 2):
    if not {a, b} & set(new):
      continue
    small, large = sorted((a, b), key=lambda split: len(images[split]))
    both = np.intersect1d(images[a], images[b], assume_unique=True)
    if len(both):
      log.warning(
        "%d of %d images of split %s are in split %s, too, byte for byte: do "
        "not train on one and score on the other; give all captions of an "
        "image the same split, and leave out copies",
        len(both),
        len(images[small]),
        small,
        large,
      )


def _write_info(infos, stage, folder, *, in_place) -> None:
  """Writes the files that TFDS needs to read the data set."""
  builder = tfds.core.dataset_info.DatasetIdentity(
    name=folder.parent.name,
    version=tfds.core.Version(folder.name),
    data_dir=os.fspath(folder),
    module_name="",
  )
  info = tfds.core.DatasetInfo(
    builder=builder,
    features=record_features(in_place=in_place),
    description=DESCRIPTION,
  )
  info.set_file_format("array_record")
  info.set_splits(tfds.core.splits.SplitDict(infos))
  info.write_to_directory(os.fspath(stage))


def _log(split, loaded, reasons, path) -> None:
  """Logs how many images, captions and rejections a split has."""
  images = sum(len(x["image_hash"]) for x in loaded)
  captions = sum(len(x["caption_hash"]) for x in loaded)
  listed = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
  log.info(
    "split %s: %d images, %d captions, %d rejected%s",
    split,
    images,
    captions,
    sum(reasons.values()),
    f" ({listed}; all are listed in {path})" if listed else "",
  )
  lost = sum(
    n for reason, n in reasons.items() if reason not in (EMPTY_CAPTION, NO_UTF8)
  )
  if lost > images:
    log.warning("more than half of split %s was rejected: %s", split, listed)


def _nothing(paths: Sequence[pathlib.Path]) -> ValueError:
  """Makes the error for an input of which everything was rejected."""
  examples = islice(_rejections(paths), 3)
  shown = "".join(f"\n  {json.dumps(example)}" for example in examples)
  reasons = _reasons(paths)
  if NO_FILE in reasons:
    shown += (
      "\npaths are relative to the folder of the file that names them, or to "
      "--images=FOLDER"
    )
  why = (
    f"{dict(reasons)}; for example{shown}"
    if shown
    else "it is empty, or all its files are hidden (.NAME, __MACOSX and such)"
  )
  return ValueError(f"no image with a caption is left of the input: {why}")


def _reasons(paths: Sequence[pathlib.Path]) -> Counter:
  """Counts the reasons in lists of what was rejected."""
  return Counter(rejected["reason"] for rejected in _rejections(paths))


def _rejections(paths: Sequence[pathlib.Path]) -> Iterator[dict[str, str]]:
  for path in paths:
    with open(path, encoding="utf-8") as file:
      yield from map(json.loads, file)


def _listed(name: str, split: str) -> str:
  return f"{name}-{split}.rejected.jsonl"


def _made_of(name: str, split: str) -> str:
  return f"{name}-{split}.input.json"


def _file(stem: pathlib.Path, ending: str) -> pathlib.Path:
  return stem.with_name(f"{stem.name}.{ending}")
