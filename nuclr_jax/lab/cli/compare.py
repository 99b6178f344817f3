"""The verb `nuclr compare`, which takes words instead of flags."""

from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import flags
from nuclr_jax.lab.files import remote


def compare(*runs: str) -> None:
  """Show the scores of several runs side by side."""
  from nuclr_jax.lab.report import compare, compare_files

  if flags.OUTPUT.value:
    remote.check_new(flags.OUTPUT.value)
  found = compare.open_all(runs)
  print("\n".join(map(progress.plain, compare_files.lines(found))))
  if flags.OUTPUT.value:
    compare_files.write(flags.OUTPUT.value, found)
    print(f"comparison: {flags.OUTPUT.value}")
