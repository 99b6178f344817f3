"""Recall and zero-shot accuracy against brute force."""

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax import sharding
from nuclr_jax.evaluate import driver, retrieval, zero_shot
from nuclr_jax.models import Model
from nuclr_jax.types import Pairs

TEXT_OF_IMAGE = np.random.default_rng(0).permutation(
  np.concatenate([np.arange(30), np.random.default_rng(1).integers(0, 30, 50)])
)


def brute_force(image, text, k):
  forth = [
    TEXT_OF_IMAGE[i] in np.argsort(-(text @ x), kind="stable")[:k]
    for i, x in enumerate(image)
  ]
  back = [
    t in TEXT_OF_IMAGE[np.argsort(-(image @ x), kind="stable")[:k]]
    for t, x in enumerate(text)
  ]
  return np.mean(forth), np.mean(back)


@pytest.mark.parametrize("chunk", [7, 1024])
def test_recall(chunk, monkeypatch):
  monkeypatch.setattr(retrieval, "CHUNK", chunk)
  text = make_pairs.unit_rows(0, 30, 6)
  image = text[TEXT_OF_IMAGE] + 0.5 * make_pairs.unit_rows(1, 80, 6)
  scores = retrieval.recall(image, text, TEXT_OF_IMAGE)
  for k in (1, 5, 10):
    forth, back = brute_force(image, text, k)
    assert scores[f"image_to_text/recall@{k}"] == forth
    assert scores[f"text_to_image/recall@{k}"] == back
    assert scores[f"mean_recall@{k}"] == pytest.approx((forth + back) / 2)
  assert 0.2 < scores["mean_recall@1"] < 0.95


def test_collapsed_and_broken_embeddings_have_no_recall():
  same = np.ones((80, 2)) / np.sqrt(2)
  for image in (same, np.full((80, 2), np.nan)):
    scores = retrieval.recall(image, same[:30], TEXT_OF_IMAGE, top=(1,))
    assert scores["image_to_text/recall@1"] == 0


def test_recall_needs_an_image_for_every_text():
  with pytest.raises(ValueError, match="every index"):
    retrieval.recall(np.eye(3), np.eye(4)[:, :3], np.arange(3))


def test_zero_shot():
  prompts = make_pairs.unit_rows(0, 6, 8)
  owner = np.array([0, 0, 1, 1, 2, 2])
  classes = zero_shot.class_embeddings(prompts, owner)
  for c in range(3):
    mean = prompts[owner == c].mean(axis=0)
    np.testing.assert_allclose(classes[c], mean / np.linalg.norm(mean))
  label = np.array([0, 1, 1, 1, 2])
  image = classes[[0, 1, 1, 2, 2]]
  scores = zero_shot.accuracy(image, classes, label)
  assert scores["top1"] == 4 / 5
  assert scores["mean_per_class"] == pytest.approx((1 + 2 / 3 + 1) / 3)


@pytest.mark.parametrize("num_devices", [1, 8])
def test_embedding_in_chunks(num_devices):
  """Every input once, in order, of unit norm; 1,100 = 2 chunks + 76."""

  def apply(params, state, batch, *, key, train):
    assert key is None and train is False

    def point(x):  # at angle x, `params` away from 0
      if x is None:
        return None
      return params * jnp.concatenate([jnp.cos(x), jnp.sin(x)], axis=1)

    return Pairs(point(batch.image), point(batch.text), None), state

  mesh = sharding.make_mesh(num_devices)
  model = Model(lambda key: (2.0, ()), apply)
  encode = lambda captions: np.array([[len(c)] for c in captions], np.int32)
  with jax.set_mesh(mesh):
    embed = driver.make_embedder(model, encode, mesh)(2.0, ())
    image = np.arange(1100, dtype=np.float32)[:, None] / 200
    for found, angle in (
      (embed.image(image), image),
      (embed.text(["a", "bcd"]), np.array([[1.0], [3.0]])),
    ):
      expected = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
      np.testing.assert_allclose(found, expected, atol=1e-6)


def test_zero_shot_evaluator_groups_prompts():
  data = driver.LabelledSet(
    image=np.eye(2), label=np.array([1, 0]), prompts=[("a", "aa"), ("b",)]
  )
  embed = driver.Embed(
    image=lambda x: x[::-1],
    text=lambda captions: np.array(
      [[c[0] == "a", c[0] == "b"] for c in captions], float
    ),
  )
  scores = driver.run([driver.zero_shot_evaluator(data, "it")], embed, "test")
  assert scores["test/zero_shot_it/top1"] == 1.0
