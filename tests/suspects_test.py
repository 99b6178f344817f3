"""Near-duplicates and label noise, planted and found."""

import make_pairs
import numpy as np

from nuclr_jax import popularity
from nuclr_jax.popularity import analysis
from nuclr_jax.types import Pairs, Sides


def test_planted_near_duplicates_are_found(monkeypatch):
  monkeypatch.setattr(analysis, "CHUNK", 7 * 40)
  x = make_pairs.unit_rows(0, 40, 16)
  x[[3, 20, 31]] = x[3]
  x[12] = x[5] + 0.02 * x[6]
  x[12] /= np.linalg.norm(x[12])
  found = analysis.clusters(x, np.arange(40), threshold=0.95)
  assert [list(members) for members in found] == [[3, 20, 31], [5, 12]]


def test_links_are_followed_through_and_partners_are_no_link():
  angles = np.array([0.0, 0.1, 0.2, 0.3, 2.0, 2.05])
  x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  chain = analysis.clusters(x, np.arange(6), threshold=np.cos(0.12))
  assert [list(members) for members in chain] == [[0, 1, 2, 3], [4, 5]]
  partner = np.array([0, 1, 2, 3, 4, 4])  # the last two have one text
  apart = analysis.clusters(x, partner, threshold=np.cos(0.12))
  assert [list(members) for members in apart] == [[0, 1, 2, 3]]


def test_a_crowd_is_one_cluster_though_links_are_cut(monkeypatch):
  monkeypatch.setattr(analysis, "MAX_LINKS", 3)
  x = np.tile(make_pairs.unit_rows(0, 1, 4), (100, 1))
  found = analysis.clusters(x, np.arange(100), threshold=0.99)
  assert [len(members) for members in found] == [100]


def test_own_weights_are_those_of_the_definition():
  n, tau = 30, 0.2
  image, text = (make_pairs.unit_rows(i, n, 6) for i in (0, 1))
  text_id = np.arange(n) % 12
  text = text[text_id]
  found = popularity.solve(
    image, text, temperature=tau, text_id=text_id, tolerance=1e-6
  )
  pairs = Pairs(image, text, np.arange(n), None, text_id)
  own = analysis.log_own_weight(found, pairs, temperature=tau)
  zeta = Sides(found.zeta.image, found.zeta.text[text_id])
  negative = np.not_equal.outer(text_id, text_id)
  sim = image @ text.T
  for side, logits in (
    ("image", (sim - zeta.text) / tau),
    ("text", (sim.T - zeta.image) / tau),
  ):
    both = np.where(negative, np.exp(logits), 0)
    mine = np.exp(np.diag(logits))
    expected = np.log(mine / (mine + both.sum(axis=1)))
    np.testing.assert_allclose(getattr(own, side), expected, atol=1e-4)


def test_swapped_captions_have_the_smallest_own_weights():
  n = 200
  image = make_pairs.unit_rows(0, n, 16)
  text = image + 0.1 * make_pairs.unit_rows(1, n, 16)
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  text[[10, 77]] = text[[77, 10]]
  found = popularity.solve(image, text, temperature=0.1)
  pairs = Pairs(image, text, np.arange(n))
  own = analysis.log_own_weight(found, pairs, temperature=0.1)
  for side in own:
    assert set(np.argsort(side)[:2]) == {10, 77}
  best = analysis.preferred(image[[10, 77]], text, found.zeta.text)
  np.testing.assert_array_equal(best, [77, 10])


def test_zeta_of_unseen_is_equation_nine(x64):
  """A copy of a solved text attracts what the text itself does."""
  n, tau = 40, 0.2
  image, text = (make_pairs.unit_rows(i, n, 6) for i in (0, 1))
  found = popularity.solve(image, text, temperature=tau, tolerance=1e-10)
  again = popularity.zeta_of_unseen(
    text, image, found.log_denominator.image, temperature=tau
  )
  np.testing.assert_allclose(again, found.zeta.text, atol=1e-9)
