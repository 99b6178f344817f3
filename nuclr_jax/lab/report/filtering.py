"""Chooses the pairs to train on: scores in steps, tables, uids, a page.

The steps write into `unfinished.NAME` beside the output, and whatever is there
when the command is run again is not computed again. The output appears when it
is complete.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import json
import logging
import os
import pathlib
import shutil
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.data import shards
from nuclr_jax.lab.data.embeddings import TEXTS
from nuclr_jax.lab.data.pair_index import content_hash
from nuclr_jax.lab.data.shards import Shards
from nuclr_jax.lab.evaluate import choose, pair_scores, suspects
from nuclr_jax.lab.evaluate.block_confidence import (
  log_self_confidence_of_blocks,
)
from nuclr_jax.lab.report import filter_page
from nuclr_jax.popularity.sinkhorn import Past

log = logging.getLogger(__name__)

SCORES = ("similarity", "negcliploss", "exact", "confidence")
WITH_TEMPERATURE = {"negcliploss", "exact"}
COPIES = ("pair", "image", "text")
OPENAI = 0.01  # the temperature of the models behind DataComp's arrays
SHARED = 0.9  # of the pairs must have a caption that several others have
PERIOD = 60.0  # seconds between two copies of an iteration that can continue
TABLE_ROWS = 2**16  # that are written at a time
PLAN, SOURCE, FOUND = "plan.json", "source.json", "embeddings"


class Request(NamedTuple):
  """Which scores choose, and how."""

  scores: Sequence[str]  # of `SCORES`, in the order in which they choose
  keep: Sequence[float] | None = None  # a share of all pairs for each score
  threshold: Sequence[float] | None = None  # or a least value
  intersect: bool = False
  once: str | None = None  # of `COPIES`: what only one pair may have
  temperature: float | None = None
  batch_size: int = 32_768  # of negCLIPLoss, as published
  partitions: int = 10
  max_pairs: int | None = None  # of the sample for exact weights
  arch: str | None = None


def write(
  request: Request,
  output: str | os.PathLike,
  *,
  embeddings: str | os.PathLike | None = None,
  embed: Callable[[pathlib.Path], Any] | None = None,
  source: Mapping[str, Any] = {},
) -> dict[str, Any]:
  """Scores pairs, and writes which of them are kept to a folder.

  `scores.parquet` has a row for each pair, in the order of the files;
  `uids.npy` the uids of the pairs that are kept, as DataComp's resharder takes
  them; `kept.jsonl`, where there are no uids, their names and captions;
  `filter.html` shows examples; `summary.json` has the thresholds.

  Args:
    request: Which scores choose, and how.
    output: The folder to make, here or in a bucket.
    embeddings: What `open_shards` takes.
    embed: In place of `embeddings`, writes a folder of them.
    source: What `embed` reads, as JSON; embeddings that an interrupted call has
      made of something else are made again.

  Returns:
    The summary.

  Raises:
    ValueError: If a file is missing or damaged, or its rows do not line up; if
      a row is zero or not finite; if a uid is there twice; if no pair is kept.
      Nothing is written then.
  """
  files.remote.check_new(output)
  began = time.monotonic()
  with _working(output) as work:
    if embed is not None:
      embeddings = _embedded(work, embed, source)
    found = _open(work, str(embeddings), request)
    if embed is not None:
      found = found._replace(names=[f"{FOUND}/{TEXTS}"])
    with jax.set_mesh(sharding.make_mesh()):
      columns, summary = _scores(work, found, request)
    kept, chosen = _choose(found, request, columns)
    summary = {
      "pairs": len(found.image),
      "kept": int(chosen.kept.sum()),
      **kept,
      **{
        f"threshold/{name}": x
        for name, x in zip(request.scores, chosen.thresholds, strict=True)
      },
      **summary,
      "seconds": round(time.monotonic() - began, 1),
    }
    with files.remote.new_folder(output) as new:
      _write(new, work, found, request, columns, chosen.kept, summary)
      if embed is not None:
        shutil.copytree(work / FOUND, new / FOUND)
    shutil.rmtree(work)
  return summary


@contextlib.contextmanager
def _working(output: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Yields the folder of the steps, which bad input does not leave behind."""
  path = files.remote.absolute(output)
  if not isinstance(path, pathlib.Path):  # in a bucket
    number = content_hash(path.encode())
    path = files.remote.cache_dir() / "filter" / f"{number:016x}"
  work = files.folder_in(path.parent, f"unfinished.{path.name}")
  with files.locked(work):
    try:
      yield work
    except ValueError:
      if not any(work.glob("*.npy")) and not (work / FOUND).exists():
        shutil.rmtree(work)
      raise


def _embedded(work: pathlib.Path, embed, source) -> pathlib.Path:
  """Returns the folder of embeddings, which it makes unless it is there."""
  folder = work / FOUND
  _continue(work / SOURCE, source)
  if folder.exists():
    log.info("continuing with the embeddings in %s", folder)
  else:
    embed(folder)
  return folder


def _continue(path: pathlib.Path, plan: Mapping[str, Any]) -> None:
  """Notes what the steps in a folder are of; removes those of another plan."""
  work, plan = path.parent, json.loads(json.dumps(plan))
  if path.exists() and files.read_json(path) == plan:
    return
  old = [x for x in work.iterdir() if x.suffix in (".npy", ".npz")]
  if old:
    log.warning("%s is of other files or flags, and is made again", work)
  for step in old:
    step.unlink()
  if path.name == SOURCE:
    shutil.rmtree(work / FOUND, ignore_errors=True)
  files.write_json(path, plan)


def _open(work: pathlib.Path, embeddings: str, request: Request) -> Shards:
  """Opens the embeddings; forgets the steps of another request."""
  shutil.rmtree(work / "unpacked", ignore_errors=True)
  scratch = files.folder_in(work, "unpacked")
  found = shards.open_shards(embeddings, scratch=scratch, arch=request.arch)
  plan = {
    "temperature": request.temperature,
    "batch_size": request.batch_size,
    "max_pairs": request.max_pairs,
    "arch": request.arch,
    "files": [[str(x), *files.state_of(x)] for x in found.paths],
  }
  _continue(work / PLAN, plan)
  log.info(
    "%d pairs of width %d in %d shard(s), layout %s",
    len(found.image),
    found.image.dim,
    len(found.names),
    found.layout,
  )
  return found


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


def _scores(
  work: pathlib.Path, found: Shards, request: Request
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Computes the scores; returns them by name, and what the summary says.

  Similarity is always one of them, since it looks at all rows.
  """
  sides, tau = (found.image, found.text), request.temperature
  if tau is None and WITH_TEMPERATURE & set(request.scores):
    tau = _default_temperature(found)
  summary = {} if tau is None else {"temperature": tau}
  columns = {
    "similarity": _step(
      work, "similarity", lambda: pair_scores.similarity(*sides)
    )
  }
  if "uid" in found.columns:
    columns["uid"] = _step(
      work, "uid", lambda: shards.read_uids(found.columns["uid"])
    )
  if "negcliploss" in request.scores:
    columns["negcliploss"] = _negcliploss(work, sides, tau, request)
    summary |= {
      "batch_size": min(request.batch_size, len(found.image)),
      "partitions": request.partitions,
    }
  if "exact" in request.scores:
    columns["exact"], more = _exact(work, sides, tau, request)
    summary |= more
  if "confidence" in request.scores:
    columns["confidence"] = _step(work, "confidence", lambda: _sure(found))
  return columns, summary


def _default_temperature(found: Shards) -> float:
  if found.layout != "datacomp":
    raise ValueError(
      "give the model's --temperature, such as 0.01 for OpenAI's CLIP (only of "
      "DataComp's arrays is it known)"
    )
  log.info("temperature %g, that of OpenAI's models", OPENAI)
  return OPENAI


def _negcliploss(work, sides, tau: float, request: Request) -> np.ndarray:
  """Averages over random partitions, of which each is a step."""
  total = np.zeros(len(sides[0]))
  for i in range(request.partitions):
    total += _step(
      work,
      f"negcliploss_{i}",
      lambda i=i: pair_scores.negcliploss(
        *sides, temperature=tau, batch_size=request.batch_size, seed=(i,)
      ),
    )
  return total / request.partitions


def _exact(work, sides, tau: float, request: Request):
  """Returns tau log w_ii, and what the summary says of it."""
  n, sample = len(sides[0]), None
  if request.max_pairs is not None and request.max_pairs < n:
    drawn = np.random.default_rng(0).permutation(n)[: request.max_pairs]
    sample = np.sort(drawn)
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
  label, image = (
    np.unique(_copies(found, side), return_inverse=True)[1]
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


def _copies(found: Shards, side: str) -> np.ndarray:
  """Returns equal numbers for pairs with copies of one image, or one caption.

  If the tables do not say, copies are those of equal embeddings.
  """
  name = "image" if side == "image" else "caption"
  if name in found.columns:
    return found.columns[name].hashes()
  rows, hashes = getattr(found, side), []
  for start in range(0, len(rows), pair_scores.READ):
    block = rows.read(slice(start, start + pair_scores.READ))
    hashes += [content_hash(x.tobytes()) for x in block]
  return np.array(hashes, np.uint64)


def _choose(found: Shards, request: Request, columns):
  """Returns counts, and which pairs are kept."""
  among, counts = None, {}
  if request.once is not None:
    copies = [
      _copies(found, x)
      for x in ("image", "text")
      if request.once in ("pair", x)
    ]
    together = copies[0]
    for other in copies[1:]:
      stacked = np.stack([together, other], axis=1)
      _, together = np.unique(stacked, axis=0, return_inverse=True)
    among = choose.first_of_each(together, columns[request.scores[0]])
    counts["copies_left_out"] = int(np.sum(~among))
  chosen = choose.choose(
    [columns[name] for name in request.scores],
    keep=request.keep,
    threshold=request.threshold,
    intersect=request.intersect,
    among=among,
  )
  return counts, chosen


def _write(new, work, found, request, columns, kept, summary) -> None:
  """Writes the files of the output."""
  _write_table(new / "scores.parquet", found, columns, kept)
  if "uid" in columns:
    with files.replacing(new / "uids.npy") as path, path.open("wb") as file:
      np.save(file, np.sort(columns["uid"][kept]))
  elif {"name", "caption"} <= set(found.columns):
    _write_names(new / "kept.jsonl", found, kept)
  scores = {name: columns[name] for name in request.scores}
  scores.setdefault("similarity", columns["similarity"])
  filter_page.write(new / "filter.html", found, scores, kept, summary)
  files.write_json(new / "summary.json", summary)


def _write_table(path: pathlib.Path, found: Shards, columns, kept) -> None:
  """Writes a row for each pair, a group of rows at a time."""
  import pyarrow
  from pyarrow import parquet

  scores = {k: x for k, x in columns.items() if k != "uid"}
  fields = [("uid", pyarrow.string())] if "uid" in columns else []
  fields += [("shard", pyarrow.string()), ("row", pyarrow.int64())]
  fields += [(name, pyarrow.float32()) for name in scores]
  schema = pyarrow.schema([*fields, ("kept", pyarrow.bool_())])
  starts = np.concatenate([[0], found.ends])
  with (
    files.replacing(path) as new,
    parquet.ParquetWriter(new, schema) as writer,
  ):
    for first in range(0, len(kept), TABLE_ROWS):
      rows = np.arange(first, min(first + TABLE_ROWS, len(kept)))
      shard = np.searchsorted(found.ends, rows, side="right")
      values = {
        "shard": [found.names[i] for i in shard],
        "row": rows - starts[shard],
        **{name: x[rows].astype(np.float32) for name, x in scores.items()},
        "kept": kept[rows],
      }
      if "uid" in columns:
        values["uid"] = shards.as_text(columns["uid"][rows])
      writer.write_table(pyarrow.table(values, schema))


def _write_names(path: pathlib.Path, found: Shards, kept: np.ndarray) -> None:
  """Writes names and captions of the kept pairs, for `nuclr ingest`."""
  rows = np.flatnonzero(kept)
  with files.replacing(path) as new, new.open("w", encoding="utf-8") as file:
    names, captions = (found.columns[x].pick(rows) for x in ("name", "caption"))
    for name, caption in zip(names, captions, strict=True):
      row = {"image": name, "caption": caption}
      file.write(json.dumps(row, ensure_ascii=False) + "\n")
