"""Runs the study, or what is left of it: one row of runs.csv for each run.

python experiments/bimodal/run.py [--workers=2] [--data_dir=...]

Finished runs are in runs.csv and are not run again; interrupt it at any time.
Each worker is a process with its share of the cores; on a GPU take one worker.
"""

import argparse
from concurrent import futures
import csv
import io
import multiprocessing
import os
import pathlib
import runpy
import shutil
import subprocess
import time

import study

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNS, CURVES = HERE / "runs.csv", HERE / "curves.csv"
KEY = ("algorithm", "variant", "batch_size", "seed")
NUM_EXACT = 4096  # pairs whose exact popularity is computed


def make_config(run: study.Run):
  """The config of a run: configs/glyphs.py with a tower of a minute."""
  algorithm = study.ALGORITHMS[run.algorithm]
  get_config = runpy.run_path(str(ROOT / "configs" / "glyphs.py"))["get_config"]
  config = get_config(algorithm.config)
  config.update_from_flattened_dict(
    {
      "model.text_layers": 0,
      "model.image_features": 256,
      # Below the norm of every loss, so that losses of any scale train alike.
      "optimizer.clip_norm": 0.1,
      "batch_size": run.batch_size,
      "num_epochs": float(study.NUM_EPOCHS),
      "seed": run.seed,
      "eval_every": 0,
      "checkpoint_every": 0,
    }
  )
  with config.unlocked():  # some settings are not in the config's defaults
    config.update_from_flattened_dict(dict(run.settings))
  # The same rule for everyone: the rate grows with the root of the batch.
  rate = config.optimizer.learning_rate
  rate.value = float(rate.value * (run.batch_size / study.BATCH_SIZE) ** 0.5)
  return config


def execute(run: study.Run, data_dir: str | None, workdir: str):
  """Trains and evaluates; returns the row and the curve, None if stopped."""
  import jax

  from nuclr_jax import experiment, host, records, train

  host.keep_memory()
  start = time.monotonic()
  config = make_config(run)
  parts = experiment.build(config, data_dir=data_dir)
  steps_per_epoch = round(parts.num_steps / config.num_epochs)
  parts = parts._replace(config=parts.config | {"eval_every": steps_per_epoch})
  folder = pathlib.Path(workdir, "_".join(map(str, run.key)).replace(" ", "_"))
  row = dict(zip(KEY, run.key, strict=True))
  row |= {
    "temperature": config.objective.get("temperature", ""),
    "num_epochs": config.num_epochs,
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
  }
  curve = []
  try:
    result = train.fit(config, folder, data_dir=data_dir, parts=parts)
    if not result.finished:
      return None
    row |= result.metrics
    row |= exact_correlations(parts, result.train_state)
    curve = [
      {"epoch": line["step"] / steps_per_epoch, study.CRITERION: value}
      for line in records.read_history(folder)
      if (value := line.get(study.CRITERION)) is not None
    ]
  except FloatingPointError as error:
    row["diverged"] = str(error)
  row["seconds"] = round(time.monotonic() - start, 1)
  shutil.rmtree(folder)
  return row, curve


def exact_correlations(parts, train_state) -> dict[str, float]:
  """How well the learned zeta of some training pairs agree with exact ones."""
  spec = parts.config["objective"]
  if spec["name"] != "nuclr" or "temperature_learning_rate" in spec:
    return {}  # individual temperatures have no Sinkhorn form
  import exact
  import numpy as np

  from nuclr_jax import Pairs, Sides
  from nuclr_jax.types import each

  ids = np.random.default_rng(0).choice(
    parts.data.train.sizes.num_pairs, NUM_EXACT, replace=False
  )
  batch = parts.data.train.fetch(np.sort(ids))
  embeddings, _ = parts.model.apply(
    train_state.params["model"],
    train_state.model_state,
    batch,
    key=None,
    train=False,
  )
  pairs = Pairs(*embeddings)
  zeta, residual = exact.solve(pairs, temperature=spec["temperature"])
  sample = train_state.objective.sample
  tables = Sides(sample.image.zeta, sample.text.zeta)
  learned = each(lambda table, i: np.asarray(table)[i], tables, pairs.ids)
  found = exact.correlations(learned, zeta, pairs.ids)
  return found | {"exact/residual": float(residual)}


def read(path: pathlib.Path) -> list[dict[str, str]]:
  """The rows of a table; none if it is not there yet."""
  if not path.exists():
    return []
  with path.open(newline="") as file:
    return list(csv.DictReader(file))


def write(path: pathlib.Path, rows: list[dict]) -> None:
  """Writes a table that is never seen half written."""
  from nuclr_jax import records

  columns = list(dict.fromkeys(key for row in rows for key in row))
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  records.write_atomically(path, text.getvalue())


def key_of(row: dict) -> tuple[str, str, int, int]:
  """The `Run.key` of a row of either table."""
  algorithm, variant, batch_size, seed = (row[name] for name in KEY)
  return algorithm, variant, int(batch_size), int(seed)


def index(rows: list[dict]) -> study.Results:
  """Rows by `Run.key`."""
  return {key_of(row): row for row in rows}


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


def parse_arguments() -> argparse.Namespace:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--workers", type=int, default=2, help="runs at a time")
  parser.add_argument("--data_dir", help="folder of prepared data")
  parser.add_argument(
    "--workdir",
    default=str(ROOT / "runs" / "bimodal"),
    help="folder of unfinished runs",
  )
  parser.add_argument("--limit", type=int, help="stop after so many runs")
  return parser.parse_args()


def main(options: argparse.Namespace) -> None:
  """Runs what is missing, in as many processes as there are workers."""
  cores = len(os.sched_getaffinity(0))
  os.environ["NPROC"] = str(max(1, cores // options.workers))  # XLA's threads
  rows, curves, version = read(RUNS), read(CURVES), commit()
  done, began = 0, time.monotonic()
  pool = futures.ProcessPoolExecutor(
    options.workers, mp_context=multiprocessing.get_context("spawn")
  )
  running: dict[futures.Future, study.Run] = {}
  try:
    while True:
      results = index(rows)
      busy = set(running.values())
      left = [
        run
        for run in study.plan(results)
        if run.key not in results and run not in busy
      ]
      started = done + len(running)
      room = options.workers - len(running)
      if options.limit is not None:
        room = min(room, options.limit - started)
      for run in left[: max(room, 0)]:
        future = pool.submit(execute, run, options.data_dir, options.workdir)
        running[future] = run
      if not running:
        break
      finished, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
      for future in finished:
        run, outcome = running.pop(future), future.result()
        if outcome is None:
          raise KeyboardInterrupt
        row, curve = outcome
        key = dict(zip(KEY, run.key, strict=True))
        rows.append(row | {"commit": version})
        curves += [key | point for point in curve]
        write(CURVES, curves)
        write(RUNS, rows)
        done += 1
        pace = (time.monotonic() - began) / done
        say(progress(run, row, count(index(rows)), pace))
  except KeyboardInterrupt:
    say("stopped; the same command goes on")
    pool.shutdown(cancel_futures=True)
    return
  pool.shutdown()
  say(f"{RUNS} has {len(rows)} runs")


if __name__ == "__main__":
  main(parse_arguments())
