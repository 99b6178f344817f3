"""The runs, decided from the results so far, the most valuable first.

The learning rate is tuned once, for all arms. Every arm gets the same number of
trials on one tuning seed, of which the best two run on a second one. The winner
by the mean of `CRITERION` is compared on seeds that tuning has not seen. Test
scores are measured in comparisons only.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness import Options, Row, Run
from experiments.icons.arms import ARMS, FIRST, GRIDS, MIDDLE

Rows = Mapping[tuple[str, str, int], Row]  # by `Run.key`

CRITERION = "validation/natural/mean_recall@10"
BATCH_SIZE = 128
NUM_PAIRS, NUM_EPOCHS = 128_000, 4.0  # half of the data
KEY = 50  # of the permutation whose first pairs these are
SEEDS, FEW_SEEDS = 5, 3
RATES = (1e-3, 2e-3, 4e-3)
RATE_ARMS = ("clip", "sogclr", "nuclr_queue")
# At other batch sizes: with stored denominators, and with those of the batch.
BATCH_ARMS = ("clip", "sogclr", "sogclr_batch", "nuclr_queue")
# Arms that step with the mean gradient of several batches: the denominators of
# small batches, with the noise and the number of steps of a large one. And the
# large one in pieces, of which batch normalization sees one at a time.
AVERAGED_ARMS = ("clip", "sogclr", "sogclr_batch")
# The rest of the first table at some other sizes, at the learning rate that is
# the best for `BATCH_ARMS` there, and unmarked. The last rows are the newer
# denominators, the token term, and cyclic consistency with gamma = 1.
TABLE = ("nuclr_batch", "nuclr_zero", "nuclr_counts", "nuclr_exact")
TABLE += ("nuclr_released", "siglip", "cyclip", "debiased", "isogclr")
TABLE += ("fastclip_v3",)
TABLE += ("scent", "clip_tokens", "tempnet", "neuclip", "amorlip", "drrho")
TABLE += ("nuclr_scent_ten", "sogclr_batch_tokens", "sogclr_batch_cyclic")
# On all pairs, with what was tuned on half of them.
FULL_ARMS = ("clip", "sogclr_batch", "scent", "cyclip", "sogclr", "nuclr_queue")
# Of the learning rate that grows with the root of the batch size. While the
# best is at an end, the next factor of two is tried, up to the widest.
FACTORS, WIDEST = (0.5, 1.0, 2.0), 8.0
RATE, TUNING, BATCHES = "rate", "tuning", "batches"
AVERAGED = "averaged"
MAIN, UNMARKED = "arms", "unmarked"
LOOKS, PLANTED, FROZEN = "zeta", "planted", "frozen encoder"
FULL = "full size"
# What a part's runs have beside the words of all runs.
WORDS: Mapping[str, Mapping[str, Any]] = {
  UNMARKED: {"marked": False},
  LOOKS: {"look": True},
  PLANTED: {"wrong": 0.05},
  FROZEN: {"frozen": True},
  FULL: {"size": "full"},
}


class Scale(NamedTuple):
  """How much of the study is run."""

  first: tuple[str, ...] = FIRST
  others: tuple[str, ...] = tuple(x for x in ARMS if x not in FIRST)
  trials: int = 4
  finalists: int = 2
  tuning_seeds: tuple[int, int] = (100, 101)
  seeds: int = SEEDS
  few_seeds: int = FEW_SEEDS
  batch_size: int = BATCH_SIZE
  other_batches: tuple[int, ...] = (64, 512, 16, 256, 1024)
  averaged: tuple[int, int] = (64, 8)  # the size of batches, and how many
  full: tuple[str, ...] = FULL_ARMS
  table: tuple[str, ...] = TABLE
  table_batches: tuple[int, ...] = (64, 512)  # of `table`
  factors: tuple[float, ...] = FACTORS
  widest: float = WIDEST
  parts: tuple[str, ...] = (LOOKS, PLANTED, FROZEN)
  smoke: bool = False


SMOKE = Scale(
  first=("clip", "nuclr_queue"),
  others=("nuclr_exact",),
  trials=2,
  finalists=1,
  batch_size=16,
  other_batches=(8,),
  averaged=(8, 2),
  full=("clip",),
  table=("nuclr_exact",),
  table_batches=(8,),
  factors=(1.0,),
  widest=1.0,
  few_seeds=1,
  parts=(LOOKS, PLANTED),  # the features of the frozen encoder are an extra
  smoke=True,
)


def chosen_pairs(total: int, count: int) -> np.ndarray:
  """Returns pairs of a fixed random part; each part has the smaller ones."""
  return np.random.default_rng(KEY).permutation(total)[:count]


def scale_of(options: Options) -> Scale:
  """Returns how much a command runs."""
  scale = SMOKE if options.smoke else Scale()
  return scale._replace(
    seeds=options.seeds, few_seeds=min(scale.few_seeds, options.seeds)
  )


def make_run(
  scale: Scale,
  part: str,
  name: str,
  seed: int,
  *,
  value: float,
  rate: float,
  batch_size: int | None = None,
  averaged: int = 1,
  pieces: int = 1,
) -> Run:
  """Makes a run of an arm.

  Args:
    scale: How much is run.
    part: The part of the study; tests are scored unless it tunes.
    name: The arm.
    seed: The seed of the run.
    value: The value of the arm's tuned number.
    rate: The learning rate.
    batch_size: The pairs in a batch, by default `scale.batch_size`.
    averaged: The batches whose mean gradient a step has.
    pieces: The pieces of a batch that the encoders see one after another.
  """
  batch_size = batch_size or scale.batch_size
  words = {
    "arm": name,
    ARMS[name].tuned: value,
    "rate": rate,
    "batch": batch_size,
    "size": "half",
    "marked": True,
    "test": part not in (RATE, TUNING),
  }
  words |= WORDS.get(part, {})
  words |= {"averaged": averaged} if averaged > 1 else {}
  words |= {"pieces": pieces} if pieces > 1 else {}
  smoke = {"smoke": True} if scale.smoke else {}
  setting = f"{name} {ARMS[name].tuned}={value:g} rate={rate:.3g}"
  setting += f" batch={batch_size}"
  setting += f" × {averaged}" if averaged > 1 else ""
  setting += f" in {pieces} pieces" if pieces > 1 else ""
  return Run(part, setting, seed, tuple((words | smoke).items()))


def score(run: Run, rows: Rows) -> float:
  """Returns the criterion of a run; the worst if it diverged."""
  value = rows[run.key].get(CRITERION)
  return -np.inf if value is None else value


def _best(groups: Mapping[Any, Sequence[Run]], rows: Rows) -> Any:
  """Returns the key with the best mean; None while a run is missing."""
  runs = [run for group in groups.values() for run in group]
  if not runs or any(run.key not in rows for run in runs):
    return None
  means = {k: np.mean([score(x, rows) for x in v]) for k, v in groups.items()}
  return max(means, key=means.get)


def rate_runs(scale: Scale) -> dict[float, list[Run]]:
  """Plans the trials of the learning rate, by rate."""
  seed = scale.tuning_seeds[0]
  rates = RATES[1:2] if scale.smoke else RATES
  return {
    rate: [
      make_run(scale, RATE, name, seed, value=MIDDLE, rate=rate)
      for name in RATE_ARMS
    ]
    for rate in rates
  }


def best_rate(scale: Scale, rows: Rows) -> float | None:
  """Returns the learning rate of all arms; None while trials are missing."""
  return _best(rate_runs(scale), rows)


def trials(scale: Scale, name: str, rows: Rows) -> dict[float, list[Run]]:
  """Plans an arm's grid on the first tuning seed, by value.

  Where the learning rate was tuned, the run is that of the rate.
  """
  rate = best_rate(scale, rows)
  if rate is None:
    return {}
  seed, arm = scale.tuning_seeds[0], ARMS[name]
  return {
    value: [
      make_run(
        scale,
        RATE if name in RATE_ARMS and value == MIDDLE else TUNING,
        name,
        seed,
        value=value,
        rate=rate,
      )
    ]
    for value in GRIDS[arm.tuned][-scale.trials :]
  }


def finals(scale: Scale, name: str, rows: Rows) -> dict[float, list[Run]]:
  """Plans the best trials on both tuning seeds; {} while trials are missing."""
  by_value = trials(scale, name, rows)
  runs = [run for group in by_value.values() for run in group]
  if not runs or any(run.key not in rows for run in runs):
    return {}
  chosen = sorted(by_value, key=lambda x: -score(by_value[x][0], rows))
  rate = best_rate(scale, rows)
  return {
    x: by_value[x]
    + [make_run(scale, TUNING, name, scale.tuning_seeds[1], value=x, rate=rate)]
    for x in chosen[: scale.finalists]
  }


def tuned(scale: Scale, name: str, rows: Rows) -> float | None:
  """Returns the value that won the finals; None before they end."""
  return _best(finals(scale, name, rows), rows)


def comparison(
  scale: Scale, rows: Rows, part: str = MAIN
) -> dict[str, list[Run]]:
  """Plans the tuned arms on fresh seeds, by arm.

  Args:
    scale: How much is run.
    rows: The rows so far.
    part: `MAIN` has all arms, `FULL` those of `Scale.full`, `PLANTED` and
      `FROZEN` those whose learning rate was tuned, the other parts those of
      `Scale.first`, and `UNMARKED` a few seeds of `Scale.table`, too.
  """
  rest = tuple(x for x in scale.table if x not in scale.first)
  more = {MAIN: scale.others, UNMARKED: rest}
  names = scale.full if part == FULL else scale.first + more.get(part, ())
  if part in (PLANTED, FROZEN):
    names = tuple(x for x in names if x in RATE_ARMS)
  few = names if part in (LOOKS, PLANTED, FROZEN) else ()
  if part == UNMARKED:
    few = rest
  return {
    name: [
      make_run(
        *(scale, part, name, seed),
        value=value,
        rate=best_rate(scale, rows),
      )
      for seed in range(scale.few_seeds if name in few else scale.seeds)
    ]
    for name in names
    if (value := tuned(scale, name, rows)) is not None
  }


def rate_at(scale: Scale, batch_size: int, rows: Rows, factor: float) -> float:
  """Returns the learning rate at a batch size: a factor times the root's."""
  root = (batch_size / scale.batch_size) ** 0.5
  of_root = round(best_rate(scale, rows) * root, 6)
  return round(factor * of_root, 6)


def batch_trials(
  scale: Scale, name: str, batch_size: int, rows: Rows, averaged: int = 1
) -> dict[float, list[Run]]:
  """Plans the learning rates of an arm at a batch size, by factor, sorted.

  They are wider than `Scale.factors` where the best of these is at an end. The
  root's is that of the pairs in a step.
  """
  value = tuned(scale, name, rows)
  if value is None:
    return {}
  factors = scale.factors
  while True:
    found = {
      x: [
        make_run(
          *(scale, TUNING, name, scale.tuning_seeds[0]),
          value=value,
          rate=rate_at(scale, averaged * batch_size, rows, x),
          batch_size=batch_size,
          averaged=averaged,
        )
      ]
      for x in factors
    }
    best = _best(found, rows)
    beyond = {factors[0]: factors[0] / 2, factors[-1]: factors[-1] * 2}
    new = beyond.get(best)
    if new is None or not 1 / scale.widest <= new <= scale.widest:
      return found
    factors = sorted((*factors, new))


def batch_arms(
  scale: Scale, batch_size: int, averaged: int = 1
) -> tuple[str, ...]:
  """Returns the arms of a batch size, of steps with that many batches."""
  if averaged > 1:
    return AVERAGED_ARMS
  has_all = batch_size in (scale.batch_size, *scale.table_batches)
  return BATCH_ARMS + (scale.table if has_all else ())


def shared_factor(scale: Scale, batch_size: int, rows: Rows) -> float | None:
  """Returns the factor of the learning rate that is best for `BATCH_ARMS`."""
  found: dict[float, list[Run]] = {}
  names = [x for x in BATCH_ARMS if x in scale.first + scale.others]
  for name in names:
    for factor, runs in batch_trials(scale, name, batch_size, rows).items():
      found.setdefault(factor, []).extend(runs)
  whole = {x: y for x, y in found.items() if len(y) == len(names)}
  return _best(whole, rows)


def at_batch(
  scale: Scale, batch_size: int, rows: Rows, averaged: int = 1
) -> dict[str, list[Run]]:
  """Plans some arms at a batch size, each at its learning rate there."""
  if (batch_size, averaged) == (scale.batch_size, 1):
    main = comparison(scale, rows)
    return {x: main[x] for x in batch_arms(scale, batch_size) if x in main}
  part = AVERAGED if averaged > 1 else BATCHES
  found, names = {}, batch_arms(scale, batch_size, averaged)
  of_table = set(names) & set(scale.table)
  shared = shared_factor(scale, batch_size, rows) if of_table else None
  for name in names:
    if name in of_table:
      factor = shared
    else:
      trials = batch_trials(scale, name, batch_size, rows, averaged)
      factor = _best(trials, rows)
    if factor is not None and tuned(scale, name, rows) is not None:
      found[name] = [
        make_run(
          *(scale, part, name, seed),
          value=tuned(scale, name, rows),
          rate=rate_at(scale, averaged * batch_size, rows, factor),
          batch_size=batch_size,
          averaged=averaged,
        )
        for seed in range(scale.few_seeds)
      ]
  return found


def in_pieces(scale: Scale, rows: Rows) -> dict[str, list[Run]]:
  """Plans large batches of which encoders see one small part at a time.

  Their denominators and learning rates are those of the large batch.
  """
  size, count = scale.averaged
  whole = at_batch(scale, size * count, rows)
  return {
    name: [
      make_run(
        *(scale, AVERAGED, name, run.seed),
        value=tuned(scale, name, rows),
        rate=dict(run.values)["rate"],
        batch_size=size * count,
        pieces=count,
      )
      for run in whole[name]
    ]
    for name in AVERAGED_ARMS
    if name in whole
  }


def _tuning(scale: Scale, names: Sequence[str], rows: Rows) -> list[list[Run]]:
  """Plans the trials and the finals of arms."""
  groups = [x for name in names for x in trials(scale, name, rows).values()]
  return groups + [
    x for name in names for x in finals(scale, name, rows).values()
  ]


def plan(options: Options, rows: Rows) -> list[Run]:
  """Plans all runs that are decided by now, in order and without repetition."""
  scale = scale_of(options)
  main = comparison(scale, rows)
  groups = [*rate_runs(scale).values()]
  groups += _tuning(scale, scale.first, rows)
  groups += [main[x] for x in scale.first if x in main]
  for part in scale.parts:
    groups += comparison(scale, rows, part).values()
  for name in scale.others:
    groups += _tuning(scale, (name,), rows)
    groups += [main[name]] if name in main else []
  unmarked = comparison(scale, rows, UNMARKED)
  groups += [unmarked.pop(x, []) for x in scale.first]
  groups += comparison(scale, rows, FULL).values()
  table = []
  sizes = [(size, 1) for size in scale.other_batches]
  for size, averaged in (*sizes, scale.averaged):
    found = at_batch(scale, size, rows, averaged)
    for name in batch_arms(scale, size, averaged):
      if name in scale.table:
        table.append(found.get(name, []))
        continue
      groups += batch_trials(scale, name, size, rows, averaged).values()
      groups += [found.get(name, [])]
  groups += in_pieces(scale, rows).values()
  groups += [*table, *unmarked.values()]
  return list(dict.fromkeys(run for group in groups for run in group))
