"""Duplicate photos, planted and found by the names of their files."""

import csv
import functools
import json

import make_captioned
import make_pairs
import make_photos
import numpy as np
import pytest
import read_page
from repository import CLIP

from nuclr_jax import popularity
from nuclr_jax.lab import ingest
from nuclr_jax.lab.data import embeddings
from nuclr_jax.lab.export import Embedder, write_embeddings
from nuclr_jax.lab.report import duplicates, neighbours, subject
from nuclr_jax.lab.report import popularity as popularity_page
from nuclr_jax.lab.train import untrained
from nuclr_jax.lab.user_files.items import Item
from nuclr_jax.types import Pairs, Sides


def table(path):
  with path.open(newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def colours(x):
  """Unit-norm colours of a coarse grid of an image: near copies are similar."""
  rows = np.float32(x).reshape(len(x), 4, 8, 4, 8, 3).mean(axis=(2, 4))
  rows = rows.reshape(len(x), -1) - 128
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def lengths(captions):
  angle = np.array([len(x) for x in captions]) / 50
  row = np.stack([np.cos(angle), np.sin(angle)], axis=1)
  return np.float32(np.pad(row, [(0, 0), (0, 46)]))


class Cut:
  """Stands in for a tokenizer of 12 letters."""

  length = 12

  def is_cut(self, captions):
    return np.array([len(x) > self.length for x in captions])


MODEL = Embedder(Sides(colours, lengths), 32, tokenizer=Cut())
PHOTOS = [make_photos.pixels(i) for i in range(6)]
FILES = [make_photos.encoded(x, quality=95) for x in PHOTOS]
ITEMS = [
  Item("sea.jpg", "x", FILES[0], ["the sea"]),
  Item("sea again.jpg", "x", FILES[0], ["the sea"]),  # copies, equal captions
  Item("dog.jpg", "x", FILES[1], ["a dog in the park"]),
  Item("cat.jpg", "x", FILES[1], ["two cats"]),  # copies, different captions
  Item("tree.jpg", "x", FILES[2], ["a tree"]),
  Item(
    "small tree.jpg",
    "x",
    make_photos.encoded(PHOTOS[2], quality=60),
    ["a tree"],
  ),
  Item("party.jpg", "x", FILES[3], ["a party"]),
  Item("party too.jpg", "x", FILES[4], ["a party"]),  # not the same photo
  Item("scan.jpg", "x", FILES[5], []),
  Item("scan (1).jpg", "x", FILES[5], []),  # copies without a caption
  Item("broken.jpg", "x", b"no photo", ["a photo"]),
]
EXPECTED = [
  {"sea.jpg", "sea again.jpg"},
  {"dog.jpg", "cat.jpg"},
  {"tree.jpg", "small tree.jpg"},
  {"scan.jpg", "scan (1).jpg"},
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """The folder of results about `ITEMS`."""
  folder = tmp_path_factory.mktemp("photos")
  write_embeddings(MODEL, ITEMS, folder / "embeddings", thumbnails=True)
  given = subject.from_files(str(folder / "embeddings"), temperature=0.02)
  popularity_page.write(given, folder)
  return folder / "popularity"


class TestFolder:
  def test_copies_are_listed_by_name(self, written):
    rows = table(written / "duplicates.csv")
    clusters = {}
    for row in rows:
      clusters.setdefault(row["cluster"], set()).add(row["key"])
      assert {row["key"], row["nearest"]} in EXPECTED
      near = "tree" in row["key"]
      assert row["kind"] == ("near" if near else "exact")
      assert 0.99 <= float(row["similarity"]) <= 1
      assert near or float(row["similarity"]) == 1
    assert list(clusters) == ["1", "2", "3", "4"]
    assert list(clusters.values()) == EXPECTED

  def test_other_tables_agree(self, written):
    """Copies are one image there, in the cluster of all of them."""
    number = {
      x["image"]: x["cluster"] for x in table(written / "duplicates.csv")
    }
    images = table(written / "images.csv")
    assert [x["key"] for x in images] == [
      *("sea.jpg", "dog.jpg", "tree.jpg", "small tree.jpg"),
      *("party.jpg", "party too.jpg"),
    ]
    assert all(x["cluster"] == number.get(x["id"], "0") for x in images)
    assert {x["key"] for x in table(written / "suspects.csv")} == {
      x.key for x in ITEMS[:8]
    }

  def test_what_is_left_out_is_counted(self, written):
    summary = json.loads((written / "summary.json").read_text())
    expected = dict(
      photos=10,
      pairs=8,
      without_caption=2,
      rejected=1,
      captions_cut=1,
      duplicate_clusters=4,
      exact_copies=6,
      near_copies=2,
    )
    assert expected.items() <= summary.items()
    page = (written / "popularity.html").read_text()
    assert "2 images without a caption" in page
    assert "1 images and captions that were rejected" in page
    listed = read_page.lists(written / "popularity.html")["duplicates"]
    copies = {
      key: (kind, nearest, caption)
      for key, kind, nearest, caption in zip(
        *(listed[x] for x in ("key", "kind", "nearest", "caption")),
        strict=True,
      )
    }
    assert copies["scan.jpg"] == ("exact", "scan (1).jpg", "")
    assert copies["cat.jpg"] == ("exact", "dog.jpg", "two cats")

  def test_no_pairs_leave_nothing(self, tmp_path):
    with pytest.raises(ValueError, match="none of 2 images has a caption"):
      write_embeddings(MODEL, ITEMS[8:], tmp_path / "out", pairs=True)
    assert not list(tmp_path.iterdir())

  def test_folders_of_others(self, tmp_path, written):
    """Without hashes of files and counts, copies are near ones."""
    from pyarrow import parquet

    folder = written.parent / "embeddings"
    for path in folder.iterdir():
      if path.name not in ("SHA256SUMS", embeddings.COUNTS):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    images = parquet.read_table(folder / embeddings.IMAGES)
    parquet.write_table(images.select(["key"]), tmp_path / embeddings.IMAGES)
    given = subject.from_files(str(tmp_path), temperature=0.02)
    found = duplicates.find(given)
    assert len(found.clusters) == 4 and not found.is_exact.any()


def test_spellings_of_a_caption_are_one_text(tmp_path):
  """As it is spelt first, although a model tells the spellings apart."""
  captions = ["a dog", "a dog...", "two cats", "A dog", "A  DOG!", "a tree"]
  items = [Item(f"{i}.jpg", "x", FILES[i], [x]) for i, x in enumerate(captions)]
  write_embeddings(MODEL, items, tmp_path / "embeddings")
  given = subject.from_files(str(tmp_path / "embeddings"), temperature=0.5)
  popularity_page.write(given, tmp_path)
  rows = table(tmp_path / "popularity" / "texts.csv")
  assert [(x["caption"], x["pairs"]) for x in rows] == [
    ("a dog", "4"), ("two cats", "1"), ("a tree", "1"),
  ]  # fmt: skip
  text_id = np.array([0, 0, 1, 0, 0, 2])
  text = lengths(["a dog", "two cats", "a tree"])[text_id]
  expected = popularity.solve(
    given.pairs.image, text, temperature=0.5, text_id=text_id
  )
  found = [float(x["zeta_exact"]) for x in rows]
  np.testing.assert_allclose(found, expected.zeta.text, atol=5e-3)
  np.testing.assert_allclose(given.pairs.text, text, atol=1e-6)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """Data sets with a copy: `mine` has names of files, `others` has none."""
  folder = tmp_path_factory.mktemp("prepared")
  photos = make_photos.photo_folder(folder / "photos")
  for i, caption in enumerate(make_photos.CAPTIONS):
    (photos / "sub" / f"{i}.txt").write_text(caption)
  (photos / "copy.jpg").write_bytes(make_photos.PHOTOS[2])
  (photos / "copy.txt").write_text("another caption")
  ingest.ingest(str(photos), "mine", data_dir=folder)
  copies = [*make_captioned.ROWS, (make_captioned.B, ["a bird"])]
  make_captioned.prepare(folder, {"train": copies}, name="Others")
  return folder


class TestPrepared:
  def opened(self, data_dir, name):
    config = untrained.config_of_published(CLIP, data=[name], data_dir=data_dir)
    opened = untrained.open_untrained(config, data_dir=data_dir)
    return subject.from_state(*opened, temperature=1e-4)

  def test_names_of_files(self, prepared, tmp_path, monkeypatch):
    # The model can hardly tell photos apart: to solve would take thousands.
    few = functools.partial(popularity.solve_sampled, max_iterations=10)
    monkeypatch.setattr(popularity, "solve_sampled", few)
    popularity_page.write(self.opened(prepared, "mine"), tmp_path)
    folder = tmp_path / "popularity"
    names = {"copy.jpg"} | {f"sub/{i}.jpg" for i in range(6)}
    assert {x["key"] for x in table(folder / "suspects.csv")} == names
    rows = table(folder / "duplicates.csv")
    assert [(x["key"], x["kind"], x["nearest"]) for x in rows] == [
      ("copy.jpg", "exact", "sub/2.jpg"),
      ("sub/2.jpg", "exact", "copy.jpg"),
    ]

  def test_data_sets_without_names(self, prepared):
    """Their records have numbers; captions of a record are no copies."""
    given = self.opened(prepared, "others")
    assert given.photos.names == [f"record {i}" for i in range(4)]
    found = duplicates.find(given)
    assert [list(x) for x in found.clusters] == [[0, 2], [1, 3]]
    assert given.keys(np.array([1, 2])) == ["record 0", "record 1"]


def planted(trained):
  """Images 0 and 1 are alike and of one text, 2 and 3 of two; 4 is 5."""
  x = make_pairs.unit_rows(0, 6, 16)
  x[1], x[3], x[5] = x[0], x[2], x[4]
  text_id = np.array([0, 0, 1, 2, 3, 3])
  content = np.array([0, 1, 2, 3, 4, 4])
  pairs = Pairs(x, x, np.arange(6), content, text_id)
  photos = subject.Photos(x, content, np.arange(6), lambda rows: None, None)
  captions = [f"text {i}" for i in range(4)]
  return subject.Subject(
    pairs,
    0.1,
    lambda ids: [captions[i] for i in ids],
    photos,
    trained=trained,
  )


@pytest.mark.parametrize("trained", [False, True])
def test_training_makes_images_of_a_caption_alike(trained):
  """They are then no copies, unless they are exact ones."""
  given = planted(trained)
  found = duplicates.find(given)
  expected = [[0, 1], [2, 3], [4, 5]][1 if trained else 0 :]
  assert [list(x) for x in found.clusters] == expected
  np.testing.assert_array_equal(found.is_exact, [0, 0, 0, 0, 1, 1])
  columns = duplicates.columns(given, found)
  assert "key" not in columns and len(columns["nearest"]) == 2 * len(expected)


def test_no_duplicates():
  given = planted(trained=False)
  few = np.array([0, 2, 4])
  photos = given.photos._replace(
    embedding=given.photos.embedding[few],
    content=few,
    of_pairs=np.array([0, 0, 1, 1, 2, 2]),
  )
  given = given._replace(photos=photos)
  found = duplicates.find(given)
  assert not found.clusters and (found.nearest == -1).all()
  assert all(len(x) == 0 for x in duplicates.columns(given, found).values())
  assert "0 clusters" in duplicates.listing(given, found).about


@pytest.mark.parametrize("few", [20, 19])
def test_nearest_members_by_loops(few, monkeypatch):
  monkeypatch.setattr(neighbours, "FEW", few)  # 20 are few, or too many
  x, content = make_pairs.unit_rows(0, 20, 4), np.arange(20) % 17
  nearest, similarity = neighbours.nearest_members(x, content)
  for i in range(20):
    others = [j for j in range(20) if j != i]
    copies = [j for j in others if content[j] == content[i]]
    best = max(copies or others, key=lambda j: x[i] @ x[j])
    assert nearest[i] == best
    expected = 1 if copies else x[i] @ x[best]
    assert similarity[i] == pytest.approx(expected, abs=1e-6)
