"""The only training loop, and loading of the runs that it leaves behind.

`fit` opens a run, takes its newest state, trains to the last step, and
evaluates. Everything that a step computes is in `step`; everything that the
config decides is in `build`.
"""

from collections.abc import Callable, Iterator
import contextlib
import json
import logging
import math
import os
import pathlib
from typing import NamedTuple

import jax
from jax.sharding import Mesh
import orbax.checkpoint as ocp

from nuclr_jax.lab import distributed, files, progress
from nuclr_jax.lab.config import Config, is_due, validation_period
from nuclr_jax.lab.data import cut_captions
from nuclr_jax.lab.data.places import DATA_DIR
from nuclr_jax.lab.data.reference import open_folder, open_reference
from nuclr_jax.lab.evaluate.evaluators import (
  Embed,
  make_embedder,
  run_evaluators,
)
from nuclr_jax.lab.train import (
  average,
  best,
  build,
  checkpoint,
  diagnostics,
  extend,
  journal,
  recalibrate,
  records,
  recovery,
  resume,
  trackers,
)
from nuclr_jax.lab.train.batches import open_batches
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.settings import Settings, resolve
from nuclr_jax.lab.train.step import TrainState, make_train_step
from nuclr_jax.objectives import Readout
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)

ANOTHER_CONFIG = "parts were made from another config"


class Result(NamedTuple):
  """What `fit` returns."""

  train_state: TrainState  # to look at, see `average`
  metrics: Metrics  # as in metrics.json; empty if the run was stopped
  finished: bool


class OpenRun(NamedTuple):
  """A run that is open for training."""

  workdir: pathlib.Path
  parts: Experiment
  mesh: Mesh
  manager: ocp.CheckpointManager
  meta: checkpoint.Meta  # identifies the run in its checkpoints
  keep_if_best: best.KeepIfBest
  diagnose: Callable[[TrainState], Metrics]


def fit(
  config: Config | Settings,
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  parts: Experiment | None = None,
) -> Result:
  """Trains and evaluates, and leaves everything in `workdir`.

  A run continues from the newest complete checkpoint in `workdir`, if there is
  one. On SIGTERM or SIGINT it saves a checkpoint and returns. A finished run
  leaves `metrics.json` and is not trained again, unless the config has more
  epochs than before, or the data have more pairs, see `extend`.

  Args:
    config: A mapping such as `configs/glyphs.py` makes.
    workdir: Folder of the run; created if missing. It may be in a bucket, see
      `files.remote.local_folder`.
    data_dir: Folder of prepared data sets, see `places.cache_dir`.
    parts: The parts to use instead of those that `build.build` makes from the
      config.

  Returns:
    `Result(train_state, metrics, finished)`.

  Raises:
    ValueError: If the config, the workdir, the devices or a checkpoint do not
      fit together, the run would end before the step of its checkpoint, or
      another process trains in the workdir.
    FloatingPointError: If the loss or the gradient norm is not finite, or a
      metric is NaN; the message names the step, the metric and the last good
      checkpoint.

  Example:
    >>> result = fit(config, "runs/mine")  # doctest: +SKIP
  """
  period = files.remote.PERIOD
  with files.remote.local_folder(workdir, period=period, alone=True) as folder:
    parts, mesh = _prepare(resolve(config), folder, data_dir, parts)
    with files.locked(folder):
      return _fit(folder, parts, mesh)


def _fit(workdir: pathlib.Path, parts: Experiment, mesh: Mesh) -> Result:
  """Trains and evaluates in a local folder."""
  metrics_file, last = workdir / records.METRICS, parts.num_steps
  with _open_run(workdir, parts, mesh) as run:
    step = checkpoint.latest(run.manager)
    train_state = resume.start(parts, mesh, run.manager, step)
    if step is None:
      train_state = recovery.of_run(parts, mesh, train_state)
    else:
      extend.begin(workdir, parts, run.manager, step)
    stopped = False
    if int(train_state.step) < last:
      train_state, stopped = _train(run, train_state)
    elif metrics_file.exists():
      log.info("%s holds a finished run; it is not trained again", workdir)
      shown = average.to_look_at(train_state)
      return Result(shown, records.read_metrics(workdir), True)
    shown = average.to_look_at(train_state)
    if stopped:  # by a signal
      return Result(shown, {}, False)
    metrics = evaluate(parts, mesh, shown)
    metrics |= _diagnosed(run, last, shown)
    run.keep_if_best(last, train_state, metrics)
  settings = parts.settings
  with records.open_recorder(workdir, settings, start_step=last) as recorder:
    recorder.write(last, metrics)
  counts = {"step": last, "examples_seen": last * settings.batch_size}
  files.write_json(metrics_file, counts | metrics)
  return Result(shown, counts | metrics, True)


def load(
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  parts: Experiment | None = None,
  checkpoints: str = checkpoint.NEWEST,
  pairs: bool = True,
  averaged: bool = True,
  held_out: Config | None = None,
) -> tuple[Experiment, Mesh, TrainState]:
  """Loads a run: its parts, its mesh, and the state of a checkpoint.

  The workdir is only read, so the run may be in progress.

  Args:
    workdir: Folder of a run.
    data_dir: Folder of prepared data sets.
    parts: The parts to use instead of those that the run's config names.
    checkpoints: `checkpoint.NEWEST`, or `checkpoint.BEST` for the state that
      scored best on validation (see `keep_best` in a config).
    pairs: Whether to open the data sets. Without them, the parts still have the
      model and its inputs, and the data sets need not be on this machine.
    averaged: Whether the parameters are the averaged ones, if the run keeps an
      average. Otherwise batch statistics are computed again, from the data
      sets, since checkpoints have those of the average.
    held_out: Keys of `config.data` that name other held-out sets than the run's
      own, see `build.with_held_out`.

  Returns:
    `(parts, mesh, train_state)`.

  Raises:
    ValueError: If the workdir holds no run, or no complete checkpoint.

  Example:
    >>> parts, mesh, state = load("runs/mine")  # doctest: +SKIP
  """
  workdir = files.remote.fetch(workdir, choose=checkpoint.of_newest)
  if parts is None:
    settings = records.read_settings(workdir, held_out=held_out)
  else:
    settings = parts.settings
    records.check_same_run(
      records.read_config(workdir), {ANOTHER_CONFIG: settings.recorded}
    )
  mesh = build.mesh_of(settings)
  manager, step = checkpoint.open_to_read(workdir, name=checkpoints)
  with jax.set_mesh(mesh), contextlib.closing(manager):
    if parts is None:
      data = None if pairs or not averaged else resume.data_of(manager, step)
      place, given = files.remote.original(workdir), json.dumps(held_out)
      files.bucket.check_known(
        json.dumps([settings.reference, data is None and settings.data.spec]),
        by=f"{place}/{records.CONFIG}",
        beside=(place, data_dir or os.environ.get(DATA_DIR), given),
      )
      parts = build.build(settings, data_dir=data_dir, data=data, fresh=False)
    look = average.to_look_at if averaged else recalibrate.of_run(parts, mesh)
    return parts, mesh, look(resume.start(parts, mesh, manager, step))


def evaluate(parts: Experiment, mesh: Mesh, train_state: TrainState) -> Metrics:
  """Scores a state on every split that has evaluators.

  Args:
    parts: The parts of a run.
    mesh: The mesh of the run, entered by `jax.set_mesh`.
    train_state: The state to score, with batch statistics of its own weights:
      what `fit` or `load` returned, or `recalibrate` made.

  Returns:
    Metrics by name, such as "test/mean_recall@1".
  """
  return score(parts, embedder(parts, mesh)(train_state))


def score(parts: Experiment, embed: Embed) -> Metrics:
  """Scores a model on every split that has evaluators, as `evaluate` does."""
  metrics = {}
  for split, evaluators in parts.evaluators.items():
    metrics |= run_evaluators(evaluators, embed, split)
  return metrics


def readout(parts: Experiment, train_state: TrainState) -> Readout:
  """Reads temperature, log u and zeta of a run, if its objective has them."""
  params = train_state.params["objective"]
  return parts.objective.readout(params, train_state.objective)


def embedder(parts: Experiment, mesh: Mesh) -> Callable[[TrainState], Embed]:
  """Makes `embed(train_state)`, the function that evaluators embed with."""
  words = parts.data.tokenizer
  make = make_embedder(parts.model, words.encode, mesh, is_cut=words.is_cut)
  return lambda state: make(state.params["model"], state.model_state)


def _prepare(
  settings: Settings,
  workdir: pathlib.Path,
  data_dir: str | os.PathLike | None,
  parts: Experiment | None,
) -> tuple[Experiment, Mesh]:
  """Makes a run's parts and mesh; rejects what it can before preparing data.

  Raises:
    ValueError: If the config, the workdir or the devices do not fit together.
  """
  mesh = build.mesh_of(settings)
  distributed.check_shared(workdir)
  distributed.check_same("config", settings.recorded)
  records.check_replaceable(workdir)
  trackers.check(settings.trackers)
  fresh = not checkpoint.steps(workdir)
  others = {} if parts is None else {ANOTHER_CONFIG: parts.settings.recorded}
  # A run that was killed before its first checkpoint may have a best state.
  if not fresh or checkpoint.steps(workdir, name=checkpoint.BEST):
    recorded = extend.lengthened(records.read_config(workdir), settings)
    others[f"{workdir} holds a run with another config"] = recorded
    records.check_own_parts(workdir, parts.own() if parts else ())
  scored = extend.is_scored(workdir, settings)
  records.check_same_run(settings.recorded, others, scored=scored)
  folder = open_folder(settings.reference)
  with distributed.first_before_others("data"):
    parts = parts or build.build(settings, data_dir=data_dir, fresh=fresh)
    reference = open_reference(folder, parts.data.train, compare_all=fresh)
  # log_every and others may differ.
  return parts._replace(settings=settings, reference=reference), mesh


@contextlib.contextmanager
def _open_run(
  workdir: pathlib.Path, parts: Experiment, mesh: Mesh
) -> Iterator[OpenRun]:
  """Opens a workdir for training with these parts, and enters the mesh.

  Raises:
    ValueError: If processes disagree, all checkpoints are damaged, or the run
      would end before the step of its checkpoint.
  """
  settings, meta = parts.settings, resume.meta(parts)
  distributed.check_same("data set or version", meta)
  manager = checkpoint.open_to_write(
    workdir, max_to_keep=settings.max_checkpoints
  )
  kept = best.open_best(workdir, score=settings.keep_best, meta=meta)
  with jax.set_mesh(mesh), contextlib.closing(manager), kept as keep_if_best:
    extend.check_end(workdir, parts, manager)
    records.write_config(workdir, settings.recorded, own=parts.own())
    resume.write_keys(workdir, parts)
    diagnose = diagnostics.of_run(parts, mesh)  # once, since it compiles
    yield OpenRun(workdir, parts, mesh, manager, meta, keep_if_best, diagnose)


def _train(run: OpenRun, train_state: TrainState) -> tuple[TrainState, bool]:
  """Trains from the state's step to the last one, or until a signal.

  Returns:
    The state, and whether there was a signal.
  """
  parts, settings, manager = run.parts, run.parts.settings, run.manager
  first, last = int(train_state.step), parts.num_steps
  period = validation_period(
    eval_every=settings.eval_every,
    eval_every_epochs=settings.eval_every_epochs,
    steps_per_epoch=parts.data.train.sizes.num_pairs // settings.batch_size,
  )
  step_fn, make_embed = _compile(parts, train_state), embedder(parts, run.mesh)
  new_statistics = recalibrate.of_run(parts, run.mesh)
  clock = progress.start_clock(num_steps=last, batch_size=settings.batch_size)
  # (step, metrics) since the last line of the log, also of an earlier process.
  window = resume.window(manager, first)
  positions = resume.positions(manager, first)

  def recalibrated(train_state, shown):
    # Steps run asynchronously: without waiting, the clock would count the step
    # as evaluation.
    jax.block_until_ready(train_state.step)
    with clock.during("evaluation"):
      return train_state._replace(model_state=new_statistics(shown).model_state)

  place = f"{run.mesh.size} device(s) of {jax.process_count()} process(es)"
  log.info("training steps %d to %d on %s", first + 1, last, place)
  log.info("compiling the first step, which may take minutes")
  with (
    journal.keep(run.workdir, run.mesh, step=first),
    records.open_recorder(run.workdir, settings, start_step=first) as recorder,
    open_batches(parts, run.mesh, first, at=positions) as (batches, now_at),
    distributed.stop_on_signal(first, last) as stop_requested,
  ):
    with clock.during("evaluation"):
      cut_captions.warn(parts.data, fresh=first == 0)
    validate = _make_validate(run, make_embed, recorder.write)
    if records.lacks_validation(run.workdir, settings, period, first):
      validate(first, train_state)
    for step in range(first + 1, last + 1):
      with clock.during("data"):
        batch = next(batches)
      train_state, metrics = step_fn(train_state, batch)
      window.append((step, metrics))
      validating = is_due(period, step) and step < last
      looked_at = None
      if hooks := [x for x in parts.hooks if is_due(x.every, step)]:
        train_state = recalibrated(train_state, train_state)
        looked_at = train_state.params["model"]
        with clock.during("evaluation"):
          for hook in hooks:
            train_state = hook.apply(train_state, make_embed(train_state))
      stopped = stop_requested(step)
      stopping = step == last or stopped
      saving = stopping or is_due(settings.checkpoint_every, step)
      logging_now = step == last or is_due(settings.log_every, step)
      # A hook sees no average, and may have changed the model that it sees.
      changed = average.to_look_at(train_state).params["model"] is not looked_at
      if (saving or validating) and changed:
        train_state = recalibrated(train_state, average.to_look_at(train_state))
      if saving or logging_now:  # never save a state that is not finite
        window = records.fetch(window, lambda: _latest(manager))
      if saving or validating:
        records.check_finite(step, train_state, lambda: _latest(manager))
      if logging_now:
        means = records.means(window)
        recorder.write(step, means)
        recorder.write_times(step, clock.show(step, means["train/loss"]))
        window = []
      if saving:
        with clock.during("saving"):
          meta = run.meta | resume.more_meta(window, now_at())
          checkpoint.save(manager, step, train_state, meta)
      if validating:
        with clock.during("evaluation"):
          validate(step, train_state)
      if stopping:
        break
    manager.wait_until_finished()
    if stopped:
      recorder.stop()
      where = f"step {step} of {last}"
      log.info("stopped at %s; run the same command again to continue", where)
  return train_state, stopped


def _make_validate(run, make_embed, write):
  """Makes `validate(step, train_state)`, which records scores.

  The scores are those of the validation split, and the diagnostics.
  """

  def validate(step, train_state):
    evaluators = run.parts.evaluators.get("validation", ())
    embed = make_embed(average.to_look_at(train_state))
    scores = run_evaluators(evaluators, embed, "validation")
    if scores:
      log.info("step %d  %s", step, records.summary(scores))
    scores |= _diagnosed(run, step, average.to_look_at(train_state))
    # First: a process that is killed meanwhile leaves no score, so that the
    # one that goes on validates this step again.
    run.keep_if_best(step, train_state, scores)
    write(step, scores)

  return validate


def _diagnosed(run: OpenRun, step: int, shown: TrainState) -> Metrics:
  """Returns the diagnostics; raises FloatingPointError if one is NaN."""
  scores = run.diagnose(shown)
  if wrong := [name for name, x in scores.items() if math.isnan(x)]:
    raise records.not_finite(step, wrong, lambda: _latest(run.manager))
  return scores


def _compile(parts, train_state):
  """Jits the train step, which updates the state in place."""
  layout = jax.tree.map(lambda x: x.sharding, train_state)
  # The seed folded with 0 makes the first parameters, see `resume`.
  key = jax.random.fold_in(jax.random.key(parts.settings.seed), 1)
  return jax.jit(
    make_train_step(parts.model, parts.objective, parts.optimizer, key),
    out_shardings=(layout, None),
    donate_argnums=0,
  )


def _latest(manager) -> str:
  """Returns where the newest checkpoint is, once pending saves have ended."""
  manager.wait_until_finished()
  step = checkpoint.latest(manager)
  return (
    "none" if step is None else str(checkpoint.folder_of(manager) / str(step))
  )
