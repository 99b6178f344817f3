"""Tests what macOS lacks: affinity, /proc, and limits that say a number."""

import os
import pathlib
import resource
import subprocess
import sys

import pytest

from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.cli import flags
from nuclr_jax.lab.data.icons import render
from nuclr_jax.lab.models.pretrained import pytorch

IS_LINUX = sys.platform == "linux"
INFINITE = resource.RLIM_INFINITY
# The limits of a process, which lack one of the memory where /proc lacks.
LIMITS = """
import pathlib, resource, runpy, sys

module = runpy.run_path(sys.argv[1])
limit = module[sys.argv[2]]
if sys.argv[3]:
  limit.__globals__["STATM"] = pathlib.Path(sys.argv[3])
limit(*map(int, sys.argv[4:]))
kinds = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
print(*(resource.getrlimit(x)[0] for x in kinds))
"""


def test_cores_without_affinity(monkeypatch):
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  monkeypatch.setattr(os, "cpu_count", lambda: 12)
  assert distributed.num_cores() == 12
  monkeypatch.setattr(os, "cpu_count", lambda: None)  # it may not know
  assert distributed.num_cores() == 1


@pytest.mark.skipif(not IS_LINUX, reason="Linux only")
def test_cores_with_affinity():
  """As the shell counts those that it may use."""
  found = subprocess.run(["nproc"], env={}, stdout=subprocess.PIPE, text=True)
  assert distributed.num_cores() == int(found.stdout)


@pytest.mark.parametrize(
  "soft, hard, raised",
  [
    (256, INFINITE, 2_000),  # macOS
    (1_024, 524_288, 524_288),  # Linux
    (1_024, 1_500, 1_500),  # as far as it goes
    (2_000, INFINITE, None),
    (INFINITE, INFINITE, None),
  ],
)
def test_more_files(soft, hard, raised, monkeypatch):
  seen = []
  monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
  monkeypatch.setattr(resource, "setrlimit", lambda *limit: seen.append(limit))
  files.allow_open(1_000)
  expected = [(resource.RLIMIT_NOFILE, (raised, hard))] if raised else []
  assert seen == expected


def test_more_files_than_the_system_lets(monkeypatch):
  """What opens too many files then says so."""

  def refuse(kind, limit):
    raise ValueError("current limit exceeds maximum limit")

  monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, INFINITE))
  monkeypatch.setattr(resource, "setrlimit", refuse)
  files.allow_open(10**9)


@pytest.mark.parametrize(
  "module, function, arguments, memory",
  [
    (render, "_limit_memory", [], render.MEMORY),
    (pytorch, "_limit", [10**6], pytorch.MEMORY + pytorch.COPIES * 10**6),
  ],
)
@pytest.mark.parametrize("statm", ["", "/no/statm"])
def test_limits_of_a_process(module, function, arguments, memory, statm):
  command = [sys.executable, "-c", LIMITS, module.__file__, function, statm]
  ran = subprocess.run(
    [*command, *map(str, arguments)], capture_output=True, text=True
  )
  assert not ran.returncode, ran.stderr
  space, seconds, core = map(int, ran.stdout.split())
  assert core == 0
  if module is pytorch:
    assert pytorch.SECONDS <= seconds < pytorch.SECONDS + 60
  if statm or not IS_LINUX:
    assert space == resource.getrlimit(resource.RLIMIT_AS)[0]
  else:
    assert memory < space < memory + 2**33


def test_the_longest_names_are_those_of_the_system(tmp_path):
  (tmp_path / ("x" * flags.MAX_NAME)).touch()
  with pytest.raises(OSError, match="too long"):
    (tmp_path / ("x" * (flags.MAX_NAME + 1))).touch()
  home = "/." * (flags.MAX_PATH // 2)  # names that lead nowhere else
  assert pathlib.Path("/").samefile(os.path.join("/", home)[: flags.MAX_PATH])
  with pytest.raises(OSError, match="too long"):
    os.stat("/" * (flags.MAX_PATH + 1))
