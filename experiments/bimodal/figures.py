"""The figures of README.md."""

from matplotlib.figure import Figure
import numpy as np

from experiments.bimodal import plan
from experiments.bimodal.algorithms import ALGORITHMS, TEMPERATURE
from experiments.bimodal.plan import CRITERION, Rows, Scale
from experiments.bimodal.summary import MEAN, values
from experiments.harness import Options, Results
from experiments.harness.plots import new_figure
from experiments.harness.statistics import paired, statistics


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  scale, rows = plan.scale_of(options), results.rows
  return {
    "curves.png": draw_curves(scale, rows),
    "temperatures.png": draw_temperatures(scale, rows),
    "ablations.png": draw_ablations(scale, rows),
    "rates.png": draw_rates(scale, rows),
  }


def draw_curves(scale: Scale, rows: Rows) -> Figure:
  """Draws validation recall over epochs, with 95 % intervals: Figure 3."""
  figure = new_figure((6.5, 3.5), dpi=120)
  axes = figure.subplots()
  groups = plan.comparison(scale, rows)
  for label in ("CLIP", "SogCLR", "NUCLR", "NUCLR, queue"):
    by_epoch = {}
    for run in groups.get(label, ()):
      curve = rows.get(run.key, {}).get("curve", {"epoch": (), CRITERION: ()})
      for epoch, recall in zip(*curve.values(), strict=True):
        by_epoch.setdefault(epoch, []).append(100 * recall)
    if not by_epoch:
      continue
    x = sorted(by_epoch)
    recalls = [statistics(by_epoch[epoch]) for epoch in x]
    y = np.array([recall.mean for recall in recalls])
    error = np.array([recall.half_width for recall in recalls])
    (line,) = axes.plot(x, y, label=f"{label}, {recalls[0].count} seeds")
    color = line.get_color()
    axes.fill_between(x, y - error, y + error, alpha=0.2, color=color)
  before, label = plan.running_averages(), "single runs, running averages"
  for run in (*groups.get("CLIP", ()), *groups.get("NUCLR", ())):
    if run.key in before:
      curve = before[run.key]["curve"]
      recall = 100 * np.array(curve[CRITERION])
      axes.plot(curve["epoch"], recall, "k:", lw=0.6, alpha=0.5, label=label)
      label = None
  axes.set(xlabel="epoch", ylabel="validation mean R@1, %")
  axes.set_title("mean over seeds, band: its 95 % interval", fontsize=10)
  return with_legend(figure, axes)


def draw_temperatures(scale: Scale, rows: Rows) -> Figure:
  """Draws trials over the temperature, at the best second number if any.

  Which one is best, validation decides in both panels.
  """
  figure = new_figure((9, 3.5), dpi=120)
  panels = {
    CRITERION: "validation mean R@1, %",
    MEAN: "test mean R@1, %",
  }
  all_axes = figure.subplots(1, len(panels))
  for name in scale.algorithms:
    runs = [run for run in plan.trials(scale, name) if run.key in rows]
    by_temperature = {}
    for run in sorted(runs, key=lambda run: plan.score(run, rows)):
      if (tau := dict(run.values).get(TEMPERATURE)) is not None:
        by_temperature[tau] = run  # the last is the best
    for axes, metric in zip(all_axes, panels, strict=True):
      points = {
        tau: y
        for tau, run in sorted(by_temperature.items())
        for y in values([run], rows, metric).values()
      }
      if points:
        axes.plot(
          points.keys(), points.values(), "o-", label=ALGORITHMS[name].label
        )
  for axes, title in zip(all_axes, panels.values(), strict=True):
    axes.set(xlabel="temperature τ", title=title)
  words = (
    "a point is one run (seed 100); where a second number is tuned, "
    "the best of three on validation"
  )
  figure.supxlabel(words, fontsize=9)
  return with_legend(figure, all_axes[0])


def draw_ablations(scale: Scale, rows: Rows) -> Figure:
  """Draws how far NUCLR is ahead of each variant, paired: Figure 4."""
  figure = new_figure((6.5, 3), dpi=120)
  axes = figure.subplots()
  ours, *variants = plan.ablations(scale, rows).items() or [("", ())]
  for i, (_, runs) in enumerate(variants):
    ahead = paired(values(ours[1], rows, MEAN), values(runs, rows, MEAN))
    if ahead.count > 1:
      axes.errorbar(ahead.mean, i, xerr=ahead.half_width, fmt="o", color="C0")
  axes.axvline(0, color="black", linestyle=":")
  axes.set_yticks(range(len(variants)), [label for label, _ in variants])
  axes.invert_yaxis()
  axes.set_xlabel(
    "test mean R@1, points: NUCLR − variant, with its 95 % interval"
  )
  return figure


def draw_rates(scale: Scale, rows: Rows) -> Figure:
  """Draws recall and agreement with exact popularities over zeta's rate."""
  figure = new_figure((11, 3.5), dpi=120)
  panels = {
    MEAN: "test mean R@1, %",
    "exact/pearson_text": "correlation, texts",
    "exact/pearson_image": "correlation, images",
  }
  all_axes = figure.subplots(1, len(panels))
  for axes, (metric, title) in zip(all_axes, panels.items(), strict=True):
    factor = 1 if metric == MEAN else 100
    for i, (label, rates) in enumerate(plan.estimators(scale, rows).items()):
      larger = label in ("paper", "official")
      unit = plan.NUM_PAIRS / plan.BATCH_SIZE if larger else 1
      points = {
        rate * unit: [x / factor for x in values(runs, rows, metric).values()]
        for rate, runs in rates.items()
      }
      points = {rate: seeds for rate, seeds in points.items() if seeds}
      means = [np.mean(seeds) for seeds in points.values()]
      axes.plot(points.keys(), means, "-", color=f"C{i}", label=label)
      for rate, seeds in points.items():
        axes.plot([rate] * len(seeds), seeds, ".", color=f"C{i}", markersize=5)
    axes.set(xscale="log", title=title)
    axes.set_xlabel("ζ rate (paper, official: × n/B)")
  figure.supxlabel("dots: the two seeds; lines: their means", fontsize=9)
  return with_legend(figure, all_axes[0])


def with_legend(figure: Figure, axes) -> Figure:
  """Adds a legend if the axes have labels."""
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
  return figure
