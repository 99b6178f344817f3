"""Objectives with labels, prototypes, blocks: against loops in float64."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax import Pairs, contrib, objectives, sharding
from nuclr_jax.contrib.objectives.swav import assign

B, DIM, CLASSES = 6, 4, 5
LABEL = np.array([0, 3, 1, 0, 4, 3])


def some(seed=0, batch=B, **more):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(2, batch, DIM))
  return Pairs(*map(jnp.asarray, x), jnp.arange(batch), **more)


LABELLED = some(label=jnp.asarray(LABEL))


def loss_of(objective, pairs, params=None):
  first, state = objective.init()
  params = first if params is None else params
  return float(jax.jit(objective.apply)(params, state, pairs)[0])


def check_gradient(objective, pairs):
  """The gradient against finite differences, in a random direction."""
  first, state = objective.init()

  @jax.jit
  @jax.value_and_grad
  def differentiate(point):
    params, image, text = point
    given = pairs._replace(image=image, text=text)
    return objective.apply(params, state, given)[0]

  first = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), first)
  point = (first, pairs.image, pairs.text)
  _, gradient = differentiate(point)
  rng, step = np.random.default_rng(5), 1e-6
  move = jax.tree.map(lambda x: rng.normal(size=x.shape), point)
  ends = [
    differentiate(jax.tree.map(lambda x, m, s=s: x + s * m, point, move))[0]
    for s in (step, -step)
  ]
  slope = sum(
    np.sum(g * m)
    for g, m in zip(*map(jax.tree.leaves, (gradient, move)), strict=True)
  )
  np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2 / step, rtol=2e-6)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


OBJECTIVES = {
  "latent_class": (contrib.latent_class(num_negatives=2), LABELLED),
  "hinge": (contrib.latent_class(num_negatives=3, loss="hinge"), LABELLED),
  "curl": (contrib.curl(block_size=2, num_negatives=2), LABELLED),
  "quick_thought": (contrib.quick_thought(block_size=2), LABELLED),
  "npair": (contrib.npair(l2=0.1), LABELLED),
  "proxy_anchor": (
    contrib.proxy_anchor(num_classes=CLASSES, dim=DIM, alpha=4.0),
    LABELLED,
  ),
  "arcface": (contrib.arcface(num_classes=CLASSES, dim=DIM), LABELLED),
  "softmax": (contrib.softmax(num_classes=CLASSES, dim=DIM), LABELLED),
  "sphereface": (contrib.sphereface(num_classes=CLASSES, dim=DIM), LABELLED),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients(name, x64):
  check_gradient(*OBJECTIVES[name])


@pytest.mark.parametrize("make", ["softmax", "proxy_anchor"])
def test_labels_of_uint8_for_256_classes(make):
  """JAX compares a uint8 with 256 as with 0."""
  objective = getattr(contrib, make)(num_classes=256, dim=DIM)
  label = np.arange(240, 256)
  loss = [
    objective.apply(*objective.init(), some(batch=16, label=jnp.asarray(x)))[0]
    for x in (label.astype("uint8"), label.astype("int32"))
  ]
  assert loss[0] == loss[1] and np.isfinite(loss[0])


@pytest.mark.parametrize("name", [*OBJECTIVES, "swav"])
def test_eight_devices_give_the_same(name, x64):
  objective = (
    contrib.swav(dim=DIM, num_prototypes=3)
    if name == "swav"
    else OBJECTIVES[name][0]
  )
  label, results = np.arange(16) % CLASSES, []
  for count in (1, 8):
    mesh = sharding.make_mesh(count)
    with jax.set_mesh(mesh):
      rows = jax.NamedSharding(mesh, sharding.ROWS)
      pairs = jax.device_put(some(batch=16, label=jnp.asarray(label)), rows)
      params, state = objective.init()
      step = jax.jit(
        jax.value_and_grad(
          lambda image, params, state, pairs: objective.apply(
            params, state, pairs._replace(image=image)
          )[0]
        )
      )
      results.append(step(pairs.image, params, state, pairs))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9),
    *map(jax.device_get, results),
  )


class TestLatentClass:
  @staticmethod
  def loss(margins, loss):
    if loss == "hinge":
      return max(0.0, 1 + max(-v for v in margins))
    found = math.log1p(sum(math.exp(-v) for v in margins))
    return found / math.log(2) if loss == "logistic" else found

  @pytest.mark.parametrize("loss", ["hinge", "logistic", "cross_entropy"])
  def test_next_pairs_are_negatives(self, loss, x64):
    image_id = np.array([0, 0, 2, 3, 4, 4])
    pairs = some()._replace(image_id=jnp.asarray(image_id))
    x, y = np.asarray(pairs.image), np.asarray(pairs.text)
    each = []
    for i in range(B):
      negatives = [(i + k) % B for k in (1, 2, 3)]
      margins = [
        x[i] @ (y[i] - y[j]) for j in negatives if image_id[i] != image_id[j]
      ]
      each.append(self.loss(margins, loss))
    objective = contrib.latent_class(num_negatives=3, loss=loss)
    np.testing.assert_allclose(
      loss_of(objective, pairs), np.mean(each), rtol=1e-12
    )

  def test_no_negative_is_left(self):
    """Neither to an anchor, whose loss is 0, nor to any."""
    pairs = some()._replace(text_id=jnp.array([0, 0, *range(1, B - 1)]))
    for loss in ("hinge", "logistic"):
      objective = contrib.latent_class(loss=loss)
      x, y = np.asarray(pairs.image), np.asarray(pairs.text)
      margins = [x[i] @ (y[i] - y[(i + 1) % B]) for i in range(1, B)]
      expected = sum(self.loss([m], loss) for m in margins) / B
      assert loss_of(objective, pairs) == pytest.approx(expected, rel=1e-6)
      alone = pairs._replace(text_id=jnp.zeros(B, int))
      with pytest.raises(ValueError, match="share one image or text"):
        objective.apply(*objective.init(), alone)
      apply = jax.jit(lambda x, o=objective: o.apply(*o.init(), x)[0])
      assert math.isnan(apply(alone))

  def test_errors(self):
    for make, message in (
      (lambda: contrib.latent_class(loss="l2"), "loss must be one of"),
      (lambda: contrib.latent_class(num_negatives=0), "num_negatives must"),
      (lambda: contrib.curl(block_size=0), "block_size must be a whole"),
      (
        lambda: contrib.curl(block_size=2, data_block_size=3),
        "block_size is 2 and that of the data 3 .*; they must be equal",
      ),
      (
        lambda: contrib.quick_thought(data_block_size=3),
        "block_size is 1 and that of the data 3",
      ),
    ):
      with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(ValueError, match="below the batch's 6 pairs, got 6"):
      loss_of(contrib.latent_class(num_negatives=6), some())
    for objective in (
      contrib.curl(block_size=4),
      contrib.quick_thought(block_size=6),
    ):
      with pytest.raises(ValueError, match="two or more blocks of"):
        loss_of(objective, some())
    with pytest.raises(ValueError, match="below the batch's 3 blocks, got 3"):
      loss_of(contrib.curl(block_size=2, num_negatives=3), some())


class TestBlocks:
  def test_curl(self, x64):
    pairs = some()
    x, y = np.asarray(pairs.image), np.asarray(pairs.text)
    means, each = y.reshape(3, 2, DIM).mean(axis=1), []
    for i in range(B):
      g = i // 2
      margins = [x[i] @ (means[g] - means[(g + k) % 3]) for k in (1, 2)]
      each.append(TestLatentClass.loss(margins, "hinge"))
    objective = contrib.curl(block_size=2, num_negatives=2, loss="hinge")
    np.testing.assert_allclose(
      loss_of(objective, pairs), np.mean(each), rtol=1e-12
    )

  def test_blocks_of_one_are_latent_class(self, x64):
    options = dict(num_negatives=4)
    found = [
      loss_of(make(**options), some())
      for make in (
        lambda **x: contrib.curl(block_size=1, **x),
        contrib.latent_class,
      )
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-12)

  @pytest.mark.parametrize("size", [1, 2, 3])
  def test_quick_thought(self, size, x64):
    pairs = some()
    x, y = np.asarray(pairs.image), np.asarray(pairs.text)
    sim, each = x @ y.T, []
    for i, j in itertools.product(range(B), repeat=2):
      if i // size == j // size:
        others = [m for m in range(B) if m // size != i // size]
        each.append(np.log1p(np.sum(np.exp(sim[i, others] - sim[i, j]))))
    objective = contrib.quick_thought(block_size=size)
    np.testing.assert_allclose(
      loss_of(objective, pairs), np.mean(each), rtol=1e-12
    )


def test_npair(x64):
  x, y = np.asarray(LABELLED.image), np.asarray(LABELLED.text)
  sim, each = x @ y.T, []
  for s in (sim, sim.T):
    for i in range(B):
      others = LABEL != LABEL[i]
      each.append(np.log1p(np.sum(np.exp(s[i, others] - s[i, i]))))
  expected = np.mean(each) + 0.1 * np.mean(np.sum([x**2, y**2], axis=2))
  found = loss_of(contrib.npair(l2=0.1), LABELLED)
  np.testing.assert_allclose(found, expected, rtol=1e-12)


def cosines(params, name):
  rows = np.concatenate([LABELLED.image, LABELLED.text])
  return rows, unit(rows) @ unit(np.asarray(params[name])).T, np.tile(LABEL, 2)


def test_proxy_anchor(x64):
  objective = contrib.proxy_anchor(num_classes=CLASSES, dim=DIM, alpha=8.0)
  _, s, label = cosines(objective.init()[0], "proxies")
  pull, push = [], []
  for p in range(CLASSES):
    own = label == p
    if own.any():
      pull.append(np.log1p(np.sum(np.exp(-8 * (s[own, p] - 0.1)))))
    push.append(np.log1p(np.sum(np.exp(8 * (s[~own, p] + 0.1)))))
  assert len(pull) == 4  # class 2 is not in the batch
  found = loss_of(objective, LABELLED)
  np.testing.assert_allclose(found, np.mean(pull) + np.mean(push), rtol=1e-6)


def cross_entropy(logits, label):
  shifted = logits - logits[np.arange(len(label)), label][:, None]
  return np.mean(np.log(np.sum(np.exp(shifted), axis=1)))


def test_softmax(x64):
  objective = contrib.softmax(num_classes=CLASSES, dim=DIM)
  weight = np.random.default_rng(1).normal(size=(CLASSES, DIM))
  x = np.concatenate(LABELLED[:2])
  logits = x @ weight.T
  log_z = np.log(np.exp(logits).sum(axis=1))
  own = logits[np.arange(2 * B), np.tile(LABEL, 2)]
  found = loss_of(objective, LABELLED, {"classes": jnp.asarray(weight)})
  assert found == pytest.approx(np.mean(log_z - own), rel=1e-9)
  _, (_, metrics) = objective.apply(
    {"classes": jnp.asarray(weight)}, objectives.State(), LABELLED
  )
  right = np.argmax(logits, axis=1) == np.tile(LABEL, 2)
  assert metrics["accuracy"] == pytest.approx(right.mean())


def test_arcface(x64):
  objective = contrib.arcface(
    num_classes=CLASSES, dim=DIM, scale=8.0, margin=0.5
  )
  params = objective.init()[0]
  # The first row's own class lies almost opposite: beyond pi - margin.
  classes = np.array(params["classes"], np.float64)
  classes[LABEL[0]] = -np.asarray(LABELLED.image[0]) + 0.05
  params = {"classes": jnp.asarray(classes)}
  _, s, label = cosines(params, "classes")
  logits, rows = 8 * s, np.arange(len(label))
  theta = np.arccos(s[rows, label])
  assert theta[0] > np.pi - 0.5
  own = np.where(
    theta + 0.5 > np.pi,
    np.cos(theta) - 0.5 * np.sin(0.5),
    np.cos(theta + 0.5),
  )
  logits[rows, label] = 8 * own
  found = loss_of(objective, LABELLED, params)
  np.testing.assert_allclose(found, cross_entropy(logits, label), rtol=1e-7)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_sphereface(m, x64):
  objective = contrib.sphereface(
    num_classes=CLASSES, dim=DIM, margin=m, plain=2.0
  )
  rows, s, label = cosines(objective.init()[0], "classes")
  norm = np.linalg.norm(rows, axis=1)
  logits = norm[:, None] * s
  for i, y in enumerate(label):
    theta = np.arccos(s[i, y])
    k = math.floor(m * theta / math.pi)
    psi = (-1) ** k * math.cos(m * theta) - 2 * k
    logits[i, y] = norm[i] * (2 * s[i, y] + psi) / 3
  found = loss_of(objective, LABELLED)
  np.testing.assert_allclose(found, cross_entropy(logits, label), rtol=1e-6)


def test_angles_decrease_with_the_margin():
  """All of [0, pi]: psi and the margin of ArcFace never go up again."""
  angles = np.linspace(1e-3, np.pi - 1e-3, 400)
  for make in (
    lambda: contrib.arcface(num_classes=2, dim=2, scale=1.0),
    lambda: contrib.sphereface(num_classes=2, dim=2, plain=0.0),
  ):
    losses = []
    objective = make()
    apply = jax.jit(lambda x, o=objective: o.apply(PARAMS, (), x)[0])
    for a in angles[::10]:
      x = jnp.array([[np.cos(a), np.sin(a)]])
      pairs = Pairs(x, x, jnp.zeros(1, int), label=jnp.zeros(1, int))
      losses.append(float(apply(pairs)))
    assert np.all(np.diff(losses) > 0)


PARAMS = {"classes": jnp.array([[1.0, 0.0], [-1.0, 0.0]])}


class TestSwav:
  def test_against_loops(self, x64):
    objective = contrib.swav(dim=DIM, num_prototypes=3, num_iterations=4)
    pairs = some()
    c = unit(np.asarray(objective.init()[0]["prototypes"]))
    scores = [unit(np.asarray(x)) @ c.T for x in pairs[:2]]
    targets = []
    for s in scores:
      q = np.exp(s / 0.05)
      for _ in range(4):
        q = q / q.sum(axis=0, keepdims=True)
        q = q / q.sum(axis=1, keepdims=True)
      targets.append(q)
    total = 0.0
    for s, q in zip(scores, targets[::-1], strict=True):
      log_p = s / 0.1 - np.log(np.sum(np.exp(s / 0.1), axis=1, keepdims=True))
      total -= np.mean(np.sum(q * log_p, axis=1)) / 2
    np.testing.assert_allclose(loss_of(objective, pairs), total, rtol=1e-6)

  def test_assignments_are_even(self):
    score = np.random.default_rng(0).normal(size=(64, 4)) + [3.0, 0, 0, 0]
    q = assign(jnp.float32(score), epsilon=0.5, num_iterations=50)
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(q.sum(axis=0), 16, rtol=1e-3)

  def test_targets_are_constants(self, x64):
    """The gradient is that with the assignments held."""
    objective = contrib.swav(dim=DIM, num_prototypes=3)
    pairs = some()
    params, state = objective.init()
    c = jnp.asarray(params["prototypes"])
    norm = lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True)
    score = lambda x: norm(x) @ norm(c).T
    fixed = [assign(score(x), epsilon=0.05) for x in pairs[:2]]

    def held(image):
      views = (score(image), score(pairs.text))
      return (
        -sum(
          jnp.mean(jnp.sum(q * jax.nn.log_softmax(s / 0.1), axis=1))
          for s, q in zip(views, fixed[::-1], strict=True)
        )
        / 2
      )

    def loss(image):
      return objective.apply(params, state, pairs._replace(image=image))[0]

    found, expected = (jax.jit(jax.grad(f))(pairs.image) for f in (loss, held))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
  "name", ["proxy_anchor", "softmax", "arcface", "sphereface", "swav"]
)
@pytest.mark.parametrize("dim, count", [(0, 3), (2, 0)])
def test_counts_are_checked_when_it_is_made(name, dim, count):
  key = "num_prototypes" if name == "swav" else "num_classes"
  with pytest.raises(ValueError, match="must be a whole number of at least 1"):
    getattr(contrib, name)(dim=dim, **{key: count})


def test_labels_are_needed():
  for make in (contrib.proxy_anchor, contrib.arcface):
    objective = make(num_classes=3, dim=DIM)
    with pytest.raises(ValueError, match="needs labels"):
      loss_of(objective, some())


@pytest.mark.parametrize(
  "name", ["proxy_anchor", "arcface", "sphereface", "softmax"]
)
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_gives_nan(name, label):
  """As an id does; a run stops then."""
  objective = getattr(contrib, name)(num_classes=3, dim=4)
  params, state = objective.init()
  for last, wrong in ((2, False), (label, True)):
    labels = jnp.array([0, 1, 2, last])
    pairs = Pairs(jnp.eye(4), jnp.eye(4), jnp.arange(4), label=labels)
    loss, _ = objective.apply(params, state, pairs)
    assert bool(jnp.isnan(loss)) == wrong
