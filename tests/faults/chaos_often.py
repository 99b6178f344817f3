"""Runs `nuclr` with copies of the workdir to its bucket all the time."""

import os

from nuclr_jax.lab.cli import main
from nuclr_jax.lab.files import remote

if __name__ == "__main__":
  if not hasattr(remote, "PERIOD"):
    raise SystemExit("there is no remote.PERIOD any more")
  remote.PERIOD = float(os.environ.get("CHAOS_PERIOD", "0.05"))
  main.run()
