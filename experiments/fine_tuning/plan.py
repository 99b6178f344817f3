"""The runs: one model, tuned from many starts."""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Options, Run

FIRST, TUNED, LONG = "pre-training", "tuning", "four epochs"
WARM_UP = "warm-up"  # of the learning rate, with a cold start
COLD = "cold"
ALONE = "moments"  # with a cold u
# By objective: what a run starts with, in the words of `config.warm_start`.
STARTS: Mapping[str, Mapping[str, str | None]] = {
  "clip": {COLD: None, WARM_UP: None, ALONE: "moments"},
  "sogclr": {
    COLD: None,
    WARM_UP: None,
    "u": "exact",
    "u of the pass, moments": "pass_u,moments",
    "u, moments": "exact,moments",
    ALONE: "moments",
  },
  "nuclr": {
    COLD: None,
    WARM_UP: None,
    "u": "exact_u",
    "u, ζ": "exact",
    "u, ζ, moments": "exact,moments",
    ALONE: "moments",
  },
}
LABELS = {"clip": "CLIP", "sogclr": "SogCLR", "nuclr": "NUCLR"}
STEPS = (0, 2, 5, 10, 20, 40, 70, 100)  # that are scored; 100 are an epoch
SHARES = (0.25, 0.5, 0.75)  # of the tuned weights in mixtures
COMMON: Mapping[str, Any] = dict(
  pairs=64_000,  # to pre-train on
  epochs=1.5,  # of pre-training
  tuned_pairs=12_800,
  scored=2_000,  # drawings of each held-out set
  batch=128,
  tau=0.08,
  rate=1e-3,  # half of the highest one in pre-training; constant
)
SMOKE = dict(pairs=256, tuned_pairs=128, scored=50, batch=16, epochs=0.5)


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans the pre-training, and all else once it is done."""
  common = COMMON | (SMOKE if options.smoke else {})
  first = Run(FIRST, "CLIP", 0, tuple(common.items()))
  if first.key not in rows:
    return [first]

  def make(part, name, start, seed, *more):
    words = (*common.items(), ("objective", name), ("start", start), *more)
    return Run(part, f"{LABELS[name]}, {start}", seed, words)

  seeds = range(options.seeds)
  return [
    first,
    *(
      make(TUNED, name, start, seed)
      for seed in seeds
      for name, starts in STARTS.items()
      for start in starts
    ),
    *(
      make(LONG, name, WARM_UP, seed, ("tuned_epochs", 4.0))
      for seed in seeds
      for name in STARTS
    ),
  ]
