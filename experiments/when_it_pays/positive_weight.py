"""The positive's weight k: what CLIP has and a sum over all pairs loses.

In CLIP's batch of B, an anchor's positive is one of B terms of the denominator;
seen as an estimate of a sum over n pairs, it counts (n - 1) / (B - 1) times.
SogCLR leaves it out, NUCLR counts it once. The runs are those of
`experiments.bimodal`, with `positive_weight` and `gamma` of SogCLR changed, and
with `positive_weight` of NUCLR (as users get it: zeta by the rule `queue`).
"""

from experiments.bimodal import measure as bimodal
from experiments.bimodal.plan import BATCH_SIZE, NUM_PAIRS
from experiments.harness import Options, Place, Row, Run

PART = "positive weight"
CLIP = "CLIP"
NUCLR = "NUCLR, "  # begins the names of its arms
NUCLR_WEIGHTS = (1.0, 20.0, 1000.0)  # times exp(-xi / temperature)
WEIGHTS = (0.0, 1.0, 20.0, round((NUM_PAIRS - 1) / (BATCH_SIZE - 1)))
GAMMAS = (0.8, 1.0)
LENGTHS = (8.0, 24.0)  # epochs
TEMPERATURE = 0.08  # the best one of CLIP and of SogCLR, in bimodal
FIRST_SEED = 10  # bimodal used 0 to 7


def name_of(weight: float, gamma: float) -> str:
  """Returns how tables name SogCLR with such a weight."""
  return f"k = {weight:g}, γ = {gamma:g}"


ARMS = {CLIP: {"part": "clip"}} | {
  name_of(k, gamma): {
    "part": "sogclr",
    "positive_weight": float(k),
    "gamma": gamma,
  }
  for gamma in GAMMAS
  for k in WEIGHTS
}
# Added after the rows of the other arms.
ARMS |= {
  NUCLR + name_of(k, GAMMAS[0]): {
    "part": "nuclr",
    "positive_weight": float(k),
    "gamma": GAMMAS[0],
    "zeta_rule": "queue",
  }
  for k in NUCLR_WEIGHTS
}


def plan(options: Options) -> list[Run]:
  """Plans the runs, seed by seed."""
  smoke = {"smoke": True} if options.smoke else {}
  lengths = LENGTHS[:1] if options.smoke else LENGTHS
  return [
    Run(
      PART,
      setting_of(arm, length),
      FIRST_SEED + seed,
      tuple(({"arm": arm, "num_epochs": length} | smoke).items()),
    )
    for seed in range(options.seeds)
    for length in lengths
    for arm in ARMS
  ]


def setting_of(arm: str, length: float) -> str:
  """Returns how rows name an arm that is trained for so many epochs."""
  return f"{arm}, {length:g} epochs"


def make_config(run: Run):
  """Makes the config of a run."""
  values = dict(run.values)
  arm = dict(ARMS[values.pop("arm")])
  name, weight = arm.pop("part"), arm.pop("positive_weight", None)
  words = arm | values | {"temperature": TEMPERATURE}
  config = bimodal.make_config(Run(name, "", run.seed, tuple(words.items())))
  if weight is not None:
    config.objective.positive_weight = weight
  return config


def measure(run: Run, place: Place) -> Row:
  """Trains and evaluates after every epoch."""
  return bimodal.train(make_config(run), place)


def configs(options: Options) -> dict:
  """Returns the config of each arm, of its shortest training."""
  return {
    f"{PART}: {dict(run.values)['arm']}": make_config(run)
    for run in plan(options)[: len(ARMS)]
  }
