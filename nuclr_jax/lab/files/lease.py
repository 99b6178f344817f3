"""A lease: an object in a bucket that says which machine works on a folder.

A bucket has no locks. The machine that begins to work on a folder writes an
object there, reads it back, and renews it every period. Another machine that
finds it does not begin, unless it has not been renewed for `LIVES` periods. A
machine that finds the lease in other hands stops. Both look before they change
anything: what is left is the time that one file takes.
"""

import _thread
from collections.abc import Callable, Iterator
import contextlib
import json
import logging
import math
import os
import shlex
import socket
import sys
import threading
import time
from typing import Any
import uuid

from nuclr_jax.lab import progress
from nuclr_jax.lab.files import bucket
from nuclr_jax.lab.files.untrusted import parse_json

log = logging.getLogger(__name__)

NAME = "_LEASE"  # of the object
LIVES = 10  # periods without renewal after which a machine is taken for dead
WATCHED = 2  # periods for which it is watched before, whatever clocks say


class Taken(ValueError):
  """Another machine has taken a folder over."""


@contextlib.contextmanager
def held(
  path: str, *, owner: str, period: float
) -> Iterator[Callable[[], None]]:
  """Holds the lease of a folder in a bucket while a block runs.

  If another machine takes it, the block is interrupted as if by Ctrl-C, and the
  error is `Taken`.

  Args:
    path: The folder.
    owner: Who holds it; the same owner continues at once after its process was
      killed.
    period: Seconds between two renewals.

  Yields:
    `check()`, which raises `Taken` if another machine has taken the lease. It
    is to be called before anything in the folder is changed.

  Raises:
    ValueError: If another machine holds it.
    Unreached: If the bucket cannot be reached.
  """
  mine = {
    "owner": owner,
    "process": uuid.uuid4().hex,
    "holder": f"process {os.getpid()} on {socket.gethostname()}",
    "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    "command": shlex.join(sys.argv)[:200],
  }
  place = f"{path}/{NAME}"
  _acquire(place, mine, period)
  main = threading.current_thread() is threading.main_thread()
  lost = []

  def check() -> None:
    found = lost[0] if lost else _read(place)
    if found is None:  # somebody has removed it
      _write(place, mine)
    elif found["process"] != mine["process"]:
      lost[:] = [found]
      raise Taken(
        f"{path} was taken over by {_told(found)}; this run stops, and copies "
        "nothing more there"
      )

  def renew() -> None:
    if lost:
      return
    try:
      check()
      _write(place, mine)
    except Taken as error:
      log.error("%s", error)
      if main:
        _thread.interrupt_main()
    except OSError as error:  # the next time may succeed
      log.warning("%s", error)

  try:
    with progress.every_period(renew, period=period):
      yield check
  except KeyboardInterrupt:
    if lost:
      check()
    raise
  finally:
    with contextlib.suppress(Taken):
      try:
        check()
        bucket.remove(place)
      except OSError as error:
        log.warning(
          "%s is left behind, and other machines are refused for %s, unless "
          "you delete it (%s)",
          place,
          progress.duration(LIVES * period),
          error,
        )


def _acquire(place: str, mine: dict[str, Any], period: float) -> None:
  """Writes a lease where there is none, or none of a living machine."""
  found = _read(place)
  if found is not None and found["owner"] != mine["owner"]:
    _wait_for_death(place, found, period)
    log.warning(
      "%s: %s has not renewed its lease, and is taken for dead; this process "
      "takes over",
      place,
      _told(found),
    )
  _write(place, mine, new=found is None)
  now = _read(place)
  if now is None or now["process"] != mine["process"]:
    raise _in_use(place, now or mine | {"renewed": time.time()}, period)


def _wait_for_death(place: str, found: dict[str, Any], period: float) -> None:
  """Returns once a lease is that of a dead machine.

  Raises:
    ValueError: If it is renewed, or was recently.
  """
  age = time.time() - found["renewed"]
  if abs(age) < LIVES * period:
    raise _in_use(place, found, period)
  # A time in the future says nothing about how old it is.
  watched = (WATCHED if age > 0 else LIVES) * period
  log.warning(
    "%s is held by %s, which seems to be dead; watching it for %s",
    place,
    _told(found),
    progress.duration(watched),
  )
  end = time.monotonic() + watched
  while time.monotonic() < end:
    time.sleep(period / 4)
    now = _read(place)
    if now is None:
      return
    if now != found:
      raise _in_use(place, now, period)


def _in_use(place: str, found: dict[str, Any], period: float) -> ValueError:
  folder = place.removesuffix(f"/{NAME}")
  return ValueError(
    f"{folder} is in use by {_told(found)}; wait until it has finished, or "
    "choose another folder. If that machine is dead, the same command takes "
    f"over {progress.duration(LIVES * period)} after it was last seen, or at "
    f"once if you delete {place}"
  )


def _told(found: dict[str, Any]) -> str:
  """Says who holds a lease."""
  ago = min(max(0.0, time.time() - found["renewed"]), time.time())
  texts = [ascii(found[x])[1:-1][:200] for x in ("holder", "since", "command")]
  return "{} since {} ({}; last seen {} ago)".format(
    *texts, progress.duration(ago)
  )


def _read(place: str) -> dict[str, Any] | None:
  """Reads a lease; None if there is none."""
  try:
    content = bucket.read_range(place, 0, 2**16)
  except FileNotFoundError:
    return None
  try:
    found = parse_json(content)
    texts = ("owner", "process", "holder", "since", "command")
    good = all(isinstance(found[x], str) for x in texts)
    good = good and math.isfinite(found["renewed"])
  except (ValueError, KeyError, TypeError, OverflowError):
    good = False
  if not good:
    raise bucket.Unreached(
      f"{place} is not what nuclr writes there, or did not arrive whole; if no "
      "machine works on the folder, delete it"
    )
  return found


def _write(place: str, mine: dict[str, Any], *, new: bool = False) -> None:
  """Writes a lease; a new one only if there is none, if the store can do it."""
  content = json.dumps(mine | {"renewed": time.time()}, indent=2).encode()
  system, name = bucket.open_system(place)
  with bucket.reaching(place):
    if new:
      try:
        system.pipe_file(name, content, mode="create")
        return
      except FileExistsError:
        return  # the one that is there is read next
      except Exception as error:  # not every store knows the condition
        log.debug("%s: no exclusive creation (%s)", place, error)
    system.pipe_file(name, content)
