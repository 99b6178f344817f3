"""Training: the state, one step, and the only loop."""

from collections.abc import Callable, Iterator
import contextlib
import importlib.metadata
import json
import logging
import math
import os
import pathlib
import signal
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import optax

from nuclr_jax import checkpoint, experiment, records, sharding
from nuclr_jax.evaluate import driver
from nuclr_jax.experiment import Config, Experiment
from nuclr_jax.models import Model
from nuclr_jax.objectives import Objective, State
from nuclr_jax.types import Batch, Metrics, Params, PyTree, flatten

log = logging.getLogger(__name__)


class TrainState(NamedTuple):
  """Everything that a step changes."""

  step: jax.Array  # steps done
  params: Params  # {"model": ..., "objective": ...}
  model_state: PyTree
  opt_state: PyTree
  objective: State


class Result(NamedTuple):
  """What `fit` returns."""

  train_state: TrainState
  metrics: Metrics  # as in metrics.json; empty if the run was stopped
  finished: bool


CONFIG, METRICS = "config.json", "metrics.json"  # files of a workdir
MUST_BE_FINITE = ("train/loss", "train/gradient_norm")  # others may be inf

# How a TrainState lies on the mesh: a pytree prefix, good for every objective.
LAYOUT = TrainState(
  step=sharding.REPLICATED,
  params=sharding.REPLICATED,
  model_state=sharding.REPLICATED,
  opt_state=sharding.REPLICATED,
  objective=State(sample=sharding.ROWS, shared=sharding.REPLICATED),
)


def init_state(
  model: Model,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> TrainState:
  """Makes the first state; per-sample state is padded for sharding."""
  model_params, model_state = model.init(key)
  objective_params, objective_state = objective.init()
  params = {"model": model_params, "objective": objective_params}
  sample = sharding.pad_rows(objective_state.sample)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    model_state=model_state,
    opt_state=optimizer.init(params),
    objective=objective_state._replace(sample=sample),
  )


def make_train_step(
  model: Model,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
  """Makes the pure function `(train_state, batch) -> (train_state, metrics)`.

  Randomness (dropout and the like) is a function of `key` and the step.
  """

  def train_step(train_state, batch):
    step_key = jax.random.fold_in(key, train_state.step)

    def loss_fn(params):
      pairs, model_state = model.apply(
        params["model"],
        train_state.model_state,
        batch,
        key=step_key,
        train=True,
      )
      loss, (state, metrics) = objective.apply(
        params["objective"], train_state.objective, pairs
      )
      return loss, (model_state, state, metrics)

    (loss, (model_state, state, metrics)), gradient = jax.value_and_grad(
      loss_fn, has_aux=True
    )(train_state.params)
    updates, opt_state = optimizer.update(
      gradient, train_state.opt_state, train_state.params
    )
    metrics |= {"loss": loss, "gradient_norm": optax.tree.norm(gradient)}
    new_state = TrainState(
      step=train_state.step + 1,
      params=optax.apply_updates(train_state.params, updates),
      model_state=model_state,
      opt_state=opt_state,
      objective=state,
    )
    return new_state, {f"train/{name}": x for name, x in metrics.items()}

  return train_step


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
  config = experiment.complete(config)
  workdir = pathlib.Path(workdir)
  mesh = make_mesh(config)
  _check_workdir(workdir, config)
  parts = parts or experiment.build(config, data_dir=data_dir)
  workdir.mkdir(parents=True, exist_ok=True)
  records.write_json(workdir / CONFIG, config)
  with jax.set_mesh(mesh), _open_checkpoints(workdir, config) as manager:
    train_state = start(parts, mesh, manager)
    done = workdir / METRICS
    if int(train_state.step) == parts.num_steps and done.exists():
      log.info("%s holds a finished run; it is not trained again", workdir)
      return Result(train_state, json.loads(done.read_text()), True)
    train_state = _train(parts, mesh, manager, workdir, train_state)
    if int(train_state.step) < parts.num_steps:
      return Result(train_state, {}, False)
    metrics = evaluate(parts, mesh, train_state)
  step = parts.num_steps
  with _recording(workdir, step) as write:
    write(step, metrics)
  metrics = {
    "step": step,
    "examples_seen": step * config["batch_size"],
  } | metrics
  records.write_json(done, metrics)
  return Result(train_state, metrics, True)


def load(
  workdir: str | os.PathLike, *, data_dir: str | os.PathLike | None = None
) -> tuple[Experiment, Mesh, TrainState]:
  """Loads a run: its parts, its mesh and its newest checkpoint.

  Raises:
    ValueError: If the workdir holds no run, or no complete checkpoint.
  """
  workdir = pathlib.Path(workdir)
  config = read_config(workdir)
  mesh = make_mesh(config)
  parts = experiment.build(config, data_dir=data_dir)
  with jax.set_mesh(mesh), _open_checkpoints(workdir, config) as manager:
    if manager.latest_step() is None:
      raise ValueError(f"{workdir} holds no complete checkpoint; train first")
    return parts, mesh, start(parts, mesh, manager)


def evaluate(parts: Experiment, mesh: Mesh, train_state: TrainState) -> Metrics:
  """Scores of every split that the data has evaluators for."""
  embed = embedder(parts, mesh)(train_state)
  metrics = {}
  for split, evaluators in parts.data.evaluators.items():
    metrics |= driver.run(evaluators, embed, split)
  return metrics


def make_mesh(config: Config) -> Mesh:
  """The mesh of a config; its batch size must divide over the devices.

  Raises:
    ValueError: If it does not, or for an impossible number of devices.
  """
  mesh = sharding.make_mesh(config["num_devices"])
  if config["batch_size"] % mesh.size:
    raise ValueError(
      f"batch_size must be a multiple of the number of devices, got "
      f"{config['batch_size']} and {mesh.size}; change one, or use fewer "
      "devices with num_devices"
    )
  return mesh


def read_config(workdir: pathlib.Path) -> Config:
  """The config of the run in `workdir`.

  Raises:
    ValueError: If there is none.
  """
  path = workdir / CONFIG
  if not path.exists():
    raise ValueError(f"{workdir} holds no run: {path} is missing; train first")
  return experiment.complete(json.loads(path.read_text()))


def start(parts: Experiment, mesh: Mesh, manager) -> TrainState:
  """The newest checkpoint's state, or the first state, laid out on `mesh`."""
  key = jax.random.fold_in(jax.random.key(parts.config["seed"]), 0)

  def init():
    return init_state(parts.model, parts.objective, parts.optimizer, key)

  layout = _shardings(mesh, LAYOUT)
  step = manager.latest_step()
  if step is None:
    return jax.jit(init, out_shardings=layout)()
  shapes = jax.eval_shape(init)
  full_layout = jax.tree.map(
    lambda s, tree: jax.tree.map(lambda _: s, tree), layout, shapes
  )
  abstract = checkpoint.abstract_state(shapes, full_layout)
  log.info("continuing from the checkpoint of step %d", step)
  return checkpoint.restore(manager, step, abstract, _meta(parts))


def embedder(parts: Experiment, mesh: Mesh) -> Callable[[TrainState], Any]:
  """Makes `embed(train_state) -> driver.Embed` for the evaluators."""
  make = driver.make_embedder(parts.model, parts.data.tokenizer.encode, mesh)
  return lambda state: make(state.params["model"], state.model_state)


def _train(parts, mesh, manager, workdir, train_state) -> TrainState:
  """The loop: from the state's step to the end, or until a signal."""
  config, first, last = parts.config, int(train_state.step), parts.num_steps
  step_fn, make_embed = _compile(parts, mesh), embedder(parts, mesh)
  show = records.progress(num_steps=last, batch_size=config["batch_size"])
  window = []  # (step, metrics on the device) since the last line of the log
  log.info("training steps %d to %d into %s", first + 1, last, workdir)
  with (
    _recording(workdir, first) as write,
    _batches(parts, mesh, first) as batches,
    _stop_on_signal() as stop_requested,
  ):
    for step in range(first + 1, last + 1):
      train_state, metrics = step_fn(train_state, next(batches))
      window.append((step, metrics))
      stopping = step == last or stop_requested()
      saving = stopping or _every(config["checkpoint_every"], step)
      logging_now = step == last or _every(config["log_every"], step)
      if saving or logging_now:
        means = _means(window, manager)
      if logging_now:
        write(step, means)
        show(step, means["train/loss"])
        window = []
      if saving:
        checkpoint.save(manager, step, train_state, _meta(parts))
      if _every(config["eval_every"], step) and step < last:
        evaluators = parts.data.evaluators["validation"]
        scores = driver.run(evaluators, make_embed(train_state), "validation")
        write(step, scores)
        log.info("step %d  %s", step, summary(scores))
      if stopping:
        break
  manager.wait_until_finished()
  if step < last:
    log.info("stopped at step %d of %d; the same command goes on", step, last)
  return train_state


def _compile(parts, mesh):
  """The jitted train step, laid out on the mesh, its state donated."""
  layout = _shardings(mesh, LAYOUT)
  key = jax.random.fold_in(jax.random.key(parts.config["seed"]), 1)
  return jax.jit(
    make_train_step(parts.model, parts.objective, parts.optimizer, key),
    in_shardings=(layout, NamedSharding(mesh, sharding.ROWS)),
    out_shardings=(layout, NamedSharding(mesh, sharding.REPLICATED)),
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
    transform=parts.data.transform,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  ) as stream:
    yield (jax.tree.map(put, batch) for batch in stream)


@contextlib.contextmanager
def _recording(workdir, start_step):
  """Yields the `write` of a recorder and closes it."""
  recorder = records.open_recorder(workdir, start_step=start_step)
  try:
    yield recorder.write
  finally:
    recorder.close()


@contextlib.contextmanager
def _open_checkpoints(workdir, config):
  """The checkpoint manager, closed even after an error."""
  manager = checkpoint.open_manager(
    workdir, max_to_keep=config["max_checkpoints"]
  )
  try:
    yield manager
  finally:
    manager.close()


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
  """Yields whether SIGTERM or SIGINT came; a second one acts as usual."""
  received = []
  signals = (signal.SIGTERM, signal.SIGINT)
  if threading.current_thread() is not threading.main_thread():
    yield lambda: False  # only the main thread may handle signals
    return
  before = {number: signal.getsignal(number) for number in signals}

  def handle(number, frame):
    del frame
    log.info("%s: saving, then stopping", signal.Signals(number).name)
    received.append(number)
    signal.signal(number, before[number])

  for number in signals:
    signal.signal(number, handle)
  try:
    yield lambda: bool(received)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _means(window, manager) -> Metrics:
  """Means over the window; raises if one of its steps went wrong."""
  fetched = jax.device_get(window)
  for step, metrics in fetched:
    wrong = [
      f"{name} = {value}"
      for name, value in metrics.items()
      if math.isnan(value) or (math.isinf(value) and name in MUST_BE_FINITE)
    ]
    if wrong:
      raise FloatingPointError(
        f"step {step} is not finite: {', '.join(wrong)}. Last good checkpoint: "
        f"{_describe_latest(manager)}. A lower learning rate, gradient "
        "clipping (optimizer.clip_norm) or a higher temperature may help; a "
        "NaN also comes from an id outside the range of the per-sample state"
      )
  names = fetched[0][1]
  total = {name: sum(float(m[name]) for _, m in fetched) for name in names}
  return {name: value / len(fetched) for name, value in total.items()}


def _describe_latest(manager) -> str:
  step = manager.latest_step()
  return "none" if step is None else str(manager.directory / str(step))


def _meta(parts) -> checkpoint.Meta:
  """What a checkpoint says about where it belongs."""
  data = parts.data
  return {
    "config": parts.config,
    "sizes": data.train.sizes._asdict(),
    "data": data.train.fingerprint,
    "tokenizer": data.tokenizer._asdict(),
    "versions": {
      name: importlib.metadata.version(name) for name in ("jax", "grain")
    },
  }


def _check_workdir(workdir: pathlib.Path, config: Config) -> None:
  """Raises ValueError if the workdir holds the run of another config."""
  if not (workdir / CONFIG).exists():
    return
  found = flatten(json.loads((workdir / CONFIG).read_text()))
  wanted = flatten(json.loads(json.dumps(config)))
  differing = [
    f"{key.replace('/', '.')} is {found.get(key)} there, {wanted.get(key)} here"
    for key in sorted(found.keys() | wanted.keys())
    if found.get(key) != wanted.get(key)
  ]
  if differing:
    raise ValueError(
      f"{workdir} holds a run with another config: {'; '.join(differing)}. "
      "Give the same config to continue it, or another workdir"
    )


def summary(metrics: Metrics) -> str:
  """The headline numbers of an evaluation on one line."""
  chosen = {k: v for k, v in metrics.items() if k.endswith(("@1", "/top1"))}
  return "  ".join(f"{name} {value:.3f}" for name, value in chosen.items())


def _every(period: int, step: int) -> bool:
  return period > 0 and step % period == 0


def _shardings(mesh, layout):
  return jax.tree.map(
    lambda spec: NamedSharding(mesh, spec),
    layout,
    is_leaf=lambda x: isinstance(x, jax.P),
  )
