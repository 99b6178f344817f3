"""Where prepared data sets are: on this machine, or in a bucket."""

from collections.abc import Sequence
import os
import pathlib
import re

from nuclr_jax.lab.files import bucket, remote, visible

DATA_DIR = "NUCLR_DATA_DIR"  # environment variable
INFO = "dataset_info.json"


def cache_dir(data_dir: str | os.PathLike | None = None) -> pathlib.Path:
  """Returns the folder of prepared data sets.

  Args:
    data_dir: The folder; None = $NUCLR_DATA_DIR or, if that is not set or
      empty, ~/.cache/nuclr_jax.

  Returns:
    The folder on this machine; of a folder in a bucket, that of its copies.
  """
  if data_dir is None:
    data_dir = os.environ.get(DATA_DIR) or "~/.cache/nuclr_jax"
  if bucket.is_remote(data_dir):
    return remote.cache_dir()
  return pathlib.Path(data_dir).expanduser().absolute()


def find_data_set(
  name: str, data_dir: str | os.PathLike | None = None
) -> pathlib.Path:
  """Finds the folder of a prepared data set's newest version.

  Args:
    name: An absolute path, one in a bucket, or a name such as "cc3m",
      "coco_captions/2014" or "cifar100/3.0.2" below `data_dir` or below the
      folder of TFDS itself ($TFDS_DATA_DIR or ~/tensorflow_datasets).
    data_dir: Folder of prepared data sets, see `cache_dir`.

  Raises:
    ValueError: If there is no such data set, or several match the name.
  """
  tfds_dir = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  # Joining an absolute path to a folder leaves it as it is.
  own = pathlib.Path(tfds_dir).expanduser() / pathlib.Path(name).expanduser()
  places = [data_set_path(data_dir, name), own]
  if bucket.is_remote(places[0]):
    places = places[:1]
  for place in places:
    folder = remote.fetch(place, choose=without_records)
    versions = prepared_versions(folder)
    configurations = {path.parent for path in versions}
    if len(configurations) > 1:
      raise ValueError(
        f"{folder} holds several configurations, name one of "
        f"{sorted(map(str, configurations))}"
      )
    if versions:
      return max(versions, key=_version_number)
  tried = " or ".join(dict.fromkeys(map(str, places)))
  raise ValueError(
    f"no data set {name!r} is prepared in {tried}; "
    "prepare it with nuclr ingest, or with tfds.builder(NAME, data_dir=..., "
    "file_format='array_record').download_and_prepare(), or say where it is "
    "with --data_dir"
  )


def data_set_path(
  data_dir: str | os.PathLike | None, name: str
) -> str | pathlib.Path:
  """Returns where a data set is, or is to be made, which may be in a bucket.

  Args:
    data_dir: Folder of prepared data sets, see `cache_dir`.
    name: The data set, such as "coco_captions/2014"; an absolute path, or one
      in a bucket, is returned as it is.

  Example:
    >>> data_set_path("gs://bucket/data", "cc3m")
    'gs://bucket/data/cc3m'
  """
  if bucket.is_remote(name):
    return name
  place = os.environ.get(DATA_DIR) if data_dir is None else data_dir
  if place and bucket.is_remote(place):
    return f"{os.fspath(place).rstrip('/')}/{name}"
  return cache_dir(data_dir) / pathlib.Path(name).expanduser()


def without_records(names: Sequence[str]) -> list[str]:
  """Chooses the files of a data set that say what it is.

  Example:
    >>> without_records(["features.json", "mine-train.array_record-00000-of-1"])
    ['features.json']
  """
  return [x for x in names if not re.search(r"\.(array|tf)_?record", x)]


def prepared_versions(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists prepared versions: a folder itself, or at most two levels below."""
  levels = ("", "*/", "*/*/")
  infos = [path for level in levels for path in folder.glob(level + INFO)]
  return [
    path.parent
    for path in visible(infos, folder)
    if not any(
      part.startswith("incomplete") for part in path.relative_to(folder).parts
    )
  ]


def _version_number(folder: pathlib.Path) -> list[int]:
  return [int(x) for x in folder.name.split(".") if x.isdigit()]
