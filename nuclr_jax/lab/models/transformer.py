"""The attention blocks of the transformer towers, pre-norm or post-norm."""

from functools import partial
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from nuclr_jax import checks
from nuclr_jax.lab.models.layers import LayerNorm, Remat, compute_dtype
from nuclr_jax.lab.models.rotary import rotated

ACTIVATIONS = {
  "gelu": partial(jax.nn.gelu, approximate=False),
  "gelu_tanh": partial(jax.nn.gelu, approximate=True),
  "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
  "relu": jax.nn.relu,
  "silu": jax.nn.silu,
}
Activation = checks.one_of(tuple(ACTIVATIONS))
# What computes attention: this file, on any machine, or NVIDIA's flash
# attention.
Implementation = checks.one_of(("xla", "cudnn"))


class Rates(NamedTuple):
  """Dropout rates, by where they apply."""

  embeddings: float = 0.0  # after the embeddings
  attention: float = 0.0  # on the attention weights
  attended: float = 0.0  # in the attention's residual branch
  hidden: float = 0.0  # in the MLP's residual branch


def rates_of(dropout: float) -> Rates:
  """Returns one rate for all places but the attention weights."""
  return Rates(embeddings=dropout, attended=dropout, hidden=dropout)


class Deviations(NamedTuple):
  """Standard deviations of the initial kernels.

  None is LeCun's choice: one over the square root of the number of inputs.
  """

  qkv: float | None = 0.02
  out: float | None = 0.02
  up: float | None = 0.02
  down: float | None = 0.02


class Causal(NamedTuple):
  """The mask with which no token attends to later ones.

  It has no array, so that an implementation may know it without reading it.
  """


class BlockSpec(NamedTuple):
  """The settings shared by all blocks of a transformer."""

  width: int
  layers: int
  heads: int
  hidden: int  # width of the MLP
  pre_norm: bool  # LayerNorm before each branch, else see `norm_sums`
  eps: float  # of LayerNorm
  activation: str  # a name in `ACTIVATIONS`
  dtype: type  # of activations
  rates: Rates = Rates()
  deviations: Deviations = Deviations()
  norm_sums: bool = True  # after each sum, else at the end of each branch
  inner_norm: bool = False  # also before the last layer of each branch
  mlp_norm: bool = False  # another one before the MLP
  gated: bool = False  # the MLP's hidden units are multiplied by others
  qkv_bias: bool = True  # of queries, keys and values
  key_bias: bool = True  # of keys, if queries and values have one
  norm_keys: bool = False  # whether LayerNorms draw keys (see `Block`)
  remat: str = "none"  # a name in `layers.REMAT_POLICIES`
  attention: str = "xla"  # or "cudnn", see `Attention`
  layer_scale: float | None = None  # where `Block`'s factors start, if any


def make_block_spec(
  *, width: int, hidden: int | None, dtype: str, **fields: Any
) -> BlockSpec:
  """Makes a `BlockSpec` from the arguments of a tower, and checks it.

  Args:
    width: The width of the features.
    hidden: The width of the MLP; None is four times `width`.
    dtype: The name of the activations' dtype, "float32" or "bfloat16".
    **fields: All other fields of `BlockSpec`.

  Raises:
    ValueError: If a number is out of range, or if a name is unknown.

  Example:
    >>> blocks = dict(layers=2, heads=4, pre_norm=True, eps=1e-6)
    >>> spec = make_block_spec(
    ...   width=64, hidden=None, dtype="float32", activation="gelu", **blocks
    ... )
    >>> spec.hidden
    256
  """
  hidden = 4 * width if hidden is None else hidden
  spec = BlockSpec(
    width=width, hidden=hidden, dtype=compute_dtype(dtype), **fields
  )
  sizes = (spec.width, spec.layers, spec.heads, spec.hidden)
  if min(sizes) < 1 or spec.width % spec.heads:
    raise ValueError(
      "width, layers, heads and hidden must be at least 1, and heads must "
      f"divide width, got {sizes}"
    )
  if spec.activation not in ACTIVATIONS:
    raise ValueError(
      f"activation must be one of {sorted(ACTIVATIONS)}, got "
      f"{spec.activation!r}"
    )
  checks.argument("remat", spec.remat, Remat)
  checks.argument("attention", spec.attention, Implementation)
  if spec.attention == "cudnn" and (
    spec.dtype != jnp.bfloat16 or spec.rates.attention
  ):
    raise ValueError(
      "attention 'cudnn' needs dtype 'bfloat16' and no dropout on the "
      f"attention weights, got {jnp.dtype(spec.dtype).name!r} and "
      f"{spec.rates.attention}"
    )
  if spec.layer_scale is not None and not spec.layer_scale > 0:
    raise ValueError(
      "layer_scale must be greater than 0, or None for blocks without it, got "
      f"{spec.layer_scale}"
    )
  if not all(0 <= rate < 1 for rate in spec.rates) or spec.eps <= 0:
    raise ValueError(
      "dropout rates must be in [0, 1) and eps greater than 0, got "
      f"{tuple(spec.rates)} and {spec.eps}"
    )
  return spec


def check_texts(vocab_size: int, length: int, max_length: int) -> None:
  """Raises ValueError unless texts of this length have ids and positions."""
  if not 1 <= length <= max_length or vocab_size < 1:
    raise ValueError(
      f"texts must have 1 to {max_length} (max_length) token ids of a "
      f"vocabulary, got length {length} and vocab_size {vocab_size}"
    )


class Dense(nnx.Linear):
  """A linear layer that takes tokens as rows, whatever the axes before them.

  XLA transposes the other operands of the kernel's gradient where they have
  more than two axes, which on a CPU took a sixth of a block's time.
  """

  def __call__(
    self, x: Float[Array, "*tokens inputs"]
  ) -> Float[Array, "*tokens outputs"]:
    rows = super().__call__(x.reshape(-1, x.shape[-1]))
    return rows.reshape(*x.shape[:-1], -1)


def dense(inputs, outputs, deviation, *, use_bias=True, dtype, rngs) -> Dense:
  """Makes a linear layer whose initial kernel has this standard deviation."""
  init = nnx.initializers.lecun_normal()
  if deviation is not None:
    init = nnx.initializers.normal(deviation)
  return Dense(
    inputs,
    outputs,
    use_bias=use_bias,
    dtype=dtype,
    kernel_init=init,
    rngs=rngs,
  )


class Attention(nnx.Module):
  """Multi-head attention; the softmax is in float32.

  The queries are those of all tokens, or of `asking` ones only. The result has
  `outputs` features, by default as many as there are inputs.

  Where `angles` are given, queries and keys are `rotated` by them.

  With `BlockSpec.attention` = "cudnn", the weights are never in the memory of
  the GPU as a whole.
  """

  def __init__(self, spec: BlockSpec, *, outputs: int | None = None, rngs):
    make = partial(dense, spec.width, dtype=spec.dtype, rngs=rngs)
    has_all = spec.qkv_bias and spec.key_bias
    self.qkv = make(3 * spec.width, spec.deviations.qkv, use_bias=has_all)
    has_two = spec.qkv_bias and not spec.key_bias
    self.query_bias, self.value_bias = (
      nnx.data(nnx.Param(jnp.zeros(spec.width)) if has_two else None)
      for _ in range(2)
    )
    self.norm = _norm_of(spec.width, spec)
    self.out = make(outputs or spec.width, spec.deviations.out)
    self.dropout = nnx.Dropout(spec.rates.attention)
    self.heads, self.implementation = spec.heads, spec.attention

  def __call__(
    self,
    x: Float[Array, "batch length width"],
    mask: Bool[Array, "#batch 1 #length length"] | Causal | None = None,
    rngs: nnx.Rngs | None = None,
    asking: Float[Array, "batch queries width"] | None = None,
    angles: Float[Array, "length pairs"] | None = None,
  ) -> Float[Array, "batch queries outputs"]:
    batch, length, width = x.shape
    if asking is None:
      asking = x
      qkv = self.qkv(x)
      if self.query_bias is not None:
        qkv += self._bias().astype(x.dtype)[None, None]
      qkv = qkv.reshape(batch, length, 3, self.heads, -1)
      q, k, v = jnp.moveaxis(qkv, 2, 0)
    else:
      q, k, v = (
        self._project(y, part) for part, y in enumerate((asking, x, x))
      )
    if angles is not None:
      q, k = (rotated(y, angles) for y in (q, k))
    if self.implementation == "cudnn":
      return self._end(_flash_attention(q, k, v, mask).reshape(asking.shape))
    q *= (width // self.heads) ** -0.5
    logits = jnp.einsum(
      "bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32
    )
    if isinstance(mask, Causal):
      mask = jnp.tri(length, dtype=bool)[None, None]
    if mask is not None:
      # Finite, since -inf would make a fully masked row NaN.
      logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits).astype(x.dtype)
    weights = self.dropout(weights, rngs=rngs)
    attended = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return self._end(attended.reshape(asking.shape))

  def _end(self, x):
    return self.out(x if self.norm is None else self.norm(x))

  def _bias(self):
    """Returns the bias of queries, keys and values; None if there is none."""
    if self.query_bias is None:
      return self.qkv.bias
    query, value = self.query_bias[...], self.value_bias[...]
    return jnp.concatenate([query, jnp.zeros_like(query), value])

  def _project(self, x, part: int):
    """Returns the queries (part 0), the keys (1) or the values (2) of x."""
    batch, length, width = x.shape
    columns = slice(part * width, (part + 1) * width)
    x @= self.qkv.kernel[:, columns].astype(x.dtype)
    if (bias := self._bias()) is not None:
      x += bias[columns].astype(x.dtype)[None, None]
    return x.reshape(batch, length, self.heads, -1)


def _norm_of(width: int, spec: BlockSpec):
  """Makes the LayerNorm before the last layer of a branch, if there is one."""
  return nnx.data(LayerNorm(width, eps=spec.eps) if spec.inner_norm else None)


def _flash_attention(q, k, v, mask):
  """Attends by cuDNN, which only NVIDIA's GPUs have.

  JAX differentiates it for even lengths only, so an odd length gets one more
  token, to which no other attends: a causal mask hides it, any other mask is
  extended, and without a mask, the number of keys leaves it out.
  """
  if jax.default_backend() != "gpu":
    raise ValueError(
      "attention 'cudnn' needs an NVIDIA GPU, and JAX uses "
      f"{jax.default_backend()!r}; choose 'xla'"
    )
  batch, length = q.shape[:2]
  causal, lengths = isinstance(mask, Causal), None
  mask = None if causal else mask
  if mask is not None:
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], length, length))
  if length % 2:
    q, k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
    if mask is not None:
      mask = jnp.pad(mask, ((0, 0), (0, 0), (0, 1), (0, 1)))
    elif not causal:
      lengths = jnp.full(batch, length, jnp.int32)
  attended = jax.nn.dot_product_attention(
    q,
    k,
    v,
    mask=mask,
    is_causal=causal,
    key_value_seq_lengths=lengths,
    implementation="cudnn",
  )
  return attended[:, :length]


class Block(nnx.Module):
  """Self-attention and an MLP, both residual, each with its LayerNorm.

  With `BlockSpec.gated`, the activation is that of other hidden units, by which
  those of the MLP are multiplied. With `layer_scale`, each branch is multiplied
  by learned factors, one for each feature, before it is added.

  LayerNorms start as ones and zeros and need no random keys. Flax's own layer
  still draws two, which changes the initial kernels of the layers after it;
  `BlockSpec.norm_keys` does the same.
  """

  def __init__(self, spec: BlockSpec, *, rngs):
    make = partial(dense, dtype=spec.dtype, rngs=rngs)

    def norm():
      if spec.norm_keys:
        rngs.params(), rngs.params()
      return LayerNorm(spec.width, eps=spec.eps)

    self.norm1 = norm()
    self.attention = Attention(spec, rngs=rngs)
    self.norm2 = norm()
    up = partial(make, spec.width, spec.hidden, spec.deviations.up)
    self.up = up()
    self.gate = nnx.data(up() if spec.gated else None)
    self.mlp_norm = nnx.data(norm() if spec.mlp_norm else None)
    self.hidden_norm = _norm_of(spec.hidden, spec)
    self.down = make(spec.hidden, spec.width, spec.deviations.down)
    self.dropout1 = nnx.Dropout(spec.rates.attended)
    self.dropout2 = nnx.Dropout(spec.rates.hidden)
    self.scale1, self.scale2 = (
      nnx.data(
        None
        if spec.layer_scale is None
        else nnx.Param(jnp.full(spec.width, spec.layer_scale, jnp.float32))
      )
      for _ in range(2)
    )
    self.spec = spec

  def __call__(self, x, mask=None, rngs=None, angles=None):
    def scaled(x, scale):
      if scale is None:
        return x
      return x * scale[...].astype(x.dtype)[None, None]

    def attend(x):
      x = scaled(self.attention(x, mask, rngs, angles=angles), self.scale1)
      return self.dropout1(x, rngs=rngs)

    def mlp(x):
      if self.mlp_norm is not None:
        x = self.mlp_norm(x)
      hidden = ACTIVATIONS[self.spec.activation]((self.gate or self.up)(x))
      if self.gate is not None:
        hidden *= self.up(x)
      if self.hidden_norm is not None:
        hidden = self.hidden_norm(hidden)
      return self.dropout2(scaled(self.down(hidden), self.scale2), rngs=rngs)

    if self.spec.pre_norm:
      x += attend(self.norm1(x))
      return x + mlp(self.norm2(x))
    if not self.spec.norm_sums:
      x += self.norm1(attend(x))
      return x + self.norm2(mlp(x))
    x = self.norm1(x + attend(x))
    return self.norm2(x + mlp(x))


def make_blocks(spec: BlockSpec, rngs: nnx.Rngs):
  """Makes all blocks of a transformer."""
  return nnx.List(Block(spec, rngs=rngs) for _ in range(spec.layers))
