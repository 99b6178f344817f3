"""Measures images per second from JPEG to augmented batch; prints JSON.

python -m experiments.step_time.photos [--seconds=5] [--rounds=3]

The photos are crops of scikit-learn's two sample photos at 500 x 375 pixels,
about 42 KB each, ingested as users ingest theirs. The steps are first measured
on one core (each includes the steps before it):

  decode     JPEG to pixels
  crop       random crop, 256 x 256 pixels, randomly mirrored
  augment    RandAugment(2, 7)

Then the whole stream of batches (array_record, captions to tokens, decoding and
augmenting) is measured, with threads of one process and with worker processes.
"""

import io
import pathlib
import tarfile
import tempfile
import time

from absl import app, flags
import cv2
import numpy as np
from sklearn.datasets import load_sample_images

from experiments.harness import benchmark
from nuclr_jax.lab import ingest
from nuclr_jax.lab.data import images, loader
from nuclr_jax.lab.data.augment import rand_augment
from nuclr_jax.lab.data.image_text import (
  all_captions,
  captioned_source,
  open_captioned,
)
from nuclr_jax.lab.data.source import random_numbers
from nuclr_jax.lab.data.tokenizer import build_tokenizer

SECONDS = flags.DEFINE_float("seconds", 5.0, "Seconds per measurement.")
ROUNDS = flags.DEFINE_integer(
  "rounds", 3, "Number of measurements; their median counts."
)
COUNT = flags.DEFINE_integer("count", 1024, "Number of photos.")
BATCH = flags.DEFINE_integer("batch_size", 256, "Pairs per batch.")
WORKERS = flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers.")
SIZE = 256


def photos(rng: np.random.Generator) -> list[bytes]:
  """Makes JPEG files of 500 x 375 pixels."""
  whole, files = load_sample_images().images, []
  for i in range(COUNT.value):
    scene = whole[i % len(whole)]
    rows, columns = rng.integers(280, 420), rng.integers(380, 620)
    top = rng.integers(scene.shape[0] - rows + 1)
    left = rng.integers(scene.shape[1] - columns + 1)
    part = scene[top : top + rows, left : left + columns, ::-1]
    part = cv2.resize(part, (500, 375), interpolation=cv2.INTER_CUBIC)
    options = [cv2.IMWRITE_JPEG_QUALITY, 85]
    files.append(cv2.imencode(".jpg", part, options)[1].tobytes())
  return files


def write_tar(path: pathlib.Path, files: list[bytes]) -> None:
  """Writes a tar as img2dataset does."""
  with tarfile.open(path, "w") as tar:
    for i, data in enumerate(files):
      caption = f"part number {i} of a photo of a temple or of a flower"
      for ending, content in (("jpg", data), ("txt", caption.encode())):
        member = tarfile.TarInfo(f"{i:09d}.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def steps(files: list[bytes]) -> dict:
  """Returns the steps, by name, as functions of a photo's number."""
  random = random_numbers(0, 0, np.arange(len(files)))

  def crop(i):
    image = images.decode(files[i])
    return images.random_resized_crop(image, random[i], size=SIZE)

  def augment(i):
    rest = random[i, images.CROP_NUMBERS :]
    return rand_augment(crop(i), rest)

  return {
    "decode": lambda i: images.decode(files[i]),
    "crop": crop,
    "augment": augment,
  }


def rate(do, per_call: int = 1) -> float:
  """Measures images per second."""
  start, count = time.perf_counter(), 0
  while (now := time.perf_counter()) < start + SECONDS.value:
    do(count)
    count += 1
  return count * per_call / (now - start)


def stream_rate(source, num_workers: int) -> float:
  """Measures images per second of the stream, after a few batches."""
  with loader.batches(
    source, batch_size=BATCH.value, seed=0, num_workers=num_workers
  ) as stream:
    for _ in range(4):
      next(stream)
    return rate(lambda i: next(stream), BATCH.value)


def main(argv) -> None:
  """Measures the steps and the streams, and prints the JSON."""
  del argv
  files = photos(np.random.default_rng(0))
  measured = {
    name: lambda f=f: rate(lambda i: f(i % len(files)))
    for name, f in steps(files).items()
  }
  with tempfile.TemporaryDirectory() as folder:
    tar = pathlib.Path(folder) / "photos.tar"
    write_tar(tar, files)
    ingest.ingest(str(tar), "photos", data_dir=folder, workers=1)
    data = open_captioned("photos", "train", folder)
    captions = all_captions(data)
    words = build_tokenizer(captions, length=30, first_and_last=True)
    source = captioned_source(data, words, size=SIZE)
    for count in (0, *map(int, WORKERS.value)):
      name = f"stream, {count} workers" if count else "stream, threads"
      measured[name] = lambda count=count: stream_rate(source, count)
    rates = {name: [] for name in measured}
    for _ in range(ROUNDS.value):
      for name, measure in measured.items():
        rates[name].append(measure())
  medians = {name: float(np.median(x)) for name, x in rates.items()}
  facts = {
    "bytes_per_photo": float(np.mean([len(x) for x in files])),
    "images_per_s": medians,
  }
  benchmark.show(benchmark.machine(), facts)


if __name__ == "__main__":
  app.run(main)
