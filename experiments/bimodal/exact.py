"""Exact popularities of some pairs, to hold learned ones against."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from nuclr_jax import Pairs, Sides, pairwise
from nuclr_jax.objectives import rows
from nuclr_jax.types import each, swap


@partial(jax.jit, static_argnames=("temperature", "iterations"))
def solve(
  pairs: Pairs, *, temperature: float, iterations: int = 60
) -> tuple[Sides, jax.Array]:
  """Zeta of each pair's image and text at which all gradients vanish.

  With w_ij as in `nuclr`, summed over all anchors of `pairs`, the gradient of
  zeta_j is 1 - sum_i w_ij. Both sums are proportional to exp(-zeta_j / tau)
  for given denominators, so zeta_j <- zeta_j + tau log sum_i w_ij is a half
  step of Sinkhorn's iteration, with own pairs and shared ids as in training.

  Returns:
    Centred `zeta`, and the largest |1 - sum_i w_ij| before the last step.
  """
  everyone = jnp.ones(len(pairs.pair_id), bool)

  def step(_, carry):
    zeta, _ = carry
    log_u = pairwise.log_sum_exp(pairs, temperature=temperature, bias=zeta)
    log_own = each(lambda x: -x / temperature, swap(zeta))
    out = pairwise.weighted(
      pairs,
      temperature=temperature,
      bias=zeta,
      row_log_weight=each(lambda o, u: -jnp.logaddexp(o, u), log_own, log_u),
    )
    own = swap(each(lambda o, u: jax.nn.sigmoid(o - u), log_own, log_u))

    def move(zeta, sums, own, ids):
      total, _ = rows.mean_by_id(sums + own, ids, everyone)
      moved = zeta + temperature * jnp.log(total)
      return moved - jnp.mean(moved), jnp.max(jnp.abs(1 - total))

    image, text = each(move, zeta, out.contrast_sums, own, pairs.ids)
    return Sides(image[0], text[0]), jnp.maximum(image[1], text[1])

  zero = jnp.zeros(len(pairs.pair_id))
  first = (Sides(zero, zero), jnp.zeros(()))
  return jax.lax.fori_loop(0, iterations, step, first)


def correlations(learned: Sides, exact: Sides, ids: Sides) -> dict[str, float]:
  """Pearson's and Spearman's correlation over distinct ids, per side.

  Args:
    learned: Zeta of each pair's image and text.
    exact: Likewise.
    ids: `Pairs.ids`.

  Returns:
    NaN where the learned values are all alike.
  """
  found = {}
  for side in Sides._fields:
    x, y, key = (np.asarray(getattr(z, side)) for z in (learned, exact, ids))
    _, first = np.unique(key, return_index=True)
    x, y = x[first], y[first]
    constant = np.ptp(x) == 0
    for name, f in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
      value = float("nan") if constant else float(f(x, y).statistic)
      found[f"exact/{name}_{side}"] = value
    found[f"exact/learned_std_{side}"] = float(np.std(x))
    found[f"exact/exact_std_{side}"] = float(np.std(y))
  return found
