"""The kernels for TPUs, interpreted, against the loops that XLA compiles.

Pallas's interpreter has a TPU's memories: what a kernel reads there before it
was written is NaN.
"""

import contextlib
from unittest import mock

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
import make_pairs
from make_step import make_step
import numpy as np
import pytest

from nuclr_jax import Sides, contrib, objectives, pairwise, sharding
from nuclr_jax.contrib import pallas_passes
from nuclr_jax.objectives import denominator, temperature_rules, zeta_rules
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import each

DIM = 8
SIZES = dict(num_pairs=64, num_texts=7)
OBJECTIVES = dict(
  clip=objectives.clip(),
  ntxent=objectives.ntxent(),
  debiased=objectives.debiased(),
  hard_negatives=objectives.debiased(hardness=1.0),
  cyclip=objectives.cyclip(),
  sogclr=objectives.sogclr(**SIZES),
  scent=objectives.sogclr(
    **SIZES,
    gamma=denominator.Adaptive(2.0),
    anchor_average="id",
    temperature=temperature_rules.learned(),
  ),
  isogclr=objectives.isogclr(**SIZES),
  nuclr=objectives.nuclr(**SIZES, temperature=0.1),
  nuclr_individual_queue=objectives.nuclr(
    **SIZES,
    temperature=temperature_rules.individual(0.1, rate=0.01),
    zeta=zeta_rules.queue(dim=DIM, size=32),
  ),
  amorlip=contrib.amorlip(dim=DIM, steps_per_epoch=2),
  fastclip_released=contrib.fastclip_released(**SIZES),
  neuclip=contrib.neuclip(dim=DIM, num_prototypes=12),
  npair=contrib.npair(),
  quick_thought=contrib.quick_thought(),
  tempnet=objectives.sogclr(
    **SIZES,
    temperature=contrib.tempnet(
      dim=DIM, num_prototypes=8, bounds=(0.05, 0.2), rate=0.01
    ),
  ),
)


@pytest.fixture
def doubles():
  """float64, in the threads of Pallas's interpreter, too."""
  jax.config.update("jax_enable_x64", True)
  yield
  jax.config.update("jax_enable_x64", False)


def both_passes(vectors, pairs):
  """All that the passes return, of temperatures and biases for each row."""
  temperature, bias = (each(f, Sides(*vectors)) for f in (_tau, _bias))
  logits = pairwise.logits(
    pairs._replace(image=vectors[0], text=vectors[1]),
    temperature=temperature,
    bias=bias,
  )
  lse = pairwise.log_sum_exp(logits)
  out = pairwise.weighted(
    logits,
    row_log_weight=each(lambda x: jnp.where(x > 0, -x, -jnp.inf), lse),
    contrast_factor=each(jnp.tanh, lse),
  )
  return out.surrogate, (lse, out)


def _tau(x):
  return 0.1 + x[:, 0] ** 2


def _bias(x):
  return jax.lax.stop_gradient(0.1 * x[:, 1])


def results(f, pairs):
  """Its values, and its gradient in the embeddings."""
  step = jax.jit(jax.value_and_grad(f, has_aux=True))
  return step(pairs[:2], pairs)


def in_blocks(block, group=2**20):
  return mock.patch.multiple(
    pallas_passes, BLOCK=block, GROUP_BYTES=4 * pallas_passes.LANES * group
  )


@pytest.mark.parametrize(
  "batch, block, group",
  [(16, 16, 16), (37, 16, 64), (20, 8, 8), (50, 16, 32), (2, 256, 256)],
)
def test_both_passes_are_those_of_the_loops(batch, block, group, doubles):
  """In one block, in many with ragged ends, in several groups of columns."""
  with in_blocks(block, group):
    pairs = make_pairs.make_pairs(1, batch=batch, dim=DIM, num_texts=7)
    expected = results(both_passes, pairs)
    found = results(pallas_passes._with_kernels(both_passes), pairs)
  chex.assert_trees_all_close(found, expected, rtol=1e-12, atol=1e-13)


def test_a_batch_on_eight_devices(doubles):
  """Each has 2 of 16 images, and all texts."""
  with in_blocks(8):
    pairs = make_pairs.make_pairs(1, batch=16, dim=DIM, num_texts=7)
    expected = results(both_passes, pairs)
    with jax.set_mesh(sharding.make_mesh(8)):
      found = results(pallas_passes._with_kernels(both_passes), pairs)
  chex.assert_trees_all_close(
    *jax.device_get((found, expected)), rtol=1e-12, atol=1e-13
  )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_of_every_objective(name, doubles):
  """Loss, state, metrics and gradients; ids occur twice in a batch."""
  objective = OBJECTIVES[name]
  with in_blocks(16):
    params, state = objective.init()
    pairs = make_pairs.make_pairs(0, batch=20, dim=DIM, num_texts=7)
    ids = pairs.pair_id.at[3].set(pairs.pair_id[0])
    pairs = pairs._replace(pair_id=ids, text_id=ids % 7)
    expected, found = (
      jax.jit(make_step(x))(params, state, pairs)
      for x in (objective, pallas_passes.tpu_kernels(objective))
    )
  chex.assert_trees_all_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", ["none", "Auto", "Explicit"])
def test_they_are_used_when_asked_for_only(kind):
  """JAX keeps what it has traced, and must not take one for the other."""
  pairs = make_pairs.make_pairs(0, dtype=jnp.float32)
  objective = objectives.clip()
  with_kernels = pallas_passes.tpu_kernels(objective)
  stack = contextlib.ExitStack()
  if kind != "none":
    types = (AxisType[kind],) * len(sharding.AXES)
    mesh = jax.make_mesh((1, 8), sharding.AXES, axis_types=types)
    stack.enter_context(jax.set_mesh(mesh))
    split = jax.NamedSharding(mesh, sharding.ROWS)
    pairs = jax.device_put(pairs, split)
  with stack:
    for chosen, kernels in ((objective, 0), (with_kernels, 2), (objective, 0)):
      traced = jax.make_jaxpr(make_step(chosen))(*chosen.init(), pairs)
      assert str(traced).count("pallas_call") == kernels


def error_of_products(in_three_passes):
  """The greatest error of exp(similarity / 0.01), relative."""
  a, b = (make_pairs.unit_rows(key, 64, 512) for key in (0, 1))
  b = 0.9 * a + 0.1 * b  # similarities up to 0.9, as of pairs
  found = []
  for axes, x, y in (((1, 1), a, b), ((1, 0), a, b.T), ((0, 0), a.T, b.T)):
    x, y = (jnp.asarray(z, jnp.float32) for z in (x, y))
    product = pallas_passes._product(
      x, y, axes=axes, in_three_passes=in_three_passes
    )
    product, x, y = (np.asarray(z, float) for z in (product, x, y))
    error = product - np.tensordot(x, y, [axes[:1], axes[1:]])
    found.append(np.max(np.abs(np.expm1(error / 0.01))))
  return max(found)


def test_products_are_as_precise_as_those_of_tiles():
  """One pass of bf16 would be off by 0.1."""
  assert error_of_products(in_three_passes=False) < 1e-4
  assert error_of_products(in_three_passes=True) < 3e-4


@pytest.mark.parametrize("option, most", [(None, 3e-4), ("float32", 1e-4)])
def test_kernels_multiply_as_tiles_do(option, most, doubles, monkeypatch):
  """In three passes where the device has them, unless JAX's option says no."""
  monkeypatch.setattr(tiles, "FAST_ON", "cpu")
  pairs = make_pairs.make_pairs(1, batch=16, dim=DIM, num_texts=7)
  expected = results(both_passes, pairs)
  single = jax.tree.map(
    lambda x: x.astype(jnp.float32) if x.dtype == float else x, pairs
  )
  with jax.default_matmul_precision(option), in_blocks(16):
    step = pallas_passes._with_kernels(both_passes)
    assert ("bf16" in str(jax.make_jaxpr(step)(single[:2], single))) == (
      option is None
    )
    found = results(step, single)
  chex.assert_trees_all_close(found, expected, rtol=most, atol=most)


def on(kind, platform, option=None):
  """A device that is not there, and JAX's option for products."""
  device = AbstractDevice(kind, 1, platform)
  types = (AxisType.Auto, AxisType.Auto)
  mesh = AbstractMesh((1, 1), sharding.AXES, types, abstract_device=device)
  stack = contextlib.ExitStack()
  stack.enter_context(jax.default_matmul_precision(option))
  stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
  return stack


@pytest.mark.parametrize("dim", [512, 100])
@pytest.mark.parametrize("option", [None, "float32", "high", "tensorfloat32"])
def test_mosaic_accepts_the_kernels(dim, option):
  """JAX's compiler of kernels, not the TPU's own, which needs its library."""
  objective = pallas_passes.tpu_kernels(objectives.nuclr(num_pairs=4096))
  pairs = make_pairs.make_pairs(
    0, batch=3000, dim=dim, num_pairs=4096, num_texts=500, dtype=jnp.float32
  )
  with on("TPU v5 lite", "tpu", option):
    traced = jax.jit(make_step(objective)).trace(*objective.init(), pairs)
    lowered = traced.lower(lowering_platforms=("tpu",))
  assert lowered.as_text().count("tpu_custom_call") == 2
  assert ("bf16" in str(traced.jaxpr)) == (option != "float32")


@pytest.mark.parametrize(
  "kind, platform, dtype",
  [
    ("NVIDIA H100 80GB HBM3", "gpu", "float32"),
    ("TPU v5 lite", "tpu", "float64"),
  ],
)
def test_where_they_are_refused(kind, platform, dtype):
  objective = pallas_passes.tpu_kernels(objectives.clip())
  message = f"arrays of 32 bits, got {dtype[-2:]} bits on {kind}; use the"
  with jax.enable_x64(dtype == "float64"), on(kind, platform):
    pairs = make_pairs.make_pairs(0, dtype=dtype)
    with pytest.raises(ValueError, match=message):
      jax.eval_shape(objective.apply, *objective.init(), pairs)
