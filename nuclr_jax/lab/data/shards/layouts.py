"""Where the embeddings of pairs are: DataComp's, clip-retrieval's, our own.

| layout | files |
|---|---|
| DataComp | `NAME.npz` with `l14_img`, `l14_txt`, and `NAME.parquet` with `uid`, `text` |
| clip-retrieval | `img_emb_N.npy`, `text_emb_N.npy`, `metadata_N.parquet`, each in a folder of its own or all in one |
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
NUMBERED = re.compile(r"(img_emb|text_emb|metadata)_(\d+)\.(npy|parquet)")
NAMES = ("url", "image_path", "key")  # columns that say which image it is
SUMS = ("sha256", "md5")  # columns that are equal for copies of an image
EXPECTED = (
  "--embeddings takes a folder with DataComp's .npz and .parquet files, with "
  "clip-retrieval's img_emb_0.npy, text_emb_0.npy and metadata_0.parquet, or "
  "with what nuclr embed writes; or image.npy,text.npy"
)
EXPECTED_IMAGES = (
  "--target takes embeddings of images: a .npy file, an .npz file with image "
  "or l14_img, a folder with what nuclr embed writes, or with DataComp's or "
  "clip-retrieval's files"
)


class Shards(NamedTuple):
  """Pairs of embeddings in files, and what is known about them."""

  image: Rows
  text: Rows
  layout: str  # "datacomp", "clip_retrieval", "embed" or "arrays"
  ends: np.ndarray  # [shards], the number of pairs up to each one's end
  names: Sequence[str]  # of the shards
  paths: Sequence[pathlib.Path]  # of all files
  columns: dict[str, Column]  # uid, caption, name, image, thumbnail, if known

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


class Images(NamedTuple):
  """Embeddings of images in files, without texts."""

  rows: Rows
  paths: Sequence[pathlib.Path]  # of all files


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
  paths = ",".join(str(files.remote.fetch(x)) for x in str(paths).split(","))
  folder = pathlib.Path(paths).expanduser()
  found = (
    sorted(files.visible(_below(folder), folder)) if folder.is_dir() else []
  )
  numbered = [x for x in found if NUMBERED.fullmatch(x.name)]
  own = folder / embeddings.TEXTS in found
  archives = [x for x in found if x.suffix == ".npz"]
  if folder.suffix == ".npz" and folder.with_suffix(".parquet").exists():
    archives = found = [folder]
  if archives and not own:
    return _datacomp(archives, found, arch or ARCH, scratch)
  if arch is not None:
    raise ValueError(
      f"--arch={arch} is for DataComp's .npz files, and {paths} has none; "
      "leave it out"
    )
  if own:
    return _embedded(folder)
  if numbered:
    return _clip_retrieval(numbered)
  return _arrays(paths, scratch)


def open_images(
  path: str | os.PathLike, *, scratch: pathlib.Path, arch: str | None = None
) -> Images:
  """Opens embeddings of images that pairs are compared with.

  Args:
    path: A `.npy` file, an `.npz` file, or a folder of one of the layouts
      above, here or in a bucket. Of what `nuclr embed` wrote, each image counts
      once.
    scratch: A folder for arrays that are compressed.
    arch: Which arrays of DataComp's files, as in `open_shards`; files of other
      layouts ignore it.

  Raises:
    ValueError: If a file is missing or damaged, or holds no images.
  """
  place = files.remote.fetch(path).expanduser()
  if not place.exists():
    raise ValueError(f"--target={path} does not exist")
  below = list(files.visible(_below(place), place)) if place.is_dir() else []
  endings = {x.suffix for x in below}
  if (place / embeddings.ARRAYS.image).exists():
    files.check_digests(place, embeddings.ARRAYS.image)
    place = place / embeddings.ARRAYS.image
  if place.suffix == ".npy":
    found = Images(Rows([open_npy(place)]), [place])
  elif place.is_file() and place.suffix == ".npz":
    own = f"{arch or ARCH}{ENDS.image}"
    name = own if own in names_of_members(place) else Sides._fields[0]
    found = Images(Rows(open_members(place, [name], scratch)), [place])
  elif ".npz" in endings or any(NUMBERED.fullmatch(x.name) for x in below):
    arch = arch if ".npz" in endings else None
    shards = open_shards(place, scratch=scratch, arch=arch)
    found = Images(shards.image, shards.paths)
  else:
    raise ValueError(f"{EXPECTED_IMAGES}; got {path}")
  if not len(found.rows):
    raise ValueError(f"{found.paths[0]} has no rows; give one or more images")
  return found


def _below(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the files of a folder and of the folders in it."""
  return [x for x in [*folder.glob("*"), *folder.glob("*/*")] if x.is_file()]


def _datacomp(archives, found, arch: str, scratch: pathlib.Path) -> Shards:
  stems = {x.with_suffix("") for x in archives}
  tables = {x.with_suffix("") for x in found if x.suffix == ".parquet"}
  if alone := sorted(tables - stems):
    raise ValueError(
      f"{alone[0]}.parquet has no {alone[0].name}.npz beside it; download it "
      "(download_upstream.py --download_npz), or leave the table out"
    )
  names = Sides(*(f"{arch}{end}" for end in ENDS))
  shards = []
  for path in archives:
    parts = open_members(path, names, scratch)
    shards.append(Shard(Sides(*parts), path.with_suffix(".parquet")))
  return _joined(shards, "datacomp", archives)


def _clip_retrieval(numbered) -> Shards:
  of_number: dict[str, dict[str, pathlib.Path]] = {}
  for path in numbered:
    kind, number, _ = NUMBERED.fullmatch(path.name).groups()
    of_number.setdefault(number, {})[kind] = path
  shards = []
  for number, kinds in sorted(of_number.items(), key=lambda x: int(x[0])):
    for kind in ("img_emb", "text_emb", "metadata"):
      if kind not in kinds:
        ending = "parquet" if kind == "metadata" else "npy"
        raise ValueError(
          f"{next(iter(kinds.values()))} has no {kind}_{number}.{ending} with "
          "it; clip-retrieval inference writes it with --enable_text "
          "--enable_image --enable_metadata"
        )
    sides = Sides(*(open_npy(kinds[x]) for x in ("img_emb", "text_emb")))
    shards.append(Shard(sides, kinds["metadata"]))
  return _joined(shards, "clip_retrieval", numbered)


def _joined(shards: Sequence[Shard], layout: str, arrays) -> Shards:
  """Joins shards with a table each, once their rows line up."""
  from pyarrow import parquet

  known = None
  for shard in shards:
    with files.reading(shard.table) as path:
      metadata = parquet.read_metadata(path)
    image, text = shard.sides
    if not image.shape[0] == text.shape[0] == metadata.num_rows:
      raise ValueError(
        f"{image.name} has {image.shape[0]} rows, {text.name} "
        f"{text.shape[0]}, and {shard.table} {metadata.num_rows}: they do not "
        "line up; write or download the shard again"
      )
    columns = set(metadata.schema.to_arrow_schema().names)
    known = columns if known is None else known & columns
  tables = [shard.table for shard in shards]
  roles = {
    "uid": ("uid",),
    "caption": ("text",) if layout == "datacomp" else ("caption", "text"),
    "name": NAMES,
    "image": SUMS,
  }
  if layout == "datacomp":
    known = known | {"uid", "text"}  # an error when it is read
  columns = {}
  for role, names in roles.items():
    if name := next((x for x in names if x in known), None):
      columns[role] = Column(tables, name)
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
    if others := set(names_of_members(names[0])) - set(Sides._fields):
      raise ValueError(
        f"{names[0]} has the array {sorted(others)[0]}, which filter does not "
        "use: it takes image and text with one row for each pair, and "
        "DataComp's arrays with the .parquet file beside them"
      )
    parts = open_members(names[0], Sides._fields, scratch)
  else:
    raise ValueError(f"{EXPECTED}; got {paths}")
  if parts[0].shape[0] != parts[1].shape[0]:
    raise ValueError(
      f"{parts[0].name} has {parts[0].shape[0]} rows, and {parts[1].name} "
      f"{parts[1].shape[0]}; give one row of each for every pair"
    )
  rows = [Rows([x]) for x in parts]
  sizes = [parts[0].shape[0]]
  return _checked(*rows, "arrays", sizes, names[:1], names, {})


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
