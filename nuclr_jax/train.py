"""Training: the only loop, and loading what it left."""

from collections.abc import Callable, Iterator
import contextlib
import json
import logging
import os
import pathlib
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from nuclr_jax import (
  checkpoint,
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
from nuclr_jax.run import Run, open_to_write, parts_of
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
  with open_to_write(config, workdir, data_dir, parts) as run:
    train_state = restore.start(run.parts, run.mesh, run.manager)
    done, last = workdir / records.METRICS, run.parts.num_steps
    if int(train_state.step) < last:
      train_state = _train(run, train_state)
    elif done.exists():
      log.info("%s holds a finished run; it is not trained again", workdir)
      metrics = json.loads(done.read_text(encoding="utf-8"))
      return Result(train_state, metrics, True)
    if int(train_state.step) < last:
      return Result(train_state, {}, False)
    metrics = evaluate(run.parts, run.mesh, train_state)
    metrics |= run.diagnose(train_state)
    run.offer(last, train_state, metrics)
  with records.open_recorder(workdir, start_step=last) as recorder:
    recorder.write(last, metrics)
  counts = {"step": last, "examples_seen": last * config["batch_size"]}
  records.write_json(done, counts | metrics)
  return Result(train_state, counts | metrics, True)


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
    parts = parts_of(config, data_dir, parts, fresh=False, data=data)
    return parts, mesh, restore.start(parts, mesh, manager)


def evaluate(parts: Experiment, mesh: Mesh, train_state: TrainState) -> Metrics:
  """Scores of every split that the data has evaluators for."""
  embed = embedder(parts, mesh)(train_state)
  metrics = {}
  for split, evaluators in parts.data.evaluators.items():
    metrics |= driver.run(evaluators, embed, split)
  return metrics


def embedder(
  parts: Experiment, mesh: Mesh
) -> Callable[[TrainState], driver.Embed]:
  """Makes `embed(train_state)` for the evaluators."""
  make = driver.make_embedder(parts.model, parts.data.tokenizer.encode, mesh)
  return lambda state: make(state.params["model"], state.model_state)


def _train(run: Run, train_state: TrainState) -> TrainState:
  """The loop: from the state's step to the end, or until a signal."""
  parts, config, manager = run.parts, run.parts.config, run.manager
  first, last = int(train_state.step), parts.num_steps
  period = settings.validation_period(config, parts.data.train.sizes)
  step_fn, make_embed = _compile(parts, train_state), embedder(parts, run.mesh)
  clock = pace.start(num_steps=last, batch_size=config["batch_size"])
  window = []  # (step, metrics on the device) since the last line of the log
  place = f"{run.mesh.size} device(s) of {jax.process_count()} process(es)"
  log.info("training steps %d to %d on %s", first + 1, last, place)
  log.info("compiling the first, which may take minutes")
  with (
    records.open_recorder(run.workdir, start_step=first) as recorder,
    _batches(parts, run.mesh, first) as batches,
    processes.stop_on_signal() as stop_requested,
  ):
    validate = _make_validate(run, make_embed, recorder.write)
    if _lacks_validation(run, period, first):
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
        with clock.during("saving"):
          checkpoint.save(manager, step, train_state, run.meta)
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


def _lacks_validation(run, period, step) -> bool:
  """Whether a run that starts at a step has to be validated there.

  Before the first step, to find a wrong name early; later, if the run was
  killed between a checkpoint and the validation of the same step.
  """
  if step == 0:  # its history is empty
    return run.parts.config["keep_best"] is not None
  due = _every(period, step)
  return due and not records.has_scores(run.workdir, step, "validation/")


def _make_validate(run, make_embed, write):
  """Makes `validate(step, train_state)`, which records scores and offers them.

  Besides those of the split validation there are diagnostics.
  """

  def validate(step, train_state):
    evaluators = run.parts.data.evaluators["validation"]
    scores = driver.run(evaluators, make_embed(train_state), "validation")
    if scores:
      log.info("step %d  %s", step, records.summary(scores))
    scores |= run.diagnose(train_state)
    write(step, scores)
    run.offer(step, train_state, scores)

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
