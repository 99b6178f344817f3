"""Adapters of low rank beside frozen attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax.lab import models
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.export import exported
from nuclr_jax.lab.models import lora
from nuclr_jax.lab.train import build, interpolate, resume, step
from nuclr_jax.lab.train.settings import resolve
from nuclr_jax.types import Batch

FREEZE = ("model/image", "model/text")
SHAPE = dict(image_shape=(32, 32, 3), vocab_size=9, length=4)


def towers(**changes):
  small = dict(width=8, layers=1, heads=2)
  image = dict(name="clip_vit_b16", patch=16, **small)
  text = dict(name="clip_text", max_length=4, **small)
  spec = dict(image=image, text=text, dim=8, projection_bias=False)
  return models.towers(**SHAPE, **spec | changes)


@pytest.fixture(scope="module")
def model():
  return towers(lora_rank=2)


@pytest.fixture(scope="module")
def first(model):
  return jax.jit(model.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
  random = np.random.default_rng(0)
  image = random.integers(0, 256, (4, 32, 32, 3), np.uint8)
  text = random.integers(1, 9, (4, 4), np.int32)
  return Batch(image, text, np.arange(4, dtype=np.int32))


def embedded(model, params, state, batch):
  pairs, _ = model.apply(params, state, batch, key=None, train=False)
  return pairs.image, pairs.text


def test_adapters_begin_as_the_model_itself(first):
  params, _ = first
  assert {x["down"].shape for x in params["lora"].values()} == {(8, 2)}
  assert {x["up"].shape for x in params["lora"].values()} == {(2, 24), (2, 8)}
  assert len(params["lora"]) == 4
  base = lora.without_adapters(params)
  jax.tree.map(np.testing.assert_array_equal, lora.merged(params), base)


def test_merged_kernels_are_the_sum(model, first, batch):
  params, state = first
  random = np.random.default_rng(1)
  draw = lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype)
  params = params | {"lora": jax.tree.map(draw, params["lora"])}
  kernel = params["text"]["blocks"][0]["attention"]["qkv"]["kernel"]
  adapter = params["lora"]["text_blocks_0_attention_qkv_kernel"]
  merged = lora.merged(params)
  np.testing.assert_allclose(
    merged["text"]["blocks"][0]["attention"]["qkv"]["kernel"],
    np.asarray(kernel, float)
    + np.asarray(adapter["down"], float) @ np.asarray(adapter["up"], float),
    atol=1e-5,
  )
  jax.tree.map(
    np.testing.assert_array_equal,
    embedded(model, params, state, batch),
    embedded(towers(), merged, state, batch),
  )


def test_towers_without_attention_are_refused():
  convnet = dict(name="convnet", stages=((4, 1, 8),))
  text = dict(name="transformer", width=8, num_layers=0)
  model = towers(image=convnet, text=text, lora_rank=2)
  with pytest.raises(ValueError, match="lora_rank needs towers with attention"):
    model.init(jax.random.key(0))


@pytest.fixture(scope="module")
def parts(few_characters):
  """A run that begins from a model, with adapters."""
  small = dict(width=8, layers=1, heads=2)
  config = load_config("glyphs:ntxent").to_dict()
  config["model"] = {
    "name": "towers",
    "dim": 8,
    "image": dict(
      name="clip_vit_b16", patch=8, mean=(0.5,), std=(0.3,), **small
    ),
    "text": dict(name="distilbert", **small),
    "projection_bias": False,
    "lora_rank": 2,
  }
  config["batch_size"], config["num_devices"] = 8, 1
  config["optimizer"] |= {"freeze": FREEZE, "weight_decay": 0.5}
  config["optimizer"]["learning_rate"] = 0.1
  parts = build.build(config, data=few_characters)
  with pytest.raises(ValueError, match="set --config.optimizer.freeze="):
    config["optimizer"]["freeze"] = FREEZE[:1]
    build.build(config, data=few_characters)
  return parts


def test_only_adapters_and_what_is_outside_of_the_towers_train(parts):
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    first = resume.first_state(parts, mesh)
    pieces = parts.model, parts.objective, parts.optimizer
    update = jax.jit(step.make_train_step(*pieces, jax.random.key(1)))
    batch = parts.data.train.fetch(np.arange(8))
    state = first
    for _ in range(2):  # the first update moves `up` only
      state, _ = update(state, batch)
  old, new = first.params["model"], state.params["model"]
  for name in old:
    same = jax.tree.map(np.array_equal, old[name], new[name])
    assert all(jax.tree.leaves(same)) == (name in ("image", "text")), name
    assert any(jax.tree.leaves(same)) == (name in ("image", "text")), name
  moments = [x.size for x in jax.tree.leaves(state.opt_state) if x.ndim > 1]
  trained = {k: x for k, x in new.items() if k not in ("image", "text")}
  assert sum(moments) == 2 * sum(x.size for x in jax.tree.leaves(trained))

  # Other libraries, and mixtures, see kernels without adapters.
  merged = lora.merged(new)
  jax.tree.map(
    np.testing.assert_array_equal, exported(parts, state).params, merged
  )
  base = jax.device_get(lora.without_adapters(old))
  load = lambda params, state: ({**params, **base}, first.model_state)
  begun = parts._replace(model=parts.model._replace(load=load))
  with jax.set_mesh(mesh):
    mixed = interpolate.of_run(begun, mesh, state)(0.25).params["model"]
  jax.tree.map(
    lambda x, a, b: np.testing.assert_allclose(
      x, 0.75 * a + 0.25 * b, rtol=1e-5, atol=1e-6
    ),
    mixed,
    base,
    merged,
  )


def test_the_config_of_fine_tuning_takes_it():
  config = load_config("finetune_clip")
  config.model.lora_rank = 8
  assert resolve(config).model.arguments["lora_rank"] == 8
