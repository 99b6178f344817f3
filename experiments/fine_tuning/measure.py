"""One run: pre-training, or an epoch of tuning that is scored on its way."""

from collections.abc import Sequence
import itertools
import pathlib
import time
from typing import Any

import jax
import numpy as np

from experiments.fine_tuning import plan
from experiments.harness import Place, Row, Run, training
from experiments.icons.measure import subset
from nuclr_jax.lab import files
from nuclr_jax.lab.data.records import data_of_records
from nuclr_jax.lab.data.source import Data, ImageTextSet, Records
from nuclr_jax.lab.evaluate.evaluators import Embed
from nuclr_jax.lab.evaluate.retrieval import recall
from nuclr_jax.lab.train import (
  batches,
  build,
  interpolate,
  loop,
  recovery,
  resume,
  step,
)

KEY = 51  # of the permutations that split the held-out designers
WARM_UP_EPOCHS = 0.25
NEW, UNTOUCHED = "new", "untouched"  # sets


def make_config(words: dict[str, Any], seed: int):
  """Makes the config of a run: configs/icons.py with the run's changes."""
  config = training.get_config("icons")(words.get("objective", "clip"))
  start = words.get("start", plan.WARM_UP)
  changes = {
    "batch_size": words["batch"],
    "num_epochs": words["epochs"],
    "objective.temperature": words["tau"],
    "optimizer.clip_norm": 0.1,  # as in experiments/icons
    "seed": seed,
    "num_devices": 1,
  }
  if "start" in words:
    changes |= {
      "num_epochs": words.get("tuned_epochs", 1.0),
      "optimizer.learning_rate.value": words["rate"],
      "optimizer.learning_rate.decay": "constant",
      "optimizer.learning_rate.warmup_epochs": (
        WARM_UP_EPOCHS if start == plan.WARM_UP else 0.0
      ),
      "warm_start": plan.STARTS[words["objective"]][start],
      "refresh.tolerance": 1e-3,
    }
  training.change(config, changes, {x: x for x in changes})
  return config


def some(data: ImageTextSet, chosen: np.ndarray) -> ImageTextSet:
  """Keeps some drawings, and their captions."""
  groups, group = np.unique(data.image_group[chosen], return_inverse=True)
  return ImageTextSet(
    data.image[chosen],
    group,
    [data.captions[i] for i in groups],
    np.arange(len(groups)),
  )


def load_data(words, place: Place) -> tuple[Data, dict[str, ImageTextSet]]:
  """Returns the pairs of a run, and what is scored.

  New drawings are those of the designers that the model is tuned on, other
  drawings than the training pairs; the untouched ones are of other designers.
  """
  data = training.load_data(
    training.get_config("icons")("clip"), place.data_dir
  )
  sets, count = data.sets, words["scored"]
  order = {
    split: np.random.default_rng(KEY).permutation(len(x.image))
    for split, x in sets.items()
  }
  scored = {
    NEW: some(sets["test"], order["test"][:count]),
    UNTOUCHED: some(sets["validation"], order["validation"][:count]),
  }
  if "start" not in words:
    return data._replace(train=subset(data.train, words["pairs"])), scored
  rest = order["test"][count:][: words["tuned_pairs"]]
  tuned = some(sets["test"], rest)
  records = Records(
    tuned.image,
    tuned.image_group.astype(np.int32),
    tuned.captions,
    f"{data.train.fingerprint}/test designers {len(rest)} by {KEY}",
  )
  return data_of_records(
    records, {}, data.tokenizer, shift=1.0, scale=0.0, share_texts=True
  ), scored


def scores_of(embed: Embed, sets: dict[str, ImageTextSet]) -> dict[str, float]:
  """Returns the mean recall@1 and @10 of each set, in percent."""
  found = {}
  for name, x in sets.items():
    scores = recall(
      *(embed.image(x.image), embed.text(x.captions)),
      *(x.image_group, x.caption_group),
      top=(1, 10),
    )
    for k in (1, 10):
      found[f"{name} R@{k}"] = round(100 * scores[f"mean_recall@{k}"], 3)
  return found


def measure(run: Run, place: Place) -> Row:
  """Pre-trains, or tunes the model that was pre-trained."""
  words = dict(run.values)
  data, sets = load_data(words, place)
  config = make_config(words, run.seed)
  parts = build.build(config, data=data)
  path = place.shared / f"weights_{words['pairs']}.npz"
  if run.part == plan.FIRST:
    return pretrain(parts, sets, path)
  if not path.exists():
    raise FileNotFoundError(
      f"{path}, the pre-trained model, is missing: move the row of "
      f"{plan.FIRST} away to train it again"
    )
  with np.load(path) as arrays:
    leaves = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]

  def load(params, state):
    return jax.tree.unflatten(jax.tree.structure((params, state)), leaves)

  parts = parts._replace(model=parts.model._replace(load=load))
  return tune(parts, sets)


def pretrain(parts, sets, path: pathlib.Path) -> Row:
  """Trains with CLIP from random weights, and stores them."""
  row, state = train(parts, sets, [parts.num_steps])
  model = jax.device_get((state.params["model"], state.model_state))
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.replacing(path) as new, new.open("wb") as file:
    np.savez(file, *jax.tree.leaves(model))
  return row


def tune(parts, sets) -> Row:
  """Tunes, and scores weights between the first and the last ones."""
  scale = parts.num_steps / plan.STEPS[-1]
  steps = sorted({round(x * scale) for x in plan.STEPS})
  row, state = train(parts, sets, steps)
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    first = resume.first_state(parts, mesh)
    mix = jax.jit(interpolate.mix)
    make_embed = loop.embedder(parts, mesh)
    mixed = {}
    for share in plan.SHARES:
      params = mix(first.params, state.params, share)
      embed = make_embed(state._replace(params=params))
      mixed[f"{share:g}"] = scores_of(embed, sets)
  return row | {"mixed": mixed}


def train(parts, sets, steps: Sequence[int]):
  """Trains as `loop.fit` does, and scores at some steps.

  Returns:
    The row, and the last state.
  """
  mesh, began = build.mesh_of(parts.settings), time.monotonic()
  with jax.set_mesh(mesh), batches.open_batches(parts, mesh, 0) as (stream, _):
    state = recovery.of_run(parts, mesh, resume.first_state(parts, mesh))
    recovered = time.monotonic() - began
    # The key of `loop.fit`.
    key = jax.random.fold_in(jax.random.key(parts.settings.seed), 1)
    pieces = parts.model, parts.objective, parts.optimizer
    update = jax.jit(step.make_train_step(*pieces, key), donate_argnums=0)
    make_embed = loop.embedder(parts, mesh)
    curve = [scores_of(make_embed(state), sets)] if 0 in steps else []
    for number, batch in enumerate(
      itertools.islice(stream, parts.num_steps), 1
    ):
      state, _ = update(state, batch)
      if number in steps:
        curve.append(scores_of(make_embed(state), sets))
  names = curve[0]
  return {
    "steps": list(steps),
    "curve": {x: [scores[x] for scores in curve] for x in names},
    "recovery_seconds": round(recovered, 1),
    "device": jax.devices()[0].device_kind,
  }, state


def describe(row: Row) -> str:
  """Summarizes the result of a run in one line."""
  return ", ".join(
    f"{x} {row['curve'][f'{x} R@1'][-1]:.1f}" for x in (NEW, UNTOUCHED)
  )
