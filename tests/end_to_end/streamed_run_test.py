"""A run on a stream of tars: it goes on where it was, with the same tars."""

import json
import shutil

import chex
import jax
import pytest

from nuclr_jax import fit, load
from tests.lab.data.tar_stream_test import config_of, write_numbered


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
  """Sixty samples in five tars of different sizes."""
  folder = tmp_path_factory.mktemp("tars")
  return write_numbered(folder, [10, 14, 12, 8, 16])


def config(tars):
  """Of NeuCLIP, whose prototypes need no ids."""
  changed = config_of(tars, max_checkpoints=9, num_devices=1)
  neuclip = {"name": "contrib:neuclip", "num_prototypes": 24}
  return changed | {"objective": neuclip | {"restart_every": 5}}


@pytest.fixture(scope="module")
def straight(tars, tmp_path_factory, no_diagnostics):
  """A run that nothing interrupted, with its checkpoints."""
  workdir = tmp_path_factory.mktemp("stream") / "run"
  fit(config(tars), workdir)
  return workdir


def test_it_goes_on_where_it_was(straight, tars, tmp_path):
  workdir = shutil.copytree(straight, tmp_path / "run")
  for step in (8, 12, 14):
    shutil.rmtree(workdir / "checkpoints" / str(step))
  (workdir / "metrics.json").unlink()
  fit(config(tars), workdir)
  chex.assert_trees_all_equal(
    *(jax.device_get(load(x, pairs=False)[2]) for x in (straight, workdir))
  )
  found, expected = (
    (x / "metrics.json").read_text() for x in (workdir, straight)
  )
  assert found == expected


def test_other_tars_are_other_data(straight, tars, tmp_path):
  workdir = shutil.copytree(straight, tmp_path / "run")
  some = tmp_path / "tars"
  shutil.copytree(tars, some, ignore=lambda *x: ["04.tar"])
  text = (workdir / "config.json").read_text()
  (workdir / "config.json").write_text(text.replace(str(tars), str(some)))
  with pytest.raises(ValueError, match="was made with data 'tars/5/60"):
    fit(config(some), workdir)


def test_networks_and_counts_of_tokens_need_no_ids(tars, tmp_path):
  """AmorLIP, whose lambda' is replaced after each epoch, with the term."""
  changes = {
    "objective": {"name": "contrib:amorlip", "temperature": 0.1},
    "terms": {"contrib:token_prediction": {"weight": 0.2}},
  }
  fit(config(tars) | changes, tmp_path / "run")
  state = load(tmp_path / "run", pairs=False)[2].objective.shared
  steps = json.loads((tmp_path / "run" / "metrics.json").read_text())["step"]
  named = {type(x).__name__: x for x in state.values()}
  assert int(named["Networks"].count) == steps
  assert int(named["Seen"].captions) > steps
