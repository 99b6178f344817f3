"""Runs that break and stop, and runs of which a part rests."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nuclr_jax import objectives, sharding
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.train import build, diagnostics, loop, records

pytestmark = pytest.mark.usefixtures("no_diagnostics")

OF_RUN = diagnostics.of_run  # for the tests of what it finds

SHORT = dict(num_epochs=0.002)  # a single step


@pytest.fixture(scope="module")
def build_plain(scored_glyphs):
  """Makes the parts of a tiny run without scores."""
  data = scored_glyphs._replace(held_out={})
  return functools.partial(build.build, data=data)


def test_a_loss_that_is_not_finite_stops_the_run(tiny, build_plain, tmp_path):
  config = complete(tiny())
  parts = build_plain(config)

  def apply(params, state, pairs):
    loss, (state, metrics) = parts.objective.apply(params, state, pairs)
    return jnp.where(state.shared.count == 8, jnp.nan, loss), (state, metrics)

  broken = objectives.Objective(parts.objective.init, apply)
  with pytest.raises(FloatingPointError) as error:
    loop.fit(config, tmp_path, parts=parts._replace(objective=broken))
  message = str(error.value)
  assert "step 8" in message and "train/loss = nan" in message
  assert message.find("checkpoints/5") > 0  # the last good one


@pytest.mark.parametrize("last", [jnp.nan, 1e30])
def test_a_last_step_that_breaks_the_model(
  tiny, build_plain, tmp_path, last, monkeypatch
):
  """Its metrics are those of the parameters before it, and all is well."""
  monkeypatch.setattr(diagnostics, "of_run", OF_RUN)
  config = complete(tiny(**SHORT))
  parts = build_plain(config)

  def update(updates, state, params=None):
    return jax.tree.map(lambda x: x * 0 + last, updates), state

  broken = optax.GradientTransformation(parts.optimizer.init, update)
  once = parts._replace(optimizer=broken, num_steps=1)
  with pytest.raises(
    FloatingPointError, match="step 1 is not finite: "
  ) as said:
    loop.fit(config, tmp_path, parts=once)
  found = "parameter/model/" if np.isnan(last) else "diagnostics/"
  assert found in str(said.value) and "checkpoint: " in str(said.value)
  assert not (tmp_path / records.METRICS).exists()


def test_ids_outside_the_state_stop_the_run(tiny, build_plain, tmp_path):
  """On the device, too: rows past the end read NaN."""
  config = complete(tiny())
  parts = build_plain(config)
  sizes = parts.data.train.sizes._asdict()
  assert sharding.padded(2) == sharding.padded(max(sizes.values()))
  fewer = dict.fromkeys(sizes, 2)
  small = objectives.nuclr(**fewer, temperature=0.1)  # tables of equal size
  with pytest.raises(FloatingPointError, match="outside the range"):
    loop.fit(config, tmp_path, parts=parts._replace(objective=small))


def test_frozen_tower_rests_the_other_learns(tiny, build_plain, tmp_path):
  freeze = ("model/image/.*",)  # all of it, so batch statistics rest, too
  config = tiny(num_epochs=0.005, **{"optimizer.freeze": freeze})
  parts = build_plain(config)
  result = loop.fit(config, tmp_path, parts=parts)
  key = jax.random.fold_in(jax.random.key(0), 0)
  first, first_state = parts.model.init(key)
  params = result.train_state.params["model"]
  chex.assert_trees_all_equal(params["image"], first["image"])
  chex.assert_trees_all_equal(
    result.train_state.model_state["image"], first_state["image"]
  )
  for side in ("text", "text_projection", "image_projection"):
    before, after = (
      jax.tree.leaves(first[side]),
      jax.tree.leaves(params[side]),
    )
    assert any(np.any(a != b) for a, b in zip(before, after, strict=True))
