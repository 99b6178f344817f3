"""Runs with hooks, and runs that start warm."""

import numpy as np
import pytest

from nuclr_jax import Sides, popularity
from nuclr_jax.lab.data import DATASETS
from nuclr_jax.lab.train import build, loop
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.train.warm_start import POPULARITY_FILE, save_popularity

pytestmark = pytest.mark.usefixtures("no_diagnostics")


def test_hooks_see_every_nth_state_and_its_model(tiny, few_pairs, tmp_path):
  seen = []

  def look(state, embed):
    seen.append((int(state.step), embed.text(["DIGIT ONE"]).shape))
    return state

  config = tiny(num_epochs=0.2)  # 20 steps
  parts = build.build(config, data=few_pairs)._replace(hooks=(Hook(8, look),))
  loop.fit(config, tmp_path, parts=parts)
  assert seen == [(8, (1, 16)), (16, (1, 16))]


def test_only_the_first_state_needs_the_file_of_a_warm_start(
  tiny, few_pairs, tmp_path, monkeypatch
):
  monkeypatch.setitem(DATASETS, "glyphs", lambda **_: few_pairs)
  sizes, path = few_pairs.train.sizes, tmp_path / POPULARITY_FILE
  rng = np.random.default_rng(0)
  unused = Sides(np.zeros(sizes.num_pairs), np.zeros(sizes.num_pairs))
  found = popularity.Popularity(
    ids=Sides(*map(np.arange, sizes.ids)),
    zeta=Sides(*(rng.normal(size=n) / 10 for n in sizes.ids)),
    log_u=unused,
    log_denominator=unused,
    residual=0.0,
    iterations=0,
    converged=True,
    num_solved=sizes.num_pairs,
  )
  fingerprint = few_pairs.train.fingerprint
  save_popularity(path, found, temperature=0.1, fingerprint=fingerprint)
  config = tiny(num_epochs=0.01).to_dict()
  config |= {"warm_start": str(path), "data": {"name": "glyphs"}}
  loop.fit(config, tmp_path / "run")
  path.unlink()
  _, _, state = loop.load(tmp_path / "run")
  assert int(state.step) == 1
