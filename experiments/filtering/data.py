"""The data of a run: pairs for a model that scores, candidates, and a test."""

from collections.abc import Sequence
import functools
from typing import NamedTuple

from jaxtyping import Bool, Int
import numpy as np

from experiments.filtering import errors, plan
from experiments.filtering.clip_art import read_clip_art
from experiments.harness import Place, training
from experiments.icons.measure import beginning, families
from nuclr_jax.lab.data.glyphs import prepare_glyphs
from nuclr_jax.lab.data.icons.builder import prepare_icons
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.records import data_of_records, read_columns
from nuclr_jax.lab.data.source import Data, HeldOut, ImageTextSet, Records

KEY = 52  # of the permutation that divides the designers
TEST, SMOKE_CAPTIONS = "test", 100
PHRASES = {plan.LETTERS: errors.LETTER_PHRASES}


class Pairs(NamedTuple):
  """Images and their captions, and what identifies them."""

  image: np.ndarray  # uint8 [pairs, height, width, 1]
  caption: Sequence[str]
  fingerprint: str

  def subset(self, chosen: Int[np.ndarray, "some"], name: str) -> "Pairs":
    """Selects pairs."""
    captions = [self.caption[i] for i in chosen]
    return Pairs(self.image[chosen], captions, f"{self.fingerprint}/{name}")


class Task(NamedTuple):
  """What a run trains on and scores."""

  scorer: Pairs  # right pairs, which the model that scores is trained on
  candidates: Pairs  # with right captions
  like: Data  # the test split, the tokenizer
  phrases: Sequence[str]  # that say nothing of an image


def read_task(config, words, seed: int, place: Place) -> Task:
  """Reads the data of a run.

  Args:
    config: The config of the run.
    words: Its values, with "data" unless that is icons.
    seed: Draws the pairs.
    place: The folders of the run.
  """
  name, data_dir = words.get("data", "icons"), place.data_dir
  like, size = training.load_data(config, data_dir), config.data.size
  test = like.sets[TEST]
  if name == plan.LETTERS:
    pairs, seen = read_letters(size, data_dir)
  else:
    pairs, seen = read_icons(config.data.version, size, data_dir)
    if words["candidates"] < plan.COMMON["candidates"]:
      test = beginning(test, SMOKE_CAPTIONS)
  order = np.random.default_rng([seed, 5]).permutation(len(seen))
  first = order[seen[order]][: words["scorer_pairs"]]
  scorer, others = pairs.subset(first, f"scorer {seed}"), order[~seen[order]]
  if name == plan.CLIP_ART:
    drawings = read_clip_art(data_dir, size)
    pairs = Pairs(drawings.image, drawings.caption, drawings.fingerprint)
    others = np.flatnonzero(~drawings.held_out)
    test = as_set(pairs.subset(np.flatnonzero(drawings.held_out), TEST))
  return Task(
    scorer=scorer,
    candidates=pairs.subset(others[: words["candidates"]], "candidates"),
    like=like._replace(held_out={TEST: HeldOut({"": test})}),
    phrases=PHRASES.get(name, errors.PHRASES),
  )


@functools.cache
def read_icons(
  version: str, size: int, data_dir: str | None
) -> tuple[Pairs, Bool[np.ndarray, "pairs"]]:
  """Reads the training split, and marks half of it by families of designers."""
  folder = prepare_icons(cache_dir(data_dir), version=version, size=size)
  columns, fingerprint = read_columns(folder, "train")
  family_of = families(version, size, data_dir)
  family = np.array([family_of[x] for x in columns["set"]])
  pairs = Pairs(columns["image"], columns["caption"], fingerprint)
  return pairs, halved(family)


@functools.cache
def read_letters(
  size: int, data_dir: str | None
) -> tuple[Pairs, Bool[np.ndarray, "pairs"]]:
  """Reads the glyphs to train on, and marks half of them by character."""
  folder = prepare_glyphs(cache_dir(data_dir), size=size)
  columns, fingerprint = read_columns(folder, "train")
  pairs = Pairs(columns["image"], columns["caption"], fingerprint)
  return pairs, halved(columns["text_id"])


def halved(
  family: Sequence[str] | Int[np.ndarray, "pairs"],
) -> Bool[np.ndarray, "pairs"]:
  """Marks the pairs of some families, together at most half of the pairs.

  Example:
    >>> marked = halved(["a", "a", "b", "b", "c", "d"])
    >>> int(marked.sum()) <= 3, bool(marked[0] == marked[1])
    (True, True)
  """
  names, number = np.unique(family, return_inverse=True)
  count = np.bincount(number)
  marked, order = [], np.random.default_rng(KEY).permutation(len(names))
  total = 0
  for i in order:
    if total + count[i] <= len(number) / 2:
      marked.append(i)
      total += count[i]
  return np.isin(number, marked)


def as_set(pairs: Pairs) -> ImageTextSet:
  """Makes a set to retrieve in; images with equal captions are a group."""
  captions, group = np.unique(pairs.caption, return_inverse=True)
  return ImageTextSet(
    *(pairs.image, group, captions.tolist(), np.arange(len(captions)))
  )


def data_of(pairs: Pairs, like: Data) -> Data:
  """Makes training data of pairs, whose captions may be wrong."""
  texts, text_id = np.unique(pairs.caption, return_inverse=True)
  records = Records(
    pairs.image, text_id.astype(np.int32), texts.tolist(), pairs.fingerprint
  )
  return data_of_records(
    records,
    like.held_out,
    like.tokenizer,
    shift=1.0,
    scale=0.0,
    share_texts=True,
  )
