"""Draws runs over the published curves of CC3M.

python -m experiments.cc3m.overlay --runs=runs/cc3m,runs/sogclr \
  --out=experiments/cc3m/curves.png

The published curves (`official_curves.csv`) are those of the two runs, NUCLR
and SogCLR, whose logs the authors published with their code: 30 epochs of CC3M,
batch 512, float32, two A100s. A run's curves are read from its `history.jsonl`;
it may still be training.
"""

import csv
import pathlib

from absl import app, flags, logging
from matplotlib.figure import Figure
import numpy as np

from nuclr_jax.lab.train import checkpoint, records

RUNS = flags.DEFINE_list("runs", [], "Workdirs, comma-separated.")
OUT = flags.DEFINE_string("out", "curves.png", "File of the figure.")
PUBLISHED = pathlib.Path(__file__).with_name("official_curves.csv")

# The title, our metric (a fraction), the column of the published curves, and
# the factor that turns that column into percent.
PANELS = (
  (
    "COCO, validation: mean R@1 (%)",
    "validation/coco/mean_recall@1",
    "coco_val_r1",
    1.0,
  ),
  (
    "Flickr30k, validation: mean R@1 (%)",
    "validation/flickr30k/mean_recall@1",
    "flickr_val_r1",
    1.0,
  ),
  (
    "COCO, validation: mean of R@1, 5, 10 (%)",
    "validation/coco/mean_recall",
    "coco_val_r_mean",
    1.0,
  ),
  (
    "CIFAR-100, zero-shot top-1 (%)",
    "validation/zero_shot_cifar100/top1",
    "zeroshot_zeroshot_top1",
    100.0,
  ),
)


def published() -> dict[str, dict[str, np.ndarray]]:
  """Reads the published columns, over epochs, of each algorithm."""
  with PUBLISHED.open(newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  curves = {}
  for name in sorted({row["algorithm"] for row in rows}):
    epochs = [row for row in rows if row["algorithm"] == name]
    curves[name] = {
      key: np.array([float(row[key] or "nan") for row in epochs])
      for key in epochs[0]
      if key != "algorithm"
    }
  return curves


def epochs_per_step(workdir: pathlib.Path) -> float:
  """Computes the epochs per step from a run's newest checkpoint."""
  manager, step = checkpoint.open_to_read(workdir)
  meta = checkpoint.read_meta(manager, step)
  manager.close()
  return 1 / (meta["sizes"]["num_pairs"] // meta["config"]["batch_size"])


def main(argv) -> None:
  """Draws the figure."""
  del argv
  logging.set_verbosity(logging.WARNING)  # Orbax is chatty
  runs = [
    (path.name, epochs_per_step(path), records.read_history(path))
    for path in map(pathlib.Path, RUNS.value)
  ]
  for name, _, history in runs:
    if not any(metric in row for row in history for _, metric, *_ in PANELS):
      logging.warning("%s has no curves: none of the figure's metrics", name)
  figure = Figure(figsize=(11, 7.5), layout="constrained")
  for axes, (title, metric, column, scale) in zip(
    figure.subplots(2, 2).flat, PANELS, strict=True
  ):
    for name, columns in published().items():
      # Published epochs count from 0, and their numbers are from their ends.
      axes.plot(
        columns["epoch"] + 1,
        scale * columns[column],
        "--",
        label=f"published: {name}",
      )
    for name, epochs, history in runs:
      rows = [row for row in history if metric in row]
      if rows:
        axes.plot(
          [epochs * row["step"] for row in rows],
          [100 * row[metric] for row in rows],
          marker=".",
          label=name,
        )
    axes.set_title(title)
    axes.set_xlabel("epochs")
    axes.grid(alpha=0.3)
  figure.axes[0].legend(frameon=False)
  figure.savefig(OUT.value, dpi=110)
  print(f"wrote {OUT.value}")


if __name__ == "__main__":
  app.run(main)
