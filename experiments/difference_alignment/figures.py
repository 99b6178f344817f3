"""The figures of README.md; each is drawn into an empty figure."""

from matplotlib.figure import Figure
import numpy as np

from experiments import labelled
from experiments.difference_alignment import clusters, plan
from experiments.harness import Options, Results
from experiments.harness.plots import COLORS, draw_statistics, new_figure
from experiments.harness.statistics import statistics
from experiments.labelled import (
  Rows,
  by_setting,
  data_with,
  draw_course,
  score,
)

NAMES = {
  "debiased": "HCL",
  "ntxent": "SimCLR",
  "swav": "SwAV",
  "npair": "N-pair",
  "proxy_anchor": "proxy anchors",
  "recall@1": "R@1",
  "mu/top_1": "mean classifier",
}


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  rows = labelled.trained(results)
  wider = labelled.of_part(results, plan.WIDER)
  return {
    "clusters.png": draw_clusters(new_figure(), wider),
    "batches.png": draw_batches(new_figure(), rows),
    "curves.png": draw_curves(new_figure(), rows),
    "pictures.png": draw_pictures(new_figure((11, 3.2)), rows),
  }


def draw_clusters(figure: Figure, rows: Rows) -> Figure:
  """Draws the clusters of Table 6 and accuracies of wider ones: Figure 2."""
  if not rows:
    return figure
  above, below = figure.subfigures(2, 1)
  for axes, (name, case) in zip(
    above.subplots(1, len(clusters.CASES)), clusters.CASES.items(), strict=True
  ):
    x, label = clusters.draw(np.random.default_rng(0), case, 200)
    for c, color in zip(range(3), COLORS, strict=False):
      axes.plot(*x[label == c].T, ".", color=color, markersize=2)
    kind = "in" if name in "ac" else ""
    axes.set(title=f"({name}) {kind}consistent", aspect="equal")
  for axes, kind in zip(
    below.subplots(1, len(clusters.KINDS)), clusters.KINDS, strict=True
  ):
    for color, name in zip(COLORS, clusters.CASES, strict=False):
      points = {
        spread: statistics(row["cases"][kind][name][i]["test"] for row in rows)
        for i, spread in enumerate(clusters.SPREADS)
      }
      style = "o-" if name in "bd" else "x--"
      draw_statistics(axes, points, color, f"({name})", style)
    axes.set(title=kind, xlabel="factor of the standard deviation")
    axes.set_ylabel("test accuracy, %, 8 neighbours")
    axes.grid(alpha=0.3)
  _draw_legend(below, axes, ncols=len(clusters.CASES))
  return figure


def draw_batches(figure: Figure, rows: Rows) -> Figure:
  """Draws scores over batch sizes and over the weight: Figure 5."""
  for part, data in _panels(figure, rows, "batches"):
    settings = by_setting(rows, f"{data}/batches")
    hosts = list(dict.fromkeys(x.split()[0] for x in settings))
    *panels, last = part.subplots(1, len(hosts) + 1, sharey=True)
    for axes, host in zip(panels, hosts, strict=True):
      for color, what in zip(COLORS, ("recall@1", "mu/top_1"), strict=False):
        for style, weight in (("x--", "0"), ("o-", "0.5")):
          points = {
            int(x.split()[1]): statistics(100 * score(y, what) for y in seeds)
            for x, seeds in settings.items()
            if x.split()[::2] == [host, weight]
          }
          label = f"{NAMES[what]}, λ = {weight}"
          draw_statistics(axes, points, color, label, style)
      axes.set(xscale="log", title=f"{data}, {NAMES[host]}")
      axes.set_xlabel("batch size")
      axes.set_xticks(list(points), map(str, points))
      axes.minorticks_off()
    _draw_weights(last, by_setting(rows, f"{data}/sweep"))
    last.set_title(f"{data}, SimCLR")
    last.legend(fontsize=8, loc="lower left")
    panels[0].set_ylabel("accuracy or R@1, %")
    for axes in (*panels, last):
      axes.grid(alpha=0.3)
    _draw_legend(part, panels[-1], ncols=4)
  return figure


def draw_curves(figure: Figure, rows: Rows) -> Figure:
  """Draws losses and variations along training: Figure 8."""
  for part, data in _panels(figure, rows, "curves"):
    settings = by_setting(rows, f"{data}/curves")
    hosts = list(dict.fromkeys(x.split()[0] for x in settings))
    grid = part.subplots(2, len(hosts), sharex=True, squeeze=False)
    for column, host in enumerate(hosts):
      above, below = grid[:, column]
      for color, weight in zip(COLORS, ("0", "0.5"), strict=False):
        seeds = settings.get(f"{host} {weight}", [])
        loss = "train/loss" if weight == "0" else f"train/{host}/loss"
        label = f"λ = {weight}"
        draw_course(above, seeds, loss, color, label, "-", plain=True)
        draw_course(below, seeds, "variation_chain", color, label, "-")
      above.set(title=f"{data}, {NAMES[host]}", ylabel="loss of the host")
      below.set(xlabel="step", ylabel="variation (chain)")
      for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
  return figure


def draw_pictures(figure: Figure, rows: Rows) -> Figure:
  """Draws the test embeddings in the plane, by class: Figure 4."""
  for part, data in _panels(figure, rows, "pictures"):
    settings = by_setting(rows, f"{data}/pictures")
    drawn = {
      name: row
      for name, seeds in settings.items()
      for row in seeds
      if "points" in row
    }
    if not drawn:
      continue
    grid = part.subplots(1, len(drawn), squeeze=False)[0]
    for axes, (name, row) in zip(grid, drawn.items(), strict=True):
      host, _, weight = name.split()
      x, label = np.array(row["points"]), np.array(row["label"])
      axes.scatter(*x.T, c=label, cmap="tab10", s=5)
      axes.set(title=f"{data}, {NAMES[host]}, λ = {weight}")
      axes.set(xticks=[], yticks=[])
  return figure


def _panels(figure: Figure, rows: Rows, part: str) -> list[tuple]:
  """Makes a row of the figure for each data set that has runs of the part."""
  data = data_with(rows, part)
  if not data:
    return []
  figure.set_figheight(figure.get_figheight() * len(data))
  parts = figure.subfigures(len(data), 1, squeeze=False)[:, 0]
  return list(zip(parts, data, strict=True))


def _draw_legend(figure, axes, ncols: int) -> None:
  """Draws the legend of some axes below all of them, where it hides nothing."""
  handles, labels = axes.get_legend_handles_labels()
  place = "outside lower center"
  figure.legend(handles, labels, loc=place, ncols=ncols, fontsize=8)


def _draw_weights(axes, settings) -> None:
  """Draws recall over the weight."""

  def recall(seeds):
    return statistics(100 * score(x, "recall@1") for x in seeds)

  for color, kind in zip(COLORS, ("chain", "star"), strict=False):
    points = {
      float(x.split()[1]): recall(seeds)
      for x, seeds in settings.items()
      if x.split()[0] == kind and float(x.split()[1]) > 0
    }
    draw_statistics(axes, points, color, f"R@1, {kind}")
  without = recall(settings.get("chain 0", []))
  axes.axhline(without.mean, color="black", linestyle=":", label="λ = 0")
  axes.set(xscale="log", xlabel="λ")
