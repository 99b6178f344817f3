"""Evaluation sets: folders of classes, TFDS sets, and the prompts for them."""

import functools
import shutil

import cv2
import make_captioned
import numpy as np
import pytest
import shapes
import tensorflow_datasets as tfds

from nuclr_jax import datasets
from nuclr_jax.data import images
from nuclr_jax.evaluate import driver, prompts, sets

Place = sets.Place
photo = make_captioned.photo


class TestPlaces:
  @pytest.mark.parametrize(
    ("text", "expected"),
    [
      ("coco", Place("coco", "coco", None)),
      ("coco:test", Place("coco", "coco", "test")),
      ("coco/2014:val[:9]", Place("coco", "coco/2014", "val[:9]")),
      ("pets=/data/pets", Place("pets", "/data/pets", None)),
      ("pets=/data/pets:val", Place("pets", "/data/pets", "val")),
      ("other=coco:test", Place("other", "coco", "test")),
    ],
  )
  def test_parse(self, text, expected):
    assert sets.parse(text) == expected

  def test_names_are_told_apart(self):
    names = [x.name for x in sets.places(["coco:a", "b=coco:b", "pets=/x"])]
    assert names == ["coco", "b", "pets"]

  def test_none(self):
    with pytest.raises(ValueError, match="SET, SET:SPLIT or NAME=SET:SPLIT"):
      sets.parse(" ")

  @pytest.mark.parametrize("texts", [["coco:a", "coco:b"], ["/data/coco"]])
  def test_names_that_are_not(self, texts):
    with pytest.raises(ValueError, match="names of their own.*NAME=SET:SPLIT"):
      sets.places(texts)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
  """Data directory with `colours/{train,test}/COLOUR/*.jpg`, 3 of each."""
  data_dir = tmp_path_factory.mktemp("sets")
  shapes.write_classes(data_dir / "colours", 3, seed=0)
  (data_dir / "colours" / "test" / "red" / "notes.txt").write_text("no photo")
  (data_dir / "colours" / "test" / "list.csv").write_text("no class")
  return data_dir


class TestFolders:
  def test_classes_in_order(self, classes):
    place = sets.parse("colours")
    data = sets.labelled_set(place, size=16, data_dir=classes)
    names = sorted(shapes.COLOURS)
    assert data.label.tolist() == list(np.repeat(np.arange(8), 3))
    assert data.prompts == [(f"a photo of a {name}.",) for name in names]
    paths = [
      classes / "colours" / "test" / name / f"{i:03d}.jpg"
      for name in names
      for i in range(3)
    ]
    assert len(data.image) == 24
    which = np.array([5, 23, 0])
    expected = [
      images.resize_and_crop(images.decode(paths[i].read_bytes()), 16)
      for i in which
    ]
    np.testing.assert_array_equal(data.image[which], np.stack(expected))

  def test_splits(self, classes, tmp_path):
    folder = tmp_path / "mine"
    for split in ("train", "val"):
      shutil.copytree(
        classes / "colours" / split.replace("val", "test"), folder / split
      )
    shutil.rmtree(folder / "val" / "red")
    read = lambda text, **more: sets.labelled_set(
      sets.parse(text), size=8, data_dir=tmp_path, **more
    )
    assert len(read("mine", split="train").label) == 24
    for text in ("mine", f"x={folder}", "mine:val", "mine:validation"):
      assert len(read(text).label) == 21
    alone = read(f"x={folder}/val")
    assert len(alone.label) == 21

  @pytest.mark.parametrize("text", ["mine", "mine:test"])
  def test_no_split_stands_in_for_another(self, text, classes, tmp_path):
    """Else a probe would be tested on what it was trained on."""
    shutil.copytree(classes / "colours" / "test", tmp_path / "mine")
    place, options = sets.parse(text), dict(data_dir=tmp_path)
    split = "train" if place.split is None else None
    wanted = split or place.split
    for call in (
      lambda: sets.labelled_set(place, size=8, split=split, **options),
      lambda: sets.check(place, split=split, **options),
    ):
      with pytest.raises(ValueError, match=f"has no folder {wanted}; it holds"):
        call()

  def test_no_images(self, tmp_path):
    (tmp_path / "mine" / "cat").mkdir(parents=True)
    for call in (sets.check, functools.partial(sets.labelled_set, size=8)):
      with pytest.raises(ValueError, match=r"no images in sub-folders.*'cat'"):
        call(sets.parse("mine"), data_dir=tmp_path)

  def test_a_broken_image_is_named(self, tmp_path):
    path = tmp_path / "mine" / "cat" / "a.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(photo(0)[:200])
    data = sets.labelled_set(sets.parse("mine"), size=8, data_dir=tmp_path)
    before = cv2.utils.logging.setLogLevel(0)
    with pytest.raises(ValueError, match="cat/a.jpg: 200 bytes cannot be deco"):
      data.image[:]
    cv2.utils.logging.setLogLevel(before)

  def test_nothing_there(self, tmp_path):
    with pytest.raises(ValueError, match="no data set 'mine' is prepared"):
      sets.check(sets.parse("mine"), tmp_path)


def labelled(names):
  """Features of a labelled TFDS set, besides the image."""
  return dict(
    captions={
      "coarse": tfds.features.ClassLabel(num_classes=2),
      "label": tfds.features.ClassLabel(names=names),
    },
    column=lambda label: {"coarse": 1 - label % 2, "label": label},
  )


class TestDataSets:
  NAMES = ["apple_pie", "ice_cream", "n01443537"]
  ROWS = [(photo(i), i % 3) for i in range(5)]

  def test_labels_and_names(self, tmp_path):
    features = labelled(self.NAMES)
    splits = {"train": self.ROWS[:2], "test": self.ROWS}
    make_captioned.prepare(tmp_path, splits, name="food101", **features)
    data = sets.labelled_set(sets.parse("food101"), size=8, data_dir=tmp_path)
    assert data.label.tolist() == [0, 1, 2, 0, 1]
    assert data.prompts == [
      ("a photo of apple pie, a type of food.",),
      ("a photo of ice cream, a type of food.",),
      ("a photo of goldfish, a type of food.",),
    ]
    expected = images.resize_and_crop(images.decode(self.ROWS[3][0]), 8)
    np.testing.assert_array_equal(data.image[3:4][0], expected)
    place = sets.parse("food101:train")
    train = sets.labelled_set(place, size=8, data_dir=tmp_path)
    assert train.label.tolist() == [0, 1]

  def test_which_split(self, tmp_path):
    splits = {"train": self.ROWS[:1], "validation": self.ROWS[:2]}
    make_captioned.prepare(tmp_path, splits, **labelled(self.NAMES))
    place, options = sets.parse("mine"), dict(data_dir=tmp_path)
    assert len(sets.labelled_set(place, size=8, **options).label) == 2
    for call in (
      sets.check,
      lambda *x, **y: sets.labelled_set(*x, size=8, **y),
    ):
      with pytest.raises(ValueError, match="no split 'test'; it has"):
        call(sets.parse("mine:test"), **options)
    sets.check(place, split="train", **options)

  def test_a_damaged_split_is_not_replaced(self, tmp_path):
    splits = {"test": self.ROWS, "validation": self.ROWS[:2]}
    home = make_captioned.prepare(tmp_path, splits, **labelled(self.NAMES))
    (path,) = home.glob("*-test.array_record*")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
      sets.labelled_set(sets.parse("mine"), size=8, data_dir=tmp_path)

  def test_no_labels(self, tmp_path):
    make_captioned.prepare(tmp_path, {"test": make_captioned.ROWS})
    for call in (sets.check, functools.partial(sets.labelled_set, size=8)):
      with pytest.raises(ValueError, match="image feature and a class label"):
        call(sets.parse("mine"), data_dir=tmp_path)

  def test_pictures_without_a_label(self, tmp_path):
    rows = [(photo(i), -1) for i in range(2)]
    splits = {"train": self.ROWS, "test": rows, "validation": self.ROWS}
    make_captioned.prepare(tmp_path, splits, **labelled(self.NAMES))
    for call in (sets.check, functools.partial(sets.labelled_set, size=8)):
      with pytest.raises(ValueError, match=r"test has pictures without a la"):
        call(sets.parse("mine"), data_dir=tmp_path)
    sets.check(sets.parse("mine:validation"), tmp_path)

  def test_captions_in_groups(self, tmp_path):
    make_captioned.prepare(tmp_path, {"test": make_captioned.ROWS})
    data = sets.image_text_set("mine", "test", size=8, data_dir=tmp_path)
    assert data.image_group.tolist() == [0, 1, 2]
    assert data.caption_group.tolist() == [0, 0, 1, 2]
    assert data.captions == make_captioned.CAPTIONS
    expected = images.resize(images.decode(make_captioned.B), 8)
    np.testing.assert_array_equal(data.image[1:2][0], expected)
    # Image 2 equals image 0: a tie between them counts against both.
    embed = driver.Embed(
      image=lambda x: np.eye(2)[[0, 1, 0]],
      text=lambda x: np.eye(2)[[0, 0, 1, 0]],
    )
    scores = driver.retrieval_evaluator(data, "mine")(embed)
    assert scores["mine/image_to_text/recall@1"] == pytest.approx(1 / 3)
    assert scores["mine/text_to_image/recall@1"] == pytest.approx(1 / 4)
    assert scores["mine/text_to_image/recall@5"] == 1.0


class TestWhenAsked:
  def embed(self):
    """Pictures by their mean colour and middle, texts by their colour."""

    def image(pictures):
      x = np.float32(pictures[:])
      middle = x[:, 3:13, 3:13]
      x = np.concatenate([x.mean((1, 2)), middle.mean((1, 2))], axis=1)
      return x - x.mean(axis=1, keepdims=True)

    def text(texts):
      name = lambda text: text.removesuffix(".").split()[-1]
      colours = np.array([shapes.COLOURS[name(x)] for x in texts], np.float32)
      x = np.concatenate([colours, colours], axis=1)
      return (x + 1) / np.linalg.norm(x + 1, axis=1, keepdims=True)

    return driver.Embed(image=image, text=text)

  def test_zero_shot(self, classes, monkeypatch):
    opened = []
    whole = sets.labelled_set
    monkeypatch.setattr(
      sets, "labelled_set", lambda *x, **y: opened.append(x) or whole(*x, **y)
    )
    options = dict(size=16, data_dir=classes)
    evaluate = sets.zero_shot_when_asked(sets.parse("colours"), **options)
    assert not opened
    scores = [evaluate(self.embed()) for _ in range(2)]
    assert scores[0] == scores[1] and len(opened) == 1
    assert scores[0]["zero_shot_colours/top1"] > 2 / 8

  def test_probe(self, classes, monkeypatch):
    seen = []

    def probe_evaluator(train, test, name):
      seen.append((train.image[:], test.image[:], name))
      return lambda embed: {"seen": len(seen)}

    monkeypatch.setattr(driver, "probe_evaluator", probe_evaluator)
    evaluate = sets.probe_when_asked(
      sets.parse("colours:test"), size=16, data_dir=classes
    )
    assert not seen
    assert evaluate(None) == evaluate(None) == {"seen": 1}
    ((train, test, name),) = seen
    assert name == "colours" and len(train) == len(test) == 24
    assert not (train == test).all(axis=(1, 2, 3)).any()

  def test_a_run_says_at_once_what_is_missing(self, classes, tmp_path):
    make_captioned.prepare(tmp_path, {"train": make_captioned.ROWS})
    shutil.copytree(classes / "colours" / "test", tmp_path / "flat")
    read = lambda **more: datasets.image_text(
      train="mine", data_dir=tmp_path, size=16, **more
    )
    for more, message in (
      (dict(probes=("flat",)), "no folder train"),
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
    counts = {split: len(found) for split, found in data.evaluators.items()}
    assert counts == {"validation": 2, "test": 2}
    assert set(data.sets) == {"validation", "test"}


def test_what_a_model_takes_is_known_without_data(tmp_path):
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog"]
  (tmp_path / "vocab.txt").write_text("\n".join(words))
  spec = dict(name="image_text", train="nothing", size=64, length=5)
  inputs = datasets.inputs_of(spec | {"tokenizer": str(tmp_path)})
  assert inputs.image_shape == (64, 64, 3)
  assert inputs.tokenizer.encode(["A dog!"]).tolist() == [[2, 4, 5, 3, 0]]
  assert datasets.inputs_of(spec) is None  # its words are those of the data


class TestPrompts:
  @pytest.mark.parametrize(
    ("name", "count"),
    [
      ("imagenet", 80),
      ("imagenet_v2", 80),
      ("cifar100", 18),
      ("dtd", 8),
      ("food101", 1),
      ("pets", 1),
    ],
  )
  def test_counts(self, name, count):
    (found,) = prompts.make(name, ["ice_cream"])
    assert len(found) == len(set(found)) == count
    for prompt in found:
      assert "ice cream" in prompt and "{" not in prompt and "_" not in prompt

  def test_names_of_imagenet(self):
    names = prompts._table()["imagenet_names"]
    assert len(names) == 1000
    assert all(key[0] == "n" and len(key) == 9 for key in names)
    assert list(names) == sorted(names)
    # Where CLIP's names are others than WordNet's first lemmas.
    for key, name in (
      ("n01440764", "tench"),
      ("n01443537", "goldfish"),
      ("n02012849", "crane bird"),
      ("n03126707", "construction crane"),
      ("n15075141", "toilet paper"),
    ):
      assert names[key] == name

  def test_published_ones(self):
    make = lambda name: prompts.make(name, ["x"])[0]
    assert {"itap of a x.", "a tattoo of the x.", "the toy x."} <= set(
      make("imagenet")
    )
    assert "a photo of the small x." in make("cifar100")
    assert "a photo of a x texture." in make("dtd")
    assert make("anything") == ("a photo of a x.",)
