"""TFRecord data sets become array_record ones."""

import json
import os
import re
import struct

from array_record.python import array_record_module
import numpy as np
import pytest
import tensorflow_datasets as tfds

from nuclr_jax.lab.data import places, tfds_reader
from nuclr_jax.lab.ingest import convert


class Toy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Numbers and words, in two splits."""

  VERSION = tfds.core.Version("2.1.0")
  name = "toy"

  def _info(self):
    features = {"x": np.int64, "label": tfds.features.ClassLabel(names=["a"])}
    return tfds.core.DatasetInfo(
      builder=self,
      disable_shuffling=True,
      features=tfds.features.FeaturesDict(features),
    )

  def _split_generators(self, dl_manager):
    return {
      "train": self._generate_examples(10),
      "test": self._generate_examples(3),
    }

  def _generate_examples(self, count):
    for i in range(count):
      yield i, {"x": i * i, "label": 0}


def frame(record):
  """Frames a record as TFRecord's format says, with a CRC-32C bit by bit."""

  def checksum(data):
    crc = 0xFFFFFFFF
    for byte in data:
      crc ^= byte
      for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)

  length = struct.pack("<Q", len(record))
  return length + checksum(length) + record + checksum(record)


@pytest.fixture
def old(tmp_path):
  """A TFRecord data set; the bytes are framed here."""
  builder = Toy(data_dir=tmp_path / "old", file_format="array_record")
  builder.download_and_prepare()
  folder = tmp_path / "old" / "toy" / "2.1.0"
  for path in list(folder.glob("*.array_record-*")):
    reader = array_record_module.ArrayRecordReader(os.fspath(path))
    frames = [frame(x) for x in reader.read_all()]
    reader.close()
    name = path.name.replace("array_record", "tfrecord")
    path.with_name(name).write_bytes(b"".join(frames))
    path.unlink()
  path = folder / tfds_reader.INFO
  info = json.loads(path.read_text()) | {"fileFormat": "tfrecord"}
  path.write_text(json.dumps(info))
  return folder


def test_a_copy_can_be_read_by_name(old, tmp_path):
  with pytest.raises(ValueError, match="nuclr convert --input="):
    tfds_reader.open_split(str(old), "train")
  folder = convert.convert(old, tmp_path / "new")
  assert folder == tmp_path / "new" / "toy" / "2.1.0"
  for split, count in (("train", 10), ("test", 3)):
    data = tfds_reader.open_split("toy", split, tmp_path / "new")
    assert [int(x["x"]) for x in data.read(range(count))] == [
      i * i for i in range(count)
    ]
    assert data.features["label"].names == ["a"]
  before = folder.stat().st_mtime_ns
  assert convert.convert(old, tmp_path / "new") == folder  # not again
  assert folder.stat().st_mtime_ns == before


def test_damage_and_other_formats(old, tmp_path):
  path = old / "toy-train.tfrecord-00000-of-00001"
  whole = path.read_bytes()
  for damaged, message in (
    (whole[:-3], "is cut off"),
    (whole[: len(whole) // 10 * 9], "is cut off|holds 9 records instead of 10"),
    (whole * 2, "holds 20 records instead of 10"),
  ):
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=message):
      convert.convert(old, tmp_path / "new")
    with pytest.raises(ValueError, match="no data set 'toy'"):
      places.find_data_set("toy", tmp_path / "new")
  path.write_bytes(whole)
  folder = convert.convert(old, tmp_path / "new")
  with pytest.raises(ValueError, match="array_record, which needs no conv"):
    convert.convert(folder, tmp_path / "newer")
  with pytest.raises(ValueError, match="dataset_info.json is missing"):
    convert.convert(tmp_path)


def test_every_flipped_bit_is_noticed(old, tmp_path):
  path = old / "toy-test.tfrecord-00000-of-00001"
  whole = path.read_bytes()
  for bit in np.random.default_rng(0).integers(8 * len(whole), size=40):
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match="checksum is wrong; copy the file"):
      convert.convert(old, tmp_path / "new")
  assert not list((tmp_path / "new").rglob("*.*"))


@pytest.mark.parametrize(
  "change, message",
  [
    (dict(name="../../ESCAPED"), "has the name '../../ESCAPED'; names of data"),
    (dict(name="/tmp/escaped"), "has the name '/tmp/escaped'"),
    (dict(name=".."), "has the name '..'"),
    (dict(version="../../../ESCAPED"), "has the name"),
    (dict(configName="../ESCAPED"), "has the name"),
    (dict(splits=[dict(name="../x", shardLengths=["1"])]), "name '../x'"),
    (dict(name=7), "has the name 7"),
    (dict(splits=7), "is damaged: it lacks what TFDS writes"),
    (dict(splits=[{"name": "train"}]), "is damaged: it lacks"),
    (dict(splits=[dict(name="a", shardLengths=["x"])]), "is damaged: it lacks"),
    (
      dict(
        splits=[dict(name="a", shardLengths=[], filepathTemplate="../../{x}")]
      ),
      "names its files ../../{x}, but only",
    ),
  ],
)
def test_names_do_not_lead_out_of_the_data_folder(
  change, message, old, tmp_path
):
  path = old / tfds_reader.INFO
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  before = sorted(tmp_path.rglob("*"))
  with pytest.raises(ValueError, match=re.escape(message)):
    convert.convert(old, tmp_path / "deep" / "er" / "new")
  assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", ["{", "[]", "7", "[" * 100_000, b"\xff"])
def test_a_description_that_is_none(content, old, tmp_path):
  data = content if isinstance(content, bytes) else content.encode()
  (old / tfds_reader.INFO).write_bytes(data)
  with pytest.raises(ValueError, match="dataset_info.json cannot be read"):
    convert.convert(old, tmp_path / "new")


@pytest.mark.parametrize(
  "name", ["label.labels.txt", "toy-test.tfrecord-00000-of-00001"]
)
def test_links_out_of_the_input_are_not_followed(name, old, tmp_path):
  (tmp_path / "private").write_text("secret")
  (old / name).unlink()
  (old / name).symlink_to(tmp_path / "private")
  with pytest.raises(ValueError, match="is a link out of .* is not followed"):
    convert.convert(old, tmp_path / "new")
  assert not list((tmp_path / "new").rglob("*.*"))


def test_a_split_that_names_files_elsewhere(old, tmp_path):
  """A data set that was tampered with after it was converted."""
  folder = convert.convert(old, tmp_path / "new")
  path = folder / tfds_reader.INFO
  info = json.loads(path.read_text())
  for template in ("../../{DATASET}-{SPLIT}", "/etc/{DATASET}{SPLIT}"):
    info["splits"][0]["filepathTemplate"] = template
    path.write_text(json.dumps(info))
    with pytest.raises(ValueError, match="Delete|elsewhere") as error:
      tfds_reader.open_split("toy", info["splits"][0]["name"], tmp_path / "new")
    assert f"Delete the folder {folder} and" in str(error.value)


def test_a_link_in_the_data_folder(old, tmp_path):
  (tmp_path / "elsewhere").mkdir()
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "toy").symlink_to(tmp_path / "elsewhere")
  with pytest.raises(ValueError, match="data/toy is a link to"):
    convert.convert(old, tmp_path / "data")
  assert not list((tmp_path / "elsewhere").iterdir())
