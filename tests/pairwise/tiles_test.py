"""Log-sum-exps tile by tile, against dense float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from nuclr_jax import sharding
from nuclr_jax.pairwise import tiles

RNG = np.random.default_rng(0)
ROWS, COLUMNS = RNG.normal(size=(37, 5)), RNG.normal(size=(23, 5))
WEIGHT = np.where(np.arange(23) == 4, -np.inf, RNG.normal(size=23))
ROW_IDS = RNG.integers(0, 6, (37, 2))
COLUMN_IDS = RNG.integers(0, 6, (23, 2))


def dense(temperature, hidden):
  logits = ROWS @ COLUMNS.T / temperature + WEIGHT
  return logsumexp(np.where(hidden, -np.inf, logits), axis=1)


def tiled(temperature, tile, **ids):
  return tiles.row_log_sum_exp(
    *map(jnp.asarray, (ROWS, COLUMNS, WEIGHT)),
    temperature=temperature,
    tile=tile,
    **ids,
  )


@pytest.mark.parametrize("tile", [1, 7, 8, 37, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_against_numpy(tile, temperature, x64):
  hidden = (ROW_IDS[:, None] == COLUMN_IDS[None]).any(axis=2)
  found = tiled(
    temperature,
    tile,
    row_ids=jnp.asarray(ROW_IDS),
    column_ids=jnp.asarray(COLUMN_IDS),
  )
  np.testing.assert_allclose(found, dense(temperature, hidden), rtol=1e-13)
  np.testing.assert_allclose(
    tiled(temperature, tile), dense(temperature, False), rtol=1e-13
  )


def test_float32_is_true_float32():
  found = tiled(0.05, 8)
  np.testing.assert_allclose(found, dense(0.05, False), rtol=2e-6)
  half = tiles.row_log_sum_exp(
    *(jnp.asarray(x, jnp.bfloat16) for x in (ROWS, COLUMNS)),
    jnp.asarray(WEIGHT),
    temperature=0.05,
  )
  assert half.dtype == jnp.float32


@pytest.mark.parametrize("tile", [8, 1024])
def test_eight_devices_give_the_same(tile):
  with jax.set_mesh(sharding.make_mesh(8)):
    found = tiled(0.1, tile)
  np.testing.assert_allclose(found, tiled(0.1, tile), rtol=1e-6)


def test_rows_without_columns_are_minus_infinity():
  same = jnp.zeros((3, 1), jnp.int32)
  found = tiles.row_log_sum_exp(
    jnp.eye(3),
    jnp.eye(3),
    jnp.zeros(3),
    temperature=1.0,
    row_ids=same,
    column_ids=same,
    tile=2,
  )
  np.testing.assert_array_equal(found, -np.inf)


def test_ids_of_one_side_only_are_refused():
  x, ids = jnp.eye(2), jnp.arange(2)[:, None]
  for key in ("row_ids", "column_ids"):
    with pytest.raises(ValueError, match="go together, got only one"):
      tiles.row_log_sum_exp(x, x, jnp.zeros(2), temperature=1.0, **{key: ids})


def test_memory_is_that_of_tiles():
  n = 40_000  # an accelerator's tile has 4 * 4,000^2 bytes, a workspace 2^25
  rows, weight = jnp.ones((n, 4)), jnp.zeros(n)
  ids = jnp.arange(n)[:, None]
  compiled = tiles.row_log_sum_exp.lower(
    rows, rows, weight, temperature=0.1, row_ids=ids, column_ids=ids
  ).compile()
  temporary = compiled.memory_analysis().temp_size_in_bytes
  assert temporary < n**2 / 10  # bytes; all similarities would be 4 n^2
