"""Strange flags and small forged files for `chaos`.

A row is a command with a value or a file that is out of all bounds: numbers of
a config, counts of texts, folders of embeddings, and names for a terminal.
"""

import csv
import os
import shutil

from chaos_place import command
from chaos_tars import pair
from chaos_trial import Case, canary
import make_photos
import numpy as np
from repository import PUBLISHED


# Flags.
def flag(says, *words, **expected):
  def make(place, folder, rng):
    canary(folder)
    filled = [x.format(place=place, folder=folder) for x in words]
    return Case(filled, says=says, **({"codes": (1, 2)} | expected))

  make.__name__ = f"flag({' '.join(words)[:60]})"
  return make


ONE_STEP = (  # after which nothing is computed but the diagnostics
  *("batch_size=60", "num_epochs=1", "objective.zeta.rate.freeze_epochs=0.0"),
  "checkpoint_every=1",
)


def trained(key, *values, codes=(1, 2)):
  """A number of a config that training cannot bear."""

  def make(place, folder, rng):
    words = command("train", place, folder / "w")
    words.append(f"--config.{key}={rng.choice(values)}")
    if key.startswith("optimizer.") and rng.random() < 0.5:
      words += [f"--config.{change}" for change in ONE_STEP]
    # A diverging run says so; one that does not ends with finite numbers.
    return Case(
      words,
      f"{key.rpartition('.')[2]}|finite|diverge",
      codes=codes,
      check=lambda code, said: finite(folder / "w"),
    )

  make.__name__ = f"trained({key}, {values})"
  return make


def finite(run):
  """Says which of a run's numbers are not."""
  for name in ("metrics.json", "history.jsonl"):
    path = run / name
    text = path.read_text() if path.exists() else ""
    if name == "metrics.json" and ("NaN" in text or "Infinity" in text):
      return f"{name} has NaN, and it is not said"
  return ""


def prior(make_file, says="prior", **expected):
  """A file of counts."""

  def make(place, folder, rng):
    path = make_file(folder)
    words = ["evaluate", f"--workdir={place}/run", f"--prior={path}"]
    words += [f"--data_dir={place}/data", "--data=photos:train"]
    return Case(words, says=says, **({"codes": (1, 2)} | expected))

  make.__name__ = f"prior({make_file.__name__})"
  return make


def written(name, content):
  def make_file(folder):
    (folder / name).write_bytes(content)
    return folder / name

  make_file.__name__ = name
  return make_file


def zeros(folder):
  return "/dev/zero"


def a_pipe(folder):
  os.mkfifo(folder / "p.json")
  return folder / "p.json"


def a_pipe_of_lines(folder):
  os.mkfifo(folder / "p.csv")
  return folder / "p.csv"


def a_link_to_zero(folder):
  (folder / "p.csv").symlink_to("/dev/zero")
  return folder / "p.csv"


def a_folder(folder):
  (folder / "p.json").mkdir()
  return folder / "p.json"


def a_hole(folder):
  """A terabyte of nothing, which takes no space."""
  with open(folder / "p.csv", "wb") as file:
    file.truncate(2**40)
  return folder / "p.csv"


def a_socket(folder):
  return "/dev/stdin"


LONG = "x" * 5000
PRIORS = [
  *map(
    prior,
    (
      *(zeros, a_pipe, a_pipe_of_lines, a_link_to_zero, a_folder, a_hole),
      written("deep.json", b"[" * 10**5),
      written("deeper.json", b'{"a":' * 10**5),
      written("number.json", b'{"a": ' + b"9" * 10**5 + b"}"),
      written("number.csv", b"a," + b"9" * 10**5),
      written("x.json", b'{"a": 1e400}'),
      written("x.csv", b'"' + b"a" * 10**6),
      written("nothing.json", b""),
      written("utf.csv", b"\xff\xfe,1"),
      written("wide.csv", b"a" * 200_000 + b",1"),
      written("list.json", b'{"a": [[[[1]]]]}'),
      written("zero.csv", b"a\0b,1\n"),
    ),
  ),
  prior(lambda folder: f"{folder}/{LONG}", "name|long|exist"),
]


# Popularities.
def embedded(change, **expected):
  """A folder of embeddings that has been changed."""

  def make(place, folder, rng):
    shutil.copytree(place / "of_embed", folder / "e")
    (folder / "e" / "SHA256SUMS").unlink(missing_ok=True)
    change(folder / "e", rng)
    words = ["popularity", f"--embeddings={folder}/e", "--temperature=0.1"]
    check = cells(folder / "p")
    return Case(
      [*words, f"--workdir={folder}/p"],
      check=check,
      **({"codes": (0, 1)} | expected),
    )

  make.__name__ = f"embedded({change.__name__})"
  return make


def cells(folder):
  """Says which cells of tables are formulas for a spreadsheet."""

  def check(code, said):
    csv.field_size_limit(10**8)
    for path in folder.rglob("*.csv"):
      with open(path, newline="") as file:
        for row in csv.reader(file):
          for cell in row:
            if cell[:1] in tuple("=+-@\t\r") and not is_number(cell):
              return f"{path.name} has the formula {cell[:40]!r}"
    return ""

  return check


def is_number(cell):
  try:
    float(cell)
  except ValueError:
    return False
  return True


def table(name, **columns):
  """Writes columns of a table of embeddings; {} stands for the row."""

  def change(folder, rng):
    import pyarrow
    from pyarrow import parquet

    old = parquet.read_table(folder / name)
    for column, value in columns.items():
      rows = [
        value.format(i) if isinstance(value, str) else value
        for i in range(len(old))
      ]
      place = old.schema.get_field_index(column)
      array = pyarrow.array(rows)
      if place < 0:
        old = old.append_column(column, array)
      else:
        old = old.set_column(place, column, array)
    parquet.write_table(old, folder / name, compression="zstd")

  change.__name__ = f"table {name} {[(k, x[:9]) for k, x in columns.items()]}"
  return change


def bomb_of_thumbnails(folder, rng):
  """Thumbnails of 400 MB each, in some kilobytes."""
  table("images.parquet", thumbnail=bytes(4 * 10**8))(folder, rng)


def many_thumbnails(folder, rng):
  """As many images as there are captions, each with the same large one."""
  import pyarrow
  from pyarrow import parquet

  count = 3000
  for name in ("image.npy", "text.npy"):
    old = np.load(folder / name)
    np.save(folder / name, np.resize(old, (count, old.shape[1])))
  images = pyarrow.table(
    {
      "key": [str(i) for i in range(count)],
      "content": [str(i) for i in range(count)],
      "thumbnail": pyarrow.array(
        [bytes(10**6)] * count, pyarrow.large_binary()
      ),
    }
  )
  texts = pyarrow.table(
    {
      "image": list(range(count)),
      "caption": [f"text {i}" for i in range(count)],
    }
  )
  parquet.write_table(images, folder / "images.parquet", compression="zstd")
  parquet.write_table(texts, folder / "texts.parquet")


def picture_of(width):
  """Thumbnails that claim to have this width and height."""
  import struct
  import zlib

  def chunk(kind, content):
    crc = zlib.crc32(kind + content)
    return (
      struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)
    )

  head = struct.pack(">II", width, width) + b"\x08\0\0\0\0"
  data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
  data += chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
  return table("images.parquet", thumbnail=data)


POPULARITIES = [
  *(
    embedded(table("texts.parquet", caption=x), codes=(0, 1))
    for x in (
      '=HYPERLINK("http://x/{}")',
      "@SUM(1+{})",
      "+cmd|' /C calc'!{}",
      "-2+3+cmd|{}",
      "\t=1+{}",
      "\r=1+{}",
      "\x1b[31mred {}",
      "\u202etxt {}",
    )
  ),
  *(
    embedded(table("images.parquet", key=x), codes=(0, 1))
    for x in (
      "=1+{}",
      "@x{}",
      "\x1b]0;x\x07 {}",
      "../../ESCAPED{}",
      "x" * 10**6,
    )
  ),
  embedded(bomb_of_thumbnails),
  embedded(many_thumbnails),
  embedded(picture_of(60_000)),
  embedded(table("images.parquet", thumbnail=b"<script>alert(1)</script>")),
]


def names_in_a_table(key, caption):
  """Photos whose names and captions are for a terminal or a spreadsheet."""

  def make(place, folder, rng):
    (folder / "in").mkdir()
    (folder / "in" / "t.tar").write_bytes(
      pair(key, caption.encode()) + pair("good") + bytes(1024)
    )
    (folder / "in" / "bad.jsonl").unlink(missing_ok=True)
    words = ["popularity", f"--model={PUBLISHED}/hf_clip"]
    words += [f"--input={folder}/in/t.tar", f"--workdir={folder}/p"]
    if rng.random() < 0.5:
      words = ["embed", *words[1:3], f"--output={folder}/e"]
    return Case(words, codes=(0, 1), check=cells(folder / "p"))

  make.__name__ = f"names({key!r})"
  return make


def a_name_that_a_terminal_obeys(place, folder, rng):
  """A file of such a name that cannot be read, in a folder or a table."""
  name = rng.choice(
    ["\x1b[2J.jpg", "\x1b]0;x\x07.jpg", "a\x9bb.jpg", "\x07.jpg"]
  )
  (folder / "in").mkdir()
  (folder / "in" / name).write_bytes(b"no picture")
  (folder / "in" / name).with_suffix(".txt").write_text("a dog")
  if rng.random() < 0.5:
    (folder / "in" / "good.jpg").write_bytes(make_photos.PHOTOS[0])
    (folder / "in" / "good.txt").write_text("a cat")
  words = ["ingest", f"--input={folder}/in", "--dataset=mine", "--workers=1"]
  return Case([*words, f"--data_dir={folder}/d"], codes=(0, 1))


FLAGS = [
  *(
    trained("optimizer.weight_decay", x)
    for x in ("1e30", "1e38", "1e300", "-1.0", "1e20")
  ),
  *(
    trained("optimizer.learning_rate", x)
    for x in (2**31, 2**62, "1e30", "1e38", "1e308", "-1e-3")
  ),
  trained("optimizer.clip_norm", "1e-40", "0", "-1", "1e300", codes=(0, 1, 2)),
  trained("objective.temperature", "1e-30", "1e-7", "1e30", codes=(0, 1, 2)),
  trained("objective.gamma", "1e-30", "2", "-1", codes=(0, 1, 2)),
  trained("batch_size", 2**31, 2**62, 10**9),
  trained("num_epochs", "1e30", 2**62),
  trained("data.size", 10**6, 2**31),
  trained("data.length", 10**9, 2**31),
  trained("model.dim", 10**9, 2**31),
  trained("data.threads", 10**6, 2**31),
  trained("max_checkpoints", -1, 0, "1e9"),
  trained("log_every", 0, -1),
  trained("seed", 2**31, 2**62, -1, 2**70, codes=(0, 1, 2)),
  *(
    flag("", verb, f"--{name}={value}", *rest)
    for value in (
      LONG,
      f"{{folder}}/{LONG}",
      "a/" * 3000,
      "\x1b[31m",
      "~nobody/x",
    )
    for verb, name, *rest in (
      ("embed", "model", "--input={place}/photos", "--output={folder}/e"),
      ("evaluate", "model", "--data=photos:train", "--data_dir={place}/data"),
      ("report", "workdir"),
      ("train", "config", "--workdir={folder}/w"),
      ("ingest", "input", "--dataset=mine", "--data_dir={folder}/d"),
      ("embed", "input", f"--model={PUBLISHED}/hf_clip", "--output={folder}/e"),
      ("popularity", "embeddings", "--workdir={folder}/p", "--temperature=0.1"),
    )
  ),
  flag(
    "",
    "ingest",
    "--input={place}/tars/0.tar",
    f"--dataset={LONG}",
    "--data_dir={folder}/d",
  ),
  flag(
    "",
    "export",
    "--workdir={place}/run",
    "--data_dir={place}/data",
    f"--output={{folder}}/{LONG}",
  ),
  names_in_a_table("=1+1", "=1+1"),
  names_in_a_table("@x", "+1+1 dogs"),
  names_in_a_table("\x1b[31mx", "\x1b[2J a dog"),
  *[a_name_that_a_terminal_obeys] * 3,
]
