"""What tables say of the rows beside them: columns, uids, similarities."""

import logging
import uuid

import make_shards
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from nuclr_jax.lab.data import shards

L14 = "clip_l14_similarity_score"


def opened(place, scratch, **how):
  return shards.open_shards(str(place), scratch=scratch, **how)


@pytest.fixture
def scratch(tmp_path):
  (tmp_path / "scratch").mkdir()
  return tmp_path / "scratch"


def changed(path, change):
  """Replaces a table by what a function makes of its columns."""
  table = change(parquet.read_table(path).to_pydict())
  parquet.write_table(pyarrow.table(table), path)


def renamed(path, **names):
  changed(path, lambda x: {names.get(k, k): v for k, v in x.items()})


def similarity(dtype=float):
  """E_ii of the shards: of rows as they are in half precision, in float64."""
  image, text = (x.astype(float) for x in make_shards.embeddings(65))
  norms = np.linalg.norm(image, axis=1) * np.linalg.norm(text, axis=1)
  return (np.sum(image * text, axis=1) / norms).astype(dtype)


def test_rows_in_another_order_do_not_line_up(tmp_path, scratch):
  """In one shard of two, from its row 4 on; the uids alone do not show it."""
  column = {L14: similarity(np.float16).tolist()}
  folder = make_shards.datacomp(tmp_path / "d", **column)
  shards.check_scores(opened(folder, scratch), similarity())
  order = [*range(4), *range(24, 3, -1)]
  path = folder / "00000001.parquet"
  changed(path, lambda x: {k: [v[i] for i in order] for k, v in x.items()})
  found = opened(folder, scratch)
  assert len(shards.read_uids(found.columns["uid"])) == 65
  wrong, right = similarity(np.float16)[64], similarity()[44]
  assert abs(wrong - right) > 0.01
  with pytest.raises(
    ValueError,
    match=f"^{path} has {wrong:.4f} as {L14} of row 4, and row 4 of l14_img of "
    f".*00000001.npz has a similarity of {right:.4f}: the rows of "
    "00000001.parquet and 00000001.npz do not line up, or the embeddings are",
  ):
    shards.check_scores(found, similarity())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounding_is_no_mismatch(dtype, tmp_path, scratch):
  """Others divide by norms, multiply and round in half precision."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 4000, 768))
  x[1] = x[0] + rng.uniform(0, 4, size=(4000, 1)) * x[1]
  x = x.astype(dtype)
  norms = np.linalg.norm(x.astype(float), axis=2, keepdims=True).astype(dtype)
  image, text = rows = x / norms
  scores = np.sum(image * text, axis=1).astype(dtype)
  folder = tmp_path / "d"
  folder.mkdir()
  half = rows.astype(np.float16)
  np.savez(folder / "0.npz", l14_img=half[0], l14_txt=half[1])
  table = {
    "uid": [make_shards.uid(i) for i in range(4000)],
    "text": ["x"] * 4000,
    L14: scores.astype(float),
  }
  parquet.write_table(pyarrow.table(table), folder / "0.parquet")
  found = opened(folder, scratch)
  own = np.sum(found.image.unit(slice(None)) * found.text.unit(slice(None)), 1)
  assert 0 < np.abs(own - table[L14]).max() < 0.005
  shards.check_scores(found, own)


def test_scores_that_are_missing_are_not_compared(tmp_path, scratch):
  """Null, NaN, a table without the column, and the other model's."""
  scores = similarity(float).tolist()
  scores[3:6] = [None, np.nan, None]
  other = [9.0] * 65
  folder = make_shards.datacomp(
    tmp_path / "d", **{L14: scores, "clip_b32_similarity_score": other}
  )
  first, second = folder / "00000000.parquet", folder / "00000001.parquet"
  changed(first, lambda x: {k: v for k, v in x.items() if k != L14})
  found = opened(folder, scratch)
  shards.check_scores(found, similarity())
  with pytest.raises(ValueError, match="1.parquet has .* of row 0, and row 0"):
    shards.check_scores(found, np.roll(similarity(), 1))
  b32 = opened(folder, scratch, arch="b32")
  with pytest.raises(ValueError, match="0.parquet has 9.0000 as clip_b32_simi"):
    shards.check_scores(b32, similarity())
  changed(second, lambda x: x | {L14: ["high"] * 25})
  with pytest.raises(ValueError, match="1.parquet cannot be read: could not "):
    shards.check_scores(opened(folder, scratch), similarity())
  changed(second, lambda x: x | {L14: [[0.5]] * 25})
  with pytest.raises(ValueError, match=r"score holds \[0.5\], no number"):
    shards.check_scores(opened(folder, scratch), similarity())


def test_long_tables_are_compared_batch_by_batch(
  tmp_path, scratch, monkeypatch
):
  monkeypatch.setattr(shards.tables, "BATCH", 7)
  scores = similarity().tolist()
  folder = make_shards.datacomp(tmp_path / "d", **{L14: scores})
  found = opened(folder, scratch)
  shards.check_scores(found, similarity())
  wrong = similarity()
  wrong[40 + 23] += 0.02
  with pytest.raises(
    ValueError, match="1.parquet has .* of row 23, and row 23"
  ):
    shards.check_scores(found, wrong)


UIDS = [make_shards.uid(40 + i) for i in range(25)]
RAW = [bytes.fromhex(x) for x in UIDS]


@pytest.mark.parametrize(
  "values",
  [
    [str(uuid.UUID(x)) for x in UIDS],
    [x.upper() for x in UIDS],
    [x.encode() for x in UIDS],
    [str(uuid.UUID(x)).encode() for x in UIDS],
    RAW,
    pyarrow.array(RAW, pyarrow.binary(16)),
    [*UIDS[:9], *(str(uuid.UUID(x)) for x in UIDS[9:])],
  ],
)
def test_uids_have_many_forms(values, tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  changed(folder / "00000001.parquet", lambda x: x | {"uid": values})
  found = shards.read_uids(opened(folder, scratch).columns["uid"])
  assert shards.as_text(found)[40:] == UIDS


@pytest.mark.parametrize(
  "value",
  [
    UIDS[0][:31] + " ",
    UIDS[0][:30],
    "-".join([UIDS[0][:16], UIDS[0][16:]]),
    "0x" + UIDS[0][:30],
    RAW[0][:15],
    UIDS[0][:31] + "٣",
  ],
)
def test_other_forms_are_no_uids(value, tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  values = [value] * 25
  changed(folder / "00000001.parquet", lambda x: x | {"uid": values})
  with pytest.raises(ValueError, match="1.parquet cannot be read: .* is no ui"):
    shards.read_uids(opened(folder, scratch).columns["uid"])


def test_columns_are_found_in_any_letters(tmp_path, scratch, caplog):
  folder = make_shards.clip_retrieval(tmp_path / "c")
  for path in (folder / "metadata").iterdir():
    renamed(path, caption="TEXT", image_path="URL")
  found = opened(folder, scratch)
  some = np.array([64, 3])
  assert found.columns["caption"].pick(some) == ["text 64", "text 3"]
  assert found.columns["name"].pick(some) == [f"{64:09d}", f"{3:09d}"]
  assert not caplog.text
  metadata = make_shards.datacomp(tmp_path / "d")
  for path in metadata.glob("*.parquet"):
    renamed(path, uid="UID", text="Text")
  found = opened(metadata, scratch)
  assert found.columns["caption"].pick(some) == ["text 64", "text 3"]
  uids = shards.as_text(shards.read_uids(found.columns["uid"]))
  assert uids == [make_shards.uid(i) for i in range(65)]


def test_missing_columns_are_warned_of(tmp_path, scratch, caplog):
  """Those that no table has, and those that only some have."""
  folder = make_shards.clip_retrieval(tmp_path / "c")
  tables = sorted((folder / "metadata").iterdir())
  renamed(tables[1], caption="alt")
  found = opened(folder, scratch)
  assert set(found.columns) == {"name"}
  assert caplog.messages == [
    f"{tables[1]} has no column caption, and {tables[0]} has it: captions are "
    "not taken from any shard"
  ]
  caplog.clear()
  renamed(tables[0], caption="alt")
  assert set(opened(folder, scratch).columns) == {"name"}
  assert caplog.messages == [
    f"{tables[0]} has no column of captions (caption or text), so that the "
    "output has none either; it has image_path, alt: rename the column"
  ]


@pytest.mark.parametrize("name", ["uid", "text"])
def test_datacomp_has_uids_and_texts(name, tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  renamed(folder / "00000001.parquet", **{name: "other"})
  with pytest.raises(
    ValueError, match=f"1.parquet has no column {name}; it has .*other"
  ):
    opened(folder, scratch)
  renamed(folder / "00000001.parquet", other=name.upper())  # of one shard alone
  with pytest.raises(ValueError, match=f"1.parquet has no column {name}; it"):
    opened(folder, scratch)


def test_only_uids_of_datacomp_are_uids(tmp_path, scratch, caplog):
  """clip-retrieval keeps a column uid of what it was given, whatever it is."""
  folder = make_shards.clip_retrieval(tmp_path / "c", (0, 25))
  table = folder / "metadata" / "metadata_1.parquet"
  caplog.set_level(logging.WARNING)
  for path in table.parent.iterdir():
    changed(path, lambda x: x | {"uid": UIDS[: len(x["caption"])]})
  found = opened(folder, scratch)
  assert shards.as_text(shards.read_uids(found.columns["uid"])) == UIDS
  assert not caplog.text
  changed(table, lambda x: x | {"uid": [f"{i}" for i in range(25)]})
  found = opened(folder, scratch)
  assert set(found.columns) == {"caption", "name"}
  assert "'0' in the column uid is no uid of DataComp; pairs" in caplog.text


def test_files_that_shrink_are_named(tmp_path, scratch):
  """Also those that go, and arrays in a copy that was unpacked."""
  image, text = tmp_path / "image.npy", tmp_path / "text.npy"
  for path, x in zip((image, text), make_shards.embeddings(65), strict=True):
    np.save(path, x)
  # A space after the comma is no part of the name.
  found = opened(f"{image}, {text}", scratch)
  np.save(image, np.eye(3, 16))
  with pytest.raises(
    ValueError, match="^/.*/image.npy has been replaced, cut off or removed s"
  ):
    found.image.read(slice(None))
  text.unlink()
  with pytest.raises(ValueError, match="^/.*/text.npy has been replaced, cut"):
    found.text.unit(np.array([3]))


@pytest.mark.parametrize(
  ("array", "message"),
  [
    (
      np.zeros((3, 4), "V2"),
      r"2 bytes that NumPy does not know \[3, 4\], such as bfloat16; convert",
    ),
    (np.zeros((3, 4), np.longdouble), r"16, 32 or 64 bits \[pairs, dim\]"),
  ],
)
def test_other_numbers_are_refused(array, message, tmp_path, scratch):
  np.save(tmp_path / "x.npy", array)
  for read, place in (
    (shards.open_shards, f"{tmp_path}/x.npy,{tmp_path}/x.npy"),
    (shards.open_images, tmp_path / "x.npy"),
  ):
    with pytest.raises(ValueError, match=message):
      read(place, scratch=scratch)
