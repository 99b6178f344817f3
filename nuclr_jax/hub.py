"""Files of published models: local paths, or names on the Hugging Face hub."""

from collections.abc import Sequence
import logging
import os
import pathlib
import re

from nuclr_jax import host

log = logging.getLogger(__name__)


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
    raise ValueError(
      f"{path} is not there; give a file, a folder that has "
      f"{' or '.join(names)}, or a name on the Hugging Face hub"
    )
  return _download(str(source), names)


def _download(repository: str, names: Sequence[str]) -> pathlib.Path:
  """The best file that there is, whatever was downloaded before."""
  import huggingface_hub
  from huggingface_hub import errors

  failures = (errors.EntryNotFoundError, errors.HfHubHTTPError)
  known = {
    name: huggingface_hub.try_to_load_from_cache(repository, name)
    for name in names
  }
  for name, cached in known.items():
    if isinstance(cached, str):
      return pathlib.Path(cached)
    if cached is not None:
      continue  # the hub has said before that it has no such file
    try:
      return pathlib.Path(huggingface_hub.hf_hub_download(repository, name))
    except (*failures, OSError, ValueError) as error:
      elsewhere = isinstance(error, errors.EntryNotFoundError)
      if elsewhere and not isinstance(error, errors.LocalEntryNotFoundError):
        continue  # the hub was reached and says that it has no such file
      # Without the hub the next best is better than nothing.
      if there := [x for x in known.values() if isinstance(x, str)]:
        log.warning(
          "%s: %s; taking %s", repository, host.first_line(error), there[0]
        )
        return pathlib.Path(there[0])
      raise ValueError(
        f"{repository} is no path here, and cannot be had from the hub: "
        f"{host.first_line(error)} Download {' or '.join(names)} yourself and "
        "give its path"
      ) from error
  raise ValueError(f"{repository} on the hub has none of {', '.join(names)}")
