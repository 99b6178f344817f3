"""Meshes that do not fit are refused with a remedy."""

import jax
from jax.sharding import AxisType
import make_pairs
import numpy as np
import pytest

from nuclr_jax import objectives, pairwise, sharding


def apply(batch):
  objective = objectives.clip()
  pairs = make_pairs.make_pairs(0, batch=batch)
  return jax.jit(objective.apply)(*objective.init(), pairs)


def test_a_batch_that_the_devices_do_not_divide():
  with jax.set_mesh(sharding.make_mesh(8)):
    with pytest.raises(ValueError, match="multiple of .* 8 devices, got 12"):
      apply(12)


def test_an_explicit_axis():
  """Objectives take it (`own_loops_test`); what they are made of does not."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
  with jax.set_mesh(mesh):
    with pytest.raises(ValueError, match="axes data must be Auto here, got "):
      jax.jit(pairwise.num_negatives)(make_pairs.make_pairs(0))


def test_a_mesh_of_other_axes_is_left_alone():
  """As in a loop of one's own, whose arrays the compiler splits."""
  mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
  expected, _ = apply(12)
  with jax.set_mesh(mesh):
    found, _ = apply(12)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
