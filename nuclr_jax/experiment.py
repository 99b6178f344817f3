"""From a config to the parts of a run.

A config names factories and their keyword arguments; this module looks them up
and calls them. Replace a part with your own by
`build(config)._replace(model=...)` and hand the result to `train.fit`.
"""

from collections.abc import Callable, Mapping, Sequence
import inspect
import os
from typing import Any, NamedTuple

import numpy as np
import optax

from nuclr_jax.data.sources import Source
from nuclr_jax.data.tokenizer import Tokenizer
from nuclr_jax.data.transforms import Transform
from nuclr_jax.evaluate import driver
from nuclr_jax.models import MODELS, Model
from nuclr_jax.objectives import OBJECTIVES, Objective
from nuclr_jax.optimizer import is_frozen, make_optimizer, make_schedule
from nuclr_jax.types import Sides

Config = Any  # a mapping, or an ml_collections.ConfigDict

# Keys of a config and their defaults; `...` marks those without one.
DEFAULTS = dict(
  data=...,
  model=...,
  objective=...,
  optimizer=...,
  batch_size=...,
  num_epochs=...,
  seed=0,
  num_devices=None,  # None = all
  log_every=50,  # steps
  eval_every=0,  # steps; 0 = at the end only
  checkpoint_every=0,  # steps; 0 = at the end only
  max_checkpoints=2,
)


class Data(NamedTuple):
  """What a data set brings to a run."""

  train: Source
  transform: Transform | None
  tokenizer: Tokenizer
  image_shape: tuple[int, int, int]
  evaluators: Mapping[str, Sequence[driver.Evaluator]]  # validation, test
  examples: driver.ImageTextSet  # of the test split, for the report


class Experiment(NamedTuple):
  """All parts of a run."""

  config: dict[str, Any]
  data: Data
  model: Model
  objective: Objective
  optimizer: optax.GradientTransformation
  num_steps: int


def build(
  config: Config,
  *,
  data_dir: str | os.PathLike | None = None,
  data: Data | None = None,
) -> Experiment:
  """Makes the parts that a config names; prepares the data if need be.

  Args:
    config: A mapping such as `configs/glyphs.py` makes.
    data_dir: Folder of prepared data sets, see `sources.cache_dir`.
    data: What `load_data` gave for `config.data`, so that many runs in one
      process read it once.

  Returns:
    An `Experiment`.

  Raises:
    ValueError: For unknown names or keys, and from the factories.
  """
  config = complete(config)
  _check_names(config)
  data = data or load_data(config["data"], data_dir=data_dir)
  sizes = data.train.sizes
  steps_per_epoch = sizes.num_pairs // config["batch_size"]
  num_steps = round(config["num_epochs"] * steps_per_epoch)
  if num_steps < 1:
    raise ValueError(
      f"the run has no step: num_epochs {config['num_epochs']}, batch_size "
      f"{config['batch_size']}, {sizes.num_pairs} training pairs"
    )
  span = dict(num_steps=num_steps, steps_per_epoch=steps_per_epoch)
  freeze = config["optimizer"].get("freeze", ())
  return Experiment(
    config=config,
    data=data,
    model=_call(
      "model",
      MODELS,
      config["model"],
      image_shape=data.image_shape,
      vocab_size=data.tokenizer.vocab_size,
      length=data.tokenizer.length,
      frozen=tuple(
        x for x in ("image", "text") if is_frozen(f"model/{x}", freeze)
      ),
    ),
    objective=_call(
      "objective", OBJECTIVES, config["objective"], span, **sizes._asdict()
    ),
    optimizer=_call(
      "optimizer",
      {"adamw": make_optimizer},
      {"name": "adamw", **config["optimizer"]},
      span,
    ),
    num_steps=num_steps,
  )


def load_data(
  spec: Config, *, data_dir: str | os.PathLike | None = None
) -> Data:
  """Reads the data that `config.data` names; prepares it if need be.

  Raises:
    ValueError: For an unknown name or key.
  """
  _check_spec("data", DATASETS, spec)
  return _call("data", DATASETS, spec, data_dir=data_dir)


def complete(config: Config) -> dict[str, Any]:
  """Plain nested dicts with the defaults filled in.

  Raises:
    ValueError: For unknown or missing keys and impossible numbers.
  """
  config = _plain(config)
  unknown = sorted(set(config) - set(DEFAULTS))
  if unknown:
    raise ValueError(
      f"unknown config keys {unknown}; known are {sorted(DEFAULTS)}"
    )
  config = DEFAULTS | config
  missing = sorted(key for key, value in config.items() if value is ...)
  if missing:
    raise ValueError(f"the config lacks {missing}")
  for key in ("batch_size", "num_epochs", "log_every", "max_checkpoints"):
    if not config[key] > 0:
      raise ValueError(f"{key} must be greater than 0, got {config[key]}")
  for key in ("seed", "eval_every", "checkpoint_every"):
    if config[key] < 0:
      raise ValueError(f"{key} must be at least 0, got {config[key]}")
  return config


def glyphs(
  *,
  data_dir: str | os.PathLike | None = None,
  size: int = 32,
  length: int = 12,
  min_count: int = 1,
  shift: float = 0.0,
  scale: float = 0.0,
  share_texts: bool = True,
) -> Data:
  """The embedded glyphs, see `data.glyphs`, and their evaluations.

  Args:
    data_dir: Folder of prepared data sets.
    size: Height and width of the pictures, in pixels.
    length: Token ids per caption.
    min_count: Captions a word must be in to be a token, see `tokenizer.build`.
    shift: Augmentation, see `transforms.shift_and_scale`.
    scale: Likewise.
    share_texts: False hides from training which captions repeat, see
      `sources.hide_repetitions`.
  """
  # Imported here: models and objectives work without TFDS and Grain.
  from nuclr_jax.data import digits, sources, tokenizer, transforms
  from nuclr_jax.data import glyphs as glyph_data

  folder = glyph_data.prepare(sources.cache_dir(data_dir), size=size)
  splits = {
    name: sources.read_records(folder, name)
    for name in ("train", "validation", "test")
  }
  train = splits["train"]
  words = tokenizer.build(train.captions, length=length, min_count=min_count)
  (folder / "tokenizer.json").write_text(words.text)
  sets = {
    name: driver.ImageTextSet(x.image, x.text_id, x.captions)
    for name, x in splits.items()
  }
  evaluators = {
    name: [
      driver.retrieval_evaluator(sets[name]),
      driver.zero_shot_evaluator(_scripts(sets[name]), "script"),
    ]
    for name in ("validation", "test")
  }
  images, labels = digits.load(size)
  handwritten = driver.LabelledSet(images, labels, digits.PROMPTS)
  evaluators["test"] += [driver.zero_shot_evaluator(handwritten, "digits")]
  if not share_texts:
    train = sources.hide_repetitions(train)
  move = transforms.shift_and_scale(shift=shift, scale=scale)
  return Data(
    train=sources.in_memory(train, words.encode(train.captions)),
    transform=move if shift or scale else None,
    tokenizer=words,
    image_shape=train.image.shape[1:],
    evaluators=evaluators,
    examples=sets["test"],
  )


DATASETS = {"glyphs": glyphs}


def _scripts(data: driver.ImageTextSet) -> driver.LabelledSet:
  """The letters among the glyphs, labelled with their script."""
  from nuclr_jax.data.glyphs import SCRIPTS, script_of

  script = np.array([script_of(caption) for caption in data.captions])
  label = script[data.text_id]
  letters = label >= 0
  prompts = [(f"{name} LETTER",) for name in SCRIPTS]
  return driver.LabelledSet(data.image[letters], label[letters], prompts)


def _check_names(config) -> None:
  """Finds unknown names before data is prepared."""
  tables = dict(data=DATASETS, model=MODELS, objective=OBJECTIVES)
  for key, table in tables.items():
    _check_spec(key, table, config[key])
  _check_keys("the optimizer", make_optimizer, config["optimizer"])


def _check_spec(key: str, table: Mapping[str, Callable], spec: Config) -> None:
  name = spec.get("name")
  if name not in table:
    raise ValueError(
      f"config.{key}.name is {name!r}; known names are {sorted(table)}"
    )
  _check_keys(f"{key} {name!r}", table[name], spec)


def _check_keys(what: str, factory: Callable, spec: Config) -> None:
  known = set(inspect.signature(factory).parameters)
  unknown = sorted(set(spec) - known - {"name"})
  if unknown:
    raise ValueError(
      f"unknown keys {unknown} of {what}; known are {sorted(known)}"
    )


def _call(where, table, spec, span=None, **given):
  """Calls the factory that `spec` names with what it takes of `given`."""
  factory = table[spec["name"]]
  known = inspect.signature(factory).parameters
  arguments = {key: value for key, value in given.items() if key in known}
  arguments |= {
    key: _resolve(f"{where}.{key}", value, span)
    for key, value in spec.items()
    if key != "name"
  }
  return factory(**arguments)


def _resolve(where, value, span):
  """Turns mappings into `Sides` and schedules: {"value": ..., "decay": ...}."""
  if not isinstance(value, Mapping):
    return value
  if set(value) == {"image", "text"}:
    return Sides(
      **{
        side: _resolve(f"{where}.{side}", x, span) for side, x in value.items()
      }
    )
  _check_keys(where, make_schedule, value)
  try:
    return make_schedule(**value, **span)
  except (ValueError, TypeError) as error:
    raise ValueError(f"{where}: {error}") from error


def _plain(config):
  """Nested dicts and tuples, from any mapping."""
  if isinstance(config, Mapping) or hasattr(config, "to_dict"):
    return {key: _plain(value) for key, value in config.items()}
  if isinstance(config, list | tuple):
    return tuple(map(_plain, config))
  return config
