"""The study of filters: what it runs, and how rows become tables."""

import jax
import numpy as np
import pytest

from experiments.filtering import __main__ as main
from experiments.filtering import (
  clip_art,
  data,
  errors,
  measure,
  plan,
  scores,
  tables,
)
from experiments.harness import Place, Results, command
from nuclr_jax import sharding
from nuclr_jax.lab.train.settings import resolve

OPTIONS = command.parse_arguments(main.STUDY, [])
NAMES = [f"name {i % 40}" for i in range(200)]


def scored(precision):
  one = {
    "precision": precision,
    "average precision": precision,
    "wrong": [precision] * len(scores.SHARES),
    "rank correlation": 0.5,
    "overlap": 0.9,
  }
  found = {k: {x: one for x in tables.SCORES} for k in errors.KINDS}
  return {"R@1": 1.0, "R@10": 2.0, "found": found}


def scores_of_icons():
  return [run for run in plan.plan(OPTIONS, {}) if run.part == plan.SCORES]


def test_trainings_wait_for_the_scores_of_their_seed():
  first = plan.plan(OPTIONS, {})
  own = scores_of_icons()
  assert [run.seed for run in own] == list(range(plan.SEEDS))
  others = [run for run in first if run.part == plan.OTHER]
  assert len(first) == len(own) + len(others)
  assert {run.setting for run in others} == {plan.LETTERS, plan.CLIP_ART}
  assert len(others) == 2 * plan.FEW_SEEDS
  done = plan.plan(OPTIONS, {own[0].key: {}})
  # "all that is right" is trained on once, not for each kind.
  assert len(plan.filters()) == 3 * len(plan.FILTERS) - 2
  assert len(done) - len(first) == 2 * len(plan.filters())
  for run in done:
    settings = resolve(measure.make_config(dict(run.values), run.seed))
    assert settings.batch_size == 128
  assert len({run.key for run in done}) == len(done)


@pytest.mark.parametrize("kind", errors.KINDS)
def test_the_same_pairs_are_wrong_whatever_the_kind(kind):
  found, wrong = errors.plant(NAMES, kind, 0.2, seed=3)
  assert wrong.sum() == 40
  assert [a != b for a, b in zip(found, NAMES, strict=True)] == wrong.tolist()
  swapped = errors.plant(NAMES, errors.SWAPPED, 0.2, seed=3)[1]
  np.testing.assert_array_equal(wrong, swapped)
  if kind == errors.UNREADABLE:
    unreadable = [
      x for x, is_wrong in zip(found, wrong, strict=True) if is_wrong
    ]
    assert "" in unreadable and len(set(unreadable)) > 10
  with pytest.raises(ValueError, match="kind must be one of"):
    errors.plant(NAMES, "other", 0.2, seed=3)


def test_phrases_are_those_of_the_data():
  found, wrong = errors.plant(
    NAMES, errors.BOILERPLATE, 0.2, 3, errors.LETTER_PHRASES
  )
  planted = [x for x, is_wrong in zip(found, wrong, strict=True) if is_wrong]
  assert set(planted) <= set(errors.LETTER_PHRASES)
  assert not set(planted) & set(errors.PHRASES)


def test_designers_are_in_one_half_only():
  family = np.repeat(["a", "b", "c", "d", "e"], [10, 30, 20, 25, 15])
  marked = data.halved(family)
  assert 0 < marked.sum() <= 50
  for x in set(family):
    assert len(set(marked[family == x])) == 1


def test_scores_agree_with_loops():
  """Sixteen pairs, in float64, from the definitions of the guide."""
  random, tau = np.random.default_rng(0), 0.3
  image, text = (
    x / np.linalg.norm(x, axis=1, keepdims=True)
    for x in random.normal(size=(2, 16, 5))
  )
  text[3] = text[9]
  text_id = np.array([*range(9), 3, *range(10, 16)])
  words = dict(tau=tau, small=8, sample=16)
  with jax.set_mesh(sharding.make_mesh()):
    found = scores.pair_scores_of(
      image.astype(np.float32), text.astype(np.float32), text_id, words, 0
    )
  e = image @ text.T
  own = np.diag(e)
  np.testing.assert_allclose(found[plan.SIMILARITY], own, atol=1e-6)
  sums = [np.log(np.exp(x / tau).sum(1)) for x in (e, e.T)]
  likelihood = own - tau / 2 * sum(sums)
  np.testing.assert_allclose(found[plan.LIKELIHOOD], likelihood, atol=1e-5)
  w = np.exp(e / tau)
  for _ in range(1000):
    w /= w.sum(1, keepdims=True)
    w /= w.sum(0)
  exact = tau * np.log(np.diag(w))
  np.testing.assert_allclose(found[plan.EXACT], exact, atol=2e-3)
  once = found[f"{plan.SIMILARITY}, {scores.ONCE}"]
  assert sum(once < -100) == 1 and min(own[3], own[9]) - 1e3 == pytest.approx(
    once.min(), abs=1e-3
  )


def test_tables_compare_filters_by_seed():
  first = scores_of_icons()
  rows = {run.key: scored(0.5 + run.seed / 10) for run in first}
  for run in plan.plan(OPTIONS, rows):
    words = dict(run.values)
    better = words.get("filter") == plan.EXACT
    if run.part == plan.TRAINING:
      ahead = run.setting.startswith("NUCLR") * (0.5 + run.seed)
      rows[run.key] = {"R@1": 3.0 + better, "R@10": 9.0 + ahead, "wrong": 0.1}
    elif run.part == plan.OTHER:
      rows[run.key] = scored(0.9) | {
        "trained": {
          plan.kept_of(kind, name): {
            "R@1": 5.0 + 2 * (name == plan.RANDOM) + run.seed,
            "R@10": 9.0,
            "wrong": 0.3,
            "pairs": 5_000 if name == plan.EVERYTHING else 4_000,
          }
          for kind, name in plan.filters()
        }
      }
  made = tables.tables(OPTIONS, Results(rows))
  assert "| swapped | similarity | 70.0 ± 19.6 |" in made["errors"]
  (line,) = (
    x
    for x in made["training"].splitlines()
    if x.startswith("| boilerplate | exact weight") and "| CLIP |" in x
  )
  assert "+1.00 [+1.00, +1.00] *" in line
  # It is the same training with errors of every kind.
  assert made["training"].count("all that is right | CLIP | 10.0 ± 0.0") == 3
  # Rows of other data are not counted among those of icons.
  assert "| letters | swapped | similarity | 90.0 ± 0.0 |" in made["others"]
  assert made["others_training"].count("all that is right | 30.0 ± 0.0") == 6
  (line,) = (
    x
    for x in made["others_training"].splitlines()
    if x.startswith("| clip art | swapped | random")
  )
  assert "| 8.00 ± 2.48 | 9.00 ± 0.00 | +2.00 [+2.00, +2.00] * | 3 |" in line
  assert tables.figures(OPTIONS, Results(rows))["wrong.png"].axes
  numbers = tables.numbers(OPTIONS, Results(rows))
  at = "wrong at 50 %"
  assert numbers[f"icons, swapped: exact weight: {at}"] == "70.0 ± 19.6"
  name = f"letters, swapped: exact weight − similarity: {at}"
  assert numbers[name] == "+0.0 [+0.0, +0.0]"
  name = "swapped, CLIP: exact weight − negCLIPLoss: R@1"
  assert numbers[name] == "+1.00 [+1.00, +1.00] *"
  name = "boilerplate, similarity: NUCLR − CLIP: R@10"
  assert numbers[name].startswith("+1.50 [-0.98, ")
  name = "boilerplate: NUCLR − CLIP, everything − all that is right: R@10"
  assert numbers[name].startswith("+0.00 [")
  # Exact weights are ahead in each of the six trainings, negCLIPLoss in none.
  for name, count in (("all", 12), ("above 0", 6), ("below 0", 0)):
    assert numbers[f"scores − similarity, R@1: {name}"] == str(count)
  assert numbers["clip art: everything: pairs"] == "5,000"
  assert numbers["clip art: random: pairs"] == "4,000"


def test_what_trainings_see_is_stored_beside_the_rows(tmp_path):
  place = Place(tmp_path / "run", tmp_path, None)
  count = plan.COMMON["candidates"]
  wrong = np.arange(count) % 5 == 0
  for seed in range(plan.SEEDS):
    path = measure.store(plan.COMMON, place, seed)
    assert path.parent == main.STUDY.home
    stored = measure.read_kept(path, count, seed)
    for kind in errors.KINDS:
      for name in plan.FILTERS:
        words = {"kind": kind, "filter": name}
        kept = measure.kept_by(words, wrong, seed, stored)
        everything = name == plan.EVERYTHING
        assert kept.sum() == (count if everything else 0.8 * count)
  path = measure.store(plan.SMOKE, place, 0)
  assert path.parent == tmp_path
  with pytest.raises(FileNotFoundError, match="move the row of scores, seed 0"):
    measure.read_kept(path, 160, 0)


def make_svg(title, width, height):
  return f"""<svg xmlns="http://www.w3.org/2000/svg"
 width="{width}" height="{height}">
<metadata><dc:title xmlns:dc="dc">{title}</dc:title></metadata>
<rect width="{width}" height="{height}" fill="black"/></svg>"""


def test_clip_art_is_drawn_whole_and_captioned(tmp_path):
  folder = tmp_path / clip_art.FOLDER / "usr" / "share"
  folder.mkdir(parents=True)
  (folder / "a_red-house_01.svg").write_text(make_svg("A house", 40, 20))
  (folder / "blank.svg").write_text(make_svg("Blank", 0, 0))
  (folder / "broken.svg").write_text("<svg")
  for i in range(clip_art.MOST + 1):
    (folder / f"star {i}.svg").write_text(make_svg("My theme", 20, 40))
  found = clip_art.read_clip_art(str(tmp_path), 16)
  # The title that too many have gives way to the name of the file, which the
  # first ones alone may share.
  assert found.caption == ["A house"] + ["star"] * clip_art.MOST
  wide, high = found.image[0, ..., 0], found.image[1, ..., 0]
  assert wide[4:12].min() == 255 and not wide[:4].any() and not wide[12:].any()
  np.testing.assert_array_equal(high, wide.T)
  assert len(set(found.held_out[1:])) == 1
  again = clip_art.read_clip_art(str(tmp_path), 16)
  assert again.fingerprint == found.fingerprint
  group = data.as_set(data.Pairs(*found[:2], "")).image_group
  assert group.tolist() == [0] + [1] * clip_art.MOST


def test_clip_art_that_is_missing_says_what_fetches_it(tmp_path):
  with pytest.raises(ValueError, match="apt-get download openclipart-svg"):
    clip_art.read_clip_art(str(tmp_path), 16)
