"""nuclr: contrastive training with learned popularities.

nuclr train --config=configs/glyphs.py --workdir=runs/mine
  Trains, evaluates and writes metrics.json. The same command goes on from the
  newest checkpoint. Change a value with --config.objective.temperature=0.05.

nuclr evaluate --workdir=runs/mine
  Scores the newest checkpoint. --hubs=0.5 also corrects retrieval for hubs.

nuclr report --workdir=runs/mine
  Writes report.html: curves, popularities, retrieval examples.

nuclr popularity --workdir=runs/mine
nuclr popularity --workdir=runs/other --embeddings=x.npz --temperature=0.01
  Solves the exact popularities of a run's training pairs, or of embeddings of
  any model (arrays image, text [pairs, dim]; or image.npy,text.npy); writes
  tables, a plot and a page of samples to popularity/ in the workdir.
"""

import json
import pathlib
import sys
import traceback

from absl import app, flags
from absl import logging as absl_logging
import jax
from ml_collections import config_flags

from nuclr_jax import host, processes

INTERRUPTED = 130  # exit code of a run that a signal stopped
USER_ERRORS = (ValueError, FloatingPointError, OSError)

CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Config file, such as configs/glyphs.py:smoke (train)."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "Folder of prepared data (default $NUCLR_DATA_DIR or ~/.cache/nuclr_jax).",
)
TEMPERATURE = flags.DEFINE_float(
  "temperature", None, "Instead of the run's own (popularity, evaluate --hubs)."
)
HUBS = flags.DEFINE_float(
  "hubs",
  0.0,
  "Rank by sim - HUBS * zeta, too; 0.5 is a good choice (evaluate).",
)
EMBEDDINGS = flags.DEFINE_string(
  "embeddings", None, "Embeddings to take instead of a run's (popularity)."
)
MAX_PAIRS = flags.DEFINE_integer(
  "max_pairs",
  None,
  "Solve a sample of so many pairs and extend it to all (popularity).",
)
COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "host:port of process 0, for several processes (train)."
)
NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "How many processes train together (train)."
)
PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "Which of them this is, from 0 (train)."
)
DISTRIBUTED = flags.DEFINE_bool(
  "distributed",
  None,
  "Look for the other processes; by default under Slurm and on TPU slices only "
  "(train).",
)
DEBUG = flags.DEFINE_bool("debug", False, "Show the traceback of errors.")


def train() -> None:
  """Trains the config in the workdir, then prints the final metrics."""
  from nuclr_jax import train

  if CONFIG.value is None:
    raise ValueError("train needs --config, such as --config=configs/glyphs.py")
  result = train.fit(CONFIG.value, workdir(), data_dir=DATA_DIR.value)
  if not result.finished:
    sys.exit(INTERRUPTED)
  if processes.is_first():
    print_table(result.metrics)


def evaluate() -> None:
  """Scores the newest checkpoint of the workdir."""
  from nuclr_jax import datasets, experiment, train

  parts, mesh, state = train.load(workdir(), data_dir=DATA_DIR.value)
  if HUBS.value:
    tau = TEMPERATURE.value
    if tau is None:
      tau = experiment.temperature_of(parts.config, state.params)
    data = datasets.correct_hubs(
      parts.data, temperature=tau, strength=HUBS.value
    )
    parts = parts._replace(data=data)
  with jax.set_mesh(mesh):
    print_table(train.evaluate(parts, mesh, state))


def report() -> None:
  """Writes the report of the workdir's newest checkpoint."""
  from nuclr_jax import report

  print(f"report: {report.write(workdir(), data_dir=DATA_DIR.value)}")


def popularity() -> None:
  """Solves and shows the popularities of a run or of embeddings in files."""
  from nuclr_jax.report import popularity, subject

  folder, tau = workdir(), TEMPERATURE.value
  if EMBEDDINGS.value:
    found = subject.from_files(EMBEDDINGS.value, temperature=tau)
  else:
    found = subject.from_run(folder, data_dir=DATA_DIR.value, temperature=tau)
  path = popularity.write(found, folder, max_pairs=MAX_PAIRS.value)
  print_table(json.loads((path.parent / "summary.json").read_text()))
  print(f"popularities: {path}")


VERBS = {
  "train": train,
  "evaluate": evaluate,
  "report": report,
  "popularity": popularity,
}


def workdir() -> pathlib.Path:
  """The --workdir flag, which every verb needs."""
  if not WORKDIR.value:
    raise ValueError("--workdir is missing, such as --workdir=runs/mine")
  return pathlib.Path(WORKDIR.value)


def print_table(metrics) -> None:
  """Prints metrics one a line."""
  width = max(map(len, metrics), default=0)
  for name, value in metrics.items():
    shown = f"{value:.4f}" if isinstance(value, float) else value
    print(f"{name:<{width}}  {shown}")


def main(argv: list[str]) -> None:
  """Runs one verb; user errors end with a message and exit code 1."""
  absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax and TFDS are chatty
  host.keep_memory()
  if len(argv) != 2 or argv[1] not in VERBS:
    found = " ".join(argv[1:]) or "none"
    sys.exit(f"nuclr: needs one verb of {', '.join(VERBS)}; got {found}")
  try:
    if argv[1] == "train":
      processes.join(
        coordinator=COORDINATOR.value,
        num_processes=NUM_PROCESSES.value,
        process_id=PROCESS_ID.value,
        distributed=DISTRIBUTED.value,
      )
    host.show_progress(process=jax.process_index())
    VERBS[argv[1]]()
  except KeyboardInterrupt:
    message = "\nnuclr: interrupted; the same command goes on"
    processes.exit_at_once(message, code=INTERRUPTED)
  except Exception as error:
    message = f"nuclr {argv[1]}: {error}"
    if isinstance(error, USER_ERRORS) and not DEBUG.value:
      message += "\n(--debug shows where)"
    else:
      traceback.print_exc()
    processes.exit_at_once(message)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the flags; --help is short and an unknown config key is named."""
  if {"--help", "-h", "-help"} & set(argv):
    print(__doc__ + flags.FLAGS.module_help(sys.modules[__name__]))
    sys.exit(0)
  try:
    rest = flags.FLAGS(argv)
    if CONFIG.value is not None:
      CONFIG.value.keys()  # fails if the file could not be loaded
    return rest
  except OSError as error:
    *_, reason = str(error).strip().splitlines()
    sys.exit(f"nuclr: the config file cannot be loaded: {reason.strip()}")
  except flags.Error as error:
    *_, reason = str(error).strip().splitlines()
    sys.exit(f"nuclr: {reason.strip()}")
  except (AttributeError, KeyError) as error:  # from ml_collections
    given = ", ".join(a for a in argv if a.startswith("--config."))
    reason = error
    while isinstance(reason, Exception):  # they are nested
      reason = reason.args[0]
    reason = " ".join(reason.split())
    sys.exit(f"nuclr: unknown config key {reason} among {given}")


def run() -> None:
  """Entry point of the console script."""
  app.run(main, flags_parser=parse_flags)


if __name__ == "__main__":
  run()
