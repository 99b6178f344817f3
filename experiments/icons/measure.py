"""One run of the study: its config, its training, its row."""

from collections.abc import Sequence
import csv
import functools
import pathlib
import time
from typing import Any

import jax
import numpy as np
import optax

from experiments.harness import Options, Place, Row, Run, training
from experiments.icons import frozen, planted, zeta
from experiments.icons.arms import ARMS, GRIDS, TAU
from experiments.icons.exact_u import with_exact_u
from experiments.icons.plan import (
  BATCH_SIZE,
  CRITERION,
  KEY,
  MAIN,
  NUM_EPOCHS,
  NUM_PAIRS,
  RATES,
  chosen_pairs,
  make_run,
  scale_of,
)
from experiments.icons.scores import scores_of, split_by
from nuclr_jax.lab.data.icons.builder import SETS, prepare_icons
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.source import Data, HeldOut, ImageTextSet, Source
from nuclr_jax.lab.train import build, loop, records
from nuclr_jax.types import Sides, Sizes

# The words of this study -> keys of a config.
KEYS = {
  "rate": "optimizer.learning_rate.value",
  "batch": "batch_size",
  "marked": "data.share_texts",
}
SMOKE_PAIRS, SMOKE_EPOCHS = 48, 1.0
SMOKE_CAPTIONS = 200  # of each held-out set
REFERENCE = "icons_reference"  # in the folder of prepared data, for DRRho
POINTS = 20  # of a stored curve


def make_config(run: Run):
  """Makes the config of a run: configs/icons.py with the run's changes."""
  words = dict(run.values)
  arm = ARMS[words["arm"]]
  config = training.get_config("icons")(arm.config)
  changes = arm.change(words[arm.tuned])
  with config.unlocked():
    for key in {"gamma", "zeta", "positive"} & changes.keys():
      if key in config.objective:  # another factory has other arguments
        del config.objective[key]
    config.objective.update(changes)
  # Below the gradient norm of most losses, so that the scale of a loss, which
  # decides how often it is clipped, hardly matters.
  config.optimizer.clip_norm = 0.1
  config.num_epochs = NUM_EPOCHS
  config.seed = run.seed
  config.eval_every = 0
  config.eval_every_epochs = 0.0
  training.change(config, {x: words[x] for x in KEYS}, KEYS)
  training.change(config, arm.more, {x: x for x in arm.more})
  if config.objective.name == "sogclr":
    for term in config.terms.values():  # SogCLR's gradient is 2 τ times CLIP's
      term.weight = 2 * words[TAU]
  if "pieces" in words:
    config.num_microbatches = words["pieces"]
  if "smoke" in words:
    config.model.image_features = 16
    config.num_epochs = SMOKE_EPOCHS
  if "frozen" in words:
    frozen.use_features(config)
  return config


def configs(options: Options) -> dict[str, dict]:
  """Returns a config of each arm."""
  scale = scale_of(options)
  return {
    name: training.flat(
      make_config(
        make_run(
          *(scale, MAIN, name, 0),
          value=GRIDS[arm.tuned][0],
          rate=RATES[0],
          batch_size=BATCH_SIZE,
        )
      )
    )
    for name, arm in ARMS.items()
  }


def subset(source: Source, num_pairs: int | None) -> Source:
  """Returns a fixed random part of a source; None leaves it whole.

  The parts are nested: each has the first pairs of one permutation.
  """
  total = source.sizes.num_pairs
  if num_pairs is None or num_pairs >= total:
    return source
  chosen = chosen_pairs(total, num_pairs)
  ids = source.ids(chosen)
  images, image_id = np.unique(ids.image, return_inverse=True)
  texts, text_id = np.unique(ids.text, return_inverse=True)
  image_id, text_id = (x.astype(np.int32) for x in (image_id, text_id))

  def fetch(pair_ids, random=None):
    pair_ids = np.asarray(pair_ids, np.int32)
    return source.fetch(chosen[pair_ids], random)._replace(
      pair_id=pair_ids, image_id=image_id[pair_ids], text_id=text_id[pair_ids]
    )

  return Source(
    Sizes(num_pairs, len(images), len(texts)),
    fetch,
    lambda pair_ids: Sides(image_id[pair_ids], text_id[pair_ids]),
    lambda text_ids: source.captions(texts[text_ids]),
    f"{source.fingerprint}/{num_pairs} by {KEY}",
  )


def beginning(data: ImageTextSet, count: int) -> ImageTextSet:
  """Keeps the first captions and their drawings."""
  keep = np.flatnonzero(data.image_group < count)
  return ImageTextSet(
    data.image[keep],
    data.image_group[keep],
    data.captions[:count],
    data.caption_group[:count],
    {k: Sides(x.image[keep], x.text[:count]) for k, x in data.parts.items()},
    [data.origin[i] for i in keep],
  )


def load_data(config, words: dict[str, Any], place: Place) -> Data:
  """Reads the part of the training pairs that a run sees, and its splits."""
  half = SMOKE_PAIRS if "smoke" in words else NUM_PAIRS
  data = training.load_data(config, place.data_dir)
  train = subset(data.train, None if words["size"] == "full" else half)
  known = frozenset(train.captions(np.arange(train.sizes.num_texts)))
  splits = ("validation", "test") if words["test"] else ("validation",)
  sets = {split: split_by(data.sets[split], known) for split in splits}
  if "smoke" in words:
    sets = {split: beginning(x, SMOKE_CAPTIONS) for split, x in sets.items()}
  held_out = {split: HeldOut({"": x}) for split, x in sets.items()}
  return data._replace(train=train, held_out=held_out)


@functools.cache
def families(version: str, size: int, data_dir: str | None) -> dict[str, str]:
  """Returns the family of each set, from the table beside the data."""
  folder = prepare_icons(cache_dir(data_dir), version=version, size=size)
  table = pathlib.Path(folder).with_name(SETS).read_text(encoding="utf-8")
  return {x["set"]: x["family"] for x in csv.DictReader(table.splitlines())}


def thin(history: Sequence[dict[str, float]]) -> dict[str, list[float]]:
  """Returns at most `POINTS` points of the training loss, and their steps."""
  lines = [x for x in history if "train/loss" in x]
  places = np.linspace(0, len(lines) - 1, min(POINTS, len(lines))).astype(int)
  return {
    "step": [lines[i]["step"] for i in places],
    "loss": [round(lines[i]["train/loss"], 5) for i in places],
  }


def averaged(
  parts: build.Experiment, count: int
) -> optax.GradientTransformation:
  """Makes the optimizer of a run that steps with mean gradients of batches.

  Args:
    parts: What the config makes, whose schedules count batches.
    count: The batches whose mean gradient a step has.
  """
  span = build.span_of(parts.settings, parts.data.train.sizes)
  of_steps = {k: x // count for k, x in span.items()}
  inner = parts.settings.optimizer(**of_steps)
  return optax.MultiSteps(inner, count).gradient_transformation()


def measure(run: Run, place: Place) -> Row:
  """Trains and evaluates; if a run diverged, its row says so."""
  words, config = dict(run.values), make_config(run)
  if config.reference:
    remedy = (
      "which DRRho is relative to; python -m experiments.icons.reference "
      "writes it"
    )
    folder = training.folder_beside(place.data_dir, REFERENCE, remedy)
    config.reference = str(folder)
  data, wrong = load_data(config, words, place), None
  if "frozen" in words:
    lookup = frozen.open_features(place.data_dir)
    data = frozen.with_features(data, lookup)
  if "wrong" in words:
    train, wrong = planted.plant(data.train, words["wrong"], run.seed)
    data = data._replace(train=train)
  config.log_every = max(
    1,
    int(config.num_epochs * data.train.sizes.num_pairs / config.batch_size)
    // POINTS,
  )
  parts = build.build(config, data=data)._replace(evaluators={})
  if words["arm"] == "nuclr_exact_u":
    parts = with_exact_u(parts, words[TAU])
  if "averaged" in words:
    parts = parts._replace(optimizer=averaged(parts, words["averaged"]))
  pairs_seen = parts.num_steps * config.batch_size
  row = {
    "settings": {k: x for k, x in words.items() if k != "smoke"},
    "steps": parts.num_steps,
    "pairs": data.train.sizes.num_pairs,
    "device": jax.devices()[0].device_kind,
  }
  resumed = (place.folder / records.HISTORY).exists()
  began = time.monotonic()
  try:
    trained = training.train(config, place, parts)
    took = time.monotonic() - began
    mesh = build.mesh_of(parts.settings)
    family = families(config.data.version, config.data.size, place.data_dir)
    with jax.set_mesh(mesh):
      embed = loop.embedder(parts, mesh)(trained.state)
      for split, held_out in data.sets.items():
        whole, by_set = scores_of(embed, held_out, family)
        row |= {f"{split}/{k}": x for k, x in whole.items()}
        row.setdefault("sets", {})[split] = by_set
      if "look" in words:
        readout = loop.readout(parts, trained.state)
        row["look"] = zeta.look(
          data, embed, readout, temperature=words[TAU], seed=run.seed
        )
      if wrong is not None:
        row["suspects"] = planted.rank(
          data.train, embed, wrong, temperature=words[TAU]
        )
  except FloatingPointError as error:
    return row | {"diverged": str(error)}
  times = {}
  if not resumed:  # else only the rest of the training has been timed
    times = {
      "training_seconds": round(took, 1),
      "pairs_per_second": round(pairs_seen / took),
    }
  return row | times | {"curve": thin(trained.history)}


def describe(row: Row) -> str:
  """Summarizes the result of a run in one line."""
  if "diverged" in row:
    return f"diverged: {row['diverged']}"
  pace = row.get("pairs_per_second")
  took = f"{pace} pairs/s" if pace else "resumed"
  return f"validation R@10 {100 * row[CRITERION]:.1f}, {took}"
