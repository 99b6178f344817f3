"""Pretrained weights, from files or the Hugging Face hub."""

from collections.abc import Sequence
import json
import os
import pathlib

import numpy as np

from nuclr_jax import hub
from nuclr_jax.models import weights
from nuclr_jax.types import Params, PyTree, Sides

PROJECTIONS = "projections.safetensors"  # of a folder of `nuclr export`
PROJECTION_KEYS = {  # of that file, by our names; matrices are transposed
  f"{side}_projection{ours}": f"{side}_projection.{theirs}"
  for side in Sides._fields
  for ours, theirs in (("", "weight"), ("_bias", "bias"))
}
_INDEX = "model.safetensors.index.json"  # of weights in several files


def load(
  source: str | os.PathLike,
  params: Params,
  state: PyTree,
  *,
  sides: Sequence[str],
) -> tuple[Params, PyTree]:
  """Replaces towers of a `dual_encoder` by pretrained ones.

  Args:
    source: See `read`. Its layout is recognised from its keys: ResNets of
      torchvision, timm and Hugging Face, ViTs of timm and Hugging Face, BERT,
      DistilBERT, CLIP of Hugging Face, OpenAI and OpenCLIP.
    params: First params; only shapes matter.
    state: Likewise.
    sides: Which of "image" and "text" to replace. A side of a CLIP file brings
      its projection, too.

  Returns:
    Params and state.

  Raises:
    ValueError: If there is no such file, or it does not fit the towers.

  Example:
    >>> params, state = load(  # doctest: +SKIP
    ...   "timm/resnet50.a1_in1k", params, state, sides=("image",)
    ... )
  """
  tensors = read(source)
  try:
    layout = weights.recognize(list(tensors))
    return weights.from_layout(tensors, layout, params, state, sides=sides)
  except ValueError as error:
    raise ValueError(f"pretrained weights {source}: {error}") from error


def load_both(
  source: str | os.PathLike, params: Params, state: PyTree
) -> tuple[Params, PyTree]:
  """Replaces both towers and their projections.

  Args:
    source: A folder that `nuclr export` wrote, or a CLIP, see `load`.
    params: First params; only shapes matter.
    state: Likewise.

  Raises:
    ValueError: If there is no such folder, or it does not fit.
  """
  folder = pathlib.Path(source).expanduser()
  if not (folder / PROJECTIONS).exists():
    return load(source, params, state, sides=Sides._fields)
  for side in Sides._fields:
    part = folder / f"{side}_encoder"
    params, state = load(part, params, state, sides=(side,))
  found = read(folder / PROJECTIONS)
  names = PROJECTION_KEYS
  expected = {
    key: np.shape(params[name])[::-1]
    for name, key in names.items()
    if name in params
  }
  shapes = {key: x.shape for key, x in found.items()}
  if shapes != expected:
    raise ValueError(
      f"{folder / PROJECTIONS} holds {shapes}, the model's projections are "
      f"{expected}; dim and projection_bias must be those of the folder"
    )
  ours = {name: found[key].T for name, key in names.items() if key in found}
  return params | ours, state


def read(source: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads arrays by key.

  Args:
    source: A .safetensors or .npz file, a folder with model.safetensors (or its
      index and parts), or a name on the hub such as "timm/resnet50.a1_in1k".

  Raises:
    ValueError: If there is none, or it cannot be read.

  Example:
    >>> np.savez(tmp_path / "x.npz", bias=np.zeros(3))
    >>> sorted(read(tmp_path / "x.npz"))
    ['bias']
  """
  path = hub.find(source, ("model.safetensors", _INDEX))
  try:
    if path.suffix == ".npz":
      with np.load(path) as file:
        return dict(file)
    if path.suffix == ".json":
      parts = set(json.loads(path.read_text())["weight_map"].values())
      tensors = {}
      for name in sorted(parts):
        part = path.with_name(name)
        part = part if part.exists() else hub.find(source, (name,))
        tensors |= _read_safetensors(part)
      return tensors
    if path.suffix == ".safetensors":
      return _read_safetensors(path)
  except Exception as error:  # of NumPy, safetensors or the file system
    raise ValueError(f"{path} cannot be read: {error}") from error
  raise ValueError(
    f"weights must be a .safetensors or .npz file, got {path}; other files can "
    "be rewritten with safetensors.torch.save_file"
  )


def _read_safetensors(path) -> dict[str, np.ndarray]:
  import ml_dtypes  # noqa: F401  teaches NumPy bfloat16
  from safetensors import numpy as safetensors

  return safetensors.load_file(path)
