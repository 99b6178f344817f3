"""The batches that a run trains on, and a fixed sample to measure it with."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import itertools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
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
  epoch; of a stream, they are the first ones.

  Args:
    parts: The parts of a run.
    count: The number of batches; they have no pair in common.

  Returns:
    The function; it yields the rows of this process.
  """
  source, seed = _source(parts), parts.settings.seed
  batch_size = parts.settings.batch_size
  if source.open_stream is not None:

    def read_stream():
      with _open(parts) as stream:
        yield from itertools.islice(stream, count)

    return read_stream
  batches = np.random.default_rng(seed).choice(
    source.sizes.num_pairs, (count, batch_size), replace=False
  )

  def read():
    for ids in distributed.rows_of_process(batches):
      yield source.fetch(ids, random_numbers(seed, 0, ids))

  return read


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
