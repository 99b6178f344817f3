"""Runs of configs/labelled.py with several seeds, each a line of a file.

A run is known by its place in the study and its config: those whose line is
there are not run again, so that a study can be interrupted and goes on.
"""

import ast
from collections.abc import Mapping, Sequence
from concurrent import futures
import functools
import hashlib
import json
import pathlib
import runpy
import tempfile
import time
from typing import Any, NamedTuple

from nuclr_jax import host, records

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Run(NamedTuple):
  """One run."""

  part: str  # of the study
  setting: str
  seed: int
  argument: str  # of configs/labelled.py
  changes: tuple[tuple[str, Any], ...]  # of its config, by dotted names

  @property
  def key(self) -> tuple[str, str, int]:
    """What tells runs of a study apart."""
    return self.part, self.setting, self.seed


@functools.cache  # so that a process uses the file as it was at first
def get_config():
  """`configs/labelled.py`'s `get_config`."""
  return runpy.run_path(str(ROOT / "configs" / "labelled.py"))["get_config"]


def make_config(run: Run):
  """The config of a run."""
  config = get_config()(run.argument)
  with config.unlocked():
    config.update_from_flattened_dict(dict(run.changes) | {"seed": run.seed})
    config.checkpoint_every = 0
  return config


def held_out(data: str, at_hand: Sequence[str]) -> dict[str, str]:
  """What of a config gives a data set that has no validation split one."""
  if data in at_hand:
    return {}
  return {
    "data.train": f"{data}:train[10%:]",
    "data.validation": f"{data}:train[:10%]",
  }


def small(data: str) -> dict[str, Any]:
  """What of a config makes a run on a data set short, whatever its encoder."""
  encoder = get_config()(data).model.encoder.name
  key = "model.encoder"
  return {
    "convnet": {},
    "vgg16": {f"{key}.stages": ((8, 1),) * 5},
    "resnet50": {f"{key}.stages": (1, 1), f"{key}.width": 8, "data.size": 48},
  }[encoder] | {"data.per_class": 60}


def fingerprint(run: Run, data_dir: str | None = None) -> str:
  """Tells configs, and folders of prepared data sets, apart."""
  known = make_config(run).to_dict()
  if data_dir is not None:
    known["data_dir"] = str(pathlib.Path(data_dir).absolute())
  text = json.dumps(known, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


@functools.lru_cache(maxsize=4)  # reading takes seconds
def load_data(spec: str, data_dir: str | None):
  """The data of `config.data`, given as Python would print it."""
  from nuclr_jax import experiment

  return experiment.load_data(ast.literal_eval(spec), data_dir=data_dir)


def execute(run: Run, data_dir: str | None = None) -> dict[str, Any]:
  """Trains and evaluates; returns the line."""
  import jax

  from nuclr_jax import experiment, train

  start, config = time.monotonic(), make_config(run)
  data = load_data(repr(config.data.to_dict()), data_dir)
  parts = experiment.build(config, data=data)
  with tempfile.TemporaryDirectory() as folder:
    result = train.fit(config, folder, parts=parts)
    history = records.read_history(pathlib.Path(folder))
  return {
    "part": run.part,
    "setting": run.setting,
    "seed": run.seed,
    "config": fingerprint(run, data_dir),
    "metrics": result.metrics,
    "curve": [x for x in history if any("/" in name for name in x)],
    "seconds": round(time.monotonic() - start, 1),
    "jax": jax.__version__,
  }


def complete(
  runs: Sequence[Run],
  path: pathlib.Path,
  *,
  workers: int,
  data_dir: str | None = None,
) -> list[dict[str, Any]]:
  """The lines of all runs, in their order; what is missing is run first.

  Args:
    runs: With different keys.
    path: The file.
    workers: Processes that share the cores.
    data_dir: Folder of prepared data sets.

  Raises:
    RuntimeError: If a run failed, which ends the others; lines of those that
      are done are kept.
  """
  lines = records.read_lines(path)
  found = {(*line_key(x), x["config"]): x for x in lines}
  wanted = {run: (*run.key, fingerprint(run, data_dir)) for run in runs}
  left = [run for run, key in wanted.items() if key not in found]
  began, failed = time.monotonic(), []
  if left:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without what a crash cut off.
    text = "".join(json.dumps(line) + "\n" for line in lines)
    records.write_atomically(path, text)
    with (
      tempfile.TemporaryDirectory() as compiled,
      host.worker_pool(workers, compiled=compiled) as pool,
      path.open("a", encoding="utf-8") as file,
    ):
      running = {pool.submit(execute, run, data_dir): run for run in left}
      for number, future in enumerate(futures.as_completed(running), 1):
        run = running[future]
        took = time.monotonic() - began
        eta = took / number * (len(left) - number)
        if future.cancelled():
          continue
        if error := future.exception():
          pool.shutdown(wait=False, cancel_futures=True)
          failed.append((run, error))
          continue
        found[wanted[run]] = line = future.result()
        file.write(json.dumps(line) + "\n")
        file.flush()
        name = " ".join(map(str, run.key))
        say(
          f"{number} of {len(left)}: {name} in {line['seconds']:.0f} s; "
          f"ETA {eta / 60:.0f} min"
        )
  for run, error in failed:
    raise RuntimeError(f"{run.key} failed: {error!r}") from error
  return [found[key] for key in wanted.values()]


def line_key(line: dict[str, Any]) -> tuple[str, str, int]:
  """`Run.key` of a line."""
  return line["part"], line["setting"], line["seed"]


def plan(
  part: str,
  settings: Mapping[str, tuple[str, Mapping[str, Any]]],
  seeds: int,
  common: Mapping[str, Any],
) -> list[Run]:
  """Runs of a part: every setting with seeds 0, 1, ...

  Args:
    part: Of the study.
    settings: By name, the config's argument and what differs from `common`.
    seeds: How many.
    common: What of the config all of them change.
  """
  return [
    Run(part, name, seed, argument, tuple({**common, **changes}.items()))
    for name, (argument, changes) in settings.items()
    for seed in range(seeds)
  ]


def say(message: str) -> None:
  """Prints a line of progress with the time."""
  print(time.strftime("%H:%M:%S"), message, flush=True)
