"""One run: a model that scores pairs, or a training on what a score kept."""

from collections.abc import Mapping, Sequence
import functools
import pathlib
import time
from typing import Any, NamedTuple

import jax
from jaxtyping import Bool, Float, Int
import numpy as np
from scipy import stats

from experiments.filtering import errors, plan
from experiments.harness import Options, Place, Row, Run, training
from experiments.icons.measure import beginning, families
from experiments.icons.planted import scores as found_by
from nuclr_jax import sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.data.icons.builder import prepare_icons
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.records import data_of_records, read_columns
from nuclr_jax.lab.data.shards import InMemory
from nuclr_jax.lab.data.source import Data, HeldOut, Records
from nuclr_jax.lab.evaluate import choose, pair_scores
from nuclr_jax.lab.evaluate.retrieval import recall
from nuclr_jax.lab.train import build, loop

HERE = pathlib.Path(__file__).parent
KEY = 52  # of the permutation that divides the designers
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)  # that are kept, of the curves
PARTITIONS = 10
ONCE = "each text once"
AFTER = -1e3  # is added to the score of a copy
TEST, SMOKE_CAPTIONS = "test", 100


class Pairs(NamedTuple):
  """All pairs of the training split, as columns."""

  image: np.ndarray  # uint8 [pairs, height, width, 1]
  caption: Sequence[str]
  scorer: Bool[np.ndarray, "pairs"]  # by the designers whom the scorer sees
  fingerprint: str


@functools.cache
def read_pairs(version: str, size: int, data_dir: str | None) -> Pairs:
  """Reads the training split, and divides its families of designers."""
  folder = prepare_icons(cache_dir(data_dir), version=version, size=size)
  columns, fingerprint = read_columns(folder, "train")
  family_of = families(version, size, data_dir)
  family = np.array([family_of[x] for x in columns["set"]])
  scorer = halved(family)
  return Pairs(columns["image"], columns["caption"], scorer, fingerprint)


def halved(family: Sequence[str]) -> Bool[np.ndarray, "pairs"]:
  """Marks the pairs of some families, together at most half of the pairs.

  Example:
    >>> marked = halved(["a", "a", "b", "b", "c", "d"])
    >>> int(marked.sum()) <= 3, bool(marked[0] == marked[1])
    (True, True)
  """
  names, number = np.unique(family, return_inverse=True)
  count = np.bincount(number)
  marked, order = set(), np.random.default_rng(KEY).permutation(len(names))
  for i in order:
    if count[[*marked, i]].sum() <= len(number) / 2:
      marked.add(int(i))
  return np.isin(number, [*marked])


def make_config(words: Mapping[str, Any], seed: int):
  """Makes the config of a run: configs/icons.py with the run's changes."""
  config = training.get_config("icons")(words.get("objective", "clip"))
  changes = {
    "batch_size": words["batch"],
    "num_epochs": words["scorer_epochs"],
    "objective.temperature": words["tau"],
    "optimizer.learning_rate.value": words["rate"],
    "optimizer.clip_norm": 0.1,  # as in experiments/icons
    "eval_every": 0,
    "eval_every_epochs": 0.0,
    "log_every": 100,
    "seed": seed,
  }
  training.change(config, changes, {x: x for x in changes})
  return config


def configs(options: Options) -> dict[str, dict]:
  """Returns a config of each objective."""
  del options
  return {
    label: training.flat(make_config({**plan.COMMON, "objective": name}, 0))
    for name, label in plan.OBJECTIVES.items()
  }


def drawn(pairs: Pairs, words, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Draws the rows that the scorer is trained on, and the candidates."""
  order = np.random.default_rng([seed, 5]).permutation(len(pairs.image))
  first, second = (
    order[mask[order]][:count]
    for mask, count in (
      (pairs.scorer, words["scorer_pairs"]),
      (~pairs.scorer, words["candidates"]),
    )
  )
  return first, second


def data_of(
  pairs: Pairs, rows: Int[np.ndarray, "some"], captions, like: Data, name: str
) -> Data:
  """Makes training data of some rows, with captions that may be wrong."""
  texts, text_id = np.unique(captions, return_inverse=True)
  records = Records(
    pairs.image[rows],
    text_id.astype(np.int32),
    [str(x) for x in texts],
    f"{pairs.fingerprint}/{name}",
  )
  return data_of_records(
    records,
    like.held_out,
    like.tokenizer,
    shift=1.0,
    scale=0.0,
    share_texts=True,
  )


def load_data(config, words, place: Place) -> tuple[Data, Pairs]:
  """Reads the data of the config, with the test split alone, and its pairs."""
  of = config.data.version, config.data.size, place.data_dir
  data, pairs = training.load_data(config, place.data_dir), read_pairs(*of)
  test = data.sets[TEST]
  if words["candidates"] < plan.COMMON["candidates"]:
    test = beginning(test, SMOKE_CAPTIONS)
  return data._replace(held_out={TEST: HeldOut({"": test})}), pairs


def measure(run: Run, place: Place) -> Row:
  """Trains a model and scores candidates, or trains on what was kept."""
  words = dict(run.values)
  config = make_config(words, run.seed)
  data, pairs = load_data(config, words, place)
  scorer, candidates = drawn(pairs, words, run.seed)
  captions = [pairs.caption[i] for i in candidates]
  path = store(words, place, run.seed)
  if run.part == plan.SCORES:
    right = [pairs.caption[i] for i in scorer]
    clean = data_of(pairs, scorer, right, data, f"scorer {run.seed}")
    embed, row = train(config, place, clean)
    images = embed.image(pairs.image[candidates])
    with jax.set_mesh(sharding.make_mesh()):
      row["found"], kept = score_all(images, embed.text, captions, words, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as new, new.open("wb") as file:
      bits = {name: np.packbits(x) for name, x in kept.items()}
      np.savez_compressed(file, **bits)
    return row
  found, wrong = errors.plant(captions, words["kind"], words["wrong"], run.seed)
  kept = kept_by(words, wrong, run.seed, path)
  chosen = np.flatnonzero(kept)
  config.num_epochs = words["samples"] / len(chosen)
  some = [found[i] for i in chosen]
  name = f"{words['kind']}, {words['filter']}, {run.seed}"
  left = data_of(pairs, candidates[chosen], some, data, name)
  _, row = train(config, place, left)
  return row | {
    "pairs": len(chosen),
    "wrong": round(float(wrong[kept].mean()), 5),
  }


def store(words, place: Place, seed: int) -> pathlib.Path:
  """Returns the file of what scores keep, which lies beside the rows."""
  smoke = words["candidates"] < plan.COMMON["candidates"]
  return (place.shared if smoke else HERE) / f"kept_{seed}.npz"


def kept_by(
  words, wrong: Bool[np.ndarray, "pairs"], seed: int, path: pathlib.Path
) -> Bool[np.ndarray, "pairs"]:
  """Returns which candidates a training sees.

  Raises:
    FileNotFoundError: If the file of what a score keeps is missing.
  """
  kind, name, everyone = words["kind"], words["filter"], np.ones_like(wrong)
  if name == plan.EVERYTHING:
    return everyone
  if name == plan.RIGHT:
    return ~wrong
  if name == plan.RANDOM:
    random = np.random.default_rng([seed, 6]).random(len(wrong))
    return choose.best(random, int(np.sum(~wrong)), everyone)
  if not path.exists():
    raise FileNotFoundError(
      f"{path}, what the scores keep, is missing: move the row of "
      f"{plan.SCORES}, seed {seed}, away to score again"
    )
  with np.load(path) as arrays:
    bits = arrays[plan.kept_of(kind, name)]
  return np.unpackbits(bits, count=len(wrong)).astype(bool)


def train(config, place: Place, data: Data):
  """Trains; returns what embeds, and the row with the scores on test."""
  parts = build.build(config, data=data)._replace(evaluators={})
  began = time.monotonic()
  trained = training.train(config, place, parts)
  took = time.monotonic() - began
  mesh, test = build.mesh_of(parts.settings), data.sets[TEST]
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(trained.state)
    scores = recall(
      *(embed.image(test.image), embed.text(test.captions)),
      *(test.image_group, test.caption_group),
      top=(1, 10),
      parts={"natural": test.parts["natural"]},
    )
  return embed, {
    "R@1": round(100 * scores["natural/mean_recall@1"], 4),
    "R@10": round(100 * scores["natural/mean_recall@10"], 4),
    "training_seconds": round(took, 1),
    "device": jax.devices()[0].device_kind,
  }


def score_all(images, embed_text, captions, words, run: Run):
  """Scores the candidates with errors of each kind.

  Returns:
    For each kind and score, how well it finds the errors; and which candidates
    those of `plan.CHOSEN` keep, by `plan.kept_of`.
  """
  rows, kept = {}, {}
  for kind in errors.KINDS:
    found, wrong = errors.plant(captions, kind, words["wrong"], run.seed)
    texts, text_id = np.unique(found, return_inverse=True)
    text = embed_text([str(x) for x in texts])[text_id]
    scores = pair_scores_of(images, text, text_id, words, run.seed)
    rows[kind] = {
      name: of_errors | compared(scores[name], scores[plan.EXACT], wrong)
      for name, of_errors in found_by(
        {name: -x for name, x in scores.items()}, wrong
      ).items()
    }
    count, everyone = int(np.sum(~wrong)), np.ones_like(wrong)
    kept |= {
      plan.kept_of(kind, name): choose.best(scores[name], count, everyone)
      for name in plan.CHOSEN
    }
  return rows, kept


def pair_scores_of(
  image, text, text_id, words, seed: int
) -> dict[str, Float[np.ndarray, "pairs"]]:
  """Computes all scores, by their names in the tables."""
  n, tau = len(image), words["tau"]
  sides = InMemory(image), InMemory(text)

  def likelihood(size: int, count: int):
    return np.mean(
      [
        pair_scores.negcliploss(
          *sides, temperature=tau, batch_size=size, seed=(seed, i)
        )
        for i in range(count)
      ],
      axis=0,
    )

  def exact(sample):
    some = sides if sample is None else [x.subset(sample) for x in sides]
    found = pair_scores.balance(*some, temperature=tau, num_pairs=n)
    return tau * pair_scores.log_weight_of_positive(
      found, *sides, temperature=tau, sample=sample
    )

  order = np.random.default_rng([seed, 7]).permutation(n)
  scores = {
    plan.SIMILARITY: pair_scores.similarity(*sides),
    f"{plan.LIKELIHOOD}, 1 small batch": likelihood(words["small"], 1),
    f"{plan.LIKELIHOOD}, 10 small batches": likelihood(
      words["small"], PARTITIONS
    ),
    plan.LIKELIHOOD: likelihood(n, 1),
    f"{plan.EXACT}, of a sample": exact(np.sort(order[: words["sample"]])),
    plan.EXACT: exact(None),
  }
  for name in (plan.SIMILARITY, plan.EXACT):
    is_first = choose.first_of_each(text_id, scores[name])
    scores[f"{name}, {ONCE}"] = scores[name] + np.where(is_first, 0, AFTER)
  return scores


def compared(score, exact, wrong) -> Row:
  """Says how many kept pairs are wrong, and how near exact weights are.

  "overlap" is the share of the pairs that exact weights keep, which the score
  keeps, too, where as many are left out as are wrong.
  """
  order = np.argsort(-score, kind="stable")
  counts = [round(share * len(order)) for share in SHARES]
  right = len(order) - int(wrong.sum())
  of_exact = np.argsort(-exact, kind="stable")[:right]
  both = np.intersect1d(order[:right], of_exact)
  return {
    "wrong": [round(float(wrong[order[:x]].mean()), 5) for x in counts],
    "rank correlation": round(
      float(stats.spearmanr(score, exact).statistic), 5
    ),
    "overlap": round(len(both) / right, 5),
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
