"""Files by `torch.save`, which PyTorch itself reads, in another process.

`golden/torch_files` was written by `experiments.parity.torch_files`. Where
PyTorch is not installed, only the refusals are tested; `make torch` tests all.
"""

import importlib.util
import io
import os
import pathlib
import pickle
import shlex
import shutil
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from repository import CLIP, GOLDEN
from safetensors import numpy as safetensors

from nuclr_jax.lab.models.pretrained import pytorch, read_tensors

FILES = GOLDEN / "torch_files"
with_torch = pytest.mark.skipif(
  importlib.util.find_spec("torch") is None, reason="needs PyTorch"
)


def expected():
  with np.load(FILES / "expected.npz") as arrays:
    return dict(arrays)


@with_torch
@pytest.mark.parametrize("name", ["zip.bin", "checkpoint.pt"])
def test_what_pytorch_wrote(name):
  tensors = read_tensors(FILES / name)
  assert set(tensors) == set(expected())
  for key, x in expected().items():
    assert tensors[key].shape == x.shape
    np.testing.assert_array_equal(np.float32(tensors[key]), x, key)
  kinds = {key: str(x.dtype) for key, x in tensors.items()}
  assert kinds["bfloat16"] == "bfloat16" and kinds["half"] == "float16"
  for name in ("int64", "int32", "int16", "int8", "uint8", "bool"):
    assert kinds[name] == name


@with_torch
@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "module.pt",
      "Unsupported global: GLOBAL torch.nn.modules.linear.Linear.*state_dict",
    ),
    ("program.pt", "Cannot use ``weights_only=True`` with TorchScript"),
    ("expected.npz", "file in archive is not in a subdirectory"),
  ],
)
def test_other_files(name, message, tmp_path):
  path = shutil.copy(FILES / name, tmp_path / "weights.bin")
  with pytest.raises(
    ValueError, match=f"weights.bin cannot be read: PyTorch.*{message}"
  ):
    read_tensors(path)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("zip.bin", r'PyTorch, which is not installed: pip install "nuclr_jax\['),
    ("legacy.bin", "not a zip archive, as torch.save has made since"),
  ],
)
def test_a_refusal_has_the_line_that_rewrites_the_file(
  name, message, tmp_path, monkeypatch
):
  path = shutil.copy(FILES / name, tmp_path / "it's a.bin")
  torch = importlib.util.find_spec("torch")
  monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
  with pytest.raises(ValueError, match=message) as caught:
    read_tensors(path)
  _, _, line = str(caught.value).partition("or its folder: ")
  assert shlex.split(line)[-2:] == [
    str(path),
    str(tmp_path / "model.safetensors"),
  ]
  if torch:
    command = [sys.executable, *shlex.split(line)[1:]]
    subprocess.run(command, check=True)
    tensors = read_tensors(tmp_path)
    for key, x in expected().items():
      np.testing.assert_array_equal(np.float32(tensors[key]), x, key)


@with_torch
def test_the_line_writes_no_empty_file(tmp_path):
  """Two levels deep, the keys must be given."""
  import torch

  paths = [str(tmp_path / x) for x in ("x.pt", "model.safetensors")]
  torch.save({"a": {"net": a_model(3.0)}}, paths[0])
  command = [sys.executable, "-c", pytorch.CONVERT, *paths]
  result = subprocess.run(command, capture_output=True, text=True)
  assert result.returncode and "add the keys" in result.stderr
  assert not (tmp_path / "model.safetensors").exists()
  subprocess.run([*command, "a", "net"], check=True)
  tensors = safetensors.load_file(paths[1])
  np.testing.assert_array_equal(tensors["x"], [3, 3, 3, 3])


def test_no_module_is_taken_from_the_current_folder(tmp_path, monkeypatch):
  """A folder that was downloaded may hold a `torch.py`, too."""
  made = tmp_path / "made"
  harm = f"open({str(made)!r}, 'w').close()"
  for name in (
    "torch",
    "safetensors",
    "importlib",
    "resource",
    "sitecustomize",
  ):
    (tmp_path / f"{name}.py").write_text(harm)
  shutil.copy(FILES / "zip.bin", tmp_path / "x.bin")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
  try:
    assert read_tensors("x.bin").keys() == expected().keys()
  except ValueError as error:
    assert "No module named 'torch'" in str(error)
  assert not made.exists()


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
    written.writestr("x/version", "3")
    written.writestr("x/byteorder", "little")
    written.writestr("x/data/0", storage)
  return file.getvalue()


def a_tensor(shape, strides, first=0, count=10) -> bytes:
  """A pickle of a tensor "w" of any shape, in a storage of ten numbers."""

  def number(x):
    return b"\x8a\x09" + x.to_bytes(9, "little", signed=True)

  def tuple_of(numbers):
    return b"(" + b"".join(map(number, numbers)) + b"t"

  def text(x):
    return b"X" + struct.pack("<I", len(x)) + x

  kind = b"ctorch\nFloatStorage\n"
  saved = text(b"storage") + kind + text(b"0") + text(b"cpu") + number(count)
  view = number(first) + tuple_of(shape) + tuple_of(strides) + b"\x89"
  hooks = b"ccollections\nOrderedDict\n)R"
  made = b"ctorch._utils\n_rebuild_tensor_v2\n((" + saved + b"tQ" + view + hooks
  return b"\x80\x02}" + text(b"w") + made + b"tRs."


@with_torch
def test_no_code_runs(tmp_path):
  made, path = tmp_path / "made", tmp_path / "model.bin"
  path.write_bytes(archive(pickle.dumps({"w": Harm(made)}, 2)))
  with pytest.raises(ValueError, match="posix.mkdir whose module posix is"):
    read_tensors(path)
  assert not made.exists()


@with_torch
def test_tensors_stay_in_their_storage(tmp_path):
  path = tmp_path / "model.bin"

  def read(*args, **kwargs):
    path.write_bytes(
      archive(a_tensor(*args, **kwargs), np.arange(10.0, dtype="<f4").tobytes())
    )
    return read_tensors(path)["w"]

  np.testing.assert_array_equal(read((2, 2), (1, 5), 3), [[3, 8], [4, 9]])
  for args, kwargs in (
    (((2, 6), (5, 1)), {}),
    (((10,), (1,)), {"first": 1}),
    (((10,), (-1,)), {"first": 9}),
    (((10,), (1,)), {"first": -1}),
    (((2, 5), (5,)), {}),
    (((11,), (1,)), {"count": 11}),
    (((10**12,), (0,)), {}),
  ):
    with pytest.raises(ValueError, match="PyTorch does not read it"):
      read(*args, **kwargs)


# Tuples of tuples as the key of a dict: its hash takes 2^60 steps.
NESTED = b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(60))
BUSY = b"\x80\x02}K\x01\x85q\0" + NESTED + b"K\x01s."
LARGE = b"\x80\x02}X\x01\0\0\0wcbuiltins\nbytearray\n(\x8a\x05\0\0\0\0\1tRs."


@with_torch
@pytest.mark.parametrize(
  ("content", "message"),
  [(BUSY, "takes too long"), (LARGE, "more memory than a file of its size")],
)
def test_time_and_memory_are_limited(content, message, tmp_path):
  path = tmp_path / "model.bin"
  path.write_bytes(archive(content))
  with pytest.raises(ValueError, match=message):
    read_tensors(path)


def a_model(value=0.0) -> dict:
  import torch

  return {"logit_scale": torch.tensor(value), "x": torch.full((4,), value)}


def an_optimizer() -> dict:
  import torch

  weights = torch.nn.Parameter(torch.ones(4))
  optimizer = torch.optim.AdamW([weights])
  weights.sum().backward()
  optimizer.step()
  return optimizer.state_dict()


@with_torch
@pytest.mark.parametrize("keys", [["model"], ["state_dict"], ["a", "net"]])
def test_a_checkpoint_has_its_model_under_any_key(keys, tmp_path):
  """The published code of NUCLR saves "model"."""
  import torch

  content = a_model(3.0)
  for key in reversed(keys):
    content = {key: content, "epoch": torch.tensor(3)}
  content |= {
    "optimizer": an_optimizer(),
    "optimizer_states": [an_optimizer()],
    "metrics": {"best": torch.tensor(0.5)},
    "random": {"cpu": torch.get_rng_state()},
  }
  torch.save(content, tmp_path / "x.pt")
  tensors = read_tensors(tmp_path / "x.pt")
  assert tensors.keys() == {"logit_scale", "x"}
  np.testing.assert_array_equal(tensors["x"], [3, 3, 3, 3])


@with_torch
def test_quantized_weights_are_read_as_they_are(tmp_path):
  """So that the error about them can say what they are."""
  import torch

  numbers = torch.ones(3, dtype=torch.int8)
  torch.save({"state_dict": {"x": numbers}, "epoch": 3}, tmp_path / "x.pt")
  assert read_tensors(tmp_path / "x.pt")["x"].dtype == np.int8


@with_torch
@pytest.mark.parametrize(
  ("nest", "names", "keys"),
  [
    (
      lambda last, mean: {"state_dict": last, "state_dict_ema": mean},
      "state_dict, state_dict_ema",
      ["state_dict_ema"],
    ),
    (
      lambda last, mean: {"net": last, "ema": {"decay": 0.9, "shadow": mean}},
      "net, ema shadow",
      ["ema", "shadow"],
    ),
    (lambda last, mean: last | {"ema": mean}, "its top level, ema", ["ema"]),
    (
      lambda last, mean: {"model": mean, "ema": {"shadow": [last["x"]]}},
      "model, ema shadow",
      ["model"],
    ),
  ],
)
def test_none_of_several_models_is_taken_in_silence(
  nest, names, keys, tmp_path
):
  """timm saves a moving average beside the weights of the last step."""
  import torch

  content = nest(a_model(1.0), a_model(2.0)) | {"optimizer": an_optimizer()}
  torch.save(content, tmp_path / "x.pt")
  message = rf"under several keys \({names}\), such as"
  with pytest.raises(ValueError, match=message) as caught:
    read_tensors(tmp_path / "x.pt")
  _, _, line = str(caught.value).partition("or its folder: ")
  *command, last = [sys.executable, *shlex.split(line)[1:]]
  assert last == "KEY"
  refused = subprocess.run(command, capture_output=True, text=True)
  assert refused.returncode == 1 and "add one of these" in refused.stderr
  subprocess.run([*command, *keys], check=True)
  tensors = read_tensors(tmp_path)
  np.testing.assert_array_equal(tensors["x"], [2, 2, 2, 2])


@with_torch
def test_a_published_model(tmp_path):
  """Some published models have no other weights than `pytorch_model.bin`."""
  shutil.copy(FILES / "clip.bin", tmp_path / "pytorch_model.bin")
  tensors = read_tensors(tmp_path)
  for key, x in safetensors.load_file(CLIP / "model.safetensors").items():
    np.testing.assert_array_equal(tensors[key], x)


def test_the_script_needs_nothing_of_this_library():
  """Importing JAX would take longer than what it does."""
  code = pathlib.Path(pytorch.__file__).read_text()
  assert "nuclr_jax" not in code.replace("nuclr_jax[torch]", "")
