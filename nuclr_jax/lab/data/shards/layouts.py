"""Where the embeddings of pairs are: DataComp's, clip-retrieval's, our own.

| layout | files |
|---|---|
| DataComp | `NAME.npz` with `l14_img`, `l14_txt`, and `NAME.parquet` with `uid`, `text` |
| clip-retrieval | `img_emb_N.npy`, `text_emb_N.npy`, `metadata_N.parquet`, see `numbered` |
| `nuclr embed` | `image.npy`, `text.npy`, `images.parquet`, `texts.parquet` |
| arrays | `image.npy,text.npy`, or an `.npz` with `image` and `text` |

Row i of all files of a shard is of pair i, but for what `nuclr embed` writes: it
embeds an image with several captions once.
"""  # noqa: E501

from collections.abc import Sequence
import os
import pathlib
import re
from typing import NamedTuple

from jaxtyping import Int
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data import embeddings
from nuclr_jax.lab.data.shards import folders, numbered, roles
from nuclr_jax.lab.data.shards.rows import (
  Rows,
  names_of_members,
  open_members,
  open_npy,
)
from nuclr_jax.lab.data.shards.tables import Column
from nuclr_jax.types import Sides

ARCH = "l14"  # of DataComp's arrays: OpenAI's ViT-L/14
ENDS = Sides("_img", "_txt")
EXPECTED = (
  "--embeddings takes a folder with DataComp's .npz and .parquet files, with "
  "clip-retrieval's img_emb_0.npy, text_emb_0.npy and metadata_0.parquet, or "
  "with what nuclr embed writes; or image.npy,text.npy"
)


class Shards(NamedTuple):
  """Pairs of embeddings in files, and what is known about them."""

  image: Rows
  text: Rows
  layout: str  # "datacomp", "clip_retrieval", "embed" or "arrays"
  ends: np.ndarray  # [shards], the number of pairs up to each one's end
  names: Sequence[str]  # of the shards
  paths: Sequence[pathlib.Path]  # of all files
  # uid, caption, name, image, score, thumbnail; those that are known
  columns: dict[str, Column]

  def places(
    self, rows: Int[np.ndarray, "some"]
  ) -> tuple[Int[np.ndarray, "some"], Int[np.ndarray, "some"]]:
    """Returns the number of each pair's shard, and its row there."""
    shard = np.searchsorted(self.ends, rows, side="right")
    return shard, rows - np.concatenate([[0], self.ends])[shard]


class Shard(NamedTuple):
  """The files of one shard."""

  sides: Sides  # a `Part` of images and one of texts
  table: pathlib.Path


def open_shards(
  paths: str | os.PathLike, *, scratch: pathlib.Path, arch: str | None = None
) -> Shards:
  """Opens the embeddings of pairs, and checks that their rows line up.

  Args:
    paths: A folder or file of one of the layouts above, here or in a bucket.
    scratch: A folder for arrays that are compressed.
    arch: Which arrays of DataComp's files, by how their names begin, such as
      "b32"; None means "l14". Other layouts have only one kind.

  Raises:
    ValueError: If a file is missing or damaged, or rows do not line up; the
      message names the file.
  """
  paths = ",".join(str(files.remote.fetch(x)) for x in _places(str(paths)))
  folder = pathlib.Path(paths).expanduser()
  if not folder.exists() and "," not in paths:
    raise ValueError(
      f"--embeddings={paths} does not exist; give a folder, an .npz file, or "
      "image.npy,text.npy"
    )
  found = folders.below(folder) if folder.is_dir() else []
  own = folder / embeddings.TEXTS in found
  archives, parts = ([], []) if own else either_layout(found)
  if folder.suffix == ".npz" and folder.with_suffix(".parquet").exists():
    archives = [folder]
  if archives:
    return _datacomp(archives, arch or ARCH, scratch)
  if arch is not None:
    raise ValueError(
      f"--arch={arch} is for DataComp's .npz files, and {paths} has none; "
      "leave it out"
    )
  if own:
    return _embedded(folder)
  if parts:
    return _clip_retrieval(parts, folder)
  if folder.is_dir():
    about = folders.about(folder, found, "embeddings")
    raise ValueError(f"{EXPECTED}; got {paths}{about}")
  return _arrays(paths, scratch)


def _places(paths: str) -> list[str]:
  """Returns the parts between commas; those of two arrays without spaces."""
  places = paths.split(",")
  stripped = [x.strip() for x in places]
  return stripped if all(x.endswith(".npy") for x in stripped) else places


def either_layout(
  found: Sequence[pathlib.Path],
) -> tuple[list[pathlib.Path], list[numbered.Numbered]]:
  """Returns DataComp's arrays among files, or clip-retrieval's files.

  Raises:
    ValueError: If there are both; if a table of DataComp's has no arrays.
  """
  archives = [x for x in found if x.suffix == ".npz"]
  parts = numbered.numbered(found)
  if archives and parts:
    raise ValueError(
      f"{archives[0]} is DataComp's, and {parts[0].path} clip-retrieval's; "
      "give a folder with the files of one"
    )
  stems = {x.with_suffix("") for x in archives}
  tables = {x.with_suffix("") for x in found if x.suffix == ".parquet"}
  if archives and (alone := sorted(tables - stems)):
    raise ValueError(
      f"{alone[0]}.parquet has no {alone[0].name}.npz beside it; download it "
      "(download_upstream.py --download_npz), or leave the table out"
    )
  return archives, parts


def _datacomp(archives, arch: str, scratch: pathlib.Path) -> Shards:
  names = Sides(*(f"{arch}{end}" for end in ENDS))
  shards = []
  for path in archives:
    table = path.with_suffix(".parquet")
    if not table.exists():
      raise ValueError(
        f"{path} has no {table.name} beside it, with the uids of its rows; "
        "download it (arrays without a table: give the .npz file alone)"
      )
    parts = open_members(path, names, scratch)
    shards.append(Shard(Sides(*parts), table))
  known = _columns(shards)
  tables = [shard.table for shard in shards]
  columns = roles.columns_of_datacomp(tables, known, arch)
  return _joined(shards, "datacomp", archives, columns)


def _clip_retrieval(
  parts: Sequence[numbered.Numbered], folder: pathlib.Path
) -> Shards:
  shards = []
  for kinds in numbered.shards(parts, folder):
    sides = Sides(*(open_npy(kinds[x]) for x in ("img_emb", "text_emb")))
    shards.append(Shard(sides, kinds["metadata"]))
  known = _columns(shards)
  tables = [shard.table for shard in shards]
  columns = roles.columns_of_clip_retrieval(tables, known)
  return _joined(shards, "clip_retrieval", [x.path for x in parts], columns)


def _columns(shards: Sequence[Shard]) -> list[list[str]]:
  """Returns the columns of each table, once its rows are as many as others."""
  from pyarrow import parquet

  columns = []
  for shard in shards:
    with files.reading(shard.table) as path:
      metadata = parquet.read_metadata(path)
      names = metadata.schema.to_arrow_schema().names
    image, text = shard.sides
    if not image.shape[0] == text.shape[0] == metadata.num_rows:
      raise ValueError(
        f"{image.name} has {image.shape[0]} rows, {text.name} "
        f"{text.shape[0]}, and {shard.table} {metadata.num_rows}: they do not "
        "line up; write or download the shard again"
      )
    columns.append(names)
  return columns


def _joined(shards: Sequence[Shard], layout: str, arrays, columns) -> Shards:
  """Joins shards with a table each."""
  tables = [shard.table for shard in shards]
  return _checked(
    Rows([x.sides.image for x in shards]),
    Rows([x.sides.text for x in shards]),
    layout,
    [x.sides.image.shape[0] for x in shards],
    tables,
    {*arrays, *tables},
    columns,
  )


def _embedded(folder: pathlib.Path) -> Shards:
  """Opens what `nuclr embed` wrote."""
  cached = embeddings.open_embeddings(folder)
  index = np.asarray(cached.image_of_text)
  parts = [open_npy(folder / x) for x in embeddings.ARRAYS]
  tables = [[folder / x] for x in (embeddings.IMAGES, embeddings.TEXTS)]
  columns = {
    "caption": Column(tables[1], embeddings.CAPTION),
    "name": Column(tables[0], embeddings.KEY, index),
  }
  for role in (embeddings.CONTENT, embeddings.THUMBNAIL):
    if embeddings.read_column(folder, role) is not None:
      name = "image" if role == embeddings.CONTENT else role
      columns[name] = Column(tables[0], role, index)
  return _checked(
    Rows([parts[0]], index),
    Rows([parts[1]]),
    "embed",
    [len(index)],
    [folder / embeddings.TEXTS],
    [*(x.path for x in parts), *tables[0], *tables[1]],
    columns,
  )


def _arrays(paths: str, scratch: pathlib.Path) -> Shards:
  """Opens two arrays without a table."""
  names = [pathlib.Path(x).expanduser() for x in paths.split(",")]
  if len(names) == 2 and all(x.suffix == ".npy" for x in names):
    parts = [open_npy(x) for x in names]
  elif len(names) == 1 and names[0].suffix == ".npz":
    others = set(names_of_members(names[0])) - set(Sides._fields)
    if any(x.endswith(tuple(ENDS)) for x in others):
      raise ValueError(
        f"{names[0]} has DataComp's arrays ({', '.join(sorted(others))}), and "
        f"no {names[0].stem}.parquet beside it, with the uids of its rows; "
        "download it"
      )
    if others:
      raise ValueError(
        f"{names[0]} has the array {sorted(others)[0]}, which filter does not "
        "use: it takes image and text with one row for each pair, and "
        "DataComp's arrays with the .parquet file beside them"
      )
    parts = open_members(names[0], Sides._fields, scratch)
  else:
    raise ValueError(f"{EXPECTED}; got {paths}")
  check_order(names)
  if parts[0].shape[0] != parts[1].shape[0]:
    raise ValueError(
      f"{parts[0].name} has {parts[0].shape[0]} rows, and {parts[1].name} "
      f"{parts[1].shape[0]}; give one row of each for every pair"
    )
  rows = [Rows([x]) for x in parts]
  sizes = [parts[0].shape[0]]
  return _checked(*rows, "arrays", sizes, names[:1], names, {})


def check_order(names: Sequence[pathlib.Path]) -> None:
  """Raises ValueError if two arrays are called by each other's contents.

  Args:
    names: The files of embeddings of images, and of texts.
  """
  is_text, is_image = (
    [re.search(pattern, x.stem, re.IGNORECASE) is not None for x in names]
    for pattern in ("te?xt|caption", "ima?ge?")
  )
  if is_text == [True, False] and is_image == [False, True]:
    raise ValueError(
      f"{names[0].name} is given as the embeddings of images, and "
      f"{names[1].name} as those of texts: swap them"
    )


def _checked(image, text, layout, sizes, names, paths, columns) -> Shards:
  """Joins what is known; raises ValueError for too few pairs, or two widths."""
  if image.dim != text.dim:
    raise ValueError(
      f"{image.parts[0].name} has {image.dim} columns, and "
      f"{text.parts[0].name} {text.dim}; give embeddings of one model, not "
      "features"
    )
  if len(image) < 2:
    raise ValueError(f"{names[0]} has {len(image)} pairs; give two or more")
  shown = [str(x) for x in names]
  ends = np.cumsum(sizes)
  return Shards(image, text, layout, ends, shown, sorted(paths), columns)
