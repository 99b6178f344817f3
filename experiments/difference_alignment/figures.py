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
  draw_summaries,
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
      points = dict(zip(toy.SPREADS, points, strict=True))
      style = "o-" if name in "bd" else "x--"
      draw_summaries(axes, points, color, f"({name})", style)
    axes.set(title=kind, xlabel="standard deviation, times that of Table 6")
    axes.set_ylabel("test accuracy, %, 8 neighbours")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def draw_batches(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 5: scores over batch sizes, and over the weight."""
  del measured
  for part, data in _rows(figure, lines, "batches"):
    settings = of_settings(lines, f"{data}/batches")
    hosts = list(dict.fromkeys(x.split()[0] for x in settings))
    *panels, last = part.subplots(1, len(hosts) + 1)
    for axes, host in zip(panels, hosts, strict=True):
      for color, what in zip(COLORS, ("recall@1", "mu/top_1"), strict=False):
        for style, weight in (("x--", "0"), ("o-", "0.5")):
          own = {
            int(x.split()[1]): summarise(100 * score(y, what) for y in found)
            for x, found in settings.items()
            if x.split()[::2] == [host, weight]
          }
          draw_summaries(axes, own, color, f"{what}, λ = {weight}", style)
      axes.set(xscale="log", title=f"{data}, {host}", xlabel="batch size")
      axes.set_xticks(list(own), map(str, own))
      axes.minorticks_off()
    _draw_weights(last, of_settings(lines, f"{data}/sweep"))
    last.set_title(f"{data}, ntxent")
    for axes in (*panels, last):
      axes.set_ylabel("%")
      axes.grid(alpha=0.3)
      axes.legend(fontsize=8)


def draw_curves(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 8: losses and variations along training."""
  del measured
  for part, data in _rows(figure, lines, "curves"):
    settings = of_settings(lines, f"{data}/curves")
    hosts = list(dict.fromkeys(x.split()[0] for x in settings))
    rows = part.subplots(2, len(hosts), sharex=True)
    for column, host in enumerate(hosts):
      above, below = rows[:, column]
      for color, weight in zip(COLORS, ("0", "0.5"), strict=False):
        found = settings[f"{host} {weight}"]
        loss = "train/loss" if weight == "0" else "train/host/loss"
        label = f"λ = {weight}"
        draw_course(above, found, loss, color, label, "-", plain=True)
        draw_course(below, found, "variation_chain", color, label, "-")
      above.set(title=f"{data}, {host}", ylabel="loss of the host")
      below.set(xlabel="step", ylabel="variation (chain)")
      for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _rows(figure: Figure, lines: Lines, part: str) -> list[tuple]:
  """A row of the figure for each data set that has runs of the part."""
  data = [x for x in data_of(lines) if of_settings(lines, f"{x}/{part}")]
  if not data:
    return []
  figure.set_figheight(figure.get_figheight() * len(data))
  rows = figure.subfigures(len(data), 1, squeeze=False)[:, 0]
  return list(zip(rows, data, strict=True))


def _draw_weights(axes, settings) -> None:
  """Recall over the weight."""

  def recall(found):
    return summarise(100 * score(x, "recall@1") for x in found)

  for color, kind in zip(COLORS, ("chain", "star"), strict=False):
    own = {
      float(x.split()[1]): recall(found)
      for x, found in settings.items()
      if x.split()[0] == kind and float(x.split()[1]) > 0
    }
    draw_summaries(axes, own, color, f"recall@1, {kind}")
  without = recall(settings["chain 0"])
  axes.axhline(without.mean, color="black", linestyle=":", label="λ = 0")
  axes.set(xscale="log", xlabel="λ")
