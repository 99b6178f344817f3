"""The figures of README.md."""

from matplotlib.figure import Figure
import numpy as np

from experiments.bimodal import plan
from experiments.bimodal.algorithms import ALGORITHMS, TEMPERATURE
from experiments.bimodal.plan import CRITERION, Rows, Scale
from experiments.bimodal.summary import MEAN, values
from experiments.harness import Options, Results
from experiments.harness.plots import new_figure
from experiments.harness.statistics import statistics


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
  """Draws validation recall over epochs, with standard errors: Figure 3."""
  figure = new_figure((5, 3.5), dpi=120)
  axes = figure.subplots()
  groups = plan.comparison(scale, rows)
  for label in ("CLIP", "SogCLR", "NUCLR"):
    by_epoch = {}
    for run in groups.get(label, ()):
      curve = rows.get(run.key, {}).get("curve", {"epoch": (), CRITERION: ()})
      for epoch, recall in zip(*curve.values(), strict=True):
        by_epoch.setdefault(epoch, []).append(100 * recall)
    x = sorted(by_epoch)
    recalls = [statistics(by_epoch[epoch]) for epoch in x]
    y = np.array([recall.mean for recall in recalls])
    error = np.array([recall.standard_error for recall in recalls])
    (line,) = axes.plot(x, y, label=label)
    color = line.get_color()
    axes.fill_between(x, y - error, y + error, alpha=0.2, color=color)
  axes.set(xlabel="epoch", ylabel="validation mean R@1, %")
  return with_legend(figure, axes)


def draw_temperatures(scale: Scale, rows: Rows) -> Figure:
  """Draws trials over the temperature, at the best second number if any."""
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
  return with_legend(figure, all_axes[0])


def draw_ablations(scale: Scale, rows: Rows) -> Figure:
  """Draws what each part of NUCLR does, with standard errors: Figure 4."""
  figure = new_figure((5, 3.5), dpi=120)
  axes = figure.subplots()
  for i, (label, runs) in enumerate(plan.ablations(scale, rows).items()):
    recall = statistics(values(runs, rows, MEAN).values())
    if recall.count > 1:
      error = recall.standard_error
      axes.errorbar(i, recall.mean, error, fmt="o", label=label)
  axes.set(xticks=[], ylabel="test mean R@1, %")
  return with_legend(figure, axes)


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
    for label, rates in plan.estimators(scale, rows).items():
      means = {
        rate: statistics(values(runs, rows, metric).values()).mean / factor
        for rate, runs in rates.items()
        if values(runs, rows, metric)
      }
      larger = label in ("paper", "official")
      unit = plan.NUM_PAIRS / plan.BATCH_SIZE if larger else 1
      axes.plot(
        [rate * unit for rate in means],
        list(means.values()),
        "o-",
        label=label,
      )
    axes.set(xscale="log", title=title)
    axes.set_xlabel("ζ rate (paper, official: × n/B)")
  return with_legend(figure, all_axes[0])


def with_legend(figure: Figure, axes) -> Figure:
  """Adds a legend if the axes have labels."""
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
  return figure
