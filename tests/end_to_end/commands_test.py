"""The launcher's verbs, one after the other, as a user types them."""

import csv
import json
import re
import subprocess
import sys

import make_pairs
import numpy as np
import pytest
from repository import ROOT
import tiny_config

from tests.lab.cli.main_test import nuclr


def test_train_evaluate_report(data_dir, tmp_path):
  """In a folder with a space in its name."""
  workdir = tmp_path / "my run"
  common = (f"--workdir={workdir}", f"--data_dir={data_dir}")
  config = "--config=configs/glyphs.py:smoke,sogclr"
  small = tiny_config.as_flags(tiny_config.TOWERS | {"num_epochs": 0.2})
  trained = nuclr("train", config, *common, *small)
  assert trained.returncode == 0, trained.stderr
  assert "ETA" in trained.stderr and "pairs/s" in trained.stderr
  again = nuclr("train", config, *common, *small)
  assert "holds a finished run" in again.stderr
  evaluated = nuclr("evaluate", *common)
  assert evaluated.returncode == 0, evaluated.stderr
  trained, evaluated = (
    dict(x.split() for x in run.stdout.splitlines() if x.startswith("test/"))
    for run in (trained, evaluated)
  )
  assert trained and trained.items() <= evaluated.items()
  metrics = json.loads((workdir / "metrics.json").read_text())
  assert {k for k in metrics if k.startswith("test/")} == evaluated.keys()
  for name, x in evaluated.items():
    assert float(x) == pytest.approx(metrics[name], abs=1e-4)
  averaged = nuclr("evaluate", *common, "--average")
  assert averaged.returncode == 2
  assert "keeps no average of the weights; leave --average" in averaged.stderr
  others = nuclr("evaluate", *common, f"--zero_shot={tmp_path}")
  assert others.returncode == 1 and not others.stdout
  assert "takes images of shape (16, 16, 1), not RGB images" in others.stderr
  # As a user types it, from an empty process.
  reported = subprocess.run(
    [sys.executable, "-m", "nuclr_jax.lab.cli.main", "report", *common],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert reported.returncode == 0, reported.stderr
  page = (workdir / "report.html").read_text()
  assert "Retrieval on the test split" in page
  assert "<h2>Health</h2>" in page
  share = r"<td>[\d.]+ %"  # of the run, before training and by chance
  assert re.search(f"<td>test/mean_recall@1{3 * share}<tr>", page)
  assert ("warn of nothing" in page) == ("<li class=wrong>" not in page)
  assert "Most popular" not in page  # SogCLR has no zeta
  for name in ("curves", "health"):
    assert (workdir / "report" / f"{name}.png").stat().st_size > 5000


def test_popularity_of_two_npy_files(tmp_path):
  text = make_pairs.unit_rows(0, 20, 8)[np.arange(50) % 20]
  image = text + 0.3 * make_pairs.unit_rows(1, 50, 8)
  np.save(tmp_path / "image.npy", image)
  np.save(tmp_path / "text.npy", text + 1e-3)
  paths = f"{tmp_path / 'image.npy'},{tmp_path / 'text.npy'}"
  result = nuclr(
    "popularity",
    "--temperature=0.1",
    f"--embeddings={paths}",
    f"--workdir={tmp_path / 'out'}",
  )
  assert result.returncode == 0, result.stderr
  assert "popularity.html" in result.stdout
  with (tmp_path / "out" / "popularity" / "images.csv").open() as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 50 and rows[3]["caption"] == "text 3"
