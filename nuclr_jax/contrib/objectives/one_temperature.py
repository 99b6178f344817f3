"""A temperature for objectives that keep no rows of samples."""

from nuclr_jax.objectives import temperature_rules
from nuclr_jax.types import Number


def rule_for_all(
  temperature: Number | temperature_rules.TemperatureRule,
) -> temperature_rules.TemperatureRule:
  """Returns the rule of one temperature for all anchors.

  Raises:
    ValueError: If a number is not positive, or for individual temperatures.

  Example:
    >>> rule_for_all(0.07)
    fixed(temperature=0.07)
  """
  rule = temperature_rules.rule_of(temperature)
  if rule.is_individual:
    raise ValueError(
      "temperature must be a number, temperature_rules.fixed() or "
      "temperature_rules.learned() here, got individual temperatures: there "
      "are no rows to keep them in"
    )
  return rule
