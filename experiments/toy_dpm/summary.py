"""Computes the numbers of tables and figures from the rows."""

from typing import Any

from jaxtyping import Float
import numpy as np
from scipy import stats

from experiments.harness import Results
from experiments.harness.statistics import statistics
from experiments.toy_dpm.risks import (
  EXAMPLE,
  GCL,
  LEARNED,
  MLE,
  REPETITION,
  TRUE,
  TRUTH,
)

PerData = Float[np.ndarray, "repetitions sizes"]
Numbers = dict[str, Any]
PAIRS = {  # methods compared within each repetition, second minus first
  "error": (
    ("learned, fitted", "GCL, fitted"),
    (MLE, "learned, area"),
  ),
  "gradient": ((LEARNED, GCL), (LEARNED, MLE), (TRUE, LEARNED)),
}
ORDERED = (  # the five methods whose order prediction 4 is about
  "learned, area",
  "learned, maxima",
  "learned, means",
  "GCL, area",
  "GCL, means",
)


def fit_constant(risk: PerData, truth: float) -> PerData:
  """Shifts each repetition's risk by one constant for all sizes.

  With that constant the *other* repetitions have mean error 0 at the largest
  size. A constant fitted on the repetition itself would leave no error.
  """
  offset = risk[:, -1] - truth
  mean_of_the_rest = (offset.sum() - offset) / (len(offset) - 1)
  return risk - mean_of_the_rest[:, None]


def errors(measured: dict[str, np.ndarray], truth: float) -> dict[str, PerData]:
  """Computes the empirical risk of every method minus the true risk."""
  risks = {
    key.removeprefix("risk/"): value
    for key, value in measured.items()
    if key.startswith("risk/")
  }
  for name in (LEARNED, GCL):
    risks[f"{name}, fitted"] = fit_constant(risks[f"{name}, area"], truth)
  return {name: risk - truth for name, risk in risks.items()}


def bounds(
  measured: dict[str, np.ndarray], error: dict[str, PerData]
) -> dict[str, PerData]:
  """Compares the bound of Theorem 1 with what it bounds.

  Args:
    measured: The columns of `risks.measure_sizes`, [repetitions, sizes].
    error: The absolute error of every method.

  Returns:
    The parts of the bound; by method its sum ("total"), whether it holds
    ("holds", percent), and what q~ changes in the risk ("change"), which the
    last part bounds. "holds: all" is whether it holds for every method.
  """
  parts = {
    key.removeprefix("bound/"): value
    for key, value in measured.items()
    if key.startswith("bound/")
  }
  common = parts["likelihood"] + parts["integration"]
  names = error.keys() & parts.keys()
  for name in names:
    total, risk = common + parts[name], measured[f"risk/{name}"]
    parts[f"total: {name}"] = total
    parts[f"holds: {name}"] = 100.0 * (error[name] <= total)
    parts[f"change: {name}"] = np.abs(risk - measured[f"risk/{TRUE}"])
  parts["holds: all"] = np.min([parts[f"holds: {x}"] for x in names], axis=0)
  return parts


def order(bound: Numbers, error: Numbers) -> Float[np.ndarray, "sizes"]:
  """Returns the rank correlation of last parts and errors over `ORDERED`."""
  last, size = (
    np.array([table[x].mean for x in ORDERED]) for table in (bound, error)
  )
  pairs = zip(last.T, size.T, strict=True)
  return np.array([stats.spearmanr(a, b).statistic for a, b in pairs])


def summarise(
  measured: dict[str, np.ndarray], truth: Numbers, temperature: float
) -> Numbers:
  """Computes all numbers of one temperature.

  Args:
    measured: The columns of `risks.measure_sizes`, [repetitions, sizes].
    truth: The row of the true risk.
    temperature: The temperature of the model.

  Returns:
    Nested dicts of `Statistics` over repetitions, with an entry for each size.
  """
  signed = errors(measured, truth["quadrature"])
  by_sample = errors(measured, truth["sampled"])
  compared = {
    "error": {name: np.abs(x) for name, x in signed.items()},
    "error_by_sampled_truth": {
      name: np.abs(x) for name, x in by_sample.items()
    },
    "error_term": {},
    "gradient": {},
    "shape": {},
  }
  for key, value in measured.items():
    what, _, name = key.partition("/")
    if name and what in compared:
      compared[what][name] = value
  compared["bound"] = bounds(measured, compared["error"])
  summary = {
    what: {name: statistics(x) for name, x in methods.items()}
    for what, methods in compared.items()
  }
  return summary | {
    "order": order(summary["bound"], summary["error"]),
    "correlation": statistics(measured["correlation"]),
    "differences": {
      what: {
        f"{second} - {first}": statistics(
          compared[what][second] - compared[what][first]
        )
        for first, second in pairs
      }
      for what, pairs in PAIRS.items()
    },
    "fitted_factor": {  # multiplies the area rule's c; from all repetitions
      name: float(np.exp(signed[f"{name}, area"][:, -1].mean() / temperature))
      for name in (LEARNED, GCL)
    },
  }


def summarise_all(results: Results) -> Numbers:
  """Computes all numbers of the study.

  Returns:
    A dictionary of "sizes", "repetitions" and "temperatures"; the latter has
    for each temperature the numbers of `summarise` and the rows "truth" and
    "example". It is empty if rows are missing.
  """
  rows = list(results.rows.values())
  temperatures, repetitions, sizes = {}, [], []
  for example in (row for row in rows if row["part"] == EXAMPLE):
    same = [row for row in rows if row["setting"] == example["setting"]]
    truths = [row for row in same if row["part"] == TRUTH]
    repetitions = [row for row in same if row["part"] == REPETITION]
    if not truths or len(repetitions) < 2:
      return {}
    sizes = repetitions[0]["sizes"]
    columns = [
      name for name in repetitions[0] if "/" in name or name == "correlation"
    ]
    measured = {
      name: np.array([row[name] for row in repetitions]) for name in columns
    }
    tau = example["setting"].removeprefix("τ = ")
    temperatures[tau] = summarise(measured, truths[0], float(tau))
    temperatures[tau] |= {"truth": truths[0], "example": example}
  if not temperatures:
    return {}
  return {
    "sizes": sizes,
    "repetitions": len(repetitions),
    "temperatures": temperatures,
  }
