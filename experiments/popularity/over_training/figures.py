"""The figures of README.md."""

import textwrap

from matplotlib.figure import Figure
import numpy as np

from experiments.harness import Options, Results
from experiments.harness.plots import COLORS, new_figure
from experiments.harness.statistics import statistics
from experiments.popularity.over_training.measure import BINS
from experiments.popularity.over_training.plan import (
  EPOCHS,
  GLYPHS,
  LETTERS,
  QUEUE,
  RULES,
  SHARED,
)
from experiments.popularity.over_training.tables import found

CAPTION_WIDTH = 15  # characters in a line


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  rows = list(results.rows.values())
  return {
    "histograms.png": draw_histograms(rows),
    "frequency.png": draw_frequency(rows),
    "glyphs.png": draw_pictures(rows, GLYPHS),
    "letters.png": draw_pictures(rows, LETTERS),
  }


def draw_histograms(rows) -> Figure:
  """Draws the density of the queue's zeta after several epochs."""
  figure = new_figure((11, 6), dpi=110)
  parts = (GLYPHS, LETTERS, SHARED)
  axes = figure.subplots(2, len(parts), sharex=True)
  middle = (BINS[1:] + BINS[:-1]) / 2
  for column, part in enumerate(parts):
    for side, name in enumerate(("image", "text")):
      panel = axes[side][column]
      for i, epoch in enumerate(EPOCHS[part]):
        stored = [
          x["learned"][name]["histogram"]
          for row in found(rows, part, QUEUE)
          for x in row["looks"]
          if x["epoch"] == epoch
        ]
        if not stored:
          continue
        counts = np.sum(stored, axis=0)
        density = counts / counts.sum() / (BINS[1] - BINS[0])
        label = f"after epoch {epoch}"
        panel.plot(middle, density, color=COLORS[i], label=label)
      panel.set_title(f"{part}: {name}s", fontsize=10)
      panel.grid(alpha=0.3)
    axes[1][column].set_xlabel("ζ / τ")
    if found(rows, part, QUEUE):
      axes[0][column].legend(fontsize=8)
  axes[0][0].set_ylabel("density")
  return figure


def draw_frequency(rows) -> Figure:
  """Draws slope and rank correlation of zeta on tau log p over epochs."""
  figure = new_figure((11, 6), dpi=110)
  axes = figure.subplots(2, len(RULES), sharey="row")
  for column, (part, rules) in enumerate(RULES.items()):
    for what, panel in zip(("spearman", "slope"), axes, strict=True):
      for i, rule in enumerate(rules):
        for kind, style in (("learned", "o-"), ("exact", "s--")):
          points = {
            epoch: statistics(
              x["frequency"][kind][what]
              for row in found(rows, part, rule)
              for x in row["looks"]
              if x["epoch"] == epoch and kind in x["frequency"]
            )
            for epoch in EPOCHS[part]
          }
          if not any(x.count for x in points.values()):
            continue
          panel[column].errorbar(
            list(points),
            [x.mean for x in points.values()],
            [x.half_width for x in points.values()],
            fmt=style,
            color=COLORS[i],
            markersize=4,
            label=f"{rule}, {kind}",
          )
      panel[column].axhline(0, color="black", linewidth=0.8)
      panel[column].set(xscale="log", xticks=EPOCHS[part])
      panel[column].set_xticklabels(map(str, EPOCHS[part]))
      panel[column].minorticks_off()
      panel[column].grid(alpha=0.3)
    axes[0][column].set_title(part, fontsize=10)
    axes[1][column].set_xlabel("epoch")
  axes[0][0].set_ylabel("rank correlation of ζ and log p")
  axes[1][0].set_ylabel("slope of ζ on τ log p")
  lines = axes[0][-1].get_legend_handles_labels()
  figure.legend(*lines, loc="outside lower center", ncols=5, fontsize=8)
  return figure


def draw_pictures(rows, part: str) -> Figure:
  """Draws the most and the least popular images, with exp(zeta / tau)."""
  figure = new_figure((11, 4.2), dpi=110)
  looks = [x for row in found(rows, part, QUEUE) for x in row["looks"]]
  stored = [x["pictures"] for x in looks if "pictures" in x]
  if not stored:
    return figure
  count = len(stored[0]["most"])
  axes = figure.subplots(2, count)
  for line, end in zip(axes, ("most", "least"), strict=True):
    for panel, shown in zip(line, stored[0][end], strict=True):
      panel.imshow(np.array(shown["image"]), cmap="gray", vmin=0, vmax=255)
      panel.set(xticks=[], yticks=[])
      panel.set_title(f"{shown['popularity']:.2f}", fontsize=9)
      text = textwrap.fill(shown["caption"], CAPTION_WIDTH)
      panel.set_xlabel(text, fontsize=6.5)
    line[0].set_ylabel(f"{end} popular", fontsize=9)
  return figure
