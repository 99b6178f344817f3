"""Several data sets that are trained on together."""

import logging

from make_photos import write_pairs
import numpy as np
import pytest

from nuclr_jax.lab import ingest
from nuclr_jax.lab.data import captioned, image_text, loader
from nuclr_jax.lab.data.pair_index import number_pairs, same_data
from nuclr_jax.lab.data.source import HeldOut, Share, fingerprints


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """The sets `a` and `b` (in place), and `whole` of their tars."""
  folder = tmp_path_factory.mktemp("mixture")
  for name, keys in (("a", range(4)), ("b", range(2, 9))):
    write_pairs(folder / f"{name}.tar", keys)
  for name, tars in (("a", "a"), ("b", "b"), ("whole", "*")):
    how = {"data_dir": folder, "workers": 1, "in_place": name == "b"}
    ingest.ingest(f"{folder}/{tars}.tar", name, **how)
  return folder


def data_of(data_dir, train, **options):
  return image_text.image_text(
    train=train, data_dir=data_dir, size=16, length=6, **options
  )


def test_a_prepared_held_out_set_is_identified_without_reading_it(data_dir):
  found = []
  for name in "aab":
    opened = captioned.open_image_text_set(
      name, "train", size=16, data_dir=data_dir
    )
    unread = opened._replace(captions=None, image=range(4))
    found.append(fingerprints(HeldOut({"x": unread})))
  assert found[0] == found[1] != found[2]


def index_of(*captions):
  """Four images with a caption each, by number."""
  hashes = np.array(captions, np.uint64)
  return number_pairs(np.arange(4, dtype=np.uint64), np.ones(4, int), hashes)


def test_a_corrected_caption_is_another_data_set(tmp_path):
  """Even one that others have; the index of several sets is made anew."""
  other = captioned.Captioned(None, None, index_of(3, 4, 5, 6), 4, "other")
  found = []
  for captions in ((1, 2, 1, 1), (1, 2, 1, 2)):
    index = index_of(*captions)
    fingerprint = index.fingerprint("mine")
    mine = captioned.Captioned(None, None, index, 4, fingerprint)
    joined = captioned.join([mine, other], tmp_path)
    assert joined.index.text_id[:4].tolist() == [x - 1 for x in captions]
    assert same_data(f"mine/4/{index.checksum:08x}", fingerprint)
    assert same_data(
      f"mine/4/{index.checksum:08x}+other", f"{fingerprint}+other"
    )
    found.append((index.checksum, fingerprint))
  (checksum, first), (same, second) = found
  assert checksum == same and not same_data(first, second)


class TestWithoutWeights:
  def test_records_and_pairs(self, data_dir):
    sets = [captioned.open_captioned(x, "train", data_dir) for x in "ab"]
    joined = captioned.join(sets, data_dir)
    whole = captioned.open_captioned("whole", "train", data_dir)
    assert joined.num_records == whole.num_records == 11
    numbers = np.array([10, 0, 4, 3, 7, 0])
    assert joined.read(numbers) == whole.read(numbers)
    assert captioned.all_captions(joined) == captioned.all_captions(whole)
    for x, y in zip(joined.index, whole.index, strict=True):
      np.testing.assert_array_equal(x, y)

  def test_source(self, data_dir):
    mixed, whole = (data_of(data_dir, x).train for x in ("a,b", "whole"))
    assert mixed.sizes == whole.sizes and mixed.shares == ()
    texts = np.arange(whole.sizes.num_texts)
    assert mixed.captions(texts) == whole.captions(texts)
    files = np.arange(11)
    assert mixed.files.names(files) == whole.files.names(files)
    for x, y in zip(mixed.keys(), whole.keys(), strict=True):
      np.testing.assert_array_equal(x, y)
    batches = []
    for source in (mixed, whole):
      with loader.batches(source, batch_size=5, seed=1) as stream:
        batches.append([next(stream) for _ in range(4)])
    for a, b in zip(*batches, strict=True):
      for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)

  def test_the_index_is_kept(self, data_dir, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    data_of(data_dir, "b,a")
    assert "numbering the pairs of 2 data sets together, once" in caplog.text
    monkeypatch.setattr(captioned, "join_indexes", None)
    index = data_of(data_dir, "b,a").train
    assert index.sizes.num_pairs == 11

  def test_captions_with_ids_of_their_own(self, data_dir):
    sizes = data_of(data_dir, "a,b", share_texts=False).train.sizes
    assert sizes.num_texts == sizes.num_pairs == 11


class TestWeights:
  def test_shares(self, data_dir):
    source = data_of(data_dir, "a,b:train", weights=(1.0, 3.0)).train
    assert source.shares == (Share("a", 4, 1.0), Share("b:train", 7, 3.0))
    with loader.batches(source, batch_size=4, seed=1) as stream:
      for _ in range(8):
        assert np.sum(next(stream).pair_id < 4) == 1

  @pytest.mark.parametrize(
    "train, weights, message",
    [
      ("a,b", (1.0,), r"a number for each data set .* \(1.0,\) for a,b"),
      ("a", (1.0, 2.0), "a number for each data set"),
      ("a,b,a", (), "names a data set twice, a,b,a; .* raise its weight"),
      ("a,", (), "a data set or a split is missing"),
      ("a,c", (), "no data set 'c' is prepared"),
    ],
  )
  def test_errors(self, data_dir, train, weights, message):
    with pytest.raises(ValueError, match=message):
      data_of(data_dir, train, weights=weights)
