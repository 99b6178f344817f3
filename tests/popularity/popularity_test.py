"""Exact popularities: against loops in float64, other solvers, eq. (9)."""

import functools
import logging
import subprocess
import sys

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import peak_memory
import pytest
from scipy.special import logsumexp

from nuclr_jax import Pairs, Sides, objectives, popularity, sharding
from nuclr_jax.contrib import gradient_descent
from nuclr_jax.objectives import zeta_rules
from nuclr_jax.popularity import problem as problems
from nuclr_jax.popularity import sinkhorn
from nuclr_jax.types import each

N, TAU = 48, 0.1
RNG = np.random.default_rng(0)
IDS = {  # image ids, text ids
  "distinct": (np.arange(N), np.arange(N)),
  "captions shared": (np.arange(N), RNG.integers(0, 15, N)),
  "images shared": (7 * RNG.integers(0, 15, N) - 9, np.arange(N)),
  "both shared": (RNG.integers(0, 20, N), RNG.integers(0, 20, N)),
}


def matrices(image_id, text_id):
  """An embedding per id; texts near their images."""
  image = make_pairs.unit_rows(0, N, 8)
  text = image + 0.5 * make_pairs.unit_rows(1, N, 8)
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  first = lambda ids: np.unique(ids, return_index=True, return_inverse=True)[1:]
  rows = lambda x, ids: x[first(ids)[0]][first(ids)[1]]
  return rows(image, image_id), rows(text, text_id)


def solve(image, text, ids=(None, None), **arguments):
  arguments = dict(temperature=TAU, tolerance=1e-12) | arguments
  return popularity.solve(
    image, text, image_id=ids[0], text_id=ids[1], **arguments
  )


def loop(image, text, image_id, text_id, ratio=1.0):
  """Plain Sinkhorn over pairs with training's mask, images as anchors."""
  sim = image @ text.T / TAU
  negative = np.not_equal.outer(image_id, image_id)
  negative &= np.not_equal.outer(text_id, text_id)
  rest = np.where(negative, sim + np.log(ratio), -np.inf)
  logits = np.where(np.eye(N, dtype=bool), sim, rest)
  same = np.equal.outer(text_id, text_id)
  b = np.zeros(N)
  for _ in range(20_000):
    denominator = logsumexp(logits - b, axis=1)
    total = np.exp(logsumexp(logits - denominator[:, None], axis=0))
    new = np.log(same @ total / same.sum(axis=1))
    new -= new.mean()
    if np.abs(new - b).max() < 1e-14:
      break
    b = new
  log_u = logsumexp(rest - b, axis=1) - np.diag(sim)
  return TAU * b, log_u, logsumexp(logits - b, axis=1)


@pytest.mark.parametrize("num_pairs", [None, 500])
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_against_loops(ids, num_pairs, x64):
  image, text = matrices(*ids)
  found = solve(image, text, ids, num_pairs=num_pairs)
  ratio = 1 if num_pairs is None else (num_pairs - 1) / (N - 1)
  rows = [np.unique(x, return_inverse=True)[1] for x in ids]
  of_text = loop(image, text, *ids, ratio)
  of_image = loop(text, image, *ids[::-1], ratio)
  close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-11)
  close(found.zeta.text[rows[1]], of_text[0])
  close(found.log_u.image, of_text[1])
  close(found.log_denominator.image, of_text[2])
  close(found.zeta.image[rows[0]], of_image[0])
  close(found.log_u.text, of_image[1])
  close(found.log_denominator.text, of_image[2])
  for side, given in zip(found.ids, ids, strict=True):
    np.testing.assert_array_equal(side, np.unique(given))
  assert found.converged
  assert found.residual <= 1e-12


def test_the_papers_descent_finds_the_same(x64):
  image, text = matrices(*IDS["distinct"])
  found = solve(image, text)
  for zeta, sides in (
    (found.zeta.text, (image, text)),
    (found.zeta.image, (text, image)),
  ):
    slow = gradient_descent.descend(*map(jnp.asarray, sides), temperature=TAU)
    assert slow.gradient_norm <= 1e-15
    np.testing.assert_allclose(zeta, slow.zeta, rtol=0, atol=1e-12)


def test_ott_finds_the_same(x64):
  pytest.importorskip("ott")
  from ott.geometry import costs, pointcloud
  from ott.problems.linear import linear_problem
  from ott.solvers.linear import sinkhorn as ott_sinkhorn

  @jax.tree_util.register_pytree_node_class
  class MinusDot(costs.CostFn):
    """The cost -sim."""

    def __call__(self, x, y):
      return -jnp.dot(x, y)

  image, text = matrices(*IDS["distinct"])
  with jax.numpy_rank_promotion("allow"):
    geometry = pointcloud.PointCloud(
      jnp.asarray(image), jnp.asarray(text), cost_fn=MinusDot(), epsilon=TAU
    )
    out = ott_sinkhorn.Sinkhorn(threshold=1e-13, max_iterations=20_000)(
      linear_problem.LinearProblem(geometry)
    )
  assert out.converged
  found = solve(image, text)
  for zeta, potential in ((found.zeta.image, out.f), (found.zeta.text, out.g)):
    expected = -(potential - potential.mean())
    np.testing.assert_allclose(zeta, expected, rtol=0, atol=1e-11)


def test_equation_nine(x64):
  """q_j = sum_i K_ij / sum_k K_ik / q_k, written out, for any multiple of q."""
  image, text = matrices(*IDS["distinct"])
  kernel = np.exp(image @ text.T / TAU)
  q = 3.7 * np.exp(solve(image, text).zeta.text / TAU)
  right = (kernel / (kernel / q).sum(axis=1, keepdims=True)).sum(axis=0)
  np.testing.assert_allclose(q, right, rtol=1e-11)


@functools.cache
def training():
  """`nuclr` on the whole data set at once, and its compiled step."""
  rule = zeta_rules.batch(rate=1.0, momentum=0.0)
  objective = objectives.nuclr(
    num_pairs=N, temperature=TAU, gamma=1.0, zeta=rule
  )
  return objective, jax.jit(objective.apply)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_gradients_of_training_vanish_there(ids, x64):
  """A step of `nuclr` on the whole data set leaves the exact zeta alone."""
  image, text = matrices(*ids)
  rows = [np.unique(x, return_inverse=True)[1] for x in ids]
  found = solve(image, text, rows)
  objective, step = training()
  params, state = objective.init()
  filled = each(
    lambda table, zeta: table._replace(
      zeta=table.zeta.at[: len(zeta)].set(zeta)
    ),
    Sides(state.sample.image, state.sample.text),
    found.zeta,
  )
  state = state._replace(
    sample=state.sample._replace(image=filled.image, text=filled.text)
  )
  pairs = Pairs(
    *map(jnp.asarray, (image, text, np.arange(N), rows[0], rows[1]))
  )
  _, (new, _) = step(params, state, pairs)
  for side in Sides._fields:
    zeta = getattr(found.zeta, side)
    moved = getattr(new.sample, side).zeta[: len(zeta)]
    np.testing.assert_allclose(moved, zeta, atol=1e-10)
    # A pair without negatives has -inf here and rests at -inf there.
    np.testing.assert_allclose(
      getattr(new.sample.pair.log_u, side),
      getattr(found.log_u, side),
      rtol=1e-9,
    )


def test_a_start_changes_the_way_only(x64):
  image, text = matrices(*IDS["captions shared"])
  found = solve(image, text, IDS["captions shared"])
  shifted = each(lambda zeta: zeta + 0.3, found.zeta)
  again = solve(image, text, IDS["captions shared"], start=shifted)
  assert again.iterations < 3 < found.iterations
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-11),
    (again.zeta, again.log_u, again.log_denominator),
    (found.zeta, found.log_u, found.log_denominator),
  )


@pytest.mark.parametrize("name", ["distinct", "both shared"])
def test_eight_devices_find_the_same(name):
  """Whether the devices divide the rows or not."""
  ids = IDS[name]
  image, text = matrices(*ids)
  arguments = dict(ids=ids, tolerance=1e-4)
  alone = solve(image, text, **arguments)
  with jax.set_mesh(sharding.make_mesh(8)):
    together = solve(image, text, **arguments)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5),
    (alone.zeta, alone.log_u),
    (together.zeta, together.log_u),
  )


def test_low_temperature_converges():
  """tau = 0.01 and crowded data: the plain iteration takes 10 times as long."""
  image = make_pairs.unit_rows(0, 400, 4)
  text = image + 0.5 * make_pairs.unit_rows(1, 400, 4)
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  found = solve(image, text, temperature=0.01, tolerance=1e-3)
  assert found.converged
  assert 10 < found.iterations < 300
  logits = (image @ text.T - found.zeta.text) / 0.01
  weight = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
  np.testing.assert_allclose(weight.sum(axis=0), 1, atol=2e-3)
  assert np.diag(weight).mean() < 0.9  # anchors do look beyond their positive


def test_the_extrapolation_saves_iterations(monkeypatch, x64):
  image, text = matrices(*IDS["distinct"])
  fast = solve(image, text)
  monkeypatch.setattr(sinkhorn, "MEMORY", 0)
  plain = solve(image, text)
  assert fast.iterations < plain.iterations / 2
  np.testing.assert_allclose(fast.zeta.text, plain.zeta.text, atol=1e-11)


def test_equal_embeddings_are_equally_popular(x64):
  ones = np.full((N, 4), 0.5)
  found = solve(ones, ones)
  np.testing.assert_allclose(found.zeta, np.zeros((2, N)), atol=1e-12)
  image, text = matrices(*IDS["distinct"])
  text[5] = text[4]
  found = solve(image, text)
  assert found.zeta.text[5] == pytest.approx(found.zeta.text[4], abs=1e-12)


def test_a_pair_alone_has_no_negatives():
  found = solve(np.ones((1, 3)), np.ones((1, 3)))
  np.testing.assert_array_equal(found.zeta, [[0], [0]])
  np.testing.assert_array_equal(found.log_u, [[-np.inf], [-np.inf]])
  assert found.converged


def test_sixteen_bits_are_computed_in_32():
  image, text = matrices(*IDS["distinct"])
  half = solve(jnp.bfloat16(image), jnp.bfloat16(text), tolerance=1e-3)
  rounded = [np.asarray(jnp.bfloat16(x), np.float32) for x in (image, text)]
  same = solve(*rounded, tolerance=1e-3)
  np.testing.assert_array_equal(half.zeta.text, same.zeta.text)


def broken(**changes):
  image, text = matrices(*IDS["distinct"])
  arguments = dict(image=image, text=text, image_id=None, text_id=None)
  return arguments | changes


NAN = np.where(np.arange(N * 8).reshape(N, 8) == 30, np.nan, 0.1)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(image=NAN), r"image must be finite, .* row 3 is not \(1 such"),
    (
      dict(image=np.full((N, 8), 1e30)),
      "image must be .* with norms that float32 can hold; row",
    ),
    (
      dict(image=np.full((N, 8), 1e-30)),
      "image must be .* with norms that float32 can hold; row",
    ),
    (dict(text=np.inf * NAN), r"text must be finite, .* row 0 is not \(48"),
    (dict(text=np.ones((3, 8))), "one shape .* one row per pair, such as"),
    (dict(image=np.ones(8), text=np.ones(8)), r"got \[8\] and \[8\]"),
    (dict(image=np.ones((0, 8)), text=np.ones((0, 8))), "at least one pair"),
    (dict(text_id=np.ones(N)), "text_id must be integers of shape"),
    (dict(image_id=np.arange(3)), r"image_id must be .*got int64\[3\]"),
    (dict(text_id=np.arange(N) // 2), "pairs .* and .* have text_id .* differ"),
  ],
)
def test_bad_pairs_say_what_is_wrong(changes, message):
  with pytest.raises(ValueError, match=message):
    problems.checked_pairs(**broken(**changes))


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(temperature=0.0), "temperature must be a number greater than 0"),
    (dict(tolerance=0.0), "tolerance must be a number greater than 0"),
    (dict(num_pairs=3), "num_pairs must be at least 48, got 3"),
    (dict(temperature=1e-38), "temperature must be .* 1e-6 to 1e6 possible"),
    (dict(start=Sides(np.zeros(3), np.zeros(N))), "start.image must be .48."),
  ],
)
def test_bad_arguments_say_what_is_allowed(arguments, message):
  image, text = matrices(*IDS["distinct"])
  with pytest.raises(ValueError, match=message):
    solve(image, text, **arguments)


@pytest.mark.parametrize("scale, tau", [(1e18, 1e6), (1e10, 1), (10, 1e-5)])
def test_weights_that_rounding_hides_are_refused(scale, tau):
  """They were one-hot, so that zeta = 0 had "converged"."""
  image = np.float32(scale * matrices(*IDS["distinct"])[0])
  message = "norms are .* from 1e.06 on, rounding hides the weights; scale"
  with pytest.raises(ValueError, match=message):
    solve(image, image, temperature=tau)
  with pytest.raises(ValueError, match=message):
    popularity.solve_sampled(
      image, image, temperature=tau, max_pairs=8, key=jax.random.key(0)
    )
  with pytest.raises(ValueError, match=message):
    popularity.zeta_of_unseen(image, image, np.zeros(N), temperature=tau)


def test_64_bits_resolve_what_32_do_not(x64):
  offset = 1e4 * np.eye(9)[8]  # the same for all pairs, so that zeta stays
  image, text = (
    np.pad(x, ((0, 0), (0, 1))) for x in matrices(*IDS["distinct"])
  )
  found = solve(image + offset, text + offset, tolerance=1e-5)
  expected = solve(image, text).zeta.text
  np.testing.assert_allclose(found.zeta.text, expected, atol=1e-5)
  with pytest.raises(ValueError, match="norms are image 1e.04 and text 1e.04"):
    solve(np.float32(image + offset), np.float32(text + offset))


def test_a_tolerance_below_rounding_warns(caplog):
  image, text = (np.float32(100 * x) for x in matrices(*IDS["distinct"]))
  solve(image, text, temperature=1.0, tolerance=1e-4, max_iterations=1)
  assert "weights by up to 0.0012, which is more than the tolerance" in (
    caplog.text
  )
  caplog.clear()
  solve(image / 100, text / 100, tolerance=1e-4)
  assert not caplog.text


@pytest.mark.parametrize("tau", [1.0, 0.001])
def test_zeta_that_nothing_determines_warns(tau, caplog):
  """Far from all others, every zeta near 0 is right; near them, one is."""
  image, _ = matrices(*IDS["distinct"])
  found = solve(image, image, temperature=tau, tolerance=1e-3)
  assert found.converged
  assert np.any(found.zeta.text) == (tau == 1.0)
  message = f"zeta of {N} of {N} images and {N} of {N} texts is not determined"
  assert (message in caplog.text) == (tau != 1.0)


def alone(n, dim):
  """Pairs that are far from all others, but for the first two."""
  text, noise = (make_pairs.unit_rows(i, n, dim) for i in (0, 1))
  text[1] = text[0] + 0.01 * noise[0]
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  own = np.random.default_rng(0).uniform(0.5, 0.9, (n, 1))
  noise -= np.sum(noise * text, axis=1, keepdims=True) * text
  noise /= np.linalg.norm(noise, axis=1, keepdims=True)
  return own * text + np.sqrt(1 - own**2) * noise, text


def test_a_single_look_alike_does_not_hide_what_is_undetermined(caplog):
  """By weights in float64, and by changes of zeta that the data allow."""
  image, text = alone(60, 256)
  options = dict(temperature=0.03, tolerance=1e-3)
  found = solve(image, text, **options)
  assert found.converged
  assert "58 of 60 images and 58 of 60 texts is not determined" in caplog.text

  def weights(zeta):
    logits = (image @ text.T - zeta) / 0.03
    return np.exp(logits - logsumexp(logits, axis=1, keepdims=True))

  own = np.diag(weights(found.zeta.text))
  expected = own >= 1 - 1e-3
  np.testing.assert_array_equal(expected, np.arange(60) >= 2)
  undetermined = found.undetermined
  np.testing.assert_array_equal(undetermined.text, expected)
  np.testing.assert_array_equal(undetermined.image, expected)
  moved = found.zeta.text + 0.03 * RNG.uniform(-1, 1, 60) * undetermined.text
  np.testing.assert_allclose(weights(moved).sum(axis=0), 1, atol=1e-3)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ordinary_zeta_is_determined(ids, caplog):
  found = solve(*matrices(*ids), ids, tolerance=1e-3)
  assert not np.concatenate(found.undetermined).any() and not caplog.text


def test_starts_that_overflow():
  image, text = matrices(*IDS["distinct"])
  start = Sides(np.zeros(N), np.where(np.arange(N) < 3, 1e300, -1e300))
  with pytest.raises(ValueError, match="overflow at temperature 0.1; give f"):
    solve(image, text, start=start)


def test_long_solves_show_progress(monkeypatch, caplog):
  monkeypatch.setattr(sinkhorn, "PATIENCE", 0.0)
  image, text = matrices(*IDS["distinct"])
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    solve(image, text, tolerance=1e-3)
  assert "popularity of texts: iteration 2, residual" in caplog.text
  assert "about 0:0" in caplog.text


def test_too_few_iterations_warn(caplog):
  image, text = matrices(*IDS["distinct"])
  found = solve(image, text, max_iterations=2)
  assert not found.converged
  assert found.residual > 1e-12
  assert "not converged" in caplog.text
  assert "raise max_iterations" in caplog.text


MEMORY = """
import resource
import numpy as np
from nuclr_jax import popularity

def solve(n):
  x = np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32)
  popularity.solve(x, x[::-1], temperature=10.0, max_iterations=1)
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

small = solve(1_100)  # everything is compiled and imported, tiles are whole
print(solve(8_000) - small)
"""


def test_no_matrix_of_all_pairs_is_in_memory(tmp_path):
  script = tmp_path / "memory.py"
  script.write_text(MEMORY)
  command = [sys.executable, script]
  ran = subprocess.run(command, capture_output=True, text=True)
  assert not ran.returncode, ran.stderr
  grown = float(ran.stdout) * peak_memory.unit()
  assert grown < 8_000**2  # bytes; the matrix has four times that


@pytest.fixture(scope="module")
def sample():
  """Images, texts and the ids of the texts."""
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
  crowd = np.eye(8)[0]  # some directions are more popular than others
  image = unit(make_pairs.unit_rows(0, 3000, 8) + 0.5 * crowd)
  ids = np.arange(3000) % 700
  noise = make_pairs.unit_rows(1, 700, 8)
  return image, unit(image[:700] + 0.5 * noise - 0.3 * crowd)[ids], ids


@pytest.fixture(scope="module")
def solve_some(sample):
  """Solves a sample; `solve_some.__wrapped__` does so again."""
  image, text, ids = sample

  @functools.cache
  def solve(max_pairs, key=0):
    return popularity.solve_sampled(
      image,
      text,
      temperature=TAU,
      text_id=ids,
      max_pairs=max_pairs,
      key=jax.random.key(key),
      tolerance=1e-4,
    )

  with pytest.MonkeyPatch.context() as patch:
    # Samples of one size have other numbers of texts, but are compiled once.
    patch.setattr(problems, "MULTIPLE", 256)
    yield solve


class TestSample:
  """A solved sample, extended to all pairs."""

  def test_everyone_is_the_exact_solution(self, sample, solve_some):
    image, text, ids = sample
    exact = popularity.solve(
      image, text, temperature=TAU, text_id=ids, tolerance=1e-4
    )
    np.testing.assert_array_equal(solve_some(3000).zeta.text, exact.zeta.text)

  def test_all_but_a_few_is_close_and_less_is_further(self, solve_some):
    exact = solve_some(3000)

    def error(found, of):
      differences = each(np.subtract, of(found), of(exact))
      return each(lambda x, y: np.std(x) / np.std(y), differences, of(exact))

    zeta, log_u = (lambda x: x.zeta), (lambda x: x.log_u)
    for of in (zeta, log_u):
      assert max(error(solve_some(2990), of)) < 0.1
      assert max(error(solve_some(1500), of)) < 0.3
      assert max(error(solve_some(1500), of)) < min(error(solve_some(200), of))

  def test_it_is_right_on_average(self, solve_some):
    """Over samples, log u of the extension is not too low or too high."""
    exact = solve_some(3000)
    bias = [
      np.mean(solve_some(1000, key).log_u.image - exact.log_u.image)
      for key in range(8)
    ]
    assert abs(np.mean(bias)) < 0.03

  def test_the_key_decides(self, solve_some):
    first, again, other = (
      solve_some(500),
      solve_some.__wrapped__(500),
      solve_some(500, 1),
    )
    np.testing.assert_array_equal(first.zeta.image, again.zeta.image)
    assert np.abs(first.zeta.image - other.zeta.image).max() > 0

  def test_samples_of_one_are_refused(self, solve_some):
    with pytest.raises(ValueError, match="max_pairs must be at least 2"):
      solve_some(1)
