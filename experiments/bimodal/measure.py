"""One run of the study: its config, its training, its row."""

import jax
import numpy as np

from experiments.bimodal.algorithms import (
  ALGORITHMS,
  BATCH_RULE,
  TEMPERATURE,
  keys_of,
  translate,
)
from experiments.bimodal.plan import (
  BATCH_SIZE,
  CRITERION,
  NUM_EPOCHS,
  scale_of,
  settings_of,
  trials,
)
from experiments.bimodal.summary import MEAN
from experiments.harness import Options, Place, Row, Run, training
from nuclr_jax import popularity
from nuclr_jax.lab.evaluate import agreement

NUM_EXACT = 4096  # pairs whose exact popularity is computed
SMOKE = 0.004  # the fraction of all epochs that a smoke run trains


def make_config(run: Run):
  """Makes the config of a run: configs/glyphs.py with fast towers."""
  config = training.get_config("glyphs")(ALGORITHMS[run.part].config)
  objective, words = config.objective, dict(settings_of(run))
  if objective.name == "nuclr":
    if objective.zeta.name == "queue" and "zeta_rule" not in words:
      objective.zeta = dict(name="batch", rate=objective.zeta.rate)
      words = BATCH_RULE | words
    if words.keys() & {"anchor_average", "positive"}:
      objective.name = "nuclr_variant"
  config.model.text_layers = 0
  config.model.image_features = 256
  # This is below the gradient norm of every loss, so that clipping normalizes
  # gradients and the scale of a loss does not matter.
  config.optimizer.clip_norm = 0.1
  config.num_epochs = float(NUM_EPOCHS)
  config.batch_size = BATCH_SIZE
  config.seed = run.seed
  config.eval_every = config.checkpoint_every = 0
  first = words.get(TEMPERATURE, first_temperature(objective))
  values = translate(words, first)
  training.change(config, values, keys_of(run.part))
  # For every algorithm the rate grows with the root of the batch size.
  rate = config.optimizer.learning_rate
  rate.value = float(rate.value * (config.batch_size / BATCH_SIZE) ** 0.5)
  if "smoke" in dict(run.values):
    config.data.size = config.model.image_features = 16
    config.num_epochs *= SMOKE
    rate.warmup_epochs *= SMOKE
    if "zeta" in objective:
      objective.zeta.rate.freeze_epochs *= SMOKE
  return config


def first_temperature(objective) -> float | None:
  """Returns the initial temperature of a config's objective, if it has one."""
  temperature = objective.get("temperature")
  return getattr(temperature, "temperature", temperature)


def configs(options: Options) -> dict[str, dict]:
  """Returns a config of each algorithm."""
  scale = scale_of(options)
  return {
    name: training.flat(make_config(trials(scale, name)[0]))
    for name in scale.algorithms
  }


def measure(run: Run, place: Place) -> Row:
  """Trains and evaluates; if a run diverged, its row says so."""
  return train(make_config(run), place)


def train(config, place: Place) -> Row:
  """Trains a config of `make_config` and evaluates it after every epoch."""
  parts = training.prepare(config, place)
  steps_per_epoch = round(parts.num_steps / config.num_epochs)
  config.eval_every = steps_per_epoch
  row = {
    "batch_size": config.batch_size,
    "num_epochs": config.num_epochs,
    "device": jax.devices()[0].device_kind,
  }
  if (temperature := first_temperature(config.objective)) is not None:
    row["temperature"] = temperature
  try:
    trained = training.train(config, place, parts)
  except FloatingPointError as error:
    return row | {"diverged": str(error)}
  points = [
    (line["step"] / steps_per_epoch, line[CRITERION])
    for line in trained.history
    if line.get(CRITERION) is not None
  ]
  curve = {
    "epoch": [epoch for epoch, _ in points],
    CRITERION: [recall for _, recall in points],
  }
  exact = exact_correlations(parts, trained.state)
  return row | trained.metrics | exact | {"curve": curve}


def exact_correlations(parts, state) -> dict[str, float]:
  """Compares the learned zeta of `NUM_EXACT` training pairs with exact zeta."""
  spec = parts.settings.objective.spec
  if "zeta" not in spec or not isinstance(spec["temperature"], float):
    return {}  # individual temperatures have no Sinkhorn form
  ids = np.random.default_rng(0).choice(
    parts.data.train.sizes.num_pairs, NUM_EXACT, replace=False
  )
  batch = parts.data.train.fetch(np.sort(ids))
  pairs, _ = parts.model.apply(
    state.params["model"], state.model_state, batch, key=None, train=False
  )
  exact = popularity.solve(
    pairs.image,
    pairs.text,
    temperature=spec["temperature"],
    image_id=pairs.ids.image,
    text_id=pairs.ids.text,
  )
  row = {"exact/residual": exact.residual}
  for side, ids, zeta in zip(
    exact.ids._fields, exact.ids, exact.zeta, strict=True
  ):
    table = getattr(state.objective.sample, side).zeta
    scores = agreement.compare(np.asarray(table)[ids], zeta)
    row |= {f"exact/{name}_{side}": x for name, x in scores.items()}
  return row


def describe(row: Row) -> str:
  """Summarizes the result of a run in one line."""
  if "diverged" in row:
    return f"diverged: {row['diverged']}"
  return f"validation {100 * row[CRITERION]:.1f} test {100 * row[MEAN]:.1f}"
