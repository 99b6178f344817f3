"""The harness of all studies: plans of runs, their rows, tables and figures.

README.md of this folder explains how a study works.
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
