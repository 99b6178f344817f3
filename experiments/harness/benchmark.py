"""Shared by benchmarks: the machine, alternating variants, JSON output."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
import gc
import importlib.metadata
import json
import platform
import sys
from typing import Any

from absl import flags
import jax
import numpy as np

from nuclr_jax.lab import distributed, progress

PACKAGES = ("jax", "numpy", "scipy", "matplotlib")


def machine() -> dict[str, Any]:
  """Returns device, processor and JAX version, for a benchmark's JSON."""
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "machine": platform.processor() or platform.machine(),
    "cores": distributed.num_cores(),
    "jax": jax.__version__,
  }


def versions() -> dict[str, Any]:
  """Returns the libraries and the machine, for the rows of a study."""
  return {
    "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    "python": platform.python_version(),
    "machine": platform.machine(),
    "cores": distributed.num_cores(),
  }


def show(*parts: Mapping[str, Any]) -> None:
  """Prints the merged parts as JSON."""
  joined = {key: value for part in parts for key, value in part.items()}
  print(json.dumps(joined, indent=2))


def show_so_far(*parts: Mapping[str, Any]) -> None:
  """Prints the merged parts as a line of JSON, where errors go.

  It is what remains of a benchmark that is cut off: `experiments.accelerator`
  reads the last line of this kind.
  """
  joined = {key: value for part in parts for key, value in part.items()}
  print(json.dumps(joined), file=sys.stderr, flush=True)


def one_of(
  flag: str, known: Collection[str], *, first: str | None = None
) -> None:
  """Makes a flag refuse lists with unknown names or without `first`.

  Args:
    flag: The name of a flag that takes a list of names.
    known: The names that the list may contain.
    first: The name that all others are compared with; it must be listed.
  """
  message = f"must be chosen from {', '.join(known)}"
  flags.register_validator(
    flag,
    lambda names: (
      names is None or (set(names) <= set(known) and first in (None, *names))
    ),
    message=message + (f", and include {first}" if first else ""),
  )


def take_turns(
  runs: Mapping[Hashable, Callable[[], float]],
  rounds: int,
  after_round: Callable[[Mapping[Hashable, Sequence[float]]], None]
  | None = None,
) -> dict[Hashable, list[float]]:
  """Times several variants in alternation, since machines are noisy.

  Args:
    runs: Maps each name to a function that runs steps and returns their time.
    rounds: How many times each function is called.
    after_round: Called after each round with all times so far.
  """
  times = {name: [] for name in runs}
  show_progress = progress.reporter("rounds", rounds)
  for i in range(rounds):
    for name, run in runs.items():
      times[name].append(run())
      gc.collect()
    if after_round is not None:
      after_round(times)
    show_progress(i + 1)
  return times


def ratio(times: Sequence[float], reference: Sequence[float]) -> float:
  """Returns the median over rounds of the ratio of the times."""
  return float(np.median(np.divide(times, reference)))
