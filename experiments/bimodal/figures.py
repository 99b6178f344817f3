"""The figures of README.md."""

import pathlib

from algorithms import ALGORITHMS, TEMPERATURE
from matplotlib.figure import Figure
import numpy as np
from scipy import stats
import study
from summary import MEAN, values
import tables

HERE = pathlib.Path(__file__).resolve().parent


def draw_curves(results, curves) -> None:
  """Figure 3: validation recall over epochs, with standard errors."""
  figure = Figure(figsize=(5, 3.5), layout="constrained")
  axes = figure.subplots()
  groups = study.comparison(results)
  for label in ("CLIP", "SogCLR", "NUCLR"):
    keys = {run.key for run in groups.get(label, ())}
    by_epoch = {}
    for point in curves:
      if tables.key_of(point) in keys:
        recall = 100 * float(point[study.CRITERION])
        by_epoch.setdefault(float(point["epoch"]), []).append(recall)
    x = sorted(by_epoch)
    y = np.array([np.mean(by_epoch[epoch]) for epoch in x])
    error = np.array([stats.sem(by_epoch[epoch]) for epoch in x])
    (line,) = axes.plot(x, y, label=label)
    color = line.get_color()
    axes.fill_between(x, y - error, y + error, alpha=0.2, color=color)
  axes.set(xlabel="epoch", ylabel="validation mean R@1, %")
  save(figure, axes, "curves.png")


def draw_temperatures(results) -> None:
  """The trials over the temperature, at the best value of a second number."""
  figure = Figure(figsize=(9, 3.5), layout="constrained")
  panels = {
    study.CRITERION: "validation mean R@1, %",
    MEAN: "test mean R@1, %",
  }
  all_axes = figure.subplots(1, len(panels))
  for name, algorithm in ALGORITHMS.items():
    runs = [run for run in study.trials(name) if run.key in results]
    by_temperature = {}
    for run in sorted(runs, key=lambda run: study.score(run, results)):
      if (tau := dict(run.settings).get(TEMPERATURE)) is not None:
        by_temperature[tau] = run  # the last is the best
    for axes, metric in zip(all_axes, panels, strict=True):
      points = {
        tau: y
        for tau, run in sorted(by_temperature.items())
        for y in values([run], results, metric).values()
      }
      if points:
        axes.plot(points.keys(), points.values(), "o-", label=algorithm.label)
  for axes, title in zip(all_axes, panels.values(), strict=True):
    axes.set(xlabel="temperature τ", title=title)
  save(figure, all_axes[0], "temperatures.png")


def draw_ablations(results) -> None:
  """Figure 4: what each part of NUCLR does, with standard errors."""
  figure = Figure(figsize=(5, 3.5), layout="constrained")
  axes = figure.subplots()
  for i, (label, runs) in enumerate(study.ablations(results).items()):
    found = list(values(runs, results, MEAN).values())
    if len(found) > 1:
      axes.errorbar(i, np.mean(found), stats.sem(found), fmt="o", label=label)
  axes.set(xticks=[], ylabel="test mean R@1, %")
  save(figure, axes, "ablations.png")


def draw_rates(results) -> None:
  """Recall and agreement with the exact popularity over the rate of zeta."""
  figure = Figure(figsize=(11, 3.5), layout="constrained")
  panels = {
    MEAN: "test mean R@1, %",
    "exact/pearson_text": "correlation, texts",
    "exact/pearson_image": "correlation, images",
  }
  all_axes = figure.subplots(1, len(panels))
  for axes, (metric, title) in zip(all_axes, panels.items(), strict=True):
    factor = 1 if metric == MEAN else 100
    for label, rates in study.estimators(results).items():
      found = {
        rate: list(values(runs, results, metric).values())
        for rate, runs in rates.items()
      }
      found = {rate: x for rate, x in found.items() if x}
      larger = label in ("paper", "official")
      scale = study.NUM_PAIRS / study.BATCH_SIZE if larger else 1
      axes.plot(
        [rate * scale for rate in found],
        [np.mean(x) / factor for x in found.values()],
        "o-",
        label=label,
      )
    axes.set(xscale="log", title=title)
    axes.set_xlabel("ζ rate (paper, official: × n/B)")
  save(figure, all_axes[0], "rates.png")


def save(figure: Figure, axes, name: str) -> None:
  """Saves a figure beside this file, with a legend if there is anything."""
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
  figure.savefig(HERE / name, dpi=120)
