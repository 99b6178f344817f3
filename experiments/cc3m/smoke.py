"""The whole recipe in minutes, without a download: ingest, train, evaluate.

python -m experiments.cc3m.smoke --out=runs/smoke

It writes photos of coloured shapes in a format in which users have theirs (a
tar of 200, two of them broken), ingests them, trains the tiny towers of
`configs/cc3m.py:smoke` and runs every evaluation of the recipe. It prints the
commands; with real data they are the same.
"""

import pathlib
import shlex
import subprocess
import sys

from absl import app, flags

from tests.helpers import shapes

OUT = flags.DEFINE_string("out", "runs/smoke", "Folder of data and run.")
CONFIG = flags.DEFINE_string(
  "config", None, "Config file; default configs/cc3m.py:smoke."
)
ROOT = pathlib.Path(__file__).parents[2]


def nuclr(*arguments: str) -> None:
  """Runs a verb of the launcher; exits with its code if it fails."""
  print(shlex.join(["nuclr", *arguments]), flush=True)
  command = [sys.executable, "-m", "nuclr_jax.lab.cli.main", *arguments]
  code = subprocess.run(command).returncode
  if code:
    sys.exit(code)


def main(argv) -> None:
  """Runs the whole recipe."""
  del argv
  out = pathlib.Path(OUT.value).absolute()
  raw, data = out / "raw", out / "data"
  raw.mkdir(parents=True, exist_ok=True)
  data.mkdir(exist_ok=True)
  splits = {"train": (200, (17, 50)), "validation": (24, ()), "test": (24, ())}
  for seed, (split, (count, broken)) in enumerate(splits.items()):
    tar = raw / f"{split}.tar"
    if not tar.exists():
      shapes.write_tar(tar, count, seed=seed, broken=broken)
    nuclr(
      "ingest",
      f"--input={tar}",
      "--dataset=smoke",
      f"--split={split}",
      f"--data_dir={data}",
    )
  if not (data / "smoke_classes").exists():
    shapes.write_classes(data / "smoke_classes", 6, seed=3)
  config = CONFIG.value or f"{ROOT / 'configs' / 'cc3m.py'}:smoke"
  run = f"--workdir={out / 'run'}"
  nuclr("train", f"--config={config}", run, f"--data_dir={data}")
  nuclr("evaluate", run, f"--data_dir={data}", "--hubs=csls")
  nuclr("report", run, f"--data_dir={data}")


if __name__ == "__main__":
  app.run(main)
