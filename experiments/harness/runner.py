"""Runs what a study lacks, in worker processes, and appends row by row."""

from collections.abc import Iterator
from concurrent import futures
import contextlib
import fcntl
import io
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import jax

from experiments.harness import benchmark, rows
from experiments.harness.study import (
  Key,
  Options,
  Place,
  Results,
  Row,
  Run,
  Study,
  fingerprint,
)
from nuclr_jax.lab import distributed, files, progress
from nuclr_jax.lab.cli import malloc
from nuclr_jax.lab.config import DEFAULTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ("nuclr_jax", "configs", ":(glob)experiments/**/*.py")
CONFIGS = "configs.json"


def results(study: Study, options: Options) -> Results:
  """Reads what has been measured so far.

  Raises:
    ValueError: If rows are damaged or were measured with other values.
  """
  stored = rows.read(options.output / rows.FILE)
  by_key = rows.index(stored)
  plan = study.plan(options, by_key)
  check_rows(plan, by_key, options.output / rows.FILE)
  planned = {run.key: by_key[run.key] for run in plan if run.key in by_key}
  return Results(
    rows=planned,
    earlier=[row for key, row in by_key.items() if key not in planned],
    commands=rows.commands(stored),
    planned=size(study, options, by_key),
  )


def check_rows(plan, by_key, path: pathlib.Path) -> None:
  """Raises `ValueError` if rows of the plan have other values than it has."""
  changed = [
    run.name
    for run in plan
    if run.key in by_key and by_key[run.key]["fingerprint"] != fingerprint(run)
  ]
  if changed:
    raise ValueError(
      f"{path} has {len(changed)} rows of runs with other values than the plan "
      f"has now, such as {changed[0]}: move those rows away to run them again, "
      "or go back to the plan that they belong to"
    )


def check_only(plan, by_key, only: str | None) -> None:
  """Says how many runs of the plan a pattern chooses, and how many are done.

  Raises:
    ValueError: If it is no pattern, or chooses no run.
  """
  if only is None:
    return
  try:
    chosen = [run for run in plan if re.search(only, run.name)]
  except re.error as error:
    raise ValueError(
      f"--only={only} is not a regular expression: {error}"
    ) from error
  if not chosen:
    examples = {run.part: run.name for run in reversed(plan)}
    raise ValueError(
      f"--only={only} matches none of the {len(plan)} runs that are planned by "
      "now; a pattern is searched for in names such as "
      + " | ".join(reversed(examples.values()))
    )
  done = sum(run.key in by_key for run in chosen)
  say(f"--only chooses {len(chosen)} of the runs planned by now; {done} done")


def size(study: Study, options: Options, by_key: dict[Key, Row]) -> int:
  """Estimates how many runs the whole plan has.

  Runs that are not done yet are taken as done without a score, so that the
  plan goes on to the runs that depend on them. The real scores may choose runs
  that coincide with others, so the number is only approximate.
  """
  by_key = dict(by_key)
  while True:
    plan = study.plan(options, by_key)
    missing = [run.key for run in plan if run.key not in by_key]
    if not missing:
      return len(plan)
    by_key |= {key: {} for key in missing}


def snapshot(study: Study, options: Options) -> dict[str, Row]:
  """Returns the study's configs: what all share, then how each differs."""
  configs = {
    name: json.loads(json.dumps(config))
    for name, config in study.configs(options).items()
  }
  first = next(iter(configs.values()))
  common = {
    key: value
    for key, value in first.items()
    if all(key in x and x[key] == value for x in configs.values())
  }
  rest = {
    name: {key: x for key, x in config.items() if key not in common}
    for name, config in configs.items()
  }
  return {"all": common} | rest


def check_configs(study: Study, options: Options) -> None:
  """Compares the study's configs with those that its rows were measured with.

  Raises:
    ValueError: If they differ.
  """
  if study.configs is None:
    return
  path, today = options.output / CONFIGS, snapshot(study, options)
  if options.configs or not path.exists():
    text = json.dumps(today, indent=1, ensure_ascii=False)
    # Puts each list of a config on one line.
    text = re.sub(
      r"\[\s*([^][{}]*?)\s*\]", lambda x: f"[{' '.join(x[1].split())}]", text
    )
    files.write_atomically(path, text + "\n")
    return
  stored = json.loads(path.read_text(encoding="utf-8"))
  # Keys that configs did not have then change nothing if they are the default.
  for key in (today["all"].keys() - stored["all"].keys()) & DEFAULTS.keys():
    if today["all"][key] == json.loads(json.dumps(DEFAULTS[key], default=str)):
      del today["all"][key]
  differences = distributed.differences(stored, today)
  if differences:
    raise ValueError(
      f"the configs differ from {path}: {'; '.join(differences[:5])}"
      f"{' ...' if len(differences) > 5 else ''}. Go back to those configs; or "
      "if only names have changed, store the current ones with --configs; or "
      "move the folder's rows and configs away to run everything again"
    )


def execute(measure, run: Run, place: Place) -> Row:
  """Measures one run in a worker process and returns its row."""
  began = time.monotonic()
  place.folder.mkdir(parents=True, exist_ok=True)
  row = {
    "part": run.part,
    "setting": run.setting,
    "seed": run.seed,
    "fingerprint": fingerprint(run),
    **measure(run, place),
  }
  seconds = round(time.monotonic() - began, 1)
  return row | {"seconds": seconds, "jax": jax.__version__}


def complete(study: Study, options: Options) -> None:
  """Runs what is missing; each row is written as soon as it is done.

  Raises:
    ValueError: If stored rows or configs do not fit the study, or another
      command is writing in the folder.
    RuntimeError: If runs failed; the rows of all other runs are kept.
    KeyboardInterrupt: If a signal stopped it; the same command continues.
  """
  path = options.output / rows.FILE
  path.parent.mkdir(parents=True, exist_ok=True)
  with _locked(path) as file:
    rows.cut_torn_line(file)
    stored = rows.read(path)
    by_key = rows.index(stored)
    check_rows(study.plan(options, by_key), by_key, path)
    check_configs(study, options)
    check_only(study.plan(options, by_key), by_key, options.only)
    began, before, failed = time.monotonic(), len(by_key), {}
    try:
      for alone in (False, True):
        failed |= _run_all(study, options, by_key, alone=alone)
    finally:
      if done := len(by_key) - before:
        record = {
          "part": rows.COMMAND,
          "setting": options.only or "all",
          "seed": 0,
          "runs": done,
          "workers": options.workers,
          "seconds": round(time.monotonic() - began, 1),
        }
        rows.append(path, record | benchmark.versions())
  if failed:
    (run, error), *_ = failed.items()
    raise RuntimeError(
      f"{len(failed)} runs failed, such as {run.name}: {error!r}; the same "
      "command runs them again"
    ) from error


def run_here(study: Study, options: Options) -> Results:
  """Runs a whole study in this process and stores nothing, for notebooks."""
  by_key: dict[Key, Row] = {}
  show = progress.reporter("runs", size(study, options, by_key))
  with tempfile.TemporaryDirectory() as folder:
    options = options._replace(workdir=pathlib.Path(folder))
    while missing := [
      run for run in study.plan(options, by_key) if run.key not in by_key
    ]:
      row = execute(study.measure, missing[0], place_of(missing[0], options))
      by_key[missing[0].key] = json.loads(rows.as_line(row))
      show(len(by_key))
  return Results(rows=by_key, planned=len(by_key))


def _run_all(
  study: Study,
  options: Options,
  by_key: dict[Key, Row],
  *,
  alone: bool,
) -> dict[Run, Exception]:
  """Runs what is missing of one kind; returns the runs that failed.

  Args:
    study: The study.
    options: The command line.
    by_key: All rows so far; new rows are added to it.
    alone: Whether to run the measurements of time, one after another, or all
      other runs.
  """
  malloc.keep_memory()  # of the workers
  running: dict[futures.Future, Run] = {}
  failed: dict[Run, Exception] = {}
  version, began, done = commit(), time.monotonic(), 0
  workers = 1 if alone else options.workers

  def next_runs() -> list[Run]:
    busy = {*running.values(), *failed}
    missing = [
      run
      for run in study.plan(options, by_key)
      if run.key not in by_key and run not in busy
    ]
    missing = [run for run in missing if run.alone == alone]
    if options.only:
      missing = [run for run in missing if re.search(options.only, run.name)]
    return missing[: workers - len(running)]

  def report(row: Row, run: Run) -> None:
    total = size(study, options, by_key)
    have = sum(run.key in by_key for run in study.plan(options, by_key))
    pace = (time.monotonic() - began) / done
    words = [run.name, study.describe(row), f"{row['seconds']:.0f} s"]
    if not options.only:
      words.append(f"ETA {progress.duration(pace * (total - have))}")
    say(f"{have} of {total}  {'  '.join(filter(None, words))}")

  if not next_runs():
    return {}
  with (
    _compiled() as compiled,
    distributed.worker_pool(workers, compiled=compiled) as pool,
  ):
    try:
      while True:
        for run in next_runs():
          place = place_of(run, options)
          running[pool.submit(execute, study.measure, run, place)] = run
        if not running:
          return failed
        finished, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
        for future in [x for x in running if x in finished]:
          run = running.pop(future)
          if isinstance(error := future.exception(), Exception):
            failed[run] = error
            say(f"{run.name} failed: {error!r}")
            continue
          row = future.result() | ({"commit": version} if version else {})
          by_key[run.key] = row
          rows.append(options.output / rows.FILE, row)
          shutil.rmtree(place_of(run, options).folder, ignore_errors=True)
          done += 1
          report(row, run)
    except KeyboardInterrupt:
      say("stopping; the same command continues")
      for worker in multiprocessing.active_children():
        worker.terminate()  # `fit` saves first
      pool.shutdown(cancel_futures=True)
      raise


def place_of(run: Run, options: Options) -> Place:
  """Returns the folders of a run."""
  name = re.sub(r"[^\w.=+-]+", "_", f"{run.part}_{run.setting}")
  folder = f"{name[:80]}_{fingerprint(run)}_{run.seed}"
  shared = options.workdir / "shared"
  return Place(options.workdir / folder, shared, options.data_dir)


def commit() -> str:
  """Returns the commit of the code, with a plus if files differ from it."""

  def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()

  if shutil.which("git") is None:
    return ""
  changed = git("status", "--porcelain", "--", *CODE)
  return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def say(message: str) -> None:
  """Prints a line of progress with the time."""
  print(time.strftime("%H:%M:%S"), message, flush=True)


@contextlib.contextmanager
def _compiled() -> Iterator[str]:
  """Yields the folder in which workers share compiled programs."""
  if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    yield folder
    return
  with tempfile.TemporaryDirectory() as folder:
    yield folder


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[io.TextIOBase]:
  """Opens and locks a file for appending; raises if it is locked already."""
  with path.open("a", encoding="utf-8") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ValueError(
        f"another command is writing {path}; stop it first"
      ) from error
    yield file
