"""A run on embeddings that were computed before."""

import shutil

import numpy as np
import pytest

from nuclr_jax.lab.cli import flags, main, scoring
from nuclr_jax.lab.cli.flags import UsageError
from nuclr_jax.lab.config import complete, load_config
from nuclr_jax.lab.train import loop
from tests.lab.export.embed_test import write_pairs


def test_a_run_on_cached_rows_learns(tmp_path, no_diagnostics):
  """It learns the linear maps, so that it retrieves unseen rows."""
  rng = np.random.default_rng(1)
  write_pairs(tmp_path / "train", rng, 250)
  write_pairs(tmp_path / "test", rng, 40)
  config = load_config("cached:nuclr")
  config.update_from_flattened_dict(
    {
      "data.train": str(tmp_path / "train"),
      "data.test": (str(tmp_path / "test"),),
      "model.dim": 8,
      "model.hidden": 0,
      "objective.temperature": 0.1,
      "objective.zeta.size": 128,
      "optimizer.learning_rate.value": 1e-2,
      "batch_size": 50,
      "num_epochs": 40.0,
      "num_devices": 1,
      "eval_every": 0,
      "checkpoint_every": 0,
      "log_every": 100,
    }
  )
  result = loop.fit(config, tmp_path / "run")
  assert result.metrics["test/test/mean_recall@1"] > 0.6
  assert complete(config)["model"]["name"] == "heads"
  # nuclr evaluate takes other folders in place of the run's own.
  workdir = f"--workdir={tmp_path / 'run'}"
  other = shutil.copytree(tmp_path / "test", tmp_path / "other")
  found = score(workdir, f"--data={other}")
  assert found.data[0]["data"] == str(tmp_path / "other")
  expected = {
    name.removeprefix("test/").replace("test/", "other/"): x
    for name, x in result.metrics.items()
    if name.startswith("test/test/")
  }
  assert found.metrics == expected
  with pytest.raises(UsageError, match="--zero_shot is for models of photos"):
    score(workdir, "--zero_shot=x")


def score(*words):
  """The report of `nuclr evaluate`."""
  try:
    main.parse_flags(["nuclr", "evaluate", *words])
    return scoring.score()
  finally:
    flags.parse(["nuclr"])
