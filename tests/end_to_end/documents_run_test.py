"""Runs on documents and reviews: they find which sentences belong together."""

import pytest

from configs import documents as recipe
from nuclr_jax.lab.train import loop
from tests.contrib.documents_test import Reviews, write_documents


def make_config(algorithm, **changes):
  config = recipe.get_config(algorithm)
  config.update_from_flattened_dict(
    {
      "data.length": 12,
      "model.encoder.width": 16,
      "model.dim": 8,
      "optimizer.learning_rate.value": 1e-2,
      "eval_every_epochs": 0.0,
      "num_devices": 1,
    }
    | changes
  )
  return config


@pytest.mark.parametrize("algorithm", ["curl", "quick_thought", "softmax"])
def test_runs_find_the_documents(algorithm, tmp_path, no_diagnostics):
  folder = write_documents(tmp_path / "words")
  changes = {"data.train": str(folder), "batch_size": 40, "num_epochs": 40.0}
  changes["data.ways"] = (2,)
  if algorithm == "curl":
    changes["objective.num_negatives"] = 2
  config = make_config(algorithm, **changes)
  metrics = loop.fit(config, tmp_path / "run").metrics
  assert metrics["test/classes_words/mu/avg_2"] > 0.9
  assert metrics["test/classes_words/trained/top_1"] > 0.8


def test_a_run_on_reviews(tmp_path):
  Reviews(data_dir=tmp_path, file_format="array_record").download_and_prepare()
  changes = {
    "data.train": "reviews:unsupervised",
    "data.classify": ("reviews:train", "reviews:test"),
    "data.ways": (2,),
    "batch_size": 30,
    "num_epochs": 10.0,
    "objective.num_negatives": 3,
  }
  config = make_config("curl", **changes)
  metrics = loop.fit(config, tmp_path / "run", data_dir=tmp_path).metrics
  assert metrics["test/classes_reviews/trained/avg_2"] > 0.9
