"""Measures one run: training, the exact solution, hubs, the network."""

import pathlib
import time

import jax
import numpy as np

from experiments.harness import Place, Row, Run, training
from experiments.popularity import network
from experiments.popularity.plan import STRENGTHS, make_config
from nuclr_jax import Pairs, Sides, popularity
from nuclr_jax.lab.evaluate import agreement, evaluators, retrieval
from nuclr_jax.lab.train import build, loop
from nuclr_jax.lab.train.warm_start import save_popularity
from nuclr_jax.types import each

HELD_OUT = 0.2  # fraction of captions held out from the network's training


def measure(run: Run, place: Place) -> Row:
  """Trains one run and measures it.

  Raises:
    ValueError: If a warm start lacks the exact zeta of the run it starts from.
  """
  values, config = dict(run.values), make_config(run)
  if start := values.get("starts_from"):
    path = solution_of(place, start, run.seed)
    if not path.exists():
      raise ValueError(
        f"{path} is missing: give the --workdir in which {start!r} with seed "
        f"{run.seed} was run, or remove its row to run it again"
      )
    config.warm_start = str(path)
  parts = training.prepare(config, place)
  began = time.monotonic()
  trained = training.train(config, place, parts)
  row = {"train_seconds": round(time.monotonic() - began, 1)}
  row |= trained.metrics
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(trained.state)
    pairs = evaluators.embed_pairs(embed, parts.data.train)
    tau = parts.settings.objective.arguments["temperature"]
    exact, columns = _solve(pairs, tau, values["tolerance"])
    row |= columns | _compare(exact, trained.state)
    _save(exact, solution_of(place, run.setting, run.seed), parts, tau)
    networks, columns = _networks(
      pairs, exact, tau, run.seed, values["network_steps"]
    )
    row |= columns
    for split, data in parts.data.sets.items():
      row |= _hubs(split, data, embed, pairs, exact, networks, tau)
  return row


def solution_of(place: Place, setting: str, seed: int) -> pathlib.Path:
  """Returns the file of a run's exact zeta."""
  name = setting.replace(" ", "_").replace(",", "")
  return place.shared / f"{name}_{seed}.npz"


def _solve(pairs: Pairs, tau: float, tolerance: float):
  """Solves the exact popularities; returns them and the cost of solving."""
  began = time.monotonic()
  exact = popularity.solve(
    pairs.image,
    pairs.text,
    temperature=tau,
    text_id=pairs.text_id,
    tolerance=tolerance,
  )
  return exact, {
    "exact/seconds": round(time.monotonic() - began, 1),
    "exact/iterations": exact.iterations,
    "exact/residual": exact.residual,
  }


def _save(exact, path: pathlib.Path, parts, tau: float) -> None:
  """Saves the exact zeta for the runs that start from it."""
  path.parent.mkdir(parents=True, exist_ok=True)
  fingerprint = parts.data.train.fingerprint
  save_popularity(path, exact, temperature=tau, fingerprint=fingerprint)


def _compare(exact, state) -> dict[str, float]:
  """Compares learned and exact zeta."""
  sample = state.objective.sample
  learned = Sides(sample.image.zeta, sample.text.zeta)
  row = {}
  for side, ids, zeta, table in zip(
    Sides._fields, exact.ids, exact.zeta, learned, strict=True
  ):
    scores = agreement.compare(np.asarray(table)[ids], zeta)
    row |= {f"exact/{name}_{side}": x for name, x in scores.items()}
  return row


def _hubs(split, data, embed, pairs, exact, networks, tau) -> dict[str, float]:
  """Scores retrieval on a split with similarities corrected by zeta."""
  image, text = embed.image(data.image), embed.text(data.captions)
  corrections = {
    "exact": Sides(
      popularity.zeta_of_unseen(
        image, pairs.text, exact.log_denominator.text, temperature=tau
      ),
      popularity.zeta_of_unseen(
        text, pairs.image, exact.log_denominator.image, temperature=tau
      ),
    ),
    "network": each(
      lambda fitted, x: np.asarray(network.predict_zeta(fitted, x)),
      networks,
      Sides(image, text),
    ),
  }
  row = {}
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


def _networks(pairs: Pairs, exact, tau: float, seed: int, num_steps: int):
  """Fits a network for each side; scores it on seen and on unseen ids.

  Captions are held out with all their images, so that the network sees no
  image of a held-out character.
  """
  rng = np.random.default_rng(seed)
  held_text = rng.random(len(exact.ids.text)) < HELD_OUT
  held = Sides(image=held_text[pairs.text_id], text=held_text)
  _, first = np.unique(pairs.text_id, return_index=True)
  rows = Sides(image=pairs.image, text=pairs.text[first])
  networks, row = [], {}
  for number, (side, x, zeta, out) in enumerate(
    zip(Sides._fields, rows, exact.zeta, held, strict=True)
  ):
    key = jax.random.fold_in(jax.random.key(seed), number)
    fitted = network.fit_network(
      key, x[~out], zeta[~out], temperature=tau, num_steps=num_steps
    )
    for name, chosen in (("seen", ~out), ("unseen", out)):
      predicted = network.predict_zeta(fitted, x[chosen])
      row[f"network/r2_{name}_{side}"] = network.r_squared(
        predicted, zeta[chosen]
      )
    networks.append(fitted)
  return Sides(*networks), row
