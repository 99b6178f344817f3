"""Shared by studies of configs/labelled.py: runs, scores, curves, status."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.harness import Options, Place, Results, Row, Run, training
from experiments.harness.statistics import MISSING, statistics

Rows = Sequence[Row]
WORKERS = {1: "one", 2: "two"}  # in words

# Maps the words of these studies to the config keys that get their values.
KEYS = {
  "batch_size": "batch_size",
  "block_size": "data.block_size, objective.block_size",
  "classes": "data.classes",
  "differences": "terms.contrib:difference_alignment.differences",
  "dim": "model.dim",
  "encoder_stages": "model.encoder.stages",
  "encoder_width": "model.encoder.width",
  "eval_every_epochs": "eval_every_epochs",
  "image_size": "data.size",
  "known_labels": "data.labels_per_class",
  "labels": "terms.contrib:difference_alignment.labels",
  "log_every": "log_every",
  "loss": "objective.loss",
  "num_epochs": "num_epochs",
  "num_negatives": "objective.num_negatives",
  "per_class": "data.per_class",
  "plain": "objective.plain",
  "positive": "data.positive",
  "scored_negatives": "data.num_negatives",
  "scores": "data.scores",
  "train": "data.train",
  "unseen": "data.unseen",
  "validation": "data.validation",
  "validation_scores": "data.validation_scores",
  "warmup_epochs": "optimizer.learning_rate.warmup_epochs",
  "weight": "terms.contrib:difference_alignment.weight",
}


def plan(
  options: Options,
  part: str,
  settings: Mapping[str, tuple[str, Mapping[str, Any]]],
  common: Mapping[str, Any],
  seeds: int | None = None,
) -> list[Run]:
  """Plans a part: every setting with seeds 0, 1, ...

  Args:
    options: The options of the study's command.
    part: The name of the part, "data set/what".
    settings: Maps the name of a setting to the argument of configs/labelled.py
      and the values, in the words of `KEYS`, that differ from `common`.
    common: The values that all settings share.
    seeds: The number of seeds; by default that of the options.
  """
  place = {"data_dir": options.data_dir} if options.data_dir else {}
  return [
    Run(
      part,
      name,
      seed,
      tuple(({"config": argument} | place | common | values).items()),
    )
    for name, (argument, values) in settings.items()
    for seed in range(options.seeds if seeds is None else seeds)
  ]


def make_config(run: Run):
  """Makes the config of a run."""
  values = dict(run.values)
  values.pop("data_dir", None)
  config = training.get_config("labelled")(values.pop("config"))
  training.change(config, values, KEYS)
  config.seed = run.seed
  config.checkpoint_every = 0
  return config


def held_out(data: str, at_hand: Sequence[str]) -> dict[str, str]:
  """Returns the values that split off 10 % for validation if it has no split.

  Args:
    data: The name of a data set.
    at_hand: The data sets that already have a validation split.
  """
  if data in at_hand:
    return {}
  return {
    "train": f"{data}:train[10%:]",
    "validation": f"{data}:train[:10%]",
  }


def small(data: str) -> dict[str, Any]:
  """Returns the values that make a run short, depending on its encoder."""
  encoder = training.get_config("labelled")(data).model.encoder.name
  return {
    "convnet": {},
    "vgg16": {"encoder_stages": ((8, 1),) * 5},
    "resnet50": {
      "encoder_stages": (1, 1),
      "encoder_width": 8,
      "image_size": 48,
    },
  }[encoder] | {"per_class": 60}


def measure(
  run: Run, place: Place, others: Mapping[str, Callable[[Run], Row]] = {}
) -> Row:
  """Trains and evaluates a run that has a config.

  Args:
    run: The run.
    place: The folders of the run.
    others: For each part without configs, the function that measures its runs.
  """
  if not is_training(run):
    return others[run.part](run)
  config = make_config(run)
  parts = training.prepare(config, place)
  trained = training.train(config, place, parts)
  return {
    "metrics": trained.metrics,
    "curve": [x for x in trained.history if any("/" in name for name in x)],
  }


def is_training(run: Run) -> bool:
  """Returns whether a run trains, and is not another kind of measurement."""
  return "config" in dict(run.values)


def configs(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
  """Returns the first config of each pair of part and config argument."""
  typical = {}
  for run in filter(is_training, runs):
    name = f"{run.part}: {dict(run.values)['config']}"
    typical.setdefault(name, run)
  return {
    name: training.flat(make_config(run)) for name, run in typical.items()
  }


def trained(results: Results) -> list[Row]:
  """Returns the rows of training runs, in the plan's order."""
  return [row for row in results.rows.values() if "metrics" in row]


def of_part(results: Results, part: str) -> list[Row]:
  """Returns the rows of a part, in the plan's order."""
  return [row for row in results.rows.values() if row["part"] == part]


def by_setting(rows: Rows, part: str) -> dict[str, list[Row]]:
  """Groups the rows of a part by their setting."""
  settings = {}
  for row in rows:
    if row["part"] == part:
      settings.setdefault(row["setting"], []).append(row)
  return settings


def data_of(rows: Rows) -> list[str]:
  """Returns the data sets of the rows, in the order of the rows."""
  return list(dict.fromkeys(row["part"].split("/")[0] for row in rows))


def data_with(rows: Rows, part: str) -> list[str]:
  """Returns the data sets that have rows of a part, in the rows' order."""
  return [x for x in data_of(rows) if by_setting(rows, f"{x}/{part}")]


def score(row: Row, name: str, split: str = "test") -> float:
  """Returns a score, given the end of its name; NaN if the row lacks it."""
  data = row["part"].split("/")[0]
  return row["metrics"].get(f"{split}/classes_{data}/{name}", np.nan)


def course(row: Row, name: str, *, plain: bool = False) -> tuple[list, list]:
  """Returns the steps of a curve and the score at each of them.

  Args:
    row: The row of a training run.
    name: The end of the score's name.
    plain: Whether `name` is the whole name of a metric instead.
  """
  data = row["part"].split("/")[0]
  full = name if plain else f"validation/classes_{data}/{name}"
  points = [(x["step"], x[full]) for x in row["curve"] if full in x]
  return tuple(map(list, zip(*points, strict=True))) if points else ([], [])


def percent(rows: Rows, name: str) -> str:
  """Formats a score's mean over seeds in percent; no rows, a dash."""
  return statistics(100 * score(x, name) for x in rows).show()


def draw_course(
  axes, rows: Rows, name: str, color, label, style, *, plain: bool = False
) -> None:
  """Draws a score along training: each seed thin, their mean thick."""
  if not rows:
    return
  courses = [course(row, name, plain=plain) for row in rows]
  for steps, values in courses:
    axes.plot(steps, values, style, color=color, alpha=0.3, linewidth=0.8)
  mean = np.mean([values for _, values in courses], axis=0)
  axes.plot(courses[0][0], mean, style, color=color, label=label)


def status(results: Results) -> str:
  """Summarizes what was run, and on which machine."""
  rows = trained(results)
  minutes = sum(row["seconds"] for row in rows) / 60
  machines = [
    f"{WORKERS.get(x['workers'], x['workers'])} at a time; "
    f"jax {x['versions']['jax']}, {x['cores']} cores"
    for x in results.commands
  ]
  machine = machines[-1] if machines else MISSING
  return f"{len(rows)} training runs, {minutes:.0f} process minutes, {machine}."
