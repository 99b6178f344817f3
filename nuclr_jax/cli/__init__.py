"""The command line, `nuclr VERB`. Python programs call `nuclr_jax.fit`."""

import sys

__all__ = ["run"]


def run() -> None:
  """Runs `nuclr`: the entry point of the console script."""
  try:
    from nuclr_jax.cli import main  # takes a second, in which Ctrl-C may come
  except KeyboardInterrupt:
    print("\nnuclr: interrupted", file=sys.stderr)
    sys.exit(130)
  main.run()
