"""Members of tar files: the files in a tar, and where their contents are.

Tars are not trusted. Python's tarfile follows a negative size back to where it
has been, a number of 200,000 digits keeps it busy for hours, each extended
header is one call deeper, and a damaged header passes for the end. Here every
step leads forward, and headers have a largest size, so that the time is in
proportion to the bytes of the file.
"""

from collections.abc import Iterator
import io
import os
import re
import tarfile
from typing import Any, NamedTuple

from nuclr_jax.lab.data.images import ENDINGS
from nuclr_jax.lab.files import is_hidden

BLOCK = 512  # bytes in a block of a tar file
MAX_HEADER = 2**20  # bytes of a name, or of an extended header
MAX_ZEROS = 2**26  # bytes after an end in which another tar is looked for
CHUNK = 2**20  # bytes of these that are read at a time
# What an end says.
END = "end"  # of a tar, which is as it should be
DAMAGED = "damaged file"  # the tar, or the remainder of it
COMPRESSED = "compressed tar, which is not read; decompress it"
AFTER_END = "what follows the end of the tar, which is not a tar"
# Flaws of a member.
LINK = "link in a tar, which is not followed"  # in place of a picture
SPARSE = "sparse file in a tar, which is not read; store it without --sparse"
NO_FILE = "no regular file, but a device, a pipe or the like in a tar"
_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_FOLDERS = (tarfile.DIRTYPE, b"D", b"V")  # and labels, which have no content
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_TEXT_OF_FILE = re.compile(
  rf"({'|'.join(map(re.escape, ENDINGS))})(\.(txt|json))$", re.IGNORECASE
)


class Member(NamedTuple):
  """A file in a tar; or an end of it, which has no key.

  The name of an end is `END`, or the reason why nothing more is read. Members
  after an end are of another tar, which was written behind the first one.
  """

  key: str | None  # see `first_key`
  name: str
  start: int  # of its header, in bytes
  place: int = 0  # of its content
  size: int = 0
  flaw: str = ""  # why its content cannot be read


def first_key(name: str) -> str:
  """Returns a name up to the first dot of its last part.

  Example:
    >>> first_key("./v1.0/0001.seg.png")
    'v1.0/0001'
  """
  return split_name(name)[0]


def split_name(name: str, *, last: bool = False) -> tuple[str, str]:
  """Splits a name at the first dot of its last part, or at the last one.

  Example:
    >>> split_name("v1.0/0001.seg.PNG"), split_name("1.2.jpg", last=True)
    (('v1.0/0001', 'seg.png'), ('1.2', 'jpg'))
  """
  folder, base = os.path.split(name.removeprefix("./"))
  base = _TEXT_OF_FILE.sub(r"\2", base)
  stem, _, ending = base.rpartition(".") if last else base.partition(".")
  return os.path.join(folder, stem), ending.lower()


def members_of(file: io.BufferedIOBase) -> Iterator[Member]:
  """Finds the files of a tar, from where it is, and its end.

  A file may hold several tars, one after another, as `cat` joins them.

  Args:
    file: The tar, at the header of a member.

  Yields:
    Its files, those that cannot be read among them, and a last member that has
    no key; so has one between two tars. Directories and hidden files are left
    out.

  Raises:
    OSError: If it cannot be read.
  """
  start = file.tell()
  length = file.seek(0, os.SEEK_END)
  common, joined = {}, False  # joined: another tar should begin here
  while True:
    try:
      member, following = _read_member(file, start, length, common)
    except tarfile.EOFHeaderError:
      beyond = _after_zeros(file, start, length)
      if beyond == length:
        yield Member(None, END, start)
        return
      if beyond is None:
        yield Member(None, AFTER_END, start)
        return
      end, start, common, joined = start, beyond, {}, True
      continue
    except tarfile.HeaderError:
      yield Member(None, _why(file, start, joined), end if joined else start)
      return
    if joined:
      yield Member(None, END, end)
      joined = False
    if member is not None:
      yield member
    if following > length:  # its content is cut off
      yield Member(None, DAMAGED, length)
      return
    start = following


def _read_member(
  file: io.BufferedIOBase, start: int, length: int, common: dict[str, Any]
) -> tuple[Member | None, int]:
  """Reads the headers of a file.

  Args:
    file: The tar.
    start: Where they begin.
    length: The bytes of the tar.
    common: What global headers have said of all files; changed by others.

  Returns:
    The file, or None if it is of no interest; and where the next one begins.

  Raises:
    tarfile.EOFHeaderError: If there is a block of zeros in their place.
    tarfile.HeaderError: If they are damaged.
  """
  at, said = start, {}
  while True:
    file.seek(at)
    block = file.read(BLOCK)
    try:
      info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError as error:
      if at > start:
        raise tarfile.InvalidHeaderError("no file after its headers") from error
      raise
    if block[257:265] == b"ustar  \0":  # GNU's: no prefix, but times
      info.name = _text(block[:100])
    if info.size < 0:
      raise tarfile.InvalidHeaderError("negative size")
    at += BLOCK
    if info.type in _LONG:
      name = _text(_header(file, info.size))
      said |= {"path": name} if info.type == _LONG[0] else {}
    elif info.type in _EXTENDED:
      said |= _records(_header(file, info.size))
    elif info.type == tarfile.XGLTYPE:
      common |= _records(_header(file, info.size))
    else:
      break
    at += _in_blocks(info.size)
  said = common | said
  if info.type == tarfile.GNUTYPE_SPARSE:
    at = _after_sparse_map(file, block, at)
  size = said.get("size", info.size)
  name = said.get("sparse path") or said.get("path") or info.name
  is_regular, is_link = info.isreg(), info.issym() or info.islnk()
  has_content = is_regular or info.type not in tarfile.SUPPORTED_TYPES
  following = at + _in_blocks(size) if has_content else at
  if info.type in _FOLDERS or is_hidden(name):
    return None, following
  flaw = ""
  if is_link:
    flaw = LINK
  elif info.type == tarfile.GNUTYPE_SPARSE or "sparse" in said:
    flaw = SPARSE
  elif not is_regular:
    flaw = NO_FILE
  elif at + size > length:
    flaw = DAMAGED
  return Member(first_key(name), name, start, at, size, flaw), following


def _header(file: io.BufferedIOBase, size: int) -> bytes:
  """Reads the content of an extended header."""
  data = file.read(size) if size <= MAX_HEADER else b""
  if len(data) < size:
    raise tarfile.InvalidHeaderError("too large a header")
  return data


def _records(data: bytes) -> dict[str, Any]:
  r"""Parses an extended header: records LENGTH KEY=VALUE\n.

  Example:
    >>> _records(b"18 path=Track.jpg\n11 size=42\n")
    {'path': 'Track.jpg', 'size': 42}
  """
  said, at = {}, 0
  data = data.rstrip(b"\0")
  while at < len(data):
    space = data.find(b" ", at, at + 9)
    digits = data[at:space]
    if space < 0 or not digits.isdigit():
      raise tarfile.InvalidHeaderError("no length of a record")
    end = at + int(digits)
    key, equals, value = data[space + 1 : end].partition(b"=")
    if not equals or not value.endswith(b"\n") or end > len(data):
      raise tarfile.InvalidHeaderError("no record")
    value, at = value[:-1], end
    if key == b"path":
      said["path"] = _text(value).rstrip("/")
    elif key == b"GNU.sparse.name":
      said["sparse path"] = _text(value)
    elif key == b"size" and value:
      if not value.isdigit() or len(value) > 20:
        raise tarfile.InvalidHeaderError("no size")
      said["size"] = int(value)
    if key.startswith(b"GNU.sparse."):
      said["sparse"] = True
  return said


def _after_sparse_map(file: io.BufferedIOBase, block: bytes, at: int) -> int:
  """Returns where the blocks end in which a sparse file's map goes on."""
  goes_on = block[482]
  while goes_on:
    block = file.read(BLOCK)
    if len(block) < BLOCK:
      raise tarfile.TruncatedHeaderError("cut map")
    at, goes_on = at + BLOCK, block[504]
  return at


def _after_zeros(
  file: io.BufferedIOBase, start: int, length: int
) -> int | None:
  """Finds the first block that is not zero.

  Returns:
    Where it is; the length of the file if there is none, and None if there is
    none within `MAX_ZEROS`.
  """
  file.seek(start)
  for at in range(start, min(length, start + MAX_ZEROS), CHUNK):
    chunk = file.read(CHUNK)
    if rest := chunk.lstrip(b"\0"):
      zeros = len(chunk) - len(rest)
      return at + zeros - zeros % BLOCK
  return length if length <= start + MAX_ZEROS else None


def _why(file: io.BufferedIOBase, start: int, joined: bool) -> str:
  """Returns what is wrong where no header of a file is."""
  if joined:
    return AFTER_END
  file.seek(start)
  is_packed = start == 0 and file.read(BLOCK).startswith(_MAGIC)
  return COMPRESSED if is_packed else DAMAGED


def _in_blocks(size: int) -> int:
  """Rounds a size up to whole blocks."""
  return -(-size // BLOCK) * BLOCK


def _text(data: bytes) -> str:
  return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
