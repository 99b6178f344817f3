"""The published encoders: against PyTorch's numbers, in training, by config."""

import functools
import json
import re

import chex
from flax import nnx
import jax
import jax.numpy as jnp
import jax_side
from make_weights import numbers
import numpy as np
import pytest
from repository import GOLDEN
from scipy import signal

from nuclr_jax import Batch
from nuclr_jax.lab import models
from nuclr_jax.lab.data.source import Data, Records, in_memory
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.models import (
  bert,
  clip_text,
  layers,
  pools,
  resnet,
  transformer,
  vit,
)
from nuclr_jax.lab.train import build

GOLDEN_TOWERS = sorted((GOLDEN / "towers").glob("*.npz"))
RESNET = dict(name="resnet50", stages=(1, 1), width=4)
CLIP_RESNET = dict(
  name="clip_resnet50", stages=(1, 1), width=4, heads=4, features=6
)
TEXT = dict(width=8, layers=1, heads=2)
SMALL = dict(width=16, layers=2, heads=4)


def read_golden(path):
  """What the file of one case holds, by part."""
  parts = {}
  with np.load(path) as file:
    for name in file.files:
      part, _, key = name.partition(":")
      parts.setdefault(part, {})[key] = file[name]
  return json.loads(str(parts.pop("spec")[""])), parts


def make(**changes):
  arguments = dict(
    image_shape=(32, 32, 3),
    vocab_size=20,
    length=6,
    dim=8,
    image=RESNET,
    text=dict(name="distilbert", **TEXT),
  )
  return models.towers(**arguments | changes)


def batch(size=8):
  rng = np.random.default_rng(0)
  text = rng.integers(1, 20, (size, 6)).astype(np.int32)
  text[:, 4:] = 0
  image = rng.integers(0, 256, (size, 32, 32, 3)).astype(np.uint8)
  return Batch(image, text, np.arange(size, dtype=np.int32))


def count(params):
  return sum(x.size for x in jax.tree.leaves(params))


@pytest.mark.parametrize("path", GOLDEN_TOWERS, ids=lambda path: path.stem)
def test_numbers_of_pytorch(path, tmp_path):
  spec, expected = read_golden(path)
  np.savez(tmp_path / "weights.npz", **expected["weights"])
  computed = jax_side.compute(
    spec["towers"],
    expected["inputs"],
    tmp_path / "weights.npz",
    layout=spec["layout"],
    train=spec["train"],
  )
  assert len(expected["gradients"]) > 5
  computed["gradients"] = {
    k: computed["gradients"][k] for k in expected["gradients"]
  }
  for part, (error, key) in jax_side.errors(computed, expected).items():
    assert error < 1e-4, (part, key)


def test_sizes_of_the_published_encoders():
  def size(side, name, **sizes):
    table = dict(image=models.IMAGE_TOWERS, text=models.TEXT_TOWERS)[side]
    if side == "image":
      sizes = dict(image_shape=(224, 224, 3)) | sizes
    tower = table[name](**sizes)
    return count(jax.eval_shape(tower.init, jax.random.key(0))[0])

  # ResNet-50 and DistilBERT are counted with the recipe for CC3M. VGG as
  # usually counted, without the wide layers and the biases that batch
  # normalisation makes superfluous.
  assert size("image", "vgg16") == 14_723_136 - 4_224
  # OpenAI's ViT-B/32, less two projections of width 512 and the temperature.
  text = size("text", "clip_text", vocab_size=49408, length=77)
  clip = size("image", "clip_vit_b32") + text
  assert clip == 151_277_313 - 512 * (768 + 512) - 1
  # ViT-L/14, with texts of width 768.
  clip = size("image", "clip_vit_l14")
  large = dict(vocab_size=49408, length=77, width=768, heads=12)
  clip += size("text", "clip_text", **large)
  assert clip == 427_616_513 - 768 * (1024 + 768) - 1
  # OpenAI's RN50, less its projection of texts and the temperature.
  clip = size("image", "clip_resnet50") + text
  assert clip == 102_007_137 - 512 * 1024 - 1
  # SigLIP's ViT-B/16, less its projection, the temperature and the bias.
  siglip = size("image", "siglip_vit_b16")
  siglip += size("text", "siglip_text", vocab_size=32000, length=64)
  assert siglip == 203_155_970 - 768 * 769 - 2
  # DINOv2's files, which are of 518 pixels, less the token of masked patches.
  large = dict(image_shape=(518, 518, 3))
  assert size("image", "dinov2_vit_s14", **large) == 22_056_576 - 384
  assert size("image", "dinov2_vit_b14", **large) == 86_580_480 - 768


def test_vgg_against_scipy():
  tower = models.IMAGE_TOWERS["vgg16"](
    image_shape=(8, 8, 3), stages=((4, 2), (5, 1)), mean=0.3, std=0.5
  )
  params, state = numbers(tower.init)
  image = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
  features, _ = jax.jit(tower.apply)(params, state, image)
  x = (image / 255 - 0.3) / 0.5
  for s in range(2):
    stage, average = params["stages"][s], state["stages"][s]
    for i in range(0, len(stage), 2):
      kernel, norm, mean = stage[i]["kernel"], stage[i + 1], average[i + 1]
      y = np.zeros((*x.shape[:3], kernel.shape[-1]))
      for b, c, o in np.ndindex(len(x), *kernel.shape[2:]):
        y[b, :, :, o] += signal.correlate2d(
          x[b, :, :, c], kernel[:, :, c, o], mode="same"
        )
      y = (y - mean["mean"]) / np.sqrt(mean["var"] + 1e-5)
      y = norm["scale"] * y + norm["bias"]
      x = np.maximum(y, 0)
    pooled = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1)
    x = pooled.max(axis=(2, 4))
  np.testing.assert_allclose(
    features, x.mean(axis=(1, 2)), rtol=1e-4, atol=1e-5
  )


def test_vgg_needs_pixels():
  with pytest.raises(ValueError, match="5 halvings need images of 32"):
    models.IMAGE_TOWERS["vgg16"](image_shape=(28, 28, 1))
  with pytest.raises(ValueError, match="each at least 1, got"):
    models.IMAGE_TOWERS["vgg16"](image_shape=(32, 32, 3), stages=((8, 0),))


@pytest.mark.parametrize(
  "side, tower",
  [
    ("image", RESNET),
    ("image", dict(name="vit_b16", patch=8, **TEXT)),
    ("text", dict(name="distilbert", **TEXT)),
    ("text", dict(name="clip_text", **TEXT)),
    ("image", CLIP_RESNET),
    ("image", dict(name="siglip_vit_b16", patch=8, **TEXT)),
    ("image", dict(name="dinov2_vit_b14", patch=8, layer_scale=0.5, **TEXT)),
    ("text", dict(name="siglip_text", **TEXT)),
    (
      "image",
      dict(name="fastvit", stages=(1, 1), width=8, gated=1, head_width=8),
    ),
    ("image", dict(name="mobileclip_vit", stem=4, **TEXT)),
  ],
  ids=(
    "resnet vit distilbert clip_text clip_resnet siglip_vit dinov2 siglip_text "
    "fastvit mobileclip_vit"
  ).split(),
)
def test_bfloat16(side, tower):
  """Embeddings are close, everything that stays is float32."""
  inputs = Batch(None, None, None)._replace(**{side: getattr(batch(), side)})
  embeddings = {}
  for dtype in ("float32", "bfloat16"):
    model = make(**{side: tower}, dtype=dtype)
    arguments = numbers(model.init)
    apply = jax.jit(lambda *x, m=model: m.apply(*x, inputs, train=False))
    pairs, state = apply(*arguments)
    embeddings[dtype] = getattr(pairs, side)
    leaves = jax.tree.leaves((arguments, state, embeddings[dtype]))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
  error = np.abs(embeddings["float32"] - embeddings["bfloat16"]).max()
  assert 1e-5 < error < 3e-2


def test_activations_have_the_compute_dtype():
  """No layer of the blocks falls back to float32 products."""
  for tower, x in (
    (
      resnet.resnet(
        image_shape=(32, 32, 3), stages=(1, 1), width=4, dtype="bfloat16"
      ),
      jnp.zeros((2, 32, 32, 3), jnp.uint8),
    ),
    (
      bert.bert(vocab_size=9, length=4, dtype="bfloat16", **TEXT),
      jnp.ones((2, 4), jnp.int32),
    ),
  ):
    arguments = (*numbers(tower.init), x)
    jaxpr = jax.make_jaxpr(tower.apply)(*arguments)
    kinds = [
      variable.aval.dtype
      for equation in jaxpr.eqns
      if equation.primitive.name in ("dot_general", "conv_general_dilated")
      for variable in equation.invars
    ]
    assert len(kinds) > 8 and set(kinds) == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_norm_against_numpy(dtype):
  rng = np.random.default_rng(0)
  x = rng.normal(3, 2, (4, 3, 3, 5)).astype(np.float32)
  layer = layers.BatchNorm(5, scale=0.5)
  flat = x.reshape(-1, 5).astype(np.float64)
  expected = 0.5 * (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)
  normalized = layer(jnp.asarray(x, dtype))
  assert normalized.dtype == dtype
  tolerance = 1e-5 if dtype == "float32" else 2e-2
  np.testing.assert_allclose(
    np.float64(normalized).reshape(-1, 5), expected, atol=tolerance
  )
  np.testing.assert_allclose(
    layer.mean[...], 0.1 * flat.mean(0), rtol=tolerance
  )
  unbiased = flat.var(0, ddof=1)
  np.testing.assert_allclose(
    layer.var[...], 0.9 + 0.1 * unbiased, rtol=tolerance
  )


def test_batch_statistics_are_of_the_global_batch():
  """Over eight devices, too."""
  model = make()
  params, state = numbers(model.init)
  apply = jax.jit(lambda x: model.apply(params, state, x, train=True)[1])
  rows = Batch(batch().image, None, None)
  mesh = jax.make_mesh((8,), ("data",))
  split = jax.device_put(rows, jax.NamedSharding(mesh, jax.P("data")))
  one, eight = apply(rows), apply(split)
  for a, b in zip(*map(jax.tree.leaves, (one, eight)), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_images_are_normalized_inside():
  mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
  tower = resnet.resnet(
    image_shape=(32, 32, 3), stages=(1,), width=4, mean=mean, std=std
  )
  params, state = numbers(tower.init)
  image = batch(2).image
  normal = ((image / 255 - mean) / std).astype(np.float32)
  apply = jax.jit(tower.apply)
  features, _ = apply(params, state, image)
  expected, _ = apply(params, state, normal)
  np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_statistics_and_dropout_in_training_only():
  model = make()
  params, state = numbers(model.init)
  apply = jax.jit(
    lambda key, train: model.apply(
      params, state, batch(), key=key, train=train
    ),
    static_argnums=1,
  )
  keys = jax.random.key(1), jax.random.key(2)
  (first, rest), (second, _) = (apply(key, False) for key in keys)
  np.testing.assert_array_equal(first.text, second.text)
  jax.tree.map(np.testing.assert_array_equal, rest, state)
  (one, moved), (other, _), (again, _) = (
    apply(key, True) for key in (*keys, keys[0])
  )
  np.testing.assert_array_equal(one.text, again.text)
  assert np.abs(one.text - other.text).max() > 1e-3
  np.testing.assert_array_equal(one.image, other.image)
  changes = jax.tree.map(lambda a, b: np.abs(a - b).max(), moved, state)
  assert min(jax.tree.leaves(changes)) > 1e-6


@pytest.mark.parametrize("place", transformer.Rates._fields)
def test_dropout_at_each_place(place):
  """One mask for each block, or one behind the embeddings."""
  spec = transformer.BlockSpec(
    width=8,
    layers=3,
    heads=2,
    hidden=16,
    pre_norm=False,
    eps=1e-5,
    activation="gelu",
    dtype=jnp.float32,
    rates=transformer.Rates()._replace(**{place: 0.5}),
  )
  sizes = dict(vocab_size=9, max_length=4, pooler=False)
  tower = models.from_nnx(lambda rngs: bert.Bert(spec, **sizes, rngs=rngs), 8)

  def masks(train):
    arguments = (*numbers(tower.init), jnp.ones((5, 4), jnp.int32))
    apply = functools.partial(tower.apply, key=jax.random.key(0), train=train)
    text = str(jax.make_jaxpr(apply)(*arguments))
    return re.findall(r"bool\[([\d,]+)\] = p?jit\[\s*name=_bernoulli", text)

  shape = "5,2,4,4" if place == "attention" else "5,4,8"
  assert masks(True) == [shape] * (1 if place == "embeddings" else 3)
  assert masks(False) == []


def test_a_frozen_tower_rests_in_training():
  model = make(frozen=("image", "text"))
  params, state = numbers(model.init)
  apply = jax.jit(
    lambda train: model.apply(
      params, state, batch(), key=jax.random.key(1), train=train
    ),
    static_argnums=0,
  )
  (pairs, moved), (expected, _) = apply(True), apply(False)
  np.testing.assert_array_equal(pairs.text, expected.text)
  jax.tree.map(np.testing.assert_array_equal, moved, state)


def test_padding_changes_nothing():
  """In BERT id 0 is not attended to; in CLIP nothing after the end is."""
  tower = bert.bert(vocab_size=9, length=6, **TEXT)
  params, state = numbers(tower.init)
  apply = jax.jit(functools.partial(tower.apply, params, state))
  short, long = jnp.array([[3, 4]]), jnp.array([[3, 4, 0, 0, 0, 0]])
  np.testing.assert_allclose(apply(short)[0], apply(long)[0], atol=1e-6)
  tower = clip_text.clip_text(vocab_size=9, length=6, **TEXT)
  params, state = numbers(tower.init)
  apply = jax.jit(functools.partial(tower.apply, params, state))
  texts = [[3, 8, 0, 0, 0, 0], [3, 8, 5, 4, 7, 1], [4, 8, 5, 4, 7, 1]]
  (a, b, c), _ = apply(jnp.array(texts))
  np.testing.assert_allclose(a, b, atol=1e-6)
  assert np.abs(b - c).max() > 1e-3


def test_where_a_text_ends():
  """At the first end token, whatever follows, and whatever ids there are."""
  make = functools.partial(clip_text.clip_text, vocab_size=9, length=6, **TEXT)
  tower = make(end_id=3)
  params, state = numbers(tower.init)
  texts = jnp.array(
    [[4, 8, 3, 0, 0, 0], [4, 8, 3, 8, 3, 1], [4, 8, 5, 3, 0, 0]]
  )
  (a, b, c), _ = jax.jit(tower.apply)(params, state, texts)
  np.testing.assert_allclose(a, b, atol=1e-6)
  assert np.abs(a - c).max() > 1e-3
  # The same tower without an end token ends at the 8, and sees no 3.
  (d, _, e), _ = jax.jit(make().apply)(params, state, texts)
  np.testing.assert_allclose(d, e, atol=1e-6)
  assert np.abs(a - d).max() > 1e-3
  for wrong in (dict(end_id=9), dict(end_id=3, causal=False)):
    with pytest.raises(ValueError, match="end_id must be one of the 9 ids"):
      make(**wrong)


def test_siglip_attends_to_padding():
  """Every token, also one after the end, changes the last one's features."""
  tower = clip_text.siglip_text(vocab_size=9, length=6, **TEXT)
  params, state = numbers(tower.init)
  texts = np.array([[3, 8, 5, 1, 1, 1]] * 7)
  texts[np.arange(6), np.arange(6)] = 2
  apply = jax.jit(tower.apply)
  features = np.asarray(apply(params, state, texts)[0])
  changes = np.abs(features[:-1] - features[-1]).max(-1)
  assert changes.min() > 1e-3
  # The last position is that of these texts, not of the longest ones.
  shorter, _ = apply(params, state, texts[:, :4])
  assert shorter.shape == (7, 8) and np.abs(shorter - features).max() > 1e-3


def test_attention_of_some_queries():
  """It is the same as the rows of these queries of attention among all."""
  spec = transformer.make_block_spec(
    width=8,
    layers=1,
    heads=2,
    hidden=None,
    pre_norm=True,
    eps=1e-5,
    activation="gelu",
    dtype="float32",
  )

  @jax.jit
  def attend(x):
    layer = transformer.Attention(spec, rngs=nnx.Rngs(0))
    layer.qkv.bias.set_value(jnp.linspace(-1, 1, 24))
    wide = transformer.Attention(spec, outputs=6, rngs=nnx.Rngs(0))
    return layer(x), layer(x, asking=x[:, 1:3]), wide(x, asking=x[:, :1])

  every, some, wide = attend(np.random.default_rng(0).normal(size=(3, 5, 8)))
  np.testing.assert_allclose(some, every[:, 1:3], atol=1e-6)
  assert wide.shape == (3, 1, 6)


def test_attention_pooling_against_numpy():
  spec = transformer.make_block_spec(
    width=8,
    layers=1,
    heads=2,
    hidden=12,
    pre_norm=True,
    eps=1e-6,
    activation="gelu_tanh",
    dtype="float32",
  )
  tower = models.from_nnx(lambda rngs: pools.AttentionPool(spec, rngs=rngs), 8)
  params, state = numbers(tower.init)
  x = np.random.default_rng(1).normal(size=(3, 5, 8)).astype(np.float32)
  pooled, _ = jax.jit(tower.apply)(params, state, x)
  p = jax.tree.map(np.float64, params)
  qkv = p["attention"]["qkv"]
  for i, tokens in enumerate(np.float64(x)):
    attended = []
    for head in range(2):
      q, k, v = (
        y @ qkv["kernel"][:, start : start + 4] + qkv["bias"][start : start + 4]
        for part, y in enumerate((p["probe"], tokens, tokens))
        for start in [8 * part + 4 * head]
      )
      weights = np.exp(k @ q / 2)  # 2 is the root of the head's width
      attended.append(weights @ v / weights.sum())
    out = p["attention"]["out"]
    y = np.concatenate(attended) @ out["kernel"] + out["bias"]
    normal = (y - y.mean()) / np.sqrt(y.var() + 1e-6)
    hidden = normal * p["norm"]["scale"] + p["norm"]["bias"]
    hidden = hidden @ p["up"]["kernel"] + p["up"]["bias"]
    cubic = np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)
    hidden *= (1 + np.tanh(cubic)) / 2
    y += hidden @ p["down"]["kernel"] + p["down"]["bias"]
    np.testing.assert_allclose(pooled[i], y, atol=1e-5)


def test_layer_scale():
  """Factors of 1 change nothing; tiny ones leave the residual stream."""
  shape = dict(image_shape=(16, 16, 3), patch=8, **SMALL)
  plain, scaled = vit.vit(**shape), vit.vit(layer_scale=1.0, **shape)
  params, state = numbers(plain.init)
  image = jnp.asarray(batch(2).image[:, :16, :16])
  expected, _ = jax.jit(plain.apply)(params, state, image)
  apply = jax.jit(scaled.apply)

  def features(factor):
    blocks = {
      i: block | {name: np.full(16, factor) for name in ("scale1", "scale2")}
      for i, block in params["blocks"].items()
    }
    return apply(params | {"blocks": blocks}, state, image)[0]

  chex.assert_trees_all_equal(features(np.float32(1)), expected)
  token = params["class_token"] + params["class_position"]
  normal = (token - token.mean()) / np.sqrt(token.var() + 1e-6)
  normal = normal * params["norm"]["scale"] + params["norm"]["bias"]
  np.testing.assert_allclose(
    features(np.float32(1e-9)), np.stack([normal] * 2), atol=1e-4
  )
  start = scaled.init(jax.random.key(0))[0]["blocks"][1]["scale2"]
  np.testing.assert_array_equal(start, np.ones(16))


def test_convolutions_of_means():
  """Means over squares, then the convolution; the odd row is left out."""
  layer = layers.Conv(
    3, 4, 1, stride=2, pooled=True, dtype=jnp.float32, rngs=nnx.Rngs(0)
  )
  x = np.random.default_rng(0).normal(size=(2, 5, 6, 3)).astype(np.float32)
  means = x[:, :4].reshape(2, 2, 2, 3, 2, 3).mean((2, 4))
  expected = means @ np.asarray(layer.kernel[...])[0, 0]
  np.testing.assert_allclose(layer(jnp.asarray(x)), expected, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_side_without_projection(bias):
  """Its embeddings are its features; all else is as with both projections."""
  every = make(projection_bias=bias)
  some = make(projection_bias=bias, projected=("image",))
  key = jax.random.key(0)
  (params, _), (fewer, state) = every.init(key), some.init(key)
  left_out = {"text_projection", "text_projection_bias"}
  chex.assert_trees_all_equal(
    fewer, {k: x for k, x in params.items() if k not in left_out}
  )
  assert ("image_projection_bias" in fewer) == bias
  expected, _ = jax.jit(every.apply)(params, state, batch())
  pairs, _ = jax.jit(some.apply)(fewer, state, batch())
  features = jax.jit(some.features)(fewer, state, batch())
  norm = np.linalg.norm(features.text, axis=1, keepdims=True)
  np.testing.assert_allclose(pairs.text, features.text / norm, atol=1e-6)
  np.testing.assert_array_equal(pairs.image, expected.image)


def test_the_towers_of_the_small_model():
  """By name, they make the same model, from the same key."""
  stages = ((4, 1, 8), (2, 1, 12))
  model = make(
    image=dict(name="convnet", stages=stages, num_features=16),
    text=dict(name="transformer", width=8, heads=2),
    projection_bias=False,
  )
  small = models.small(
    image_shape=(32, 32, 3),
    vocab_size=20,
    length=6,
    dim=8,
    image_stages=stages,
    image_features=16,
    text_width=8,
    text_heads=2,
  )
  (params, state), (expected, _) = map(numbers, (model.init, small.init))
  chex.assert_trees_all_equal(params, expected)
  pairs, _ = jax.jit(model.apply)(params, state, batch())
  others, _ = jax.jit(small.apply)(params, state, batch())
  np.testing.assert_array_equal(pairs.text, others.text)
  np.testing.assert_array_equal(pairs.image, others.image)


def test_images_need_not_be_square():
  tower = vit.vit(image_shape=(16, 32, 3), patch=8, **TEXT)
  params, state = numbers(tower.init)
  apply = jax.jit(lambda p, x: tower.apply(params | p, state, x)[0])
  image = np.random.default_rng(0).normal(size=(1, 16, 32, 3))
  image = image.astype(np.float32)
  positions = params["positions"]
  features = apply({"positions": positions}, image)
  # Patches that change places with their positions give the same features.
  turned = image.reshape(1, 16, 4, 8, 3)[:, :, ::-1].reshape(image.shape)
  again = apply({"positions": positions[:, ::-1]}, turned)
  np.testing.assert_allclose(features, again, atol=1e-5)
  other = apply({"positions": positions[::-1]}, turned)
  assert np.abs(features - other).max() > 1e-4


def test_patches_are_a_convolution():
  layer = layers.Patches(
    4, 3, 5, use_bias=True, dtype=jnp.float32, rngs=nnx.Rngs(0)
  )
  layer.bias.set_value(jnp.arange(5.0))
  x = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
  expected = jax.lax.conv_general_dilated(
    x,
    layer.kernel[...],
    (4, 4),
    "VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )
  expected = expected.reshape(2, 6, 5) + jnp.arange(5.0)[None, None]
  np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def few_pairs(num=32, vocab=("a", "b", "c")):
  """Random images [24, 24, 3] with random captions."""
  rng = np.random.default_rng(0)
  captions = [" ".join(rng.choice(vocab, 4)) + f" {i}" for i in range(num)]
  tokenizer = build_tokenizer(captions, length=6)
  records = Records(
    rng.integers(0, 256, (num, 24, 24, 3)).astype(np.uint8),
    np.arange(num, dtype=np.int32),
    captions,
    "random",
  )
  train = in_memory(records, tokenizer.encode(captions))
  return Data(train, tokenizer, (24, 24, 3))


def configured(tiny, **model):
  """A config of one epoch of four steps."""
  config = tiny("clip", num_epochs=1.0, batch_size=8)
  config.model = dict(name="towers", dim=16) | model
  return config


def test_a_run_by_config(tiny):
  data = few_pairs()
  config = configured(tiny, image=RESNET, text=dict(name="distilbert", **TEXT))
  parts = build.build(config, data=data)
  params, state = jax.eval_shape(parts.model.init, jax.random.key(0))
  shape = (data.tokenizer.vocab_size, 8)
  assert params["text"]["tokens"].shape == shape and parts.model.load is None
  rows = data.train.fetch(np.arange(2))
  pairs, _ = jax.eval_shape(
    lambda p, s: parts.model.apply(p, s, rows, train=False), params, state
  )
  assert pairs.image.shape == pairs.text.shape == (2, 16)
  config.model.text.depth = 3
  with pytest.raises(ValueError, match="unknown keys .'depth'. of model.text"):
    build.build(config, data=data)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(image=dict(name="resnet51")), "image.name is 'resnet51'; known"),
    (dict(text=dict(name="distilbert", depth=2)), "unknown keys .'depth'"),
    (dict(text=dict(name="bert", length=2)), "unknown keys .'length'"),
    (dict(text=dict(name="bert", heads=5)), "heads must divide width"),
    (dict(text=dict(name="bert", dropout=1.0)), "text.dropout must be in"),
    (dict(text=dict(name="bert", max_length=5)), "1 to 5 .max_length. token"),
    (dict(text=dict(name="clip_text", activation="tanh")), "activation must"),
    (dict(image=dict(name="vit_b16", patch=7)), "patch must divide"),
    (
      dict(image=dict(name="vit_b16", mean=(0.5,))),
      "a mean and a std for each",
    ),
    (
      dict(image=RESNET | dict(std=(1, 1, 0))),
      "std must be a tuple, each a number from 0.0001",
    ),
    (
      dict(image=RESNET | dict(stages=(1, 0))),
      "stages must be 1 to 8 whole numbers",
    ),
    (dict(dtype="float16"), "dtype must be one of"),
    (
      dict(image=dict(name="siglip_vit_b16", patch=8, pooler=True)),
      "pooler is a layer on the class token",
    ),
    (dict(image=dict(name="vit_b16", pool="max")), "pool must be one of"),
    (
      dict(image=dict(name="dinov2_vit_s14", patch=8, layer_scale=0)),
      "layer_scale must be a number greater than 0",
    ),
    (dict(image=CLIP_RESNET | dict(width=3)), "and width even, got .1, 1., 6"),
    (dict(image=CLIP_RESNET | dict(heads=3)), "heads must divide width"),
    (
      dict(image=CLIP_RESNET, image_shape=(32, 36, 3)),
      "divide height and width by 8, .* 32 x 36 pixels; change",
    ),
    (
      dict(image=CLIP_RESNET, projected=("text",)),
      "image tower has 6 features and no projection, so dim must be 6, got 8",
    ),
    (dict(projected=("both",)), "projected must be .* got .'both'"),
  ],
)
def test_bad_arguments(changes, message):
  with pytest.raises(ValueError, match=message):
    make(**changes)


TEXTS = dict(width=16, heads=2, layers=2, vocab_size=9, length=6)
TOWERS = {
  "resnet50": (resnet.resnet50, dict(stages=(1, 2), width=8)),
  "vit_s16": (
    vit.vit_s16,
    dict(width=16, heads=2, layers=2, patch=8, dropout=0.1),
  ),
  "distilbert": (bert.distilbert, TEXTS),
  "clip_text": (clip_text.clip_text, TEXTS),
}


def loss_of(name, batch=4, length=6, **options):
  """A number made of a tower's features, as a function of its params."""
  make, settings = TOWERS[name]
  rng = np.random.default_rng(0)
  if settings is not TEXTS:
    inputs = rng.integers(0, 256, (batch, 32, 32, 3)).astype(np.uint8)
    options["image_shape"] = inputs.shape[1:]
  else:
    inputs = rng.integers(1, 9, (batch, length)).astype(np.int32)
    inputs[0, 3:] = 0
    options["length"] = length
  tower = make(**settings | options)
  params, state = numbers(tower.init)

  def loss(params):
    key = jax.random.key(1)
    x = jnp.asarray(inputs)
    y, new = tower.apply(params, state, x, key=key, train=True)
    return jnp.mean(jnp.sin(y)), new

  return loss, params


@pytest.mark.parametrize("name", TOWERS)
def test_rematerialisation(name):
  """Less is kept for the backward pass, which computes the same.

  The same are dropout's masks and batch statistics, too.
  """
  kept = []

  def compute(**options):
    step, params = loss_of(name, batch=64, **options)

    @jax.jit
    def run(params):
      value, pull_back, state = jax.vjp(step, params, has_aux=True)
      kept.append(sum(x.size for x in jax.tree.leaves(pull_back)))
      return value, state, pull_back(jnp.ones_like(value))

    return run(params)

  expected = compute()
  for remat in ("full", "dots"):
    found = compute(remat=remat)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
  none, full, dots = kept
  assert full < dots < none and full < none / 3


@pytest.mark.parametrize(
  ("name", "length", "remat"),
  [
    ("clip_text", 5, "none"),
    ("clip_text", 6, "full"),
    ("distilbert", 5, "full"),
    ("distilbert", 6, "none"),
    ("vit_s16", 0, "none"),
  ],
)
def test_attention_by_cudnn(name, length, remat, monkeypatch):
  """Without a GPU: the same call, computed by XLA instead."""

  def gradient(**options):
    if name == "distilbert":
      options["dropout"] = 0.0
    step, params = loss_of(name, length=length, dtype="bfloat16", **options)
    return jax.jit(jax.value_and_grad(step, has_aux=True))(params)

  expected, real = gradient(), jax.nn.dot_product_attention

  def attend(*args, implementation, **masks):
    # JAX refuses gradients of odd lengths.
    assert implementation == "cudnn" and args[0].shape[1] % 2 == 0
    assert masks["is_causal"] == (name == "clip_text")
    assert (masks["mask"] is not None) == (name == "distilbert")
    return real(*args, **masks, implementation="xla")

  monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
  with pytest.raises(
    ValueError, match="needs an NVIDIA GPU, and JAX uses 'cpu"
  ):
    gradient(attention="cudnn")
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  found = gradient(attention="cudnn", remat=remat)
  chex.assert_trees_all_close(found, expected, rtol=0.1, atol=2e-2)


@pytest.mark.parametrize("length", [5, 6])
@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
def test_cudnn_attends_to_what_xla_attends_to(kind, length, monkeypatch):
  """Exactly, so that a token too many would be seen."""
  real = jax.nn.dot_product_attention
  monkeypatch.setattr(
    jax.nn,
    "dot_product_attention",
    lambda *args, implementation, **masks: real(*args, **masks),
  )
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  spec = transformer.BlockSpec(
    *(8, 1, 2, 8), pre_norm=True, eps=1e-6, activation="gelu", dtype=jnp.float32
  )
  x = jax.random.normal(jax.random.key(0), (3, length, 8))
  padding = np.arange(length) < np.array([[2], [length], [3]])
  mask = dict(
    none=None,
    causal=transformer.Causal(),
    padding=jnp.asarray(padding)[:, None, None],
  )[kind]

  def gradient(attention):
    layer = transformer.Attention(
      spec._replace(attention=attention), rngs=nnx.Rngs(0)
    )
    loss = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(9 * layer(x, mask))))
    return jax.jit(loss)(x)

  found, expected = gradient("cudnn"), gradient("xla")
  chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("distilbert", dict(attention="cudnn", dtype="bfloat16"), "no dropout on"),
    ("clip_text", dict(attention="cudnn"), "'bfloat16' .* got 'float32'"),
    ("vit_s16", dict(attention="flash"), "attention must be .* got 'flash'"),
    ("resnet50", dict(remat="some"), "remat must be .* got 'some'"),
  ],
)
def test_options_that_do_not_exist(name, options, message):
  with pytest.raises(ValueError, match=message):
    loss_of(name, **options)
