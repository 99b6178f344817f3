"""A run on icons, and another version of the package."""

import make_icons
import pytest

from configs import icons as recipe
from nuclr_jax.lab.train import loop

pytest.importorskip("resvg_py", reason="icons are drawn by resvg")


def make_config(folder, version):
  package = make_icons.write_package(folder / f"{version}.tgz", version=version)
  config = recipe.get_config("nuclr,smoke")
  config.update_from_flattened_dict(
    {
      "data.package": str(package),
      "data.version": version,
      "data.size": 16,
      "data.processes": 1,
      "batch_size": 8,
      "num_epochs": 1.0,
      "objective.zeta.size": 8,
      "model.image_features": 8,
      "model.dim": 8,
      "num_devices": 1,
    }
  )
  return config


def test_another_version_than_a_run_was_trained_on(tmp_path):
  """Rows of its state would belong to other icons."""
  first = make_config(tmp_path, "1.0.0")
  metrics = loop.fit(first, tmp_path / "run", data_dir=tmp_path).metrics
  assert 0 <= metrics["validation/natural/mean_recall@1"] <= 1
  other = make_config(tmp_path, "1.0.1")
  other.num_epochs = 2.0
  said = r"data\.version is 1\.0\.0 there, 1\.0\.1 here\. Give the same"
  with pytest.raises(ValueError, match=said):
    loop.fit(other, tmp_path / "run", data_dir=tmp_path)
