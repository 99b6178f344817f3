"""Data sets, runs, models and embeddings in a bucket, on local servers."""

import os
import pathlib
import shutil
import signal

from absl.testing import flagsaver
import chex
import jax
import make_bucket
import make_captioned
import make_datasets
from make_photos import PHOTOS, write_pairs
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
from repository import CLIP

from nuclr_jax.lab import ingest, report
from nuclr_jax.lab.cli import flags, main
from nuclr_jax.lab.data import image_text, loader, sets, tar_stream, tfds_reader
from nuclr_jax.lab.data.embeddings import open_embeddings
from nuclr_jax.lab.export import embedder_of_config, write_embeddings
from nuclr_jax.lab.files import bucket, remote
from nuclr_jax.lab.models.pretrained import read_published
from nuclr_jax.lab.report import subject
from nuclr_jax.lab.train import build, loop, untrained
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.user_files import inputs


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=sorted(make_bucket.SERVERS))
def root(request):
  with make_bucket.SERVERS[request.param]() as path:
    yield path


def upload(folder: pathlib.Path, path: str) -> None:
  for file in folder.rglob("*"):
    if file.is_file():
      bucket.upload(file, f"{path}/{file.relative_to(folder).as_posix()}")


def new_machine(tmp_path) -> None:
  """Forgets all copies, as another machine knows of none."""
  shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_ingest_from_and_to_a_bucket(root, tmp_path):
  raw = tmp_path / "raw"
  for split, first in (("train", 0), ("val", 20)):
    (raw / split).mkdir(parents=True)
    for i in range(2):
      keys = range(first + 5 * i, first + 5 * i + 5)
      write_pairs(raw / split / f"{i}.tar", keys)
  upload(raw, f"{root}/raw")
  here = {"data_dir": tmp_path / "d", "workers": 1}
  there = here | {"data_dir": f"{root}/d"}
  made = ingest.ingest(f"{root}/raw/train/*.tar", "mine", **there)
  assert remote.original(made) == f"{root}/d/mine/1.0.0"
  ingest.ingest(str(raw / "train" / "*.tar"), "mine", **here)
  new_machine(tmp_path)
  # Another machine adds a split, without the records of the first.
  ingest.ingest(f"{root}/raw", "mine", split="val", **there)
  ingest.ingest(str(raw), "mine", split="val", **here)
  new_machine(tmp_path)
  for split in ("train", "val"):
    far = tfds_reader.open_split("mine", split, f"{root}/d")
    near = tfds_reader.open_split("mine", split, tmp_path / "d")
    assert far.length == near.length == 10
    numbers = list(range(10))
    for a, b in zip(far.read(numbers), near.read(numbers), strict=True):
      assert a["image"] == b["image"] and a["key"] == b["key"]
  named = tfds_reader.open_split(f"{root}/d/mine", "val")
  assert named.read([0])[0]["image"] == far.read([0])[0]["image"]
  with pytest.raises(ValueError, match="none does not exist, or is empty"):
    tfds_reader.open_split("none", "train", f"{root}/d")


@pytest.mark.parametrize("machine", ["same", "other"])
def test_an_ingest_that_is_killed_while_it_is_copied(
  root, tmp_path, monkeypatch, machine
):
  write_pairs(tmp_path / "0.tar", range(3))
  how = {"data_dir": f"{root}/{machine}", "workers": 1}
  system, _ = bucket.open_system(root)
  plain, done = system.put_file, []

  def put_file(*args, **kwargs):
    plain(*args, **kwargs)
    done.append(args)
    if len(done) == 2:
      raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(system, "put_file", put_file)
    with pytest.raises(KeyboardInterrupt):
      ingest.ingest(str(tmp_path / "0.tar"), "mine", **how)
  assert len(bucket.names_in(f"{root}/{machine}/mine")) == 2
  with pytest.raises(ValueError, match="no data set 'mine' is prepared"):
    tfds_reader.open_split("mine", "train", how["data_dir"])
  if machine == "other":
    new_machine(tmp_path)
  ingest.ingest(str(tmp_path / "0.tar"), "mine", **how)
  new_machine(tmp_path)
  data = tfds_reader.open_split("mine", "train", how["data_dir"])
  assert data.length == 3 and len(data.read([0, 1, 2])) == 3


def test_only_the_split_that_is_read_is_copied(root, tmp_path):
  data = {"train": make_captioned.ROWS, "test": make_captioned.ROWS[:2]}
  make_captioned.prepare(tmp_path / "d", data)
  upload(tmp_path / "d", f"{root}/only")
  tfds_reader.open_split("mine", "test", f"{root}/only")
  records = [x.name for x in (tmp_path / "cache").rglob("*array_record*")]
  assert records and all("-test." in x for x in records)


def test_other_inputs(root, tmp_path):
  captions = [f"photo {i}" for i in range(3)]
  folder = make_captioned.photo_folder(tmp_path / "photos", captions)
  upload(folder, f"{root}/photos")
  (part,) = inputs.plan(f"{root}/photos").parts
  assert [x.captions for x in part.read()] == [[x] for x in captions]
  upload(folder, f"{root}/classes/val/dog")
  upload(folder, f"{root}/classes/val/cat")
  opened = sets.open_labelled_set(
    sets.parse_place(f"{root}/classes:val"), size=16
  )
  assert (list(opened.classes), len(opened.label)) == (["cat", "dog"], 6)
  bucket.upload(write_pairs(tmp_path / "t.tar", [0]), f"{root}/t.tar")
  with pytest.raises(ValueError, match="of one kind, all here or all in bucke"):
    inputs.plan(f"{root}/t.tar,{folder}")


def test_folders_of_datasets(root, tmp_path):
  """They are copied whole: metadata.parquet is no file of img2dataset."""
  captions = [f"photo {i}" for i in range(3)]
  folder = make_captioned.photo_folder(tmp_path / "photos", captions)
  for path in folder.glob("*.txt"):
    path.unlink()
  names = [f"{i}.jpg" for i in range(3)]
  table = pyarrow.table({"file_name": names, "text": captions})
  parquet.write_table(table, folder / "metadata.parquet")
  upload(folder, f"{root}/described")
  rows = [{"bytes": x, "path": "0.jpg"} for x in PHOTOS[:3]]
  table = make_datasets.table_of(image=rows, caption=captions)
  saved = make_datasets.save_dict(tmp_path / "saved", train=table, test=table)
  upload(saved, f"{root}/saved")
  for name in ("described", "saved"):
    (part,) = inputs.plan(f"{root}/{name}").parts
    assert [x.captions for x in part.read()] == [[x] for x in captions]
  links = make_datasets.by_path(["https://a.b/0.jpg"])
  table = make_datasets.table_of(image=links, caption=captions[:1])
  path = make_datasets.to_parquet(tmp_path / "l.parquet", table)
  bucket.upload(path, f"{root}/l.parquet")
  (part,) = inputs.plan(f"{root}/l.parquet").parts
  with pytest.raises(ValueError, match="names images by URL"):
    list(part.read())


def test_only_the_split_of_a_parquet_file_is_read(root, tmp_path):
  names = ["train", "test", "val", "train"]
  table = {"jpg": PHOTOS[:4], "caption": list("abcd"), "split": names}
  parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
  bucket.upload(tmp_path / "x.parquet", f"{root}/x.parquet")
  for how, captions in (({}, "ad"), ({"split": "test"}, "b")):
    (part,) = inputs.plan(f"{root}/x.parquet", **how).parts
    assert part.split == how.get("split", "train")
    assert "".join(x for item in part.read() for x in item.captions) == captions


def test_a_parquet_file_of_another_split_is_not_damaged(root, tmp_path):
  for name, split in (("a", "train"), ("b", "test")):
    table = {"jpg": PHOTOS[:1], "caption": [name], "split": [split]}
    parquet.write_table(pyarrow.table(table), tmp_path / f"{name}.parquet")
    bucket.upload(tmp_path / f"{name}.parquet", f"{root}/s/{name}.parquet")
  parts = inputs.plan(f"{root}/s").parts
  found = [item for part in parts for item in part.read()]
  assert [item.captions for item in found] == [["a"]]


def test_a_lost_file_is_no_damaged_file(root, tmp_path, monkeypatch):
  """What could not be reached must be read again, and is not rejected."""
  from nuclr_jax.lab.ingest import records

  bucket.upload(write_pairs(tmp_path / "lost.tar", [0]), f"{root}/lost.tar")
  (part,) = inputs.plan(f"{root}/lost.tar").parts

  def lost(*_, **__):
    raise ConnectionError("reset by peer")

  system, _ = bucket.open_system(root)
  monkeypatch.setattr(system, "get_file", lost)
  with pytest.raises(bucket.Unreached, match="reset by peer"):
    list(records._guarded(part.read))


def test_a_stream_of_tars(root, tmp_path):
  (tmp_path / "tars").mkdir()
  for i in range(3):
    write_pairs(tmp_path / "tars" / f"{i}.tar", range(4 * i, 4 * i + 4))
  upload(tmp_path / "tars", f"{root}/lake")
  streams = []
  for folder in (tmp_path / "tars", f"{root}/lake"):
    source = tar_stream.source_of_tars(
      f"{folder}/{{0..2}}.tar",
      num_pairs=12,
      make_square=image_text.square_maker(size=16),
      encode=lambda captions: np.array([list(map(len, captions))]),
      share_texts=True,
      window=4,
    )
    with loader.batches(source, batch_size=4, seed=1) as stream:
      streams.append([next(stream) for _ in range(7)])
  chex.assert_trees_all_equal(*streams)


def test_models_and_embeddings(root, tmp_path):
  upload(CLIP, f"{root}/clip")
  assert read_published(f"{root}/clip").temperature == pytest.approx(0.03)
  bucket.upload(write_pairs(tmp_path / "two.tar", [0, 1]), f"{root}/two.tar")
  for out in (f"{root}/out", tmp_path / "out"):
    config = untrained.config_of_published(f"{root}/clip")
    with embedder_of_config(config) as model:
      (part,) = inputs.plan(f"{root}/two.tar").parts
      write_embeddings(model, part.read(), out, thumbnails=True)
  new_machine(tmp_path)
  far, here = open_embeddings(f"{root}/out"), open_embeddings(tmp_path / "out")
  np.testing.assert_array_equal(far.image, here.image)
  assert far.captions == here.captions
  found = subject.from_files(f"{root}/out", temperature=0.1)
  assert found.keys(np.arange(2)) == ["00000", "00001"]


@pytest.fixture(scope="module")
def straight(tiny, few_pairs, tmp_path_factory, no_diagnostics):
  """The config, the parts and the last state of a run on this machine."""
  words = {"model.text_layers": 0}
  config = tiny(log_every=2, checkpoint_every=1, **words)
  parts = build.build(config, data=few_pairs)
  ended = loop.fit(config, tmp_path_factory.mktemp("straight"), parts=parts)
  return config, parts, ended.train_state


def test_a_run_goes_on_on_another_machine(root, straight, tmp_path):
  config, parts, expected = straight

  def stop(state, embed):
    os.kill(os.getpid(), signal.SIGTERM)
    return state

  interrupted = parts._replace(hooks=(Hook(2, stop), *parts.hooks))
  half = loop.fit(config, f"{root}/run", parts=interrupted)
  assert not half.finished
  new_machine(tmp_path)
  whole = loop.fit(config, f"{root}/run", parts=parts)
  jax.tree.map(
    np.testing.assert_array_equal,
    *map(jax.device_get, (whole.train_state, expected)),
  )
  new_machine(tmp_path)
  names = bucket.names_in(f"{root}/run")
  steps = {x.split("/")[1] for x in names if x.startswith("checkpoints/")}
  assert len(steps) == 2 and not any("tmp" in x or ".lock" in x for x in names)
  assert loop.fit(config, f"{root}/run", parts=parts).finished
  new_machine(tmp_path)
  _, _, state = loop.load(f"{root}/run", parts=parts)
  jax.tree.map(
    np.testing.assert_array_equal,
    *map(jax.device_get, (state.params, expected.params)),
  )
  copied = [x.name for x in (tmp_path / "cache").rglob("checkpoints/*")]
  assert copied == [max(steps, key=int)]
  page = report.write(f"{root}/run", parts=parts)
  assert remote.original(page) == f"{root}/run/report.html"
  assert "report.html" in bucket.names_in(f"{root}/run")


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (
      ["train", "--config=glyphs", "--workdir=hdfs://x/run"],
      "hdfs://x/run: hdfs:// cannot be read or written",
    ),
    (
      ["train", "--config=gs://b/c.py", "--workdir=x"],
      "--config=gs://b/c.py must be on this machine",
    ),
  ],
)
def test_places_are_checked_before_any_work(words, message, capsys):
  with flagsaver.flagsaver(), pytest.raises(SystemExit):
    main.parse_flags(["nuclr", *words])
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  "flag",
  [
    "--input=s3://lake/year=2026/*.tar",
    "--zero_shot=pets=s3://lake/year=2026,s3://lake/flowers",
    "--workdir=gs://lake/runs/lr=0.1",
  ],
)
def test_names_in_buckets_may_have_equals_signs(flag):
  with flagsaver.flagsaver():
    flags.parse(["nuclr", "popularity", flag])
    flags.check_places()
