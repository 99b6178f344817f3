"""Files by Flax, against what PyTorch holds of the same models.

`golden/flax_files` was written by `experiments.parity.flax_files`.
"""

import shutil
import tracemalloc

from flax import serialization
import msgpack
import numpy as np
import pytest
from repository import CLIP, GOLDEN
from safetensors import numpy as safetensors

from nuclr_jax.lab.models.pretrained import read_tensors
from nuclr_jax.lab.train import untrained

FILES = GOLDEN / "flax_files"


@pytest.mark.parametrize(
  ("name", "other"),
  [
    ("clip/flax_model.msgpack", CLIP),
    ("clip_in_parts/flax_model.msgpack.index.json", CLIP),
    ("dual_encoder/flax_model.msgpack", FILES / "dual_encoder"),
  ],
)
def test_what_transformers_wrote(name, other):
  tensors = read_tensors(FILES / name)
  expected = safetensors.load_file(other / "model.safetensors")
  assert set(tensors) == set(expected)
  for key, x in expected.items():
    np.testing.assert_array_equal(tensors[key], x, key, strict=True)


def test_a_published_model(tmp_path):
  """OpenAI's first CLIPs have no safetensors."""
  folder = tmp_path / "clip"
  shutil.copytree(CLIP, folder)
  (folder / "model.safetensors").unlink()
  shutil.copy(FILES / "clip" / "flax_model.msgpack", folder)
  (folder / "pytorch_model.bin").write_bytes(b"never read")
  config = untrained.config_of_published(folder)
  assert config["objective"]["temperature"] == pytest.approx(0.03)
  untrained.open_untrained(config, pairs=False)


def test_types_and_shapes(tmp_path):
  tree = {
    "a": {
      "kernel": np.arange(24.0, dtype=np.float16).reshape(1, 2, 3, 4),
      "bias": np.zeros((0, 3)),
    },
    "b": {"embedding": np.arange(3, dtype=np.int8), "x": np.float32(4.5)},
  }
  path = tmp_path / "x.msgpack"
  path.write_bytes(serialization.to_bytes(tree))
  tensors = read_tensors(path)
  shapes = {key: (x.shape, str(x.dtype)) for key, x in tensors.items()}
  assert shapes == {
    "a.weight": ((4, 3, 1, 2), "float16"),
    "a.bias": ((0, 3), "float64"),
    "b.weight": ((3,), "int8"),
    "b.x": ((), "float32"),
  }
  assert tensors["a.weight"][3, 1, 0, 1] == tree["a"]["kernel"][0, 1, 1, 3]


def array(shape=(2,), dtype="float32", content=bytes(8), code=1):
  return msgpack.ExtType(code, msgpack.packb((shape, dtype, content)))


def nested(depth, x):
  for _ in range(depth):
    x = {"a": x}
  return x


TWICE = (
  b"\x82\xa1a" + msgpack.packb(array()) + b"\xa1a" + msgpack.packb(array())
)
FORGED = {
  "empty": (b"", "empty"),
  "cut off": (msgpack.packb({"a": array()})[:-1], "incomplete"),
  "longer": (msgpack.packb({"a": array()}) + b"\0", "extra data"),
  "no map": (msgpack.packb(array()), "holds a ndarray, not a map"),
  "a number": (msgpack.packb({"a": {"b": 3}}), "'b' is a int, not an array"),
  "a list": (msgpack.packb({"a": [array()]}), "max_array_len"),
  "nothing": (msgpack.packb({"a": None}), "'a' is a NoneType"),
  "chunks": (
    msgpack.packb({"a": {"__msgpack_chunked_array__": True}}),
    "'__msgpack_chunked_array__' is a bool",
  ),
  "twice": (TWICE, "has 'a' twice"),
  "same name": (
    msgpack.packb({"a": {"kernel": array((1, 2)), "scale": array()}}),
    "has a.weight twice",
  ),
  "number as name": (msgpack.packb({3: array()}), "int is not allowed"),
  "bytes as name": (msgpack.packb({b"a": array()}), "max_bin_len"),
  "long name": (msgpack.packb({"a" * 65: array()}), "max_str_len"),
  "deep": (msgpack.packb(nested(17, array())), "more than 16 deep"),
  "very deep": (b"\x81\xa1a" * 100_000, "nested more than 16 deep"),
  "code": (msgpack.packb({"a": array(code=2)}), "item of kind 2"),
  "time": (msgpack.packb({"a": msgpack.Timestamp(1)}), "'a' is a Timestamp"),
  "dtype": (msgpack.packb({"a": array(dtype="object")}), "type 'object'"),
  "dtypes": (msgpack.packb({"a": array(dtype="f4,f4")}), "type 'f4,f4'"),
  "too few": (msgpack.packb({"a": array((3,))}), r"\[3\].* has 8 bytes"),
  "too many": (msgpack.packb({"a": array((1,))}), r"\[1\].* has 8 bytes"),
  "negative": (msgpack.packb({"a": array((-2, -1))}), r"shape \[-2, -1\]"),
  "bool": (msgpack.packb({"a": array((True, 2))}), r"shape \[True, 2\]"),
  "product": (msgpack.packb({"a": array((2**33, 2**33))}), "has 8 bytes"),
  "none of many": (
    msgpack.packb({"a": array((0, 2**62, 2**62), content=b"")}),
    "cannot be read",
  ),
  "dimensions": (msgpack.packb({"a": array((1,) * 9)}), "max_array_len"),
  "no array": (
    msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb([1, 2, 3]))}),
    "does not consist of shape",
  ),
  "many arrays": (
    msgpack.packb({str(i): array() for i in range(10_000)}),
    "more than 10,000",
  ),
  "many maps": (
    msgpack.packb(
      {str(i): {str(j): {} for j in range(99)} for i in range(999)}
    ),
    "more than 10,000",
  ),
  "many items": (
    msgpack.packb({str(i): None for i in range(10_001)}),
    "max_map_len",
  ),
  "kernel": (msgpack.packb({"kernel": array()}), r"kernel has the shape \[2\]"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_files(name, tmp_path):
  content, message = FORGED[name]
  path = tmp_path / "flax_model.msgpack"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f"flax_model.*{message}"):
    read_tensors(path)


@pytest.mark.parametrize(
  "header", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"]
)
@pytest.mark.parametrize("key", [b"", b"\x81\xa1a"])
def test_claimed_lengths_take_no_memory(header, key, tmp_path):
  """Lists of 100,000 items in lists, of which none is there."""
  content = (key + header + (100_000).to_bytes(4, "big")) * 1000
  path = tmp_path / "flax_model.msgpack"
  path.write_bytes(b"\x81\xa1a" + content + bytes(1_000_000))
  tracemalloc.start()
  with pytest.raises(ValueError, match="cannot be read"):
    read_tensors(path)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 5_000_000
