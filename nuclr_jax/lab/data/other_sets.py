"""Sets to score a model on, whatever it was trained on.

`open_sets` opens prepared data sets and folders of classes for the inputs of a
model. Each set is filed under its own split, so that scores are called by it:
`val/coco/image_to_text/recall@1` are of `coco:val`.
"""

from collections.abc import Mapping, Sequence
import functools
import os
from typing import NamedTuple

from nuclr_jax.lab.data import sets, tfds_reader
from nuclr_jax.lab.data.captioned import open_image_text_set
from nuclr_jax.lab.data.embeddings import Lookup, open_embeddings, set_of_rows
from nuclr_jax.lab.data.source import Data, HeldOut, Inputs, label_of

HELD_OUT = ("validation", "val", "valid", "dev", "test")  # names of splits
NO_SPLIT = ""  # of a folder of classes without splits, for one


class OtherSets(NamedTuple):
  """Open sets, and where they are from."""

  held_out: Mapping[str, HeldOut]  # by split
  sources: Mapping[str, str]  # by the beginning of the names of their scores


def open_sets(
  captioned: Sequence[str],
  classified: Sequence[str],
  inputs: Inputs,
  *,
  data_dir: str | os.PathLike | None = None,
) -> OtherSets:
  """Opens sets for a model's images and texts.

  Args:
    captioned: Prepared data sets for retrieval, see `sets`: `NAME` or
      `NAME:SPLIT`. A name without a split stands for its validation and test
      splits or, if there are none, for all.
    classified: Labelled sets, see `sets`.
    inputs: The inputs of the model.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If the model does not take photos, a set cannot be read, or two
      sets of a split have the same name.
  """
  check_takes_photos(inputs)
  how = dict(size=inputs.image_shape[0], resize=inputs.resize)
  how["data_dir"] = data_dir
  held_out: dict[str, HeldOut] = {}
  sources: dict[str, str] = {}

  def add(place, split, name, **opened):
    label = label_of(split, name)
    if label in sources:
      raise ValueError(
        f"two sets are called {label!r}; give them names, as NAME=SET:SPLIT"
      )
    held_out[split] = join(held_out.get(split, HeldOut()), HeldOut(**opened))
    sources[label] = label_of(place.source, split, by=":")

  for place in map(sets.parse_place, captioned):
    for split in splits_to_score(place, data_dir):
      opened = open_image_text_set(place.source, split, **how)
      add(place, split, place.name, retrieval={place.name: opened})
  for place in map(sets.parse_place, classified):
    sets.check_labelled_set(place, data_dir)
    opened = functools.partial(sets.open_labelled_set, place, **how)
    split, name = sets.split_of(place, data_dir) or NO_SPLIT, place.name
    opened = {name: functools.cache(opened)}
    add(place, split, f"zero_shot_{name}", zero_shot=opened)
  return OtherSets(held_out, sources)


def join(sets_of_split: HeldOut, more: HeldOut) -> HeldOut:
  """Adds sets to those of a split; names of one kind must differ.

  Example:
    >>> join(HeldOut({"a": 1}), HeldOut({"b": 2}, {"a": 3}))[:2]
    ({'a': 1, 'b': 2}, {'a': 3})
  """
  kinds = list(zip(HeldOut._fields, sets_of_split, more, strict=True))
  for kind, x, y in kinds:
    if twice := sorted(x.keys() & y.keys()):
      raise ValueError(
        f"two sets ({kind}) are called {twice[0]!r}; give them names, as "
        "NAME=SET:SPLIT"
      )
  return HeldOut(
    *({**x, **y} for x, y in zip(sets_of_split, more, strict=True))
  )


def with_folders(data: Data, folders: Sequence[str]) -> tuple[Data, OtherSets]:
  """Opens folders of embeddings, for a model that is trained on such folders.

  Args:
    data: What the model was trained on, see `embeddings`.
    folders: What `nuclr embed` wrote, with the same model.

  Returns:
    The data, which look up the captions of the folders, too; and the folders,
    as sets without a split.

  Raises:
    ValueError: If a folder cannot be read, or is not of the same model.
  """
  opened = {os.path.basename(os.path.abspath(x)): x for x in folders}
  if len(opened) < len(folders):
    raise ValueError(
      f"folders must differ in their last parts, got {list(folders)}"
    )
  rows = {name: open_embeddings(x) for name, x in opened.items()}
  words = Lookup([*data.tokenizer.folders, *rows.values()])
  held_out = HeldOut({name: set_of_rows(x) for name, x in rows.items()})
  found = OtherSets({NO_SPLIT: held_out}, opened)
  return data._replace(tokenizer=words), found


def check_takes_photos(inputs: Inputs) -> None:
  """Raises ValueError unless a model takes RGB images and texts."""
  shape = inputs.image_shape
  if len(shape) == 1 and inputs.tokenizer.vocab_size:
    raise ValueError(
      "the model takes texts only, not RGB images of shape (size, size, 3); "
      "nuclr embed and nuclr popularity take it with --input=texts.txt, a text "
      "on each line"
    )
  if len(shape) != 3 or shape[2] != 3:
    raise ValueError(
      f"the model takes images of shape {shape}, not RGB images of shape "
      "(size, size, 3); give a run or a config of such a model"
    )


def splits_to_score(
  place: sets.Place, data_dir: str | os.PathLike | None = None
) -> list[str]:
  """Returns the splits of a place that are scored.

  Args:
    place: The place.
    data_dir: Folder of prepared data sets.

  Returns:
    The split that it names; otherwise those for validation and testing or, if
    it has neither, all.
  """
  known = tfds_reader.split_names(place.source, data_dir)
  if place.split is not None:
    return [place.split]
  return [x for x in HELD_OUT if x in known] or list(known)
