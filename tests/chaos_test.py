"""A campaign of a minute; `python -m tests.chaos` runs a long one."""

import json
import random
import shutil

import chaos
import pytest

TRIALS = 20  # bad input, kills, flips, a race, a full disk


@pytest.fixture(scope="module")
def output(tmp_path_factory):
  return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def rows(output):
  return chaos.campaign(output, seed=1, until=lambda n: n >= TRIALS)


def test_nothing_is_lost_and_nothing_let_in(rows):
  assert [row["fault"] for row in rows] == [""] * TRIALS
  assert {row["kind"] for row in rows} == set(chaos.KINDS)


def test_a_campaign_goes_on_where_it_stopped(rows, output):
  more = chaos.campaign(output, seed=1, until=lambda n: n >= TRIALS + 1)
  assert more[:TRIALS] == rows and len(more) == TRIALS + 1


def test_its_checks_can_fail(rows, output, monkeypatch):
  """Each finds what it is there for."""
  place = chaos.Place(
    output / "place",
    *json.loads((output / "place" / "place.json").read_text()),
  )
  out = output / "again" / "out"
  shutil.copytree(place.folder / "of_embed", out)
  assert not chaos.difference("embed", place, out)
  (out / "image.npy").write_bytes(b"another")
  assert "image.npy" in chaos.difference("embed", place, out)
  (out.parent / "left").touch()
  assert "left" in chaos.difference("embed", place, out)
  assert "a traceback" in chaos.fault_of(1, "Traceback (most", expected=1)
  assert "exit code 1" in chaos.fault_of(1, "no")

  def careless(folder):
    return [x.read_bytes() for x in sorted(folder.rglob("*")) if x.is_file()]

  monkeypatch.setattr(chaos, "ARTEFACTS", {"x": ("of_embed", careless)})
  shutil.rmtree(out)
  trial = chaos.flip(place, out, random.Random(0))
  assert trial.fault.count("bit") == 10


def test_a_round_has_the_proportions_that_are_promised():
  kinds = [chaos.kind_of(number) for number in range(700)]
  assert kinds.count("bad") >= 5 * kinds.count("kill") - 25
  assert kinds.count("flip") >= kinds.count("kill") - 5
  assert set(kinds) == set(chaos.KINDS)
