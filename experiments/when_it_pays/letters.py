"""Training on letters: the ways to train, their configs, what comes out."""

from collections.abc import Mapping
import time
from typing import Any, NamedTuple

import jax
from jaxtyping import Float
import numpy as np

from experiments.harness import Place, training
from experiments.when_it_pays import data
from nuclr_jax import Sides, popularity
from nuclr_jax.lab.evaluate import evaluators
from nuclr_jax.lab.train import build, loop
from nuclr_jax.types import Popularities, each

TOLERANCE = 1e-3  # of exact popularities
KEYS = {
  "batch_size": "batch_size",
  "dim": "model.dim",
  "num_epochs": "num_epochs",
  "temperature": "objective.temperature",
}
COMMON = {
  "batch_size": 32,
  "dim": 32,
  "exponent": 1.2,
  "num_epochs": 20.0,
  "num_items": 100,
  "num_pairs": 4000,
}
SMOKE = {"num_epochs": 2.0, "num_pairs": 320, "num_items": 20}


class Arm(NamedTuple):
  """A way to train."""

  objective: Mapping[str, Any]  # of a config, without the temperature
  oracle: str = ""  # "true" or "counted": zeta is tau log p from the start
  refresh: bool = False  # whether zeta is solved exactly after every epoch


NUCLR = dict(name="nuclr", gamma=0.8)
FIXED = NUCLR | dict(zeta=dict(name="fixed"))
ARMS = {
  "CLIP": Arm(dict(name="clip", learn_temperature=False)),
  "SogCLR": Arm(dict(name="sogclr", gamma=0.8)),
  "ζ = 0": Arm(FIXED),
  "ζ learned, batch": Arm(NUCLR | dict(zeta=dict(name="batch", rate=0.14))),
  "ζ learned, queue": Arm(
    NUCLR | dict(zeta=dict(name="queue", size=1024, rate=0.3))
  ),
  "ζ exact, each epoch": Arm(FIXED, refresh=True),
  "ζ = τ log p": Arm(FIXED, oracle="true"),
  "ζ = τ log p, counted": Arm(FIXED, oracle="counted"),
}


def make_config(values: Mapping[str, Any]):
  """Makes the config of a run on letters: configs/glyphs.py, but smaller."""
  arm = ARMS[values["arm"]]
  config = training.get_config("glyphs")("sogclr")
  config.objective = dict(arm.objective)
  config.model.image_stages = ((2, 2, 32), (2, 1, 64))
  config.model.image_features = 128
  config.model.text_layers = 0
  config.optimizer.clip_norm = 0.1  # so that a loss's scale does not matter
  config.optimizer.learning_rate.warmup_epochs = 1.0
  training.change(config, {x: values[x] for x in KEYS}, KEYS)
  config.eval_every = config.checkpoint_every = 0
  if arm.refresh:
    config.refresh = dict(every_epochs=1.0)
  return config


class Fitted(NamedTuple):
  """A trained model on a test."""

  similarity: Float[np.ndarray, "tests captions"]
  exact: Sides  # zeta of the training embeddings, by pair
  zeta: Sides | None  # the objective's own, by pair
  seconds: float  # of training


def fit(
  config, place: Place, tails: data.Tails, zeta: np.ndarray | None = None
) -> Fitted:
  """Trains on letters; embeds the test, and solves for popularities.

  Args:
    config: The config of the run, with its seed.
    place: The folders of the run.
    tails: The data.
    zeta: First popularities of the training texts, by id.
  """
  parts = build.build(config, data=tails.data)
  if zeta is not None:
    first = Sides(np.zeros(len(tails.item)), zeta)
    ids = each(np.arange, tails.data.train.sizes.ids)
    parts = parts._replace(popularities=Popularities(ids, first))
  began = time.monotonic()
  trained = training.train(config, place, parts)
  seconds = time.monotonic() - began
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(trained.state)
    pairs = evaluators.embed_pairs(embed, parts.data.train)
    image, text = embed.image(tails.test_image), embed.text(tails.captions)
    exact = popularity.solve(
      pairs.image,
      pairs.text,
      temperature=config.objective.temperature,
      image_id=pairs.ids.image,
      text_id=pairs.ids.text,
      tolerance=TOLERANCE,
    )
  learned = parts.objective.readout(
    trained.state.params["objective"], trained.state.objective
  ).zeta
  ids = Sides(np.arange(len(tails.item)), tails.text_id)
  if learned is not None:
    learned = each(lambda x, i: np.asarray(x)[i], learned, ids)
  rows = each(np.searchsorted, exact.ids, ids)
  of_pair = each(lambda x, row: x[row], exact.zeta, rows)
  return Fitted(image @ text.T, of_pair, learned, seconds)


def by_caption(zeta: np.ndarray, tails: data.Tails) -> np.ndarray:
  """Returns the mean of a caption's texts; the mean of all for unseen ones."""
  counts = np.bincount(tails.caption, minlength=len(tails.captions))
  total = np.bincount(tails.caption, zeta, minlength=len(counts))
  return np.where(counts, total / np.maximum(counts, 1), np.mean(zeta))
