"""Whose popularities are solved: a run, or embeddings in files."""

from collections.abc import Callable, Sequence
import os
import pathlib
from typing import NamedTuple

import jax
import numpy as np

from nuclr_jax import experiment, train
from nuclr_jax.evaluate import driver
from nuclr_jax.types import Pairs, Sides, each


class Subject(NamedTuple):
  """Pairs with embeddings, and what is known of them."""

  pairs: Pairs  # NumPy arrays
  temperature: float
  captions: Callable[[np.ndarray], Sequence[str]]  # of text ids
  pictures: Callable[[np.ndarray], np.ndarray | None]  # of pair indices
  zeta: Sides | None = None  # learned, [ids] each, row = id
  log_u: Sides | None = None  # learned, [pairs] each
  fingerprint: str = ""


def from_run(
  workdir: pathlib.Path,
  *,
  data_dir: str | os.PathLike | None = None,
  temperature: float | None = None,
  parts: experiment.Experiment | None = None,
) -> Subject:
  """The training pairs of a run, embedded by its newest checkpoint.

  Raises:
    ValueError: If there is no run, or its objective has no one temperature.
  """
  parts, mesh, state = train.load(workdir, data_dir=data_dir, parts=parts)
  if temperature is None:
    temperature = experiment.temperature_of(parts.config, state.params)
  source = parts.data.train
  with jax.set_mesh(mesh):
    embed = train.embedder(parts, mesh)(state)
    pairs = driver.embed_pairs(embed, source)
  sample, zeta, log_u = state.objective.sample, None, None
  if hasattr(sample.image, "zeta"):
    tables = Sides(sample.image.zeta, sample.text.zeta)
    zeta = each(lambda x, n: np.asarray(x)[:n], tables, source.sizes.ids)
  if hasattr(sample.pair, "log_u"):
    log_u = each(lambda x: np.asarray(x)[pairs.pair_id], sample.pair.log_u)
  return Subject(
    pairs,
    temperature,
    source.captions,
    lambda rows: source.fetch(pairs.pair_id[rows]).image,
    zeta,
    log_u,
    source.fingerprint,
  )


def from_files(paths: str, *, temperature: float | None) -> Subject:
  """Embeddings of any model.

  Args:
    paths: One `.npz` with arrays `image` and `text` [pairs, dim] and, if ids
      repeat or captions are known, `image_id`, `text_id` [pairs] and `caption`
      (strings, one for each pair); or two `.npy` files joined by a comma,
      images first. With `text_id`, `text` may have a row per id instead, then
      `text_id` points into it; likewise `image`.
    temperature: Greater than 0.

  Raises:
    ValueError: If a file cannot be read or lacks something.
  """
  if temperature is None:
    raise ValueError("embeddings from files need --temperature")
  names = paths.split(",")
  try:
    if len(names) == 2:
      content = dict(zip(("image", "text"), map(np.load, names), strict=True))
    else:
      content = dict(np.load(paths))
  except (OSError, ValueError) as error:
    raise ValueError(f"{paths} cannot be read: {error}") from error
  missing = {"image", "text"} - set(content)
  if missing:
    raise ValueError(
      f"{paths} lacks the arrays {sorted(missing)}, it has {sorted(content)}"
    )
  sides = {}
  n = max(len(content[k]) for k in ("image", "text"))
  for side in Sides._fields:
    x, ids = content[side], content.get(f"{side}_id")
    ids = np.arange(len(x)) if ids is None else ids
    if len(x) != len(ids):
      if ids.min() < 0 or ids.max() >= len(x):
        raise ValueError(
          f"{side}_id must point into the {len(x)} rows of {side}, found "
          f"{ids.min()} to {ids.max()}"
        )
      x = x[ids]
    sides[side], sides[f"{side}_id"] = x, ids
  pairs = Pairs(
    *(sides[side] for side in Sides._fields),
    np.arange(n),
    sides["image_id"],
    sides["text_id"],
  )
  caption = content.get("caption")
  return Subject(
    pairs,
    temperature,
    _captions(caption, pairs.text_id),
    lambda rows: None,
  )


def _captions(caption, text_id):
  """Captions by text id, from one for each pair; the ids if there are none."""
  if caption is None:
    return lambda ids: [f"text {i}" for i in ids]
  if len(caption) != len(text_id):
    raise ValueError(
      f"caption must have one entry for each of {len(text_id)} pairs, got "
      f"{len(caption)}"
    )
  texts, first = np.unique(text_id, return_index=True)
  return lambda ids: [
    str(caption[i]) for i in first[np.searchsorted(texts, ids)]
  ]
