"""Folders of shards as they are found: deep, mixed, incomplete, or others'."""

import logging
import shutil

import make_photos
import make_shards
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from nuclr_jax.lab.data import shards


def opened(place, scratch):
  return shards.open_shards(str(place), scratch=scratch)


def target(place, scratch, **how):
  return shards.open_images(place, scratch=scratch, **how)


@pytest.fixture
def scratch(tmp_path):
  (tmp_path / "scratch").mkdir()
  return tmp_path / "scratch"


def moved(folder, pattern, to):
  """Moves files to a folder; returns it."""
  to.mkdir(parents=True, exist_ok=True)
  for path in sorted(folder.glob(pattern)):
    path.rename(to / path.name)
  return to


def test_shards_are_found_at_any_depth(tmp_path, scratch):
  """Also behind links, each folder once, and a circle of them is no trap."""
  folder = make_shards.datacomp(tmp_path / "d", (5, 6, 7))
  moved(folder, "00000001.*", folder / "a" / "b" / "c")
  moved(folder, "00000002.*", tmp_path / "elsewhere")
  (folder / "link").symlink_to(tmp_path / "elsewhere")
  (folder / "a" / "circle").symlink_to(folder)
  image, _ = make_shards.embeddings(18)
  found = opened(folder, scratch)
  assert len(found.image) == 18 and len(found.names) == 3
  order = [*range(5), *range(5, 11), *range(11, 18)]
  np.testing.assert_array_equal(found.image.read(slice(None)), image[order])
  rows = target(folder, scratch).rows
  np.testing.assert_array_equal(rows.read(slice(None)), image[order])


def test_what_filter_wrote_is_no_shard(tmp_path, scratch, caplog):
  folder = make_shards.datacomp(tmp_path / "d")
  kept = folder / "kept"
  kept.mkdir()
  table = pyarrow.table({"uid": ["x"]})
  for name in ("kept", "unfinished.more", "incomplete.more", ".hidden"):
    (folder / name).mkdir(exist_ok=True)
    parquet.write_table(table, folder / name / "scores.parquet")
    np.savez(folder / name / "unfinished.npz", potential=[1.0])
  (kept / "summary.json").write_text("{}")
  caplog.set_level(logging.INFO)
  assert len(opened(folder, scratch).names) == 2
  assert len(target(folder, scratch).rows) == 65
  assert f"{kept} is of nuclr filter, and left out" in caplog.text
  with pytest.raises(ValueError, match="that is what nuclr filter wrote"):
    (kept / "unfinished.npz").unlink()
    opened(kept, scratch)
  (kept / "summary.json").unlink()  # now it may be anybody's
  with pytest.raises(ValueError, match="scores.parquet has no scores.npz bes"):
    opened(folder, scratch)


def test_numbers_of_clip_retrieval_are_there_once(tmp_path, scratch):
  """Not in two complete folders, in two halves, or with another zero."""
  folder = tmp_path / "c"
  for name in ("a", "b"):
    make_shards.clip_retrieval(folder / name, (5, 6))
  twice = (
    "^img_emb_0 is there twice: .*/a/img_emb/img_emb_0.npy and "
    ".*/b/img_emb/img_emb_0.npy; filter each folder by itself, or number"
  )
  for read in (opened, target):
    with pytest.raises(ValueError, match=twice):
      read(folder, scratch)
  shutil.rmtree(folder / "a" / "text_emb")
  shutil.rmtree(folder / "b" / "img_emb")
  with pytest.raises(ValueError, match="^metadata_0 is there twice: .*/a/m"):
    opened(folder, scratch)
  assert len(target(folder, scratch).rows) == 11
  other = make_shards.clip_retrieval(tmp_path / "o", (5,))
  shutil.copytree(other / "img_emb", other / "old")
  (other / "old" / "img_emb_0.npy").rename(other / "old" / "img_emb_00.npy")
  for read in (opened, target):
    with pytest.raises(ValueError, match="^img_emb_00 is there twice: "):
      read(other, scratch)


def test_files_of_a_shard_are_of_one_folder(tmp_path, scratch):
  """In it, or beside each other, whatever the folders are called."""
  image, text = make_shards.embeddings(11)

  def same(place):
    found = opened(place, scratch)
    np.testing.assert_array_equal(found.image.read(slice(None)), image)
    np.testing.assert_array_equal(found.text.read(slice(None)), text)
    picked = found.columns["caption"].pick(np.array([0, 10]))
    assert picked == ["text 0", "text 10"]

  kinds = make_shards.clip_retrieval(tmp_path / "kinds", (5, 6))
  same(kinds)
  for kind in ("img_emb", "text_emb", "metadata"):
    moved(kinds / kind, "*", kinds / f"of_{kind}")
  same(kinds)
  moved(kinds / "of_img_emb", "*", kinds)
  same(kinds)
  flat = make_shards.clip_retrieval(tmp_path / "flat", (5, 6))
  for kind in ("img_emb", "text_emb", "metadata"):
    moved(flat / kind, "*", flat)
  same(flat)
  parts = make_shards.clip_retrieval(tmp_path / "parts", (5, 6))
  for kind in ("img_emb", "text_emb", "metadata"):
    moved(parts / kind, "*_1.*", parts / "deep" / "b")
    moved(parts / kind, "*_0.*", parts / "deep" / "a" / kind)
  same(parts)
  moved(parts / "deep" / "a" / "text_emb", "*", parts / "x" / "text_emb")
  with pytest.raises(
    ValueError,
    match="img_emb_0.npy and .*text_emb_0.npy are in folders that do not bel",
  ):
    opened(parts, scratch)


def test_gaps_between_numbers_are_warned_of(tmp_path, scratch, caplog):
  folder = make_shards.clip_retrieval(tmp_path / "c", (2,) * 9)
  opened(folder, scratch)
  target(folder, scratch)
  assert not caplog.text
  for kind in ("img_emb", "text_emb", "metadata"):
    for number in (0, 3, 4, 7):
      next((folder / kind).glob(f"*_{number}.*")).unlink()
  message = "files of clip-retrieval have no number 0, 3 to 4, 7; if you have"
  for read in (opened, target):
    caplog.clear()
    read(folder, scratch)
    assert caplog.text.count(message) == len(caplog.records) == 1


def test_a_target_needs_images_alone(tmp_path, scratch):
  image, _ = make_shards.embeddings(65)
  folder = make_shards.clip_retrieval(tmp_path / "c")
  metadata = make_shards.datacomp(tmp_path / "d")
  shutil.rmtree(folder / "text_emb")
  shutil.rmtree(folder / "metadata")
  for path in metadata.glob("*.parquet"):
    path.unlink()
  for place in (folder, folder / "img_emb", metadata):
    rows = target(place, scratch).rows
    np.testing.assert_array_equal(rows.read(slice(None)), image)


def test_an_archive_of_two_kinds_is_ambiguous(tmp_path, scratch):
  path = tmp_path / "x.npz"
  np.savez(path, image=np.eye(3), l14_img=np.eye(4), b32_img=np.eye(5))
  with pytest.raises(ValueError, match="has image and l14_img, and either may"):
    target(path, scratch)
  assert target(path, scratch, arch="b32").rows.dim == 5


def test_two_layouts_in_a_folder_are_refused(tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  make_shards.clip_retrieval(folder / "c")
  for read in (opened, target):
    with pytest.raises(
      ValueError, match="npz is DataComp's, and .* clip-retrieval's; give a"
    ):
      read(folder, scratch)


def test_folders_of_something_else_have_a_hint(tmp_path, scratch):
  tars, photos, tables = (tmp_path / x for x in ("tars", "photos", "tables"))
  (tars / "train").mkdir(parents=True)
  (tars / "train" / "00000.tar").write_bytes(b"\0" * 1024)
  photos.mkdir()
  (photos / "0.jpg").write_bytes(make_photos.photo(0))
  make_shards.datacomp(tables)
  for path in tables.glob("*.npz"):
    path.unlink()
  for place, message in (
    (tars, "; that holds images: .* --input='.*/tars/train/[*].tar'"),
    (photos, "; that holds images: embed them by .*--input=.*/photos"),
    (tables, "0.parquet has no 00000000.npz beside it .download_upstream"),
  ):
    for read in (opened, target):
      with pytest.raises(ValueError, match=message) as error:
        read(place, scratch)
      assert "\n" not in str(error.value)
  np.savez(tmp_path / "x.npz", l14_img=np.eye(3), l14_txt=np.eye(3))
  with pytest.raises(
    ValueError,
    match="has DataComp's arrays .l14_img, l14_txt., and no x.parquet beside",
  ):
    opened(tmp_path / "x.npz", scratch)
