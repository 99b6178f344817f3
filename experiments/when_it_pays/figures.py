"""The figures of README.md."""

from matplotlib.figure import Figure

from experiments.harness import Options, Results


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Returns all figures, by file name."""
  del options, results
  return {}
