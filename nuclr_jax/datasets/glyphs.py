"""The embedded glyphs as a data set."""

import os

import numpy as np

from nuclr_jax.datasets.base import Data
from nuclr_jax.evaluate import driver


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
    shift: Augmentation, see `transforms.augment`.
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
  augment = transforms.augment(shift=shift, scale=scale)
  tokens = words.encode(train.captions)
  return Data(
    train=sources.in_memory(train, tokens, augment),
    tokenizer=words,
    image_shape=train.image.shape[1:],
    evaluators=evaluators,
    sets=sets,
  )


def _scripts(data: driver.ImageTextSet) -> driver.LabelledSet:
  """The letters among the glyphs, labelled with their script."""
  from nuclr_jax.data.glyphs import SCRIPTS, script_of

  script = np.array([script_of(caption) for caption in data.captions])
  label = script[data.image_group]
  letters = label >= 0
  prompts = [(f"{name} LETTER",) for name in SCRIPTS]
  return driver.LabelledSet(data.image[letters], label[letters], prompts)
