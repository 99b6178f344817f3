"""Ways to zeta: rules of an objective, or a solution of a sample."""

from typing import NamedTuple

import optax

from nuclr_jax import Sides, objectives
from nuclr_jax.objectives import Objective, zeta_rules

SHARES = (1.0, 0.25, 0.094, 0.023, 0.006)  # of all pairs


class Way(NamedTuple):
  """How zeta is found."""

  rule: str  # of zeta; "exact" is fixed too; with "" a sample is solved
  rate: float = 0.0
  falls: bool = False  # whether the rate falls to 0 as a cosine
  share: float = 0.0  # of all pairs, in the queue's memory
  sample: float = 0.0  # of all pairs, in the sample
  gamma: float = 0.8  # of the averages u
  exact_u: bool = False  # whether steps begin with the exact u


WAYS = {"ζ = 0": Way("fixed"), "ζ exact": Way("exact")}
for _name, _rule in (("ζ = 0", "fixed"), ("ζ exact", "exact")):
  for _gamma in (0.3, 0.1):
    WAYS[f"{_name}, γ {_gamma}"] = Way(_rule, gamma=_gamma)
for _rate in (0.02, 0.14):
  for _falls in (False, True):
    _name = f"batch, rate {_rate}" + (", falls" if _falls else "")
    WAYS[_name] = Way("batch", _rate, _falls)
for _rate in (0.5, 1.0):  # added after the rows of the other ways
  WAYS[f"batch, rate {_rate:g}"] = Way("batch", _rate)
for _share in SHARES:
  for _falls in (False, True):
    _name = f"queue {100 * _share:g} %" + (", falls" if _falls else "")
    WAYS[_name] = Way("queue", 0.3, _falls, share=_share)
for _share in SHARES[1:]:
  WAYS[f"sample {100 * _share:g} %"] = Way("", sample=_share)
FROZEN_WAYS = tuple(WAYS)
WAYS["SogCLR"] = Way("sogclr")  # of these, only steps were measured
WAYS["ζ exact, u exact"] = Way("exact", exact_u=True)


def make_objective(
  name: str,
  *,
  num_pairs: int,
  dim: int,
  temperature: float,
  batch_size: int,
  num_steps: int,
  exact: Sides,
) -> Objective:
  """Makes NUCLR with a way's rule of zeta; some ways know the exact one."""
  way = WAYS[name]
  rate = way.rate
  if way.rule == "sogclr":  # zeta = 0, and no positive
    return objectives.sogclr(
      num_pairs=num_pairs, temperature=temperature, gamma=way.gamma
    )
  if way.falls:
    rate = optax.cosine_decay_schedule(rate, num_steps)
  if way.rule == "fixed":
    rule = zeta_rules.fixed()
  elif way.rule == "exact":
    rule = zeta_rules.fixed(init=exact)
  elif way.rule == "batch":
    rule = zeta_rules.batch(rate=rate)
  else:
    size = max(round(way.share * num_pairs / batch_size), 1) * batch_size
    rule = zeta_rules.queue(dim=dim, size=size, rate=rate)
  return objectives.nuclr(
    num_pairs=num_pairs,
    num_images=num_pairs,
    num_texts=num_pairs,
    temperature=temperature,
    gamma=way.gamma,
    zeta=rule,
  )
