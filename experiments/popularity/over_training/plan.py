"""The runs: glyphs, and letters with a long tail, by the rule of zeta."""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Options, Run, training
from experiments.popularity import plan as of_glyphs
from experiments.when_it_pays import letters

GLYPHS, LETTERS, SHARED = "glyphs", "letters", "letters, shared ids"
BATCH, QUEUE, NONE = "batch", "queue", "ζ = 0"
# After which epochs zeta are looked at; the last one ends the training.
EPOCHS = {GLYPHS: (1, 2, 4, 8), LETTERS: (1, 2, 5, 10, 20)}
EPOCHS[SHARED] = EPOCHS[LETTERS]
RULES = {GLYPHS: (QUEUE, BATCH), LETTERS: (QUEUE, BATCH, NONE)}
RULES[SHARED] = RULES[LETTERS]
GLYPH_SEEDS = 2  # a solution takes longer than two epochs there
SAMPLE = 8_192  # pairs of an exact solution on glyphs
VARIANTS = {BATCH: "unbiased", QUEUE: "sinkhorn"}  # of experiments/popularity
ARMS = {BATCH: "ζ learned, batch", QUEUE: "ζ learned, queue", NONE: "ζ = 0"}
TEMPERATURE = 0.08  # of letters


def run_of(part: str, rule: str, seed: int, *, smoke: bool = False) -> Run:
  """Makes a run; its values are in the words of the study it is taken from."""
  if part == GLYPHS:
    (variant,) = (x for x in of_glyphs.VARIANTS if x.name == VARIANTS[rule])
    values = dict(of_glyphs.make_run(variant, seed, smoke=smoke).values)
    del values["network_steps"]
    values |= {"sample": 512 if smoke else SAMPLE}
  else:
    values = letters.COMMON | {"arm": ARMS[rule], "temperature": TEMPERATURE}
    values |= {"marked": True} if part == SHARED else {}
    values |= letters.SMOKE if smoke else {}
  return Run(part, rule, seed, tuple(values.items()))


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans all runs; none depends on the results of another."""
  del rows
  return [
    run_of(part, rule, seed, smoke=options.smoke)
    for part, rules in RULES.items()
    for seed in range(GLYPH_SEEDS if part == GLYPHS else options.seeds)
    for rule in rules
  ]


def make_config(run: Run):
  """Makes the config of a run."""
  values = dict(run.values)
  if run.part != GLYPHS:
    config = letters.make_config(values)
    config.seed = run.seed
    return config
  del values["sample"]
  return of_glyphs.make_config(run._replace(values=tuple(values.items())))


def configs(options: Options) -> dict[str, dict[str, Any]]:
  """Returns the config of each part and rule."""
  return {
    f"{part}, {rule}": training.flat(
      make_config(run_of(part, rule, 0, smoke=options.smoke))
    )
    for part, rules in RULES.items()
    for rule in rules
  }
