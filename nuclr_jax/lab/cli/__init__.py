"""The command line, `nuclr VERB`. Python programs call `nuclr_jax.fit`."""

from nuclr_jax.lab.cli import interrupts, malloc

__all__ = ["run"]


def run() -> None:
  """Runs `nuclr`: the entry point of the console script."""
  malloc.keep_memory()  # before any thread
  interrupts.listen()
  from nuclr_jax.lab.cli import main  # takes a second, in which Ctrl-C may come

  main.run()
