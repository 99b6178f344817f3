"""Captioned images: ids, batches and errors, of TFDS sets and ingested ones.

The sets are built here with TFDS itself, or by `nuclr_jax.lab.ingest`.
"""

import inspect
import json
import os
import resource
import shutil

from make_captioned import CAPTIONS, ROWS, SEQUENCE, A, B, C, prepare
from make_photos import write_pairs
import numpy as np
import pytest
import shapes
import tensorflow_datasets as tfds
import warm

from nuclr_jax.lab import ingest
from nuclr_jax.lab.config import ConfigError
from nuclr_jax.lab.data import (
  augment,
  captioned,
  image_text,
  images,
  loader,
  pair_index,
  places,
  tfds_reader,
)
from nuclr_jax.lab.data.source import random_numbers
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.evaluate.evaluators import Embed
from nuclr_jax.lab.evaluate.retrieval import retrieval_evaluator
from nuclr_jax.lab.train import build
from nuclr_jax.types import Sizes

STREAM = """
import hashlib, multiprocessing, os, signal, sys, time
from absl import flags
from nuclr_jax.lab.data import captioned, image_text, loader, tokenizer

def main():
  flags.FLAGS.mark_as_parsed()
  data = captioned.open_captioned("shapes", "train", sys.argv[1])
  words = tokenizer.build_tokenizer(captioned.all_captions(data), length=8)
  source = image_text.captioned_source(data, words, size=24)
  for workers in (0, 2):
    digest = hashlib.sha256()
    with loader.batches(
      source, batch_size=8, seed=3, start_step=2, num_workers=workers
    ) as stream:
      while workers and not multiprocessing.active_children():
        time.sleep(0.01)
      for step in range(24):
        # Terminals and schedulers send them to all processes of a command.
        for worker in multiprocessing.active_children():
          os.kill(worker.pid, signal.SIGTERM if step == 3 else signal.SIGINT)
        for x in next(stream)[:5]:  # there is no label
          digest.update(x.tobytes())
    print(digest.hexdigest())

if __name__ == "__main__":
  main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A data directory with `mine` (TFDS) and `shapes` (ingested)."""
  data_dir = tmp_path_factory.mktemp("captioned")
  prepare(data_dir, {"train": ROWS, "test": ROWS[:2]})
  tar = data_dir / "photos.tar"
  shapes.write_tar(tar, 24, seed=0, broken=(5, 11))
  ingest.ingest(str(tar), "shapes", data_dir=data_dir, workers=1)
  return data_dir


@pytest.fixture(scope="module")
def words():
  return build_tokenizer(CAPTIONS, length=6)


@pytest.fixture(scope="module")
def mine(folder):
  return captioned.open_captioned("mine", "train", folder)


@pytest.fixture(scope="module")
def photos(folder):
  """A source of 22 ingested pairs."""
  data = captioned.open_captioned("shapes", "train", folder)
  words = build_tokenizer(captioned.all_captions(data), length=8)
  return image_text.captioned_source(data, words, size=24)


def test_more_files_than_a_process_may_open(tmp_path):
  """The limit is raised; 1,024 is usual, and each file stays open."""
  for i in range(40):
    write_pairs(tmp_path / f"{i:02d}.tar", [i])
  ingest.ingest(f"{tmp_path}/*.tar", "many", data_dir=tmp_path, workers=1)
  before = resource.getrlimit(resource.RLIMIT_NOFILE)
  few = len(os.listdir("/dev/fd")) + 20
  resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
  try:
    data = captioned.open_captioned("many", "train", tmp_path)
    assert len(data.read(np.arange(40))) == 40
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def no_scan(*_):
  raise AssertionError("the data set is read again")


class TestIds:
  def test_pairs(self, mine):
    assert mine.num_records == 3
    assert mine.index.record.tolist() == [0, 0, 1, 2]
    assert mine.index.caption.tolist() == [0, 1, 0, 0]
    # Records 0 and 2 have the same image, pairs 0 and 2 the same words.
    assert mine.index.image_id.tolist() == [0, 0, 1, 0]
    assert mine.index.text_id.tolist() == [0, 1, 0, 2]
    assert mine.index.sizes == Sizes(4, 2, 3)
    assert captioned.all_captions(mine) == CAPTIONS

  def test_source(self, mine, words):
    source = image_text.captioned_source(mine, words, size=16)
    assert source.sizes == Sizes(4, 2, 3)
    batch = source.fetch(np.array([3, 1, 2]))
    assert batch.pair_id.tolist() == [3, 1, 2]
    assert batch.image_id.tolist() == [0, 0, 1]
    assert batch.text_id.tolist() == [2, 1, 0]
    loader.check_ids(batch, source.sizes)
    expected = words.encode(["the sea", "two cats", "a dog!"])
    np.testing.assert_array_equal(batch.text, expected)
    assert source.ids(np.array([2])) == (1, 0)
    # Of pairs with equal words the first one's caption.
    assert source.captions(np.array([2, 0])) == ["the sea", "A dog."]

  def test_texts_may_have_ids_of_their_own(self, folder):
    data = image_text.image_text(
      train="mine", data_dir=folder, size=16, share_texts=False
    )
    source = data.train
    assert source.sizes == Sizes(4, 2, 4)
    pairs = np.arange(4)
    assert source.ids(pairs).text.tolist() == [0, 1, 2, 3]
    assert source.ids(pairs).image.tolist() == [0, 0, 1, 0]
    assert source.captions(pairs) == CAPTIONS
    keys = source.keys()
    assert len(set(keys.text.tolist())) == len(set(keys.pair.tolist())) == 4

  def test_keys_follow_the_content(self, folder, mine, words, tmp_path):
    """Another order and another image; what stays keeps its key."""
    prepare(tmp_path, {"train": [(C, ["new"]), ROWS[1], ROWS[0]]})
    other = captioned.open_captioned("mine", "train", tmp_path)
    before, after = (
      image_text.captioned_source(data, words, size=16).keys()
      for data in (mine, other)
    )
    for keys in before:
      assert len(set(keys.tolist())) == len(keys)
    # Now pairs are (C, new), (B, a dog!), (A, A dog.), (A, two cats).
    assert after.pair[1:].tolist() == before.pair[[2, 0, 1]].tolist()
    assert after.image[1:].tolist() == before.image[[1, 0]].tolist()
    assert after.text[1:].tolist() == before.text[[0, 1]].tolist()
    assert not set(after.pair[:1].tolist()) & set(before.pair.tolist())

  @pytest.mark.parametrize("rows", [0, 1, 2])
  def test_the_fingerprint_changes_with_the_content(self, mine, rows, tmp_path):
    image = [list(row) for row in ROWS]
    image[rows][0] = C
    text = [(image, list(texts)) for image, texts in ROWS]
    text[rows][1][0] = "other words"
    prints = {mine.fingerprint}
    for i, changed in enumerate((image, text)):
      prepare(tmp_path / str(i), {"train": changed})
      other = captioned.open_captioned("mine", "train", tmp_path / str(i))
      prints.add(other.fingerprint)
    assert len(prints) == 3

  def test_ingested_pairs_are_those_of_a_scan(self, folder, monkeypatch):
    with monkeypatch.context() as patch:
      patch.setattr(captioned, "_scan", no_scan)
      data = captioned.open_captioned("shapes", "train", folder)
    assert data.num_records == 22
    assert data.index.sizes.num_pairs == 22
    monkeypatch.setattr(captioned, "load_index", lambda *_: None)
    monkeypatch.setattr(captioned, "save_index", lambda *_: None)
    scanned = captioned.open_captioned("shapes", "train", folder)
    for ours, theirs in zip(data.index, scanned.index, strict=True):
      np.testing.assert_array_equal(ours, theirs)
    assert data.fingerprint == scanned.fingerprint


class TestFeatures:
  @pytest.mark.parametrize(
    ("captions", "column", "expected"),
    [
      (
        {"caption": tfds.features.Text()},
        lambda texts: {"caption": texts[0]},
        ["A dog.", "a dog!", "the sea"],
      ),
      (SEQUENCE, lambda texts: {"captions": texts}, CAPTIONS),
      (
        {
          "captions": tfds.features.Sequence(
            {"id": np.int64, "text": tfds.features.Text()}
          )
        },
        lambda texts: {"captions": [{"id": 7, "text": x} for x in texts]},
        CAPTIONS,
      ),
      (
        {"label": tfds.features.Text(), "title": tfds.features.Text()},
        lambda texts: {"label": "no caption", "title": texts[0]},
        ["A dog.", "a dog!", "the sea"],
      ),
    ],
    ids=["text", "texts", "dicts", "title"],
  )
  def test_where_captions_are(self, captions, column, expected, tmp_path):
    options = dict(captions=captions, column=column)
    prepare(tmp_path, {"train": ROWS}, **options)
    data = captioned.open_captioned("mine", "train", tmp_path)
    assert captioned.all_captions(data) == expected
    assert data.read(np.array([1]))[0].image == B

  def test_a_feature_that_the_records_lack(self, tmp_path):
    prepare(tmp_path, {"train": ROWS})
    (path,) = tmp_path.rglob("features.json")
    path.write_text(path.read_text().replace('"image": {', '"other": {', 1))
    data = tfds_reader.open_split("mine", "train", tmp_path)
    with pytest.raises(
      ValueError, match="records of train lack 'other', which"
    ):
      data.read([0, 1])

  def test_captions_that_are_str(self, folder, monkeypatch, tmp_path):
    """As mocked data sets give them, instead of bytes."""
    found = tfds_reader.open_split("mine", "train", folder)

    def read(numbers):
      return [
        row | {"captions": [x.decode() for x in row["captions"]]}
        for row in found.read(numbers)
      ]

    monkeypatch.setattr(
      tfds_reader, "open_split", lambda *_: found._replace(read=read)
    )
    data = captioned.open_captioned("mine", "train", tmp_path)
    assert captioned.all_captions(data) == CAPTIONS

  def test_no_captions(self, tmp_path):
    label = {"label": tfds.features.ClassLabel(names=["a", "b"])}
    prepare(
      tmp_path,
      {"train": ROWS},
      captions=label,
      column=lambda texts: {"label": len(texts) - 1},
    )
    with pytest.raises(ValueError, match=r"no text among .*'label'"):
      captioned.open_captioned("mine", "train", tmp_path)


class TestImages:
  def test_plain_ones_are_whole(self, mine, words):
    source = image_text.captioned_source(mine, words, size=16)
    found = source.fetch(np.array([0, 2, 3])).image
    expected = [images.resize(images.decode(x), 16) for x in (A, B, A)]
    np.testing.assert_array_equal(found, np.stack(expected))
    assert found.dtype == np.uint8

  def test_augmented_ones_step_by_step(self, mine, words):
    ids = np.array([2, 0, 1])
    numbers = random_numbers(4, 1, ids)
    source = image_text.captioned_source(
      mine, words, size=20, num_ops=3, level=9.0
    )
    found = source.fetch(ids, numbers).image
    for result, image, x in zip(found, (B, A, A), numbers, strict=True):
      cropped = images.random_resized_crop(images.decode(image), x, size=20)
      expected = augment.rand_augment(
        cropped, x[images.CROP_NUMBERS :], num_ops=3, level=9.0
      )
      np.testing.assert_array_equal(result, expected)

  def test_all_records_one_size(self, mine):
    found = captioned.resized_images(mine, 8)
    assert len(found) == 3
    np.testing.assert_array_equal(found[0:1], found[2:3])
    np.testing.assert_array_equal(
      found[np.array([1])][0], images.resize(images.decode(B), 8)
    )

  @pytest.mark.parametrize(
    ("wrong", "message"),
    [
      (dict(num_ops=4), r"num_ops must be in \[0, 3\]"),
      (dict(level=11.0), r"level in \[0, 10\]"),
      (dict(scale=(0.0, 1.0)), "scale two shares"),
      (dict(scale=(0.6, 0.5)), "scale two shares"),
      (dict(size=0), "size must be at least 1"),
    ],
  )
  def test_numbers_out_of_range(self, mine, words, wrong, message):
    with pytest.raises(ValueError, match=message):
      image_text.captioned_source(mine, words, **{"size": 16} | wrong)


class TestStream:
  def images(self, source, count, **options):
    """Augmented images by pair id, from a stream of batches."""
    options = dict(batch_size=4, seed=3) | options
    found = {}
    with loader.batches(source, **options) as stream:
      for _ in range(count):
        batch = next(stream)
        found |= dict(zip(batch.pair_id.tolist(), batch.image, strict=True))
    return found

  def assert_same(self, left, right, *, at_least):
    both = left.keys() & right.keys()
    assert len(both) >= at_least
    for i in both:
      np.testing.assert_array_equal(left[i], right[i])

  def test_an_image_depends_on_seed_epoch_and_pair(self, photos):
    first = self.images(photos, 5)
    others = self.images(photos, 2, batch_size=11)
    self.assert_same(first, others, at_least=18)
    parts = [
      self.images(photos, 5, process_index=i, process_count=2) for i in range(2)
    ]
    assert first.keys() == parts[0].keys() | parts[1].keys()
    self.assert_same(first, parts[0] | parts[1], at_least=20)
    for changed in (
      self.images(photos, 5, start_step=5),  # the second epoch
      self.images(photos, 5, seed=4),
    ):
      both = first.keys() & changed.keys()
      same = [np.array_equal(first[i], changed[i]) for i in both]
      assert len(both) > 10 and np.mean(same) < 0.2

  def test_plain(self, photos):
    plain = self.images(photos, 5, augment=False)
    ids = np.array(sorted(plain))
    found = photos.fetch(ids).image
    np.testing.assert_array_equal(found, np.stack([plain[i] for i in ids]))

  def test_workers_change_nothing(self, folder, tmp_path):
    """In a process of its own, which imports no TensorFlow either."""
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    done = warm.run([script, folder])
    assert done.returncode == 0, done.stderr
    alone, two = done.stdout.splitlines()
    assert alone == two


class TestScan:
  """Sets that were not ingested are read once."""

  def test_kept(self, tmp_path, monkeypatch):
    prepare(tmp_path, {"train": ROWS})
    first = captioned.open_captioned("mine", "train", tmp_path)
    monkeypatch.setattr(captioned, "_scan", no_scan)
    again = captioned.open_captioned("mine", "train", tmp_path)
    for old, new in zip(first.index, again.index, strict=True):
      np.testing.assert_array_equal(old, new)
    assert first.fingerprint == again.fingerprint

  def test_not_kept_for_other_files_of_that_name(self, tmp_path):
    home = prepare(tmp_path, {"train": ROWS})
    first = captioned.open_captioned("mine", "train", tmp_path)
    shutil.rmtree(home)
    prepare(tmp_path, {"train": [(B, ["a tree"]), *ROWS]})
    second = captioned.open_captioned("mine", "train", tmp_path)
    assert len(second.index.record) == 5
    assert second.fingerprint != first.fingerprint

  def test_not_kept_for_another_place(self, tmp_path):
    found = []
    for place, rows in (("a", ROWS), ("b", ROWS[:2])):
      home = prepare(tmp_path / place, {"train": rows})
      found.append(captioned.open_captioned(str(home), "train", tmp_path))
    assert [len(x.index.record) for x in found] == [4, 3]

  def test_two_at_once(self, tmp_path):
    """The second one to end leaves what the first one wrote."""
    index = pair_index.number_pairs(
      np.arange(3, dtype=np.uint64),
      np.ones(3, int),
      np.arange(3, dtype=np.uint64),
    )
    pair_index.save_index(tmp_path, "train", index)
    pair_index.save_index(tmp_path, "train", index)
    assert [x.name for x in tmp_path.iterdir()] == ["pairs-train"]
    assert pair_index.load_index(tmp_path, "train").sizes == Sizes(3, 3, 3)

  def test_images_without_captions_make_no_pair(self, tmp_path):
    prepare(tmp_path, {"train": [(A, []), (B, ["a dog"]), (C, [])]})
    data = captioned.open_captioned("mine", "train", tmp_path)
    assert data.index.record.tolist() == [1]
    assert data.index.text_id.tolist() == [0]


class TestSplits:
  @pytest.mark.parametrize("name", ["mine", "shapes"])
  def test_a_part_of_a_split(self, name, folder, words):
    whole = captioned.open_captioned(name, "train", folder)
    part = captioned.open_captioned(name, "train[:50%]", folder)
    assert part.num_records == round(whole.num_records / 2)
    numbers = np.arange(part.num_records)
    assert part.read(numbers) == whole.read(numbers)
    assert part.fingerprint != whole.fingerprint
    n = len(part.index.record)
    np.testing.assert_array_equal(part.index.record, whole.index.record[:n])

  def test_no_such_split(self, folder):
    with pytest.raises(ValueError, match=r"no split 'val'.*'test', 'train'"):
      captioned.open_captioned("mine", "val", folder)

  def test_no_such_set(self, folder):
    with pytest.raises(ValueError, match="no data set 'yours' is prepared"):
      captioned.open_captioned("yours", "train", folder)


class TestFind:
  def test_newest_version_of_a_configuration(self, tmp_path):
    for version in ("1.0.0", "2.0.0", "10.0.0"):
      prepare(tmp_path, {"train": ROWS}, config="small", version=version)
    newest = tmp_path / "mine" / "small" / "10.0.0"
    for name in ("mine", "mine/small", "mine/small/10.0.0", str(newest)):
      assert places.find_data_set(name, tmp_path) == newest
    older = tmp_path / "mine" / "small" / "2.0.0"
    assert places.find_data_set("mine/small/2.0.0", tmp_path) == older

  def test_several_configurations(self, tmp_path):
    for config in ("small", "large"):
      prepare(tmp_path, {"train": ROWS[:1]}, config=config)
    with pytest.raises(ValueError, match="several configurations.*large"):
      places.find_data_set("mine", tmp_path)
    assert places.find_data_set("mine/large", tmp_path).name == "1.0.0"

  @pytest.mark.parametrize(
    "unfinished", ["incomplete.ABCDEF_1.0.0", "incomplete/1.0.0"]
  )
  def test_unfinished_sets_are_none(self, unfinished, folder, tmp_path):
    """TFDS leaves the first kind behind when it is killed, ingest the other."""
    target = tmp_path / "mine" / unfinished
    shutil.copytree(folder / "mine" / "1.0.0", target)
    with pytest.raises(ValueError, match="no data set 'mine'"):
      places.find_data_set("mine", tmp_path)
    shutil.copytree(target, tmp_path / "mine" / "1.0.0")
    assert places.find_data_set("mine", tmp_path) == tmp_path / "mine" / "1.0.0"

  def test_where_tfds_prepares(self, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
    assert places.find_data_set("mine", tmp_path) == folder / "mine" / "1.0.0"

  def test_an_empty_variable_is_none(self, monkeypatch, tmp_path):
    """It does not stand for the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(places.DATA_DIR, "")
    expected = tmp_path / "home" / ".cache" / "nuclr_jax"
    assert places.cache_dir() == expected
    assert places.data_set_path(None, "mine") == expected / "mine"

  def test_splits(self, folder):
    assert tfds_reader.split_names("mine", folder) == ["test", "train"]


class TestDamage:
  @pytest.fixture
  def copy(self, folder, tmp_path):
    shutil.copytree(folder / "mine", tmp_path / "mine")
    return tmp_path

  def shard(self, copy):
    (path,) = copy.glob("mine/1.0.0/*-train.array_record*")
    return path

  def test_flipped_bytes(self, copy, words):
    captioned.open_captioned("mine", "train", copy)
    path = self.shard(copy)
    times = path.stat()
    data = bytearray(path.read_bytes())
    middle = data.index(B[-64:-32])
    data[middle : middle + 32] = bytes(32)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    opened = captioned.open_captioned("mine", "train", copy)
    source = image_text.captioned_source(opened, words, size=16)
    with pytest.raises(ValueError, match="records 1 to 1 of train cannot be r"):
      source.fetch(np.array([2]))

  def test_truncated(self, copy):
    path = self.shard(copy)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match="damaged") as error:
      captioned.open_captioned("mine", "train", copy)
    assert str(path) in str(error.value)

  def test_missing(self, copy):
    self.shard(copy).unlink()
    with pytest.raises(ValueError, match="it is missing"):
      captioned.open_captioned("mine", "train", copy)

  def test_another_format(self, copy):
    path = copy / "mine" / "1.0.0" / "dataset_info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with pytest.raises(ValueError, match="in the format tfrecord.*convert it"):
      captioned.open_captioned("mine", "train", copy)

  def test_a_broken_image(self, tmp_path, words):
    """Ingested sets have none; others say which it is when they meet it."""
    rows = [ROWS[0], (B[: len(B) // 2], ["a half dog"])]
    prepare(tmp_path, {"train": rows})
    data = captioned.open_captioned("mine", "train", tmp_path)
    source = image_text.captioned_source(data, words, size=16)
    assert source.fetch(np.array([0, 1])).image.shape == (2, 16, 16, 3)
    with pytest.raises(ValueError, match=r"captioned \['a half dog'\] is brok"):
      source.fetch(np.array([0, 2]))
    with pytest.raises(ValueError, match="nuclr ingest --input=tfds"):
      captioned.resized_images(data, 8)[:]


class TestPairIndex:
  def test_counts_that_do_not_fit(self):
    hashes = np.arange(3, dtype=np.uint64)
    with pytest.raises(ValueError, match="which say 2, and 3 captions"):
      pair_index.number_pairs(hashes[:2], np.ones(2, int), hashes)

  def test_against_dictionaries(self):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 20, 50).astype(np.uint64)
    count = rng.integers(0, 4, 50)
    text = rng.integers(0, 30, count.sum()).astype(np.uint64)
    index = pair_index.number_pairs(image, count, text)
    image_ids, text_ids, pair = {}, {}, 0
    for x in image.tolist():
      image_ids.setdefault(x, len(image_ids))
    for record, (x, n) in enumerate(zip(image.tolist(), count, strict=True)):
      for caption in range(n):
        word = int(text[pair])
        text_ids.setdefault(word, len(text_ids))
        expected = (record, caption, image_ids[x], text_ids[word])
        assert tuple(int(column[pair]) for column in index[:4]) == expected
        pair += 1
    assert index.image_hash.tolist() == list(image_ids)
    assert index.text_hash.tolist() == list(text_ids)
    assert len(index.record) == pair


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
  """Data directory with `colours/{train,test}/COLOUR/*.jpg`, 3 of each."""
  data_dir = tmp_path_factory.mktemp("sets")
  shapes.write_classes(data_dir / "colours", 3, seed=0)
  return data_dir


class TestHeldOut:
  def test_captions_in_groups(self, tmp_path):
    prepare(tmp_path, {"test": ROWS})
    data = captioned.open_image_text_set(
      "mine", "test", size=8, data_dir=tmp_path
    )
    assert data.image_group.tolist() == [0, 1, 2]
    assert data.caption_group.tolist() == [0, 0, 1, 2]
    assert data.captions == CAPTIONS
    expected = images.resize(images.decode(B), 8)
    np.testing.assert_array_equal(data.image[1:2][0], expected)
    # Image 2 equals image 0, and "A dog." has the words of "a dog!".
    assert [x.tolist() for x in data.same] == [[0, 1, 0], [0, 1, 0, 2]]
    embed = Embed(
      image=lambda x: np.eye(2)[[0, 1, 0]],
      text=lambda x: np.eye(2)[[0, 0, 1, 0]],
    )
    scores = retrieval_evaluator(data, "mine")(embed)
    assert scores["mine/mean_recall"] == 1.0
    # By record, a tie between the equal images counts against both.
    by_record = {
      x: scores[f"mine/by_record/{x}"]
      for x in ("image_to_text/recall@1", "text_to_image/recall@1")
    }
    assert list(by_record.values()) == pytest.approx([1 / 3, 1 / 4])
    assert scores["mine/by_record/text_to_image/recall@5"] == 1.0

  def test_a_run_says_at_once_what_is_missing(self, classes, tmp_path):
    prepare(tmp_path, {"train": ROWS})
    shutil.copytree(classes / "colours" / "test", tmp_path / "flat")
    shutil.copytree(classes / "colours", tmp_path / "more")
    shutil.rmtree(tmp_path / "more" / "train" / "red")
    read = lambda **more: image_text.image_text(
      train="mine", data_dir=tmp_path, size=16, **more
    )
    for more, message in (
      (dict(probes=("flat",)), "no folder train"),
      (dict(probes=("more",)), "the training split has no classes red, which"),
      (dict(zero_shot=("nothing",)), "no data set 'nothing'"),
      (dict(validation=("mine:train", "mine:train")), "names of their own"),
      (dict(test=("mine",)), "no split 'test'"),
    ):
      with pytest.raises(ValueError, match=message):
        read(**more)
    data = read(
      validation=("mine:train",),
      validation_zero_shot=("flat",),
      test=("b=mine:train",),
      zero_shot=("flat",),
    )
    assert data.image_shape == (16, 16, 3)
    assert data.train.sizes.num_pairs == 4
    names = {
      split: [list(kind) for kind in held_out]
      for split, held_out in data.held_out.items()
    }
    assert names == {
      "validation": [["mine"], ["flat"], [], [], []],
      "test": [["b"], ["flat"], [], [], []],
    }
    assert set(data.sets) == {"validation", "test"}


def test_a_config_gives_the_fields_of_groups_by_themselves():
  """`--config.data.length=77`, and not `--config.data.captions.length=77`."""
  parameters = inspect.signature(image_text.image_text).parameters
  assert {x.kind for x in parameters.values()} == {
    inspect.Parameter.KEYWORD_ONLY
  }
  defaults = {
    name: x.default for name, x in parameters.items() if name != "train"
  }
  nothing = ("weights", *("validation", "validation_zero_shot"))
  nothing += ("test", "zero_shot", "probes")
  assert defaults == dict.fromkeys(nothing, ()) | dict(
    num_pairs=None,
    window=4096,
    data_dir=None,
    size=256,
    resize=None,
    kernel="bicubic",
    patch=None,
    tokenizer="build",
    length=30,
    clean=True,
    repair=False,
    pad_id=0,
    template=None,
    vocab_size=None,
    min_count=1,
    scale=(0.5, 1.0),
    flip=True,
    num_ops=2,
    level=7.0,
    share_texts=True,
  )
  assert parameters["train"].default is inspect.Parameter.empty


def test_a_slip_in_a_field_of_a_group_is_found_early():
  for wrong, message in (
    (dict(level=-1.0), "data.level must be a number of at least 0"),
    (dict(kernel="cubic"), r"data.kernel must be one of \('bicubic'"),
    (dict(length=0), "data.length must be a whole number from 1"),
    (dict(captions={}), r"unknown keys \['captions'\] of data 'image_text'"),
  ):
    with pytest.raises(ConfigError, match=message):
      build.load_inputs({"name": "image_text", "train": "x"} | wrong)


def test_what_a_model_takes_is_known_without_data(tmp_path):
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog"]
  (tmp_path / "vocab.txt").write_text("\n".join(words))
  spec = dict(name="image_text", train="nothing", size=64, length=5)
  inputs = image_text.inputs_of(spec | {"tokenizer": str(tmp_path)})
  assert inputs.image_shape == (64, 64, 3)
  assert inputs.tokenizer.encode(["A dog!"]).tolist() == [[2, 4, 5, 3, 0]]
  assert image_text.inputs_of(spec) is None  # its words are those of the data
