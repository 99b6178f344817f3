"""The stream of training batches: a pure function of seed and step.

The position is one integer, the step; no other state needs saving. Every
epoch visits the pairs in a new order and each pair at most once: the
n mod batch_size pairs at the end of the order are left out, different ones in
each epoch.
"""

from collections.abc import Iterator
import contextlib

import grain

from nuclr_jax.data.source import Source, random_numbers
from nuclr_jax.types import Batch, Sizes


@contextlib.contextmanager
def batches(
  source: Source,
  *,
  batch_size: int,
  seed: int,
  start_step: int = 0,
  augment: bool = True,
  process_index: int = 0,
  process_count: int = 1,
  num_threads: int = 1,
  num_workers: int = 0,
  prefetch: int = 4,
) -> Iterator[Iterator[Batch]]:
  """Opens the endless stream of NumPy batches, starting at `start_step`.

  Args:
    source: The training pairs.
    batch_size: Pairs in the global batch; `process_count` must divide it.
    seed: The seed of the order and the augmentation.
    start_step: The first step; the stream from k on is the stream from 0
      without its first k batches.
    augment: Whether the source augments its images, by random numbers that are
      a function of seed, epoch and pair id.
    process_index: The index of this process, which gets the process_index-th of
      `process_count` consecutive parts of each batch.
    process_count: Number of processes.
    num_threads: Threads that make batches; their number does not change the
      batches.
    num_workers: Processes that make batches instead of threads; their number
      does not change the batches either.
    prefetch: Batches that each worker makes ahead of time.

  Yields:
    The iterator, closed at the end of the `with` block.

  Raises:
    ValueError: If the batch size does not fit the data or the processes, or
      (while iterating) if the source returns an id that is out of range.

  Example:
    >>> with batches(source, batch_size=4, seed=0) as stream:
    ...   batch = next(stream)  # doctest: +SKIP
  """
  ids = epoch_ids(source.sizes.num_pairs, batch_size=batch_size, seed=seed)
  if batch_size % process_count:
    raise ValueError(
      f"the number of processes must divide the batch size, got "
      f"{process_count} processes and batch_size {batch_size}"
    )
  share = batch_size // process_count
  mine = slice(process_index * share, (process_index + 1) * share)

  whole = ids.batch(batch_size, drop_remainder=True)

  def load(step, pair_ids):
    pair_ids = pair_ids[mine]
    epoch = step // len(whole)
    random = random_numbers(seed, epoch, pair_ids) if augment else None
    batch = source.fetch(pair_ids, random)
    check_ids(batch, source.sizes)
    return batch

  data = whole.repeat().map_with_index(load)
  options = grain.ReadOptions(
    num_threads=num_threads, prefetch_buffer_size=prefetch
  )
  data = data[start_step:].to_iter_dataset(options)
  if num_workers:
    workers = grain.MultiprocessingOptions(num_workers, prefetch)
    data = data.mp_prefetch(workers)
  stream = iter(data)
  try:
    yield stream
  finally:
    stream.close()


def epoch_ids(
  num_pairs: int, *, batch_size: int, seed: int
) -> grain.MapDataset:
  """Shuffles the ids of one epoch; `.repeat()` shuffles them anew each time.

  Raises:
    ValueError: If the data set is smaller than one batch.
  """
  if not 1 <= batch_size <= num_pairs:
    raise ValueError(
      f"batch_size must be in [1, number of pairs = {num_pairs}], got "
      f"{batch_size}"
    )
  shuffled = grain.MapDataset.range(num_pairs).seed(seed).shuffle()
  return shuffled[: num_pairs - num_pairs % batch_size]


def check_ids(batch: Batch, sizes: Sizes) -> None:
  """Raises ValueError for ids that have no row of per-sample state.

  Example:
    >>> ids = np.array([0, 7])
    >>> check_ids(Batch(None, None, ids), Sizes(4, 4, 4))
    Traceback (most recent call last):
    ...
    ValueError: pair_id must be in [0, 4), found 7
  """
  limits = zip(("pair_id", "image_id", "text_id"), sizes, strict=True)
  for name, size in limits:
    ids = getattr(batch, name)
    if ids is None:
      continue
    wrong = ids[(ids < 0) | (ids >= size)]
    if wrong.size:
      raise ValueError(f"{name} must be in [0, {size}), found {wrong[0]}")
