"""The tables of README.md; a cell that is not measured has a dash."""

from collections.abc import Mapping
import json
import pathlib

from experiments.harness import Options, Results, markdown
from experiments.harness.statistics import paired, statistics
from experiments.normalizers import predictions
from experiments.normalizers.plan import ALL_ARMS, ARMS, CELLS
from experiments.normalizers.results import Rows, factor, of_exact, values

COSTS = pathlib.Path(__file__).with_name("costs_cpu.json")
KINDS = {"rms": "rms", "sd": "without the mean", "mean": "mean"}
WHATS = ("used", "stored", "batch")


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = results.rows
  return {
    **{what: error_table(rows, what) for what in WHATS},
    "used − batch": gain_table(rows),
    "growth": growth_table(rows),
    "exact": exact_table(rows),
    "predictions": predictions.table(rows, costs()),
    "costs": cost_table(costs()),
  }


def costs() -> Mapping[str, dict]:
  """Returns what `costs.py` wrote, by arm; {} before it did."""
  if not COSTS.exists():
    return {}
  return json.loads(COSTS.read_text(encoding="utf-8"))["arms"]


def shown(found: Mapping[int, float], digits: int = 2) -> str:
  """Formats a mean over seeds and its interval."""
  return statistics(found.values()).show(digits)


def error_table(rows: Rows, what: str) -> str:
  """Shows the errors of every arm."""
  lines = [
    [arm.label]
    + [
      shown(values(rows, cell, name, what, kind))
      for cell in CELLS
      for kind in KINDS
    ]
    for name, arm in ARMS.items()
  ]
  header = [f"{cell}: {kind}" for cell in CELLS for kind in KINDS.values()]
  measured = [x for x in lines if any("." in cell for cell in x[1:])]
  return markdown.table(["method", *header], measured)


def gain_table(rows: Rows) -> str:
  """Shows by how much the batch alone is better, on the same models."""
  lines = [
    [
      arm.label,
      *(
        paired(
          *(values(rows, cell, name, x, "sd") for x in ("used", "batch"))
        ).show(3)
        for cell in CELLS
      ),
    ]
    for name, arm in ARMS.items()
  ]
  return markdown.table(["method", *CELLS], lines)


def growth_table(rows: Rows) -> str:
  """Shows by which factor errors grow."""
  found = [
    (what, kind, which)
    for what in WHATS[:2]
    for which in predictions.GROWTH
    for kind in ("rms", "sd")
  ]
  lines = [
    [arm.label, *(shown(factor(rows, name, *x)) for x in found)]
    for name, arm in ARMS.items()
    if tuple(CELLS) == arm.cells
  ]
  header = [f"{what}: {which}: {KINDS[kind]}" for what, kind, which in found]
  return markdown.table(["method", *header], lines)


def exact_table(rows: Rows) -> str:
  """Shows the exact log u of the models."""
  kinds = ("mean", "sd")
  lines = [
    [arm.label]
    + [shown(of_exact(rows, cell, name, x)) for cell in CELLS for x in kinds]
    for name, arm in ARMS.items()
  ]
  header = [f"{cell}: {kind}" for cell in CELLS for kind in kinds]
  return markdown.table(["method", *header], lines)


def cost_table(found: Mapping[str, dict]) -> str:
  """Shows what a step and a pair cost."""
  if not found:
    return ""
  lines = [
    [
      ALL_ARMS[name].label,
      f"{x['bytes_per_pair']:g}",
      f"{x['other_bytes'] / 1e3:,.1f}",
      f"{x['state_bytes_per_pair']:.1f}",
      f"{x['collective_bytes_per_sample']:,.0f}",
      f"{x['ratio_to_clip']:.2f}",
      f"{1e6 * x['seconds_per_sample']:.0f}",
    ]
    for name, x in found.items()
  ]
  header = ["method", "bytes in rows of a pair", "other state, kB"]
  header += ["all state, bytes a pair", "collectives, bytes a sample"]
  header += ["seconds, relative to CLIP", "µs a sample"]
  return markdown.table(header, lines)
