"""Embeddings in other programs' files: all layouts, and all that is wrong."""

import make_shards
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from nuclr_jax.lab import files
from nuclr_jax.lab.data import shards
from nuclr_jax.lab.data.shards import rows


def opened(place, scratch, **how):
  return shards.open_shards(str(place), scratch=scratch, **how)


@pytest.fixture
def scratch(tmp_path):
  (tmp_path / "scratch").mkdir()
  return tmp_path / "scratch"


def test_all_layouts_hold_the_same_pairs(tmp_path, scratch):
  image, text = make_shards.embeddings(65)
  np.save(tmp_path / "image.npy", image)
  np.save(tmp_path / "text.npy", text.astype(">f4"))
  np.savez(tmp_path / "both.npz", image=image.astype(float), text=text)
  places = {
    "datacomp": make_shards.datacomp(tmp_path / "d"),
    "clip_retrieval": make_shards.clip_retrieval(tmp_path / "c"),
    "arrays": f"{tmp_path}/image.npy,{tmp_path}/text.npy",
  }
  zipped = make_shards.datacomp(tmp_path / "z", save=np.savez_compressed)
  for layout, place in [
    *places.items(),
    ("arrays", tmp_path / "both.npz"),
    ("datacomp", zipped),
  ]:
    found = opened(place, scratch)
    assert found.layout == layout and found.ends[-1] == 65
    some = np.array([64, 3, 39, 40, 3])
    for side, expected in ((found.image, image), (found.text, text)):
      np.testing.assert_array_equal(side.read(some), expected[some])
      np.testing.assert_array_equal(side.read(slice(30, 50)), expected[30:50])
      part = side.subset(some)
      np.testing.assert_array_equal(part.read(slice(1, 3)), expected[[3, 39]])
      norms = np.linalg.norm(side.unit(slice(None)), axis=1)
      np.testing.assert_allclose(norms, 1, atol=1e-6)
    if layout != "arrays":
      assert found.columns["caption"].pick(some)[:2] == ["text 64", "text 3"]
      hashes, known = found.columns["caption"].hashes()
      assert len(set(hashes.tolist())) == 65 and known.all()
  assert opened(places["datacomp"], scratch, arch="b32").image.dim == 8


def test_uids_are_their_halves(tmp_path, scratch):
  found = opened(make_shards.datacomp(tmp_path / "d"), scratch)
  uids = shards.read_uids(found.columns["uid"])
  assert uids.dtype == np.dtype("u8,u8")
  assert shards.as_text(uids) == [make_shards.uid(i) for i in range(65)]


def replaced(path, **columns):
  """Replaces columns of a table."""
  table = parquet.read_table(path).to_pydict() | columns
  parquet.write_table(pyarrow.table(table), path)


def arrays_of(path, **changed):
  """Replaces arrays of an .npz file; None removes one."""
  with np.load(path) as x:
    arrays = dict(x) | changed
  np.savez(path, **{k: x for k, x in arrays.items() if x is not None})


def cut(path):
  data = path.read_bytes()
  path.write_bytes(data[: len(data) // 2])


def flipped(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(data)


def uids(*changed):
  return [x or make_shards.uid(40 + i) for i, x in enumerate(changed)]


# What is done to the second shard, and the message, which begins with its name.
WRONG = [
  (lambda x, _: cut(x), "npz cannot be read: it is cut off, or no .npz f"),
  (lambda x, _: flipped(x), "npz cannot be read: Bad CRC-32 for file"),
  (
    lambda x, _: arrays_of(x, l14_txt=None),
    "npz .*it has no array l14_txt; it",
  ),
  (lambda _, y: cut(y), "parquet cannot be read: "),
  (lambda _, y: y.unlink(), "1.npz has no 00000001.parquet beside it, with"),
  (lambda x, _: x.unlink(), "parquet has no 00000001.npz beside it; download"),
  (
    lambda x, _: arrays_of(x, l14_img=np.ones((24, 16), np.float16)),
    "l14_img of .*1.npz has 24 rows, l14_txt of .*1.npz 25, and .*1.parquet 25",
  ),
  (
    lambda _, y: parquet.write_table(parquet.read_table(y)[:9], y),
    "has 25 rows, .* 25, and .*00000001.parquet 9: they do not line up",
  ),
  (
    lambda x, _: arrays_of(
      x, l14_img=np.ones((25, 4)), l14_txt=np.ones((25, 4))
    ),
    "l14_img of .*1.npz has 4 columns, and l14_img of .*0.npz 16",
  ),
  (
    lambda x, _: arrays_of(x, l14_img=np.ones((25, 16), int)),
    "npz .*it holds int64.25, 16.; it must hold floating numbers",
  ),
  (
    lambda x, _: arrays_of(x, l14_img=np.ones((16, 25), np.float16).T),
    "stored column by column; it must",
  ),
]


@pytest.mark.parametrize(("spoil", "message"), WRONG)
def test_a_spoiled_shard_is_named(spoil, message, tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  spoil(folder / "00000001.npz", folder / "00000001.parquet")
  with pytest.raises(ValueError, match=message) as error:
    opened(folder, scratch)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("columns", "message"),
  [
    (
      {"uid": [make_shards.uid(3), *uids(*[None] * 25)[1:]]},
      r"1.parquet: uid 0{12}5ccd0{15}3 is there twice, first in .*0.parquet",
    ),
    ({"uid": uids("x", *[None] * 24)}, r"1.parquet .*'x' is no uid of 32 hex"),
    ({"uid": uids("g" * 32, *[None] * 24)}, "1.parquet .*'ggg.*' is no uid"),
    ({"uid": [None, *uids(*[None] * 25)[1:]]}, "1.parquet .*: None is no uid"),
    ({"uid": list(range(25))}, "1.parquet .*: 0 is no uid of 32"),
  ],
)
def test_spoiled_uids_are_named(columns, message, tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  replaced(folder / "00000001.parquet", **columns)
  found = opened(folder, scratch)
  with pytest.raises(ValueError, match=message):
    shards.read_uids(found.columns["uid"])


@pytest.mark.parametrize(
  ("value", "what"),
  [(np.nan, "not finite"), (np.inf, "not finite"), (0, "zero")],
)
def test_rows_without_a_direction_are_named(value, what, tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  text = make_shards.embeddings(65)[1][40:]
  text[7] = value
  arrays_of(folder / "00000001.npz", l14_txt=text)
  found = opened(folder, scratch)
  with pytest.raises(
    ValueError, match=f"^row 7 of l14_txt of .*00000001.npz is {what}; embed"
  ):
    found.text.unit(slice(30, 60))


def test_clip_retrieval_must_be_complete(tmp_path, scratch):
  folder = make_shards.clip_retrieval(tmp_path / "c")
  path = folder / "text_emb" / "text_emb_1.npy"
  cut(path)
  with pytest.raises(
    ValueError, match="text_emb_1.npy cannot be read: its .25"
  ):
    opened(folder, scratch)
  path.unlink()
  with pytest.raises(ValueError, match="has no text_emb_1.npy with it; clip-"):
    opened(folder, scratch)
  with pytest.raises(ValueError, match="--arch=l14 is for DataComp's .npz"):
    opened(folder, scratch, arch="l14")


def test_what_is_no_layout_is_explained(tmp_path, scratch):
  (tmp_path / "empty").mkdir()
  for place in (tmp_path / "empty", "a.npy,b.npz"):
    with pytest.raises(ValueError, match="--embeddings takes a folder with"):
      opened(place, scratch)
  with pytest.raises(ValueError, match="--embeddings=.*/no does not exist; "):
    opened(tmp_path / "no", scratch)
  np.savez(tmp_path / "x.npz", image=np.eye(3), text=np.eye(3), text_id=[1])
  with pytest.raises(ValueError, match="has the array text_id, which filter"):
    opened(tmp_path / "x.npz", scratch)


@pytest.mark.parametrize("image, text", [("image", "text"), ("IMG_0", "txt_0")])
def test_swapped_arrays_are_named(image, text, tmp_path, scratch):
  for name in (image, text, "a"):
    np.save(tmp_path / f"{name}.npy", np.eye(3))
  given = lambda *names: ",".join(f"{tmp_path}/{x}.npy" for x in names)
  with pytest.raises(ValueError, match=f"{text}.npy is given .* swap them"):
    shards.open_shards(given(text, image), scratch=scratch)
  for names in ((image, text), (text, "a"), ("a", image), (text, text)):
    assert len(shards.open_shards(given(*names), scratch=scratch).image) == 3


def test_all_layouts_hold_the_same_images(tmp_path, scratch):
  image, text = make_shards.embeddings(65)
  np.save(tmp_path / "x.npy", image)
  np.savez(tmp_path / "x.npz", image=image.astype(float))
  np.savez_compressed(tmp_path / "y.npz", l14_img=image, b32_img=image[:, :8])
  own = make_shards.embedded(tmp_path / "e", 65)
  folders = {
    "d": make_shards.datacomp(tmp_path / "d"),
    "z": make_shards.datacomp(tmp_path / "z", save=np.savez_compressed),
    "c": make_shards.clip_retrieval(tmp_path / "c"),
  }
  for place in (
    *(tmp_path / "x.npy", tmp_path / "x.npz", tmp_path / "y.npz", own),
    *(*folders.values(), folders["d"]),
  ):
    found = shards.open_images(place, scratch=scratch)
    np.testing.assert_array_equal(found.rows.read(slice(None)), image)
    assert found.paths and all(x.exists() for x in found.paths)
  b32 = [
    shards.open_images(x, scratch=scratch, arch="b32").rows.dim
    for x in (folders["d"], tmp_path / "y.npz", folders["c"], own)
  ]
  assert b32 == [8, 8, 16, 16]


def test_what_holds_no_images_is_explained(tmp_path, scratch):
  (tmp_path / "empty").mkdir()
  (tmp_path / "texts").mkdir()
  np.save(tmp_path / "texts" / "text.npy", np.eye(3))
  np.save(tmp_path / "none.npy", np.zeros((0, 4)))
  np.save(tmp_path / "row.npy", np.ones(4))
  np.savez(tmp_path / "x.npz", text=np.eye(3))
  for name, message in (
    ("no", "--target=.*no does not exist$"),
    ("empty", "--target takes embeddings of images: .* got .*empty"),
    ("texts", "--target takes embeddings of images: .* got .*texts"),
    ("none.npy", "none.npy has no rows; give one or more images"),
    ("row.npy", "row.npy cannot be read: it holds float64.4.; it must hold"),
    ("x.npz", "x.npz cannot be read: it has no array image; it has text"),
  ):
    with pytest.raises(ValueError, match=message) as error:
      shards.open_images(tmp_path / name, scratch=scratch)
    assert "\n" not in str(error.value)
  folder = make_shards.datacomp(tmp_path / "d")
  cut(folder / "00000001.npz")
  with pytest.raises(ValueError, match="1.npz cannot be read"):
    shards.open_images(folder, scratch=scratch)


def test_large_numbers_keep_their_direction():
  x = np.array([[3e38, 4e38 / 2], [1e-40, 0]])
  found, norms = rows.scaled(x, str)
  np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
  np.testing.assert_allclose(norms, np.linalg.norm(x, axis=1), rtol=1e-6)


def test_hidden_files_are_no_shards(tmp_path, scratch):
  folder = make_shards.datacomp(tmp_path / "d")
  (folder / "._00000002.npz").write_bytes(b"")
  assert len(opened(folder, scratch).names) == 2
  assert files.is_hidden("._00000002.npz")
