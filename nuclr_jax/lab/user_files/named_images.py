"""Images that tables name, by path or by URL."""

from collections.abc import Sequence
import os
import pathlib
import re
import shlex
import unicodedata
import urllib.parse

from nuclr_jax.lab.data.images import ENDINGS
from nuclr_jax.lab.user_files.columns import (
  CAPTION_COLUMNS,
  choose_column,
  numbered,
  plain,
)

MOST_LOOKED_AT = 100  # lines that may be those of a table
FORMATS = (".csv", ".tsv", ".json", ".parquet")  # that img2dataset reads
# A scheme, which is longer than the letter of a drive of Windows.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# A cell that names an image, at the beginning of a line.
_IMAGE_CELL = re.compile(
  rf"""["']?[^\s,;|"']+({"|".join(map(re.escape, ENDINGS))})["']?[,;|\t#]""",
  re.IGNORECASE,
)
_URL_NAME = re.compile(r"(.*_)?(url|uri|link)s?")


def is_url(text: str) -> bool:
  r"""Returns whether a text is the address of a photo, not the path of a file.

  Example:
    >>> is_url("https://a.b/0.jpg"), is_url("s3://a/0.jpg"), is_url("C:\\0.jpg")
    (True, True, False)
  """
  return _URL.match(text) is not None and not text.startswith("file://")


def is_of_images(lines: Sequence[str]) -> bool:
  r"""Returns whether lines are those of a table, by the images that they name.

  Args:
    lines: The lines of a text file.

  Example:
    >>> is_of_images(["image,caption", "0.jpg,a dog", "1.JPG#0\ta cat"])
    True
    >>> is_of_images(["a dog", "a file called dog.jpg"])
    False
  """
  some = lines[:MOST_LOOKED_AT]
  return 2 * sum(map(bool, map(_IMAGE_CELL.match, some))) > len(some)


def local_path(folder: str, name: str) -> str:
  r"""Returns the path of a file that a table names.

  Args:
    folder: The folder that paths are relative to.
    name: The path. One that Windows wrote may have "\" in place of "/", and
      accents may be encoded in another way than on the disk, as on a Mac.

  Example:
    >>> _ = (tmp_path / "0.jpg").write_bytes(b"")
    >>> local_path(str(tmp_path), ".\\0.jpg") == f"{tmp_path}/./0.jpg"
    True
    >>> local_path("/a", "file:///b/my%20dog.jpg")
    '/b/my dog.jpg'
  """
  if name.startswith("file:/"):  # Spark writes one slash, and no %20
    name = re.sub("^file:(//)?", "", name)
    name = name if os.path.exists(name) else urllib.parse.unquote(name)
  path = os.path.join(folder, name)
  if "\\" in name and not os.path.exists(path):
    name = name.replace("\\", "/")
    path = os.path.join(folder, name)
  if not name.isascii() and not os.path.exists(path):
    path = _in_other_form(folder, name) or path
  return path


def _in_other_form(path: str, name: str) -> str | None:
  """Finds a file in a folder, each part of whose name may be NFC or NFD."""
  for part in pathlib.PurePath(name).parts:
    forms = (part, *(unicodedata.normalize(x, part) for x in ("NFC", "NFD")))
    found = (os.path.join(path, x) for x in forms)
    path = next(filter(os.path.exists, found), None)
    if path is None:  # so that no forged name is looked for for long
      return None
  return path


def url_column(header: Sequence[str]) -> str | None:
  """Returns the column that is called like one of links, if there is one.

  Example:
    >>> url_column(["page_url", "photo_image_url"]), url_column(["curl"])
    ('photo_image_url', None)
  """
  found = [x for x in header if _URL_NAME.fullmatch(plain(x))]
  of_images = [x for x in found if re.search("image|img", plain(x))]
  return next(iter([*of_images, *found]), None)


def url_error(
  path: str | os.PathLike,
  header: Sequence[str] = (),
  column: str | None = None,
  example: str = "",
) -> ValueError:
  """Makes the error for a table of links: it says how to download the photos.

  Args:
    path: The table.
    header: Its columns; () = it has none.
    column: The column of links, if it is known.
    example: A link.
  """
  such = f", such as {example[:80]}" if example else ""
  if example and not example.lower().startswith("http"):
    return ValueError(
      f"{path} names images by URL{such}. Copy them to this machine first, and "
      "write their paths into the table"
    )
  kind = os.path.splitext(path)[1].lower()
  if header and kind not in FORMATS:
    return ValueError(
      f"{path} names images by URL{such}. img2dataset can download them, once "
      "the table is a Parquet or CSV file, for instance by "
      "pandas.read_json(..., lines=True).to_parquet(...)"
    )
  flags = f"--input_format={kind[1:]}" if kind in FORMATS else ""
  try:
    caption = choose_column(path, header, None, CAPTION_COLUMNS, "")
  except ValueError:
    caption = next(iter(numbered(header)), "COLUMN")
  if header:
    flags += f" --url_col={shlex.quote(column or 'COLUMN')}"
    flags += f" --caption_col={shlex.quote(caption)}"
  more = "" if header else "\n(make a table with a header of them first)"
  if header and not example:
    more = (
      ". If the photos are here already, --image_column=NAME names the column "
      "of their paths"
    )
  return ValueError(
    f"{path} names images by URL{such}. Download them first, for instance with"
    f"\n  img2dataset --url_list={shlex.quote(os.fspath(path))} {flags} "
    "--output_format=webdataset --output_folder=FOLDER\n"
    f"then give --input='FOLDER/*.tar'{more}"
  )
