"""A campaign against the library: kills, flipped bits, races, bad input.

python -m tests.chaos --minutes=60 [--seed=0] [--output=chaos]

Photos are ingested, a model is trained on them, and all that can be made of it
is made, once, undisturbed. The campaign then repeats these commands and

- kills them at random moments (SIGKILL), up to three times in a row, and runs
  them to their end: all files must be those of the undisturbed command;
- starts two of them on the same output: one is refused, nothing is lost;
- flips bits in what they have written: whoever reads it is told, or goes on
  from the checkpoint before;
- lets a disk fill up (where a file system can be mounted);
- gives them wrong flags, configs and files: each ends with one message, without
  a traceback, in seconds, and writes nothing.

A trial is decided by the seed and its number alone. Each adds a line to
OUTPUT/trials.jsonl; the same command goes on where the campaign stopped, and
prints the sums. The exit code is 1 if any trial has failed.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import types
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import make_photos
import numpy as np
import tiny_config
import warm

from nuclr_jax import files

ROOT = pathlib.Path(__file__).parents[1]
LIMIT = 120  # seconds for any command
# What differs from run to run: times, and the folder's name.
VARYING = {".lock", "times.jsonl", "report.html", "SHA256SUMS", "summary.json"}
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


class Place(NamedTuple):
  """What the undisturbed commands have made."""

  folder: pathlib.Path
  seconds: dict[str, float]  # of each command
  digests: dict[str, dict[str, str]]  # of the files of each command


class Trial(NamedTuple):
  """The outcome of one trial."""

  kind: str
  name: str
  count: int  # kills, flips, commands
  fault: str  # "" if all went well


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
    "convert": dict(input=f"{place}/old/toy/1.0.0", data_dir=out),
    "report": dict(workdir=out, data_dir=data),
    "draw": dict(config="glyphs:smoke", data_dir=out, workdir=out / "run"),
  }[verb]
  words = [f"--{name}={value}" for name, value in flags.items()]
  changes = {"train": TRAIN, "draw": tiny_config.changes(2)}.get(verb, {})
  words += [f"--config.{name}={value}" for name, value in changes.items()]
  verb = "train" if verb == "draw" else verb
  return ["-m", "nuclr_jax.cli.main", verb, *words]


VERBS = (
  "ingest",
  "train",
  "embed",
  "export",
  "popularity",
  "convert",
  "report",
)
# What Orbax writes when it commits a step; nothing that is restored.
MARKS = {"_CHECKPOINT_METADATA", "commit_success.txt"}


def start(words: list[str], cwd: pathlib.Path) -> warm.Process:
  """Starts a command in a process of its own."""
  # Otherwise it would import this script first.
  with mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")):
    return warm.Process(words, devices=1, cwd=cwd)


def finish(process: warm.Process, limit: float = LIMIT) -> tuple[int, str]:
  """Waits for a process; returns its exit code and what it said."""
  end = time.monotonic() + limit
  while process.poll() is None:
    if time.monotonic() > end:
      process.kill()
      process.wait()
      return -1, f"no end after {limit:g} s\n{''.join(process.said())}"
    time.sleep(0.01)
  return process.poll(), "".join(process.said())


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
  write_tfrecords(folder / "old" / "toy" / "1.0.0")
  place, seconds, found = Place(folder, {}, {}), {}, {}
  for verb in VERBS:
    out = folder / {"ingest": "data", "train": "run"}.get(verb, f"of_{verb}")
    set_up(verb, folder, out)
    began = time.monotonic()
    code, said = finish(start(command(verb, folder, out), folder))
    if code:
      raise RuntimeError(f"{verb}, undisturbed, ended with {code}:\n{said}")
    seconds[verb] = time.monotonic() - began
    found[verb] = digests(out)
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

  from nuclr_jax.ingest.convert import masked_crc

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


def fault_of(code: int, said: str, *, expected: int | tuple = 0) -> str:
  """Says what is wrong with the end of a command."""
  codes = (expected,) if isinstance(expected, int) else expected
  if "Traceback" in said:
    return f"a traceback: {said[-1500:]}"
  return "" if code in codes else f"exit code {code}: {said[-1500:]}"


def difference(verb: str, place: Place, out: pathlib.Path) -> str:
  """Says how the files of a command differ from the undisturbed ones."""
  found, expected = digests(out), place.digests[verb]
  names = sorted(
    name
    for name in found.keys() | expected.keys()
    if found.get(name) != expected.get(name)
  )
  left = [x.name for x in out.parent.iterdir() if x.name != out.name]
  return f"{verb}: other files {names + left}" if names + left else ""


def kill(place: Place, out: pathlib.Path, rng: random.Random) -> Trial:
  """Kills a command at random moments, then lets it end."""
  # Drawing the glyphs takes a minute, so it is seldom tried.
  verb, kills = rng.choices([*VERBS, "draw"], [10] * len(VERBS) + [1])[0], 0
  set_up(verb, place.folder, out)
  for _ in range(rng.choice([1, 1, 2, 3])):
    process = start(command(verb, place.folder, out), out.parent)
    time.sleep(rng.uniform(0, 1.1) * place.seconds.get(verb, 30))
    if process.poll() is None:
      process.kill()
      kills += 1
    process.wait()
  code, said = finish(start(command(verb, place.folder, out), out.parent))
  done = code == 1 and "exists already" in said  # embed and export, not killed
  fault = "" if done else fault_of(code, said)
  if verb == "draw":
    left = [x.name for x in out.rglob("incomplete.*")]
    fault = fault or (f"draw: leftovers {left}" if left else "")
    return Trial("kill", verb, kills, fault)
  return Trial("kill", verb, kills, fault or difference(verb, place, out))


def race(place: Place, out: pathlib.Path, rng: random.Random) -> Trial:
  """Starts a command twice; the second is refused, or finds all done."""
  verb = rng.choice([x for x in VERBS if x != "report"])
  first = start(command(verb, place.folder, out), out.parent)
  time.sleep(rng.uniform(0, 0.5) * place.seconds[verb])
  second = start(command(verb, place.folder, out), out.parent)
  ends = [finish(process) for process in (first, second)]
  words = ("in use by process", "exists already", "another process made it")
  for code, said in ends:
    refused = code == 1 and any(x in said for x in words)
    if fault := "" if refused else fault_of(code, said):
      return Trial("race", verb, 2, fault)
  if all(code for code, _ in ends):
    return Trial("race", verb, 2, "both were refused")
  return Trial("race", verb, 2, difference(verb, place, out))


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
  from nuclr_jax.train import checkpoint

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
  from nuclr_jax.data import tfds_reader
  from nuclr_jax.data.pair_index import load_index

  data = tfds_reader.open_split("photos", "train", folder)
  rows = [
    (row["image"], tuple(row["captions"]), row["key"])
    for row in tfds_reader.all_rows(data.read, data.length)
  ]
  index = load_index(data.folder, "train")
  return rows, [x.tobytes() for x in index]


def read_embeddings(folder):
  from nuclr_jax.data.embeddings import open_embeddings

  data = open_embeddings(folder)
  return [np.asarray(x).tobytes() for x in data[:3]], list(data.captions)


def read_weights(folder):
  from nuclr_jax.models.pretrained.load import read_tensors

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


def full(place: Place, out: pathlib.Path, rng: random.Random) -> Trial:
  """Fills a small disk; with more room, the same command goes on."""
  verb = rng.choice(("ingest", "train", "embed", "export"))
  size = rng.randrange(16, 400)  # KiB
  disk = out.parent / "disk"
  disk.mkdir()
  mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
  if subprocess.run(mount, capture_output=True).returncode:
    disk.rmdir()
    return Trial("full", "cannot mount", 0, "")
  try:
    words = command(verb, place.folder, disk / "out")
    code, said = finish(start(words, out.parent))
    last = said.strip().splitlines()[-2:]
    told = any("free some space" in x for x in last) and len(said) < 20_000
    if code and not (told and "Traceback" not in said):
      return Trial("full", verb, 1, f"exit code {code}: {said[-1500:]}")
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    code, said = finish(start(words, out.parent))
    done = code == 1 and "exists already" in said
    fault = "" if done else fault_of(code, said)
    return Trial(
      "full", verb, 1, fault or difference(verb, place, disk / "out")
    )
  finally:
    subprocess.run(["umount", str(disk)], check=False)
    disk.rmdir()


def bad(place: Place, out: pathlib.Path, rng: random.Random) -> Trial:
  """Gives a command something wrong."""
  from chaos_corpus import CASES, wrong_config

  number = rng.randrange(2 * len(CASES))
  make = CASES[number] if number < len(CASES) else wrong_config
  out.mkdir()
  words, message = make(place.folder, out, rng)
  before = listing(out) | listing(place.folder)
  words = [str(x) for x in words]
  process = start(["-m", "nuclr_jax.cli.main", *words], out)
  code, said = finish(process, 60)
  fault = fault_of(code, said, expected=(1, 2))
  if not fault and message not in said:
    fault = f"not {message!r}, but {said[-800:]}"
  after = listing(out) | listing(place.folder)
  outside = list(out.parent.glob("*ESCAPED*")) + list(out.glob("*ESCAPED*"))
  if not fault and (after != before or outside):
    fault = f"wrote {sorted(after ^ before)} {outside}"
  shown = f"{make.__name__} {' '.join(words)[:200]}"
  return Trial("bad", shown, 1, fault)


def listing(folder: pathlib.Path) -> set[tuple[str, int]]:
  """All files below a folder, but for locks and unfinished work."""
  return {
    (str(x), x.lstat().st_size)
    for x in folder.rglob("*")
    if not x.is_dir() and x.name != ".lock" and "incomplete" not in str(x)
  }


KINDS: dict[str, Callable[..., Trial]] = {
  "bad": bad,
  "flip": flip,
  "full": full,
  "kill": kill,
  "race": race,
}
# The kinds of trials in turn: 100 kills go with 500 bad inputs, 1,000 flips.
ROUND = ["bad", "bad", "kill", "bad", "flip", "bad", "bad"]


def kind_of(number: int) -> str:
  if number % 70 == 6:
    return "race"
  return "full" if number % 140 == 13 else ROUND[number % len(ROUND)]


def campaign(
  output: pathlib.Path, *, seed: int, until: Callable[[int], bool]
) -> list[dict]:
  """Runs trials until `until(number)`; returns those of earlier calls, too."""
  output = output.absolute()
  output.mkdir(parents=True, exist_ok=True)
  place_file, log = output / "place" / "place.json", output / "trials.jsonl"
  if place_file.exists():
    place = Place(output / "place", *json.loads(place_file.read_text()))
  else:
    place = prepare(output / "place")
  rows = (
    [json.loads(x) for x in log.read_text().splitlines()]
    if log.exists()
    else []
  )
  while not until(len(rows)):
    number, began = len(rows), time.monotonic()
    rng = random.Random(f"{seed}/{number}")
    room = output / "room"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    try:
      trial = KINDS[kind_of(number)](place, room / "out", rng)
    except Exception as error:
      trial = Trial(kind_of(number), "", 0, f"{type(error).__name__}: {error}")
    row = {"number": number, "seed": seed, **trial._asdict()}
    row["seconds"] = round(time.monotonic() - began, 2)
    with log.open("a") as file:
      print(json.dumps(row), file=file)
    rows.append(row)
    if trial.fault:
      print(f"trial {number}, {trial.kind} {trial.name}: {trial.fault}\n")
      kept = output / "faults" / str(number)
      shutil.rmtree(kept, ignore_errors=True)
      shutil.copytree(room, kept, symlinks=True, ignore=only_files)
  return rows


def only_files(folder: str, names: list[str]) -> Iterator[str]:
  """What `copytree` must leave out: pipes and the like."""
  for name in names:
    path = pathlib.Path(folder, name)
    if not path.is_symlink() and not path.is_dir() and not path.is_file():
      yield name


def summary(rows: list[dict]) -> str:
  """Counts what was tried, and what failed."""
  tried, failed = Counter(), Counter()
  for row in rows:
    tried[row["kind"]] += row["count"]
    failed[row["kind"]] += bool(row["fault"])
  return "\n".join(
    f"{kind:<6}{tried[kind]:>6}, failed trials {failed[kind]}"
    for kind in sorted(tried)
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--minutes", type=float, required=True)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--output", type=pathlib.Path, default="chaos")
  options = parser.parse_args()
  end = time.monotonic() + 60 * options.minutes
  os.chdir(ROOT)
  rows = campaign(
    options.output,
    seed=options.seed,
    until=lambda number: time.monotonic() > end,
  )
  print(summary(rows))
  sys.exit(any(row["fault"] for row in rows))


if __name__ == "__main__":
  with contextlib.suppress(KeyboardInterrupt):
    main()
