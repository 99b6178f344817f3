"""The tables of README.md."""

from scipy import stats

from experiments.harness import Options, Results, markdown
from experiments.harness.statistics import plus_minus
from experiments.toy_dpm import risks
from experiments.toy_dpm.risks import GCL, LEARNED, MLE, TRUE
from experiments.toy_dpm.summary import Numbers, summarise_all

SHOWN = (100, 1000, 3000)  # sizes in the tables; the figures show all
ERRORS = {  # rows of the table of errors
  "learned, area": "learned, area",
  "learned, maxima": "learned, maxima (paper)",
  "learned, means": "learned, means",
  "learned, fitted": "learned, fitted to the true risk",
  "GCL, area": "GCL, area: c = 1",
  "GCL, means": "GCL, means",
  "GCL, fitted": "GCL, fitted to the true risk",
}
ERROR_TERMS = {  # rows of the table of error terms
  "learned, area": "learned, area",
  "learned, maxima": "learned, maxima (paper)",
  "learned, means": "learned, means",
  "learned, best": "learned, smallest over c",
  "GCL, area": "GCL, area: c = 1",
  "GCL, means": "GCL, means",
  "GCL, best": "GCL, smallest over c",
}

COMPARED = ("learned, maxima", "GCL, area")
BOUNDS = {  # rows of the table of bounds
  "likelihood": "first part: MLE's risk",
  "integration": "second part: the integral with the true q",
  "learned, area": "last part: learned, area",
  "learned, maxima": "last part: learned, maxima (paper)",
  "learned, means": "last part: learned, means",
  "GCL, area": "last part: GCL, area: c = 1",
  "GCL, means": "last part: GCL, means",
  "holds: learned, maxima": "bound holds, %: learned, maxima",
  "holds: GCL, area": "bound holds, %: GCL, c = 1",
  "holds: all": "bound holds, %: all methods, GCL by maxima too",
}
FINE = "learned - true q"  # a difference that is shown with more digits


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  numbers = summarise_all(results)
  if not numbers:
    return {}
  return {
    "status": status(results, numbers),
    "errors": error_table(numbers),
    "differences": difference_table(numbers),
    "shape": shape_table(numbers),
    "error terms": error_term_table(numbers),
    "bound": bound_table(numbers),
    "truth": truth_list(numbers),
    "solvers": solver_list(numbers),
  }


def cells(results: Numbers, *path: str, digits: int = 4) -> list[str]:
  """Formats mean ± half of the 95 % interval, for every column."""
  every = []
  for numbers in results["temperatures"].values():
    for key in path:
      numbers = numbers[key]
    for mean, half in zip(numbers.mean, numbers.half_width, strict=True):
      every.append(plus_minus(round(mean, digits) + 0.0, half, digits))
  return [every[i] for i in shown(results)]


def shown(results: Numbers) -> list[int]:
  """Returns the indices of the temperatures and sizes that tables show."""
  sizes = results["sizes"] * len(results["temperatures"])
  chosen = [i for i, n in enumerate(sizes) if n in SHOWN]
  return chosen or list(range(len(sizes)))


def header(results: Numbers, first: str) -> list[str]:
  """Makes the header of a table: temperatures and sizes."""
  names = [
    f"τ {tau}, n {n}"
    for tau in results["temperatures"]
    for n in results["sizes"]
  ]
  return [first, *(names[i] for i in shown(results))]


def error_table(results: Numbers) -> str:
  """Shows absolute generalisation errors."""
  names = {MLE: MLE, TRUE: TRUE} | ERRORS
  rows = [
    [label, *cells(results, "error", name)] for name, label in names.items()
  ]
  return markdown.table(header(results, "method, rule for c"), rows)


def error_term_table(results: Numbers) -> str:
  """Shows the error terms of Theorem 1."""
  rows = [
    [label, *cells(results, "error_term", name)]
    for name, label in ERROR_TERMS.items()
  ]
  return markdown.table(header(results, "q~, rule for c"), rows)


def bound_table(results: Numbers) -> str:
  """Shows the bound of Theorem 1, its parts, and how loose it is."""
  every = results["temperatures"].values()

  def row(label, values):
    cells = [f"{y:.3g}" for x in every for y in values(x)]
    return [label, *(cells[i] for i in shown(results))]

  def ratio(numbers, above, below):
    return numbers["bound"][above].mean / below.mean

  rows = [
    row(label, lambda x, name=name: x["bound"][name].mean)
    for name, label in BOUNDS.items()
  ]
  rows += [
    row(
      f"last part / change of risk: {name}",
      lambda x, name=name: ratio(x, name, x["bound"][f"change: {name}"]),
    )
    for name in COMPARED
  ]
  rows += [
    row(
      f"bound / error: {name}",
      lambda x, name=name: ratio(x, f"total: {name}", x["error"][name]),
    )
    for name in COMPARED
  ]
  rows.append(
    row("rank correlation of last part and error", lambda x: x["order"])
  )
  return markdown.table(header(results, "quantity"), rows)


def shape_table(results: Numbers) -> str:
  """Shows what no constant changes."""
  rows = [
    [f"gradient, {name}", *cells(results, "gradient", name)]
    for name in (MLE, TRUE, LEARNED, GCL)
  ]
  rows += [
    [f"std of log(q~/q), {name}", *cells(results, "shape", name)]
    for name in (LEARNED, GCL)
  ]
  values = cells(results, "correlation", digits=5)
  rows.append(["correlation of log q~ and log q, learned", *values])
  return markdown.table(header(results, "quantity"), rows)


def difference_table(results: Numbers) -> str:
  """Shows differences within repetitions."""
  first = next(iter(results["temperatures"].values()))
  rows = [
    [
      f"{what}: {name}",
      *cells(
        results, "differences", what, name, digits=5 if name == FINE else 4
      ),
    ]
    for what, pairs in first["differences"].items()
    for name in pairs
  ]
  return markdown.table(header(results, "difference"), rows)


def truth_list(results: Numbers) -> str:
  """Shows the true risk by quadrature and from pairs, and errors by both."""
  lines = []
  for tau, numbers in results["temperatures"].items():
    truth = numbers["truth"]
    half = stats.norm.ppf(0.975) * truth["standard_error"]  # of 50,000 pairs
    changes = ", ".join(
      f"{name} {numbers['error'][key].mean[-1]:.4f} → "
      f"{numbers['error_by_sampled_truth'][key].mean[-1]:.4f}"
      for name, key in (
        (MLE, MLE),
        ("learned (maxima)", "learned, maxima"),
        ("GCL (c = 1)", "GCL, area"),
      )
    )
    lines.append(
      f"- τ = {tau}: {truth['quadrature']:.5f}, from pairs "
      f"{plus_minus(truth['sampled'], half, 5)}; errors at the "
      f"largest n by the one → the other: {changes}."
    )
  return "\n".join(lines)


def solver_list(results: Numbers) -> str:
  """Shows that the two ways to compute the popularities agree."""
  lines = []
  for tau, numbers in results["temperatures"].items():
    example = numbers["example"]
    lines.append(
      f"- τ = {tau}: largest difference of ζ {example['difference']:.1e}; "
      f"gradient norm {example['gradient_norm']:.1e} after {example['steps']} "
      f"steps; residual of `solve` {example['residual']:.1e} after "
      f"{example['iterations']} iterations."
    )
  return "\n".join(lines)


def status(results: Results, numbers: Numbers) -> str:
  """Summarizes what was run, and on which machine."""
  factors = ", ".join(
    f"{x['fitted_factor'][GCL]:.3f} at τ = {tau}"
    for tau, x in numbers["temperatures"].items()
  )
  seconds = sum(x["seconds"] for x in results.commands)
  machines = [
    f"jax {x['versions']['jax']}, {x['cores']} cores: "
    for x in results.commands[-1:]
  ]
  return (
    f"{numbers['repetitions']} repetitions, seed {risks.SEED}, "
    f"n = {', '.join(map(str, numbers['sizes']))}, float64, "
    f"{''.join(machines)}{seconds:.0f} s in all. GCL's fitted c: {factors}."
  )
