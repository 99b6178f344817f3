"""Rows of per-sample state."""

import inspect

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import make_pairs
import numpy as np
import pytest

from nuclr_jax import sharding
from nuclr_jax.sample_state import table
from nuclr_jax.types import Sample, Sides, Sizes, both

IDS = np.random.default_rng(0).integers(0, 9, 40)
VALUES = np.random.default_rng(1).normal(size=40)


def test_means_by_id():
  valid = np.random.default_rng(2).random(40) < 0.6
  valid[IDS == 3] = False
  other = np.arange(40) % 3
  values = Sides(jnp.asarray(VALUES), jnp.asarray(2 * VALUES))
  for ids in (both(jnp.asarray(IDS)), Sides(*map(jnp.asarray, (IDS, other)))):
    found, touched = jax.jit(table.mean_by_id)(values, ids, jnp.asarray(valid))
    check_means(VALUES, IDS, valid, found.image, touched.image)
    check_means(2 * VALUES, ids.text, valid, found.text, touched.text)


def check_means(values, ids, valid, found, touched):
  for i, key in enumerate(np.asarray(ids)):
    members = valid & (np.asarray(ids) == key)
    assert touched[i] == members.any()
    expected = values[members].mean() if members.any() else 0
    np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-6)


def test_log_mean_exp_by_id_ignores_empty_rows():
  values = 300 * VALUES  # far beyond the range of exp in float32
  values[IDS == 3] = -np.inf
  values[::5] = -np.inf
  found = jax.jit(table.log_mean_exp_by_id)(
    both(jnp.asarray(values)), both(jnp.asarray(IDS))
  ).text
  for i, key in enumerate(IDS):
    members = values[(IDS == key) & np.isfinite(values)]
    expected = -np.inf
    if len(members):
      top = members.max()
      expected = top + np.log(np.mean(np.exp(members - top)))
    np.testing.assert_allclose(found[i], expected, rtol=1e-5)


def test_narrow_ids_do_not_wrap():
  zeros = jnp.zeros(1024)
  ids = jnp.array([250, 3], jnp.uint8)
  written = table.write_rows(zeros, ids, jnp.ones(2), num_rows=200)
  np.testing.assert_array_equal(np.flatnonzero(written), [3])
  assert np.isnan(table.read_rows(zeros, ids, num_rows=200)[0])


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_wide_ids_beside_float64(dtype, x64):
  zeros, ids = jnp.zeros(8), np.array([2, 2**32 - 1], dtype)
  written = table.write_rows(zeros, ids, jnp.ones(2), num_rows=8)
  np.testing.assert_array_equal(np.flatnonzero(written), [2])
  assert np.isnan(table.read_rows(zeros, ids, num_rows=8)[1])


def test_reductions_by_id_name_their_dtypes():
  """As `jax_numpy_dtype_promotion="strict"` wants it."""
  rows = both(jnp.ones(4))
  ids, valid = both(jnp.arange(4) // 2), jnp.array([True, False, True, True])
  with jax.numpy_dtype_promotion("strict"):
    table.mean_by_id(rows, ids, valid)
    table.log_mean_exp_by_id(rows, ids)


def test_ids_of_64_bits_reach_no_other_row():
  """JAX on its own keeps the lower 32 bits, here 3."""
  ids, rows = np.array([1, 2**32 + 3]), jnp.ones(2)
  valid, sides = jnp.array([True, True]), both(rows)
  for call in (
    lambda ids: table.read_rows(jnp.arange(8.0), ids, 8),
    lambda ids: table.write_rows(jnp.zeros(8), ids, rows, 8),
    lambda ids: table.mean_by_id(sides, both(ids), valid),
    lambda ids: table.log_mean_exp_by_id(sides, both(ids)),
  ):
    for wrong in (ids, -ids, ids.astype(np.uint64)):
      with pytest.raises(ValueError, match="must fit in u?int32, found -?42"):
        call(wrong)
    call(ids % 8)
  assert np.isnan(table.read_rows(rows, np.array([2**32 - 1], np.uint32), 2))


def test_rows_from_outside_must_be_in_the_table():
  for ids in ([-1], [8], [2**32 + 3]):
    with pytest.raises(ValueError, match=r"ids must be in \[0, 8\), found"):
      sharding.replace_rows(jnp.zeros(8), np.array(ids), 1.0)


@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan], np.nan])
def test_each_row_from_outside_has_a_value(values):
  replace = inspect.unwrap(sharding.replace_rows)  # not the types' checker
  with pytest.raises(ValueError, match="each of 2 ids needs a value"):
    replace(jnp.zeros(8), np.array([3, 5]), np.array(values))


def test_padding_and_wrong_ids_read_nan_and_drop_writes():
  rows, ids = jnp.arange(8.0), jnp.array([0, 5, 6, 7, 8, -1])
  read = table.read_rows(rows, ids, num_rows=6)
  np.testing.assert_array_equal(read, [0, 5, *[np.nan] * 4])
  written = table.write_rows(rows, ids, jnp.full(6, 9.0), num_rows=6)
  np.testing.assert_array_equal(written, [9, 1, 2, 3, 4, 9, 6, 7])


@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("shape", [(2048,), (2048, 3)])
def test_the_same_in_the_hosts_memory(num_devices, shape):
  mesh = sharding.make_mesh(num_devices)
  layout = sharding.on_host(NamedSharding(mesh, sharding.ROWS))
  whole = np.random.default_rng(3).normal(size=shape).astype(np.float32)
  whole[5] = -np.inf
  ids = jnp.array([0, 5, 1999, 2000, 2047, 2048, -1, 255, 256, 1023])
  values = jnp.ones((10, *shape[1:]))
  with jax.set_mesh(mesh):
    on_host = jax.device_put(whole, layout)
    read = table.read_rows(on_host, ids, 2000)
    at_once = table.write_rows(on_host, ids, values, 2000)
    largest = jax.jit(lambda x: table.greatest(x, jnp.arange(2), 5))(on_host)
    written = jax.jit(
      lambda x: table.write_rows(x, ids, values, 2000), donate_argnums=0
    )(on_host)
  assert written.sharding == layout and on_host.is_deleted()
  np.testing.assert_array_equal(largest, whole[:5].max())
  np.testing.assert_array_equal(at_once, written)
  assert read.sharding.memory_kind == "device"
  device = jnp.asarray(whole)
  np.testing.assert_array_equal(read, table.read_rows(device, ids, 2000))
  expected = table.write_rows(device, ids, values, 2000)
  np.testing.assert_array_equal(written, expected)


def test_the_hosts_memory_must_be_in_reach(monkeypatch):
  layout = NamedSharding(sharding.make_mesh(1), sharding.ROWS)
  monkeypatch.setattr(sharding, "HOST_MEMORY", "moon")
  with pytest.raises(ValueError, match="offload_rows needs .* moon memory"):
    sharding.on_host(layout)


def test_a_batch_reads_and_writes_all_tables():
  """Rows that are not replaced are not written."""
  sample = Sample(
    pair=(jnp.arange(6.0), jnp.zeros(6)), image=(), text=jnp.arange(3.0)
  )
  pairs = make_pairs.make_pairs(0, batch=4, num_pairs=6, num_texts=3)
  sizes = Sizes(6, 6, 3)
  old = table.read_batch(sample, pairs, sizes)
  np.testing.assert_array_equal(old.pair[0], pairs.pair_id)
  np.testing.assert_array_equal(old.text, pairs.text_id)
  new = old._replace(pair=(old.pair[0], old.pair[1] + 7))
  found = table.write_batch(sample, pairs, sizes, old=old, new=new)
  assert found.pair[0] is sample.pair[0] and found.text is sample.text
  expected = np.zeros(6)
  expected[pairs.pair_id] = 7
  np.testing.assert_array_equal(found.pair[1], expected)
