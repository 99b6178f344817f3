"""Embeddings of pairs in the files of other programs, made with NumPy."""

import pathlib

import make_photos
import numpy as np
import pyarrow
from pyarrow import parquet


def embeddings(count: int, *, dim: int = 16, seed: int = 0):
  """Images and texts that fit, in half precision."""
  rng = np.random.default_rng(seed)
  image = rng.normal(size=(count, dim))
  text = image + 0.5 * rng.normal(size=(count, dim))
  return [
    (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float16)
    for x in (image, text)
  ]


def uid(number: int) -> str:
  """Returns a uid whose halves are in no order."""
  return f"{(number * 7919) % 104729:016x}{number:016x}"


def datacomp(
  folder: pathlib.Path, sizes=(40, 25), *, save=np.savez, **columns
) -> pathlib.Path:
  """Writes DataComp's metadata: an .npz and a .parquet for each shard."""
  folder.mkdir(exist_ok=True)
  image, text = embeddings(sum(sizes))
  start = 0
  for number, size in enumerate(sizes):
    rows = range(start, start + size)
    some = slice(start, start + size)
    save(
      folder / f"{number:08d}.npz",
      b32_img=image[some, :8],
      b32_txt=text[some, :8],
      l14_img=image[some],
      l14_txt=text[some],
    )
    table = {
      "uid": [uid(i) for i in rows],
      "url": [f"https://example.org/{i}.jpg" for i in rows],
      "text": [f"text {i}" for i in rows],
      **{name: [values[i] for i in rows] for name, values in columns.items()},
    }
    parquet.write_table(pyarrow.table(table), folder / f"{number:08d}.parquet")
    start += size
  return folder


def clip_retrieval(folder: pathlib.Path, sizes=(40, 25)) -> pathlib.Path:
  """Writes what `clip-retrieval inference` writes."""
  image, text = embeddings(sum(sizes))
  start = 0
  for number, size in enumerate(sizes):
    rows, some = range(start, start + size), slice(start, start + size)
    for name, x in (("img_emb", image), ("text_emb", text)):
      (folder / name).mkdir(parents=True, exist_ok=True)
      np.save(folder / name / f"{name}_{number}.npy", x[some])
    (folder / "metadata").mkdir(exist_ok=True)
    table = {
      "image_path": [f"{i:09d}" for i in rows],
      "caption": [f"text {i}" for i in rows],
    }
    path = folder / "metadata" / f"metadata_{number}.parquet"
    parquet.write_table(pyarrow.table(table), path)
    start += size
  return folder


def embedded(folder: pathlib.Path, count: int = 40) -> pathlib.Path:
  """Writes what `nuclr embed` writes: two captions for every second image."""
  folder.mkdir(parents=True)
  image, text = embeddings(count)
  of_text = np.repeat(np.arange(count), 1 + np.arange(count) % 2)
  thumbnail = make_photos.photo(0)
  np.save(folder / "image.npy", image.astype(np.float32))
  np.save(folder / "text.npy", text[of_text].astype(np.float32))
  images = {
    "key": [f"{i}.jpg" for i in range(count)],
    "content": pyarrow.array(range(count), pyarrow.uint64()),
    "thumbnail": [thumbnail] * count,
  }
  texts = {"image": of_text, "caption": [f"text {i}" for i in of_text]}
  for name, table in (("images", images), ("texts", texts)):
    parquet.write_table(pyarrow.table(table), folder / f"{name}.parquet")
  return folder
