"""A campaign against the library: kills, flipped bits, races, bad input.

python -m tests.faults.chaos --minutes=60 [--seed=0] [--output=chaos]

Photos are ingested, a model is trained on them, and all that can be made of it
is made, once, undisturbed. The campaign then repeats these commands and

- kills them at random moments (SIGKILL), up to three times in a row, and runs
  them to their end: all files must be those of the undisturbed command;
- starts two of them on the same output: one is refused, nothing is lost;
- flips bits in what they have written: whoever reads it is told, or goes on
  from the checkpoint before;
- lets a disk fill up (where a file system can be mounted);
- gives them wrong flags, configs and files: each ends with one message, without
  a traceback, in seconds, and writes nothing;
- gives them maliciously forged input: published models, tokenizers,
  weights, tars, embeddings, links in runs (files and a server of somebody else
  are watched meanwhile);
- lets a bucket fail that they read or write, damages the cache's notes, lets
  two machines train in one folder, and counts complete checkpoints;
- kills and interrupts streams over damaged tars, and times Ctrl-C.

`TABLES` has the cases: functions of the prepared folder, an empty folder and a
random generator, which write what is forged and return a `Case`. Only commands
and files are used, so that another checkout can be tried:

PYTHONPATH=OTHER python tests/faults/chaos.py --minutes=40 --output=/tmp/other

A trial is decided by the seed and its number alone. Each adds a line to
OUTPUT/trials.jsonl; the same command goes on where the campaign stopped, and
prints the sums. The exit code is 1 if any trial has failed.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "helpers")]

from chaos_corpus import CASES, wrong_config
from chaos_flags import FLAGS, POPULARITIES, PRIORS
from chaos_flips import flip
from chaos_links import LINKS
from chaos_models import MODELS, NAMES, TOKENIZERS
from chaos_place import VERBS, command, digests, prepare, set_up
from chaos_reads import READINGS
from chaos_streams import SIGNALS, STREAMS
from chaos_tars import TARS
from chaos_trial import Place, Trial, fault_of, finish, nuclr, try_case
from chaos_weights import INDEXES, MSGPACK, WEIGHTS
from chaos_writes import WRITINGS
from repository import ROOT

import nuclr_jax

# Commands run the code that is imported here, wherever they start. Compiling is
# most of what they do: quickly, and once.
os.environ["PYTHONPATH"] = str(pathlib.Path(nuclr_jax.__file__).parents[1])
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NPROC", "2")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault(
  "XLA_FLAGS",
  "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
)


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
    process = nuclr(command(verb, place.folder, out), out.parent)
    time.sleep(rng.uniform(0, 1.1) * place.seconds.get(verb, 30))
    if process.poll() is None:
      process.kill()
      kills += 1
    process.wait()
  code, said = finish(nuclr(command(verb, place.folder, out), out.parent))
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
  first = nuclr(command(verb, place.folder, out), out.parent)
  time.sleep(rng.uniform(0, 0.5) * place.seconds[verb])
  second = nuclr(command(verb, place.folder, out), out.parent)
  ends = [finish(process) for process in (first, second)]
  words = ("in use by process", "exists already", "another process made it")
  for code, said in ends:
    refused = code == 1 and any(x in said for x in words)
    if fault := "" if refused else fault_of(code, said):
      return Trial("race", verb, 2, fault)
  if all(code for code, _ in ends):
    return Trial("race", verb, 2, "both were refused")
  return Trial("race", verb, 2, difference(verb, place, out))


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
    code, said = finish(nuclr(words, out.parent))
    last = said.strip().splitlines()[-2:]
    told = any("free some space" in x for x in last) and len(said) < 20_000
    if code and not (told and "Traceback" not in said):
      return Trial("full", verb, 1, f"exit code {code}: {said[-1500:]}")
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    code, said = finish(nuclr(words, out.parent))
    done = code == 1 and "exists already" in said
    fault = "" if done else fault_of(code, said)
    return Trial(
      "full", verb, 1, fault or difference(verb, place, disk / "out")
    )
  finally:
    subprocess.run(["umount", str(disk)], check=False)
    disk.rmdir()


KINDS: dict[str, Callable[..., Trial]] = {
  "flip": flip,
  "full": full,
  "kill": kill,
  "race": race,
}
# Kinds of bad input and of faults: the cases of each are drawn in turn.
TABLES = {
  "bad": [*CASES, *[wrong_config] * len(CASES)],
  "flags": [*FLAGS, *PRIORS],
  "links": LINKS,
  "models": MODELS,
  "names": [*NAMES, *INDEXES],
  "popularities": POPULARITIES,
  "readings": READINGS,
  "signals": SIGNALS,
  "streams": STREAMS,
  "tars": TARS,
  "tokenizers": TOKENIZERS,
  "weights": [*WEIGHTS, *MSGPACK],
  "writings": WRITINGS,
}
# The kinds of trials in turn: 100 kills go with 500 bad inputs, 1,000 flips.
ROUND = ["bad", "bad", "kill", "bad", "flip", "bad", "bad"]
SURFACES = [x for x in TABLES if x != "bad"]


def kind_of_command(number: int) -> str:
  """The kind of a trial with commands that are as they should be, or wrong."""
  if number % 70 == 6:
    return "race"
  return "full" if number % 140 == 13 else ROUND[number % len(ROUND)]


@functools.cache
def kind_of(number: int) -> str:
  """The kind of a trial: two of three are of forged files and of faults."""
  third, rest = divmod(number, 3)
  if rest == 0:
    return kind_of_command(third)
  return SURFACES[(number - third - 1) % len(SURFACES)]


def run_trial(
  place: Place,
  out: pathlib.Path,
  seed: int,
  number: int,
  kinds: Callable[[int], str],
) -> Trial:
  """Runs the trial of this number; an error of its own is a fault, too."""
  rng, kind = random.Random(f"{seed}/{number}"), kinds(number)
  try:
    if kind in KINDS:
      return KINDS[kind](place, out, rng)
    cases = list(TABLES[kind])
    random.Random(f"{seed}/{kind}").shuffle(cases)
    before = sum(kinds(x) == kind for x in range(number))
    return try_case(kind, cases[before % len(cases)], place, out, rng)
  except Exception as error:
    return Trial(kind, "", 0, f"{type(error).__name__}: {error}")


def campaign(
  output: pathlib.Path,
  *,
  seed: int,
  until: Callable[[int], bool],
  kinds: Callable[[int], str] = kind_of,
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
    room = output / "room"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    trial = run_trial(place, room / "out", seed, number, kinds)
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
    f"{kind:<12}{tried[kind]:>6}, failed trials {failed[kind]}"
    for kind in sorted(tried)
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--minutes", type=float, required=True)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--output", type=pathlib.Path, default="chaos")
  options = parser.parse_args()
  # Where a shell has started this in the background, Ctrl-C is ignored, also by
  # the commands that a campaign interrupts.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  end = time.monotonic() + 60 * options.minutes
  output = options.output.absolute()
  output.mkdir(parents=True, exist_ok=True)
  os.chdir(output)  # where no other code of that name is
  rows = campaign(
    output,
    seed=options.seed,
    until=lambda number: time.monotonic() > end,
  )
  print(summary(rows))
  sys.exit(any(row["fault"] for row in rows))


if __name__ == "__main__":
  with contextlib.suppress(KeyboardInterrupt):
    main()
