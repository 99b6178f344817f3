"""Schedules with a constant phase; learning rates by tower and by layer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nuclr_jax.lab import factories, models
from nuclr_jax.lab.config import ConfigError, load_config, override
from nuclr_jax.lab.train import optimizer, settings


def by_hand(step, *, decay, freeze, rise, stable, steps, value, end):
  """The value at a step, by the definition of each phase."""
  if step < freeze:
    return 0.0
  if step < freeze + rise:
    return value * (step - freeze) / rise
  x = min(max(step - freeze - rise - stable, 0) / steps, 1)
  left = {
    "constant": 1.0,
    "cosine": (1 + math.cos(math.pi * x)) / 2,
    "linear": 1 - x,
    "sqrt": 1 - math.sqrt(x),
  }[decay]
  return end + (value - end) * left


class TestSchedules:
  @pytest.mark.parametrize("decay", optimizer.DECAYS)
  @pytest.mark.parametrize("fraction", [1.0, 0.5])
  def test_warm_up_then_stable_then_decay(self, decay, fraction):
    schedule = optimizer.make_schedule(
      2.0,
      num_steps=116,
      steps_per_epoch=3,
      freeze_epochs=2,
      warmup_steps=10,
      decay=decay,
      stable_fraction=0.8,
      decay_fraction=fraction,
      end_value=0.5,
    )
    end = 2.0 if decay == "constant" else 0.5
    expected = [
      by_hand(
        step,
        decay=decay,
        freeze=6,
        rise=10,
        stable=80,  # of the 100 steps after the rise
        steps=20 * fraction,
        value=2.0,
        end=end,
      )
      for step in range(120)
    ]
    found = [float(schedule(step)) for step in range(120)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

  @pytest.mark.parametrize("decay", optimizer.DECAYS)
  @pytest.mark.parametrize("freeze", [0, 5])
  def test_a_rise_may_take_the_whole_run(self, decay, freeze):
    schedule = optimizer.make_schedule(
      2.0,
      num_steps=10,
      steps_per_epoch=1,
      freeze_epochs=freeze,
      warmup_epochs=10 - freeze,
      decay=decay,
      stable_fraction=0.8,
    )
    rise = np.maximum(np.arange(11) - freeze, 0) / (10 - freeze)
    found = [float(schedule(step)) for step in range(11)]
    np.testing.assert_allclose(found, 2 * rise, rtol=1e-6)

  def test_drops_of_one_step_are_all_counted(self):
    schedule = optimizer.make_schedule(
      1.0, num_steps=10, steps_per_epoch=1, drops=(0.6, 0.62, 0.9)
    )
    found = [float(schedule(step)) for step in range(11)]
    expected = [1.0] * 6 + [1e-2] * 3 + [1e-3] * 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)

  def test_a_stable_phase_leaves_a_step_to_decay(self):
    schedule = optimizer.make_schedule(
      1.0, num_steps=3, steps_per_epoch=1, stable_fraction=0.99, decay="linear"
    )
    assert [float(schedule(step)) for step in range(4)] == [1, 1, 1, 0]

  @pytest.mark.parametrize(
    "change, message",
    [
      (dict(stable_fraction=1.0), r"stable_fraction must be in \[0, 1\), got"),
      (dict(stable_fraction=-0.1), "stable_fraction must be in"),
      (dict(freeze_epochs=4), "freeze_epochs shorter than it"),
      (dict(warmup_epochs=4, warmup_steps=1), "are 0 and 9 steps; .* run of 8"),
      (dict(decay="wsd"), "one of .*'linear', 'sqrt'.*, got 'wsd'"),
    ],
  )
  def test_values_out_of_range(self, change, message):
    with pytest.raises(ValueError, match=message):
      optimizer.make_schedule(1.0, num_steps=8, steps_per_epoch=2, **change)


TOWERS = {
  "clip": dict(
    image=dict(name="clip_vit_b16", patch=8, width=8, layers=3, heads=2),
    text=dict(name="clip_text", width=8, layers=2, heads=2),
  ),
  "resnet": dict(
    image=dict(name="resnet50", stages=(1, 2), width=2),
    text=dict(name="distilbert", width=8, layers=2, heads=2),
  ),
  "fastvit": dict(
    image=dict(name="fastvit", stages=(1, 2), width=16, gated=1),
    text=dict(name="clip_text", width=8, layers=2, heads=2),
  ),
  "bert": dict(
    image=dict(name="vit_b16", patch=8, width=8, layers=1, heads=2),
    text=dict(name="bert", width=8, layers=3, heads=2, pooler=True),
  ),
}
# By hand, from the input on: what embeds, the blocks, and all else at the end.
DEPTHS = {
  "clip/image": (
    ["class_token", "class_position", "patches", "positions", "norm_before"],
    ["blocks/0", "blocks/1", "blocks/2"],
  ),
  "clip/text": (["tokens", "positions"], ["blocks/0", "blocks/1"]),
  "resnet/image": (
    ["stem", "norm"],
    ["stages/0/0", "stages/1/0", "stages/1/1"],
  ),
  "resnet/text": (["tokens", "positions"], ["blocks/0", "blocks/1"]),
  "fastvit/image": (["stem"], ["stages/0/0", "stages/1/0", "stages/1/1"]),
  "fastvit/text": (["tokens", "positions"], ["blocks/0", "blocks/1"]),
  "bert/image": (
    ["class_token", "class_position", "patches", "positions"],
    ["blocks/0"],
  ),
  "bert/text": (
    ["tokens", "positions"],
    ["blocks/0", "blocks/1", "blocks/2"],
  ),
}
PARAMS = {
  "model": {
    "image": {
      "patches": jnp.array([[0.5, -1.0]]),
      "blocks": {"0": {"up": jnp.array([[1.0, 2.0]])}},
      "norm": jnp.array([0.1]),
    },
    "text": {"tokens": jnp.array([[3.0], [-0.7]])},
    "text_projection": jnp.array([[0.3]]),
  },
  "objective": {"log_scale": jnp.array(0.2)},
}


def flat(params):
  """Leaves by the names of their paths."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.float64(x)
    for path, x in jax.tree_util.tree_leaves_with_path(params)
  }


def gradient(params, step):
  """Some gradient that differs from step to step."""
  return jax.tree.map(lambda x: jnp.cos(3 * x + step), params)


def trained(transformation, steps=2):
  """Parameters after a few steps."""
  params = PARAMS
  state = transformation.init(params)
  for step in range(steps):
    updates, state = transformation.update(
      gradient(params, step), state, params
    )
    params = optax.apply_updates(params, updates)
  return params


def adamw_by_hand(factors, steps=2, *, rate, decay, b1=0.9, b2=0.999, eps=1e-8):
  """AdamW with a learning rate of its own for every leaf, in float64."""
  params = flat(PARAMS)
  first = {name: 0 * x for name, x in params.items()}
  second = {name: 0 * x for name, x in params.items()}
  for step in range(steps):
    for name, x in params.items():
      grad = np.cos(3 * x + step)
      first[name] = b1 * first[name] + (1 - b1) * grad
      second[name] = b2 * second[name] + (1 - b2) * grad**2
      mean = first[name] / (1 - b1 ** (step + 1))
      square = second[name] / (1 - b2 ** (step + 1))
      lr = rate * factors[name]
      shrunk = x * (1 - lr * decay) if x.ndim >= 2 else x
      params[name] = shrunk - lr * mean / (np.sqrt(square) + eps)
  return params


class TestRates:
  FACTORS = {
    "model/image/blocks/0/up": 0.5 * 0.1,
    "model/image/norm": 0.1,
    "model/image/patches": 0.25 * 0.1 * 3,
    "model/text/tokens": 0.5,  # a tower without blocks
    "model/text_projection": 1.0,
    "objective/log_scale": 2.0,
  }

  def test_two_steps_by_hand(self):
    """The factor of a leaf scales its whole update, with the weight decay."""
    transformation = optimizer.make_optimizer(
      0.1,
      weight_decay=0.7,
      layer_decay=0.5,
      rate_factors={
        "model/image": 0.1,
        "model/.*/patches": 3.0,
        "objective": 2.0,
      },
    )
    found = flat(trained(transformation))
    expected = adamw_by_hand(self.FACTORS, rate=0.1, decay=0.7)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
      np.testing.assert_allclose(found[name], x, rtol=1e-4, err_msg=name)

  def test_epsilon_damps_small_gradients(self):
    ones = dict.fromkeys(self.FACTORS, 1.0)
    found = flat(trained(optimizer.make_optimizer(0.1, eps=0.5)))
    expected = adamw_by_hand(ones, rate=0.1, decay=0.0, eps=0.5)
    for name, x in expected.items():
      np.testing.assert_allclose(found[name], x, rtol=1e-4, err_msg=name)

  def test_a_factor_is_another_learning_rate(self):
    """A tower with factor 1/4 trains as with a quarter of the rate."""
    quarter = trained(optimizer.make_optimizer(0.05, weight_decay=0.3))
    found = trained(
      optimizer.make_optimizer(
        0.2, weight_decay=0.3, rate_factors={"model|objective": 0.25}
      )
    )
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, quarter
    )

  @pytest.mark.parametrize("towers", TOWERS)
  def test_decay_by_layer(self, towers):
    model = models.towers(
      image_shape=(16, 16, 3), vocab_size=9, length=4, **TOWERS[towers]
    )
    params = jax.eval_shape(model.init, jax.random.key(0))[0]
    params = {"model": params, "objective": {"log_scale": jnp.zeros(())}}
    names = list(flat(jax.tree.map(lambda x: 0.0, params)))
    blocks = optimizer.blocks_of(names)
    for name in names:
      _, tower, *inner = [*name.split("/"), ""]
      expected = 1.0
      embedding, numbered = DEPTHS.get(f"{towers}/{tower}", ([], []))
      if inner and inner[0] in embedding:
        expected = 0.5
        for _ in numbered:
          expected *= 0.5
      for i, block in enumerate(numbered):
        if "/".join(inner).startswith(f"{block}/"):
          expected = 0.5 ** (len(numbered) - i)
      found = optimizer.rate_factor(name, blocks, 0.5)
      assert found == expected, (name, found, expected)

  def test_twelve_blocks_are_in_the_order_of_their_numbers(self):
    names = [f"model/image/blocks/{i}/up" for i in range(12)]
    blocks = optimizer.blocks_of(reversed(names))
    assert [f"{x}/up" for x in blocks] == names
    found = [optimizer.rate_factor(x, blocks, 0.9) for x in names]
    np.testing.assert_allclose(found, 0.9 ** np.arange(12, 0, -1))

  def test_frozen_parameters_may_have_a_factor(self):
    transformation = optimizer.make_optimizer(
      0.1, freeze=("model/image",), rate_factors={"model/image": 0.1}
    )
    found, first = flat(trained(transformation)), flat(PARAMS)
    for name, x in first.items():
      same = np.array_equal(found[name], x)
      assert same == name.startswith("model/image/")

  @pytest.mark.parametrize("freeze", [(), ("model/image",)])
  def test_without_factors_nothing_is_added(self, freeze):
    """The state and the program are those of plain AdamW."""
    adamw = optax.adamw(
      0.1,
      weight_decay=0.2,
      mask=lambda params: jax.tree.map(lambda x: x.ndim >= 2, params),
    )
    expected = optax.chain(adamw)
    if freeze:
      expected = optax.partition(
        {"train": expected, "frozen": optax.set_to_zero()},
        {
          "model": {
            "image": "frozen",
            "text": "train",
            "text_projection": "train",
          },
          "objective": "train",
        },
      )
    found = optimizer.make_optimizer(
      0.1, weight_decay=0.2, freeze=freeze, rate_factors={}, layer_decay=1.0
    )
    states = [x.init(PARAMS) for x in (found, expected)]
    assert flat(states[0]).keys() == flat(states[1]).keys()
    programs = [
      jax.jit(x.update).lower(PARAMS, state, PARAMS).as_text()
      for x, state in zip((found, expected), states, strict=True)
    ]
    assert programs[0] == programs[1]

  @pytest.mark.parametrize(
    "change, message",
    [
      (dict(rate_factors={"model/vision": 2.0}), "rate_factors.*no parameter"),
      (dict(rate_factors={"model/[": 2.0}), "is not a regular expression"),
    ],
  )
  def test_patterns(self, change, message):
    with pytest.raises(ValueError, match=message):
      optimizer.make_optimizer(0.1, **change).init(PARAMS)

  @pytest.mark.parametrize(
    "change, message",
    [
      (dict(layer_decay=0.0), r"layer_decay must be in \(0, 1\], got 0.0"),
      (dict(layer_decay=1.1), "layer_decay must be in"),
      (
        dict(rate_factors={"model": 0.0}),
        "rate_factors must be a mapping, each value a number greater than 0",
      ),
      (
        dict(weight_decay=1e30),
        "weight_decay must be .* at most 1,000, got 1e",
      ),
      (dict(learning_rate=2.0**31), "learning_rate must be .* at most 1,000"),
    ],
  )
  def test_values_out_of_range(self, change, message):
    with pytest.raises(ValueError, match=message):
      optimizer.make_optimizer(**({"learning_rate": 0.1} | change))

  def test_no_tower_has_blocks(self):
    params = {"model": {"image_projection": jnp.ones((2, 2))}}
    with pytest.raises(ValueError, match="needs a tower with blocks"):
      optimizer.make_optimizer(0.1, layer_decay=0.5).init(params)


class TestConfig:
  def change(self, *changes):
    pairs = [tuple(x.split("=", 1)) for x in changes]
    config = override(load_config("glyphs"), pairs)
    return settings.resolve(config).recorded["optimizer"]

  @pytest.mark.parametrize(
    "change",
    [
      "optimizer.rate_factors.model/image=0.1",
      "optimizer.rate_factors={'model/image': 0.1}",
    ],
  )
  def test_factors_on_the_command_line(self, change):
    spec = self.change(change, "optimizer.layer_decay=0.75")
    assert spec["rate_factors"] == {"model/image": 0.1}
    spec = spec | {"name": "adamw", "learning_rate": 1.0}
    make = factories.bind("optimizer", settings.OPTIMIZER, spec)
    transformation = make(num_steps=9, steps_per_epoch=3)
    transformation.init(PARAMS)

  @pytest.mark.parametrize(
    "change, message",
    [
      ("optimizer.rate_factors=0.1", "must be a mapping, each value a number"),
      ("optimizer.rate_factors.model/image=-1", "must be a mapping, each val"),
      ("optimizer.rate_factors.model/image=x", "must be a mapping, each val"),
      ("optimizer.layer_decay=0", r"layer_decay must be in \(0, 1\], got 0"),
      ("optimizer.learning_rate.stable_fraction=1", r"in \[0, 1\), got 1"),
      ("optimizer.learning_rate.decay=wsd", "must be one of .'constant'"),
    ],
  )
  def test_wrong_values(self, change, message):
    with pytest.raises(ConfigError, match=message):
      self.change(change)
