"""Embeddings in files, and training on them."""

import json

import cv2
import make_pairs
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
import shapes

from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.data import embeddings, images, loader
from nuclr_jax.lab.evaluate import evaluators
from nuclr_jax.lab.export import Embedder, embedder_of_config, write_embeddings
from nuclr_jax.lab.export.embed import REJECTED
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.report import subject
from nuclr_jax.lab.user_files.items import Item, Rejected
from nuclr_jax.types import Sides


def items(count, rng):
  """Photos with 0, 1 or 2 captions each; numbers 2 and 5 are no good."""
  for i in range(count):
    if i == 2:
      yield Rejected("2", "x.tar", "missing image")
      continue
    photo = shapes.encode(shapes.draw(rng, "red", "circle"))
    captions = [f"photo {i}", f"Photo {i}, again"][: i % 3]
    yield Item(str(i), "x.tar", b"no photo" if i == 5 else photo, captions)


def model(size=8):
  """Embeds a photo as its mean colour, a caption as its length."""
  return Embedder(
    Sides(
      image=lambda x: x.reshape(len(x), -1, 3).mean(axis=1),
      text=lambda captions: np.array([[len(x), 1.0] for x in captions]),
    ),
    size,
  )


def test_files_have_a_row_for_everything(tmp_path, monkeypatch):
  monkeypatch.setattr(evaluators, "CHUNK", 4)  # several chunks
  counts = write_embeddings(
    model(), items(11, np.random.default_rng(0)), tmp_path / "out"
  )
  assert counts == dict(
    images=9, captions=6, without_caption=4, captions_cut=0, rejected=2
  )
  stored = (tmp_path / "out" / embeddings.COUNTS).read_text()
  assert json.loads(stored) == counts
  data = embeddings.open_embeddings(tmp_path / "out")
  keys = parquet.read_table(tmp_path / "out" / embeddings.IMAGES)["key"]
  assert keys.to_pylist() == [str(i) for i in range(11) if i not in (2, 5)]
  expected = [x for x in items(11, np.random.default_rng(0)) if x.key != "2"]
  expected = [x for x in expected if x.key != "5"]
  np.testing.assert_array_equal(
    data.image_of_text,
    [i for i, item in enumerate(expected) for _ in item.captions],
  )
  assert data.captions == [c for item in expected for c in item.captions]
  np.testing.assert_array_equal(
    data.text[:, 0], [len(c) for c in data.captions]
  )
  again = write_embeddings(
    model(),
    [item._replace(captions=()) for item in expected[:1]],
    tmp_path / "one",
  )
  assert (again["images"], again["captions"]) == (1, 0)
  one = np.load(tmp_path / "one" / "image.npy")
  np.testing.assert_allclose(one[0], data.image[0])
  rejected = (tmp_path / "out" / REJECTED).read_text().splitlines()
  reasons = {(json.loads(x)["key"], json.loads(x)["reason"]) for x in rejected}
  assert reasons == {("2", "missing image"), ("5", "unreadable image")} | {
    (str(i), "no caption") for i in (0, 3, 6, 9)
  }


def test_a_photo_whose_captions_are_empty_is_listed_once(tmp_path):
  (photo, *_) = items(1, np.random.default_rng(0))
  inputs = [photo._replace(captions=["", "?!"])]
  count = write_embeddings(model(), inputs, tmp_path / "out")
  assert (count["images"], count["captions"]) == (1, 0)
  assert (count["without_caption"], count["rejected"]) == (1, 0)
  (line,) = (tmp_path / "out" / REJECTED).read_text().splitlines()
  assert json.loads(line)["reason"] == "no caption"


def test_why_a_photo_has_no_caption(tmp_path):
  first, second, *_ = items(2, np.random.default_rng(0))
  inputs = [first._replace(captions=["", "caf\ufffd", "caf\ufffd"])]
  inputs += [second._replace(captions=["['a dog' 'a cat']"])]
  count = write_embeddings(model(), inputs, tmp_path / "out")
  assert (count["without_caption"], count["rejected"]) == (1, 0)
  (line,) = (tmp_path / "out" / REJECTED).read_text().splitlines()
  assert json.loads(line)["reason"] == "caption is not UTF-8"
  data = embeddings.open_embeddings(tmp_path / "out")
  assert data.captions == ["a dog", "a cat"]


def test_texts_are_cleaned_and_equal_keys_stay_apart(tmp_path):
  rng = np.random.default_rng(0)
  photos = [
    shapes.encode(shapes.draw(rng, x, "circle")) for x in shapes.COLOURS
  ]
  inputs = [
    Item("a", "1.tar", photos[0], ["a dog", " \udce9 ?!", ""]),
    Item("a", "2.tar", photos[1], ["a\ud800 cat"]),
    Item("caf\udce9", "2.tar", photos[0], ["a dog again"]),
  ]
  count = write_embeddings(model(), inputs, tmp_path / "out")
  assert (count["images"], count["captions"]) == (3, 3)
  assert (count["rejected"], count["without_caption"]) == (2, 0)
  data = embeddings.open_embeddings(tmp_path / "out")
  assert data.captions == ["a dog", "a? cat", "a dog again"]
  index = embeddings.index_of_rows(data)
  assert index.image_id.tolist() == [0, 1, 0]  # by content
  # The folder's popularities can be asked for.
  opened = subject.from_files(str(tmp_path / "out"), temperature=0.1)
  assert opened.pairs.ids.image.tolist() == [0, 1, 0]
  assert list(opened.captions(opened.pairs.ids.text)) == data.captions
  rows = np.float32(data.image)
  rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  np.testing.assert_allclose(opened.pairs.image, rows, rtol=1e-5)


def test_icons_are_embedded_as_ingest_stores_them(tmp_path):
  """Black ones are six pictures by both routes, and a white one is none."""
  icons = []
  for i in range(6):
    alpha = np.zeros((32, 32), np.uint8)
    alpha[4 * i : 4 * i + 8, 8:24] = 255
    icons.append(_icon(np.zeros((32, 32, 3), np.uint8), alpha))
  hidden = np.full((32, 32, 3), 90, np.uint8)
  hidden[:8, 8:24] = 0  # another file of the first picture
  twin = _icon(hidden, np.where(hidden[..., 0] == 0, 255, 0))
  white = _icon(np.full((32, 32, 3), 255, np.uint8), alpha)
  files = [*icons, twin, white, icons[0][:-20]]
  given = [Item(str(i), "x.tar", x, [f"icon {i}"]) for i, x in enumerate(files)]
  seen = []

  def embed(squares):
    seen.extend(squares)
    return np.float32(squares.reshape(len(squares), -1)) + 1

  text = lambda captions: np.ones((len(captions), 32 * 32 * 3), np.float32)
  folder = tmp_path / "out"
  write_embeddings(Embedder(Sides(embed, text), 32), given, folder)
  kept = [x for x in records.check_items(given) if isinstance(x, Item)]
  assert len(kept) == len(seen) == 7
  for item, square in zip(kept, seen, strict=True):
    # A stored JPEG blurs edges.
    stored = images.decode(item.image)
    assert np.abs(np.int32(stored) - square).mean() < 2
  content = embeddings.read_column(folder, embeddings.CONTENT)
  stored = [item.image for item in kept]
  groups = [[x.index(y) for y in x] for x in (content, stored)]
  assert groups == [[0, 1, 2, 3, 4, 5, 0]] * 2
  lines = (folder / REJECTED).read_text().splitlines()
  found = {json.loads(x)["key"]: json.loads(x)["reason"] for x in lines}
  bad = [x for x in records.check_items(given) if isinstance(x, Rejected)]
  assert found == {x.key: x.reason for x in bad}
  assert found == {"7": "nothing to see on white", "8": "truncated image"}


def _icon(colours, alpha):
  bgra = np.dstack([colours, np.uint8(alpha)])
  return cv2.imencode(".png", bgra)[1].tobytes()


def test_the_model_of_a_config_opens_without_data(tmp_path):
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "red", "circle"]
  (tmp_path / "vocab.txt").write_text("\n".join(words))
  config = load_config("cc3m:smoke,clip")
  config.data.update(dict(train="nothing", tokenizer=str(tmp_path)))
  with embedder_of_config(config, data_dir=tmp_path) as opened:
    images = opened.encode.image(np.zeros((3, 32, 32, 3), np.uint8))
    texts = opened.encode.text(["a red circle", "a circle"])
  assert images.shape == (3, 32) and texts.shape == (2, 32)
  np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, rtol=1e-5)
  config.data.tokenizer = "build"
  with pytest.raises(ValueError, match="no data set"):
    with embedder_of_config(config, data_dir=tmp_path):
      pass


def test_damaged_rows_are_refused(tmp_path):
  folder = tmp_path / "out"
  write_embeddings(model(), items(3, np.random.default_rng(0)), folder)
  damaged = bytearray((folder / "image.npy").read_bytes())
  damaged[-1] ^= 1
  (folder / "image.npy").write_bytes(damaged)
  with pytest.raises(ValueError, match="is damaged: image.npy has changed"):
    embeddings.open_embeddings(folder)


def test_nothing_half_written(tmp_path):
  with pytest.raises(ValueError, match="no image could be embedded"):
    write_embeddings(model(), [Item("a", "x", b"", ["a"])], tmp_path / "out")
  assert not (tmp_path / "out").exists()
  write_embeddings(
    model(), items(2, np.random.default_rng(0)), tmp_path / "out"
  )
  with pytest.raises(ValueError, match="exists already"):
    write_embeddings(model(), [], tmp_path / "out")


def write_pairs(folder, rng, count, *, dim=8):
  """Images of a few latent numbers, and two captions each that show them."""
  latent = rng.normal(size=(count, dim))
  mix = np.random.default_rng(9).normal(size=(2, dim, dim))
  texts = np.repeat(latent, 2, axis=0)
  pixels = {f"{i}": x for i, x in enumerate(latent @ mix[0])}
  words = {f"text {i} of {count}": x for i, x in enumerate(texts @ mix[1])}
  encode = Sides(
    image=lambda x: np.stack([pixels[str(int(i))] for i in x[:, 0, 0, 0]]),
    text=lambda captions: np.stack([words[x] for x in captions]),
  )
  captions = list(words)
  photos = [
    Item(str(i), "x", _number(i), captions[2 * i : 2 * i + 2])
    for i in range(count)
  ]
  write_embeddings(Embedder(encode, 16), photos, folder)


def _number(i):
  """An image whose value says which it is; PNG keeps it exactly."""
  flat = np.full((16, 16, 3), i, np.uint8)
  return cv2.imencode(".png", flat)[1].tobytes()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  folder, rng = tmp_path_factory.mktemp("cached"), np.random.default_rng(1)
  write_pairs(folder / "train", rng, 250)
  write_pairs(folder / "test", rng, 40)
  return folder


def test_pairs_of_rows(folders):
  data = embeddings.open_embeddings(folders / "train")
  source = embeddings.source_of_rows(data)
  assert source.sizes == (500, 250, 500)
  with loader.batches(source, batch_size=50, seed=0) as stream:
    batch = next(stream)
  np.testing.assert_array_equal(batch.image_id, batch.pair_id // 2)
  np.testing.assert_array_equal(batch.image, data.image[batch.pair_id // 2])
  np.testing.assert_array_equal(batch.text, data.text[batch.pair_id])
  captions = source.captions(batch.text_id)
  rows = embeddings.Lookup([data]).encode(captions)
  np.testing.assert_array_equal(rows, batch.text)
  assert source.files.of_pairs(np.array([0, 1, 2])).tolist() == [0, 0, 1]
  assert source.files.names(np.array([3, 0])) == ["3", "0"]
  keys = source.keys()
  assert [len(x) for x in keys] == [500, 250, 500]
  assert all(len(np.unique(x)) == len(x) for x in keys)


def test_errors(folders, tmp_path):
  with pytest.raises(ValueError, match="lacks image.npy"):
    embeddings.open_embeddings(tmp_path)
  data = embeddings.open_embeddings(folders / "train")
  with pytest.raises(ValueError, match="no cached embedding of 'a dog'"):
    embeddings.Lookup([data]).encode(["a dog"])
  other = data._replace(text=data.text[::-1])
  with pytest.raises(ValueError, match="two different rows; embed all"):
    embeddings.Lookup([data, other])
  narrow = data._replace(image=data.image[:, 1:])
  with pytest.raises(ValueError, match="different widths"):
    embeddings.Lookup([data, narrow])
  np.save(tmp_path / "image.npy", np.zeros((3, 2), np.float32))
  for name in ("text.npy", embeddings.IMAGES, embeddings.TEXTS):
    (tmp_path / name).write_bytes((folders / "train" / name).read_bytes())
  with pytest.raises(ValueError, match="image.npy has 3 rows, images.parquet"):
    embeddings.open_embeddings(tmp_path)


FORGED = {
  "thumbnail": b"\xff\xd8" + bytes(400_000),
  "key": "k" * 400_000,
  "caption": "a dog" * 100_000,
}


def forge(folder, column=None, value=None, rows=400):
  """What `nuclr embed` writes, with one value in all rows of a column."""
  folder.mkdir()
  unit = make_pairs.unit_rows(0, rows, 8)
  black = images.thumbnail(np.zeros((9, 9, 3), np.uint8))
  photos = {
    "key": [f"{i}.jpg" for i in range(rows)],
    "content": np.arange(rows, dtype=np.uint64),
    "thumbnail": [black] * rows,
  }
  captions = [f"dog {i}" for i in range(rows)]
  texts = {"image": np.arange(rows), "caption": captions}
  for table in (photos, texts):
    if column in table:
      table[column] = [value] * rows
  for name in embeddings.ARRAYS:
    np.save(folder / name, np.float32(unit))
  for name, table in ((embeddings.IMAGES, photos), (embeddings.TEXTS, texts)):
    parquet.write_table(pyarrow.table(table), folder / name)
  return str(folder)


@pytest.mark.parametrize("column", FORGED)
def test_a_value_that_all_rows_share(column, tmp_path):
  """It is stored once, and would be made as often as there are rows."""
  folder = forge(tmp_path / "x", column, FORGED[column])
  assert sum(x.stat().st_size for x in (tmp_path / "x").iterdir()) < 2**20
  with pytest.raises(ValueError, match=rf"column {column} has [12]\.?\d*e\+08"):
    subject.from_files(folder, temperature=0.1)


def test_ordinary_tables_are_read(tmp_path):
  found = subject.from_files(forge(tmp_path / "x"), temperature=0.1)
  assert found.images(np.arange(3)).shape == (3, 96, 96, 3)
  assert found.captions(found.pairs.text_id[:1]) == ["dog 0"]
  assert found.photos.names[399] == "399.jpg"


@pytest.mark.parametrize(
  "column, value",
  [
    *(("key", 1), ("key", b"\xff"), ("thumbnail", 1), ("thumbnail", "x")),
    *(("content", -1), ("content", "1"), ("content", float("nan"))),
    *(("caption", ["a dog"]), ("caption", b"a dog")),
  ],
)
def test_columns_of_another_type(column, value, tmp_path):
  folder = forge(tmp_path / "x", column, value, rows=5)
  with pytest.raises(ValueError, match=f"parquet .*column {column} holds"):
    subject.from_files(folder, temperature=0.1)


def test_rows_without_numbers(tmp_path):
  folder = forge(tmp_path / "x", rows=5)
  np.save(tmp_path / "x" / "text.npy", np.zeros((5, 0), np.float32))
  with pytest.raises(ValueError, match=r"text.npy .* float32\(5, 0\)"):
    subject.from_files(folder, temperature=0.1)


def test_thumbnails_that_are_none(tmp_path, caplog):
  """The page comes with grey squares, not after hours of solving an error."""
  large = cv2.imencode(".png", np.zeros((800, 800, 3), np.uint8))[1].tobytes()
  for name, bad in (("a", b"no image"), ("b", large)):
    path = forge(tmp_path / name, "thumbnail", bad, rows=5)
    found = subject.from_files(path, temperature=0.1)
    assert (found.images(np.arange(4)) == 128).all()
    assert "4 of 4 thumbnails that the page shows cannot" in caplog.text
    caplog.clear()
