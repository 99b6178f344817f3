"""Files of published models: local paths, or names on the Hugging Face hub."""

from collections.abc import Sequence
import logging
import os
import pathlib
import re

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.models.pretrained import pytorch

log = logging.getLogger(__name__)

SUFFIXES = (".safetensors", ".npz", ".msgpack", *pytorch.SUFFIXES)  # of weights
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # of a repository


def is_name(text: object) -> bool:
  """Returns whether a text can be a name on the hub, and is not a path or URL.

  Example:
    >>> is_name("timm/resnet50.a1_in1k"), is_name("../x"), is_name("s3://x/y")
    (True, False, False)
  """
  return isinstance(text, str) and bool(
    NAME.fullmatch(text) and ".." not in text
  )


def find_file(source: str | os.PathLike, names: Sequence[str]) -> pathlib.Path:
  """Returns the path of the first of several files that a model has.

  Args:
    source: A file (returned as it is), a folder, either of them in a bucket
      (gs://, s3://), or a name on the hub such as "timm/resnet50.a1_in1k".
      Downloads are kept.
    names: Names of files, in order of preference.

  Raises:
    ValueError: If the model has none of the files, or if the hub cannot be
      reached.

  Example:
    >>> _ = (tmp_path / "vocab.txt").write_text("[PAD]")
    >>> find_file(tmp_path, ["tokenizer.json", "vocab.txt"]).name
    'vocab.txt'
  """
  path = files.remote.fetch(source).expanduser()
  if path.is_file():
    return path
  if path.is_dir():
    for name in names:
      if (path / name).is_file():
        return path / name
    entries = sorted(entry.name for entry in path.iterdir())
    raise files.UnreadableError(
      f"{path} has none of {', '.join(names)}; it has {entries[:10]}"
    )
  if path.exists():
    raise files.UnreadableError(f"{path} is not a regular file")
  # A name that ends like a file is meant as one: the hub is not asked for it.
  if not is_name(str(source)) or path.suffix in (*SUFFIXES, ".txt", ".json"):
    raise ValueError(
      f"{path} does not exist; give a file, a folder that has "
      f"{' or '.join(names)}, or a name on the Hugging Face hub"
    )
  return _download(str(source), names)


def find_optional(
  source: str | os.PathLike, *names: str
) -> pathlib.Path | None:
  """Returns the first of several files that a model may have; None if none.

  Args:
    source: As for `find_file`. A name on the hub costs a request, also where
      the rest of the model has been downloaded before.
    names: Names of files, in order of preference.

  Example:
    >>> _ = (tmp_path / "modules.json").write_text("[]")
    >>> find_optional(tmp_path, "modules.json").name
    'modules.json'
    >>> find_optional(tmp_path, "adapter_config.json") is None
    True
  """
  try:
    path = find_file(source, names)
  except ValueError:
    return None
  return path if path.as_posix().endswith(names) else None


def _download(repository: str, names: Sequence[str]) -> pathlib.Path:
  """Returns the first file that the repository has, from the cache or the hub.

  What happens to be in the cache does not change the choice: files preferred to
  the cached one are requested first.
  """
  import huggingface_hub
  from huggingface_hub import errors

  failures = (errors.EntryNotFoundError, errors.HfHubHTTPError)
  # A path; None if the file was never requested; or a sentinel if the hub is
  # already known not to have it.
  cache = {
    name: huggingface_hub.try_to_load_from_cache(repository, name)
    for name in names
  }
  for name, cached in cache.items():
    if isinstance(cached, str):
      return pathlib.Path(cached)
    if cached is not None:
      continue
    try:
      return pathlib.Path(huggingface_hub.hf_hub_download(repository, name))
    except (*failures, OSError, ValueError) as error:
      # The error for "not in the cache, and the hub was not reached" is a
      # subclass of the one for "the hub has no such file".
      unreached = isinstance(error, errors.LocalEntryNotFoundError)
      if isinstance(error, errors.EntryNotFoundError) and not unreached:
        continue
      # Without the hub, a less preferred file is better than none.
      if paths := [x for x in cache.values() if isinstance(x, str)]:
        reason = progress.first_line(error)
        log.warning("%s: %s; taking %s", repository, reason, paths[0])
        return pathlib.Path(paths[0])
      refused = (errors.RepositoryNotFoundError, errors.GatedRepoError)
      hint = (
        "Check the name; a private or gated model needs `hf auth login`"
        if isinstance(error, refused)
        else f"Download {' or '.join(names)} yourself and give its path"
      )
      raise files.UnreadableError(
        f"{repository} is not a local path, and could not be downloaded from "
        f"the hub: {progress.first_line(error)} {hint}"
      ) from error
  raise files.UnreadableError(
    f"{repository} on the hub has none of {', '.join(names)}"
  )
