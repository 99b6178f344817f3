"""Training: the only loop, and loading what it left."""

from collections.abc import Callable, Iterator
import contextlib
import json
import logging
import os
import pathlib
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from nuclr_jax import (
  best,
  checkpoint,
  diagnostics,
  experiment,
  pace,
  processes,
  records,
  restore,
  settings,
  sharding,
)
from nuclr_jax.evaluate import driver
from nuclr_jax.experiment import Experiment
from nuclr_jax.settings import Config
from nuclr_jax.train_state import TrainState, make_train_step
from nuclr_jax.types import Batch, Metrics

log = logging.getLogger(__name__)


class Result(NamedTuple):
  """What `fit` returns."""

  train_state: TrainState
  metrics: Metrics  # as in metrics.json; empty if the run was stopped
  finished: bool


def fit(
  config: Config,
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  parts: Experiment | None = None,
) -> Result:
  """Trains, evaluates and leaves everything in `workdir`.

  Starts again by itself from the newest complete checkpoint there. SIGTERM and
  SIGINT save and return. A finished run leaves `metrics.json` and is not
  trained again.

  Args:
    config: A mapping such as `configs/glyphs.py` makes.
    workdir: Folder of the run; made if missing.
    data_dir: Folder of prepared data sets, see `sources.cache_dir`.
    parts: The parts to use instead of `experiment.build(config)`.

  Returns:
    `Result(train_state, metrics, finished)`.

  Raises:
    ValueError: For a config, workdir, mesh or checkpoint that do not fit.
    FloatingPointError: If the loss is not finite; the message names the step,
      the metric and the last good checkpoint.

  Example:
    >>> result = fit(config, "runs/mine")  # doctest: +SKIP
  """
  config = settings.complete(config)
  workdir = pathlib.Path(workdir)
  mesh = experiment.make_mesh(config)
  processes.check_shared(workdir)
  processes.check_same("config", config)
  fresh = not checkpoint.steps(workdir)
  if not fresh:
    there = settings.complete(records.read_config(workdir))
    records.check_config(workdir, there, config)
  with processes.first_before_others("data and config"):
    parts = _parts(parts, config, data_dir, fresh=fresh)
    records.write_config(workdir, config)
  meta = restore.meta(parts)
  processes.check_same("data set or version", meta)
  manager = checkpoint.open_to_write(
    workdir, max_to_keep=config["max_checkpoints"]
  )
  with (
    jax.set_mesh(mesh),
    contextlib.closing(manager),
    best.keeper(workdir, config["keep_best"], meta) as offer,
  ):
    restore.write_keys(workdir, parts)
    train_state = restore.start(parts, mesh, manager)
    done = workdir / records.METRICS
    diagnose = diagnostics.of_run(parts, mesh)  # compiles once
    if int(train_state.step) < parts.num_steps:
      train_state = _train(
        parts, mesh, manager, workdir, train_state, meta, offer, diagnose
      )
    elif done.exists():
      log.info("%s holds a finished run; it is not trained again", workdir)
      return Result(train_state, json.loads(done.read_text()), True)
    if int(train_state.step) < parts.num_steps:
      return Result(train_state, {}, False)
    metrics = evaluate(parts, mesh, train_state)
    metrics |= diagnose(train_state)
    offer(parts.num_steps, train_state, metrics)
  step = parts.num_steps
  with records.open_recorder(workdir, start_step=step) as recorder:
    recorder.write(step, metrics)
  metrics = {
    "step": step,
    "examples_seen": step * config["batch_size"],
  } | metrics
  records.write_json(done, metrics)
  return Result(train_state, metrics, True)


def load(
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  parts: Experiment | None = None,
  checkpoints: str = checkpoint.NEWEST,
  pairs: bool = True,
) -> tuple[Experiment, Mesh, TrainState]:
  """Loads a run: its parts, its mesh and its newest checkpoint.

  The workdir is only read; it may be that of a run in progress.

  Args:
    workdir: Folder of a run.
    data_dir: Folder of prepared data sets.
    parts: The parts to use instead of those that the run's config names.
    checkpoints: `checkpoint.NEWEST`, or `checkpoint.BEST` for the one that was
      best on validation (see `keep_best` in a config).
    pairs: False leaves the data sets alone, which need not be there: the parts
      have the model and what it takes, and no evaluators.

  Raises:
    ValueError: If the workdir holds no run, or no complete checkpoint.
  """
  workdir = pathlib.Path(workdir)
  config = settings.complete(records.read_config(workdir))
  mesh = experiment.make_mesh(config)
  manager = checkpoint.open_to_read(workdir, name=checkpoints)
  with jax.set_mesh(mesh), contextlib.closing(manager):
    data = None if pairs else restore.data_of(manager)
    parts = _parts(parts, config, data_dir, fresh=False, data=data)
    return parts, mesh, restore.start(parts, mesh, manager)


def evaluate(parts: Experiment, mesh: Mesh, train_state: TrainState) -> Metrics:
  """Scores of every split that the data has evaluators for."""
  embed = embedder(parts, mesh)(train_state)
  metrics = {}
  for split, evaluators in parts.data.evaluators.items():
    metrics |= driver.run(evaluators, embed, split)
  return metrics


def embedder(parts: Experiment, mesh: Mesh) -> Callable[[TrainState], Any]:
  """Makes `embed(train_state) -> driver.Embed` for the evaluators."""
  make = driver.make_embedder(parts.model, parts.data.tokenizer.encode, mesh)
  return lambda state: make(state.params["model"], state.model_state)


def _parts(parts, config, data_dir, *, fresh, data=None) -> Experiment:
  """The parts of a config, or those given if they are of this config."""
  if parts is None:
    return experiment.build(config, data_dir=data_dir, data=data, fresh=fresh)
  differing = records.differences(parts.config, config)
  if differing:
    raise ValueError(f"parts are of another config: {'; '.join(differing)}")
  return parts


def _train(
  parts, mesh, manager, workdir, train_state, meta, offer, diagnose
) -> TrainState:
  """The loop: from the state's step to the end, or until a signal."""
  config, first, last = parts.config, int(train_state.step), parts.num_steps
  period = settings.validation_period(config, parts.data.train.sizes)
  step_fn, make_embed = _compile(parts, train_state), embedder(parts, mesh)
  clock = pace.start(num_steps=last, batch_size=config["batch_size"])
  window = []  # (step, metrics on the device) since the last line of the log
  place = f"{mesh.size} device(s) of {jax.process_count()} process(es)"
  log.info("training steps %d to %d on %s", first + 1, last, place)
  with (
    records.open_recorder(workdir, start_step=first) as recorder,
    _batches(parts, mesh, first) as batches,
    processes.stop_on_signal() as stop_requested,
  ):
    validate = _make_validate(
      parts, make_embed, diagnose, recorder.write, offer
    )
    # Before the first step, to find a wrong name early; later, if the run was
    # killed between a checkpoint and the validation of the same step.
    due = config["keep_best"] if first == 0 else _every(period, first)
    if due and not records.has_scores(workdir, first, "validation/"):
      validate(first, train_state)
    for step in range(first + 1, last + 1):
      with clock.during("data"):
        batch = next(batches)
      train_state, metrics = step_fn(train_state, batch)
      window.append((step, metrics))
      for hook in (x for x in parts.hooks if _every(x.every, step)):
        jax.block_until_ready(metrics)  # what follows is not the step's time
        with clock.during("evaluation"):
          train_state = hook.apply(train_state, make_embed(train_state))
      stopping = step == last or stop_requested(step)
      saving = stopping or _every(config["checkpoint_every"], step)
      logging_now = step == last or _every(config["log_every"], step)
      if saving or logging_now:
        means = records.means(window, lambda: _latest(manager))
      if logging_now:
        recorder.write(step, means)
        recorder.write_times(step, clock.show(step, means["train/loss"]))
        window = []
      if saving:
        position = step * config["batch_size"]  # of the data, in pairs
        with clock.during("saving"):
          checkpoint.save(
            manager, step, train_state, meta | {"position": position}
          )
      if _every(period, step) and step < last:
        jax.block_until_ready(train_state.step)  # as above
        with clock.during("evaluation"):
          validate(step, train_state)
      if stopping:
        break
  manager.wait_until_finished()
  if step < last:
    log.info("stopped at step %d of %d; the same command goes on", step, last)
  return train_state


def _make_validate(parts, make_embed, diagnose, write, offer):
  """Makes `validate(step, train_state)`, which records scores and offers them.

  Besides those of the split validation there are diagnostics.
  """

  def validate(step, train_state):
    evaluators = parts.data.evaluators["validation"]
    scores = driver.run(evaluators, make_embed(train_state), "validation")
    if scores:
      log.info("step %d  %s", step, records.summary(scores))
    scores |= diagnose(train_state)
    write(step, scores)
    offer(step, train_state, scores)

  return validate


def _compile(parts, train_state):
  """The jitted train step; the state is donated and stays where it lies."""
  layout = jax.tree.map(lambda x: x.sharding, train_state)
  key = jax.random.fold_in(jax.random.key(parts.config["seed"]), 1)
  return jax.jit(
    make_train_step(parts.model, parts.objective, parts.optimizer, key),
    out_shardings=(layout, None),
    donate_argnums=0,
  )


@contextlib.contextmanager
def _batches(parts, mesh, first_step) -> Iterator[Iterator[Batch]]:
  """The batches from a step on, on the devices."""
  from nuclr_jax.data import pipeline  # needs Grain, which models do not

  rows = NamedSharding(mesh, sharding.ROWS)

  def put(x):
    return jax.make_array_from_process_local_data(rows, x)

  with pipeline.batches(
    parts.data.train,
    batch_size=parts.config["batch_size"],
    seed=parts.config["seed"],
    start_step=first_step,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
    num_workers=parts.config["num_workers"],
  ) as stream:
    yield (jax.tree.map(put, batch) for batch in stream)


def _latest(manager) -> str:
  """Where the newest checkpoint is, once a save under way has ended."""
  manager.wait_until_finished()
  step = checkpoint.latest(manager)
  return "none" if step is None else str(manager.directory / str(step))


def _every(period: int, step: int) -> bool:
  return period > 0 and step % period == 0
