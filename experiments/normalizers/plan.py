"""The runs: every source of denominators at three sizes, seed by seed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.harness import Options, Row, Run

TAU = 0.08
RATE, RATE_BATCH = 2e-3, 128  # tuned in experiments/icons; grows as the root
SAMPLES = 81_920  # seen by each run
PERIOD = 20_480  # samples between restarts of prototypes and of networks
SEEDS = 2


class Cell(NamedTuple):
  """How many pairs there are, and in a batch."""

  pairs: int
  batch: int


CELLS = {
  "all, 1,024": Cell(20_480, 1_024),
  "all, 512": Cell(20_480, 512),
  "a tenth, 1,024": Cell(2_048, 1_024),
}
FIRST = tuple(CELLS)[:1]
SMOKE_SAMPLES, SMOKE_CELLS = 96, {"all, 1,024": Cell(48, 16)}


class Arm(NamedTuple):
  """A source of denominators: a config of `configs/icons.py`, and changes."""

  label: str
  config: str
  reads: str  # how, see `denominators.READERS`
  objective: Mapping[str, Any] = {}
  restarts: bool = False  # prototypes, after each `PERIOD`
  cells: tuple[str, ...] = tuple(CELLS)


def _adaptive(log_alpha: float) -> dict[str, Any]:
  """SCENT's rule as these runs had it: no least denominator."""
  return {"gamma": dict(name="adaptive", log_alpha=log_alpha, epsilon=0.0)}


PROTOTYPES = {"num_prototypes": 1_024}
QUEUE = {"zeta": {"name": "queue", "size": 1_024, "rate": 0.3}}
# Published networks are fitted for thousands of steps, ours for 20.
FITTED = {"num_updates": 10, "rate": 1e-2, "decay": 0.5}
ARMS = {
  "clip": Arm("CLIP", "clip", "batch"),
  "sogclr": Arm("SogCLR, γ 0.8", "sogclr", "rows"),
  "sogclr_slow": Arm("SogCLR, γ 0.2", "sogclr", "rows", {"gamma": 0.2}),
  "scent": Arm("SCENT, log α 10", "scent", "rows", _adaptive(10.0)),
  "scent_slow": Arm("SCENT, log α 4", "scent", "rows", _adaptive(4.0)),
  "nuclr": Arm("NUCLR, queue", "nuclr", "rows", QUEUE),
  "neuclip": Arm("NeuCLIP", "neuclip", "prototypes", PROTOTYPES, restarts=True),
  "amorlip": Arm("AmorLIP", "amorlip", "network", FITTED),
  "neuclip_published": Arm(
    *("NeuCLIP, never restarted", "neuclip", "prototypes", PROTOTYPES),
    cells=FIRST,
  ),
  "amorlip_published": Arm(
    *("AmorLIP, published fit", "amorlip", "network", {}),
    cells=FIRST,
  ),
}
# These keep SogCLR's moving average, with other temperatures; they have costs
# of their own, and no runs.
COSTS_ONLY = {
  "isogclr": Arm("iSogCLR", "isogclr", "rows"),
  "fastclip_v3": Arm("FastCLIP-v3", "fastclip_v3", "rows"),
  "tempnet": Arm("TempNet", "tempnet", "rows"),
}
ALL_ARMS = ARMS | COSTS_ONLY


def make_run(cell: str, arm: str, seed: int, *, smoke: bool = False) -> Run:
  """Makes a run of an arm."""
  sizes = (SMOKE_CELLS if smoke else CELLS)[cell]
  values = {
    "arm": arm,
    "samples": SMOKE_SAMPLES if smoke else SAMPLES,
    "smoke": smoke,
  }
  return Run(cell, arm, seed, tuple((values | sizes._asdict()).items()))


def plan(options: Options, rows: Mapping[Any, Row]) -> list[Run]:
  """Plans all runs, seed by seed."""
  del rows
  return [
    make_run(cell, arm, seed, smoke=options.smoke)
    for seed in range(1 if options.smoke else options.seeds)
    for cell in (SMOKE_CELLS if options.smoke else CELLS)
    for arm, of in ARMS.items()
    if cell in of.cells
  ]
