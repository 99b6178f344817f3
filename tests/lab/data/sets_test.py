"""Labelled sets: where they lie, folders of classes, prepared TFDS sets."""

import functools
import shutil

import make_captioned
import numpy as np
import pytest
import shapes
import tensorflow_datasets as tfds

from nuclr_jax.lab.data import images, sets
from nuclr_jax.lab.data.source import Resize
from nuclr_jax.lab.evaluate.zero_shot import make_prompts

CROP = Resize("crop")

Place = sets.Place
photo = make_captioned.photo


class TestPlaces:
  @pytest.mark.parametrize(
    ("text", "expected"),
    [
      ("coco", Place("coco", "coco", None)),
      ("coco:test", Place("coco", "coco", "test")),
      ("coco/2014:val[:9]", Place("coco", "coco/2014", "val[:9]")),
      ("half=coco:val[:50%]", Place("half", "coco", "val[:50%]")),
      ("x=a/b:val[1:]+test", Place("x", "a/b", "val[1:]+test")),
      ("gs://b/c:val[:9]", Place("c", "gs://b/c", "val[:9]")),
      ("/data/year=1:val", Place("year=1", "/data/year=1", "val")),
      ("pets=/data/pets", Place("pets", "/data/pets", None)),
      ("pets=/data/pets:val", Place("pets", "/data/pets", "val")),
      ("other=coco:test", Place("other", "coco", "test")),
      ("other=coco:test[9:]", Place("other", "coco", "test[9:]")),
      ("other=a:b/coco:test", Place("other", "a:b/coco", "test")),
      ("/data/flowers", Place("flowers", "/data/flowers", None)),
      ("/data/flowers/", Place("flowers", "/data/flowers/", None)),
      ("~/flowers:val", Place("flowers", "~/flowers", "val")),
      ("gs://b/year=1/c:val", Place("c", "gs://b/year=1/c", "val")),
      ("pets=s3://b/year=1", Place("pets", "s3://b/year=1", None)),
      ("../x/./flowers", Place("flowers", "../x/./flowers", None)),
      ("photos/flowers", Place("photos", "photos/flowers", None)),
    ],
  )
  def test_parse(self, text, expected):
    assert sets.parse_place(text) == expected

  def test_a_relative_folder(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "flowers").mkdir(parents=True)
    assert sets.parse_place("photos/flowers").name == "flowers"
    here = tmp_path / "photos" / "flowers"
    monkeypatch.chdir(here)
    assert sets.parse_place(".").name == "flowers"
    make_captioned.prepare(tmp_path, {"test": make_captioned.ROWS}, name="Coco")
    monkeypatch.chdir(tmp_path)
    assert sets.parse_place("coco/1.0.0").name == "coco"

  def test_names_are_told_apart(self):
    names = [
      x.name for x in sets.parse_places(["coco:a", "b=coco:b", "pets=/x"])
    ]
    assert names == ["coco", "b", "pets"]

  @pytest.mark.parametrize("text", ["", " ", "coco:", "x=", "x=coco:"])
  def test_none(self, text):
    with pytest.raises(ValueError, match="SET, SET:SPLIT or NAME=SET:SPLIT"):
      sets.parse_place(text)

  @pytest.mark.parametrize(
    "texts", [["coco:a", "coco:b"], ["/data/pets:train", "~/pets"], ["/"]]
  )
  def test_names_that_are_not(self, texts):
    with pytest.raises(ValueError, match="names of their own.*NAME=SET:SPLIT"):
      sets.parse_places(texts)


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
    place = sets.parse_place("colours")
    data = sets.open_labelled_set(place, size=16, data_dir=classes)
    names = sorted(shapes.COLOURS)
    assert data.label.tolist() == list(np.repeat(np.arange(8), 3))
    assert data.classes == names
    paths = [
      classes / "colours" / "test" / name / f"{i:03d}.jpg"
      for name in names
      for i in range(3)
    ]
    assert len(data.image) == 24
    which = np.array([5, 23, 0])
    expected = [
      images.resize(images.decode(paths[i].read_bytes()), 16, CROP)
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
    read = lambda text, **more: sets.open_labelled_set(
      sets.parse_place(text), size=8, data_dir=tmp_path, **more
    )
    assert len(read("mine", split="train").label) == 24
    for text in ("mine", f"x={folder}", "mine:val", "mine:validation"):
      assert len(read(text).label) == 21
    alone = read(f"x={folder}/val")
    assert len(alone.label) == 21

  @pytest.mark.parametrize("text", ["mine", "mine:valid", "mine:validation"])
  def test_valid_is_a_split_for_validation(self, text, classes, tmp_path):
    for split in ("train", "valid"):
      shutil.copytree(classes / "colours" / "test", tmp_path / "mine" / split)
    shutil.rmtree(tmp_path / "mine" / "valid" / "red")
    place = sets.parse_place(text)
    assert len(sets.check_labelled_set(place, tmp_path)) == 7
    assert sets.split_of(place, tmp_path) == "valid"

  def test_one_class_is_none(self, classes, tmp_path):
    """As a folder `val/images` of photos without classes, all of them right."""
    shutil.copytree(
      classes / "colours" / "test" / "red", tmp_path / "mine" / "val" / "images"
    )
    with pytest.raises(ValueError, match="val has one class, images, and noth"):
      sets.check_labelled_set(sets.parse_place("mine"), tmp_path)

  def test_a_split_by_another_name_must_be_named(self, classes, tmp_path):
    for split in ("Train", "Test"):
      shutil.copytree(classes / "colours" / "test", tmp_path / "mine" / split)
    with pytest.raises(ValueError, match="name a split, as SET:Test"):
      sets.check_labelled_set(sets.parse_place("mine"), tmp_path)
    place = sets.parse_place("mine:Test")
    assert len(sets.check_labelled_set(place, tmp_path)) == 8

  @pytest.mark.parametrize("text", ["mine", "mine:test"])
  def test_no_split_stands_in_for_another(self, text, classes, tmp_path):
    """Else a probe would be tested on what it was trained on."""
    shutil.copytree(classes / "colours" / "test", tmp_path / "mine")
    place, options = sets.parse_place(text), dict(data_dir=tmp_path)
    split = "train" if place.split is None else None
    wanted = split or place.split
    for call in (
      lambda: sets.open_labelled_set(place, size=8, split=split, **options),
      lambda: sets.check_labelled_set(place, split=split, **options),
    ):
      with pytest.raises(ValueError, match=f"has no folder {wanted}; it holds"):
        call()

  @pytest.mark.parametrize("root", [".cache", "lost+found/__MACOSX"])
  def test_what_is_hidden_is_no_class(self, root, tmp_path, caplog):
    """Below the folder; its own path may have any name."""
    folder = tmp_path / root / "pets"
    for name in ("cat", "dog", ".ipynb_checkpoints", "@eaDir"):
      (folder / name / "@eaDir").mkdir(parents=True)
      (folder / name / "0.jpg").write_bytes(photo(0))
      (folder / name / "._0.jpg").write_bytes(b"Mac OS X")
      (folder / name / ".DS_Store").write_bytes(b"x")
      (folder / name / "Thumbs.db").write_bytes(b"x")
    (folder / "__MACOSX" / "cat").mkdir(parents=True)
    (folder / "__MACOSX" / "cat" / "._0.jpg").write_bytes(b"x")
    place = sets.parse_place(str(folder))
    assert sets.check_labelled_set(place) == ["cat", "dog"]
    data = sets.open_labelled_set(place, size=8)
    assert (data.classes, data.label.tolist()) == (["cat", "dog"], [0, 1])
    assert not caplog.text

  def test_hidden_images_alone(self, tmp_path):
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    (tmp_path / "pets" / "cat" / "._0.jpg").write_bytes(photo(0))
    with pytest.raises(ValueError, match="no images in sub-folders"):
      sets.check_labelled_set(sets.parse_place(f"x={tmp_path}/pets"))

  def test_a_class_without_images_stays_one(self, tmp_path, caplog):
    for name in ("ape", "cat", "dog"):
      (tmp_path / "pets" / name / "more").mkdir(parents=True)
    (tmp_path / "pets" / "dog" / "0.jpg").write_bytes(photo(0))
    (tmp_path / "pets" / "ape" / "more" / "0.jpg").write_bytes(photo(0))
    place = sets.parse_place(f"x={tmp_path}/pets")
    data = sets.open_labelled_set(place, size=8)
    assert (data.classes, data.label.tolist()) == (["ape", "cat", "dog"], [2])
    assert "2 of 3 classes have no image, such as ape, cat;" in caplog.text

  def test_what_is_not_read_in_a_class_is_said(self, tmp_path, caplog):
    (tmp_path / "cat" / "more").mkdir(parents=True)
    for name in ("0.jpg", "1.heic", "2.jxl"):
      (tmp_path / "cat" / name).write_bytes(photo(0))
    data = sets.open_labelled_set(sets.parse_place(f"x={tmp_path}"), size=8)
    assert len(data.label) == 1
    shown = "cat/1.heic, cat/2.jxl, cat/more"
    assert (
      f"3 files and folders in its classes are not read, such as {shown};"
      in (caplog.text)
    )

  def test_no_images(self, tmp_path):
    (tmp_path / "mine" / "cat").mkdir(parents=True)
    for call in (
      sets.check_labelled_set,
      functools.partial(sets.open_labelled_set, size=8),
    ):
      with pytest.raises(ValueError, match=r"no images in sub-folders.*'cat'"):
        call(sets.parse_place("mine"), data_dir=tmp_path)

  def open_damaged(self, folder, count):
    """Opens two classes of four photos; `count` of the eight are damaged."""
    for i in range(8):
      path = folder / "mine" / ("cat", "dog")[i // 4] / f"{i}.jpg"
      path.parent.mkdir(parents=True, exist_ok=True)
      # Cut near the end: the header says nothing of it.
      path.write_bytes(photo(i)[: -300 if i % 4 < count / 2 else None])
    return sets.open_labelled_set(
      sets.parse_place("mine"), size=8, data_dir=folder
    )

  def test_broken_images_are_left_out_and_named(self, tmp_path, caplog):
    data = self.open_damaged(tmp_path, 4)
    assert "4 of 8 images cannot be read and are left out: cat/0" in caplog.text
    assert "dog/5.jpg (" in caplog.text and "..." not in caplog.text
    assert data.label.tolist() == [0, 0, 1, 1]
    expected = [
      images.resize(images.decode(photo(i)), 8, CROP) for i in (2, 3, 6, 7)
    ]
    np.testing.assert_array_equal(data.image[:], np.stack(expected))

  def test_a_set_that_is_mostly_broken(self, tmp_path):
    with pytest.raises(
      ValueError, match=r"6 of 8 images cannot be read: .*, \.\.\.; repair or"
    ):
      self.open_damaged(tmp_path, 6)

  def test_an_image_that_breaks_later_is_named(self, tmp_path):
    data = self.open_damaged(tmp_path, 0)
    (tmp_path / "mine" / "cat" / "2.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match="cat/2.jpg: 1 bytes cannot be decode"):
      data.image[:]

  def test_nothing_there(self, tmp_path):
    with pytest.raises(ValueError, match="no data set 'mine' is prepared"):
      sets.check_labelled_set(sets.parse_place("mine"), tmp_path)


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
    data = sets.open_labelled_set(
      sets.parse_place("food101"), size=8, data_dir=tmp_path
    )
    assert data.label.tolist() == [0, 1, 2, 0, 1]
    assert make_prompts("food101", data.classes) == [
      ("a photo of apple pie, a type of food.",),
      ("a photo of ice cream, a type of food.",),
      ("a photo of goldfish, a type of food.",),
    ]
    expected = images.resize(images.decode(self.ROWS[3][0]), 8, CROP)
    np.testing.assert_array_equal(data.image[3:4][0], expected)
    place = sets.parse_place("food101:train")
    train = sets.open_labelled_set(place, size=8, data_dir=tmp_path)
    assert train.label.tolist() == [0, 1]

  @pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r", "others"])
  def test_imagenet_a_and_r_have_fewer_classes_than_declared(
    self, name, tmp_path, caplog
  ):
    """A part of the split has the classes of the split."""
    rows = [(photo(i), label) for i, label in enumerate([2, 0, 2, 4])]
    features = labelled([*self.NAMES, "cup", "dog"])
    make_captioned.prepare(tmp_path, {"test": rows}, name=name, **features)

    def read(split):
      place = sets.parse_place(f"x={name}:{split}")
      return sets.open_labelled_set(place, size=8, data_dir=tmp_path)

    present = ["apple_pie", "n01443537", "dog"]
    for split, part in (("test", slice(4)), ("test[2:]", slice(2, 4))):
      data = read(split)
      found = [data.classes[i] for i in data.label]
      expected = ["n01443537", "apple_pie", "n01443537", "dog"][part]
      assert found == expected
      if name == "others":
        assert len(data.classes) == 5
        assert "2 of 5 classes have no image, such as ice_cream, cup" in (
          caplog.text
        )
      else:
        assert list(data.classes) == present

  def test_which_split(self, tmp_path):
    splits = {"train": self.ROWS[:1], "validation": self.ROWS[:2]}
    make_captioned.prepare(tmp_path, splits, **labelled(self.NAMES))
    place, options = sets.parse_place("mine"), dict(data_dir=tmp_path)
    assert len(sets.open_labelled_set(place, size=8, **options).label) == 2
    for call in (
      sets.check_labelled_set,
      lambda *x, **y: sets.open_labelled_set(*x, size=8, **y),
    ):
      with pytest.raises(ValueError, match="no split 'test'; it has"):
        call(sets.parse_place("mine:test"), **options)
    sets.check_labelled_set(place, split="train", **options)

  def test_a_damaged_split_is_not_replaced(self, tmp_path):
    splits = {"test": self.ROWS, "validation": self.ROWS[:2]}
    home = make_captioned.prepare(tmp_path, splits, **labelled(self.NAMES))
    (path,) = home.glob("*-test.array_record*")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
      sets.open_labelled_set(
        sets.parse_place("mine"), size=8, data_dir=tmp_path
      )

  def test_no_labels(self, tmp_path):
    make_captioned.prepare(tmp_path, {"test": make_captioned.ROWS})
    for call in (
      sets.check_labelled_set,
      functools.partial(sets.open_labelled_set, size=8),
    ):
      with pytest.raises(ValueError, match="image feature and a class label"):
        call(sets.parse_place("mine"), data_dir=tmp_path)

  def test_images_without_a_label(self, tmp_path):
    rows = [(photo(i), -1) for i in range(2)]
    splits = {"train": self.ROWS, "test": rows, "validation": self.ROWS}
    make_captioned.prepare(tmp_path, splits, **labelled(self.NAMES))
    for call in (
      sets.check_labelled_set,
      functools.partial(sets.open_labelled_set, size=8),
    ):
      with pytest.raises(ValueError, match=r"test has images without a la"):
        call(sets.parse_place("mine"), data_dir=tmp_path)
    sets.check_labelled_set(sets.parse_place("mine:validation"), tmp_path)
