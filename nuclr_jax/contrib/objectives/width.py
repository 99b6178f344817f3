"""The width of embeddings for which prototypes and networks are made."""

from nuclr_jax import pairwise
from nuclr_jax.types import Pairs, Sides


def embeddings(pairs: Pairs, dim: int, *, name: str = "dim") -> Sides:
  """Returns the embeddings of a batch, if they have the width `dim`.

  Args:
    pairs: The batch.
    dim: The width that the caller was made for.
    name: What the caller's argument is called.

  Raises:
    ValueError: For another width.

  Example:
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> embeddings(pairs, 2).image.shape
    (2, 2)
  """
  found = pairs.image.shape[1]
  if found != dim:
    raise ValueError(
      f"{name} is {dim}, but the embeddings have width {found}; give the width "
      "of the embeddings"
    )
  return pairwise.embeddings(pairs)
