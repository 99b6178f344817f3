"""A user's own training loop, in two processes of four devices."""

import pathlib
import pickle
import socket

import jax
import numpy as np
import own_loop
import warm

SCRIPT = pathlib.Path(own_loop.__file__)


def test_two_processes_equal_one_without_a_mesh(tmp_path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  file = tmp_path / "found"
  processes = [
    warm.Process([SCRIPT, address, i, file], devices=4) for i in range(2)
  ]
  expected = jax.tree.leaves(own_loop.of_one_process())
  codes = [process.wait() for process in processes]
  assert codes == [0, 0], [process.said() for process in processes]
  for found in pickle.loads(file.read_bytes()):
    for x, wanted in zip(found, expected, strict=True):
      np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=2e-6)
