"""Two machines, each with a cache of its own, and one folder in a bucket."""

import contextlib
import json
import threading
import time

import make_bucket
import pytest

from nuclr_jax.lab.files import bucket, lease, remote

PLACE = "memory://bucket/run"
PERIOD = 0.1


@pytest.fixture
def memory():
  return make_bucket.memory()


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """Makes this process a machine of some name, to which its cache belongs."""

  def become(name: str):
    monkeypatch.setenv(remote.CACHE, str(tmp_path / name))

  become("first")
  return become


def work(place=PLACE, period=PERIOD):
  return remote.local_folder(place, period=period, alone=True)


def change(place=PLACE, **changes) -> None:
  """Writes a lease with other values, as another machine does."""
  system, name = bucket.open_system(f"{place}/{lease.NAME}")
  held = json.loads(system.cat_file(name))
  system.pipe_file(name, json.dumps(held | changes).encode())


def left_by_a_killed_process(memory, **changes) -> None:
  """Leaves the lease that a process had when it was killed."""
  with work(period=60):
    kept = memory.cat_file(f"/bucket/run/{lease.NAME}")
  memory.pipe_file(f"/bucket/run/{lease.NAME}", kept)
  change(**changes)


@pytest.mark.parametrize("kind", ["memory", "s3", "gs"])
def test_the_second_machine_does_not_begin(kind, memory, machine):
  make = make_bucket.SERVERS.get(
    kind, lambda: contextlib.nullcontext("memory://bucket")
  )
  with make() as root:
    place = f"{root}/run"
    with work(place, period=60) as folder:
      (folder / "x").write_text("1")
      machine("second")
      message = rf"{root}/run is in use by process \d+ on .* since 20\d\d-"
      with pytest.raises(ValueError, match=message), work(place, period=60):
        pass
      machine("first")
    assert bucket.names_in(place).keys() == {"x"}
    machine("second")
    with work(place) as folder:  # the first has ended
      assert (folder / "x").read_text() == "1"


def test_the_message_says_what_to_do(memory, machine):
  with work():
    machine("second")
    with pytest.raises(ValueError) as error, work():
      pass
    for text in ("last seen 0:00 ago", "wait until it has finished"):
      assert text in str(error.value)
    assert f"at once if you delete {PLACE}/{lease.NAME}" in str(error.value)
    machine("first")


def test_reading_and_writing_beside_it(memory, machine):
  """Reports and readers need no lease, and do not see it."""
  with work(period=60) as folder:
    (folder / "x").write_text("1")
    machine("second")
    with remote.local_folder(PLACE) as other:
      assert not list(other.iterdir())
      (other / "report.html").write_text("2")
    assert [x.name for x in remote.fetch(PLACE).iterdir()] == ["report.html"]
    machine("first")
  assert bucket.names_in(PLACE).keys() == {"x", "report.html"}


def test_the_same_machine_goes_on_at_once(memory, machine):
  left_by_a_killed_process(memory)
  with work() as folder:
    (folder / "x").write_text("1")
  assert bucket.names_in(PLACE).keys() == {"x"}


def test_a_dead_machine_is_replaced(memory, machine, caplog):
  ended = time.time() - lease.LIVES * PERIOD - 1
  left_by_a_killed_process(memory, renewed=ended)
  machine("second")
  began = time.monotonic()
  with work():
    pass
  assert time.monotonic() - began >= lease.WATCHED * PERIOD
  assert "is taken for dead; this process takes over" in caplog.text


def test_a_machine_whose_clock_is_late_is_not_dead(memory, machine):
  """Its lease changes while it is watched."""
  left_by_a_killed_process(memory, renewed=time.time() - 10_000)
  machine("second")
  timer = threading.Timer(
    PERIOD / 2, lambda: change(renewed=time.time() - 9_999)
  )
  timer.start()
  with pytest.raises(ValueError, match="is in use by"), work():
    pass
  timer.join()


def test_a_lease_is_renewed(memory, machine):
  def renewed():
    return json.loads(memory.cat_file(f"/bucket/run/{lease.NAME}"))["renewed"]

  with work():
    before, until = renewed(), time.monotonic() + 20
    while renewed() == before and time.monotonic() < until:
      time.sleep(PERIOD / 4)
    assert renewed() > before


def test_a_run_whose_lease_is_taken_stops(memory, machine, caplog):
  """It is interrupted, copies nothing more, and keeps its files here."""
  with pytest.raises(lease.Taken, match="was taken over by another"):  # noqa: SIM117
    with work() as folder:
      (folder / "x").write_text("1")
      change(owner="b", process="b", holder="another")
      before = dict(memory.store)
      (folder / "x").write_text("22")
      (folder / "y").write_text("3")
      for _ in range(200):
        time.sleep(0.1)
        # It may just have been renewed.
        change(owner="b", process="b", holder="another")
      pytest.fail("it was not interrupted")
  assert memory.store.keys() == before.keys()
  kept = json.loads(memory.cat_file(f"/bucket/run/{lease.NAME}"))
  assert kept["owner"] == "b"
  assert (folder / "x").read_text() == "22" and (folder / "y").exists()
  assert f"is kept in {folder}" in caplog.text


@pytest.mark.parametrize("at", ["the first file", "a later file", "removal"])
def test_a_lease_that_is_taken_while_files_are_copied(
  memory, machine, monkeypatch, at
):
  with work(period=60) as folder:
    for name in ("x", "old"):
      (folder / name).write_text("1")
  plain, done = memory.put_file, []

  def put_file(*args, **kwargs):
    plain(*args, **kwargs)
    done.append(args)
    if at == "a later file" or (at == "removal" and len(done) == 3):
      change(owner="b", process="b", holder="another")

  monkeypatch.setattr(memory, "put_file", put_file)
  with pytest.raises(lease.Taken), work(period=60) as folder:
    (folder / "old").unlink()
    for name in "abc":
      (folder / name).write_text("2")
    if at == "the first file":
      change(owner="b", process="b", holder="another")
  count = {"the first file": 0, "a later file": 1, "removal": 3}[at]
  names = bucket.names_in(PLACE).keys() - {lease.NAME}
  assert names == {"x", "old", *"abc"[:count]}


def test_a_lease_that_somebody_deletes_is_written_again(memory, machine):
  with work(period=60) as folder:
    bucket.remove(f"{PLACE}/{lease.NAME}")
    (folder / "x").write_text("1")
  assert bucket.names_in(PLACE).keys() == {"x"}


FORGED = {
  "empty": b"",
  "not JSON": b"{",
  "a list": b"[]",
  "binary": bytes(range(256)),
  "no keys": b"{}",
  "a text for a time": b'{"owner": "", "process": "", "holder": "", "since":'
  b' "", "command": "", "renewed": "x"}',
  "not a number": b'{"owner": "", "process": "", "holder": "", "since":'
  b' "", "command": "", "renewed": NaN}',
  "endless": b'{"owner": "", "process": "", "holder": "", "since":'
  b' "", "command": "", "renewed": 1e999}',
  "too great": b'{"owner": "", "process": "", "holder": "", "since":'
  b' "", "command": "", "renewed": 1%b}' % (b"0" * 400),
  "deep": b"[" * 60_000,
}


@pytest.mark.parametrize("content", FORGED)
def test_what_is_no_lease(content, memory, machine):
  memory.pipe_file(f"/bucket/run/{lease.NAME}", FORGED[content])
  with pytest.raises(bucket.Unreached, match="is not what nuclr writes there"):
    with work():  # noqa: SIM117
      pass


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_lease_of_no_bytes(kind, machine):
  """S3 has an error for a range that begins behind the end."""
  with make_bucket.SERVERS[kind]() as root:
    system, name = bucket.open_system(f"{root}/run/{lease.NAME}")
    system.pipe_file(name, b"")
    assert bucket.read_range(f"{root}/run/{lease.NAME}", 0, 9) == b""
    with pytest.raises(bucket.Unreached, match="is not what nuclr writes"):
      with work(f"{root}/run"):  # noqa: SIM117
        pass


def test_a_dead_machine_whose_clock_was_fast(memory, machine):
  left_by_a_killed_process(memory, renewed=time.time() + 10_000)
  machine("second")
  began = time.monotonic()
  with work():
    pass
  assert time.monotonic() - began >= lease.LIVES * PERIOD


def test_a_machine_whose_clock_is_fast_is_not_dead(memory, machine):
  left_by_a_killed_process(memory, renewed=time.time() + 10_000)
  machine("second")
  timer = threading.Timer(PERIOD, lambda: change(renewed=time.time() + 10_001))
  timer.start()
  with pytest.raises(ValueError, match="is in use by"), work():
    pass
  timer.join()


def test_a_lease_that_may_not_be_removed(memory, machine, monkeypatch, caplog):
  def refuse(*_):
    raise PermissionError("no")

  with monkeypatch.context() as patch:
    patch.setattr(memory, "rm_file", refuse)
    with work():
      pass
  assert f"{PLACE}/{lease.NAME} is left behind, and other" in caplog.text


def test_two_that_begin_at_the_same_time(memory, machine, monkeypatch):
  """The one that finds the other's lease when it reads back does not begin."""
  plain = lease._write

  def write(place, mine, **kwargs):
    plain(place, mine, **kwargs)
    change(owner="b", process="b", holder="another")

  monkeypatch.setattr(lease, "_write", write)
  with pytest.raises(ValueError, match="is in use by another"), work():
    pass


def test_a_store_without_conditions(memory, machine, monkeypatch):
  plain = memory.pipe_file

  def pipe_file(path, value, **kwargs):
    if kwargs:
      raise NotImplementedError("If-None-Match")
    plain(path, value)

  monkeypatch.setattr(memory, "pipe_file", pipe_file)
  with work() as folder:
    (folder / "x").write_text("1")
  assert bucket.names_in(PLACE).keys() == {"x"}


def test_what_a_lease_says_cannot_move_the_cursor(memory, machine):
  left_by_a_killed_process(memory, holder="x\x1b[2J\ny" * 1000, owner="b")
  with pytest.raises(ValueError, match="is in use by x.*y") as error, work():
    pass
  assert str(error.value).isprintable() and len(str(error.value)) < 1000
