"""The command line that all studies share."""

import argparse
from collections.abc import Mapping, Sequence
import pathlib
import signal
import sys

from matplotlib.figure import Figure

from experiments.harness import markdown, rows, runner
from experiments.harness.study import Options, Study
from nuclr_jax.lab import files, progress


def main(study: Study, arguments: Sequence[str] | None = None) -> None:
  """Runs what a study lacks, then writes its tables and figures."""
  options = parse_arguments(study, arguments)
  signal.signal(signal.SIGTERM, _interrupt)
  try:
    if options.configs:
      runner.check_configs(study, options)
      return
    if not options.tables:
      runner.complete(study, options)
    if options.only is None:
      write(study, options)
  except (ValueError, RuntimeError) as error:
    sys.exit(f"{study.name}: {error}")
  except KeyboardInterrupt:
    sys.exit(130)


def parse_arguments(
  study: Study, arguments: Sequence[str] | None = None
) -> Options:
  """Reads the command line of a study."""
  parser = argparse.ArgumentParser(
    prog=f"python -m experiments.{study.name}",
    description=study.doc,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    add_help=False,  # the plan, which it names, depends on other arguments
  )
  parser.add_argument(
    "-h", "--help", action="store_true", help="prints this and ends"
  )
  parser.add_argument(
    "--smoke", action="store_true", help="runs just enough to try everything"
  )
  parser.add_argument(
    "--tables",
    action="store_true",
    help="runs nothing; writes tables and figures from the stored rows",
  )
  parser.add_argument(
    "--only",
    metavar="PATTERN",
    help='runs only what matches this regular expression in "part: setting, '
    'seed N"; writes no tables',
  )
  parser.add_argument(
    "--workers", type=int, default=2, help="parallel runs; use 1 on a GPU"
  )
  parser.add_argument(
    "--seeds", type=int, help=f"seeds per setting, by default {study.seeds}"
  )
  parser.add_argument("--data_dir", help="folder of prepared data sets")
  if study.data:
    parser.add_argument(
      "--data",
      nargs="+",
      default=list(study.data),
      choices=sorted(study.known_data),
      metavar="NAME",
      help=f"data sets, by default {' '.join(study.data)}; known are "
      f"{', '.join(sorted(study.known_data))}",
    )
  parser.add_argument(
    "--output", type=pathlib.Path, help="folder of rows, tables and figures"
  )
  parser.add_argument(
    "--workdir", type=pathlib.Path, help="folder of unfinished runs"
  )
  if study.configs is not None:
    parser.add_argument(
      "--configs",
      action="store_true",
      help="runs nothing; stores the current configs as those of the rows, for "
      "when only names have changed",
    )
  values = vars(parser.parse_args(arguments))
  wants_help = values.pop("help")
  if values["workers"] < 1 or (values["seeds"] or 2) < 2:
    parser.error("--workers must be at least 1 and --seeds at least 2")
  values["data"] = tuple(values.get("data", ()))
  values["seeds"] = values["seeds"] or (2 if values["smoke"] else study.seeds)
  values["output"] = values["output"] or _output(study, values)
  values["workdir"] = values["workdir"] or pathlib.Path(
    "runs", study.name, *(["smoke"] if values["smoke"] else []), "work"
  )
  values["workdir"] = values["workdir"].absolute()
  options = Options(**values)
  if wants_help:
    parser.epilog = describe(study, options)
    parser.print_help()
    parser.exit()
  return options


def describe(study: Study, options: Options) -> str:
  """Says how long the stored rows took, and what `--only` is matched with."""
  stored = rows.read(options.output / rows.FILE)
  lines = ["Interrupt it at any time: the same command goes on where it was."]
  records = [x for x in rows.commands(stored) if "seconds" in x]
  if records:
    took = progress.duration(sum(x["seconds"] for x in records))
    cores = max(x["cores"] for x in records)
    lines.append(f"The commands behind its rows took {took} on {cores} cores.")
  runs = study.plan(options, rows.index(stored))
  parts = "; ".join(dict.fromkeys(run.part for run in runs))
  lines.append(f"Parts, for --only: {parts}")
  if runs:
    lines.append(f"A run, as --only sees it: {runs[0].name}")
  return "\n".join(lines)


def _output(study: Study, values: Mapping) -> pathlib.Path:
  """Chooses the study's folder only for what its README.md shows."""
  if values["data"] == study.data and not values["smoke"]:
    return study.home
  words = [*values["data"], *(["smoke"] if values["smoke"] else [])]
  return pathlib.Path("runs", study.name, "_".join(words))


def write(study: Study, options: Options) -> None:
  """Writes the tables and figures of all stored rows."""
  results = runner.results(study, options)
  report(
    options.output,
    study.tables(options, results),
    study.figures(options, results),
  )
  runner.say(
    f"{len(results.rows)} of {results.planned} runs are done; "
    f"{options.output} has the tables and figures"
  )


def report(
  folder: pathlib.Path,
  tables: Mapping[str, str],
  figures: Mapping[str, Figure],
) -> None:
  """Writes tables and figures; skips those that are empty.

  Args:
    folder: The folder whose README.md gets the tables between their marks;
      without a README.md they are written to tables.md.
    tables: The Markdown of each table, by mark.
    figures: The figures, by file name.
  """
  tables = {name: text for name, text in tables.items() if text}
  readme = folder / "README.md"
  if readme.exists():
    text = markdown.insert(readme.read_text(encoding="utf-8"), tables)
    files.write_atomically(readme, text)
  else:
    text = "\n\n".join(f"**{name}**\n\n{x}" for name, x in tables.items())
    files.write_atomically(folder / "tables.md", text + "\n")
  for name, figure in figures.items():
    if figure.get_axes():
      figure.savefig(folder / name)


def _interrupt(*_) -> None:
  """Makes SIGTERM act as Ctrl-C does."""
  raise KeyboardInterrupt
