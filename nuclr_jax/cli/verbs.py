"""The verbs of `nuclr`; `usage` has their help.

Each verb imports what it needs when it runs, so that `nuclr ingest` does not
wait for Flax and Orbax.
"""

from collections.abc import Mapping
import json
import pathlib
import sys
from typing import Any

import jax

from nuclr_jax import distributed
from nuclr_jax.cli import flags

INTERRUPTED = 130  # exit code of a run that a signal stopped


class UsageError(ValueError):
  """A command that lacks a flag, or whose flags do not go together."""


def ingest() -> None:
  """Make a data set of images and captions."""
  from nuclr_jax import ingest
  from nuclr_jax.ingest import publish

  if not flags.INPUT.value or not flags.DATASET.value:
    raise UsageError(
      "ingest needs --input and --dataset, such as --input='cc3m/*.tar' "
      "--dataset=cc3m"
    )
  folder = ingest.ingest(
    flags.INPUT.value,
    flags.DATASET.value,
    data_dir=flags.DATA_DIR.value,
    split=flags.SPLIT.value,
    images=flags.IMAGES.value,
    image_column=flags.IMAGE_COLUMN.value,
    caption_column=flags.CAPTION_COLUMN.value,
    max_size=flags.MAX_SIZE.value,
    max_pixels=flags.MAX_PIXELS.value,
    workers=flags.WORKERS.value,
  )
  print_table(publish.split_counts(folder))
  print(f"data set: {folder}")


def convert() -> None:
  """Copy a TFDS data set from TFRecord files to array_record files."""
  from nuclr_jax.ingest import convert

  if not flags.INPUT.value:
    raise UsageError("convert needs --input, such as --input=food101/2.0.0")
  folder = convert.convert(flags.INPUT.value, flags.DATA_DIR.value)
  print(f"data set: {folder}")


def train() -> None:
  """Train a config, or continue its run, and print the final metrics."""
  from nuclr_jax.train import loop

  if flags.CONFIG.value is None:
    raise UsageError("train needs --config, such as --config=glyphs")
  result = loop.fit(
    flags.chosen_config(), workdir(), data_dir=flags.DATA_DIR.value
  )
  if not result.finished:
    sys.exit(INTERRUPTED)
  if distributed.is_first():
    print_table(result.metrics)


def evaluate() -> None:
  """Evaluate a run or a published model, and print its metrics."""
  from nuclr_jax import evaluate
  from nuclr_jax.objectives import one_temperature
  from nuclr_jax.train import loop

  asked = [x for x in ("hubs", "prior") if getattr(flags, x.upper()).value]
  if flags.TEMPERATURE.value is not None and not asked:
    raise UsageError("evaluate takes --temperature with --hubs or --prior only")
  parts, mesh, state = opened()
  if flags.HUBS.value and not parts.data.sets:
    raise UsageError("--hubs needs data with images and captions to retrieve")
  suites, tau = parts.evaluators, flags.TEMPERATURE.value
  readout = loop.readout(parts, state)
  if asked and tau is None:
    tau = one_temperature(readout, f"--{asked[0]}")
  if flags.HUBS.value:
    suites = evaluate.correct_hubs(
      suites, parts.data, temperature=tau, strength=flags.HUBS.value
    )
  if flags.PRIOR.value:
    prior = evaluate.make_prior(flags.PRIOR.value, parts.data.train)
    evaluate.doubt_prior(parts.data.train, readout.zeta, temperature=tau)
    suites = evaluate.add_prior(suites, parts.data, prior, temperature=tau)
  with jax.set_mesh(mesh):
    print_table(loop.evaluate(parts._replace(evaluators=suites), mesh, state))


def report() -> None:
  """Write a report of a run as one HTML page."""
  from nuclr_jax import report

  print(f"report: {report.write(workdir(), data_dir=flags.DATA_DIR.value)}")


def popularity() -> None:
  """Solve for the exact popularities of a run, or of any embeddings."""
  from nuclr_jax.report import popularity, subject

  folder, tau = workdir(), flags.TEMPERATURE.value
  sources = {
    "--embeddings": flags.EMBEDDINGS.value,
    "--config": flags.CONFIG.value,
    "--model": flags.MODEL.value,
  }
  chosen = [name for name, value in sources.items() if value]
  if len(chosen) > 1:
    raise UsageError(f"popularity takes one of {' and '.join(chosen)}")
  if flags.INPUT.value and chosen != ["--model"] and chosen != ["--config"]:
    raise UsageError("popularity takes --input with --model or --config only")
  if flags.INPUT.value:
    folder.mkdir(parents=True, exist_ok=True)
    embeddings = folder / "embeddings"
    if tau is None:
      tau = temperature_of_model()
    print_table(embed_inputs(embeddings, thumbnails=True))
    pairs = subject.from_files(str(embeddings), temperature=tau)
  elif flags.EMBEDDINGS.value:
    if tau is None:
      raise UsageError("popularity needs --temperature with --embeddings")
    pairs = subject.from_files(flags.EMBEDDINGS.value, temperature=tau)
  elif chosen:
    if flags.MODEL.value and not flags.DATA.value:
      raise UsageError("popularity needs --input or --data with --model")
    pairs = subject.from_state(*opened(of_run=False), temperature=tau)
  else:
    pairs = subject.from_run(
      folder, data_dir=flags.DATA_DIR.value, temperature=tau
    )
  path = popularity.write(pairs, folder, max_pairs=flags.MAX_PAIRS.value)
  summary = (path.parent / "summary.json").read_text(encoding="utf-8")
  print_table(json.loads(summary))
  print(f"popularities: {path}")


def embed() -> None:
  """Embed images and captions with the model of a run or of a config."""
  if not flags.INPUT.value or not flags.OUTPUT.value:
    raise UsageError(
      "embed needs --input and --output, such as --input=photos "
      "--output=embeddings"
    )
  check_one_model()
  print_table(embed_inputs(flags.OUTPUT.value, features=flags.FEATURES.value))
  print(f"embeddings: {flags.OUTPUT.value}")


def export() -> None:
  """Export the model of a run for other libraries."""
  from nuclr_jax.export import Exported, write_model
  from nuclr_jax.train import loop
  from nuclr_jax.types import Sides

  if not flags.OUTPUT.value:
    raise UsageError("export needs --output, such as --output=exported")
  parts, _, state = loop.load(
    workdir(),
    data_dir=flags.DATA_DIR.value,
    checkpoints=checkpoints(),
    pairs=False,
    averaged=flags.AVERAGE.value,
  )
  tau = loop.readout(parts, state).temperature
  is_single = tau is not None and not isinstance(tau, Sides)
  bias = state.params["objective"].get("logit_bias")
  model = Exported(
    parts.config["model"],
    state.params["model"],
    state.model_state,
    parts.data.tokenizer,
    parts.data.image_shape[0],
    float(tau) if is_single else None,
    parts.data.resize,
    None if bias is None else float(bias),
  )
  folder = write_model(model, flags.OUTPUT.value, layout=flags.LAYOUT.value)
  print(f"exported: {folder}")


def doctor() -> None:
  """Check that this machine is set up correctly, and time a step."""
  from nuclr_jax.cli import doctor

  if not doctor.examine(data_dir=flags.DATA_DIR.value):
    sys.exit(1)


def check_one_model() -> None:
  """Raises UsageError unless the flags name one run, config or model."""
  named = (flags.WORKDIR.value, flags.CONFIG.value, flags.MODEL.value)
  if sum(x is not None for x in named) != 1:
    raise UsageError("give one of --workdir, --config and --model")


def opened(*, of_run: bool = True):
  """Opens the run, config or published model that the flags name.

  Args:
    of_run: Whether it may be a run; else --workdir is where output goes.

  Returns:
    `(parts, mesh, train_state)`, with data.
  """
  if of_run:
    check_one_model()
  if of_run and flags.WORKDIR.value:
    from nuclr_jax.train import loop

    return loop.load(
      workdir(),
      data_dir=flags.DATA_DIR.value,
      checkpoints=checkpoints(),
      averaged=flags.AVERAGE.value,
    )
  if flags.MODEL.value and not (flags.DATA.value or flags.ZERO_SHOT.value):
    raise UsageError(
      "--model needs data: --data=mine, or --zero_shot=flowers=photos"
    )
  from nuclr_jax.train import untrained

  return untrained.open_untrained(
    flags.chosen_config(), data_dir=flags.DATA_DIR.value
  )


def temperature_of_model() -> float:
  """Returns the temperature of the config or published model in the flags."""
  tau = flags.chosen_config()["objective"].get("temperature")
  if not isinstance(tau, float):
    raise UsageError("this model has no single temperature; give --temperature")
  return tau


def embed_inputs(
  output: str | pathlib.Path,
  *,
  features: bool = False,
  thumbnails: bool = False,
) -> Mapping[str, Any]:
  """Embeds --input with the run, config or model of the flags; see `export`."""
  from nuclr_jax import export
  from nuclr_jax.ingest import inputs

  plan = inputs.plan(
    flags.INPUT.value,
    split=flags.SPLIT.value,
    data_dir=flags.DATA_DIR.value,
    images=flags.IMAGES.value,
    image_column=flags.IMAGE_COLUMN.value,
    caption_column=flags.CAPTION_COLUMN.value,
  )
  items = (item for part in plan.parts for item in part.read())
  how = {"data_dir": flags.DATA_DIR.value, "features": features}
  config = flags.chosen_config()
  if config is None:
    model = export.embedder_of_run(
      flags.WORKDIR.value,
      checkpoints=checkpoints(),
      averaged=flags.AVERAGE.value,
      **how,
    )
  else:
    model = export.embedder_of_config(config, **how)
  with model as embedder:
    return export.write_embeddings(
      embedder, items, output, thumbnails=thumbnails
    )


def checkpoints() -> str:
  """Returns the folder of checkpoints that the --best flag chooses."""
  from nuclr_jax.train import checkpoint

  return checkpoint.BEST if flags.BEST.value else checkpoint.NEWEST


def workdir() -> pathlib.Path:
  """Returns the --workdir flag; raises UsageError if it is missing."""
  if not flags.WORKDIR.value:
    raise UsageError("--workdir is missing, such as --workdir=runs/mine")
  return pathlib.Path(flags.WORKDIR.value)


def print_table(metrics: Mapping[str, Any]) -> None:
  """Prints metrics, one per line."""
  width = max(map(len, metrics), default=0)
  for name, value in metrics.items():
    shown = f"{value:.4f}" if isinstance(value, float) else value
    print(f"{name:<{width}}  {shown}")
