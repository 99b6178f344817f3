"""What `nuclr compare` prints and writes: lines, two tables and a page."""

from collections.abc import Callable, Sequence
import math

from nuclr_jax.lab import progress
from nuclr_jax.lab.files import remote
from nuclr_jax.lab.report import compare, compare_page, tables
from nuclr_jax.lab.report.compare import ABSENT, Found, Interval, Line, Setting
from nuclr_jax.lab.report.page import is_share
from nuclr_jax.lab.train import records

LABEL = 40  # characters of a setting's label in a terminal
ALONE = (
  "a single seed cannot tell a difference from chance; train others with "
  "--config.seed=1, 2, ... in workdirs of their own"
)


def lines(found: Found) -> list[str]:
  """Returns what a terminal shows: the notes, then a block for each score.

  Args:
    found: The settings and the notes.
  """
  return [*found.notes, *blocks(found.settings)]


def blocks(settings: Sequence[Setting]) -> list[str]:
  """Returns a block of lines for each score, and one for the speed.

  Args:
    settings: The settings.
  """
  shown: list[str] = []
  names = records.headlines(compare.final_names(settings))
  for name in names:
    shown += block(name, name, settings, compare.final(name))
  unfinished = any(
    run.final is None for x in settings for run in x.runs.values()
  )
  common = compare.last_common(settings)
  if common and (unfinished or not names):
    step, of_step = common
    for name in of_step:
      title = f"{name} at step {step:,}, the last that all have"
      shown += block(title, name, settings, compare.at_step(name, step))
  shown += _speeds(settings)
  if len(settings) > 1 and max(len(x.runs) for x in settings) == 1:
    shown += ["", ALONE]
  return shown


def block(
  title: str, name: str, settings: Sequence[Setting], value_of: Callable
) -> list[str]:
  """Returns a title, and a line for each setting.

  Args:
    title: What the numbers are.
    name: The name of the score, which says whether it is a share.
    settings: The settings.
    value_of: What `compare.compare` takes.
  """
  found = compare.compare(settings, value_of)
  digits = digits_of(name, found)
  rows = [("", "runs", "")]
  rows += [
    (cut(x.label), str(x.score.count), score_of(x.score, name, digits))
    for x in found
  ]
  if len(found) > 1:
    gains = [difference_of(x.difference, name, digits) for x in found]
    header = f"− {cut(settings[0].label)}"
    rows = [(*x, y) for x, y in zip(rows, [header, *gains], strict=True)]
  unit = ", %" if is_share(name) else ""
  return ["", f"{title}{unit}", *aligned(rows)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
  """Pads the cells of rows to columns."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    "  "
    + "  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip()
    for row in rows
  ]


def cut(label: str) -> str:
  """Returns a label, or the beginning of a long one."""
  return label if len(label) <= LABEL else label[: LABEL - 3] + "..."


def digits_of(name: str, found: Sequence[Line]) -> int:
  """Returns how many decimals tell the values of a score apart."""
  if is_share(name):
    return 2
  size = max((abs(x.score.mean) for x in found if x.score.count), default=0.0)
  return max(0, 3 - math.floor(math.log10(size))) if size > 0 else 3


def score_of(found: Interval, name: str, digits: int) -> str:
  """Formats a mean, and half of its interval.

  Example:
    >>> score_of(Interval(2, 0.5, 0.01), "test/top1", 2)
    '50.00 ± 1.00'
  """
  if not found.count:
    return ABSENT
  factor = 100 if is_share(name) else 1
  text = f"{factor * found.mean:.{digits}f}"
  if math.isnan(found.half_width):
    return text
  return f"{text} ± {factor * found.half_width:.{digits}f}"


def difference_of(found: Interval | None, name: str, digits: int) -> str:
  """Formats a difference; a star says that 0 is outside of its interval.

  Example:
    >>> difference_of(Interval(3, 0.02, 0.01), "test/top1", 2)
    '+2.00 [+1.00, +3.00] *'
  """
  if found is None:
    return ""
  if not found.count:
    return ABSENT
  factor = 100 if is_share(name) else 1
  mean, half = factor * found.mean, factor * found.half_width
  if math.isnan(half):
    return f"{mean:+.{digits}f}"
  star = " *" if abs(mean) > half else ""
  ends = f"[{mean - half:+.{digits}f}, {mean + half:+.{digits}f}]"
  return f"{mean:+.{digits}f} {ends}{star}"


def _speeds(settings: Sequence[Setting]) -> list[str]:
  rows = [("", "runs", "steps", "pairs/s", "a run")]
  for x in settings:
    runs = list(x.runs.values())
    steps = sorted({run.step for run in runs})
    rates = compare.interval(r for run in runs if (r := compare.speed(run)))
    took = [max(compare.hours(run).values(), default=0.0) for run in runs]
    mean = 3600 * sum(took) / len(took)
    rows.append(
      (
        cut(x.label),
        str(len(runs)),
        " to ".join(f"{s:,}" for s in dict.fromkeys([steps[0], steps[-1]])),
        f"{rates.mean:,.0f}" if rates.count else ABSENT,
        progress.duration(mean) if rates.count else ABSENT,
      )
    )
  return ["", "speed and time, without compiling", *aligned(rows)]


def write(output: str, found: Found) -> None:
  """Writes `runs.csv`, `scores.csv` and `compare.html`.

  Args:
    output: A new folder, also in a bucket.
    found: The settings and the notes.
  """
  settings = found.settings
  with remote.new_folder(output) as folder:
    tables.write(folder / "runs.csv", runs_table(settings))
    tables.write(folder / "scores.csv", scores_table(settings))
    compare_page.write(folder / "compare.html", found, blocks(settings))


def runs_table(settings: Sequence[Setting]) -> dict[str, list]:
  """Returns a row for each run: its setting, seed, speed and final metrics."""
  names = compare.final_names(settings)
  runs = [(x.label, run) for x in settings for run in x.runs.values()]
  columns = {
    "setting": [label for label, _ in runs],
    "run": [run.name for _, run in runs],
    "seed": [run.seed for _, run in runs],
    "step": [run.step for _, run in runs],
    "finished": [run.final is not None for _, run in runs],
    "pairs_per_second": [_cell(compare.speed(run)) for _, run in runs],
  }
  return columns | {
    name: [_cell((run.final or {}).get(name)) for _, run in runs]
    for name in names
  }


def scores_table(settings: Sequence[Setting]) -> dict[str, list]:
  """Returns a row for each final metric of each setting, with its interval."""
  rows = []
  for name in compare.final_names(settings):
    for x in compare.compare(settings, compare.final(name)):
      gain = x.difference or Interval(0, math.nan, math.nan)
      row = (name, x.label, *x.score, *gain)
      rows.append([_cell(cell) for cell in row])
  header = ("metric", "setting", "runs", "mean", "half_width")
  header += ("pairs_of_runs", "difference", "difference_half_width")
  columns = zip(*rows, strict=True) if rows else [[] for _ in header]
  return {k: list(x) for k, x in zip(header, columns, strict=True)}


def _cell(value):
  """Returns a value, or an empty cell for one that is not known."""
  unknown = value is None or (isinstance(value, float) and math.isnan(value))
  return "" if unknown else value
