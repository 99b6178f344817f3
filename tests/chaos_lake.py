"""What is tried with buckets by `chaos`; `chaos_buckets` has the server."""

import functools
import json
import pathlib
import shutil
import tempfile
import time

from chaos_buckets import BUCKET, FAULTS, complete_steps, server
from chaos_place import command, digests
from chaos_tars import stream
from chaos_trial import (
  GOLDEN,
  LIMIT,
  Case,
  Trial,
  fault_of,
  finish,
  nuclr,
  start,
  words_of,
)

LAKE = f"s3://{BUCKET}"
OFTEN = pathlib.Path(__file__).with_name("chaos_often.py")
CLIP = f"--model={GOLDEN}/hf_clip"
SECONDS = 60  # with all attempts


def machine(folder, name="1"):
  """The environment of a machine, which has copies of its own."""
  return server().env | {"NUCLR_REMOTE_CACHE": f"{folder}/cache{name}"}


# What is read from the bucket: what is put there, and the command.
READS = {
  "model": lambda place, out: [
    "embed",
    f"--model={LAKE}/model",
    f"--input={place}/photos",
    f"--output={out}",
  ],
  "photos": lambda place, out: [
    "embed",
    CLIP,
    f"--input={LAKE}/photos",
    f"--output={out}",
  ],
  "data": lambda place, out: [
    "popularity",
    CLIP,
    "--data=photos:train",
    f"--data_dir={LAKE}/data",
    f"--workdir={out}",
  ],
  "placed": lambda place, out: [
    "popularity",
    CLIP,
    "--data=photos:train",
    f"--data_dir={LAKE}/placed",
    f"--workdir={out}",
  ],
  "tfds": lambda place, out: [
    "embed",
    CLIP,
    "--input=tfds:photos",
    f"--data_dir={LAKE}/data",
    f"--output={out}",
  ],
  "embeddings": lambda place, out: [
    "popularity",
    f"--embeddings={LAKE}/of_embed",
    "--temperature=0.1",
    f"--workdir={out}",
  ],
  "run": lambda place, out: [
    "embed",
    f"--workdir={LAKE}/run",
    f"--data_dir={place}/data",
    f"--input={place}/photos",
    f"--output={out}",
  ],
  "tars": lambda place, out: [
    "ingest",
    f"--input={LAKE}/tars/*.tar",
    "--dataset=mine",
    "--workers=1",
    f"--data_dir={out}",
  ],
  "tars in place": lambda place, out: [
    "ingest",
    f"--input={LAKE}/tars/*.tar",
    "--dataset=mine",
    "--workers=1",
    f"--data_dir={out}",
    "--in_place",
  ],
  "a stream": lambda place, out: stream(
    f"{LAKE}/tars/*.tar", out, **{"data.num_pairs": 60}
  ),
}
# The same, written to the bucket: the command, and where it writes.
WRITES = {
  "embed": ["output", "e"],
  "export": ["output", "x"],
  "ingest": ["data_dir", "d"],
  "popularity": ["workdir", "p"],
  "train": ["workdir", "w"],
}
OBJECTS = {  # folders of the place that reading needs
  "model": "model",
  "photos": "photos",
  "data": "data",
  "tfds": "data",
  "placed": "placed tars",
  "embeddings": "of_embed",
  "run": "run",
  "tars": "tars",
  "tars in place": "tars",
  "a stream": "tars",
}


def fill(place: pathlib.Path, names: str) -> None:
  """Puts folders of the place into the bucket."""
  for name in names.split():
    server().upload(
      GOLDEN / "hf_clip" if name == "model" else place / name, name
    )
  if "placed" in names:
    for name, data in server().objects().items():
      if name.startswith("placed/") and "/tars-" in name:
        listed = json.loads(data) | {"folder": f"{LAKE}/tars"}
        server().put(name, json.dumps(listed).encode())


def words_to_write(verb, place):
  name, goal = WRITES[verb]
  words = [x for x in command(verb, place, pathlib.Path("OUT"))]
  return [x.replace("=OUT", f"={LAKE}/{goal}") for x in words]


@functools.cache
def undisturbed(place: pathlib.Path, kind: str, name: str) -> dict[str, str]:
  """The files of a command without any fault."""
  with tempfile.TemporaryDirectory() as home:
    home = pathlib.Path(home)
    server().clear()
    server().put("keep", b"")
    if kind == "read":
      fill(place, OBJECTS[name])
      words = READS[name](place, home / "out")
    else:
      words = words_to_write(name, place)
    code, said = finish(nuclr(words, home, machine(home)))
    if code:
      raise RuntimeError(
        f"{kind} {name}, undisturbed, ended with {code}: {said}"
      )
    return digests(home / "out") if kind == "read" else written(name, home)


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


def other(found, expected) -> str:
  names = [x for x in found | expected if found.get(x) != expected.get(x)]
  return f"other files {sorted(names)[:9]}" if names else ""


def reading(name, faults=FAULTS, method="GET"):
  """A command reads from a bucket that answers wrongly, once or always."""

  def make(place, folder, rng):
    expected = undisturbed(place, "read", name)
    server().clear()
    fill(place, OBJECTS[name])
    fault = rng.choice(faults)
    first, count = rng.choice([0, 0, 1, 3, 9]), rng.choice([1, 1, 3, 10**9])
    server().spoil(fault, method, first=first, count=count)
    words = READS[name](place, folder / "out")

    def check(code, said):
      spoilt = server().spoilt
      server().spoil()
      if code == 0:
        wrong = other(digests(folder / "out"), expected)
        return f"{fault}: {wrong}, exit 0: {said[-900:]}" if wrong else ""
      if not spoilt:
        return f"nothing was spoilt, and it ended with {code}: {said[-900:]}"
      named = LAKE in said or f"{BUCKET}/" in said
      return "" if named else f"{fault}: it names no object: {said[-900:]}"

    return Case(
      words, codes=(0, 1, 2), seconds=SECONDS, env=machine(folder), check=check
    )

  make.__name__ = f"reading({name}, {method} {','.join(faults)})"
  return make


def writing(verb):
  """A command whose copies to the bucket fail is run again."""

  def make(place, folder, rng):
    expected = undisturbed(place, "write", verb)
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
    done = "train report popularity ingest".split()
    if not wrong and (code or verb in done):
      again, said = finish(nuclr(words, folder, machine(folder, name)), SECONDS)
      wrong = fault_of(again, said) or words_of(again, said)
      wrong = wrong and f"the second time, on machine {name}: {wrong}"
    wrong = wrong or other(written(verb, folder), expected)
    wrong = wrong or lost or server().lost
    shown = f"writing({verb}, {fault} {method} {count}, then machine {name})"
    return Trial("", shown, 2, wrong)

  make.__name__ = f"writing({verb})"
  return make


LONG = {"num_epochs": 40, "checkpoint_every": 3, "log_every": 1}


def long_run(place, seed=0, **changes):
  """The words of a training of some seconds in the bucket."""
  config = LONG | {"seed": seed} | changes
  words = [x for x in words_to_write("train", place)]
  return [OFTEN, *words, *(f"--config.{k}={x}" for k, x in config.items())]


def kept(rng_delay=(0.02, 0.3), kills=0):
  """At least one checkpoint in the bucket stays complete, once one is."""

  def make(place, folder, rng):
    server().clear()
    server().put("keep", b"")
    server().delay = rng.uniform(*rng_delay)
    server().spoil("slow", "PUT", "checkpoints")
    words, wrong, had = long_run(place), "", False
    for number in range(kills):
      process = start(words, folder, machine(folder, str(number)))
      time.sleep(rng.uniform(2, 9))
      process.kill()
      process.wait()
      steps = complete_steps(server().objects("w/checkpoints"))
      if had and not steps:
        wrong = wrong or f"no complete checkpoint after kill {number + 1}"
      had = had or bool(steps)
    if rng.random() < 0.5:
      server().delay = 0.0
    code, said = finish(start(words, folder, machine(folder, "last")), LIMIT)
    wrong = wrong or server().lost or fault_of(code, said)
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
    words = long_run(place, seed, num_epochs=30)
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
    words = long_run(place, seed, num_epochs=30)
    code, said = finish(start(words, folder, machine(folder, "3")), LIMIT)
    wrong = fault_of(code, said)
  return Trial("", f"two_machines({seeds})", 2, wrong or server().lost)


NOTES = (
  *(b"", b"{", b"[]", b"7", b"null", b"[" * 10**5, b"\xff\xfe", b"{}"),
  *(b'{"path": 7, "files": {}}', b'{"path": "s3://lake/model"}'),
  *(b'{"path": "s3://lake/model", "files": []}',),
  *(b'{"path": "s3://lake/model", "files": {"config.json": 7}}',),
  *(b'{"path": "s3://lake/model", "files": {"config.json": []}}',),
  *(b'{"path": "s3://lake/model", "files": {"config.json": [1, 2, 3, 4]}}',),
  *(b'{"path": "s3://lake/model", "files": {"../../x": ["a", 1, 2]}}',),
  *(b'{"path": "s3://lake/..", "files": {"config.json": null}}',),
)


def notes(name):
  """The cache's own notes are damaged between two commands."""

  def make(place, folder, rng):
    expected = undisturbed(place, "read", name)
    server().clear()
    fill(place, OBJECTS[name])
    first = READS[name](place, folder / "first")
    code, said = finish(nuclr(first, folder, machine(folder)), SECONDS)
    if code:
      raise RuntimeError(f"{name} ended with {code}: {said}")
    damage = rng.choice(NOTES)
    for path in (folder / "cache1").glob("*/notes.json"):
      path.write_bytes(damage)

    def check(code, said):
      if code == 0:
        return other(digests(folder / "out"), expected)
      return "" if "cache1" in said else f"it names no file: {said[-800:]}"

    return Case(
      READS[name](place, folder / "out"),
      codes=(0, 1),
      env=machine(folder),
      check=check,
    )

  make.__name__ = f"notes({name})"
  return make


def in_lake(says, *words, objects=lambda place: {}, env=None, **expected):
  """A command on some objects."""

  def make(place, folder, rng):
    server().clear()
    server().put("keep", b"")
    for name, data in objects(place).items():
      server().put(name, data)
    filled = [x.format(place=place, folder=folder, lake=LAKE) for x in words]
    expected.setdefault("codes", (1, 2))
    expected.setdefault("seconds", 40)
    return Case(filled, says, env=machine(folder) | (env or {}), **expected)

  make.__name__ = f"in_lake({' '.join(words)[:80]})"
  return make


PLACES = (  # flags that name something in a bucket
  ("embed", "--model={x}", "--input={place}/photos", "--output={folder}/e"),
  ("evaluate", "--model={x}", "--data=photos:train", "--data_dir={place}/data"),
  ("embed", CLIP, "--input={x}", "--output={folder}/e"),
  ("ingest", "--input={x}", "--dataset=mine", "--data_dir={folder}/d"),
  (
    "ingest",
    "--input={x}/*.tar",
    "--dataset=mine",
    "--data_dir={folder}/d",
    "--in_place",
  ),
  ("evaluate", CLIP, "--data=photos:train", "--data_dir={x}"),
  ("evaluate", CLIP, "--data={x}"),
  ("report", "--workdir={x}"),
  ("popularity", "--embeddings={x}", "--temperature=0.1", "--workdir={folder}"),
  (
    "evaluate",
    "--workdir={place}/run",
    "--data_dir={place}/data",
    "--prior={x}",
  ),
)
NEW = (  # flags that name what is to be written there
  ("embed", CLIP, "--input={place}/photos", "--output={x}"),
  ("ingest", "--input={place}/tars/0.tar", "--dataset=mine", "--data_dir={x}"),
  (
    "popularity",
    "--embeddings={place}/pairs.npz",
    "--temperature=0.1",
    "--workdir={x}",
  ),
)


def all_at(path, places, says, **expected):
  return [
    in_lake(says, *(x.replace("{x}", path) for x in words), **expected)
    for words in places
  ]


def brackets(both):
  def objects(place):
    names = {"a1.tar": 1, "a[1].tar": 0} if both else {"a[1].tar": 0}
    return {
      x: (place / "tars" / f"{i}.tar").read_bytes() for x, i in names.items()
    }

  return objects


def literally(verb):
  """A name with brackets is that object, and not another one."""

  def make(place, folder, rng):
    server().clear()
    for name, data in brackets(True)(place).items():
      server().put(name, data)
    if verb == "ingest":
      words = ["ingest", f"--input={LAKE}/a[1].tar", "--dataset=mine"]
      words += [f"--data_dir={folder}/d", "--workers=1"]
    else:
      words = ["embed", CLIP, f"--input={LAKE}/a[1].tar"]
      words += [f"--output={folder}/d"]

    def check(code, said):
      files = [x for x in (folder / "d").rglob("*") if x.is_file()]
      data = b"".join(x.read_bytes() for x in files)
      return "" if b"photo number 3" in data else "it has read a1.tar"

    return Case(words, codes=(0,), env=machine(folder), check=check)

  make.__name__ = f"literally({verb})"
  return make


def vanishing(place, folder, rng):
  """A tar is gone when it is read: nothing is published without it."""
  server().clear()
  fill(place, "tars")
  name = f"{rng.randrange(6)}.tar"
  method = rng.choice(["GET", "GET", "HEAD"])
  server().spoil("vanish", method, f"tars/{name}", first=rng.randrange(2))
  words = ["ingest", f"--input={LAKE}/tars/*.tar", "--dataset=mine"]
  words += [f"--data_dir={folder}/d", "--workers=1"]
  words += ["--in_place"] if rng.random() < 0.5 else []

  def check(code, said):
    rows = "".join(
      x.read_bytes().decode(errors="replace")
      for x in (folder / "d").rglob("*")
      if x.is_file()
    )
    number = 10 * int(name[0])
    lost = f"photo number {number}" not in rows
    if code == 0 and lost:
      return f"{name} vanished, and the set is published without it"
    return "" if code == 0 or name in said else f"it does not name {name}"

  return Case(
    words, codes=(0, 1), seconds=SECONDS, env=machine(folder), check=check
  )


def names_that_lead_out(place):
  config = (GOLDEN / "hf_clip" / "config.json").read_bytes()
  return {
    "model/config.json": config,
    "model/../../../canary/file.txt": b"x",
    "model/a/../../../../canary/new": b"x",
  }


OFFLINE = {
  "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
  "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
}
PRIOR = json.dumps({f"photo number {i}": 1 for i in range(60)}).encode()
BUCKETS = [
  *(reading(name) for name in READS for _ in range(3)),
  *(reading(name, ("garbled",)) for name in READS),
  *(reading(name, ("500", "403", "closed"), "LIST") for name in READS),
  *(reading(name, ("500", "403", "closed", "404"), "HEAD") for name in READS),
  *(writing(verb) for verb in WRITES for _ in range(3)),
  *[kept(kills=0)] * 3,
  *[kept(kills=2)] * 3,
  *[two_machines] * 4,
  *(notes(name) for name in ("model", "model", "run", "data", "embeddings")),
  *all_at("s3://none/x", PLACES, "none"),
  *all_at("s3://none/x", NEW, "none"),
  *all_at("s3://lake/none", PLACES, "none"),
  *all_at("s3://lake/", PLACES, "lake"),
  *all_at("gs://none/x", PLACES[:2] + NEW[:1], "none", env=OFFLINE),
  *all_at("s3://none/x", PLACES[2:4] + NEW[1:2], "none", env=OFFLINE),
  *all_at(
    "s3://lake/mark",
    (PLACES[0], PLACES[2], PLACES[7]),
    "mark",
    objects=lambda place: {"mark/": b""},
  ),
  *all_at(
    "s3://lake/mark",
    (NEW[1], NEW[2]),
    "",
    codes=(0,),
    objects=lambda place: {"mark/": b""},
  ),
  in_lake(
    "",
    *("evaluate", "--workdir={place}/run", "--data_dir={place}/data"),
    *("--data=photos:train", "--prior={lake}/notes.json"),
    codes=(0,),
    objects=lambda place: {"notes.json": PRIOR},
  ),
  in_lake(
    "",
    *("evaluate", "--workdir={place}/run", "--data_dir={place}/data"),
    *("--data=photos:train", "--prior={lake}/x/.lock.json"),
    codes=(0,),
    objects=lambda place: {"x/.lock.json": PRIOR},
  ),
  *map(literally, ("ingest", "embed")),
  *[vanishing] * 5,
  in_lake(
    "name",
    "embed",
    "--model={lake}/model",
    "--input={place}/photos",
    "--output={folder}/e",
    objects=names_that_lead_out,
  ),
]
