"""The tables of README.md, from the numbers of results.json."""

from toy_risks import GCL, LEARNED, MLE, TRUE
from toy_summary import Numbers

from nuclr_jax import markdown

SHOWN = (100, 1000, 3000)  # sizes in the tables; the figures have all
ERRORS = {  # in the tables of errors
  "learned, area": "learned, area",
  "learned, maxima": "learned, maxima (paper)",
  "learned, means": "learned, means",
  "learned, fitted": "learned, fitted to the true risk",
  "GCL, area": "GCL, area: c = 1",
  "GCL, means": "GCL, means",
  "GCL, fitted": "GCL, fitted to the true risk",
}
ERROR_TERMS = {  # in the tables of error terms
  "learned, area": "learned, area",
  "learned, maxima": "learned, maxima (paper)",
  "learned, means": "learned, means",
  "learned, best": "learned, smallest over c",
  "GCL, area": "GCL, area: c = 1",
  "GCL, means": "GCL, means",
  "GCL, best": "GCL, smallest over c",
}


def cells(results: Numbers, *path: str, digits: int = 4) -> list[str]:
  """Means ± half of their 95 % intervals, at every temperature and size."""
  found = []
  for numbers in results["temperatures"].values():
    for key in path:
      numbers = numbers[key]
    for mean, half in zip(numbers["mean"], numbers["half_width"], strict=True):
      found.append(f"{mean:z.{digits}f} ± {half:.{digits}f}")
  return [found[i] for i in shown(results)]


def shown(results: Numbers) -> list[int]:
  """Which of the cells of all temperatures and sizes are in the tables."""
  sizes = results["sizes"] * len(results["temperatures"])
  some = [i for i, n in enumerate(sizes) if n in SHOWN]
  return some or list(range(len(sizes)))


def header(results: Numbers, first: str) -> list[str]:
  """The first line of a table: temperatures and sizes."""
  names = [
    f"τ {tau}, n {n}"
    for tau in results["temperatures"]
    for n in results["sizes"]
  ]
  return [first, *(names[i] for i in shown(results))]


def error_table(results: Numbers) -> str:
  """Absolute generalisation errors."""
  names = {MLE: MLE, TRUE: TRUE} | ERRORS
  rows = [
    [label, *cells(results, "error", name)] for name, label in names.items()
  ]
  return markdown.table(header(results, "method, rule for c"), rows)


def error_term_table(results: Numbers) -> str:
  """The error terms of Theorem 1."""
  rows = [
    [label, *cells(results, "error_term", name)]
    for name, label in ERROR_TERMS.items()
  ]
  return markdown.table(header(results, "q~, rule for c"), rows)


def shape_table(results: Numbers) -> str:
  """What depends on no constant."""
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
  """Differences within repetitions."""
  first = next(iter(results["temperatures"].values()))
  rows = [
    [f"{what}: {name}", *cells(results, "differences", what, name)]
    for what, pairs in first["differences"].items()
    for name in pairs
  ]
  return markdown.table(header(results, "difference"), rows)


def truth_list(results: Numbers) -> str:
  """The true risk by quadrature and from drawn pairs, and what it changes."""
  lines = []
  for tau, numbers in results["temperatures"].items():
    truth = numbers["true_risk"]
    sampled = truth["sampled"]
    changes = ", ".join(
      f"{name} {numbers['error'][key]['mean'][-1]:.4f} → "
      f"{numbers['error_by_sampled_truth'][key]['mean'][-1]:.4f}"
      for name, key in (
        (MLE, MLE),
        ("learned (maxima)", "learned, maxima"),
        ("GCL (c = 1)", "GCL, area"),
      )
    )
    lines.append(
      f"- τ = {tau}: {truth['quadrature']:.5f}, from pairs "
      f"{sampled['mean']:.5f} ± {sampled['standard_error']:.5f}; errors at the "
      f"largest n by the one → the other: {changes}."
    )
  return "\n".join(lines)


def solver_list(results: Numbers) -> str:
  """Agreement of the two ways to the popularities."""
  lines = []
  for tau, numbers in results["temperatures"].items():
    found = numbers["solvers"]
    lines.append(
      f"- τ = {tau}: largest difference of ζ {found['difference']:.1e}; "
      f"gradient norm {found['gradient_norm']:.1e} after {found['steps']} "
      f"steps; residual of `solve` {found['residual']:.1e} after "
      f"{found['iterations']} iterations."
    )
  return "\n".join(lines)


def status(results: Numbers) -> str:
  """What was run."""
  factors = ", ".join(
    f"{numbers['fitted_factor'][GCL]:.3f} at τ = {tau}"
    for tau, numbers in results["temperatures"].items()
  )
  return (
    f"{results['repetitions']} repetitions, seed {results['seed']}, "
    f"n = {', '.join(map(str, results['sizes']))}, float64, jax "
    f"{results['versions']['jax']}, {results['cores']} cores: "
    f"{results['seconds']:.0f} s in all. GCL's fitted c: {factors}."
  )


def tables(results: Numbers) -> dict[str, str]:
  """Everything that is generated in README.md, by its mark."""
  return {
    "status": status(results),
    "errors": error_table(results),
    "differences": difference_table(results),
    "shape": shape_table(results),
    "error terms": error_term_table(results),
    "truth": truth_list(results),
    "solvers": solver_list(results),
  }
