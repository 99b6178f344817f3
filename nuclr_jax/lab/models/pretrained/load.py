"""Loads pretrained weights in place of a model's initial ones."""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import ml_dtypes  # teaches NumPy bfloat16
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.models.pretrained import convert, hub, pytorch
from nuclr_jax.lab.models.pretrained.flax_file import read_flax_file
from nuclr_jax.types import Params, PyTree, Sides

# In a folder of `nuclr export`, with the scale and bias of the logits, if any.
PROJECTIONS = "projections.safetensors"
# Our names and the keys of that file, whose matrices are transposed.
PROJECTION_KEYS = {
  f"{side}_projection{ours}": f"{side}_projection.{theirs}"
  for side in Sides._fields
  for ours, theirs in (("", "weight"), ("_bias", "bias"))
}
WEIGHTS = (  # in order of preference; an index names several files
  "model.safetensors",
  "model.safetensors.index.json",
  "open_clip_model.safetensors",
  "flax_model.msgpack",
  "flax_model.msgpack.index.json",
  "pytorch_model.bin",
  "pytorch_model.bin.index.json",
  "open_clip_pytorch_model.bin",
)
# The name of a file beside an index that names it.
SHARD = rf"[A-Za-z0-9_.-]{{1,200}}({'|'.join(map(re.escape, hub.SUFFIXES))})"
MAX_HEADER = 100_000_000  # bytes; safetensors refuses longer ones
LOGIT_SCALE = "logit_scale"  # log(1 / temperature)
MAX_LOGIT_SCALE = 14  # a temperature of a millionth
LOGIT_BIAS, MAX_LOGIT_BIAS = "logit_bias", 1_000
SCALARS = (LOGIT_SCALE, LOGIT_BIAS)
# What PyTorch puts into the keys of a model, or of a part of it, if that is
# compiled or trained on several devices.
WRAPPERS = re.compile(r"\b(module|_orig_mod|_fsdp_wrapped_module)\.")


def load_towers(
  source: str | os.PathLike,
  params: Params,
  state: PyTree,
  *,
  sides: Sequence[str],
) -> tuple[Params, PyTree]:
  """Replaces towers of a `dual_encoder` with pretrained ones.

  Args:
    source: Where the weights are (see `read_tensors`). The layout is recognized
      by its keys: ResNets of torchvision and Hugging Face (timm's have the keys
      of torchvision), ViTs and DINOv2 of timm and Hugging Face, BERT,
      DistilBERT, CLIP of Hugging Face, OpenAI and OpenCLIP, and SigLIP of
      Hugging Face and OpenCLIP.
    params: The initial params; of those replaced, only the shapes matter.
    state: The initial state; of what is replaced, only the shapes matter.
    sides: Which of "image" and "text" to replace. A file of CLIP or SigLIP also
      replaces the projections of these sides.

  Returns:
    The new params and state.

  Raises:
    ValueError: If there is no such file, or if it does not fit the towers.

  Example:
    >>> params, state = load_towers(  # doctest: +SKIP
    ...   "timm/resnet50.a1_in1k", params, state, sides=("image",)
    ... )
  """
  tensors = read_tensors(source)
  try:
    layout = convert.recognize(list(tensors))
    return convert.from_layout(tensors, layout, params, state, sides=sides)
  except ValueError as error:
    raise ValueError(f"pretrained weights {source}: {error}") from error


def load_dual_encoder(
  source: str | os.PathLike, params: Params, state: PyTree
) -> tuple[Params, PyTree]:
  """Replaces both towers of a `dual_encoder` and their projections.

  Args:
    source: A folder that `nuclr export` wrote, or a model of CLIP or SigLIP
      (see `load_towers`).
    params: The initial params; of those replaced, only the shapes matter.
    state: The initial state; of what is replaced, only the shapes matter.

  Returns:
    The new params and state.

  Raises:
    ValueError: If there is no such folder, or if it does not fit the model.
  """
  folder = files.remote.fetch(source).expanduser()
  if not (folder / PROJECTIONS).exists():
    return load_towers(source, params, state, sides=Sides._fields)
  for side in Sides._fields:
    encoder = folder / f"{side}_encoder"
    params, state = load_towers(encoder, params, state, sides=(side,))
  tensors = read_tensors(folder / PROJECTIONS)
  shapes = {key: x.shape for key, x in tensors.items() if key not in SCALARS}
  expected = {
    key: np.shape(params[name])[::-1]
    for name, key in PROJECTION_KEYS.items()
    if name in params
  }
  if shapes != expected:
    raise ValueError(
      f"{folder / PROJECTIONS} holds {shapes}, the model's projections are "
      f"{expected}; dim and projection_bias must be those of the folder"
    )
  projections = {
    name: tensors[key].T
    for name, key in PROJECTION_KEYS.items()
    if key in tensors
  }
  return params | projections, state


def read_tensors(source: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the arrays of a file, or of several that belong together, by key.

  What PyTorch puts into the keys of a model that is trained on several devices
  or compiled, such as `module.` and `_orig_mod.`, is removed.

  Args:
    source: A .safetensors or .npz file, a .msgpack file by Flax, or, where
      PyTorch is installed, a .bin, .pt or .pth file by `torch.save`; a folder
      with one of the files `WEIGHTS`; or a name on the hub such as
      "timm/resnet50.a1_in1k".

  Raises:
    ValueError: If there is no such file, or if it cannot be read.

  Example:
    >>> np.savez(tmp_path / "x.npz", bias=np.zeros(3))
    >>> sorted(read_tensors(tmp_path / "x.npz"))
    ['bias']
  """
  tensors: dict[str, np.ndarray] = {}
  path = hub.find_file(source, WEIGHTS)
  for part in _parts(source, path):
    found = _read_file(part)
    if twice := tensors.keys() & found.keys():
      raise files.UnreadableError(
        f"{path} names several files that have {min(twice)!r}"
      )
    tensors |= found
  return tensors


def check_towers(
  source: str | os.PathLike,
  towers: Mapping[str, Mapping[str, Any]],
  image_size: int,
) -> None:
  """Raises ValueError unless towers are as deep as those of a file.

  Only the names and shapes of a `.safetensors` file are read.

  Args:
    source: What `load_dual_encoder` reads.
    towers: The arguments of the towers' factories, by side.
    image_size: The height and width of images, in pixels.
  """
  folder = files.remote.fetch(source).expanduser()
  for side, tower in towers.items():
    whole = not (folder / PROJECTIONS).exists()
    of_side = source if whole else folder / f"{side}_encoder"
    shapes = _read_shapes(of_side)
    try:
      convert.check_sizes(shapes, side, tower, image_size)
    except ValueError as error:
      raise ValueError(f"{of_side}: {error}") from error


def _read_shapes(source: str | os.PathLike) -> dict[str, Sequence[int]]:
  """Reads the shapes of the arrays that `read_tensors` reads, by key."""
  from safetensors import safe_open

  shapes: dict[str, Sequence[int]] = {}
  for part in _parts(source, hub.find_file(source, WEIGHTS)):
    if part.suffix != ".safetensors":
      tensors = _read_file(part)
      shapes |= {key: np.shape(x) for key, x in tensors.items()}
      continue
    with files.reading(part), safe_open(part, "numpy") as weights:
      shapes |= {
        _unwrapped(key): weights.get_slice(key).get_shape()
        for key in weights.keys()
      }
  return shapes


def read_logit_scale(source: str | os.PathLike) -> float | None:
  """Reads log(1 / temperature) of a published model, and nothing else.

  Args:
    source: A file, a folder or a name on the hub that `read_tensors` reads, or
      a folder that `nuclr export` wrote.

  Returns:
    The number, or None if the model has none.

  Raises:
    ValueError: If there is no such file, if it cannot be read, or if the number
      is none that similarities can be multiplied by.

  Example:
    >>> np.savez(tmp_path / "model.npz", logit_scale=np.float32(4.5))
    >>> read_logit_scale(tmp_path / "model.npz")
    4.5
  """
  return _read_scalar(
    source, LOGIT_SCALE, MAX_LOGIT_SCALE, "the log of 1 / temperature"
  )


def read_logit_bias(source: str | os.PathLike) -> float | None:
  """Reads the bias of the logits, which SigLIP has; see `read_logit_scale`.

  Args:
    source: A file, a folder or a name on the hub that `read_tensors` reads.

  Returns:
    The number, or None if the model has none.

  Raises:
    ValueError: As `read_logit_scale`.

  Example:
    >>> np.savez(tmp_path / "model.npz", logit_bias=np.float32([-16]))
    >>> read_logit_bias(tmp_path / "model.npz")
    -16.0
  """
  return _read_scalar(source, LOGIT_BIAS, MAX_LOGIT_BIAS, "added to logits")


def _read_scalar(source, name: str, limit: float, what: str) -> float | None:
  """Reads an array of one number that is at most `limit` from 0."""
  folder = files.remote.fetch(source).expanduser()
  if _is_export(folder):
    path = folder / PROJECTIONS
  else:
    path = hub.find_file(source, WEIGHTS)
  for part in _parts(source, path, of=name):
    for value in _read_file(part, only=name).values():
      numbers = np.asarray(value, np.float64).reshape(-1)
      if len(numbers) != 1 or not abs(numbers[0]) <= limit:
        shown = np.array2string(numbers[:3], threshold=3)
        raise ValueError(
          f"{part}: {name} must be one number from -{limit} to {limit}, "
          f"{what}; got {shown}"
        )
      return float(numbers[0])
  return None


def _parts(
  source, path: pathlib.Path, of: str | None = None
) -> list[pathlib.Path]:
  """Returns a file, or the files that an index names, all beside it.

  Args:
    source: Where the file was found.
    path: The file.
    of: Only the file with this array.
  """
  if path.suffix != ".json":
    return [path]
  places = files.read_json(path).get("weight_map")
  with files.reading(path):
    if not isinstance(places, dict) or not places:
      raise ValueError("it has no weight_map, which says where the weights are")
    for name in places.values():
      if not isinstance(name, str) or not re.fullmatch(SHARD, name):
        raise ValueError(f"it names {str(name)[:100]!r}, not weights beside it")
  names = {x for key, x in places.items() if of in (None, _unwrapped(key))}
  return [_beside(source, path, name) for name in sorted(names)]


def _beside(source, index: pathlib.Path, name: str) -> pathlib.Path:
  """Returns a file that an index names, downloaded if need be."""
  path = index.with_name(name)
  if not path.exists():
    path = hub.find_file(source, (name,))
  if path.name != name:  # the source is the index itself
    raise files.UnreadableError(f"{source} names {name}, which is missing")
  return path


def _read_file(
  path: pathlib.Path, only: str | None = None
) -> dict[str, np.ndarray]:
  """Reads the arrays of a file, or only one of them if the file has it."""
  with files.reading(path):
    if path.suffix == ".npz":
      tensors = files.read_arrays(path)
    elif path.suffix == ".msgpack":
      tensors = read_flax_file(path)
    elif path.suffix == ".safetensors":
      tensors = _read_safetensors(path, only)
    elif path.suffix in pytorch.SUFFIXES:
      with tempfile.TemporaryDirectory() as folder:
        converted = pathlib.Path(folder) / "model.safetensors"
        pytorch.convert(path, converted)
        tensors = _read_safetensors(converted, only)
    else:
      raise ValueError(
        f"weights must be {', '.join(hub.SUFFIXES)} files; other files can be "
        "rewritten with safetensors.torch.save_file"
      )
    for key, x in tensors.items():
      if x.dtype.kind not in "biuf" and x.dtype != ml_dtypes.bfloat16:
        raise ValueError(f"{key!r} is of {x.dtype}, not of real numbers")
  bare = _all_unwrapped(path, tensors)
  return {key: x for key, x in bare.items() if only in (None, key)}


def _is_export(folder: pathlib.Path) -> bool:
  return (folder / PROJECTIONS).is_file()


def _unwrapped(key: str) -> str:
  return WRAPPERS.sub("", key)


def _all_unwrapped(path, tensors) -> dict[str, np.ndarray]:
  bare = {_unwrapped(key): x for key, x in tensors.items()}
  if len(bare) < len(tensors):
    raise ValueError(
      f"{path} has some weights twice, with and without {WRAPPERS.pattern}; "
      "leave one of the models out of the file"
    )
  return bare


def _read_safetensors(
  path: pathlib.Path, only: str | None
) -> dict[str, np.ndarray]:
  from safetensors import numpy as safetensors
  from safetensors import safe_open

  _check_header(path)
  if only is not None:
    with safe_open(path, "numpy") as weights:
      found = [key for key in weights.keys() if _unwrapped(key) == only]
      return {key: weights.get_tensor(key) for key in found}
  # What `nuclr export` wrote has digests, in the folder of both towers.
  above = path.parent.parent
  for folder in (path.parent, *((above,) if _is_export(above) else ())):
    files.check_digests(folder, path.relative_to(folder).as_posix())
  return safetensors.load_file(path)


def _check_header(path: pathlib.Path) -> None:
  """Raises ValueError if a safetensors file has a name or a key twice.

  Its library would take the last; everything else it checks itself.
  """

  def check(items):
    names = set()
    for name, _ in items:
      if name in names:
        raise ValueError(f"its header has {name[:200]!r} twice")
      names.add(name)

  with path.open("rb") as file:
    size = int.from_bytes(file.read(8), "little")
    if size <= MAX_HEADER:
      json.loads(file.read(size), object_pairs_hook=check)
