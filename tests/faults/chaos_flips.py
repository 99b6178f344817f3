"""Flipped bits for `chaos`: whoever reads what was written is told."""

import pathlib
import random
import shutil

from chaos_place import VARYING
from chaos_trial import Place, Trial
import numpy as np

# What Orbax writes when it commits a step; nothing that is restored.
MARKS = {"_CHECKPOINT_METADATA", "commit_success.txt"}


def flip(place: Place, out: pathlib.Path, rng: random.Random) -> Trial:
  """Flips ten bits, one at a time, and reads what was written."""
  name = rng.choice(sorted(ARTEFACTS))
  source, read = ARTEFACTS[name]
  shutil.copytree(place.folder / source, out)
  expected = read(out)
  paths = [
    x for x in sorted(out.rglob("*")) if x.is_file() and x.stat().st_size
  ]
  paths = [x for x in paths if counts(name, x.relative_to(out))]
  silent = []
  for _ in range(10):
    path = rng.choice(paths)
    good = path.read_bytes()
    bit = rng.randrange(8 * len(good))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bad)
    try:
      found = read(out)
    except ValueError:
      pass
    else:
      if found != expected:
        silent.append(f"{path.relative_to(out)} bit {bit}")
    path.write_bytes(good)
  return Trial("flip", name, 10, f"silent: {silent}" if silent else "")


def counts(name: str, path: pathlib.Path) -> bool:
  """Returns whether a file of an artefact is one that its reader reads."""
  if name == "checkpoint":
    newest = path.parts[:1] == ("checkpoints",) and "28" in path.parts
    return newest and path.name not in MARKS
  if name == "weights":
    return path.suffix in (".safetensors", ".txt") or path.name == "SHA256SUMS"
  return "rejected" not in path.name and path.name not in VARYING


def read_checkpoint(folder):
  """The newest state and what belongs to it, as `nuclr report` opens them."""
  from nuclr_jax.lab.train import checkpoint

  newest = max(checkpoint.steps(folder))
  manager, step = checkpoint.open_to_read(folder)
  manager.close()
  if step < newest:
    raise ValueError(f"step {newest} is damaged; step {step} is used")
  place = folder / "checkpoints" / str(step)
  return {
    path: path.read_bytes()
    for path in sorted(place.rglob("*"))
    if path.is_file() and path.name not in MARKS
  }


def read_data(folder):
  from nuclr_jax.lab.data import tfds_reader
  from nuclr_jax.lab.data.pair_index import load_index

  data = tfds_reader.open_split("photos", "train", folder)
  rows = [
    (row["image"], tuple(row["captions"]), row["key"])
    for row in tfds_reader.all_rows(data.read, data.length)
  ]
  index = load_index(data.folder, "train")
  return rows, [x.tobytes() for x in index]


def read_embeddings(folder):
  from nuclr_jax.lab.data.embeddings import open_embeddings

  data = open_embeddings(folder)
  return [np.asarray(x).tobytes() for x in data[:3]], list(data.captions)


def read_weights(folder):
  from nuclr_jax.lab.models.pretrained.load import read_tensors

  return {
    path.parent.name: {k: x.tobytes() for k, x in read_tensors(path).items()}
    for path in sorted(folder.rglob("*.safetensors"))
  }


ARTEFACTS = {
  "checkpoint": ("run", read_checkpoint),
  "data": ("data", read_data),
  "embeddings": ("of_embed", read_embeddings),
  "weights": ("of_export", read_weights),
}
