"""What `chaos` tries with buckets that are written to.

Copies fail or are killed, and the command is run again, here or on another
machine; a run never loses its last complete checkpoint; and of two machines in
one folder, one stops.
"""

import functools
import json
import pathlib
import shutil
import tempfile
import time

from chaos_buckets import complete_steps, server
from chaos_place import command, digests
from chaos_reads import LAKE, SECONDS, machine, other
from chaos_trial import (
  LIMIT,
  Trial,
  fault_of,
  finish,
  nuclr,
  start,
  words_of,
)

# What a machine that was killed has left, which its users are asked to delete.
LEASE = "_LEASE"
OFTEN = pathlib.Path(__file__).with_name("chaos_often.py")
# What is written to the bucket: the flag of each verb, and where.
WRITES = {
  "embed": ["output", "e"],
  "export": ["output", "x"],
  "ingest": ["data_dir", "d"],
  "popularity": ["workdir", "p"],
  "train": ["workdir", "w"],
}


def words_to_write(verb, place):
  name, goal = WRITES[verb]
  words = [x for x in command(verb, place, pathlib.Path("OUT"))]
  return [x.replace("=OUT", f"={LAKE}/{goal}") for x in words]


@functools.cache
def undisturbed(place: pathlib.Path, verb: str) -> dict[str, str]:
  """The files of a command without any fault."""
  with tempfile.TemporaryDirectory() as home:
    home = pathlib.Path(home)
    server().clear()
    server().put("keep", b"")
    code, said = finish(nuclr(words_to_write(verb, place), home, machine(home)))
    if code:
      raise RuntimeError(f"{verb}, undisturbed, ended with {code}: {said}")
    return written(verb, home)


def written(verb: str, home: pathlib.Path) -> dict[str, str]:
  """Hashes what a command has written to the bucket."""
  folder = home / "written"
  shutil.rmtree(folder, ignore_errors=True)
  for name, data in server().objects(WRITES[verb][1]).items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
  found = digests(folder) if folder.exists() else {}
  shutil.rmtree(folder, ignore_errors=True)
  return found


def writing(verb):
  """A command whose copies to the bucket fail is run again."""

  def make(place, folder, rng):
    expected = undisturbed(place, verb)
    server().clear()
    server().put("keep", b"")
    fault = rng.choice(["500", "403", "404", "closed", "slow", "killed"])
    method = rng.choice(["PUT", "PUT", "PUT", "LIST", "HEAD", "DELETE"])
    count = rng.choice([1, 3, 10**9])
    if fault != "killed":
      first = rng.randrange(12)
      server().spoil(fault, method, first=first, count=count)
    else:
      server().spoil("slow", "PUT", count=count)
    words = words_to_write(verb, place)
    process = nuclr(words, folder, machine(folder))
    if fault == "killed":
      time.sleep(rng.uniform(0.5, 6))
      process.kill()
      process.wait()
      code, wrong = -9, ""
    else:
      code, said = finish(process, SECONDS)
      wrong = fault_of(code, said, expected=(0, 1)) or words_of(code, said)
    lost = server().lost
    server().spoil()
    name = rng.choice("12")
    if name != "1":
      server().forget(LEASE)
    goes_on = verb in ("train", "popularity", "ingest")
    if not wrong and (code or goes_on):
      again, said = finish(nuclr(words, folder, machine(folder, name)), SECONDS)
      done = fault == "killed" and "exists already" in said  # before the kill
      wrong = "" if done else fault_of(again, said) or words_of(again, said)
      wrong = wrong and f"the second time, on machine {name}: {wrong}"
    wrong = wrong or other(written(verb, folder), expected)
    wrong = wrong or lost or server().lost
    shown = f"writing({verb}, {fault} {method} {count}, then machine {name})"
    return Trial("", shown, 2, wrong)

  make.__name__ = f"writing({verb})"
  return make


LONG = {"num_epochs": 25, "checkpoint_every": 3, "log_every": 1}


def long_run(place, seed=0, **changes):
  """The words of a command that trains for some seconds in the bucket."""
  config = LONG | {"seed": seed} | changes
  words = [x for x in words_to_write("train", place)]
  return [OFTEN, *words, *(f"--config.{k}={x}" for k, x in config.items())]


def kept(kills):
  """At least one checkpoint in the bucket stays complete, once one is."""

  def make(place, folder, rng):
    server().clear()
    server().put("keep", b"")
    delay = server().delay = rng.uniform(0.1, 0.6)  # for each of 20 files
    server().spoil("slow", "PUT", "checkpoints")
    words, wrong, had = long_run(place), "", False
    for number in range(kills):
      server().forget(LEASE)
      process = start(words, folder, machine(folder, str(number)))
      time.sleep(rng.uniform(2, 9))
      process.kill()
      process.wait()
      steps = complete_steps(server().objects("w/checkpoints"))
      if had and not steps:
        wrong = wrong or f"no complete checkpoint after kill {number + 1}"
      had = had or bool(steps)
    if kills and rng.random() < 0.5:
      server().delay = 0.0
    server().forget(LEASE)
    began = time.monotonic()
    code, said = finish(start(words, folder, machine(folder, "last")), LIMIT)
    took, first = time.monotonic() - began, server().first
    wrong = wrong or server().lost or fault_of(code, said)
    late = first is None or first - began > 0.7 * took
    if not wrong and late and took > 150 * delay:
      wrong = f"of {took:.0f} s, no checkpoint was complete before the end"
    wrong = wrong or words_of(code, said)
    if not wrong and not complete_steps(server().objects("w/checkpoints")):
      wrong = "no complete checkpoint at the end"
    if not wrong and "metrics.json" not in server().objects("w"):
      wrong = "no metrics.json at the end"
    server().spoil()
    return Trial("", f"kept(kills={kills})", 1 + kills, wrong)

  make.__name__ = f"kept({kills})"
  return make


def two_machines(place, folder, rng):
  """Two machines train in one folder: one of them stops with a message."""
  server().clear()
  server().put("keep", b"")
  seeds = rng.choice([(0, 0), (1, 2)])
  processes = []
  for name, seed in zip("12", seeds, strict=True):
    words = long_run(place, seed, num_epochs=25)
    processes.append(start(words, folder, machine(folder, name)))
    time.sleep(rng.choice([0, 0.2, 1, 3]))
  ends = [finish(x, LIMIT) for x in processes]
  wrong = ""
  for code, said in ends:
    wrong = wrong or fault_of(code, said, expected=(0, 1))
    wrong = wrong or words_of(code, said)
  codes = [code for code, _ in ends]
  there = server().objects("w")
  if not wrong and codes == [0, 0]:
    wrong = f"both ended with exit code 0, seeds {seeds}"
  if not wrong and 0 in codes:
    winner = folder / f"cache{codes.index(0) + 1}"
    for name in ("config.json", "metrics.json", "history.jsonl"):
      mine = [x.read_bytes() for x in winner.glob(f"*/w/{name}")]
      if there.get(name) not in mine:
        wrong = f"{name} is not that of the machine that ended with 0"
  if not wrong and 0 not in codes and "config.json" in there:
    seed = json.loads(there["config.json"])["seed"]
    words = long_run(place, seed, num_epochs=25)
    server().forget(LEASE)
    code, said = finish(start(words, folder, machine(folder, "3")), LIMIT)
    wrong = fault_of(code, said)
  return Trial("", f"two_machines({seeds})", 2, wrong or server().lost)


WRITINGS = [
  *(writing(verb) for verb in WRITES for _ in range(3)),
  *[kept(kills=0)] * 4,
  *[kept(kills=2)] * 4,
  *[two_machines] * 4,
]
