"""The report of runs without captions, with other scores than recall."""

import runpy

import pytest
from repository import CONFIGS

from nuclr_jax.lab import report
from nuclr_jax.lab.report import page
from nuclr_jax.lab.train import build, loop, records


def get_config(name, arg, **changes):
  """A short run of a recipe."""
  config = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](arg)
  short = {
    "num_epochs": 1.0,
    "optimizer.learning_rate.warmup_epochs": 0.0,
    "num_devices": 1,
    "log_every": 1,
  }
  config.update_from_flattened_dict(short | changes)
  return config


@pytest.fixture
def plotted(monkeypatch):
  """The names of the numbers that were plotted."""
  found = []
  plot = page.plot

  def spy(axes, rows, names):
    found.extend(names)
    return plot(axes, rows, names)

  monkeypatch.setattr(page, "plot", spy)
  return found


def test_labelled_images(tmp_path, plotted):
  config = get_config(
    "labelled",
    "nuclr",
    **{
      "data.size": 8,
      "data.scores": ("recall",),
      "data.validation_scores": ("classes", "recall"),
      "model.encoder.stages": ((8, 1, 4),),
      "eval_every_epochs": 0.5,
    },
  )
  parts = build.build(config)
  loop.fit(config, tmp_path, parts=parts)
  text = report.write(tmp_path, parts=parts).read_text()
  assert "Most popular images" in text and "<figure>class " not in text
  assert "class 3<br>&zeta;" in text
  assert "validation/classes_digits/recall@1" in plotted
  assert "validation/classes_digits/mu/top_1" in plotted


def test_sentences(tmp_path, plotted):
  lines = [f"sentence {i} of {i % 7} words" for i in range(40)]
  (tmp_path / "train.txt").write_text("\n".join(lines))
  rated = [f"{i % 5}\t{lines[i]}\t{lines[i + 1]}\n" for i in range(20)]
  (tmp_path / "sts.tsv").write_text("".join(rated))
  config = get_config(
    "sentences",
    "nuclr,small",
    **{
      "data.train": str(tmp_path / "train.txt"),
      "data.validation": (str(tmp_path / "sts.tsv"),),
      "data.length": 8,
      "model.encoder.width": 32,
      "model.dim": 16,
      "batch_size": 16,
      "eval_every": 1,
    },
  )
  parts = build.build(config)
  loop.fit(config, tmp_path / "run", parts=parts)
  text = report.write(tmp_path / "run", parts=parts).read_text()
  assert "<figure>sentence " in text  # texts alone
  assert "validation/sts/spearman" in plotted


@pytest.mark.parametrize(
  ("name", "x", "expected"),
  [
    ("test/coco/image_to_text/recall@10", 0.125, "12.5 %"),
    ("test/mean_recall", 0.125, "12.5 %"),
    ("test/zero_shot_pets/mean_per_class", 0.125, "12.5 %"),
    ("test/zero_shot_pets/top5", 0.125, "12.5 %"),
    ("test/classes_digits/mu_5/avg_10", 0.125, "12.5 %"),
    ("test/classes_digits/trained/top_1", 0.125, "12.5 %"),
    ("test/classes_digits/max_norm", 12.0, "12"),
    ("test/classes_digits/unsupervised_1", 0.6931, "0.693"),
    ("test/classes_digits/mean_classifier", 0.6931, "0.693"),
    ("test/sts/spearman", -0.5, "-0.5"),
    ("test/probe_pets/linear/log10_l2", -6.0, "-6"),
    ("diagnostics/u_drift/image", 0.01, "0.01"),
    ("examples_seen", 12_800, "12,800"),
  ],
)
def test_shares_are_percent_and_nothing_else(name, x, expected):
  assert page.shown_score(name, x) == expected


def test_the_line_of_an_evaluation():
  scores = {
    "validation/coco/mean_recall@1": 0.25,
    "validation/coco/mean_recall@10": 0.5,
    "validation/classes_digits/mu/top_1": 0.75,
    "validation/classes_digits/mu/top_10": 1.0,
    "validation/sts/spearman": 0.125,
  }
  assert records.summary(scores) == (
    "validation/coco/mean_recall@1 0.250  "
    "validation/classes_digits/mu/top_1 0.750  validation/sts/spearman 0.125"
  )
