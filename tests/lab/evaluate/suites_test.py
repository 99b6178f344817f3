"""Which evaluators a data set gets, their order, and when sets are opened."""

import shutil

import make_captioned
import numpy as np
import pytest
import shapes

from nuclr_jax.contrib.labelled_images import digit_splits
from nuclr_jax.contrib.latent_scores import SCORES, ClassScores
from nuclr_jax.lab.data import DATASETS, sets
from nuclr_jax.lab.data.source import (
  Data,
  HeldOut,
  ImageTextSet,
  LabelledSet,
  ProbeSets,
  RatedPairs,
  Source,
)
from nuclr_jax.lab.evaluate import suites
from nuclr_jax.lab.evaluate.evaluators import Embed, run_evaluators
from nuclr_jax.types import Batch, Sides, Sizes


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """The data set `mine`, and `colours/{train,test}/COLOUR/*.jpg`, 3 of each."""
  data_dir = tmp_path_factory.mktemp("suites")
  make_captioned.prepare(data_dir, {"train": make_captioned.ROWS})
  shapes.write_classes(data_dir / "colours", 3, seed=0)

  def read(**held_out):
    return DATASETS["image_text"](
      train="mine", data_dir=data_dir, size=16, **held_out
    )

  return read


class TestWhenAsked:
  """Labelled sets of photos are opened by the first evaluation, once."""

  def embed(self):
    """Images by their mean colour and middle, texts by their colour."""

    def image(images):
      x = np.float32(images[:])
      middle = x[:, 3:13, 3:13]
      x = np.concatenate([x.mean((1, 2)), middle.mean((1, 2))], axis=1)
      return x - x.mean(axis=1, keepdims=True)

    def text(texts):
      name = lambda text: text.removesuffix(".").split()[-1]
      colours = np.array([shapes.COLOURS[name(x)] for x in texts], np.float32)
      x = np.concatenate([colours, colours], axis=1)
      return (x + 1) / np.linalg.norm(x + 1, axis=1, keepdims=True)

    return Embed(image=image, text=text)

  def test_zero_shot(self, photos, monkeypatch):
    opened = []
    whole = sets.open_labelled_set
    monkeypatch.setattr(
      sets,
      "open_labelled_set",
      lambda *x, **y: opened.append(x) or whole(*x, **y),
    )
    data = photos(zero_shot=("colours",))
    (evaluate,) = suites.choose_evaluators(data)["test"]
    assert not opened
    scores = [evaluate(self.embed()) for _ in range(2)]
    assert scores[0] == scores[1] and len(opened) == 1
    assert scores[0]["zero_shot_colours/top1"] > 2 / 8

  def test_probe(self, photos, monkeypatch):
    seen = []

    def probe_evaluator(train, test, name):
      seen.append((train.image[:], test.image[:], name))
      return lambda embed: {"seen": len(seen)}

    monkeypatch.setattr(suites, "probe_evaluator", probe_evaluator)
    data = photos(probes=("colours:test",))
    (evaluate,) = suites.choose_evaluators(data)["test"]
    assert not seen
    assert evaluate(None) == evaluate(None) == {"seen": 1}
    ((train, test, name),) = seen
    assert name == "colours" and len(train) == len(test) == 24
    assert not (train == test).all(axis=(1, 2, 3)).any()

  def test_a_probe_numbers_classes_by_their_names(self, photos, tmp_path):
    """Else the labels of a test split without red would be others."""
    shapes.write_classes(tmp_path / "some", 1, seed=0)
    shutil.rmtree(tmp_path / "some" / "test" / "red")
    data = photos(probes=(f"some={tmp_path}/some",))
    train, test = data.held_out["test"].probes["some"]()
    names = sorted(shapes.COLOURS)
    assert [train.classes[i] for i in train.label] == names
    names.remove("red")
    assert [train.classes[i] for i in test.label] == names
    assert test.classes == train.classes


def rows(x):
  """Unit rows that tell the inputs apart."""
  if isinstance(x, list):  # captions
    x = np.array([sum(map(ord, caption)) for caption in x])
  x = np.float32(x[:]).reshape(len(x), -1).mean(axis=1)
  return np.stack([np.cos(x), np.sin(x)], axis=1)


EMBED = Embed(rows, rows, Sides(rows, rows), Sides(rows, rows))


def make_data(**held_out):
  """Data of four pairs with sets held out for the split test."""
  source = Source(
    Sizes(4, 4, 4),
    lambda ids, random=None: Batch(np.float32(ids)[:, None], None, ids),
    lambda ids: Sides(ids, ids),
    lambda ids: [f"caption {i}" for i in ids],
    "four",
  )
  return Data(source, None, (1,), {"test": HeldOut(**held_out)})


CAPTIONED = ImageTextSet(
  np.arange(4.0)[:, None],
  np.arange(4),
  [f"caption {i}" for i in range(4)],
  np.arange(4),
)
CLASSES = LabelledSet(
  np.arange(8.0)[:, None] / 9, np.arange(8) % 2, ["no", "yes"]
)


def kinds(scores):
  """The parts of metric names that tell the evaluators, in their order."""
  return list(dict.fromkeys(name.rsplit("/", 1)[0] for name in scores))


def test_evaluators_are_in_the_order_of_kinds_and_names():
  data = make_data(
    others={
      "it": ClassScores(CLASSES, CLASSES, ("variation", "probe"), (2,), (1,))
    },
    rated={"rated": RatedPairs(["a", "b"], ["a", "c"], np.array([1.0, 0.0]))},
    probes={"mine": lambda: ProbeSets(CLASSES, CLASSES)},
    zero_shot={
      "b": lambda: CLASSES,
      "a": lambda: CLASSES._replace(prompts=(("x",), ("y", "z"))),
    },
    retrieval={"other": CAPTIONED, "": CAPTIONED},
  )
  chosen = suites.choose_evaluators(data)
  assert list(chosen) == ["validation", "test"] and chosen["validation"] == []
  chosen = suites.correct_hubs(chosen, data, ["csls", 1.0], temperature=0.5)
  assert chosen["validation"] == []  # it has no set to retrieve in
  assert kinds(run_evaluators(chosen["test"], EMBED, "test")) == [
    "test/other/image_to_text",
    "test/other/text_to_image",
    "test/other",
    "test/image_to_text",
    "test/text_to_image",
    "test",
    "test/zero_shot_b",
    "test/zero_shot_a",
    *(f"test/probe_mine/{x}" for x in ("mean", "neighbours", "linear")),
    "test/rated",
    "test/classes_it",
    *(f"test/probe_it/{x}" for x in ("mean", "neighbours", "linear")),
    *(
      f"test/{name}{end}"
      for name in (
        "hubs_csls/other",
        "hubs_zeta_1/other",
        "hubs_csls",
        "hubs_zeta_1",
      )
      for end in ("/image_to_text", "/text_to_image", "")
    ),
  ]


def test_splits_that_nobody_scores():
  data = make_data()._replace(held_out={"tset": HeldOut()})
  with pytest.raises(ValueError, match=r"must be of the splits .*'tset'"):
    suites.choose_evaluators(data)


class TestScoresOfClasses:
  def choose(self, *args, **options):
    return suites.choose_evaluators(
      make_data(others={"it": ClassScores(*args, **options)})
    )["test"]

  def test_all_of_them(self):
    x = digit_splits(8)
    found = self.choose(x["train"], x["test"], SCORES)
    assert len(found) == len(SCORES)

  def test_classes_that_were_not_trained_on(self):
    scores = run_evaluators(self.choose(None, CLASSES, SCORES), EMBED, "test")
    expected = [f"recall@{k}" for k in (1, 2, 4, 8)]
    expected += ["variation_chain", "variation_star"]
    assert list(scores) == [f"test/classes_it/{x}" for x in expected]

  @pytest.mark.parametrize(
    ("change", "message"),
    [
      (dict(scores=("recall@1",)), "scores must be among .*'recall@1'"),
      (dict(ways=(1, 2)), r"ways must be whole .* at least 2, got \[1\]"),
      (dict(num_negatives=(0,)), r"at least 1 and at most 5000, got \[0\]"),
      (dict(num_negatives=(6000,)), r"at most 5000, got \[6000\]"),
      (
        dict(train=LabelledSet(np.eye(2), np.array([0, 5]))),
        r"train and test must .* in one only: \[1, 5\]; leave",
      ),
      (
        dict(test=LabelledSet(np.eye(2), np.arange(2))),
        "no class has two images",
      ),
    ],
  )
  def test_errors(self, change, message):
    defaults = dict(train=CLASSES, test=CLASSES, scores=SCORES)
    with pytest.raises(ValueError, match=message):
      self.choose(**defaults | change)
