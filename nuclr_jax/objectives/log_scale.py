"""One learned temperature, a parameter: log(1 / temperature)."""

from functools import partial
import math

import jax
import jax.numpy as jnp

from nuclr_jax.types import Number, Params

MAX_SCALE = 100.0  # highest 1 / temperature, as in the CLIP paper


def init_log_scale(temperature: float) -> Params:
  """Returns the parameter of one learned temperature."""
  return {"log_scale": jnp.full((), -math.log(temperature), float)}


def learned_temperature(params: Params, first: float) -> Number:
  """Returns the learned temperature, or the first one if it is fixed.

  It is `exp(-params["log_scale"])`, which `init_log_scale` starts.

  1 / temperature stays at or below `MAX_SCALE`, or its first value if that is
  higher. Above that, the gradient is 0 if it would raise `log_scale` further;
  if it leads back, it is passed on in full.
  """
  if "log_scale" not in params:
    return first
  highest = max(math.log(MAX_SCALE), -math.log(first))
  return jnp.exp(-_at_most(params["log_scale"], highest))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _at_most(x, highest):
  """Returns min(x, highest), whose gradient can lead back from above."""
  return jnp.minimum(x, highest)


@_at_most.defjvp
def _at_most_derivative(highest, primals, tangents):
  (x,), (tangent,) = primals, tangents

  is_above = x > highest

  def led_back(_, gradient):
    return jnp.where(is_above & (gradient < 0), 0, gradient)

  # The identity; it is a solve only because that takes a transpose of our own.
  passed = jax.lax.custom_linear_solve(
    lambda v: v, tangent, lambda _, v: v, led_back
  )
  return jnp.minimum(x, highest), passed
