"""The table of long runs."""

import json

import pytest

from experiments.icons import long_tables


def _row(arm: str, tau: float, seed: int, right: float, batch: int = 128):
  scores = {
    f"{split}/natural/mean_recall@{k}": right
    for split in ("validation", "test")
    for k in (1, 10)
  }
  of_set = {"a": ["f", 10, *[right] * 4], "b": ["g", 30, *[right] * 4]}
  return {
    "part": "long runs",
    "setting": f"arm={arm} τ={tau} batch_size={batch}",
    "seed": seed,
    "arm": arm,
    "τ": tau,
    "towers": "small",
    "batch_size": batch,
    "epochs": 2.0,
    "size": 32,
    "pairs": 236_283,
    "pairs_per_second": 1234,
    **scores,
    "sets": {"validation": of_set, "test": of_set},
  }


@pytest.fixture
def path(tmp_path):
  rows = [
    *(_row("clip", 0.1, x, 0.3 + x / 10) for x in (0, 1)),
    *(_row("sogclr", 0.1, x, 0.1) for x in (0, 1)),
    *(_row("sogclr", 0.2, x, 0.5 + x / 10) for x in (0, 1)),
    _row("clip", 0.1, 0, 0.9, batch=512),
  ]
  path = tmp_path / "rows.jsonl"
  path.write_text("".join(json.dumps(x) + "\n" for x in rows))
  return path


def test_each_arm_has_its_best_temperature_and_is_paired_with_clip(path):
  lines = [
    [x.strip() for x in line.strip("|").split("|")]
    for line in long_tables.table(path).splitlines()[2:]
  ]
  assert [x[:4] for x in lines] == [
    ["small", "128", "CLIP", "0.1 of 1"],
    ["small", "128", "SogCLR", "0.2 of 2"],
    ["small", "512", "CLIP", "0.1 of 1"],
  ]
  assert lines[0][8:] == ["", "", "", "1,234", "2"]
  assert lines[1][8:11] == ["+20.00 [+20.00, +20.00] *"] * 3
  assert lines[2][7] == "90.00"


def test_differences_have_names(path):
  found = long_tables.numbers(path)
  name = "long: small, 128: CLIP − SogCLR: test R@10"
  assert found[name] == "-20.00 [-20.00, -20.00] *"
  assert not any("512" in x for x in found)
