"""What objectives with one parameter row per class have in common."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import checks
from nuclr_jax.contrib.objectives import width
from nuclr_jax.types import Pairs, Params


def samples(
  pairs: Pairs, of_classes: Float[Array, "classes dim"]
) -> tuple[Float[Array, "rows dim"], Int[Array, "rows"]]:
  """Returns all rows and their labels; NaN rows for labels out of range.

  Args:
    pairs: The batch.
    of_classes: The parameters of the classes.

  Raises:
    ValueError: If there are no labels, or embeddings have another width.
  """
  if pairs.label is None:
    raise ValueError(
      "this objective needs labels; use a data set that brings them, such as "
      "config.data.name = 'labelled'"
    )
  num_classes, dim = of_classes.shape
  x = jnp.concatenate(width.embeddings(pairs, dim))
  # uint8 cannot hold 256 classes, which JAX would compare as 0.
  label = jnp.tile(pairs.label.astype(int), 2)
  known = (label >= 0) & (label < num_classes)
  return jnp.where(known[:, None], x, jnp.nan), label


def is_own(
  label: Int[Array, "rows"], num_classes: int
) -> Bool[Array, "rows classes"]:
  """Marks each row's class with True.

  Example:
    >>> is_own(jnp.array([1, 0]), 2)
    Array([[False,  True],
           [ True, False]], dtype=bool)
  """
  return jnp.equal(label[:, None], jnp.arange(num_classes)[None])


def random_rows(
  name: str, count: int, dim: int, seed: int
) -> Callable[[], Params]:
  """Makes `init`, whose only parameter is random rows of length about 1.

  Args:
    name: What the parameter is called.
    count: Number of rows.
    dim: Width of the embeddings.
    seed: The seed of the rows.

  Raises:
    ValueError: For counts that are not whole numbers of at least 1.

  Example:
    >>> random_rows("classes", 3, 2, seed=0)()["classes"].shape
    (3, 2)
  """
  count = checks.argument(f"the number of {name}", count, checks.Count)
  dim = checks.argument("dim", dim, checks.Count)

  def init():
    rows = jax.random.normal(jax.random.key(seed), (count, dim))
    return {name: rows / dim**0.5}

  return init
