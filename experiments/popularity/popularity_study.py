"""What is compared, and one run of it: training, exact solution, scores."""

import pathlib
import runpy
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from nuclr_jax import Pairs, Sides, experiment, popularity, train
from nuclr_jax.evaluate import driver, retrieval
from nuclr_jax.popularity import files
from nuclr_jax.types import each

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # of the correction for hubs
HELD_OUT = 0.2  # share of the ids that the network does not learn from
SIZES = dict(  # an encoder of a minute, as in experiments/bimodal
  text_layers=0, image_features=256
)
FROZEN = {"objective.zeta_learning_rate.value": 0.0}


class Variant(NamedTuple):
  """A way to get zeta."""

  name: str
  settings: dict[str, Any]
  starts_from: str | None = None  # the variant whose exact zeta it starts with


VARIANTS = (
  Variant("fixed at 0", FROZEN),
  Variant("unbiased", {}),
  Variant(
    "sinkhorn",
    {
      "objective.zeta_estimator": "sinkhorn",
      "objective.zeta_learning_rate.value": 0.3,
    },
  ),
  Variant("refresh each epoch", FROZEN | {"refresh.every_epochs": 1.0}),
  Variant("refresh every 2, unbiased between", {"refresh.every_epochs": 2.0}),
  Variant("warm start, fixed", FROZEN, starts_from="fixed at 0"),
  Variant("warm start, unbiased", {}, starts_from="fixed at 0"),
)


def make_config(variant: Variant, seed: int, *, num_epochs: float = 8.0):
  """configs/glyphs.py with an encoder of a minute."""
  path = ROOT / "configs" / "glyphs.py"
  config = runpy.run_path(str(path))["get_config"]("nuclr")
  config.model.update(SIZES)
  with config.unlocked():
    config.update_from_flattened_dict(
      {
        "optimizer.clip_norm": 0.1,
        "num_epochs": num_epochs,
        "seed": seed,
        "eval_every": 0,
        "checkpoint_every": 0,
        "objective.zeta_estimator": "unbiased",
        "objective.zeta_learning_rate.value": 1e-2,
        "objective.zeta_momentum": 0.1,
        **variant.settings,
      }
    )
  return config


def execute(variant: Variant, seed: int, data, workdir: pathlib.Path, **sizes):
  """Trains one run and measures it.

  Args:
    variant: What to run.
    seed: Of the run.
    data: From `experiment.load_data`.
    workdir: Folder of all runs; the warm start of another is read here.
    **sizes: Of `make_config`.

  Returns:
    The row of the table, a dict of numbers.
  """
  config = make_config(variant, seed, **sizes)
  if variant.starts_from is not None:
    other = folder(workdir, variant.starts_from, seed)
    config.warm_start = str(other / files.NAME)
  here = folder(workdir, variant.name, seed)
  parts = experiment.build(config, data=data)
  mesh = experiment.make_mesh(parts.config)
  began = time.monotonic()
  result = train.fit(config, here, parts=parts)
  if not result.finished:
    raise KeyboardInterrupt
  row = {"variant": variant.name, "seed": seed}
  row |= {"train_seconds": round(time.monotonic() - began, 1)}
  row |= result.metrics
  with jax.set_mesh(mesh):
    embed = train.embedder(parts, mesh)(result.train_state)
    row |= _measure(parts, result.train_state, embed, here, seed)
  return row


def folder(workdir: pathlib.Path, name: str, seed: int) -> pathlib.Path:
  """Where a run trains."""
  return workdir / f"{name.replace(' ', '_').replace(',', '')}_{seed}"


def _measure(parts, state, embed, here, seed) -> dict[str, float]:
  """Exact zeta, learned ones, hubs, and the network."""
  tau = parts.config["objective"]["temperature"]
  pairs = driver.embed_pairs(embed, parts.data.train)
  began = time.monotonic()
  found = popularity.solve(
    pairs.image, pairs.text, temperature=tau, text_id=pairs.text_id
  )
  row = {
    "exact/seconds": round(time.monotonic() - began, 1),
    "exact/iterations": found.iterations,
    "exact/residual": found.residual,
  }
  files.save(
    here / files.NAME,
    found,
    temperature=tau,
    fingerprint=parts.data.train.fingerprint,
  )
  sample = state.objective.sample
  learned = Sides(sample.image.zeta, sample.text.zeta)
  for side, ids, zeta, table in zip(
    Sides._fields, found.ids, found.zeta, learned, strict=True
  ):
    scores = popularity.compare(np.asarray(table)[ids], zeta)
    row |= {f"exact/{name}_{side}": x for name, x in scores.items()}
  networks, quality = _networks(pairs, found, tau, seed)
  row |= quality
  for split, data in parts.data.sets.items():
    image, text = embed.image(data.image), embed.text(data.captions)
    corrections = {
      "exact": Sides(
        popularity.zeta_of_unseen(
          image, pairs.text, found.log_denominator.text, temperature=tau
        ),
        popularity.zeta_of_unseen(
          text, pairs.image, found.log_denominator.image, temperature=tau
        ),
      ),
      "network": each(
        lambda network, x: np.asarray(popularity.predict_zeta(network, x)),
        networks,
        Sides(image, text),
      ),
    }
    for name, zeta in corrections.items():
      for strength in STRENGTHS:
        scores = retrieval.recall(
          image,
          text,
          data.image_group,
          data.caption_group,
          zeta=each(lambda x, s=strength: s * x, zeta),
        )
        for key in ("mean_recall@1", "mean_recall@5", "mean_recall@10"):
          row[f"{split}/hubs_{name}_{strength}/{key}"] = scores[key]
  return row


def _networks(pairs: Pairs, found, tau: float, seed: int):
  """A network for each side, and its R^2 on ids that it has not seen.

  Held out are captions with all their images, so that no other picture of a
  held-out character is known.
  """
  rng = np.random.default_rng(seed)
  held_text = rng.random(len(found.ids.text)) < HELD_OUT
  held = Sides(image=held_text[pairs.text_id], text=held_text)
  _, first = np.unique(pairs.text_id, return_index=True)
  rows = Sides(image=pairs.image, text=pairs.text[first])
  networks, row = [], {}
  for number, (side, x, zeta, out) in enumerate(
    zip(Sides._fields, rows, found.zeta, held, strict=True)
  ):
    key = jax.random.fold_in(jax.random.key(seed), number)
    network = popularity.fit_network(key, x[~out], zeta[~out], temperature=tau)
    for name, some in (("seen", ~out), ("unseen", out)):
      predicted = popularity.predict_zeta(network, x[some])
      row[f"network/r2_{name}_{side}"] = popularity.r_squared(
        predicted, zeta[some]
      )
    networks.append(network)
  return Sides(*networks), row
