"""Means over seeds, and paired differences."""

from collections.abc import Iterable, Mapping
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

MISSING = "–"  # the table cell of what was not measured


class Statistics(NamedTuple):
  """A sample's mean and spread; arrays where the values are arrays."""

  count: int
  mean: Any
  std: Any  # divides by n - 1; NaN for a single value

  @property
  def standard_error(self) -> Any:
    """The standard error of the mean."""
    return self.std / self.count**0.5

  @property
  def half_width(self) -> Any:
    """Half of the mean's 95 % confidence interval (Student's t)."""
    if self.count < 2:
      return self.std
    return stats.t.ppf(0.975, self.count - 1) * self.standard_error

  def show(self, digits: int = 1) -> str:
    """Formats the mean ± half of its 95 % interval as a table cell.

    Every study shows this spread and no other.

    Args:
      digits: The number of decimals.

    Example:
      >>> statistics([1.0, 2.0, 3.0]).show()
      '2.0 ± 2.5'
      >>> statistics([1.0]).show(), statistics([]).show()
      ('1.0', '–')
    """
    return plus_minus(self.mean, self.half_width, digits)

  def show_interval(self, digits: int = 1) -> str:
    """Formats the mean [its 95 % interval], with a star if 0 is outside.

    Example:
      >>> statistics([1.0, 2.0, 3.0]).show_interval()
      '+2.0 [-0.5, +4.5]'
    """
    if self.count < 2:
      return MISSING
    half = self.half_width
    low, high = self.mean - half, self.mean + half
    star = " *" if abs(self.mean) > half else ""
    return (
      f"{self.mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{star}"
    )

  def outcome(self, low: float = -math.inf, high: float = math.inf) -> str:
    """Judges the prediction that a quantity is from `low` to `high`.

    It holds or fails by the mean. It is open as well if the mean's 95 %
    interval contains one of the bounds: other seeds may then decide otherwise.

    Example:
      >>> statistics([1.0, 2.0, 3.0]).outcome(low=0)
      'holds, open'
      >>> statistics([1.9, 2.0, 2.1]).outcome(high=1)
      'fails'
    """
    verdict = "holds" if low <= self.mean <= high else "fails"
    half = self.half_width  # NaN, so never open, if there is one value
    crossed = any(abs(self.mean - x) <= half for x in (low, high))
    return f"{verdict}, open" if crossed else verdict


def plus_minus(mean: float, half: float, digits: int = 1) -> str:
  """Formats a mean ± half of its 95 % interval, which may be unknown (NaN).

  Example:
    >>> plus_minus(-0.04, 1.0)
    '-0.0 ± 1.0'
  """
  if math.isnan(mean):
    return MISSING
  more = "" if math.isnan(half) else f" ± {half:.{digits}f}"
  return f"{mean:.{digits}f}{more}"


def statistics(values: Iterable[Any]) -> Statistics:
  """Summarizes a sample along its first axis.

  Args:
    values: Numbers, or arrays that all have the same shape.

  Example:
    >>> statistics([1.0, 2.0, 6.0]).mean
    3.0
  """
  x = np.asarray(list(values), float)
  if not len(x):
    return Statistics(0, math.nan, math.nan)
  std = x.std(axis=0, ddof=1) if len(x) > 1 else np.full(x.shape[1:], np.nan)
  mean = x.mean(axis=0)
  if x.ndim == 1:
    mean, std = float(mean), float(std)
  return Statistics(len(x), mean, std)


def paired(ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> Statistics:
  """Summarizes the differences, ours minus theirs, over common seeds.

  Args:
    ours: Our values, by seed.
    theirs: The values to compare with, by seed.

  Example:
    >>> paired({0: 5.0, 1: 7.0, 9: 0.0}, {0: 4.0, 1: 5.0}).mean
    1.5
  """
  common = sorted(ours.keys() & theirs.keys())
  return statistics(ours[seed] - theirs[seed] for seed in common)
