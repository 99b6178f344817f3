"""Times the commands of docs/icons.md, and measures their memory.

python -m experiments.icons.speed --package=iconify-json-2.2.535.tgz \
  > experiments/icons/speed_cpu.json

It draws the icons, trains NUCLR by `configs/icons.py` and CLIP for an epoch,
scores the former, and solves for all of its popularities. `seconds` and the
like are of whole commands, as `timed_command.timed` says; those of the solver
alone are in `popularity/solver_seconds`. `pairs_per_second` is the median over
the run, without evaluation and compilation. Run it on a quiet machine.
"""

import csv
import pathlib
import tempfile
from typing import Any

from absl import app, flags
import numpy as np

from experiments.harness import benchmark, timed_command
from nuclr_jax.lab import files
from nuclr_jax.lab.data.icons.builder import SETS
from nuclr_jax.lab.train import records

PACKAGE = flags.DEFINE_string("package", None, "The package's file.")
FOLDER = flags.DEFINE_string("folder", None, "Where results are kept.")
VERSION = "2.2.535"
PREPARE = f"""
from nuclr_jax.lab.data.icons.builder import prepare_icons
prepare_icons(sys.argv[2], package=sys.argv[1], version="{VERSION}", size=32)
"""
SOLVED = ("pairs_solved", "texts", "residual", "iterations", "converged")


def prepare(data_dir: pathlib.Path) -> dict[str, Any]:
  """Draws the icons, and counts them."""
  package = pathlib.Path(PACKAGE.value).absolute()
  found = timed_command.timed(package, data_dir, program=PREPARE)
  (table,) = data_dir.glob(f"icons/*/{SETS}")
  rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
  return found | {"icons": sum(int(row["icons"]) for row in rows)}


def train(
  workdir: pathlib.Path, data_dir: pathlib.Path, *how
) -> dict[str, Any]:
  """Trains, and reads the pace from the run's times."""
  where = f"--workdir={workdir}", f"--data_dir={data_dir}"
  found = timed_command.timed("train", *how, *where)
  times = records.read_history(workdir, records.TIMES)
  paces = [x["pairs_per_second"] for x in times if "pairs_per_second" in x]
  return found | {"pairs_per_second": round(float(np.median(paces)))}


def popularity(workdir: pathlib.Path, data_dir: pathlib.Path) -> dict[str, Any]:
  """Solves for the popularities of all pairs that a run was trained on."""
  where = f"--workdir={workdir}", f"--data_dir={data_dir}"
  found = timed_command.timed("popularity", *where)
  (path,) = workdir.rglob("summary.json")
  summary = files.read_json(path)
  more = {name: summary[name] for name in SOLVED}
  return found | more | {"solver_seconds": summary["seconds"]}


def main(argv) -> None:
  """Runs the commands, and prints the JSON."""
  del argv
  with tempfile.TemporaryDirectory() as temporary:
    place = pathlib.Path(FOLDER.value or temporary).absolute()
    data_dir, run = place / "data", place / "run"
    found = {"prepare": prepare(data_dir)}
    benchmark.show_so_far(found)
    found["train"] = train(run, data_dir, "--config=icons")
    benchmark.show_so_far(found)
    epoch = "--config=icons:clip", "--config.num_epochs=1.0"
    found["train CLIP, one epoch"] = train(place / "clip", data_dir, *epoch)
    where = f"--workdir={run}", f"--data_dir={data_dir}"
    found["evaluate"] = timed_command.timed("evaluate", *where)
    benchmark.show_so_far(found)
    found["popularity"] = popularity(run, data_dir)
    benchmark.show(benchmark.machine(), found)


if __name__ == "__main__":
  flags.mark_flag_as_required("package")
  app.run(main)
