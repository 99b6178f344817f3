"""The parts of a study, as plain values and pure functions."""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
import pathlib
from typing import Any, NamedTuple

from matplotlib.figure import Figure

Key = tuple[str, str, int]  # part, setting and seed of a run
Row = Mapping[str, Any]  # JSON values, by the names of the columns


class Run(NamedTuple):
  """One run of a study, which gives one row.

  Its values are in the study's own words, not in the keys of a config. The
  study translates them in one place, so that renaming a key does not
  invalidate rows that were measured before.
  """

  part: str  # a part of the study, such as "digits/table 1"
  setting: str
  seed: int
  values: tuple[tuple[str, Any], ...] = ()  # everything else behind the row
  alone: bool = False  # whether it measures time and needs all cores

  @property
  def key(self) -> Key:
    """The run's identity within the study."""
    return self.part, self.setting, self.seed

  @property
  def name(self) -> str:
    """The run's name in messages, and what `--only` is matched against."""
    return f"{self.part}: {self.setting}, seed {self.seed}"


def fingerprint(run: Run) -> str:
  """Hashes the values of a run, to detect rows measured with other values.

  Example:
    >>> run = Run("digits", "large batch", 0, (("batch_size", 512),))
    >>> fingerprint(run) == fingerprint(run._replace(seed=1))
    True
    >>> fingerprint(run) == fingerprint(run._replace(values=()))
    False
  """
  text = json.dumps(dict(run.values), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


class Options(NamedTuple):
  """The command line of a study."""

  output: pathlib.Path  # folder of the rows, tables and figures
  workdir: pathlib.Path  # folder of unfinished runs
  seeds: int  # the number of seeds per setting
  smoke: bool = False
  workers: int = 2
  only: str | None = None  # a regular expression for `Run.name`
  tables: bool = False  # runs nothing
  configs: bool = False  # stores the current configs
  data: tuple[str, ...] = ()  # names of data sets
  data_dir: str | None = None  # folder of prepared data sets


class Place(NamedTuple):
  """Where a run finds its data and leaves its files."""

  folder: pathlib.Path  # of this run; removed once its row is written
  shared: pathlib.Path  # shared by all runs of the study; kept
  data_dir: str | None = None  # folder of prepared data sets


class Results(NamedTuple):
  """What has been measured so far."""

  rows: Mapping[Key, Row]  # rows of planned runs, in the plan's order
  earlier: Sequence[Row] = ()  # rows of runs that are no longer planned
  commands: Sequence[Row] = ()  # a record of each command that ran something
  planned: int = 0  # runs in the whole plan, as far as it is known

  def by_seed(self, part: str, setting: str) -> dict[int, Row]:
    """Returns the rows of a setting, by seed.

    Example:
      >>> rows = {("a", "x", 0): {"score": 1}, ("a", "y", 0): {"score": 2}}
      >>> Results(rows).by_seed("a", "x")
      {0: {'score': 1}}
    """
    return {
      seed: row
      for (of, name, seed), row in self.rows.items()
      if (of, name) == (part, setting)
    }


class Study(NamedTuple):
  """A study.

  `plan(options, rows)` returns the runs that are decided by now. It is called
  again with every new row, so that a study may choose its next runs by the
  results of the first. `measure(run, place)` is called in a worker process,
  which cannot import what a package's `__main__` defines, and returns the
  columns of the run's row. `tables(options, results)` returns
  Markdown by mark of README.md, and `figures(options, results)` returns figures
  by file name. `configs(options)` returns the configs of typical runs, which
  are stored beside the rows and must not change until the study is complete.
  """

  home: pathlib.Path  # folder of the study
  doc: str  # what the study does, in one line
  plan: Callable[[Options, Mapping[Key, Row]], Sequence[Run]]
  measure: Callable[[Run, Place], Row]
  tables: Callable[[Options, Results], Mapping[str, str]]
  figures: Callable[[Options, Results], Mapping[str, Figure]]
  seeds: int  # the default number of seeds per setting
  describe: Callable[[Row], str] = lambda row: ""  # a row, for progress lines
  # Other numbers that pages state, by name; see `experiments.check_numbers`.
  numbers: Callable[[Options, Results], Mapping[str, str]] = (
    lambda options, results: {}
  )
  configs: Callable[[Options], Mapping[str, Mapping[str, Any]]] | None = None
  data: tuple[str, ...] = ()  # data sets of its README, if they can be chosen
  known_data: tuple[str, ...] = ()  # all data sets that can be chosen

  @property
  def name(self) -> str:
    """The study's name in commands: its folder, below experiments/."""
    parts = self.home.parts
    if "experiments" not in parts:
      return self.home.name
    above = len(parts) - parts[::-1].index("experiments")
    return ".".join(parts[above:])
