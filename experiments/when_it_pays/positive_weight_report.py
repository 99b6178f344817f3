"""The tables and the figure of the positive's weight."""

from collections.abc import Sequence

from matplotlib.figure import Figure
import numpy as np

from experiments.bimodal.plan import CRITERION as VALIDATION
from experiments.bimodal.summary import MEAN as TEST
from experiments.harness import Row, markdown
from experiments.harness.plots import new_figure
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.when_it_pays.positive_weight import (
  ARMS,
  CLIP,
  GAMMAS,
  LENGTHS,
  NUCLR,
  NUCLR_WEIGHTS,
  WEIGHTS,
  name_of,
  setting_of,
)

DIGITS = "test/zero_shot_digits/top1"
MIDDLE = 16  # epochs, of the long runs
MIDDLING, LAST = WEIGHTS[-2:]
EARLY = 8  # epochs
SHORT, LONG = LENGTHS


def tables(rows: Sequence[Row]) -> dict[str, str]:
  """Returns all tables, by mark."""
  return {
    "positive weight": comparison(rows),
    "positive weight: differences": differences(rows),
  }


def scores(
  rows: Sequence[Row], arm: str, length: float, metric: str = TEST
) -> dict[int, float]:
  """Returns a metric of an arm in percent, by seed."""
  name = setting_of(arm, length)
  return {r["seed"]: 100 * r[metric] for r in rows if r["setting"] == name}


def in_the_middle(rows: Sequence[Row], arm: str) -> dict[int, float]:
  """Returns the validation recall of a long training after `MIDDLE` epochs."""
  return {seed: curve[MIDDLE - 1] for seed, curve in curves(rows, arm).items()}


def early(rows: Sequence[Row], arm: str) -> dict[int, float]:
  """Returns the mean validation recall of a long training's first epochs."""
  return {
    seed: float(np.mean(curve[:EARLY]))
    for seed, curve in curves(rows, arm).items()
  }


def curves(rows: Sequence[Row], arm: str) -> dict[int, np.ndarray]:
  """Returns the validation recall after each epoch in percent, by seed."""
  name = setting_of(arm, LONG)
  return {
    row["seed"]: 100 * np.array(row["curve"][VALIDATION])
    for row in rows
    if row["setting"] == name
  }


def shown(found: Statistics) -> str:
  """Formats a mean and its 95 % interval."""
  return found.show() if found.count else "–"


def comparison(rows: Sequence[Row]) -> str:
  """Shows every arm, and its paired difference to CLIP."""
  metrics = {
    f"{SHORT:g} epochs: test": lambda x: scores(rows, x, SHORT),
    f"{LONG:g} epochs: test": lambda x: scores(rows, x, LONG),
    "validation": lambda x: scores(rows, x, LONG, VALIDATION),
    f"validation after {MIDDLE}": lambda x: in_the_middle(rows, x),
    f"validation, mean of the first {EARLY}": lambda x: early(rows, x),
    "digits": lambda x: scores(rows, x, LONG, DIGITS),
  }
  header = ["arm"]
  for name in metrics:
    header += [name, f"{name} − CLIP"]
  lines = []
  for arm in ARMS:
    line = [arm]
    for values in metrics.values():
      ours = values(arm)
      line.append(shown(statistics(ours.values())))
      line.append("" if arm == CLIP else shown(paired(ours, values(CLIP))))
    lines.append(line)
  return markdown.table(header, lines)


def numbers(rows: Sequence[Row]) -> dict[str, str]:
  """Returns how far NUCLR's largest weight is above 1, to one digit more."""
  few, many = (
    scores(rows, NUCLR + name_of(k, GAMMAS[0]), LONG)
    for k in (NUCLR_WEIGHTS[0], NUCLR_WEIGHTS[-1])
  )
  gain = paired(many, few)
  return {"NUCLR, largest k over k = 1": gain.show(2)} if gain.count else {}


def differences(rows: Sequence[Row]) -> str:
  """Shows what a weight and an average do, each with the other one held."""
  pairs = [
    (name_of(k, gamma), name_of(WEIGHTS[0], gamma))
    for gamma in GAMMAS
    for k in WEIGHTS[1:]
  ]
  pairs += [(name_of(LAST, x), name_of(MIDDLING, x)) for x in GAMMAS]
  pairs += [(name_of(k, GAMMAS[0]), name_of(k, GAMMAS[1])) for k in WEIGHTS]
  once, *more = (NUCLR + name_of(k, GAMMAS[0]) for k in NUCLR_WEIGHTS)
  pairs += [(name, once) for name in more]
  pairs += [(once, name_of(WEIGHTS[0], GAMMAS[0]))]
  lines = []
  for ours, theirs in pairs:
    cells = [
      shown(paired(scores(rows, ours, x, m), scores(rows, theirs, x, m)))
      for x in LENGTHS
      for m in (TEST, VALIDATION)
    ]
    lines.append([f"({ours}) − ({theirs})", *cells])
  header = [
    f"{length:g} epochs: {kind}"
    for length in LENGTHS
    for kind in ("test", "validation")
  ]
  return markdown.table(["difference", *header], lines)


def draw(rows: Sequence[Row]) -> Figure:
  """Draws differences to CLIP by weight, and the curves of long runs."""
  figure = new_figure((11, 4.0), dpi=120)
  left, middle, right = figure.subplots(1, 3)
  at = np.arange(len(WEIGHTS))
  for axes, length in ((left, SHORT), (middle, LONG)):
    for i, gamma in enumerate(GAMMAS):
      found = [
        paired(
          scores(rows, name_of(k, gamma), length), scores(rows, CLIP, length)
        )
        for k in WEIGHTS
      ]
      if all(x.count > 1 for x in found):
        axes.errorbar(
          at + 0.1 * (i - 0.5),
          [x.mean for x in found],
          yerr=[x.half_width for x in found],
          fmt="o-",
          label=f"γ = {gamma:g}",
        )
    axes.axhline(0, color="black", linestyle=":")
    axes.set_xticks(at, [f"{k:g}" for k in WEIGHTS])
    axes.set(xlabel="weight k of the positive", ylim=(-5.5, 2.5))
    axes.set_title(f"{length:g} epochs: test R@1 over CLIP", fontsize=10)
    axes.grid(alpha=0.3)
  if left.get_legend_handles_labels()[0]:
    left.legend(frameon=False, fontsize=8, loc="lower right")
  clip = curves(rows, CLIP)
  for i, k in enumerate((WEIGHTS[0], MIDDLING, LAST)):
    for gamma, style in zip(GAMMAS, ("-", "--"), strict=True):
      ours = curves(rows, name_of(k, gamma))
      seeds = ours.keys() & clip.keys()
      if seeds:
        gaps = np.mean([ours[seed] - clip[seed] for seed in seeds], axis=0)
        right.plot(
          np.arange(1, len(gaps) + 1),
          gaps,
          style,
          color=f"C{i + 2}",
          label=name_of(k, gamma),
        )
  right.axhline(0, color="black", linestyle=":")
  right.set(xlabel="epoch of 24")
  right.set_title("SogCLR: validation R@1 over CLIP, means", fontsize=10)
  right.grid(alpha=0.3)
  if right.lines[1:]:
    right.legend(frameon=False, fontsize=8)
  return figure
