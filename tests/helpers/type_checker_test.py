"""Annotations are held, and names of axes mean one number within a call."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import pytest
import type_checker

SQUARE = Float[Array, "n n"]


def checked(function):
  return type_checker.jaxtyped(function, typechecker=type_checker.check)


@checked
def product(x: Float[Array, "n k"], y: Float[Array, "k m"]) -> SQUARE:
  """Its annotations say that n and m are the same."""
  return x @ y


@checked
def outer(x: Float[Array, "n k"], scale: float = 1) -> Float[Array, "n n"]:
  return scale * product(x.T, x)[:2, :2]


def test_what_is_right_passes():
  assert product(jnp.ones((2, 3)), jnp.ones((3, 2))).shape == (2, 2)
  # Inside, n is another number, and then the first one again.
  assert outer(jnp.ones((2, 3)), 2).shape == (2, 2)
  assert jax.jit(outer)(jnp.ones((2, 3))).shape == (2, 2)


def test_what_is_wrong_raises():
  for x, y in (
    (jnp.ones((2, 3)), jnp.ones((2, 3))),  # k is 3 and 2
    (jnp.ones((2, 3)), jnp.ones((3, 4))),  # the result is not square
    (jnp.ones(2), jnp.ones((2, 2))),
    (jnp.ones((2, 2), int), jnp.ones((2, 2))),
  ):
    with pytest.raises(TypeError):
      product(x, y)
  with pytest.raises(TypeError):
    outer(jnp.ones((3, 2)))  # n is 3, of the result 2
  with pytest.raises(TypeError):
    outer(jnp.ones((2, 3)), "2")


def test_a_function_without_annotations_is_itself():
  def plain(x):
    return x

  assert checked(plain) is plain
