"""Processes that train together, and the worker processes of this one."""

from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
import contextlib
import json
import logging
import multiprocessing
from multiprocessing import resource_tracker
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

# Seconds after which processes notice that one of them has died, and stop.
HEARTBEAT_TIMEOUT = 60
# On CPUs, XLA runs loops that do not depend on each other at the same time.
# With JAX 0.12, Gloo then mixes up what they send, and a process aborts with
# "Received data size doesn't match expected size".
IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

log = logging.getLogger(__name__)


def join(
  *,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  distributed: bool | None = None,
) -> None:
  """Joins the processes of a run. Call it before anything touches a device.

  Without arguments it joins the tasks of a Slurm step or the hosts of a TPU
  slice, and does nothing elsewhere.

  Args:
    coordinator: Address and port of process 0, such as "10.0.0.1:8476". It
      requires `num_processes` and `process_id`.
    num_processes: The number of processes.
    process_id: The number of this process, counted from 0.
    distributed: True looks for other processes even where no environment
      variable says that there are any (JAX finds them on Slurm, Open MPI,
      Kubernetes and Cloud TPU); False never looks.

  Raises:
    ValueError: If only some of the three arguments are given, or if they do
      not fit together.
    RuntimeError: If the other processes cannot be reached.
  """
  address = (coordinator, num_processes, process_id)
  if any(x is not None for x in address):
    if any(x is None for x in address) or not 0 <= process_id < num_processes:
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
  flags = os.environ.get("XLA_FLAGS", "")  # read when a device is first used
  if IN_ORDER.partition("=")[0] not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {IN_ORDER}".strip()
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
  """Returns whether this process is the one that writes files."""
  return jax.process_index() == 0


def wait_for_all(name: str) -> None:
  """Waits until all processes have called this with the same name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def rows_of_process(ids: np.ndarray) -> np.ndarray:
  """Returns the ids that this process reads of batches [..., batch].

  Example:
    >>> rows_of_process(np.arange(8).reshape(2, 4)).shape  # of one process
    (2, 4)
  """
  return np.split(ids, jax.process_count(), axis=-1)[jax.process_index()]


@contextlib.contextmanager
def first_before_others(name: str) -> Iterator[None]:
  """Runs a block in the first process, and then in all other processes."""
  if not is_first():
    wait_for_all(name)
  yield
  if is_first():
    wait_for_all(name)


def check_same(what: str, value: Mapping[str, Any]) -> None:
  """Raises ValueError in all processes unless all have the same value.

  Processes that disagree would train something unintended, or wait for each
  other forever.

  Args:
    what: What the value is, for the message.
    value: A nested mapping of values that JSON can hold.
  """
  first, *others = of_all(value)
  for number, other in enumerate(others, 1):
    places = ("in process 0", f"in process {number}")
    if differing := differences(first, other, places=places):
      raise ValueError(
        f"the processes differ in their {what}: {'; '.join(differing)}; start "
        "all with the same command, data and versions of the libraries"
      )


def of_all(value: Any) -> list[Any]:
  """Returns what all processes have passed, in their order.

  Args:
    value: A value that JSON can hold; every process passes one.

  Example:
    >>> of_all({"step": 3})  # of one process
    [{'step': 3}]
  """
  return list(map(json.loads, _texts_of_all(json.dumps(value))))


def differences(
  there: Mapping[str, Any],
  here: Mapping[str, Any],
  *,
  places: tuple[str, str] = ("there", "here"),
) -> list[str]:
  """Says where two nested mappings differ once they are written as JSON.

  Args:
    there: A mapping, such as a config on disk.
    here: Another one.
    places: What the texts call the mappings.

  Returns:
    One text for each key that differs.

  Example:
    >>> differences({"a": {"b": (1,)}}, {"a": {"b": [1], "c": 2}})
    ['a.c is absent there, 2 here']
  """
  there, here = (flatten(json.loads(json.dumps(x))) for x in (there, here))
  return [
    f"{key.replace('/', '.')} is {there.get(key, 'absent')} {places[0]}, "
    f"{here.get(key, 'absent')} {places[1]}"
    for key in sorted(there.keys() | here.keys())
    if there.get(key) != here.get(key)
  ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Joins the keys of nested mappings with slashes.

  Example:
    >>> flatten({"test": {"top1": 0.5}})
    {'test/top1': 0.5}
  """
  flat = {}
  for key, value in tree.items():
    name = f"{prefix}/{key}" if prefix else str(key)
    if isinstance(value, Mapping):
      flat.update(flatten(value, name))
    else:
      flat[name] = value
  return flat


def check_shared(folder: pathlib.Path) -> None:
  """Raises ValueError in all processes unless all see the same folder."""
  if jax.process_count() == 1:
    return
  file = folder / f".shared_{of_all(uuid.uuid4().hex)[0]}"
  if is_first():
    folder.mkdir(parents=True, exist_ok=True)
    file.touch()
  wait_for_all("written")
  missing = [x for x in of_all("" if file.exists() else str(folder)) if x]
  if is_first():
    file.unlink()
  if missing:
    raise ValueError(
      f"{missing[0]} is not where process 0 writes; --workdir must be one "
      "folder that all processes share"
    )


@contextlib.contextmanager
def stop_on_signal(
  step: int = 0, last: int | None = None
) -> Iterator[Callable[[int], bool]]:
  """Yields `stop_requested(step)`, which is to be called after every step.

  The attribute `answer` of the handlers returns what they do, as a text.

  It returns whether SIGTERM or SIGINT was received. If one of several processes
  receives either, all of them stop after the same step. A second signal to a
  process that trains alone has its usual effect, and so has one after the last
  call, at the end of the block.

  Args:
    step: The step before the first one.
    last: The last step, which the answer does not exceed.
  """
  done = [step]

  def answer():
    if done[0] == last:
      return f"saving step {last}"
    return f"finishing step {done[0] + 1} and saving it"

  def stop_requested(step):
    done[0] = step
    return requested(step)

  if jax.process_count() == 1:
    with _signal_received(answer) as requested:
      yield stop_requested
    return
  before = signal.getsignal(signal.SIGINT)
  is_main = threading.current_thread() is threading.main_thread()
  handles = is_main and before is not signal.SIG_IGN
  requested = multihost_utils.reached_preemption_sync_point

  def forward(number, frame):
    os.kill(os.getpid(), signal.SIGTERM)

  if handles:  # JAX itself handles SIGTERM
    forward.answer = answer
    signal.signal(signal.SIGINT, forward)
  try:
    yield stop_requested
  finally:
    if handles:
      signal.signal(signal.SIGINT, before)


def exit_at_once(message: str, *, code: int = 1) -> NoReturn:
  """Ends this process with a message, without waiting for anything.

  A normal exit would wait for the other processes, which wait for this one,
  until the runtime gives up. Where XLA's threads are still at work, it may also
  end in a segmentation fault.

  Args:
    message: What to print on standard error.
    code: The exit code.
  """
  # Asking a process that has joined no others could take a GPU and seconds.
  several = jax.distributed.is_initialized() and jax.process_count() > 1
  name = f"[process {jax.process_index()}] " if several else ""
  print(f"{name}{message}", file=sys.stderr)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def num_cores() -> int:
  """Returns the number of cores that this process may use.

  On macOS, which ties no process to some of its cores, that is all of them.
  """
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
  """Keeps Ctrl-C from processes that are started in a block.

  A terminal sends it to all processes, and one that is still importing would
  show a traceback. This process, which decides, gets it after the block.
  """
  resource_tracker.ensure_running()  # else it lets signals through again
  before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def worker_pool(
  workers: int, *, compiled: str | None = None
) -> Iterator[futures.ProcessPoolExecutor]:
  """Starts processes that share the cores and end with this process.

  They end even if this process is killed, which workers of
  `concurrent.futures` would survive. An error, or Ctrl-C, ends them at once.

  Args:
    workers: The number of processes; each imports what it runs.
    compiled: A folder in which they share what JAX has compiled.
  """
  variables = {"NPROC": str(max(1, num_cores() // workers))}  # XLA's threads
  if compiled is not None:
    variables["JAX_COMPILATION_CACHE_DIR"] = compiled
    variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
  before = {name: os.environ.get(name) for name in variables}
  context = multiprocessing.get_context("spawn")
  listen, alive = context.Pipe(duplex=False)
  pool = _Pool(
    workers, mp_context=context, initializer=_end_with, initargs=(listen,)
  )
  os.environ.update(variables)
  try:
    yield pool
    pool.shutdown()
  finally:
    alive.close()  # ends the workers
    pool.shutdown(cancel_futures=True)
    listen.close()
    for name, value in before.items():
      if value is None:
        del os.environ[name]
      else:
        os.environ[name] = value


class _Pool(futures.ProcessPoolExecutor):
  """An executor whose processes, which a call may start, get no Ctrl-C."""

  def submit(self, *args, **kwargs) -> futures.Future:
    with starting_processes():
      return super().submit(*args, **kwargs)


def _texts_of_all(text: str) -> list[str]:
  """Returns the texts that all processes have passed, in their order."""
  if jax.process_count() == 1:
    return [text]
  data = np.frombuffer(text.encode(), np.uint8)
  lengths = multihost_utils.process_allgather(np.int32(len(data)))
  padded = np.pad(data, (0, max(lengths) + 1 - len(data)))  # never empty
  rows = multihost_utils.process_allgather(padded)
  pairs = zip(rows, lengths, strict=True)
  return [row[:length].tobytes().decode() for row, length in pairs]


def _is_one_of_several() -> bool:
  """Returns whether Slurm or a TPU slice says that there are more processes."""
  slurm = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1
  tpu = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
  return slurm or tpu


@contextlib.contextmanager
def _signal_received(
  answer: Callable[[], str],
) -> Iterator[Callable[[int], bool]]:
  """Yields a function that says whether SIGTERM or SIGINT was received.

  A second signal has its usual effect, and one that is ignored remains so.
  """
  received, told = [], []
  if threading.current_thread() is not threading.main_thread():
    yield lambda step: False  # only the main thread may handle signals
    return
  before = {x: signal.getsignal(x) for x in (signal.SIGTERM, signal.SIGINT)}
  # As Ctrl-C is in what a script starts in the background.
  before = {x: y for x, y in before.items() if y is not signal.SIG_IGN}

  def usual(number, frame=None):
    if callable(before[number]):
      before[number](number, frame)
    else:
      signal.signal(number, before[number])
      os.kill(os.getpid(), number)

  def handle(number, frame):
    if received:
      usual(number, frame)
    received.append(number)

  def requested(step):
    del step
    told[:] = received
    return bool(told)

  handle.answer = answer
  for number in before:
    signal.signal(number, handle)
  try:
    yield requested
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  if received and not told:
    usual(received[0])


def _end_with(listen) -> None:
  """Ends this process when the other end of a pipe is closed."""

  def watch():
    with contextlib.suppress(EOFError, OSError):
      listen.recv()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
