"""Difference alignment: against loops in float64, and what it promises."""

from functools import partial
import itertools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax import Pairs, contrib, objectives, sharding
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import Popularities, Sides

B, DIM = 12, 5
LABEL = np.array([0, 0, 1, 2, 2, 1, 3, 0, 3, 3, 2, 1])


def some(seed=0, batch=B, dim=DIM, label=None):
  rng = np.random.default_rng(seed)
  return Pairs(
    rng.normal(size=(batch, dim)),
    rng.normal(size=(batch, dim)),
    np.arange(batch),
    label=label,
  )


def loop(x, kind, differences, norm):
  """The mean over j < k, as the docstring has it."""
  if differences == "chain":
    ends = [(j, j + 1) for j in range(len(x) - 1)]
  else:
    ends = [(0, j) for j in range(1, len(x))]
  columns = [x[a] - x[b] for a, b in ends if kind[a] != kind[b]]
  order = {"l2": 2, "l1": 1}[norm]
  found = [
    np.linalg.norm(a - b, order) for a, b in itertools.combinations(columns, 2)
  ]
  return np.mean(found) if found else 0.0


def value_and_grad(objective, pairs):
  def loss(image, text):
    given = pairs._replace(image=image, text=text)
    return objective.apply(*objective.init(), given)[0]

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(
    jnp.asarray(pairs.image), jnp.asarray(pairs.text)
  )


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("differences", ["chain", "star"])
@pytest.mark.parametrize("label", [None, LABEL], ids=["ids", "labels"])
def test_value_and_gradient_against_loops(norm, differences, label, x64):
  objective = contrib.difference_alignment(
    differences=differences, norm=norm, labels=True
  )
  pairs = some(label=label)
  kind = pairs.pair_id if label is None else label

  def loss(image, text):
    return sum(loop(x, kind, differences, norm) for x in (image, text)) / 2

  found, gradient = value_and_grad(objective, pairs)
  np.testing.assert_allclose(found, loss(*pairs[:2]), rtol=1e-12)
  rng, step = np.random.default_rng(1), 1e-6
  for _ in range(3):
    move = [rng.normal(size=(B, DIM)) for _ in range(2)]
    ends = [
      loss(*(x + s * m for x, m in zip(pairs[:2], move, strict=True)))
      for s in (step, -step)
    ]
    slope = sum(np.sum(g * m) for g, m in zip(gradient, move, strict=True))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2 / step, rtol=1e-6)


def test_without_leave_labels_are_not_used(x64):
  objective = contrib.difference_alignment()
  found, _ = value_and_grad(objective, some(label=LABEL))
  expected, _ = value_and_grad(objective, some())
  np.testing.assert_allclose(found, expected, rtol=1e-12)
  other, _ = value_and_grad(
    contrib.difference_alignment(labels=True), some(label=LABEL)
  )
  assert abs(other - found) > 1e-3


def test_star_is_the_mean_distance_of_all_but_the_first(x64):
  pairs = some()
  found, _ = value_and_grad(
    contrib.difference_alignment(differences="star"), pairs
  )
  distances = [
    np.linalg.norm(a - b)
    for x in pairs[:2]
    for a, b in itertools.combinations(x[1:], 2)
  ]
  np.testing.assert_allclose(found, np.mean(distances), rtol=1e-12)


class TestSeminorm:
  """Of [phi_j]: homogeneous, subadditive; zero for equal columns."""

  @pytest.mark.parametrize("norm", ["l2", "l1"])
  def test_facts(self, norm, x64):
    objective = contrib.difference_alignment(norm=norm)
    size = lambda x: float(
      value_and_grad(objective, Pairs(x, x, np.arange(len(x))))[0]
    )
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 8, 3))
    assert size(-2.5 * a) == pytest.approx(2.5 * size(a), rel=1e-12)
    assert size(a + b) <= size(a) + size(b) + 1e-12
    steps = np.outer(np.arange(8.0), rng.normal(size=3))  # all alike, not 0
    assert size(steps) == pytest.approx(0, abs=1e-12)
    assert size(a + steps) == pytest.approx(size(a), rel=1e-12)
    assert steps.any()  # so it is no norm


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("differences", ["chain", "star"])
def test_gradient_is_finite_at_coincident_embeddings(norm, differences):
  objective = contrib.difference_alignment(norm=norm, differences=differences)
  for x in (np.ones((6, 4)), np.zeros((6, 4)), np.eye(4)[[0, 1, 0, 1, 0, 2]]):
    x = np.float32(x)
    value, gradient = value_and_grad(objective, Pairs(x, x, np.arange(6)))
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in gradient)
    if not np.ptp(x, axis=0).any():
      assert value == 0 and not any(g.any() for g in gradient)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_tiles_and_devices_change_nothing(norm, x64):
  pairs, results = make_pairs.make_pairs(0, batch=32, dim=6), []
  for devices, tile in ((1, 1024), (8, 5)):
    with (
      mock.patch.object(tiles, "CPU_TILE", tile),
      jax.set_mesh(sharding.make_mesh(devices)),
    ):
      objective = contrib.difference_alignment(norm=norm)
      results.append(value_and_grad(objective, pairs))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14),
    *map(jax.device_get, results),
  )


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_no_array_of_all_pairs_of_a_batch(norm):
  objective = contrib.difference_alignment(norm=norm)
  floats = jax.ShapeDtypeStruct((2048, 16), jnp.float32)
  ids = jax.ShapeDtypeStruct((2048,), jnp.int32)

  def loss(image, text, ids):
    return objective.apply(*objective.init(), Pairs(image, text, ids))[0]

  step = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(floats, floats, ids)
  shapes = re.findall(r"tensor<([\dx]+)x[a-z]", step.as_text())
  sizes = {np.prod(list(map(int, x.split("x")))) for x in shapes}
  assert 2048 * 16 in sizes and max(sizes) < 2048**2 / 2


def test_hessian_vector_products(x64):
  """They were 0, without an error."""
  pairs = jax.tree.map(jnp.asarray, some())
  direction = jnp.cos(jnp.arange(B * DIM, dtype=float)).reshape(B, DIM)

  def tiled(text):
    objective = contrib.difference_alignment()
    given = pairs._replace(text=text)
    return objective.apply(*objective.init(), given)[0]

  def dense(text):
    columns = text[:-1] - text[1:]
    first, second = np.triu_indices(B - 1, 1)
    distances = jnp.linalg.norm(columns[first] - columns[second], axis=1)
    return jnp.mean(distances) / 2

  found, wanted = (
    jax.jit(partial(jax.jvp, jax.grad(f)))((pairs.text,), (direction,))[1]
    for f in (tiled, dense)
  )
  np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_the_mean_does_not_grow_with_the_batch():
  means = [
    float(value_and_grad(contrib.difference_alignment(), some(0, n))[0])
    for n in (64, 512)
  ]
  assert means[1] == pytest.approx(means[0], rel=0.05)


@pytest.mark.parametrize("label", [None, LABEL], ids=["ids", "labels"])
@pytest.mark.parametrize("differences", ["chain", "star"])
def test_the_weight_of_a_sum(differences, label, x64):
  """As the docstring converts it: W differences have W (W - 1) / 2 pairs."""
  pairs, order = some(label=label), np.arange(B)
  before, after = {
    "chain": (order[:-1], order[1:]),
    "star": (np.zeros(B - 1, int), order[1:]),
  }[differences]
  columns = B - 1
  if label is not None:
    kept = label[before] != label[after]
    before, after, columns = before[kept], after[kept], int(kept.sum())
    assert columns < B - 1
  total = 0.0
  for x in pairs[:2]:
    m = x[before] - x[after]
    total += np.linalg.norm(m[:, None] - m[None], axis=-1).sum() / 2
  term = contrib.difference_alignment(differences=differences, labels=True)
  weight = 0.5 * columns * (columns - 1) / 2
  found, _ = value_and_grad(objectives.scale(term, weight), pairs)
  np.testing.assert_allclose(found, 0.5 * total / 2, rtol=1e-12)


def test_errors():
  with pytest.raises(ValueError, match="differences must be one of"):
    contrib.difference_alignment(differences="ring")
  with pytest.raises(ValueError, match="norm must be one of"):
    contrib.difference_alignment(norm="l3")
  with pytest.raises(ValueError, match="three rows or more, got 2"):
    value_and_grad(contrib.difference_alignment(), some(0, 2))


class TestAsATerm:
  """Beside another objective, which it leaves as it is."""

  def test_loss_state_and_metrics(self):
    nuclr = objectives.nuclr(num_pairs=B, temperature=0.2)
    term = contrib.difference_alignment()
    both = objectives.add(nuclr=nuclr, dar=objectives.scale(term, 0.5))
    pairs = Pairs(*map(jnp.asarray, some()[:3]))
    params, before = both.init()
    loss, (state, metrics) = jax.jit(both.apply)(params, before, pairs)
    first, (expected, own) = jax.jit(nuclr.apply)(*nuclr.init(), pairs)
    second, _ = jax.jit(term.apply)(*term.init(), pairs)
    np.testing.assert_allclose(loss, first + 0.5 * second, rtol=1e-6)
    assert set(metrics) == {
      *(f"nuclr/{name}" for name in own),
      "nuclr/loss",
      "dar/loss",
      "dar/variation",
    }
    np.testing.assert_allclose(metrics["dar/variation"], second, rtol=1e-6)
    np.testing.assert_allclose(metrics["dar/loss"], second / 2, rtol=1e-6)
    # What is read and written is that of the term that has it.
    readout = both.readout(params, state)
    assert readout.temperature == nuclr.readout({}, expected).temperature
    np.testing.assert_array_equal(
      readout.log_u.image, expected.sample.pair.log_u.image
    )
    zeta = Sides(np.arange(B) / 10.0, np.zeros(B))
    ids = Sides(np.arange(B), np.arange(B))
    new = both.assign(state, Popularities(ids, zeta))
    found = both.readout(params, new).zeta.image
    np.testing.assert_allclose(found, zeta.image, rtol=1e-6)
