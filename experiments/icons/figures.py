"""The figures of README.md."""

from matplotlib.figure import Figure
import numpy as np

from experiments.harness import Options, Results
from experiments.harness.plots import (
  COLORS,
  draw_statistics,
  log_ticks,
  new_figure,
)
from experiments.harness.statistics import statistics
from experiments.icons import plan
from experiments.icons.arms import ARMS, GRIDS, TAU
from experiments.icons.plan import Rows, Scale
from experiments.icons.tables import (
  COLUMNS,
  batch_sizes,
  by_set,
  by_value,
  of_runs,
)

SHOWN = ("sogclr", "nuclr_zero", "nuclr_queue")  # less CLIP, by designer
STYLES = ("o-", "s--", "^:")  # of ten colours each


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  scale, rows = plan.scale_of(options), results.rows
  return {
    "designers.png": draw_designers(scale, rows),
    "temperatures.png": draw_temperatures(scale, rows),
    "batches.png": draw_batch_sizes(scale, rows),
    "curves.png": draw_curves(scale, rows),
  }


def draw_designers(scale: Scale, rows: Rows) -> Figure:
  """Draws each set's difference to CLIP in R@10, on both splits."""
  figure = new_figure((9, 6.5), dpi=90)
  groups = plan.comparison(scale, rows)
  for axes, split in zip(
    figure.subplots(1, 2), ("validation", "test"), strict=True
  ):
    found = {x: by_set(groups, x, rows, split) for x in SHOWN}
    first = next((x for x in found.values() if x), {})
    order = sorted(first, key=lambda x: first[x][1])
    for i, (name, sets) in enumerate(found.items()):
      points = [(j, *sets[x]) for j, x in enumerate(order) if x in sets]
      if points:
        place, count, gain = np.array(points).T
        axes.scatter(
          *(gain, place + 0.2 * (i - 1)),
          s=4 + 60 * count / count.max(),
          alpha=0.7,
          label=ARMS[name].label,
        )
    labels = [f"{x} ({first[x][0]})" for x in order]
    axes.set_yticks(range(len(order)), labels, fontsize=7)
    axes.axvline(0, color="black", linestyle=":")
    axes.set(title=split, xlabel="R@10, points: arm − CLIP")
    if order:
      axes.legend(fontsize=7)
  figure.supylabel("set (queries)", fontsize=9)
  return figure


def draw_temperatures(scale: Scale, rows: Rows) -> Figure:
  """Draws all trials over the temperature."""
  figure = new_figure((7.5, 4.5), dpi=90)
  axes = figure.subplots()
  for i, (name, arm) in enumerate(ARMS.items()):
    points = by_value(scale, name, rows) if arm.tuned == TAU else {}
    if points:
      axes.plot(
        list(points),
        list(points.values()),
        STYLES[i // 10 % len(STYLES)],
        color=f"C{i % 10}",
        linewidth=2 if name in scale.first else 1,
        markersize=4,
        label=arm.label,
      )
  axes.set(xscale="log", xlim=(0.9 * GRIDS[TAU][0], 1.1 * GRIDS[TAU][-1]))
  log_ticks(axes.xaxis)
  axes.set(xlabel="temperature τ", ylabel="validation R@10, %")
  if axes.has_data():
    figure.legend(loc="outside right upper", fontsize=7)
  return figure


def draw_batch_sizes(scale: Scale, rows: Rows) -> Figure:
  """Draws natural recall on test over the batch size, at equal samples."""
  figure = new_figure((9, 3.6), dpi=90)
  for axes, column in zip(
    figure.subplots(1, 2), ("test R@1", "test R@10"), strict=True
  ):
    for i, name in enumerate(plan.BATCH_ARMS):
      points = {}
      for size in batch_sizes(scale):
        runs = plan.at_batch(scale, size, rows).get(name, ())
        if found := of_runs(runs, rows, COLUMNS[column]):
          # Side by side, so that intervals do not cover each other.
          points[size * 1.03 ** (i - 1.5)] = statistics(found.values())
      if points:
        draw_statistics(axes, points, COLORS[i], ARMS[name].label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batch_sizes(scale), map(str, batch_sizes(scale)))
    axes.set(xlabel="batch size", ylabel=f"{column}, %")
  if axes.has_data():
    axes.legend(fontsize=7)
  return figure


def draw_curves(scale: Scale, rows: Rows) -> Figure:
  """Draws the training loss of each of the first arms, a line for a seed."""
  figure = new_figure((11, 2.4), dpi=90)
  groups = plan.comparison(scale, rows)
  all_axes = figure.subplots(1, len(scale.first), squeeze=False)[0]
  for axes, name in zip(all_axes, scale.first, strict=True):
    for run in groups.get(name, ()):
      if curve := rows.get(run.key, {}).get("curve"):
        axes.plot(curve["step"], curve["loss"], linewidth=0.8)
    axes.set_title(ARMS[name].label, fontsize=9)
    axes.tick_params(labelsize=7)
  figure.supxlabel("step", fontsize=9)
  figure.supylabel("training loss", fontsize=9)
  return figure
