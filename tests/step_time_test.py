"""The benchmarks of step times run and say what they promise."""

import json
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "experiments" / "step_time"


def run(script, **flags):
  command = [sys.executable, FOLDER / script]
  command += [f"--{name}={value}" for name, value in flags.items()]
  found = subprocess.run(command, check=True, capture_output=True, text=True)
  return json.loads(found.stdout)


@pytest.mark.parametrize(
  ("script", "flag", "message"),
  [
    ("real_towers.py", "forms=nuclr,siglip", "must be of nuclr, clip, torch"),
    ("real_towers.py", "forms=clip", "nuclr among them"),
    ("full_step.py", "objectives=nuclr", "clip among them"),
  ],
)
def test_names_are_checked_at_once(script, flag, message):
  command = [sys.executable, FOLDER / script, f"--{flag}"]
  found = subprocess.run(command, capture_output=True, text=True)
  assert found.returncode != 0 and message in found.stderr
  assert "Traceback" not in found.stderr


def test_full_step():
  found = run(
    "full_step.py",
    objectives="clip,nuclr",
    towers="prototype",
    batch_size=8,
    steps=1,
    rounds=1,
    num_pairs=100,
  )
  assert found["prototype"]["clip"]["ratio_to_clip"] == 1


def test_loss_step():
  found = run(
    "loss_step.py",
    batch_sizes="16,32",
    dims=8,
    max_dense=16,
    tile=8,
    rounds=1,
    seconds=0.01,
    num_pairs=100,
  )
  first, second = found["rows"]
  assert first["gradients_differ_by"] < 1e-5
  assert {"tiles", "dense", "products"} <= first["forms"].keys()
  assert first["forms"]["dense"]["ms"] > 0
  assert "ms" not in second["forms"]["dense"]  # it is compiled only
  assert second["forms"]["dense"]["temporary_mib"] > 0


def test_state_rows():
  found = run(
    "state_rows.py", num_pairs="100,1000", batch_size=16, rounds=1, steps=2
  )
  first, second = found["rows"]
  assert (first["num_pairs"], second["num_pairs"]) == (100, 1000)
  assert min(first["ms"], second["ms"]) > 0
  ratio = second["ms"] / first["ms"]
  assert second["ratio_to_first"] == pytest.approx(ratio)


def test_precision():
  found = run("precision.py", dims=16, rows=64)
  error = {row["precision"]: row["error"] for row in found["rows"]}
  assert error["bf16 x 6"] < error["bf16 x 3"] < error["tf32"] < error["bf16"]
  assert error["bf16"] < 2**-7  # two roundings to eight bits


def test_real_towers():
  found = run(
    "real_towers.py",
    tiny=True,
    batch_size=4,
    size=32,
    length=16,
    dtype="float32",
    steps=1,
    rounds=1,
    num_pairs=100,
    forms="nuclr",
  )
  assert set(found["forms"]) == {"nuclr"}
  row = found["forms"]["nuclr"]
  assert row["ms"] * row["pairs_per_s"] == pytest.approx(4 * 1e3)
  assert 1e4 < found["flops_per_pair"] < 1e8
  assert all(0 < x["of_products"] for x in found["forms"].values())


def test_photos():
  found = run(
    "photos.py", count=8, batch_size=4, seconds=0.1, rounds=1, workers=1
  )
  rates = found["images_per_s"]
  assert rates["decode"] > rates["augment"] > 0
  assert {"stream, threads", "stream, 1 workers"} <= set(rates)
