"""A run that is open to write: its folder, parts, mesh and checkpoints."""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
from typing import NamedTuple

import jax
from jax.sharding import Mesh
import orbax.checkpoint as ocp

from nuclr_jax import (
  best,
  checkpoint,
  diagnostics,
  experiment,
  processes,
  records,
  restore,
  settings,
)
from nuclr_jax.datasets import Data
from nuclr_jax.experiment import Experiment
from nuclr_jax.settings import Config
from nuclr_jax.train_state import TrainState
from nuclr_jax.types import Metrics


class Run(NamedTuple):
  """A run that is open to write."""

  workdir: pathlib.Path
  parts: Experiment
  mesh: Mesh
  meta: checkpoint.Meta  # of its checkpoints
  manager: ocp.CheckpointManager
  offer: best.Offer
  diagnose: Callable[[TrainState], Metrics]


@contextlib.contextmanager
def open_to_write(
  config: Config,
  workdir: pathlib.Path,
  data_dir: str | os.PathLike | None,
  parts: Experiment | None,
) -> Iterator[Run]:
  """Opens a run, on its mesh.

  Args:
    config: Complete.
    workdir: Folder of the run; made if missing.
    data_dir: Folder of prepared data sets.
    parts: See `parts_of`.

  Raises:
    ValueError: For a config, workdir or mesh that do not fit.
  """
  mesh = experiment.make_mesh(config)
  processes.check_shared(workdir)
  processes.check_same("config", config)
  fresh = not checkpoint.steps(workdir)
  # A run that was killed before its first checkpoint may have a best state.
  if not fresh or checkpoint.steps(workdir, name=checkpoint.BEST):
    there = settings.complete(records.read_config(workdir))
    records.check_config(workdir, there, config)
  with processes.first_before_others("data and config"):
    parts = parts_of(config, data_dir, parts, fresh=fresh)
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
    diagnose = diagnostics.of_run(parts, mesh)  # compiles once
    yield Run(workdir, parts, mesh, meta, manager, offer, diagnose)


def parts_of(
  config: Config,
  data_dir: str | os.PathLike | None,
  parts: Experiment | None,
  *,
  fresh: bool,
  data: Data | None = None,
) -> Experiment:
  """The parts of a config, or those given if they are of this config.

  Args:
    config: Complete.
    data_dir: Folder of prepared data sets.
    parts: Those given.
    fresh: See `experiment.build`.
    data: Likewise.

  Raises:
    ValueError: If the parts are of another config.
  """
  if parts is None:
    return experiment.build(config, data_dir=data_dir, data=data, fresh=fresh)
  differing = records.differences(parts.config, config)
  if differing:
    raise ValueError(f"parts are of another config: {'; '.join(differing)}")
  return parts._replace(config=config)  # some keys may differ
