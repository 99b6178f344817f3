"""Buckets with faults for `chaos`: a server of S3 that fails as it is told.

moto answers; in front of it, `Server` spoils some of the answers: it says 500,
403 or 404, closes the connection, cuts or garbles what it sends, waits, or lets
an object vanish. After every change of a run, one of its checkpoints must be
complete, once one was.
"""

import contextlib
import functools
import hashlib
import logging
import pathlib
import re
import socket
import threading
import time

FAULTS = ("500", "403", "404", "closed", "short", "garbled", "slow", "vanish")
BUCKET = "lake"
ACCOUNT = "123456789012"  # of moto's


class Server:
  """S3 on this machine; `spoil` says which answers go wrong, and how."""

  def __init__(self):
    from moto.moto_server import werkzeug_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    self._app = werkzeug_app.DomainDispatcherApplication(
      werkzeug_app.create_backend_app
    )
    server = make_server(
      "127.0.0.1",
      0,
      self._answer,
      threaded=True,
      request_handler=werkzeug_app.MotoRequestHandler,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    self.url = f"http://127.0.0.1:{server.server_address[1]}"
    self.env = {
      "AWS_ENDPOINT_URL": self.url,
      "AWS_ACCESS_KEY_ID": "key",
      "AWS_SECRET_ACCESS_KEY": "secret",
      "AWS_DEFAULT_REGION": "us-east-1",
      "AWS_MAX_ATTEMPTS": "2",
    }
    self._lock, self.delay = threading.Lock(), 0.5
    self.spoil()

  def spoil(self, fault="", method="GET", name="", *, first=0, count=10**9):
    """Spoils answers about objects whose names match.

    Args:
      fault: One of `FAULTS`; "" spoils nothing.
      method: GET is for contents, LIST for listings; HEAD, PUT and DELETE.
      name: A regular expression, for a part of the name.
      first: So many answers are given before.
      count: So many answers are spoilt.
    """
    self._rule = fault, method, re.compile(name), [first, count]
    self.spoilt, self.lost = 0, ""
    self.first = None  # when a checkpoint was complete for the first time

  def put(self, name: str, data: bytes) -> None:
    """Makes an object, and the bucket."""
    backend = self._backend()
    if BUCKET not in backend.buckets:
      backend.create_bucket(BUCKET, "us-east-1")
    backend.put_object(BUCKET, name, data)

  def upload(self, folder: pathlib.Path, name: str) -> None:
    for path in sorted(folder.rglob("*")):
      if path.is_file():
        inner = path.relative_to(folder).as_posix()
        self.put(f"{name}/{inner}", path.read_bytes())

  def objects(self, name: str = "") -> dict[str, bytes]:
    """Returns all objects of a folder, by their names in it."""
    bucket = self._backend().buckets.get(BUCKET)
    keys = list(bucket.keys.items()) if bucket else []
    return {
      key.removeprefix(f"{name}/"): x.value
      for key, x in keys
      if key.startswith(f"{name}/" if name else "")
    }

  def forget(self, name: str) -> None:
    """Deletes the objects of this name in all folders, as a user does."""
    bucket = self._backend().buckets[BUCKET]
    for key in [x for x, _ in bucket.keys.items()]:
      if key.rpartition("/")[2] == name:
        self._backend().delete_object(BUCKET, key)

  def clear(self) -> None:
    self.spoil()
    self._backend().reset()

  def _backend(self):
    from moto.s3.models import s3_backends

    return s3_backends[ACCOUNT]["aws"]

  def _answer(self, environ, start_response):
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    name = path.removeprefix(f"/{BUCKET}").lstrip("/")
    if not name and method == "GET":
      method, name = "LIST", environ.get("QUERY_STRING", "")
    fault, of, names, left = self._rule
    hit = fault and of == method and names.search(name)
    if hit and left[0] > 0:
      left[0] -= 1
    elif hit and left[1] > 0:
      left[1] -= 1
      self.spoilt += 1
      return self._spoilt(fault, environ, start_response)
    with self._lock:
      answer = list(self._app(environ, start_response))
      if method in ("PUT", "DELETE", "POST"):
        self._watch(name)
    return answer

  def _spoilt(self, fault, environ, start_response):
    if fault in ("500", "403", "404"):
      environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
      status = {"500": "500 Error", "403": "403 Forbidden", "404": "404 None"}
      code = {"500": "InternalError", "403": "AccessDenied", "404": "NoSuchKey"}
      text = f"<Error><Code>{code[fault]}</Code><Message>no</Message></Error>"
      start_response(status[fault], [("Content-Type", "application/xml")])
      return [text.encode()]
    if fault == "closed":
      environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
      raise ConnectionAbortedError
    if fault == "slow":
      time.sleep(self.delay)
    if fault == "vanish":
      name = environ["PATH_INFO"].removeprefix(f"/{BUCKET}/")
      with contextlib.suppress(Exception):
        self._backend().delete_object(BUCKET, name)
    with self._lock:
      answer = b"".join(self._app(environ, start_response))
      self._watch(environ["PATH_INFO"].removeprefix(f"/{BUCKET}/"))
    if fault == "short":  # with the length of the whole
      return [answer[: len(answer) // 2]]
    if fault == "garbled" and answer:
      middle = len(answer) // 2
      answer = b"%b%c%b" % (
        answer[:middle],
        answer[middle] ^ 32,
        answer[middle + 1 :],
      )
    return [answer]

  def _watch(self, name: str) -> None:
    """Notes when no checkpoint of a run is complete any more."""
    if "/checkpoints/" in name:
      run = name.partition("/checkpoints/")[0]
      whole = bool(complete_steps(self.objects(f"{run}/checkpoints")))
      if self.first and not whole:
        self.lost = self.lost or f"no complete checkpoint after {name}"
      elif whole:
        self.first = self.first or time.monotonic()


def complete_steps(objects: dict[str, bytes]) -> list[str]:
  """Returns the steps of which all files are there as their digests say."""
  steps: dict[str, dict[str, bytes]] = {}
  for name, data in objects.items():
    step, _, file = name.partition("/")
    steps.setdefault(step, {})[file] = data
  return [step for step, found in steps.items() if is_complete(found)]


def is_complete(found: dict[str, bytes]) -> bool:
  lines = found.get("SHA256SUMS", b"").decode().splitlines()
  pairs = [line.split(maxsplit=1) for line in lines if line[:1] != "#"]
  return bool(pairs) and all(
    digest == sha256(found.get(name.lstrip("*"), b"")) for digest, name in pairs
  )


@functools.lru_cache(4096)
def sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()


@functools.cache
def server() -> Server:
  """The server of this campaign."""
  return Server()
