"""How well learned popularities agree with exact ones."""

from jaxtyping import Float
import numpy as np

from nuclr_jax.types import AnyArray, Metrics


def compare(
  learned: Float[AnyArray, "ids"], exact: Float[AnyArray, "ids"]
) -> Metrics:
  """Computes correlations and spreads of the zeta of one side, one row per id.

  Returns:
    `pearson` and `spearman` (NaN where either side is constant), and the
    standard deviations `learned_std` and `exact_std`, in units of similarity.

  Example:
    >>> x = np.array([1.0, 2.0, 4.0])
    >>> round(compare(x, 2 * x)["pearson"], 6)
    1.0
  """
  from scipy import stats  # slow to import

  learned, exact = (np.asarray(x, float) for x in (learned, exact))
  constant = np.ptp(learned) == 0 or np.ptp(exact) == 0
  metrics = {}
  for name, f in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
    value = np.nan if constant else f(learned, exact).statistic
    metrics[name] = float(value)
  return metrics | {
    "learned_std": float(np.std(learned)),
    "exact_std": float(np.std(exact)),
  }
