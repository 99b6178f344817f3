"""Whether a copy has arrived as it was sent: its size, and its checksum.

Networks and proxies cut answers off and change them. A copy is compared with
what a bucket states of the file: its size; MD5, which is the ETag of a file
that S3 got in one part, and the md5Hash of Google; and Google's CRC32C.
"""

import base64
from collections.abc import Callable, Mapping
import hashlib
import pathlib
import re
from typing import Any

BLOCK = 2**22  # bytes that are read at a time


def difference(
  info: Mapping[str, Any],
  here: pathlib.Path,
  *,
  etag_is_md5: Callable[[], bool] = lambda: True,
) -> str:
  """Says how a file on this machine differs from what a bucket states of it.

  Args:
    info: What fsspec returns about the file in the bucket.
    here: The file on this machine.
    etag_is_md5: Is called if an ETag looks like MD5 and is another one: that
      of a file which S3 encrypts with another key than its own is not an MD5.

  Returns:
    The difference, or "" if there is none.

  Example:
    >>> _ = (tmp_path / "x").write_bytes(b"hello")
    >>> etag = '"5d41402abc4b2a76b9719d911017c592"'
    >>> difference({"size": 5, "ETag": etag}, tmp_path / "x")
    ''
    >>> difference({"size": 6, "ETag": etag}, tmp_path / "x")
    'it has 5 bytes here and 6 there'
  """
  if info.get("contentEncoding"):  # of Google, may be unpacked on its way
    return ""
  size = here.stat().st_size
  if size != int(info["size"]):
    return f"it has {size} bytes here and {info['size']} there"
  name, expected = stated(info)
  if not name:
    return ""
  found = _digest(here, name)
  if found == expected or ("ETag" in info and not etag_is_md5()):
    return ""
  return f"its {name} is {found.hex()} here and {expected.hex()} there"


def stated(info: Mapping[str, Any]) -> tuple[str, bytes]:
  """Returns the checksum that a bucket states: its name and value, or "", b"".

  Example:
    >>> stated({"ETag": '"5d41402abc4b2a76b9719d911017c592-2"'})
    ('', b'')
  """
  if text := info.get("md5Hash"):
    return "MD5", base64.b64decode(text)
  etag = str(info.get("ETag", "")).strip('"')
  if re.fullmatch(r"[0-9a-f]{32}", etag):
    return "MD5", bytes.fromhex(etag)
  if text := info.get("crc32c"):
    return "CRC32C", base64.b64decode(text)
  return "", b""


def crc32c(data: bytes) -> int:
  """Returns the CRC-32C of bytes, which is faster than the disk.

  Example:
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
  """
  # Imported here, since training on data in memory does without it.
  import google_crc32c

  return google_crc32c.value(data)


def _digest(path: pathlib.Path, name: str) -> bytes:
  if name == "MD5":
    digest = hashlib.md5(usedforsecurity=False)
  else:
    import google_crc32c

    digest = google_crc32c.Checksum()
  with path.open("rb") as file:
    while block := file.read(BLOCK):
      digest.update(block)
  return digest.digest()
