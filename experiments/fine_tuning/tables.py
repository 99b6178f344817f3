"""The tables, the other numbers and the figure of README.md."""

from experiments.fine_tuning import plan, predictions
from experiments.fine_tuning.measure import UNTOUCHED
from experiments.fine_tuning.results import (
  SETS,
  arms,
  change,
  last,
  lowest,
  mixed,
  rows_of,
)
from experiments.harness import Options, Results, markdown, plots
from experiments.harness.statistics import paired, statistics

COLORS = (*plots.COLORS, "black")


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  return {
    "first": first_table(results),
    "starts": start_table(results),
    "early": early_table(results),
    "objectives": objective_table(results),
    "mixtures": mixture_table(results),
    "predictions": predictions.table(results),
  }


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns differences that no table has, of R@1 and within seeds.

  "CLIP, cold: step 10 − first, new" is a change along the epoch, "CLIP,
  moments: dip − cold, new" that of the lowest point of the curve minus its
  first, and "CLIP: 0.75 − 1, new" the difference of two shares of the tuned
  weights.
  """
  del options
  found = {}
  for name, start in arms():
    rows, cold = (rows_of(results, name, x) for x in (start, plan.COLD))
    arm = f"{plan.LABELS[name]}, {start}"
    for x in SETS:
      metric = f"{x} R@1"
      for i, step in enumerate(plan.STEPS[1:], 1):
        changes = statistics(change(rows, metric, i).values())
        key = f"{arm}: step {step} − first, {x}"
        found[key] = changes.show_interval(digits=2)
      if start != plan.COLD:
        dips = paired(lowest(rows, metric), lowest(cold, metric))
        found[f"{arm}: dip − cold, {x}"] = dips.show_interval(digits=2)
  for name, label in plan.LABELS.items():
    rows = rows_of(results, name, plan.COLD)
    for x in SETS:
      for share in ("0", "1"):
        gains = paired(
          mixed(rows, f"{x} R@1", "0.75"), mixed(rows, f"{x} R@1", share)
        )
        found[f"{label}: 0.75 − {share}, {x}"] = gains.show_interval(digits=2)
  return found


def first_table(results: Results) -> str:
  """Says how good the model is that is tuned."""
  row = results.rows.get((plan.FIRST, "CLIP", 0))
  if row is None:
    return "Not pre-trained yet."
  scores = (f"{k}: {x[-1]:.1f}" for k, x in row["curve"].items())
  return f"The model before tuning: {', '.join(scores)}."


def start_table(results: Results) -> str:
  """Compares the starts of each objective, at the end and at the worst."""
  header = ["objective", "start"]
  header += [f"{x} R@1" for x in SETS] + [f"− cold, {x}" for x in SETS]
  header += [f"lowest − first, {x}" for x in SETS] + ["s", "seeds"]
  lines = []
  for name, start in arms():
    rows, cold = (rows_of(results, name, x) for x in (start, plan.COLD))
    line = [plan.LABELS[name], start]
    line += [statistics(last(rows, f"{x} R@1").values()).show() for x in SETS]
    line += [
      ""
      if start == plan.COLD
      else paired(
        last(rows, f"{x} R@1"), last(cold, f"{x} R@1")
      ).show_interval()
      for x in SETS
    ]
    line += [
      statistics(lowest(rows, f"{x} R@1").values()).show(digits=2) for x in SETS
    ]
    seconds = [row["recovery_seconds"] for row in rows.values()]
    line += [f"{min(seconds):.0f}" if seconds else "–", str(len(rows))]
    lines.append(line)
  return markdown.table(header, lines)


def early_table(results: Results) -> str:
  """Shows the curves of the untouched task, means over seeds."""
  header = ["objective", "start", *(f"step {x}" for x in plan.STEPS)]
  lines = []
  for name, start in arms():
    curves = [
      row["curve"][f"{UNTOUCHED} R@1"]
      for row in rows_of(results, name, start).values()
    ]
    if curves:
      means = statistics(curves).mean
      lines.append([plan.LABELS[name], start, *(f"{x:.1f}" for x in means)])
  return markdown.table(header, lines)


def objective_table(results: Results) -> str:
  """Compares the objectives after one epoch and after four."""
  metrics = [f"{x} R@{k}" for x in SETS for k in (1, 10)]
  header = ["epochs", "start", "objective", *metrics]
  header += [f"− CLIP, {x}" for x in metrics]
  lines = []
  for epochs, part, start in (
    ("1", plan.TUNED, plan.COLD),
    ("1", plan.TUNED, plan.WARM_UP),
    ("1", plan.TUNED, plan.ALONE),
    ("4", plan.LONG, plan.WARM_UP),
  ):
    clip = rows_of(results, "clip", start, part)
    for name, label in plan.LABELS.items():
      rows = rows_of(results, name, start, part)
      line = [epochs, start, label]
      line += [statistics(last(rows, x).values()).show() for x in metrics]
      line += [
        ""
        if name == "clip"
        else paired(last(rows, x), last(clip, x)).show_interval()
        for x in metrics
      ]
      lines.append(line)
  return markdown.table(header, lines)


def mixture_table(results: Results) -> str:
  """Shows weights between the first and the last ones, from a cold start."""
  shares = predictions.SHARES
  lines = []
  for name in plan.STARTS:
    rows = rows_of(results, name, plan.COLD)
    for x in SETS:
      values = (mixed(rows, f"{x} R@1", share) for share in shares)
      line = [statistics(y.values()).show() for y in values]
      lines.append([plan.LABELS[name], x, *line])
  return markdown.table(["objective", "set", *shares], lines)


def figures(options: Options, results: Results):
  """Draws the curves of each objective on both sets."""
  del options
  figure = plots.new_figure()
  axes = figure.subplots(2, len(plan.STARTS), sharex=True, sharey="row")
  for column, (name, starts) in zip(axes.T, plan.STARTS.items(), strict=True):
    for axis, x in zip(column, SETS, strict=True):
      for color, start in zip(COLORS, starts, strict=False):
        rows = rows_of(results, name, start)
        for i, row in enumerate(rows.values()):
          axis.plot(
            row["steps"],
            row["curve"][f"{x} R@1"],
            color=color,
            label=start if i == 0 else None,
            linewidth=1,
          )
      axis.set_xscale("symlog", linthresh=2)
      axis.set_ylabel(f"{x} R@1")
    column[0].set_title(plan.LABELS[name])
    column[0].legend(fontsize=7)
    column[-1].set_xlabel("step (100 = an epoch)")
  return {"curves.png": figure}
