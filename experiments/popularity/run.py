"""Popularities in training and after it: runs, tables.

python experiments/popularity/run.py            # all runs, about half an hour
python experiments/popularity/run.py --report   # only the tables again

Finished runs are rows of runs.csv and are not run again.
"""

import csv
import pathlib
import time

from absl import app, flags, logging
import popularity_report
import popularity_study

from nuclr_jax import experiment, host, records

HERE = pathlib.Path(__file__).parent
WORKDIR = flags.DEFINE_string("workdir", "runs/popularity", "Folder of runs.")
DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of prepared data.")
SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds 0, 1, ... of every variant.")
EPOCHS = flags.DEFINE_float("epochs", 8.0, "Epochs of every run.")
TABLE = flags.DEFINE_string("table", str(HERE / "runs.csv"), "The rows.")
REPORT = flags.DEFINE_bool("report", False, "Only write the README's tables.")


def read(path: pathlib.Path) -> list[dict[str, str]]:
  """Rows of finished runs."""
  if not path.exists():
    return []
  with path.open(newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def main(argv) -> None:
  """Runs what is missing, then writes the tables."""
  del argv
  table = pathlib.Path(TABLE.value)
  rows = read(table)
  if not REPORT.value:
    host.show_progress()
    host.keep_memory()
    logging.set_verbosity(logging.WARNING)
    done = {(row["variant"], row["seed"]) for row in rows}
    todo = [
      (variant, seed)
      for seed in range(SEEDS.value)
      for variant in popularity_study.VARIANTS
      if (variant.name, str(seed)) not in done
    ]
    data = None
    began = time.monotonic()
    for count, (variant, seed) in enumerate(todo):
      if data is None:
        config = popularity_study.make_config(variant, seed)
        data = experiment.load_data(config.data, data_dir=DATA_DIR.value)
      rows.append(
        popularity_study.execute(
          variant,
          seed,
          data,
          pathlib.Path(WORKDIR.value),
          num_epochs=EPOCHS.value,
        )
      )
      records.write_table(table, rows)
      each = (time.monotonic() - began) / (count + 1)
      left = round(each * (len(todo) - count - 1) / 60)
      print(f"{count + 1} of {len(todo)} runs, {left} min left", flush=True)
  popularity_report.write(HERE / "README.md", read(table))


if __name__ == "__main__":
  app.run(main)
