"""Rows of per-sample state."""

import jax
import jax.numpy as jnp
import numpy as np

from nuclr_jax.objectives import rows

IDS = np.random.default_rng(0).integers(0, 9, 40)
VALUES = np.random.default_rng(1).normal(size=40)


def test_means_by_id():
  valid = np.random.default_rng(2).random(40) < 0.6
  valid[IDS == 3] = False
  found, touched = jax.jit(rows.mean_by_id)(
    jnp.asarray(VALUES), jnp.asarray(IDS), jnp.asarray(valid)
  )
  for i, key in enumerate(IDS):
    members = valid & (IDS == key)
    assert touched[i] == members.any()
    expected = VALUES[members].mean() if members.any() else 0
    np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-6)


def test_log_mean_exp_by_id_ignores_empty_rows():
  values = 300 * VALUES  # far beyond the range of exp in float32
  values[IDS == 3] = -np.inf
  values[::5] = -np.inf
  found = jax.jit(rows.log_mean_exp_by_id)(
    jnp.asarray(values), jnp.asarray(IDS)
  )
  for i, key in enumerate(IDS):
    members = values[(IDS == key) & np.isfinite(values)]
    expected = -np.inf
    if len(members):
      top = members.max()
      expected = top + np.log(np.mean(np.exp(members - top)))
    np.testing.assert_allclose(found[i], expected, rtol=1e-5)


def test_narrow_ids_do_not_wrap():
  table = jnp.zeros(1024)
  ids = jnp.array([250, 3], jnp.uint8)
  written = rows.write(table, ids, jnp.ones(2), num_rows=200)
  np.testing.assert_array_equal(np.flatnonzero(written), [3])
  assert np.isnan(rows.read(table, ids, num_rows=200)[0])


def test_padding_and_wrong_ids_read_nan_and_drop_writes():
  table, ids = jnp.arange(8.0), jnp.array([0, 5, 6, 7, 8, -1])
  read = rows.read(table, ids, num_rows=6)
  np.testing.assert_array_equal(read, [0, 5, *[np.nan] * 4])
  written = rows.write(table, ids, jnp.full(6, 9.0), num_rows=6)
  np.testing.assert_array_equal(written, [9, 1, 2, 3, 4, 9, 6, 7])
