"""TFRecord data sets become array_record ones."""

import json
import os
import struct

from array_record.python import array_record_module
import numpy as np
import pytest
import tensorflow_datasets as tfds

from nuclr_jax.data import tfds_reader
from nuclr_jax.ingest import convert


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


@pytest.fixture
def old(tmp_path):
  """A TFRecord data set; the bytes are framed here, as its format says."""
  builder = Toy(data_dir=tmp_path / "old", file_format="array_record")
  builder.download_and_prepare()
  folder = tmp_path / "old" / "toy" / "2.1.0"
  for path in list(folder.glob("*.array_record-*")):
    reader = array_record_module.ArrayRecordReader(os.fspath(path))
    frames = [
      struct.pack("<QI", len(x), 7) + x + struct.pack("<I", 7)
      for x in reader.read_all()
    ]
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
      tfds_reader.find_data_set("toy", tmp_path / "new")
  path.write_bytes(whole)
  folder = convert.convert(old, tmp_path / "new")
  with pytest.raises(ValueError, match="array_record, which needs no conv"):
    convert.convert(folder, tmp_path / "newer")
  with pytest.raises(ValueError, match="dataset_info.json is missing"):
    convert.convert(tmp_path)
