"""The verbs of the launcher."""

import json
import pathlib
import sys

import jax

from nuclr_jax import options, processes

INTERRUPTED = 130  # exit code of a run that a signal stopped


class UsageError(ValueError):
  """A command that lacks a flag, or has one too many."""


def ingest() -> None:
  """Makes a data set of the input, then prints what is in it."""
  from nuclr_jax import ingest
  from nuclr_jax.ingest import publish

  if not options.INPUT.value or not options.DATASET.value:
    raise UsageError(
      "ingest needs --input and --dataset, such as --input='cc3m/*.tar' "
      "--dataset=cc3m"
    )
  folder = ingest.ingest(
    options.INPUT.value,
    options.DATASET.value,
    data_dir=options.DATA_DIR.value,
    split=options.SPLIT.value,
    images=options.IMAGES.value,
    image_column=options.IMAGE_COLUMN.value,
    caption_column=options.CAPTION_COLUMN.value,
    max_size=options.MAX_SIZE.value,
    workers=options.WORKERS.value,
  )
  print_table(publish.summary(folder))
  print(f"data set: {folder}")


def convert() -> None:
  """Copies a TFDS data set from TFRecord to array_record files."""
  from nuclr_jax.data import convert

  if not options.INPUT.value:
    raise UsageError("convert needs --input, such as --input=food101/2.0.0")
  folder = convert.convert(options.INPUT.value, options.DATA_DIR.value)
  print(f"data set: {folder}")


def train() -> None:
  """Trains the config in the workdir, then prints the final metrics."""
  from nuclr_jax import train

  if options.CONFIG.value is None:
    raise UsageError("train needs --config, such as --config=glyphs")
  result = train.fit(
    options.CONFIG.value, workdir(), data_dir=options.DATA_DIR.value
  )
  if not result.finished:
    sys.exit(INTERRUPTED)
  if processes.is_first():
    print_table(result.metrics)


def evaluate() -> None:
  """Scores the newest checkpoint of the workdir."""
  from nuclr_jax import datasets, experiment, train

  if options.TEMPERATURE.value is not None and not options.HUBS.value:
    raise UsageError("evaluate takes --temperature with --hubs only")
  parts, mesh, state = train.load(
    workdir(), data_dir=options.DATA_DIR.value, checkpoints=checkpoints()
  )
  if options.HUBS.value:
    if not parts.data.sets:
      raise UsageError("--hubs needs data with images and captions to retrieve")
    tau = options.TEMPERATURE.value
    if tau is None:
      tau = experiment.temperature_of(parts.config, state.params)
    data = datasets.correct_hubs(
      parts.data, temperature=tau, strength=options.HUBS.value
    )
    parts = parts._replace(data=data)
  if options.CLASSES.value:
    data = datasets.with_classes(
      parts.data, options.CLASSES.value, data_dir=options.DATA_DIR.value
    )
    parts = parts._replace(data=data)
  with jax.set_mesh(mesh):
    print_table(train.evaluate(parts, mesh, state))


def report() -> None:
  """Writes the report of the workdir's newest checkpoint."""
  from nuclr_jax import report

  print(f"report: {report.write(workdir(), data_dir=options.DATA_DIR.value)}")


def popularity() -> None:
  """Solves and shows the popularities of a run or of embeddings in files."""
  from nuclr_jax.report import popularity, subject

  folder, tau = workdir(), options.TEMPERATURE.value
  if options.EMBEDDINGS.value:
    if tau is None:
      raise UsageError("popularity needs --temperature with --embeddings")
    found = subject.from_files(options.EMBEDDINGS.value, temperature=tau)
  else:
    found = subject.from_run(
      folder, data_dir=options.DATA_DIR.value, temperature=tau
    )
  path = popularity.write(found, folder, max_pairs=options.MAX_PAIRS.value)
  summary = (path.parent / "summary.json").read_text(encoding="utf-8")
  print_table(json.loads(summary))
  print(f"popularities: {path}")


def embed() -> None:
  """Embeds images and captions by a run's model, or a config's first one."""
  from nuclr_jax import embed
  from nuclr_jax.ingest import inputs

  if not options.INPUT.value or not options.OUTPUT.value:
    raise UsageError(
      "embed needs --input and --output, such as --input=photos "
      "--output=embeddings"
    )
  if (options.WORKDIR.value is None) == (options.CONFIG.value is None):
    raise UsageError("embed needs either --workdir or --config")
  plan = inputs.plan(
    options.INPUT.value,
    split=options.SPLIT.value,
    data_dir=options.DATA_DIR.value,
    images=options.IMAGES.value,
    image_column=options.IMAGE_COLUMN.value,
    caption_column=options.CAPTION_COLUMN.value,
  )
  items = (item for part in plan.parts for item in part.read())
  how = {"data_dir": options.DATA_DIR.value, "features": options.FEATURES.value}
  if options.CONFIG.value is not None:
    opened = embed.of_config(options.CONFIG.value, **how)
  else:
    opened = embed.of_run(
      options.WORKDIR.value, checkpoints=checkpoints(), **how
    )
  with opened as model:
    print_table(embed.write(options.OUTPUT.value, items, model))
  print(f"embeddings: {options.OUTPUT.value}")


def export() -> None:
  """Writes a run's model as other libraries read it."""
  from nuclr_jax import experiment, export, train

  if not options.OUTPUT.value:
    raise UsageError("export needs --output, such as --output=exported")
  parts, _, state = train.load(
    workdir(),
    data_dir=options.DATA_DIR.value,
    checkpoints=checkpoints(),
    pairs=False,
  )
  try:
    tau = experiment.temperature_of(parts.config, state.params)
  except ValueError:  # there is none, or each sample has its own
    tau = None
  model = export.Exported(
    parts.config["model"],
    state.params["model"],
    state.model_state,
    parts.data.tokenizer,
    parts.data.image_shape[0],
    tau,
  )
  print(f"exported: {export.write(model, options.OUTPUT.value)}")


def doctor() -> None:
  """Checks this machine: devices, precision, libraries, folders, speed."""
  from nuclr_jax import doctor

  if not doctor.examine(data_dir=options.DATA_DIR.value):
    sys.exit(1)


def checkpoints() -> str:
  """Which checkpoints of a run the --best flag asks for."""
  from nuclr_jax import checkpoint

  return checkpoint.BEST if options.BEST.value else checkpoint.NEWEST


def workdir() -> pathlib.Path:
  """The --workdir flag, where a verb needs it."""
  if not options.WORKDIR.value:
    raise UsageError("--workdir is missing, such as --workdir=runs/mine")
  return pathlib.Path(options.WORKDIR.value)


def print_table(metrics) -> None:
  """Prints metrics one a line."""
  width = max(map(len, metrics), default=0)
  for name, value in metrics.items():
    shown = f"{value:.4f}" if isinstance(value, float) else value
    print(f"{name:<{width}}  {shown}")
