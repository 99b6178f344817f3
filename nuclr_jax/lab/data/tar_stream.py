"""Batches from tars that are read from one end to the other, by Grain.

Nothing is indexed, so pairs have no numbers: a position is the state of Grain's
iterator, not a step. The tars are shuffled once an epoch, `TARS` of them are
read at the same time, and of the samples that come from them, `window` at a
time are shuffled.

  tars -> shuffle, repeat -> [samples of each] -> interleave -> shuffle -> batch
"""

from collections import Counter
from collections.abc import Callable, Sequence
import copy
from functools import partial
import itertools
import logging
from typing import Any, NamedTuple
import zlib

import grain
from grain import experimental
from jaxtyping import Float
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data import images, tar_files
from nuclr_jax.lab.data.pair_index import canonical
from nuclr_jax.lab.data.source import Source, random_numbers
from nuclr_jax.lab.data.tar_files import LeftOut, TarSample
from nuclr_jax.types import Batch, Sizes

TARS = 16  # read at the same time
AHEAD = 32  # samples that are read ahead from each of these
MOST_LEFT_OUT = 10_000  # one after another, before it is an error
LARGEST_ID = 2**31 - 1

# (image, random numbers or None) -> a square.
MakeSquare = Callable[
  [images.Image, Float[np.ndarray, "numbers"] | None], images.Resized
]

log = logging.getLogger(__name__)


class Visit(NamedTuple):
  """A sample, or what is none, and when it is visited."""

  content: TarSample | LeftOut
  tar: int  # of the endless list of shuffled tars
  start: int  # in bytes, of what follows it in the tar


class Position(NamedTuple):
  """Where a stream is."""

  first: int  # tar of the endless list that all processes have begun at
  last: int  # tar of the endless list that this process has come to
  state: Any  # of Grain's iterator
  # See `Count.get_state`; None in what earlier versions have saved.
  left_out: Any = None


# `warn(count, text)` warns of what has been left out, see `make_warn`.
Warn = Callable[[int, str], None]


class Count:
  """Counts what a stream leaves out, and says so at 1, 10, 100, ..."""

  def __init__(self, warn: Warn):
    self._warn = warn
    self._total, self._reasons, self._in_a_row = 0, Counter(), 0

  def get_state(self) -> tuple[int, dict[str, int]]:
    """Returns how many there were, and how often each reason.

    It is asked for after a row that is not left out, so none is in a row.
    """
    return self._total, dict(self._reasons)

  def set_state(self, state: Sequence[Any]) -> None:
    """Goes on counting from what `get_state` has returned."""
    self._total, self._reasons, self._in_a_row = state[0], Counter(state[1]), 0

  def is_left_out(self, row: Any) -> bool:
    """Returns whether this is left out.

    Raises:
      ValueError: If `MOST_LEFT_OUT` have been, one after another.
    """
    self._total += 1
    if not isinstance(row, LeftOut):
      self._in_a_row = 0
      return False
    self._in_a_row += 1
    self._reasons[row.reason] += 1
    count = self._reasons.total()
    self._warn(
      count,
      f"{count} of {self._total} samples and files of this process are left "
      f"out: {self._text()}; the last one is {row.key or 'the end'} of "
      f"{row.source}",
    )
    if self._in_a_row >= MOST_LEFT_OUT:
      raise ValueError(
        f"nearly nothing in the tars can be used: {self._text()}; the last "
        f"one is {row.key or 'the end'} of {row.source}; a sample is KEY.jpg "
        "and KEY.txt (or a caption in KEY.json), one after the other"
      )
    return True

  def _text(self) -> str:
    reasons = self._reasons.most_common()
    return ", ".join(f"{count} {reason}" for reason, count in reasons)


def make_warn() -> Warn:
  """Makes the `warn` that the streams of a source share.

  It warns at 1, 10, 100, ... and of each number once, though the first batches
  are read again for each diagnosis of a run.
  """
  said = set()

  def warn(count: int, text: str) -> None:
    if count not in said and count == 10 ** (len(str(count)) - 1):
      said.add(count)
      log.warning(text)

  return warn


def open_stream(
  tars: Sequence[str],
  warn: Warn,
  *,
  num_pairs: int,
  make_square: MakeSquare,
  encode: Callable[[Sequence[str]], np.ndarray],
  share_texts: bool,
  window: int,
  seed: int,
  batch_size: int,
  augment: bool = True,
  process_index: int = 0,
  process_count: int = 1,
  prefetch: int = 4,
  positions: Sequence[Sequence] = (),
) -> grain.DatasetIterator:
  """Opens the endless stream of batches of a process.

  Its `get_state()` is a `Position`, which JSON can hold. The stream from a
  position on is the rest of the stream, bit for bit. If the number of processes
  has changed, tars that no process has begun come next; the rest of those that
  were being read is left for the next epoch.

  Args:
    tars: The tars.
    warn: Warns of what is left out.
    num_pairs: The number of pairs in them, about.
    make_square: Makes a square of an image; augments it by random numbers, if
      there are any.
    encode: The tokenizer.
    share_texts: Whether pairs with the same caption share a text id.
    window: The number of samples that are shuffled at a time.
    seed: The seed of the order and the augmentation.
    batch_size: Pairs in the batches of this process.
    augment: Whether images are augmented.
    process_index: The index of this process, which gets each
      `process_count`-th tar.
    process_count: The number of processes.
    prefetch: Batches that are made ahead of time.
    positions: The positions of all processes, to continue there.

  Raises:
    ValueError: If there are fewer tars than processes, or (while iterating) a
      tar cannot be read, or nearly nothing in the tars can be used.
  """
  if len(tars) < process_count:
    raise ValueError(
      f"{process_count} processes cannot read {len(tars)} tars: each needs at "
      "least one; use fewer processes, or smaller tars"
    )
  positions = [Position(*x) for x in positions]
  go_on = len(positions) == process_count
  first = _first_tar(positions, process_count)
  order = grain.MapDataset.range(len(tars)).seed(seed % 2**32).shuffle()

  def open_tar(number, tar):
    return _Tar(tars[tar], number)

  each_tar = order.repeat().map_with_index(open_tar)
  samples = experimental.InterleaveIterDataset(
    each_tar[first + process_index :: process_count],
    # With more, pairs would come again before others have come once.
    cycle_length=min(TARS, len(tars) // process_count),
    iter_buffer_size=AHEAD,
  )
  window = max(1, min(window, num_pairs // process_count))
  shuffled = experimental.WindowShuffleIterDataset(
    _Afresh(samples), window_size=window, seed=(seed + process_index) % 2**32
  )

  prepare = partial(
    _row,
    num_tars=len(tars),
    seed=seed if augment else None,
    make_square=make_square,
  )
  collate = partial(_batch, encode=encode, share_texts=share_texts)
  rows = _Rows(shuffled, first, batch_size, prepare, warn)
  # One batch is decoded while another is put together.
  ahead = experimental.ThreadPrefetchIterDataset(rows, prefetch_buffer_size=1)
  batches = experimental.ThreadPrefetchIterDataset(
    ahead.map(collate), prefetch_buffer_size=prefetch
  )
  stream = iter(batches)
  if go_on:
    stream.set_state(positions[process_index])
  return stream


def source_of_tars(
  text: str, *, num_pairs: int | None, **options: Any
) -> Source:
  """Makes a source that is a stream; its pairs cannot be read by id.

  Args:
    text: Names the tars, see `tar_files.find_tars`.
    num_pairs: How many pairs an epoch has; None means the number that
      img2dataset has written beside the tars.
    **options: `make_square`, `encode`, `share_texts` and `window` of
      `open_stream`.

  Raises:
    ValueError: If there is no tar, if all are empty, if `num_pairs` is needed,
      or if they cannot hold as many pairs.
  """
  tars = tar_files.find_tars(text)
  tar_files.check_filled(tars)
  num_pairs = tar_files.count_pairs(tars, num_pairs)
  if not num_pairs:
    raise ValueError(
      f"data.num_pairs is missing: how many pairs {text} holds, about, which "
      "is the length of an epoch; it is known only if img2dataset's "
      f"*{tar_files.STATS} files lie beside all tars"
    )

  def not_by_id(*args):
    raise ValueError(
      f"the pairs of {text} are read as a stream, not by id; index the tars "
      f"with nuclr ingest --input='{text}' --dataset=NAME --in_place (they "
      "stay where they are), and name that data set"
    )

  # The same tars in another place are the same data.
  names = repr([tar.rpartition("/")[2] for tar in tars]).encode()
  fingerprint = f"tars/{len(tars)}/{num_pairs}/{zlib.crc32(names):08x}"
  log.info("%s: %d tars, %d pairs in an epoch", text, len(tars), num_pairs)
  return Source(
    Sizes(num_pairs, num_pairs, num_pairs),
    not_by_id,
    not_by_id,
    not_by_id,
    fingerprint,
    open_stream=partial(
      open_stream, tars, make_warn(), num_pairs=num_pairs, **options
    ),
  )


def _first_tar(positions: Sequence[Position], process_count: int) -> int:
  """Returns the tar of the endless list that a stream begins at.

  It warns if the stream cannot go on exactly where it was.
  """
  if len(positions) != process_count:
    if not positions:
      return 0
    log.warning(
      "the number of processes has changed from %d to %d: the stream goes on "
      "with tars that none of them has begun, and leaves out the rest of those "
      "that were being read",
      len(positions),
      process_count,
    )
    return max(x.last for x in positions) + 1
  if any(x.left_out is None for x in positions):
    log.warning(
      "the position in the tars was saved by an earlier version, which did not "
      "say all that had been left out: if anything was, the next samples may "
      "have another order than in an uninterrupted run"
    )
  return positions[0].first


def _row(
  visit: Visit, *, num_tars: int, seed: int | None, make_square: MakeSquare
) -> tuple | LeftOut:
  """Makes a row of a batch: square, caption, image id and text id.

  Args:
    visit: The sample.
    num_tars: The number of tars in an epoch.
    seed: The seed of the augmentation; None = there is none.
    make_square: Makes the square.

  Returns:
    The row, or why there is none.
  """
  sample = visit.content
  if isinstance(sample, LeftOut):
    return sample
  random = None
  if seed is not None:
    (random,) = random_numbers(seed, visit.tar, np.array([visit.start]))
  epoch = visit.tar // num_tars
  caption = sample.captions[epoch % len(sample.captions)]
  try:
    image = images.decode_input(sample.image, min_size=images.MIN_SIZE)
  except ValueError as error:
    return LeftOut(sample.key, sample.source, str(error))
  content = images.content_of(sample.image, image)
  ids = _id(content), _id(canonical(caption).encode())
  return make_square(image, random), caption, *ids


def _batch(
  rows: Sequence[tuple],
  *,
  encode: Callable[[Sequence[str]], np.ndarray],
  share_texts: bool,
) -> Batch:
  """Makes a batch of rows; see `_row`."""
  squares, captions, image_ids, text_ids = zip(*rows, strict=True)
  ids = np.array([image_ids, text_ids], np.int32)
  pair_id = np.array([_id(x.tobytes()) for x in ids.T], np.int32)
  text_id = ids[1] if share_texts else pair_id
  return Batch(np.stack(squares), encode(captions), pair_id, ids[0], text_id)


class _Tar(grain.IterDataset):
  """The samples of a tar, in their order."""

  def __init__(self, path: str, number: int):
    super().__init__()
    self._path, self._number = path, number

  def __iter__(self) -> grain.DatasetIterator:
    return _TarIterator(self._path, self._number)


class _TarIterator(grain.DatasetIterator):
  def __init__(self, path: str, number: int):
    super().__init__()
    self._path, self._number = path, number
    self.set_state({"start": 0, "skip": 0})

  def __next__(self) -> Visit:
    part = files.keep_trying(
      self._path, self._next_part, after_failure=self._begin_again
    )
    self._start, self._skip = part.end, part.skip
    return Visit(part.content, self._number, part.end)

  def get_state(self) -> dict[str, int]:
    return {"start": self._start, "skip": self._skip}

  def set_state(self, state: dict[str, int]) -> None:
    self._start, self._skip = state["start"], state.get("skip", 0)
    self._begin_again()

  def _begin_again(self) -> None:
    parts = tar_files.read_samples(self._path, self._start)
    self._parts = itertools.islice(parts, self._skip, None)

  def _next_part(self) -> tar_files.TarPart:
    return next(self._parts)


class _Afresh(grain.IterDataset):
  """A data set whose iterators begin anew at each state that they are given.

  Grain's interleaving keeps the lists of a state that it is given, and changes
  them: the shuffle, which saves the same state again until its window ends,
  would save tars that do not belong to the places in them.
  """

  def __iter__(self) -> grain.DatasetIterator:
    return _AfreshIterator(self._parent)


class _AfreshIterator(grain.DatasetIterator):
  def __init__(self, dataset: grain.IterDataset):
    super().__init__()
    self._dataset, self._samples = dataset, iter(dataset)

  def __next__(self) -> Visit:
    return next(self._samples)

  def get_state(self) -> Any:
    return copy.deepcopy(self._samples.get_state())

  def set_state(self, state: Any) -> None:
    self._samples.close()
    self._samples = iter(self._dataset)
    self._samples.set_state(copy.deepcopy(state))

  def close(self) -> None:
    super().close()
    self._samples.close()


class _Rows(grain.IterDataset):
  """The rows of batches: what `prepare` makes of samples that can be used."""

  def __init__(self, parent, *arguments):
    super().__init__(parent)
    self._arguments = arguments

  def __iter__(self) -> grain.DatasetIterator:
    return _RowsIterator(iter(self._parent), *self._arguments)


class _RowsIterator(grain.DatasetIterator):
  def __init__(self, parent, first, batch_size, prepare, warn):
    super().__init__(parent)
    self._samples, self._first, self._last = parent, first, first
    self._batch_size = batch_size
    self._prepare, self._count = prepare, Count(warn)

  def __next__(self) -> list:
    rows = []
    while len(rows) < self._batch_size:
      missing = self._batch_size - len(rows)
      visits = (self._visit() for _ in range(missing))
      for row in images.in_threads(self._prepare, visits):
        if not self._count.is_left_out(row):
          rows.append(row)
    return rows

  def _visit(self) -> Visit:
    visit = next(self._samples)
    self._last = max(self._last, visit.tar)
    return visit

  def get_state(self) -> Position:
    of_samples, left_out = self._samples.get_state(), self._count.get_state()
    return Position(self._first, self._last, of_samples, left_out)

  def set_state(self, state: Position) -> None:
    self._first, self._last, of_samples, left_out = Position(*state)
    self._samples.set_state(of_samples)
    self._count.set_state(left_out or (0, {}))


def _id(content: bytes) -> int:
  """Makes a number from content; others rarely have the same."""
  return zlib.crc32(content) & LARGEST_ID
