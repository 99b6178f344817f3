"""Images with captions, read and decoded during training.

The data set is in TFDS format, prepared by `nuclr ingest` or by TFDS itself;
`captioned` opens it.
OpenCV is imported by the functions that decode, so that the core can import
this file without it.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
import os
from typing import Any

import numpy as np

from nuclr_jax.checks import Count, Positive
from nuclr_jax.lab.data import tfds_reader
from nuclr_jax.lab.data.captioned import (
  Captioned,
  all_captions,
  decode,
  join,
  open_captioned,
  open_image_text_set,
)
from nuclr_jax.lab.data.options import (
  Augmentation,
  Captions,
  HeldOutNames,
  Square,
  flat,
  group_in,
)
from nuclr_jax.lab.data.pair_index import hide_repetitions, index_keys
from nuclr_jax.lab.data.source import (
  DEFAULT_RESIZE,
  NUM_RANDOM,
  Data,
  Files,
  HeldOut,
  Inputs,
  ProbeSets,
  Resize,
  Share,
  Source,
)
from nuclr_jax.lab.data.tokenizer import BUILD, Tokenizer, choose_tokenizer
from nuclr_jax.types import Batch


@flat("square", "captions", "augmentation", "held_out")
def image_text(
  *,
  train: str,
  weights: tuple[Positive, ...] = (),
  num_pairs: Count | None = None,
  window: Count = 4_096,
  data_dir: str | os.PathLike | None = None,
  share_texts: bool = True,
  square: Square,
  captions: Captions,
  augmentation: Augmentation,
  held_out: HeldOutNames,
) -> Data:
  """Opens images with captions that `nuclr ingest` or TFDS has prepared.

  Args:
    train: The training pairs: `NAME` or `NAME:SPLIT` of a prepared data set, or
      several of them with commas between. Or tars that are read as a stream,
      see `tar_files.find_tars`.
    weights: The share of each of several data sets in every batch, relative to
      the others (see `loader.batches`); by default their pairs are one set.
    num_pairs: How many pairs an epoch of a stream has; by default the number
      that img2dataset has written beside the tars. At most ten times as many
      as tars of their sizes can hold.
    window: How many samples of a stream are shuffled at a time.
    data_dir: Folder of prepared data sets.
    share_texts: Whether pairs with the same caption share a text id, and are
      not negatives of each other. Where captions repeat with a long tail, False
      is better (docs/what_zeta_is.md).
    square: `size`, `resize`, `kernel` and `patch`. The fields of this and of
      the other groups are arguments and keys of `config.data` themselves, see
      `options`.
    captions: `tokenizer`, `length`, `clean`, `repair`, `pad_id`, `template`,
      `vocab_size` and `min_count`.
    augmentation: `scale`, `flip`, `num_ops` and `level`.
    held_out: `validation`, `validation_zero_shot`, `test`, `zero_shot` and
      `probes`.

  Raises:
    ValueError: If a data set or a tokenizer is missing or cannot be read.
  """
  from nuclr_jax.lab.data import tar_files

  image_shape = square.image_shape  # checked before anything is opened
  sets = open_held_out(
    names=held_out, size=square.size, resize=square.how, data_dir=data_dir
  )
  of_images = dict(
    size=square.size, resize=square.how, augmentation=augmentation
  )
  if tar_files.are_tars(train):
    from nuclr_jax.lab.data import tar_stream

    _check_stream(train, weights, captions.tokenizer)
    words = _tokenizer(captions, list)
    source = tar_stream.source_of_tars(
      train,
      num_pairs=num_pairs,
      make_square=square_maker(**of_images),
      encode=words.encode,
      share_texts=share_texts,
      window=window,
    )
  else:
    if num_pairs is not None:
      raise ValueError(
        f"data.num_pairs is for a stream of tars, {train} is a prepared data "
        "set whose pairs are counted; leave it out"
      )
    pairs, shares = _open_pairs(train, weights, data_dir)
    if not share_texts:
      pairs = pairs._replace(index=hide_repetitions(pairs.index))
    words = _tokenizer(captions, lambda: all_captions(pairs))
    source = captioned_source(pairs, words, **of_images)._replace(shares=shares)
  return Data(
    train=source,
    tokenizer=words,
    image_shape=image_shape,
    held_out=sets,
    resize=square.how,
  )


@flat("names")
def open_held_out(
  *,
  names: HeldOutNames,
  size: int,
  resize: Resize = DEFAULT_RESIZE,
  data_dir: str | os.PathLike | None = None,
) -> dict[str, HeldOut]:
  """Opens the held-out sets of a config, without its training pairs.

  Args:
    names: `validation`, `validation_zero_shot`, `test`, `zero_shot` and
      `probes`, which are also arguments themselves.
    size: Height and width of the images, in pixels.
    resize: How images become squares.
    data_dir: Folder of prepared data sets.

  Returns:
    The sets of the splits "validation" and "test".

  Raises:
    ValueError: If a data set is missing or cannot be read.
  """
  from nuclr_jax.lab.data import sets

  classified = {
    "validation": sets.parse_places(names.validation_zero_shot),
    "test": sets.parse_places(names.zero_shot),
  }
  probed = sets.parse_places(names.probes)
  for place in (*classified["validation"], *classified["test"], *probed):
    sets.check_labelled_set(place, data_dir)
  for place in probed:
    of_all = place._replace(split=None)
    known = sets.check_labelled_set(of_all, data_dir, split="train")
    classes = sets.check_labelled_set(place, data_dir)
    if unknown := sorted(set(classes) - set(known)):
      raise ValueError(
        f"{place.source}: the training split has no classes "
        f"{', '.join(unknown[: sets.NAMED])}, which the test split has; give "
        "splits whose classes have the same names"
      )
  options = dict(size=size, resize=resize, data_dir=data_dir)
  held_out = {}
  for split, texts in (("validation", names.validation), ("test", names.test)):
    held_out[split] = HeldOut(
      retrieval={
        place.name: open_image_text_set(
          place.source, place.split or split, **options
        )
        for place in sets.parse_places(texts)
      },
      zero_shot={
        place.name: partial(sets.open_labelled_set, place, **options)
        for place in classified[split]
      },
    )
  held_out["test"] = held_out["test"]._replace(
    probes={
      place.name: partial(_probe_sets, place, **options) for place in probed
    }
  )
  return held_out


def inputs_of(spec: Mapping[str, Any]) -> Inputs | None:
  """Returns what `data.inputs_of` does, for captioned images alone."""
  if spec["name"] != "image_text":
    return None
  captions = group_in(spec, Captions)
  if captions.tokenizer == BUILD:
    return None
  square = group_in(spec, Square)
  words = _tokenizer(captions, list)
  return Inputs(square.image_shape, words, square.how)


@flat("augmentation")
def captioned_source(
  data: Captioned,
  tokenizer: Tokenizer,
  *,
  size: int,
  resize: Resize = DEFAULT_RESIZE,
  augmentation: Augmentation,
) -> Source:
  """Makes a source of images and tokens, decoded and augmented by the batch.

  See `images` and `augment.rand_augment`.

  Args:
    data: The split.
    tokenizer: The tokenizer of the captions.
    size: Height and width of the images, in pixels.
    resize: How images become squares without augmentation; without a mode, they
      are squashed.
    augmentation: `scale`, `flip`, `num_ops` and `level`, which are also
      arguments themselves.

  Raises:
    ValueError: If a number is out of range.
  """
  from nuclr_jax.lab.data import images

  index = data.index
  make_square = square_maker(
    size=size, resize=resize, augmentation=augmentation
  )

  def square(row_and_random):
    row, random = row_and_random
    return make_square(decode(row, data), random)

  def fetch(pair_ids, random=None):
    rows = data.read(index.record[pair_ids])
    numbers = [None] * len(rows) if random is None else random
    squares = images.in_threads(square, list(zip(rows, numbers, strict=True)))
    which = zip(rows, index.caption[pair_ids], strict=True)
    return Batch(
      np.stack(squares),
      tokenizer.encode([row.captions[i] for row, i in which]),
      np.asarray(pair_ids, np.int32),
      *index.ids(pair_ids),
    )

  def rows_of(records):
    return tfds_reader.all_rows(
      lambda i: data.texts(records[list(i)]), len(records)
    )

  def captions(text_ids):
    pairs = index.pairs_of_texts(text_ids)
    rows = rows_of(index.record[pairs])
    which = zip(rows, index.caption[pairs], strict=True)
    return [row.captions[i] for row, i in which]

  return Source(
    index.sizes,
    fetch,
    index.ids,
    captions,
    data.fingerprint,
    lambda: index_keys(index),
    Files(
      lambda pair_ids: index.record[pair_ids],
      lambda records: [row.key for row in rows_of(records)],
    ),
  )


@flat("augmentation")
def square_maker(
  *,
  size: int,
  resize: Resize = DEFAULT_RESIZE,
  augmentation: Augmentation,
) -> Callable[..., np.ndarray]:
  """Makes `make_square(image, random)`, which resizes or augments an image.

  It augments by random numbers [NUM_RANDOM], or resizes if they are None. The
  arguments are those of `captioned_source`.

  Raises:
    ValueError: If a number is out of range.
  """
  from nuclr_jax.lab.data import images, patches
  from nuclr_jax.lab.data.augment import rand_augment

  _check_options(size, augmentation)
  scale, flip, num_ops, level = augmentation

  def make_square(image, random):
    if random is None:
      return images.resize(image, size, resize)
    cropped = images.random_resized_crop(
      image, random, size=size, scale=scale, flip=flip, patch=resize.patch
    )
    rest = random[images.CROP_NUMBERS :]
    changed = rand_augment(cropped, rest, num_ops=num_ops, level=level)
    if resize.patch is None:
      return changed
    return patches.pack(changed, size=size, patch=resize.patch)

  return make_square


def _tokenizer(
  captions: Captions, training: Callable[[], Iterable[str]]
) -> Tokenizer:
  """Reads the tokenizer, or builds it from the training captions."""
  how = captions._asdict()
  return choose_tokenizer(how.pop("tokenizer"), training, **how)


def num_pairs(train: str, data_dir: str | os.PathLike | None = None) -> int:
  """Counts the pairs of prepared data sets.

  Args:
    train: `NAME` or `NAME:SPLIT`, or several of them with commas between.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If one is missing or cannot be read.
  """
  pairs, _ = _open_pairs(train, (), data_dir)
  return pairs.index.sizes.num_pairs


def _open_pairs(train, weights, data_dir):
  """Opens prepared data sets as one; returns it and its shares."""
  from nuclr_jax.lab.data import sets

  names = train.split(",")
  _check_weights(names, weights)
  opened = [
    open_captioned(place.source, place.split or "train", data_dir)
    for place in map(sets.parse_place, names)
  ]
  shares = ()
  if weights:
    sizes = [data.index.sizes.num_pairs for data in opened]
    shares = tuple(map(Share, names, sizes, weights))
  return join(opened, data_dir), shares


def _check_stream(train, weights, tokenizer) -> None:
  if weights:
    raise ValueError(
      f"data.weights is for prepared data sets, {train} is a stream; index the "
      "tars with nuclr ingest --in_place, or leave the weights out"
    )
  if tokenizer == BUILD:
    raise ValueError(
      f"data.tokenizer is {BUILD!r}, but {train} is a stream, whose captions "
      "are not known in advance; name a tokenizer: a file, a folder, or a name "
      "on the hub"
    )


def _check_weights(names, weights) -> None:
  if len(set(names)) < len(names):
    raise ValueError(
      f"data.train names a data set twice, {','.join(names)}; to draw from it "
      "more often, raise its weight in data.weights"
    )
  if weights and len(weights) != len(names):
    raise ValueError(
      f"data.weights must have a number for each data set in data.train, got "
      f"{weights} for {','.join(names)}"
    )


def _check_options(size: int, augmentation: Augmentation) -> None:
  from nuclr_jax.lab.data import augment, images

  scale, _, num_ops, level = augmentation
  if size < 1 or not 0 < scale[0] <= scale[1] <= 1:
    raise ValueError(
      "size must be at least 1 pixel and scale two shares in (0, 1], the "
      f"smaller first; got {size} and {scale}"
    )
  most = (NUM_RANDOM - images.CROP_NUMBERS) // augment.NUMBERS
  if not 0 <= num_ops <= most or not 0 <= level <= augment.MAX_LEVEL:
    raise ValueError(
      f"num_ops must be in [0, {most}] and level in "
      f"[0, {augment.MAX_LEVEL}], got {num_ops} and {level}"
    )


def _probe_sets(place, **options) -> ProbeSets:
  """Opens the train and test splits of a place."""
  from nuclr_jax.lab.data.sets import open_labelled_set, with_classes

  of_all = place._replace(split=None)
  train = open_labelled_set(of_all, split="train", **options)
  test = open_labelled_set(place, **options)
  return ProbeSets(train, with_classes(test, train.classes))
