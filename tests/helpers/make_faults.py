"""A server between a client and a bucket, which answers wrongly on request."""

from collections.abc import Callable, Iterator
import contextlib
import http.client
import http.server
import threading
from typing import NamedTuple
import urllib.parse

# What becomes of an answer; None leaves it as it is.
FAULTS = ("500", "403", "404", "closed", "truncated", "short", "garbled")
STALLED = "stalled"  # no answer at all

Choose = Callable[[str, str], str | None]  # of a method and a path


class Faults(NamedTuple):
  """The server between."""

  url: str
  choose: list[Choose]  # the last one says which fault a request meets
  seen: list[str]  # the methods and paths of all requests


@contextlib.contextmanager
def before(url: str) -> Iterator[Faults]:
  """Yields a server that hands requests on to the one at `url`."""
  target = urllib.parse.urlsplit(url).netloc
  ended = threading.Event()

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
      length = int(self.headers.get("Content-Length") or 0)
      body = self.rfile.read(length)
      path = urllib.parse.unquote(self.path)
      faults.seen.append(f"{self.command} {path}")
      fault = faults.choose[-1](self.command, path)
      if fault == STALLED:
        ended.wait(600)
      if fault in ("closed", STALLED):
        self.close_connection = True
        return
      if fault in ("500", "403", "404"):
        self._answer(int(fault), {}, b"", 0)
        return
      connection = http.client.HTTPConnection(target, timeout=30)
      connection.request(self.command, self.path, body, dict(self.headers))
      answer = connection.getresponse()
      content = answer.read()
      length = int(answer.headers.get("Content-Length") or len(content))
      if fault == "truncated":
        content = content[: len(content) // 2]
        self.close_connection = True
      elif fault == "short":
        content = content[: len(content) // 2]
        length = len(content) if self.command == "GET" else length // 2
      elif fault == "garbled":
        content = bytes(x ^ 90 for x in content)
      self._answer(answer.status, answer.headers, content, length)

    def _answer(self, status, headers, content, length):
      self.send_response(status)
      for name, value in headers.items():
        if name.lower() not in (
          *("content-length", "connection", "transfer-encoding"),
          *("date", "server"),
        ):
          self.send_header(name, value)
      self.send_header("Content-Length", str(length))
      self.end_headers()
      if self.command != "HEAD":
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def log_message(self, *_):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.daemon_threads = True
  faults = Faults(f"http://127.0.0.1:{server.server_port}", [_none], [])
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  try:
    yield faults
  finally:
    ended.set()
    server.shutdown()
    server.server_close()


def _none(method: str, path: str) -> None:
  del method, path
