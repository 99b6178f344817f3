"""Maliciously forged files: msgpack, tokenizers, notes, tars.

As in `fuzz_test`, readers give items or a ValueError, and no more; but here the
files are well-formed, and what they say is wrong.
"""

import contextlib
import json
import pathlib
import shutil
import struct
import tempfile

import fsspec
from fuzz_test import (
  FUZZ,
  JPEG,
  PUBLISHED,
  SECONDS,
  damaged,
  harmless,
  ingested,
  tar_bytes,
  within,
)
from hypothesis import given
from hypothesis import strategies as st
import msgpack
import pytest
from repository import GOLDEN

from nuclr_jax.lab.data import tar_files
from nuclr_jax.lab.data.tokenizer import pretrained_tokenizer
from nuclr_jax.lab.files import remote
from nuclr_jax.lab.models.pretrained import load as weights
from nuclr_jax.lab.train import untrained
from nuclr_jax.lab.train.settings import resolve


@pytest.fixture(scope="module")
def folder():
  with tempfile.TemporaryDirectory() as name:
    yield pathlib.Path(name)


SIZES = st.sampled_from([-1, 0, 1, 2, 6, 2**31, 2**32 - 1, 2**40, 2**63 - 1])
TYPES = st.sampled_from("float32 <f4 int64 O V9 U9 bfloat16 nothing S".split())
ARRAY = st.tuples(
  st.sampled_from([0, 1, 1, 1, 2, 3, 42]),
  st.lists(SIZES, max_size=40) | SIZES,
  TYPES,
  st.binary(max_size=30),
).map(lambda x: msgpack.ExtType(x[0], msgpack.packb(x[1:])))
TREE = st.recursive(
  ARRAY | st.none() | st.integers(-9, 9) | st.binary(max_size=3),
  lambda inner: (
    st.dictionaries(st.text(max_size=3) | SIZES, inner, max_size=3)
    | st.lists(inner, max_size=3)
    | inner.map(lambda x: {"__msgpack_chunked_array__": True, "shape": x})
  ),
  max_leaves=6,
)


def test_trees_of_flax(folder):
  """Whatever the arrays claim, there are no more numbers than in the file."""
  path = folder / "flax_model.msgpack"

  @FUZZ
  @given(TREE)
  def check(tree):
    path.write_bytes(msgpack.packb(tree))
    with harmless(folder):
      found = weights.read_tensors(path)
      assert sum(x.nbytes for x in found.values()) <= 2 * path.stat().st_size

  check()


HUGE = st.sampled_from(
  [-1, 0, 1, 7, 2**31, 2**32, 2**40, 1e30, -1000, True, None, "x", "", [], {}]
)


def places_of(content):
  """Where in a JSON value there is something: the keys that lead there."""
  if not isinstance(content, dict | list):
    return [()]
  items = content.items() if isinstance(content, dict) else enumerate(content)
  return [(), *((k, *rest) for k, x in items for rest in places_of(x))]


def with_value(content, place, value):
  """The JSON value with another value at a place."""
  if not place:
    return value
  content = json.loads(json.dumps(content))
  inner = content
  for key in place[:-1]:
    inner = inner[key]
  inner[place[-1]] = value
  return content


def with_other_values(content, values=HUGE):
  """A strategy of JSON texts, each with another value at some place."""
  return st.builds(
    lambda place, value: json.dumps(with_value(content, place, value)).encode(),
    st.sampled_from(places_of(content)),
    values,
  )


TOKENIZERS = ["hf_clip", "hf_siglip", "hf_clip_added"]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("how", ["bytes", "values"])
def test_tokenizers(name, how, folder):
  """What the library cannot do is told in a line, panics included."""
  path = folder / "tokenizer.json"
  content = json.loads((PUBLISHED / name / "tokenizer.json").read_text())
  text = json.dumps(content)
  values = with_other_values(content)

  @FUZZ
  @given(values if how == "values" else damaged(text.encode()))
  def check(data):
    path.write_bytes(data)
    with harmless(folder):
      words = pretrained_tokenizer(path, length=8, clean=False, pad_id=1)
      ids = words.encode(["a dog", "", "two cats on the mat, 犬"])
      assert ids.shape == (3, 8) and ids.min() >= 0

  check()


PROCESSORS = [
  "published/hf_clip/preprocessor_config.json",
  "published/hf_siglip/config.json",
  "published/hf_siglip2_naflex/config.json",
  "published/hf_siglip2_naflex/processor_config.json",
  "published/hf_clip/config.json",
  "published/open_clip/open_clip_config.json",
  "sentence_encoders/mean/config.json",
  "sentence_encoders/mean/1_Pooling/config.json",
  "sentence_encoders/mean/modules.json",
  "sentence_encoders/cls/sentence_bert_config.json",
  "sentence_encoders/cls/2_Normalize/config.json",
  "sentence_encoders/cls/config_sentence_transformers.json",
]


@pytest.mark.parametrize("name", PROCESSORS)
def test_values_in_descriptions(name, folder):
  """Any value at any place: a model that can be built, or one line."""
  home = folder / f"values of {name.replace('/', ' ')}"
  kind, base, *inner = name.split("/")
  shutil.copytree(GOLDEN / kind / base, home)
  path = home.joinpath(*inner)
  content = json.loads(path.read_text())

  @FUZZ
  @given(st.sampled_from(places_of(content)), HUGE)
  def check(place, value):
    path.write_text(json.dumps(with_value(content, place, value)))
    with harmless(folder):
      resolve(untrained.config_of_published(home))

  check()


@pytest.mark.parametrize("how", ["bytes", "values"])
def test_notes_of_the_cache(how, tmp_path, monkeypatch):
  """Whatever they say, what is read is what the bucket has, or nothing is."""
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
  (tmp_path / "canary").write_text("not of the bucket")
  system = fsspec.filesystem("memory")
  system.pipe_file("/fuzz/x/a", b"1")
  system.pipe_file("/fuzz/x/b/c", b"2")
  remote.fetch("memory://fuzz/x")
  (notes,) = (tmp_path / "cache").rglob("notes.json")
  text = notes.read_text()
  content = json.loads(text)
  odd = HUGE | st.sampled_from(["../../canary", "memory://fuzz/..", [None, 1]])
  values = with_other_values(content, odd)

  @FUZZ
  @given(values if how == "values" else damaged(text.encode()))
  def check(data):
    notes.write_bytes(data)
    with contextlib.suppress(ValueError), within(SECONDS):
      copy = remote.fetch("memory://fuzz/x")
      assert (copy / "a").read_bytes() == b"1"
      assert (copy / "b" / "c").read_bytes() == b"2"
    assert (tmp_path / "canary").read_text() == "not of the bucket"

  check()
  system.rm("/fuzz", recursive=True)


FIELDS = {  # of the header of a tar: first byte and length
  "name": (0, 100),
  "size": (124, 12),
  "time": (136, 12),
  "kind": (156, 1),
  "link": (157, 100),
  "magic": (257, 8),
  "prefix": (345, 155),
}
ENTRIES = st.sampled_from(
  [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-1000", b"7" * 11, b"", b" " * 12]
  + [b"\xff" * 8 + struct.pack(">i", -x) for x in (1, 512, 1024, 2048, 10_240)]
  + [b"x", b"g", b"L", b"K", b"S", b"1", b"2", b"3", b"5", b"6", b"\0"]
  + [b"a.jpg", b"../a.jpg", b"a.b.c.jpg", b"ustar  \0"]
)


@pytest.mark.parametrize("read", ["ingest", "stream"])
def test_headers_of_tars(read, folder):
  """Any fields of headers, with the checksum that belongs to them."""
  good, path = tar_bytes(), folder / "t.tar"
  headers = [0, 1024 + (len(JPEG) - 1) // 512 * 512]

  @FUZZ
  @given(
    st.lists(
      st.tuples(
        st.sampled_from(headers), st.sampled_from(sorted(FIELDS)), ENTRIES
      ),
      min_size=1,
      max_size=3,
    )
  )
  def check(changes):
    data = bytearray(good)
    for start, field, entry in changes:
      first, length = FIELDS[field]
      first += start
      data[first : first + length] = entry[:length].ljust(length, b"\0")
      sums = data[start : start + 512]
      sums[148:156] = b" " * 8
      data[start + 148 : start + 156] = b"%06o\0 " % sum(sums)
    path.write_bytes(data)
    with harmless(folder):
      if read == "ingest":
        ingested(path)
      else:
        for number, _ in enumerate(tar_files.read_samples(str(path))):
          assert number < len(data) // 512

  check()
