"""Files in buckets: gs:// and s3://.

fsspec speaks the protocols, with gcsfs for gs:// and s3fs for s3://, and finds
the credentials where these libraries look for them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import errno
import functools
import hashlib
import io
import logging
import os
import pathlib
import re
import threading
from typing import Any

from nuclr_jax.lab import progress
from nuclr_jax.lab.files import checksum
from nuclr_jax.lab.files.local import as_pattern

AHEAD = 2**23  # bytes that are read at a time from one end to the other
TRIES = 3  # to copy a file that does not arrive as it was sent
LIBRARIES = {"gs": "gcsfs", "s3": "s3fs", "memory": "fsspec"}  # by scheme
PATIENCE = 30.0  # seconds to find credentials, and again for a first answer
NAME = r"[A-Za-z0-9_.-]+"  # of a bucket
BUCKETS = "NUCLR_BUCKETS"  # environment variable
FULL = (errno.ENOSPC, errno.EDQUOT)  # what is wrong here, not in the bucket

log = logging.getLogger(__name__)


def is_remote(path: str | os.PathLike) -> bool:
  """Returns whether a path is in a bucket, which begins with a scheme.

  Example:
    >>> is_remote("gs://bucket/photos"), is_remote("/data/photos")
    (True, False)
  """
  return "://" in os.fspath(path)


def absolute(path: str | os.PathLike) -> str | pathlib.Path:
  """Returns a path in a bucket as it is, and a local one in full.

  Example:
    >>> absolute("/data/photos"), absolute("s3://bucket/photos")
    (PosixPath('/data/photos'), 's3://bucket/photos')
  """
  if is_remote(path):
    return os.fspath(path)
  return pathlib.Path(path).expanduser().absolute()


def buckets_in(*texts: str | os.PathLike | None) -> set[str]:
  """Returns the buckets that texts name, alone or in lists.

  Example:
    >>> sorted(buckets_in("pets=gs://zoo/cats:val,s3://lake", "/data", None))
    ['gs://zoo', 's3://lake']
  """
  pattern = rf"(?:{'|'.join(LIBRARIES)})://{NAME}"
  found = (re.findall(pattern, os.fspath(text)) for text in texts if text)
  return set().union(*found)


def check_known(
  text: str,
  *,
  by: str | os.PathLike,
  beside: Iterable[str | os.PathLike | None] = (),
) -> None:
  """Raises ValueError if a file names a bucket that the user does not name.

  A bucket is opened with the credentials of the user, whose word it takes: a
  path that was given, or the environment variable `NUCLR_BUCKETS`.

  Args:
    text: What the file says.
    by: The file.
    beside: The paths that the user gave, or None.

  Example:
    >>> check_known("s3://lake/a", by="config.json", beside=["s3://lake/b"])
    >>> check_known("s3://lake", by="config.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: config.json names the bucket s3://lake, and this command does...
  """
  known = buckets_in(*beside, os.environ.get(BUCKETS))
  if unknown := sorted(buckets_in(text) - known):
    raise ValueError(
      f"{os.fspath(by)} names the bucket {unknown[0]}, and this command does "
      "not; files open no bucket with your credentials that you have not named "
      f"yourself. If you trust this one, set {BUCKETS}={','.join(unknown)}"
    )


class Unreached(OSError):
  """A bucket could not be reached; another attempt may succeed."""


def exists(path: str | os.PathLike) -> bool:
  """Returns whether there is a file or folder at a path, here or in a bucket.

  Raises:
    Unreached: If the bucket cannot be reached.
  """
  if not is_remote(path):
    return os.path.exists(path)
  system, name = open_system(path)
  with reaching(path):
    system.invalidate_cache()
    return system.exists(name)


def names_in(path: str | os.PathLike) -> dict[str, str]:
  """Lists the files of a folder in a bucket, and below.

  Args:
    path: The folder.

  Returns:
    Names relative to the folder, with a text for each that changes when the
    file does; {} if there is no such folder.
  """
  return {name: stamp_of(info) for name, info in infos_in(path).items()}


def infos_in(path: str | os.PathLike) -> dict[str, Mapping[str, Any]]:
  """Returns what fsspec says about each file of a folder, by its name there.

  The marks that consoles make for a folder, empty and with names that end in
  "/", are not files.
  """
  system, name = open_system(path)
  with reaching(path):
    system.invalidate_cache()
    found = system.find(name, detail=True)
  start = len(name.rstrip("/")) + 1
  return {
    place[start:]: info
    for place, info in sorted(found.items())
    if len(place) > start and (info["size"] or not place.endswith("/"))
  }


def find(pattern: str) -> dict[str, str]:
  """Lists files in a bucket: one, those of a folder, or those of a pattern.

  Args:
    pattern: A path; `*`, `?` and `[...]` stand for parts of names, and `**` for
      any folders, except in a part of the path that exists as it is.

  Returns:
    Their paths, with a text for each that changes when the file does.
  """
  system, name = open_system(pattern)
  with reaching(pattern):
    system.invalidate_cache()
    found = system.find(name, detail=True)
    if not found and re.search(r"[*?\[]", name):
      found = system.glob(as_pattern(name, system.exists), detail=True)
      if "[" in name and found:
        log.warning(
          "%s does not exist, and is read as a pattern: it stands for %d "
          "files, such as %s",
          pattern,
          len(found),
          min(found),
        )
  start = pattern.partition("://")[0]
  return {
    f"{start}://{place.lstrip('/')}": stamp_of(info)
    for place, info in sorted(found.items())
    if info["type"] == "file"
  }


def read_range(path: str, start: int, size: int) -> bytes:
  """Reads bytes of a file in a bucket, without the rest of it.

  Args:
    path: The file.
    start: The first byte.
    size: The number of bytes; fewer are returned where the file ends.

  Raises:
    FileNotFoundError: If there is no such file.
    Unreached: If the bucket cannot be reached.

  Example:
    >>> _ = (tmp_path / "x").write_bytes(b"0123456789")
    >>> upload(tmp_path / "x", "memory://bucket/x")
    >>> read_range("memory://bucket/x", 2, 3)
    b'234'
  """
  system, name = open_system(path)
  with reaching(path):
    try:
      content = system.cat_file(name, start=start, end=start + size)
    except OSError as error:  # of S3, if the file ends before the first byte
      if error.errno != errno.EINVAL or system.info(name)["size"] > start:
        raise
      return b""
    if len(content) > size:
      raise OSError(f"{len(content)} bytes came in answer to {size}")
    return content


def open_file(path: str) -> io.BufferedIOBase:
  """Opens a file in a bucket, to be read from one end to the other.

  Args:
    path: The file.

  Raises:
    FileNotFoundError: If there is no such file.
    Unreached: If the bucket cannot be reached, also while the file is read.

  Example:
    >>> _ = (tmp_path / "x").write_bytes(b"0123456789")
    >>> upload(tmp_path / "x", "memory://bucket/x")
    >>> with open_file("memory://bucket/x") as file:
    ...   file.seek(3), file.read(2)
    (3, b'34')
  """
  system, name = open_system(path)
  with reaching(path):
    file = system.open(name, "rb", block_size=AHEAD, cache_type="readahead")
  return _Reached(file, path)


class _Reached(io.BufferedIOBase):
  """A file whose errors are those of this module."""

  def __init__(self, file, path: str):
    super().__init__()
    self._file, self._path = file, path

  def read(self, size: int = -1) -> bytes:
    with reaching(self._path):
      left = self._file.size - self._file.tell()
      wanted = left if size < 0 else max(0, min(size, left))
      content = self._file.read(size)
      if len(content) < wanted:  # else it would pass for the end of the file
        raise OSError(f"{len(content)} of {wanted} bytes came")
      return content

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    with reaching(self._path):
      return self._file.seek(offset, whence)

  def tell(self) -> int:
    return self._file.tell()

  def close(self) -> None:
    self._file.close()
    super().close()


def download(path: str, here: pathlib.Path) -> None:
  """Copies a file from a bucket; it gets its name when it is complete.

  Args:
    path: The file in the bucket.
    here: The copy; its folder is made if missing.

  Raises:
    FileNotFoundError: If there is no such file.
    Unreached: If the bucket cannot be reached, or what arrives differs again
      and again from what the bucket states, see `checksum`.
  """
  system, name = open_system(path)
  here.parent.mkdir(parents=True, exist_ok=True)
  mark = hashlib.sha256(os.fsencode(here.name)).hexdigest()[:16]
  part = here.with_name(f".{mark}.part")  # no name that is in the bucket, too
  try:
    for _ in range(TRIES):
      with reaching(path):
        info = system.info(name)
        if info["type"] != "file":
          raise FileNotFoundError("it is a folder")
        system.get_file(name, os.fspath(part))
        wrong = not_as_stated(path, info, part)
        if not wrong:
          part.replace(here)
          return
        system.invalidate_cache()
  finally:
    part.unlink(missing_ok=True)
  raise Unreached(
    f"{path} did not arrive as it is in the bucket, {TRIES} times: {wrong}; "
    "try again, and see that nothing on the way changes what is sent"
  )


def not_as_stated(
  path: str, info: Mapping[str, Any], here: pathlib.Path
) -> str:
  """Returns `checksum.difference` for the copy of a file in a bucket.

  Args:
    path: The file in the bucket.
    info: What fsspec returns about it.
    here: The copy.
  """

  def etag_is_md5() -> bool:
    system, name = open_system(path)
    bucket, _, key = name.partition("/")
    with reaching(path):
      head = system.call_s3("head_object", Bucket=bucket, Key=key)
    encrypted = head.get("ServerSideEncryption", "AES256") != "AES256"
    return not encrypted and "SSECustomerAlgorithm" not in head

  return checksum.difference(info, here, etag_is_md5=etag_is_md5)


def upload(here: pathlib.Path, path: str) -> None:
  """Copies a file to a bucket.

  Args:
    here: The file.
    path: Its copy in the bucket.

  Raises:
    FileNotFoundError: If there is no such file.
    Unreached: If the bucket cannot be reached.
  """
  system, name = open_system(path)
  with reaching(path):
    system.put_file(os.fspath(here), name)


def remove(path: str) -> None:
  """Removes a file, or a folder with all that is in it, from a bucket.

  Args:
    path: The file or folder; nothing is done if there is none.

  Raises:
    Unreached: If the bucket cannot be reached.
  """
  system, name = open_system(path)
  with reaching(path), contextlib.suppress(FileNotFoundError):
    system.invalidate_cache()
    for file in system.find(name):  # `rm` would take the name for a pattern
      system.rm_file(file)


def open_system(path: str | os.PathLike) -> tuple[Any, str]:
  """Returns the file system of a path in a bucket, and its name there.

  Raises:
    ValueError: If the path is none, or has parts that lead elsewhere.
    Unreached: If no credentials are found within `PATIENCE` seconds.

  Example:
    >>> open_system("memory://bucket/run/../other")
    Traceback (most recent call last):
    ValueError: memory://bucket/run/../other: a path in a bucket has no part \
"..", and no ".", "//" or "::", nor "?versionId="; write it without them
  """
  import fsspec

  path = os.fspath(path)
  scheme, _, rest = path.partition("://")
  if scheme not in LIBRARIES:
    raise ValueError(
      f"{path}: {scheme}:// cannot be read or written; give a local path, "
      "gs:// or s3://, or mount the storage as a folder"
    )
  if not re.fullmatch(NAME, rest.partition("/")[0]):
    raise ValueError(
      f"{path} names no bucket, such as {scheme}://BUCKET/FOLDER"
    )
  rest = rest.rstrip("/")
  parts = {*rest.split("/")}
  if parts & {"", ".", ".."} or "::" in rest or "?versionId=" in rest:
    raise ValueError(
      f'{path}: a path in a bucket has no part "..", and no ".", "//" or "::", '
      'nor "?versionId="; write it without them'
    )
  # s3fs tries five times, and botocore five times for each of them.
  os.environ.setdefault("AWS_MAX_ATTEMPTS", "2")
  try:
    # Of the scheme alone: in a whole path, :: would mean another file system.
    system, _ = _answer(path, lambda: fsspec.core.url_to_fs(f"{scheme}://"))
    return system, fsspec.core.strip_protocol(path.rstrip("/"))
  except ImportError as error:
    raise ValueError(
      f"{path}: {scheme}:// needs {LIBRARIES[scheme]}; pip install "
      f'"nuclr_jax[{scheme}]"'
    ) from error


def _answer(path: str | os.PathLike, ask: Callable[[], Any]) -> Any:
  """Asks in a thread, which is left behind after `PATIENCE` seconds.

  The libraries retry for minutes: each request several times, and each attempt
  until it times out.
  """
  answers, failures = [], []

  def attempt():
    try:
      answers.append(ask())
    except BaseException as error:
      failures.append(error)

  if os.fspath(path).startswith("memory://"):
    return ask()
  thread = threading.Thread(target=attempt, daemon=True)
  thread.start()
  thread.join(PATIENCE)
  for error in failures:
    raise error
  for answer in answers:
    return answer
  raise Unreached(
    f"{os.fspath(path)} cannot be reached (no answer within {PATIENCE:.0f} "
    "seconds); check the network, the credentials and the name of the bucket"
  )


@functools.lru_cache
def _check_answers(bucket: str, process: int) -> None:
  """Raises an error unless a bucket answers; asked once in a process."""
  del process
  logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs tracebacks
  system, name = open_system(bucket)
  try:
    _answer(bucket, lambda: system.info(name))
  except Unreached:
    raise
  except FileNotFoundError as error:
    if not bucket.startswith("memory://"):  # whose folders need not be made
      raise FileNotFoundError(f"there is no bucket {bucket}") from error
  except Exception:  # an answer, too: what is asked next may be allowed
    log.debug("%s cannot be asked about itself", bucket)


@contextlib.contextmanager
def reaching(path: str | os.PathLike) -> Iterator[None]:
  """Turns what a library raises about a bucket into an `Unreached`."""
  try:
    for bucket in buckets_in(path):
      _check_answers(bucket, os.getpid())
    yield
  except Unreached:
    raise
  except FileNotFoundError as error:
    reason = progress.first_line(error)
    raise FileNotFoundError(
      f"{os.fspath(path)} does not exist ({reason})"
    ) from error
  except Exception as error:  # each library has errors of its own
    if getattr(error, "errno", None) in FULL:
      reason = f"{os.fspath(path)} cannot be copied: {os.strerror(error.errno)}"
      raise OSError(error.errno, reason) from error
    reason = f"{type(error).__name__}: {progress.first_line(error)}"
    raise Unreached(
      f"{os.fspath(path)} cannot be reached ({reason}); check the name of the "
      "bucket and the credentials on this machine"
    ) from error


def stamp_of(info: Mapping[str, Any]) -> str:
  """Returns a text that differs once a file has changed."""
  keys = ("size", "ETag", "etag", "generation", "mtime", "LastModified")
  keys += ("created",)
  facts = {key: str(info[key]) for key in keys if info.get(key) is not None}
  return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
