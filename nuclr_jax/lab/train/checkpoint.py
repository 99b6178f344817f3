"""Checkpoints of the training state and of what it belongs to, with Orbax.

A checkpoint holds a pytree (step, parameters, model state, optimizer state and
per-sample state) and a JSON `meta`: the config, the sizes and fingerprint of
the data, the tokenizer, the shape of an image, and the versions of the
libraries that decide the order of the data. Which pairs have been visited
follows from the step. Saves are asynchronous and atomic. Each has the digests
of its files; a damaged checkpoint is named, and the one before it is used.

A workdir has two folders of checkpoints: the newest ones, and the one that
scored best on validation, see `best`.
"""

import atexit
from collections.abc import Sequence
import functools
import json
import logging
import math
import pathlib
import re
import shutil
import tempfile
from typing import Any

from etils import epath
import jax
import orbax.checkpoint as ocp
import tensorstore

from nuclr_jax.lab import distributed, files, progress
from nuclr_jax.types import PyTree

log = logging.getLogger(__name__)

Meta = dict[str, Any]

NEWEST, BEST = "checkpoints", "best"  # folders of a workdir
# Written last by Orbax; nothing that is restored depends on its content.
METADATA = "_CHECKPOINT_METADATA"
# What Orbax or TensorStore take for more than a character of a name.
SPECIAL = re.compile(r"[\[\]*?\\:\ud800-\udfff]")


def open_to_write(
  workdir: pathlib.Path, *, max_to_keep: int = 2, name: str = NEWEST
) -> ocp.CheckpointManager:
  """Opens the checkpoints of a workdir for writing.

  A folder that a killed run left incomplete is renamed to `<step>.incomplete`,
  and a damaged checkpoint to `<step>.damaged`, so that neither reading nor
  writing trips over them. Only one run at a time may open the checkpoints for
  writing.

  Args:
    workdir: Folder of the run; created if missing.
    max_to_keep: How many checkpoints to keep; older ones are deleted.
    name: The folder of checkpoints, `NEWEST` or `BEST`.

  Raises:
    ValueError: If all checkpoints of `NEWEST` are damaged, or there is a link
      among them. Nothing is renamed then.
  """
  folder = _folder(workdir, name)
  files.check_no_links(folder)  # before old ones are deleted
  with distributed.first_before_others("checkpoints of killed runs"):
    if distributed.is_first() and folder.exists():
      for entry in folder.iterdir():
        if entry.name.isdigit() and not _complete(entry):
          log.warning("%s is incomplete", entry)
          _move_aside(entry, "incomplete")
      step = _newest_intact(folder)
      if step is None and name == BEST and steps(workdir, name=name):
        log.warning(
          "%s: the state that scored best is lost; the best from now on is "
          "kept",
          folder,
        )
      elif step is None and steps(workdir, name=name):
        _raise_no_intact(folder)
      for damaged in steps(workdir, name=name):
        if step is None or damaged > step:
          _move_aside(folder / str(damaged), "damaged")
  plain = _plain(files.folder_in(folder.parent, folder.name))
  options = ocp.CheckpointManagerOptions(
    max_to_keep=max_to_keep,
    cleanup_tmp_directories=True,
    async_options=ocp.AsyncOptions(
      post_finalization_callback=lambda: _write_digests(plain)
    ),
  )
  return ocp.CheckpointManager(plain, options=options)


def open_to_read(
  workdir: pathlib.Path, *, name: str = NEWEST
) -> tuple[ocp.CheckpointManager, int]:
  """Opens the checkpoints of a workdir for reading.

  Nothing is changed, so the run may be in progress.

  Args:
    workdir: Folder of the run.
    name: The folder of checkpoints, `NEWEST` or `BEST`.

  Returns:
    `(manager, step)`, with the step of the newest checkpoint that is complete
    and not damaged.

  Raises:
    ValueError: If there is none.
  """
  folder = _folder(workdir, name)
  if not steps(workdir, name=name):
    hint = "train first" if name == NEWEST else "train with --config.keep_best"
    raise ValueError(f"{folder} holds no complete checkpoint; {hint}")
  step = _newest_intact(folder)
  if step is None:
    _raise_no_intact(folder)
  options = ocp.CheckpointManagerOptions(create=False)
  return ocp.CheckpointManager(_plain(folder), options=options), step


def folder_of(manager: ocp.CheckpointManager) -> pathlib.Path:
  """Returns the folder of a manager's checkpoints, in the workdir."""
  folder = pathlib.Path(manager.directory)
  return folder if folder.name in (NEWEST, BEST) else folder.readlink()


def of_newest(names: Sequence[str]) -> list[str]:
  """Chooses the files of a workdir without its older checkpoints.

  Args:
    names: Names of files in the workdir, as `files.remote.fetch` lists them.

  Example:
    >>> of_newest([f"checkpoints/{x}/{METADATA}" for x in (9, 10)] + ["x"])
    ['checkpoints/10/_CHECKPOINT_METADATA', 'x']
  """
  found = [(x, pathlib.PurePosixPath(x).parts) for x in names]
  newest: dict[str, int] = {}
  for _, parts in found:
    if len(parts) == 3 and parts[1].isdigit() and parts[2] == METADATA:
      newest[parts[0]] = max(newest.get(parts[0], 0), int(parts[1]))
  return [
    name
    for name, parts in found
    if parts[0] not in (NEWEST, BEST)
    or (len(parts) > 2 and parts[1] == str(newest.get(parts[0])))
  ]


def steps(workdir: pathlib.Path, *, name: str = NEWEST) -> list[int]:
  """Lists the steps of the complete checkpoints, in ascending order."""
  return _steps(_folder(workdir, name))


def latest(manager: ocp.CheckpointManager) -> int | None:
  """Returns the step of the newest complete checkpoint, or None."""
  return max(_steps(folder_of(manager)), default=None)


def save(
  manager: ocp.CheckpointManager, step: int, state: PyTree, meta: Meta
) -> None:
  """Starts to save a state; `manager.wait_until_finished()` waits for it."""
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
    manager: A manager from `open_to_read` or `open_to_write`.
    step: The step, such as `latest(manager)`.
    abstract: The state as `jax.ShapeDtypeStruct`s with shardings, see
      `abstract_state`; the number of devices may differ from that of the run.

  Raises:
    ValueError: If the checkpoint cannot be read; the message names the folder.
  """
  only_state = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
  return _read(manager, step, only_state).state


def read_meta(manager: ocp.CheckpointManager, step: int) -> Meta:
  """Reads the meta of a checkpoint: which config and data it belongs to.

  Raises:
    ValueError: If the checkpoint cannot be read.
  """
  only_meta = ocp.args.Composite(meta=ocp.args.JsonRestore())
  return _read(manager, step, only_meta).meta


def check_meta(
  manager: ocp.CheckpointManager,
  step: int,
  saved: Meta,
  expected: Meta,
  keys: Sequence[str],
) -> None:
  """Raises ValueError if a checkpoint does not belong to a run.

  Args:
    manager: A manager from `open_to_read` or `open_to_write`.
    step: The step of the checkpoint.
    saved: The checkpoint's meta.
    expected: The meta of the run.
    keys: The entries that must be equal.
  """
  for key in keys:
    if saved[key] != expected[key]:
      raise ValueError(
        f"checkpoint {folder_of(manager) / str(step)} was made with {key} "
        f"{_short(saved[key])}, but this run has {_short(expected[key])}; use "
        "the data of that run, or another workdir"
      )


def check_versions(
  manager: ocp.CheckpointManager, step: int, saved: Meta, expected: Meta
) -> None:
  """Warns if a checkpoint was made with other versions of the libraries.

  Args:
    manager: A manager from `open_to_read` or `open_to_write`.
    step: The step of the checkpoint.
    saved: The checkpoint's meta.
    expected: The meta of the run.
  """
  if saved["versions"] != expected["versions"]:
    log.warning(
      "checkpoint %s was made with %s, but this run uses %s: its numbers may "
      "differ from those of an uninterrupted run",
      folder_of(manager) / str(step),
      saved["versions"],
      expected["versions"],
    )


def abstract_state(state: PyTree, shardings: PyTree) -> PyTree:
  """Describes a state as `restore` expects it: shapes, dtypes and shardings."""
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


@functools.cache
def _plain(folder: pathlib.Path) -> pathlib.Path:
  """Returns a path to a folder that the libraries below take literally.

  Orbax looks for files with the folder's path as a part of a pattern, and
  TensorStore and etils read other separators, and schemes, out of a path. A
  folder whose path has any of these is reached through a link, which is there
  until this process ends; one that is killed leaves it.

  Raises:
    ValueError: If the link would have such a path, too.
  """
  if _is_plain(folder):
    return folder
  place = pathlib.Path(tempfile.mkdtemp(prefix="nuclr-"))
  atexit.register(shutil.rmtree, place, ignore_errors=True)
  if not _is_plain(place):
    raise ValueError(
      f"the folder for temporary files, {place.parent}, has one of the "
      "characters [ ] * ? \\ : in its path; set the environment variable "
      "TMPDIR to another one"
    )
  link = place / "link"
  link.symlink_to(folder)
  return link


def _is_plain(folder: pathlib.Path) -> bool:
  text = str(folder)
  return not SPECIAL.search(text) and str(epath.Path(text)) == text


def _complete(entry: pathlib.Path) -> bool:
  """Returns whether a checkpoint is complete."""
  return (entry / METADATA).exists()


def _newest_intact(folder: pathlib.Path) -> int | None:
  """Returns the step of the newest checkpoint that is as it was written."""
  damaged = []
  for step in reversed(_steps(folder)):
    entry, wrong = folder / str(step), []
    if files.has_digests(entry):
      wrong = files.damage(entry)
    else:
      log.warning("%s has no digests, so it cannot be verified", entry)
    if not wrong:
      if damaged:
        log.warning(
          "the checkpoint of step %d is used; what steps %d to %d did is lost",
          step,
          step + 1,
          damaged[0],
        )
      return step
    log.warning("%s is damaged: %s", entry, files.join_damage(wrong))
    damaged.append(step)
  return None


def _raise_no_intact(folder: pathlib.Path) -> None:
  raise ValueError(
    f"all checkpoints in {folder} are damaged (see the lines above); copy them "
    "again if there is a copy, or delete the folder to start again"
  )


def _write_digests(folder: pathlib.Path) -> None:
  """Writes the digests of the checkpoint that Orbax is about to complete.

  Raises:
    ValueError: If not all of the state has been written. The checkpoint then
      does not get its name, and nobody relies on it.
  """
  if not distributed.is_first():
    return
  for entry in folder.glob("*.orbax-checkpoint-tmp*"):
    if lacking := _lacking(entry / "state"):
      raise ValueError(
        f"the checkpoint {entry.resolve()} was not written completely: of "
        f"{len(lacking)} array(s), such as {lacking[0]}, numbers are missing; "
        "see that all processes write to the same file system, and that it "
        "shows at once what they have written"
      )
    files.write_digests(entry, besides=[METADATA])


def _lacking(state: pathlib.Path) -> list[str]:
  """Lists the arrays of a state that were not written in full.

  Each process writes its part of the arrays, which Orbax then merges into one
  store. Nothing but the keys of the store is read: the descriptions of the
  arrays, and the names of their chunks.
  """
  tree = json.loads((state / "_METADATA").read_text(encoding="utf-8"))
  names = {
    ".".join(part["key"] for part in leaf["key_metadata"])
    for leaf in tree["tree_metadata"].values()
    if not leaf["value_metadata"]["skip_deserialize"]
  }
  file = {"driver": "file", "path": f"{state}/"}
  store = tensorstore.KvStore.open({"driver": "ocdbt", "base": file}).result()
  chunks = dict.fromkeys(names, 0)
  for key in store.list().result():
    name, _, chunk = key.decode().rpartition("/")
    chunks[name] = chunks.get(name, 0) + (chunk != ".zarray")

  def expected(name):
    array = store.read(f"{name}/.zarray").result().value
    if not array:
      return math.inf
    array = json.loads(array)
    sizes = zip(array["shape"], array["chunks"], strict=True)
    return math.prod(-(-size // chunk) for size, chunk in sizes)

  return sorted(x for x in names if chunks[x] < expected(x))


def _move_aside(entry: pathlib.Path, why: str) -> None:
  aside, count = entry.with_name(f"{entry.name}.{why}"), 1
  while aside.exists():
    count += 1
    aside = entry.with_name(f"{entry.name}.{why}{count}")
  log.warning("%s is renamed to %s", entry, aside.name)
  entry.rename(aside)


def _read(manager, step, args):
  """Restores items of a step; adds a remedy to the errors of Orbax."""
  try:
    return manager.restore(step, args=args)
  except Exception as error:
    reason = progress.first_line(error)
    remedy = (
      "If it is damaged, delete this folder to continue from the checkpoint "
      "before it"
    )
    if "structure" in reason:  # the pytrees differ
      remedy = (
        "The run was trained with other parts (model, objective, optimizer) "
        "than its config names: pass them to fit and load as parts="
      )
    raise ValueError(
      f"checkpoint {folder_of(manager) / str(step)} cannot be read: "
      f"{reason[:300]}. {remedy}"
    ) from error


def _short(value) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:77]}..."
