"""Recall and zero-shot accuracy against brute force, prompts, embedding."""

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest
import reference

from nuclr_jax import sharding
from nuclr_jax.lab.data.source import (
  ImageTextSet,
  LabelledSet,
  LazyImages,
  Source,
)
from nuclr_jax.lab.evaluate import (
  evaluators,
  hubness,
  ranking,
  retrieval,
  zero_shot,
)
from nuclr_jax.lab.models import Model
from nuclr_jax.types import Batch, Pairs, Sides, Sizes

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


@pytest.mark.parametrize("chunk", [100, 2**20])
def test_recall(chunk, monkeypatch):
  monkeypatch.setattr(ranking, "CHUNK_SIMILARITIES", chunk)
  text = make_pairs.unit_rows(0, 30, 6)
  image = text[TEXT_OF_IMAGE] + 0.5 * make_pairs.unit_rows(1, 80, 6)
  scores = retrieval.recall(image, text, TEXT_OF_IMAGE, np.arange(30))
  for k in (1, 5, 10):
    forth, back = brute_force(image, text, k)
    assert scores[f"image_to_text/recall@{k}"] == forth
    assert scores[f"text_to_image/recall@{k}"] == back
    assert scores[f"mean_recall@{k}"] == pytest.approx((forth + back) / 2)
  assert 0.2 < scores["mean_recall@1"] < 0.95


def official_recall(image, text, image_group, text_group, k):
  """The protocol of COCO and Flickr30k, query by query."""
  found = []
  for x, group in zip(image, image_group, strict=True):
    order = np.argsort(-(text @ x)).tolist()
    own = np.flatnonzero(text_group == group)
    found.append(min(order.index(caption) for caption in own) < k)
  forth, found = np.mean(found), []
  for x, group in zip(text, text_group, strict=True):
    order = np.argsort(-(image @ x)).tolist()
    (own,) = np.flatnonzero(image_group == group)
    found.append(order.index(own) < k)
  return forth, np.mean(found)


@pytest.mark.parametrize("chunk", [1, 700, 2**26])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_recall_with_several_captions(num_devices, chunk, monkeypatch):
  """1 to 6 captions an image, in any order; 37 images on 8 devices."""
  monkeypatch.setattr(ranking, "CHUNK_SIMILARITIES", chunk)
  rng = np.random.default_rng(0)
  image_group = rng.permutation(100)[:37]
  text_group = np.repeat(image_group, rng.integers(1, 7, 37))
  text_group = rng.permutation(text_group)
  image = make_pairs.unit_rows(0, 37, 8)
  owner = np.argsort(image_group)[
    np.searchsorted(np.sort(image_group), text_group)
  ]
  text = image[owner] + 1.6 * make_pairs.unit_rows(1, len(owner), 8)
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  with jax.set_mesh(sharding.make_mesh(num_devices)):
    scores = retrieval.recall(image, text, image_group, text_group)
  means = []
  for k in (1, 5, 10):
    expected = official_recall(image, text, image_group, text_group, k)
    means += expected
    assert scores[f"image_to_text/recall@{k}"] == expected[0]
    assert scores[f"text_to_image/recall@{k}"] == expected[1]
  assert scores["mean_recall"] == pytest.approx(np.mean(means))
  assert len(set(means)) == 6 and 0.1 < min(means) < max(means) < 1


@pytest.mark.parametrize("chunk", [700, 2**26])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_recall_with_repeated_images_and_captions(
  num_devices, chunk, monkeypatch
):
  """A caption of several images, an image in several records: any is right."""
  monkeypatch.setattr(ranking, "CHUNK_SIMILARITIES", chunk)
  rng = np.random.default_rng(5)
  record = np.arange(30)
  record_of = np.sort(np.concatenate([record, rng.integers(0, 30, 40)]))
  same = Sides(image=rng.integers(0, 20, 30), text=rng.integers(0, 25, 70))
  same = Sides(*(np.unique(x, return_inverse=True)[1] for x in same))
  image = make_pairs.unit_rows(0, 30, 6)[same.image]
  text = make_pairs.unit_rows(1, 70, 6)[same.text] + 0.7 * image[record_of]
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  image_of = same.image[record_of].tolist()
  pairs = set(zip(image_of, same.text.tolist(), strict=True))
  assert len(pairs) > len(np.unique(same.text)) > 10
  data = ImageTextSet(image, record, ["x"] * 70, record_of, same=same)
  with jax.set_mesh(sharding.make_mesh(num_devices)):
    scores = retrieval.scores_of(data, image, text)
    by_record = retrieval.recall(image, text, record, record_of)
  found = []
  for k in (1, 5, 10):
    expected = reference.recall_by_loop(image, text, *same, pairs, k)
    found += expected
    assert scores[f"image_to_text/recall@{k}"] == expected[0]
    assert scores[f"text_to_image/recall@{k}"] == expected[1]
    # The protocol that knows no repetitions finds fewer right answers.
    name = f"mean_recall@{k}"
    assert scores[f"by_record/{name}"] == by_record[name] < scores[name]
  assert 0.1 < min(found) < max(found) < 1


def test_recall_without_repetitions_is_the_same_either_way():
  rng = np.random.default_rng(6)
  text_group = np.repeat(np.arange(20), rng.integers(1, 5, 20))
  image = make_pairs.unit_rows(2, 20, 6)
  text = make_pairs.unit_rows(3, len(text_group), 6) + image[text_group]
  same = Sides(np.arange(20), np.arange(len(text_group)))
  how = image, text, np.arange(20), text_group
  penalty = Sides(rng.normal(size=20), rng.normal(size=len(text_group)))
  assert retrieval.recall(*how, zeta=penalty, same=same) == retrieval.recall(
    *how, zeta=penalty
  )


@pytest.mark.parametrize("num_devices", [1, 8])
def test_ranks_are_counts(num_devices, monkeypatch):
  """How many wrong candidates are at least as near as the best right one."""
  monkeypatch.setattr(ranking, "CHUNK_SIMILARITIES", 64)
  rng = np.random.default_rng(3)
  queries, gallery = (
    rng.integers(-2, 3, (n, 3)).astype(float) for n in (21, 30)
  )
  groups = rng.integers(0, 6, 21), rng.integers(0, 7, 30)
  penalty = rng.integers(0, 3, 30).astype(float)
  with jax.set_mesh(sharding.make_mesh(num_devices)):
    found = ranking.ranks(queries, gallery, *groups, penalty)
  for i in range(21):
    sim = [float(queries[i] @ gallery[j] - penalty[j]) for j in range(30)]
    right = [
      s for s, g in zip(sim, groups[1], strict=True) if g == groups[0][i]
    ]
    wrong = [
      s for s, g in zip(sim, groups[1], strict=True) if g != groups[0][i]
    ]
    assert found[i] == sum(s >= max(right) for s in wrong)


def test_collapsed_and_broken_embeddings_have_no_recall():
  same = np.ones((80, 2)) / np.sqrt(2)
  for image in (same, np.full((80, 2), np.nan)):
    scores = retrieval.recall(
      image, same[:30], TEXT_OF_IMAGE, np.arange(30), top=(1,)
    )
    assert scores["image_to_text/recall@1"] == 0


@pytest.mark.parametrize(
  "groups",
  [
    np.array([0, 2**32]),
    np.array([-(2**32), 0]),
    np.array([2**63, 2**63 + 1], np.uint64),
  ],
)
def test_groups_of_any_integers_stay_apart(groups):
  """In 32 or 53 bits, the two groups would be one."""
  for order, expected in (([0, 1], 1.0), ([1, 0], 0.0)):
    scores = retrieval.recall(np.eye(2), np.eye(2)[order], groups, groups)
    assert scores["mean_recall@1"] == expected
  label, x = groups[[0, 1, 0, 1]], np.eye(4)[[0, 0, 1, 1]]
  assert retrieval.same_class_recall(x, label, top=(1,)) == {"recall@1": 0}


def test_recall_needs_an_image_for_every_text():
  with pytest.raises(ValueError, match="in one only: \\[3\\]"):
    retrieval.recall(np.eye(3), np.eye(4)[:, :3], np.arange(3), np.arange(4))


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
def test_zero_shot_against_sorting(num_devices):
  rng = np.random.default_rng(0)
  classes = make_pairs.unit_rows(0, 12, 5)
  label = rng.permutation(np.arange(70) % 12)
  image = classes[label] + 1.6 * make_pairs.unit_rows(1, 70, 5)
  with jax.set_mesh(sharding.make_mesh(num_devices)):
    scores = zero_shot.accuracy(image, classes, label)
  order = np.argsort(-(image @ classes.T), axis=1)
  right = order == label[:, None]
  for k in (1, 3, 5, 10):
    assert scores[f"top{k}"] == right[:, :k].any(axis=1).mean()
  each = [right[label == c, 0].mean() for c in range(12)]
  assert scores["mean_per_class"] == pytest.approx(np.mean(each))
  assert 0.2 < scores["top1"] < scores["top3"] < scores["top5"] < 1
  few = zero_shot.accuracy(image[:3], classes[:3], np.arange(3) % 3)
  assert set(few) == {"top1", "mean_per_class"}


def test_classes_of_any_order_and_number_of_prompts():
  prompts = make_pairs.unit_rows(0, 7, 8)
  owner = np.array([2, 0, 2, 1, 0, 2, 2])
  classes = zero_shot.class_embeddings(prompts, owner)
  for c in range(3):
    total = np.zeros(8)
    for prompt, own in zip(prompts, owner, strict=True):
      total += prompt * (own == c)
    np.testing.assert_allclose(classes[c], total / np.linalg.norm(total))


@pytest.mark.parametrize("popular", [False, True])
def test_classes_of_equal_prompts_are_ranked_as_published(popular):
  """Stable sorting: the first of equals is before the second, in any top k."""
  prompts = np.array([0, 1, 2, 1, 3, 0, 1, 4])
  heads = make_pairs.unit_rows(0, 5, 4)[prompts]
  zeta = 0.3 * np.arange(5)[prompts] if popular else np.zeros(8)
  label = np.arange(80) % 8
  image = heads[label] + 0.8 * make_pairs.unit_rows(1, 80, 4)
  scores = zero_shot.accuracy(
    image, heads, label, top=(1, 2, 3, 5), zeta=zeta, prompts=prompts
  )
  # Of equal rows the sums are equal to the bit, which a product is not.
  sim = np.stack([(image * head).sum(1) for head in heads], axis=1) - zeta
  order = np.argsort(-sim, axis=1, kind="stable")
  right = order == label[:, None]
  for k in (1, 2, 3, 5):
    assert scores[f"top{k}"] == right[:, :k].any(axis=1).mean()
  each = [right[label == c, 0].mean() for c in range(8)]
  assert each[0] > 0 and each[1] > 0
  assert each[3] == each[5] == each[6] == 0  # later than an equal one
  assert scores["mean_per_class"] == pytest.approx(np.mean(each))
  flattered = zero_shot.accuracy(image, heads, label, top=(1,), zeta=zeta)
  assert flattered["top1"] < scores["top1"]  # all ties count as errors


def test_the_popularity_of_one_of_equal_classes_decides():
  same, label = np.ones((2, 1)), np.array([0, 1, 1])
  scores = zero_shot.accuracy(
    np.ones((3, 1)),
    same,
    label,
    top=(1,),
    zeta=np.array([0.5, 0.0]),
    prompts=np.array([0, 0]),
  )
  assert scores["top1"] == 2 / 3


@pytest.mark.parametrize("label", [[0, 3], [-1, 0]])
def test_labels_out_of_range(label):
  with pytest.raises(ValueError, match=r"labels must be in \[0, 3\), found"):
    zero_shot.accuracy(np.eye(3)[:2], np.eye(3), np.array(label))


@pytest.mark.parametrize("num_devices, chunk", [(1, 512), (8, 512), (8, 3)])
def test_embedding_in_chunks(num_devices, chunk, monkeypatch):
  """Every input once, in order, of unit norm; 1,100 = 2 chunks + 76."""
  monkeypatch.setattr(evaluators, "CHUNK", chunk)  # 3: fewer than devices

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
    embed = evaluators.make_embedder(model, encode, mesh)(2.0, ())
    image = np.arange(1100, dtype=np.float32)[:, None] / 200
    for found, angle in (
      (embed.image(image), image),
      (embed.text(["a", "bcd"]), np.array([[1.0], [3.0]])),
    ):
      expected = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
      np.testing.assert_allclose(found, expected, atol=1e-6)
    image[700:] = np.nan
    with pytest.raises(
      FloatingPointError, match=r"400 of 1100 embeddings .* of input 700"
    ):
      embed.image(image)


def test_embeddings_of_zeros_are_warned_of(caplog):
  """Weights of zeros, or so large that a norm overflows, make them."""
  embedding = np.eye(3, dtype=np.float32)
  evaluators._check_embeddings(embedding)
  assert not caplog.messages
  embedding[1] = 0
  evaluators._check_embeddings(embedding)
  assert caplog.messages[0].startswith("1 of 3 embeddings are all zeros")


@pytest.mark.parametrize(
  ("num_devices", "shape", "batch"),
  [
    (1, (5, 3), 8),  # few inputs are not padded to many
    (8, (5, 3), 8),
    (8, (1100, 3), 512),
    (6, (1100, 3), 768),
    (1, (40, 77), 16),  # 48, not 64: padding adds a quarter at most
    (1, (512, 77), 128),  # 212 texts of 77 tokens would be 2^14 tokens
    (1, (300, 77), 64),
    (8, (20, 224, 224, 3), 32),
    (1, (70, 224, 224, 3), 16),
    (1, (128, 224, 224, 3), 64),  # each of 196 patches
    (1, (2, 4096, 4096, 3), 1),  # even one is too many
  ],
)
def test_batches_have_one_shape(num_devices, shape, batch):
  numbers = np.arange(shape[0], dtype=np.float32)

  def fetch(rows):
    some = numbers[rows].reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(some, (len(some), *shape[1:]))

  inputs, found = LazyImages(len(numbers), fetch), []
  for rows, count in evaluators._batches(inputs, num_devices):
    assert rows.shape == (batch, *shape[1:])
    assert 0 < count <= batch and (rows[count:] == rows[count - 1]).all()
    found.extend(rows[:count].reshape(count, -1)[:, 0])
  np.testing.assert_array_equal(found, numbers)


def test_zero_shot_evaluator_groups_prompts():
  data = LabelledSet(
    image=np.eye(2), label=np.array([1, 0]), prompts=[("a", "aa"), ("b",)]
  )
  embed = evaluators.Embed(
    image=lambda x: x[::-1],
    text=lambda captions: np.array(
      [[c[0] == "a", c[0] == "b"] for c in captions], float
    ),
  )
  scores = evaluators.run_evaluators(
    [zero_shot.zero_shot_evaluator(data, "it")], embed, "test"
  )
  assert scores["test/zero_shot_it/top1"] == 1.0


class TestClassesOfNames:
  """Names that say the same, or nothing, to a model that ignores case."""

  def classes_of(
    self, names, name="it", *, prompts=(), unknown=False, collapsed=False
  ):
    zero_shot._warn_once.cache_clear()
    seen = []

    def text(captions):
      seen.extend(captions)
      rows = make_pairs.unit_rows(0, len(captions), 4)
      return np.ones((len(captions), 4)) / 2 if collapsed else rows

    embed = evaluators.Embed(
      image=None,
      text=text,
      encode=lambda captions: [
        np.frombuffer(b"" if unknown else x.lower().encode(), "u1")
        for x in captions
      ],
    )
    data = LabelledSet(None, None, names, prompts)
    return zero_shot.embed_classes(embed, data, name), seen

  def test_equal_to_the_model(self, caplog):
    names = ["hot_dog", "cat", "hot dog", "Cat", "bat"]
    classes, seen = self.classes_of(names)
    assert classes.prompts.tolist() == [0, 1, 0, 1, 2]
    assert seen == [f"a photo of a {x}." for x in ("hot dog", "cat", "bat")]
    rows = make_pairs.unit_rows(0, 3, 4)
    np.testing.assert_allclose(classes.embedding, rows[[0, 1, 0, 1, 2]])
    for text in ("zero_shot_it: ", "4 of 5", "'hot_dog', 'hot dog'", "'Cat'"):
      assert text in caplog.text

  def test_many_that_are_equal_to_the_model(self, caplog):
    """As unknown words are to some tokenizers; the message stays short."""
    _, seen = self.classes_of([f"kind {i}" for i in range(999)], unknown=True)
    assert seen == ["a photo of a kind 0."]
    assert "999 of 999 classes: 'kind 0', 'kind 1', " in caplog.text
    assert "'kind 2', ... ('a photo of a kind 0.', " in caplog.text
    assert len(caplog.text) < 700

  def test_a_model_that_makes_all_texts_equal_has_no_equal_prompts(
    self, caplog
  ):
    classes, _ = self.classes_of(["cat", "dog"], collapsed=True)
    assert classes.prompts.tolist() == [0, 1] and not caplog.text
    scores = zero_shot.accuracy(
      np.ones((4, 4)) / 2,
      classes.embedding,
      np.zeros(4, int),
      top=(1,),
      prompts=classes.prompts,
    )
    assert scores["top1"] == 0

  def test_prompts_that_are_cut(self, caplog):
    zero_shot._warn_once.cache_clear()
    embed = evaluators.Embed(
      image=None,
      text=lambda captions: make_pairs.unit_rows(0, len(captions), 4),
      is_cut=lambda captions: np.array([len(x) > 20 for x in captions]),
    )
    data = LabelledSet(None, None, ["cat", "very long name"], ())
    zero_shot.embed_classes(embed, data, "it")
    (line,) = caplog.messages
    assert line.startswith("zero_shot_it: 1 of 2 prompts are cut")
    assert "'a photo of a very long name.'" in line

  def test_imagenet(self, caplog):
    ids = sorted(zero_shot._table()["imagenet_names"])
    classes, _ = self.classes_of(ids, "imagenet")
    first, second = (
      [ids.index(x) for x in pair]
      for pair in (("n03773504", "n04008634"), ("n04355933", "n04356056"))
    )
    assert len(set(classes.prompts)) == 998
    for pair in (first, second):
      assert len(set(classes.prompts[pair])) == 1
    assert "a bad photo of a missile." in caplog.text
    assert caplog.text.count("zero_shot_imagenet") == 1  # and nothing else

  @pytest.mark.parametrize("name", ["imagenetv2", "ImageNet-V2"])
  def test_imagenet_v2_has_numbers_for_names(self, name, caplog):
    numbers = sorted(map(str, range(1000)))  # as folders are: 0, 1, 10, 100
    prompts = zero_shot.make_prompts(name, numbers)
    ids = sorted(zero_shot._table()["imagenet_names"])
    expected = zero_shot.make_prompts("imagenet", ids)
    assert [prompts[numbers.index(str(i))] for i in range(1000)] == expected
    self.classes_of(numbers, name)
    assert "numbers for names" not in caplog.text

  @pytest.mark.parametrize(
    ("name", "classes", "example"),
    [
      ("imagenet", [str(i) for i in range(1, 1001)], "a bad photo of a 1."),
      ("digits", list("012"), "a photo of a 0."),
      ("imagenet21k", ["n00004475", "n01440764"], "of a n00004475."),
      ("birds", ["001.Black_Albatross", "a bird"], "001.Black Albatross"),
      ("dogs", ["n02085620-Chihuahua", "pug"], "of a n02085620-Chihuahua"),
    ],
  )
  def test_names_that_are_numbers(self, name, classes, example, caplog):
    self.classes_of(classes, name)
    (line,) = [x for x in caplog.messages if "numbers for names" in x]
    assert example in line

  def test_names_and_prompts_that_are_fine(self, caplog):
    self.classes_of(["747-400", "A300B4", "apple_pie2"])
    self.classes_of(["0", "1"], prompts=[("zero",), ("one",)])
    assert not caplog.text

  def test_imagenet_by_another_name(self, caplog):
    self.classes_of(["n01440764", "n01443537"], "val")
    assert "2 classes are ImageNet's" in caplog.text
    assert "imagenet=FOLDER" in caplog.text


@pytest.mark.parametrize("name", ["Food-101", "food_101", "food101"])
def test_templates_of_a_folder_s_own_name(name):
  (prompts,) = zero_shot.make_prompts(name, ["apple_pie"])
  assert prompts == ("a photo of apple pie, a type of food.",)


def test_recall_with_popularities_subtracted():
  text = make_pairs.unit_rows(0, 30, 6)
  image = text[TEXT_OF_IMAGE] + 0.5 * make_pairs.unit_rows(1, 80, 6)
  rng = np.random.default_rng(2)
  zeta = Sides(rng.normal(size=80), rng.normal(size=30))
  scores = retrieval.recall(
    image, text, TEXT_OF_IMAGE, np.arange(30), zeta=zeta
  )
  sim = image @ text.T
  forth = np.argsort(-(sim - zeta.text), axis=1)[:, 0] == TEXT_OF_IMAGE
  best = np.argmax(sim.T - zeta.image, axis=1)
  back = TEXT_OF_IMAGE[best] == np.arange(30)
  assert scores["image_to_text/recall@1"] == np.mean(forth)
  assert scores["text_to_image/recall@1"] == np.mean(back)


def hub_world(seen):
  """Images of 300 pairs, five words near to all, and the training's source.

  `seen` records how many images each call of `embed.image` gets.
  """
  rng = np.random.default_rng(0)
  unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
  common = 3 * np.eye(16)[0]
  images = unit(rng.normal(size=(300, 16)) + common).astype(np.float32)
  words = unit(images + 0.2 * rng.normal(size=(300, 16)))
  words[295:] = unit(common + 0.3 * rng.normal(size=(5, 16)))

  def image(x):
    seen.append(len(x))
    return x[:]

  embed = evaluators.Embed(image, lambda names: words[np.array(names, int)])
  source = Source(
    Sizes(250, 250, 250),
    lambda ids: Batch(images[ids], None, ids, None, ids),
    lambda ids: Sides(ids, ids),
    list,
    "",
  )
  data = ImageTextSet(
    images[250:], np.arange(50), range(250, 300), np.arange(50)
  )
  return images, words, embed, source, data


@pytest.mark.parametrize("method", ["csls", "zeta", 1.0])
def test_correcting_for_a_hub_finds_what_it_hid(method):
  """Training queries tell that a text is near to everyone."""
  *_, embed, source, data = hub_world([])
  plain = retrieval.retrieval_evaluator(data)(embed)
  bank = hubness.make_bank(source, temperature=0.05)
  corrected = hubness.corrected_retrieval_evaluator(
    data, bank, [method, 0.0], temperature=0.05
  )(embed)
  name = {"csls": "csls", "zeta": "zeta_0.5", 1.0: "zeta_1"}[method]
  assert list(corrected) == [
    f"hubs_{x}/{key}" for x in (name, "zeta_0") for key in plain
  ]
  for key in plain:
    assert corrected[f"hubs_zeta_0/{key}"] == plain[key]
  key = "image_to_text/recall@1"
  assert corrected[f"hubs_{name}/{key}"] > plain[key] + 0.05


def test_csls_is_its_definition():
  """Recall by 2 sim - r_q - r_j, in float64, query by query."""
  images, words, embed, source, data = hub_world([])
  words[:50] = images[260]  # the texts of the bank make a hub of this image
  bank = hubness.make_bank(source)
  scores = hubness.corrected_retrieval_evaluator(data, bank, ["csls"], "mine")(
    embed
  )
  assert all(name.startswith("hubs_csls/mine/") for name in scores)
  images, words = np.float64(images), np.float64(words)
  for way, queries, candidates, bank_of_candidates in (
    ("image_to_text", images[250:], words[250:], images[:250]),
    ("text_to_image", words[250:], images[250:], words[:250]),
  ):
    found = []
    for i, query in enumerate(queries):
      score = []
      for candidate in candidates:
        sims = sorted(float(candidate @ x) for x in bank_of_candidates)
        score.append(2 * float(query @ candidate) - sum(sims[-10:]) / 10)
      found.append(int(np.argmax(score)) == i)
    assert scores[f"hubs_csls/mine/{way}/recall@1"] == np.mean(found)


@pytest.mark.parametrize("chunk", [1, 90, 2**22])
def test_local_scaling_of_chunks(chunk, monkeypatch):
  """Chunks of one or three candidates, and a bank smaller than k."""
  monkeypatch.setattr(hubness, "CHUNK", chunk)
  unseen = make_pairs.unit_rows(0, 7, 4)
  for size in (30, 6):
    queries = make_pairs.unit_rows(1, size, 4)
    sims = np.float64(queries) @ np.float64(unseen).T
    expected = [np.mean(sorted(x)[-10:]) for x in sims.T]
    found = hubness.local_scaling_of_unseen(unseen, queries)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
  half = hubness.local_scaling_of_unseen(np.float16(unseen), np.float16(unseen))
  assert half.dtype == np.float32


def test_the_bank_is_embedded_once():
  seen = []
  *_, embed, source, data = hub_world(seen)
  bank = hubness.make_bank(source)
  for name in ("a", "b"):
    hubness.corrected_retrieval_evaluator(data, bank, ["csls"], name)(embed)
  assert seen == [250, 50, 50]


@pytest.mark.parametrize(
  ("method", "temperature", "message"),
  [
    ("zeta", None, "'zeta' needs a temperature, got None; 'csls' needs none"),
    ("clss", 0.1, "is 'csls', 'zeta' or a strength .* got 'clss'"),
    (-1.0, 0.1, "at least 0 and finite; got -1.0"),
  ],
)
def test_corrections_that_are_not(method, temperature, message):
  *_, source, data = hub_world([])
  with pytest.raises(ValueError, match=message):
    hubness.corrected_retrieval_evaluator(
      data, hubness.make_bank(source), [method], temperature=temperature
    )


def test_embedded_pairs_are_those_of_the_source():
  """Pairs 18 and 19 share their image with 3 and 4; it is embedded once."""
  ids = np.append(np.arange(18), [3, 4])
  text_id = np.arange(20) % 6
  seen = []

  def image(images):
    seen.append(len(images))
    return np.concatenate([1.0 * images[:7], 1.0 * images[7:]])

  embed = evaluators.Embed(
    image=image,
    text=lambda names: np.stack([(10 * n, n) for n in names]),
  )
  source = Source(
    Sizes(20, 18, 6),
    lambda pairs: Batch(
      np.stack([ids[pairs]] * 2, axis=1), None, pairs, ids, text_id[pairs]
    ),
    lambda pairs: Sides(ids[pairs], text_id[pairs]),
    lambda texts: [int(i) for i in texts],
    "",
  )
  pairs = evaluators.embed_pairs(embed, source)
  np.testing.assert_array_equal(pairs.image[:, 0], ids)
  np.testing.assert_array_equal(pairs.text[:, 1], text_id)
  np.testing.assert_array_equal(pairs.ids.image, ids)
  assert seen == [18]
  some = evaluators.embed_pairs(embed, source, np.array([3, 17]))
  np.testing.assert_array_equal(some.image[:, 0], [3, 17])
  np.testing.assert_array_equal(some.text_id, text_id[[3, 17]])


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
    (found,) = zero_shot.make_prompts(name, ["ice_cream"])
    assert len(found) == len(set(found)) == count
    for prompt in found:
      assert "ice cream" in prompt and "{" not in prompt and "_" not in prompt

  def test_names_of_imagenet(self):
    names = zero_shot._table()["imagenet_names"]
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
    make = lambda name: zero_shot.make_prompts(name, ["x"])[0]
    assert {"itap of a x.", "a tattoo of the x.", "the toy x."} <= set(
      make("imagenet")
    )
    assert "a photo of the small x." in make("cifar100")
    assert "a photo of a x texture." in make("dtd")
    assert make("anything") == ("a photo of a x.",)
