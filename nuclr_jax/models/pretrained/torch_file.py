"""Reads the tensors of a file that `torch.save` wrote, without PyTorch.

Many published models, OpenAI's first CLIPs among them, have no other file than
`pytorch_model.bin`. It is a pickle, and a pickle may run any code. This reader
therefore knows the few names that tensors need, and refuses all others. It
reads both formats of PyTorch: the zip archive, and the sequence of pickles from
before version 1.6.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
import io
import os
import pathlib
import pickle
import pickletools
import struct
from typing import Any, NamedTuple
import zipfile

import ml_dtypes
import numpy as np

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
MAX_PICKLE = 2**26  # bytes; the arrays themselves are elsewhere
NUMBERED = ("PUT", "BINPUT", "LONG_BINPUT")  # codes that number an object
DTYPES = {
  "DoubleStorage": np.dtype("<f8"),
  "FloatStorage": np.dtype("<f4"),
  "HalfStorage": np.dtype("<f2"),
  "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
  "LongStorage": np.dtype("<i8"),
  "IntStorage": np.dtype("<i4"),
  "ShortStorage": np.dtype("<i2"),
  "CharStorage": np.dtype("i1"),
  "ByteStorage": np.dtype("u1"),
  "BoolStorage": np.dtype("?"),
}


def read_torch_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the tensors of a `.bin`, `.pt` or `.pth` file by name.

  The file holds a dict of tensors or, as a checkpoint of OpenCLIP's training,
  one under the key "state_dict". Arrays of a zip archive are mapped into
  memory, so that only those that are used are read.

  Args:
    path: The file.

  Raises:
    ValueError: If it is no such file, or holds anything but tensors.

  Example:
    >>> read_torch_file("pytorch_model.bin")["logit_scale"]  # doctest: +SKIP
    array(4.6052, dtype=float32)
  """
  path = pathlib.Path(path)
  if zipfile.is_zipfile(path):
    content = _read_zip(path)
  else:
    content = _read_legacy(path)
  if isinstance(content, Mapping) and "state_dict" in content:
    content = content["state_dict"]
  if not isinstance(content, Mapping):
    raise ValueError(
      f"it holds a {type(content).__name__}, not a dict of tensors"
    )
  tensors = {
    str(name): x for name, x in content.items() if isinstance(x, np.ndarray)
  }
  if not tensors:
    raise ValueError(f"it has no tensors, but {sorted(map(str, content))[:10]}")
  return tensors


def _read_zip(path: pathlib.Path) -> Any:
  """Reads an archive: `data.pkl` says where in `data/` the numbers are."""
  with zipfile.ZipFile(path) as archive:
    found = [x for x in archive.infolist() if x.filename.endswith("/data.pkl")]
    members = {x.filename: x for x in archive.infolist()}
    if len(found) != 1:
      raise ValueError("it is a zip archive, but not one that torch.save wrote")
    root = found[0].filename.removesuffix("data.pkl")
    if f"{root}constants.pkl" in members:
      raise ValueError(
        "it is a TorchScript program; save its state_dict with "
        "safetensors.torch.save_file"
      )
    if found[0].file_size > MAX_PICKLE:
      raise ValueError(f"its pickle has {found[0].file_size:,} bytes")
    order = members.get(f"{root}byteorder")
    if order and archive.read(order).strip() != b"little":
      raise ValueError("its numbers are big-endian, which are not read")

    def numbers(key: str, dtype: np.dtype, count: int) -> np.ndarray:
      member = members[f"{root}data/{key}"]
      if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed")
      if member.file_size < count * dtype.itemsize:
        raise ValueError(f"{member.filename} is too short")
      if not count:
        return np.empty(0, dtype)
      return np.memmap(
        path, dtype, "r", offset=_start(path, member), shape=count
      )

    return _load(io.BytesIO(archive.read(found[0])), numbers)


def _start(path: pathlib.Path, member: zipfile.ZipInfo) -> int:
  """Returns where the content of an archive's member begins in the file."""
  with path.open("rb") as file:
    file.seek(member.header_offset)
    header = file.read(30)
  if header[:4] != b"PK\3\4":
    raise ValueError(f"{member.filename} is damaged")
  name, extra = struct.unpack("<HH", header[26:30])
  return member.header_offset + len(header) + name + extra


def _read_legacy(path: pathlib.Path) -> Any:
  """Reads pickles, the last with names of storages, and their numbers."""
  size = path.stat().st_size
  storages: dict[str, np.ndarray] = {}

  def numbers(key: str, dtype: np.dtype, count: int) -> np.ndarray:
    if key not in storages:
      if count * dtype.itemsize > size:
        raise ValueError("it is cut off")
      storages[key] = np.empty(count, dtype)
    return storages[key]

  with path.open("rb") as file:

    def load():
      return _load(file, numbers)

    pickled = file.peek(1)[:1] == pickle.PROTO
    if not pickled or (load(), load()) != (LEGACY_MAGIC, LEGACY_PROTOCOL):
      raise ValueError("torch.save did not write it")
    load()  # sizes of C's types
    content, keys = load(), load()
    for key in keys:
      storage = storages[key]
      (count,) = struct.unpack("<q", file.read(8))
      data = file.read(storage.nbytes)
      if count != len(storage) or len(data) != storage.nbytes:
        raise ValueError("it is cut off")
      storage[:] = np.frombuffer(data, storage.dtype)
  return content


def _load(file: io.BufferedIOBase, numbers: Callable[..., np.ndarray]) -> Any:
  """Loads the next pickle of a file, which is not trusted."""
  start = file.tell()
  for count, (code, argument, _) in enumerate(pickletools.genops(file)):
    # Python makes room for as many objects as the largest number of one.
    too_large = code.name in NUMBERED and int(argument) > count
    if too_large or code.name == "BYTEARRAY8":
      raise ValueError(f"its pickle has {code.name} {argument}")
  file.seek(start)
  return _Unpickler(file, numbers).load()


class _StorageType(NamedTuple):
  dtype: np.dtype


class _Unpickler(pickle.Unpickler):
  """Loads dicts, lists, numbers and tensors; refuses everything else."""

  def __init__(self, file, numbers):
    super().__init__(file)
    self._numbers = numbers

  def find_class(self, module: str, name: str) -> Any:
    """Returns what a name in the pickle stands for, if tensors need it."""
    known = {
      ("collections", "OrderedDict"): OrderedDict,
      ("torch._utils", "_rebuild_tensor_v2"): _tensor,
      ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    }
    if (module, name) in known:
      return known[module, name]
    if module == "torch" and name in DTYPES:
      return _StorageType(DTYPES[name])
    raise ValueError(
      f"it holds a {module}.{name}, and only tensors are read; if you trust "
      "the file, load it with PyTorch and save its state_dict with "
      "safetensors.torch.save_file"
    )

  def persistent_load(self, saved: Any) -> np.ndarray:
    """Returns the numbers of a storage."""
    kind, storage, key, _, count = saved[:5]
    if kind != "storage" or not isinstance(storage, _StorageType) or count < 0:
      raise ValueError(f"it refers to {saved!r}, which is no storage")
    return self._numbers(str(key), storage.dtype, int(count))


def _tensor(storage: np.ndarray, first: int, shape, strides, *_) -> np.ndarray:
  """Returns a view of a storage, which it must not leave."""
  if min([first, *shape, *strides], default=0) < 0:
    raise ValueError(f"a tensor has shape {shape} and strides {strides}")
  if len(shape) != len(strides):
    raise ValueError(f"a tensor has shape {shape} and strides {strides}")
  if 0 in shape:
    return np.empty(shape, storage.dtype)
  last = first + sum(
    (n - 1) * step for n, step in zip(shape, strides, strict=True)
  )
  if last >= len(storage):
    raise ValueError("a tensor is larger than its storage")
  return np.lib.stride_tricks.as_strided(
    storage[first:],
    shape,
    [step * storage.itemsize for step in strides],
    writeable=False,
  )
