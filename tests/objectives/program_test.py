"""What a loss step compiles to: collectives, products, the slow network."""

import functools
import re

import hlo
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import make_pairs
from make_step import first_state, layout, on_mesh, trace_step
import numpy as np
import pytest

from nuclr_jax import objectives, sharding
from nuclr_jax.objectives import zeta_rules
from nuclr_jax.sample_state import table

BATCH, DIM = 64, 16
NUCLR = objectives.nuclr(num_pairs=1000)
QUEUE = zeta_rules.queue(dim=DIM, size=512)
OBJECTIVES = dict(
  clip=objectives.clip(),
  sogclr=objectives.sogclr(num_pairs=1000),
  nuclr=NUCLR,
  nuclr_queue=objectives.nuclr(num_pairs=1000, zeta=QUEUE),
)
MOST_COLLECTIVES = dict(clip=7, sogclr=8, nuclr=8, nuclr_queue=11)
MOST_KERNELS = dict(clip=54, sogclr=90, nuclr=142, nuclr_queue=270)


def products(objective, num_devices, batch=BATCH):
  """Number of products of [batch, dim] and [dim, batch]."""
  mesh = sharding.make_mesh(num_devices)
  with jax.set_mesh(mesh):
    traced = trace_step(objective, mesh, batch, DIM)
  return hlo.count_products(traced.jaxpr.jaxpr) / (2 * batch**2 * DIM)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_step_on_eight_devices_is_lean(name):
  """Whatever the number of tables and of values in the step."""
  mesh = sharding.make_mesh(8)
  with jax.set_mesh(mesh):
    step = trace_step(OBJECTIVES[name], mesh, BATCH, DIM).lower().compile()
  found = hlo.count(step.as_text())
  assert 3 <= found["num_collectives"] <= MOST_COLLECTIVES[name]
  assert 3 <= found["kernels"] <= MOST_KERNELS[name]


@pytest.mark.parametrize(
  ("num_devices", "batch", "expected"), [(1, 64, 3), (8, 64, 3), (1, 1024, 4)]
)
def test_similarities_are_computed_once_in_one_tile(
  num_devices, batch, expected
):
  """A tile is 512 x 512."""
  assert products(NUCLR, num_devices, batch) == expected


def test_a_queue_costs_two_products_with_the_memory():
  """One for each side, which both sums share; 512 rows are padded to 2,880."""
  queue, nuclr = (
    products(OBJECTIVES[x], 1, 256) for x in ("nuclr_queue", "nuclr")
  )
  assert queue - nuclr == 2 * 2880 / 256


def test_a_program_is_counted():
  text = """
%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %e = f32[4]{0} exponential(%p)
}

%one (k: s32[]) -> s32[] {
  %k = s32[] parameter(0)
  ROOT %m = s32[] add(%k, %k)
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  %b = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%b), index=1
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %n = s32[] fusion(%i), kind=kLoop, calls=%one
  %r = f32[4]{0} all-reduce(%f), replica_groups={{0,1}}, to_apply=%add
  ROOT %t = (s32[], f32[4]{0}) tuple(%i, %r)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %c = f32[4]{0} copy(%a)
  %h = f32[] negate(%g), metadata={op_name="of x[3]"}
  %y = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%c)
  %s = (f32[4]{0}, bf16[8]{0}) all-gather-start(%c), replica_groups={{0,1}}
  %d = bf16[8]{0} all-gather-done(%s)
  %q = ((f32[8,4]{1,0}), f32[1,4]{1,0}) reduce-scatter-start(%a)
  %u = (f32[4]{0}, f32[8]{0}) all-reduce-start(%c, %d), to_apply=%add
  %w = (s32[], f32[4]{0}) while(%z), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %o = f32[4]{0} get-tuple-element(%w), index=1
}
"""
  assert hlo.count(text) == {
    "kernels": 4,
    "launches": 12,
    "loops": 1,
    "copies": 1,
    "sorts": 0,
    "scalars": 2,
    "prefetches": 1,
    "num_collectives": 4,
    "collectives": {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2},
    "collective_bytes": 16 + 16 + 48 + 5 * 16,
  }


def groups(line):
  """The groups of devices of a collective, in any of XLA's notations."""
  if listed := re.search(r"replica_groups=\{(\{.*?\})\}", line):
    return [numbers(x) for x in re.findall(r"\{([\d,]+)\}", listed[1])]
  if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=(\[\S+)", line):
    return ordered(tiled[2]).reshape(numbers(tiled[1])).tolist()
  axes, chosen = re.search(
    r"replica_groups=mesh\[(.*?)\].*?\{'(\w+)'\}", line
  ).groups()
  axes = dict(re.findall(r"'(\w+)'=(\d+)", axes))
  chosen = list(axes).index(chosen)
  shape = [int(x) for x in axes.values()]
  order = re.search(r"device_ids=\((\S+)\)", line)
  devices = ordered(order[1]) if order else np.arange(np.prod(shape))
  grid = np.moveaxis(devices.reshape(shape), chosen, -1)
  return grid.reshape(-1, grid.shape[-1]).tolist()


def numbers(text):
  return [int(x) for x in text.split(",")]


def ordered(text):
  """Devices in an order such as [2,4]T(1,0)."""
  shape, order = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()
  devices = np.arange(np.prod(numbers(shape))).reshape(numbers(shape))
  return devices.transpose(order and numbers(order)).reshape(-1)


GATHER, SCATTER = "all-gather", "all-to-all"  # a CPU's reduce-scatter


@pytest.mark.parametrize(("name", "sides"), [("nuclr", 1), ("nuclr_queue", 2)])
def test_embeddings_cross_the_slow_network_once(name, sides):
  """With two slices of four devices, as few bytes as possible.

  The queue also needs all images.
  """
  mesh, objective = sharding.make_mesh(8, num_slices=2), OBJECTIVES[name]
  with jax.set_mesh(mesh):
    step = trace_step(objective, mesh, BATCH, DIM).lower().compile()
  crossing, within = {}, {}
  parts = hlo.computations(step.as_text())
  for kind, line, times in hlo.instructions(parts):
    assert kind not in hlo.COLLECTIVES or times == 1
    if kind in hlo.COLLECTIVES and f",{DIM}]" in line:
      mixed = any({i < 4 for i in x} == {True, False} for x in groups(line))
      found = (crossing if mixed else within).setdefault(kind, [])
      found.append(hlo.result_bytes(line))
  # Each device gets the rows of its counterpart, a quarter of the batch, and
  # the same of their gradients.
  size = 4 * BATCH * DIM
  assert crossing == {GATHER: sides * [size // 4], SCATTER: [size // 4]}
  assert within == {GATHER: sides * [size], SCATTER: [size]}


def two_steps(mesh):
  """What two steps of a batch with equal ids give, in float64."""
  objective = OBJECTIVES["nuclr_queue"]
  rows, whole = (
    NamedSharding(mesh, x) for x in (sharding.ROWS, sharding.REPLICATED)
  )
  with jax.set_mesh(mesh):
    params, state = first_state(objective)
    state = jax.device_put(state, layout(mesh))
    params = jax.device_put(params, whole)
    step = on_mesh(objective, mesh)
    for key in range(2):
      pairs = make_pairs.make_pairs(
        key, batch=BATCH, dim=DIM, num_pairs=1000, dtype=jnp.float64
      )
      # Some ids occur twice.
      pairs = pairs._replace(pair_id=pairs.pair_id // 20)
      out = step(params, state, jax.device_put(pairs, rows))
      (_, (state, _)), _ = out
  return jax.device_get(out)


@functools.cache
def two_steps_on_one_device():
  return two_steps(sharding.make_mesh(1))


def assert_equal_trees(one, other):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-11, 1e-12), one, other
  )


def test_slices_change_nothing(x64):
  found = two_steps(sharding.make_mesh(8, num_slices=2))
  assert_equal_trees(found, two_steps_on_one_device())


@pytest.mark.parametrize(
  ("machine", "large"), [("default", False), ("default", True), ("tpu", True)]
)
def test_what_gpus_and_tpus_run_instead(machine, large, monkeypatch, x64):
  """And how the devices share a large batch's rows of equal ids."""
  expected = two_steps_on_one_device()
  calls = []

  def elsewhere(x, **forms):
    calls.append(forms)
    return forms.get(machine, forms["default"])(x)

  monkeypatch.setattr(jax.lax, "platform_dependent", elsewhere)
  if large:
    monkeypatch.setattr(table, "LARGE_BATCH", 8)
    monkeypatch.setattr(table, "MOST_COMPARED", 100)
  assert_equal_trees(two_steps(sharding.make_mesh(8)), expected)
  assert len(calls) >= 4


def test_slices_must_be_equally_large():
  with pytest.raises(ValueError, match=r"num_slices must divide .* 8 .* got 3"):
    sharding.make_mesh(8, num_slices=3)
