"""Numbers over seeds: means, paired differences, diverged runs."""

from collections.abc import Sequence

import numpy as np
from scipy import stats
import study

MEAN = "test/mean_recall@1"


def values(
  runs: Sequence[study.Run], results, metric: str | Sequence[str]
) -> dict[int, float]:
  """A metric, or the mean of several, in percent by seed, of the runs done."""
  names = [metric] if isinstance(metric, str) else metric
  found = {}
  for run in runs:
    row = results.get(run.key, {})
    if all(row.get(name) for name in names):
      found[run.seed] = 100 * float(np.mean([float(row[x]) for x in names]))
  return found


def mean_std(found: dict[int, float], digits: int = 1) -> str:
  """Mean and standard deviation over seeds in words."""
  x = list(found.values())
  if not x:
    return "–"
  spread = f" ± {np.std(x, ddof=1):.{digits}f}" if len(x) > 1 else ""
  return f"{np.mean(x):.{digits}f}{spread}"


def difference(ours: dict[int, float], theirs: dict[int, float]) -> str:
  """Paired difference over common seeds, with a 95 % confidence interval."""
  common = sorted(ours.keys() & theirs.keys())
  if len(common) < 2:
    return "–"
  d = np.array([ours[seed] - theirs[seed] for seed in common])
  half = stats.t.ppf(0.975, len(d) - 1) * np.std(d, ddof=1) / len(d) ** 0.5
  mark = " *" if abs(d.mean()) > half else ""
  return (
    f"{d.mean():+.1f} [{d.mean() - half:+.1f}, {d.mean() + half:+.1f}]{mark}"
  )


def diverged(runs: Sequence[study.Run], results) -> list[bool]:
  """Which of the runs that are done diverged."""
  done = [results[run.key] for run in runs if run.key in results]
  return [bool(row.get("diverged")) for row in done]


def seeds(runs: Sequence[study.Run], results) -> str:
  """How many runs are done, and how many of them diverged."""
  wrong = diverged(runs, results)
  return (
    f"{len(wrong)} ({sum(wrong)} diverged)" if any(wrong) else str(len(wrong))
  )
