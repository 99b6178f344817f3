"""One harness for all studies: plan of runs, their rows, tables and figures.

See README.md of this folder.
"""

from experiments.harness.command import main, report
from experiments.harness.runner import run_here
from experiments.harness.study import (
  Options,
  Place,
  Results,
  Row,
  Run,
  Study,
  fingerprint,
)

__all__ = [
  "Options",
  "Place",
  "Results",
  "Row",
  "Run",
  "Study",
  "fingerprint",
  "main",
  "report",
  "run_here",
]
