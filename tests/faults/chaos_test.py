"""A campaign of a minute; `python -m tests.faults.chaos` runs a long one."""

import hashlib
import json
import random
import shutil

import chaos
import chaos_buckets
import chaos_flips
import chaos_trial
import pytest

TRIALS = 14  # bad input, kills, flips, a race, a full disk


@pytest.fixture(scope="module")
def output(tmp_path_factory):
  return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def rows(output):
  return chaos.campaign(
    output,
    seed=1,
    until=lambda n: n >= TRIALS,
    kinds=chaos.kind_of_command,
  )


# Of what is forged, some that end in a second.
SAMPLE = {
  "flags": "flag(embed --model=x",
  "links": "in_data(data/mine)",
  "models": "num_hidden_layers = 1000000",
  "names": "hf_tokenizer_name = 'memory://x/..'",
  "popularities": "table texts.parquet [('caption', '=HYPERLIN')]",
  "readings": "in_lake(embed --model=s3://none/x",
  "tars": "size -512",
  "tokenizers": "tokenizer a_map",
  "weights": "pytorch_model.bin memory_of_others",
}


@pytest.mark.parametrize("kind", SAMPLE)
def test_what_is_forged(kind, rows, output, tmp_path):
  place = chaos.Place(output / "place", {}, {})
  case = next(
    case for case in chaos.TABLES[kind] if SAMPLE[kind] in case.__name__
  )
  rng = random.Random(0)
  trial = chaos.try_case(kind, case, place, tmp_path / "out", rng)
  assert not trial.fault


def test_nothing_is_lost_and_nothing_let_in(rows):
  assert [row["fault"] for row in rows] == [""] * TRIALS
  assert {row["kind"] for row in rows} == {"bad", *chaos.KINDS}


def test_a_campaign_goes_on_where_it_stopped(rows, output):
  more = chaos.campaign(
    output,
    seed=1,
    until=lambda n: n >= TRIALS + 1,
    kinds=chaos.kind_of_command,
  )
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

  monkeypatch.setattr(chaos_flips, "ARTEFACTS", {"x": ("of_embed", careless)})
  shutil.rmtree(out)
  trial = chaos_flips.flip(place, out, random.Random(0))
  assert trial.fault.count("bit") == 10


def test_a_round_has_the_proportions_that_are_promised():
  kinds = [chaos.kind_of_command(number) for number in range(700)]
  assert kinds.count("bad") >= 5 * kinds.count("kill") - 25
  assert kinds.count("flip") >= kinds.count("kill") - 5
  assert set(kinds) == {"bad", *chaos.KINDS}
  kinds = [chaos.kind_of(number) for number in range(600)]
  counts = [kinds.count(kind) for kind in chaos.SURFACES]
  assert max(counts) - min(counts) <= 1 and sum(counts) == 400


def test_what_somebody_else_has_is_watched(tmp_path):
  """A canary that is touched, a stranger that is reached, memory, time."""
  out = tmp_path / "out"

  def end_of(code, **limits):
    path = tmp_path / "x.py"
    path.write_text(code)
    with chaos_trial.untouched(out) as touched:
      env = chaos_trial.surroundings(out)
      process = chaos_trial.start([path], tmp_path, env)
      end = chaos_trial.finish(process, **limits)
    return *end, touched

  assert end_of("print(1)") == (0, "1\n", [])
  code, said, touched = end_of(
    "import os, urllib.request\n"
    "home = os.environ['NUCLR_REMOTE_CACHE']\n"
    "os.remove(f'{home}/0a1b2c/notes.json')\n"
    "urllib.request.urlopen(os.environ['AWS_ENDPOINT_URL'])\n"
  )
  assert "cache/0a1b2c/notes.json" in touched[0] and "connected" in touched[1]
  assert chaos_trial.fault_of(code, said, expected=1).startswith("a traceback")
  code, said, _ = end_of("x = b'1' * 10**9\nwhile True: pass", memory=1)
  assert code == -1 and "GB in memory" in said
  code, said, _ = end_of("import time; time.sleep(999)", limit=0.2)
  assert code == -1 and "no end after" in said
  assert r"it said '\x1b'" in chaos_trial.words_of(0, "\x1b[2J")
  assert "2 messages" in chaos_trial.words_of(1, "nuclr: a\nnuclr: b")


def test_complete_checkpoints_are_told_from_others():
  good = {"a": b"1", "b/c": b"2"}
  lines = [f"{hashlib.sha256(x).hexdigest()}  {n}" for n, x in good.items()]
  whole = {**good, "SHA256SUMS": "\n".join(["# 2 files", *lines]).encode()}
  steps = {f"5/{name}": data for name, data in whole.items()}
  assert chaos_buckets.complete_steps(steps) == ["5"]
  for name in steps:
    rest = {key: x for key, x in steps.items() if key != name}
    assert not chaos_buckets.complete_steps(rest)
  assert not chaos_buckets.complete_steps(steps | {"5/a": b"2"})
