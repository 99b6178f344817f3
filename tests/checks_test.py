"""Signatures whose ranges hold for callers from Python, too."""

from collections.abc import Mapping
import inspect
import logging
import math
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax import checks
from nuclr_jax.lab.ranges import Stages
from nuclr_jax.types import Schedule, Sides

NAN = math.nan
Gamma = Annotated[
  float | Schedule,
  checks.Range(
    "in (0, 1] or a schedule of the step count", lambda x: 0 < x <= 1
  ),
]


@checks.checked
def made(
  size: checks.Count = 3,
  *,
  weight: checks.NonNegative | None = None,
  gamma: Gamma = 0.5,
  rate: checks.Rate | Sides = 0.25,
  kind: checks.one_of(("a", "b")) = "a",
  learn: bool = True,
  factors: Mapping[str, checks.Positive] = {},
  first: Stages = (1, 2),
  free: int = 0,
  **more,
):
  """Returns what it gets."""
  return locals()


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (dict(size=0), "size must be a whole number of at least 1, got 0"),
    (dict(size=1.5), "size must be a whole number of at least 1, got 1.5"),
    (dict(size="3"), "size must be a whole number of at least 1, got '3'"),
    (dict(size=True), "size must be a whole number of at least 1, got True"),
    (dict(size=None), "size must be a whole number of at least 1, got None"),
    (dict(size=np.ones(2)), "size must be a whole number of at least 1, got a"),
    (dict(size=2**31), "size must be a whole number of at least 1, got 2147"),
    (
      dict(weight=1e300),
      "weight must be a number of at least 0, or None, got 1e+300; float32 "
      "holds numbers up to 2**127",
    ),
    (dict(weight=-1), "weight must be a number of at least 0, or None, got -1"),
    (dict(weight=NAN), "weight must be a number of at least 0, or None, got n"),
    (dict(gamma=0.0), "gamma must be in (0, 1] or a schedule of the step cou"),
    (dict(gamma=lambda count: 2.0), "gamma at step 0 must be in (0, 1] or a "),
    (dict(rate=Sides(0.1, 2)), "rate.text must be in [0, 1] or a schedule of"),
    (dict(kind="c"), "kind must be one of ('a', 'b'), got 'c'"),
    (dict(learn=1), "learn must be True or False, got 1"),
    (dict(factors={"a": 0}), "factors must be a mapping, each value a number "),
    (dict(first=(1, 0)), "first must be 1 to 8 whole numbers, each from 1 to"),
  ],
)
def test_what_a_signature_does_not_allow(given, message):
  with pytest.raises(ValueError) as error:
    made(**given)
  assert str(error.value).startswith(message)


def test_bodies_get_numbers_and_schedules():
  got = made(np.int64(4), weight=jnp.float32(0.5), rate=Sides(0.1, abs))
  assert (got["size"], got["weight"]) == (4, 0.5)
  assert type(got["size"]) is int and type(got["weight"]) is float
  assert float(got["gamma"](7)) == 0.5
  assert float(got["rate"].image(7)) == np.float32(0.1)
  assert got["rate"].text is abs


def test_what_has_no_range_arrives_as_it_is():
  other = object()
  got = made(free="x", other=other)
  assert got["free"] == "x" and got["more"] == {"other": other}
  assert got["weight"] is None and got["factors"] == {}


def test_a_schedule_that_leaves_its_range_is_warned_of(caplog):
  with caplog.at_level(logging.WARNING):
    made(gamma=lambda count: 1.0 + count / 8)
  assert "gamma at step 1 must be in (0, 1]" in caplog.text


def test_python_says_which_arguments_are_wrong():
  @checks.checked(of="rule")
  def needs(size: checks.Count, *, rate: checks.Rate):
    return size, rate

  with pytest.raises(TypeError, match=r"needs\(\) missing .* 'rate'"):
    needs(1)
  with pytest.raises(ValueError, match="^rule.size must be"):
    needs(0, rate=1.0)


def test_the_signature_stays():
  assert made.__doc__ == "Returns what it gets." and made.__name__ == "made"
  parameters = inspect.signature(made).parameters
  assert parameters["size"].annotation is checks.Count
  assert parameters["size"].default == 3


def test_under_jit():
  """Python numbers are checked while a function is traced."""

  @jax.jit
  def scaled(x):
    return x * made(2)["size"]

  assert scaled(jnp.float32(3)) == 6

  @jax.jit
  def traced(size):
    return made(size)["size"]

  with pytest.raises(ValueError, match="size must be a whole number"):
    traced(2)
