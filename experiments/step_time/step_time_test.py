"""The benchmarks of step times run and say what they promise."""

import json
import pathlib
import re

import pytest
import tiny_config
import warm

from experiments.harness import markdown
from experiments.step_time import __main__ as report
from experiments.step_time import common, program
from nuclr_jax.lab.config import load_config

ROOT = pathlib.Path(__file__).parents[2]


def start(name, *flags):
  return warm.run(["-m", f"experiments.{name}", *flags], cwd=ROOT)


def run(name, **flags):
  words = [f"--{flag}={value}" for flag, value in flags.items()]
  done = start(f"step_time.{name}", *words)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize(
  ("script", "flag", "message"),
  [
    (
      "real_towers",
      "forms=nuclr,siglip",
      "chosen from nuclr, nuclr_queue, clip",
    ),
    ("real_towers", "forms=clip", "and include nuclr"),
    ("full_step", "objectives=nuclr", "and include clip"),
  ],
)
def test_names_are_checked_at_once(script, flag, message):
  found = start(f"step_time.{script}", f"--{flag}")
  assert found.returncode != 0 and message in found.stderr
  assert "Traceback" not in found.stderr


def test_full_step():
  found = run(
    "full_step",
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
    "loss_step",
    batch_sizes="16,32",
    dims=8,
    max_dense=16,
    tile=8,
    rounds=1,
    seconds=0.01,
    num_pairs=100,
    kernels=True,
  )
  first, second = found["rows"]
  assert first["forms"]["dense"]["gradients_differ_by"] < 1e-5
  assert first["forms"]["kernels"]["gradients_differ_by"] < 1e-5
  assert {"tiles", "dense", "products"} <= first["forms"].keys()
  assert first["forms"]["dense"]["ms"] > 0
  assert "ms" not in second["forms"]["dense"]  # it is compiled only
  assert second["forms"]["dense"]["temporary_mib"] > 0


@pytest.mark.parametrize("offload_rows", [False, True])
def test_state_rows(offload_rows):
  few = dict(batch_size=16, dim=8, rounds=1, steps=2)
  few |= dict(num_pairs="100,1000", offload_rows=offload_rows)
  found = run("state_rows", **few)
  assert found["offload_rows"] == offload_rows
  first, second = found["rows"]
  assert (first["num_pairs"], second["num_pairs"]) == (100, 1000)
  assert min(first["ms"], second["ms"]) > 0
  ratio = second["ms"] / first["ms"]
  assert second["ratio_to_first"] == pytest.approx(ratio)


def test_recalibration(data_dir):
  small = tiny_config.TOWERS | {"model.text_layers": 0}
  found = run(
    "recalibration",
    config="configs/glyphs.py:smoke",
    data_dir=data_dir,
    at="1,2",
    samples="128,256",
    rounds=1,
    **{f"config.{name}": x for name, x in small.items()},
  )
  assert [row["step"] for row in found["rows"]] == [1, 2]
  for row in found["rows"]:
    assert row["128"]["seconds"] > 0
    assert all(0 <= row[x]["score"] <= 1 for x in ("running", "128", "256"))


def test_checkpoints():
  found = run("checkpoints", gib=0.001, arrays=2, rounds=2)["seconds"]
  assert all(x > 0 for x in found.values())
  assert found["digests"] < found["save"] > found["wait"]


def test_in_place():
  options = dict(tars=1, count=32, batch_size=8, rounds=1, seconds=0.1)
  found = run("in_place", latency=2, **options)
  assert found["share_of_size"]["copy"] > 0.5
  assert found["seconds_per_gigabyte"].keys() == {"copy", "index"}
  assert found["reads_per_s"].keys() == {"copy", "index", "slow"}
  assert found["stream_to_copy"]["copy"] == 1


def test_the_precisions_of_the_device():
  """A CPU has float32 and refuses some others by name."""
  found = run("precision", on_device=True, dims=16, rows=64)
  error = {row["precision"]: row for row in found["rows"]}
  assert error["F32"]["error"] < 1e-6
  assert set(error) == {*common.ALGORITHMS, "library"}
  for row in error.values():
    assert row.get("refused") or row["error"] < 1e-2


def test_precision():
  found = run("precision", dims=16, rows=64)
  error = {row["precision"]: row["error"] for row in found["rows"]}
  assert error["bf16 x 6"] < error["bf16 x 3"] < error["tf32"] < error["bf16"]
  assert error["tf32 x 3"] < error["bf16 x 3"]
  assert error["bf16"] < 2**-7  # two roundings to eight bits


def test_the_library_takes_the_fastest_product_that_is_precise_enough():
  """Of an H100, by the stored errors and by what bounds the loss."""
  errors = {}
  for row in report.read("precision")["rows"]:
    known = errors.setdefault(row["precision"], [])
    known.append(row["relative_error_of_exp"])
  for name in ("clip", "nuclr"):
    bounds = {
      row["algorithm"]: row["ms"]
      for row in report.read("algorithms")["rows"]
      if row["objective"] == name
    }
    precise = {
      algorithm
      for algorithm, (*_, known) in common.ALGORITHMS.items()
      if max(errors[known]) < 1e-3
    }
    assert "TF32_TF32_F32" not in precise and "BF16_BF16_F32_X3" in precise
    assert max(errors["bf16 x 3"]) < 1e-3  # the library's
    assert bounds["library"] < min(bounds[x] for x in precise)
    assert bounds["library"] < 250 < bounds["F32"]


def test_the_recipe_is_the_one_of_the_config():
  config = load_config("cc3m").objective
  found = dict(config.zeta) | {"rate": config.zeta.rate.value}
  assert config.name == "nuclr"
  assert found == {"name": "queue"} | common.QUEUE
  assert {x: config[x] for x in common.RECIPE} == common.RECIPE


def test_real_towers():
  found = run(
    "real_towers",
    tiny=True,
    batch_size=4,
    size=32,
    length=16,
    dtype="float32",
    steps=1,
    rounds=1,
    num_pairs=100,
    forms="nuclr,nuclr_queue",
  )
  assert set(found["forms"]) == {"nuclr", "nuclr_queue"}
  row = found["forms"]["nuclr"]
  assert row["ms"] * row["pairs_per_s"] == pytest.approx(4 * 1e3)
  assert 1e4 < found["flops_per_pair"] < 1e8
  assert all(0 < x["of_products"] for x in found["forms"].values())


# What an accelerator's plugin and a full memory do to the command.
ON_AN_ACCELERATOR = """
import os, sys
sys.path.insert(0, os.getcwd())
from unittest import mock
from absl import app
import jax
from experiments.step_time import real_towers

class Full:
  def __init__(self):
    raise RuntimeError("CUDA out of memory")

class FullLater(real_towers.Jax):
  runs = 0
  def run(self, steps):
    super().run(steps)
    FullLater.runs += 1
    if FullLater.runs == 3:
      raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: late")

make = real_towers.make

def make_form(name):
  if name == "torch":
    return Full()
  if name == "clip":
    with mock.patch.object(real_towers, "Jax", FullLater):
      return make(name)
  if BROKEN:
    raise RuntimeError("CUDA out of memory, as others")
  return make(name)

def no_counts(self):
  raise NotImplementedError("cost_analysis() is not implemented for PJRT")

with (
  mock.patch.object(jax.stages.Lowered, "cost_analysis", no_counts),
  mock.patch.object(jax.stages.Compiled, "cost_analysis", no_counts),
  mock.patch.object(real_towers, "make", make_form),
):
  app.run(real_towers.main)
"""


@pytest.mark.parametrize("broken", [False, True])
def test_real_towers_on_an_accelerator(broken, tmp_path):
  """XLA counts nothing there, and a form that does not fit costs no other."""
  script = tmp_path / "script.py"
  script.write_text(f"BROKEN = {broken}{ON_AN_ACCELERATOR}")
  sizes = ["--batch_size=4", "--size=32", "--length=16", "--num_pairs=100"]
  turns = ["--steps=1", "--rounds=3", "--tiny", "--dtype=float32"]
  forms = "nuclr,torch" + ("" if broken else ",clip")
  done = warm.run([script, *sizes, *turns, f"--forms={forms}"], cwd=ROOT)
  if broken:
    assert done.returncode and "CUDA out of memory, as others" in done.stderr
    return
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert found["forms"]["nuclr"]["ms"] > 0 and found["flops_per_pair"] > 1e4
  assert found["forms"]["torch"] == {
    "error": "RuntimeError: CUDA out of memory"
  }
  assert "RESOURCE_EXHAUSTED" in found["forms"]["clip"]["error"]
  # What would remain if it were cut off: after each compilation and each round.
  assert re.search(r"nuclr: three steps took \d+\.\d s", done.stderr)
  lines = [x for x in done.stderr.splitlines() if x.startswith("{")]
  assert len(lines) == 5
  started, first_round = json.loads(lines[1]), json.loads(lines[2])
  assert started["forms"].keys() == {"nuclr", "clip"}
  assert started["forms"]["nuclr"]["compile_s"] > 0
  assert first_round["forms"]["clip"]["ms"] > 0
  assert json.loads(lines[-1])["forms"].keys() == found["forms"].keys()


def test_real_towers_of_clip():
  sizes = dict(batch_size=4, size=32, length=13, num_pairs=100)
  found = run(
    "real_towers",
    towers="clip_b16",
    tiny=True,
    dtype="float32",
    steps=1,
    rounds=1,
    forms="nuclr",
    **sizes,
  )
  assert (found["towers"], found["attention"]) == ("clip_b16", "xla")
  assert found["forms"]["nuclr"]["ms"] > 0


def test_photos():
  found = run("photos", count=8, batch_size=4, seconds=0.1, rounds=1, workers=1)
  rates = found["images_per_s"]
  # No rate is compared with another: a busy machine can reverse any two.
  assert all(rate > 0 for rate in rates.values())
  assert {"stream, threads", "stream, 1 workers"} <= set(rates)


def test_the_page_has_the_tables_of_the_files():
  page = (report.HERE / "README.md").read_text()
  assert markdown.insert(page, report.tables()) == page
  for name, figure in report.figures().items():
    assert f"({name})" in page and len(figure.axes) == 3


def test_all_machines_of_the_page_are_counted():
  """By the command without flags that the page names."""
  asked = {target for target, _ in report.PROGRAMS} | {*report.OTHER_MACHINES}
  assert asked <= set(program.TARGETS.default)


def test_exact_popularities():
  flags = ("--pairs=200", "--texts=50", "--dim=8", "--temperature=0.2")
  found = json.loads(start("popularity.benchmark", *flags).stdout)
  (row,) = found["results"]
  assert row["converged"] and row["residual"] <= 1e-3
  assert row["iterations"] <= row["plain"]["iterations"]
