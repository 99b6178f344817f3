"""What a data set brings to a run."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nuclr_jax.data.sources import Source
from nuclr_jax.evaluate import driver, hubs
from nuclr_jax.types import Sizes


class Encoder(Protocol):
  """Turns texts into what a model takes, as `tokenizer.Tokenizer` does."""

  @property
  def text(self) -> str:
    """Its whole definition."""

  @property
  def length(self) -> int:
    """Numbers of a row."""

  @property
  def vocab_size(self) -> int:
    """Number of token ids; 0 if rows are none."""

  def encode(self, captions: Sequence[str]) -> np.ndarray:
    """A row for each."""


class Inputs(NamedTuple):
  """What a model takes: pictures of a shape, or rows, and encoded texts."""

  image_shape: tuple[int, ...]
  tokenizer: Encoder


class Data(NamedTuple):
  """What a data set brings to a run."""

  train: Source
  tokenizer: Encoder
  image_shape: tuple[int, ...]
  evaluators: Mapping[str, Sequence[driver.Evaluator]]  # validation, test
  sets: Mapping[str, driver.ImageTextSet]  # to retrieve in, by split
  num_classes: int | None = None  # of labelled data
  block_size: int | None = None  # pairs after each other that are of one class

  @property
  def inputs(self) -> Inputs:
    """What a model of these data takes."""
    return Inputs(self.image_shape, self.tokenizer)


def without_pairs(sizes: Sizes, fingerprint: str, inputs: Inputs) -> Data:
  """What is known of a run's data where the data themselves are not.

  Args:
    sizes: Of the training pairs.
    fingerprint: Likewise.
    inputs: Of the model.
  """

  def absent(*args):
    raise ValueError(
      "the training pairs of this run were not opened; only their number is "
      "known. Load the run with pairs=True, where the data are"
    )

  train = Source(sizes, absent, absent, absent, fingerprint)
  return Data(train, inputs.tokenizer, inputs.image_shape, {}, {})


def correct_hubs(data: Data, *, temperature: float, strength: float) -> Data:
  """The data with evaluators of corrected retrieval besides its own."""
  evaluators = {
    split: [
      *data.evaluators[split],
      hubs.corrected_retrieval_evaluator(
        pairs, data.train, temperature=temperature, strength=strength
      ),
    ]
    for split, pairs in data.sets.items()
  }
  return data._replace(evaluators=dict(data.evaluators) | evaluators)


def retrieval_evaluators(sets) -> dict[str, list[driver.Evaluator]]:
  """Of all sets of all splits, by split."""
  return {
    split: [
      driver.retrieval_evaluator(data, name) for name, data in found.items()
    ]
    for split, found in sets.items()
  }


def first_of(sets) -> dict[str, driver.ImageTextSet]:
  """The first set of each split that has one."""
  return {x: next(iter(found.values())) for x, found in sets.items() if found}
