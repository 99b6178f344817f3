"""Table 2 of paper 1 on text: documents are docstrings of installed modules."""

from collections.abc import Iterable
from typing import Any

from experiments.harness import Options, Place, Row, Run, training
from experiments.latent_classes import docstrings
from nuclr_jax.lab import files

DATA = "docstrings"  # the name of the data set in parts and scores
BLOCKS = (2, 5, 10)  # as in the paper
NUM_BLOCKS = 20  # per batch
NUM_NEGATIVES = 8  # of CURL
EPOCHS = 2.0  # for blocks of one; larger ones get equally many steps

# Maps the words of these runs to the config keys that get their values.
KEYS = {
  "batch_size": "batch_size",
  "block_size": "data.block_size, objective.block_size",
  "num_epochs": "num_epochs",
  "num_negatives": "objective.num_negatives",
  "warmup_epochs": "optimizer.learning_rate.warmup_epochs",
}


def plan(options: Options) -> list[Run]:
  """Plans the training runs on sentences."""
  settings = {
    f"{name} {b}": (name, _values(b) | more)
    for name, more in (
      ("curl", {"num_negatives": NUM_NEGATIVES}),
      ("quick_thought", {}),
    )
    for b in BLOCKS
  }
  largest = _values(BLOCKS[-1])
  del largest["block_size"]  # labels need no blocks
  parts = {
    f"{DATA}/table 1": {"supervised": ("softmax", largest)},
    f"{DATA}/table 2b": settings,
  }
  return [
    Run(part, setting, seed, tuple(_short(argument, values, options).items()))
    for part, settings in parts.items()
    for setting, (argument, values) in settings.items()
    for seed in range(options.seeds)
  ]


def is_training(run: Run) -> bool:
  """Returns whether a run trains on sentences."""
  return "documents" in dict(run.values)


def make_config(run: Run):
  """Makes the config of a run, which does not say where the documents are."""
  values = dict(run.values)
  config = training.get_config("documents")(values.pop("documents"))
  training.change(config, values, KEYS)
  config.seed = run.seed
  config.checkpoint_every = 0
  config.eval_every_epochs = 0.0
  config.data.validation_scores = ()
  return config


def measure(run: Run, place: Place) -> Row:
  """Trains and evaluates; the first run writes the documents."""
  folder = place.shared / DATA
  with files.locked(place.shared, wait=True):
    if not folder.exists():
      with files.complete_folder(folder) as unfinished:
        docstrings.write_documents(unfinished)
  config = make_config(run)
  config.data.train = str(folder)
  parts = training.prepare(config, place)
  trained = training.train(config, place, parts)
  return {
    "metrics": trained.metrics,
    "curve": [],
    "documents": parts.data.num_classes,
    "sentences": parts.data.train.sizes.num_pairs,
  }


def configs(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
  """Returns the first config of each pair of part and config argument."""
  typical = {}
  for run in filter(is_training, runs):
    name = f"{run.part}: {dict(run.values)['documents']}"
    typical.setdefault(name, run)
  return {
    name: training.flat(make_config(run)) for name, run in typical.items()
  }


def _values(block_size: int) -> dict[str, Any]:
  return {
    "batch_size": NUM_BLOCKS * block_size,
    "block_size": block_size,
    "num_epochs": EPOCHS * block_size,
    "warmup_epochs": 0.1 * block_size,
  }


def _short(argument, values, options: Options) -> dict[str, Any]:
  """Returns the values of a run; a smoke run has a tenth of the steps."""
  values = {"documents": argument} | values
  if options.smoke:
    for name in ("num_epochs", "warmup_epochs"):
      values[name] /= 10
  return values
