"""What `chaos` tries with buckets that are read; `chaos_buckets` is one."""

import functools
import json
import pathlib
import re
import tempfile

from chaos_buckets import BUCKET, FAULTS, server
from chaos_place import digests
from chaos_tars import stream
from chaos_trial import (
  Case,
  finish,
  nuclr,
)
from pyarrow import parquet
from repository import PUBLISHED

LAKE = f"s3://{BUCKET}"
OFTEN = pathlib.Path(__file__).with_name("chaos_often.py")
CLIP = f"--model={PUBLISHED}/hf_clip"
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
      PUBLISHED / "hf_clip" if name == "model" else place / name, name
    )
  if "placed" in names:
    for name, data in server().objects().items():
      if name.startswith("placed/") and "/tars-" in name:
        listed = json.loads(data) | {"folder": f"{LAKE}/tars"}
        server().put(name, json.dumps(listed).encode())


@functools.cache
def undisturbed(place: pathlib.Path, name: str) -> dict[str, str]:
  """The files of a command without any fault."""
  with tempfile.TemporaryDirectory() as home:
    home = pathlib.Path(home)
    server().clear()
    fill(place, OBJECTS[name])
    words = READS[name](place, home / "out")
    code, said = finish(nuclr(words, home, machine(home)))
    if code:
      raise RuntimeError(f"{name}, undisturbed, ended with {code}: {said}")
    return digests(home / "out")


def other(found, expected) -> str:
  """Names what differs, but for lists of tars, which have their times."""
  names = [
    x
    for x in found | expected
    if found.get(x) != expected.get(x)
    and not re.search(r"\.input\.json$|/tars-\w+\.json$", x)
  ]
  return f"other files {sorted(names)[:9]}" if names else ""


def reading(name, faults=FAULTS, method="GET"):
  """A command reads from a bucket that answers wrongly, once or always."""

  def make(place, folder, rng):
    expected = undisturbed(place, name)
    server().clear()
    fill(place, OBJECTS[name])
    fault = rng.choice(faults)
    if name == "a stream" and fault == "garbled":  # parts have no checksum
      fault = "short"
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
    expected = undisturbed(place, name)
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
      if verb == "embed":
        table = parquet.read_table(folder / "d" / "texts.parquet")
        right = "photo number 3" in table["caption"].to_pylist()
      else:
        (listed,) = (folder / "d").rglob("*.input.json")
        right = "/a[1].tar" in listed.read_text()
      return "" if right else "it has read a1.tar"

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
    if code == 0 and not re.search(r"train images +60\b", said):
      return f"{name} vanished, and the set is published without it"
    return "" if code == 0 or name in said else f"it does not name {name}"

  return Case(
    words, codes=(0, 1), seconds=SECONDS, env=machine(folder), check=check
  )


def names_that_lead_out(place):
  config = (PUBLISHED / "hf_clip" / "config.json").read_bytes()
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
READINGS = [
  *(reading(name) for name in READS for _ in range(3)),
  *(reading(name, ("garbled",)) for name in READS if name != "a stream"),
  *(reading(name, ("500", "403", "closed"), "LIST") for name in READS),
  *(reading(name, ("500", "403", "closed", "404"), "HEAD") for name in READS),
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
    "evaluate",
    "--workdir={place}/run",
    "--data_dir={place}/data",
    "--data=photos:train",
    "--prior={lake}/notes.json",
    codes=(0,),
    objects=lambda place: {"notes.json": PRIOR},
  ),
  in_lake(
    "",
    "evaluate",
    "--workdir={place}/run",
    "--data_dir={place}/data",
    "--data=photos:train",
    "--prior={lake}/x/.lock.json",
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
