"""The text towers of CLIP and SigLIP."""

from functools import partial

from flax import nnx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import checks
from nuclr_jax.checks import Fraction, Natural
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import Dtype, LayerNorm, Remat, run_blocks
from nuclr_jax.lab.ranges import Eps, Layers, Length, Width

# Whose features are a text's: those of its end token, of the last position, or
# of a class token behind it (CoCa's).
Pool = checks.one_of(("end", "last", "class"))


class ClipText(nnx.Module):
  """Pre-norm blocks, which return the features of one token.

  It is the end token (the first token `end_id`, or that with the largest id if
  that is None), the last position, or a class token behind that. If the blocks
  are not causal, every token attends to all.
  """

  def __init__(
    self, spec, *, vocab_size, max_length, causal, pool, end_id, rngs
  ):
    shape = (vocab_size, spec.width)
    init = nnx.initializers.normal
    self.tokens = nnx.Param(init(0.02)(rngs.params(), shape))
    shape = (max_length, spec.width)
    self.positions = nnx.Param(init(0.01)(rngs.params(), shape))
    token = partial(init(0.01), shape=(spec.width,))
    self.class_token = nnx.data(
      nnx.Param(token(rngs.params())) if pool == "class" else None
    )
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.remat = spec.remat
    self.norm = LayerNorm(spec.width, eps=spec.eps)
    self.dtype, self.causal = spec.dtype, causal
    self.pool, self.end_id = pool, end_id

  def __call__(
    self, tokens: Int[Array, "batch length"], rngs: nnx.Rngs | None = None
  ) -> Float[Array, "batch features"]:
    mask = transformer.Causal() if self.causal else None
    x = jnp.take(self.tokens[...], tokens, axis=0)
    if self.class_token is not None:
      last = jnp.broadcast_to(self.class_token[...], (len(x), 1, x.shape[-1]))
      x = jnp.concatenate([x, last], axis=1)
      mask = _coca_mask(tokens)
    length = x.shape[1]
    x = (x + self.positions[:length][None]).astype(self.dtype)
    x = self.dropout(x, rngs=rngs)
    x = run_blocks(self.blocks, x, mask, rngs, remat=self.remat)
    if self.pool == "end":
      is_end = tokens if self.end_id is None else tokens == self.end_id
      end = jnp.argmax(is_end, axis=1)
      x = jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0]
    else:
      x = x[:, -1]
    return self.norm(x).astype(jnp.float32)


def _coca_mask(
  tokens: Int[Array, "batch length"],
) -> Bool[Array, "batch 1 tokens tokens"]:
  """Returns CoCa's mask of a text with a class token behind it.

  No token attends to later ones, nor to the one behind a padding token: the
  published models were trained with the padding a place too far.
  """
  seen = jnp.pad(tokens != 0, ((0, 0), (1, 0)), constant_values=True)
  causal = jnp.tri(seen.shape[1], dtype=bool)
  return causal[None, None] & seen[:, None, None]


def clip_text(
  *,
  vocab_size: int,
  length: int,
  width: Width = 512,
  layers: Layers = 12,
  heads: Width = 8,
  hidden: Width | None = None,
  max_length: Length = 77,
  eps: Eps = 1e-5,
  activation: transformer.Activation = "quick_gelu",
  causal: bool = True,
  pool: Pool | None = None,
  end_id: Natural | None = None,
  dropout: Fraction = 0.0,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes CLIP's text transformer; its features are those of the end token.

  The end token is the first token `end_id` of its text; None stands for the
  largest id in the text, as in CLIP's own vocabulary. No token attends to later
  ones, so the padding after the end changes nothing.

  SigLIP's text transformer (`siglip_text`) is not causal, nor is CLIPA's: every
  token attends to all, padding included, and the features are those of the last
  position. In some MobileCLIPs every token attends to all, and the features are
  those of the end token. Texts of such towers must be padded as they were in
  training: SigLIP's to 64 ids, with the id of its own tokenizer.

  The position embeddings of a file may be fewer than `max_length` if the tower
  is causal. They are stretched as in Long-CLIP: the first 20, which most
  captions never exceed, are kept, and the others interpolated. A text of up to
  20 ids then has the same features as with the file's own length; longer ones
  need fine-tuning.

  Args:
    vocab_size: The number of token ids: 49,408 in CLIP's files, 32,000 in
      SigLIP's and 256,000 in SigLIP 2's.
    length: The number of token ids per text, at most `max_length`.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    max_length: The number of position embeddings: 77 in CLIP's files, 64 in
      SigLIP's. A causal tower may have more than its file.
    eps: The eps of LayerNorm, 1e-5 in CLIP and 1e-6 in SigLIP.
    activation: "quick_gelu" (OpenAI's models), "gelu" (most of OpenCLIP's),
      or "gelu_tanh" (SigLIP).
    causal: Whether no token attends to later ones.
    pool: Whether the features are those of the "end" token, of the "last"
      position, or of a "class" token behind it, as in CoCa; None is "end" for
      causal towers and "last" for others.
    end_id: The id with which the tokenizer ends texts, if it is not the largest
      of all: 102 for BERT's tokenizer.
    dropout: The dropout rate after the embeddings and in both residual
      branches.
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
    >>> tower = clip_text(vocab_size=9, length=4, width=8, layers=1, heads=2)
    >>> params, state = tower.init(jax.random.key(0))
    >>> texts = jnp.array([[1, 5, 8, 0], [1, 5, 8, 3]])
    >>> (one, other), _ = tower.apply(params, state, texts)
    >>> bool(jnp.all(one == other))  # 8 is the end
    True

  Reference: Radford et al., Learning Transferable Visual Models From Natural
    Language Supervision, ICML 2021; Zhai et al., Sigmoid Loss for Language
    Image Pre-Training, ICCV 2023; Zhang et al., Long-CLIP, ECCV 2024.
  """
  longest = max_length - (pool == "class")
  transformer.check_texts(vocab_size, length, longest)
  pool = pool or ("end" if causal else "last")
  checks.argument("pool", pool, Pool)
  if pool == "class" and not causal:
    raise ValueError("a class token needs a causal tower, as in CoCa")
  if end_id is not None and not (pool == "end" and end_id < vocab_size):
    raise ValueError(
      f"end_id must be one of the {vocab_size} ids, and is for towers with the "
      f"features of the end token only, got {end_id} and pool {pool!r}"
    )
  # As in OpenAI's code: the more branches, the less each one adds at first.
  narrow = (2 * width * layers) ** -0.5
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=True,
    eps=eps,
    activation=activation,
    dtype=dtype,
    remat=remat,
    attention=attention,
    rates=transformer.rates_of(dropout),
    deviations=transformer.Deviations(
      qkv=width**-0.5, out=narrow, up=(2 * width) ** -0.5, down=narrow
    ),
  )

  def build(rngs):
    return ClipText(
      spec,
      vocab_size=vocab_size,
      max_length=max_length,
      causal=causal,
      pool=pool,
      end_id=end_id,
      rngs=rngs,
    )

  return base.from_nnx(build, width)


siglip_text = partial(
  clip_text,
  width=768,
  heads=12,
  max_length=64,
  eps=1e-6,
  activation="gelu_tanh",
  causal=False,
)
