"""The tables and the figure of near-duplicate captions."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
import numpy as np
import scipy.stats

from experiments.harness import Row, markdown
from experiments.harness.plots import new_figure
from experiments.harness.statistics import (
  Statistics,
  paired,
  plus_minus,
  statistics,
)
from experiments.when_it_pays.duplicates import BASE, SHARES, TAUS, setting_of

SETTINGS = [(share, tau) for share in SHARES for tau in TAUS]
COLUMNS = [f"share {share}, τ {tau}" for share, tau in SETTINGS]
POOLS = ("names", "all captions", "text to image")
# Scores by name: the arm, and what is added to its similarities.
SCORES = {
  "CLIP": ("CLIP", "E"),
  "ζ = 0": ("ζ = 0", "E"),
  "ζ learned, batch": ("ζ learned, batch", "E"),
  "ζ learned, batch, E − ζ": ("ζ learned, batch", "E - ζ"),
  "ζ learned, queue": ("ζ learned, queue", "E"),
  "ζ learned, queue, E − ζ": ("ζ learned, queue", "E - ζ"),
  "ζ exact, each epoch": ("ζ exact, each epoch", "E"),
  "ζ exact, each epoch, E − ζ": ("ζ exact, each epoch", "E - ζ"),
  "SogCLR, E − ζ exact": (BASE, "E - ζ exact"),
}
LEARNED, AFTER = "ζ learned, queue, E − ζ", "SogCLR, E − ζ exact"
DRAWN = (LEARNED, "ζ learned, batch, E − ζ", AFTER)


def tables(rows: Sequence[Row]) -> dict[str, str]:
  """Returns all tables, by mark."""
  return {f"near-duplicates: {x}": gain_table(rows, x) for x in POOLS} | {
    "near-duplicates: spread": spread_table(rows),
    "near-duplicates: slopes": slope_table(rows),
  }


def by_seed(rows: Sequence[Row], arm: str, setting, value) -> dict[int, float]:
  """Returns a number of each row of an arm in a setting, by seed."""
  name = setting_of(arm, *setting)
  return {row["seed"]: value(row) for row in rows if row["setting"] == name}


def accuracies(
  rows: Sequence[Row], arm: str, score: str, setting, pool: str
) -> dict[int, float]:
  """Returns an accuracy in percent, by seed."""
  return by_seed(rows, arm, setting, lambda row: row["scores"][score][pool])


def gain(rows: Sequence[Row], name: str, setting, pool: str) -> Statistics:
  """Returns a score's paired difference to SogCLR's E, in points."""
  ours = accuracies(rows, *SCORES[name], setting, pool)
  return paired(ours, accuracies(rows, BASE, "E", setting, pool))


def shown(found: Statistics, digits: int = 1) -> str:
  """Formats a mean and its 95 % interval."""
  return found.show(digits) if found.count else "–"


def gain_table(rows: Sequence[Row], pool: str) -> str:
  """Shows SogCLR's accuracy, and every score's difference to it."""
  base = [
    statistics(accuracies(rows, BASE, "E", x, pool).values()) for x in SETTINGS
  ]
  lines = [["SogCLR, E: %", *map(shown, base)]]
  for name, (_, score) in SCORES.items():
    if pool == "text to image" and score != "E":
      continue  # the same for all images of a text
    gains = [gain(rows, name, x, pool) for x in SETTINGS]
    lines.append([name, *map(shown, gains)])
  if pool == "names":
    differences = (
      paired(
        accuracies(rows, *SCORES[AFTER], x, pool),
        accuracies(rows, *SCORES[LEARNED], x, pool),
      )
      for x in SETTINGS
    )
    lines.append([f"({AFTER}) − ({LEARNED})", *map(shown, differences)])
  if pool == "all captions":
    for arm in (BASE, "CLIP"):
      picked = (
        accuracies(rows, arm, "E", x, "boilerplates").values() for x in SETTINGS
      )
      name = f"{arm}, E: boilerplates picked, %"
      lines.append([name, *(shown(statistics(x)) for x in picked)])
  return markdown.table(["score", *COLUMNS], lines)


def spread_table(rows: Sequence[Row]) -> str:
  """Shows the spread of zeta over training texts and images."""
  lines = []
  arms = dict.fromkeys(arm for arm, _ in SCORES.values())
  for arm in dict.fromkeys((BASE, *arms)):
    for key, what in (("zeta_sd", "its ζ"), ("exact_sd", "exact ζ")):
      for side in ("text", "image"):
        found = [
          by_seed(
            rows, arm, x, lambda row, k=key, s=side: row.get(k, {}).get(s)
          ).values()
          for x in SETTINGS
        ]
        cells = [
          shown(statistics(x), 2) if x and None not in x else "–" for x in found
        ]
        if set(cells) != {"–"} and not (arm == "ζ = 0" and key == "zeta_sd"):
          lines.append([f"{arm}: {what}, {side}s", *cells])
  return markdown.table(["sd / τ", *COLUMNS], lines)


def points(rows: Sequence[Row], name: str) -> Mapping[int, np.ndarray]:
  """Returns (spread of zeta* / tau, gain) of all settings, by seed."""
  found: dict[int, list[tuple[float, float]]] = {}
  for setting in SETTINGS:
    spread = by_seed(rows, BASE, setting, lambda row: row["exact_sd"]["text"])
    ours = accuracies(rows, *SCORES[name], setting, "names")
    base = accuracies(rows, BASE, "E", setting, "names")
    for seed in ours.keys() & base.keys():
      point = spread[seed], ours[seed] - base[seed]
      found.setdefault(seed, []).append(point)
  return {seed: np.array(x) for seed, x in sorted(found.items())}


def slope_table(rows: Sequence[Row]) -> str:
  """Shows how gains grow with the spread of zeta*: the mean slope of seeds."""
  lines = []
  for name in SCORES:
    every = points(rows, name).values()
    slopes = [np.polyfit(*x.T, deg=1)[0] for x in every if len(x) > 2]
    if slopes:
      together = np.concatenate([x for x in every if len(x) > 2])
      fit = scipy.stats.linregress(*together.T)
      margin = fit.stderr * scipy.stats.t.ppf(0.975, len(together) - 2)
      whole = [x[:, 1] for x in every if len(x) == len(SETTINGS)]
      some = np.array([share > 0 for share, _ in SETTINGS])
      lines.append(
        [
          name,
          shown(statistics(slopes)),
          plus_minus(fit.slope, margin),
          *(
            shown(statistics(np.mean(x[y]) for x in whole))
            for y in (~some, some, some | ~some)
          ),
        ]
      )
  header = [
    *("score", "points per sd(ζ*) / τ", "of all points at once"),
    *("mean gain: no boilerplates", "mean gain: boilerplates"),
    "mean gain of the six settings",
  ]
  return markdown.table(header, lines)


def draw(rows: Sequence[Row]) -> Figure:
  """Draws gains against the spread of zeta*, each seed of each setting."""
  figure = new_figure((11, 3.6), dpi=120)
  panels = figure.subplots(1, len(DRAWN), sharey=True, sharex=True)
  for axes, name in zip(panels, DRAWN, strict=True):
    for i, setting in enumerate(SETTINGS):
      spread = by_seed(rows, BASE, setting, lambda row: row["exact_sd"]["text"])
      ours = accuracies(rows, *SCORES[name], setting, "names")
      base = accuracies(rows, BASE, "E", setting, "names")
      seeds = sorted(ours.keys() & base.keys())
      axes.scatter(
        [spread[seed] for seed in seeds],
        [ours[seed] - base[seed] for seed in seeds],
        marker="o^"[setting[1] == TAUS[-1]],
        color=f"C{i // len(TAUS)}",
        label=COLUMNS[i],
        alpha=0.8,
      )
    axes.axhline(0, color="black", linestyle=":")
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("sd of SogCLR's ζ* over texts, in τ")
    axes.grid(alpha=0.3)
  panels[0].set_ylabel("points over SogCLR's E")
  handles = panels[0].get_legend_handles_labels()
  figure.legend(*handles, loc="outside lower center", ncols=6, fontsize=8)
  return figure
