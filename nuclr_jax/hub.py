"""Files of published models: local paths, or names on the Hugging Face hub."""

from collections.abc import Sequence
import os
import pathlib
import re

from nuclr_jax import host


def find(source: str | os.PathLike, names: Sequence[str]) -> pathlib.Path:
  """Finds the first of several files of a model.

  Args:
    source: A file (returned as it is), a folder, or a hub name such as
      "timm/resnet50.a1_in1k". What is downloaded stays in the hub's cache.
    names: Names of files, the best first.

  Returns:
    The path of a file.

  Raises:
    ValueError: If there is none, or the hub cannot be reached.

  Example:
    >>> _ = (tmp_path / "vocab.txt").write_text("[PAD]")
    >>> find(tmp_path, ["tokenizer.json", "vocab.txt"]).name
    'vocab.txt'
  """
  path = pathlib.Path(source).expanduser()
  if path.is_file():
    return path
  if path.is_dir():
    for name in names:
      if (path / name).exists():
        return path / name
    there = sorted(entry.name for entry in path.iterdir())
    raise ValueError(
      f"{path} holds none of {', '.join(names)}; it holds {there[:10]}"
    )
  if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)) or path.suffix in (
    ".safetensors",
    ".npz",
    ".txt",
    ".json",
  ):
    raise ValueError(f"{path} does not exist")
  return _download(str(source), names)


def _download(repository: str, names: Sequence[str]) -> pathlib.Path:
  import huggingface_hub
  from huggingface_hub import errors

  for name in names:
    cached = huggingface_hub.try_to_load_from_cache(repository, name)
    if isinstance(cached, str):
      return pathlib.Path(cached)
  for name in names:
    try:
      return pathlib.Path(huggingface_hub.hf_hub_download(repository, name))
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
      elsewhere = isinstance(error, errors.EntryNotFoundError)
      if elsewhere and not isinstance(error, errors.LocalEntryNotFoundError):
        continue  # the hub was reached and says that it has no such file
      reason = host.first_line(error)
      raise ValueError(
        f"{repository} is no path here, and cannot be had from the hub: "
        f"{reason} Download {' or '.join(names)} yourself and give its path"
      ) from error
  raise ValueError(f"{repository} on the hub has none of {', '.join(names)}")
