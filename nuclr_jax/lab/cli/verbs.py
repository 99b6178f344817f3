"""The verbs of `nuclr`; `usage` has their help.

Each verb imports what it needs when it runs, so that `nuclr ingest` does not
wait for Flax and Orbax.
"""

import json
import sys

from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import filter_flags, flags
from nuclr_jax.lab.cli.flags import UsageError
from nuclr_jax.lab.cli.interrupts import INTERRUPTED
from nuclr_jax.lab.files import remote


def ingest() -> None:
  """Make a data set of images and captions."""
  from nuclr_jax.lab import ingest
  from nuclr_jax.lab.cli import chosen
  from nuclr_jax.lab.ingest import publish

  folder = ingest.ingest(
    flags.INPUT.value,
    flags.DATASET.value,
    **chosen.how_to_read(),
    max_size=flags.MAX_SIZE.value,
    max_pixels=flags.MAX_PIXELS.value,
    workers=flags.WORKERS.value,
    in_place=flags.IN_PLACE.value,
    beam_options=flags.BEAM_PIPELINE_OPTIONS.value,
  )
  progress.print_table(publish.split_counts(folder))
  print(f"data set: {remote.original(folder)}")


def convert() -> None:
  """Copy a TFDS data set from TFRecord files to array_record files."""
  from nuclr_jax.lab.ingest import convert

  folder = convert.convert(flags.INPUT.value, flags.DATA_DIR.value)
  print(f"data set: {folder}")


def train() -> None:
  """Train a config or a model, or continue a run."""
  from nuclr_jax.lab.train import journal, loop

  settings = flags.chosen_settings(training=True)
  result = loop.fit(settings, workdir(), data_dir=flags.DATA_DIR.value)
  if not result.finished:
    sys.exit(INTERRUPTED)
  journal.print_end(result.metrics, workdir())


def evaluate() -> None:
  """Score a run, a published model or embeddings on data."""
  from nuclr_jax.lab.cli import scoring

  scored = scoring.score()
  for described in scored.data:
    print(scoring.shown(described))
  progress.print_table(scored.metrics)
  if flags.OUTPUT.value:
    scoring.write(scored, flags.OUTPUT.value)
    print(f"scores: {flags.OUTPUT.value}")


def report() -> None:
  """Write a report of a run as one HTML page."""
  from nuclr_jax.lab import report
  from nuclr_jax.lab.cli import scoring

  mixtures = scoring.score().metrics if flags.INTERPOLATE.value else {}
  path = report.write(
    workdir(), data_dir=flags.DATA_DIR.value, mixtures=mixtures
  )
  print(f"report: {remote.original(path)}")


def popularity() -> None:
  """Solve for the popularities of a run, of photos, or of embeddings."""
  from nuclr_jax.lab.cli import chosen
  from nuclr_jax.lab.report import popularity
  from nuclr_jax.lab.train import checkpoint

  with remote.local_folder(workdir(), choose=checkpoint.of_newest) as folder:
    pairs = chosen.subject(folder)
    path = popularity.write(pairs, folder, max_pairs=flags.MAX_PAIRS.value)
  progress.print_table(json.loads(path.with_name("summary.json").read_bytes()))
  print(f"popularities: {remote.original(path)}")


def embed() -> None:
  """Embed images and captions with a run or a published model."""
  from nuclr_jax.lab.cli import chosen

  progress.print_table(
    chosen.embed_inputs(flags.OUTPUT.value, features=flags.FEATURES.value)
  )
  print(f"embeddings: {flags.OUTPUT.value}")


def filter_pairs() -> None:
  """Choose the pairs to train on, by scores of their embeddings."""
  from nuclr_jax.lab.report import filtering

  request = filter_flags.request()
  output, embeddings = flags.OUTPUT.value, flags.EMBEDDINGS.value
  if embeddings:
    summary = filtering.write(request, output, embeddings=embeddings)
  else:
    summary = filtering.write(request, output, **filter_flags.to_embed())
  progress.print_table(summary)
  print(f"kept pairs: {output}")


def export() -> None:
  """Export the model of a run for other libraries."""
  from nuclr_jax.lab import export
  from nuclr_jax.lab.cli import chosen

  share = chosen.one_share()
  remote.check_new(flags.OUTPUT.value)  # before the run is read
  model = export.model_of_run(
    workdir(),
    data_dir=flags.DATA_DIR.value,
    share=share,
    **flags.chosen_state(),
  )
  folder = export.write_model(
    model, flags.OUTPUT.value, layout=flags.LAYOUT.value
  )
  print(f"exported: {folder}")


def doctor() -> None:
  """Check that this machine is set up correctly, and time a step."""
  from nuclr_jax.lab.cli import doctor

  if not doctor.examine(data_dir=flags.DATA_DIR.value):
    sys.exit(1)


def workdir() -> str:
  """Returns the --workdir flag; raises UsageError if it is missing."""
  if not flags.WORKDIR.value:
    raise UsageError("--workdir is missing, such as --workdir=runs/mine")
  return flags.WORKDIR.value
