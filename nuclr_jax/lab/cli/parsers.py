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
