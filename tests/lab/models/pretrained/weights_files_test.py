"""Which files of weights are read, and what is wrong with forged ones."""

import json

from flax import serialization
import numpy as np
import pytest
from safetensors import numpy as safetensors

from nuclr_jax.lab.models import pretrained
from nuclr_jax.lab.models.pretrained import load


def test_which_file_of_a_folder_is_read(tmp_path):
  """The first of safetensors, Flax's files and PyTorch's."""
  index = {"weight_map": {"logit_scale": "part.safetensors"}}
  safetensors.save_file(
    {"logit_scale": np.float32([2])}, tmp_path / "part.safetensors"
  )
  scale = {"logit_scale": np.float32(4)}
  contents = {
    "model.safetensors": safetensors.save({"logit_scale": np.ones(1)}),
    "model.safetensors.index.json": json.dumps(index).encode(),
    "open_clip_model.safetensors": safetensors.save(
      {"logit_scale": np.float32([3])}
    ),
    "flax_model.msgpack": serialization.to_bytes(scale),
    "pytorch_model.bin": b"no weights",
  }
  for name, content in contents.items():
    (tmp_path / name).write_bytes(content)
  for expected, name in enumerate(list(contents)[:-1], 1):
    assert load.read_logit_scale(tmp_path) == expected
    assert pretrained.read_tensors(tmp_path)["logit_scale"] == expected
    (tmp_path / name).unlink()
  with pytest.raises(ValueError, match="pytorch_model.bin cannot be read"):
    pretrained.read_tensors(tmp_path)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("[" * 100_000, "cannot be read"),
    ("{}", "has no weight_map"),
    ('{"weight_map": {}}', "has no weight_map"),
    ('{"weight_map": ["a.npz"]}', "has no weight_map"),
    ({"x": ".."}, r"names '\.\.', not weights beside it"),
    ({"x": "../a.safetensors"}, "not weights beside it"),
    ({"x": "/a.safetensors"}, "not weights beside it"),
    ({"x": "s3://bucket/a.safetensors"}, "not weights beside it"),
    ({"x": ""}, "not weights beside it"),
    ({"x": 3}, "not weights beside it"),
    ({"x": None}, "not weights beside it"),
    ({"x": "model.safetensors.index.json"}, "not weights beside it"),
    ({"x": "a\0.safetensors"}, "not weights beside it"),
    ({"x": "a" * 5000 + ".safetensors"}, "not weights beside it"),
    ({"x": "c.safetensors"}, "c.safetensors"),
    ({"x": "a.safetensors", "y": "b.safetensors"}, "several files that have"),
  ],
)
def test_an_index_that_is_not_right(content, message, tmp_path):
  path = tmp_path / "model.safetensors.index.json"
  if isinstance(content, dict):
    content = json.dumps({"weight_map": content})
  path.write_text(content)
  for name in ("a", "b"):
    safetensors.save_file({"x": np.ones(2)}, tmp_path / f"{name}.safetensors")
  for source in (tmp_path, path):
    with pytest.raises(ValueError, match=message):
      pretrained.read_tensors(source)


def header(shape=(1,), offsets=(0, 4), dtype="F32", name="a") -> str:
  entry = dict(dtype=dtype, shape=shape, data_offsets=offsets)
  return f"{json.dumps(name)}: {json.dumps(entry)}"


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (header() + "," + header((1, 1), dtype="I32"), "has 'a' twice"),
    (
      header().replace("]", "], 'shape': [1]".replace("'", '"'), 1),
      "'shape' tw",
    ),
    (header() + "," + header(name="b"), "offset"),
    (header((2,), (0, 8)), "not fully covered"),
    (header(offsets=(4, 8)), "offset"),
    (header((2,)), "cannot be read"),
    (header((2**33, 2**33), (0, 0)), "overflow"),
    (header((0, 2**62, 2**62), (0, 0)), "cannot be read"),
    (header((-1,)), "invalid"),
    (header(dtype="C64", offsets=(0, 8)), "not fully covered|complex"),
    ("[" * 100_000, "cannot be read"),
  ],
)
def test_forged_safetensors(content, message, tmp_path):
  """Its library checks all but names that are there twice."""
  text = ("{" + content + "}").encode()
  path = tmp_path / "model.safetensors"
  path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
  for read in (pretrained.read_tensors, load.read_logit_scale):
    with pytest.raises(ValueError, match=f"model.safetensors.*{message}"):
      read(path)


@pytest.mark.parametrize("size", [2**63, 99_000_000, 100_000_001, 9])
def test_a_header_longer_than_the_file(size, tmp_path):
  path = tmp_path / "model.safetensors"
  path.write_bytes(size.to_bytes(8, "little") + b'{"a": {}')
  with pytest.raises(ValueError, match="model.safetensors cannot be read"):
    pretrained.read_tensors(path)


@pytest.mark.parametrize(
  "x", [np.ones(2, np.complex64), np.array("text"), np.zeros(1, "i4,i4")]
)
def test_what_is_no_number_is_refused(x, tmp_path):
  np.savez(tmp_path / "x.npz", logit_scale=x)
  for read in (pretrained.read_tensors, load.read_logit_scale):
    with pytest.raises(ValueError, match="x.npz.*not of real numbers"):
      read(tmp_path / "x.npz")
