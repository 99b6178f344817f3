"""Which columns of a table hold images and captions, and what they name.

Columns are found by their usual names, in capitals or not. A caption may be in
several columns, `caption_0` to `caption_4`, and in a field of a struct, which
is called `COLUMN/FIELD`.
"""

import ast
from collections.abc import Mapping, Sequence
import logging
import os
import re
import shlex
from typing import Any

from nuclr_jax.lab.data.captions import TXT, captions_of
from nuclr_jax.lab.data.images import ENDINGS

IMAGE_COLUMNS = (
  "filepath image file file_name path filename image_path image_name "
  "image_file img_path img photo"
).split()
WEAK = ["sentence", "description", "comment"]  # may be about something else
CAPTION_COLUMNS = [
  *("caption", "title", "text", "captions", TXT, "sentences"),
  *WEAK,
]
# Those that are numbered where an image has several captions.
NUMBERED = "caption title text captions sentence description comment".split()
# Of questions and answers in turn, as LLaVA's data have them.
TALKS = ("conversations", "conversation", "messages")
MOST_NAMED = 8  # columns in a message
# Before the number of a column whose name repeats: of Polars, of R and pandas.
_BEFORE_NUMBER = r"(?:_duplicated_|[_.]{0,3})"

log = logging.getLogger(__name__)


def plain(name: str) -> str:
  """Returns the name of a column in small letters, words joined by "_".

  Example:
    >>> plain("Image Path"), plain("file-name")
    ('image_path', 'file_name')
  """
  return re.sub(r"[\s-]+", "_", str(name).strip().lower())


def choose_column(
  path: str | os.PathLike,
  header: Sequence[str],
  name: str | None,
  usual: Sequence[str],
  flag: str,
) -> str:
  """Chooses the column that the user names, or the first usual one.

  Args:
    path: The table, for messages.
    header: The columns of the table.
    name: The column that the user names, if any.
    usual: Usual names, likeliest first.
    flag: The flag that names the column, for messages.

  Raises:
    ValueError: If there is no such column, or if several have the same name but
      for capitals; the message names the flag to give.

  Example:
    >>> usual = ["text", "title"]
    >>> choose_column("t.csv", ["id", "Title"], None, usual, "caption_column")
    'Title'
  """
  if name is not None:
    if name not in header:
      raise ValueError(f"{path} has no column {name}; it has {list(header)}")
    return name
  for candidate in usual:
    if candidate in header:
      return candidate
    alike = [x for x in header if plain(x) == candidate]
    if len(alike) > 1:
      raise ValueError(
        f"{path} has the columns {', '.join(alike)}; name one with "
        f"--{flag}=NAME"
      )
    if alike:
      return alike[0]
  raise ValueError(
    f"{path} has the columns {list(header)}, none of {', '.join(usual)}; name "
    f"it with --{flag}=NAME"
  )


def choose_image(
  path: str | os.PathLike, header: Sequence[str], name: str | None
) -> str:
  """Chooses the column of the paths of images.

  Hugging Face's `imagefolder` also calls it `photo_file_name`, say.

  Args:
    path: The table, for messages.
    header: The columns of the table.
    name: The column that the user names, if any.

  Raises:
    ValueError: If there is no such column, or if several may be the one.

  Example:
    >>> choose_image("t.csv", ["text", "photo_file_name"], None)
    'photo_file_name'
  """
  usual = [x for x in header if plain(x) in IMAGE_COLUMNS]
  named = [x for x in header if plain(x).endswith("_file_name")]
  if name is None and not usual and len(named) > 1:
    raise ValueError(
      f"{path} has images in the columns {', '.join(named)}; name one of them "
      "with --image_column=NAME"
    )
  if name is None and not usual and named:
    return named[0]
  if name is None and not usual and "file_names" in map(plain, header):
    raise ValueError(
      f"{path} has several images in a row, in the column file_names; a row of "
      "several images must become several rows"
    )
  chosen = choose_column(path, header, name, IMAGE_COLUMNS, "image_column")
  if name is None and not _in_parts(header):
    warn_of_images(path, chosen, usual)
  return chosen


def warn_of_images(
  path: str | os.PathLike, chosen: str, found: Sequence[str]
) -> None:
  """Warns of columns that may hold further images, and are not read.

  Args:
    path: The table.
    chosen: The column that is read.
    found: The columns that may hold images.
  """
  if others := [x for x in found if x != chosen]:
    log.warning(
      "%s: images are read from the column %s, not from %s; "
      "--image_column=NAME chooses",
      path,
      chosen,
      ", ".join(others[:MOST_NAMED]),
    )


def path_in(row: Mapping[str, Any], column: str) -> Any:
  """Returns the path of a row's image, or what stands in its place.

  Karpathy's rows have it in two columns, `filepath` for the folder and
  `filename`; those of `datasets` may have it in a struct.

  Args:
    row: The row.
    column: The column of images.

  Example:
    >>> path_in({"filepath": "val2014", "filename": "0.jpg"}, "filepath")
    'val2014/0.jpg'
    >>> path_in({"filepath": "a/0.jpg", "filename": "0.jpg"}, "filepath")
    'a/0.jpg'
    >>> path_in({"image": {"bytes": None, "path": "0.jpg"}}, "image")
    '0.jpg'
  """
  value = row.get(column)
  if isinstance(value, str) and value.startswith("{"):
    value = _printed(value)
  if isinstance(value, Mapping):
    if value.get("bytes"):
      return bytes(1)  # no path: the table has the image itself
    return value.get("path") or value.get("file_name")
  if column == "filepath" and _in_parts(row) and isinstance(value, str):
    name = row["filename"]
    whole = value.lower().endswith(ENDINGS)
    if isinstance(name, str) and name and not whole:
      return os.path.join(value, name)
  return value


def _printed(text: str) -> Any:
  """Returns the struct that `to_csv` of `datasets` has printed, or the text."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, RecursionError, MemoryError):
    return text
  is_struct = isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}
  return value if is_struct else text


def _in_parts(header: Mapping | Sequence[str]) -> bool:
  return "filepath" in header and "filename" in header


def choose_captions(
  path: str | os.PathLike,
  header: Sequence[str],
  name: str | None,
  image: str = "",
) -> tuple[str, ...]:
  """Chooses the column of captions, or the columns.

  Args:
    path: The table, for messages.
    header: The columns of the table.
    name: The column that the user names, if any: also COLUMN/FIELD, and several
      separated by commas.
    image: The column of images.

  Raises:
    ValueError: If there is no such column, or it is a field of turns of a talk
      about the image, or if captions and images are both numbered, so that they
      may be of each other's images; the message says what to do.

  Example:
    >>> choose_captions("t.csv", ["image", "caption_1", "caption_0"], None)
    ('caption_0', 'caption_1')
    >>> choose_captions("t.csv", ["image", "short", "long"], "short,long")
    ('short', 'long')
  """
  if name is not None:
    names = [name] if name in header else [x.strip() for x in name.split(",")]
    for x in names:
      column, is_field, _ = x.partition("/")
      if x not in header and column not in header:
        raise ValueError(f"{path} has no column {x}; it has {list(header)}")
      if x not in header and is_field and plain(column) in TALKS:
        raise ValueError(
          f"{path}: {x} has what is asked about an image as well as the "
          "answers; write the answers that describe it into a column of their "
          "own"
        )
    chosen = tuple(dict.fromkeys(names))
  else:
    chosen = _usual_captions(path, header)
    others = numbered_as(header, image)
    if len(chosen) > 1 and others:
      raise ValueError(
        f"{path} has several images in a row, in the columns {image}, "
        f"{', '.join(others[:MOST_NAMED])}, and captions in "
        f"{', '.join(chosen[:MOST_NAMED])}: name those of {image} with "
        "--caption_column=NAME, and read the file once for each image"
      )
  _warn_of_others(path, header, chosen, chosen=name is not None)
  return chosen


def _usual_captions(path, header: Sequence[str]) -> tuple[str, ...]:
  """Chooses the likeliest columns: caption, caption_0 and so on, or others."""
  names, several = set(map(plain, header)), numbered(header)
  of_caption = several and plain(several[0]).startswith("caption")
  usual = [x for x in CAPTION_COLUMNS if x in names]
  sure = [x for x in usual if x not in WEAK]
  if several and (not sure or (of_caption and "caption" not in names)):
    log.info("%s: captions are in the columns %s", path, ", ".join(several))
    return several
  if usual:
    how = CAPTION_COLUMNS, "caption_column"
    return (choose_column(path, header, None, *how),)
  raise ValueError(
    f"{path} has the columns {list(header)}, none of "
    f"{', '.join(CAPTION_COLUMNS)}; name it with --caption_column=NAME"
  )


def numbered(header: Sequence[str]) -> tuple[str, ...]:
  """Finds columns of captions whose names differ by a number.

  Args:
    header: The columns of the table.

  Example:
    >>> numbered(["image", "Caption 10", "Caption 2", "caption_source"])
    ('Caption 2', 'Caption 10')
  """
  for stem in NUMBERED:
    alike, found = rf"{stem}{_BEFORE_NUMBER}(\d{{1,3}})", {}
    for name in header:
      if match := re.fullmatch(alike, plain(name)):
        found[name] = int(match[1])
    if found:
      return tuple(sorted(found, key=found.get))
  return ()


def numbered_as(header: Sequence[str], name: str) -> tuple[str, ...]:
  """Finds the other columns whose names differ from one by their number.

  Args:
    header: The columns of the table.
    name: The name of the one. Without a number at its end, there is no other.

  Example:
    >>> numbered_as(["image_0", "image_1", "image", "caption_1"], "image_0")
    ('image_1',)
  """
  end = rf"{_BEFORE_NUMBER}\d{{1,3}}"
  stem = re.sub(f"{end}$", "", plain(name))
  if stem == plain(name):
    return ()
  alike = re.compile(f"{re.escape(stem)}{end}")
  return tuple(x for x in header if x != name and alike.fullmatch(plain(x)))


def _warn_of_others(path, header, captions, *, chosen: bool) -> None:
  """Warns of columns that look like further captions, and are not read."""
  stem = re.sub(rf"{_BEFORE_NUMBER}\d+$", "", plain(captions[0]))
  alike = re.compile(rf"{re.escape(stem)}({_BEFORE_NUMBER}\d+)?")
  others = [
    x for x in header if x not in captions and alike.fullmatch(plain(x))
  ]
  if not chosen:
    more = [x for x in header if plain(x) in CAPTION_COLUMNS]
    seen = (*captions, *others)
    others += [x for x in (*more, *numbered(header)) if x not in seen]
  if others:
    together = ",".join([*captions, *others[:MOST_NAMED]])
    log.warning(
      "%s: captions are read from the column %s alone, not from %s; "
      "--caption_column=NAME chooses, and --caption_column=%s reads all",
      path,
      ", ".join(captions),
      ", ".join(others[:MOST_NAMED]),
      shlex.quote(together),
    )


def captions_in(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
  """Returns the captions of a row, of one column or several.

  Of several columns, those that hold nothing are no captions: an image may have
  fewer than others.

  Args:
    row: The row.
    columns: The columns, as `choose_captions` returns them.

  Example:
    >>> row = {"caption_0": "a dog", "caption_1": None}
    >>> captions_in(row, ["caption_0", "caption_1"])
    ['a dog']
  """
  if len(columns) == 1:
    return captions_of(row, columns[0], is_column=True)
  return [
    x
    for name in columns
    if not _is_blank(row.get(name if name in row else name.split("/")[0]))
    for x in captions_of(row, name, is_column=True)
  ]


def _is_blank(value: Any) -> bool:
  if isinstance(value, str | bytes):
    return not value.strip()
  return value is None or (isinstance(value, float) and value != value)
