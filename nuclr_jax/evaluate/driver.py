"""Embeds evaluation sets and scores them.

An evaluator is a function of `Embed`, which is all it sees of a model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.data.sources import Pictures, Source
from nuclr_jax.evaluate import probe, retrieval, zero_shot
from nuclr_jax.models import Model, unit_norm
from nuclr_jax.types import (
  Batch,
  Metrics,
  Pairs,
  Params,
  PyTree,
  Sides,
)

CHUNK = 512  # inputs embedded at a time, or as many as there are devices

Images = np.ndarray | Pictures  # [n, height, width, channels]


class Embed(NamedTuple):
  """A trained model as an evaluator sees it."""

  image: Callable[[Images], np.ndarray]  # pictures -> [n, dim], unit norm
  text: Callable[[Sequence[str]], np.ndarray]  # captions -> [n, dim], unit norm
  features: Sides | None = None  # likewise, but before the projection
  outputs: Sides | None = None  # what the objective sees, of any norm


class ImageTextSet(NamedTuple):
  """Images and captions to retrieve each other; groups belong together."""

  image: Images
  image_group: np.ndarray
  captions: Sequence[str]
  caption_group: np.ndarray


class LabelledSet(NamedTuple):
  """Images with a class each, and prompts that describe the classes."""

  image: Images
  label: np.ndarray
  prompts: Sequence[Sequence[str]]  # by class


Evaluator = Callable[[Embed], Metrics]
MakeEmbed = Callable[[Params, PyTree], Embed]


def make_embedder(model: Model, encode, mesh: Mesh) -> MakeEmbed:
  """Compiles the embedding of images and of texts, split over the mesh.

  Args:
    model: The model.
    encode: Captions to token ids, `Tokenizer.encode`.
    mesh: The device mesh.

  Returns:
    `make(params, model_state) -> Embed`; `params` are the model's. What it
    embeds is finite, or there is a FloatingPointError: no score is right then.
  """
  rows = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)
  chunk = CHUNK + -CHUNK % mesh.shape["data"]

  def outputs(params, model_state, batch):
    pairs, _ = model.apply(params, model_state, batch, key=None, train=False)
    return pairs.text if batch.image is None else pairs.image

  def embeddings(params, model_state, batch):
    return unit_norm(outputs(params, model_state, batch))

  def features(params, model_state, batch):
    found = model.features(params, model_state, batch)
    return found.text if batch.image is None else found.image

  def split(x):
    return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])

  def in_chunks(function):
    compiled = jax.jit(function, out_shardings=everywhere)

    def run(params, model_state, inputs, place):
      """Chunks of one shape; the last is padded with its last input."""
      found = []
      for start in range(0, len(inputs), chunk):
        full = part = inputs[start : start + chunk]
        if len(part) < chunk:
          missing = [(0, chunk - len(part))] + [(0, 0)] * (part.ndim - 1)
          full = np.pad(part, missing, mode="edge")
        result = compiled(params, model_state, place(split(full)))
        found.append((result, len(part)))
        jax.block_until_ready(found[-3:][0])  # else inputs pile up
      result = np.concatenate([np.asarray(x)[:n] for x, n in found])
      _check_finite(result)
      return result

    return run

  embed, before, raw = map(in_chunks, (embeddings, features, outputs))

  def make(params, model_state):
    def sides(run):
      run = partial(run, params, model_state)
      return Sides(
        image=lambda pictures: run(pictures, _images),
        text=lambda captions: run(encode(captions), _texts),
      )

    plain = sides(embed)
    found = sides(before) if model.features else plain
    return Embed(*plain, found, sides(raw))

  return make


def _check_finite(found: np.ndarray) -> None:
  wrong = np.flatnonzero(~np.isfinite(found).all(axis=-1))
  if len(wrong):
    raise FloatingPointError(
      f"{len(wrong)} of {len(found)} embeddings are not finite, the first is "
      f"that of input {wrong[0]}; if all are, the training has diverged (try a "
      "lower learning rate or a higher temperature, from an earlier checkpoint)"
    )


def _images(x) -> Batch:
  return Batch(x, None, None)


def _texts(x) -> Batch:
  return Batch(None, x, None)


def embed_pairs(
  embed: Embed, source: Source, pair_ids: np.ndarray | None = None
) -> Pairs:
  """Embeds pairs of a source, not augmented, on the host.

  Images and texts that pairs share are embedded once.

  Args:
    embed: The model.
    source: The pairs.
    pair_ids: Which of them; None = all.
  """
  if pair_ids is None:
    pair_ids = np.arange(source.sizes.num_pairs)
  ids = source.ids(pair_ids)
  _, first, row = np.unique(ids.image, return_index=True, return_inverse=True)
  pictures = Pictures(len(first), lambda i: source.fetch(pair_ids[first[i]])[0])
  image = embed.image(pictures)[row]
  texts, row = np.unique(ids.text, return_inverse=True)
  text = embed.text(source.captions(texts))[row]
  return Pairs(image, text, pair_ids, *ids)


def retrieval_evaluator(data: ImageTextSet, name: str = "") -> Evaluator:
  """Recall@1, 5, 10 both ways, see `retrieval.recall`.

  Args:
    data: What to retrieve in.
    name: Metrics are called `<name>/...`; without one as they are there.

  Returns:
    An evaluator.

  Example:
    >>> ids, eye = np.arange(2), lambda x: np.eye(2)
    >>> data = ImageTextSet(np.zeros((2, 8, 8, 1)), ids, ["a", "b"], ids)
    >>> retrieval_evaluator(data, "mine")(Embed(eye, eye))["mine/mean_recall@1"]
    1.0
  """

  def evaluate(embed):
    scores = retrieval.recall(
      embed.image(data.image),
      embed.text(data.captions),
      data.image_group,
      data.caption_group,
    )
    return {f"{name}/{k}" if name else k: x for k, x in scores.items()}

  return evaluate


def zero_shot_evaluator(data: LabelledSet, name: str) -> Evaluator:
  """Accuracy by prompts as `zero_shot_<name>/top1`, see `zero_shot`."""
  prompts = [prompt for group in data.prompts for prompt in group]
  owner = np.repeat(np.arange(len(data.prompts)), list(map(len, data.prompts)))

  def evaluate(embed):
    classes = zero_shot.class_embeddings(embed.text(prompts), owner)
    found = zero_shot.accuracy(embed.image(data.image), classes, data.label)
    return {f"zero_shot_{name}/{key}": x for key, x in found.items()}

  return evaluate


def probe_evaluator(
  train: LabelledSet, test: LabelledSet, name: str
) -> Evaluator:
  """Classifiers of frozen features, see `probe`, as `probe_<name>/...`."""
  classifiers = {
    "mean": probe.mean_classifier,
    "neighbours": partial(
      probe.nearest_neighbours, k=min(20, len(train.label))
    ),
    "linear": probe.linear_probe,
  }

  def evaluate(embed):
    encode = embed.features.image
    features = encode(train.image), encode(test.image)
    scores = {}
    for kind, classify in classifiers.items():
      found = classify(features[0], train.label, features[1], test.label)
      scores |= {f"probe_{name}/{kind}/{k}": x for k, x in found.items()}
    return scores

  return evaluate


def run(evaluators: Sequence[Evaluator], embed: Embed, prefix: str) -> Metrics:
  """Runs all evaluators.

  Args:
    evaluators: What they give has different names.
    embed: The model.
    prefix: Metric names get it and a slash.

  Returns:
    All scores.

  Raises:
    ValueError: If two evaluators give a score of one name.

  Example:
    >>> run([lambda embed: {"top1": 0.5}], Embed(len, len), "test")
    {'test/top1': 0.5}
  """
  scores = {}
  for evaluator in evaluators:
    found = evaluator(embed)
    if twice := sorted(set(found) & set(scores)):
      raise ValueError(
        f"two evaluators of {prefix} give {twice[:3]}; give the sets other "
        "names (NAME=SET)"
      )
    scores |= found
  return {f"{prefix}/{name}": value for name, value in scores.items()}
