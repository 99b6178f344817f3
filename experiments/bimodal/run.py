"""Runs the study, or what is left of it: one row of runs.csv for each run.

python experiments/bimodal/run.py [--workers=2] [--data_dir=...]

Finished runs are in runs.csv and are not run again; interrupt it at any time.
Each worker is a process with its share of the cores; on a GPU take one worker.
"""

import argparse
from concurrent import futures
import fcntl
import multiprocessing
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import study
import tables
import training

from nuclr_jax import host, records

ROOT = pathlib.Path(__file__).resolve().parents[2]


def count(results: study.Results) -> int:
  """How many runs of the study are done."""
  return sum(run.key in results for run in study.plan(results))


def commit() -> str:
  """The commit that is run, with a plus if files differ from it."""

  def git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()

  code = ("nuclr_jax", "configs", "experiments/bimodal/*.py")
  dirty = git("status", "--porcelain", "--", *code)
  return git("rev-parse", "--short", "HEAD") + ("+" if dirty else "")


def say(message: str) -> None:
  """Prints a line of progress with the time."""
  print(time.strftime("%H:%M:%S"), message, flush=True)


def progress(run: study.Run, row: dict, done: int, pace: float) -> str:
  """A finished run in words, and when the study will be.

  Args:
    run: The run.
    row: Its row.
    done: Runs of the study that are done.
    pace: Seconds a run, all workers together.
  """
  size = study.size()
  result = row.get("diverged") or (
    f"validation {100 * row[study.CRITERION]:.1f} "
    f"test {100 * row['test/mean_recall@1']:.1f}"
  )
  return (
    f"{done} of about {size}: {run.algorithm} {run.variant}, "
    f"batch {run.batch_size}, seed {run.seed}: {result} "
    f"in {row['seconds']:.0f} s; ETA {pace * max(size - done, 0) / 3600:.1f} h"
  )


def check_protocol(results: study.Results) -> None:
  """ValueError for rows of the plan that were run with another config."""
  others = [
    run.key
    for run in study.plan(results)
    if run.key in results
    and results[run.key]["config"] != training.fingerprint(run)
  ]
  if others:
    raise ValueError(
      f"{tables.RUNS} has {len(others)} runs with other configs than study.py "
      f"and configs/glyphs.py give now, such as {others[0]}: move those rows "
      "away, or go back to that config"
    )


def interrupt(*_) -> None:
  """Makes SIGTERM act as Ctrl-C does."""
  raise KeyboardInterrupt


def parse_arguments() -> argparse.Namespace:
  """The command line."""

  def positive(text):
    if int(text) < 1:
      raise ValueError
    return int(text)

  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--workers", type=positive, default=2, help="runs at a time"
  )
  parser.add_argument("--data_dir", help="folder of prepared data")
  parser.add_argument(
    "--workdir",
    default=str(ROOT / "runs" / "bimodal"),
    help="folder of unfinished runs",
  )
  parser.add_argument("--limit", type=positive, help="stop after so many runs")
  return parser.parse_args()


def main(options: argparse.Namespace) -> None:
  """Runs what is missing, in as many processes as there are workers.

  Raises:
    ValueError: If the table is damaged or of another protocol.
    RuntimeError: If runs failed; the others are done.
  """
  rows, curves = tables.read(tables.RUNS), tables.read(tables.CURVES)
  check_protocol(tables.index(rows))
  version, began, done = commit(), time.monotonic(), 0
  running: dict[futures.Future, study.Run] = {}
  failed: dict[study.Run, Exception] = {}

  def next_runs():
    results = tables.index(rows)
    skip = {*running.values(), *failed}
    left = [
      x for x in study.plan(results) if not (x.key in results or x in skip)
    ]
    room = options.workers - len(running)
    if options.limit is not None:
      room = min(room, options.limit - done - len(running) - len(failed))
    return left[: max(room, 0)]

  def record(run, row, curve):
    key = dict(zip(tables.KEY, run.key, strict=True))
    rows.append(row | {"commit": version})
    kept = [x for x in curves if tables.key_of(x) != run.key]
    curves[:] = kept + [key | point for point in curve]
    records.write_table(tables.CURVES, curves)
    records.write_table(tables.RUNS, rows)
    shutil.rmtree(training.folder_of(run, options.workdir))

  with host.worker_pool(options.workers) as pool:
    try:
      while True:
        for run in next_runs():
          arguments = (run, options.data_dir, options.workdir)
          running[pool.submit(training.execute, *arguments)] = run
        if not running:
          break
        finished, _ = futures.wait(running, return_when="FIRST_COMPLETED")
        for future in finished:
          run = running.pop(future)
          if isinstance(error := future.exception(), Exception):
            failed[run] = error
            say(f"{run.key} failed: {error!r}")
            continue
          row, curve = future.result()
          record(run, row, curve)
          done += 1
          pace = (time.monotonic() - began) / done
          say(progress(run, row, count(tables.index(rows)), pace))
    except KeyboardInterrupt:
      say("stopping; the same command goes on")
      for worker in multiprocessing.active_children():
        worker.terminate()  # `fit` saves first
      pool.shutdown(cancel_futures=True)
      raise
  if failed:
    raise RuntimeError(
      f"{len(failed)} runs failed, see above; go on with them "
      "by the same command"
    )
  say(f"{tables.RUNS} has {len(rows)} runs")


if __name__ == "__main__":
  chosen = parse_arguments()
  signal.signal(signal.SIGTERM, interrupt)
  lock = open(__file__)  # held until the process ends
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    sys.exit("run.py: another one is at work; stop it first")
  try:
    main(chosen)
  except (ValueError, RuntimeError) as problem:
    sys.exit(f"run.py: {problem}")
  except KeyboardInterrupt:
    sys.exit(130)
