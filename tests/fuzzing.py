"""How the fuzz tests damage files, and what they allow a reader to do."""

import contextlib
import io
import json
import pathlib
import resource
import signal
import tarfile

import cv2
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
import numpy as np

from nuclr_jax.ingest import inputs, records

LONG = settings.default.max_examples > 1_000
FUZZ = settings(
  max_examples=settings.default.max_examples,
  deadline=20_000,  # milliseconds, for one example
  phases=[Phase.explicit, Phase.reuse, Phase.generate],
  suppress_health_check=list(HealthCheck),
  database=None,
  derandomize=not LONG,
)
PUBLISHED = pathlib.Path(__file__).parent / "golden" / "published"
MEMORY = 2**30  # bytes that a file may take, many times its size
SECONDS = 20  # that it may take


def photo(ending):
  image = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
  return cv2.imencode(ending, image)[1].tobytes()


JPEG = photo(".jpg")
EXTREME = [
  b"\xff" * 8,
  b"\x00" * 8,
  b"\x7f" + b"\xff" * 7,
  b"9" * 12,
  b"[" * 99,
]


@st.composite
def damaged(draw, data: bytes):
  """The bytes after one to four changes at random places."""
  data = bytearray(data)
  for _ in range(draw(st.integers(1, 4))):
    start = draw(st.integers(0, len(data)))
    stop = min(
      len(data), start + draw(st.sampled_from([0, 1, 4, 8, 64, 10**6]))
    )
    piece = draw(
      st.binary(max_size=12)
      | st.sampled_from(EXTREME)
      | st.just(bytes(data[start:stop]) * 2)
    )
    data[start:stop] = piece
  return bytes(data)


@contextlib.contextmanager
def within(seconds):
  """Stops what does not end."""

  def stop(*_):
    raise AssertionError(f"no end after {seconds} s")

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def harmless(folder):
  """Nothing but ValueError, nothing written, no memory filled."""
  before = {x: x.stat().st_mtime_ns for x in folder.rglob("*")}
  used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  with contextlib.suppress(ValueError), within(SECONDS):
    yield
  assert {x: x.stat().st_mtime_ns for x in folder.rglob("*")} == before
  grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
  assert grown * 1024 < MEMORY


def ingested(path):
  """All items of a file, as ingest checks them."""
  for part in inputs.plan(str(path)).parts:
    for item in records.check_items(records._guarded(part.read)):
      assert isinstance(item, records.Item | records.Rejected)
      json.dumps(item[:2])


def tar_bytes():
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode="w") as tar:
    for name, data in (
      ("a.jpg", JPEG),
      ("a.txt", b"a dog"),
      ("b.jpg", JPEG),
      ("b.json", b'{"caption": ["two", "cats"]}'),
    ):
      member = tarfile.TarInfo(name)
      member.size = len(data)
      tar.addfile(member, io.BytesIO(data))
  return out.getvalue()
