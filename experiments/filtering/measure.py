"""One run: a model that scores pairs, or trainings on what scores kept."""

from collections.abc import Mapping
import pathlib
from typing import Any

import jax
from jaxtyping import Bool
import numpy as np

from experiments.filtering import plan
from experiments.filtering.data import TEST, Task, data_of, read_task
from experiments.filtering.scores import planted, score_all
from experiments.harness import Options, Place, Row, Run, training
from nuclr_jax import sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.data.source import Data
from nuclr_jax.lab.evaluate import choose
from nuclr_jax.lab.evaluate.retrieval import recall
from nuclr_jax.lab.train import build, loop

HERE = pathlib.Path(__file__).parent


def make_config(words: Mapping[str, Any], seed: int):
  """Makes the config of a run: that of its data, with the run's changes."""
  is_icons = words.get("data") != plan.LETTERS
  make = training.get_config("icons" if is_icons else "glyphs")
  config = make(words.get("objective", "clip"))
  changes = {
    "batch_size": words["batch"],
    "num_epochs": words["scorer_epochs"],
    "objective.temperature": words["tau"],
    "optimizer.learning_rate.value": words["rate"],
    # As in experiments/icons, and as the letters' config has it.
    "optimizer.clip_norm": 0.1 if is_icons else 1.0,
    "eval_every": 0,
    "eval_every_epochs": 0.0,
    "log_every": 100,
    "seed": seed,
  }
  training.change(config, changes, {x: x for x in changes})
  return config


def configs(options: Options) -> dict[str, dict]:
  """Returns a config of each objective, and of the letters."""
  del options
  words = {x: {"objective": name} for name, x in plan.OBJECTIVES.items()}
  words[plan.LETTERS] = plan.OTHERS[plan.LETTERS] | {"data": plan.LETTERS}
  return {
    label: training.flat(make_config({**plan.COMMON, **more}, 0))
    for label, more in words.items()
  }


def measure(run: Run, place: Place) -> Row:
  """Trains a model and scores candidates, or trains on what was kept."""
  words, seed = dict(run.values), run.seed
  config = make_config(words, seed)
  task = read_task(config, words, seed, place)
  path = store(words, place, seed)
  if run.part == plan.TRAINING:
    stored = {}
    if words["filter"] in plan.CHOSEN:
      stored = read_kept(path, len(task.candidates.image), seed)
    return train_on_kept(config, place, task, words, seed, stored)
  (embed, model), row = train(config, place, data_of(task.scorer, task.like))
  images = embed.image(task.candidates.image)
  with jax.set_mesh(sharding.make_mesh()):
    row["found"], kept = score_all(images, embed.text, task, words, seed)
  if run.part == plan.OTHER:
    row["trained"] = {}
    start = model if words["data"] == plan.CLIP_ART else None
    for kind, name in plan.filters():
      key = plan.kept_of(kind, name)
      row["trained"][key] = train_on_kept(
        make_config(words, seed),
        place._replace(folder=place.folder / key.replace("/", ", ")),
        task,
        words | {"kind": kind, "filter": name},
        seed,
        kept,
        start,
      )
    return row
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.replacing(path) as new, new.open("wb") as file:
    bits = {name: np.packbits(x) for name, x in kept.items()}
    np.savez_compressed(file, **bits)
  return row


def store(words, place: Place, seed: int) -> pathlib.Path:
  """Returns the file of what scores keep, which lies beside the rows."""
  smoke = words["candidates"] < plan.COMMON["candidates"]
  return (place.shared if smoke else HERE) / f"kept_{seed}.npz"


def read_kept(
  path: pathlib.Path, count: int, seed: int
) -> dict[str, Bool[np.ndarray, "pairs"]]:
  """Reads what scores keep, by `plan.kept_of`.

  Raises:
    FileNotFoundError: If the file is missing.
  """
  if not path.exists():
    raise FileNotFoundError(
      f"{path}, what the scores keep, is missing: move the row of "
      f"{plan.SCORES}, seed {seed}, away to score again"
    )
  with np.load(path) as arrays:
    return {
      name: np.unpackbits(bits, count=count).astype(bool)
      for name, bits in arrays.items()
    }


def kept_by(
  words, wrong: Bool[np.ndarray, "pairs"], seed: int, stored
) -> Bool[np.ndarray, "pairs"]:
  """Returns which candidates a training sees.

  Args:
    words: The values of the run, with "kind" and "filter".
    wrong: Which candidates are wrong.
    seed: Draws random ones.
    stored: What scores keep, by `plan.kept_of`.
  """
  name, everyone = words["filter"], np.ones_like(wrong)
  if name == plan.EVERYTHING:
    return everyone
  if name == plan.RIGHT:
    return ~wrong
  if name == plan.RANDOM:
    random = np.random.default_rng([seed, 6]).random(len(wrong))
    return choose.best(random, int(np.sum(~wrong)), everyone)
  return stored[plan.kept_of(words["kind"], name)]


def train_on_kept(
  config, place: Place, task: Task, words, seed: int, stored, start=None
) -> Row:
  """Trains on what a filter keeps of the candidates.

  Args:
    config: The config of the training, but for its length.
    place: The folders of the run.
    task: The data.
    words: The values of the run, with "kind" and "filter".
    seed: The seed of the run.
    stored: What scores keep, by `plan.kept_of`.
    start: The model to tune, as `train` returns it; None = random weights.
  """
  found, wrong = planted(task, words["kind"], words, seed)
  kept = kept_by(words, wrong, seed, stored)
  chosen = np.flatnonzero(kept)
  config.num_epochs = words["samples"] / len(chosen)
  if start is not None:
    config.optimizer.learning_rate.value = words["tuning_rate"]
  name = f"{words['kind']}, {words['filter']}, {seed}"
  pairs = task.candidates._replace(caption=found).subset(chosen, name)
  _, row = train(config, place, data_of(pairs, task.like), start)
  share = round(float(wrong[kept].mean()), 5)
  return row | {"pairs": len(chosen), "wrong": share}


def train(config, place: Place, data: Data, start=None):
  """Trains, from random weights or from those of a model.

  Returns:
    What embeds, and the model as `start` takes it; and the row with the scores
    on test.
  """
  parts = build.build(config, data=data)._replace(evaluators={})
  if start is not None:
    model = parts.model._replace(load=lambda params, state: start)
    parts = parts._replace(model=model)
  state = training.train(config, place, parts).state
  mesh, test = build.mesh_of(parts.settings), data.sets[TEST]
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    scores = recall(
      *(embed.image(test.image), embed.text(test.captions)),
      *(test.image_group, test.caption_group),
      top=(1, 10),
      parts=test.parts,
    )
  queries = "natural/" if test.parts else ""
  model = jax.device_get((state.params["model"], state.model_state))
  return (embed, model), {
    "R@1": round(100 * scores[f"{queries}mean_recall@1"], 4),
    "R@10": round(100 * scores[f"{queries}mean_recall@10"], 4),
    "device": jax.devices()[0].device_kind,
  }


def describe(row: Row) -> str:
  """Summarizes the result of a run in one line."""
  more = f"test R@1 {row['R@1']:.1f}"
  if "found" not in row:
    return more
  return ", ".join(
    [more]
    + [
      f"{kind} {of[plan.SIMILARITY]['precision']:.2f}"
      for kind, of in row["found"].items()
    ]
  )
