"""Several processes that train together, with `jax.distributed`."""

from collections.abc import Callable, Collection, Iterator, Mapping
import contextlib
import json
import os
import pathlib
import signal
import sys
import threading
from typing import Any, NoReturn
import uuid

import jax
from jax.experimental import multihost_utils
import numpy as np

from nuclr_jax import host
from nuclr_jax.types import flatten

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
    if not coordinator.rpartition(":")[2].isdigit():
      raise ValueError(
        "--coordinator must be an address and a port, such as 10.0.0.1:8476; "
        f"got {coordinator}"
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
  try:
    jax.distributed.initialize(
      **arguments, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
    )
  except ValueError as error:
    raise ValueError(
      f"cannot join the other processes ({error}); give --coordinator, "
      "--num_processes and --process_id"
    ) from error


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


def check_same(what: str, value: Mapping[str, Any]) -> None:
  """Raises ValueError unless process 0 has the same (anything JSON can hold).

  Processes that disagree would train something else together, or wait for each
  other for ever.
  """
  if jax.process_count() == 1:
    return
  differing = differences(json.loads(_of_first(json.dumps(value))), value)
  if differing:
    raise ValueError(
      f"process 0 has another {what}: {'; '.join(differing)}; give all "
      "processes one command, data set and version of the libraries"
    )


def differences(
  there: Mapping[str, Any],
  here: Mapping[str, Any],
  *,
  besides: Collection[str] = (),
) -> list[str]:
  """Says in words where two nested mappings differ, as JSON has them.

  Args:
    there: A mapping.
    here: Another.
    besides: Keys that may differ, joined with slashes.

  Example:
    >>> differences({"a": {"b": (1,)}}, {"a": {"b": [1], "c": 2}})
    ['a.c is absent there, 2 here']
  """
  there, here = (flatten(json.loads(json.dumps(x))) for x in (there, here))
  return [
    f"{key.replace('/', '.')} is {there.get(key, 'absent')} there, "
    f"{here.get(key, 'absent')} here"
    for key in sorted((there.keys() | here.keys()) - set(besides))
    if there.get(key) != here.get(key)
  ]


def check_shared(folder: pathlib.Path) -> None:
  """Raises ValueError unless all processes see what the first one writes."""
  if jax.process_count() == 1:
    return
  file = folder / f".shared_{_of_first(uuid.uuid4().hex)}"
  if is_first():
    folder.mkdir(parents=True, exist_ok=True)
    file.touch()
  wait_for_all("written")
  seen = file.exists()
  wait_for_all("seen")
  if is_first():
    file.unlink()
  if not seen:
    raise ValueError(
      f"{folder} here is not where process 0 writes; --workdir must be one "
      "folder that all processes share"
    )


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[int], bool]]:
  """Yields `stop_requested(step)`, to be asked after every step.

  One process listens to SIGTERM and SIGINT, see `host.stop_on_signal`. Of
  several, if one gets either, all stop after the same step.
  """
  if jax.process_count() == 1:
    with host.stop_on_signal() as received:
      yield lambda step: received()
    return
  on_main_thread = threading.current_thread() is threading.main_thread()
  before = signal.getsignal(signal.SIGINT)
  if on_main_thread:  # JAX itself listens to SIGTERM
    signal.signal(
      signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
  try:
    yield multihost_utils.reached_preemption_sync_point
  finally:
    if on_main_thread:
      signal.signal(signal.SIGINT, before)


def exit_at_once(message: str, *, code: int = 1) -> NoReturn:
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


def _of_first(text: str) -> str:
  """The text of process 0."""
  data = np.frombuffer(text.encode(), np.uint8)
  length = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
  data = np.resize(data, length) if length else data[:0]
  return multihost_utils.broadcast_one_to_all(data).tobytes().decode()


def _is_one_of_several() -> bool:
  """Whether Slurm or a TPU slice says that this process has company."""
  slurm = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1
  tpu = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
  return slurm or tpu
