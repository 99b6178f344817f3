"""Models without a run: published ones, and those of a config before training.

`open_untrained` opens them as `loop.load` opens a run, so that whatever takes a
run's parts and state takes them, too. `config_of_published` makes a config of a
published model.
"""

from collections.abc import Sequence
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.config import Config, complete
from nuclr_jax.data import without_pairs
from nuclr_jax.data.image_text import open_held_out
from nuclr_jax.models.pretrained import read_published
from nuclr_jax.train import build, resume
from nuclr_jax.train.build import Experiment
from nuclr_jax.train.step import TrainState
from nuclr_jax.types import Params, PyTree, Sizes

NOT_OPENED = "no data"  # in place of a fingerprint
NO_PAIRS = ""  # `config.data.train` where labelled sets are all there is
TRAIN, HELD_OUT = "train", ("validation", "test")


def config_of_published(
  source: str | os.PathLike,
  *,
  data: Sequence[str] = (),
  zero_shot: Sequence[str] = (),
  data_dir: str | os.PathLike | None = None,
) -> dict[str, Any]:
  """Makes the config of a published model: its towers and its preprocessing.

  Args:
    source: A folder, or a name on the hub such as
      "openai/clip-vit-base-patch32", see `pretrained.read_published`.
    data: Captioned sets to evaluate on: `NAME` or `NAME:SPLIT` of prepared data
      sets, see `data.sets`. A name without a split stands for its validation
      and test splits, or for the only split that it has. The pairs for
      popularity are those of the first set's training split, if it has one.
    zero_shot: Labelled sets to classify, see `data.sets`.
    data_dir: Folder of prepared data sets.

  Returns:
    A complete config. Its objective is CLIP's, with the model's temperature.

  Raises:
    ValueError: If there is no such model or data set.
  """
  published = read_published(source)
  train, test = _splits(data, data_dir)
  objective: dict[str, Any] = {"name": "clip"}
  if published.temperature is not None:
    objective["temperature"] = published.temperature
  return complete(
    {
      "data": published.data
      | {"train": train, "test": test, "zero_shot": tuple(zero_shot)},
      "model": published.model,
      "objective": objective,
      "optimizer": {"learning_rate": 0.0},
      "batch_size": 1,
      "num_epochs": 1,
    }
  )


def open_untrained(
  config: Config,
  *,
  data_dir: str | os.PathLike | None = None,
  pairs: bool = True,
) -> tuple[Experiment, Mesh, TrainState]:
  """Opens a config's model before any training, with its pretrained weights.

  Args:
    config: A mapping such as `configs/glyphs.py` or `config_of_published`
      makes.
    data_dir: Folder of prepared data sets.
    pairs: Whether to open the data sets. Without them, the parts still have the
      model and its inputs; data are read only if the tokenizer is built from
      them.

  Returns:
    `(parts, mesh, train_state)`, as `loop.load` returns them. The state has no
    optimizer state, so that it cannot be trained.

  Raises:
    ValueError: If a name or key is unknown, a factory rejects an argument, or
      pretrained weights cannot be read.
  """
  if pairs and config["data"].get("train") != NO_PAIRS:
    data = None
  else:
    inputs = build.load_inputs(config["data"], data_dir=data_dir)
    data = without_pairs(Sizes(1, 1, 1), NOT_OPENED, inputs)
    if pairs:
      data = data._replace(
        held_out=open_held_out(
          zero_shot=config["data"]["zero_shot"],
          size=inputs.image_shape[0],
          resize=inputs.resize,
          data_dir=data_dir,
        )
      )
  # Whatever the batch size of a training, few pairs can be looked at, too.
  parts = build.build(
    {**config, "batch_size": 1, "num_microbatches": 1},
    data_dir=data_dir,
    data=data,
    fresh=False,
  )
  build.check_end(parts.config["model"], parts.data.inputs)
  mesh = sharding.make_mesh(
    parts.config["num_devices"], num_slices=parts.config["num_slices"]
  )
  with jax.set_mesh(mesh):
    params, model_state = _weights(parts, mesh)
  objective_params, objective_state = parts.objective.init()
  state = TrainState(
    step=jnp.zeros((), jnp.int32),
    params={"model": params, "objective": objective_params},
    model_state=model_state,
    opt_state=(),
    objective=objective_state,
  )
  return parts, mesh, state


def _weights(parts: Experiment, mesh: Mesh) -> tuple[Params, PyTree]:
  """Returns params and state; random ones are made only if they are needed."""
  settings = parts.config
  if not settings["model"].get("pretrained"):
    return resume.first_model(parts.model, mesh, seed=settings["seed"])
  # A file of a whole model replaces all of these.
  shapes = jax.eval_shape(parts.model.init, jax.random.key(0))
  zeros = jax.tree.map(
    lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), shapes
  )
  everywhere = NamedSharding(mesh, sharding.REPLICATED)
  return jax.tree.map(
    lambda x: sharding.put(np.asarray(x), everywhere), parts.model.load(*zeros)
  )


def _splits(
  data: Sequence[str], data_dir: str | os.PathLike | None
) -> tuple[str, tuple[str, ...]]:
  """Chooses the split for popularity, and those to evaluate on."""
  # Grain and TFDS are imported only where data sets are read.
  from nuclr_jax.data import sets, tfds_reader

  train, test = NO_PAIRS, []
  for place in sets.parse_places(data):
    known = tfds_reader.split_names(place.source, data_dir)
    names = [place.split]
    if place.split is None:
      names = [x for x in HELD_OUT if x in known] or known
    if TRAIN in known:
      train = train or place.source
    several = len(names) > 1
    test += [
      f"{place.name}{f'_{x}' if several else ''}={place.source}:{x}"
      for x in names
    ]
    train = train or f"{place.source}:{names[0]}"
  return train, tuple(test)
