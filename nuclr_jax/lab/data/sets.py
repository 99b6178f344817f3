"""Where data sets are, and how labelled sets are opened there.

A config names a data set in one string: `SET`, `SET:SPLIT`, or `NAME=SET:SPLIT`
(`NAME=SET`) to give it another name in metrics. `SET` is a prepared TFDS data
set or, for labelled sets, a folder with `CLASS/*.jpg` or `SPLIT/CLASS/*.jpg`.
`SPLIT` of a data set may be a slice of TFDS, such as `train[:50%]`.
Without a `NAME`, a folder is called by its last part, and any other set by its
first, as in `coco/2014`.
"""

from collections.abc import Callable, Sequence
import logging
import os
import pathlib
import re
from typing import NamedTuple

from jaxtyping import Int
import numpy as np

from nuclr_jax.lab.data import images, tfds_reader
from nuclr_jax.lab.data.places import (
  cache_dir,
  prepared_versions,
  without_records,
)
from nuclr_jax.lab.data.source import (
  DEFAULT_RESIZE,
  LabelledSet,
  LazyImages,
  Resize,
)
from nuclr_jax.lab.files import bucket, remote, visible

log = logging.getLogger(__name__)

# A set and a split, which may be a slice such as train[:50%]; "://" is of a
# bucket.
PLACE = re.compile(r"(\S.*?)(?::((?!//)(?:[^:\[]|\[[^\]]*\]?)+))?(?<!:)")
TEST_SPLITS = ("test", "validation", "val", "valid")
# How folders of splits are called, in capitals or not.
SPLITS = {*TEST_SPLITS, "train", "training", "testing", "dev"}
MAX_UNREADABLE = 0.5  # of a folder's images; with more, it is an error
NAMED = 5  # unreadable images, or classes, that messages name
# Sets of TFDS that declare ImageNet's 1,000 classes and consist of 200 of them,
# among which publications rank.
OF_FEWER_CLASSES = ("imagenet_a", "imagenet_r")


class Place(NamedTuple):
  """Where a data set is."""

  name: str  # of its metrics and prompts
  source: str  # a folder, or a prepared data set
  split: str | None


def parse_place(text: str) -> Place:
  """Parses a string of the form that this module's docstring describes.

  Raises:
    ValueError: As `parse_set`.

  Example:
    >>> parse_place("coco:test")
    Place(name='coco', source='coco', split='test')
    >>> parse_place("/data/flowers/:val")
    Place(name='flowers', source='/data/flowers/', split='val')
    >>> parse_place("half=coco:train[:50%]")
    Place(name='half', source='coco', split='train[:50%]')
    >>> parse_place("imagenet=/data/imagenet/val").source
    '/data/imagenet/val'
    >>> parse_place("pets=gs://bucket/year=2026:val")
    Place(name='pets', source='gs://bucket/year=2026', split='val')
  """
  name, equals, place = text.partition("=")
  if not equals or "/" in name:  # a folder such as /data/year=2026
    name, place = None, text
  source, split = parse_set(place)
  return Place(_default_name(source) if name is None else name, source, split)


def parse_set(text: str) -> tuple[str, str | None]:
  """Parses `SET` or `SET:SPLIT` into the set and its split.

  Raises:
    ValueError: If the set is missing, or a split after its colon.

  Example:
    >>> parse_set("gs://bucket/coco:train[:50%]")
    ('gs://bucket/coco', 'train[:50%]')
  """
  match = PLACE.fullmatch(text)
  if match is None:
    raise ValueError(
      f"a data set or a split is missing, got {text!r}; give SET, SET:SPLIT or "
      "NAME=SET:SPLIT"
    )
  return match.groups()


def _default_name(source: str) -> str:
  """Returns the last part of a path; of a data set such as coco/2014, coco."""
  path = pathlib.Path(source).expanduser()
  is_path = source.startswith(("/", "~", ".")) or bucket.is_remote(source)
  if is_path or path.is_dir() and not prepared_versions(path):
    return os.path.basename(os.path.abspath(path))
  return source.partition("/")[0]


def parse_places(texts: Sequence[str]) -> list[Place]:
  """Parses several strings, whose names must differ.

  Raises:
    ValueError: If two places have the same name, or one has none.

  Example:
    >>> [x.name for x in parse_places(["coco:val", "mine=coco:test"])]
    ['coco', 'mine']
  """
  places = [parse_place(text) for text in texts]
  names = [place.name for place in places]
  wrong = sorted({x for x in names if not x or names.count(x) > 1})
  if wrong:
    raise ValueError(
      f"evaluation sets need names of their own, got {wrong} of {list(texts)}; "
      "give names as NAME=SET:SPLIT"
    )
  return places


def open_labelled_set(
  place: Place,
  *,
  size: int,
  resize: Resize = DEFAULT_RESIZE,
  split: str | None = None,
  data_dir: str | os.PathLike | None = None,
) -> LabelledSet:
  """Opens images with classes; each image is read when it is needed.

  The images of a folder are decoded once before, since nothing else finds files
  that are cut short. Those that cannot be are left out, with a warning.

  Args:
    place: Where the images are. The classes of a folder are its sub-folders, in
      alphabetical order, without hidden ones (see `files.is_hidden`). Classes
      without images are classes all the same, with a warning; TFDS's ImageNet-A
      and ImageNet-R have the 200 classes that they have images of.
    size: Height and width of the images, in pixels.
    resize: How images become squares; without a mode, they are cropped.
    split: The split if the place does not name one; by default the test split,
      else the validation split, else, for a folder, the folder itself.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such data set, or it has no classes, images
      without a label, or more than `MAX_UNREADABLE` images that cannot be read.
  """
  split = place.split or split
  how = resize._replace(mode=resize.mode or "crop")

  def to_square(data: bytes, where) -> images.Resized:
    try:
      return images.resize(images.decode(data), size, how)
    except ValueError as error:
      raise ValueError(f"{where}: {error}") from error

  folder = class_folder(place, data_dir)
  if folder is None:
    opened = _open_prepared(place, split, to_square, data_dir)
  else:
    opened = _open_folder(folder, split, to_square)
  fetch, label, classes = opened
  missing = np.setdiff1d(np.arange(len(classes)), label)
  if len(missing):
    log.warning(
      "%s: %d of %d classes have no image, such as %s; they stay candidates "
      "that an image can be taken for: remove them if they should not be",
      place.source,
      len(missing),
      len(classes),
      ", ".join(classes[i] for i in missing[:NAMED]),
    )
  return LabelledSet(LazyImages(len(label), fetch), label, classes)


def with_classes(data: LabelledSet, classes: Sequence[str]) -> LabelledSet:
  """Numbers the classes of a set as another set does, by their names.

  Args:
    data: The set.
    classes: The classes of the other set, all of this one among them.

  Example:
    >>> data = LabelledSet(np.eye(2), np.array([0, 1]), ["cat", "dog"])
    >>> with_classes(data, ["ape", "cat", "dog"]).label.tolist()
    [1, 2]
  """
  number = {name: i for i, name in enumerate(classes)}
  renumbered = np.array([number.get(name, -1) for name in data.classes])
  return data._replace(label=renumbered[data.label], classes=classes)


def check_labelled_set(
  place: Place,
  data_dir: str | os.PathLike | None = None,
  *,
  split: str | None = None,
) -> list[str]:
  """Raises ValueError unless `open_labelled_set` would find labelled images.

  They must be of several classes. It opens no image, and looks only at the
  first label of a data set.

  Args:
    place: Where the images are.
    data_dir: Folder of prepared data sets.
    split: The split if the place does not name one, by default as in
      `open_labelled_set`.

  Returns:
    The names of the classes that are declared.
  """
  split = place.split or split
  folder = class_folder(place, data_dir)
  if folder is not None:
    folder = _split_folder(folder, split)
    if not any(map(_is_image, visible(folder.glob("*/*"), folder))):
      raise _no_images(folder)
    return _several(folder, [home.name for home in _class_folders(folder)])
  data, _, label = _prepared_split(place, split, data_dir)
  _check_labels(data.name, [row[label] for row in data.read([0])])
  return _several(data.name, data.features[label].names)


def _several(name: str | os.PathLike, classes: list[str]) -> list[str]:
  """Returns classes; raises ValueError if there is one, which is always right.

  Args:
    name: The set, for the message.
    classes: The names of its classes.
  """
  if len(classes) == 1:
    raise ValueError(
      f"{name} has one class, {classes[0]}, and nothing to tell it from; give "
      "a folder with a sub-folder of images for each class"
    )
  return classes


def split_of(
  place: Place, data_dir: str | os.PathLike | None = None
) -> str | None:
  """Returns the split of a labelled set that `open_labelled_set` opens.

  Args:
    place: The set.
    data_dir: Folder of prepared data sets.

  Returns:
    The split, by the name that it has there; None for a folder of classes that
    has no splits.
  """
  folder = class_folder(place, data_dir)
  if folder is None:
    names = tfds_reader.split_names(place.source, data_dir)
    return place.split or _test_split(names)
  chosen = _split_folder(folder, place.split)
  return None if chosen == folder else chosen.name


def class_folder(
  place: Place, data_dir: str | os.PathLike | None = None
) -> pathlib.Path | None:
  """Returns a place's folder of classes; None if it is a prepared data set.

  A relative path is looked for among the prepared data sets first, and then in
  the current folder.
  """
  if bucket.is_remote(place.source):
    folder = remote.fetch(place.source, choose=without_records)
    return None if prepared_versions(folder) else folder
  source = pathlib.Path(place.source).expanduser()
  for folder in (cache_dir(data_dir) / source, source):
    if folder.is_dir():
      return None if prepared_versions(folder) else folder
  return None


# A function from numbers to images; the labels; the names of the classes.
Opened = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, Sequence[str]]


def _open_folder(folder, split, to_square) -> Opened:
  """Opens a folder of classes."""
  folder = _split_folder(folder, split)
  homes = _class_folders(folder)
  classes = [home.name for home in homes]
  paths, label, others = [], [], []
  for i, home in enumerate(homes):
    for member in visible(home.iterdir(), home):
      if _is_image(member):
        paths.append(member)
        label.append(i)
      else:
        others.append(os.fspath(member.relative_to(folder)))
  if not paths:
    raise _no_images(folder)
  if others:
    log.warning(
      "%s: %d files and folders in its classes are not read, such as %s; "
      "images are the files CLASS/NAME that end in %s",
      folder,
      len(others),
      ", ".join(others[:NAMED]),
      " ".join(images.ENDINGS),
    )
  readable = _readable(folder, paths)
  paths = [paths[i] for i in readable]

  def fetch(numbers):
    return np.stack(
      images.in_threads(
        lambda i: to_square(paths[i].read_bytes(), paths[i]), list(numbers)
      )
    )

  return fetch, np.array(label)[readable], classes


def _readable(
  folder: pathlib.Path, paths: Sequence[pathlib.Path]
) -> Int[np.ndarray, "readable"]:
  """Finds the images that can be decoded; warns of the others.

  Raises:
    ValueError: If there are more than `MAX_UNREADABLE` others.
  """

  def problem_of(path):
    try:
      images.decode_input(path.read_bytes())
    except (OSError, ValueError) as error:
      return f"{path.relative_to(folder)} ({error})"
    return None

  problems = images.in_threads(problem_of, paths)
  found = [x for x in problems if x is not None]
  if found:
    count = f"{len(found)} of {len(paths)} images"
    more = ", ..." if len(found) > NAMED else ""
    named = f"{', '.join(found[:NAMED])}{more}"
    if len(found) > MAX_UNREADABLE * len(paths):
      raise ValueError(
        f"{folder}: {count} cannot be read: {named}; repair or remove them"
      )
    log.warning(
      "%s: %s cannot be read and are left out: %s", folder, count, named
    )
  return np.flatnonzero([x is None for x in problems])


def _class_folders(folder: pathlib.Path) -> list[pathlib.Path]:
  return [x for x in visible(folder.iterdir(), folder) if x.is_dir()]


def _is_image(path: pathlib.Path) -> bool:
  return path.suffix.lower() in images.ENDINGS and path.is_file()


def _no_images(folder: pathlib.Path) -> ValueError:
  names = sorted(x.name for x in folder.iterdir())
  split = next((x for x in names if x.lower() in SPLITS), None)
  return ValueError(
    f"{folder} holds no images in sub-folders, one for each class; it holds "
    f"{names[:5]}" + (f"; name a split, as SET:{split}" if split else "")
  )


def _split_folder(folder: pathlib.Path, split: str | None) -> pathlib.Path:
  """Finds a split's folder; by default the test split's, or the folder."""
  known = ("validation", "val", "valid")
  same = {x: sorted(known, key=lambda y, x=x: y != x) for x in known}
  names = TEST_SPLITS if split is None else same.get(split, (split,))
  folders = [folder / name for name in names if (folder / name).is_dir()]
  if not folders and split is not None:
    raise ValueError(
      f"{folder} has no folder {split}; it holds "
      f"{sorted(x.name for x in folder.iterdir())[:5]}"
    )
  return folders[0] if folders else folder


def _open_prepared(place, split, to_square, data_dir) -> Opened:
  """Opens a prepared TFDS data set."""
  data, image, label = _prepared_split(place, split, data_dir)

  def fetch(numbers):
    rows = [row[image] for row in data.read(numbers)]
    return np.stack(images.in_threads(lambda x: to_square(x, data.name), rows))

  labels, names = _labels(data, label), data.features[label].names
  if data.name.partition("/")[0] in OF_FEWER_CLASSES:
    whole, part, _ = data.name.rpartition("/")[2].partition("[")
    present = labels
    if part:  # it has the classes of the whole split
      of_whole = tfds_reader.open_split(place.source, whole, data_dir)
      present = _labels(of_whole, label)
    present = np.unique(present)
    labels = np.searchsorted(present, labels)
    log.info(
      "%s has images of %d of %d classes, which are the candidates",
      data.name,
      len(present),
      len(names),
    )
    names = [names[i] for i in present]
  return fetch, labels, names


def _labels(data, label):
  """Reads all labels of a split."""
  rows = tfds_reader.all_rows(data.read, data.length)
  labels = np.array([int(row[label]) for row in rows])
  _check_labels(data.name, labels)
  return labels


def _check_labels(name: str, labels) -> None:
  if min(labels) < 0:  # as TFDS marks missing labels
    raise ValueError(
      f"{name} has images without a label ({min(labels)}); choose a split "
      "whose images have one"
    )


def _test_split(names: Sequence[str]) -> str:
  """Returns the split of a data set to score, if none is named."""
  return next((x for x in TEST_SPLITS if x in names), TEST_SPLITS[0])


def _prepared_split(place, split, data_dir):
  """Opens a split; finds its image feature and its class label."""
  import tensorflow_datasets as tfds

  if split is None:
    split = _test_split(tfds_reader.split_names(place.source, data_dir))
  data = tfds_reader.open_split(place.source, split, data_dir)
  kinds = {
    kind: [k for k, f in data.features.items() if isinstance(f, kind)]
    for kind in (tfds.features.Image, tfds.features.ClassLabel)
  }
  if not all(kinds.values()):
    raise ValueError(
      f"{data.name} needs an image feature and a class label; its features are "
      f"{sorted(data.features)}"
    )
  image, label = (
    name if name in names else names[0]
    for name, names in zip(("image", "label"), kinds.values(), strict=True)
  )
  if not data.length:
    raise ValueError(f"{data.name} has no images; choose another split")
  return data, image, label
