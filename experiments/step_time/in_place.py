"""Measures training on tar files where they lie against a copy; prints JSON.

python -m experiments.step_time.in_place [--seconds=5] [--rounds=5]

The photos are those of `photos.py`, in several tars as img2dataset writes them.
For a copy (`nuclr ingest`) and for an index (`--in_place`), it measures the
seconds to make it from a gigabyte of tars, its size as a share of theirs,
images per second that are read at random, as they are stored, and images per
second of the stream of augmented batches, in threads. For slow storage, each
read of the index waits `--latency` milliseconds. Tars that are read from one
end to the other, without an index, have only a stream. All is in the page
cache, and the variants are run in alternation.
"""

from collections.abc import Callable
import pathlib
from statistics import median
import tempfile
import time

from absl import app, flags
import numpy as np

from experiments.harness import benchmark
from experiments.step_time import photos
from nuclr_jax.lab import ingest
from nuclr_jax.lab.data import in_place
from nuclr_jax.lab.data.captioned import Captioned, all_captions, open_captioned
from nuclr_jax.lab.data.image_text import captioned_source, square_maker
from nuclr_jax.lab.data.source import Source
from nuclr_jax.lab.data.tar_stream import source_of_tars
from nuclr_jax.lab.data.tokenizer import build_tokenizer

TARS = flags.DEFINE_integer("tars", 8, "Number of tars, of --count photos.")
WINDOW = 1_024  # samples that are shuffled at a time, without an index
LATENCY = flags.DEFINE_float("latency", 20.0, "Milliseconds of a slow read.")
COPY, INDEX, SLOW, TARS_ALONE = "copy", "index", "slow", "tars alone"


def slow(read: Callable[..., bytes]) -> Callable[..., bytes]:
  """Returns a function that waits before it reads."""

  def wait_and_read(*place):
    time.sleep(LATENCY.value / 1e3)
    return read(*place)

  return wait_and_read


def make(tars: pathlib.Path, data_dir: pathlib.Path, name: str) -> float:
  """Makes a data set, and returns how many seconds it took."""
  start = time.perf_counter()
  how = {"data_dir": data_dir, "in_place": name == INDEX}
  ingest.ingest(f"{tars}/*.tar", name, **how)
  return time.perf_counter() - start


def size_of(folder: pathlib.Path) -> int:
  """Returns how many bytes the files of a folder have."""
  return sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())


def rates(name: str, data: Captioned, source: Source) -> tuple[float, float]:
  """Measures images per second that are read at random, and of the stream."""
  rng, batch = np.random.default_rng(0), photos.BATCH.value
  read_range = in_place._read_range
  if name == SLOW:
    in_place._read_range = slow(read_range)
  try:
    read = photos.rate(
      lambda _: data.read(rng.integers(0, data.num_records, batch)), batch
    )
    return read, photos.stream_rate(source, 0)
  finally:
    in_place._read_range = read_range


def main(argv) -> None:
  """Measures everything, and prints the JSON."""
  del argv
  rng, seconds = np.random.default_rng(0), {COPY: [], INDEX: []}
  with tempfile.TemporaryDirectory() as folder:
    tars = pathlib.Path(folder) / "tars"
    tars.mkdir()
    for i in range(TARS.value):
      photos.write_tar(tars / f"{i:05d}.tar", photos.photos(rng))
    size = size_of(tars)
    for i in range(photos.ROUNDS.value):
      made = pathlib.Path(folder) / f"{i}"
      for name in seconds:
        seconds[name].append(make(tars, made, name) / size * 1e9)
    sets = {x: open_captioned(x, "train", made) for x in seconds}
    captions = all_captions(sets[COPY])
    words = build_tokenizer(captions, length=30, first_and_last=True)
    sources = {
      name: captioned_source(data, words, size=photos.SIZE)
      for name, data in sets.items()
    }
    alone = source_of_tars(
      f"{tars}/*.tar",
      num_pairs=TARS.value * photos.COUNT.value,
      make_square=square_maker(size=photos.SIZE),
      encode=words.encode,
      share_texts=True,
      window=WINDOW,
    )
    reads = {x: [] for x in (COPY, INDEX, SLOW)}
    streams = {x: [] for x in (*reads, TARS_ALONE)}
    for _ in range(photos.ROUNDS.value):
      streams[TARS_ALONE].append(photos.stream_rate(alone, 0))
      for name in reads:
        made_as = COPY if name == COPY else INDEX
        read, stream = rates(name, sets[made_as], sources[made_as])
        reads[name].append(read)
        streams[name].append(stream)
    share = {x: size_of(made / x / "1.0.0") / size for x in sets}
  facts = {
    "bytes_per_photo": size / TARS.value / photos.COUNT.value,
    "tars": TARS.value,
    "latency_ms": LATENCY.value,
    "share_of_size": share,
    "seconds_per_gigabyte": {x: median(seconds[x]) for x in seconds},
    "reads_per_s": {x: median(reads[x]) for x in reads},
    "stream_per_s": {x: median(streams[x]) for x in streams},
    "stream_to_copy": {
      x: benchmark.ratio(streams[x], streams[COPY]) for x in streams
    },
  }
  benchmark.show(benchmark.machine(), facts)


if __name__ == "__main__":
  app.run(main)
