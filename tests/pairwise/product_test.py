"""Which products the loss of a batch takes, by the device that computes it."""

import contextlib

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
  device = AbstractDevice(kind, 1, "gpu")
  types = (AxisType.Auto, AxisType.Auto)
  return AbstractMesh((1, 1), sharding.AXES, types, abstract_device=device)


def products(f, *args, kind=H100, platform="cuda"):
  """The kinds of products in the program for a platform, on a mesh."""
  with jax.sharding.use_abstract_mesh(mesh_of(kind)):
    traced = jax.jit(f).trace(*args)
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  names = {
    "precision = [HIGHEST, HIGHEST]": TRUE,
    "lhs_precision_type = bf16, rhs_precision_type = bf16, "
    "accumulation_type = f32, lhs_component_count = 1, "
    "rhs_component_count = 1, num_primitive_operations = 3": FAST,
  }
  lines = [x for x in text.splitlines() if "dot_general" in x]
  return [next((v for k, v in names.items() if k in x), x) for x in lines]


@pytest.mark.parametrize(
  "kind, platform, expected",
  [
    (H100, "cuda", FAST),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cuda", FAST),
    ("NVIDIA H200", "cuda", FAST),
    ("NVIDIA GH200 480GB", "cuda", FAST),
    ("NVIDIA A100-SXM4-40GB", "cuda", FAST),
    ("TPU v5 lite", "tpu", FAST),
    ("Tesla T4", "cuda", TRUE),  # XLA refuses bf16 there
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


@pytest.mark.parametrize("on_mesh", [True, False])
def test_a_cpu_beside_an_h100(on_mesh, monkeypatch):
  """The same bits as alone, also where only the arrays are on the CPU."""
  cpus, vectors = sharding.make_mesh(1), make_pairs.make_pairs(0, dim=64)
  a, b = (x.astype(jnp.float32) for x in vectors[:2])
  expected = jax.jit(tiles.matmul)(a, b.T)
  others = [AbstractDevice(H100, 132, "gpu")]
  monkeypatch.setattr(jax, "devices", lambda *_: others)
  assert tiles.is_one(512, 513) and tiles.device() is others[0]
  with jax.set_mesh(cpus) if on_mesh else contextlib.nullcontext():
    assert tiles.is_one(512, 513) is not on_mesh  # a tile of CPUs has 512 rows
    found = jax.jit(tiles.product)(a, b.T)
  np.testing.assert_array_equal(found, expected)
