"""The study of when popularities pay: its density, data and scores."""

import jax
import numpy as np
import pytest
import tiny_config

from experiments.harness import Place
from experiments.when_it_pays import data, measure, plan, tabular


def test_the_best_scores_of_a_known_density():
  """log p(y | x) for natural queries, log p(y | x) / p(y) for balanced ones."""
  density = tabular.make_density(0, 1.2)
  np.testing.assert_allclose(density.sum(), 1)
  p = density.sum(0)
  np.testing.assert_allclose(np.sort(p)[::-1][1] / p.max(), 2**-1.2)
  natural = tabular.accuracies(density, density)
  balanced = tabular.accuracies(density, density / p)
  np.testing.assert_allclose(natural["natural"], density.max(1).sum())
  assert natural["natural"] > balanced["natural"] + 0.05
  assert balanced["balanced"] > natural["balanced"] + 0.05


def test_wide_vectors_reach_the_optimum(monkeypatch):
  """In which E - zeta is the same for every zeta, and E is not."""
  monkeypatch.setattr(tabular, "RESTARTS", 1)
  density, tau = tabular.make_density(0, 1.2), 0.07
  p = density.sum(0)
  with jax.enable_x64(True):
    plain = tabular.fit(density, dim=16, zeta="0", tau=tau)
    tied = tabular.fit(density, dim=16, zeta="tau log p", tau=tau)
  assert 0 <= plain.excess < 1e-3 and 0 <= tied.excess < 1e-3
  best = tabular.accuracies(density, density)["natural"]
  found = [
    tabular.accuracies(density, x)["natural"]
    for x in (tied.similarity, plain.similarity + tau * np.log(p))
  ]
  np.testing.assert_allclose(found, best, atol=2e-3)
  assert tabular.accuracies(density, plain.similarity)["natural"] < best - 0.05


def test_letters():
  tails = data.make_tails(seed=3, exponent=1.2, num_items=20, num_pairs=2000)
  counts = np.bincount(tails.item, minlength=20)
  np.testing.assert_allclose(tails.p.sum(), 1)
  np.testing.assert_allclose(counts / 2000, tails.p, atol=0.05)
  sizes = tails.data.train.sizes
  assert sizes == (2000, 2000, 2000)  # no repetition is known
  ids = np.arange(2000)
  captions = tails.data.train.captions(ids)
  assert captions == [tails.captions[i] for i in tails.item]
  assert len(set(tails.captions)) == 20
  expected = 20 * len(data.TEST_FONTS) * data.VIEWS
  assert len(tails.test_image) == expected
  assert not set(data.TRAIN_FONTS) & set(data.TEST_FONTS)
  again = data.make_tails(seed=3, exponent=0.0, num_items=20, num_pairs=40)
  np.testing.assert_allclose(again.p, 1 / 20)


def test_marked_captions_share_an_id():
  tails = data.make_tails(
    seed=3, exponent=1.2, num_items=20, num_pairs=200, marked=True
  )
  train = tails.data.train
  assert train.sizes == (200, 200, 20)
  ids = train.ids(np.arange(200))
  np.testing.assert_array_equal(ids.text, tails.text_id)
  captions = train.captions(ids.text)
  assert captions == [tails.captions[i] for i in tails.item]


def test_queries_are_weighted():
  tails = data.make_tails(seed=3, exponent=1.2, num_items=20, num_pairs=2000)
  always = int(np.argmax(tails.p))
  score = np.zeros((len(tails.test_item), 20))
  score[:, always] = 1
  found = measure.accuracies(score, tails)
  assert found["natural"] == pytest.approx(100 * tails.p.max())
  assert found["balanced"] == pytest.approx(5)


@pytest.mark.parametrize(
  ("arm", "marked"),
  [("SogCLR", False), ("ζ = τ log p", False), ("ζ = τ log p", True)],
)
def test_a_run(arm, marked, tmp_path, monkeypatch, no_diagnostics):
  tiny_config.shrink(monkeypatch, measure)
  values = plan.COMMON | plan.SMOKE | {"arm": arm, "temperature": 0.08}
  values["marked"] = marked
  run = plan.run_of(plan.TAILS, arm, 0, values)
  row = measure.measure(run, Place(tmp_path / "run", tmp_path))
  scores = row["scores"]
  assert all(0 <= x <= 100 for found in scores.values() for x in found.values())
  assert ("E - ζ" in scores) == (arm != "SogCLR")
  if arm != "SogCLR":
    tails = data.make_tails(
      seed=0, exponent=1.2, num_items=20, num_pairs=values["num_pairs"]
    )
    counts = np.bincount(tails.item, minlength=20)
    spread = np.std(np.log(tails.p[counts > 0]))
    np.testing.assert_allclose(row["zeta_sd"], spread, rtol=1e-4)
