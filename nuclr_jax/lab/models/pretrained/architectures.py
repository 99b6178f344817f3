"""The models that OpenCLIP knows by name, for weights without a description.

`open_clip.json` has the `model_cfg` of each, as open_clip_torch 3.3.0 ships
them; `experiments/parity/architectures.py` writes it.
"""

from collections.abc import Mapping
import difflib
import os
import pathlib
from typing import Any

from nuclr_jax.lab import files
from nuclr_jax.lab.models.pretrained import hub
from nuclr_jax.lab.models.pretrained.specs import read_spec

TABLE = pathlib.Path(__file__).with_name("open_clip.json")
HOW = (
  "OpenCLIP's name of it, such as --architecture=ViT-B-32; OpenCLIP's config "
  "of it, a .json file; or a folder or a name on the hub of a model like it"
)


def is_weights(source: str | os.PathLike) -> bool:
  """Returns whether a model is a file of weights, and so nothing else.

  Example:
    >>> (tmp_path / "epoch_3.pt").touch()
    >>> is_weights(tmp_path / "epoch_3.pt"), is_weights(tmp_path)
    (True, False)
  """
  path = files.remote.fetch(source).expanduser()
  return path.is_file() and path.suffix in hub.SUFFIXES


def is_missing(source: str | os.PathLike) -> bool:
  """Returns whether a model is called like a file of weights, and not there.

  Example:
    >>> is_missing(tmp_path / "epoch_3.pt"), is_missing(tmp_path)
    (True, False)
  """
  path = files.remote.fetch(source).expanduser()
  return path.suffix in hub.SUFFIXES and not path.exists()


def find_architecture(name: str | os.PathLike) -> Mapping[str, Any] | None:
  """Finds OpenCLIP's description of an architecture.

  Args:
    name: OpenCLIP's name, such as "ViT-B-32" or "ViT-B-32-quickgelu"; or a
      .json file with a config as OpenCLIP has it for that name.

  Returns:
    The `model_cfg`; None for a folder or a name on the hub, which describe
    themselves.

  Raises:
    ValueError: If there is none of these.

  Example:
    >>> find_architecture("ViT-B-32")["vision_cfg"]["patch_size"]
    32
    >>> find_architecture("ViT-B32")
    Traceback (most recent call last):
    ValueError: ViT-B32 is no architecture; give OpenCLIP's name of it, such as
    --architecture=ViT-B-32; OpenCLIP's config of it, a .json file; or a folder
    or a name on the hub of a model like it. Did you mean ViT-B-32, ViT-S-32,
    ViT-M-32?
  """
  known = files.read_json(TABLE)
  if name in known:
    return known[name]
  path = files.remote.fetch(name).expanduser()
  if path.is_file():
    spec = read_spec(path)
    spec = spec.get("model_cfg", spec)
    if not {"vision_cfg", "text_cfg"} <= spec.keys():
      raise ValueError(
        f"{path} is not OpenCLIP's config of a model: it lacks vision_cfg or "
        "text_cfg"
      )
    return spec
  text = os.fspath(name)
  if path.is_dir() or "/" in text and hub.is_name(text):
    return None
  near = difflib.get_close_matches(text, known, n=3)
  hint = f". Did you mean {', '.join(near)}?" if near else ""
  raise ValueError(f"{text} is no architecture; give {HOW}{hint}")
