"""A run of all newer sources of the denominator goes on bit for bit."""

import shutil

import jax
import numpy as np

from nuclr_jax import contrib, objectives
from nuclr_jax.lab.train import build, loop
from nuclr_jax.objectives import denominator


def learned_by(state):
  """What the rivals learn, apart from the values of samples."""
  shared = state.shared
  return (
    shared["tempnet"].temperature.network,
    shared["neuclip"].square,
    shared["amorlip"].previous,
  )


def test_a_run_goes_on_bit_for_bit(tiny, few_pairs, tmp_path, no_diagnostics):
  """From its checkpoint of step 10, with all networks and prototypes.

  AmorLIP's epochs and NeuCLIP's restarts begin before and after it.
  """
  config = tiny(num_epochs=0.2, checkpoint_every=10)
  size = dict(num_pairs=6_400)
  tempnet = contrib.tempnet(dim=16, num_prototypes=64, rate=1e-3, rho=3.0)
  objective = objectives.add(
    tempnet=objectives.sogclr(**size, temperature=tempnet),
    neuclip=contrib.neuclip(dim=16, num_prototypes=100, restart_every=7),
    amorlip=contrib.amorlip(dim=16, steps_per_epoch=8),
    scent=objectives.sogclr(**size, gamma=denominator.Adaptive(5.0)),
    fastclip=contrib.fastclip_released(**size, rho=3.0),
  )
  parts = build.build(config, data=few_pairs)._replace(objective=objective)
  straight = loop.fit(config, tmp_path, parts=parts)
  history = (tmp_path / "history.jsonl").read_bytes()
  first = learned_by(objective.init()[1])
  for x, y in zip(
    learned_by(straight.train_state.objective), first, strict=True
  ):
    assert np.any(jax.tree.leaves(x)[0] != jax.tree.leaves(y)[0])
  shutil.rmtree(tmp_path / "checkpoints" / "20")
  (tmp_path / "metrics.json").unlink()
  again = loop.fit(config, tmp_path, parts=parts)
  jax.tree.map(
    np.testing.assert_array_equal,
    *map(jax.device_get, (again.train_state, straight.train_state)),
  )
  assert (tmp_path / "history.jsonl").read_bytes() == history
