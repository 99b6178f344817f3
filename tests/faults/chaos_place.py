"""What the commands of a campaign read, and what they make undisturbed."""

import hashlib
import json
import pathlib
import shutil
import time

from chaos_trial import Place, finish, nuclr
import make_photos
import make_shards
import numpy as np
import tiny_config

from nuclr_jax.lab import files

# What differs from run to run: times, and the folder's name.
VARYING = {".lock", "times.jsonl", "report.html", "SHA256SUMS", "summary.json"}
VARYING |= {"journal.jsonl", "console.log"}
TRAIN = {
  "data.train": "photos:train",
  "data.tokenizer": "build",
  "data.size": 32,
  "data.length": 8,
  "data.validation": (),
  "data.test": (),
  "model.image": {"name": "clip_vit_b16", "width": 16, "layers": 1, "heads": 2},
  "model.text": {"name": "clip_text", "width": 16, "layers": 1, "heads": 2},
  "model.projection_bias": False,
  "model.dim": 8,
  "batch_size": 8,
  "num_epochs": 4,
  "log_every": 1,
  "checkpoint_every": 5,
  "eval_every": 0,
  "eval_every_epochs": 0.0,
  "optimizer.learning_rate": 1e-3,
  "objective.gamma": 0.8,
  "objective.temperature": 0.1,
  "keep_best": None,
}


def command(verb: str, place: pathlib.Path, out: pathlib.Path) -> list[str]:
  """The command line of a verb, which reads `place` and writes `out`."""
  data, run = place / "data", place / "run"
  flags = {
    "ingest": dict(
      input=f"{place}/tars/*.tar", dataset="photos", data_dir=out, workers=2
    ),
    "train": dict(config="cc3m:own", data_dir=data, workdir=out),
    "embed": dict(
      input=f"{place}/photos", workdir=run, output=out, data_dir=data
    ),
    "export": dict(workdir=run, output=out, data_dir=data),
    "popularity": dict(
      embeddings=f"{place}/pairs.npz", temperature=0.1, workdir=out
    ),
    "filter": dict(
      embeddings=f"{place}/metadata",
      score="exact,negcliploss",
      keep="0.8,0.5",
      output=out,
    ),
    "convert": dict(input=f"{place}/old/toy/1.0.0", data_dir=out),
    "report": dict(workdir=out, data_dir=data),
    "draw": dict(config="glyphs:smoke", data_dir=out, workdir=out / "run"),
  }[verb]
  words = [f"--{name}={value}" for name, value in flags.items()]
  changes = {"train": TRAIN, "draw": tiny_config.changes(2)}.get(verb, {})
  words += [f"--config.{name}={value}" for name, value in changes.items()]
  verb = "train" if verb == "draw" else verb
  return [verb, *words]


VERBS = (
  "ingest",
  "train",
  "embed",
  "export",
  "popularity",
  "filter",
  "convert",
  "report",
)


def digests(folder: pathlib.Path) -> dict[str, str]:
  """Hashes the files of a folder; of checkpoints, which steps there are."""
  found = {}
  for path in sorted(folder.rglob("*")):
    name = path.relative_to(folder).as_posix()
    if "checkpoints" in path.relative_to(folder).parts:
      # The bytes of a state's files differ; the history tells whether it is.
      if path.parent.name == "checkpoints":
        whole = files.has_digests(path) and not files.damage(path)
        found[name] = "whole" if whole else "damaged"
    elif "tensorboard" not in name and path.is_file():
      if path.name not in VARYING and path.suffix not in (".html", ".png"):
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
  return found


def prepare(folder: pathlib.Path) -> Place:
  """Makes the inputs, and runs each command undisturbed."""
  shutil.rmtree(folder, ignore_errors=True)
  (folder / "tars").mkdir(parents=True)
  for part in range(6):
    keys = range(10 * part, 10 * part + 10)
    files = []
    for key in keys:
      files.append((f"{key:05d}.jpg", make_photos.photo(key)))
      files.append((f"{key:05d}.txt", f"photo number {key}".encode()))
    make_photos.write_tar(folder / "tars" / f"{part}.tar", files)
  (folder / "photos").mkdir()
  for key in range(8):
    path = folder / "photos" / f"{key}.jpg"
    path.write_bytes(make_photos.photo(key))
    path.with_suffix(".txt").write_text(f"photo number {key}")
  x = np.random.default_rng(0).normal(size=(2, 300, 8)).astype(np.float32)
  np.savez(folder / "pairs.npz", image=x[0], text=x[1])
  make_shards.datacomp(folder / "metadata")
  write_tfrecords(folder / "old" / "toy" / "1.0.0")
  finish(nuclr(["--help"], folder))  # the first one imports, the others fork
  place, seconds, found = Place(folder, {}, {}), {}, {}
  for verb in VERBS:
    out = folder / {"ingest": "data", "train": "run"}.get(verb, f"of_{verb}")
    set_up(verb, folder, out)
    began = time.monotonic()
    code, said = finish(nuclr(command(verb, folder, out), folder))
    if code:
      raise RuntimeError(f"{verb}, undisturbed, ended with {code}:\n{said}")
    seconds[verb] = time.monotonic() - began
    found[verb] = digests(out)
  words = command("ingest", folder, folder / "placed")
  code, said = finish(nuclr([*words, "--in_place"], folder))
  if code:
    raise RuntimeError(f"ingest in place ended with {code}:\n{said}")
  place = Place(folder, seconds, found)
  (folder / "place.json").write_text(json.dumps([seconds, found]))
  return place


def set_up(verb: str, place: pathlib.Path, out: pathlib.Path) -> None:
  """Makes what a command needs to be there."""
  if verb == "report":
    shutil.copytree(place / "run", out)


def write_tfrecords(folder: pathlib.Path) -> None:
  """A small data set as TFDS writes it by default."""
  import struct

  import tensorflow_datasets as tfds

  from nuclr_jax.lab.ingest.convert import masked_crc

  features = tfds.features.FeaturesDict({"x": np.int64})
  folder.mkdir(parents=True)
  features.save_config(folder)
  data = b""
  for i in range(200):
    record = features.serialize_example({"x": i})
    size = struct.pack("<Q", len(record))
    data += size + struct.pack("<I", masked_crc(size))
    data += record + struct.pack("<I", masked_crc(record))
  (folder / "toy-train.tfrecord-00000-of-00001").write_bytes(data)
  split = {"name": "train", "shardLengths": ["200"], "numBytes": str(len(data))}
  split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
  info = {"name": "toy", "version": "1.0.0", "fileFormat": "tfrecord"}
  text = json.dumps(info | {"splits": [split]})
  (folder / "dataset_info.json").write_text(text)
