"""MobileCLIP's image towers: sums of branches, and which files are read."""

import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import GOLDEN
from scipy import signal

from nuclr_jax.lab import models
from nuclr_jax.lab.models import fastvit, layers, pretrained, transformer
from tests.lab.models.towers_test import read_golden

MAKE = dict(dtype=jnp.float32, rngs=nnx.Rngs(0))
EPS = 1e-5
KINDS = {  # inputs, outputs, sizes of kernels, other arguments
  "mixer": (3, 3, (3, 1), dict(depthwise=True, skip=True)),
  "stem": (2, 4, (3, 1), dict(stride=2)),
  "shrink": (2, 4, (7, 3), dict(stride=2, depthwise=True)),
  "pointwise": (3, 3, (1,), dict(skip=True)),
}


def filled(inputs, outputs, sizes, **options):
  """Branches of random numbers, and images of odd sizes."""
  branches = fastvit.Branches(inputs, outputs, sizes, **options, **MAKE)
  rng = np.random.default_rng(0)
  norms = [*branches.norms, *([branches.skip] if branches.skip else [])]
  for norm in norms:
    for x in (norm.scale, norm.bias, norm.mean):
      x.set_value(jnp.asarray(rng.normal(size=x.shape), jnp.float32))
    norm.var.set_value(jnp.asarray(rng.uniform(0.5, 2, norm.var.shape)))
  image = rng.normal(size=(2, 9, 8, inputs)).astype(np.float32)
  return branches, norms, image


def numbers_of(norm):
  """The scale, the bias and the running averages of a normalization."""
  parts = (norm.scale, norm.bias, norm.mean, norm.var)
  return [np.float64(x[...]) for x in parts]


def convolved(x, kernel, stride):
  """A convolution by SciPy, in float64."""
  size, _, each, outputs = kernel.shape
  inputs = x.shape[-1]
  x = np.pad(np.float64(x), ((0, 0), *((size // 2, size // 2),) * 2, (0, 0)))
  y = []
  for o in range(outputs):
    of = range(inputs) if each == inputs else [o // (outputs // inputs)]
    planes = [
      [
        signal.correlate2d(row[:, :, c], kernel[:, :, k, o], mode="valid")
        for k, c in enumerate(of)
      ]
      for row in x
    ]
    y.append(np.sum(planes, 1)[:, ::stride, ::stride])
  return np.stack(y, -1)


def kernels_of(branches, inputs, options):
  """The kernels of all branches; that of a skip leaves its input alone."""
  kernels = [np.float64(conv.kernel[...]) for conv in branches.convs]
  if branches.skip is not None:
    one = np.ones(inputs)[None] if "depthwise" in options else np.eye(inputs)
    kernels.append(one[None, None])
  return kernels


@pytest.mark.parametrize("kind", KINDS)
def test_branches_are_one_convolution(kind):
  """In evaluation, with the kernel that `Branches` states."""
  inputs, outputs, sizes, options = KINDS[kind]
  branches, norms, image = filled(inputs, outputs, sizes, **options)
  merged, shift = 0.0, 0.0
  for norm, kernel in zip(
    norms, kernels_of(branches, inputs, options), strict=True
  ):
    scale, bias, mean, var = numbers_of(norm)
    factor = scale / np.sqrt(var + EPS)
    margin = (sizes[0] - len(kernel)) // 2
    kernel = np.pad(
      kernel, ((margin, margin), (margin, margin), (0, 0), (0, 0))
    )
    merged = merged + kernel * factor
    shift = shift + bias - mean * factor
  branches.eval()
  found = branches(jnp.asarray(image))
  expected = convolved(image, merged, options.get("stride", 1)) + shift
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_branches_in_training(kind):
  """Each is normalized by itself, and moves its own averages."""
  inputs, outputs, sizes, options = KINDS[kind]
  branches, norms, image = filled(inputs, outputs, sizes, **options)
  before = [numbers_of(norm)[2] for norm in norms]
  branches.train()
  found, expected, means = branches(jnp.asarray(image)), 0.0, []
  for norm, kernel in zip(
    norms, kernels_of(branches, inputs, options), strict=True
  ):
    y = convolved(image, kernel, options.get("stride", 1))
    means.append(y.mean((0, 1, 2)))
    y = (y - means[-1]) / np.sqrt(y.var((0, 1, 2)) + EPS)
    scale, bias, *_ = numbers_of(norm)
    expected = expected + y * scale + bias
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
  for norm, old, mean in zip(norms, before, means, strict=True):
    np.testing.assert_allclose(
      norm.mean[...], 0.9 * old + 0.1 * mean, rtol=1e-4, atol=1e-5
    )


def test_a_gate():
  """The sigmoid of a small network of the mean, in float64."""
  gate = fastvit.Gate(6, 2, **MAKE)
  x = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
  down, up = (np.float64(x.kernel[...]) for x in (gate.down, gate.up))
  logits = np.maximum(x.mean((1, 2)) @ down, 0) @ up
  expected = x / (1 + np.exp(-logits))[:, None, None]
  np.testing.assert_allclose(gate(jnp.asarray(x)), expected, atol=1e-5)


def test_depthwise_convolutions_of_single_positions():
  """Channels are multiplied, and steps leave positions out."""
  conv = layers.Conv(2, 4, 1, stride=2, depthwise=True, use_bias=True, **MAKE)
  conv.bias.set_value(jnp.arange(4.0))
  x = np.random.default_rng(0).normal(size=(2, 5, 4, 2)).astype(np.float32)
  kernel = np.asarray(conv.kernel[...]).reshape(4)
  expected = x[:, ::2, ::2][..., [0, 0, 1, 1]] * kernel + np.arange(4.0)
  np.testing.assert_allclose(conv(jnp.asarray(x)), expected, atol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_whom_the_norm_of_attention_sees(norm):
  """In training: with "layer", an image's attention depends on no other."""
  spec = transformer.make_block_spec(
    width=8,
    layers=1,
    heads=2,
    hidden=16,
    pre_norm=True,
    eps=EPS,
    activation="gelu",
    dtype="float32",
    layer_scale=1.0,
  )
  attend = fastvit.AttentionBlock(
    spec, None, tell=False, norm=norm, rngs=nnx.Rngs(0)
  )
  attend.scale1.set_value(jnp.full(8, 100.0))
  attend.scale2.set_value(jnp.zeros(8))  # so that the MLP changes nothing
  attend.train()
  x = jax.random.normal(jax.random.key(0), (3, 4, 4, 8))
  alone, together = attend(x[:1])[0], attend(x)[0]
  difference = np.abs(alone - together).max()
  assert difference < 1e-4 if norm == "layer" else difference > 1e-2


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(attending=3), "attending can be at most 2.*; got 3 and 1"),
    (dict(gated=2), "gated at most 1, since the first .*; got 1 and 2"),
    (dict(head_width=3), "must divide 8, the width of stage 2, .*; got 3"),
    (dict(norm="group"), "norm must be one of"),
    (dict(expansion=0), "expansion must be a whole number from 1"),
  ],
)
def test_bad_arguments(changes, message):
  make = functools.partial(
    fastvit.fastvit,
    image_shape=(8, 8, 3),
    stages=(1, 1),
    width=4,
    head_width=8,
    gated=1,
  )
  assert make().num_features == 16
  with pytest.raises(ValueError, match=message):
    make(**changes)


def test_merged_files_are_refused(tmp_path):
  """With the reason, since their keys are nearly those of the model's file."""
  (path,) = (GOLDEN / "towers").glob("openclip_mobileclip2_s0.npz")
  spec, parts = read_golden(path)
  merged = {
    key.replace("conv_kxk.0.conv", "reparam_conv"): x
    for key, x in parts["weights"].items()
    if "conv_scale" not in key and "conv_kxk.0.bn" not in key
  }
  np.savez(tmp_path / "weights.npz", **merged)
  model = models.towers(
    image_shape=(32, 32, 3),
    length=8,
    pretrained=tmp_path / "weights.npz",
    **spec["towers"],
  )
  zeros = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype),
    jax.eval_shape(model.init, jax.random.key(0)),
  )
  with pytest.raises(
    ValueError, match=r"merged .*reparam_conv.*; give the file"
  ):
    model.load(*zeros)
  assert pretrained.recognize(list(merged)) == "open_clip_fastvit"
