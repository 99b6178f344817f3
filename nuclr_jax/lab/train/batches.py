"""The batches that a run trains on, and a fixed sample to measure it with."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import itertools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Int
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab import distributed
from nuclr_jax.lab.data.source import Source, random_numbers
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.types import Batch, PyTree


@contextlib.contextmanager
def open_batches(
  parts: Experiment, mesh: Mesh, step: int, *, at: Sequence[Any] = ()
) -> Iterator[tuple[Iterator[Batch], Callable[[], list[Any]]]]:
  """Opens the stream of batches after a step, on the devices.

  Args:
    parts: The parts of a run.
    mesh: The mesh of the run.
    step: The step, 0 for the beginning.
    at: Where all processes were in a stream of tars after this step.

  Yields:
    The stream, and a function that returns where all processes are in a stream
    of tars; [] if the step says it all.
  """
  rows = NamedSharding(mesh, sharding.ROWS)
  with _open(
    parts,
    start_step=step,
    num_workers=parts.settings.num_workers,
    positions=at,
  ) as stream:

    def now_at():
      if parts.data.train.open_stream is None:
        return []
      return distributed.of_all(stream.get_state())

    yield (put_own(batch, rows) for batch in stream), now_at


def fixed_batches(
  parts: Experiment, count: int
) -> Callable[[], Iterator[Batch]]:
  """Makes a function that reads the same training batches each time.

  They have random pairs, chosen by the run's seed and augmented as in the first
  epoch; of a stream, they are the first ones. Where the source has shares, each
  batch has as many pairs of a share as a training batch. No pair is twice in a
  batch, and none is in two batches, unless all whole batches of its share are
  used up: the share then begins anew, augmented as in its next epoch.

  Args:
    parts: The parts of a run.
    count: The number of batches; of a source without shares, at most those of
      an epoch.

  Returns:
    The function; it yields the rows of this process.
  """
  source, seed = _source(parts), parts.settings.seed
  if source.open_stream is not None:

    def read_stream():
      with _open(parts) as stream:
        yield from itertools.islice(stream, count)

    return read_stream
  batches = map(
    distributed.rows_of_process,
    _fixed_ids(source, count, parts.settings.batch_size, seed),
  )
  ids, epochs = map(list, batches)

  def read():
    for pair_ids, epoch in zip(ids, epochs, strict=True):
      yield source.fetch(pair_ids, random_numbers(seed, epoch, pair_ids))

  return read


def _fixed_ids(
  source: Source, count: int, batch_size: int, seed: int
) -> tuple[Int[np.ndarray, "count batch"], Int[np.ndarray, "count batch"]]:
  """Draws the pairs of fixed batches, and the epoch that each looks as in."""
  rng = np.random.default_rng(seed)
  if not source.shares:
    ids = rng.choice(source.sizes.num_pairs, (count, batch_size), replace=False)
    return ids, np.zeros_like(ids)
  from nuclr_jax.lab.data import loader  # as in `_open`

  taken = loader.shares_of_batch(source.shares, batch_size)
  ids, epochs, first = [], [], 0
  for share, columns in zip(source.shares, taken, strict=True):
    whole = share.num_pairs // columns  # batches in an epoch of the share
    blocks = [
      rng.choice(share.num_pairs, (min(whole, left), columns), replace=False)
      for left in range(count, 0, -whole)
    ]
    ids.append(first + np.concatenate(blocks))
    epoch = np.arange(count)[:, None] // whole
    epochs.append(np.broadcast_to(epoch, ids[-1].shape))
    first += share.num_pairs
  places = loader.evenly(taken)
  return tuple(np.concatenate(x, axis=1)[:, places] for x in (ids, epochs))


def _source(parts: Experiment) -> Source:
  """Returns the training pairs, with their reference if there is one."""
  source, reference = parts.data.train, parts.reference
  return source if reference is None else reference.beside(source)


def _open(parts, **options):
  """Opens the stream of the rows of this process."""
  from nuclr_jax.lab.data import (
    loader,  # here, so that this module needs no Grain
  )

  return loader.batches(
    _source(parts),
    batch_size=parts.settings.batch_size,
    seed=parts.settings.seed,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
    **options,
  )


def put_own(batch: PyTree, layout: NamedSharding) -> PyTree:
  """Lays out a batch of which every process has its own rows."""
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(layout, x), batch
  )
