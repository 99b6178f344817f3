"""Bad input for `chaos`: a command each, and what its message must contain.

Functions of the prepared folder, an empty folder to put files into and a random
generator; they return the words after `nuclr`, and a part of the message.
"""

import functools
import io
import json
import os
import tarfile
import zlib

import make_datasets
import make_icons
import make_photos
import make_shards
import numpy as np

from nuclr_jax.lab.config import complete, load_config

TABLE = "image,caption\na.jpg,a dog\n"


def ingest(path, folder, *more):
  where = [f"--input={path}", "--dataset=mine", f"--data_dir={folder}/data"]
  return ["ingest", *where, "--workers=1", *more]


def a_file(name, content, message, *more):
  """An input of `nuclr ingest` with this content."""

  def make(place, folder, rng):
    path = folder / name
    path.write_bytes(
      content if isinstance(content, bytes) else content.encode()
    )
    return ingest(path, folder, *more), message

  make.__name__ = f"a_file({name})"
  return make


def a_command(message, *words):
  """A command line; {place} and {folder} are filled in."""

  def make(place, folder, rng):
    return [x.format(place=place, folder=folder) for x in words], message

  make.__name__ = "a_command"
  return make


def a_tar_of(size):
  """A tar whose only header claims this size."""
  member = tarfile.TarInfo("a.jpg")
  member.size = size
  header = member.tobuf(tarfile.GNU_FORMAT)
  return header + make_photos.PHOTOS[0]


def a_pipe(place, folder, rng):
  path = folder / f"a{rng.choice(['.tar', '.csv', '.json', '.parquet'])}"
  os.mkfifo(path)
  return ingest(path, folder), "neither a regular file nor a folder"


def a_pipe_in_a_folder(place, folder, rng):
  os.mkfifo(folder / "a.tar")
  return ingest(folder, folder), "is not a regular file"


def a_device(place, folder, rng):
  return ingest("/dev/zero", folder), "neither a regular file nor a folder"


def a_pipe_as_embeddings(place, folder, rng):
  os.mkfifo(folder / "a.npz")
  return popularity(folder / "a.npz", folder), "is not a regular file"


def popularity(path, folder, *more):
  words = ["popularity", f"--embeddings={path}", f"--workdir={folder}/p"]
  return [*words, *(more or ["--temperature=0.1"])]


def embeddings(message, **arrays):
  """Embeddings with these arrays."""

  def make(place, folder, rng):
    np.savez(folder / "x.npz", **arrays)
    return popularity(folder / "x.npz", folder), message

  make.__name__ = f"embeddings({message})"
  return make


def filtered(message, **arrays):
  """Shards with these arrays beside the table of two pairs."""

  def make(place, folder, rng):
    make_shards.datacomp(folder / "m", (2,))
    np.savez(folder / "m" / "00000000.npz", **arrays)
    words = ["filter", f"--embeddings={folder}/m", f"--output={folder}/k"]
    return [*words, "--score=similarity", "--keep=0.5"], message

  make.__name__ = f"filtered({message})"
  return make


def near_target(message, target):
  """Good shards, and this array as the target of NormSim."""

  def make(place, folder, rng):
    make_shards.datacomp(folder / "m", (2,))
    np.save(folder / "z.npy", target)
    words = ["filter", f"--embeddings={folder}/m", f"--output={folder}/k"]
    words += [f"--target={folder}/z.npy", "--score=normsim", "--keep=0.5"]
    return words, message

  make.__name__ = f"near_target({message})"
  return make


def a_bomb(place, folder, rng):
  """A PNG of 16,000 x 16,000 pixels in some kilobytes."""
  data = b""
  side = 16_000
  for kind, content in (
    (b"IHDR", np.array([side, side], ">u4").tobytes() + b"\x08\0\0\0\0"),
    (b"IDAT", zlib.compress(bytes(10_000))),
    (b"IEND", b""),
  ):
    crc = zlib.crc32(kind + content)
    data += len(content).to_bytes(4, "big") + kind + content
    data += crc.to_bytes(4, "big")
  (folder / "in").mkdir()
  (folder / "in" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)
  (folder / "in" / "a.txt").write_text("a dog")
  return ingest(folder / "in", folder), "too many pixels"


def a_link_out(place, folder, rng):
  (folder / "in").mkdir()
  (folder / "in" / "a.tar").symlink_to(place / "tars" / "0.tar")
  return ingest(folder / "in", folder), "is a link out of"


def converted(message, **changes):
  """A data set of TFRecord files whose description has been changed."""

  def make(place, folder, rng):
    import shutil

    new = folder / "in" / "toy" / "1.0.0"
    shutil.copytree(place / "old" / "toy" / "1.0.0", new)
    info = json.loads((new / "dataset_info.json").read_text())
    (new / "dataset_info.json").write_text(json.dumps(info | changes))
    return ["convert", f"--input={new}", f"--data_dir={folder}/d/e"], message

  make.__name__ = f"converted({changes})"
  return make


def an_absolute_name(place, folder, rng):
  """A data set whose name is a path."""
  return converted("ESCAPED", name=f"{folder}/ESCAPED")(place, folder, rng)


def a_bad_row_before_good_ones(place, folder, rng):
  """A file of a terabyte, which takes no space; the other rows are read."""
  with open(folder / "big.jpg", "wb") as file:
    file.truncate(2**40)
  (folder / "t.csv").write_text("image,caption\nbig.jpg,x\nno.jpg,y\n")
  return ingest(folder / "t.csv", folder), "too large a file"


def shards_elsewhere(place, folder, rng):
  """Metadata that lead out of the data set's folder, or a link that does."""
  import shutil

  data = folder / "in" / "photos" / "1.0.0"
  shutil.copytree(place / "data" / "photos" / "1.0.0", data)
  info = json.loads((data / "dataset_info.json").read_text())
  if rng.random() < 0.5:
    split, *_ = info["splits"]
    split["filepathTemplate"] = (
      f"{place}/data/photos/1.0.0/" + split["filepathTemplate"]
    )
    (data / "dataset_info.json").write_text(json.dumps(info))
    message = "names a file elsewhere"
  else:
    shard = next(data.glob("*.array_record-*"))
    shard.unlink()
    shard.symlink_to(place / "data" / "photos" / "1.0.0" / shard.name)
    message = "is a link out of"
  words = ["ingest", "--input=tfds:photos", "--dataset=copy"]
  return [*words, f"--data_dir={folder}/in"], message


def a_parquet_bomb(place, folder, rng):
  """A cell of 300 MB in some kilobytes."""
  import pyarrow
  from pyarrow import parquet

  table = pyarrow.table({"jpg": [bytes(3 * 10**8)], "caption": ["a dog"]})
  parquet.write_table(table, folder / "b.parquet", compression="zstd")
  return ingest(folder / "b.parquet", folder), "damaged file"


def an_arrow_bomb(place, folder, rng):
  """The same in a stream of Arrow, whose batches say nothing of their size."""
  import pyarrow

  table = pyarrow.table({"image": [bytes(3 * 10**8)], "caption": ["a dog"]})
  how = pyarrow.ipc.IpcWriteOptions(compression=rng.choice(["zstd", "lz4"]))
  path = folder / "b.arrow"
  with pyarrow.ipc.new_stream(str(path), table.schema, options=how) as writer:
    writer.write_table(table)
  return ingest(path, folder), "damaged file"


def links_among_paths(place, folder, rng):
  """Photos of which `datasets` knows the address."""
  paths = ["a.jpg"] * 40
  paths[rng.randrange(40)] = rng.choice(["https://a.b/0.jpg", "s3://a/0.jpg"])
  rows = make_datasets.by_path(paths)
  table = make_datasets.table_of(image=rows, caption=["a dog"] * 40)
  if rng.random() < 0.5:
    path = make_datasets.to_parquet(folder / "x.parquet", table)
  else:
    path = make_datasets.save_to_disk(folder / "x", table)
  return ingest(path, folder), "names images by URL"


def metadata_that_leads_out(place, folder, rng):
  """A table in a folder of images that names a file elsewhere."""
  inside = folder / "x"
  inside.mkdir()
  (inside / "a.png").write_bytes(b"no image")
  (folder / "b.jpg").write_bytes(PHOTO)
  (inside / "b.jpg").symlink_to(folder / "b.jpg")
  name = rng.choice(["../b.jpg", str(folder / "b.jpg"), "b.jpg"])
  (inside / "metadata.csv").write_text(f"file_name,text\n{name},a dog\n")
  return ingest(inside, folder), "path out of the folder"


def a_run(message, **changes):
  """A run whose config.json has been changed."""

  def make(place, folder, rng):
    (folder / "run").mkdir()
    config = json.loads((place / "run" / "config.json").read_text()) | changes
    (folder / "run" / "config.json").write_text(json.dumps(config))
    verb = rng.choice(["evaluate", "report", "popularity"])
    return [verb, f"--workdir={folder}/run"], message

  make.__name__ = f"a_run({changes})"
  return make


@functools.cache
def leaves(name):
  """The numbers and switches of a config: dotted keys and values."""
  found = {}

  def walk(prefix, value):
    for key, x in value.items():
      if isinstance(x, dict):
        walk(f"{prefix}{key}.", x)
      elif isinstance(x, bool | int | float):
        found[f"{prefix}{key}"] = x

  walk("", complete(load_config(name)))
  return sorted(found.items())


def wrong_config(place, folder, rng):
  """A value that no number or switch of a config takes."""
  name = rng.choice(["glyphs", "cc3m:smoke", "labelled", "sentences", "cached"])
  key, value = rng.choice(leaves(name))
  wrong = {
    bool: ["maybe", "3", "None", "nan"],
    int: ["1.5", "x", "-7", "True", "9" * 20, "[1]", "1e400"],
    float: ["nan", "inf", "-inf", "x", "1e999", "[0.1]", "{'vale': 1}"],
  }[type(value)]
  words = ["train", f"--config={name}", f"--workdir={folder}/w"]
  words += [f"--config.{key}={rng.choice(wrong)}", f"--data_dir={folder}/data"]
  return words, key.rpartition(".")[2]


def a_cut_package(place, folder, rng):
  """A package of icons whose download was interrupted."""
  path = make_icons.write_package(folder / "icons.tgz")
  raw = path.read_bytes()
  path.write_bytes(raw[: rng.randrange(len(raw))])
  words = ["train", "--config=icons:smoke", f"--workdir={folder}/w"]
  words += [f"--config.data.package={path}", f"--data_dir={folder}/data"]
  return words, "icons.tgz"


PHOTO = io.BytesIO(make_photos.PHOTOS[0]).getvalue()
EYE = np.eye(4, dtype=np.float32)
CASES = [
  a_pipe,
  a_pipe_in_a_folder,
  a_device,
  a_pipe_as_embeddings,
  a_bomb,
  a_link_out,
  an_absolute_name,
  a_bad_row_before_good_ones,
  shards_elsewhere,
  a_parquet_bomb,
  an_arrow_bomb,
  links_among_paths,
  metadata_that_leads_out,
  a_cut_package,
  *(
    a_file("a.tar", a_tar_of(size), "damaged file")
    for size in (2**20, 2**36, 2**62, 2**70)
  ),
  a_file("a.tar", b"", "damaged file"),
  a_file("a.tar", b"no tar at all" * 100, "damaged file"),
  a_file("a.parquet", b"PAR1 nothing PAR1", "damaged file"),
  a_file("a.arrow", b"\xff\xff\xff\xff no stream", "damaged file"),
  a_file("a.arrow", b"ARROW1\0\0", "is a Feather file"),
  a_file("a.csv", "", "has the columns"),
  a_file("a.csv", "colour,sound\nred,loud\n", "has the columns"),
  a_file("a.csv", TABLE, "missing file"),
  a_file("a.csv", TABLE.replace("a.jpg", "http://x/a.jpg"), "by URL"),
  a_file("a.csv", TABLE.replace("a.jpg", "\0"), "no image with a caption"),
  a_file("a.csv", b"\xff\xfe" * 50, "has the columns"),
  a_file("a.json", "{", "is not a .json file"),
  a_file("a.json", "[" * 100_000, "is not a .json file"),
  a_file("a.json", "7", "supported forms are"),
  a_file("a.json", "[7]", "is not a JSON object"),
  a_file("a.json", '{"images": 3, "annotations": 4}', "supported forms are"),
  *(
    a_file("a.json", json.dumps({"images": a, "annotations": b}), "no image")
    for a, b in (
      ([1], [2]),
      ([{"id": [1], "file_name": "a"}], [{"image_id": 1}]),
      ([{"id": 1, "file_name": 7}], [{"image_id": 1, "caption": {"a": 1}}]),
      ([{"id": 1}], [None]),
      ([{"id": 1, "file_name": "a"}], [{"image_id": {}, "caption": "x"}]),
    )
  ),
  *(
    a_file("a.json", json.dumps({"images": [row]}), "no image")
    for row in (
      {"sentences": 3, "filename": "a.jpg"},
      {"sentences": [1], "filename": 4},
      {"sentences": [{"raw": 1}], "filename": "a.jpg", "split": [1]},
      {"sentences": {"raw": "x"}, "filepath": 3, "filename": "a.jpg"},
    )
  ),
  a_file(
    "a.json",
    json.dumps(
      {"images": [{"sentences": [], "filename": "a", "split": "../x"}]}
    ),
    "is not a name",
  ),
  a_file("a.jsonl", "\n\n", "no image with a caption"),
  a_file("a.jsonl", "[" * 100_000 + "\n", "is not a JSON object"),
  a_file("a.exe", b"MZ", "name files of one kind"),
  a_file("a.tar", PHOTO, "--max_pixels", "--max_pixels=0"),
  a_file("a.tar", PHOTO, "--max_size", "--max_size=1"),
  embeddings("lacks the arrays", image=EYE),
  embeddings("must be floating", image=np.array(["a"]), text=EYE),
  embeddings("must be finite", image=EYE * np.nan, text=EYE),
  embeddings("must be finite", image=EYE * 0, text=EYE),
  embeddings("one entry for each pair", image=EYE, text=EYE[:3]),
  embeddings("cannot be read", image=np.array([{}]), text=EYE),
  filtered("it has no array l14_txt", l14_img=EYE[:2]),
  filtered("it must hold floating", l14_img=np.array([{}]), l14_txt=EYE[:2]),
  filtered("do not line up", l14_img=EYE[:2], l14_txt=EYE),
  filtered("is not finite", l14_img=EYE[:2] * np.nan, l14_txt=EYE[:2]),
  filtered("is zero", l14_img=EYE[:2], l14_txt=EYE[:2] * 0),
  near_target("is zero", np.zeros((2, 16))),
  near_target("has no rows", np.zeros((0, 16))),
  near_target("must hold floating", np.array([{}])),
  near_target("by the model of the pairs", EYE),
  converted("../../ESCAPED", name="../../ESCAPED"),
  converted("../1.0.0", version="../1.0.0"),
  converted("is damaged", splits=7),
  converted("instead of", splits=[{"name": "train", "shardLengths": ["9"]}]),
  converted("in the format", fileFormat="riegeli"),
  a_run("batch_size", batch_size="128"),
  a_run("num_epochs", num_epochs=1e400),
  a_run("data must be a mapping", data=None),
  a_run("config.model.name is 'resnet'", model={"name": "resnet"}),
  a_run("config.model.name is {'a': 1}", model={"name": {"a": 1}}),
  a_run("unknown config keys", colour="red"),
  a_command(
    "does not exist", "ingest", "--input={folder}/no", "--dataset=mine"
  ),
  a_command(
    "is not a name", "ingest", "--input={place}/tars/*", "--dataset=../x"
  ),
  a_command("needs --input", "ingest", "--dataset=mine"),
  a_command(
    "does not exist",
    "popularity",
    "--embeddings={folder}/no.npz",
    "--temperature=0.1",
    "--workdir={folder}/w",
  ),
  *(
    a_command(
      "temperature",
      "popularity",
      "--embeddings={place}/pairs.npz",
      f"--temperature={x}",
      "--workdir={folder}/w",
    )
    for x in ("nan", "0", "-1", "inf", "x")
  ),
  *(
    a_command("hubs", "evaluate", "--workdir={place}/run", f"--hubs={x}")
    for x in ("nan", "inf", "-1", "x", "csls,", "csls,x")
  ),
  a_command("holds no run", "evaluate", "--workdir={folder}/no"),
  a_command("holds no run", "report", "--workdir={folder}/no"),
  a_command(
    "give one of --workdir, --config, --model or --embeddings", "evaluate"
  ),
  a_command(
    "give one of --workdir, --config, --model or --embeddings",
    "embed",
    "--input={place}/photos",
    "--output={folder}/e",
  ),
  a_command(
    "exists already",
    "export",
    "--workdir={place}/run",
    "--data_dir={place}/data",
    "--output={place}/of_export",
  ),
  a_command(
    "is not a config file", "train", "--config=no", "--workdir={folder}/w"
  ),
  a_command("needs --config", "train", "--workdir={folder}/w"),
  a_command(
    "unknown keys",
    "train",
    "--config=glyphs",
    "--workdir={folder}/w",
    "--config.model.colour=red",
  ),
  a_command("needs one of the verbs", "tran"),
  a_command("lr", "train", "--config=glyphs", "--lr=3"),
]
