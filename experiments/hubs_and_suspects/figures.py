"""The figures of README.md."""


def figures(options, results):
  """Draws all figures; returns them by file name."""
  del options, results
  return {}
