"""What studies of labelled runs share: scores of lines, figures, commands."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import os
import pathlib
from typing import Any, NamedTuple

import jax
from matplotlib import ticker
from matplotlib.figure import Figure
import numpy as np

from experiments import labelled_runs
from nuclr_jax import markdown, records

FIGURE = (11, 6)  # inches
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
Lines = Sequence[Mapping[str, Any]]
Numbers = Mapping[str, Any]  # what a study measures besides


class Summary(NamedTuple):
  """Of several seeds."""

  mean: float
  error: float  # standard error of the mean; NaN for a single seed

  def __str__(self):
    error = "" if np.isnan(self.error) else f" ± {self.error:.1f}"
    return f"{self.mean:.1f}{error}"


def summarise(values: Iterable[float]) -> Summary:
  """Mean and standard error.

  Example:
    >>> str(summarise([1.0, 2.0, 3.0]))
    '2.0 ± 0.6'
  """
  x = np.asarray(list(values), float)
  error = x.std(ddof=1) / len(x) ** 0.5 if len(x) > 1 else float("nan")
  return Summary(float(x.mean()), float(error))


def of_settings(
  lines: Iterable[dict[str, Any]], part: str
) -> dict[str, list[dict[str, Any]]]:
  """The lines of a part, by setting."""
  found = {}
  for line in lines:
    if line["part"] == part:
      found.setdefault(line["setting"], []).append(line)
  return found


def data_of(lines: Lines) -> list[str]:
  """The data sets of a study, in order."""
  return list(dict.fromkeys(line["part"].split("/")[0] for line in lines))


def score(line: Mapping[str, Any], name: str, split: str = "test") -> float:
  """A score of a line, by the end of its name; NaN if there is none."""
  data = line["part"].split("/")[0]
  return line["metrics"].get(f"{split}/classes_{data}/{name}", np.nan)


def course(
  line: Mapping[str, Any], name: str, *, plain: bool = False
) -> tuple[list, list]:
  """Steps, and a score of validation at each (plain: a metric by its name)."""
  data = line["part"].split("/")[0]
  full = name if plain else f"validation/classes_{data}/{name}"
  points = [(x["step"], x[full]) for x in line["curve"] if full in x]
  return tuple(map(list, zip(*points, strict=True))) if points else ([], [])


def percent(found: Lines, name: str) -> str:
  """Mean and standard error of a score."""
  values = [100 * score(x, name) for x in found]
  return "–" if np.isnan(values).any() else str(summarise(values))


def draw_course(
  axes, found, name, color, label, style, *, plain: bool = False
) -> None:
  """Each seed thin, their mean thick."""
  courses = [course(line, name, plain=plain) for line in found]
  for steps, values in courses:
    axes.plot(steps, values, style, color=color, alpha=0.3, linewidth=0.8)
  mean = np.mean([values for _, values in courses], axis=0)
  axes.plot(courses[0][0], mean, style, color=color, label=label)


def draw_summaries(
  axes, points: Mapping[float, Summary], color, label, style="o-"
) -> None:
  """Means over what they belong to, with their standard errors."""
  axes.errorbar(
    list(points),
    [x.mean for x in points.values()],
    [x.error for x in points.values()],
    fmt=style,
    markersize=4,
    color=color,
    label=label,
  )


def log_ticks(axis) -> None:
  """Whole numbers at 1, 2, 5 of each decade of a logarithmic axis."""
  axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter("{x:g}")
  axis.set_minor_locator(ticker.NullLocator())


def status(lines: Lines, measured: Numbers) -> str:
  """What was run, in words."""
  minutes = measured["trained seconds"] / 60
  return (
    f"{len(lines)} trainings, {minutes:.0f} process minutes, two at a time; "
    f"jax {measured['jax']}, {measured['cores']} cores."
  )


def parse_arguments(
  doc: str, known: Iterable[str], at_hand: Sequence[str]
) -> argparse.Namespace:
  """The command line of a study.

  Args:
    doc: What it does.
    known: Names of data sets.
    at_hand: Those of its README.
  """
  parser = argparse.ArgumentParser(description=doc.splitlines()[0])
  parser.add_argument(
    "--data",
    nargs="+",
    default=list(at_hand),
    choices=sorted(known),
    help=f"{' and '.join(at_hand)} are at hand, others are prepared TFDS data",
  )
  parser.add_argument("--data_dir", help="folder of prepared data sets")
  parser.add_argument("--seeds", type=int, default=3, help="2 or more")
  parser.add_argument("--workers", type=int, default=2, help="runs at a time")
  parser.add_argument("--output", type=pathlib.Path, help="folder of results")
  parser.add_argument("--smoke", action="store_true", help="just enough to run")
  options = parser.parse_args()
  if options.seeds < 2 or options.workers < 1:
    parser.error("--seeds must be at least 2 and --workers at least 1")
  return options


def output_of(
  options: argparse.Namespace, home: pathlib.Path, at_hand: Sequence[str]
) -> pathlib.Path:
  """Where results go: to the study's own folder only as its README has them."""
  own = options.data == list(at_hand) and not options.smoke
  name = "_".join([*options.data, *(["smoke"] if options.smoke else [])])
  other = pathlib.Path("runs", home.name, name)
  return options.output or (home if own else other)


def run_study(
  doc: str,
  home: pathlib.Path,
  study,
  *,
  measure: Callable[..., dict[str, Any]],
  draw: Mapping[str, Callable[..., None]],
  tables: Callable[..., Mapping[str, str]],
) -> pathlib.Path:
  """The command of a study: trains, measures, draws, writes the tables.

  Args:
    doc: What it does.
    home: Its folder. The README.md of the output folder gets the tables, or
      else tables.md.
    study: A module with `AT_HAND`, `SIZES` and `make(data, seeds=, smoke=)`.
    measure: `measure(seeds=, smoke=)`: what is not trained.
    draw: By file, `draw(figure, lines, measured)`; a figure that stays empty
      is not written.
    tables: `tables(lines, measured)`, by mark.

  Returns:
    The output folder.
  """
  options = parse_arguments(doc, study.SIZES, study.AT_HAND)
  output = output_of(options, home, study.AT_HAND)
  short = dict(seeds=2 if options.smoke else options.seeds, smoke=options.smoke)
  runs = [run for data in options.data for run in study.make(data, **short)]
  lines = labelled_runs.complete(
    runs,
    output / "lines.jsonl",
    workers=options.workers,
    data_dir=options.data_dir,
  )
  labelled_runs.say("measuring what is not trained")
  measured = measure(**short) | {
    "trained seconds": round(sum(x["seconds"] for x in lines)),
    "jax": jax.__version__,
    "cores": len(os.sched_getaffinity(0)),
  }
  records.write_json(output / "measured.json", measured)
  for name, function in draw.items():
    figure = Figure(figsize=FIGURE, layout="constrained")
    function(figure, lines, measured)
    if figure.get_axes():  # there was something to draw
      figure.savefig(output / name, dpi=100)
  found, readme = tables(lines, measured), output / "README.md"
  if readme.exists():
    text = markdown.insert(readme.read_text(encoding="utf-8"), found)
    records.write_atomically(readme, text)
  else:
    text = "\n\n".join(f"**{name}**\n\n{x}" for name, x in found.items())
    records.write_atomically(output / "tables.md", text + "\n")
  labelled_runs.say(f"{output} has the tables and the figures")
  return output
