"""Runs with hooks, and runs that start warm."""

import pytest
import saved_popularity

from nuclr_jax.lab.data import DATASETS
from nuclr_jax.lab.train import build, loop
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.train.warm_start import POPULARITY_FILE

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
  path = tmp_path / POPULARITY_FILE
  saved_popularity.save_random(path, few_pairs.train)
  config = tiny(num_epochs=0.01).to_dict()
  config |= {"warm_start": str(path), "data": {"name": "glyphs"}}
  loop.fit(config, tmp_path / "run")
  path.unlink()
  _, _, state = loop.load(tmp_path / "run")
  assert int(state.step) == 1
