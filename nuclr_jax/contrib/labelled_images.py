"""Labelled images in memory, and two views of each.

scikit-learn's digits and the glyphs need no download; prepared TFDS data sets
(CIFAR, MNIST and the like) and folders of classes are read whole.
"""

from collections.abc import Mapping, Sequence
from functools import partial
import os
import zlib

import numpy as np

from nuclr_jax.checks import Count, NonNegative, one_of
from nuclr_jax.contrib.latent_scores import SCORES, ClassScores
from nuclr_jax.lab.data.glyphs import (
  FONTS,
  enlarged_digits,
  prepare_glyphs,
)
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.records import read_records
from nuclr_jax.lab.data.source import (
  NUM_RANDOM,
  Data,
  HeldOut,
  LabelledSet,
  Source,
  Transform,
  source_of_samples,
)
from nuclr_jax.lab.ranges import Pixels
from nuclr_jax.types import Batch

VIEW, CLASS = "view", "class"  # what a positive shares with its anchor
Shared = one_of((VIEW, CLASS))
NUM_DIGITS = {"train": 1_197, "validation": 300, "test": 300}
NUM_FONTS = {"train": 10, "validation": 2, "test": 4}  # of each character


def labelled(
  *,
  train: str = "digits",
  validation: str | None = None,
  test: str | None = None,
  data_dir: str | os.PathLike | None = None,
  size: Pixels = 16,
  shift: NonNegative = 1.0,
  scale: NonNegative = 0.1,
  flip: bool = False,
  positive: Shared = VIEW,
  block_size: Count = 1,
  classes: Count | None = None,
  per_class: Count | None = None,
  labels_per_class: Count | None = None,
  unseen: bool = False,
  scores: tuple[str, ...] = SCORES,
  validation_scores: tuple[str, ...] = ("classes", "recall", "losses"),
  ways: tuple[Count, ...] = (2, 10),
  num_negatives: tuple[Count, ...] = (1,),
) -> Data:
  """Loads labelled images and makes two views of each, for the model `views`.

  The output that the objective sees is scored by linear classifiers
  ("classes"), by the "recall" of other images of the same class, by contrastive
  and supervised "losses" with their bounds and by the "variation" of
  differences, see `evaluate.latent`; the encoder's features are scored by
  classifiers ("probe"), see `evaluate.probe`.

  Args:
    train: "digits" (scikit-learn's), "glyphs" (characters in 16 fonts), or
      `NAME:SPLIT` or a folder of classes, see `data.sets`.
    validation: Images to score during training, `NAME:SPLIT` or a folder; None
      = the validation split of digits and glyphs, and none for other data.
    test: Images to score at the end, `NAME:SPLIT` or a folder; None = the test
      split of `train`.
    data_dir: Folder of prepared data sets.
    size: Height and width of the images, in pixels.
    shift: Largest move of an augmented image along each axis, in pixels.
    scale: Largest change of the logarithm of its size along each axis.
    flip: Whether to mirror half of the views.
    positive: "view" or "class", see `two_views`.
    block_size: Consecutive pairs that share a class, see `two_views`.
    classes: How many classes to keep; None = all.
    per_class: How many training images of each class to keep; None = all.
    labels_per_class: How many of these images of each class the classifiers
      that score may learn from; None = all. They are the images that the same
      `per_class` would keep.
    unseen: Whether to test on classes that are not trained on, see
      `halve_classes`; only recalls and variations are scored on them.
    scores: The scores of the test split, from `SCORES`.
    validation_scores: The scores of the validation split, from `SCORES`.
    ways: The numbers of classes of the tasks that are averaged over.
    num_negatives: The numbers of negatives of the contrastive losses that are
      measured.

  Raises:
    ValueError: If a data set is missing or has too few classes.
  """
  # Not at the top: the core imports this file without OpenCV.
  from nuclr_jax.lab.data.augment import augment
  from nuclr_jax.lab.data.sets import parse_place

  name = parse_place(train).name
  splits = _read_splits(train, validation, test, size=size, data_dir=data_dir)
  count, needed = int(splits["train"].label.max()) + 1, 4 if unseen else 2
  if count < needed:
    raise ValueError(
      f"{train} has {count} class(es), at least {needed} are needed"
    )
  splits = keep_part(splits, classes=classes)
  if unseen:
    splits = halve_classes(splits)
  splits = keep_part(splits, per_class=per_class)
  known = keep_part(splits, per_class=labels_per_class)["train"]
  chosen = {"validation": validation_scores, "test": scores}
  return Data(
    train=two_views(
      splits["train"],
      augment(shift=shift, scale=scale, flip=flip),
      positive=positive,
      block_size=block_size,
    ),
    tokenizer=NoText(),
    image_shape=splits["train"].image.shape[1:],
    held_out={
      split: HeldOut(
        others={
          name: ClassScores(
            None if unseen else known,
            splits[split],
            names,
            ways,
            num_negatives,
          )
        }
      )
      for split, names in chosen.items()
      if split in splits
    },
    num_classes=int(splits["train"].label.max()) + 1,
    block_size=block_size,
  )


class NoText:
  """A stand-in for a tokenizer, for data without texts."""

  vocab_size, length, text = 0, 0, ""

  def encode(self, captions: Sequence[str]):
    """Raises ValueError, since there is nothing to encode with."""
    raise ValueError(
      "this data set has images only; no text can be encoded, so choose scores "
      "that need images alone, and neither refresh nor a warm start"
    )

  def is_cut(self, captions: Sequence[str]):
    """Says of no caption that it is cut, since none is encoded."""
    return np.zeros(len(captions), bool)

  def _asdict(self):
    return {"text": self.text, "length": self.length}


def digit_splits(size: int) -> dict[str, LabelledSet]:
  """Splits scikit-learn's 1,797 handwritten digits at random.

  The splits are the same in every run.

  Args:
    size: Height and width that the 8 x 8 images are enlarged to, in pixels.

  Example:
    >>> {name: len(x.label) for name, x in digit_splits(8).items()}
    {'train': 1197, 'validation': 300, 'test': 300}
  """
  images, label = enlarged_digits(size)
  order, splits, start = np.random.default_rng(0).permutation(len(label)), {}, 0
  for split, count in NUM_DIGITS.items():
    ids = order[start : start + count]
    splits[split] = LabelledSet(
      images[ids], label[ids], name=f"digits/{split}/{size}"
    )
    start += count
  return splits


def glyph_splits(
  size: int, *, data_dir: str | os.PathLike | None = None
) -> dict[str, LabelledSet]:
  """Makes a class of each character that all 16 font files draw.

  There are about 730 classes of 16 images; some characters look alike, for
  instance Latin A and Greek Alpha. The fonts of each character are assigned to
  the splits at random, in the same way in every run.

  Args:
    size: Height and width of the images, in pixels.
    data_dir: Folder of prepared data sets; the glyphs are rendered there once.
  """
  folder = prepare_glyphs(cache_dir(data_dir), size=size)
  images, names = [], []
  for split in ("train", "validation", "test"):
    records = read_records(folder, split)
    images.append(records.image)
    names += [records.captions[i] for i in records.text_id]
  _, label, counts = np.unique(names, return_inverse=True, return_counts=True)
  rows = np.flatnonzero(counts[label] == len(FONTS))
  rows = rows[np.argsort(label[rows], kind="stable")]
  rows = rows.reshape(-1, len(FONTS))  # by class
  rows = np.random.default_rng(0).permuted(rows, axis=1)
  everything, splits, start = np.concatenate(images), {}, 0
  for split, count in NUM_FONTS.items():
    chosen = rows[:, start : start + count]
    splits[split] = LabelledSet(
      everything[chosen.ravel()],
      np.repeat(np.arange(len(rows)), count),
      name=f"glyphs/{split}/{size}",
    )
    start += count
  return splits


def keep_part(
  splits: Mapping[str, LabelledSet],
  *,
  classes: Count | None = None,
  per_class: Count | None = None,
) -> dict[str, LabelledSet]:
  """Keeps some classes, or some training images of each.

  They are drawn at random, and are the same in every run.

  Args:
    splits: Labelled images by split, "train" among them.
    classes: How many classes to keep in all splits; None = all.
    per_class: How many training images to keep of each class, or all if it has
      no more; None = all.

  Raises:
    ValueError: If there are not that many classes, or a number is too small.

  Example:
    >>> kept = keep_part(digit_splits(8), classes=3, per_class=5)
    >>> kept["train"].label.tolist()[:6], len(kept["train"].label)
    ([0, 0, 0, 0, 0, 1], 15)
  """
  rng, parts = np.random.default_rng(0), dict(splits)
  total = int(max(x.label.max() for x in splits.values())) + 1
  if classes is not None:
    if not 2 <= classes <= total:
      raise ValueError(f"classes must be in [2, {total}], got {classes}")
    kept = np.sort(rng.permutation(total)[:classes])
    number = np.full(total, -1)
    number[kept] = np.arange(classes)
    for split, x in splits.items():
      rows = np.flatnonzero(number[x.label] >= 0)
      parts[split] = LabelledSet(
        x.image[rows],
        number[x.label[rows]],
        [x.classes[i] for i in kept] if x.classes else (),
        name=f"{x.name}/{classes} classes",
      )
  if per_class is not None:
    if per_class < 1:
      raise ValueError(f"per_class must be at least 1, got {per_class}")
    x = parts["train"]
    order = rng.permutation(len(x.label))
    order = order[np.argsort(x.label[order], kind="stable")]
    counts = np.bincount(x.label)
    place = np.arange(len(order)) - np.repeat(
      np.cumsum(counts) - counts, counts
    )
    rows = order[place < per_class]
    parts["train"] = x._replace(
      image=x.image[rows],
      label=x.label[rows],
      name=f"{x.name}/{per_class} each",
    )
  return parts


def halve_classes(splits: Mapping[str, LabelledSet]) -> dict[str, LabelledSet]:
  """Splits by class: trains on the first half and tests on the other half.

  As in metric learning, the images of all splits are divided by their class.

  Args:
    splits: Labelled images by split, "train" among them.

  Example:
    >>> halves = halve_classes(digit_splits(8))
    >>> {name: np.unique(x.label).tolist() for name, x in halves.items()}
    {'train': [0, 1, 2, 3, 4], 'test': [0, 1, 2, 3, 4]}
    >>> sum(len(x.label) for x in halves.values())
    1797
  """
  image, label = (
    np.concatenate([getattr(x, field) for x in splits.values()])
    for field in ("image", "label")
  )
  half = (int(label.max()) + 1) // 2
  classes, name = splits["train"].classes, splits["train"].name
  first, second = label < half, label >= half
  return {
    "train": LabelledSet(
      image[first], label[first], classes[:half], name=f"{name}/first half"
    ),
    "test": LabelledSet(
      image[second],
      label[second] - half,
      classes[half:],
      name=f"{name}/second half",
    ),
  }


def two_views(
  data: LabelledSet,
  transform: Transform,
  *,
  positive: Shared = VIEW,
  block_size: Count = 1,
) -> Source:
  """Makes pairs of two views; pair i begins with image i.

  Args:
    data: The images, in memory.
    transform: Makes a view from half of a row of random numbers.
    positive: "view", another view of the same image, or "class", a view of any
      image of its class, as latent-class theory draws it.
    block_size: With "class", the number of consecutive pairs that share the
      class of the first; the others begin with images drawn from that class.
      For `curl` and `quick_thought`; an image may then be in a batch more than
      once.

  Raises:
    ValueError: If `positive` is unknown, or there are blocks without "class";
      while fetching, if `block_size` does not divide a batch (or a process's
      part of it).

  Example:
    >>> from nuclr_jax.lab.data.augment import augment
    >>> from nuclr_jax.lab.data.source import random_numbers
    >>> data = LabelledSet(np.zeros((5, 8, 8, 1), np.uint8), np.arange(5))
    >>> source = two_views(data, augment(shift=1.0, scale=0.1))
    >>> random = random_numbers(0, 0, np.arange(3))
    >>> batch = source.fetch(np.arange(3), random)
    >>> batch.image.shape, batch.text.shape, batch.label.tolist()
    ((3, 8, 8, 1), (3, 8, 8, 1), [0, 1, 2])
  """
  if positive not in (VIEW, CLASS):
    raise ValueError(f"positive must be 'view' or 'class', got {positive!r}")
  if block_size < 1 or (block_size > 1 and positive != CLASS):
    raise ValueError(
      "block_size must be at least 1, and 1 unless positive is 'class', got "
      f"{block_size}"
    )
  n, half = len(data.label), NUM_RANDOM // 2
  members = np.argsort(data.label, kind="stable")
  counts = np.bincount(data.label)
  first = np.cumsum(counts) - counts

  def draw(label, random):
    return members[first[label] + (random * counts[label]).astype(np.int64)]

  def fetch(pair_ids, random=None):
    pair_ids = np.asarray(pair_ids)
    if block_size > 1 and random is not None:
      if len(pair_ids) % block_size:
        raise ValueError(
          f"a batch must consist of blocks of {block_size} pairs, got "
          f"{len(pair_ids)} pairs; choose a batch size that block_size divides"
        )
      leader = np.arange(len(pair_ids)) // block_size * block_size
      drawn = draw(data.label[pair_ids[leader]], random[:, -2])
      pair_ids = np.where(leader == np.arange(len(drawn)), pair_ids, drawn)
    label, other = data.label[pair_ids], pair_ids
    if positive == CLASS and random is not None:
      other = draw(label, random[:, -1])
    views = []
    for i, ids in enumerate((pair_ids, other)):
      image = data.image[ids]
      if random is not None:
        image = transform(image, random[:, i * half : (i + 1) * half])
      views.append(image)
    return Batch(*views, pair_ids.astype(np.int32), label=np.int32(label))

  checksum = zlib.crc32(np.ascontiguousarray(data.image[:1024]))
  return source_of_samples(
    n,
    fetch,
    lambda text_ids: [f"class {data.label[i]}" for i in text_ids],
    f"{data.name}/{n}/{checksum:08x}",
    lambda: (image.tobytes() for image in data.image),
  )


def _read_splits(train, validation, test, *, size, data_dir):
  """Reads labelled images into memory, by split."""
  from nuclr_jax.lab.data.sets import open_labelled_set, parse_place

  built_in = {
    "digits": digit_splits,
    "glyphs": partial(glyph_splits, data_dir=data_dir),
  }
  if train in built_in:
    if validation is not None or test is not None:
      raise ValueError(
        f"{train} has its own validation and test splits, got {validation} "
        f"and {test}; leave both out"
      )
    return built_in[train](size)
  if test is None:
    place = parse_place(train)
    test = f"{place.name}={place.source}:test"
  texts = {"train": train, "validation": validation, "test": test}
  texts = {split: text for split, text in texts.items() if text is not None}
  places = {split: parse_place(text) for split, text in texts.items()}
  if len({place[1:] for place in places.values()}) < len(places):
    raise ValueError(f"two splits are the same images: {texts}")
  splits = {}
  for split, place in places.items():
    opened = open_labelled_set(place, size=size, split=split, data_dir=data_dir)
    classes = list(opened.classes)
    expected = splits["train"].classes if splits else classes
    if classes != expected:
      raise ValueError(
        f"{texts[split]} has other classes than {train}: {len(classes)} and "
        f"{len(expected)}, in one split only: "
        f"{sorted(set(classes) ^ set(expected))[:5]}; give splits of the same "
        "classes in the same order"
      )
    splits[split] = LabelledSet(
      opened.image[:],
      np.asarray(opened.label),
      classes,
      name=f"{texts[split]}/{size}",
    )
  return splits
