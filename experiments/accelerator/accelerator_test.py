"""The command for the first hour on an accelerator, tried on the CPU."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import warm

from experiments.accelerator import __main__ as command
from experiments.accelerator import parts, table

ROOT = pathlib.Path(__file__).parents[2]
# Packages that an accelerator's machine may lack, refused in all subprocesses.
LACKING = """
import sys

class Lacking:
  names = {"grain", "tensorflow_datasets", "array_record", "ml_collections"}
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in self.names:
      raise ModuleNotFoundError(f"No module named {name!r}: it is lacking")

sys.meta_path.insert(0, Lacking())
"""
# Modules define flags of the same names, so each is forgotten before the next.
FLAGS = """
import runpy
from absl import flags

common = set(flags.FLAGS)
from experiments.accelerator import parts

every = parts.full() + parts.short()
for module in {part.module for part in every} - {"pytest"}:
  for name in set(flags.FLAGS) - common:
    delattr(flags.FLAGS, name)
  runpy.run_module(module)
  cache = ["--cache=x"] if "cache" in flags.FLAGS else []
  for part in every:
    if part.module == module:
      flags.FLAGS([module, *part.flags, *cache])
      flags.FLAGS.unparse_flags()
      print(part.name)
import grain
"""
# Whose programs are compiled here; step_time_test.py runs those of the others.
SOME = ("tests", "full_step_512", "glyphs")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
  """What some parts of the short form wrote, and said."""
  out = tmp_path_factory.mktemp("trial") / "results"
  out.mkdir()
  rng = np.random.default_rng(0)
  np.savez(
    out / parts.CACHE,
    image=rng.integers(0, 256, (64, 32, 32, 1)).astype(np.uint8),
    text_id=np.arange(64, dtype=np.int32) % 50,
    text=rng.integers(1, 9, (64, 12)).astype(np.int32),
    vocab_size=9,
    test_image=rng.integers(0, 256, (8, 32, 32, 1)).astype(np.uint8),
    test_group=np.arange(8) % 4,
    test_text=rng.integers(1, 9, (4, 12)).astype(np.int32),
    test_text_group=np.arange(4),
  )
  lacking = tmp_path_factory.mktemp("lacking")
  (lacking / "sitecustomize.py").write_text(LACKING)
  without = os.environ | {"PYTHONPATH": str(lacking)}
  done = python(*words(out, f"--only={','.join(SOME)}"), env=without)
  assert done.returncode == 0, done.stderr
  return out, done.stdout, without


def python(*words, env):
  """Runs an interpreter of its own, with another environment."""
  return subprocess.run(
    [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True
  )


def words(out, *flags):
  return ["-m", "experiments.accelerator", f"--out={out}", "--short", *flags]


def start(out, *flags):
  done = warm.run(words(out, *flags), cwd=ROOT)
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_parts_have_results(trial):
  out, said, _ = trial
  for name in SOME:
    record = json.loads((out / f"{name}.json").read_text())
    assert "result" in record, (name, record)
    assert record["seconds"] > 0 and record["versions"]["jax"]
    assert f"{name}: " in said
  tests = json.loads((out / "tests.json").read_text())["result"]
  # Those of eight devices are left out, where there is one.
  assert tests["passed"] >= 5 and tests["skipped"] >= 1 and not tests["which"]
  assert "1 x cpu" in said and "| not measured |" in said
  assert "a trial with tiny sizes" in said


def test_all_parts_know_their_flags_where_packages_lack(trial):
  _, _, without = trial
  done = python("-c", FLAGS, env=without)
  names = [x.name for x in parts.full() + parts.short() if x.name != "tests"]
  assert sorted(done.stdout.split()) == sorted(names), done.stderr
  assert "No module named 'grain': it is lacking" in done.stderr


def test_what_is_done_is_not_done_again(trial):
  out, _, _ = trial
  (out / "popularity_50k.json").write_text('{"half')
  said = start(out, "--minutes=0")
  assert said.count("done before") == len(SOME)
  assert "popularity_50k: no time left" in said
  said = start(out, "--only=popularity_50k")
  assert "popularity_50k: " in said and "done before" not in said
  assert "result" in json.loads((out / "popularity_50k.json").read_text())


PRECISIONS = """
import os, sys
sys.path.insert(0, os.getcwd())
from absl import app
import jax
from experiments.accelerator import glyphs

real = glyphs.make_train_step

def make_train_step(*parts):
  step = real(*parts)
  def traced(*inputs):
    print("traced with", jax.config.jax_default_matmul_precision)
    return step(*inputs)
  return traced

glyphs.make_train_step = make_train_step
app.run(glyphs.main)
"""


def test_steps_that_are_compared_have_float32_products(trial, tmp_path):
  """Or TF32 would be taken for an error."""
  out, _, _ = trial
  script = tmp_path / "script.py"
  script.write_text(PRECISIONS)
  cache = f"--cache={out / parts.CACHE}"
  done = warm.run([script, cache, "--steps=22", "--batch_size=16"], cwd=ROOT)
  assert done.returncode == 0, done.stderr
  lines = [x for x in done.stdout.splitlines() if x.startswith("traced")]
  assert lines == ["traced with float32", "traced with None"]


def full_results(**changes):
  """Records of two parts, of one device."""
  record = dict(device="NVIDIA H200", count=1, commit="abc")
  tests, rows = {"passed": 9, "failed": 0}, dict(bytes_per_pair=16)
  rows["rows"] = [
    dict(num_pairs=10**4, ms=1.0),
    dict(num_pairs=10**8, ms=1.5),
  ]
  return {
    "tests": record | {"result": tests},
    "state_rows_offload": record | {"result": rows} | changes,
  }


def write(folder, results):
  folder.mkdir()
  for name, record in ({"device": {}} | results).items():
    (folder / f"{name}.json").write_text(json.dumps(record))


def test_results_are_attributed_to_their_devices(tmp_path, monkeypatch):
  """Not to the last one that wrote into the folder."""
  cells, said = table.column(full_results())
  assert "9 passed, 0 failed" in cells
  assert said.startswith("3 of ") and said.endswith("H200, commit abc.")
  cells, said = table.column(full_results(device="NVIDIA H100", count=2))
  assert "9 passed, 0 failed [1 x NVIDIA H200, commit abc]" in cells
  assert "2 x NVIDIA H100, commit abc, except where a cell" in said
  monkeypatch.setattr(table, "HERE", tmp_path)
  assert "| what | found |" in table.tables()["found"]
  write(tmp_path / "h200", full_results())
  write(tmp_path / "h100", full_results(device="NVIDIA H100"))
  text = table.tables()["found"]
  assert "| what | h100 | h200 |" in text
  assert "h100: 3 of" in text and "h200: 3 of" in text


def test_a_copy_of_all_rows_takes_time():
  name = "offload_rows: are rows in the host's memory written in place?"

  def cell(last, pairs=10**8):
    results = full_results()
    row = results["state_rows_offload"]["result"]["rows"][-1]
    row |= dict(ms=last, num_pairs=pairs)
    return table.CELLS[name](results)

  assert cell(1.5).startswith("yes: +0.50 ms for 1.6 GB more, which take 3.2")
  assert cell(60.0).startswith("NO: +59.00 ms")
  assert cell(60.0, 10**5) == "too few rows to tell"


def test_cells_of_forms_and_of_the_products_share():
  forms = {
    "nuclr": {"pairs_per_s": 3000.4, "time_to_nuclr": 1.0, "mfu": None},
    "torch": {"error": "OutOfMemoryError: CUDA out of memory"},
    "clip": {"error": "ValueError: no"},
  }
  found = {"result": {"forms": forms}}
  results = dict.fromkeys(("full_step_512", "full_step_512_torch"), found)
  cell = {
    name.removeprefix("full step of CC3M, batch 512: "): read(results)
    for name, read in table.CELLS.items()
  }
  assert cell["NUCLR, pairs/s"] == "3,000"
  assert cell["PyTorch, pairs/s"] == cell["PyTorch, MFU"] == "does not fit"
  assert cell["CLIP's time / NUCLR's"] == cell["MFU"] == table.NOT_MEASURED
  forms = {
    "tiles": {"ms": 4.0, "ratio_to_tiles": 1.0},
    "dense": {"temporary_mib": 1.0},
    "products": {"ms": 3.0, "ratio_to_tiles": 0.75},
    "tiles BF16": {"ms": 2.0, "ratio_to_tiles": 0.5},
  }
  rows = [{"batch_size": 2048, "dim": 256, "forms": forms}]
  found = {"loss_step_large": {"result": {"rows": rows}}}
  name = "loss step of large batches, ms (the products' share)"
  assert table.CELLS[name](found) == (
    "2,048 x 256: tiles 4.00 (75 %), products 3.00, tiles BF16 2.00 (150 %)"
  )


def test_parts_have_cells_and_cells_have_parts():
  names = [part.name for part in parts.full()]
  assert len(names) == len(set(names))
  asked = set()

  class Results(dict):
    def get(self, name, default=None):
      asked.add(name.removesuffix(".error"))
      return default

  for cell in table.CELLS.values():
    assert cell(Results()) == table.NOT_MEASURED
  assert asked == set(names)


def test_failures_are_told(tmp_path, monkeypatch):
  missing = parts.Part("x", "json", needs=("no_such_module",))
  assert command.run(missing, tmp_path, 1.0) == {
    "error": "not installed: no_such_module"
  }
  slow = parts.Part("x", "timeit", ("import time; time.sleep(60)",))
  assert "not done after 1 s" in command.run(slow, tmp_path, 1.0)["error"]
  wrong = parts.Part("x", "no_such_module")
  found = command.run(wrong, tmp_path, 60.0)["error"]
  assert "No module named" in found
  text = "1\nRESOURCE_EXHAUSTED: Out of memory\n" + "trace\n" * 9
  assert command.last_lines(text).startswith("RESOURCE_EXHAUSTED")
  record = {"error": command.last_lines(text)}
  cell = table.CELLS["full step of CC3M, batch 2048: NUCLR, pairs/s"]
  assert cell({"full_step_2048.error": record}) == "does not fit"
  assert os.environ.get("NUCLR_TESTS_ON") is None


def test_tests_are_counted():
  said = "FAILED tests/a.py::b - c\n2 failed, 7 passed, 1 skipped in 3s\n"
  found = command.result_of_tests(said)["result"]
  assert (found["failed"], found["passed"]) == (2, 7)
  assert found["which"] == ["FAILED tests/a.py::b - c"]
  found = command.result_of_tests("FAILED tests/a.py::b\n3 failed in 3s\n")
  assert found["result"] == {"failed": 3, "which": ["FAILED tests/a.py::b"]}
  cell = table.CELLS["numerical tests on the device"]
  assert cell({"tests": found}) == "0 passed, 3 failed"
  for said in ("no tests ran", "1 error in 1.1s", ""):
    assert command.result_of_tests(said, "ImportError")["error"]


def test_what_was_measured_before_the_end_is_kept(tmp_path):
  """Tests that ran, and the last line of JSON of a benchmark."""
  (tmp_path / "x_test.py").write_text(
    "import time\ndef test_a(): pass\ndef test_b(): assert False\n"
    "def test_c(): time.sleep(60)\n"
  )
  options = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "--noconftest")
  tests = parts.Part("x", "pytest", (*options, str(tmp_path / "x_test.py")))
  found = command.run(tests, tmp_path, 15.0)
  assert found["error"].startswith("not done after 15 s")
  counts = {"passed": 1, "failed": 1, "error": 0, "skipped": 0}
  assert found["so_far"] == counts
  cell = table.CELLS["numerical tests on the device"]
  said = cell({"tests.error": found})
  assert said == "1 passed, 1 failed (cut off)"
  code = (
    "import sys, time\n"
    "for x in ('{\"rows\": 1}', '{\"rows\": 2}', 'a warning', '3'):\n"
    "  print(x, file=sys.stderr, flush=True)\n"
    "time.sleep(60)"
  )
  slow = parts.Part("x", "timeit", (code,))
  assert command.run(slow, tmp_path, 5.0)["so_far"] == {"rows": 2}
  quiet = parts.Part("x", "timeit", ("import time; time.sleep(60)",))
  assert "so_far" not in command.run(quiet, tmp_path, 1.0)


def test_what_was_printed_before_the_json_does_not_matter(tmp_path):
  def printed(text):
    part = parts.Part("x", "timeit", ("-n1", "-r1", f"print({text!r})"))
    return command.run(part, tmp_path, 60.0)

  assert "no JSON was printed" in printed("nothing")["error"]


def test_results_of_other_code_are_measured_again(tmp_path):
  path, record = tmp_path / "x.json", {"code": "a", "command": "b"}
  assert not command.is_done(path, record)
  path.write_text(json.dumps(record | {"result": {}}))
  assert command.is_done(path, record)
  assert command.is_done(path, record | {"commit": "the same code"})
  assert not command.is_done(path, record | {"code": "c"})
  for bad in ("failed", "error"):  # in a test, or before it
    path.write_text(json.dumps(record | {"result": {"passed": 9, bad: 1}}))
    assert not command.is_done(path, record)
  path.write_text(json.dumps(record | {"result": {"passed": 9, "failed": 0}}))
  assert command.is_done(path, record)
  for damaged in ("", "[]", '{"result"'):
    path.write_text(damaged)
    assert not command.is_done(path, record)


def test_an_error_does_not_replace_a_result(tmp_path):
  command.save(tmp_path, "x", {"result": {"ms": 1}})
  command.save(tmp_path, "x", {"error": "late"})
  assert table.read_record(tmp_path / "x.json") == {"result": {"ms": 1}}
  command.save(tmp_path, "x", {"result": {"ms": 2}})
  assert [x.name for x in tmp_path.iterdir()] == ["x.json"]


def test_what_a_part_starts_ends_with_it(tmp_path):
  """Or it would hold the device's memory."""
  file = tmp_path / "alive"
  child = f"import time; time.sleep(3); open({str(file)!r}, 'w')"
  parent = (
    "import subprocess, sys, time; "
    f"subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
  )
  done = command.execute([sys.executable, "-c", parent], dict(os.environ), 1.0)
  assert done.late
  time.sleep(3.5)
  assert not file.exists()


def test_the_driver_and_the_clocks_are_asked(tmp_path, monkeypatch):
  smi = tmp_path / "nvidia-smi"
  smi.write_text("#!/bin/sh\necho 'NVIDIA X, 570.1, 1980 MHz, 1980 MHz'\n")
  smi.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  (found,) = command.ask_gpus()
  assert found["driver_version"] == "570.1" and found["name"] == "NVIDIA X"
  smi.write_text("#!/bin/sh\nexit 9\n")
  assert command.ask_gpus() == []


def test_a_cpu_is_no_accelerator(tmp_path, monkeypatch):
  said = json.dumps({"platform": "cpu", "count": 1, "device": "cpu"})
  answer = command.Done(0, said, "warning: CUDA was not found")
  monkeypatch.setattr(command, "execute", lambda *_, **__: answer)
  assert command.find_devices(short=True)["short"]
  with pytest.raises(SystemExit, match="CUDA was not found\\n.* only the CPU"):
    command.find_devices(short=False)
  assert command.find_devices(short=True)["gpus"] == []
  broken = command.Done(1, "", "Traceback")
  monkeypatch.setattr(command, "execute", lambda *_, **__: broken)
  with pytest.raises(SystemExit, match="Traceback\\nJAX finds no device"):
    command.find_devices(short=False)


def test_trials_and_results_do_not_mix(trial):
  out, _, _ = trial
  words = ["-m", "experiments.accelerator", f"--out={out}"]
  done = warm.run(words, cwd=ROOT)
  assert done.returncode and "has results of --short" in done.stderr
