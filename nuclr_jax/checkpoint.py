"""Checkpoints: the training state and what it belongs to, with Orbax.

A checkpoint is a pytree (parameters, model state, optimizer, per-sample state,
step) and a JSON `meta`: the config, the sizes and fingerprint of the data, the
tokenizer, the shape of a picture and the versions of the libraries that decide
the order of the data. What pairs were taken follows from the step. Saves are
asynchronous and atomic.
"""

from collections.abc import Sequence
import logging
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from nuclr_jax import host, processes
from nuclr_jax.types import PyTree

log = logging.getLogger(__name__)

Meta = dict[str, Any]


NEWEST, BEST = "checkpoints", "best"  # folders of a workdir


def open_to_write(
  workdir: pathlib.Path, *, max_to_keep: int = 2, name: str = NEWEST
) -> ocp.CheckpointManager:
  """Opens the checkpoints of a workdir; what a killed run left is put aside.

  A folder whose writing was interrupted is renamed to `<step>.incomplete`, so
  that neither reading nor writing trips over it. Only one run may have them
  open to write.
  """
  folder = _folder(workdir, name)
  with processes.first_before_others("incomplete checkpoints"):
    for entry in folder.iterdir() if folder.exists() else ():
      if entry.name.isdigit() and not _complete(entry):
        _put_aside(entry)
  options = ocp.CheckpointManagerOptions(
    max_to_keep=max_to_keep, cleanup_tmp_directories=True
  )
  return ocp.CheckpointManager(folder, options=options)


def open_to_read(
  workdir: pathlib.Path, *, name: str = NEWEST
) -> ocp.CheckpointManager:
  """Opens the checkpoints without touching them, also beside a training run.

  Raises:
    ValueError: If there is no complete one.
  """
  if not _steps(_folder(workdir, name)):
    hint = "train first" if name == NEWEST else "train with --config.keep_best"
    raise ValueError(
      f"{_folder(workdir, name)} holds no complete checkpoint; {hint}"
    )
  options = ocp.CheckpointManagerOptions(create=False)
  return ocp.CheckpointManager(_folder(workdir, name), options=options)


def steps(workdir: pathlib.Path, *, name: str = NEWEST) -> list[int]:
  """Steps of the complete checkpoints, in order."""
  return _steps(_folder(workdir, name))


def latest(manager: ocp.CheckpointManager) -> int | None:
  """The newest complete step, or None."""
  return max(_steps(pathlib.Path(manager.directory)), default=None)


def save(
  manager: ocp.CheckpointManager, step: int, state: PyTree, meta: Meta
) -> None:
  """Starts an asynchronous save."""
  manager.save(
    step,
    args=ocp.args.Composite(
      state=ocp.args.StandardSave(state),
      meta=ocp.args.JsonSave(meta),
    ),
  )


def restore(
  manager: ocp.CheckpointManager, step: int, abstract: PyTree
) -> PyTree:
  """Restores the state of a step.

  Args:
    manager: From `open_to_read` or `open_to_write`.
    step: One of `steps(workdir)`.
    abstract: The state as `jax.ShapeDtypeStruct`s with shardings; any device
      count.

  Raises:
    ValueError: If the checkpoint cannot be read; the message names the folder.
  """
  only_state = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
  return _read(manager, step, only_state).state


def read_meta(manager: ocp.CheckpointManager, step: int) -> Meta:
  """What the checkpoint of a step says about where it belongs.

  Raises:
    ValueError: If it cannot be read.
  """
  only_meta = ocp.args.Composite(meta=ocp.args.JsonRestore())
  return _read(manager, step, only_meta).meta


def check_meta(
  manager: ocp.CheckpointManager,
  step: int,
  found: Meta,
  expected: Meta,
  keys: Sequence[str],
) -> None:
  """Raises ValueError if a checkpoint's meta is not that of the run."""
  for key in keys:
    if found[key] != expected[key]:
      raise ValueError(
        f"checkpoint {manager.directory / str(step)} was made with {key} "
        f"{_short(found[key])}, this run has {_short(expected[key])}; use the "
        "data of that run, or another workdir"
      )


def check_versions(
  manager: ocp.CheckpointManager, step: int, found: Meta, expected: Meta
) -> None:
  """Warns if a checkpoint was made with other libraries."""
  if found["versions"] != expected["versions"]:
    log.warning(
      "checkpoint %s was made with %s, here are %s: the continued run may "
      "differ from an uninterrupted one",
      manager.directory / str(step),
      found["versions"],
      expected["versions"],
    )


def abstract_state(state: PyTree, shardings: PyTree) -> PyTree:
  """Shapes, dtypes and shardings of `state`, as `restore` wants them."""
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    state,
    shardings,
  )


def _steps(folder: pathlib.Path) -> list[int]:
  entries = folder.iterdir() if folder.exists() else ()
  return sorted(
    int(entry.name)
    for entry in entries
    if entry.name.isdigit() and _complete(entry)
  )


def _folder(workdir: pathlib.Path, name: str) -> pathlib.Path:
  return workdir.absolute() / name


def _complete(entry: pathlib.Path) -> bool:
  """Whether a checkpoint was written to its end; Orbax writes this last."""
  return (entry / "_CHECKPOINT_METADATA").exists()


def _put_aside(entry: pathlib.Path) -> None:
  aside, count = entry.with_name(f"{entry.name}.incomplete"), 1
  while aside.exists():
    count += 1
    aside = entry.with_name(f"{entry.name}.incomplete{count}")
  log.warning("%s is incomplete; it is now %s", entry, aside.name)
  entry.rename(aside)


def _read(manager, step, args):
  """Restores items of a step; a message instead of Orbax's errors."""
  try:
    return manager.restore(step, args=args)
  except Exception as error:
    reason = host.first_line(error)
    remedy = (
      "If it is damaged, delete this folder to continue from the one before"
    )
    if "structure" in reason:  # of the pytrees
      remedy = (
        "The run was trained with other parts (model, objective, optimizer) "
        "than its config names: give them to train.fit and train.load as parts="
      )
    raise ValueError(
      f"checkpoint {manager.directory / str(step)} cannot be read: "
      f"{reason[:300]}. {remedy}"
    ) from error


def _short(value) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:77]}..."
