"""Photos and captions for tests, in files as users have them."""

import io
import json
import os
import tarfile

import cv2
import numpy as np
from PIL import Image
import tensorflow_datasets as tfds

from nuclr_jax.lab.data.captions import captions_of

CAPTIONS = ["A dog.", "Two cats", "Größe, 犬", "a dog", "the sea", "a tree"]


def pixels(seed, height=60, width=80, channels=3):
  """A smooth field of colours."""
  coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, channels))
  size = (width, height)
  smooth = cv2.resize(coarse.astype(np.uint8), size, interpolation=2)
  return smooth.reshape(height, width, channels)


def encoded(image, kind="JPEG", **options):
  """Bytes of an image file, by Pillow."""
  mode = {1: "L", 3: "RGB", 4: "RGBA"}[image.shape[2]]
  out = io.BytesIO()
  squeezed = image[..., 0] if mode == "L" else image
  Image.fromarray(squeezed, mode).save(out, kind, **options)
  return out.getvalue()


def photo(seed):
  return encoded(pixels(seed), quality=90)


PHOTOS = [photo(seed) for seed in range(len(CAPTIONS))]


def write_tar(path, files):
  """A tar file of `(name, bytes)`."""
  with tarfile.open(path, "w") as tar:
    for name, data in files:
      member = tarfile.TarInfo(name)
      member.size = len(data)
      tar.addfile(member, io.BytesIO(data))
  return path


def write_pairs(path, keys):
  """A tar file as img2dataset writes it; photo and caption by number."""
  files = []
  for key in keys:
    files.append((f"{key:05d}.jpg", PHOTOS[key % 6]))
    files.append((f"{key:05d}.txt", CAPTIONS[key % 6].encode()))
    files.append((f"{key:05d}.json", b'{"caption": "not this one"}'))
  return write_tar(path, files)


def photo_folder(folder):
  """Six photos, `sub/0.jpg` to `sub/5.jpg`."""
  (folder / "sub").mkdir(parents=True)
  for i, data in enumerate(PHOTOS):
    (folder / "sub" / f"{i}.jpg").write_bytes(data)
  return folder


def read(folder, split="train"):
  """All rows of a split: key, bytes of the image, captions."""
  builder = tfds.builder_from_directory(os.fspath(folder))
  decoders = {"image": tfds.decode.SkipDecoding()}
  data = builder.as_data_source(split, decoders=decoders)
  return [
    (row["key"].decode(), row["image"], captions_of(row, "captions"))
    for row in (data[i] for i in range(len(data)))
  ]


def rejected(folder, split="train"):
  path = folder / f"{folder.parent.name}-{split}.rejected.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()]


def reasons(folder, split="train"):
  return {row["key"]: row["reason"] for row in rejected(folder, split)}


def decoded(data):
  return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int32)
