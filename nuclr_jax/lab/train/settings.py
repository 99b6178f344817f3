"""The one door for configs: what a config says becomes the values of a run.

`resolve` completes a config, checks every name, key and value in it, and binds
factories to their arguments. All later code sees `Settings`, and no config.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import optax

from nuclr_jax import checks
from nuclr_jax.lab.config import KEYS, Config, ConfigError, complete, plain_data
from nuclr_jax.lab.data import DATASETS, Data
from nuclr_jax.lab.factories import Bound, Table, bind
from nuclr_jax.lab.models import MODELS, Model
from nuclr_jax.lab.models.towers import INPUTS, TOWERS
from nuclr_jax.lab.models.views import ENCODER
from nuclr_jax.lab.train.hooks import refresh_popularity
from nuclr_jax.lab.train.optimizer import make_optimizer, make_schedule
from nuclr_jax.lab.train.warm_start import PASS_U, parse
from nuclr_jax.objectives import (
  OBJECTIVES,
  RULES,
  TERMS,
  Objective,
  denominator,
  temperature_rules,
  zeta_rules,
)
from nuclr_jax.popularity.frequency import COUNTS
from nuclr_jax.types import Sizes


class Settings(namedtuple("Settings", (*KEYS, "recorded"))):
  """The values of a config, by its keys.

  Where the config names a factory, there is a `Bound`; `terms` and `evaluators`
  have one for each of their names. `recorded` is the whole config in plain
  data, as config.json keeps it: to be written, compared and shown, not to be
  read.
  """

  __slots__ = ()

  def __repr__(self) -> str:
    """Shows the values by line, without `recorded`."""
    shown = (f"  {key}={getattr(self, key)!r},\n" for key in KEYS)
    return f"Settings(\n{''.join(shown)})"


# What a run knows about its data and model, for whichever factory asks for it.
OF_THE_RUN = (*Sizes._fields, "batch_size", "data_block_size", "dim")
OF_THE_RUN += ("num_classes", "num_features", "special_ids", "steps_per_epoch")
OF_THE_RUN += ("vocab_size",)
SCHEDULE = Table(
  {"schedule": make_schedule}, run=("num_steps", "steps_per_epoch")
)
RULE_KINDS = {
  "gamma": denominator.Adaptive,
  "positive": denominator.PositiveRule,
  "temperature": temperature_rules.TemperatureRule,
  "zeta": zeta_rules.ZetaRule,
}
RULE_TABLES = {
  key: Table(x, run=OF_THE_RUN, schedules=SCHEDULE, makes=RULE_KINDS[key])
  for key, x in RULES.items()
}
TABLES = {
  "data": Table(DATASETS, run=("data_dir",), makes=Data),
  "model": Table(
    MODELS,
    run=(*INPUTS, "frozen"),
    parts=TOWERS | {"encoder": ENCODER},
    makes=Model,
  ),
  "objective": Table(
    OBJECTIVES,
    run=OF_THE_RUN,
    parts=RULE_TABLES,
    schedules=SCHEDULE,
    makes=Objective,
  ),
}
# Mappings of a config that have no `name`, since their key decides the factory.
TERM = Table(
  TERMS,
  run=OF_THE_RUN,
  more={"weight": checks.NonNegative},
  makes=Objective,
)
OPTIMIZER = Table(
  {"adamw": make_optimizer},
  schedules=SCHEDULE,
  makes=optax.GradientTransformation,
)
EVALUATOR = Table({}, run=("held_out",), makes=Callable)
REFRESH = Table(
  {"refresh": refresh_popularity},
  run=("source", "objective", "seed", "steps_per_epoch"),
)

# Objectives that see similarities as sim_ij - sim_ii only, so that those of a
# reference can be subtracted; see `objectives.relative_to`.
RELATIVE = (
  "clip",
  "contrib:fastclip_released",
  "isogclr",
  "nuclr",
  "nuclr_variant",
  "sogclr",
)
# Terms that see no embeddings.
APART = ("contrib:token_prediction",)

# What a warm start may take without similarities of its own.
FREE = (None, COUNTS, PASS_U)

# Keys of `config.data` that name held-out sets of photos.
HELD_OUT = "validation validation_zero_shot test zero_shot probes".split()


def resolve(config: Config | Settings) -> Settings:
  """Turns a config into the values that it names.

  Args:
    config: A mapping such as `configs/glyphs.py` makes. `Settings` are returned
      unchanged.

  Raises:
    ConfigError: For an unknown name or key, a missing key, or a value of the
      wrong type or out of its range.

  Example:
    >>> from nuclr_jax.lab.config import load_config, override
    >>> settings = resolve(load_config("glyphs:clip"))
    >>> settings.batch_size, settings.objective
    (128, clip(learn_temperature=False, temperature=0.08))
    >>> try:
    ...   resolve(override(settings.recorded, [("model.depth", "3")]))
    ... except ConfigError as error:
    ...   print(error.key, str(error)[:33])
    model.depth unknown keys ['depth'] of model '
  """
  if isinstance(config, Settings):
    return config
  values = complete(config)
  bound: dict[str, Any] = {
    key: bind(key, table, values[key]) for key, table in TABLES.items()
  }
  for key, table in {"terms": TERM, "evaluators": EVALUATOR}.items():
    bound[key] = {
      name: _bind_named(f"{key}.{name}", table, name, spec)
      for name, spec in (values[key] or {}).items()
    }
  adamw = {"name": "adamw"} | values["optimizer"]
  bound["optimizer"] = bind("optimizer", OPTIMIZER, adamw)
  if values["refresh"] is not None:
    spec = values["refresh"]
    bound["refresh"] = _bind_named("refresh", REFRESH, "refresh", spec)
  parse(values["warm_start"])
  if values["reference"] is not None:
    _check_relative(values)
  return Settings(**values | bound, recorded=values)


def bind_data(spec: Config) -> Bound:
  """Binds `config.data` alone, without the other keys of a config.

  Args:
    spec: The mapping `config.data`, or what is already bound.

  Raises:
    ConfigError: For an unknown name or key, a missing key, or a value of the
      wrong type or out of its range.
  """
  if isinstance(spec, Bound):
    return spec
  return bind("data", TABLES["data"], plain_data(spec))


def with_held_out(config: Config, held_out: Config) -> dict[str, Any]:
  """Returns a config with other held-out sets in place of all its own.

  Args:
    config: The complete config of a run.
    held_out: Keys of `config.data` such as `test`, see `data.image_text`; there
      may be none.

  Raises:
    ValueError: If the held-out sets of such data cannot be chosen.

  Example:
    >>> data = {"name": "image_text", "train": "mine", "probes": ("pets",)}
    >>> with_held_out({"data": data}, {"test": ("coco",)})["data"]
    {'name': 'image_text', 'train': 'mine', 'test': ('coco',)}
  """
  data = config["data"]
  if data["name"] != "image_text":
    if not held_out:
      return {**config}  # its sets are its own
    raise ValueError(
      f"this run is on {data['name']}, whose held-out sets are its own; only "
      "those of runs on photos (config.data.name is image_text) have such names"
    )
  kept = {key: x for key, x in data.items() if key not in HELD_OUT}
  return {**config, "data": kept | held_out}


def _check_relative(values: Mapping[str, Any]) -> None:
  """Raises ConfigError for what a reference makes no sense with."""

  def is_ours(name):
    return ":" not in name or name.startswith("contrib:")

  name, why = values["objective"]["name"], None
  if is_ours(name) and name not in RELATIVE:
    why = (
      f"the objectives {', '.join(RELATIVE)} and those of your own, which see "
      f"similarities relative to the positive's, and not with {name}"
    )
  elif terms := [
    x for x in values["terms"] or () if is_ours(x) and x not in APART
  ]:
    why = (
      f"{', '.join(APART)} and terms of your own, and not with {terms[0]}, "
      "which compares more than images with texts, or has a scale of its own"
    )
  elif (values["refresh"] or {}).get("every_epochs"):
    why = (
      "refresh.every_epochs=0: exact popularities are solved without a "
      "reference"
    )
  elif (rows := parse(values["warm_start"]).rows) not in FREE:
    why = (
      f"warm_start={COUNTS}, and not with {rows}: exact values, and those of a "
      "file, are solved without a reference"
    )
  if why:
    raise ConfigError(
      f"config.reference goes with {why}; change that, or leave the reference "
      "out",
      "reference",
    )


def _bind_named(key: str, table: Table, name: str, spec: Any) -> Bound:
  """Binds arguments whose key names the factory."""
  if not isinstance(spec, Mapping) or not table.more.keys() <= spec.keys():
    what = "a mapping with a weight" if table.more else "a mapping of arguments"
    raise ConfigError(f"{key} must be {what}, got {spec!r}", key)
  return bind(key, table, {**spec, "name": name})
