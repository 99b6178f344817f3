"""Streams of tars: every pair once an epoch, exact resume, nothing dropped."""

import bz2
from collections import Counter
import gzip
import io
import json
import logging
import lzma
import os
import pathlib
import shutil
import subprocess
import tarfile
import time
import zlib

import chex
from hypothesis import given, settings
from hypothesis import strategies as st
import make_bucket
import make_photos
from make_photos import CAPTIONS, PHOTOS, photo, write_pairs, write_tar
import numpy as np
import PIL.Image
import pytest
from repository import PUBLISHED

from nuclr_jax import fit
from nuclr_jax.lab import files
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.data import (
  image_text,
  images,
  loader,
  tar_files,
  tar_members,
  tar_stream,
)
from nuclr_jax.lab.data.captions import EMPTY_CAPTION
from nuclr_jax.lab.data.source import random_numbers
from nuclr_jax.lab.data.tar_files import LeftOut, TarSample
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.files import bucket
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.train import build
from nuclr_jax.lab.user_files import listing, readers
from nuclr_jax.lab.user_files.items import Rejected

LONG = settings.default.max_examples > 1_000  # --hypothesis-profile=long
TOKENIZER = os.fspath(PUBLISHED / "open_clip" / "tokenizer.json")
WORDS = build_tokenizer([f"sample {i}" for i in range(100)], length=4)
NUMBERS = {
  row.tobytes(): i
  for i, row in enumerate(WORDS.encode([f"sample {i}" for i in range(100)]))
}


def write_numbered(folder, counts):
  """Tars of different photos, whose captions count from 0."""
  folder.mkdir(parents=True, exist_ok=True)
  number = 0
  for i, count in enumerate(counts):
    members = []
    for _ in range(count):
      members.append((f"{number:03d}.jpg", photo(number)))
      members.append((f"{number:03d}.txt", f"sample {number}".encode()))
      number += 1
    write_tar(folder / f"{i:02d}.tar", members)
  return folder


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
  """Sixty samples in five tars of different sizes."""
  folder = tmp_path_factory.mktemp("tars")
  return write_numbered(folder, [10, 14, 12, 8, 16])


def test_hidden_files_are_no_samples(tmp_path):
  """Nor are hidden tars that a pattern finds."""
  files = []
  for name in ("a/0", "a/.ipynb_checkpoints/1", "__MACOSX/a/._2", "a/._3"):
    files += [(f"{name}.jpg", PHOTOS[0]), (f"{name}.txt", b"a dog")]
  for folder in (tmp_path / ".cache" / "b", tmp_path / ".cache" / "@eaDir"):
    folder.mkdir(parents=True)
    write_tar(folder / "x.tar", files)
  (tar,) = tar_files.find_tars(f"{tmp_path}/.cache/*/*.tar")
  assert tar.endswith("/b/x.tar")
  (part,) = tar_files.read_samples(tar)
  assert part.content == TarSample("a/0", tar, PHOTOS[0], ["a dog"])


def source_of(text, *, num_pairs=60, window=16, share_texts=True):
  return tar_stream.source_of_tars(
    str(text),
    num_pairs=num_pairs,
    make_square=image_text.square_maker(size=24),
    encode=WORDS.encode,
    share_texts=share_texts,
    window=window,
  )


def take(source, count, *, batch_size=4, seed=3, **options):
  """The first batches, and the iterator's state after each, through JSON."""
  found, states = [], []
  with loader.batches(
    source, batch_size=batch_size, seed=seed, **options
  ) as stream:
    for _ in range(count):
      found.append(next(stream))
      states.append(json.loads(json.dumps(stream.get_state())))
  return found, states


def numbers(batches):
  return [NUMBERS[row.tobytes()] for batch in batches for row in batch.text]


class TestReading:
  def members(self, tar, start=0):
    return list(tar_files.read_samples(os.fspath(tar), start))

  def test_pairs(self, tmp_path):
    tar = write_pairs(tmp_path / "x.tar", [0, 1, 2])
    found = [part.content for part in self.members(tar)]
    assert found == [
      TarSample(f"{i:05d}", str(tar), PHOTOS[i], [CAPTIONS[i]])
      for i in range(3)
    ]

  def test_the_rest_from_any_part_on(self, tmp_path):
    tar = write_pairs(tmp_path / "x.tar", range(6))
    parts = self.members(tar)
    for i, part in enumerate(parts):
      assert self.members(tar, part.end) == parts[i + 1 :]

  def test_the_rest_after_pictures_that_are_left_out(self, tmp_path):
    """A mask comes before the sample of its key, and comes once."""
    members = [
      (f"{i}.{ending}", content)
      for i in range(4)
      for ending, content in (
        ("jpg", PHOTOS[i]),
        ("seg.png", PHOTOS[0]),
        ("txt", CAPTIONS[i].encode()),
      )
    ]
    tar = str(write_tar(tmp_path / "x.tar", members))
    visits, states, iterator = [], [], iter(tar_stream._Tar(tar, 0))
    for visit in iterator:
      visits.append(visit)
      states.append(iterator.get_state())
    assert len(visits) == 8
    for i, state in enumerate(states):
      again = iter(tar_stream._Tar(tar, 0))
      again.set_state(state)
      assert list(again) == visits[i + 1 :]

  def test_long_names(self, tmp_path):
    name = "folder/" * 20 + "x"
    tar = write_tar(
      tmp_path / "x.tar",
      [("a.jpg", PHOTOS[0]), ("a.txt", b"a"), (f"{name}.jpg", PHOTOS[1])]
      + [(f"{name}.txt", b"a dog")],
    )
    first, second = self.members(tar)
    assert (second.content.key, second.content.captions) == (name, ["a dog"])
    assert self.members(tar, first.end) == [second]

  # The names of files; keys of samples; names that are left out, with the
  # reasons. A picture is its number among the names, a text its picture's name.
  NAMES = {
    "songs": (
      ["Track 2.1 (Clean).jpg", "Track 2.1 (Clean).txt", "Track 2.2.PNG"]
      + ["Track 2.2.TXT", "Track 2.3 - a. b.jpeg", "Track 2.3 - a. b.txt"],
      ["Track 2.1 (Clean)", "Track 2.2", "Track 2.3 - a. b"],
      {},
    ),
    "numbers": (
      [f"img.{i:04d}.{x}" for i in range(5) for x in ("jpg", "txt")],
      [f"img.{i:04d}" for i in range(5)],
      {},
    ),
    "webdataset": (
      ["v1.0/1.cls", "v1.0/1.depth.npy", "v1.0/1.jpg", "v1.0/1.txt"]
      + ["v1.0/2.jpg", "v1.0/2.text.en", "v1.0/2.txt"],
      ["v1.0/1", "v1.0/2"],
      {},
    ),
    "masks": (
      ["1.jpg", "1.seg.png", "1.txt", "2.txt", "2.left.jpg", "2.right.jpg"],
      ["1"],
      {
        "1.seg.png": tar_files.OTHER_PICTURE,
        "2.left.jpg": tar_files.OTHER_PICTURE,
        "2.right.jpg": tar_files.OTHER_PICTURE,
        "2": tar_files.NO_IMAGE,
      },
    ),
    "two names": (
      ["a.b.jpg", "a.b.txt", "a.jpg", "a.txt"],
      ["a"],
      {"a.b.jpg": tar_files.OTHER_PICTURE},
    ),
    "texts of files": (
      ["Größe.jpg", "Größe.jpg.txt", "x.y.PNG", "x.y.png.txt"],
      ["Größe", "x.y"],
      {},
    ),
    "no texts": (
      ["photo.final.JPG", "photo.first.JPG", "x.jpg", "x.en.txt"],
      [],
      dict.fromkeys(["photo.final", "photo.first", "x"], tar_files.NO_CAPTION),
    ),
  }

  @pytest.mark.parametrize("kind", NAMES)
  def test_names_with_dots(self, tmp_path, kind):
    """A stream, ingest and its index of tars read the same samples."""
    names, keys, left_out = self.NAMES[kind]
    contents = {
      name: b"a caption" if name.lower().endswith(".txt") else photo(i)
      for i, name in enumerate(names)
    }
    tar = write_tar(tmp_path / "x.tar", contents.items())
    parts = self.members(tar)
    for i, part in enumerate(parts):
      rest = self.members(tar, part.end)
      samples = [x.content for x in rest if isinstance(x.content, TarSample)]
      later = [x.content for x in parts[i + 1 :]]
      assert samples == [x for x in later if isinstance(x, TarSample)]
    found = [part.content for part in parts]
    items = list(records.check_items(readers.read_tar(str(tar))))
    for samples, bad in ((found, LeftOut), (items, Rejected)):
      good = [x for x in samples if not isinstance(x, bad)]
      assert [x.key for x in good] == keys
      for sample in good:
        assert list(sample.captions) == ["a caption"]
        name = names[[*contents.values()].index(sample.image)]
        assert name.startswith(f"{sample.key}.")
      reasons = {x.key: x.reason for x in samples if isinstance(x, bad)}
      assert reasons == left_out and len(samples) == len(keys) + len(left_out)

  def test_endings_of_images(self, tmp_path):
    """Those of a reason are at most four."""
    kinds = {"jpe": "JPEG", "JFIF": "JPEG", "jp2": "JPEG2000", "ppm": "PPM"}
    members = []
    for i, (ending, kind) in enumerate(kinds.items()):
      content = io.BytesIO()
      PIL.Image.open(io.BytesIO(PHOTOS[0])).save(content, kind)
      members.append((f"{i}.{ending}", content.getvalue()))
      members.append((f"{i}.txt", b"a caption"))
    strange = [(f"x.{ending}", b"?") for ending in ("heic", *"dcba", "txt")]
    tar = write_tar(tmp_path / "x.tar", [*members, *strange])
    stream = [x.content for x in self.members(tar)]
    items = list(records.check_items(readers.read_tar(str(tar))))
    for *found, last in (stream, items):
      assert [x.key for x in found] == list("0123")
      assert [x.captions for x in found] == [["a caption"]] * len(kinds)
      assert last.reason == "missing image (not read: .a, .b, .c, .d)"

  def test_links_are_no_pictures(self, tmp_path):
    """Tar stores a second name of a file as a link, without its content."""
    for name in ("a.jpg", "a.txt", "b.txt"):
      (tmp_path / name).write_bytes(PHOTOS[0] if name == "a.jpg" else b"a dog")
    os.link(tmp_path / "a.jpg", tmp_path / "b.jpg")
    (tmp_path / "c.jpg").symlink_to("a.jpg")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
      for name in ("a.jpg", "a.txt", "b.jpg", "b.txt", "c.jpg"):
        tar.add(tmp_path / name, name)
    stream = [x.content for x in self.members(tmp_path / "x.tar")]
    indexed = list(readers.read_tar(str(tmp_path / "x.tar")))
    for found in (stream, indexed):
      assert [(x.key, getattr(x, "reason", None)) for x in found] == [
        ("a", None),
        ("b.jpg", tar_members.LINK),
        ("c.jpg", tar_members.LINK),
      ]

  def test_what_is_no_sample_is_named(self, tmp_path):
    members = [
      *[("a.jpg", PHOTOS[0]), ("a.png", PHOTOS[1]), ("a.txt", b"of which?")],
      *[("b.txt", b"no image")],
      *[("c.jpg", PHOTOS[0]), ("c.txt", b"?!")],
      *[("d.jpg", PHOTOS[0]), ("d.json", b"{}")],
      *[("e.jpg", PHOTOS[0]), ("e.json", b'{"caption": ["one", "", "two"]}')],
    ]
    tar = write_tar(tmp_path / "x.tar", members)
    found = [part.content for part in self.members(tar)]
    assert [(x.key, getattr(x, "reason", None)) for x in found] == [
      ("a", tar_files.REPEATED),
      ("b", tar_files.NO_IMAGE),
      ("c", EMPTY_CAPTION),
      ("d", tar_files.NO_CAPTION),
      ("e", EMPTY_CAPTION),
      ("e", None),
    ]
    assert found[-1].captions == ["one", "two"]

  @pytest.mark.parametrize("cut", [3_500, 5_000, 12_000])
  def test_a_tar_that_is_cut(self, tmp_path, cut):
    tar = write_pairs(tmp_path / "x.tar", range(6))
    whole = self.members(tar)
    end = os.path.getsize(tar) - cut
    os.truncate(tar, end)
    found = [part.content for part in self.members(tar)]
    good = [x for x in found if isinstance(x, TarSample)]
    assert good == [part.content for part in whole][: len(good)]
    # Of the last one, it is the end of the tar that is missing.
    assert len(good) == sum(x.end <= end for x in whole) + (cut == 3_500)
    assert found[-1] == LeftOut("", str(tar), tar_files.DAMAGED)
    parts = self.members(tar)
    for i, part in enumerate(parts):
      rest = self.members(tar, part.end)[part.skip :]
      assert rest == parts[i + 1 :]

  def test_a_damaged_header(self, tmp_path):
    tar = write_pairs(tmp_path / "x.tar", range(3))
    first, *_ = self.members(tar)
    with open(tar, "r+b") as file:
      file.seek(first.end)
      file.write(b"x" * 512)
    assert [part.content for part in self.members(tar)] == [
      first.content,
      LeftOut("", str(tar), tar_files.DAMAGED),
    ]

  def test_an_empty_tar_and_no_tar(self, tmp_path):
    tar = write_tar(tmp_path / "x.tar", [])
    (part,) = self.members(tar)
    assert part.content.reason == tar_files.EMPTY
    (tmp_path / "y.tar").write_bytes(b"")
    (part,) = self.members(tmp_path / "y.tar")
    assert part.content.reason == tar_files.DAMAGED

  def test_a_file_that_claims_more_than_there_is(self, tmp_path, monkeypatch):
    tar = write_pairs(tmp_path / "x.tar", [0])
    monkeypatch.setattr(files, "MAX_IMAGE", 1_000)
    (part,) = self.members(tar)
    assert part.content.reason == tar_files.TOO_BIG


def block(name, kind=b"0", content=b"", **fields):
  """A header of a tar by hand, and the content behind it.

  Fields are bytes: `size` of 12, `rest` from the 257th byte on.
  """
  header = bytearray(512)
  header[: len(name)] = name
  size = fields.get("size", b"%011o\0" % len(content))
  header[124:136] = size.ljust(12, b"\0")
  header[156:157] = kind
  rest = fields.get("rest", b"ustar\x0000")
  header[257 : 257 + len(rest)] = rest
  header[148:156] = b" " * 8
  header[148:156] = b"%06o\0 " % sum(header)
  return bytes(header) + content + bytes(-len(content) % 512)


def pair(name, number=0):
  """The blocks of a sample."""
  return block(name + b".jpg", content=PHOTOS[number]) + block(
    name + b".txt", content=f"caption {number}".encode()
  )


def record(key, value):
  """A record of an extended header, of the length that it says."""
  size = len(key) + len(value) + 3
  while size != len(line := b"%d %s=%s\n" % (size, key, value)):
    size = len(line)
  return line


END = bytes(1024)
DIGITS = b"9" * 200_000
NEGATIVE = b"\xff" * 11 + b"\0"  # -256, in base 256
# What a tar has behind its first sample, before the end: what it may not do.
HOSTILE = {
  "a negative size": block(b"x.jpg", size=NEGATIVE),
  "one back to the beginning": block(
    b"x.jpg", size=(2**96 - 10_240).to_bytes(12, "big")
  ),
  "a negative octal size": block(b"x.jpg", size=b"-0000001000\0"),
  "a negative size of a name": block(b"x", b"L", size=NEGATIVE),
  "a negative size of a header": block(b"x", b"x", size=NEGATIVE),
  "a negative size of a device": block(b"x", b"3", size=NEGATIVE),
  "no number": block(b"x.jpg", size=b"+0x12345678\0"),
  "digits and no more": block(b"x", b"x", DIGITS),
  "digits of a length": block(b"x", b"x", DIGITS + b" path=x\n"),
  "digits of a size": block(b"x", b"x", record(b"size", DIGITS)),
  "a negative size in a header": block(b"x", b"x", record(b"size", b"-512")),
  "a length of 0": block(b"x", b"x", b"0 path=x\n"),
  "a length beyond the header": block(b"x", b"x", b"99 path=x\n"),
  "a name of a terabyte": block(
    b"x", b"L", size=b"\x80" + (2**40).to_bytes(11)
  ),
  "a large name": block(b"x", b"L", b"a" * 2**21),
  "a header without its file": block(b"x", b"x", record(b"path", b"y.jpg")),
  "a map without an end": block(
    b"x.jpg", b"S", rest=b"ustar  \0".ljust(225, b"\0") + b"\1"
  )
  + b"\1" * 2048,
  "nothing but noise": b"\xaa" * 1024,
}


class TestHostile:
  """Headers that are no accident; the oracle is the layout of the format."""

  def both(self, tmp_path, *blocks):
    """What a stream and ingest read: keys, or (name, reason)."""
    tar = str(tmp_path / "x.tar")
    pathlib.Path(tar).write_bytes(b"".join(blocks))
    parts = list(tar_files.read_samples(tar))
    for i, part in enumerate(parts):
      assert 0 <= part.end <= os.path.getsize(tar)
      if not part.skip and part != parts[-1]:
        rest = list(tar_files.read_samples(tar, part.end))
        assert rest == parts[i + 1 :]
    items = records.check_items(readers.read_tar(tar))
    return [
      [(x.key, x.reason) if hasattr(x, "reason") else x.key for x in found]
      for found in ([part.content for part in parts], items)
    ]

  def read(self, tmp_path, *blocks):
    """What both of them read."""
    stream, items = self.both(tmp_path, *blocks)
    assert stream == items
    return stream

  @pytest.mark.parametrize("kind", HOSTILE)
  def test_what_is_no_header_ends_the_tar(self, tmp_path, kind):
    rest = () if kind == "a map without an end" else (pair(b"b", 1), END)
    rest = (END,) if kind == "a header without its file" else rest
    found = self.read(tmp_path, pair(b"a"), HOSTILE[kind], *rest)
    assert found == ["a", ("", tar_members.DAMAGED)]

  def test_a_size_that_comes_after_is_the_size(self, tmp_path):
    """As in tars of files above 8 GB, whose header has no room for it."""
    for digits in (b"%d" % len(PHOTOS[1]), b"%020d" % len(PHOTOS[1])):
      content = block(b"b.jpg", content=PHOTOS[1], size=b"0" * 11)
      header = block(b"x", b"x", record(b"size", digits))
      text = block(b"b.txt", content=b"a dog")
      found = self.read(tmp_path, pair(b"a"), header, content, text, END)
      assert found == ["a", "b"]

  def test_times_are_no_folder(self, tmp_path):
    """`tar --listed-incremental` has them where others have a prefix."""
    blocks = [
      block(name, content=content, rest=b"ustar  \0".ljust(88, b"\0") + time)
      for name, content, time in (
        (b"d/b\xc3\xbc.jpg", PHOTOS[1], b"15303313012\0" * 2),
        (b"d/b\xc3\xbc.txt", b"a dog", b"15303313013\0" * 2),
      )
    ]
    prefix = b"ustar\x0000".ljust(88, b"\0") + b"folder"
    for name, content in ((b"a.jpg", PHOTOS[0]), (b"a.txt", b"a cat")):
      blocks.append(block(name, content=content, rest=prefix))
    assert self.read(tmp_path, *blocks, END) == ["d/bü", "folder/a"]

  def test_thousands_of_headers_of_one_file(self, tmp_path):
    many = block(b"x", b"x", record(b"path", b"wrong.jpg")) * 1_500
    many += block(b"x", b"g", record(b"comment", b"x")) * 1_500
    many += block(b"x", b"L", b"wrong.jpg") * 1_500
    good = block(b"x", b"x", record(b"path", b"b.jpg"))
    found = self.read(
      tmp_path,
      many,
      good,
      block(b"c", content=PHOTOS[1]),
      block(b"b.txt", content=b"a dog"),
      END,
    )
    assert found == ["b"]

  def test_what_is_no_file_is_named(self, tmp_path):
    map_of = b"ustar  \0".ljust(225, b"\0")
    sparse = record(b"GNU.sparse.major", b"1") + record(
      b"GNU.sparse.name", b"s.jpg"
    )
    found = self.read(
      tmp_path,
      block(b"f/", b"\0", rest=b""),
      block(b"f", b"5"),
      block(b"volume", b"V"),
      pair(b"a"),
      block(b"d.jpg", b"3"),
      block(b"p.jpg", b"6"),
      block(b"m.jpg", b"M", PHOTOS[1]),
      block(b"l.jpg", b"2"),
      block(b"h.jpg", b"1"),
      block(b"o.jpg", b"S", PHOTOS[0], rest=map_of + b"\0"),
      block(b"x", b"x", sparse),
      block(b"GNUSparse/0", content=PHOTOS[1]),
      block(b"v.jpg", b"\0", PHOTOS[1], rest=b""),
      block(b"v.txt", b"\0", b"a dog", rest=b""),
      END,
    )
    assert found == [
      "a",
      ("d.jpg", tar_members.NO_FILE),
      ("p.jpg", tar_members.NO_FILE),
      ("m.jpg", tar_members.NO_FILE),
      ("l.jpg", tar_members.LINK),
      ("h.jpg", tar_members.LINK),
      ("o.jpg", tar_members.SPARSE),
      ("s.jpg", tar_members.SPARSE),
      "v",
    ]

  def test_names(self, tmp_path):
    long, odd = b"a" * 4_096, b"caf\xe9"
    found = self.read(
      tmp_path,
      block(b"x", b"L", long + b".jpg\0"),
      block(b"x", content=PHOTOS[0]),
      block(b"x", b"L", long + b".txt\0"),
      block(b"x", content=b"long"),
      block(b"n.jpg\0hidden.txt", content=PHOTOS[1]),
      block(b"x", b"x", record(b"path", b"n.txt\0hidden.jpg")),
      block(b"x", content=b"cut at NULs"),
      pair(odd, 2),
      END,
    )
    assert found == [long.decode(), "n", "caf?"]

  def test_texts_are_bounded_before_they_are_read(self, tmp_path):
    text = b"a dog".ljust(tar_files.MAX_TEXT)
    found = self.read(
      tmp_path,
      block(b"a.jpg", content=PHOTOS[0]),
      block(b"a.txt", content=text),
      block(b"b.jpg", content=PHOTOS[0]),
      block(b"b.txt", content=text + b" "),
      block(b"c.jpg", content=PHOTOS[0]),
      block(b"c.json", content=b" " * 5_000_000),
      END,
    )
    reason = tar_files.LONG_TEXT
    assert found == ["a", ("b.txt", reason), ("c.json", reason)]

  def test_json_that_cannot_be_read_beside_a_text(self, tmp_path):
    """The text has the captions, so the sample stays; the JSON is listed."""
    found = self.read(
      tmp_path,
      block(b"a.json", content=b" " * 5_000_000),
      pair(b"a"),
      pair(b"b"),
      block(b"b.json", b"2"),
      block(b"c.jpg", content=PHOTOS[0]),
      block(b"c.txt", b"2"),
      block(b"c.json", b"2"),
      END,
    )
    long, link = tar_files.LONG_TEXT, tar_members.LINK
    assert found == [
      *(("a.json", long), "a", ("b.json", link), "b", ("c.txt", link)),
    ]

  def test_thousands_of_members_of_one_key(self):
    """In proportion: a time that is 8 times as long, not 64."""
    times = []
    for count in (2_000, 16_000):
      runs = [[tar_members.Member("a", "a.jpg", i)] for i in range(count)]
      start = time.process_time()
      assert len(list(readers._samples(runs))) == count
      times.append(time.process_time() - start)
    assert times[1] < 24 * times[0]

  @pytest.mark.parametrize("zeros", [512, 1024, 10_240, 3 * 2**20])
  def test_tars_that_are_joined(self, tmp_path, zeros):
    """`cat a.tar b.tar > x.tar`; equal keys of the two are two samples."""
    stream, items = self.both(
      tmp_path,
      pair(b"a"),
      block(b"b.jpg", content=PHOTOS[1]),
      bytes(zeros),
      pair(b"b", 2),
      pair(b"c", 3),
      bytes(zeros),
      pair(b"d", 4),
      END,
    )
    alone, again = ("b", tar_files.NO_CAPTION), ("b", records.DUPLICATE_KEY)
    assert stream == ["a", alone, "b", "c", "d"]
    assert items == ["a", alone, again, "c", "d"]

  def test_what_follows_the_end(self, tmp_path, monkeypatch):
    found = self.read(tmp_path, pair(b"a"), END, b"garbage".ljust(2_000))
    assert found == ["a", ("", tar_members.AFTER_END)]
    found = self.read(tmp_path, pair(b"a"), END, pair(b"b"), END, b"x" * 512)
    assert found == ["a", "b", ("", tar_members.AFTER_END)]
    monkeypatch.setattr(tar_members, "MAX_ZEROS", 2**20)
    found = self.read(tmp_path, pair(b"a"), bytes(2**20))
    assert found == ["a"]
    found = self.read(tmp_path, pair(b"a"), bytes(2**20), pair(b"b"), END)
    assert found == ["a", ("", tar_members.AFTER_END)]

  def test_a_tar_that_is_compressed(self, tmp_path):
    for pack in (gzip.compress, bz2.compress, lzma.compress):
      found = self.read(tmp_path, pack(pair(b"a") + bytes(2**24)))
      assert found == [("", tar_members.COMPRESSED)]


class TestRepeatedKeys:
  """An image never gets the text of another sample with the same key."""

  def both(self, tar):
    """What a stream and ingest read: photo and captions, or the reason."""
    stream = [part.content for part in tar_files.read_samples(str(tar))]
    return [
      [
        x.reason
        if hasattr(x, "reason")
        else (x.key, PHOTOS.index(x.image), *x.captions)
        for x in found
      ]
      for found in (stream, records.check_items(readers.read_tar(str(tar))))
    ]

  # Names of files; an image is a photo, and a text says which one it is of.
  SIDE_BY_SIDE = {
    "no first image": "0.txt:0 0.jpg:1 0.txt:1",
    "no first text": "0.jpg:0 0.jpg:1 0.txt:1",
    "no last text": "0.jpg:0 0.txt:0 0.jpg:1",
    "texts of two kinds": "0.jpg:0 0.json:0 0.jpg:1 0.txt:1",
    "images of two kinds": "0.jpg:0 0.png:1 0.txt:1",
    "pairs": "0.jpg:0 0.txt:0 0.jpg:1 0.txt:1",
    "dots": "0.a.jpg:0 0.a.jpg:1 0.a.txt:1",
  }

  def write(self, path, text):
    pairs = [x.split(":") for x in text.split()]
    contents = {
      "txt": lambda i: f"of {i}".encode(),
      "json": lambda i: json.dumps({"caption": f"of {i}"}).encode(),
    }
    return write_tar(
      path,
      [
        (name, contents.get(name[-4:].strip("."), PHOTOS.__getitem__)(int(i)))
        for name, i in pairs
      ],
    )

  @pytest.mark.parametrize("kind", SIDE_BY_SIDE)
  def test_files_side_by_side(self, tmp_path, kind):
    text = f"2.jpg:2 2.txt:2 {self.SIDE_BY_SIDE[kind]} 3.jpg:3 3.txt:3"
    for found in self.both(self.write(tmp_path / "x.tar", text)):
      assert found == [("2", 2, "of 2"), tar_files.REPEATED, ("3", 3, "of 3")]

  def test_tars_that_tar_has_joined(self, tmp_path):
    """`tar --concatenate`, of tars that both count from 0."""
    one = self.write(tmp_path / "1.tar", "0.jpg:0 1.jpg:1 1.txt:1 2.txt:9")
    two = "0.jpg:2 0.txt:2 1.jpg:3 1.txt:3 2.jpg:4 2.txt:4 3.jpg:5 3.txt:5"
    two = self.write(tmp_path / "2.tar", two)
    command = ["tar", "--concatenate", f"--file={one}", str(two)]
    subprocess.run(command, check=True)
    stream, items = self.both(one)
    alone = [tar_files.NO_CAPTION, ("1", 1, "of 1"), tar_files.NO_IMAGE]
    last = ("3", 5, "of 5")
    later = [("0", 2, "of 2"), ("1", 3, "of 3"), ("2", 4, "of 4"), last]
    assert stream == [*alone, *later]
    # In the order of the keys, of which ingest takes the first.
    again = records.DUPLICATE_KEY
    found = [alone[0], again, alone[1], again, alone[2], later[2], last]
    assert items == found

  def test_a_text_that_is_appended_again(self, tmp_path):
    """`tar --append`; the second text has no image."""
    text = "0.jpg:0 0.txt:0 1.jpg:1 1.txt:1 0.txt:5"
    stream, items = self.both(self.write(tmp_path / "x.tar", text))
    pairs = [("0", 0, "of 0"), ("1", 1, "of 1")]
    assert stream == [*pairs, tar_files.NO_IMAGE]
    assert items == [pairs[0], tar_files.NO_IMAGE, pairs[1]]

  def test_unique_keys_may_be_apart(self, tmp_path):
    text = "0.jpg:0 1.jpg:1 0.json:9 1.json:9 1.txt:1 0.txt:0"
    _, items = self.both(self.write(tmp_path / "x.tar", text))
    assert items == [("0", 0, "of 0"), ("1", 1, "of 1")]


class TestNames:
  @pytest.mark.parametrize(
    "text, expected",
    [
      ("{}/*.tar", [0, 1, 2, 3, 4]),
      ("{}/{{00..04}}.tar", [0, 1, 2, 3, 4]),
      ("{}/{{1..3}}.tar", None),
      ("{}/0{{1..3}}.tar", [1, 2, 3]),
      ("{}/{{0..0}}{{1..3}}.tar", [1, 2, 3]),
      ("{}/03.tar, {}/01.tar,{}/0[13].tar", [1, 3]),
      ("{}/04.tar,{}/05.tar", None),
      ("{}/{{00..05}}.tar", None),
      ("{}/{{04..00}}.tar", None),
      ("{}/nothing/*.tar", None),
      ("{}/01.tar,coco", None),
    ],
  )
  def test_tars_that_a_text_names(self, tars, text, expected):
    text = text.format(*[tars] * text.count("{}"))
    assert tar_files.are_tars(text)
    if expected is None:
      with pytest.raises(ValueError, match="no tar|not exist|something else"):
        tar_files.find_tars(text)
      return
    found = [os.path.basename(x) for x in tar_files.find_tars(text)]
    assert found == [f"{i:02d}.tar" for i in expected]

  def test_a_pipe_is_no_tar(self, tmp_path):
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(ValueError, match="x.tar is not a regular file"):
      tar_files.find_tars(f"{tmp_path}/x.tar")
    with pytest.raises(OSError, match="x.tar is not there, or no regular"):
      next(tar_files.read_samples(f"{tmp_path}/x.tar"))

  def test_ranges_of_folders(self, tmp_path):
    for folder in range(3):
      (tmp_path / f"s{folder}").mkdir()
      for name in "ab":
        write_pairs(tmp_path / f"s{folder}" / f"{name}{folder}.tar", [0])

    def find(text):
      found = tar_files.find_tars(text)
      return [os.path.relpath(tar, tmp_path) for tar in found]

    expected = ["s0/a0.tar", "s0/b0.tar", "s1/a1.tar", "s1/b1.tar"]
    assert find(f"{tmp_path}/s{{0..1}}/*.tar") == expected
    assert find(f"{tmp_path}/s{{1..1}}/a{{1..1}}.tar") == ["s1/a1.tar"]
    with pytest.raises(ValueError, match="s0/a1.tar and 1 more"):
      find(f"{tmp_path}/s{{0..1}}/a{{0..1}}.tar")
    os.symlink("nowhere", tmp_path / "s0" / "c.tar")
    with pytest.raises(ValueError, match="c.tar is not a regular file"):
      find(f"{tmp_path}/s0/*.tar")

  @pytest.mark.parametrize(
    "text, message",
    [
      ("{0..999999999999}.tar", "1,000,000,000,000 names, at most 1,000,000"),
      ("{0..999999}{0..999999}.tar", "1,000,000,000,000 names, at most"),
      ("{{0..99999}..{0..99999}}.tar", "10,000,000,000 names, at most"),
      ("a{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}.tar", " 10,000,000 names"),
      (",".join(["{0..999999}.tar"] * 9), " 9,000,000 names, at most"),
      ("{1..9}{9..1}.tar", r"not exist: {9..1} counts down; write {1..9}"),
      (f"{{0..{10**18}}}.tar", "numbers of 19 digits, at most 18"),
      (f"{{0..{'9' * 5_000}}}.tar", "numbers of 5000 digits, at most 18"),
    ],
  )
  def test_ranges_of_too_many_names(self, tmp_path, text, message):
    """They are counted before they are expanded, which takes no time."""
    for read in (tar_files.find_tars, listing.items_of):
      with pytest.raises(ValueError, match=message) as error:
        read(text)
      assert len(str(error.value)) < 500

  def test_ranges_are_those_of_a_shell(self):
    text = "s{08..11}/{1..2}-{000..001}x"
    expected = subprocess.run(
      ["bash", "-c", f"echo {text}"], capture_output=True, text=True, check=True
    )
    assert tar_files.expand_ranges(text) == expected.stdout.split()

  def test_a_range_of_many_tars(self, monkeypatch, tmp_path):
    """Names are looked up, not compared with each other."""
    names = [f"{tmp_path}/{i:05d}.tar" for i in range(20_000)]
    monkeypatch.setattr(tar_files.glob, "glob", lambda *x, **y: names)
    monkeypatch.setattr(tar_files.os.path, "isfile", lambda x: "{" not in x)
    assert tar_files.find_tars(f"{tmp_path}/{{00000..19999}}.tar") == names
    with pytest.raises(ValueError, match="no tar .*20000.tar and 19999 more"):
      tar_files.find_tars(f"{tmp_path}/{{00000..39999}}.tar")

  def test_a_folder_whose_name_looks_like_a_pattern(self, tmp_path):
    for folder in ("lr[12]", "lr1", "lr[3", "data*"):
      (tmp_path / folder).mkdir()
      write_pairs(tmp_path / folder / "a.tar", [0])
    for folder in ("lr[12]", "lr[3", "data*"):
      for text in ("a.tar", "*.tar", "[a-b].tar", "{0..1}*.tar"):
        path = f"{tmp_path}/{folder}/{text}"
        if text.startswith("{"):
          with pytest.raises(ValueError, match="there is no tar"):
            tar_files.find_tars(path)
          continue
        assert tar_files.find_tars(path) == [f"{tmp_path}/{folder}/a.tar"]
    assert tar_files.find_tars(f"{tmp_path}/lr[1]/*.tar") == [
      f"{tmp_path}/lr1/a.tar"
    ]

  def test_the_length_of_an_epoch(self, tars, tmp_path):
    folder = write_numbered(tmp_path, [2, 1])
    text = f"{folder}/*.tar"
    with pytest.raises(ValueError, match=r"data\.num_pairs is missing"):
      source_of(text, num_pairs=None)
    (folder / "00_stats.json").write_text('{"count": 9, "successes": 2}')
    with pytest.raises(ValueError, match=r"data\.num_pairs is missing"):
      source_of(text, num_pairs=None)
    (folder / "01_stats.json").write_text('{"count": 9, "successes": 1}')
    assert source_of(text, num_pairs=None).sizes == (3, 3, 3)
    assert source_of(text, num_pairs=7).sizes == (7, 7, 7)

  @pytest.mark.parametrize(
    "text",
    [
      *('{"successes": -1}', '{"successes": 1e999}', '{"successes": NaN}'),
      *('{"successes": [1]}', "[1]", "{", "[" * 100_000, '{"count": 1}'),
      '{"successes": "' + "9" * 10_000 + '"}',
    ],
  )
  def test_counts_that_are_none(self, tars, tmp_path, text):
    shutil.copy(tars / "00.tar", tmp_path / "00.tar")
    (tmp_path / "00_stats.json").write_text(text)
    with pytest.raises(ValueError, match=r"data\.num_pairs is missing"):
      source_of(f"{tmp_path}/*.tar", num_pairs=None)
    (tmp_path / "00_stats.json").unlink()
    os.mkfifo(tmp_path / "00_stats.json")
    with pytest.raises(ValueError, match=r"data\.num_pairs is missing"):
      source_of(f"{tmp_path}/*.tar", num_pairs=None)

  @pytest.mark.parametrize("place", ["{}", "memory://counts"])
  def test_more_pairs_than_the_tars_can_hold(self, tmp_path, place):
    """A sample is two headers of 512 bytes, and at least as much behind."""
    folder, place = write_numbered(tmp_path, [2, 1]), place.format(tmp_path)
    size = sum(x.stat().st_size for x in folder.iterdir())
    for i in range(2):
      (folder / f"0{i}_stats.json").write_text(f'{{"successes": {2**30}}}')
    if place != str(tmp_path):
      for path in folder.iterdir():
        bucket.upload(path, f"{place}/{path.name}")
    told = f"{size:,} bytes, which hold at most {size // 2048:,};"
    with pytest.raises(ValueError, match=f"files .* 2,147,483,648 .*{told}"):
      source_of(f"{place}/*.tar", num_pairs=None)
    with pytest.raises(ValueError, match=f"num_pairs: 1,000,000,000 .*{told}"):
      source_of(f"{place}/*.tar", num_pairs=10**9)
    with pytest.raises(ValueError, match=told):
      source_of(f"{place}/*.tar", num_pairs=size)
    for number in (size // 2048, size // 1024):  # an epoch may be two of tars
      source_of(f"{place}/*.tar", num_pairs=number)

  def test_tars_without_a_file(self, tmp_path):
    """They are an error at once; one that has a file is enough."""
    for i in range(80):
      write_tar(tmp_path / f"{i:02d}.tar", [])
    (tmp_path / "80.tar").write_bytes(b"damaged" * 1_000)
    with pytest.raises(ValueError, match="tars: 80 no sample, 1 damaged file;"):
      source_of(f"{tmp_path}/*.tar", num_pairs=4)
    write_pairs(tmp_path / "81.tar", [0])
    source_of(f"{tmp_path}/*.tar", num_pairs=4)


class TestOrder:
  def test_an_epoch_has_every_pair_once(self, tars):
    source = source_of(f"{tars}/*.tar", window=8)
    batches, _ = take(source, 45)
    found = numbers(batches)
    # Tars of the next epoch begin before the last ones of this one have ended.
    counts = Counter(found[:120])
    assert set(found[:100]) == set(range(60))
    assert max(counts.values()) <= 3 and min(counts.values()) >= 1
    assert all(1 <= Counter(found)[i] <= 4 for i in range(60))

  def test_two_epochs_of_one_tar_at_a_time(self, tars, monkeypatch):
    monkeypatch.setattr(tar_stream, "TARS", 1)
    batches, _ = take(source_of(f"{tars}/*.tar", window=5), 30)
    found = numbers(batches)
    assert sorted(found[:60]) == sorted(found[60:]) == list(range(60))
    assert found[:60] != found[60:] != list(range(60))

  def test_a_window_of_one_reads_tars_in_turn(self, tars, monkeypatch):
    monkeypatch.setattr(tar_stream, "TARS", 1)
    batches, _ = take(source_of(f"{tars}/*.tar", window=1), 15)
    starts = [0, 10, 24, 36, 44, 60]
    blocks = [list(range(*x)) for x in zip(starts, starts[1:], strict=False)]
    found = numbers(batches)
    while found:
      (block,) = [x for x in blocks if x[0] == found[0]]
      assert found[: len(block)] == block
      found = found[len(block) :]
      blocks.remove(block)
    assert not blocks

  def test_same_seed_same_bits(self, tars):
    source = source_of(f"{tars}/*.tar")
    one, _ = take(source, 20)
    two, _ = take(source, 20)
    chex.assert_trees_all_equal(one, two)
    other, _ = take(source, 20, seed=4)
    assert numbers(one) != numbers(other)

  @pytest.mark.parametrize("at", [0, 3, 4, 11, 19, 27])
  def test_the_rest_from_any_position_on(self, tars, at):
    source = source_of(f"{tars}/*.tar")
    expected, states = take(source, 32)
    rest, more = take(source, 31 - at, positions=[states[at]])
    chex.assert_trees_all_equal(rest, expected[at + 1 :])
    assert more == states[at + 1 :]

  def test_processes_share_the_tars(self, tars):
    source = source_of(f"{tars}/*.tar", window=4)
    each = [
      take(source, 60, batch_size=2, process_index=i, process_count=2)[0]
      for i in range(2)
    ]
    first, second = (Counter(numbers(x)) for x in each)
    # Five tars, two processes: each reads other tars in its next turn.
    assert set(first) | set(second) == set(range(60))
    for i in range(60):
      assert 1 <= first[i] + second[i] <= 4

  def test_a_process_goes_on_where_it_was(self, tars):
    source = source_of(f"{tars}/*.tar")
    how = {"batch_size": 6, "process_count": 2, "process_index": 1}
    expected, states = take(source, 9, **how)
    other = take(source, 5, **how | {"process_index": 0})[1][4]
    rest, _ = take(source, 4, positions=[other, states[4]], **how)
    chex.assert_trees_all_equal(rest, expected[5:])

  def test_another_number_of_processes(self, tars, caplog, monkeypatch):
    monkeypatch.setattr(tar_stream, "TARS", 2)
    source = source_of(f"{tars}/*.tar", window=2)
    how = {"batch_size": 2, "process_count": 2}
    before = [take(source, 3, process_index=i, **how) for i in range(2)]
    positions = [states[-1] for _, states in before]
    with caplog.at_level(logging.WARNING):
      (now, states) = take(source, 8, positions=positions)
    assert "has changed from 2 to 1" in caplog.text
    begun = max(x[1] for x in positions)
    assert states[0][0] == begun + 1 and states[0][1] > begun
    # And from there, too, the stream can be continued.
    chex.assert_trees_all_equal(
      take(source, 4, positions=[states[3]])[0], now[4:]
    )

  def test_too_few_tars(self, tars):
    with pytest.raises(ValueError, match="3 processes cannot read 2 tars"):
      take(source_of(f"{tars}/0[12].tar"), 1, batch_size=3, process_count=3)

  def test_worker_processes_are_refused(self, tars):
    with pytest.raises(ValueError, match="set num_workers to 0"):
      take(source_of(f"{tars}/*.tar"), 1, num_workers=2)


def sample_of(kind, i):
  """The files of a sample, whose caption has its number; or of what is none."""
  picture, caption = TINY[i], f"sample {i}".encode()
  wrong = {
    "a second picture": {"jpg": picture, "png": TINY[0], "txt": caption},
    "three left out": {"seg.png": TINY[0], "jpg": picture, "png": TINY[0]}
    | {"txt": b"?!\n" + caption},
    "an empty caption": {"jpg": picture, "json": b'["?!", "%s"]' % caption},
    "captions": {"jpg": picture, "txt": caption + b"\nsample 99"},
    "more files": {"cls": b"1", "jpg": picture, "txt": caption, "npy": b"2"},
    "no caption": {"jpg": picture, "cls": b"1"},
    "only empty captions": {"jpg": picture, "txt": b"?!\n."},
    "no image": {"txt": caption},
    "unreadable": {"jpg": picture[:-9], "txt": caption},
    "too small": {"jpg": TINY[99], "txt": caption},
    "dots": {"a.jpg": picture, "a.txt": caption, "b.jpg": TINY[0]}
    | {"c.jpg": TINY[1], "c.txt": b"sample 98"},
  }
  files = wrong.get(kind, {"jpg": picture, "txt": caption})
  return [(f"{i:03d}.{ending}", content) for ending, content in files.items()]


TINY = [
  make_photos.encoded(np.full((16, 16, 3), 2 * i, np.uint8)) for i in range(99)
] + [make_photos.encoded(np.zeros((9, 16, 3), np.uint8))]
KINDS = ["good", "a second picture", "three left out", "an empty caption"]
KINDS += ["captions", "more files", "no caption", "only empty captions"]
KINDS += ["no image", "unreadable", "too small", "dots"]
ENDS = ["whole", "whole", "cut in a picture", "no end", "bad header"]


def damage(tar, how):
  size = os.path.getsize(tar)
  if how == "cut in a picture":
    os.truncate(tar, size // 2)
  elif how == "no end":
    os.truncate(tar, max(0, size - 10_240))
  elif how == "bad header":
    with open(tar, "r+b") as file:
      file.seek(size // 1024 * 512)
      file.write(b"x" * 512)


# Tars: how they end, and the kinds of their samples; () is an empty tar.
DAMAGED_TARS = st.lists(
  st.tuples(
    st.sampled_from(ENDS), st.lists(st.sampled_from(KINDS), max_size=5)
  ),
  min_size=2,
  max_size=5,
)


class TestDamagedTars:
  """Whatever is left out, a stream goes on as if nothing had stopped it."""

  @pytest.fixture(autouse=True)
  def silent(self, monkeypatch):
    monkeypatch.setattr(tar_stream.log, "disabled", True)

  def streams(self, folder, tars, *, at_once, processes, window):
    """Writes tars; makes `read(count, positions)` of all processes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    number = 0
    for i, (end, kinds) in enumerate([*tars, *GOOD_TARS]):
      files = [sample_of(kind, number + j) for j, kind in enumerate(kinds)]
      number += len(kinds)
      tar = write_tar(folder / f"{i}.tar", [x for part in files for x in part])
      damage(tar, end)
    source = tar_stream.source_of_tars(
      f"{folder}/*.tar",
      num_pairs=24,
      make_square=lambda image, random: np.append(random, image.mean()),
      encode=np.array,
      share_texts=True,
      window=window,
    )

    def read(count, positions=(), processes=processes):
      how = {"process_count": processes, "batch_size": 3 * processes}
      how["prefetch"] = 1
      with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_stream, "TARS", at_once)
        patch.setattr(tar_stream, "AHEAD", 2)
        each = [
          take(source, count, process_index=i, positions=positions, **how)
          for i in range(processes)
        ]
      batches, states = zip(*each, strict=True)
      return batches, [*zip(*states, strict=True)]

    return read

  @settings(
    max_examples=500 if LONG else 3,
    deadline=None,
    database=None,
    derandomize=not LONG,
  )
  @given(
    tars=DAMAGED_TARS,
    at_once=st.sampled_from([1, 2, 16]),
    processes=st.sampled_from([1, 2]),
    window=st.sampled_from([1, 3, 7, 50]),
  )
  def test_every_position(self, tmp_path_factory, tars, **how):
    """By induction: two batches and positions after each are the next ones."""
    count = 3
    read = self.streams(tmp_path_factory.getbasetemp() / "x", tars, **how)
    expected, states = read(count + 2)
    for at in range(count):
      found, after = read(2, states[at])
      assert after == states[at + 1 : at + 3]
      for mine, all_of_mine in zip(found, expected, strict=True):
        chex.assert_trees_all_equal(mine, all_of_mine[at + 1 : at + 3])
    # With another number of processes, the new positions can be resumed, too.
    other = 3 - how["processes"]
    now, states = read(4, states[count // 2], processes=other)
    again, after = read(2, states[1], processes=other)
    assert after == states[2:]
    chex.assert_trees_all_equal([x[2:] for x in now], [*again])

  def test_each_end(self, tmp_path):
    """A damaged and an empty tar end once, also after a resume there."""
    tars = [
      write_tar(tmp_path / "empty.tar", []),
      write_tar(tmp_path / "folder.tar", [(".hidden/a.jpg", b"")]),
      write_pairs(tmp_path / "cut.tar", range(3)),
    ]
    os.truncate(tars[2], os.path.getsize(tars[2]) - 12_000)
    (tmp_path / "nothing.tar").write_bytes(b"")
    for tar in [*tars, tmp_path / "nothing.tar"]:
      *_, (state, _) = iterator_states(tar)
      iterator = iter(tar_stream._Tar(os.fspath(tar), 0))
      iterator.set_state(state)
      assert list(iterator) == []

  def test_what_is_left_out_is_counted_on(self, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tar_stream.log, "disabled", False)
    tars = [("whole", ["three left out"] * 4)] * 2
    read = self.streams(tmp_path / "x", tars, at_once=16, processes=1, window=3)
    _, states = read(20)
    counted = [state[0][3] for state in states]
    lines = [x.split(" samples")[0] for x in warnings_in(caplog)]
    assert [x.split()[0] for x in lines] == ["1", "10", "100"]
    (at,) = [
      i
      for i, (before, after) in enumerate(
        zip(counted, counted[1:], strict=False)
      )
      if sum(before[1].values()) < 10 <= sum(after[1].values())
    ]
    caplog.clear()
    read = self.streams(tmp_path / "x", tars, at_once=16, processes=1, window=3)
    read(2, states[at])
    (line,) = [x.split(" samples")[0] for x in warnings_in(caplog)]
    assert line == lines[1]

  def test_positions_of_earlier_versions(self, tars, caplog, monkeypatch):
    """They are read: of healthy tars, the rest is exact."""
    monkeypatch.setattr(tar_stream.log, "disabled", False)
    source = source_of(f"{tars}/*.tar", window=3)
    expected, states = take(source, 9)
    first, last, state, _ = states[4]
    of_tars = state["parent_window_start_state"]["iterators_in_use_states"]
    for old in of_tars:
      assert old.pop("skip") == 0
    rest, _ = take(source, 4, positions=[[first, last, state]])
    chex.assert_trees_all_equal(rest, expected[5:])
    (line,) = warnings_in(caplog)
    assert "saved by an earlier version" in line


def warnings_in(caplog):
  return [x.getMessage() for x in caplog.records if x.levelno > logging.INFO]


def iterator_states(tar):
  """All visits of a tar; after each, the state of the iterator."""
  iterator = iter(tar_stream._Tar(os.fspath(tar), 0))
  for visit in iterator:
    yield iterator.get_state(), visit


GOOD_TARS = [("whole", ["good"] * 3), ("whole", ["good"])]  # beside the others


class TestContent:
  def test_images_are_resized_as_in_evaluation(self, tars):
    batches, _ = take(source_of(f"{tars}/*.tar"), 3, augment=False)
    expected = [
      images.resize(images.decode(photo(i)), 24) for i in numbers(batches)
    ]
    found = np.concatenate([x.image for x in batches])
    chex.assert_trees_all_equal(found, np.stack(expected))

  def test_augmentation_is_a_function_of_the_visit(self, tars, monkeypatch):
    monkeypatch.setattr(tar_stream, "TARS", 1)
    source = source_of(f"{tars}/00.tar,{tars}/02.tar", window=3)
    found, _ = take(source, 11)
    rows = list(
      zip(numbers(found), np.concatenate([x.image for x in found]), strict=True)
    )
    make_square = image_text.square_maker(size=24)
    ends = {}
    for tar in (0, 2):
      for part in tar_files.read_samples(f"{tars}/{tar:02d}.tar"):
        ends[int(part.content.key)] = part.end
    first_tar = 0 if rows[0][0] < 10 else 2
    visits = Counter()
    for number, image in rows:
      tar = 2 * visits[number] + int((0 if number < 10 else 2) != first_tar)
      if visits[number]:
        continue  # the second epoch may have another order
      visits[number] += 1
      (random,) = random_numbers(3, tar, np.array([ends[number]]))
      expected = make_square(images.decode(photo(number)), random)
      chex.assert_trees_all_equal(image, expected)
    assert len(visits) == 22

  def test_equal_contents_have_equal_ids(self, tmp_path):
    # Captions 0 and 3 are one text.
    write_pairs(tmp_path / "a.tar", [0, 1, 2, 3, 6])
    (batch,), _ = take(
      source_of(f"{tmp_path}/*.tar", num_pairs=5), 1, batch_size=5
    )
    same = lambda x: np.equal.outer(x, x).sum()
    assert batch.pair_id.dtype == batch.image_id.dtype == np.int32
    assert (batch.pair_id >= 0).all()
    # Photo 0 is there twice: 5 + 2 equal; "A dog." three times: 5 + 6.
    assert (same(batch.image_id), same(batch.text_id)) == (7, 11)
    assert same(batch.pair_id) == 7
    apart = source_of(f"{tmp_path}/*.tar", num_pairs=5, share_texts=False)
    (batch,), _ = take(apart, 1, batch_size=5)
    assert same(batch.text_id) == 7

  def test_captions_take_turns(self, tmp_path):
    caption = b'{"caption": ["sample 1", "sample 2", "sample 3"]}'
    write_tar(tmp_path / "x.tar", [("x.jpg", PHOTOS[0]), ("x.json", caption)])
    source = source_of(tmp_path / "x.tar", num_pairs=1)
    batches, _ = take(source, 5, batch_size=1)
    assert numbers(batches) == [1, 2, 3, 1, 2]

  def test_broken_samples_are_counted(self, tars, tmp_path, caplog):
    for tar in tars.glob("*.tar"):
      os.link(tar, tmp_path / tar.name)
    small = np.zeros((12, 40, 3), np.uint8)
    write_tar(
      tmp_path / "bad.tar",
      [("a.jpg", PHOTOS[0][:-9]), ("a.txt", b"cut")]
      + [("b.jpg", make_photos.encoded(small)), ("b.txt", b"small")]
      + [("c.txt", b"no image")],
    )
    with caplog.at_level(logging.WARNING):
      batches, _ = take(source_of(f"{tmp_path}/*.tar"), 60)
    assert set(numbers(batches)) == set(range(60))
    lines = [x.getMessage() for x in caplog.records]
    assert "1 of " in lines[0] and f"of {tmp_path}/bad.tar" in lines[0]
    assert len(lines) <= 2
    for reason in (images.TOO_SMALL, images.TRUNCATED):
      assert len(lines) < 2 or reason in lines[1]

  def test_nothing_that_can_be_used(self, tmp_path, monkeypatch):
    monkeypatch.setattr(tar_stream, "MOST_LEFT_OUT", 20)
    write_tar(tmp_path / "x.tar", [("x.jpg", PHOTOS[0]), ("x.cls", b"1")])
    source = source_of(tmp_path / "x.tar", num_pairs=1)
    with pytest.raises(ValueError, match="20 no caption; the last one is x of"):
      take(source, 1)


class TestBucket:
  @pytest.fixture
  def there(self, tars, monkeypatch):
    make_bucket.read_apart(monkeypatch)
    for tar in tars.glob("*.tar"):
      bucket.upload(tar, f"memory://lake/tars/{tar.name}")
      stats = tar.with_name(f"{tar.stem}_stats.json")
      stats.write_text('{"successes": 12}')
      bucket.upload(stats, f"memory://lake/tars/{stats.name}")
      stats.unlink()
    yield "memory://lake/tars"
    bucket.remove("memory://lake")

  @pytest.mark.parametrize("names", ["*.tar", "{00..04}.tar"])
  def test_same_batches(self, tars, there, names):
    far = source_of(f"{there}/{names}", num_pairs=None)
    near = source_of(f"{tars}/*.tar")
    assert far.sizes == near.sizes and far.fingerprint == near.fingerprint
    expected, states = take(near, 20)
    found, far_states = take(far, 20)
    chex.assert_trees_all_equal(found, expected)
    # A run can go on with a copy of the tars in another place.
    rest, _ = take(near, 9, positions=[far_states[10]])
    chex.assert_trees_all_equal(rest, expected[11:])
    assert far_states == states

  @pytest.mark.parametrize("failures", [2, 9])
  def test_a_connection_that_is_lost(self, tars, there, monkeypatch, failures):
    open_file, left = bucket.open_file, [failures]
    expected, _ = take(source_of(f"{tars}/00.tar"), 3)
    source = source_of(f"{there}/00.tar")

    def fail(path):
      if left[0]:
        left[0] -= 1
        raise bucket.Unreached(f"{path} cannot be reached: Timeout")
      return open_file(path)

    monkeypatch.setattr(bucket, "open_file", fail)
    monkeypatch.setattr(files.local, "PAUSE", 0.001)
    if failures == 2:
      chex.assert_trees_all_equal(take(source, 3)[0], expected)
      return
    with pytest.raises(ValueError, match="after 4 attempts: memory.*Timeout"):
      take(source, 3)


def test_a_fingerprint_names_the_tars(tars):
  names = [f"{i:02d}.tar" for i in range(5)]
  expected = f"tars/5/60/{zlib.crc32(repr(names).encode()):08x}"
  assert source_of(f"{tars}/*.tar").fingerprint == expected


def test_pairs_cannot_be_read_by_id(tars):
  source = source_of(f"{tars}/*.tar")
  for read in (source.fetch, source.ids, source.captions):
    with pytest.raises(ValueError, match="index the tars with nuclr ingest"):
      read(np.arange(2))


def config_of(tars, objective="clip", **changes):
  """Two epochs of 7 steps, which recompute batch statistics."""
  config = load_config(f"cc3m:own,smoke,{objective}").to_dict()
  config["data"] |= {"train": f"{tars}/*.tar", "num_pairs": 60, "window": 16}
  config["data"] |= {"tokenizer": TOKENIZER, "size": 16, "length": 6}
  for kind in ("validation", "test", "zero_shot", "probes"):
    config["data"][kind] = ()
  config["data"]["validation_zero_shot"] = ()
  config["model"]["image"] |= {"stages": (1,), "width": 4}
  steps = {"batch_size": 8, "num_epochs": 2.0, "log_every": 1}
  steps |= {"eval_every_epochs": 1.0, "checkpoint_every": 4}
  return config | steps | changes


class TestRuns:
  @pytest.mark.parametrize(
    "config, objective",
    [("nuclr", "nuclr"), ("sogclr", "sogclr"), ("tempnet", "sogclr")],
  )
  def test_objectives_that_need_ids(self, tars, tmp_path, config, objective):
    with pytest.raises(ValueError, match=f"the objective {objective} keeps"):
      fit(config_of(tars, config), tmp_path / "run")

  @pytest.mark.parametrize(
    "objective", ["clip", "siglip", "cyclip", "spectral", "vicreg", "debiased"]
  )
  def test_objectives_that_need_none(self, tars, objective):
    assert build.build(config_of(tars, objective)).num_steps == 14

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"tokenizer": "build"}, "whose captions are not known in advance"),
      ({"weights": (1.0,)}, "data.weights is for prepared data sets"),
      ({"train": "glyphs"}, "data.num_pairs is for a stream of tars"),
    ],
  )
  def test_data_that_do_not_fit(self, tars, changes, message):
    config = config_of(tars)
    config["data"] |= changes
    with pytest.raises(ValueError, match=message):
      build.build(config)
