"""Heads of transformers: what makes one row of features of many tokens."""

from functools import partial

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from nuclr_jax.lab.models import transformer
from nuclr_jax.lab.models.layers import LayerNorm

QUERIES = 256  # probes of CoCa


class Pooler(nnx.Module):
  """A linear layer and tanh on one token's features."""

  def __init__(self, width, *, dtype, rngs):
    self.linear = transformer.dense(width, width, 0.02, dtype=dtype, rngs=rngs)

  def __call__(self, x):
    return jnp.tanh(self.linear(x))


class AttentionPool(nnx.Module):
  """A learned probe that attends to all tokens, and a residual MLP.

  SigLIP's head. cuDNN is not asked to serve a single query.
  """

  def __init__(self, spec: transformer.BlockSpec, *, rngs):
    init = nnx.initializers.normal(spec.width**-0.5)
    self.probe = nnx.Param(init(rngs.params(), (spec.width,)))
    self.attention = transformer.Attention(
      spec._replace(attention="xla"), rngs=rngs
    )
    self.norm = LayerNorm(spec.width, eps=spec.eps)
    make = partial(transformer.dense, dtype=spec.dtype, rngs=rngs)
    self.up = make(spec.width, spec.hidden, spec.deviations.up)
    self.down = make(spec.hidden, spec.width, spec.deviations.down)
    self.activation = spec.activation

  def __call__(
    self,
    x: Float[Array, "batch length width"],
    rngs: nnx.Rngs | None = None,
    mask: Bool[Array, "#batch 1 1 length"] | None = None,
  ) -> Float[Array, "batch width"]:
    probe = self.probe[...].astype(x.dtype)[None, None]
    probe = jnp.broadcast_to(probe, (len(x), 1, x.shape[-1]))
    x = self.attention(x, mask, rngs, asking=probe)[:, 0]
    hidden = transformer.ACTIVATIONS[self.activation](self.up(self.norm(x)))
    return x + self.down(hidden)


class QueryPool(nnx.Module):
  """Learned probes that attend to all tokens; the result is that of the first.

  CoCa's head. The other probes are for its decoder of captions. `spec` is that
  of the probes, and `inputs` the width of tokens.
  """

  def __init__(self, spec: transformer.BlockSpec, inputs: int, *, rngs):
    init = nnx.initializers.normal(1.0)
    shape = (QUERIES, spec.width)
    self.queries = nnx.Param(init(rngs.params(), shape))
    self.norm_queries = LayerNorm(spec.width, eps=spec.eps)
    self.norm_keys = LayerNorm(inputs, eps=spec.eps)
    make = partial(
      transformer.dense, deviation=None, dtype=spec.dtype, rngs=rngs
    )
    self.q, self.k, self.v = (
      make(x, spec.width, use_bias=False) for x in (spec.width, inputs, inputs)
    )
    self.bias = nnx.Param(jnp.zeros(3 * spec.width))
    self.out = make(spec.width, spec.width)
    self.heads = spec.heads

  def __call__(
    self, x: Float[Array, "batch length inputs"]
  ) -> Float[Array, "batch width"]:
    bias = jnp.split(self.bias[...].astype(x.dtype)[None, None], 3, axis=-1)
    query = self.norm_queries(self.queries[:1].astype(x.dtype)[None])
    x = self.norm_keys(x)
    q, k, v = (
      (layer(y) + b).reshape(*y.shape[:2], self.heads, -1)
      for layer, y, b in zip(
        (self.q, self.k, self.v), (query, x, x), bias, strict=True
      )
    )
    logits = jnp.einsum(
      "hd,bkhd->bhk",
      q[0, 0] * q.shape[-1] ** -0.5,
      k,
      preferred_element_type=jnp.float32,
    )
    weights = jax.nn.softmax(logits).astype(x.dtype)
    attended = jnp.einsum("bhk,bkhd->bhd", weights, v)
    return self.out(attended.reshape(len(x), -1))
