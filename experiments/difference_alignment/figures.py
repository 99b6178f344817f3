"""The figures of README.md; each is drawn into a figure that is given."""

from matplotlib.figure import Figure
import numpy as np

from experiments.difference_alignment import toy
from experiments.labelled_reports import (
  COLORS,
  Lines,
  Numbers,
  data_of,
  draw_course,
  of_settings,
  score,
  summarise,
)


def draw_clusters(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 2: the clusters of Table 6, and accuracies of wider ones."""
  del lines
  above, below = figure.subfigures(2, 1)
  for axes, (name, case) in zip(
    above.subplots(1, len(toy.CASES)), toy.CASES.items(), strict=True
  ):
    x, label = toy.draw(np.random.default_rng(0), case, 200)
    for c, color in zip(range(3), COLORS, strict=False):
      axes.plot(*x[label == c].T, ".", color=color, markersize=2)
    kind = "in" if name in "ac" else ""
    axes.set(title=f"({name}) {kind}consistent", aspect="equal")
  for axes, (kind, found) in zip(
    below.subplots(1, len(toy.KINDS)),
    measured["toy"]["wider"].items(),
    strict=True,
  ):
    for color, (name, parts) in zip(COLORS, found.items(), strict=False):
      points = [summarise(x["test"]) for x in parts]
      axes.errorbar(
        toy.SPREADS,
        [x.mean for x in points],
        [x.error for x in points],
        fmt="o-" if name in "bd" else "x--",
        markersize=4,
        color=color,
        label=f"({name})",
      )
    axes.set(title=kind, xlabel="standard deviation, times that of Table 6")
    axes.set_ylabel("test accuracy, %, 8 neighbours")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def draw_batches(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 5: scores over batch sizes, and over the weight."""
  del measured
  data = [x for x in data_of(lines) if of_settings(lines, f"{x}/batches")]
  if not data:
    return
  name = data[0]
  settings = of_settings(lines, f"{name}/batches")
  hosts = list(dict.fromkeys(x.split()[0] for x in settings))
  panels = figure.subplots(1, len(hosts) + 1)
  for axes, host in zip(panels, hosts, strict=False):
    for color, what in zip(COLORS, ("recall@1", "mu/top_1"), strict=False):
      for style, weight in (("x--", "0"), ("o-", "0.5")):
        own = {
          int(x.split()[1]): summarise(100 * score(y, what) for y in found)
          for x, found in settings.items()
          if x.split()[::2] == [host, weight]
        }
        axes.errorbar(
          list(own),
          [x.mean for x in own.values()],
          [x.error for x in own.values()],
          fmt=style,
          markersize=4,
          color=color,
          label=f"{what}, λ = {weight}",
        )
    axes.set(xscale="log", title=f"{name}, {host}", xlabel="batch size")
    axes.set_xticks(list(own), map(str, own))
    axes.minorticks_off()
  sweep = of_settings(lines, f"{name}/sweep")
  for color, kind in zip(COLORS, ("chain", "star"), strict=False):
    own = {
      float(x.split()[1]): summarise(100 * score(y, "recall@1") for y in found)
      for x, found in sweep.items()
      if x.split()[0] == kind and float(x.split()[1]) > 0
    }
    panels[-1].errorbar(
      list(own),
      [x.mean for x in own.values()],
      [x.error for x in own.values()],
      fmt="o-",
      markersize=4,
      color=color,
      label=f"recall@1, {kind}",
    )
  without = summarise(100 * score(y, "recall@1") for y in sweep["chain 0"])
  panels[-1].axhline(without.mean, color="black", linestyle=":", label="λ = 0")
  panels[-1].set(xscale="log", title=f"{name}, ntxent", xlabel="λ")
  for axes in panels:
    axes.set_ylabel("%")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def draw_curves(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 8: losses and variations along training."""
  del measured
  data = [x for x in data_of(lines) if of_settings(lines, f"{x}/curves")]
  if not data:
    return
  settings = of_settings(lines, f"{data[0]}/curves")
  hosts = list(dict.fromkeys(x.split()[0] for x in settings))
  rows = figure.subplots(2, len(hosts), sharex=True)
  for column, host in enumerate(hosts):
    for color, weight in zip(COLORS, ("0", "0.5"), strict=False):
      found = settings[f"{host} {weight}"]
      loss = "train/loss" if weight == "0" else "train/host/loss"
      label = f"λ = {weight}"
      draw_course(rows[0][column], found, loss, color, label, "-", plain=True)
      draw_course(rows[1][column], found, "variation_chain", color, label, "-")
    rows[0][column].set(title=f"{data[0]}, {host}", ylabel="loss of the host")
    rows[1][column].set(xlabel="step", ylabel="variation (chain)")
    for row in rows:
      row[column].grid(alpha=0.3)
      row[column].legend(fontsize=8)
