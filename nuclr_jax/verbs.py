"""The verbs of the launcher, with their flags."""

import json
import pathlib
import sys

from absl import flags
import jax
from ml_collections import config_flags

from nuclr_jax import processes

INTERRUPTED = 130  # exit code of a run that a signal stopped

CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Config file, such as configs/glyphs.py:smoke (train)."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "Folder of prepared data (default $NUCLR_DATA_DIR or ~/.cache/nuclr_jax).",
)
INPUT = flags.DEFINE_string(
  "input", None, "Files, pattern or folder to read, or tfds:NAME (ingest)."
)
DATASET = flags.DEFINE_string(
  "dataset", None, "Name of the data set that is made (ingest)."
)
SPLIT = flags.DEFINE_string(
  "split",
  None,
  "Split that is made: its name (default train), or, of inputs that have "
  "several, which one alone (ingest, embed).",
)
IMAGES = flags.DEFINE_string(
  "images", None, "Folder that the paths of a table start from (ingest)."
)
IMAGE_COLUMN = flags.DEFINE_string(
  "image_column", None, "Column of the images, if not a usual one (ingest)."
)
CAPTION_COLUMN = flags.DEFINE_string(
  "caption_column", None, "Column of the captions, likewise (ingest)."
)
MAX_SIZE = flags.DEFINE_integer(
  "max_size",
  None,
  "Shrink images to so many pixels on the shorter side; 384 is enough to train "
  "at 256 (ingest).",
)
WORKERS = flags.DEFINE_integer(
  "workers", None, "Processes that read; default one for each core (ingest)."
)
TEMPERATURE = flags.DEFINE_float(
  "temperature", None, "Instead of the run's own (popularity, evaluate --hubs)."
)
BEST = flags.DEFINE_bool(
  "best",
  False,
  "The state that was best on validation, see keep_best in a config; not the "
  "newest (evaluate, embed, export).",
)
OUTPUT = flags.DEFINE_string(
  "output", None, "Folder that is made (embed, export)."
)
FEATURES = flags.DEFINE_bool(
  "features", False, "What the towers give, before the projection (embed)."
)
HUBS = flags.DEFINE_float(
  "hubs",
  0.0,
  "Rank by sim - HUBS * zeta, too; 0.5 is a good choice (evaluate).",
)
CLASSES = flags.DEFINE_string(
  "classes",
  None,
  "Score linear classifiers of labelled pictures, too: digits, glyphs or a "
  "prepared data set such as cifar100:train (evaluate).",
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


def ingest() -> None:
  """Makes a data set of the input, then prints what is in it."""
  from nuclr_jax import ingest
  from nuclr_jax.ingest import publish

  if not INPUT.value or not DATASET.value:
    raise ValueError(
      "ingest needs --input and --dataset, such as --input='cc3m/*.tar' "
      "--dataset=cc3m"
    )
  folder = ingest.ingest(
    INPUT.value,
    DATASET.value,
    data_dir=DATA_DIR.value,
    split=SPLIT.value,
    images=IMAGES.value,
    image_column=IMAGE_COLUMN.value,
    caption_column=CAPTION_COLUMN.value,
    max_size=MAX_SIZE.value,
    workers=WORKERS.value,
  )
  print_table(publish.summary(folder))
  print(f"data set: {folder}")


def convert() -> None:
  """Copies a TFDS data set from TFRecord to array_record files."""
  from nuclr_jax.data import convert

  if not INPUT.value:
    raise ValueError("convert needs --input, such as --input=food101/2.0.0")
  folder = convert.convert(INPUT.value, DATA_DIR.value)
  print(f"data set: {folder}")


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

  parts, mesh, state = train.load(
    workdir(), data_dir=DATA_DIR.value, checkpoints=checkpoints()
  )
  if HUBS.value:
    tau = TEMPERATURE.value
    if tau is None:
      tau = experiment.temperature_of(parts.config, state.params)
    data = datasets.correct_hubs(
      parts.data, temperature=tau, strength=HUBS.value
    )
    parts = parts._replace(data=data)
  if CLASSES.value:
    data = datasets.with_classes(
      parts.data, CLASSES.value, data_dir=DATA_DIR.value
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


def embed() -> None:
  """Embeds images and captions by a run's model, or a config's first one."""
  from nuclr_jax import embed
  from nuclr_jax.ingest import inputs

  if not INPUT.value or not OUTPUT.value:
    raise ValueError(
      "embed needs --input and --output, such as --input=photos "
      "--output=embeddings"
    )
  if (WORKDIR.value is None) == (CONFIG.value is None):
    raise ValueError("embed needs either --workdir or --config")
  plan = inputs.plan(
    INPUT.value,
    split=SPLIT.value,
    data_dir=DATA_DIR.value,
    images=IMAGES.value,
    image_column=IMAGE_COLUMN.value,
    caption_column=CAPTION_COLUMN.value,
  )
  items = (item for part in plan.parts for item in part.read())
  how = {"data_dir": DATA_DIR.value, "features": FEATURES.value}
  if CONFIG.value is not None:
    opened = embed.of_config(CONFIG.value, **how)
  else:
    opened = embed.of_run(WORKDIR.value, checkpoints=checkpoints(), **how)
  with opened as model:
    print_table(embed.write(OUTPUT.value, items, model))
  print(f"embeddings: {OUTPUT.value}")


def export() -> None:
  """Writes a run's model as other libraries read it."""
  from nuclr_jax import experiment, export, train

  if not OUTPUT.value:
    raise ValueError("export needs --output, such as --output=exported")
  parts, _, state = train.load(
    workdir(),
    data_dir=DATA_DIR.value,
    checkpoints=checkpoints(),
    pairs=False,
  )
  try:
    tau = experiment.temperature_of(parts.config, state.params)
  except ValueError:  # each sample has its own
    tau = None
  model = export.Exported(
    parts.config["model"],
    state.params["model"],
    state.model_state,
    parts.data.tokenizer,
    parts.data.image_shape[0],
    tau,
  )
  print(f"exported: {export.write(model, OUTPUT.value)}")


VERBS = {
  "ingest": ingest,
  "convert": convert,
  "train": train,
  "evaluate": evaluate,
  "report": report,
  "popularity": popularity,
  "embed": embed,
  "export": export,
}


def checkpoints() -> str:
  """Which checkpoints of a run the --best flag asks for."""
  from nuclr_jax import checkpoint

  return checkpoint.BEST if BEST.value else checkpoint.NEWEST


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
