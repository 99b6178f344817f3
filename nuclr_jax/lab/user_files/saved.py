"""Folders that `save_to_disk` of Hugging Face's `datasets` wrote.

A `Dataset` is Arrow files, which `state.json` lists; it is written last. Other
Arrow files in the folder are caches. A `DatasetDict` has such a folder for each
split, and lists them in `dataset_dict.json`.
"""

from collections.abc import Sequence
import pathlib

from nuclr_jax.lab import files
from nuclr_jax.lab.user_files import splits

DICT, STATE = "dataset_dict.json", "state.json"


def is_saved(folder: pathlib.Path) -> bool:
  """Returns whether `save_to_disk` wrote a folder.

  Args:
    folder: The folder.

  Example:
    >>> is_saved(tmp_path)
    False
  """
  return (folder / DICT).is_file() or (folder / STATE).is_file()


def files_of(
  folder: pathlib.Path, *, split: str, must: bool
) -> list[pathlib.Path]:
  """Lists the Arrow files of a folder, in order; of several splits, of one.

  Args:
    folder: A folder that `save_to_disk` wrote.
    split: The split to choose.
    must: Whether the folder has to have it; otherwise a `Dataset` may be any.

  Raises:
    ValueError: If files are missing, or the split is.
  """
  if not (folder / DICT).is_file():
    own = own_split([folder / STATE])
    if must and own != (splits.of_name(split) or split):
      has = f"is of the split {own}, not" if own else "names no split, such as"
      raise ValueError(
        f"{folder} {has} {split}; leave --split={split} out to read all of it"
      )
    return _shards(folder)
  names = files.read_json(folder / DICT).get("splits")
  if not isinstance(names, list) or not all(map(_is_name, names)):
    raise ValueError(f"{folder / DICT} does not list the names of splits")
  word = splits.of_name(split)
  alike = [x for x in names if word and splits.of_name(x) == word]
  chosen = [x for x in names if x == split] or alike
  if not chosen:
    raise ValueError(
      f"{folder} has the splits {names}, not {split}; name one of them with "
      "--split, or its folder with --input"
    )
  return [path for name in chosen for path in _shards(folder / name)]


def own_split(paths: Sequence[pathlib.Path]) -> str:
  """Returns the split that a saved `Dataset` was loaded as; "" = unknown.

  A `Dataset` in a `DatasetDict` is of the split that its folder is called by,
  whatever it was loaded as: `train_test_split` makes two of `train`.

  Args:
    paths: Files of a single `Dataset`.
  """
  folders = {path.parent for path in paths}
  folder = next(iter(folders))
  if len(folders) > 1 or not (folder / STATE).is_file():
    return ""
  if (folder.parent / DICT).is_file():
    return splits.of_name(folder.name) or folder.name
  said = files.read_json(folder / STATE).get("_split")
  return splits.NAMES.get(said, "") if isinstance(said, str) else ""


def check_listed(path: pathlib.Path) -> None:
  """Raises ValueError if an Arrow file is not one of its saved `Dataset`.

  Args:
    path: The file, which may also be in a folder of another kind.
  """
  folder = path.parent
  if (folder / STATE).is_file() and path not in _shards(folder):
    raise ValueError(
      f"{path} is not listed in {STATE}: it may be left over from map or "
      f"filter; name the folder, --input={folder}"
    )


def _shards(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the Arrow files of a `Dataset`."""
  if not (folder / STATE).is_file():
    raise ValueError(
      f"{folder} has no {STATE}, which save_to_disk writes last: it was "
      "interrupted, or has not been copied as a whole; save or copy it again"
    )
  state = files.read_json(folder / STATE)
  if state.get("_indices_data_files"):
    raise ValueError(
      f"{folder} holds rows in an order of their own, as datasets before 1.10 "
      "saved them; load it with datasets.load_from_disk, and save it again"
    )
  listed = state.get("_data_files")
  listed = listed if isinstance(listed, list) else [None]
  names = [x.get("filename") if isinstance(x, dict) else None for x in listed]
  if not all(map(_is_name, names)):
    raise ValueError(f"{folder / STATE} does not list the names of files")
  paths = [folder / name for name in names]
  if missing := [x.name for x in paths if not x.is_file()]:
    raise ValueError(
      f"{folder} lacks {len(missing)} of {len(paths)} files that its {STATE} "
      f"lists, such as {missing[0]}; copy the folder again"
    )
  return paths


def _is_name(name) -> bool:
  """Returns whether a text is the name of a file here, and no path."""
  return (
    isinstance(name, str)
    and name not in ("", ".", "..")
    and not any(x in name for x in "/\\\0")
  )
