"""Runs side by side: their scores over seeds, and how their configs differ.

Runs whose configs differ in the seed alone are one setting, apart from keys
that change neither what is learned nor what is scored. A setting is compared
with the first one by the differences of runs with the same seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import glob
import itertools
import logging
import math
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from nuclr_jax.lab import distributed, files, progress
from nuclr_jax.lab.train import extend, records
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)

SEED, OBJECTIVE = "seed", "objective/name"
# Keys that may differ within a setting.
FREE = {SEED, *records.MAY_DIFFER} - {*records.SCORED}
DATA = "data/"
ABSENT = "–"  # what a config lacks, and what was not measured
CONFIDENCE = 0.95


class Run(NamedTuple):
  """What a workdir says of a run."""

  name: str  # its folder
  config: Mapping[str, Any]  # nested keys are joined by slashes
  final: Metrics | None  # None = it has not finished
  history: Sequence[Mapping[str, float]]
  times: Sequence[Mapping[str, float]]
  extended: Sequence[Mapping[str, Any]] = ()  # when it was planned anew

  @property
  def seed(self) -> int:
    """The seed of the config."""
    return self.config[SEED]

  @property
  def step(self) -> int:
    """The last step of the history."""
    return int(max((row["step"] for row in self.history), default=0))


class Setting(NamedTuple):
  """Runs whose configs differ in the seed alone."""

  label: str
  runs: Mapping[int, Run]  # by seed

  @property
  def config(self) -> Mapping[str, Any]:
    """The config of the first run."""
    return next(iter(self.runs.values())).config


class Interval(NamedTuple):
  """A mean over seeds, and half of its 95 % interval (Student's t)."""

  count: int
  mean: float  # NaN without values
  half_width: float  # NaN for fewer than two


class Line(NamedTuple):
  """A score of a setting, and its difference to the first setting."""

  label: str
  score: Interval
  difference: Interval | None  # None of the first


class Found(NamedTuple):
  """Settings, and what to know before comparing them."""

  settings: Sequence[Setting]
  notes: Sequence[str]


def interval(values: Iterable[float]) -> Interval:
  """Summarizes values of several seeds.

  Args:
    values: A value for each seed.

  Example:
    >>> interval([1.0, 2.0, 3.0])._replace(half_width=None)
    Interval(count=3, mean=2.0, half_width=None)
    >>> round(interval([1.0, 2.0, 3.0]).half_width, 2)
    2.48
  """
  x = np.array(list(values), float)
  if len(x) < 2:
    return Interval(len(x), float(x[0]) if len(x) else math.nan, math.nan)
  error = x.std(ddof=1) / len(x) ** 0.5
  half = stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 1) * error
  return Interval(len(x), float(x.mean()), float(half))


def find(patterns: Sequence[str]) -> list[str]:
  """Lists the folders that patterns name, without repetition.

  A folder that is no run, but has runs in it, stands for these.

  Args:
    patterns: Folders, which may be in a bucket, or patterns of local ones.

  Example:
    >>> for name in ("runs/a", "runs/b"):
    ...   (tmp_path / name).mkdir(parents=True)
    ...   _ = (tmp_path / name / "config.json").write_text("{}")
    >>> found = find([f"{tmp_path}/runs", f"{tmp_path}/runs/b", "none"])
    >>> [pathlib.Path(x).name for x in found]
    ['a', 'b', 'none']
  """
  found: list[str] = []
  for pattern in patterns:
    if files.remote.is_remote(pattern) or os.path.isdir(pattern):
      places = [pattern]
    else:  # a pattern without a match is named later as a missing run
      places = sorted(glob.glob(pattern)) or [pattern]
    for place in places:
      found += _runs_in(place)
  return list(dict.fromkeys(x.rstrip("/") for x in found))


def _runs_in(place: str) -> list[str]:
  folder = pathlib.Path(place)
  if files.remote.is_remote(place) or (folder / records.CONFIG).exists():
    return [place]
  inside = sorted(x.parent for x in folder.glob(f"*/{records.CONFIG}"))
  return [os.fspath(x) for x in inside] or [place]


def open_run(folder: str) -> Run:
  """Reads what a workdir says of its run.

  Args:
    folder: The workdir, also in a bucket.

  Raises:
    ValueError: If it holds no run, or a file is damaged.
  """
  names = (records.CONFIG, records.METRICS, records.HISTORY, records.TIMES)
  names += (extend.EXTENDED,)
  with files.remote.local_folder(
    folder, choose=lambda every: [x for x in every if x in names]
  ) as workdir:
    recorded = records.read_config(workdir)
    finished = (workdir / records.METRICS).exists()
    return Run(
      folder,
      distributed.flatten(recorded),
      records.read_metrics(workdir) if finished else None,
      records.read_history(workdir),
      records.read_history(workdir, records.TIMES),
      files.read_json_lines(workdir / extend.EXTENDED),
    )


def open_all(patterns: Sequence[str]) -> Found:
  """Opens runs, and groups them by what their configs say.

  Args:
    patterns: What `find` takes.

  Returns:
    The settings, in the order of their first runs, and notes: which folders
    were left out, which runs have not finished or were extended, and which data
    differ.

  Raises:
    ValueError: If there is no run at all.
  """
  runs, notes = [], []
  for folder in find(patterns):
    try:
      runs.append(open_run(folder))
    except (OSError, ValueError) as error:
      notes.append(f"left out {folder}: {progress.first_line(error)}")
  if not runs:
    raise ValueError(
      "; ".join(notes) or "no runs are named, such as nuclr compare runs/*"
    )
  settings, twice = _grouped(runs)
  notes += twice
  notes += [
    f"{run.name} has not finished: it is at step {run.step:,}"
    for run in runs
    if run.final is None
  ]
  notes += [_planned_anew(run) for run in runs if run.extended]
  return Found(settings, notes + _other_data(settings))


def _planned_anew(run: Run) -> str:
  """Notes that the schedules of a run were planned more than once."""
  return (
    f"{run.name}: {' '.join(map(extend.in_words, run.extended))} Schedules "
    "that end with the run, such as a cosine, were planned anew there, so it "
    "may differ from a run of one plan"
  )


def _in_common(run: Run) -> str:
  """Returns what two runs of one setting share, as a text."""
  return repr(sorted((k, x) for k, x in run.config.items() if k not in FREE))


def _grouped(runs: Sequence[Run]) -> tuple[list[Setting], list[str]]:
  """Groups runs by config; names those that repeat a seed."""
  groups: dict[str, dict[int, Run]] = {}
  notes = []
  for run in runs:
    group = groups.setdefault(_in_common(run), {})
    if run.seed in group:
      first = group[run.seed].name
      notes.append(f"left out {run.name}: the config and seed of {first}")
    group.setdefault(run.seed, run)
  settings = [Setting("", x) for x in groups.values()]
  labels = _labels([x.config for x in settings])
  return [
    x._replace(label=label) for x, label in zip(settings, labels, strict=True)
  ], notes


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns the keys whose values differ, but for the seed and free ones.

  Args:
    configs: Flat configs.

  Example:
    >>> differing([{"seed": 0, "a/b": 1}, {"seed": 1, "a/b": 2, "c": 3}])
    ['a/b', 'c']
  """
  keys = dict.fromkeys(itertools.chain(*configs))
  return [
    key
    for key in keys
    if key not in FREE and len({repr(x.get(key, ABSENT)) for x in configs}) > 1
  ]


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
  """Names settings by what differs: the objective, then values of keys.

  Of the objective's own keys, only those count that differ between settings of
  the same objective: others come with its name.
  """
  names = [str(x.get(OBJECTIVE, ABSENT)) for x in configs]
  every = [x for x in differing(configs) if not x.startswith("objective/")]
  labels = []
  for config, name in zip(configs, names, strict=True):
    same = [x for x, y in zip(configs, names, strict=True) if y == name]
    own = [x for x in differing(same) if x.startswith("objective/")]
    words = [name] + [
      f"{key.replace('/', '.')}={config.get(key, ABSENT)}"
      for key in dict.fromkeys(own + every)
    ]
    labels.append(" ".join(words))
  return labels


def _other_data(settings: Sequence[Setting]) -> list[str]:
  """Notes what differs in the data of settings."""
  first, notes = settings[0], []
  for other in settings[1:]:
    keys = [
      f"{key.replace('/', '.')} is {other.config.get(key, ABSENT)}, "
      f"{first.config.get(key, ABSENT)} in {first.label}"
      for key in differing([first.config, other.config])
      if key.startswith(DATA)
    ]
    if keys:
      notes.append(
        f"{other.label} has other data: {'; '.join(keys)}. Scores of one name "
        "may be of other sets"
      )
  return notes


def compare(
  settings: Sequence[Setting], value_of: Callable[[Run], float | None]
) -> list[Line]:
  """Compares a number of all runs with that of the first setting.

  Args:
    settings: The settings.
    value_of: Returns a run's number, or None if it has none.

  Returns:
    A line for each setting; differences are means over the seeds that both
    settings have.
  """
  by_seed = [
    {
      seed: x
      for seed, run in s.runs.items()
      if (x := value_of(run)) is not None
    }
    for s in settings
  ]
  first, lines = by_seed[0], []
  for i, (setting, values) in enumerate(zip(settings, by_seed, strict=True)):
    common = [seed for seed in values if seed in first]
    gains = interval(values[seed] - first[seed] for seed in common)
    score = interval(values.values())
    lines.append(Line(setting.label, score, gains if i else None))
  return lines


def final(name: str) -> Callable[[Run], float | None]:
  """Returns what reads a final score of a run."""
  return lambda run: None if run.final is None else run.final.get(name)


def at_step(name: str, step: int) -> Callable[[Run], float | None]:
  """Returns what reads a score of a step from a run's history."""

  def value(run: Run) -> float | None:
    found = [x[name] for x in run.history if x["step"] == step and name in x]
    return found[-1] if found else None

  return value


def final_names(settings: Sequence[Setting]) -> list[str]:
  """Returns the names of all final metrics, in their order."""
  runs = (run for x in settings for run in x.runs.values())
  return list(dict.fromkeys(k for run in runs for k in run.final or ()))


def last_common(settings: Sequence[Setting]) -> tuple[int, list[str]] | None:
  """Returns the last step at which all runs were scored, and the scores."""
  scored: list[dict[int, set[str]]] = [
    {
      row["step"]: {x for x in row if x.startswith("validation/")}
      for row in run.history
    }
    for x in settings
    for run in x.runs.values()
  ]
  for step in sorted(set.intersection(*map(set, scored)), reverse=True):
    names = set.intersection(*(x[step] for x in scored))
    if chosen := records.headlines(sorted(names)):
      return int(step), chosen
  return None


def hours(run: Run) -> dict[int, float]:
  """Returns the hours from the beginning to each step of a run's times.

  Compiling is left out, since speed is measured from the second line of a
  process on. The first line of a process that resumed the run takes the next
  speed that is known, or else the last one.
  """

  def filled(speeds):
    return itertools.accumulate(
      speeds, lambda last, x: last if x is None else x
    )

  speeds = [row.get("pairs_per_second") for row in run.times]
  speeds = filled([*filled(speeds[::-1])][::-1])
  total, last, found = 0.0, None, {}
  for row, now in zip(run.times, speeds, strict=True):
    if last is not None and now is not None:
      pairs = (row["step"] - last) * run.config["batch_size"]
      besides = row.get("share/evaluation", 0.0) + row.get("share/saving", 0.0)
      seconds = pairs / max(now, 1e-9)
      total += seconds / max(1 - besides, 1e-9) / 3600
    last = row["step"]
    found[int(row["step"])] = total
  return found


def speed(run: Run) -> float | None:
  """Returns the median of a run's pairs per second; None if it has none."""
  found = [x["pairs_per_second"] for x in run.times if "pairs_per_second" in x]
  return float(np.median(found)) if found else None
