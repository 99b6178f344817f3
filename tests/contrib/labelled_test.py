"""Labelled images, two views of each, and one encoder of both."""

from functools import partial

import cv2
import jax
import jax.numpy as jnp
import make_captioned
import numpy as np
import pytest
import tensorflow_datasets as tfds

from configs import labelled as recipe
from nuclr_jax import Batch, Pairs
from nuclr_jax.contrib import labelled_images
from nuclr_jax.lab import models
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.data.augment import augment
from nuclr_jax.lab.data.source import random_numbers
from nuclr_jax.lab.evaluate.evaluators import Embed, run_evaluators
from nuclr_jax.lab.train import build as experiment


@pytest.fixture(scope="module")
def splits():
  return labelled_images.digit_splits(8)


def test_splits_share_no_digit(splits):
  rows = [x.tobytes() for part in splits.values() for x in part.image]
  assert len(rows) == 1_797
  found = {name: {x.tobytes() for x in s.image} for name, s in splits.items()}
  assert not found["train"] & found["test"]
  again = labelled_images.digit_splits(8)["test"]
  np.testing.assert_array_equal(again.image, splits["test"].image)
  assert splits["train"].image.shape == (1197, 8, 8, 1)
  assert splits["train"].image.max() == 255


@pytest.mark.parametrize("positive", ["view", "class"])
def test_views(positive, splits):
  data = splits["train"]
  move = augment(shift=1.0, scale=0.1)
  source = labelled_images.two_views(data, move, positive=positive)
  ids = np.arange(0, 1197, 3)
  random = random_numbers(0, 5, ids)
  batch = source.fetch(ids, random)
  np.testing.assert_array_equal(batch.label, data.label[ids])
  np.testing.assert_array_equal(batch.image, source.fetch(ids, random).image)
  assert (batch.image != batch.text).any(axis=(1, 2, 3)).all()
  # Without random numbers: the images themselves.
  plain = source.fetch(ids)
  np.testing.assert_array_equal(plain.image, data.image[ids])
  np.testing.assert_array_equal(plain.text, data.image[ids])
  # What the second view is of: unmoved, it is one of the training images.
  still = labelled_images.two_views(
    data, augment(shift=0.0, scale=0.0), positive=positive
  ).fetch(ids, random)
  where = {x.tobytes(): i for i, x in enumerate(data.image)}
  other = np.array([where[x.tobytes()] for x in still.text])
  np.testing.assert_array_equal(data.label[other], data.label[ids])
  if positive == "view":
    np.testing.assert_array_equal(other, ids)
  else:
    assert np.mean(other == ids) < 0.05


class TestModel:
  def make(self, **more):
    options = dict(
      image_shape=(8, 8, 1),
      vocab_size=0,
      length=0,
      encoder=dict(name="convnet", stages=((2, 2, 8),), num_features=16),
      dim=4,
    )
    return models.views(**(options | more))

  def test_both_sides_at_once_are_each_alone(self):
    model = self.make(hidden=8)
    params, state = jax.jit(model.init)(jax.random.key(0))
    x, y = np.random.default_rng(0).integers(0, 256, (2, 5, 8, 8, 1))
    x, y = x.astype(np.uint8), y.astype(np.uint8)
    apply = jax.jit(model.apply)
    both, _ = apply(params, state, Batch(x, y, np.arange(5)))
    one, _ = apply(params, state, Batch(x, None, None))
    two, _ = apply(params, state, Batch(None, y, None))
    np.testing.assert_allclose(both.image, one.image, atol=1e-6)
    np.testing.assert_allclose(both.text, two.text, atol=1e-6)
    assert one.text is None and two.image is None
    np.testing.assert_allclose(np.linalg.norm(both.text, axis=1), 1, rtol=1e-5)
    features = jax.jit(model.features)(params, state, Batch(x, None, None))
    assert features.image.shape == (5, 16) and features.text is None

  def test_batch_statistics_are_of_both_views(self):
    model = self.make()
    params, state = jax.jit(model.init)(jax.random.key(0))
    x, y = np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8, 1))
    train = jax.jit(partial(model.apply, key=jax.random.key(0), train=True))
    moved = [
      train(
        params,
        state,
        Batch(a.astype(np.uint8), b.astype(np.uint8), np.arange(len(a))),
      )[1]
      for a, b in ((x, y), (y, x), (np.r_[x[:2], y[:2]], np.r_[x[2:], y[2:]]))
    ]
    for other in moved[1:]:
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        moved[0],
        other,
      )

  def test_dropout_makes_views_of_the_same_tokens(self):
    model = self.make(
      vocab_size=9,
      length=5,
      encoder=dict(name="transformer", width=8, dropout=0.5),
    )
    params, state = jax.jit(model.init)(jax.random.key(0))
    tokens = np.ones((3, 5), np.int32)
    train = jax.jit(partial(model.apply, key=jax.random.key(1), train=True))
    pairs, _ = train(params, state, Batch(tokens, tokens, np.arange(3)))
    assert np.abs(pairs.image - pairs.text).max() > 0.01

  def test_errors(self):
    with pytest.raises(ValueError, match="encoder.name is 'vgg'"):
      self.make(encoder=dict(name="vgg"))
    for key in ("width", "image_shape"):
      with pytest.raises(
        ValueError, match=rf"unknown keys \['{key}'\] of model.encoder"
      ):
        self.make(encoder={"name": "convnet", key: 3})


def test_a_refresh_without_texts_is_refused_before_training():
  config = recipe.get_config("nuclr,digits")
  config.refresh = {"every_epochs": 1.0}
  with pytest.raises(ValueError, match="images only; .* neither refresh nor"):
    experiment.build(complete(config))


def test_every_name_of_the_config_builds():
  for name in recipe.ALGORITHMS:
    experiment.build(complete(recipe.get_config(name)))
  for text in ("simclr", "clip,npair", "digits,glyphs", "clip,coco"):
    with pytest.raises(ValueError, match="argument must be one of"):
      recipe.get_config(text)


@pytest.fixture(scope="module")
def glyphs(data_dir):
  return labelled_images.glyph_splits(16, data_dir=data_dir)


def test_glyphs_are_classes_of_sixteen_images(glyphs):
  assert {name: len(x.label) for name, x in glyphs.items()} == {
    "train": 7270,
    "validation": 1454,
    "test": 2908,
  }
  for name, count in labelled_images.NUM_FONTS.items():
    assert (np.bincount(glyphs[name].label) == count).all()
  # Images of a class are more alike than others, whatever split they are in.
  rows = np.arange(0, 2908, 4)
  test = glyphs["test"].image[rows].reshape(727, -1) / 255.0
  train = glyphs["train"].image.reshape(727, 10, -1) / 255.0
  distance = lambda a, b: np.linalg.norm(a - b, axis=-1)
  own = distance(test[:, None], train).mean()
  other = distance(test[:, None], np.roll(train, 1, axis=0)).mean()
  assert own < 0.8 * other


class TestParts:
  def test_classes(self, splits):
    found = labelled_images.keep_part(splits, classes=4)
    kept = sorted(np.random.default_rng(0).permutation(10)[:4])
    for name, x in found.items():
      assert np.unique(x.label).tolist() == [0, 1, 2, 3]
      old = splits[name]
      rows = np.isin(old.label, kept)
      np.testing.assert_array_equal(x.image, old.image[rows])
      assert [kept[c] for c in x.label] == old.label[rows].tolist()

  def test_images_of_a_class(self, splits):
    found = labelled_images.keep_part(splits, per_class=7)
    assert (np.bincount(found["train"].label) == 7).all()
    rows = {x.tobytes(): y for x, y in zip(*splits["train"][:2], strict=True)}
    assert len({x.tobytes() for x in found["train"].image}) == 70
    for image, label in zip(*found["train"][:2], strict=True):
      assert rows[image.tobytes()] == label
    assert found["test"] is splits["test"]
    everything = labelled_images.keep_part(splits, per_class=10_000)["train"]
    assert len(everything.label) == 1197

  def test_wrong_numbers(self, splits):
    with pytest.raises(ValueError, match=r"classes must be in .*, got 11"):
      labelled_images.keep_part(splits, classes=11)
    with pytest.raises(ValueError, match="per_class must be at least 1"):
      labelled_images.keep_part(splits, per_class=0)

  def test_labels_that_classifiers_learn_from(self):
    """They are those that `per_class` keeps; all images are trained on."""
    few = labelled_images.labelled(size=8, labels_per_class=7)
    kept = labelled_images.labelled(size=8, per_class=7)
    for split in ("validation", "test"):
      known, same = (x.held_out[split].others["digits"] for x in (few, kept))
      np.testing.assert_array_equal(known.train.image, same.train.image)
      np.testing.assert_array_equal(known.train.label, same.train.label)
      assert len(known.train.label) == 70 and len(known.test.label) == 300
    assert few.train.sizes.num_pairs == 1_197

  def test_names_differ(self, splits):
    """Runs on parts of the data are told apart."""
    parts = [
      splits,
      labelled_images.keep_part(splits, classes=5),
      labelled_images.keep_part(splits, per_class=5),
      labelled_images.halve_classes(splits),
    ]
    assert len({x["train"].name for x in parts}) == 4


class TestBlocks:
  def source(self, splits, size):
    still = augment(shift=0.0, scale=0.0)
    return labelled_images.two_views(
      splits["train"], still, positive="class", block_size=size
    )

  @pytest.mark.parametrize("size", [2, 5])
  def test_blocks_are_of_one_class(self, size, splits):
    data = splits["train"]
    ids = np.random.default_rng(0).permutation(1197)[:100]
    random = random_numbers(0, 3, ids)
    batch = self.source(splits, size).fetch(ids, random)
    blocks = batch.label.reshape(-1, size)
    assert (blocks == blocks[:, :1]).all() and len(np.unique(blocks)) > 6
    np.testing.assert_array_equal(batch.pair_id[::size], ids[::size])
    assert (batch.pair_id != ids).mean() > 0.9 * (1 - 1 / size)
    # Ids, labels and images belong together on both sides.
    np.testing.assert_array_equal(batch.image, data.image[batch.pair_id])
    np.testing.assert_array_equal(batch.label, data.label[batch.pair_id])
    where = {x.tobytes(): y for x, y in zip(*data[:2], strict=True)}
    assert [where[x.tobytes()] for x in batch.text] == batch.label.tolist()

  def test_errors(self, splits):
    random = random_numbers(0, 0, np.arange(7))
    with pytest.raises(ValueError, match="consist of blocks of 5 pairs, got 7"):
      self.source(splits, 5).fetch(np.arange(7), random)
    with pytest.raises(ValueError, match="1 unless positive is 'class'"):
      still = augment(shift=0.0, scale=0.0)
      labelled_images.two_views(splits["train"], still, block_size=2)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"terms": {"dar": {"weight": 1.0}}}, "known names are .*cyclic_consist"),
    (
      {"terms": {"difference_alignment": {"weight": 1.0}}},
      "contrib:difference_alignment",
    ),
    (
      {"terms": {"contrib:difference_alignment": {}}},
      "a mapping with a weight, got",
    ),
    (
      {"terms": {"contrib:difference_alignment": {"weight": 0.0, "tile": 1}}},
      r"unknown keys \['tile'\] of terms",
    ),
    (
      {
        "terms": {"contrib:difference_alignment": {"weight": 0.0, "norm": "l3"}}
      },
      "norm must be one of",
    ),
    (
      {"terms": {"contrib:difference_alignment": {"weight": -1.0}}},
      "weight must be a number of at least 0, got -1",
    ),
  ],
)
def test_wrong_terms(change, message):
  config = complete(recipe.get_config()) | change
  with pytest.raises(ValueError, match=message):
    experiment.build(config)


def test_a_term_of_weight_0_is_left_out():
  metrics = []
  for weight in (0.0, 0.5):
    config = complete(recipe.get_config())
    config["terms"]["contrib:difference_alignment"]["weight"] = weight
    objective = experiment.build(config).objective
    pairs = Pairs(jnp.eye(4), jnp.eye(4), jnp.arange(4))
    _, (_, found) = jax.eval_shape(objective.apply, *objective.init(), pairs)
    metrics.append(set(found))
  assert metrics[0] == {"temperature"}
  assert metrics[1] == {
    "ntxent/loss",
    "ntxent/temperature",
    "difference_alignment/loss",
    "difference_alignment/variation",
  }


class TestWrongData:
  """What would give wrong numbers is an error before anything is trained."""

  def build(self, data_dir=None, **changes):
    config = complete(recipe.get_config("ntxent"))
    config["data"] |= changes
    config["batch_size"] = 8
    return experiment.build(config, data_dir=data_dir)

  @pytest.mark.parametrize(
    ("changes", "message"),
    [
      ({"ways": (1, 2)}, r"ways must be whole .* at least 2, got \[1\]"),
      ({"num_negatives": (0,)}, r"each a whole number of at least 1, got \(0"),
      ({"num_negatives": (6000,)}, r"at most 5000, got \[6000\]"),
      ({"test": "cifar10:test"}, "digits has its own validation and test"),
      ({"train": "mine:train", "test": "mine:train"}, "are the same images"),
      ({"train": "mine:test"}, "are the same images"),
    ],
  )
  def test_numbers_and_places(self, changes, message):
    with pytest.raises(ValueError, match=message):
      self.build(**changes)

  def folder(self, path, **classes):
    for split, names in classes.items():
      for name in names:
        (path / "mine" / split / name).mkdir(parents=True)
        for i in range(3):
          image = np.full((8, 8, 3), 40 * i + 10, np.uint8)
          cv2.imwrite(str(path / "mine" / split / name / f"{i}.png"), image)
    return dict(train="mine:train", data_dir=path)

  def test_folders_with_other_classes(self, tmp_path):
    """Labels count a split's own folders: b would be 1 here and c there."""
    given = self.folder(tmp_path, train="abc", test="ac")
    with pytest.raises(ValueError, match="has other classes than mine:train"):
      self.build(**given)

  def test_a_class_that_one_split_lacks(self, tmp_path):
    data = {"train": [0, 1, 2, 0, 1, 2], "test": [0, 2, 0]}
    png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    make_captioned.prepare(
      tmp_path,
      {split: [(png, x) for x in label] for split, label in data.items()},
      name="mine",
      captions={"label": tfds.features.ClassLabel(num_classes=3)},
      column=lambda label: {"label": label},
    )
    with pytest.raises(ValueError, match=r"in one only: \[1\]; leave"):
      self.build(train="mine:train", data_dir=tmp_path)

  def test_too_few_classes_or_images(self, tmp_path):
    given = self.folder(tmp_path / "one", train="a", test="a")
    with pytest.raises(ValueError, match=r"has 1 class.*at least 2 are"):
      self.build(**given)
    given = self.folder(tmp_path / "two", train="ab", test="ab")
    with pytest.raises(ValueError, match=r"has 2 class.*at least 4 are"):
      self.build(**given, unseen=True)
    for name in "ab":
      for i in (1, 2):
        (tmp_path / "two" / "mine" / "test" / name / f"{i}.png").unlink()
    with pytest.raises(ValueError, match="no class has two images"):
      self.build(**given)

  @pytest.mark.parametrize("name", ["curl", "quick_thought"])
  def test_blocks_of_the_objective_are_those_of_the_data(self, name):
    config = complete(recipe.get_config(name))
    config["objective"]["block_size"] = 8
    with pytest.raises(ValueError, match="block_size is 8 and that of the"):
      experiment.build(config)

  def test_no_image_is_in_both_halves_or_twice(self, tmp_path):
    write_tfds(tmp_path, "mine", 16, 3)
    data = self.build(
      train="mine:train", unseen=True, size=16, data_dir=tmp_path
    ).data
    assert data.train.sizes.num_pairs == 26  # of 52 in both splits

  def test_few_of_each_class_that_is_seen(self):
    data = self.build(unseen=True, per_class=5).data
    assert data.train.sizes.num_pairs == 25


def test_scores_are_not_overwritten():
  one = lambda embed: {"a": 1.0}
  with pytest.raises(ValueError, match=r"two evaluators of test give \['a'\]"):
    run_evaluators([one, one], Embed(one, one), "test")


def test_unknown_scores():
  config = complete(recipe.get_config())
  config["data"] |= {"scores": ("recall@1",)}
  with pytest.raises(ValueError, match="scores must be among .*'recall@1'"):
    experiment.build(config)


def write_tfds(data_dir, name, size, channels):
  """A TFDS data set as published, with few images that can be learned."""
  rng, splits = np.random.default_rng(0), {}
  for split, count in (("train", 40), ("test", 12)):
    rows = []
    for i in range(count):
      image = rng.integers(0, 100, (size, size, channels), np.uint8)
      image[:, (i % 4) * size // 4 :][:, : size // 4] += 120
      rows.append((cv2.imencode(".png", image)[1].tobytes(), i % 4))
    splits[split] = rows
  make_captioned.prepare(
    data_dir,
    splits,
    name=name,
    captions={"label": tfds.features.ClassLabel(num_classes=4)},
    column=lambda label: {"label": label},
  )
