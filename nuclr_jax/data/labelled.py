"""Labelled pictures in memory, and two views of each of them.

scikit-learn's digits are at hand; prepared TFDS data sets (CIFAR, MNIST and
the like) and folders of classes are read whole.
"""

from collections.abc import Sequence
from typing import NamedTuple
import zlib

import numpy as np

from nuclr_jax.data import digits as handwritten
from nuclr_jax.data.keys import Keys, content_keys
from nuclr_jax.data.sources import Source
from nuclr_jax.data.transforms import NUM_RANDOM, Transform
from nuclr_jax.types import Batch, Sides, Sizes

VIEW, CLASS = "view", "class"  # what a positive is
DIGITS = {"train": 1_197, "validation": 300, "test": 300}


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


def views(
  data: Labelled, transform: Transform, *, positive: str = VIEW
) -> Source:
  """Pairs of two views; pair i begins with picture i.

  Args:
    data: The pictures.
    transform: Makes a view by half of a row of random numbers.
    positive: "view", another view of the same picture, or "class", a view of
      any picture of its class, as latent-class theory draws it.

  Raises:
    ValueError: For another `positive`.
  """
  if positive not in (VIEW, CLASS):
    raise ValueError(f"positive must be 'view' or 'class', got {positive!r}")
  n, half = len(data.label), NUM_RANDOM // 2
  members = np.argsort(data.label, kind="stable")
  counts = np.bincount(data.label)
  first = np.cumsum(counts) - counts

  def fetch(pair_ids, random=None):
    pair_ids = np.asarray(pair_ids)
    label, other = data.label[pair_ids], pair_ids
    if positive == CLASS and random is not None:
      drawn = (random[:, -1] * counts[label]).astype(np.int64)
      other = members[first[label] + drawn]
    both = []
    for i, ids in enumerate((pair_ids, other)):
      batch = Batch(data.image[ids], None, None)
      if random is not None:
        batch = transform(batch, random[:, i * half : (i + 1) * half])
      both.append(batch.image)
    return Batch(*both, pair_ids.astype(np.int32), label=np.int32(label))

  def keys():
    found = content_keys(image.tobytes() for image in data.image)
    return Keys(pair=found, image=found, text=found)

  check = zlib.crc32(np.ascontiguousarray(data.image[:1024]))
  return Source(
    Sizes(n, n, n),
    fetch,
    lambda pair_ids: Sides(pair_ids, pair_ids),
    lambda text_ids: [f"class {data.label[i]}" for i in text_ids],
    f"{data.name}/{n}/{check:08x}",
    keys,
  )
