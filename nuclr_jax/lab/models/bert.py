"""Text towers of the BERT family: BERT, RoBERTa and DistilBERT."""

from functools import partial

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import checks
from nuclr_jax.checks import Fraction, Natural
from nuclr_jax.lab.models import base, pools, transformer
from nuclr_jax.lab.models.layers import Dtype, LayerNorm, Remat, run_blocks
from nuclr_jax.lab.ranges import Eps, Layers, Length, Width

Pooling = checks.one_of(("first", "mean", "max"))


class Bert(nnx.Module):
  """Post-norm blocks, whose features are pooled over the tokens of a text.

  No token attends to padding, and pooling leaves it out.
  """

  def __init__(
    self,
    spec,
    *,
    vocab_size,
    max_length,
    pooling="first",
    pooler,
    head=None,
    pad_id=0,
    rngs,
  ):
    init = nnx.initializers.normal(0.02)
    shape = (vocab_size, spec.width)
    self.tokens = nnx.Param(init(rngs.params(), shape))
    shape = (max_length, spec.width)
    self.positions = nnx.Param(init(rngs.params(), shape))
    self.norm = LayerNorm(spec.width, eps=spec.eps)
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.remat = spec.remat
    pool = partial(pools.Pooler, spec.width, dtype=spec.dtype)
    self.pooler = nnx.data(pool(rngs=rngs) if pooler else None)
    first = partial(transformer.dense, spec.width, use_bias=False)
    self.head = nnx.data(
      first(head, None, dtype=spec.dtype, rngs=rngs) if head else None
    )
    self.dtype, self.pooling, self.pad_id = spec.dtype, pooling, pad_id

  def __call__(
    self, tokens: Int[Array, "batch length"], rngs: nnx.Rngs | None = None
  ) -> Float[Array, "batch features"]:
    is_text = tokens != self.pad_id
    mask = is_text[:, None, None]
    x = jnp.take(self.tokens[...], tokens, axis=0)
    first = _first_position(self.pad_id)
    x += self.positions[first : first + tokens.shape[1]][None]
    x = self.norm(x).astype(self.dtype)
    x = self.dropout(x, rngs=rngs)
    x = run_blocks(self.blocks, x, mask, rngs, remat=self.remat)
    x = _pooled(x, is_text, self.pooling)
    if self.pooler is not None:
      x = self.pooler(x)
    if self.head is not None:
      x = jax.nn.gelu(self.head(x), approximate=False)
    return x.astype(jnp.float32)


def _first_position(pad_id: int) -> int:
  """Returns the position of the first token: RoBERTa counts from its padding.

  BERT, whose padding is 0, counts from 0.
  """
  return pad_id + 1 if pad_id else 0


def _pooled(
  x: Float[Array, "batch length width"],
  is_text: Bool[Array, "batch length"],
  pooling: str,
) -> Float[Array, "batch width"]:
  """Returns one row of features for each text; sums are in float32."""
  if pooling == "first":
    return x[:, 0]
  x, is_text = x.astype(jnp.float32), is_text[:, :, None]
  if pooling == "max":
    return jnp.where(is_text, x, jnp.finfo(jnp.float32).min).max(axis=1)
  count = jnp.maximum(is_text.sum(axis=1), 1)
  return jnp.where(is_text, x, 0).sum(axis=1) / count


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
  pooling: Pooling = "first",
  pooler: bool = False,
  head: Width | None = None,
  pad_id: Natural = 0,
  dropout: Fraction = 0.1,
  attended_dropout: Fraction | None = None,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes a BERT; its features are those of the first token by default.

  All tokens have type 0; the embedding of that type is added to the position
  embeddings when weights are read.

  Args:
    vocab_size: The number of token ids.
    length: The number of token ids per text, at most `max_length`.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    max_length: The number of position embeddings, as in pretrained files.
    eps: The eps of LayerNorm.
    activation: "gelu", "gelu_tanh" or "quick_gelu".
    pooling: What the features of a text are: those of the "first" token, or the
      "mean" or the "max" of those of all tokens that are not padding, special
      tokens included. Sentence encoders say which in `1_Pooling/config.json`.
    pooler: Whether a dense layer and tanh follow the first token's features, as
      in BERT's pretraining.
    head: The width of a dense layer without bias and a GELU that follow the
      pooled features, whose width is then this one: with a projection, that is
      the head of OpenCLIP's models with a RoBERTa. None is without them.
    pad_id: The token id of padding, 0 for BERT and 1 for RoBERTa. Unless it is
      0, positions up to `pad_id` are not those of any token.
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
    ValueError: If texts are longer than `max_length`, if a number is out of
      range, or if a `pooler` does not follow the first token.

  Example:
    >>> tower = bert(vocab_size=9, length=4, width=8, layers=1, heads=2)
    >>> params, state = tower.init(jax.random.key(0))
    >>> tokens = jnp.array([[1, 5, 2, 0]])
    >>> features, _ = tower.apply(params, state, tokens)
    >>> features.shape
    (1, 8)

  Reference: Devlin et al., BERT, NAACL 2019; Reimers and Gurevych,
    Sentence-BERT, EMNLP 2019, for the mean.
  """
  longest = max_length - _first_position(pad_id)
  transformer.check_texts(vocab_size, length, longest)
  checks.argument("pooling", pooling, Pooling)
  if pooler and pooling != "first":
    raise ValueError(
      f"pooler is a layer on the first token, and pooling is {pooling!r}; "
      "leave one of them out"
    )
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
      pooling=pooling,
      pooler=pooler,
      head=head,
      pad_id=pad_id,
      rngs=rngs,
    )

  tower = base.from_nnx(build, head or width)
  return tower._replace(masks_padding=pad_id == 0)


# DistilBERT has half the blocks, and no dropout in the attention's residual
# branch. Sanh et al., DistilBERT, a distilled version of BERT, 2019.
distilbert = partial(bert, layers=6, attended_dropout=0.0)
# The sentence encoders all-MiniLM-L6-v2 and others of its size. Wang et al.,
# MiniLM: Deep Self-Attention Distillation, NeurIPS 2020.
minilm_l6 = partial(
  bert, width=384, layers=6, heads=12, hidden=1536, pooling="mean"
)
# XLM-RoBERTa has more ids, and a large size. Liu et al., RoBERTa, 2019; Conneau
# et al., Unsupervised Cross-lingual Representation Learning, ACL 2020.
roberta = partial(bert, eps=1e-5, pad_id=1, pooling="mean")
