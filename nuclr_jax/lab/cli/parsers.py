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
    try:
      strength = float(word)
    except ValueError:
      strength = math.nan
    if not 0 <= strength < math.inf:
      raise ValueError(
        f"{word!r} must be csls, zeta, or a strength of zeta that is at least "
        "0 and finite"
      )
    return strength


class SharesParser(flags.ListParser):
  """Parses --interpolate: numbers from 0 to 1, with commas between several."""

  def parse(self, argument):
    words = super().parse(argument)
    try:
      shares = [float(word) for word in words]
    except ValueError:
      shares = []
    if not shares or not all(0 <= x <= 1 for x in shares):
      raise ValueError(
        f"{argument!r} must be a number from 0 (the weights that the run began "
        "from) to 1, or several, such as 0,0.25,0.5,0.75,1"
      )
    return list(dict.fromkeys(shares))
