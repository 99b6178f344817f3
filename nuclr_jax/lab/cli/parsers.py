"""Parsers of flags whose values have a form of their own."""

import math

from absl import flags


class BeamParser(flags.ListParser):
  """Parses --beam_pipeline_options, and gives the options their dashes."""

  def parse(self, argument):
    return ["--" + option.lstrip("-") for option in super().parse(argument)]


class HubsParser(flags.ListParser):
  """Parses --hubs: corrections, with commas between several."""

  def parse(self, argument):
    words = super().parse(argument)
    if not words:
      raise ValueError("it is empty; give csls, zeta, or both as csls,zeta")
    return [self._method(word) for word in words]

  def _method(self, word):
    if word in ("csls", "zeta"):
      return word
    strength = _number(word)
    if not 0 <= strength < math.inf:
      raise ValueError(
        f"{word!r} must be csls, zeta, or a strength of zeta that is at least "
        "0 and finite"
      )
    return strength


class NumbersParser(flags.ListParser):
  """Parses numbers within bounds, with commas between several."""

  def __init__(self, low: float, high: float, allowed: str):
    super().__init__()
    self.low, self.high, self.allowed = low, high, allowed

  def parse(self, argument):
    return [self._number(x) for x in super().parse(argument)]

  def _number(self, word):
    number = _number(word)
    if not self.low < number <= self.high or math.isinf(number):
      raise ValueError(f"{word!r} must be {self.allowed}")
    return number


class SharesParser(flags.ListParser):
  """Parses --interpolate: numbers from 0 to 1, with commas between several."""

  def parse(self, argument):
    shares = [_number(word) for word in super().parse(argument)]
    if not shares or not all(0 <= x <= 1 for x in shares):
      raise ValueError(
        f"{argument!r} must be a number from 0 (the weights that the run began "
        "from) to 1, or several, such as 0,0.25,0.5,0.75,1"
      )
    return list(dict.fromkeys(shares))


def _number(word: str) -> float:
  """Returns the number of a word; NaN, which is in no range, without one."""
  try:
    return float(word)
  except (TypeError, ValueError):
    return math.nan
