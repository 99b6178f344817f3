"""FastCLIP-v3 with the temperature's gradient of its released code."""

import jax
import jax.numpy as jnp

from nuclr_jax import checks
from nuclr_jax.objectives import base, denominator, sogclr, temperature_rules
from nuclr_jax.objectives.log_scale import learned_temperature
from nuclr_jax.types import shows_its_call


@shows_its_call
@checks.checked
def fastclip_released(
  *,
  num_pairs: checks.NumPairs,
  num_images: checks.Count | None = None,
  num_texts: checks.Count | None = None,
  temperature: checks.Temperature = 0.07,
  rho: checks.Finite = 8.0,
  gamma: denominator.GammaOrRule = 0.8,
  positive_weight: checks.NonNegative = 0.0,
  anchor_average: denominator.AnchorAverage = "pair",
) -> base.Objective:
  r"""Makes FastCLIP-v3 as it was released: for reproductions only.

  This is `sogclr` with `temperature_rules.learned`, whose loss is temperature A
  with A the sum over both sides of mean log D - log(number of terms) + rho, and
  whose temperature has the derivative A - H, H the sum over both sides of the
  mean of sum_j w_ij h_ij. The released code averages A over the sides, but
  takes the sum for H, so that relative to A the derivative is

    A - 2 H.

  It vanishes where the KL divergence of w from uniform weights is rho - H / 2
  instead of rho, with H below 0: at a smaller temperature. The value and the
  gradients of everything else are those of `sogclr`.

  The released code of DRRho-CLIP and SCENT has the same derivative. Its epsilon
  in the mean of a batch of B is `positive_weight` as in `relative_to`, which
  DRRho-CLIP needs as well, and its rho is `rho` - log(1 + epsilon - 1 / B). H
  is B / (B - 1) times as large there, as are the gradients of the embeddings.

  Args:
    num_pairs: The number of pairs of the data set, as in `sogclr`.
    num_images: The number of distinct images; None means `num_pairs`.
    num_texts: The number of distinct texts; None means `num_pairs`.
    temperature: The first temperature; greater than 0.
    rho: What the KL divergence was meant to be at the optimum.
    gamma: Weight of the new estimate, as in `sogclr`.
    positive_weight: The weight of the positive in an anchor's denominator, as
      in `sogclr`; FastCLIP-v3: 0.
    anchor_average: "pair" or "id", as in `sogclr`.

  Returns:
    An `Objective` with the state of `sogclr`.

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> objective = fastclip_released(num_pairs=4, rho=1.0)
    >>> params, state = objective.init()
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> loss, _ = objective.apply(params, state, pairs)

  Reference: `FastCLIPLoss` of github.com/Optimization-AI/fast_clip, efd89d5;
    `SogCLRLoss` of DRRho-CLIP, 33d7364.
  """
  objective = sogclr(
    num_pairs=num_pairs,
    num_images=num_images,
    num_texts=num_texts,
    temperature=temperature_rules.learned(temperature, rho=rho),
    gamma=gamma,
    positive_weight=positive_weight,
    anchor_average=anchor_average,
  )

  def apply(params, state, pairs, **axes):
    # With s = -log(temperature) and the loss L = A exp(-s), dL/ds is
    # -exp(-s) (A - H), and 2 dL/ds + L is -exp(-s) (A - 2 H).
    stop = jax.lax.stop_gradient
    log_scale = -jnp.log(learned_temperature(params, temperature))
    twice = {"log_scale": 2 * log_scale - stop(log_scale)}
    loss, aux = objective.apply(twice, state, pairs, **axes)
    return loss + stop(loss) * (log_scale - stop(log_scale)), aux

  return objective._replace(apply=apply)
