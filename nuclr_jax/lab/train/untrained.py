"""Models without a run: published ones, and those of a config before training.

`open_untrained` opens them as `loop.load` opens a run, so that whatever takes a
run's parts and state takes them, too. `config_of_published` makes a config of a
published model.
"""

from collections.abc import Mapping, Sequence
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab.config import Config, ConfigError, complete
from nuclr_jax.lab.data import without_pairs
from nuclr_jax.lab.data.image_text import open_held_out
from nuclr_jax.lab.data.options import HeldOutNames, group_in
from nuclr_jax.lab.factories import Bound
from nuclr_jax.lab.models.pretrained import check_towers, read_published
from nuclr_jax.lab.train import build, resume
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.settings import Settings, resolve
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import Params, PyTree, Sides, Sizes

NOT_OPENED = "no data"  # in place of a fingerprint
NO_PAIRS = ""  # `config.data.train` where labelled sets are all there is
TRAIN, HELD_OUT = "train", ("validation", "test")
VALIDATION = ("validation", "val", "valid", "dev")
# Keys of `config.model`, and of its towers, that the weights decide.
OF_WEIGHTS = {
  *("name", "width", "layers", "heads", "hidden", "patch", "stages"),
  "grid",
  *("bottleneck", "features", "dim", "projected", "projection_bias"),
  *("head_width", "attending", "gated", "expansion", "stem"),
  *("pretrained", "image", "text", "encoder"),
}
OF_TEXTS = (
  "encodes texts only, and has no images: nuclr embed and nuclr popularity "
  "take it with --input=texts.txt, a text on each line, and a config as its "
  "text tower, model.text.pretrained"
)


def config_of_published(
  source: str | os.PathLike,
  *,
  architecture: str | os.PathLike | None = None,
  data: Sequence[str] = (),
  zero_shot: Sequence[str] = (),
  data_dir: str | os.PathLike | None = None,
) -> dict[str, Any]:
  """Makes the config of a published model: its towers and its preprocessing.

  Args:
    source: A folder, or a name on the hub such as
      "openai/clip-vit-base-patch32", see `pretrained.read_published`.
    architecture: What a file of weights is of, see there.
    data: Captioned sets to evaluate on: `NAME` or `NAME:SPLIT` of prepared data
      sets, see `data.sets`. A name without a split stands for its validation
      and test splits or, if there are none, for all. The training pairs are
      those of `train_of`.
    zero_shot: Labelled sets to classify, see `data.sets`.
    data_dir: Folder of prepared data sets.

  Returns:
    A complete config. Its objective is CLIP's, with the model's temperature, or
    with CLIP's own default for a model that has none (`nuclr` asks for one
    then). That of a sentence encoder is for texts alone (model `views`).

  Raises:
    ValueError: If there is no such model or data set, or the model is of texts
      alone and the sets are of images.
  """
  published = read_published(source, architecture=architecture)
  spec = published.model
  objective: dict[str, Any] = {"name": "clip"}
  if published.temperature is not None:
    objective["temperature"] = published.temperature
  if "encoder" in spec:  # of texts alone
    if data or zero_shot:
      raise ValueError(f"{source} {OF_TEXTS}")
    towers, sets = {"text": spec["encoder"]}, {"train": None}
  else:
    towers = {side: spec[side] for side in Sides._fields}
    sets = {
      "train": train_of(data, data_dir=data_dir),
      **held_out_of(data, zero_shot, data_dir=data_dir),
    }
  check_towers(source, towers, published.data.get("size", 1))
  return complete(
    {
      "data": published.data | sets,
      "model": spec,
      "objective": objective,
      "optimizer": {"learning_rate": 0.0},
      "batch_size": 1,
      "num_epochs": 1,
    }
  )


def check_kept(
  old: Mapping[str, Any], new: Mapping[str, Any], key: str = "model"
) -> None:
  """Raises ConfigError if what a published model's weights decide has changed.

  Args:
    old: The mapping `config.model` of the model, or a part of it.
    new: The same after changes.
    key: Its key, for the message.
  """
  for name, value in old.items():
    inner, changed = f"{key}.{name}", new.get(name)
    if isinstance(value, Mapping) and isinstance(changed, Mapping):
      check_kept(value, changed, inner)
    elif name in OF_WEIGHTS and changed != value:
      raise ConfigError(
        f"config.{inner} is {value!r} in the files of the model, and its "
        f"weights go with nothing else, got {changed!r}; leave it out",
        inner,
      )


def train_of(
  data: Sequence[str],
  *,
  named: bool = False,
  data_dir: str | os.PathLike | None = None,
) -> str:
  """Returns where the pairs are that popularities and hubs are computed from.

  Args:
    data: Captioned sets, as for `config_of_published`.
    named: Whether a split that the first set names is taken.
    data_dir: Folder of prepared data sets.

  Returns:
    The training split of the first set that has one, or else the first of the
    splits that are scored; `NO_PAIRS` without sets.
  """
  places = places_of(data, data_dir)
  if named and places and (split := places[0][0].split):
    return f"{places[0][0].source}:{split}"
  trained = (place.source for place, known in places if TRAIN in known)
  scored = (
    f"{place.source}:{_chosen(place, known)[0]}" for place, known in places
  )
  return next(trained, next(scored, NO_PAIRS))


def scored_in_train(
  data: Sequence[str], *, data_dir: str | os.PathLike | None = None
) -> list[str]:
  """Returns the splits that are scored, and have pairs of `train_of`.

  Slices of a split are told apart, but not compared with one another.

  Args:
    data: Captioned sets, as for `config_of_published`.
    data_dir: Folder of prepared data sets.
  """
  from nuclr_jax.lab.data import sets

  places = places_of(data, data_dir)
  if not places:
    return []
  train = sets.parse_place(train_of(data, data_dir=data_dir))
  return [
    f"{place.source}:{name}"
    for place, known in places
    for name in _chosen(place, known)
    if place.source == train.source and _share(train.split or TRAIN, name)
  ]


def _share(a: str, b: str) -> bool:
  """Returns whether two splits as TFDS writes them may have pairs in common."""

  def parts(split):
    return [x.strip().partition("[")[::2] for x in split.split("+")]

  return any(
    name == other and (part == another or not (part and another))
    for name, part in parts(a)
    for other, another in parts(b)
  )


def held_out_of(
  data: Sequence[str],
  zero_shot: Sequence[str] = (),
  *,
  data_dir: str | os.PathLike | None = None,
) -> dict[str, tuple[str, ...]]:
  """Returns the keys of `config.data` that score these sets.

  Validation splits are scored as `validation`, all others as `test`.

  Args:
    data: Captioned sets, as for `config_of_published`.
    zero_shot: Labelled sets, see `data.sets`.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such captioned set.
  """
  held_out = {"validation": (), "test": (), "zero_shot": tuple(zero_shot)}
  for place, known in places_of(data, data_dir):
    splits = {"validation": [], "test": []}
    for name in _chosen(place, known):
      is_validation = name.partition("[")[0] in VALIDATION
      splits["validation" if is_validation else "test"].append(name)
    for key, names in splits.items():
      held_out[key] += tuple(
        f"{place.name}{f'_{x}' if len(names) > 1 else ''}={place.source}:{x}"
        for x in names
      )
  return held_out


def sources_of(data: Bound) -> dict[str, str]:
  """Returns where the captioned sets of a config are from.

  Args:
    data: The data of settings.

  Returns:
    A data set and its split, by the beginning of the names of its scores.

  Example:
    >>> from nuclr_jax.lab.train.settings import bind_data
    >>> sets = {"validation": ("mine",), "test": ("x=coco:val",)}
    >>> sources_of(bind_data({"name": "image_text", "train": "mine"} | sets))
    {'validation/mine': 'mine:validation', 'test/x': 'coco:val'}
  """
  if data.name != "image_text":
    return {}
  from nuclr_jax.lab.data import sets

  return {
    f"{key}/{place.name}": f"{place.source}:{place.split or key}"
    for key in HELD_OUT
    for place in sets.parse_places(data.arguments.get(key, ()))
  }


def open_untrained(
  config: Config | Settings,
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
  # Few pairs can be measured, too, whatever the batch size of the run.
  settings = resolve(config)._replace(batch_size=1, num_microbatches=1)
  if pairs and settings.data.arguments.get("train") != NO_PAIRS:
    data = None
  else:
    inputs = build.load_inputs(settings.data, data_dir=data_dir)
    data = without_pairs(Sizes(1, 1, 1), NOT_OPENED, inputs)
    if pairs:
      data = data._replace(
        held_out=open_held_out(
          names=group_in(settings.data.arguments, HeldOutNames),
          size=inputs.image_shape[0],
          resize=inputs.resize,
          data_dir=data_dir,
        )
      )
  parts = build.build(settings, data_dir=data_dir, data=data, fresh=False)
  build.check_end(settings.model, parts.data.inputs)
  mesh = sharding.make_mesh(
    settings.num_devices, num_slices=settings.num_slices
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
  settings = parts.settings
  arguments = settings.model.arguments
  is_whole = arguments.get("pretrained") and (
    settings.model.name == "towers" or not arguments.get("projected", True)
  )
  if not is_whole:
    return resume.first_model(parts.model, mesh, seed=settings.seed)
  # A file of a whole model replaces all of these.
  shapes = jax.eval_shape(parts.model.init, jax.random.key(0))
  zeros = jax.tree.map(
    lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), shapes
  )
  everywhere = NamedSharding(mesh, sharding.REPLICATED)
  return jax.tree.map(
    lambda x: sharding.put(np.asarray(x), everywhere), parts.model.load(*zeros)
  )


def places_of(
  data: Sequence[str], data_dir: str | os.PathLike | None
) -> list[tuple[Any, list[str]]]:
  """Returns each place (`sets.Place`), and the names of its splits.

  Args:
    data: Captioned sets, as for `config_of_published`.
    data_dir: Folder of prepared data sets.
  """
  # Grain and TFDS are imported only where data sets are read.
  from nuclr_jax.lab.data import sets, tfds_reader

  return [
    (place, tfds_reader.split_names(place.source, data_dir))
    for place in sets.parse_places(data)
  ]


def _chosen(place: Any, known: Sequence[str]) -> list[str]:
  """Returns the splits of a place to score."""
  if place.split is not None:
    return [place.split]
  return [x for x in HELD_OUT if x in known] or list(known)
