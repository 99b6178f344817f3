"""What the arm DRRho is relative to: CLIP, as it was tuned, trained once more.

python -m experiments.icons.reference --data_dir=DATA

It takes as long as a run, and writes `icons_reference` in the folder of the
prepared data: embeddings of the pairs that every run trains on, by a model of a
seed that no run has.
"""

import argparse
import pathlib
import tempfile

from experiments.harness import Place, Run, rows, training
from experiments.icons import measure, plan
from nuclr_jax.lab import export
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.train import build

SEED = 200
ROWS = pathlib.Path(__file__).with_name(rows.FILE)


def run_of(found: plan.Rows) -> Run:
  """Returns the run of the reference; it reads no test scores.

  Raises:
    ValueError: If CLIP has not been tuned.
  """
  scale = plan.Scale()
  tau = plan.tuned(scale, "clip", found)
  if tau is None:
    raise ValueError("CLIP, the reference of DRRho, has not been tuned yet")
  rate = plan.best_rate(scale, found)
  return plan.make_run(scale, plan.TUNING, "clip", SEED, value=tau, rate=rate)


def write(run: Run, data_dir: str | None) -> None:
  """Trains the reference, and writes its embeddings.

  Raises:
    ValueError: If they are there already.
  """
  output = cache_dir(data_dir) / measure.REFERENCE
  if output.exists():
    raise ValueError(f"{output} is there already; remove it to train it again")
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder)
    place = Place(workdir / "run", workdir / "shared", data_dir)
    config = measure.make_config(run)
    data = measure.load_data(config, dict(run.values), place)
    parts = build.build(config, data=data)._replace(evaluators={})
    trained = training.train(config, place, parts)
  mesh = build.mesh_of(parts.settings)
  export.write_training_pairs(parts, mesh, trained.state, output)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--data_dir", help="folder of prepared data sets")
  write(run_of(rows.index(rows.read(ROWS))), parser.parse_args().data_dir)
