"""Text towers of the BERT family: BERT and DistilBERT."""

from functools import partial

from flax import nnx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax.checks import Fraction
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import Dtype, LayerNorm, Remat, run_blocks
from nuclr_jax.lab.ranges import Eps, Layers, Length, Width


class Bert(nnx.Module):
  """Post-norm blocks, which return the features of the first token.

  Token id 0 is padding; no token attends to it.
  """

  def __init__(self, spec, *, vocab_size, max_length, pooler, rngs):
    init = nnx.initializers.normal(0.02)
    shape = (vocab_size, spec.width)
    self.tokens = nnx.Param(init(rngs.params(), shape))
    shape = (max_length, spec.width)
    self.positions = nnx.Param(init(rngs.params(), shape))
    self.norm = LayerNorm(spec.width, eps=spec.eps)
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.remat = spec.remat
    pool = partial(transformer.Pooler, spec.width, dtype=spec.dtype)
    self.pooler = nnx.data(pool(rngs=rngs) if pooler else None)
    self.dtype = spec.dtype

  def __call__(
    self, tokens: Int[Array, "batch length"], rngs: nnx.Rngs | None = None
  ) -> Float[Array, "batch features"]:
    mask = (tokens != 0)[:, None, None]
    x = jnp.take(self.tokens[...], tokens, axis=0)
    x += self.positions[: tokens.shape[1]][None]
    x = self.norm(x).astype(self.dtype)
    x = self.dropout(x, rngs=rngs)
    x = run_blocks(self.blocks, x, mask, rngs, remat=self.remat)
    x = x[:, 0]
    if self.pooler is not None:
      x = self.pooler(x)
    return x.astype(jnp.float32)


def bert(
  *,
  vocab_size: int,
  length: int,
  width: Width = 768,
  layers: Layers = 12,
  heads: Width = 12,
  hidden: Width | None = None,
  max_length: Length = 512,
  eps: Eps = 1e-12,
  activation: transformer.Activation = "gelu",
  pooler: bool = False,
  dropout: Fraction = 0.1,
  attended_dropout: Fraction | None = None,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes a BERT; its features are those of the first token.

  All tokens have type 0; the embedding of that type is added to the position
  embeddings when weights are read.

  Args:
    vocab_size: The number of token ids; 0 is padding.
    length: The number of token ids per text, at most `max_length`.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    max_length: The number of position embeddings, as in pretrained files.
    eps: The eps of LayerNorm.
    activation: "gelu", "gelu_tanh" or "quick_gelu".
    pooler: Whether a dense layer and tanh follow, as in BERT's pretraining.
    dropout: The dropout rate after the embeddings, on the attention weights and
      in both residual branches.
    attended_dropout: The dropout rate in the attention's residual branch; None
      is `dropout`.
    dtype: The dtype of activations, "float32" or "bfloat16".
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).
    attention: "xla", or "cudnn": flash attention on NVIDIA GPUs, in bfloat16
      and without dropout on the attention weights.

  Returns:
    A `Tower` from token ids [batch, length] to features [batch, width].

  Raises:
    ValueError: If texts are longer than `max_length`, or if a number is out of
      range.

  Example:
    >>> tower = bert(vocab_size=9, length=4, width=8, layers=1, heads=2)
    >>> params, state = tower.init(jax.random.key(0))
    >>> tokens = jnp.array([[1, 5, 2, 0]])
    >>> features, _ = tower.apply(params, state, tokens)
    >>> features.shape
    (1, 8)

  Reference: Devlin et al., BERT, NAACL 2019.
  """
  transformer.check_texts(vocab_size, length, max_length)
  if attended_dropout is None:
    attended_dropout = dropout
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=False,
    eps=eps,
    activation=activation,
    dtype=dtype,
    remat=remat,
    attention=attention,
    rates=transformer.Rates(dropout, dropout, attended_dropout, dropout),
  )

  def build(rngs):
    return Bert(
      spec,
      vocab_size=vocab_size,
      max_length=max_length,
      pooler=pooler,
      rngs=rngs,
    )

  return base.from_nnx(build, width)


# DistilBERT has half the blocks, and no dropout in the attention's residual
# branch. Sanh et al., DistilBERT, a distilled version of BERT, 2019.
distilbert = partial(bert, layers=6, attended_dropout=0.0)
