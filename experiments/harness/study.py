"""What a study consists of, as plain values and pure functions."""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
import pathlib
from typing import Any, NamedTuple

from matplotlib.figure import Figure

Key = tuple[str, str, int]  # part, setting and seed of a run
Row = Mapping[str, Any]  # of JSON values, under the names of its columns


class Run(NamedTuple):
  """One run of a study, which gives one row.

  Its values are in the study's own words, not in the keys of a config: the
  study translates them in one place, so that keys can be renamed while rows
  that were measured before stay valid.
  """

  part: str  # of the study, such as "digits/table 1"
  setting: str
  seed: int
  values: tuple[tuple[str, Any], ...] = ()  # what else decides the row
  alone: bool = False  # a measurement of time, with all cores to itself

  @property
  def key(self) -> Key:
    """The run's identity within the study."""
    return self.part, self.setting, self.seed

  @property
  def name(self) -> str:
    """The run in messages, and what `--only` is compared with."""
    return f"{self.part}: {self.setting}, seed {self.seed}"


def fingerprint(run: Run) -> str:
  """Hashes the values of a run, so that rows of other values are noticed.

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
  seeds: int  # how many
  smoke: bool = False
  workers: int = 2
  only: str | None = None  # a regular expression for `Run.name`
  tables: bool = False  # no runs
  configs: bool = False  # store today's configs
  data: tuple[str, ...] = ()  # names of data sets
  data_dir: str | None = None  # folder of prepared data sets


class Place(NamedTuple):
  """Where a run finds its data and leaves its files."""

  folder: pathlib.Path  # its own; removed once its row is written
  shared: pathlib.Path  # of all runs of the study; kept
  data_dir: str | None = None


class Results(NamedTuple):
  """What has been measured so far."""

  rows: Mapping[Key, Row]  # of runs of the plan, in its order
  earlier: Sequence[Row] = ()  # of runs that the plan does not have any more
  commands: Sequence[Row] = ()  # a record of each command that ran something
  planned: int = 0  # runs of the whole plan, as far as it is known


class Study(NamedTuple):
  """A study.

  `plan(options, rows)` returns the runs that are decided by now. It is called
  again with every new row, so that a study may choose its next runs by the
  results of the first. `measure(run, place)` is called in a worker process and
  returns the columns of the run's row. `tables(options, results)` returns
  Markdown by the marks of README.md, `figures(options, results)` figures by
  their file names. `configs(options)` returns the configs of typical runs,
  which are stored beside the rows; they must not change while the study goes
  on.
  """

  home: pathlib.Path  # folder of the study
  doc: str  # what the study does, in one line
  plan: Callable[[Options, Mapping[Key, Row]], Sequence[Run]]
  measure: Callable[[Run, Place], Row]
  tables: Callable[[Options, Results], Mapping[str, str]]
  figures: Callable[[Options, Results], Mapping[str, Figure]]
  seeds: int  # by default
  describe: Callable[[Row], str] = lambda row: ""  # a row, for progress lines
  configs: Callable[[Options], Mapping[str, Mapping[str, Any]]] | None = None
  data: tuple[str, ...] = ()  # data sets of its README, if they can be chosen
  known_data: tuple[str, ...] = ()  # all that can be chosen
