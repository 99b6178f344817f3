"""Embeddings of a reference model beside the pairs that they are of."""

import cloudpickle
import make_captioned
from make_pairs import unit_rows
import numpy as np
import pytest

from nuclr_jax.lab import files
from nuclr_jax.lab.data import embeddings, image_text, reference, source
from nuclr_jax.lab.data.captioned import open_captioned
from nuclr_jax.lab.data.pair_index import canonical
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.export import Embedder, write_embeddings
from nuclr_jax.lab.export.embed import array_file, table_file
from nuclr_jax.lab.user_files import inputs
from nuclr_jax.types import Sides, Sizes

N, WIDTH = 12, 5
CAPTIONS = [f"a drawing of {x}" for x in "abcdefgh"]  # of 12 pairs


@pytest.fixture(scope="module")
def pairs():
  """Twelve drawings with eight captions."""
  images = np.random.default_rng(0).integers(0, 256, (N, 4, 4, 1))
  text_id = np.int32([*range(8), 3, 3, 0, 7])
  records = source.Records(np.uint8(images), text_id, CAPTIONS, "drawings/12")
  return source.in_memory(records, np.ones((8, 3), np.int32))


def folder_of(pairs, place, **changed):
  """A folder with embeddings of pairs, or of what has been changed in it."""
  ids = pairs.ids(np.arange(pairs.sizes.num_pairs))
  content = dict(
    image=unit_rows(1, N, WIDTH),
    text=unit_rows(2, 8, WIDTH)[ids.text],
    content=pairs.keys().image,
    image_of_text=np.arange(N),
    captions=pairs.captions(ids.text),
  )
  content |= changed
  with files.fresh_folder(place) as folder:
    for side in ("image", "text"):
      with array_file(folder / f"{side}.npy") as append:
        append(content[side])
    with table_file(folder / embeddings.IMAGES) as append:
      append([{"key": "x", "content": int(x)} for x in content["content"]])
    with table_file(folder / embeddings.TEXTS) as append:
      rows = zip(content["image_of_text"], content["captions"], strict=True)
      append([{"image": int(i), "caption": x} for i, x in rows])
    files.write_digests(folder)
  return place


def open_reference(place, pairs, **options):
  folder = reference.open_folder(place)
  return reference.open_reference(folder, pairs, **options)


def test_batches_have_the_rows_of_their_pairs(pairs, tmp_path):
  opened = open_reference(folder_of(pairs, tmp_path / "r"), pairs)
  ids = np.array([7, 0, 9])
  batch = opened.beside(pairs).fetch(ids)
  np.testing.assert_array_equal(batch.image, pairs.fetch(ids).image)
  expected = unit_rows(1, N, WIDTH)[ids], unit_rows(2, 8, WIDTH)[[7, 0, 3]]
  for found, rows in zip(batch.reference, expected, strict=True):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, rows, rtol=1e-6)
  assert opened.identity.startswith("12 captions in width 5, ")


def test_processes_that_make_batches_are_sent_no_arrays(pairs, tmp_path):
  wide = unit_rows(3, N, 20_000)
  place = folder_of(pairs, tmp_path / "r", image=wide, text=wide)
  opened = open_reference(place, pairs)
  sent = cloudpickle.dumps(opened.of)
  assert len(sent) < 10_000
  found = cloudpickle.loads(sent)(np.array([5])).image
  np.testing.assert_array_equal(found[0], np.float32(wide[5]))


def test_the_order_of_the_captions_is_that_of_their_images(pairs, tmp_path):
  """As in data sets whose images have several captions each."""
  order = np.random.default_rng(0).permutation(N)
  whole = folder_of(pairs, tmp_path / "whole")
  ids = pairs.ids(order)
  mixed = folder_of(
    pairs,
    tmp_path / "mixed",
    text=unit_rows(2, 8, WIDTH)[ids.text],
    image_of_text=order,
    captions=pairs.captions(ids.text),
  )
  a, b = (open_reference(x, pairs) for x in (whole, mixed))
  for found, expected in zip(
    b.of(np.arange(N)), a.of(np.arange(N)), strict=True
  ):
    np.testing.assert_array_equal(found, expected)


def test_pairs_may_share_an_image(pairs, tmp_path):
  """As in data with copies: embed writes each image once, and all pairs."""
  image_id = np.int32([0, 1, 2, 0, 3, 4, 1, 5, 6, 7, 8, 9])
  text_id = pairs.ids(np.arange(N)).text
  shared = pairs._replace(
    sizes=Sizes(N, 10, 8),
    ids=lambda pair_ids: Sides(image_id[pair_ids], text_id[pair_ids]),
    keys=None,
  )
  place = folder_of(
    pairs,
    tmp_path / "r",
    image=unit_rows(1, 10, WIDTH),
    content=range(10),
    image_of_text=image_id,
  )
  found = open_reference(place, shared).of(np.arange(N))
  expected = unit_rows(1, 10, WIDTH)[image_id], unit_rows(2, 8, WIDTH)[text_id]
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_array_equal(x, np.float32(y))
  with pytest.raises(ValueError, match="captions than 6 of 12 training pairs"):
    open_reference(place, pairs)


def replaced(rows, at, by):
  rows = np.array(rows)
  rows[at] = by
  return rows


def swapped(pairs):
  """Two drawings of one caption in each other's place."""
  content = pairs.keys().image
  content[[3, 8]] = content[[8, 3]]
  return content


TEXTS = [CAPTIONS[i] for i in (*range(8), 3, 3, 0, 7)]
IMAGE, TEXT = unit_rows(1, N, WIDTH), unit_rows(2, N, WIDTH)
WRONG = {
  "has 11 captions of 12 images, and there are 12 training pairs of 12 images "
  r".rejected.jsonl there": dict(
    text=TEXT[1:], captions=TEXTS[1:], image_of_text=range(1, N)
  ),
  r"other captions than 1 of 12 training pairs: pair 5 is 'a drawing of f', "
  r"its row 5 is 'a cat'. They are of other data": dict(
    captions=[*TEXTS[:5], "a cat", *TEXTS[6:]]
  ),
  r"other captions than 10 of 12 training pairs: pair 0 .* in another order; "
  "embed the pairs that are trained on": dict(captions=TEXTS[::-1]),
  "has the images of 2 of 12 pairs with others, the first of them pair 3, its "
  "row 3: its images are in another order": dict(content=swapped),
  "images of width 5 and texts of width 4, which must be one": dict(
    text=TEXT[:, :4]
  ),
  r"image.npy must hold embeddings of unit norm, and row 7 has norm nan; embed "
  "without": dict(image=replaced(IMAGE, (7, 2), np.nan)),
  "text.npy must hold embeddings .* row 0 has norm 3;": dict(text=TEXT * 3),
  "row 4 has norm 0;": dict(image=replaced(IMAGE, 4, 0)),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_folder_of_other_rows_is_refused(pairs, tmp_path, message):
  changed = {
    name: x(pairs) if callable(x) else x for name, x in WRONG[message].items()
  }
  place = folder_of(pairs, tmp_path / "r", **changed)
  with pytest.raises(ValueError, match=f"^config.reference: .*{message}"):
    open_reference(place, pairs)


def test_equal_images_may_not_have_two_owners(pairs, tmp_path):
  """Where images have no hashes, their captions tell which are one."""
  place = folder_of(
    pairs,
    tmp_path / "r",
    content=np.zeros(N),
    image_of_text=[*range(N - 1), N - 2],
  )
  with pytest.raises(ValueError, match="images of 1 of 12 pairs with others"):
    open_reference(place, pairs)


def test_what_is_no_folder_of_embed_is_refused(pairs, tmp_path):
  np.savez(tmp_path / "x.npz", image=IMAGE, text=TEXT)
  for place in ("x.npz", "nothing"):
    with pytest.raises(ValueError, match="lacks image.npy, .*; write it with"):
      open_reference(tmp_path / place, pairs)
  place = folder_of(pairs, tmp_path / "texts")
  for name in ("image.npy", "images.parquet", files.DIGESTS):
    (place / name).unlink()
  with pytest.raises(ValueError, match="texts without images"):
    open_reference(place, pairs)
  place = folder_of(pairs, tmp_path / "damaged")
  (place / "text.npy").write_bytes(b"\0" * 200)
  with pytest.raises(ValueError, match="text.npy"):
    open_reference(place, pairs)


def test_a_stream_has_no_ids_to_look_rows_up_by(pairs, tmp_path):
  stream = pairs._replace(open_stream=lambda **_: None)
  place = folder_of(pairs, tmp_path / "r")
  with pytest.raises(ValueError, match="stream of tars; index the tars with"):
    open_reference(place, stream)


def test_a_run_that_goes_on_compares_some_captions(
  pairs, tmp_path, monkeypatch
):
  monkeypatch.setattr(reference, "COMPARED", 3)
  seen = []

  def captions(text_ids):
    seen.extend(text_ids)
    return pairs.captions(text_ids)

  place = folder_of(pairs, tmp_path / "r")
  counted = pairs._replace(captions=captions, keys=None)
  open_reference(place, counted, compare_all=False)
  assert seen == [0, 3, 4]  # of the pairs 0, 4 and 8
  open_reference(place, counted)
  assert len(seen) == 3 + 8


@pytest.mark.parametrize("share_texts", [True, False])
def test_a_prepared_data_set_and_what_embed_makes_of_it(tmp_path, share_texts):
  """Images with several captions, of which some repeat, by their content."""
  make_captioned.prepare(tmp_path, {"train": make_captioned.ROWS})

  def by_colour(squares):
    mean = np.float64(squares).mean(axis=(1, 2))
    return np.float32(mean / np.linalg.norm(mean, axis=1, keepdims=True))

  def by_words(captions):
    rows = [unit_rows(len(canonical(x)), 1, 3)[0] for x in captions]
    return np.float32(rows)

  plan = inputs.plan("tfds:mine", data_dir=tmp_path, made=False)
  items = (item for part in plan.parts for item in part.read())
  embedder = Embedder(Sides(by_colour, by_words), 16)
  write_embeddings(embedder, items, tmp_path / "r")

  words = build_tokenizer(make_captioned.CAPTIONS, length=4)

  def open_pairs(data_dir):
    data = open_captioned("mine", "train", data_dir)
    if not share_texts:
      data = data._replace(index=image_text.hide_repetitions(data.index))
    plain = dict(scale=(1.0, 1.0), flip=False, num_ops=0)
    return image_text.captioned_source(data, words, size=16, **plain)

  pairs = open_pairs(tmp_path)
  opened = open_reference(tmp_path / "r", pairs)
  batch = opened.beside(pairs).fetch(np.arange(4))
  expected = by_colour(batch.image), by_words(make_captioned.CAPTIONS)
  for found, rows in zip(batch.reference, expected, strict=True):
    np.testing.assert_allclose(found, rows, atol=1e-6)
  assert len(np.unique(batch.text_id)) == (3 if share_texts else 4)

  other = tmp_path / "other"
  make_captioned.prepare(other, {"train": make_captioned.ROWS[::-1]})
  with pytest.raises(ValueError, match="in another order"):
    open_reference(tmp_path / "r", open_pairs(other))
