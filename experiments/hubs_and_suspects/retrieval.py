"""Recall@1 of every correction, its settings chosen on validation."""

from collections.abc import Iterator, Mapping
import functools
import itertools
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from experiments.hubs_and_suspects import hubs
from nuclr_jax.lab.evaluate import hubness

ZETA_SCALES = (0.5, 1.0, 2.0)  # temperatures of exact zeta, by the training's
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the inverted softmax
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
NEAREST = (1, 3, 10, 30, 100)  # k of CSLS
ACTIVE = (1, 3, 10)  # k of QB-Norm
QB_NORM = {"temperature": 1 / 20, "k": 1}  # the published defaults
DBSN = 0.01  # the published temperature
BALANCED, NATURAL = "balanced", "natural"


class Half(NamedTuple):
  """Queries and candidates of validation or of the test.

  A gallery has a query and a candidate of each letter, in the same order.
  """

  sim: Float[np.ndarray, "galleries letters letters"]
  bank: Float[np.ndarray, "one_or_galleries bank letters"]
  targets: Float[np.ndarray, "bank bank"]  # the bank's pairs with each other


class Scorer:
  """Scores of one half under each correction; penalties are kept."""

  def __init__(self, half, denominators, log_p, temperature):
    self.half, self.log_p = half, log_p
    self.temperature = temperature

    @functools.cache
    def penalty(name, setting):
      bank = half.bank
      if name == "CSLS":
        return hubness.local_scaling(bank, k=setting)
      if name == "DBSN":
        return hubs.dual_bank(bank, half.targets, temperature=setting)
      if name == "ζ":
        return hubs.inverted_softmax(
          bank,
          temperature=setting * temperature,
          log_denominator=denominators[setting],
        )
      return hubs.inverted_softmax(bank, temperature=setting)

    self.penalty = penalty
    self.active = functools.cache(lambda k: hubs.activated(half.bank, k=k))

  def score(self, name, setting=None, strength=1.0, k=None, prior=0.0):
    """Returns scores [galleries, queries, candidates]."""
    sim = self.half.sim
    if name == "QB-Norm":
      penalty = self.penalty("IS", setting)
      score = hubs.qb_norm(sim, penalty, self.active(k))
    elif name == "E" or not strength:
      score = sim
    else:
      score = sim - strength * self.penalty(name, setting)[:, None, :]
    return score + prior * self.log_p if prior else score


def grids(temperature: float) -> dict[str, list[dict[str, Any]]]:
  """Returns the settings of each correction, the weakest first.

  A name ends in "any strength" if the method has no strength as published;
  those that end in "fixed" have nothing to choose.
  """
  of_is = [x * temperature for x in SCALES]
  some = [x for x in STRENGTHS if x]

  def product(name, **values):
    keys = list(values)
    return [
      {"name": name} | dict(zip(keys, x, strict=True))
      for x in itertools.product(*values.values())
    ]

  return {
    "E": [{"name": "E"}],
    "ζ": product("ζ", setting=[1.0], strength=STRENGTHS),
    "ζ, any τ": product("ζ", strength=STRENGTHS, setting=ZETA_SCALES),
    "CSLS": product("CSLS", setting=NEAREST, strength=[0.5]),
    "CSLS, any strength": product("CSLS", strength=STRENGTHS, setting=NEAREST),
    "IS": product("IS", setting=of_is),
    "IS, any strength": product("IS", strength=STRENGTHS, setting=of_is),
    "QB-Norm": product("QB-Norm", setting=of_is, k=ACTIVE),
    "DBSN": product("DBSN", setting=of_is),
    "DBSN, any strength": product("DBSN", strength=STRENGTHS, setting=of_is),
    "ζ, strength 1, fixed": product("ζ", setting=[1.0]),
    "ζ, strength 0.5, fixed": product("ζ", setting=[1.0], strength=[0.5]),
    "CSLS, k 10, fixed": product("CSLS", setting=[10], strength=[0.5]),
    "IS, τ, fixed": product("IS", setting=[temperature]),
    "IS, τ, strength 0.5, fixed": product(
      "IS", setting=[temperature], strength=[0.5]
    ),
    "QB-Norm, fixed": product(
      "QB-Norm", setting=[QB_NORM["temperature"]], k=[QB_NORM["k"]]
    ),
    "DBSN, τ, fixed": product("DBSN", setting=[temperature]),
    "DBSN, published, fixed": product("DBSN", setting=[DBSN]),
    "E + prior, any strength": product("E", prior=[0.0, *some]),
  }


def evaluate(
  validation: Half,
  test: Half,
  denominators: Mapping[float, np.ndarray],
  p: Float[np.ndarray, "letters"],
  log_p: Float[np.ndarray, "letters"] | None,
  *,
  temperature: float,
) -> dict[str, dict[str, dict[str, Any]]]:
  """Chooses each correction's setting on validation and scores the test.

  Args:
    validation: Queries that choose settings.
    test: The other queries.
    denominators: D_i of the bank by the scale of the temperature.
    p: How often each letter is asked for in natural queries.
    log_p: τ log p of each candidate, counted in training; None where
      candidates have none. With it, every correction is also scored with the
      prior added ("... + τ log p"), for natural queries.
    temperature: The temperature of the training.

  Returns:
    By kind of queries and by correction: `test`, `validation` (recall@1 in
    percent) and the chosen `setting`.
  """
  scorers = [
    Scorer(half, denominators, log_p, temperature)
    for half in (validation, test)
  ]
  weights = {BALANCED: np.full(len(p), 1 / len(p)), NATURAL: p}
  found = {kind: {} for kind in weights}
  for name, grid, kinds in _corrections(temperature, log_p is not None):
    hits = [right(scorers[0].score(**x)) for x in grid]
    for kind in kinds:
      recalls = [100 * float(x @ weights[kind]) for x in hits]
      best = int(np.argmax(recalls))
      hit = right(scorers[1].score(**grid[best]))
      found[kind][name] = {
        "test": round(100 * float(hit @ weights[kind]), 4),
        "validation": round(recalls[best], 4),
        "setting": {k: x for k, x in grid[best].items() if k != "name"},
      }
  return found


def _corrections(
  temperature: float, with_prior: bool
) -> Iterator[tuple[str, list[dict[str, Any]], tuple[str, ...]]]:
  """Yields corrections, their grids, and the kinds of queries to score."""
  for name, grid in grids(temperature).items():
    if "prior" not in name:
      yield name, grid, (BALANCED, NATURAL)
    if with_prior and "prior" in name:
      yield name, grid, (NATURAL,)
    elif with_prior:
      added = [x | {"prior": 1.0} for x in grid]
      yield f"{name} + τ log p", added, (NATURAL,)


def right(
  score: Float[np.ndarray, "galleries letters letters"],
) -> Float[np.ndarray, "letters"]:
  """Returns how often the best candidate is right, by letter.

  Example:
    >>> right(np.array([[[0.9, 0.1], [0.8, 0.2]]]))
    array([1., 0.])
  """
  letters = np.arange(score.shape[-1])
  return np.mean(score.argmax(axis=-1) == letters, axis=0)
