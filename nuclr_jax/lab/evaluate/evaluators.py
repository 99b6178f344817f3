"""What an evaluator is, what it sees of a model, and how evaluators are run.

An evaluator is a function from `Embed`, which is all that it sees of a model,
to scores by name. The other modules of this package define evaluators, each
next to the pure functions of embeddings that it calls; `suites` chooses the
evaluators of a run.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
import logging
import math
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab.data.source import Images, LazyImages, Source
from nuclr_jax.lab.models import Model
from nuclr_jax.pairwise import unit_norm
from nuclr_jax.types import (
  Batch,
  Metrics,
  Pairs,
  Params,
  PyTree,
  Sides,
)

CHUNK = 512  # inputs that are read at a time, see `_batches`
# Inputs embedded at a time on each device: a power of two, at most this many
# token ids, or patches of 16 x 16 pixels.
MAX_TOKENS, PATCH = 2**14, 16 * 16 * 3
FEW = 8  # inputs; smaller batches are not made to save padding

log = logging.getLogger(__name__)


class Embed(NamedTuple):
  """A trained model as an evaluator sees it."""

  image: Callable[[Images], np.ndarray]  # images -> [n, dim], unit norm
  text: Callable[[Sequence[str]], np.ndarray]  # captions -> [n, dim], unit norm
  features: Sides | None = None  # functions to features before the projection
  outputs: Sides | None = None  # to what the objective sees, any norm
  # Captions -> what `text` reads of each, such as token ids; equal for captions
  # that the model cannot tell apart.
  encode: Callable[[Sequence[str]], Sequence] = list
  # Captions -> whether `text` leaves out the end of each; None = not known.
  is_cut: Callable[[Sequence[str]], np.ndarray] | None = None


Evaluator = Callable[[Embed], Metrics]
MakeEmbed = Callable[[Params, PyTree], Embed]


def make_embedder(
  model: Model, encode, mesh: Mesh, *, is_cut=None
) -> MakeEmbed:
  """Compiles functions that embed images and texts, split over the mesh.

  Args:
    model: The model.
    encode: Turns captions into token ids, such as `Tokenizer.encode`.
    mesh: The device mesh.
    is_cut: Says which captions are cut for that, such as `Tokenizer.is_cut`.

  Returns:
    `make(params, model_state) -> Embed`, where `params` are the model's. The
    functions of `Embed` raise FloatingPointError for embeddings that are not
    finite, since their scores would be meaningless.
  """
  rows = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)

  def outputs(params, model_state, batch):
    pairs, _ = model.apply(params, model_state, batch, key=None, train=False)
    return pairs.text if batch.image is None else pairs.image

  def embeddings(params, model_state, batch):
    return unit_norm(outputs(params, model_state, batch))

  def features(params, model_state, batch):
    sides = model.features(params, model_state, batch)
    return sides.text if batch.image is None else sides.image

  def in_batches(function):
    compiled = jax.jit(function, out_shardings=everywhere)

    def run(params, model_state, inputs, to_batch, short=False):
      results = []
      for batch, count in _batches(inputs, mesh.size):
        batch = _without_padding(batch) if short else batch
        result = compiled(
          params, model_state, to_batch(sharding.put(batch, rows))
        )
        results.append((result, count))
        jax.block_until_ready(results[-3:][0])  # else inputs pile up
      result = np.concatenate([np.asarray(x)[:n] for x, n in results])
      _check_embeddings(result)
      return result

    return run

  def of_texts(run, captions):
    tokens = encode(captions)
    if not model.masks_padding:
      return run(tokens, _text_batch)
    # Texts of about one length share a batch, which is then as short as they.
    order = np.argsort(_lengths(tokens), kind="stable")
    result = run(tokens[order], _text_batch, short=True)
    return result[np.argsort(order)]

  embed, before, raw = map(in_batches, (embeddings, features, outputs))

  def make(params, model_state):
    def sides(run):
      run = partial(run, params, model_state)
      return Sides(
        image=lambda images: run(images, _image_batch),
        text=partial(of_texts, run),
      )

    plain = sides(embed)
    return Embed(
      *plain,
      features=sides(before) if model.features else plain,
      outputs=sides(raw),
      encode=encode,
      is_cut=is_cut,
    )

  return make


def batch_size(shape: Sequence[int], num_devices: int) -> int:
  """Returns how many inputs to embed at a time.

  Powers of two for each device keep the number of compiled shapes small where
  the number of inputs varies. Large inputs come in small batches, and padding
  adds at most a quarter of the inputs where the devices can share them so.

  Args:
    shape: The shape of the inputs, [n, height, width, 3] or [n, tokens].
    num_devices: The number of devices that share the inputs.

  Example:
    >>> batch_size((88, 224, 224, 3), 1), batch_size((20, 224, 224, 3), 1)
    (32, 8)
    >>> batch_size((512, 32, 32, 3), 8), batch_size((87, 77), 1)
    (512, 32)
  """
  tokens = math.prod(shape[1:]) / (PATCH if len(shape) == 4 else 1)
  most = max(1, int(MAX_TOKENS / max(tokens, 1)))
  most = 2 ** (most.bit_length() - 1)
  size = min(most, _power_of_two(shape[0] / num_devices))
  while size > FEW and -shape[0] % (size * num_devices) > shape[0] / 4:
    size //= 2
  return num_devices * size


def _batches(
  inputs: Images | np.ndarray, num_devices: int
) -> Iterator[tuple[np.ndarray, int]]:
  """Yields batches of one shape, and how many of their rows are inputs.

  The last batch is padded with its last input.
  """
  # A multiple of every `batch_size`.
  chunk_size = num_devices * _power_of_two(CHUNK / num_devices)
  size = None
  for start in range(0, len(inputs), chunk_size):
    chunk = inputs[start : start + chunk_size]
    size = size or batch_size(chunk.shape, num_devices)
    count = len(chunk)
    if missing := -count % size:
      width = [(0, missing)] + [(0, 0)] * (chunk.ndim - 1)
      chunk = np.pad(chunk, width, mode="edge")
    for first in range(0, len(chunk), size):
      yield chunk[first : first + size], min(size, count - first)


def _lengths(tokens: np.ndarray) -> np.ndarray:
  """Returns how many ids each row has before the zeros at its end.

  Example:
    >>> _lengths(np.array([[2, 0, 3, 0], [0, 0, 0, 0]])).tolist()
    [3, 0]
  """
  reversed_ids = tokens[:, ::-1] != 0
  ends = np.argmax(reversed_ids, axis=1)
  return np.where(reversed_ids.any(axis=1), tokens.shape[1] - ends, 0)


def _without_padding(tokens: np.ndarray) -> np.ndarray:
  """Cuts token ids to a power of two, or leaves the length as it is."""
  longest = max(FEW, int(_lengths(tokens).max(initial=0)))
  return tokens[:, : _power_of_two(longest)]


def _power_of_two(x: float) -> int:
  """Returns the smallest power of two that is at least x."""
  return 2 ** (math.ceil(x) - 1).bit_length()


def _check_embeddings(embedding: np.ndarray) -> None:
  wrong = np.flatnonzero(~np.isfinite(embedding).all(axis=-1))
  if len(wrong):
    raise FloatingPointError(
      f"{len(wrong)} of {len(embedding)} embeddings are not finite, the first "
      f"is that of input {wrong[0]}; if all are affected, the training has "
      "diverged (try a lower learning rate or a higher temperature, from an "
      "earlier checkpoint)"
    )
  if count := len(embedding) - np.count_nonzero(embedding.any(axis=-1)):
    log.warning(
      "%d of %d embeddings are all zeros, and similar to nothing; weights that "
      "are too large or zero make such",
      count,
      len(embedding),
    )


def _image_batch(x) -> Batch:
  return Batch(x, None, None)


def _text_batch(x) -> Batch:
  return Batch(None, x, None)


def embed_pairs(
  embed: Embed, source: Source, pair_ids: np.ndarray | None = None
) -> Pairs:
  """Embeds pairs of a source, not augmented, on the host.

  Images and texts that pairs share are embedded once.

  Args:
    embed: The model.
    source: The pairs.
    pair_ids: Which pairs to embed; None embeds all.
  """
  if pair_ids is None:
    pair_ids = np.arange(source.sizes.num_pairs)
  ids = source.ids(pair_ids)
  _, first, row = np.unique(ids.image, return_index=True, return_inverse=True)
  images = LazyImages(len(first), lambda i: source.fetch(pair_ids[first[i]])[0])
  image = embed.image(images)[row]
  texts, row = np.unique(ids.text, return_inverse=True)
  text = embed.text(source.captions(texts))[row]
  return Pairs(image, text, pair_ids, *ids)


def run_evaluators(
  evaluators: Sequence[Evaluator], embed: Embed, prefix: str
) -> Metrics:
  """Runs evaluators, and prefixes the names of their scores.

  Args:
    evaluators: Evaluators whose scores have different names.
    embed: The model.
    prefix: What precedes the names, with a slash; "" leaves them as they are.

  Returns:
    All scores.

  Raises:
    ValueError: If two evaluators give a score of the same name.

  Example:
    >>> run_evaluators([lambda embed: {"top1": 0.5}], Embed(len, len), "test")
    {'test/top1': 0.5}
  """
  scores = {}
  for evaluator in evaluators:
    more = evaluator(embed)
    if twice := sorted(set(more) & set(scores)):
      raise ValueError(
        f"two evaluators of {prefix or 'the sets'} give {twice[:3]}; give the "
        "sets different names (NAME=SET)"
      )
    scores |= more
  prefix = prefix and f"{prefix}/"
  return {f"{prefix}{name}": value for name, value in scores.items()}
