"""Files by `torch.save`, read without PyTorch.

`golden/torch_files` was written by `experiments.parity.torch_files`.
"""

import io
import os
import pathlib
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from safetensors import numpy as safetensors

from nuclr_jax.models.pretrained import read_tensors, torch_file
from nuclr_jax.train import untrained

GOLDEN = pathlib.Path(__file__).parent / "golden"
FILES = GOLDEN / "torch_files"
CLIP = GOLDEN / "published" / "hf_clip"


@pytest.mark.parametrize("name", ["zip.bin", "legacy.bin", "checkpoint.pt"])
def test_what_pytorch_wrote(name):
  tensors = read_tensors(FILES / name)
  with np.load(FILES / "expected.npz") as expected:
    assert set(tensors) == set(expected)
    for key, x in expected.items():
      assert tensors[key].shape == x.shape
      np.testing.assert_array_equal(np.float32(tensors[key]), x, key)
  kinds = {key: str(x.dtype) for key, x in tensors.items()}
  assert kinds["bfloat16"] == "bfloat16" and kinds["half"] == "float16"
  for name in ("int64", "int32", "int16", "int8", "uint8", "bool"):
    assert kinds[name] == name


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("module.pt", "holds a torch.nn.modules.linear.Linear, and only tensors"),
    ("program.pt", "is a TorchScript program"),
    ("expected.npz", "not one that torch.save wrote"),
  ],
)
def test_other_files(name, message, tmp_path):
  path = shutil.copy(FILES / name, tmp_path / "weights.bin")
  with pytest.raises(
    ValueError, match=f"weights.bin cannot be read.*{message}"
  ):
    read_tensors(path)


class Harm:
  """A pickle of this runs a command."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (str(self.path),)


def archive(content: bytes, storage: bytes = bytes(40)) -> bytes:
  """A zip archive as of `torch.save`, with any pickle."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as written:
    written.writestr("x/data.pkl", content)
    written.writestr("x/data/0", storage)
  return file.getvalue()


def a_tensor(shape, strides, first=0, count=10) -> bytes:
  """The pickle of a tensor "w" of any shape, in a storage of ten numbers."""

  def tuple_of(numbers):
    return "(" + "".join(f"I{x}\n" for x in numbers) + "t"

  storage = f"(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI{count}\ntQ"
  view = f"I{first}\n{tuple_of(shape)}{tuple_of(strides)}I00\nN"
  return (
    f"(dS'w'\nctorch._utils\n_rebuild_tensor_v2\n({storage}{view}tRs."
  ).encode()


def test_no_code_runs(tmp_path):
  made = tmp_path / "made"
  for content in (
    archive(pickle.dumps({"w": Harm(made)})),
    pickle.dumps(torch_file.LEGACY_MAGIC)
    + pickle.dumps(torch_file.LEGACY_PROTOCOL)
    + pickle.dumps({})
    + pickle.dumps({"w": Harm(made)}),
    pickle.dumps(Harm(made)),
  ):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="posix.mkdir, and only tensors"):
      read_tensors(path)
    assert not made.exists()


def test_tensors_stay_in_their_storage(tmp_path):
  path = tmp_path / "model.bin"

  def read(*args, **kwargs):
    path.write_bytes(archive(a_tensor(*args, **kwargs)))
    return read_tensors(path)["w"]

  assert read((2, 5), (5, 1)).shape == (2, 5)
  for args, kwargs in (
    (((2, 6), (5, 1)), {}),
    (((10,), (1,)), {"first": 1}),
    (((10,), (-1,)), {"first": 9}),
    (((10,), (1,)), {"first": -1}),
    (((2, 5), (5,)), {}),
    (((11,), (1,)), {"count": 11}),
  ):
    with pytest.raises(ValueError, match="storage|strides|too short"):
      read(*args, **kwargs)


def test_a_published_model(tmp_path):
  """OpenAI's first CLIPs have no other weights than `pytorch_model.bin`."""
  folder = tmp_path / "clip"
  shutil.copytree(CLIP, folder)
  (folder / "model.safetensors").unlink()
  shutil.copy(FILES / "clip.bin", folder / "pytorch_model.bin")
  tensors = read_tensors(folder)
  expected = safetensors.load_file(CLIP / "model.safetensors")
  assert set(expected) <= set(tensors)
  for key, x in expected.items():
    np.testing.assert_array_equal(tensors[key], x)
  config = untrained.config_of_published(folder)
  assert config["objective"]["temperature"] == pytest.approx(0.03)
  untrained.open_untrained(config, pairs=False)


@pytest.mark.parametrize("number", [5, 2**31 - 1])
def test_numbers_of_objects_take_no_memory(number, tmp_path):
  """Python would make room for as many objects as the largest number."""
  put = b"r" + number.to_bytes(4, "little")  # LONG_BINPUT
  path = tmp_path / "model.bin"
  path.write_bytes(archive(b"\x80\x02}" + put + b"."))
  with pytest.raises(ValueError, match=f"pickle has LONG_BINPUT {number}"):
    read_tensors(path)
