"""Data sets by name: what each brings to a run."""

from collections.abc import Mapping, Sequence
import os
import pathlib
from typing import NamedTuple

import numpy as np

from nuclr_jax.data.sources import Source
from nuclr_jax.data.tokenizer import Tokenizer
from nuclr_jax.evaluate import driver

BUILD = "build"


class Data(NamedTuple):
  """What a data set brings to a run."""

  train: Source
  tokenizer: Tokenizer
  image_shape: tuple[int, int, int]
  evaluators: Mapping[str, Sequence[driver.Evaluator]]  # validation, test
  sets: Mapping[str, driver.ImageTextSet]  # to retrieve in, by split


def glyphs(
  *,
  data_dir: str | os.PathLike | None = None,
  size: int = 32,
  length: int = 12,
  min_count: int = 1,
  shift: float = 0.0,
  scale: float = 0.0,
  share_texts: bool = True,
) -> Data:
  """The embedded glyphs, see `data.glyphs`, and their evaluations.

  Args:
    data_dir: Folder of prepared data sets.
    size: Height and width of the pictures, in pixels.
    length: Token ids per caption.
    min_count: Captions a word must be in to be a token, see `tokenizer.build`.
    shift: Augmentation, see `transforms.shift_and_scale`.
    scale: Likewise.
    share_texts: False hides from training which captions repeat, see
      `sources.hide_repetitions`.
  """
  # Imported here: models and objectives work without TFDS and Grain.
  from nuclr_jax.data import digits, sources, tokenizer, transforms
  from nuclr_jax.data import glyphs as glyph_data

  folder = glyph_data.prepare(sources.cache_dir(data_dir), size=size)
  splits = {
    name: sources.read_records(folder, name)
    for name in ("train", "validation", "test")
  }
  train = splits["train"]
  words = tokenizer.build(train.captions, length=length, min_count=min_count)
  (folder / "tokenizer.json").write_text(words.text)
  sets = {
    name: driver.ImageTextSet(
      x.image, x.text_id, x.captions, np.arange(len(x.captions))
    )
    for name, x in splits.items()
    if name != "train"
  }
  evaluators = {
    name: [
      driver.retrieval_evaluator(sets[name]),
      driver.zero_shot_evaluator(_scripts(sets[name]), "script"),
    ]
    for name in ("validation", "test")
  }
  images, labels = digits.load(size)
  handwritten = driver.LabelledSet(images, labels, digits.PROMPTS)
  evaluators["test"] += [driver.zero_shot_evaluator(handwritten, "digits")]
  if not share_texts:
    train = sources.hide_repetitions(train)
  move = transforms.shift_and_scale(shift=shift, scale=scale)
  tokens = words.encode(train.captions)
  return Data(
    train=sources.in_memory(train, tokens, move if shift or scale else None),
    tokenizer=words,
    image_shape=train.image.shape[1:],
    evaluators=evaluators,
    sets=sets,
  )


def image_text(
  *,
  train: str,
  data_dir: str | os.PathLike | None = None,
  size: int = 256,
  tokenizer: str = BUILD,
  length: int = 30,
  clean: bool = True,
  min_count: int = 1,
  scale: tuple[float, float] = (0.5, 1.0),
  flip: bool = True,
  num_ops: int = 2,
  level: float = 7.0,
  validation: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
  zero_shot: tuple[str, ...] = (),
  probes: tuple[str, ...] = (),
) -> Data:
  """Photos with captions, as `nuclr ingest` or TFDS prepares them.

  Args:
    train: The training pairs: `NAME` or `NAME:SPLIT` of a prepared data set.
    data_dir: Folder of prepared data sets.
    size: Height and width of the pictures, in pixels.
    tokenizer: A file, a folder or a hub name, see `tokenizer.pretrained`; or
      "build", to make one of the training captions.
    length: Token ids per caption.
    clean: Whether captions are cleaned, see `tokenizer.pretrained`.
    min_count: See `tokenizer.build`.
    scale: Augmentation, see `captioned.source`; so are flip, num_ops and level.
    flip: Likewise.
    num_ops: Likewise.
    level: Likewise.
    validation: Captioned sets to retrieve in while training, `NAME` (its split
      validation) or `NAME:SPLIT`.
    test: Likewise at the end, with the split test.
    zero_shot: Sets with classes, see `evaluate.sets`.
    probes: Likewise; on these, classifiers of frozen features are trained.

  Raises:
    ValueError: If a data set or a tokenizer is not there or cannot be read.
  """
  from nuclr_jax.data import captioned
  from nuclr_jax.data import tokenizer as tokenizers
  from nuclr_jax.evaluate import sets

  classified, probed = sets.places(zero_shot), sets.places(probes)
  for place in (*classified, *probed):
    sets.check(place, data_dir)
  for place in probed:
    sets.check(place._replace(split=None), data_dir, split="train")
  place = sets.parse(train)
  pairs = captioned.open_split(place.source, place.split or "train", data_dir)
  if tokenizer == BUILD:
    found = sorted(set(captioned.captions(pairs)))
    words = tokenizers.build(
      found, length=length, min_count=min_count, first_and_last=True
    )
  else:
    words = tokenizers.pretrained(tokenizer, length=length, clean=clean)
  options = dict(size=size, data_dir=data_dir)
  retrieval = {
    split: {
      place.name: sets.image_text_set(
        place.source, place.split or split, **options
      )
      for place in sets.places(names)
    }
    for split, names in (("validation", validation), ("test", test))
  }
  evaluators = _retrieval_evaluators(retrieval)
  for place in classified:
    evaluators["test"].append(sets.zero_shot_when_asked(place, **options))
  for place in probed:
    evaluators["test"].append(sets.probe_when_asked(place, **options))
  return Data(
    train=captioned.source(
      pairs,
      words,
      size=size,
      scale=scale,
      flip=flip,
      num_ops=num_ops,
      level=level,
    ),
    tokenizer=words,
    image_shape=(size, size, 3),
    evaluators=evaluators,
    sets=_first_of(retrieval),
  )


def embeddings(
  *,
  train: str,
  validation: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
) -> Data:
  """Embeddings or features that `nuclr embed` wrote, for the model `heads`.

  Args:
    train: Folder of the training pairs.
    validation: Folders to retrieve in while training.
    test: Likewise at the end.

  Raises:
    ValueError: If a folder is not what `nuclr embed` writes.
  """
  from nuclr_jax.data import cached

  for paths in (validation, test):
    names = [pathlib.Path(path).name for path in paths]
    if len(set(names)) < len(names):
      raise ValueError(
        f"folders to retrieve in must differ in their last names, got {paths}"
      )
  folders = {path: cached.read(path) for path in (train, *validation, *test)}

  def retrieval(path):
    data = folders[path]
    return driver.ImageTextSet(
      data.image, np.arange(len(data.image)), data.captions, data.image_of_text
    )

  sets = {
    split: {pathlib.Path(path).name: retrieval(path) for path in paths}
    for split, paths in (("validation", validation), ("test", test))
  }
  pairs = folders[train]
  return Data(
    train=cached.source(pairs),
    tokenizer=cached.lookup(list(folders.values())),
    image_shape=pairs.image.shape[1:],
    evaluators=_retrieval_evaluators(sets),
    sets=_first_of(sets),
  )


def correct_hubs(data: Data, *, temperature: float, strength: float) -> Data:
  """The data with evaluators of corrected retrieval besides its own."""
  evaluators = {
    split: [
      *data.evaluators[split],
      driver.corrected_retrieval_evaluator(
        pairs, data.train, temperature=temperature, strength=strength
      ),
    ]
    for split, pairs in data.sets.items()
  }
  return data._replace(evaluators=dict(data.evaluators) | evaluators)


DATASETS = {
  "embeddings": embeddings,
  "glyphs": glyphs,
  "image_text": image_text,
}


def _retrieval_evaluators(sets) -> dict[str, list[driver.Evaluator]]:
  """Of all sets of all splits, by split."""
  return {
    split: [
      driver.retrieval_evaluator(data, name) for name, data in found.items()
    ]
    for split, found in sets.items()
  }


def _first_of(sets) -> dict[str, driver.ImageTextSet]:
  """The first set of each split that has one."""
  return {x: next(iter(found.values())) for x, found in sets.items() if found}


def _scripts(data: driver.ImageTextSet) -> driver.LabelledSet:
  """The letters among the glyphs, labelled with their script."""
  from nuclr_jax.data.glyphs import SCRIPTS, script_of

  script = np.array([script_of(caption) for caption in data.captions])
  label = script[data.image_group]
  letters = label >= 0
  prompts = [(f"{name} LETTER",) for name in SCRIPTS]
  return driver.LabelledSet(data.image[letters], label[letters], prompts)
