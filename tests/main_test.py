"""The launcher, as a user types it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tiny_config

ROOT = pathlib.Path(__file__).parents[1]


def nuclr(*args):
  return subprocess.run(
    [sys.executable, "-m", "nuclr_jax.main", *args],
    cwd=ROOT,
    env=os.environ | {"NPROC": "2"},
    capture_output=True,
    text=True,
  )


ERRORS = [
  (
    [],
    "needs one verb of ingest, convert, train, evaluate, report, "
    "popularity, embed, export; got none",
  ),
  (["trian"], "got trian"),
  (["train", "--workdir=x"], "train needs --config"),
  (["ingest", "--input=x.tar"], "ingest needs --input and --dataset"),
  (
    ["ingest", "--input=no/*.tar", "--dataset=x"],
    "--input: no/*.tar is not there",
  ),
  (["train", "--config=configs/glyphs.py"], "--workdir is missing"),
  (["train", "--config=configs/glyphs.py:clop"], "must be one of"),
  (
    ["train", "--config=configs/glyphs.py", "--config.batch_sze=1"],
    'Did you mean "batch_size"',
  ),
  (
    ["train", "--config=configs/glyphs.py", "--config.objective.colour=1"],
    "unknown config key 'colour'",
  ),
  (["train", "--config=configs/no.py", "--workdir=x"], "cannot be loaded: "),
  (
    ["train", "--config=configs/no.py", "--config.seed=1", "--workdir=x"],
    "No such file or directory: 'configs/no.py'",
  ),
  (["evaluate", "--workdir=missing"], "missing holds no run"),
  (["report", "--workdir=missing"], "missing holds no run"),
  (["popularity", "--workdir=missing"], "missing holds no run"),
  (
    ["popularity", "--workdir=x", "--embeddings=no.npz", "--temperature=1"],
    "no.npz cannot be read",
  ),
]

# Starting Python takes seconds: one process imports everything, and does each
# command in a copy of itself.
EACH = """
import json, os, sys, tempfile
from nuclr_jax import ingest, main, report, train

results = []
for args in json.load(sys.stdin):
  with tempfile.TemporaryFile() as out:
    if not (child := os.fork()):
      os.dup2(out.fileno(), 1)
      os.dup2(out.fileno(), 2)
      sys.argv = ["nuclr", *args]
      main.run()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out.seek(0)
    results.append([code, out.read().decode()])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results():
  """Exit codes and messages of all commands of `ERRORS`."""
  done = subprocess.run(
    [sys.executable, "-c", EACH],
    cwd=ROOT,
    env=os.environ | {"NPROC": "2"},
    input=json.dumps([args for args, _ in ERRORS]),
    capture_output=True,
    text=True,
    check=True,
  )
  return json.loads(done.stdout)


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_say_what_to_do(number, results):
  code, said = results[number]
  assert code == 1
  assert ERRORS[number][1] in said
  assert "Traceback" not in said


def test_help_shows_every_verb():
  result = nuclr("--help")
  assert result.returncode == 0
  for (
    verb
  ) in "ingest convert train evaluate report popularity embed export".split():
    assert f"nuclr {verb}" in result.stdout


def test_train_evaluate_report(data_dir, tmp_path):
  """End to end, in a folder with a space in its name."""
  workdir = tmp_path / "my run"
  common = (f"--workdir={workdir}", f"--data_dir={data_dir}")
  config = "--config=configs/glyphs.py:smoke,sogclr"
  small = tiny_config.as_flags(tiny_config.TOWERS | {"num_epochs": 0.2})
  trained = nuclr("train", config, *common, *small)
  assert trained.returncode == 0, trained.stderr
  assert "ETA" in trained.stderr and "pairs/s" in trained.stderr
  again = nuclr("train", config, *common, *small)
  assert "holds a finished run" in again.stderr
  evaluated = nuclr("evaluate", *common)
  assert evaluated.returncode == 0, evaluated.stderr
  table = set(trained.stdout.splitlines())
  assert set(evaluated.stdout.splitlines()) <= table
  classified = nuclr("evaluate", *common, "--classes=digits")
  assert "transfer/classes_digits/mu/avg_2" in classified.stdout, (
    classified.stderr
  )
  reported = nuclr("report", *common)
  assert reported.returncode == 0, reported.stderr
  page = (workdir / "report.html").read_text()
  assert "Retrieval on the test split" in page
  assert "Most popular" not in page  # SogCLR has no zeta
  assert (workdir / "report" / "curves.png").stat().st_size > 5000
