"""Compares similarities with those that a table has of the same pairs."""

from jaxtyping import Float
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data.shards.layouts import Shards

# In half precision, the rows of unit norm, their norms (by which they are
# divided here) and the score have errors of at most 2^-11 each: of a score up
# to 1, 5 x 2^-11 = 0.0024 in all. Four times as much leaves room for a sum that
# is itself in half precision, and is less than most pairs differ from another.
TOLERANCE = 0.01


def check_scores(found: Shards, similarity: Float[np.ndarray, "pairs"]) -> None:
  """Compares similarities with DataComp's column of them, where there is one.

  That is the only thing which tells whether the rows of a table are in the
  order of the arrays. A pair whose score is null or NaN is not compared.

  Args:
    found: The pairs.
    similarity: E_ii of each.

  Raises:
    ValueError: If two numbers differ by more than rounding can explain; the
      message names the first row.
  """
  column = found.columns.get("score")
  if column is None:
    return
  begin = dict(zip(found.names, [0, *found.ends[:-1]], strict=True))
  last, at = None, 0
  for path, values in column.batches():
    start = int(begin[str(path)])
    at, last = (at if path == last else start), path
    with files.reading(path):
      scores = np.array(values, float)  # null is NaN
      if scores.ndim != 1:
        raise ValueError(f"{column.name} holds {values[0]!r:.80}, no number")
    own = similarity[at : at + len(values)]
    wrong = np.flatnonzero(np.abs(scores - own) > TOLERANCE)
    if len(wrong):
      row = int(wrong[0])
      arrays = found.image.name_of(np.array([at + row]), 0)
      raise ValueError(
        f"{path} has {scores[row]:.4f} as {column.name} of row "
        f"{at + row - start}, and {arrays} has a similarity of {own[row]:.4f}: "
        f"the rows of {path.name} and {path.stem}.npz do not line up, or the "
        "embeddings are of another model; download both files again"
      )
    at += len(values)
