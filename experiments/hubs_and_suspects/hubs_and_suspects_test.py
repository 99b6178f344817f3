"""The study of hubs and suspects: its methods, its data, and a run."""

import functools
import json
import pathlib

import numpy as np
import pytest
import tiny_config

from experiments import harness
from experiments.hubs_and_suspects import (
  data,
  hubs,
  low_zeta,
  measure,
  plan,
  retrieval,
  suspects,
)
from experiments.hubs_and_suspects.__main__ import STUDY
from nuclr_jax import popularity
from nuclr_jax.lab.evaluate import hubness
from nuclr_jax.lab.evaluate.suspects import (
  MIN_SHARE,
  learnable_share,
  neighbours_distance,
)
from nuclr_jax.lab.report.neighbours import nearest

GOLDEN = pathlib.Path(__file__).parents[2] / "tests/golden/cleanlab.json"


def unit_rows(seed, *shape):
  x = np.random.default_rng(seed).normal(size=shape)
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def similarities(seed=0, queries=30, candidates=7):
  return unit_rows(seed, queries, 4) @ unit_rows(seed + 1, candidates, 4).T


def test_csls_is_a_loop():
  bank = similarities()
  expected = [np.mean(sorted(column)[-4:]) for column in bank.T]
  np.testing.assert_allclose(hubness.local_scaling(bank, k=4), expected)
  # Both terms of CSLS rank candidates as half of one does.
  sim = similarities(5)
  of_query = np.sort(sim, axis=1)[:, -4:].mean(axis=1, keepdims=True)
  whole = 2 * sim - of_query - expected
  half = sim - 0.5 * hubness.local_scaling(bank, k=4)
  np.testing.assert_array_equal(np.argsort(whole), np.argsort(half))


def test_inverted_softmax_ranks_as_its_definition():
  bank, sim, t = similarities(), similarities(5), 0.1
  score = np.zeros_like(sim)
  for q in range(len(sim)):
    for j in range(sim.shape[1]):
      total = sum(np.exp(bank[i, j] / t) for i in range(len(bank)))
      score[q, j] = np.exp(sim[q, j] / t) / total
  penalty = hubs.inverted_softmax(bank, temperature=t)
  np.testing.assert_allclose(np.exp((sim - penalty) / t), score)


def test_zeta_is_that_of_the_library():
  image, text = unit_rows(0, 40, 5), unit_rows(1, 40, 5)
  found = popularity.solve(image, text, temperature=0.3)
  unseen = unit_rows(2, 6, 5)
  d = found.log_denominator.image
  expected = popularity.zeta_of_unseen(unseen, image, d, temperature=0.3)
  zeta = hubs.inverted_softmax(
    image @ unseen.T, temperature=0.3, log_denominator=d
  )
  np.testing.assert_allclose(zeta, expected, atol=1e-5)


def test_dual_bank_is_sinkhorn_with_the_candidates():
  bank, targets, t = similarities(3, 9, 4), similarities(5, 9, 6), 0.1
  kernel = np.exp(np.concatenate([bank, targets], axis=1).T / t)
  u = np.ones(10) / 10
  for _ in range(10):
    v = [1 / 9 / sum(kernel[j, i] * u[j] for j in range(10)) for i in range(9)]
    u = [1 / 10 / sum(kernel[j, i] * v[i] for i in range(9)) for j in range(10)]
  penalty = hubs.dual_bank(bank, targets, temperature=t)
  np.testing.assert_allclose(penalty, -t * np.log(u[:4]), rtol=1e-9)
  alone = hubs.inverted_softmax(bank, temperature=t, log_denominator=-np.log(v))
  np.testing.assert_allclose(penalty - alone, t * np.log(10), rtol=1e-9)


def test_dual_bank_without_candidates_is_exact_zeta():
  """Many steps on the bank alone solve its popularities."""
  image, text = unit_rows(0, 40, 5), unit_rows(1, 40, 5)
  solved = popularity.solve(image, text, temperature=0.3, tolerance=1e-5)
  exact = solved.zeta.text
  none = np.zeros((40, 0))
  found = hubs.dual_bank(image @ text.T, none, temperature=0.3, steps=500)
  np.testing.assert_allclose(
    found - found.mean(), exact - exact.mean(), atol=1e-5
  )


def test_qb_norm_is_the_loop_of_its_paper():
  bank, sim, t, k = similarities(3, 4, 7), similarities(5), 0.05, 2
  penalty = hubs.inverted_softmax(bank, temperature=t)
  found = hubs.qb_norm(sim, penalty, hubs.activated(bank, k=k))
  active = {j for row in bank for j in np.argsort(-row)[:k]}
  assert 0 < len(active) < 7
  total = np.exp(bank / t).sum(axis=0)
  for scores, row in zip(found, sim, strict=True):
    normalized = np.exp(row / t)
    if int(np.argmax(row)) in active:
      normalized = normalized / total
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(normalized))


def test_galleries_are_corrected_one_by_one():
  bank = np.stack([similarities(0), similarities(2)])
  sim = np.stack([similarities(4), similarities(6)])
  penalty = hubs.inverted_softmax(bank, temperature=0.1)
  whole = hubs.qb_norm(sim, penalty, hubs.activated(bank, k=1))
  targets = similarities(8, candidates=5)
  dual = hubs.dual_bank(bank, targets, temperature=0.1)
  for i in range(2):
    one = hubs.dual_bank(bank[i], targets, temperature=0.1)
    np.testing.assert_allclose(dual[i], one)
    alone = hubs.inverted_softmax(bank[i], temperature=0.1)
    active = hubs.activated(bank[i], k=1)
    np.testing.assert_allclose(whole[i], hubs.qb_norm(sim[i], alone, active))
    np.testing.assert_allclose(
      hubness.local_scaling(bank, k=3)[i], hubness.local_scaling(bank[i], k=3)
    )


def test_neighbours_are_a_loop():
  x, y, k = unit_rows(0, 25, 4), unit_rows(1, 25, 4), 3
  near_x, near_y = nearest(x, k), nearest(y, k)
  shared, captions, lemon = [], [], []
  for i in range(25):

    def closest(z, i=i):
      order = np.argsort([-(z[i] @ z[j]) for j in range(25)])
      return [j for j in order if j != i][:k]

    nx, ny = closest(x), closest(y)
    assert list(near_x.row[i]) == nx
    np.testing.assert_allclose(near_x.distance[i], 1 - x[nx] @ x[i])
    shared.append(1 - len(set(nx) & set(ny)) / k)
    captions.append(np.mean([1 - y[i] @ y[j] for j in nx]))
    s_n = np.mean(
      [
        (1 - y[i] @ y[j])
        * np.exp(-0.1 * (1 - x[i] @ x[j]) - 5 * (1 - x[j] @ y[j]))
        for j in nx
      ]
    )
    s_m = np.mean(
      [
        (1 - x[i] @ x[j])
        * np.exp(-0.1 * (1 - y[i] @ y[j]) - 5 * (1 - x[j] @ y[j]))
        for j in ny
      ]
    )
    lemon.append(1 - x[i] @ y[i] + 5 * (s_n + s_m))
  np.testing.assert_allclose(suspects.overlap(near_x, near_y), shared)
  found = neighbours_distance(near_x, y)
  np.testing.assert_allclose(found, captions)
  np.testing.assert_allclose(suspects.lemon(x, y, near_x, near_y), lemon)


def test_confident_learning_is_that_of_cleanlab():
  expected = json.loads(GOLDEN.read_text(encoding="utf-8"))
  p, label = (np.array(expected[x]) for x in ("probabilities", "label"))
  found = suspects.confident_learning(p, label)
  thresholds = suspects.confident_thresholds(p, label)
  np.testing.assert_allclose(thresholds, expected["thresholds"], atol=1e-9)
  flagged = suspects.confidently_other(p, label)
  assert 0 < flagged.sum() < len(label) / 2
  np.testing.assert_array_equal(flagged, expected["flagged"])
  np.testing.assert_allclose(
    1 - found["self-confidence"], expected["self-confidence"], atol=1e-9
  )
  np.testing.assert_allclose(
    (1 - found["adjusted margin"]) / 2, expected["adjusted margin"], atol=1e-9
  )
  first = found["flagged first"]
  assert first[flagged].min() > first[~flagged].max()


def test_classes_without_rows():
  label = np.array([0, 0, 2, 2] * 10)
  x = np.eye(3)[label] + 0.1 * np.random.default_rng(0).normal(size=(40, 3))
  p = suspects.class_probabilities(x, label, num_classes=3)
  np.testing.assert_allclose(p.sum(axis=1), 1)
  np.testing.assert_array_equal(p[:, 1], 0)
  assert (p.argmax(axis=1) == label).all()
  for ranking in suspects.confident_learning(p, label).values():
    assert np.isfinite(ranking).all()


@pytest.mark.parametrize("seed", range(STUDY.seeds))
def test_the_tool_uses_classes_where_the_study_says_so(seed):
  """Balanced letters can be learned from, a long tail cannot."""
  for exponent in plan.EXPONENTS:
    alphabet = data.make_alphabet(
      seed=seed, exponent=exponent, num_items=plan.VALUES["num_items"]
    )
    for number in (measure.USER_DRAW, measure.UNFAMILIAR_DRAW):
      drawn = data.draw(
        alphabet, plan.VALUES["num_pairs"], seed=(seed, number), wrong=0.05
      )
      share = learnable_share(drawn.named, np.arange(len(drawn.named)))
      assert (share >= MIN_SHARE) == (exponent == 0), share


def test_margins_do_not_depend_on_copies():
  sim = similarities(0, 6, 6)
  twice = np.tile(sim, (2, 2))
  zeta = np.random.default_rng(0).normal(size=6)
  once = suspects.margins(sim, zeta)
  np.testing.assert_allclose(
    suspects.margins(twice, np.tile(zeta, 2))[:6], once
  )
  expected = [max(sim[i] - zeta) - sim[i, i] + zeta[i] for i in range(6)]
  np.testing.assert_allclose(once, expected)


def test_duplicates_are_nearest():
  x, y = unit_rows(0, 20, 4), unit_rows(1, 20, 4)
  x[7] = x[3]
  for name, score in suspects.duplicate_scores(x, y, np.zeros(20), k=3).items():
    if name != "image + text":
      assert {3, 7} == set(np.argsort(-score)[:2]), name
  pairs = [(i, j) for i in range(20) for j in range(20) if i != j]
  both = {
    i: max(x[a] @ x[b] + y[a] @ y[b] for a, b in pairs if a == i)
    for i in range(20)
  }
  found = suspects.duplicate_scores(x, y, np.zeros(20), k=3)["image + text"]
  np.testing.assert_allclose(found, [both[i] for i in range(20)])


def test_what_is_planted():
  alphabet = data.make_alphabet(seed=1, exponent=1.2, num_items=20)
  drawn = data.draw(alphabet, 400, seed=(1, 2), wrong=0.1)
  assert drawn.wrong.sum() == 40 and not drawn.duplicate.any()
  np.testing.assert_array_equal(
    np.bincount(drawn.item, minlength=20),
    np.bincount(drawn.named, minlength=20),
  )
  for caption, i in zip(drawn.captions, drawn.named, strict=True):
    assert alphabet.names[i] in caption
  copies = data.draw(alphabet, 400, seed=(1, 2), duplicates=0.1)
  assert copies.duplicate.sum() == 80 and not copies.wrong.any()
  x = copies.image.reshape(400, -1) / 255.0
  apart = np.abs(x[:, None] - x[None]).mean(axis=2) + np.eye(400)
  near = apart.min(axis=1)
  assert near[copies.duplicate].max() < near[~copies.duplicate].min()
  first, second = data.galleries(alphabet, seed=1)
  assert first.shape == second.shape == (2 * data.VIEWS, 20, 16, 16, 1)


def test_settings_are_chosen_on_validation():
  """Candidate 0 attracts every query, and every query of the bank."""
  letters = 6
  sim = np.eye(letters)[None] + 1.2 * np.eye(letters)[0]
  half = retrieval.Half(sim, sim, sim[0])
  other = half._replace(sim=np.eye(letters)[None])  # without the hub
  d = dict.fromkeys(retrieval.ZETA_SCALES, np.zeros(letters))
  p = np.full(letters, 1 / letters)
  evaluate = functools.partial(retrieval.evaluate, temperature=0.1)
  found = evaluate(half, half, d, p, np.log(p))
  balanced = found[retrieval.BALANCED]
  assert balanced["E"]["test"] == pytest.approx(100 / letters, abs=1e-3)
  for name in ("ζ", "IS", "CSLS, any strength"):
    assert balanced[name]["test"] == 100, name
  assert balanced["ζ"]["setting"]["strength"] > 0
  chosen = evaluate(other, half, d, p, None)[retrieval.BALANCED]["ζ"]
  assert chosen["setting"]["strength"] == 0 and chosen["validation"] == 100
  assert chosen["test"] == balanced["E"]["test"]
  assert "ζ + τ log p" in found[retrieval.NATURAL]
  assert "ζ + τ log p" not in balanced


def test_right_is_by_letter():
  score = np.zeros((3, 2, 2))
  score[:, :, 0] = 1
  np.testing.assert_array_equal(retrieval.right(score), [1, 0])


def test_a_smoke_run(tmp_path, monkeypatch, no_diagnostics):
  tiny_config.shrink(monkeypatch, measure)
  options = harness.Options(tmp_path, tmp_path / "work", seeds=1, smoke=True)
  results = harness.run_here(STUDY, options)
  parts = {row["part"] for row in results.rows.values()}
  assert parts == {plan.CLEAN, plan.ERRORS, plan.CLASSES}
  for row in results.rows.values():
    for found in row.get("suspects", row.get("classes")).values():
      assert all(0 <= x <= 1 for x in found.values())
  tables = STUDY.tables(options, results)
  assert not tables.pop("predictions")  # they need all runs
  assert all(tables.values())
  assert all(x.get_axes() for x in STUDY.figures(options, results).values())


def test_low_zeta_sums_up_its_areas():
  own = low_zeta.OWN[0]
  values = {
    own: (0.6, 0.7),
    low_zeta.OWN[1]: (0.5, 0.5),
    "fonts, 1 %": (0.4, 0.6),
  }
  found = {
    setting: [dict.fromkeys(low_zeta.SCORES, x) for x in areas]
    for setting, areas in values.items()
  }
  summary = low_zeta.summary(found)
  assert summary["seeds"] == 2 and summary["areas"] == found
  spread = {k: x["minus zeta, texts"] for k, x in summary["of_means"].items()}
  assert spread["trained on them"] == pytest.approx(
    {"least": 0.5, "most": 0.65}
  )
  assert spread["trained without"] == pytest.approx({"least": 0.5, "most": 0.5})
  assert (
    summary["means"][own]["match probability"] == "0.650 ± 0.635"
  )  # t = 12.706
