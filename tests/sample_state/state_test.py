"""Per-sample state of a large data set: sharded, in place, never copied."""

import os
import re

import jax
import jax.numpy as jnp
from make_step import first_state, layout, on_mesh
import pytest

from nuclr_jax import Pairs, objectives, sharding
from nuclr_jax.objectives import zeta_rules
from nuclr_jax.sample_state import table

BATCH, DIM, DEVICES = 64, 8, 8
OBJECTIVES = dict(
  sogclr=objectives.sogclr,
  isogclr=objectives.isogclr,
  nuclr=objectives.nuclr,
  nuclr_by_id=lambda **x: objectives.nuclr_variant(anchor_average="id", **x),
  nuclr_queue=lambda **x: objectives.nuclr(
    zeta=zeta_rules.queue(dim=DIM, size=256, momentum=0.1), **x
  ),
)
BYTES = dict(sogclr=8, isogclr=24, nuclr=16, nuclr_by_id=24, nuclr_queue=24)


def compiled(make, num_pairs, **options):
  """The step on eight devices, its state donated; nothing is allocated."""
  objective, mesh = make(num_pairs=num_pairs), sharding.make_mesh(DEVICES)
  step = on_mesh(objective, mesh, donate_argnums=1, **options)
  vectors = jax.ShapeDtypeStruct((BATCH, DIM), jnp.float32)
  ids = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
  with jax.set_mesh(mesh):
    params, state = jax.eval_shape(lambda: first_state(objective))
    state = jax.tree.map(
      lambda x, y: x.update(sharding=y),
      state,
      jax.tree.broadcast(layout(mesh, **options), state),
    )
    lowered = step.lower(params, state, Pairs(vectors, vectors, ids))
    # As users compile, see conftest.py.
    emitters = "xla_cpu_use_fusion_emitters"
    changed = emitters in os.environ.get("XLA_FLAGS", "")
    return lowered.compile({emitters: True} if changed else None)


@pytest.mark.parametrize(
  "name, on_host",
  [("isogclr", False), ("nuclr_by_id", False), ("nuclr_queue", False)]
  + [("nuclr_by_id", True)],
)
def test_a_step_needs_nothing_that_grows_with_the_data_set(name, on_host):
  n = sharding.padded(2**26)  # rows, no power of two
  step = compiled(OBJECTIVES[name], n, on_host=on_host)
  # Every instruction that gives a table: in place, or a view of it.
  kinds = set(
    re.findall(rf"= f32\[{n // DEVICES}\]\S* ([\w-]+)\(", step.as_text())
  )
  allowed = {"parameter", "get-tuple-element", "scatter", "fusion", "bitcast"}
  assert kinds and kinds - {"while", "call"} <= allowed, kinds
  memory, rest = step.memory_analysis(), 2**20  # a table has 2^25 bytes
  share = BYTES[name] * n / DEVICES
  assert share <= memory.argument_size_in_bytes < share + rest
  assert share <= memory.alias_size_in_bytes < share + rest
  assert memory.temp_size_in_bytes < rest


def test_the_step_compiles_without_flags_of_xla(monkeypatch):
  """As on an accelerator, see conftest.py."""
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  assert compiled(OBJECTIVES["sogclr"], sharding.padded(1)).as_text()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_tables_are_read_before_they_are_written(name, monkeypatch):
  """What is read again is moved to the device, if it lies on the host."""
  objective = OBJECTIVES[name](num_pairs=BATCH)
  real, seen = table._read, []

  def step(vectors, ids):
    params, state = objective.init()
    given = {id(x) for x in jax.tree.leaves(state.sample)}

    def read(tables, keys):
      seen.extend(id(x) in given for x in tables)
      return real(tables, keys)

    monkeypatch.setattr(table, "_read", read)
    return objective.apply(params, state, Pairs(vectors, vectors, ids))

  vectors = jax.ShapeDtypeStruct((BATCH, DIM), jnp.float32)
  jax.eval_shape(step, vectors, jax.ShapeDtypeStruct((BATCH,), jnp.int32))
  assert seen and all(seen)


def test_ids_beyond_two_to_the_31_are_refused():
  with pytest.raises(ValueError, match="num_pairs must be .* got 2147483648"):
    objectives.sogclr(num_pairs=2**31)
