"""Forged tars for `chaos`: what ingest, in-place sets and streams do with them.

A row of `TARS` writes a folder of tars, and says what each way to read them may
end with. Every tar is beside a good one, `a.tar`, with five pairs.
"""

import json
import os
import re
import shutil
import tarfile

from chaos_place import TRAIN
from chaos_trial import Case
import make_photos
from repository import PUBLISHED

PHOTO = make_photos.PHOTOS[0]
STREAM = {  # a run of 12 steps on a stream of tars
  **TRAIN,
  "data.tokenizer": f"{PUBLISHED}/hf_clip",
  "data.num_pairs": 48,
  "data.window": 8,
  "data.length": 9,
  "data.size": 16,
  "num_epochs": 2.0,
  "checkpoint_every": 2,
  "objective.name": "clip",
  "objective.temperature": 0.1,
}
del STREAM["objective.gamma"]


def stream(tars, workdir, **changes):
  """The words of a command that trains on a stream."""
  config = STREAM | {"data.train": tars} | changes
  words = [f"--config.{name}={value}" for name, value in config.items()]
  return ["train", "--config=cc3m:own", f"--workdir={workdir}", *words]


def member(name, data, **fields):
  """The header and the blocks of a file; `fields` are changed in the header."""
  info = tarfile.TarInfo(name)
  info.size = len(data)
  for field, value in fields.items():
    setattr(info, field, value)
  return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def pair(key, caption=b"a dog"):
  return member(f"{key}.jpg", PHOTO) + member(f"{key}.txt", caption)


def pairs(first, count=5):
  return b"".join(pair(f"{i:05d}") for i in range(first, first + count))


END = bytes(1024)


def pax(record, kind=b"x"):
  """A header of further fields, whatever these are."""
  return member("pax", record, type=kind)


def a_record(text):
  """A field of such a header, with its length before it."""
  length = len(text) + 3
  while len(f"{length} {text}\n") != length:
    length += 1
  return f"{length} {text}\n".encode()


WAYS = ("ingest", "in_place", "stream")


def tars(name, *contents, ways=WAYS, says="", **expected):
  """Reads a.tar and these tars in one of some ways."""

  def make(place, folder, rng):
    home = folder / "tars"
    home.mkdir()
    (home / "a.tar").write_bytes(pairs(0) + END)
    for number, content in enumerate(contents):
      data = content(home) if callable(content) else content
      if data is not None:
        (home / f"b{number}.tar").write_bytes(data)
    way = rng.choice(ways)
    if way == "stream":
      words = stream(f"{home}/*.tar", folder / "run")
    else:
      words = ["ingest", f"--input={home}/*.tar", "--dataset=mine"]
      words += [f"--data_dir={folder}/data", "--workers=1"]
      words += ["--in_place"] if way == "in_place" else []
    check = rows_of(folder, way, expected.get("behind"))
    rest = {k: x for k, x in expected.items() if k != "behind"}
    rest = {"codes": (0, 1)} | rest
    return Case(words, says=says, check=check, **rest)

  make.__name__ = f"tars({name})"
  return make


def rows_of(folder, way, behind):
  """Says whether what is behind the end is neither read nor listed.

  `behind` is the number of images with it, or None if it is not asked for.
  """

  def check(code, said):
    if way == "stream" or behind is None or code:
      return ""
    listed = "".join(
      x.read_text() for x in (folder / "data").rglob("*.rejected.jsonl")
    )
    whole = re.search(rf"train images +{behind}\b", said) or "b0.tar" in listed
    return "" if whole else f"neither read nor listed: {said[-500:]}"

  return check


def negative(size):
  return pairs(10) + member("x.jpg", PHOTO, size=size) + pairs(20) + END


def of_number(field):
  """A header whose size is these 12 bytes."""
  header = bytearray(member("x.jpg", PHOTO))
  header[124:136] = field
  total = sum(header[:148]) + sum(header[156:512]) + 8 * 32
  header[148:156] = b"%06o\0 " % total
  return pairs(10) + bytes(header) + pairs(20) + END


def of_one_key(count, ending="txt"):
  """Thousands of files of one key, after a good pair."""
  files = (member(f"k.{i}.{ending}", b"x") for i in range(count))
  return pairs(10) + member("k.jpg", PHOTO) + b"".join(files) + END


def repeated(count):
  return pairs(10) + member("k.txt", b"a dog") * count + END


def large_captions(home):
  """Captions of 5 MB, with a few words or with one."""
  words = b"a dog of two cats on the mat " * 170_000
  return b"".join(pair(f"c{i}", words) for i in range(40)) + END


def large_json(home):
  text = json.dumps({"caption": ["dog " * 10**6] * 5}).encode()
  files = [
    member(f"c{i}.jpg", PHOTO) + member(f"c{i}.json", text) for i in range(6)
  ]
  return b"".join(files) + END


def many_captions(home):
  return pair("c", b"a dog\n" * 10**6) + pairs(10) + END


def a_fifo(home):
  os.mkfifo(home / "pipe.tar")


def a_link_to_zero(home):
  (home / "zero.tar").symlink_to("/dev/zero")


def a_link_to_a_fifo(home):
  os.mkfifo(home / "pipe")
  (home / "link.tar").symlink_to(home / "pipe")


def a_link_to_itself(home):
  (home / "loop.tar").symlink_to("loop.tar")


def a_folder(home):
  (home / "folder.tar").mkdir()


def stats(**content):
  """The counts beside both tars."""

  def write(home):
    for name in ("a", "b0", "b1"):
      (home / f"{name}_stats.json").write_text(json.dumps(content))
    return pairs(10) + END

  return write


def stats_of_zero(home):
  for name in ("a", "b0"):
    (home / f"{name}_stats.json").symlink_to("/dev/zero")
  return pairs(10) + END


def stats_pipe(home):
  os.mkfifo(home / "a_stats.json")
  return pairs(10) + END


def one_of(words, says="", **expected):
  """A stream whose words are changed."""

  def make(place, folder, rng):
    home = folder / "tars"
    home.mkdir()
    for name in "ab":
      (home / f"{name}.tar").write_bytes(pairs(0) + END)
    filled = [x.format(home=home, place=place, folder=folder) for x in words]
    cache = {"NUCLR_REMOTE_CACHE": f"{folder}/cache"}
    ready = {"codes": (0, 1, 2), "env": cache} | expected
    change = [x for x in filled if not x.startswith("--config")]
    if change:
      return Case(filled, says=says, **ready)
    return Case(
      [*stream(f"{home}/*.tar", folder / "run"), *filled], says=says, **ready
    )

  make.__name__ = f"one_of({' '.join(words)[:60]})"
  return make


def all_empty(home):
  (home / "a.tar").write_bytes(END)
  for number in range(3):
    (home / f"c{number}.tar").write_bytes(END)


def nothing_of_use(home):
  """Members of which none is a sample."""
  (home / "a.tar").write_bytes(member("x.cls", b"1") * 3 + END)


def num_pairs(value):
  return one_of([f"--config.data.num_pairs={value}"], "num_pairs", codes=(1, 2))


def ranges(name):
  """Numbers in a name: more of them than a disk can hold."""

  def make(place, folder, rng):
    tars = f"{folder}/tars/{name}.tar"
    words = stream(tars, folder / "run")
    if rng.random() < 0.7:
      words = ["ingest", f"--input={tars}", "--dataset=mine", "--workers=1"]
      words += [f"--data_dir={folder}/data"]
      words += ["--in_place"] if rng.random() < 0.5 else []
    return Case(words, "range|tar", codes=(1, 2))

  make.__name__ = f"ranges({name})"
  return make


def a_missing_tar(verb):
  """A set in place, of whose tars one is gone, or another one is there."""

  def make(place, folder, rng):
    shutil.copytree(place / "tars", folder / "tars")
    shutil.copytree(place / "placed", folder / "placed")
    for path in folder.glob("placed/*/*/tars-*.json"):
      listed = json.loads(path.read_text()) | {"folder": f"{folder}/tars"}
      path.write_text(json.dumps(listed))
    lost = folder / "tars" / f"{rng.randrange(6)}.tar"
    if rng.random() < 0.5:
      lost.unlink()
    else:
      lost.write_bytes(pairs(0) + END)
    data = f"--data_dir={folder}/placed"
    words = {
      "ingest": ["--input=tfds:photos", "--dataset=copy", "--workers=1"],
      "embed": [
        "--input=tfds:photos",
        f"--output={folder}/e",
        f"--model={PUBLISHED}/hf_clip",
      ],
      "evaluate": ["--data=photos:train", f"--model={PUBLISHED}/hf_clip"],
      "popularity": [
        "--data=photos:train",
        f"--model={PUBLISHED}/hf_clip",
        f"--workdir={folder}/p",
      ],
      "train": [
        "--config=cc3m:own",
        f"--workdir={folder}/w",
        *(f"--config.{k}={x}" for k, x in TRAIN.items()),
      ],
    }[verb]
    return Case([verb, data, *words], rf"{lost.name}", codes=(1,), seconds=20)

  make.__name__ = f"a_missing_tar({verb})"
  return make


# A tar in a tar's place: what is after its end mark.
BEHIND = pairs(10) + END + pairs(20) + END
TARS = [
  *(
    tars(f"size {size}", negative(size))
    for size in (-1, -512, -513, -1024, -2048, -(2**40), -(2**62), 2**62)
  ),
  *(
    tars(f"size {field!r}", of_number(field))
    for field in (
      b"\xff" * 12,
      b"\x80" + b"\xff" * 11,
      b"-00000001000",
      b" " * 12,
      b"\xff" * 8 + b"\xfe\0\0\0",
      b"00000000-512",
      b"1_0\0" + bytes(8),
      b"\xff" * 10 + b"\xfa\0",
    )
  ),
  *(
    tars(name, pairs(10) + pax(record) + pairs(20) + END)
    for name, record in (
      ("digits for a length", b"9" * 200_000 + b" path=x\n"),
      ("digits alone", b"9" * 200_000),
      ("digits and a space", b"9" * 200_000 + b" "),
      ("digits for a size", a_record("size=" + "9" * 200_000)),
      ("digits for a time", a_record("mtime=" + "9" * 200_000)),
      ("zeros for a length", b"0" * 200_000 + b"8 path=x\n"),
      ("a negative size", a_record("size=-512")),
      ("a size that is none", a_record("size=nan")),
      ("a large size", a_record("size=99999999999999999999")),
      ("a length of 0", b"0 path=x\n"),
      ("a negative length", b"-5 path=x\n"),
      ("a path of 1 MB", a_record("path=" + "x/" * 500_000)),
      (
        "a sparse file",
        a_record("GNU.sparse.major=1")
        + a_record("GNU.sparse.minor=0")
        + a_record("GNU.sparse.name=x.jpg"),
      ),
      ("a sparse map", a_record("GNU.sparse.map=" + "1," * 100_000)),
      ("a sparse size", a_record("GNU.sparse.size=-512")),
      (
        "a character set",
        a_record("hdrcharset=BINARY") + a_record("path=\x1b[31m"),
      ),
    )
  ),
  tars(
    "global digits", pax(b"9" * 200_000 + b" path=x\n", b"g") + pairs(10) + END
  ),
  tars("a global size", pax(a_record("size=-512"), b"g") + pairs(10) + END),
  tars(
    "a long name",
    pairs(10) + member("long", b"x" * 10**6, type=b"L") + pairs(20) + END,
  ),
  tars(
    "a long name of size -1",
    pairs(10) + member("l", b"x", type=b"L", size=-512) + pairs(20) + END,
  ),
  tars("10,000 of one key", of_one_key(10_000), ways=("stream",)),
  *(
    tars(name, content, ways=("ingest", "in_place"))
    for name, content in (
      ("30,000 of one key", of_one_key(30_000)),
      ("30,000 pictures of one key", of_one_key(30_000, "png")),
      ("30,000 times one file", repeated(30_000)),
    )
  ),
  tars(
    "behind the end",
    BEHIND,
    behind=15,
    ways=("ingest", "in_place"),
  ),
  tars(
    "behind the end, half",
    BEHIND[:-3000],
    ways=("ingest", "in_place"),
    behind=0,
  ),
  tars(
    "garbage behind the end",
    pairs(10) + END + b"garbage" * 999,
    behind=0,
    ways=("ingest", "in_place"),
  ),
  tars("many zeros behind the end", pairs(10) + bytes(10**6)),
  tars("captions of 5 MB", large_captions),
  tars("captions of 5 MB in JSON", large_json),
  tars("a million captions", many_captions),
  tars("a pipe", a_fifo, codes=(1,), says=r"pipe\.tar"),
  tars("a link to zero", a_link_to_zero, codes=(1,), says=r"zero\.tar"),
  tars("a link to a pipe", a_link_to_a_fifo, codes=(1,), says=r"link\.tar"),
  tars("a link to itself", a_link_to_itself, codes=(1,), says=r"loop\.tar"),
  tars("a folder", a_folder, says=r"folder\.tar|"),
  tars("all empty", all_empty, codes=(1,), seconds=30),
  tars("nothing of use", nothing_of_use, codes=(1,), seconds=30),
  *(
    tars(f"{x} successes", stats(successes=x), pairs(20) + END)
    for x in (2**31, 2**62, 10**300, -5, 0, 1e400, "7", [1], None, True)
  ),
  tars("stats of zero", stats_of_zero),
  tars("stats in a pipe", stats_pipe),
  *map(num_pairs, (10**9, 2**31, 2**40, 10**30)),
  *map(
    ranges,
    (
      "{0..999999}{0..999999}",
      "{0..9999}{0..9999}{0..9999}",
      "{0..999999}a{0..9}",
      "{0..99999999999999999999}",
    ),
  ),
  one_of(
    [
      "ingest",
      "--input={home}/*.tar",
      "--dataset=mine",
      "--in_place",
      "--data_dir=memory://x/d",
      "--workers=1",
    ],
    codes=(0, 1, 2),
  ),
  one_of(
    [
      "ingest",
      "--input=memory://x/*.tar",
      "--dataset=mine",
      "--in_place",
      "--data_dir={folder}/d",
      "--workers=1",
    ],
    codes=(1, 2),
  ),
  tars(
    "names that a terminal obeys",
    pair("\x1b[31mred\x1b]0;x\x07")
    + member("\x1b[2J.jpg", b"no picture")
    + member("\x1b[2J.txt", b"\x1b[2J")
    + pairs(10)
    + END,
  ),
  *map(a_missing_tar, ("ingest", "embed", "evaluate", "popularity", "train")),
]
