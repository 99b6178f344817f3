"""The tables and the figure of README.md."""

from collections.abc import Mapping

from experiments.fine_tuning import plan
from experiments.fine_tuning.measure import NEW, UNTOUCHED
from experiments.harness import Options, Results, markdown, plots
from experiments.harness.statistics import paired, statistics

SETS = (NEW, UNTOUCHED)
COLORS = (*plots.COLORS, "black")


def rows_of(
  results: Results, name: str, start: str, part: str = plan.TUNED
) -> dict[int, Mapping]:
  """Returns the rows of an arm, by seed."""
  return results.by_seed(part, f"{plan.LABELS[name]}, {start}")


def last(rows, metric: str) -> dict[int, float]:
  """Returns the last value of a curve, by seed."""
  return {seed: row["curve"][metric][-1] for seed, row in rows.items()}


def lowest(rows, metric: str) -> dict[int, float]:
  """Returns by how much a curve falls below its start, at most, by seed."""
  return {
    seed: min(row["curve"][metric]) - row["curve"][metric][0]
    for seed, row in rows.items()
  }


def arms():
  """Yields all objectives and starts."""
  return [(x, y) for x, starts in plan.STARTS.items() for y in starts]


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  return {
    "first": first_table(results),
    "starts": start_table(results),
    "early": early_table(results),
    "objectives": objective_table(results),
    "mixtures": mixture_table(results),
  }


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
  header += [f"− CLIP, {x} R@1" for x in SETS]
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
        else paired(
          last(rows, f"{x} R@1"), last(clip, f"{x} R@1")
        ).show_interval()
        for x in SETS
      ]
      lines.append(line)
  return markdown.table(header, lines)


def mixture_table(results: Results) -> str:
  """Shows weights between the first and the last ones, from a cold start."""
  shares = ("0", *(f"{x:g}" for x in plan.SHARES), "1")
  lines = []
  for name in plan.STARTS:
    rows = rows_of(results, name, plan.COLD)
    for x in SETS:
      metric, line = f"{x} R@1", []
      for share in shares:
        values = [
          row["mixed"][share][metric]
          if share in row["mixed"]
          else row["curve"][metric][0 if share == "0" else -1]
          for row in rows.values()
        ]
        line.append(statistics(values).show())
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
