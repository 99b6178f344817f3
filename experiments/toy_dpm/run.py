"""Figures 2 and 6 of the NUCLR paper: measures, draws, writes the tables.

python experiments/toy_dpm/run.py [--smoke] [--repetitions=40] [--output=...]

Writes results.json and three figures, and the tables of README.md if the
output folder has one.
"""

import argparse
import importlib.metadata
import os
import pathlib
import platform
import time

import jax
from matplotlib.figure import Figure
import toy_plots
import toy_report
import toy_risks
import toy_summary

from nuclr_jax import markdown, records

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ("jax", "numpy", "scipy", "matplotlib")


def parse_arguments() -> argparse.Namespace:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  defaults = toy_risks.Settings()
  parser.add_argument(
    "--smoke", action="store_true", help="a short setting, not into this folder"
  )
  parser.add_argument("--repetitions", type=int, help="at least 2")
  parser.add_argument("--sizes", type=int, nargs="+", help="increasing")
  parser.add_argument("--seed", type=int, default=defaults.seed)
  parser.add_argument("--output", type=pathlib.Path, help="folder of results")
  options = parser.parse_args()
  if options.repetitions is not None and options.repetitions < 2:
    parser.error("--repetitions must be at least 2")
  sizes = options.sizes or [2]
  if sizes[0] < 2 or sorted(set(sizes)) != sizes:
    parser.error("--sizes must increase, from at least 2")
  return options


def make_settings(options: argparse.Namespace) -> toy_risks.Settings:
  """What to measure."""
  settings = toy_risks.SHORT if options.smoke else toy_risks.Settings()
  settings = settings._replace(seed=options.seed)
  if options.repetitions is not None:
    settings = settings._replace(repetitions=options.repetitions)
  if options.sizes is not None:
    settings = settings._replace(sizes=tuple(options.sizes))
  return settings


def main(settings: toy_risks.Settings, output: pathlib.Path) -> None:
  """Does everything."""
  began = time.monotonic()
  output.mkdir(parents=True, exist_ok=True)
  examples = toy_risks.make_examples(settings)
  measured = toy_risks.measure_all(settings)
  results = toy_summary.summarise_all(settings, measured, examples)
  for name, draw, what in (
    ("spaces.png", toy_plots.draw_spaces, (examples, results)),
    ("temperatures.png", toy_plots.draw_temperatures, (examples, results)),
    ("without_constants.png", toy_plots.draw_without_constants, (results,)),
  ):
    figure = Figure(figsize=toy_plots.SIZE, layout="constrained")
    draw(figure, *what)
    figure.savefig(output / name, dpi=120)
  results |= {
    "versions": {x: importlib.metadata.version(x) for x in PACKAGES},
    "python": platform.python_version(),
    "machine": platform.machine(),
    "cores": len(os.sched_getaffinity(0)),
    "seconds": time.monotonic() - began,
  }
  records.write_json(output / "results.json", results)
  readme = output / "README.md"
  if readme.exists():
    text = markdown.insert(
      readme.read_text(encoding="utf-8"), toy_report.tables(results)
    )
    records.write_atomically(readme, text)
  print(f"{output}: {toy_report.status(results)}")


if __name__ == "__main__":
  jax.config.update("jax_enable_x64", True)
  chosen = parse_arguments()
  folder = pathlib.Path("runs/toy_dpm") if chosen.smoke else HERE
  main(make_settings(chosen), chosen.output or folder)
