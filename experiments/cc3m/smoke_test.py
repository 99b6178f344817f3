"""The whole recipe for CC3M, small: ingest, train, evaluate."""

import json
import pathlib

import chex
import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
import warm

from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.export import embedder_of_run
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import loop
from nuclr_jax.types import Sides, each

ROOT = pathlib.Path(__file__).parents[2]

SHORT = """
from nuclr_jax.lab.config import load_config

def get_config():
  config = load_config("cc3m:smoke")
  config.update(dict(num_epochs=6.0, log_every=12, eval_every=36))
  config.checkpoint_every = 36
  return config
"""


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
  """What `experiments/cc3m/smoke.py` leaves, of 6 instead of all epochs."""
  folder = tmp_path_factory.mktemp("smoke")
  config = folder / "short.py"
  config.write_text(SHORT)
  command = ["-m", "experiments.cc3m.smoke"]
  command += [f"--out={folder}", f"--config={config}"]
  done = warm.run(command, cwd=ROOT)
  assert done.returncode == 0, done.stdout + done.stderr
  return folder, done.stdout


class TestSmoke:
  """One run; every test looks at another part of what it left."""

  RECALL = [
    f"{way}/recall@{k}"
    for way in ("image_to_text", "text_to_image")
    for k in (1, 5, 10)
  ] + ["mean_recall@1", "mean_recall@5", "mean_recall@10", "mean_recall"]
  CLASSES = ["zero_shot_smoke_classes/top1", "zero_shot_smoke_classes/top5"] + [
    f"probe_smoke_classes/{kind}/{name}"
    for kind in ("mean", "neighbours", "linear")
    for name in ("top1", "mean_per_class")
  ]

  def test_broken_photos_are_listed(self, smoke):
    home = smoke[0] / "data" / "smoke" / "1.0.0"
    listed = (home / "smoke-train.rejected.jsonl").read_text().splitlines()
    rejected = [json.loads(line) for line in listed]
    assert [x["key"] for x in rejected] == ["000000017", "000000050"]
    assert {x["reason"] for x in rejected} == {"truncated image"}
    found = tfds.builder_from_directory(home).info.splits
    counts = {name: split.num_examples for name, split in found.items()}
    assert counts.pop("train") == 198
    assert set(counts) == {"validation", "test"}

  def test_everything_is_scored(self, smoke):
    metrics = json.loads((smoke[0] / "run" / "metrics.json").read_text())
    expected = [
      f"{x}/smoke/{y}" for x in ("validation", "test") for y in self.RECALL
    ]
    expected += [f"test/{name}" for name in self.CLASSES]
    assert set(expected) <= set(metrics)
    assert all(np.isfinite(x) for x in metrics.values())
    assert all(0 <= metrics[name] <= 1 for name in expected)
    assert metrics["step"] == 6 * (198 // 16)
    assert metrics["test/probe_smoke_classes/linear/top1"] > 0.5  # 1/8 = chance

  def test_loss_falls(self, smoke):
    lines = (smoke[0] / "run" / "history.jsonl").read_text().splitlines()
    losses = [
      row["train/loss"] for row in map(json.loads, lines) if "train/loss" in row
    ]
    assert len(losses) == 6 and np.isfinite(losses).all()
    assert losses[-1] < 0.85 * losses[0]

  def test_the_model_opens_without_the_data(self, smoke, tmp_path):
    run, rng = smoke[0] / "run", np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    inputs = Sides(images, ["a red circle", "a blue square"])
    with embedder_of_run(run, data_dir=tmp_path) as model:
      found = each(lambda f, x: f(x), model.encode, inputs)
    with pytest.raises(ValueError, match="no data set 'smoke"):
      loop.load(run, data_dir=tmp_path)
    parts, mesh, state = loop.load(run, data_dir=smoke[0] / "data")
    with jax.set_mesh(mesh):
      encode = loop.embedder(parts, mesh)(state)
      chex.assert_trees_all_equal(
        found, Sides(encode.image(images), encode.text(inputs.text))
      )

  def test_corrected_scores_are_printed(self, smoke):
    printed = dict(
      line.split() for line in smoke[1].splitlines() if len(line.split()) == 2
    )
    for split in ("validation", "test"):
      for name in self.RECALL:
        assert 0 <= float(printed[f"{split}/hubs_csls/smoke/{name}"]) <= 1

  def test_own_photos_need_no_other_data(self, smoke):
    config = load_config("cc3m:own,smoke")
    assert config.data.train == "mine"
    config.data.update(train="smoke", validation=("smoke",))
    parts = experiment.build(config, data_dir=smoke[0] / "data")
    assert {k: len(v) for k, v in parts.evaluators.items() if v} == {
      "validation": 1
    }

  def test_report(self, smoke):
    page = (smoke[0] / "run" / "report.html").read_text()
    assert "<img" in page and "recall" in page
