"""Tables of the study, written into its README."""

import pathlib

import numpy as np
import popularity_study as study

from nuclr_jax import markdown, records

Rows = list[dict[str, str]]
BASE = study.VARIANTS[0].name
RECALL = "mean_recall@1"


def write(readme: pathlib.Path, rows: Rows) -> None:
  """Writes the tables of all rows between the marks of the README."""
  parts = {
    "variants": variant_table(rows),
    "hubs": hub_table(rows),
    "network": network_table(rows),
    "solver": solver_line(rows),
  }
  text = markdown.insert(readme.read_text(encoding="utf-8"), parts)
  records.write_atomically(readme, text)
  print(f"{readme}: {len(rows)} runs")


def values(rows: Rows, variant: str, column: str) -> dict[str, float]:
  """A column of a variant, by seed."""
  return {
    row["seed"]: float(row[column]) for row in rows if row["variant"] == variant
  }


def interval(numbers, *, scale: float = 1.0, digits: int = 2) -> str:
  """Mean and the half-width of its 95 % interval (Student's t)."""
  from scipy import stats

  x = scale * np.asarray(list(numbers), float)
  if not len(x) or np.isnan(x).any():
    return "–"
  if len(x) == 1:
    return f"{x[0]:.{digits}f}"
  half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
  return f"{x.mean():.{digits}f} ± {half:.{digits}f}"


def gain(rows: Rows, variant: str, column: str, over: str) -> str:
  """The paired difference to another variant, in points."""
  mine, other = (values(rows, v, column) for v in (variant, over))
  both = sorted(mine.keys() & other.keys())
  return interval((mine[s] - other[s] for s in both), scale=100, digits=1)


def variant_table(rows: Rows) -> str:
  """What each way to get zeta gives."""
  lines = []
  for variant in study.VARIANTS:
    name = variant.name

    def column(key, name=name):
      return values(rows, name, key).values()

    lines.append(
      [
        name,
        interval(column(f"validation/{RECALL}"), scale=100, digits=1),
        interval(column(f"test/{RECALL}"), scale=100, digits=1),
        "" if name == BASE else gain(rows, name, f"test/{RECALL}", BASE),
        interval(column("test/zero_shot_digits/top1"), scale=100, digits=1),
        *(interval(column(f"exact/pearson_{s}")) for s in ("image", "text")),
        *(_spread(rows, name, s) for s in ("image", "text")),
        interval(column("train_seconds"), digits=0),
      ]
    )
  header = (
    "zeta, validation R@1, test R@1, test − fixed at 0, digits, "
    "Pearson images, Pearson texts, spread images, spread texts, seconds"
  )
  return markdown.table(header.split(", "), lines)


def hub_table(rows: Rows) -> str:
  """What the correction for hubs gains, over all runs of a seed."""
  lines = []
  for source in ("exact", "network"):
    for strength in study.STRENGTHS:
      lines.append(
        [
          source,
          f"{strength:g}",
          *(
            _hub_gain(rows, split, source, strength, k)
            for split, k in (
              ("validation", 1),
              ("test", 1),
              ("test", 5),
              ("test", 10),
            )
          ),
        ]
      )
  header = "zeta, strength, validation R@1, test R@1, test R@5, test R@10"
  return markdown.table(header.split(", "), lines)


def network_table(rows: Rows) -> str:
  """R^2 of the network."""
  lines = []
  for variant in study.VARIANTS:
    cells = [
      interval(values(rows, variant.name, f"network/r2_{seen}_{side}").values())
      for seen in ("seen", "unseen")
      for side in ("image", "text")
    ]
    lines.append([variant.name, *cells])
  header = (
    "zeta in training, seen images, seen texts, unseen images, unseen texts"
  )
  return markdown.table(header.split(", "), lines)


def solver_line(rows: Rows) -> str:
  """What the exact solutions took."""
  seconds = [float(row["exact/seconds"]) for row in rows]
  residual = max(float(row["exact/residual"]) for row in rows)
  iterations = [int(row["exact/iterations"]) for row in rows]
  return (
    f"{len(rows)} exact solutions: {min(iterations)} to {max(iterations)} "
    f"iterations for both sides, {min(seconds):.0f} to {max(seconds):.0f} s, "
    f"residual at most {residual:.1e}."
  )


def _spread(rows, variant, side) -> str:
  """Standard deviation of the learned zeta over that of the exact ones."""
  learned, exact = (
    values(rows, variant, f"exact/{x}_std_{side}") for x in ("learned", "exact")
  )
  return interval(learned[seed] / exact[seed] for seed in learned)


def _hub_gain(rows, split, source, strength, k) -> str:
  """Gain in points: one number per seed, the mean over its runs."""
  recall = f"mean_recall@{k}"
  gains = {}
  for row in rows:
    corrected = float(row[f"{split}/hubs_{source}_{strength}/{recall}"])
    plain = float(row[f"{split}/{recall}"])
    gains.setdefault(row["seed"], []).append(corrected - plain)
  return interval(map(np.mean, gains.values()), scale=100, digits=1)
