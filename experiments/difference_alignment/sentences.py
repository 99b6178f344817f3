"""Table 5: sentences, SimCSE as host, scored by pairs of known similarity."""

import functools
import pathlib

import jax
import numpy as np
from scipy import stats

from experiments.difference_alignment import docstrings
from experiments.harness import Options, Place, Row, Run, training
from experiments.labelled import KEYS
from nuclr_jax.lab import files
from nuclr_jax.lab.train import build, loop
from nuclr_jax.lab.train.step import init_state

PART = "sentences"
WEIGHTS = (0.0, 0.1, 0.5)
PAIRS = 500  # of each score
TRAIN, RATED = "train.txt", "pairs.tsv"
# The values of each data set. "sts" is a folder with train.txt, a sentence on
# each line, and a TSV file for each set of rated pairs.
TEXTS = {
  "docstrings": {"encoder": "small", "width": 64, "dim": 64, "length": 24},
  "sts": {"encoder": "bert"},
}
SMALL = {"encoder": "small", "width": 16, "dim": 16, "length": 8}
WORDS = KEYS | {"length": "data.length", "width": "model.encoder.width"}


def plan(data: str, options: Options, as_sum) -> list[Run]:
  """Plans the runs of one data set.

  Args:
    data: A name in `TEXTS`.
    options: The options of the study's command.
    as_sum: Converts a weight of the sum, given the batch size.

  Raises:
    ValueError: If "sts" is chosen without its folder.
  """
  values = (SMALL if options.smoke else TEXTS[data]) | {"text": data}
  if data == "sts":
    if options.data_dir is None:
      raise ValueError(
        "the data set sts needs --data_dir, a folder with train.txt (a "
        "sentence on each line) and a TSV file for each set of rated pairs"
      )
    values["data_dir"] = options.data_dir
  settings = {f"{x:g}": (x, options.seeds) for x in WEIGHTS}
  batch = config_of(values["encoder"]).batch_size
  settings[f"{as_sum(0.5, batch):g}"] = (as_sum(0.5, batch), 1)
  return [
    Run(
      f"{data}/{PART}",
      f"ntxent {batch} {name}",
      seed,
      tuple((values | {"weight": weight}).items()),
    )
    for name, (weight, seeds) in settings.items()
    for seed in range(seeds)
  ]


def config_of(encoder: str):
  """Returns the config of SimCSE, with a name in `configs/sentences.py`."""
  return training.get_config("sentences")(f"ntxent,{encoder}")


def make_config(run: Run):
  """Makes the config of a run; its files are chosen when it is measured."""
  values = dict(run.values)
  for name in ("text", "data_dir"):
    values.pop(name, None)
  config = config_of(values.pop("encoder"))
  training.change(config, values, WORDS)
  config.seed = run.seed
  config.checkpoint_every = 0
  config.eval_every = 0
  return config


def configs(runs) -> dict[str, dict]:
  """Returns the config of the first run of each part."""
  first = {run.part: run for run in reversed(list(runs)) if is_of_text(run)}
  return {part: training.flat(make_config(run)) for part, run in first.items()}


def is_of_text(run: Run) -> bool:
  """Returns whether a run trains on sentences."""
  return "text" in dict(run.values)


def measure(run: Run, place: Place) -> Row:
  """Trains a run, and scores it, its untrained encoder and shared words."""
  config = make_config(run)
  if data_dir := dict(run.values).get("data_dir"):
    folder = pathlib.Path(data_dir)
  else:
    folder = place.folder / "text"
    write_docstrings(folder)
  config.data.train = str(folder / TRAIN)
  config.data.test = tuple(map(str, sorted(folder.glob("*.tsv"))))
  parts = training.prepare(config, place)
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    first = init_state(
      parts.model, parts.objective, parts.optimizer, jax.random.key(run.seed)
    )
    embed = loop.embedder(parts, mesh)(first)
    untrained = [evaluate(embed) for evaluate in parts.evaluators["test"]]
  rated = parts.data.held_out["test"].rated
  return {
    "metrics": training.train(config, place, parts).metrics,
    "untrained": {k: v for x in untrained for k, v in x.items()},
    "words": {f"{name}/spearman": shared(x) for name, x in rated.items()},
    "data": parts.data.train.fingerprint,
  }


def write_docstrings(folder: pathlib.Path) -> None:
  """Writes the sentences and the rated pairs of docstrings."""
  folder.mkdir(exist_ok=True)
  text = _read()
  pairs = docstrings.rated_pairs(text.test, PAIRS)
  files.write_atomically(folder / TRAIN, "\n".join(text.train) + "\n")
  lines = ["\t".join(map(str, pair)) for pair in pairs]
  files.write_atomically(folder / RATED, "\n".join(lines) + "\n")


_read = functools.cache(docstrings.read)  # takes a quarter of a minute


def shared(rated) -> float:
  """Correlates the scores of pairs with the words that both sentences have."""
  bags = [
    [set(x.lower().split()) for x in side]
    for side in (rated.first, rated.second)
  ]
  cosine = [
    len(a & b) / np.sqrt(len(a) * len(b)) for a, b in zip(*bags, strict=True)
  ]
  return float(stats.spearmanr(cosine, rated.score).statistic)
