"""Labelled pictures, two views of each, and one encoder of both."""

import importlib.util
import pathlib

import jax
import numpy as np
import pytest

from nuclr_jax import Batch, embed, experiment, models, settings, train
from nuclr_jax.data import labelled, transforms

PATH = pathlib.Path(__file__).parents[1] / "configs" / "digits.py"
SPEC = importlib.util.spec_from_file_location("digits_config", PATH)
digits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(digits)


@pytest.fixture(scope="module")
def splits():
  return labelled.digits(8)


def test_splits_share_no_digit(splits):
  rows = [x.tobytes() for part in splits.values() for x in part.image]
  assert len(rows) == 1_797
  found = {name: {x.tobytes() for x in s.image} for name, s in splits.items()}
  assert not found["train"] & found["test"]
  again = labelled.digits(8)["test"]
  np.testing.assert_array_equal(again.image, splits["test"].image)
  assert splits["train"].image.shape == (1197, 8, 8, 1)
  assert splits["train"].image.max() == 255


@pytest.mark.parametrize("positive", ["view", "class"])
def test_views(positive, splits):
  data = splits["train"]
  move = transforms.augment(shift=1.0, scale=0.1)
  source = labelled.views(data, move, positive=positive)
  ids = np.arange(0, 1197, 3)
  random = transforms.random_numbers(0, 5, ids)
  batch = source.fetch(ids, random)
  np.testing.assert_array_equal(batch.label, data.label[ids])
  np.testing.assert_array_equal(batch.image, source.fetch(ids, random).image)
  assert (batch.image != batch.text).any(axis=(1, 2, 3)).all()
  # Without random numbers: the pictures themselves.
  plain = source.fetch(ids)
  np.testing.assert_array_equal(plain.image, data.image[ids])
  np.testing.assert_array_equal(plain.text, data.image[ids])
  # What the second view is of: unmoved, it is one of the training pictures.
  still = labelled.views(
    data, transforms.augment(shift=0.0, scale=0.0), positive=positive
  ).fetch(ids, random)
  where = {x.tobytes(): i for i, x in enumerate(data.image)}
  other = np.array([where[x.tobytes()] for x in still.text])
  np.testing.assert_array_equal(data.label[other], data.label[ids])
  if positive == "view":
    np.testing.assert_array_equal(other, ids)
  else:
    assert np.mean(other == ids) < 0.05


def test_flip():
  mirror = transforms.augment(shift=0.0, scale=0.0, flip=True)
  image = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 1)
  random = np.zeros((2, 32))
  random[1, 4] = 0.9
  found = mirror(Batch(image, None, None), random).image
  np.testing.assert_array_equal(found[0], image[0, :, ::-1])
  np.testing.assert_array_equal(found[1], image[1])


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
    both, _ = model.apply(params, state, Batch(x, y, np.arange(5)))
    one, _ = model.apply(params, state, Batch(x, None, None))
    two, _ = model.apply(params, state, Batch(None, y, None))
    np.testing.assert_allclose(both.image, one.image, atol=1e-6)
    np.testing.assert_allclose(both.text, two.text, atol=1e-6)
    assert one.text is None and two.image is None
    np.testing.assert_allclose(np.linalg.norm(both.text, axis=1), 1, rtol=1e-5)
    features = model.features(params, state, Batch(x, None, None))
    assert features.image.shape == (5, 16) and features.text is None

  def test_batch_statistics_are_of_both_views(self):
    model = self.make()
    params, state = jax.jit(model.init)(jax.random.key(0))
    x, y = np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8, 1))
    moved = [
      model.apply(
        params,
        state,
        Batch(a.astype(np.uint8), b.astype(np.uint8), np.arange(len(a))),
        key=jax.random.key(0),
        train=True,
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
    pairs, _ = model.apply(
      params,
      state,
      Batch(tokens, tokens, np.arange(3)),
      key=jax.random.key(1),
      train=True,
    )
    assert np.abs(pairs.image - pairs.text).max() > 0.01

  def test_errors(self):
    with pytest.raises(ValueError, match="encoder.name is 'vgg'"):
      self.make(encoder=dict(name="vgg"))
    with pytest.raises(
      ValueError, match=r"unknown keys \['width'\] of encoder"
    ):
      self.make(encoder=dict(name="convnet", width=3))


@pytest.mark.parametrize("name", ["ntxent", "proxy_anchor"])
def test_a_run_learns(name, tmp_path):
  config = digits.get_config(name)
  config.update_from_flattened_dict(
    {
      "data.size": 8,
      "model.encoder.stages": ((2, 2, 16),),
      "num_epochs": 4.0,
      "eval_every_epochs": 0.0,
      "checkpoint_every": 0,
      "num_devices": 1,
    }
  )
  parts = experiment.build(config)
  quick = parts.data.evaluators["test"][:2]  # without the probe
  data = parts.data._replace(evaluators={"test": quick})
  result = train.fit(config, tmp_path, parts=parts._replace(data=data))
  assert result.metrics["test/classes_digits/mu/top_1"] > 0.6
  found = result.metrics["test/classes_digits/mean_classifier"]
  assert found <= result.metrics["test/classes_digits/bound"]
  with pytest.raises(ValueError, match=r"\(8, 8, 1\), not photos"):
    with embed.of_run(tmp_path):
      pass


def test_every_name_of_the_config_builds():
  for name in digits.ALGORITHMS:
    parts = experiment.build(settings.complete(digits.get_config(name)))
    assert parts.config["model"]["normalize"] == (name not in digits.RAW)
  with pytest.raises(ValueError, match="must be one of"):
    digits.get_config("simclr")
