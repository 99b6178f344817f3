"""Labelled pictures in memory, and two views of each of them.

scikit-learn's digits and the glyphs are at hand; prepared TFDS data sets
(CIFAR, MNIST and the like) and folders of classes are read whole.
"""

from collections.abc import Mapping, Sequence
import os
from typing import NamedTuple
import zlib

import numpy as np

from nuclr_jax.data import digits as handwritten
from nuclr_jax.data.sources import Source, single
from nuclr_jax.data.transforms import NUM_RANDOM, Transform
from nuclr_jax.types import Batch

VIEW, CLASS = "view", "class"  # what a positive is
DIGITS = {"train": 1_197, "validation": 300, "test": 300}
GLYPHS = {"train": 10, "validation": 2, "test": 4}  # pictures of a character


class Labelled(NamedTuple):
  """Pictures with a class each."""

  image: np.ndarray  # uint8 [n, height, width, channels]
  label: np.ndarray  # int64 [n], from 0
  name: str


class NoText:
  """Stands in for a tokenizer where there are no texts."""

  vocab_size, length, text = 0, 0, ""

  def encode(self, captions: Sequence[str]):
    """Raises ValueError: there is nothing to encode with."""
    raise ValueError("this data set has pictures only; no text can be encoded")

  def _asdict(self):
    return {"text": self.text, "length": self.length}


def digits(size: int) -> dict[str, Labelled]:
  """scikit-learn's 1,797 handwritten digits, split at random but always alike.

  Args:
    size: Height and width that the 8 x 8 pictures are enlarged to, in pixels.

  Example:
    >>> {name: len(x.label) for name, x in digits(8).items()}
    {'train': 1197, 'validation': 300, 'test': 300}
  """
  images, label = handwritten.enlarged(size)
  order, splits, start = np.random.default_rng(0).permutation(len(label)), {}, 0
  for name, count in DIGITS.items():
    ids = order[start : start + count]
    splits[name] = Labelled(images[ids], label[ids], f"digits/{name}/{size}")
    start += count
  return splits


def glyphs(
  size: int, *, data_dir: str | os.PathLike | None = None
) -> dict[str, Labelled]:
  """Characters as classes: all that each of the 16 font files draws.

  About 730 classes of 16 pictures; some characters look alike, as Latin A and
  Greek Alpha do. Which fonts are in a split is drawn for each character, and
  always alike.

  Args:
    size: Height and width of the pictures, in pixels.
    data_dir: Folder of prepared data sets; the glyphs are rendered there once.
  """
  from nuclr_jax.data import glyphs as embedded
  from nuclr_jax.data import sources

  folder = embedded.prepare(sources.cache_dir(data_dir), size=size)
  images, names = [], []
  for split in ("train", "validation", "test"):
    records = sources.read_records(folder, split)
    images.append(records.image)
    names += [records.captions[i] for i in records.text_id]
  _, label, counts = np.unique(names, return_inverse=True, return_counts=True)
  rows = np.flatnonzero(counts[label] == len(embedded.FONTS))
  rows = rows[np.argsort(label[rows], kind="stable")]
  rows = rows.reshape(-1, len(embedded.FONTS))  # by class
  rows = np.random.default_rng(0).permuted(rows, axis=1)
  everything, splits, start = np.concatenate(images), {}, 0
  for split, count in GLYPHS.items():
    own = rows[:, start : start + count]
    splits[split] = Labelled(
      everything[own.ravel()],
      np.repeat(np.arange(len(rows)), count),
      f"glyphs/{split}/{size}",
    )
    start += count
  return splits


def part(
  splits: Mapping[str, Labelled],
  *,
  classes: int | None = None,
  per_class: int | None = None,
) -> dict[str, Labelled]:
  """Fewer classes, or fewer training pictures of each; drawn, always alike.

  Args:
    splits: With "train" among them.
    classes: To keep in all splits; None = all.
    per_class: Training pictures to keep of each class, or all if it has no
      more; None = all.

  Raises:
    ValueError: If there are not as many classes, or a number is too small.

  Example:
    >>> kept = part(digits(8), classes=3, per_class=5)
    >>> kept["train"].label.tolist()[:6], len(kept["train"].label)
    ([0, 0, 0, 0, 0, 1], 15)
  """
  rng, found = np.random.default_rng(0), dict(splits)
  there = int(max(x.label.max() for x in splits.values())) + 1
  if classes is not None:
    if not 2 <= classes <= there:
      raise ValueError(f"classes must be in [2, {there}], got {classes}")
    kept = np.sort(rng.permutation(there)[:classes])
    number = np.full(there, -1)
    number[kept] = np.arange(classes)
    for split, x in splits.items():
      rows = np.flatnonzero(number[x.label] >= 0)
      found[split] = Labelled(
        x.image[rows], number[x.label[rows]], f"{x.name}/{classes} classes"
      )
  if per_class is not None:
    if per_class < 1:
      raise ValueError(f"per_class must be at least 1, got {per_class}")
    x = found["train"]
    order = rng.permutation(len(x.label))
    order = order[np.argsort(x.label[order], kind="stable")]
    counts = np.bincount(x.label)
    place = np.arange(len(order)) - np.repeat(
      np.cumsum(counts) - counts, counts
    )
    rows = order[place < per_class]
    found["train"] = Labelled(
      x.image[rows], x.label[rows], f"{x.name}/{per_class} each"
    )
  return found


def unseen(splits: Mapping[str, Labelled]) -> dict[str, Labelled]:
  """The first half of the classes trains, the others are in test.

  As metric learning has it: the pictures of all splits, by their class.

  Example:
    >>> halves = unseen(digits(8))
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
  name = splits["train"].name
  return {
    "train": Labelled(
      image[label < half], label[label < half], f"{name}/first half"
    ),
    "test": Labelled(
      image[label >= half], label[label >= half] - half, f"{name}/second half"
    ),
  }


def views(
  data: Labelled,
  transform: Transform,
  *,
  positive: str = VIEW,
  block_size: int = 1,
) -> Source:
  """Pairs of two views; pair i begins with picture i.

  Args:
    data: The pictures.
    transform: Makes a view by half of a row of random numbers.
    positive: "view", another view of the same picture, or "class", a view of
      any picture of its class, as latent-class theory draws it.
    block_size: For "class": so many pairs after each other are of one class,
      that of the first; the others begin with draws from it. For `curl` and
      `quick_thought`; a picture may be in a batch more than once.

  Raises:
    ValueError: For another `positive`, or blocks without "class"; while
      fetching, if a batch (or a process's part of it) is no row of blocks.

  Example:
    >>> from nuclr_jax.data import transforms
    >>> data = Labelled(np.zeros((5, 8, 8, 1), np.uint8), np.arange(5), "five")
    >>> source = views(data, transforms.augment(shift=1.0, scale=0.1))
    >>> random = transforms.random_numbers(0, 0, np.arange(3))
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
          f"a batch must be a row of blocks of {block_size} pairs, got "
          f"{len(pair_ids)} pairs"
        )
      leader = np.arange(len(pair_ids)) // block_size * block_size
      drawn = draw(data.label[pair_ids[leader]], random[:, -2])
      pair_ids = np.where(leader == np.arange(len(drawn)), pair_ids, drawn)
    label, other = data.label[pair_ids], pair_ids
    if positive == CLASS and random is not None:
      other = draw(label, random[:, -1])
    both = []
    for i, ids in enumerate((pair_ids, other)):
      image = data.image[ids]
      if random is not None:
        image = transform(image, random[:, i * half : (i + 1) * half])
      both.append(image)
    return Batch(*both, pair_ids.astype(np.int32), label=np.int32(label))

  check = zlib.crc32(np.ascontiguousarray(data.image[:1024]))
  return single(
    n,
    fetch,
    lambda text_ids: [f"class {data.label[i]}" for i in text_ids],
    f"{data.name}/{n}/{check:08x}",
    lambda: (image.tobytes() for image in data.image),
  )
