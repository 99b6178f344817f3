"""The runs: every way at every temperature, some on embeddings that drift."""

from collections.abc import Mapping

from experiments.harness import Options, Run
from experiments.popularity.at_scale.ways import FROZEN_WAYS, WAYS

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
# The errors of steps, at a size at which they are cheap; added after the rest.
STEPS, MOVING_STEPS = "steps", "steps, drifting"
STEP_PAIRS, STEP_SEEDS = 4_096, 3
STEP_BATCHES = (16, 64, 256, 1024)
STEP_WAYS = {  # with which batches
  "SogCLR": STEP_BATCHES,
  "ζ = 0": STEP_BATCHES,
  "ζ exact": STEP_BATCHES,
  "ζ exact, u exact": (16, 256),
  "ζ = 0, γ 0.3": (16, 256),
  "ζ exact, γ 0.3": (16, 256),
  "ζ = 0, γ 0.1": (16,),
  "ζ exact, γ 0.1": (16,),
  "batch, rate 0.14": STEP_BATCHES,
  "queue 25 %": STEP_BATCHES,  # 1,024 pairs
  "queue 9.4 %": (16, 64),  # 384 pairs
  "queue 0.6 %": (16,),  # 32 pairs: two batches
}
MOVING_WAYS = (
  "SogCLR",
  "ζ = 0",
  "ζ exact",
  "ζ = 0, γ 0.3",
  "ζ exact, γ 0.3",
  "ζ = 0, γ 0.1",
  "ζ exact, γ 0.1",
  "batch, rate 0.14",
  "queue 25 %",
)
GAINS = "gains"  # what diagnostics say of ζ
GAIN_WAYS = ("ζ exact", "queue 25 %", "queue 0.6 %", "batch, rate 0.14")
COSTS = "costs"
COST_WAYS = (
  "SogCLR",
  "ζ = 0",
  "batch, rate 0.14",
  "queue 100 %",
  "queue 25 %",
  "queue 9.4 %",
  "queue 2.3 %",
  "queue 0.6 %",
)
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
    "drift": part in (DRIFTING, MOVING_STEPS),
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
      runs += [
        make_step_run(STEPS, way, seed, tau=TAU, batch_size=16, **SMOKE)
        for way in ("SogCLR", "ζ exact", "queue 25 %")
      ]
      continue
    for tau in TAUS:
      runs += [make_run(FROZEN, way, seed, tau=tau) for way in FROZEN_WAYS]
    runs += [
      make_run(DRIFTING, name, seed, tau=TAU)
      for name in FROZEN_WAYS
      if WAYS[name].rule  # a sample is solved at the end, where nothing drifts
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
  if options.smoke:
    return runs
  for seed in range(max(options.seeds, STEP_SEEDS)):
    runs += [
      make_step_run(STEPS, way, seed, tau=tau, batch_size=batch_size)
      for tau in TAUS
      for way, batch_sizes in STEP_WAYS.items()
      for batch_size in batch_sizes
    ]
    runs += [
      make_step_run(MOVING_STEPS, way, seed, tau=TAU, batch_size=BATCH_SIZE)
      for way in MOVING_WAYS
    ]
  runs += [
    make_run(GAINS, way, seed, tau=tau, num_pairs=STEP_PAIRS, gains=True)
    for seed in range(options.seeds)
    for tau in TAUS
    for way in GAIN_WAYS
  ]
  runs += [make_run(COSTS, way, 0, tau=TAU, trace=True) for way in COST_WAYS]
  return runs


def make_step_run(
  part: str, way: str, seed: int, *, tau: float, batch_size: int, **values
) -> Run:
  """Makes a run whose steps are scored, too."""
  values = {"num_pairs": STEP_PAIRS, "batch_size": batch_size} | values
  # A batch of all pairs gives the same for all batches and gammas.
  whole = part == STEPS and batch_size == BATCH_SIZE and WAYS[way].gamma == 0.8
  whole &= not WAYS[way].exact_u
  return make_run(part, way, seed, tau=tau, steps=True, whole=whole, **values)
