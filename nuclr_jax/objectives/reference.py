"""Similarities relative to those of a reference model."""

import jax
import jax.numpy as jnp

from nuclr_jax.types import Pairs, Sides


def relative_to(pairs: Pairs, reference: Sides) -> Pairs:
  r"""Makes similarities relative to those of a reference model, as in DRRho.

  With embeddings x, y of a batch, and r, q of the same rows by the reference,
  the new embeddings are [x, -r] and [y, q], so that every similarity x_i . y_j
  becomes

    x_i . y_j - r_i . q_j.

  An objective that sees similarities only relative to that of the positive,
  sim_ij - sim_ii, then weighs negatives by how much worse they are told from
  the positive than by the reference: `clip`, `sogclr`, `isogclr` and `nuclr`.
  With `sogclr` this is DRRho, whose constant epsilon in the mean of a batch of
  B is `positive_weight` = (num_pairs - 1) epsilon B / (B - 1).

  If both have rows of unit norm, which is not checked, the new ones have norms
  above 1, and similarities are in [-2, 2]. What an objective remembers of
  embeddings is as wide as these, such as `dim` of `zeta_rules.queue`. Others
  make no sense of them: those that compare images with images (`ntxent`,
  `cyclip`), have an absolute scale (`siglip`, `spectral`, the floor of
  `debiased`), or normalize (`contrib:neuclip`).

  Args:
    pairs: The batch.
    reference: Embeddings of the same images and texts, [batch, width] each. No
      gradient reaches them.

  Returns:
    The batch with embeddings [batch, dim + width].

  Raises:
    ValueError: If the two sides of the reference have not one width, or another
      number of rows than the batch.

  Example:
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> relative = relative_to(pairs, Sides(jnp.ones((2, 1)), jnp.ones((2, 1))))
    >>> print(relative.image @ relative.text.T)
    [[ 0. -1.]
     [-1.  0.]]

  Reference: Wei et al., Model Steering: Learning with a Reference Model
    Improves Generalization Bounds and Scaling Laws, ICML 2025.
  """
  (x, y), (r, q) = pairs[:2], map(jax.lax.stop_gradient, reference)
  if r.shape != q.shape or r.ndim != 2 or len(r) != len(x):
    raise ValueError(
      "reference embeddings of images and of texts must both be [batch, width] "
      f"with {len(x)} rows, got {list(r.shape)} and {list(q.shape)}"
    )
  image = jnp.concatenate([x, -r.astype(x.dtype)], axis=1)
  text = jnp.concatenate([y, q.astype(y.dtype)], axis=1)
  return pairs._replace(image=image, text=text)
