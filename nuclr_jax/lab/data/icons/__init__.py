"""Icons: 303,000 drawings by more than 100 designers, and their names.

Real image-text pairs on a laptop: names have the long tail of natural language,
many designers draw one concept, and most names are of a few words. The data are
the npm package `@iconify/json`, whose sets of icons have free licences. Splits
are by designer, never by icon, so that scores are of designers whom the model
has not seen; see `families`.
"""

import os

import numpy as np

from nuclr_jax.checks import Count, NonNegative, one_of
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.records import data_of_records, read_columns
from nuclr_jax.lab.data.source import Data, HeldOut, ImageTextSet, Records
from nuclr_jax.lab.data.tokenizer import (
  BUILD,
  build_tokenizer,
  pretrained_tokenizer,
)
from nuclr_jax.lab.ranges import Length, Pixels, up_to
from nuclr_jax.types import Sides

VERSION = "2.2.535"  # of the package, for which `families.json` was made
Processes = up_to(1_024)
Caption = one_of(("name", "name style"))

__all__ = ["VERSION", "icons"]


def icons(
  *,
  data_dir: str | os.PathLike | None = None,
  package: str | None = None,
  version: str = VERSION,
  sets: tuple[str, ...] = (),
  processes: Processes | None = None,
  size: Pixels = 32,
  caption: Caption = "name",
  tokenizer: str = BUILD,
  length: Length = 12,
  min_count: Count = 1,
  shift: NonNegative = 0.0,
  scale: NonNegative = 0.0,
  share_texts: bool = True,
) -> Data:
  """Loads the icons, which the first run that needs them draws.

  The held-out sets are the drawings of other designers, to retrieve among all
  distinct captions of the split, and the captions, to retrieve drawings; any
  drawing of that caption is right. Their parts weigh the queries: "natural" as
  often as they occur, "balanced" every caption alike, "seen" and "unseen" those
  that are or are not captions of training pairs, and "no_copies" without
  drawings that other splits have, too. The last three are natural.

  Args:
    data_dir: Folder of prepared data sets.
    package: The file that `npm pack @iconify/json` downloads. It is needed
      once; None looks for it in `data_dir`.
    version: The version of the package.
    sets: Identifiers of the sets to use; () = all but logos of brands,
      unmaintained, hidden and animated sets, and those not for commercial use.
    processes: How many icons the first run draws at a time; None = as many as
      there are cores.
    size: Height and width of the images, in pixels.
    caption: What describes an icon: the words of its "name", or "name style",
      where words such as "outline", which a set declares to be styles, follow.
    tokenizer: A file, a folder or a hub name for `pretrained_tokenizer`, for a
      pretrained text tower; or "build", to build one from the captions.
    length: Token ids per caption.
    min_count: The number of captions in which a word must occur to become a
      token of a built tokenizer; others are spelled.
    shift: Largest move of an augmented image along each axis, in pixels.
    scale: Largest change of the logarithm of its size along each axis.
    share_texts: Whether training knows which captions repeat; if not, see
      `hide_repetitions`.

  Raises:
    ValueError: If the data set cannot be prepared, the tokenizer cannot be
      read, or `min_count` is given for a pretrained one.
  """
  if tokenizer != BUILD and min_count > 1:
    raise ValueError(
      f"data.min_count is {min_count}, but the words of {tokenizer} are given; "
      "leave min_count out"
    )
  # Not at the top: that needs TFDS, and drawing needs an extra.
  from nuclr_jax.lab.data.icons.builder import prepare_icons

  folder = prepare_icons(
    cache_dir(data_dir),
    version=version,
    size=size,
    package=package,
    sets=sets,
    processes=processes,
  )
  train, _ = _read(folder, "train", caption)
  known = frozenset(train.captions)
  held_out = {
    split: HeldOut({"": _retrieval(*_read(folder, split, caption), known)})
    for split in ("validation", "test")
  }
  if tokenizer == BUILD:
    words = build_tokenizer(train.captions, length=length, min_count=min_count)
  else:
    words = pretrained_tokenizer(tokenizer, length=length, clean=False)
  return data_of_records(
    train,
    held_out,
    words,
    shift=shift,
    scale=scale,
    share_texts=share_texts,
  )


def _read(folder, split: str, caption: str) -> tuple[Records, dict]:
  """Reads a split, and numbers its distinct captions as they first occur."""
  columns, fingerprint = read_columns(folder, split)
  captions = columns["caption"]
  if caption == "name style":
    pairs = zip(captions, columns["style"], strict=True)
    captions = [f"{name} {style}".rstrip() for name, style in pairs]
  number = {x: i for i, x in enumerate(dict.fromkeys(captions))}
  text_id = np.array([number[x] for x in captions], np.int32)
  fingerprint = f"{fingerprint}/{caption}"
  return Records(columns["image"], text_id, list(number), fingerprint), columns


def _retrieval(
  records: Records, columns: dict, known: frozenset[str]
) -> ImageTextSet:
  """Makes the held-out set of a split; `known` are captions of training."""
  image, text_id, captions, _ = records

  def natural(chosen) -> Sides:
    """Weighs chosen drawings alike, and captions as often as they occur."""
    count = np.bincount(text_id[chosen], minlength=len(captions))
    return Sides(chosen.astype(np.float64), count.astype(np.float64))

  count = np.bincount(text_id, minlength=len(captions))
  seen = np.array([x in known for x in captions])[text_id]
  parts = {
    "natural": natural(np.ones(len(image), bool)),
    "balanced": Sides(1 / count[text_id], np.ones(len(captions))),
    "seen": natural(seen),
    "unseen": natural(~seen),
    "no_copies": natural(columns["copy"] == 0),
  }
  return ImageTextSet(
    image,
    text_id,
    captions,
    np.arange(len(captions)),
    parts=parts,
    origin=columns["set"],
  )
