"""Ingests on the workers of a Beam pipeline, by Beam's own direct runner.

`make beam` runs them: Beam needs older protobuf and Pillow than the other tests
have.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

import make_bucket
from make_photos import photo_folder, write_pairs
import pytest
from repository import ROOT

from nuclr_jax.lab import ingest
from nuclr_jax.lab.files import bucket, remote
from nuclr_jax.lab.ingest import beam, records
from nuclr_jax.lab.user_files import inputs

pytest.importorskip("apache_beam")

# Beam's direct runner. By the name DirectRunner, Beam would first look for
# another one on the web.
IN_MEMORY = ["--runner=FnApiRunner"]
NUCLR = [
  sys.executable,
  "-m",
  "nuclr_jax.lab.cli.main",
  "ingest",
  "--dataset=mine",
]


def several(mode, workers):
  return [
    *IN_MEMORY,
    f"--direct_running_mode={mode}",
    f"--direct_num_workers={workers}",
  ]


@pytest.fixture
def tars(tmp_path):
  """A pattern of eight tars, one of them broken, and one without an image."""
  for i in range(8):
    write_pairs(tmp_path / f"{i}.tar", range(3 * i, 3 * i + 3))
  (tmp_path / "1.tar").write_bytes(b"broken")
  write_pairs(tmp_path / "5.tar", [])
  return f"{tmp_path}/*.tar"


def files_of(folder):
  """The bytes of all files of a data set."""
  paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
  assert len(paths) > 10
  return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def make(given, folder, beam_options=None, **options):
  """Makes a data set with Beam, or else with a single process."""
  workers = 1 if beam_options is None else None
  options |= {"workers": workers, "beam_options": beam_options}
  return ingest.ingest(given, "mine", data_dir=folder, **options)


@pytest.mark.parametrize(
  "options",
  [
    IN_MEMORY,
    several("multi_threading", 4),
    *(several("multi_processing", workers) for workers in (1, 2, 4)),
  ],
  ids=lambda x: "-".join(y.split("=")[1] for y in x[1:]) or "in_memory",
)
def test_the_same_bytes_with_any_number_of_workers(
  options, tars, tmp_path, caplog
):
  caplog.set_level("INFO", "nuclr_jax")
  expected = files_of(make(tars, tmp_path / "one"))
  assert "mine-train.array_record-00005-of-00006" in expected
  caplog.clear()
  assert files_of(make(tars, tmp_path / "beam", options)) == expected
  assert not (tmp_path / "beam" / "mine" / "incomplete").exists()
  assert "Beam's FnApiRunner begins" in caplog.text
  assert "8 of 8 parts" in caplog.text
  assert "18 images, 1 rejected" in caplog.text


def test_the_same_bytes_of_a_table_with_options(tmp_path, monkeypatch):
  """Parts that hold rows; two of the photos are missing."""
  monkeypatch.setattr(inputs, "PART_SIZE", 3)
  photo_folder(tmp_path / "photos")
  lines = [f"sub/{i}.jpg,photo {i}" for i in range(8)]
  (tmp_path / "x.csv").write_text("\n".join(["image,caption", *lines]))
  options = {"images": tmp_path / "photos", "max_size": 32}
  expected, found = (
    files_of(make(f"{tmp_path}/x.csv", tmp_path / name, how, **options))
    for name, how in (("one", None), ("beam", several("multi_processing", 2)))
  )
  assert found == expected
  assert b"missing file" in found["mine-train.rejected.jsonl"]


def test_kill_9_and_resume_with_and_without_beam(tmp_path):
  """Parts of Beam's workers, of a process and of a second pipeline."""
  for i in range(60):
    write_pairs(tmp_path / f"{i:02d}.tar", range(40 * i, 40 * i + 40))
  tars, work = f"{tmp_path}/*.tar", tmp_path / "killed" / "mine" / "incomplete"
  options = ",".join(x[2:] for x in several("multi_processing", 2))
  command = [*NUCLR, f"--input={tars}", f"--data_dir={tmp_path}/killed"]
  command += ["--max_size=16", f"--beam_pipeline_options={options}"]
  process = subprocess.Popen(
    command, env=os.environ | {"PYTHONPATH": str(ROOT)}
  )
  deadline = time.monotonic() + 60
  while not list(work.glob("*.npz")) and time.monotonic() < deadline:
    time.sleep(0.002)
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert 0 < len(list(work.glob("*.npz"))) < 60

  write, calls = records.write_part, []

  def interrupted(*args, **sizes):
    calls.append(args)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return write(*args, **sizes)

  for beam_options in (None, IN_MEMORY):
    before = len(list(work.glob("*.npz")))
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(records, "write_part", interrupted)
      with pytest.raises(KeyboardInterrupt):
        make(tars, tmp_path / "killed", beam_options, max_size=16)
    assert len(list(work.glob("*.npz"))) >= before + 2
    calls.clear()
  resumed = make(tars, tmp_path / "killed", IN_MEMORY, max_size=16)
  whole = make(tars, tmp_path / "whole", max_size=16)
  assert files_of(resumed) == files_of(whole)


@pytest.mark.parametrize("options", [IN_MEMORY, several("multi_processing", 2)])
def test_input_and_data_set_in_a_bucket(options, tars, tmp_path, monkeypatch):
  """Workers and the launching process share nothing but the bucket."""
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
  with make_bucket.s3() as root:
    for path in tmp_path.glob("*.tar"):
      bucket.upload(path, f"{root}/raw/{path.name}")
    expected = files_of(make(f"{root}/raw/*.tar", tmp_path / "one"))
    made = make(f"{root}/raw/*.tar", f"{root}/data", options)
    assert remote.original(made) == f"{root}/data/mine/1.0.0"
    shutil.rmtree(tmp_path / "cache")
    names = bucket.names_in(f"{root}/data/mine")
    assert not any("incomplete" in x or x.endswith(".job") for x in names)
    assert files_of(remote.fetch(f"{root}/data/mine/1.0.0")) == expected


@pytest.mark.parametrize("options", [IN_MEMORY, several("multi_processing", 2)])
def test_an_error_of_a_worker_is_the_message(options, tmp_path):
  write_pairs(tmp_path / "0.tar", [0])
  [part] = inputs.plan(f"{tmp_path}/0.tar").parts
  (tmp_path / "part.array_record").mkdir()  # where a file should be
  sizes = {"max_size": None, "max_pixels": 1_000_000}
  with pytest.raises(
    OSError, match="finished parts are kept: .*Is a directory"
  ):
    beam.write_parts([(part, tmp_path / "part")], sizes, options, print)


def test_parts_that_went_elsewhere(tars, tmp_path, monkeypatch):
  """As if another folder of the same name were mounted on the workers."""
  monkeypatch.setattr(records, "write_part", lambda *_, **__: (3, 0))
  with pytest.raises(
    ValueError, match="8 of its 8 parts are not in .*mine/inc"
  ):
    make(tars, tmp_path, IN_MEMORY)


@pytest.mark.parametrize(
  "option, message",
  [
    ("--runner=DirctRunner", "Unexpected pipeline runner: DirctRunner. Valid "),
    ("--runner=DataflowRunner", "Missing required option: project"),
    ("--bogus=3", "Beam has no option --bogus; its options are "),
    ("--direct_num_workers=x", "num_workers: invalid int value: 'x'$"),
  ],
)
def test_wrong_options_before_any_work(option, message, tmp_path, capfd):
  with pytest.raises(ValueError, match=f"(?s)^{beam.FLAG}: .*{message}"):
    ingest.ingest("no input", "mine", data_dir=tmp_path, beam_options=[option])
  assert "usage:" not in capfd.readouterr().err
  assert not list(tmp_path.iterdir())


def test_options_of_a_runner_in_another_language():
  """Beam asks the runner's server about them, when the pipeline starts."""
  beam.check_options(["--runner=FlinkRunner", "--objectReuse=true"])


def test_as_a_user_types_it(tars, tmp_path):
  command = [*NUCLR, f"--input={tars}", f"--data_dir={tmp_path}"]
  done = subprocess.run(
    [*command, "--beam_pipeline_options=runner=FnApiRunner"],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert "train images                  18" in done.stdout
  assert "8 of 8 parts" in done.stderr
