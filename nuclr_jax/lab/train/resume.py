"""The state that a run starts from: a first one, or that of a checkpoint.

A checkpoint's per-sample rows belong to the ids of its data set. If the data
set has since gained or lost samples, rows follow their samples by keys (see
`data.pair_index`), which are stored beside the checkpoints, and new samples
start with fresh rows.
"""

from collections.abc import Sequence
import importlib.metadata
import logging
import pathlib
from typing import Any
import zlib

import jax
from jax.sharding import Mesh, NamedSharding
import numpy as np
from orbax.checkpoint import CheckpointManager

from nuclr_jax import __version__, sharding
from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.data import Data, Inputs, Resize, without_pairs
from nuclr_jax.lab.data.pair_index import Keys, match_keys, same_data
from nuclr_jax.lab.data.source import HeldOut, fingerprints
from nuclr_jax.lab.data.tokenizer import Tokenizer
from nuclr_jax.lab.models import Model
from nuclr_jax.lab.train import checkpoint
from nuclr_jax.lab.train.average import averaged
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.step import TrainState, init_state, shardings
from nuclr_jax.types import Metrics, Params, PyTree, Sample, Sizes

# Keys of what `window` and `positions` return, in a checkpoint's meta.
WINDOW, POSITIONS = "window", "positions"
# The share of the smaller data set's pairs that the other must contain.
MIN_COMMON = 0.5

log = logging.getLogger(__name__)


def start(
  parts: Experiment, mesh: Mesh, manager: CheckpointManager, step: int | None
) -> TrainState:
  """Returns a checkpoint's state, or a first one, laid out on `mesh`.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run.
    manager: The run's checkpoints.
    step: The step of the checkpoint, or None for a first state.

  Raises:
    ValueError: If the checkpoint cannot be read, or belongs to another
      tokenizer or to a data set that shares too few pairs with this one
      (`MIN_COMMON`).
  """
  if step is None:
    return first_state(parts, mesh)
  log.info("taking the state of step %d from its checkpoint", step)
  expected, saved = meta(parts), checkpoint.read_meta(manager, step)
  # What earlier versions did not record has its default.
  defaults = getattr(parts.data.tokenizer, "_field_defaults", {})
  saved = saved | {"tokenizer": defaults | saved["tokenizer"]}
  workdir = checkpoint.folder_of(manager).parent
  changed = saved["sizes"] != expected["sizes"]
  changed |= not same_data(saved["data"], expected["data"])
  keys = _keys_of_both(workdir, saved["data"], parts) if changed else None
  if changed and keys is None:
    checkpoint.check_meta(manager, step, saved, expected, ("data", "sizes"))
  checkpoint.check_meta(manager, step, saved, expected, ("tokenizer",))
  checkpoint.check_versions(manager, step, saved, expected)
  if parts.reference is not None and not changed:
    checkpoint.check_meta(manager, step, saved, expected, ("reference",))
  init, shapes, layout = _init(parts, mesh)
  abstract = checkpoint.abstract_state(shapes, layout)
  if not changed:
    return checkpoint.restore(manager, step, abstract)
  old_abstract = _with_rows_of(abstract, Sizes(**saved["sizes"]))
  old = checkpoint.restore(manager, step, old_abstract)
  first = jax.jit(init, out_shardings=layout)()
  return _carry_over(old, first, *keys)


def first_state(parts: Experiment, mesh: Mesh) -> TrainState:
  """Makes the state before any step.

  It includes pretrained weights and the popularities of a warm start, if the
  parts have them.

  Raises:
    ValueError: If pretrained weights cannot be read, or do not fit.
  """
  init, _, layout = _init(parts, mesh)
  first = jax.jit(init, out_shardings=layout)()
  params, state = _pretrained(
    parts.model, first.params["model"], first.model_state
  )
  params = first.params | {"model": params}
  first = first._replace(params=params, model_state=state)
  if averaged(first.opt_state) is not None:  # it starts from the loaded weights
    again = jax.jit(parts.optimizer.init, out_shardings=layout.opt_state)
    first = first._replace(opt_state=again(params))
  if parts.popularities is None:
    return first
  return first._replace(
    objective=parts.objective.assign(first.objective, parts.popularities)
  )


def first_model(
  model: Model, mesh: Mesh, *, seed: int
) -> tuple[Params, PyTree]:
  """Makes the model's part of `first_state`: `(params, model_state)`.

  Args:
    model: The model of a run.
    mesh: The mesh; each of its devices gets all weights.
    seed: The seed of the run.
  """
  everywhere = NamedSharding(mesh, sharding.REPLICATED)
  init = jax.jit(model.init, out_shardings=everywhere)
  return _pretrained(model, *init(_first_key(seed)))


def meta(parts: Experiment) -> checkpoint.Meta:
  """Returns what a checkpoint records about its run, apart from the state."""
  data = parts.data
  return {
    "config": parts.settings.recorded,
    "sizes": data.train.sizes._asdict(),
    "data": data.train.fingerprint,
    "validation": fingerprints(data.held_out.get("validation", HeldOut())),
    "reference": parts.reference and parts.reference.identity,
    "tokenizer": data.tokenizer._asdict(),
    "image_shape": list(data.image_shape),
    "resize": data.resize._asdict(),
    "versions": {
      "nuclr_jax": __version__,
      "jax": importlib.metadata.version("jax"),
      "grain": importlib.metadata.version("grain"),
    },
  }


def data_of(manager: CheckpointManager, step: int) -> Data | None:
  """Describes the data of a checkpoint, without opening them.

  Returns None if the checkpoint says too little, for instance because the data
  have no texts or the run is old.
  """
  saved = checkpoint.read_meta(manager, step)
  if len(saved.get("image_shape", ())) != 3 or not saved["tokenizer"]["text"]:
    return None
  inputs = Inputs(
    tuple(saved["image_shape"]),
    Tokenizer(**saved["tokenizer"]),
    Resize(**saved["resize"]),
  )
  return without_pairs(Sizes(**saved["sizes"]), saved["data"], inputs)


def window(manager: CheckpointManager, step: int) -> list[tuple[int, Metrics]]:
  """Returns the steps before a checkpoint that the history does not have yet.

  Without them, the first line after an interruption would average fewer steps.
  """
  saved = checkpoint.read_meta(manager, step) if step else {}
  return [(at, metrics) for at, metrics in saved.get(WINDOW, ())]


def more_meta(
  window: Sequence[tuple[int, Metrics]], positions: Sequence[Any]
) -> checkpoint.Meta:
  """Returns what a checkpoint records about its step, apart from the state.

  It is a copy, since Orbax writes it later.

  Args:
    window: Steps whose metrics the history does not have yet, see `window`.
    positions: See `positions`.
  """
  return {WINDOW: list(window), POSITIONS: list(positions)}


def positions(manager: CheckpointManager, step: int) -> list[Any]:
  """Returns where a checkpoint's processes were in a stream of tars.

  Without a stream, or a checkpoint, there are none: [].
  """
  saved = checkpoint.read_meta(manager, step) if step else {}
  return saved.get(POSITIONS, [])


def write_keys(workdir: pathlib.Path, parts: Experiment) -> None:
  """Writes the keys of the run's data beside its checkpoints, once."""
  source = parts.data.train
  path = _keys_path(workdir, source.fingerprint)
  if source.keys is None or path.exists() or not distributed.is_first():
    return
  with files.replacing(path) as new, new.open("wb") as file:
    np.savez(file, **source.keys()._asdict())


def _init(parts: Experiment, mesh: Mesh):
  """Returns the function that makes the first state, its shapes and layout."""
  settings = parts.settings
  key = _first_key(settings.seed)

  def init():
    return init_state(parts.model, parts.objective, parts.optimizer, key)

  shapes = jax.eval_shape(init)
  _check_rows(shapes.objective.sample, parts.data.train.sizes)
  layout = shardings(
    mesh,
    shapes,
    shard_params=settings.shard_params,
    offload_rows=settings.offload_rows,
  )
  return init, shapes, layout


def _check_rows(sample: Sample, sizes: Sizes) -> None:
  """Raises ValueError unless per-sample state has the sizes of the data."""
  for name, rows, size in zip(Sample._fields, sample, sizes, strict=True):
    for x in jax.tree.leaves(rows):
      if len(x) != sharding.padded(size):
        raise ValueError(
          f"the objective has state for another number of {name} ids than the "
          f"training data, which have {size}; make the parts for these data "
          "with nuclr_jax.build(config, data=...)"
        )


def _first_key(seed: int) -> jax.Array:
  return jax.random.fold_in(jax.random.key(seed), 0)


def _pretrained(model: Model, params: Params, state: PyTree):
  """Loads pretrained weights in place of these, with the same layout."""
  if model.load is None:
    return params, state
  old = (params, state)

  def put(new, old):
    if new is old:
      return old
    return sharding.put(np.asarray(new, old.dtype), old.sharding)

  return jax.tree.map(put, model.load(*old), old)


def _keys_of_both(workdir, fingerprint: str, parts) -> tuple[Keys, Keys] | None:
  """Returns the keys of a checkpoint's data and the run's, if both have keys.

  Raises:
    ValueError: If too few pairs are in both.
  """
  path, keys = _keys_path(workdir, fingerprint), parts.data.train.keys
  if keys is None or not path.exists():
    return None
  arrays = files.read_arrays(path)
  with files.reading(path):
    old = Keys(*(arrays[name] for name in Keys._fields))
  new = keys()
  share = np.isin(new.pair, old.pair).sum() / min(len(old.pair), len(new.pair))
  if share < MIN_COMMON:
    raise ValueError(
      f"{workdir} holds checkpoints of the data {fingerprint}, this run has "
      f"{parts.data.train.fingerprint}: {share:.0%} of the smaller one's pairs "
      f"are in both, {MIN_COMMON:.0%} are needed; use the data of that run, or "
      "another workdir"
    )
  return old, new


def _keys_path(workdir: pathlib.Path, fingerprint: str) -> pathlib.Path:
  return workdir / f"keys_{zlib.crc32(fingerprint.encode()):08x}.npz"


def _with_rows_of(abstract: TrainState, sizes: Sizes) -> TrainState:
  """Gives per-sample state the shapes for a data set of other sizes."""

  def resize(tree, num_rows):
    rows = sharding.padded(num_rows)
    return jax.tree.map(lambda x: x.update(shape=(rows, *x.shape[1:])), tree)

  sample = Sample(*map(resize, abstract.objective.sample, sizes))
  return abstract._replace(objective=abstract.objective._replace(sample=sample))


def _carry_over(
  old: TrainState, first: TrainState, old_keys: Keys, new_keys: Keys
) -> TrainState:
  """Carries an old state over to the samples of a changed data set.

  The rows of any objective follow their samples; a memory of pairs holds old
  ids, so it starts afresh. The averages u of carried rows keep the scale of the
  old number of pairs, until the next visits change it.
  """
  before = Keys(*map(match_keys, old_keys, new_keys))

  def carry_group(rows: PyTree, fresh: PyTree, before) -> PyTree:
    common = np.flatnonzero(before >= 0)

    def carry(rows, fresh):
      carried = sharding.fetch(rows)[before[common]]
      return sharding.replace_rows(fresh, common, carried)

    return jax.tree.map(carry, rows, fresh)

  sample = Sample(
    *map(carry_group, old.objective.sample, first.objective.sample, before)
  )
  for name, ids, lost in zip(Keys._fields, before, old_keys, strict=True):
    new = np.sum(ids < 0)
    log.warning(
      "the data set has changed: of %d %ss, %d are new and start unvisited; "
      "%d old ones are gone",
      len(ids),
      name,
      new,
      len(lost) - (len(ids) - new),
    )
  state = old.objective._replace(sample=sample, memory=first.objective.memory)
  return old._replace(objective=state)
