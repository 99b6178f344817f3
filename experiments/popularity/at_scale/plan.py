"""The runs: every way at every temperature, some on embeddings that drift."""

from collections.abc import Mapping

from experiments.harness import Options, Run
from experiments.popularity.at_scale.ways import WAYS

FROZEN, DRIFTING, LARGE = "frozen", "drifting", "large"
BATCHES = "batches"  # added after the rows of `FROZEN`
TAUS = (0.01, 0.02, 0.04, 0.07)
TAU = 0.04  # of drifting embeddings and of large data
BATCH_SIZE = 16
NUM_PAIRS, NUM_EPOCHS, DIM = 16_384, 30, 32
LARGE_PAIRS = 131_072  # the batch is 0.012 % of them
LARGE_WAYS = ("ζ = 0", "queue 0.6 %", "queue 0.6 %, falls")
BATCH_SIZES = (64, 256, 1024)
BATCH_TAUS = (0.01, 0.04, 0.07)
BATCH_WAYS = (
  "ζ = 0",
  "ζ exact",
  "batch, rate 0.02",
  "batch, rate 0.14",
  "batch, rate 0.5",
  "queue 9.4 %",
)
# As near to configs/cc3m.py as two cores come: its temperature and batch; there
# the batch is 0.02 % of the data. At this temperature the exact solution of
# 131,072 pairs takes hours.
RECIPE = "recipe"
RECIPE_TAU, RECIPE_BATCH, RECIPE_PAIRS = 0.01, 512, 65_536
RECIPE_TOLERANCE = 1e-3  # of the exact solution
RECIPE_WAYS = (*BATCH_WAYS, "queue 0.6 %")
SMOKE = {"num_pairs": 1024, "num_epochs": 2}


def make_run(part: str, way: str, seed: int, *, tau: float, **values) -> Run:
  """Makes a run."""
  values = {
    "way": way,
    "temperature": tau,
    "num_pairs": NUM_PAIRS,
    "dim": DIM,
    "batch_size": BATCH_SIZE,
    "num_epochs": NUM_EPOCHS,
    "drift": part == DRIFTING,
  } | values
  setting = setting_of(way, tau, values["batch_size"])
  return Run(part, setting, seed, tuple(values.items()))


def setting_of(way: str, tau: float, batch_size: int = BATCH_SIZE) -> str:
  """Returns how rows name a setting."""
  batch = f", batch {batch_size}" if batch_size != BATCH_SIZE else ""
  return f"{way}, τ {tau}{batch}"


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans the runs, seed by seed."""
  del rows
  runs = []
  for seed in range(options.seeds):
    if options.smoke:
      runs += [
        make_run(FROZEN, way, seed, tau=TAU, **SMOKE)
        for way in ("ζ = 0", "queue 9.4 %", "sample 25 %")
      ]
      continue
    for tau in TAUS:
      runs += [make_run(FROZEN, way, seed, tau=tau) for way in WAYS]
    runs += [
      make_run(DRIFTING, name, seed, tau=TAU)
      for name, way in WAYS.items()
      if way.rule  # a sample is solved at the end, where nothing drifts
    ]
    runs += [
      make_run(BATCHES, way, seed, tau=tau, batch_size=batch_size)
      for batch_size in BATCH_SIZES
      for tau in BATCH_TAUS
      for way in BATCH_WAYS
    ]
    runs += [
      make_run(LARGE, way, seed, tau=TAU, num_pairs=LARGE_PAIRS)
      for way in LARGE_WAYS
    ]
    runs += [
      make_run(
        RECIPE,
        way,
        seed,
        tau=RECIPE_TAU,
        num_pairs=RECIPE_PAIRS,
        batch_size=RECIPE_BATCH,
        tolerance=RECIPE_TOLERANCE,
      )
      for way in RECIPE_WAYS
    ]
  return runs
