"""One run of the study: its config, its training, its row of the table."""

import functools
import hashlib
import json
import pathlib
import runpy
import time

import algorithms
import study
import tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Those of configs/glyphs.py as the study found it; later ones have their
# defaults, which leave everything as it was.
KEYS = (
  "batch_size",
  "checkpoint_every",
  "data",
  "eval_every",
  "log_every",
  "max_checkpoints",
  "model",
  "num_devices",
  "num_epochs",
  "objective",
  "optimizer",
  "seed",
)
NUM_EXACT = 4096  # pairs whose exact popularity is computed


@functools.cache  # so that a process uses the file as it was at first
def glyphs():
  """`configs/glyphs.py`'s `get_config`."""
  return runpy.run_path(str(ROOT / "configs" / "glyphs.py"))["get_config"]


def make_config(run: study.Run):
  """The config of a run: configs/glyphs.py with a tower of a minute."""
  config = glyphs()(algorithms.ALGORITHMS[run.algorithm].config)
  with config.unlocked():
    for key in set(config) - set(KEYS):
      del config[key]
    if "zeta_queue" in config.objective:
      del config.objective.zeta_queue
      config.objective.zeta_estimator = "unbiased"
      config.objective.zeta_learning_rate.value = 1e-2
      config.objective.zeta_momentum = 0.1
  config.update_from_flattened_dict(
    {
      "model.text_layers": 0,
      "model.image_features": 256,
      # Below the norm of every loss, so that losses of any scale train alike.
      "optimizer.clip_norm": 0.1,
      "batch_size": run.batch_size,
      "num_epochs": float(study.NUM_EPOCHS),
      "seed": run.seed,
      "eval_every": 0,
      "checkpoint_every": 0,
    }
  )
  with config.unlocked():  # some settings are not in the config's defaults
    config.update_from_flattened_dict(dict(run.settings))
  # The same rule for everyone: the rate grows with the root of the batch.
  rate = config.optimizer.learning_rate
  rate.value = float(rate.value * (run.batch_size / study.BATCH_SIZE) ** 0.5)
  return config


@functools.lru_cache(maxsize=1)  # reading takes seconds
def load_data(spec: str, data_dir: str | None):
  """The data of `config.data`, given as JSON."""
  from nuclr_jax import experiment

  return experiment.load_data(json.loads(spec), data_dir=data_dir)


def fingerprint(run: study.Run) -> str:
  """Tells configs apart, so that rows of another protocol are noticed."""
  text = json.dumps(make_config(run).to_dict(), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def folder_of(run: study.Run, workdir: str) -> pathlib.Path:
  """Where a run trains until its row is written."""
  name = "_".join((*map(str, run.key), fingerprint(run)))
  return pathlib.Path(workdir, name.replace(" ", "_"))


def execute(run: study.Run, data_dir: str | None, workdir: str):
  """Trains and evaluates; returns the row and the curve.

  Raises:
    KeyboardInterrupt: If a signal stopped the training.
  """
  import jax

  from nuclr_jax import experiment, host, records, train

  host.keep_memory()
  start = time.monotonic()
  config = make_config(run)
  data = load_data(json.dumps(config.data.to_dict()), data_dir)
  parts = experiment.build(config, data=data)
  steps_per_epoch = round(parts.num_steps / config.num_epochs)
  config.eval_every = steps_per_epoch
  folder = folder_of(run, workdir)
  row = dict(zip(tables.KEY, run.key, strict=True))
  row |= {
    "temperature": config.objective.get("temperature", ""),
    "num_epochs": config.num_epochs,
    "config": fingerprint(run),
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
  }
  curve = []
  try:
    result = train.fit(config, folder, parts=parts)
    if not result.finished:
      raise KeyboardInterrupt
    row |= result.metrics
    row |= exact_correlations(parts, result.train_state)
    curve = [
      {"epoch": line["step"] / steps_per_epoch, study.CRITERION: value}
      for line in records.read_history(folder)
      if (value := line.get(study.CRITERION)) is not None
    ]
  except FloatingPointError as error:
    row["diverged"] = str(error)
  row["seconds"] = round(time.monotonic() - start, 1)
  return row, curve


def exact_correlations(parts, train_state) -> dict[str, float]:
  """How well the learned zeta of some training pairs agree with exact ones."""
  spec = parts.config["objective"]
  if spec["name"] != "nuclr" or "temperature_learning_rate" in spec:
    return {}  # individual temperatures have no Sinkhorn form
  import numpy as np

  from nuclr_jax import popularity

  ids = np.random.default_rng(0).choice(
    parts.data.train.sizes.num_pairs, NUM_EXACT, replace=False
  )
  batch = parts.data.train.fetch(np.sort(ids))
  pairs, _ = parts.model.apply(
    train_state.params["model"],
    train_state.model_state,
    batch,
    key=None,
    train=False,
  )
  exact = popularity.solve(
    pairs.image,
    pairs.text,
    temperature=spec["temperature"],
    image_id=pairs.ids.image,
    text_id=pairs.ids.text,
  )
  found = {"exact/residual": exact.residual}
  for side, ids, zeta in zip(
    exact.ids._fields, exact.ids, exact.zeta, strict=True
  ):
    table = getattr(train_state.objective.sample, side).zeta
    scores = popularity.compare(np.asarray(table)[ids], zeta)
    found |= {f"exact/{name}_{side}": x for name, x in scores.items()}
  return found
