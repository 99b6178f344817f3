"""Reads the params of a file that Flax wrote, by the names of PyTorch.

Hugging Face's Flax models, OpenAI's first CLIPs among them, are published as
`flax_model.msgpack`: nested maps whose leaves are arrays, in the format of
`flax.serialization`. The file is not trusted. Flax's own reader makes room for
whatever number of items the file claims, so this one hands limits to msgpack,
and compares the shape of every array with its bytes before making it.
"""

from collections.abc import Callable, Iterator
import functools
import itertools
import math
import mmap
import os
import pathlib
from typing import Any

import ml_dtypes
import msgpack
import numpy as np

MAX_NAME = 64  # characters of one part of a name
MAX_DEPTH = 16  # parts
TOO_DEEP = f"its maps are nested more than {MAX_DEPTH} deep"
MAX_ITEMS = 10_000  # in a map, and arrays and maps in a file
MAX_DIMENSIONS = 8
ARRAY, SCALAR = 1, 3  # the numbers by which Flax marks them
DTYPES = {
  str(dtype): dtype
  for dtype in map(
    np.dtype,
    "float64 float32 float16 int64 int32 int16 int8 uint8 bool".split(),
  )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
# The last part of a name in Flax and in PyTorch.
NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def read_flax_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the arrays of a `.msgpack` file by the names that PyTorch has.

  `kernel`, `scale` and `embedding` are `weight` there, and kernels have their
  outputs first.

  Args:
    path: The file.

  Raises:
    ValueError: If it is no such file, or holds anything but arrays.

  Example:
    >>> from flax import serialization
    >>> params = {"projection": {"kernel": np.zeros((3, 2), np.float32)}}
    >>> path = tmp_path / "flax_model.msgpack"
    >>> _ = path.write_bytes(serialization.to_bytes(params))
    >>> {name: x.shape for name, x in read_flax_file(path).items()}
    {'projection.weight': (2, 3)}
  """
  with (
    pathlib.Path(path).open("rb") as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
  ):
    made = itertools.count(1)

    def counted(make: Callable, *args):
      if next(made) > MAX_ITEMS:
        raise ValueError(f"it has more than {MAX_ITEMS:,} arrays and maps")
      return make(*args)

    try:
      tree = msgpack.unpackb(
        content,
        ext_hook=functools.partial(counted, _array),
        object_pairs_hook=functools.partial(counted, _map),
        max_str_len=MAX_NAME,
        max_map_len=MAX_ITEMS,
        max_array_len=0,
        max_bin_len=0,
      )
    except msgpack.StackError as error:
      raise ValueError(TOO_DEEP) from error
  if not isinstance(tree, dict):
    raise ValueError(f"it holds a {type(tree).__name__}, not a map of arrays")
  tensors = {}
  for *scopes, last, x in _leaves(tree):
    name = ".".join((*scopes, NAMES.get(last, last)))
    if name in tensors:
      raise ValueError(f"it has {name} twice")
    tensors[name] = _outputs_first(x) if last == "kernel" else x
  return tensors


def _leaves(tree: dict, *scopes: str) -> Iterator[tuple]:
  """Yields the parts of the name of every array, and the array."""
  if len(scopes) >= MAX_DEPTH:
    raise ValueError(TOO_DEEP)
  for name, x in tree.items():
    if isinstance(x, dict):
      yield from _leaves(x, *scopes, name)
    else:
      yield *scopes, name, x


def _map(items: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns a map of arrays and maps, which must have every name once."""
  tree = {}
  for name, x in items:
    if not isinstance(x, dict | np.ndarray):
      raise ValueError(f"{name!r} is a {type(x).__name__}, not an array")
    if name in tree:
      raise ValueError(f"a map has {name!r} twice")
    tree[name] = x
  return tree


def _array(code: int, data: bytes) -> np.ndarray:
  """Returns an array, whose bytes must be as many as its shape says."""
  if code not in (ARRAY, SCALAR):
    raise ValueError(f"it holds an item of kind {code}, which is not an array")
  limits = dict(max_array_len=MAX_DIMENSIONS, max_map_len=0, max_ext_len=0)
  match msgpack.unpackb(data, max_str_len=MAX_NAME, **limits):
    case [[*shape], str(name), bytes(content)]:
      pass
    case _:
      raise ValueError("an array does not consist of shape, type and bytes")
  if name not in DTYPES:
    raise ValueError(
      f"an array is of the type {name!r}; {', '.join(DTYPES)} can be read"
    )
  if not all(type(n) is int and n >= 0 for n in shape):
    raise ValueError(f"an array has the shape {shape}")
  if math.prod(shape) * DTYPES[name].itemsize != len(content):
    raise ValueError(
      f"an array of shape {shape} and type {name} has {len(content)} bytes"
    )
  return np.frombuffer(content, DTYPES[name]).reshape(shape)


def _outputs_first(kernel: np.ndarray) -> np.ndarray:
  """Returns a kernel as PyTorch stores it.

  Of a linear layer it is [inputs, outputs] in Flax, of a convolution [height,
  width, inputs, outputs].
  """
  if kernel.ndim not in (2, 4):
    raise ValueError(f"a kernel has the shape {list(kernel.shape)}")
  return kernel.T if kernel.ndim == 2 else kernel.transpose(3, 2, 0, 1)
