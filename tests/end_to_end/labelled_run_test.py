"""Runs on labelled images: digits, glyphs and the data sets of the papers."""

import pytest

from configs import labelled as recipe
from nuclr_jax.lab.export import embedder_of_run
from nuclr_jax.lab.train import build, loop, records
from tests.contrib.labelled_test import write_tfds

SHORT = {
  "num_epochs": 1.0,
  "eval_every_epochs": 0.0,
  "checkpoint_every": 0,
  "num_devices": 1,
}


@pytest.mark.parametrize("name", ["ntxent", "proxy_anchor"])
def test_a_run_learns(name, tmp_path):
  config = recipe.get_config(name)
  config.update_from_flattened_dict(
    SHORT
    | {
      "data.size": 8,
      "data.scores": ("classes", "losses"),
      "data.validation_scores": (),
      "model.encoder.stages": ((2, 2, 16),),
      "num_epochs": 4.0,
    }
  )
  result = loop.fit(config, tmp_path)
  assert result.metrics["test/classes_digits/mu/top_1"] > 0.6
  found = result.metrics["test/classes_digits/mean_classifier"]
  assert found <= result.metrics["test/classes_digits/bound"]
  with pytest.raises(ValueError, match=r"\(8, 8, 1\), not RGB"):
    with embedder_of_run(tmp_path):
      pass


def test_unseen_classes_and_alignment(data_dir, tmp_path):
  """Metric learning from a config: half of the classes, a term, R@k."""
  config = recipe.get_config("proxy_anchor,glyphs")
  config.update_from_flattened_dict(
    SHORT
    | {
      "data.classes": 30,
      "data.unseen": True,
      "data.scores": ("recall", "variation", "classes"),
      "data.positive": "class",
      "model.encoder.stages": ((4, 1, 8),),
      "terms.contrib:difference_alignment.weight": 0.5,
      "batch_size": 40,
      "num_epochs": 2.0,
    }
  )
  result = loop.fit(config, tmp_path, data_dir=data_dir)
  scores = {k.split("/", 2)[2] for k in result.metrics if k.startswith("test")}
  recalls = {f"recall@{k}" for k in (1, 2, 4, 8)}
  assert scores == recalls | {"variation_chain", "variation_star"}
  (line,) = [x for x in records.read_history(tmp_path) if "train/loss" in x]
  assert line["train/difference_alignment/variation"] > 0
  data = build.build(config, data_dir=data_dir).data
  assert data.num_classes == 15


@pytest.mark.parametrize(
  ("argument", "size", "channels", "encoder"),
  [
    ("softmax,mnist", 28, 1, {}),
    ("ntxent,cifar10", 32, 3, {"stages": ((8, 1),) * 5}),
    ("npair,caltech_birds2011", 40, 3, {"stages": (1, 1), "width": 8}),
  ],
)
def test_prepared_data_with_the_encoders_of_the_papers(
  argument, size, channels, encoder, tmp_path, no_diagnostics
):
  name = argument.split(",")[1]
  write_tfds(tmp_path / "data", name, size, channels)
  config = recipe.get_config(argument)
  wanted = {"mnist": "convnet", "cifar10": "vgg16"}.get(name, "resnet50")
  assert config.model.encoder.name == wanted
  with config.unlocked():
    config.model.encoder.update(encoder)  # of the same kind, but small
    config.update_from_flattened_dict(
      SHORT
      | {
        "data.scores": ("recall", "classes"),
        "data.unseen": name == "caltech_birds2011",
        "batch_size": 20,
        "num_epochs": 2.0,
      }
    )
  if name == "caltech_birds2011":
    config.data.size = 32
  result = loop.fit(config, tmp_path / "run", data_dir=tmp_path / "data")
  assert result.metrics[f"test/classes_{name}/recall@8"] > 0.5
