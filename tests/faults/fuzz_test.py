"""Readers get untrusted bytes: they give items, or a ValueError, and no more.

Small good files are damaged at random: cut, overwritten, repeated. Whatever
happens, no other error is raised, nothing is written, and memory is bounded.
`--hypothesis-profile=long` tries 50 times as many.
"""

import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import tarfile
import tempfile

from array_record.python import array_record_module
import cv2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
import make_datasets
import make_shards
import numpy as np
import peak_memory
import pyarrow
from pyarrow import parquet
import pytest
from repository import GOLDEN, PUBLISHED

from nuclr_jax.lab import files
from nuclr_jax.lab.config import DEFAULTS, ConfigError, complete, load_config
from nuclr_jax.lab.data import shards, tfds_reader
from nuclr_jax.lab.data.embeddings import open_embeddings
from nuclr_jax.lab.data.sentencepiece import from_sentencepiece
from nuclr_jax.lab.ingest import convert, records
from nuclr_jax.lab.models.pretrained import load as weights
from nuclr_jax.lab.report import subject
from nuclr_jax.lab.train import records as run_records
from nuclr_jax.lab.train import settings as door
from nuclr_jax.lab.train import untrained
from nuclr_jax.lab.train.warm_start import load_zeta
from nuclr_jax.lab.user_files import inputs, readers
from nuclr_jax.lab.user_files.items import Item, Rejected
from nuclr_jax.types import Sizes

LONG = settings.default.max_examples > 1_000
FUZZ = settings(
  max_examples=settings.default.max_examples,
  deadline=20_000,  # milliseconds, for one example
  phases=[Phase.explicit, Phase.reuse, Phase.generate],
  suppress_health_check=list(HealthCheck),
  database=None,
  derandomize=not LONG,
)
FLAX = GOLDEN / "flax_files"
MEMORY = 2**30  # bytes that a file may take, many times its size
SECONDS = 20  # that it may take


def photo(ending):
  image = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
  return cv2.imencode(ending, image)[1].tobytes()


JPEG = photo(".jpg")
EXTREME = [
  b"\xff" * 8,
  b"\x00" * 8,
  b"\x7f" + b"\xff" * 7,
  b"9" * 12,
  b"[" * 99,
]


@st.composite
def damaged(draw, data: bytes):
  """The bytes after one to four changes at random places."""
  data = bytearray(data)
  for _ in range(draw(st.integers(1, 4))):
    start = draw(st.integers(0, len(data)))
    stop = min(
      len(data), start + draw(st.sampled_from([0, 1, 4, 8, 64, 10**6]))
    )
    piece = draw(
      st.binary(max_size=12)
      | st.sampled_from(EXTREME)
      | st.just(bytes(data[start:stop]) * 2)
    )
    data[start:stop] = piece
  return bytes(data)


@contextlib.contextmanager
def within(seconds):
  """Stops what does not end."""

  def stop(*_):
    raise AssertionError(f"no end after {seconds} s")

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def harmless(folder):
  """Nothing but ValueError, nothing written, no memory filled."""
  before = {x: x.stat().st_mtime_ns for x in folder.rglob("*")}
  used = peak_memory.peak_bytes()
  with contextlib.suppress(ValueError), within(SECONDS):
    yield
  assert {x: x.stat().st_mtime_ns for x in folder.rglob("*")} == before
  assert peak_memory.peak_bytes() - used < MEMORY


@pytest.fixture(scope="module")
def folder():
  with tempfile.TemporaryDirectory() as name:
    yield pathlib.Path(name)


def ingested(path):
  """All items of a file, as ingest checks them."""
  for part in inputs.plan(str(path)).parts:
    for item in records.check_items(records._guarded(part.read)):
      assert isinstance(item, Item | Rejected)
      json.dumps(item[:2])


def tar_bytes():
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode="w") as tar:
    for name, data in (
      ("a.jpg", JPEG),
      ("a.txt", b"a dog"),
      ("b.jpg", JPEG),
      ("b.json", b'{"caption": ["two", "cats"]}'),
    ):
      member = tarfile.TarInfo(name)
      member.size = len(data)
      tar.addfile(member, io.BytesIO(data))
  return out.getvalue()


def parquet_bytes():
  import pyarrow
  from pyarrow import parquet

  out = io.BytesIO()
  table = {"jpg": [JPEG, JPEG], "caption": ["a dog", "two cats"]}
  parquet.write_table(pyarrow.table(table), out)
  return out.getvalue()


def of_paths():
  """A table as `datasets` has it: one image by path, one by its bytes."""
  rows = [{"bytes": JPEG, "path": None}, {"bytes": None, "path": "a.jpg"}]
  texts = ["a dog", None]
  return make_datasets.table_of(image=rows, caption_0=texts, caption_1=texts)


def parquet_of_paths():
  out = io.BytesIO()
  parquet.write_table(of_paths(), out)
  return out.getvalue()


def arrow_bytes():
  out, table = io.BytesIO(), of_paths()
  with pyarrow.ipc.new_stream(out, table.schema) as writer:
    for i in range(2):
      writer.write_table(table.slice(i, 1))
  return out.getvalue()


COCO = {
  "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
  "annotations": [{"id": 3, "image_id": 1, "caption": "a dog"}],
}
KARPATHY = {
  "images": [
    {
      "filepath": ".",
      "filename": "a.jpg",
      "split": "val",
      "sentences": [{"raw": "a dog"}],
    }
  ]
}
TABLES = {
  "t.csv": b'image,caption\na.jpg,"a dog"\na.jpg,two cats\n',
  "t.tsv": b'image\tcaption\na.jpg\t"a dog"\n',
  "t.json": json.dumps(COCO).encode(),
  "k.json": json.dumps(KARPATHY).encode(),
  "l.json": json.dumps([{"image": "a.jpg", "caption": "a dog"}]).encode(),
  "t.jsonl": b'{"image": "a.jpg", "caption": "a dog"}\n' * 3,
}
INPUTS = TABLES | {
  "t.tar": tar_bytes(),
  "t.parquet": parquet_bytes(),
  "p.parquet": parquet_of_paths(),
  "s.arrow": arrow_bytes(),
}
FOLDERS = {  # a file of a folder, in which `a.jpg` and `s.arrow` are whole
  "metadata.csv": b'file_name,text\na.jpg,"a dog"\na.jpg,two cats\n',
  "metadata.jsonl": b'{"file_name": "a.jpg", "text": "a dog"}\n' * 3,
  "state.json": b'{"_data_files": [{"filename": "s.arrow"}], "_split": null}',
  "dataset_dict.json": b'{"splits": ["train", "test"]}',
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_ingest(name, folder):
  (folder / "a.jpg").write_bytes(JPEG)

  @FUZZ
  @given(damaged(INPUTS[name]))
  def check(data):
    (folder / name).write_bytes(data)
    with harmless(folder):
      ingested(folder / name)

  check()


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_datasets(name, tmp_path):
  for place in (tmp_path, tmp_path / "train"):
    place.mkdir(exist_ok=True)
    (place / "a.jpg").write_bytes(JPEG)
    (place / "s.arrow").write_bytes(INPUTS["s.arrow"])
  (tmp_path / "train" / "state.json").write_bytes(FOLDERS["state.json"])

  @FUZZ
  @given(damaged(FOLDERS[name]))
  def check(data):
    (tmp_path / name).write_bytes(data)
    with harmless(tmp_path):
      ingested(tmp_path)

  check()


JSON = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats()
  | st.text(max_size=5)
  | st.sampled_from(["a.jpg", "../a.jpg", "/etc/passwd", "\0", "val"]),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(
      st.sampled_from(
        "id file_name image_id caption sentences raw split filepath filename "
        "image images annotations".split()
      ),
      inner,
      max_size=4,
    )
  ),
  max_leaves=12,
)


@pytest.mark.parametrize("form", ["any", "coco", "karpathy", "list"])
def test_tables_of_any_json(form, folder):
  @FUZZ
  @given(st.lists(JSON, max_size=4), st.lists(JSON, max_size=4), JSON)
  def check(images, annotations, content):
    if form == "coco":
      content = {"images": images, "annotations": annotations}
    elif form == "karpathy":
      content = {"images": [*images, *KARPATHY["images"], *annotations]}
    elif form == "list":
      content = [{"image": "a.jpg", "caption": "a dog"}, *images]
    (folder / "any.json").write_text(json.dumps(content))
    with harmless(folder):
      ingested(folder / "any.json")

  check()


DESCRIPTIONS = sorted(
  x.relative_to(GOLDEN).as_posix()
  for pattern in ("published/*/*.json", "sentence_encoders/mean/**/*.json")
  for x in GOLDEN.glob(pattern)
  if x.name != "tokenizer.json"
)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_of_published_models(name, folder):
  """A damaged config may describe another model, but it ends in one line."""
  home = folder / f"a model, {name.replace('/', ' ')}"
  kind, base, *inner = name.split("/")
  shutil.copytree(GOLDEN / kind / base, home)
  path = home.joinpath(*inner)

  @FUZZ
  @given(damaged(path.read_bytes()))
  def check(data):
    path.write_bytes(data)
    with harmless(folder):
      door.resolve(untrained.config_of_published(home))

  check()


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".tiff", ".bmp"])
def test_images(ending, folder):
  @FUZZ
  @given(damaged(photo(ending)))
  def check(data):
    with harmless(folder):
      records.to_jpeg(data)

  check()


def npz_bytes(**arrays):
  out = io.BytesIO()
  np.savez(out, **arrays)
  return out.getvalue()


def npy_bytes():
  out = io.BytesIO()
  np.save(out, np.eye(4, dtype=np.float32))
  return out.getvalue()


def safetensors_bytes():
  from safetensors import numpy as safetensors

  return safetensors.save({"bias": np.arange(6.0), "w": np.ones((2, 3))})


EYE = np.eye(4, dtype=np.float32)
ZETA = dict(
  zeta_image=np.zeros(4),
  zeta_text=np.zeros(4),
  image_id=np.arange(4),
  text_id=np.arange(4),
  fingerprint=np.array("mine"),
  temperature=np.array(0.1),
)


def embeddings_of(path):
  subject.from_files(str(path), temperature=0.1)


def images_of(path):
  with tempfile.TemporaryDirectory() as scratch:
    found = shards.open_images(path, scratch=pathlib.Path(scratch))
    found.rows.unit(slice(None))


def shards_of(path):
  with tempfile.TemporaryDirectory() as scratch:
    found = shards.open_shards(path, scratch=pathlib.Path(scratch))
    for rows in (found.image, found.text):
      rows.unit(slice(None))


def uids_of(path):
  shards.read_uids(shards.Column([path], "uid"))


def uid_bytes():
  out = io.BytesIO()
  uids = [make_shards.uid(i) for i in range(4)]
  parquet.write_table(pyarrow.table({"uid": uids}), out)
  return out.getvalue()


def zeta_of(path):
  how = dict(temperature=0.1, fingerprint="mine")
  load_zeta(path, Sizes(4, 4, 4), **how)


def sentencepiece_of(path):
  with files.reading(path):
    from_sentencepiece(path.read_bytes()).encode("a dog")


ARRAYS = {
  "pairs.npz": (npz_bytes(image=EYE, text=EYE), embeddings_of),
  "shard.npz": (npz_bytes(image=EYE, text=EYE), shards_of),
  "shard.npy": (npy_bytes(), lambda x: shards_of(f"{x},{x}")),
  "target.npy": (npy_bytes(), images_of),
  "target.npz": (npz_bytes(image=EYE), images_of),
  "shard.parquet": (uid_bytes(), uids_of),
  "weights.npz": (npz_bytes(bias=EYE), weights.read_tensors),
  "spiece.model": (
    (PUBLISHED / "hf_siglip_t5" / "spiece.model").read_bytes(),
    sentencepiece_of,
  ),
  "weights.safetensors": (safetensors_bytes(), weights.read_tensors),
  "flax_model.msgpack": (
    (FLAX / "dual_encoder" / "flax_model.msgpack").read_bytes(),
    weights.read_tensors,
  ),
  "model.safetensors.index.json": (
    json.dumps({"weight_map": {"bias": "weights.npz"}}).encode(),
    weights.read_tensors,
  ),
  "popularity.npz": (npz_bytes(**ZETA), zeta_of),
  "image.npy": (npy_bytes(), lambda x: embeddings_of(f"{x},{x}")),
  "x.json": (b'{"a": [1, 2, {"b": null}]}', files.read_json),
  "config.json": (
    json.dumps(complete(load_config("glyphs"))).encode(),
    lambda path: run_records.read_config(path.parent),
  ),
  "history.jsonl": (
    b'{"step": 1, "train/loss": 0.5}\n' * 3,
    lambda path: run_records.read_history(path.parent),
  ),
  "dataset_info.json": (
    json.dumps(
      {
        "name": "mine",
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [{"name": "train", "shardLengths": ["1"]}],
      }
    ).encode(),
    lambda path: convert._read_info(path.parent),
  ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_files_of_runs_and_models(name, folder):
  content, read = ARRAYS[name]

  @FUZZ
  @given(damaged(content))
  def check(data):
    (folder / name).write_bytes(data)
    with harmless(folder):
      read(folder / name)

  check()


def read_all(path):
  reader = array_record_module.ArrayRecordReader(str(path))
  try:
    return reader.read_all()
  except RuntimeError as error:  # `open_split` does the same
    raise ValueError("damaged") from error
  finally:
    reader.close()


def test_records(folder):
  """Files of array_record: damage is an error, or the records are as before."""
  rows = [bytes([i]) * (i + 1) for i in range(20)]
  path = folder / "x.array_record"
  with tfds_reader.record_writer(path) as writer:
    for row in rows:
      writer.write(row)
  good = path.read_bytes()

  @FUZZ
  @given(st.integers(0, 8 * len(good) - 1), st.integers(0, len(good)))
  def check(bit, end):
    data = bytearray(good)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data[:end] if bit % 5 == 0 else data)
    with harmless(folder):
      tfds_reader.check_lengths(folder, [path], [len(rows)])
      assert read_all(path) == rows

  check()


ANY = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(),
  st.floats(),
  st.text(max_size=4),
  st.lists(st.integers(-1, 2) | st.floats(), max_size=3),
  st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
  st.just({"name": "queue", "size": -1}),
)


@pytest.mark.parametrize("name", ["glyphs", "cc3m", "labelled", "sentences"])
def test_configs(name):
  """Whatever a value is, a config is refused with its key, or it is fine."""
  base = complete(load_config(name))
  keys = [(key,) for key in DEFAULTS]
  keys += [(key, x) for key in door.TABLES for x in base[key] if x != "name"]

  @FUZZ
  @given(st.sampled_from(keys), ANY)
  def check(key, value):
    config = dict(base)
    if len(key) == 1:
      config[key[0]] = value
    else:
      config[key[0]] = base[key[0]] | {key[1]: value}
    try:
      door.resolve(config)
    except ConfigError as error:
      assert key[-1] in f"{error.key} {error}"

  check()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
@pytest.mark.parametrize(
  "name", ["a.tar", "a.json", "a.csv", "a.parquet", "a.arrow"]
)
def test_what_is_no_regular_file_is_not_opened(kind, name, tmp_path):
  path = tmp_path / "in" / name
  path.parent.mkdir()
  if kind == "pipe":
    os.mkfifo(path)
  elif kind == "device":
    path.symlink_to("/dev/zero")
  elif kind == "folder":
    path.mkdir()
  for place in (path, path.parent):
    with pytest.raises(ValueError):
      ingested(place)
  for read in (files.read_json, files.read_arrays, weights.read_tensors):
    with pytest.raises(ValueError):
      read(path)
  rejected = list(readers.read_tar(str(path)))
  assert [x.reason for x in rejected] == [records.DAMAGED]


def test_arrays_that_would_fill_the_memory(tmp_path):
  np.savez_compressed(tmp_path / "bomb.npz", image=np.zeros(10**7))
  with pytest.raises(ValueError, match="its arrays claim to have 8e"):
    files.read_arrays(tmp_path / "bomb.npz")


def test_classes_of_others_are_not_imported(tmp_path):
  """TFDS imports the module of any class that the features name."""
  (tmp_path / "dataset_info.json").write_text("{}")
  legacy = json.dumps({"type": "antigravity.Image"})
  for features in (
    {"pythonClassName": "antigravity.Image"},
    {"featuresDict": {"features": {"x": {"python_class_name": "os.path"}}}},
    {
      "pythonClassName": "tensorflow_datasets.X",
      "jsonFeature": {"json": legacy},
    },
  ):
    (tmp_path / "features.json").write_text(json.dumps(features))
    with pytest.raises(ValueError, match="which is not one of TFDS"):
      tfds_reader.read_only_builder(tmp_path)


def test_weights_elsewhere(tmp_path):
  index = {"weight_map": {"bias": "../secret.safetensors"}}
  path = tmp_path / "model.safetensors.index.json"
  path.write_text(json.dumps(index))
  with pytest.raises(ValueError, match="not weights beside it"):
    weights.read_tensors(tmp_path)


def test_damaged_embeddings(tmp_path):
  (tmp_path / "image.npy").write_bytes(npy_bytes())
  (tmp_path / "text.npy").write_bytes(b"no array")
  for name in ("images.parquet", "texts.parquet"):
    (tmp_path / name).write_bytes(parquet_bytes())
  with pytest.raises(ValueError, match="text.npy cannot be read"):
    open_embeddings(tmp_path)
