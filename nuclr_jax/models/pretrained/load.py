"""Loads pretrained weights in place of a model's initial ones."""

from collections.abc import Sequence
import json
import os
import pathlib

import numpy as np

from nuclr_jax import files
from nuclr_jax.models.pretrained import convert, hub
from nuclr_jax.types import Params, PyTree, Sides

PROJECTIONS = "projections.safetensors"  # in a folder of `nuclr export`
# Our names and the keys of that file, whose matrices are transposed.
PROJECTION_KEYS = {
  f"{side}_projection{ours}": f"{side}_projection.{theirs}"
  for side in Sides._fields
  for ours, theirs in (("", "weight"), ("_bias", "bias"))
}
_INDEX = "model.safetensors.index.json"  # for weights in several files
WEIGHTS = ("model.safetensors", _INDEX, "open_clip_model.safetensors")
LOGIT_SCALE = "logit_scale"  # log(1 / temperature)


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
  folder = pathlib.Path(source).expanduser()
  if not (folder / PROJECTIONS).exists():
    return load_towers(source, params, state, sides=Sides._fields)
  for side in Sides._fields:
    encoder = folder / f"{side}_encoder"
    params, state = load_towers(encoder, params, state, sides=(side,))
  tensors = read_tensors(folder / PROJECTIONS)
  shapes = {key: x.shape for key, x in tensors.items()}
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

  Args:
    source: A .safetensors or .npz file, a folder with model.safetensors (or its
      index and parts) or open_clip_model.safetensors, or a name on the hub such
      as "timm/resnet50.a1_in1k".

  Raises:
    ValueError: If there is no such file, or if it cannot be read.

  Example:
    >>> np.savez(tmp_path / "x.npz", bias=np.zeros(3))
    >>> sorted(read_tensors(tmp_path / "x.npz"))
    ['bias']
  """
  path = hub.find_file(source, WEIGHTS)
  if path.suffix == ".npz":
    return files.read_arrays(path)
  with files.reading(path):
    if path.suffix == ".json":
      tensors = {}
      for name in _part_names(path):
        part = path.with_name(name)
        part = part if part.exists() else hub.find_file(source, (name,))
        tensors |= _read_safetensors(part)
      return tensors
    if path.suffix == ".safetensors":
      return _read_safetensors(path)
  raise ValueError(
    f"weights must be a .safetensors or .npz file, got {path}; other files can "
    "be rewritten with safetensors.torch.save_file"
  )


def read_logit_scale(source: str | os.PathLike) -> float | None:
  """Reads log(1 / temperature) of a published model, and nothing else.

  Args:
    source: A file, a folder or a name on the hub that `read_tensors` reads.

  Returns:
    The number, or None if the model has none.

  Raises:
    ValueError: If there is no such file, or if it cannot be read.

  Example:
    >>> np.savez(tmp_path / "model.npz", logit_scale=np.float32(4.5))
    >>> read_logit_scale(tmp_path / "model.npz")
    4.5
  """
  import ml_dtypes  # noqa: F401  teaches NumPy bfloat16
  from safetensors import safe_open

  path = hub.find_file(source, WEIGHTS)
  with files.reading(path):
    if path.suffix == ".json":
      part = json.loads(path.read_text())["weight_map"].get(LOGIT_SCALE)
      if part is None:
        return None
      _part_names(path)
      path = path.with_name(part)
      path = path if path.exists() else hub.find_file(source, (part,))
    if path.suffix == ".npz":
      value = files.read_arrays(path).get(LOGIT_SCALE)
    else:
      with safe_open(path, "numpy") as weights:
        names = weights.keys()
        value = (
          weights.get_tensor(LOGIT_SCALE) if LOGIT_SCALE in names else None
        )
    return None if value is None else float(np.asarray(value).reshape(()))


def _part_names(index: pathlib.Path) -> list[str]:
  """Returns the names of the files that an index names, all beside it."""
  names = set(json.loads(index.read_text())["weight_map"].values())
  if outside := [x for x in names if pathlib.PurePath(x).name != x]:
    raise ValueError(f"it names {outside[0]!r}, which is not beside it")
  return sorted(names)


def _read_safetensors(path) -> dict[str, np.ndarray]:
  import ml_dtypes  # noqa: F401  teaches NumPy bfloat16
  from safetensors import numpy as safetensors

  # What `nuclr export` wrote has digests, in the folder of both towers.
  for folder in (path.parent, path.parent.parent):
    files.check_digests(folder, path.relative_to(folder).as_posix())
  return safetensors.load_file(path)
