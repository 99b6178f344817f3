"""Measures one run: trains, corrects for hubs, and ranks suspects."""

from collections.abc import Iterator, Mapping
import contextlib
import time
from typing import NamedTuple

import jax
import numpy as np
from sklearn.metrics import average_precision_score

from experiments.harness import Place, Row, Run, training
from experiments.hubs_and_suspects import classes, data, retrieval, suspects
from experiments.hubs_and_suspects.plan import CLASSES, ERRORS, kinds
from experiments.when_it_pays.letters import make_config
from nuclr_jax import Pairs, popularity
from nuclr_jax.lab.evaluate.evaluators import Embed
from nuclr_jax.lab.evaluate.suspects import (
  learnable_share,
  log_match_probability,
  neighbours_distance,
)
from nuclr_jax.lab.report.neighbours import nearest
from nuclr_jax.lab.train import build, loop

NEIGHBOURS, LEMON_NEIGHBOURS = 10, 30
CLEAN_DRAW, USER_DRAW, UNFAMILIAR_DRAW = 2, 3, 4  # of the pairs of a seed
DRAWS = {  # for models that were trained on other pairs
  "familiar fonts": (data.FAMILIAR, USER_DRAW),
  "unfamiliar fonts": (data.UNFAMILIAR, UNFAMILIAR_DRAW),
}
CLEANLAB_RADIUS = 0.13  # of near-duplicates, in median distances


class Model(NamedTuple):
  """A trained model on a mesh."""

  embed: Embed
  temperature: float


class Trained(NamedTuple):
  """What a run trained, and on what."""

  model: Model
  alphabet: data.Alphabet
  drawn: data.Drawn  # the training pairs
  seconds: float


@contextlib.contextmanager
def train(run: Run, place: Place) -> Iterator[Trained]:
  """Trains the model of a run, and opens it on its mesh."""
  values = dict(run.values)
  exponent, num_pairs = values["exponent"], values["num_pairs"]
  alphabet = data.make_alphabet(
    seed=run.seed, exponent=exponent, num_items=values["num_items"]
  )
  planted = {x: values.get(x, 0.0) for x in ("wrong", "duplicates")}
  number = USER_DRAW if run.part == ERRORS else CLEAN_DRAW
  drawn = data.draw(alphabet, num_pairs, seed=(run.seed, number), **planted)
  config = make_config(values)
  config.seed = run.seed
  of_training = data.make_data(
    alphabet, drawn, f"{run.part}/{run.seed}/{exponent}/{planted}"
  )
  parts = build.build(config, data=of_training)
  began = time.monotonic()
  trained = training.train(config, place, parts)
  seconds = round(time.monotonic() - began, 1)
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(trained.state)
    model = Model(embed, values["temperature"])
    yield Trained(model, alphabet, drawn, seconds)


def measure(run: Run, place: Place) -> Row:
  """Measures one run, of any part."""
  values = dict(run.values)
  with train(run, place) as (model, alphabet, drawn, seconds):
    row = {"train_seconds": seconds}
    if run.part == CLASSES:
      return row | {"classes": rank_named(model, alphabet, seed=run.seed)}
    if run.part == ERRORS:
      return row | {"suspects": {"own": rank(model, alphabet, drawn)}}
    row["recall"] = retrieve(model, alphabet, drawn, seed=run.seed)
    row["suspects"] = published(
      model, alphabet, values["num_pairs"], run.seed, values["exponent"]
    )
  return row


def retrieve(
  model: Model, alphabet: data.Alphabet, bank: data.Drawn, *, seed: int
) -> Row:
  """Scores retrieval of letters in fonts never trained on, both ways."""
  tau = model.temperature
  bank_image = model.embed.image(bank.image)
  bank_text = model.embed.text(bank.captions)
  names = model.embed.text(alphabet.names)
  pools = []
  for images in data.galleries(alphabet, seed=seed):
    flat = images.reshape(-1, *images.shape[2:])
    pools.append(
      model.embed.image(flat).reshape(*images.shape[:2], names.shape[-1])
    )
  count = np.bincount(bank.item, minlength=len(alphabet.p)) + 0.5
  solved = {
    scale: popularity.solve(bank_image, bank_text, temperature=scale * tau)
    for scale in retrieval.ZETA_SCALES
  }
  of_bank = bank_image @ bank_text.T
  found = {}
  for direction in ("image to text", "text to image"):
    forth = direction == "image to text"
    denominators = {
      scale: getattr(x.log_denominator, "image" if forth else "text")
      for scale, x in solved.items()
    }
    halves = [
      retrieval.Half(
        sim=x @ names.T if forth else np.swapaxes(x @ names.T, 1, 2),
        # One bank of images for all names; texts face each gallery.
        bank=(
          (bank_image @ names.T)[None]
          if forth
          else np.einsum("bd,gcd->gbc", bank_text, x)
        ),
        targets=of_bank if forth else of_bank.T,
      )
      for x in pools
    ]
    log_p = tau * np.log(count / count.sum()) if forth else None
    found[direction] = retrieval.evaluate(
      *halves, denominators, alphabet.p, log_p, temperature=tau
    )
  return found


def published(
  model: Model,
  alphabet: data.Alphabet,
  num_pairs: int,
  seed: int,
  exponent: float,
) -> Row:
  """Ranks suspects of data that the model was not trained on."""
  found = {}
  for name, (fonts, number) in DRAWS.items():
    for errors, planted in kinds().items():
      if planted["exponent"] == exponent:
        drawn = data.draw(
          alphabet,
          num_pairs,
          seed=(seed, number),
          fonts=fonts,
          wrong=planted["wrong"],
          duplicates=planted["duplicates"],
        )
        found[f"{name}: {errors}"] = rank(model, alphabet, drawn)
  return found


def rank(model: Model, alphabet: data.Alphabet, drawn: data.Drawn) -> Row:
  """Returns the area under the precision-recall curve of each score."""
  tau = model.temperature
  image, text = model.embed.image(drawn.image), model.embed.text(drawn.captions)
  solved = popularity.solve(image, text, temperature=tau)
  if drawn.duplicate.any():
    return rank_duplicates(image, text, solved.zeta.image, tau, drawn.duplicate)
  scores = own_scores(image, text, solved, tau)
  more = [nearest(x, LEMON_NEIGHBOURS) for x in (image, text)]
  near_image, near_text = (x.first(NEIGHBOURS) for x in more)
  of_captions = neighbours_distance(near_image, text)
  of_images = neighbours_distance(near_text, image)
  scores |= {
    "neighbours: overlap": suspects.overlap(near_image, near_text),
    "neighbours: captions": of_captions,
    "neighbours: images": of_images,
    "neighbours: both": (of_captions + of_images) / 2,
    "LEMoN": suspects.lemon(image, text, *more),
  }
  names = model.embed.text(alphabet.names)
  logits = (image @ names.T).astype(float) / tau
  zero_shot = np.exp(logits - logits.max(axis=1, keepdims=True))
  probabilities = {
    "cross-validated": suspects.class_probabilities(
      image, drawn.named, num_classes=len(names)
    ),
    "zero-shot": zero_shot / zero_shot.sum(axis=1, keepdims=True),
  }
  for name, p in probabilities.items():
    rankings = suspects.confident_learning(p, drawn.named)
    scores |= {f"CL, {name}: {x}": y for x, y in rankings.items()}
  return areas(scores, drawn.wrong)


def rank_named(model: Model, alphabet: data.Alphabet, *, seed: int) -> Row:
  """Ranks wrong captions among names, case by case.

  Returns:
    For each case, the area of each score and the share of learnable pairs.
  """
  names, found = model.embed.text(alphabet.names), {}
  for case in classes.CASES:
    if case.num_letters <= len(names):
      drawn = classes.draw(alphabet, case, seed=seed)
      image, named = model.embed.image(drawn.image), drawn.named
      scores = classes.scores(
        image, names, named, temperature=model.temperature
      )
      share = learnable_share(named, np.arange(len(named)))
      found[case.name] = areas(scores, drawn.wrong) | {classes.SHARE: share}
  return found


def own_scores(
  image: np.ndarray,
  text: np.ndarray,
  solved: popularity.Popularity,
  temperature: float,
) -> dict[str, np.ndarray]:
  """Returns scores of a pair's own similarity, weight and margin."""
  sim = image @ text.T
  pairs = Pairs(image, text, np.arange(len(image)))
  weight = log_match_probability(solved, pairs, temperature=temperature)
  logits = sim / temperature
  plain = [
    np.log(np.exp(x - np.diagonal(x)[:, None]).sum(axis=1))
    for x in (logits, logits.T)
  ]
  margin = [
    suspects.margins(sim, solved.zeta.text),
    suspects.margins(sim.T, solved.zeta.image),
  ]
  plain_margin = [suspects.margins(x) for x in (sim, sim.T)]
  return {
    "own similarity": -np.diagonal(sim),
    "match probability, images": -weight.image,
    "match probability, texts": -weight.text,
    "match probability": -(weight.image + weight.text) / 2,
    "match probability, ζ = 0": sum(plain) / 2,
    "margin": sum(margin) / 2,
    "margin, images": margin[0],
    "margin, ζ = 0": sum(plain_margin) / 2,
  }


def rank_duplicates(
  image: np.ndarray,
  text: np.ndarray,
  zeta: np.ndarray,
  temperature: float,
  duplicate: np.ndarray,
) -> Row:
  """Ranks pairs by their nearest other pair; scores two thresholds, too."""
  scores = suspects.duplicate_scores(image, text, zeta)
  found = areas(scores, duplicate)
  distance = 1 - scores["image"]
  flags = {
    "the page's threshold": distance <= temperature / 2,
    "cleanlab's threshold": distance < CLEANLAB_RADIUS * np.median(distance),
  }
  for name, flagged in flags.items():
    right = float((flagged & duplicate).sum())
    found[f"{name}: precision"] = right / max(1.0, float(flagged.sum()))
    found[f"{name}: recall"] = right / float(duplicate.sum())
  return found


def areas(
  scores: Mapping[str, np.ndarray], positive: np.ndarray
) -> dict[str, float]:
  """Returns the average precision of each score."""
  return {
    name: round(float(average_precision_score(positive, x)), 5)
    for name, x in scores.items()
  }
