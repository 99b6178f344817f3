"""Which products the loss of a batch takes, by the device that computes it."""

import re

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
import make_pairs
from make_step import first_state, make_step
import numpy as np
import pytest

from nuclr_jax import objectives, sharding
from nuclr_jax.objectives import zeta_rules
from nuclr_jax.pairwise import tiles

H100, TRUE, FAST = "NVIDIA H100 80GB HBM3", "true float32", "three passes"
OBJECTIVES = {
  "clip": objectives.clip(),
  "siglip": objectives.siglip(),
  "nuclr": objectives.nuclr(
    num_pairs=50, zeta=zeta_rules.queue(dim=8, size=32)
  ),
}


@pytest.fixture(autouse=True)
def no_option():
  """On an accelerator, tests have true float32 products by JAX's option."""
  with jax.default_matmul_precision(None):
    yield


def mesh_of(kind):
  device = AbstractDevice(kind, 1, "tpu" if "TPU" in kind else "gpu")
  types = (AxisType.Auto, AxisType.Auto)
  return AbstractMesh((1, 1), sharding.AXES, types, abstract_device=device)


def products(f, *args, kind=H100, platform="cuda"):
  """The kinds of products in the program for a platform, on a mesh."""
  with jax.sharding.use_abstract_mesh(mesh_of(kind)):
    traced = jax.jit(f).trace(*args)
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  names = {
    r"precision = \[HIGHEST, HIGHEST\]": TRUE,
    r"precision = \[HIGH, HIGH\]": FAST,  # on TPUs
    r"xbf16>, tensor<\d+x\d+xbf16>\) -> tensor<\d+x\d+xf32>": FAST,
  }
  lines = [x for x in text.splitlines() if " stablehlo.dot_general" in x]
  return [
    next((v for k, v in names.items() if re.search(k, x)), x) for x in lines
  ]


@pytest.mark.parametrize(
  "kind, platform, expected",
  [
    (H100, "cuda", FAST),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cuda", FAST),
    ("NVIDIA H200", "cuda", FAST),
    ("NVIDIA GH200 480GB", "cuda", FAST),
    ("NVIDIA A100-SXM4-40GB", "cuda", FAST),
    ("NVIDIA A800-SXM4-80GB", "cuda", FAST),
    ("NVIDIA H800", "cuda", FAST),
    ("NVIDIA B200", "cuda", FAST),
    ("NVIDIA GB300", "cuda", FAST),
    ("TPU v5 lite", "tpu", FAST),
    ("TPU7x", "tpu", FAST),
    ("Tesla T4", "cuda", TRUE),  # it has no bf16
    ("NVIDIA RTX A1000", "cuda", TRUE),
    ("NVIDIA GeForce RTX 4090", "cuda", TRUE),  # faster in float32
    ("AMD Instinct MI300X", "rocm", TRUE),
    ("cpu", "cpu", TRUE),
  ],
)
def test_devices(kind, platform, expected):
  a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
  found = products(tiles.product, a, b, kind=kind, platform=platform)
  assert found == [expected]


@pytest.mark.parametrize("kind, expected", [(H100, FAST), ("cpu", TRUE)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_products_of_a_step(name, kind, expected):
  objective = OBJECTIVES[name]
  pairs = make_pairs.make_pairs(0, num_pairs=50, dim=8, dtype=jnp.float32)
  args = (*first_state(objective), pairs)
  found = products(make_step(objective), *args, kind=kind)
  assert len(found) >= 3 and set(found) == {expected}


def test_sums_over_data_sets_stay_in_true_float32():
  x, weight = jnp.eye(4), jnp.zeros(4)
  f = lambda x: tiles.row_log_sum_exp(x, x, weight, temperature=0.1)
  assert products(f, x) == [TRUE]


@pytest.mark.parametrize(
  "name, expected",
  [("float32", TRUE), ("highest", TRUE), ("bfloat16", FAST), ("default", FAST)],
)
def test_the_option_of_jax(name, expected):
  """It can make the products of a loss more precise, not less."""
  with jax.default_matmul_precision(name):
    assert products(tiles.product, jnp.eye(4), jnp.eye(4)) == [expected]


def test_float64_stays_float64(x64):
  assert products(tiles.product, jnp.eye(4), jnp.eye(4)) == [TRUE]


def test_jax_refuses_other_names():
  with pytest.raises(ValueError, match="flot32"):
    with jax.default_matmul_precision("flot32"):
      pass


def on_h100s(monkeypatch):
  """Lets JAX's first device be an H100, whatever computes."""
  others = [AbstractDevice(H100, 132, "gpu")]
  monkeypatch.setattr(jax, "devices", lambda *_: others)
  assert tiles.device() is others[0]


def test_a_mesh_of_cpus_beside_an_h100(monkeypatch):
  """The same bits and tiles as alone."""
  cpus, pairs = sharding.make_mesh(1), make_pairs.make_pairs(0, dim=64)
  a, b = (x.astype(jnp.float32) for x in pairs[:2])
  expected = jax.jit(tiles.matmul)(a, b.T)
  on_h100s(monkeypatch)
  assert tiles.is_one(513, 513)
  with jax.set_mesh(cpus):
    assert not tiles.is_one(513, 513)  # 512 rows
    found = jax.jit(tiles.product)(a, b.T)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dim", [256, 512])
def test_exponentials_are_precise_enough(dim, monkeypatch):
  """CPUs compute the three passes, too: against float64, in NumPy."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 512, dim)) + rng.normal(size=dim)  # near each other
  x = (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)
  a, b = x.astype(np.float64)
  on_h100s(monkeypatch)
  found = jax.jit(tiles.product)(x[0], x[1].T)
  error = np.abs(np.expm1((found - a @ b.T) / 0.01)).max()
  assert 1e-5 < error < 1e-3  # not by true float32, and precisely enough


def test_products_have_precise_derivatives(monkeypatch):
  """Of a bilinear function: the other factor, in true float32."""
  rng = np.random.default_rng(0)
  a, b, g = (rng.normal(size=s) for s in ((30, 40), (40, 20), (30, 20)))
  on_h100s(monkeypatch)
  _, pull_back = jax.vjp(tiles.product, *map(jnp.float32, (a, b)))
  for found, expected in zip(
    pull_back(jnp.float32(g)), (g @ b.T, a.T @ g), strict=True
  ):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_float32(name, monkeypatch):
  """But for three passes, which move exponentials by 2e-4 at most."""
  objective = OBJECTIVES[name]
  pairs = make_pairs.make_pairs(0, num_pairs=50, dim=8, dtype=jnp.float32)
  args = (*first_state(objective), pairs)
  (loss, _), expected = jax.jit(make_step(objective))(*args)
  on_h100s(monkeypatch)
  (value, _), found = jax.jit(make_step(objective))(*args)
  np.testing.assert_allclose(value, loss, rtol=1e-3)
  for x, y in zip(found[1:], expected[1:], strict=True):  # of the embeddings
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-3 * np.abs(y).max())
    assert np.any(x != y)
