"""The text tower of NLLB: the encoder of a model that translates."""

import math

from flax import nnx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from nuclr_jax.checks import Fraction, Natural
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import Dtype, LayerNorm, Remat, run_blocks
from nuclr_jax.lab.ranges import Eps, Layers, Length, Width


class Nllb(nnx.Module):
  """Pre-norm blocks, which return the features of the first token.

  That token names the language. No token attends to padding.
  """

  def __init__(self, spec, *, vocab_size, pad_id, rngs):
    init = nnx.initializers.normal(spec.width**-0.5)
    self.tokens = nnx.Param(init(rngs.params(), (vocab_size, spec.width)))
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.norm = LayerNorm(spec.width, eps=spec.eps)
    self.remat, self.dtype, self.pad_id = spec.remat, spec.dtype, pad_id

  def __call__(
    self, tokens: Int[Array, "batch length"], rngs: nnx.Rngs | None = None
  ) -> Float[Array, "batch features"]:
    mask = (tokens != self.pad_id)[:, None, None]
    x = jnp.take(self.tokens[...], tokens, axis=0)
    _, length, width = x.shape
    positions = sinusoids(self.pad_id + 1, length, width)
    x = (x * math.sqrt(width) + positions[None]).astype(self.dtype)
    x = self.dropout(x, rngs=rngs)
    x = run_blocks(self.blocks, x, mask, rngs, remat=self.remat)
    return self.norm(x[:, 0]).astype(jnp.float32)


def sinusoids(
  first: int, length: int, width: int
) -> Float[np.ndarray, "length width"]:
  """Returns fixed embeddings of positions: sines, then cosines.

  Args:
    first: The first position.
    length: The number of positions.
    width: The width of the embeddings, an even number of at least four.

  Example:
    >>> sinusoids(0, 2, 4).round(2).tolist()
    [[0.0, 0.0, 1.0, 1.0], [0.8399999737739563, 0.0, 0.5400000214576721, 1.0]]
  """
  half = width // 2
  bands = 10_000.0 ** -(np.arange(half) / (half - 1))
  angles = np.arange(first, first + length)[:, None] * bands
  waves = [np.sin(angles), np.cos(angles)]
  return np.concatenate(waves, axis=1).astype(np.float32)


def nllb(
  *,
  vocab_size: int,
  length: int,
  width: Width = 1024,
  layers: Layers = 12,
  heads: Width = 16,
  hidden: Width | None = None,
  max_length: Length = 1024,
  eps: Eps = 1e-5,
  pad_id: Natural = 1,
  dropout: Fraction = 0.1,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes the encoder of NLLB; its features are those of the first token.

  Texts begin with the token of their language, such as "eng_Latn". Positions
  are fixed waves, so a file has none.

  Args:
    vocab_size: The number of token ids: 256,206 in NLLB's files.
    length: The number of token ids per text, at most `max_length`.
    width: The width of the features, an even number.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    max_length: The longest text, in tokens.
    eps: The eps of LayerNorm.
    pad_id: The token id of padding. Positions count from the next number.
    dropout: The dropout rate after the embeddings, on the attention weights and
      in both residual branches.
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
    >>> tower = nllb(vocab_size=9, length=4, width=8, layers=1, heads=2)
    >>> params, state = tower.init(jax.random.key(0))
    >>> features, _ = tower.apply(params, state, jnp.array([[5, 3, 2, 1]]))
    >>> features.shape
    (1, 8)

  Reference: NLLB Team, No Language Left Behind, 2022; Visheratin, NLLB-CLIP,
    2023.
  """
  transformer.check_texts(vocab_size, length, max_length)
  if width % 2 or width < 4:
    raise ValueError(f"width must be even and at least 4, got {width}")
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=True,
    eps=eps,
    activation="relu",
    dtype=dtype,
    remat=remat,
    attention=attention,
    rates=transformer.Rates(dropout, dropout, dropout, dropout),
  )

  def build(rngs):
    return Nllb(spec, vocab_size=vocab_size, pad_id=pad_id, rngs=rngs)

  return base.from_nnx(build, width)._replace(masks_padding=pad_id == 0)
