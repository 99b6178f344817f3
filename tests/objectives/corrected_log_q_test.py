"""A fixed zeta is the corrected log Q of sampled softmaxes."""

import itertools
import math

import jax
import jax.numpy as jnp
from make_step import make_step
from normalizers import BATCH, TAU, batch, near
import numpy as np
import pytest

from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.objectives import denominator, zeta_rules
from nuclr_jax.types import each


def test_corrected_log_q_is_a_fixed_zeta_without_memory(x64):
  """The sampled softmax of RecSys 2025 (arXiv 2507.09331), by autograd.

  Only negatives are drawn, and so divided by how often they are; the positive
  is always there, and weighs an anchor by 1 - P(positive).
  """
  n, rng = 40, np.random.default_rng(0)
  text_of = rng.choice(12, n, p=np.arange(1, 13) / 78)  # a tail of captions
  counts = np.maximum(np.bincount(text_of, minlength=12), 1)
  rows = rng.permutation(n)[:BATCH]
  pairs = batch()._replace(
    pair_id=jnp.asarray(rows), text_id=jnp.asarray(text_of[rows])
  )
  most = counts.max()
  objective = objectives.nuclr_variant(
    num_pairs=n,
    num_texts=12,
    temperature=TAU,
    gamma=1.0,
    zeta=zeta_rules.fixed(init=Sides(np.zeros(n), TAU * np.log(counts))),
    # epsilon = most exp(-xi / tau) = 1, for images and for texts as anchors
    positive=denominator.running_max(init=TAU * np.log(most), weight=most),
  )
  _, (_, *found) = jax.jit(make_step(objective))(*objective.init(), pairs)

  def corrected(embeddings):
    score = embeddings.image @ embeddings.text.T / TAU
    negative = text_of[rows][:, None] != text_of[rows][None]
    total = 0.0
    for s, often in ((score, counts[text_of[rows]]), (score.T, np.ones(BATCH))):
      own = jnp.diag(s)
      # A batch has B - 1 of the n - 1 other pairs.
      drawn = s - jnp.log(often * (BATCH - 1) / (n - 1))[None]
      log_sum = jax.nn.logsumexp(jnp.where(negative, drawn, -jnp.inf), axis=1)
      weight = jax.lax.stop_gradient(jax.nn.sigmoid(log_sum - own))
      total += jnp.mean(weight * (log_sum - own))
    return TAU * total

  expected = jax.grad(corrected)(Sides(pairs.image, pairs.text))
  for a, b in zip(found, expected, strict=True):
    near(a, b)


class TestCorrectedLogQ:
  """Against the softmax over all of a few texts, which occur 3, 2, 1, 1 times.

  Texts as anchors have all images, of which those of the same text are no
  negatives.
  """

  TEXT_OF = np.array([0, 0, 0, 1, 1, 2, 3])
  PAIRS, TEXTS, TAU = len(TEXT_OF), 4, 0.3

  @property
  def tables(self):
    """Unit vectors of all images and texts."""
    rng = np.random.default_rng(0)
    shapes = (self.PAIRS, 4), (self.TEXTS, 4)
    vectors = Sides(*(rng.normal(size=shape) for shape in shapes))
    return each(
      lambda x: jnp.asarray(x / np.linalg.norm(x, axis=1)[:, None]), vectors
    )

  def objective(self, zeta, most):
    return objectives.nuclr_variant(
      num_pairs=self.PAIRS,
      num_texts=self.TEXTS,
      temperature=self.TAU,
      gamma=1.0,
      zeta=zeta_rules.fixed(init=Sides(np.zeros(self.PAIRS), zeta)),
      positive=denominator.running_max(
        init=self.TAU * np.log(most), weight=most
      ),
    )

  def batches(self, size):
    return np.array([*itertools.combinations(range(self.PAIRS), size)])

  def apply(self, objective, tables, rows):
    text_id = jnp.asarray(self.TEXT_OF)[rows]
    pairs = Pairs(tables.image[rows], tables.text[text_id], rows)
    pairs = pairs._replace(text_id=text_id)
    return objective.apply(*objective.init(), pairs)

  def mean_gradient(self, objective, size):
    """The mean over all batches of that size."""

    def loss_fn(tables):
      losses = jax.lax.map(
        lambda rows: self.apply(objective, tables, rows)[0], self.batches(size)
      )
      return jnp.mean(losses)

    return jax.jit(jax.grad(loss_fn))(self.tables)

  def full_gradient(self):
    keep = self.TEXT_OF[:, None] != self.TEXT_OF
    keep |= np.eye(self.PAIRS, dtype=bool)

    def loss_fn(tables):
      scores = tables.image @ tables.text.T / self.TAU
      of_pairs = scores[:, self.TEXT_OF]
      log_sums = jax.nn.logsumexp(scores, axis=1) + jax.nn.logsumexp(
        jnp.where(keep, of_pairs.T, -jnp.inf), axis=1
      )
      return self.TAU * jnp.mean(log_sums - 2 * jnp.diag(of_pairs))

    return jax.grad(loss_fn)(self.tables)

  def errors(self, objective):
    """The error of the mean gradient, relative, for batches of 4 to all."""
    full = jnp.concatenate(self.full_gradient())
    means = [
      jnp.concatenate(self.mean_gradient(objective, size))
      for size in range(4, self.PAIRS + 1)
    ]
    return [jnp.linalg.norm(x - full) / jnp.linalg.norm(full) for x in means]

  def test_its_gradient_becomes_that_of_the_full_softmax(self, x64):
    counts = np.bincount(self.TEXT_OF)
    corrected = self.objective(self.TAU * np.log(counts), counts.max())
    found, other = map(
      self.errors, (corrected, self.objective(np.zeros(self.TEXTS), 1.0))
    )
    assert all(np.diff(found) < 0) and found[-1] < 1e-12
    assert other[-1] > 0.04  # without the correction, bias is left

  @pytest.mark.parametrize("size", [2, 4, 7])
  def test_its_negatives_have_no_bias(self, size, x64):
    """The mean of phi over all batches with an anchor is the full sum."""
    counts, tables = np.bincount(self.TEXT_OF), self.tables
    objective = self.objective(self.TAU * np.log(counts), counts.max())
    batches = self.batches(size)

    def phi(rows):
      _, (state, _) = self.apply(objective, tables, rows)
      return jnp.exp(state.sample.pair.log_u.image)  # 0 = not in the batch

    total = jnp.sum(jax.lax.map(phi, batches), axis=0)
    visits = math.comb(self.PAIRS - 1, size - 1)
    scores = tables.image @ tables.text.T
    own = scores[np.arange(self.PAIRS), self.TEXT_OF][:, None]
    terms = np.exp((scores - own) / self.TAU)
    expected = np.sum(terms, axis=1) - 1  # without the positive
    np.testing.assert_allclose(
      total[: self.PAIRS] / visits, expected, rtol=1e-9
    )
