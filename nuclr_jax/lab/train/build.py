"""Makes the parts of a run from its config.

A config names factories and their keyword arguments; this module looks them up
and calls them. To replace a part with your own, pass
`build(config)._replace(model=...)` to `train.fit` as `parts`.
"""

import functools
import inspect
import os
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import optax

from nuclr_jax import checks, sharding
from nuclr_jax.lab import extensions
from nuclr_jax.lab.config import Config, complete, plain
from nuclr_jax.lab.data import Data, HeldOut, Inputs, inputs_of
from nuclr_jax.lab.data.tokenizer import Tokenizer
from nuclr_jax.lab.evaluate import suites
from nuclr_jax.lab.models import ENCODERS, Model, microbatched
from nuclr_jax.lab.train import factories
from nuclr_jax.lab.train.hooks import (
  Hook,
  first_popularities,
  refresh_popularity,
)
from nuclr_jax.lab.train.optimizer import is_frozen, without_frozen_gradients
from nuclr_jax.objectives import Objective, add, scale
from nuclr_jax.types import Popularities

# Keys of `config.data` that name held-out sets of photos.
HELD_OUT = "validation validation_zero_shot test zero_shot probes".split()


class Experiment(NamedTuple):
  """All parts of a run."""

  config: dict[str, Any]
  data: Data
  model: Model
  objective: Objective
  optimizer: optax.GradientTransformation
  num_steps: int
  hooks: tuple[Hook, ...] = ()
  popularities: Popularities | None = None  # what the first state starts with
  evaluators: suites.Suites = {}  # by split: validation, test


def build(
  config: Config,
  *,
  data_dir: str | os.PathLike | None = None,
  data: Data | None = None,
  fresh: bool = True,
) -> Experiment:
  """Makes the parts that a config names; prepares the data if necessary.

  Args:
    config: A mapping such as `configs/glyphs.py` makes.
    data_dir: Folder of prepared data sets, see `places.cache_dir`.
    data: The result of `load_data` for `config.data`, so that many runs in one
      process read the data only once.
    fresh: Whether to include the warm start, which only a first state needs,
      and to check what a run that has begun can no longer change.

  Returns:
    An `Experiment`.

  Raises:
    ValueError: If a name or key is unknown, or a factory rejects an argument.
  """
  config = factories.checked(complete(config))
  _check_views_differ(config["data"], config["model"])
  data = data or load_data(config["data"], data_dir=data_dir)
  if fresh:
    check_end(config["model"], data.inputs)
  evaluators = suites.choose_evaluators(
    data, functools.partial(make_evaluators, config["evaluators"])
  )
  sizes = data.train.sizes
  steps_per_epoch = sizes.num_pairs // config["batch_size"]
  num_steps = round(config["num_epochs"] * steps_per_epoch)
  if num_steps < 1:
    raise ValueError(
      f"the run has no step: num_epochs {config['num_epochs']}, batch_size "
      f"{config['batch_size']}, {sizes.num_pairs} training pairs; lower "
      "batch_size, or raise num_epochs"
    )
  if num_steps >= 2**31:  # steps are counted in int32
    raise ValueError(f"{num_steps:.3g} steps are too many; lower num_epochs")
  objective = make_objective(
    config["objective"],
    config["terms"],
    num_steps=num_steps,
    steps_per_epoch=steps_per_epoch,
    **sizes._asdict(),
    dim=config["model"].get("dim"),
    num_classes=data.num_classes,
    data_block_size=data.block_size,
  )
  if data.train.open_stream is not None:
    _check_streamable(objective, config["objective"]["name"])
  popularities = None
  if fresh and config["warm_start"] is not None:
    popularities = first_popularities(
      config["warm_start"], data.train, objective
    )
  hooks = ()
  if config["refresh"] is not None and config["refresh"]["every_epochs"]:
    refresh = refresh_popularity(
      data.train,
      objective,
      seed=config["seed"],
      steps_per_epoch=steps_per_epoch,
      **config["refresh"],
    )
    hooks = (refresh,)
  return Experiment(
    config=config,
    data=data,
    model=make_model(config, data.inputs),
    objective=objective,
    optimizer=factories.call(
      "optimizer",
      factories.OPTIMIZER,
      {"name": "adamw"} | config["optimizer"],
      span=dict(num_steps=num_steps, steps_per_epoch=steps_per_epoch),
    ),
    num_steps=num_steps,
    hooks=hooks,
    popularities=popularities,
    evaluators=evaluators,
  )


def make_objective(
  host: Config,
  terms: Config | None = None,
  *,
  num_steps: int,
  steps_per_epoch: int,
  **of_the_run: int | None,
) -> Objective:
  """Makes the objective of a run and adds its terms.

  Args:
    host: The mapping `config.objective`.
    terms: The mapping `config.terms`.
    num_steps: The number of steps of the run, after which schedules end.
    steps_per_epoch: The length of an epoch, in steps.
    **of_the_run: What else is known, for factories and rules that take it; the
      names are in `factories.OF_THE_RUN`.

  Raises:
    ValueError: If a factory rejects an argument.
  """
  span = dict(num_steps=num_steps, steps_per_epoch=steps_per_epoch)
  of_the_run |= {"steps_per_epoch": steps_per_epoch}
  table = factories.TABLES["objective"]
  objective = factories.call("objective", table, host, span=span, **of_the_run)
  scaled = {}
  for name, spec in (terms or {}).items():
    arguments = {**spec, "name": name}
    weight = checks.weight(f"terms.{name}.weight", arguments.pop("weight"))
    term = factories.call("terms", factories.TERM, arguments, **of_the_run)
    if weight:  # a term of weight 0 is checked, too
      scaled[name.rpartition(":")[2]] = scale(term, weight)
  if not scaled:
    return objective
  return add(**{host["name"].rpartition(":")[2]: objective}, **scaled)


def make_evaluators(
  evaluators: Config, held_out: HeldOut
) -> list[suites.Evaluator]:
  """Makes the evaluators that a config names, of the sets of one split.

  Args:
    evaluators: The mapping `config.evaluators`.
    held_out: The held-out sets of the split.

  Raises:
    ValueError: If a factory rejects an argument.
  """
  return [
    factories.call(
      f"evaluators.{name}",
      factories.EVALUATOR,
      {**arguments, "name": name},
      held_out=held_out,
    )
    for name, arguments in evaluators.items()
  ]


def make_model(config: Config, inputs: Inputs) -> Model:
  """Makes the model of a complete config, for the inputs of its data.

  Raises:
    ValueError: If a factory rejects an argument.
  """
  freeze = config["optimizer"].get("freeze", ())
  model = factories.call(
    "model",
    factories.TABLES["model"],
    config["model"],
    image_shape=inputs.image_shape,
    vocab_size=inputs.tokenizer.vocab_size,
    length=inputs.tokenizer.length,
    frozen=tuple(
      x
      for x in ("image", "text")
      # Frozen by its name, or by a pattern that matches everything below it.
      if any(is_frozen(f"model/{x}{end}", freeze) for end in ("", "/-"))
    ),
  )
  return microbatched(
    without_frozen_gradients(model, freeze), config["num_microbatches"]
  )


def check_end(model: Config, inputs: Inputs) -> None:
  """Checks that CLIP's text tower takes its feature where captions end.

  Args:
    model: The mapping `config.model`.
    inputs: The inputs of the model.

  Raises:
    ValueError: If captions have no end token, or end with another one.
  """
  tower, tokenizer = model.get("text"), inputs.tokenizer
  if model["name"] != "towers" or tower["name"] != "clip_text":
    return
  if not isinstance(tokenizer, Tokenizer) or not tower.get("causal", True):
    return
  found, end_id = tokenizer.end_id, tower.get("end_id")
  if found is None:
    raise ValueError(
      "the tokenizer ends captions with no token of its own, whose feature the "
      "text tower clip_text takes; choose another tokenizer or tower"
    )
  taken = tokenizer.largest_id if end_id is None else end_id
  if found != taken:
    raise ValueError(
      f"the tokenizer ends captions with id {found}, and the text tower "
      f"clip_text takes the feature of id {taken}"
      f"{', the largest' if end_id is None else ''}; set "
      f"config.model.text.end_id={found}, or name the tokenizer of this model"
    )


def mesh_of(config: Config) -> Mesh:
  """Makes the mesh of a config, and checks that a batch fits it.

  Raises:
    ValueError: If the batch does not divide evenly over devices and
      microbatches, or the number of devices or slices is impossible.
  """
  mesh = sharding.make_mesh(
    config["num_devices"], num_slices=config["num_slices"]
  )
  pieces = config["num_microbatches"]
  if config["batch_size"] % (mesh.size * pieces):
    raise ValueError(
      "batch_size must be a multiple of the number of devices times "
      f"num_microbatches, got {config['batch_size']}, {mesh.size} and "
      f"{pieces}; change one, or use fewer devices with num_devices"
    )
  return mesh


def load_data(
  spec: Config, *, data_dir: str | os.PathLike | None = None
) -> Data:
  """Reads the data that `config.data` names; prepares it if necessary.

  Args:
    spec: `config.data`, a mapping or a `ConfigDict`.
    data_dir: Folder of prepared data sets, see `places.cache_dir`.

  Raises:
    ValueError: For an unknown name or key.
  """
  spec = plain(spec)
  factories.check_data(spec)
  table = factories.TABLES["data"]
  return factories.call("data", table, spec, data_dir=data_dir)


def load_inputs(
  spec: Config, *, data_dir: str | os.PathLike | None = None
) -> Inputs:
  """Returns the model inputs of `config.data`; reads the data only if needed.

  Raises:
    ValueError: For an unknown name or key.
  """
  spec = plain(spec)
  factories.check_data(spec)
  return inputs_of(spec) or load_data(spec, data_dir=data_dir).inputs


def with_held_out(config: Config, held_out: Config) -> dict[str, Any]:
  """Returns a config with other held-out sets in place of all its own.

  Args:
    config: The complete config of a run.
    held_out: Keys of `config.data` such as `test`, see `data.image_text`.

  Raises:
    ValueError: If the held-out sets of such data cannot be chosen.

  Example:
    >>> data = {"name": "image_text", "train": "mine", "probes": ("pets",)}
    >>> with_held_out({"data": data}, {"test": ("coco",)})["data"]
    {'name': 'image_text', 'train': 'mine', 'test': ('coco',)}
  """
  data = config["data"]
  if data["name"] != "image_text":
    raise ValueError(
      f"this run is on {data['name']}, whose held-out sets are its own; only "
      "runs on photos (config.data.name is image_text) are scored on --data "
      "and --zero_shot: leave them out"
    )
  kept = {key: x for key, x in data.items() if key not in HELD_OUT}
  return {**config, "data": kept | held_out}


def _check_streamable(objective: Objective, name: str) -> None:
  """Raises ValueError if an objective keeps a value for each sample."""
  _, state = jax.eval_shape(objective.init)
  if jax.tree.leaves(state.sample):
    raise ValueError(
      f"the objective {name} keeps values for every pair, which need ids, but "
      "config.data.train is a stream of tars; index the tars with nuclr ingest "
      "--in_place (they stay where they are) and name that data set, or choose "
      "an objective that keeps none, such as clip or siglip"
    )


def _check_views_differ(data: Config, model: Config) -> None:
  """Raises ValueError if both views of a sentence would be equal."""
  if (data["name"], model["name"]) != ("sentences", "views"):
    return
  encoder = model.get("encoder", {})
  factory = extensions.find(encoder.get("name"), ENCODERS)
  if factory is None:
    return  # reported elsewhere
  known = inspect.signature(factory).parameters
  default = known["dropout"].default if "dropout" in known else 0.0
  if encoder.get("dropout", default) == 0:
    raise ValueError(
      "config.model.encoder has no dropout, so that both views of a sentence "
      "are equal; set config.model.encoder.dropout, say to 0.1"
    )
