"""Several processes that train together, with `jax.distributed`."""

from collections.abc import Callable, Iterator
import contextlib
import os
import sys

import jax
from jax.experimental import multihost_utils

from nuclr_jax import host

# Seconds after which the others notice that a process died, and stop.
HEARTBEAT_TIMEOUT = 60


def join(
  *,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  distributed: bool | None = None,
) -> None:
  """Joins the processes of a run; before anything else touches a device.

  Without arguments it joins the tasks of a Slurm step and the hosts of a TPU
  slice, and does nothing elsewhere.

  Args:
    coordinator: Address and port of process 0, such as "10.0.0.1:8476"; the
      other two must then be given as well.
    num_processes: How many there are.
    process_id: Which one this is, from 0.
    distributed: True looks for the other processes even where nothing says
      that there are some (JAX finds them on Slurm, Open MPI, Kubernetes and
      Cloud TPU); False does not look.

  Raises:
    ValueError: If the three arguments are not given together or do not fit.
    RuntimeError: If the others cannot be reached.
  """
  given = (coordinator, num_processes, process_id)
  if any(x is not None for x in given):
    if any(x is None for x in given) or not 0 <= process_id < num_processes:
      raise ValueError(
        "--coordinator, --num_processes and --process_id go together, with "
        "0 <= process_id < num_processes; got "
        f"{coordinator}, {num_processes}, {process_id}"
      )
    arguments = dict(
      coordinator_address=coordinator,
      num_processes=num_processes,
      process_id=process_id,
    )
  elif distributed or (distributed is None and _is_one_of_several()):
    arguments = {}
  else:
    return
  jax.distributed.initialize(
    **arguments, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
  )


def is_first() -> bool:
  """Whether this process writes what only one may write."""
  return jax.process_index() == 0


def wait_for_all(name: str) -> None:
  """Returns when all processes are here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def first_before_others(name: str) -> Iterator[None]:
  """Lets the first process do something before the others do it, too."""
  if not is_first():
    wait_for_all(name)
  yield
  if is_first():
    wait_for_all(name)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[int], bool]]:
  """Yields `stop_requested(step)`, to be asked after every step.

  One process listens to SIGTERM and SIGINT, see `host.stop_on_signal`. Of
  several, if one gets SIGTERM, all stop after the same step.
  """
  if jax.process_count() > 1:
    yield multihost_utils.reached_preemption_sync_point
    return
  with host.stop_on_signal() as received:
    yield lambda step: received()


def exit_at_once(message: str, *, code: int = 1) -> None:
  """Ends this process with a message, without waiting for the others.

  They would wait for it, too, until the runtime gives up on both.
  """
  several = jax.process_count() > 1
  name = f"[process {jax.process_index()}] " if several else ""
  print(f"{name}{message}", file=sys.stderr)
  if not several:
    sys.exit(code)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _is_one_of_several() -> bool:
  """Whether Slurm or a TPU slice says that this process has company."""
  slurm = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1
  tpu = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
  return slurm or tpu
