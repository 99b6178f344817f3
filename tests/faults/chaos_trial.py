"""What every trial of `chaos` shares: how it runs a command, and judges it.

A command must end in time, take no more memory than it may, say one thing if it
fails, and touch nothing that is not its own: not the prepared place, not the
canaries beside its folder, not a server that a file names. Only commands and
files that users see are used, so that another checkout can be tried:

PYTHONPATH=OTHER python tests/faults/chaos.py --minutes=40
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import os
import pathlib
import re
import resource
import signal
import socket
import sys
import threading
import time
import types
from typing import NamedTuple
from unittest import mock

import warm

LIMIT = 120  # seconds for any command
MEMORY = 1.5  # GB that a command of small files may have in memory
SPACE = 2**34  # bytes that it may address
# What a terminal would obey.
CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Place(NamedTuple):
  """What the undisturbed commands have made."""

  folder: pathlib.Path
  seconds: dict[str, float]  # of each command
  digests: dict[str, dict[str, str]]  # of the files of each command


class Trial(NamedTuple):
  """The outcome of one trial."""

  kind: str
  name: str
  count: int  # kills, flips, commands
  fault: str  # "" if all went well


class Case(NamedTuple):
  """A command that meets something wrong, and what is right then."""

  words: Sequence  # what follows `nuclr`
  says: str = ""  # a regular expression, in any case, of what an error says
  codes: Sequence[int] = (1, 2)  # with 0, it may have written something, too
  seconds: float = 30
  memory: float = MEMORY  # GB
  env: Mapping[str, str] = {}
  # Says what else is wrong, of the exit code and what was said.
  check: Callable[[int, str], str] = lambda code, said: ""


def start(
  words: Sequence, cwd: pathlib.Path, env: Mapping[str, str] | None = None
) -> warm.Process:
  """Starts a command in a process of its own."""
  # Otherwise it would import this script first.
  with mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")):
    return warm.Process(words, devices=1, cwd=cwd, env=env)


def nuclr(
  words: Sequence, cwd: pathlib.Path, env: Mapping[str, str] | None = None
) -> warm.Process:
  """Starts `nuclr` and these words."""
  return start(["-m", "nuclr_jax.lab.cli.main", *words], cwd, env)


def finish(
  process: warm.Process, limit: float = LIMIT, memory: float = 8
) -> tuple[int, str]:
  """Waits for a process; returns its exit code and what it said.

  The code is -1 if the process was stopped since it took more than `limit`
  seconds, or `memory` GB.
  """
  with contextlib.suppress(ProcessLookupError):
    resource.prlimit(process.pid, resource.RLIMIT_AS, (SPACE, SPACE))
  # Limits are for a machine that has nothing else to do.
  limit *= min(3, max(1, os.getloadavg()[0] / os.cpu_count()))
  end, excess = time.monotonic() + limit, ""
  while process.poll() is None and not excess:
    if time.monotonic() > end:
      excess = f"no end after {limit:g} s"
    elif (used := peak(process.pid)) > memory * 1e9:
      excess = f"{used / 1e9:.1f} GB in memory"
    time.sleep(0.01)
  if excess:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return -1, f"{excess}\n{''.join(process.said())}"
  return process.poll(), "".join(process.said())


def peak(pid: int) -> float:
  """Returns the most bytes in memory, of a process or a child of it."""
  most = 0
  with contextlib.suppress(OSError):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    if found := re.search(r"VmHWM:\s+(\d+) kB", status):
      most = 1024 * int(found[1])
    for tasks in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
      most = max(most, *map(peak, map(int, tasks.read_text().split())), 0)
  return most


def fault_of(code: int, said: str, *, expected: int | Sequence = 0) -> str:
  """Says what is wrong with the end of a command."""
  codes = (expected,) if isinstance(expected, int) else expected
  if "Traceback" in said or "panicked at" in said:
    return f"a traceback: {said[-1500:]}"
  return "" if code in codes else f"exit code {code}: {said[-1500:]}"


def words_of(code: int, said: str) -> str:
  """Says what is wrong with the words of a command at its end."""
  if found := CONTROL.search(said):
    start = max(found.start() - 60, 0)
    return f"it said {found[0]!r}: {said[start : found.end() + 60]!r}"
  messages = re.findall(r"^nuclr[ :].*", said, re.MULTILINE)
  if code in (1, 2) and len(messages) != 1:
    return f"{len(messages)} messages, not one: {said[-1500:]}"
  return ""


def listing(folder: pathlib.Path) -> set[tuple[str, int]]:
  """All files below a folder, but for locks and unfinished work."""
  return {
    (str(x), x.lstat().st_size)
    for x in folder.rglob("*")
    if not x.is_dir() and x.name != ".lock" and "incomplete" not in str(x)
  }


def contents(folder: pathlib.Path) -> dict[str, str]:
  """Everything below a folder, with a digest of each file."""
  found = {}
  for path in sorted(folder.rglob("*")):
    name = path.relative_to(folder).as_posix()
    if path.is_symlink():
      found[name] = f"link to {os.readlink(path)}"
    else:
      is_file = path.is_file()
      data = path.read_bytes() if is_file else b"no file"
      found[name] = hashlib.sha256(data).hexdigest()
  return found


def canary(folder: pathlib.Path) -> pathlib.Path:
  """Returns the files of somebody else, beside the folder of a trial.

  They are `file.txt`, `folder/`, and a `cache/` of what was in buckets, with a
  run whose files could not be copied there.
  """
  home = folder.parent / "canary"
  if not home.exists():
    for name in ("file.txt", "folder/a.txt", "cache/0a1b2c/run/config.json"):
      path = home / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text("the only copy")
    notes = '{"path": "s3://mine/run", "files": {}}'
    (home / "cache" / "0a1b2c" / "notes.json").write_text(notes)
  return home


class Listener:
  """A server of strangers, which counts who connects to it."""

  def __init__(self):
    self._socket = socket.create_server(("127.0.0.1", 0))
    self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
    self.count = 0
    threading.Thread(target=self._listen, daemon=True).start()

  def _listen(self):
    while True:
      connection, _ = self._socket.accept()
      self.count += 1
      connection.close()


@contextlib.contextmanager
def untouched(folder: pathlib.Path) -> Iterator[list[str]]:
  """Yields a list that gets what was touched in the canaries of a trial."""
  found: list[str] = []
  home = canary(folder)
  before, connected = contents(home), LISTENER.count
  yield found
  after = contents(home)
  names = [x for x in before | after if before.get(x) != after.get(x)]
  found += [f"touched {sorted(names)[:9]}"] if names else []
  if LISTENER.count > connected:
    found.append(f"connected to {LISTENER.url}")


LISTENER = Listener()


def surroundings(folder: pathlib.Path) -> dict[str, str]:
  """The environment of a command that has no reason to reach a bucket."""
  return {
    "NUCLR_REMOTE_CACHE": str(canary(folder) / "cache"),
    "AWS_ENDPOINT_URL": LISTENER.url,
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
    "STORAGE_EMULATOR_HOST": LISTENER.url,
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
  }


def try_case(kind: str, make, place: Place, out: pathlib.Path, rng) -> Trial:
  """Runs the command of a case; says what is wrong with what it did."""
  out.mkdir()
  case = make(place.folder, out, rng)
  if isinstance(case, Trial):  # it has run several commands
    return case._replace(kind=kind)
  if not isinstance(case, Case):  # the words, and a part of the message
    case = Case(case[0], re.escape(case[1]), seconds=60)
  words = [str(x) for x in case.words]
  before = listing(out) | listing(place.folder)
  with untouched(out) as touched:
    process = nuclr(words, out, surroundings(out) | dict(case.env))
    code, said = finish(process, case.seconds, case.memory)
  fault = fault_of(code, said, expected=case.codes) or words_of(code, said)
  named = re.search(case.says, said, re.IGNORECASE | re.DOTALL)
  if code and not fault and not named:
    fault = f"not {case.says!r}, but {said[-800:]}"
  fault = fault or case.check(code, said)
  after = listing(out) | listing(place.folder)
  own = f"{out}/cache"  # what it may write in any case
  if 0 in case.codes or words[0] == "train":
    own = f"{out}/"
  after, before = (
    {x for x in found if not x[0].startswith(own)} for found in (after, before)
  )
  outside = list(out.parent.glob("*ESCAPED*")) + list(out.glob("*ESCAPED*"))
  if after != before or outside:
    fault += f"; wrote {sorted(after ^ before)[:9]} {outside}"
  if touched:  # what is worst comes first
    fault = f"{'; '.join(touched)}. {fault or said[-500:]}"
  shown = f"{make.__name__} {' '.join(words)[:200]}"
  return Trial(kind, shown, 1, fault)
