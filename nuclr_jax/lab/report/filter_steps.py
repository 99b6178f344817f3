"""The scores of a filter, each of which is a step with a file of its own."""

from collections.abc import Callable, Sequence
import json
import logging
import pathlib
import time
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data import shards
from nuclr_jax.lab.data.pair_index import content_hash
from nuclr_jax.lab.data.shards import Images, Shards
from nuclr_jax.lab.evaluate import pair_scores, suspects
from nuclr_jax.lab.evaluate.block_confidence import (
  log_self_confidence_of_blocks,
)
from nuclr_jax.popularity.sinkhorn import Past

log = logging.getLogger(__name__)

WITH_TEMPERATURE = {"negcliploss", "exact"}
OPENAI = 0.01  # the temperature of the models behind DataComp's arrays,
OF_OPENAI = (None, "l14", "b32")
SHARED = 0.9  # of the pairs must have a caption that several others have
FEW = 1_000  # pairs, whose weights would be those of a small batch
PERIOD = 60.0  # seconds between two copies of an iteration that can continue


class Request(NamedTuple):
  """Which scores choose, and how."""

  scores: Sequence[str]  # in the order in which they choose
  keep: Sequence[float] | None = None  # a share of all pairs for each score
  threshold: Sequence[float] | None = None  # or a least value
  intersect: bool = False
  once: str | None = None  # of what copies are: "pair", "image" or "text"
  temperature: float | None = None
  batch_size: int = 32_768  # of negCLIPLoss, as published
  partitions: int = 10
  max_pairs: int | None = None  # of the sample for exact weights
  arch: str | None = None
  target: str | None = None  # what `open_images` takes, for NormSim
  norm: str = "inf"  # or "2"


def _step(
  work: pathlib.Path, name: str, make: Callable[[], np.ndarray]
) -> np.ndarray:
  """Returns the result of a step, from its file if it has one."""
  path = work / f"{name}.npy"
  if path.exists():
    with files.reading(path):
      return np.load(path)
  log.info("%s ...", name)
  result = make()
  with files.replacing(path) as new, new.open("wb") as file:
    np.save(file, result)
  return result


def scores(
  work: pathlib.Path,
  found: Shards,
  request: Request,
  target: Images | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Computes the scores; returns them by name, and what the summary says.

  Similarity is always one of them, since it looks at all rows.
  """
  sides, tau = (found.image, found.text), request.temperature
  if tau is None and WITH_TEMPERATURE & set(request.scores):
    tau = _default_temperature(found, request.arch)
  summary = {} if tau is None else {"temperature": tau}
  columns = {}
  if "uid" in found.columns:  # first, since it is refused if it is wrong
    columns["uid"] = _step(
      work, "uid", lambda: shards.read_uids(found.columns["uid"])
    )
  columns["similarity"] = _step(work, "similarity", lambda: _similarity(found))
  if target is not None:
    columns["normsim"] = _normsim(work, found, target, request)
    summary |= {
      "target": request.target,
      "target_images": len(target.rows),
      "norm": request.norm,
    }
  if "negcliploss" in request.scores:
    columns["negcliploss"] = _negcliploss(work, found, tau, request)
    summary |= {
      "batch_size": min(request.batch_size, len(found.image)),
      "partitions": _partitions(found, request),
    }
  if "exact" in request.scores:
    columns["exact"], more = _exact(work, sides, tau, request)
    summary |= more
  if "confidence" in request.scores:
    columns["confidence"] = _step(work, "confidence", lambda: _sure(found))
  return columns, summary


def _default_temperature(found: Shards, arch: str | None) -> float:
  if found.layout != "datacomp" or arch not in OF_OPENAI:
    raise ValueError(
      "give the model's --temperature, such as 0.01 for OpenAI's CLIP (it is "
      "only known of DataComp's arrays, l14 and b32)"
    )
  log.info("temperature %g, that of OpenAI's models", OPENAI)
  return OPENAI


def _similarity(found: Shards) -> np.ndarray:
  """Compares images and texts; checks that tables are of the same rows."""
  similarity = pair_scores.similarity(found.image, found.text)
  shards.check_scores(found, similarity)
  return similarity


def _normsim(work, found: Shards, target: Images, request: Request):
  """Compares images with those of a target, which the step's name is of."""
  places = [[str(x), *files.state_of(x)] for x in target.paths]
  arrays = [x.name for x in target.rows.parts]
  which = content_hash(json.dumps([places, arrays]).encode())
  return _step(
    work,
    f"normsim_{request.norm}_{which:016x}",
    lambda: pair_scores.normsim(
      found.image, target.rows, norm=float(request.norm)
    ),
  )


def _partitions(found: Shards, request: Request) -> int:
  """Returns how many partitions differ: all pairs make one batch only once."""
  one = len(found.image) <= request.batch_size
  return 1 if one else request.partitions


def _negcliploss(work, found: Shards, tau: float, request: Request):
  """Averages over random partitions, of which each is a step."""
  sides, count = (found.image, found.text), _partitions(found, request)
  total = np.zeros(len(found.image))
  for i in range(count):
    total += _step(
      work,
      f"negcliploss_{i}",
      lambda i=i: pair_scores.negcliploss(
        *sides, temperature=tau, batch_size=request.batch_size, seed=(i,)
      ),
    )
  return total / count


def _exact(work, sides, tau: float, request: Request):
  """Returns tau log w_ii, and what the summary says of it."""
  n, sample = len(sides[0]), None
  if request.max_pairs is not None and request.max_pairs < n:
    drawn = np.random.default_rng(0).permutation(n)[: request.max_pairs]
    sample = np.sort(drawn)
    if request.max_pairs < FEW:
      log.warning(
        "exact weights of %d pairs by a sample of %d, which is hardly more "
        "than a batch; 4,096 or more came close to all in "
        "experiments/filtering",
        n,
        request.max_pairs,
      )
  some = sides if sample is None else [x.subset(sample) for x in sides]

  def balanced():
    return _stacked(
      pair_scores.balance(
        *some,
        temperature=tau,
        num_pairs=n,
        begin=_unfinished(work),
        keep=_keeper(work),
      )
    )

  x = _step(work, "balance", balanced)
  found = pair_scores.Balance(*x[:, :-1], float(x[0, -1]), int(x[1, -1]))
  weight = _step(
    work,
    "exact",
    lambda: (
      tau
      * pair_scores.log_weight_of_positive(
        found, *sides, temperature=tau, sample=sample
      )
    ),
  )
  return weight, {
    "pairs_solved": len(some[0]),
    "residual": found.residual,
    "iterations": found.iterations,
    "converged": found.residual <= pair_scores.TOLERANCE,
  }


def _stacked(found: pair_scores.Balance) -> np.ndarray:
  """Puts a solution into one array, with two numbers at the ends."""
  vectors = [found.potential, found.log_denominator]
  ends = [[found.residual], [found.iterations]]
  return np.concatenate([vectors, ends], axis=1)


def _keeper(work: pathlib.Path) -> Callable[[pair_scores.Unfinished], None]:
  """Returns what writes an iteration once in a while."""
  last = time.monotonic()

  def keep(state):
    nonlocal last
    if time.monotonic() < last + PERIOD:
      return
    last = time.monotonic()
    with files.replacing(work / "unfinished.npz") as new:
      with new.open("wb") as file:
        np.savez(
          file,
          potential=state.potential,
          points=state.past.points,
          steps=state.past.steps,
          iterations=state.iterations,
        )

  return keep


def _unfinished(work: pathlib.Path) -> pair_scores.Unfinished | None:
  path = work / "unfinished.npz"
  if not path.exists():
    return None
  with np.load(path) as x:
    past = Past(list(x["points"]), list(x["steps"]))
    return pair_scores.Unfinished(x["potential"], past, int(x["iterations"]))


def _sure(found: Shards) -> np.ndarray:
  """Returns log self-confidences; refuses captions that are no classes."""
  if "caption" in found.columns:
    known = found.columns["caption"].hashes()[1]
    missing = np.flatnonzero(~known)
    if len(missing):
      (shard,), (row,) = found.places(missing[:1])
      raise ValueError(
        f"{len(missing):,} of {len(known):,} pairs have no caption, the first "
        f"is row {row} of {found.names[shard]}; confidence needs the name of a "
        "class for each: leave these pairs out, or choose another --score"
      )
  label, image = (
    np.unique(copies(found, side), return_inverse=True)[1]
    for side in ("text", "image")
  )
  share = suspects.learnable_share(label, image)
  if share < SHARED:
    raise ValueError(
      f"only {share:.0%} of the pairs have a caption that other images have, "
      f"so that it could be learned from {suspects.MIN_IMAGES} of them; "
      "confidence is for captions that are names of classes, choose another "
      "--score"
    )
  return log_self_confidence_of_blocks(found.image, label, image)


def copies(found: Shards, side: str) -> np.ndarray:
  """Returns equal numbers for pairs with copies of one image, or one caption.

  If the tables do not say, also of single pairs, copies are those of equal
  embeddings.
  """
  name, rows = "image" if side == "image" else "caption", getattr(found, side)
  hashes, known = np.zeros(len(rows), np.uint64), np.zeros(len(rows), bool)
  if name in found.columns:
    hashes, known = found.columns[name].hashes()
    if name == "image":  # a sum of no digits is none
      known &= hashes != content_hash(b"")
  for start in range(0, len(rows), pair_scores.READ):
    some = slice(start, start + pair_scores.READ)
    missing = np.flatnonzero(~known[some])
    if len(missing):
      block = rows.read(some)
      of_rows = [content_hash(block[i].tobytes()) for i in missing]
      hashes[start + missing] = np.array(of_rows, np.uint64)
  return hashes
