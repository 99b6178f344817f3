"""Embeddings of images alone, which pairs are compared with."""

from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.data import embeddings
from nuclr_jax.lab.data.shards import folders, numbered
from nuclr_jax.lab.data.shards.layouts import ARCH, ENDS, either_layout
from nuclr_jax.lab.data.shards.rows import (
  Part,
  Rows,
  names_of_members,
  open_members,
  open_npy,
)
from nuclr_jax.types import Sides

EXPECTED = (
  "--target takes embeddings of images: a .npy file, an .npz file with image "
  "or l14_img, a folder with what nuclr embed writes, or with DataComp's or "
  "clip-retrieval's files"
)


class Images(NamedTuple):
  """Embeddings of images in files, without texts."""

  rows: Rows
  paths: Sequence[pathlib.Path]  # of all files


def open_images(
  path: str | os.PathLike, *, scratch: pathlib.Path, arch: str | None = None
) -> Images:
  """Opens embeddings of images that pairs are compared with.

  Args:
    path: A `.npy` file, an `.npz` file, or a folder of one of the layouts of
      `open_shards`, here or in a bucket, which need not have texts and tables.
      Of what `nuclr embed` wrote, each image counts once.
    scratch: A folder for arrays that are compressed.
    arch: Which arrays of DataComp's files, as in `open_shards`; files of other
      layouts ignore it.

  Raises:
    ValueError: If a file is missing or damaged, or holds no images.
  """
  place = files.remote.fetch(path).expanduser()
  if not place.exists():
    raise ValueError(f"--target={path} does not exist")
  below = folders.below(place) if place.is_dir() else []
  if (place / embeddings.ARRAYS.image).exists():
    files.check_digests(place, embeddings.ARRAYS.image)
    paths = [place / embeddings.ARRAYS.image]
    parts = [open_npy(paths[0])]
  elif place.suffix == ".npy" and not below:
    paths, parts = [place], [open_npy(place)]
  elif place.suffix == ".npz" and not below:
    paths, parts = [place], [_in_archive(place, scratch, arch)]
  else:
    archives, some = either_layout(below)
    name = f"{arch or ARCH}{ENDS.image}"
    parts = [open_members(x, [name], scratch)[0] for x in archives]
    paths = archives
    if not archives:
      paths = numbered.images(some)
      parts = [open_npy(x) for x in paths]
  if not parts:
    about = folders.about(place, below, "target")
    raise ValueError(f"{EXPECTED}; got {path}{about}")
  rows = Rows(parts)
  if not len(rows):
    raise ValueError(f"{paths[0]} has no rows; give one or more images")
  return Images(rows, paths)


def _in_archive(
  path: pathlib.Path, scratch: pathlib.Path, arch: str | None
) -> Part:
  """Finds the images of an .npz file, in the array that its layout has."""
  known, image = names_of_members(path), Sides._fields[0]
  own = f"{arch or ARCH}{ENDS.image}"
  if arch is None and {own, image} <= set(known):
    raise ValueError(
      f"{path} has {image} and {own}, and either may be the target; leave one "
      "of them out"
    )
  return open_members(path, [own if own in known else image], scratch)[0]
