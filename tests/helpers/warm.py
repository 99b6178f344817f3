"""Python processes that start at once, forked from one that imported a lot.

Importing JAX and the rest takes seconds in each of some dozen processes. Those
made here are processes of their own all the same: they share no backend of JAX,
signal or open file with the tests.
"""

import atexit
from collections.abc import Mapping, Sequence
import gc
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import types
from unittest import mock

SAMPLE = 512  # pairs that runs are diagnosed with; 4,096 take seconds each time
CONTEXT = multiprocessing.get_context("forkserver")
# Modules that define no flags, since scripts have flags of the same names. A
# module that cannot be imported is left out.
CONTEXT.set_forkserver_preload(
  [
    "nuclr_jax.lab.train.loop",
    "nuclr_jax.lab.data.loader",
    "nuclr_jax.contrib.labelled_images",
    "nuclr_jax.lab.data.glyphs",
    "nuclr_jax.lab.ingest",
    "nuclr_jax.lab.report",
    "grain",
    "matplotlib.figure",
    "scipy.stats",
    "tensorboardX",
  ]
)


class Process:
  """Runs `python *command`; a part of the interface of `subprocess.Popen`.

  Args:
    command: What follows `python`: a script or `-m MODULE`, and its arguments.
    devices: Number of JAX's devices; None leaves it to the environment.
    cwd: Folder that the process starts in.
    log: File for everything that is printed; by default `said` has it.
    env: Environment variables, besides those of the first process.
  """

  def __init__(
    self,
    command: Sequence[str | os.PathLike],
    *,
    devices: int | None = None,
    cwd: str | os.PathLike = ".",
    log: pathlib.Path | None = None,
    env: Mapping[str, str] | None = None,
  ):
    self._folder = tempfile.TemporaryDirectory()
    self._files = [
      log or pathlib.Path(self._folder.name, x) for x in ("out", "err")
    ]
    self._process = CONTEXT.Process(
      target=_start,
      args=([str(x) for x in command], str(cwd), self._files, devices, env),
    )
    self._process.start()
    self.pid = self._process.pid

  @property
  def returncode(self) -> int | None:
    return self._process.exitcode

  def poll(self) -> int | None:
    return self._process.exitcode

  def wait(self) -> int:
    self._process.join()
    return self._process.exitcode

  def communicate(self) -> tuple[str, str]:
    self.wait()
    return self.said()

  def said(self) -> tuple[str, str]:
    """What it has printed so far, and its errors."""
    return tuple(x.read_text() if x.exists() else "" for x in self._files)

  def send_signal(self, sent: int) -> None:
    os.kill(self.pid, sent)

  def kill(self) -> None:
    self._process.kill()


def run(
  command: Sequence[str | os.PathLike], **options
) -> subprocess.CompletedProcess:
  """Runs `python *command` to its end; the options are those of `Process`."""
  process = Process(command, **options)
  out, err = process.communicate()
  return subprocess.CompletedProcess(command, process.returncode, out, err)


def _start(command, cwd, files, devices, env=None) -> None:
  """What a process does."""
  gc.freeze()  # what the first process has imported
  os.environ.update(env or {})
  os.setsid()  # a signal to the tests is not for it
  os.chdir(cwd)
  for number, file in enumerate(files, 1):
    with open(file, "a") as opened:
      os.dup2(opened.fileno(), number)
  if devices is not None:
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
  from nuclr_jax.lab.train import diagnostics, recalibrate

  diagnostics.SAMPLE = recalibrate.SAMPLE = SAMPLE

  def run_warm(command, *, plain_run=subprocess.run, **options):
    """`subprocess.run`, for scripts that start Python themselves."""
    if options or command[0] != sys.executable:
      return plain_run(command, **options)
    process = CONTEXT.Process(
      target=_start, args=(command[1:], cwd, files, devices, env)
    )
    # Otherwise it would import the script first.
    with mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")):
      process.start()
    process.join()
    return subprocess.CompletedProcess(command, process.exitcode)

  subprocess.run = run_warm
  is_module = command[0] == "-m"
  sys.argv = command[is_module:]
  try:
    if is_module:
      sys.path.insert(0, os.getcwd())
      runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
      sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
      runpy.run_path(sys.argv[0], run_name="__main__")
  finally:
    atexit._run_exitfuncs()  # which multiprocessing leaves out
