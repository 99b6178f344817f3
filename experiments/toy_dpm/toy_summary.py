"""From the measurements of all repetitions to the numbers of results.json."""

from typing import Any

from jaxtyping import Float
import numpy as np
from scipy import stats
import toy_model
import toy_risks
from toy_risks import GCL, LEARNED, MLE

PerData = Float[np.ndarray, "repetitions sizes"]
Numbers = dict[str, Any]
PAIRS = {  # what is compared repetition by repetition, second minus first
  "error": (
    ("learned, fitted", "GCL, fitted"),
    (MLE, "learned, area"),
  ),
  "gradient": ((LEARNED, GCL), (LEARNED, MLE)),
}


def interval(x: PerData) -> Numbers:
  """Means over repetitions and half of their 95 % intervals (Student's t)."""
  std = x.std(axis=0, ddof=1)
  half_width = stats.t.ppf(0.975, len(x) - 1) * std / np.sqrt(len(x))
  found = {"mean": x.mean(axis=0), "std": std, "half_width": half_width}
  return {name: value.tolist() for name, value in found.items()}


def fit_constant(risk: PerData, truth: float) -> PerData:
  """The risk with one constant for all sizes, which is not fitted to itself.

  The constant of a repetition is what makes the mean error of the *other*
  repetitions 0 at the largest size.
  """
  offset = risk[:, -1] - truth
  others = (offset.sum() - offset) / (len(offset) - 1)
  return risk - others[:, None]


def errors(measured: dict[str, np.ndarray], truth: float) -> dict[str, PerData]:
  """Empirical minus true risk of every method."""
  risks = {
    key.removeprefix("risk/"): value
    for key, value in measured.items()
    if key.startswith("risk/")
  }
  for name in (LEARNED, GCL):
    risks[f"{name}, fitted"] = fit_constant(risks[f"{name}, area"], truth)
  return {name: risk - truth for name, risk in risks.items()}


def summarise(
  measured: dict[str, np.ndarray],
  example: toy_risks.Example,
  *,
  temperature: float,
  seed: int,
) -> Numbers:
  """All numbers of one temperature; lists have a number for each size."""
  truth = toy_model.true_risk(temperature=temperature)
  key = toy_risks.key_of(seed, 3)
  sampled = toy_model.sampled_risk(
    key, toy_risks.TRUTH_PAIRS, temperature=temperature
  )
  sampled = toy_model.Estimate(*map(float, sampled))
  signed = errors(measured, truth)
  compared = {
    "error": {name: np.abs(x) for name, x in signed.items()},
    "error_by_sampled_truth": {
      name: np.abs(x) for name, x in errors(measured, sampled.mean).items()
    },
    "error_term": {},
    "gradient": {},
    "shape": {},
  }
  for key, value in measured.items():
    what, _, name = key.partition("/")
    if what == "gradient":
      compared[what][name] = np.linalg.norm(value, axis=(2, 3))
    elif what in compared:
      compared[what][name] = value
  found = {
    what: {name: interval(x) for name, x in methods.items()}
    for what, methods in compared.items()
  }
  return found | {
    "true_risk": {"quadrature": truth, "sampled": sampled._asdict()},
    "mean_signed_error": {
      name: x.mean(axis=0).tolist() for name, x in signed.items()
    },
    "correlation": interval(measured["correlation"]),
    "differences": {
      what: {
        f"{second} - {first}": interval(
          compared[what][second] - compared[what][first]
        )
        for first, second in pairs
      }
      for what, pairs in PAIRS.items()
    },
    "fitted_factor": {  # on the c of the area rule, from all repetitions
      name: float(np.exp(signed[f"{name}, area"][:, -1].mean() / temperature))
      for name in (LEARNED, GCL)
    },
    "solvers": {
      name: getattr(example, name)
      for name in (
        "difference",
        "gradient_norm",
        "steps",
        "residual",
        "iterations",
      )
    },
  }


def summarise_all(
  settings: toy_risks.Settings,
  measured: dict[float, dict[str, np.ndarray]],
  examples: dict[float, toy_risks.Example],
) -> Numbers:
  """All numbers of a run, ready for JSON."""
  return {
    "sizes": list(settings.sizes),
    "repetitions": settings.repetitions,
    "seed": settings.seed,
    "truth_pairs": toy_risks.TRUTH_PAIRS,
    "tolerance": toy_risks.TOLERANCE,
    "temperatures": {
      f"{tau:g}": summarise(
        measured[tau], examples[tau], temperature=tau, seed=settings.seed
      )
      for tau in settings.temperatures
    },
  }
