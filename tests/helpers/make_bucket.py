"""Local servers that speak the protocols of S3 and of Google Cloud Storage."""

from collections.abc import Iterator
import contextlib
import functools
import json
import os
import socket
from unittest import mock

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

BUCKET = "bucket"


def memory():
  """Returns the file system of memory://, with nothing in it."""
  system = fsspec.filesystem("memory")
  system.store.clear()
  system.pseudo_dirs[:] = [""]
  return system


def read_apart(monkeypatch):
  """Lets readers of a file of memory:// each have a position of their own.

  fsspec gives all the same object, which only one may read at any moment; in a
  stream the thread that reads ahead has begun the next epoch of a tar before
  the last one is done.
  """
  open_shared = MemoryFileSystem._open

  def open_own(self, path, mode="rb", **options):
    file = open_shared(self, path, mode, **options)
    return MemoryFile(data=file.getvalue()) if mode == "rb" else file

  monkeypatch.setattr(MemoryFileSystem, "_open", open_own)


@contextlib.contextmanager
def s3() -> Iterator[str]:
  """Yields s3://BUCKET, served by moto."""
  from moto.server import ThreadedMotoServer
  import requests
  import s3fs

  server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
  server.start()
  host, port = server.get_host_and_port()
  settings = {
    "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
  }
  try:
    with mock.patch.dict(os.environ, settings):
      s3fs.S3FileSystem.clear_instance_cache()
      # What an earlier server has served in this process is still there.
      requests.post(f"http://{host}:{port}/moto-api/reset", timeout=10)
      s3fs.S3FileSystem().mkdir(BUCKET)
      yield f"s3://{BUCKET}"
  finally:
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@contextlib.contextmanager
def gs() -> Iterator[str]:
  """Yields gs://BUCKET, served by gcp-storage-emulator."""
  from gcp_storage_emulator import server as emulator

  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  server = emulator.create_server(
    "127.0.0.1", port, in_memory=True, default_bucket=BUCKET
  )
  server.start()
  settings = {
    "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
    # Asks for credentials, also of an emulator. It is read at the import.
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
  }
  exact = mock.patch.object(
    emulator, "_read_data", functools.partial(_read_data, emulator._read_data)
  )
  with exact, mock.patch.dict(os.environ, settings):
    import gcsfs

    try:
      gcsfs.GCSFileSystem.clear_instance_cache()
      yield f"gs://{BUCKET}"
    finally:
      gcsfs.GCSFileSystem.clear_instance_cache()
      server.stop()


def _read_data(read, handler, query):
  """Reads what gcsfs has sent, whatever its last byte is.

  The emulator takes an upload for an e-mail, where "\\r" before the boundary
  belongs to the end of a line.
  """
  if not (handler.headers["Content-Type"] or "").startswith("multipart/rel"):
    return read(handler, query)
  sent = handler.rfile.read(int(handler.headers["Content-Length"]))
  parts = sent[: sent.rindex(b"\n--==0==--")].split(b"--==0==\n", 2)
  (_, meta), (kind, content) = (part.split(b"\n\n", 1) for part in parts[1:])
  kind = kind.decode().partition(": ")[2]
  return {"meta": json.loads(meta), "content": content, "content-type": kind}


SERVERS = {"s3": s3, "gs": gs}
