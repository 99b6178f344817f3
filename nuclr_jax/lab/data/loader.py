"""The stream of training batches: a pure function of seed and step.

The position is one integer, the step; no other state needs saving, except that
of a stream of tars (see `tar_stream`). Every epoch visits the pairs in a new
order and each pair at most once: the n mod batch_size pairs at the end of the
order are left out, different ones in each epoch.

Where a source has shares, each of them is such a stream of its own. Every batch
has the same number of pairs of a share, so one with few pairs and a great
weight begins its next epoch while others are still in their first.
"""

from collections.abc import Iterator, Sequence
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from typing import Any, NamedTuple

import grain
from grain import experimental
from jaxtyping import Int
import numpy as np

from nuclr_jax.lab import distributed
from nuclr_jax.lab.data.source import Share, Source, random_numbers
from nuclr_jax.types import Batch, Sizes, check_32_bits

LAST_STEP = 2**31  # steps are counted in int32
GRACE = 30  # seconds in which schedulers let a command end

log = logging.getLogger(__name__)


class Stream(NamedTuple):
  """The endless stream of the ids of a share."""

  ids: grain.MapDataset  # step -> ids of the pairs in a batch
  steps: int  # in an epoch
  first: int  # the first id


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
  num_threads: int = 2,
  num_workers: int = 0,
  prefetch: int = 4,
  positions: Sequence[Any] = (),
) -> Iterator[grain.DatasetIterator[Batch]]:
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
    num_threads: Threads that make batches, so that one reads while another one
      decodes; their number does not change the batches.
    num_workers: Processes that make batches instead of threads; their number
      does not change the batches either.
    prefetch: Batches that each worker makes ahead of time.
    positions: Where all processes were in a stream of tars, in place of
      `start_step`: what `get_state()` of their iterators returned.

  Yields:
    The iterator, closed at the end of the `with` block.

  Raises:
    ValueError: If the batch size does not fit the data or the processes, or
      (while iterating) if the source returns an id that is out of range.

  Example:
    >>> with batches(source, batch_size=4, seed=0) as stream:
    ...   batch = next(stream)  # doctest: +SKIP
  """
  if batch_size % process_count:
    raise ValueError(
      f"the number of processes must divide the batch size, got "
      f"{process_count} processes and batch_size {batch_size}"
    )
  share = batch_size // process_count
  if source.open_stream is not None:
    if num_workers:
      raise ValueError(
        f"num_workers is {num_workers}, but a stream of tars is read by "
        "threads; set num_workers to 0"
      )
    stream = source.open_stream(
      seed=seed,
      batch_size=share,
      augment=augment,
      process_index=process_index,
      process_count=process_count,
      prefetch=prefetch,
      positions=positions,
    )
    with contextlib.closing(stream):
      yield stream
    return
  streams = _streams(source, batch_size, seed)
  mine = slice(process_index * share, (process_index + 1) * share)

  def load(step):
    ids = [x.first + x.ids[step] for x in streams]
    places = evenly([len(x) for x in ids])[mine]
    pair_ids = np.concatenate(ids)[places]
    epochs = np.repeat([step // x.steps for x in streams], list(map(len, ids)))
    random = None
    if augment:
      random = random_numbers(seed, epochs[places], pair_ids)
    batch = source.fetch(pair_ids, random)
    check_ids(batch, source.sizes)
    return batch

  data = grain.MapDataset.range(LAST_STEP).map(load)
  options = grain.ReadOptions(
    num_threads=num_threads, prefetch_buffer_size=prefetch
  )
  data = data[start_step:].to_iter_dataset(options)
  if num_workers:
    workers = grain.MultiprocessingOptions(num_workers, prefetch)
    data = data.mp_prefetch(workers, _begin_worker)
    # Its thread starts the processes, and they get the signals that it gets.
    data = experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=1)
  with contextlib.closing(iter(data)) as stream:
    if num_workers:
      with distributed.starting_processes():
        stream.start_prefetch()
    yield stream


def shares_of_batch(shares: Sequence[Share], batch_size: int) -> list[int]:
  """Returns how many pairs of each share a batch has.

  Args:
    shares: The shares of a source.
    batch_size: Pairs in the global batch.

  Raises:
    ValueError: If a share would have no pair in a batch, or not enough pairs
      for one.

  Example:
    >>> shares = Share("cc3m", 3_000_000, 2.0), Share("mine", 5_000, 1.0)
    >>> shares_of_batch(shares, 512)
    [341, 171]
  """
  weights = np.array([x.weight for x in shares], float)
  weights /= weights.max()  # their sum may be beyond all numbers
  exact = batch_size * weights / weights.sum()
  counts = np.floor(exact).astype(int)
  most_cut = np.argsort(counts - exact, kind="stable")
  counts[most_cut[: batch_size - counts.sum()]] += 1
  for share, count in zip(shares, counts, strict=True):
    if not 1 <= count <= share.num_pairs:
      raise ValueError(
        f"the weights take {count} of the {share.num_pairs} pairs of "
        f"{share.name} for each batch of {batch_size}; change data.weights or "
        "batch_size so that this is at least 1, and at most all of them"
      )
  return counts.tolist()


def _streams(source: Source, batch_size: int, seed: int) -> list[Stream]:
  """Makes the stream of each share; without shares, that of all pairs."""
  sizes, counts = [source.sizes.num_pairs], [batch_size]
  if source.shares:
    sizes = [share.num_pairs for share in source.shares]
    counts = shares_of_batch(source.shares, batch_size)
    mixed = zip(counts, source.shares, strict=True)
    log.info(
      "a batch has %s",
      " and ".join(f"{count} pairs of {share.name}" for count, share in mixed),
    )
  streams, first = [], 0
  for i, (size, count) in enumerate(zip(sizes, counts, strict=True)):
    ids = epoch_ids(size, batch_size=count, seed=(seed + i) % 2**32)
    whole = ids.batch(count, drop_remainder=True)
    streams.append(Stream(whole.repeat(), len(whole), first))
    first += size
  return streams


def _begin_worker(index: int, count: int) -> None:
  """Ends this process with its parent, or `GRACE` seconds after SIGTERM.

  Schedulers send it to all processes of a command; the parent needs batches to
  finish its step.
  """
  del index, count
  signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def evenly(counts: Sequence[int]) -> Int[np.ndarray, "batch"]:
  """Orders blocks of a batch such that any part of it has its share of each.

  A part is a run of places, which a process has, or every k-th place, which a
  microbatch has: its shares vary about as in a random order, since places are
  drawn within strata, by fixed numbers. A periodic order, such as A, B, A, B,
  would put all of A into one microbatch.

  Args:
    counts: The sizes of the blocks.

  Returns:
    For each place of the batch, what is there, counted through all blocks.

  Example:
    >>> evenly([4, 2]).tolist()
    [0, 1, 4, 2, 3, 5]
  """
  rng = np.random.default_rng(0)
  at = [(np.arange(count) + rng.random(count)) / count for count in counts]
  return np.argsort(np.concatenate(at), kind="stable")


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
  check_32_bits("label", batch.label)
