"""Chooses the pairs to train on, by scores of their embeddings.

The steps write into `unfinished.NAME` beside the output, and whatever is there
when the command is run again is not computed again. The output appears when it
is complete.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import json
import logging
import os
import pathlib
import shutil
import time
from typing import Any

import jax
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data import shards
from nuclr_jax.lab.data.embeddings import TEXTS
from nuclr_jax.lab.data.pair_index import content_hash
from nuclr_jax.lab.data.shards import Images, Shards
from nuclr_jax.lab.evaluate import choose, pair_scores
from nuclr_jax.lab.evaluate.choose import Choice, Chosen
from nuclr_jax.lab.report import filter_files, filter_steps
from nuclr_jax.lab.report.filter_steps import Request

log = logging.getLogger(__name__)

PLAN, SOURCE, FOUND = "plan.json", "source.json", "embeddings"
UNPACKED = "unpacked"  # arrays that were compressed
TIED = 0.01  # of the pairs that a score keeps, from which on a tie is told


def write(
  request: Request,
  output: str | os.PathLike,
  *,
  embeddings: str | os.PathLike | None = None,
  embed: Callable[[pathlib.Path], Any] | None = None,
  source: Mapping[str, Any] = {},
  state: Any = None,
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
    state: What differs once that has changed, as JSON: then, too.

  Returns:
    The summary.

  Raises:
    ValueError: If a file is missing or damaged, or its rows do not line up; if
      a row is zero or not finite; if a uid is there twice; if no pair is kept;
      if NormSim has no target, or one of another width. Nothing is written
      then.
  """
  files.remote.check_new(output)
  began = time.monotonic()
  with _working(output) as work:
    shutil.rmtree(work / UNPACKED, ignore_errors=True)
    target = _open_target(work, request)  # before hours of other steps
    if embed is not None:
      embeddings = _embedded(work, embed, {"source": source, "state": state})
    found = _open(work, str(embeddings), request)
    read = _states([*found.paths, *(target.paths if target else ())])
    if target is not None:
      _check_width(found, target)
    if embed is not None:
      found = found._replace(names=[f"{FOUND}/{TEXTS}"])
    with jax.set_mesh(sharding.make_mesh()):
      columns, summary = filter_steps.scores(work, found, request, target)
    copies, chosen = _choose(found, request, columns)
    _check_unchanged(read)
    summary = {
      "pairs": len(found.image),
      "kept": int(chosen.kept.sum()),
      **copies,
      **{
        f"threshold/{name}": x.threshold
        for name, x in zip(request.scores, chosen.choices, strict=True)
      },
      **summary,
      **_asked(request, embeddings if embed is None else source),
    }
    with files.remote.new_folder(output) as new:
      filter_files.write(new, found, request, columns, chosen, summary)
      if embed is not None:
        shutil.copytree(work / FOUND, new / FOUND)
    shutil.rmtree(work)
  log.info("it took %s", progress.duration(time.monotonic() - began))
  return summary


def _asked(request: Request, source) -> dict[str, Any]:
  """Returns what the summary says of the request."""
  asked = {"from": source if isinstance(source, Mapping) else str(source)}
  asked["scores"] = list(request.scores)
  for name in ("keep", "threshold"):
    if values := getattr(request, name):
      asked[name] = list(values)
  others = {x: getattr(request, x) for x in ("intersect", "once", "arch")}
  return asked | {name: x for name, x in others.items() if x}


def _states(paths) -> dict[pathlib.Path, list[int]]:
  return {path: files.state_of(path) for path in paths}


def _check_unchanged(read: Mapping[pathlib.Path, list[int]]) -> None:
  """Raises ValueError if a file has changed since its rows were counted."""
  for path, state in read.items():
    if files.state_of(path) != state:
      raise ValueError(
        f"{path} has changed while it was read, so that scores may be of other "
        "rows; run the same command again when nothing writes to it"
      )


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
      files.remote.check_new(output)  # another process may have made it
      yield work
    except ValueError:
      steps = {x.stem for x in work.glob("*.npy")} - {"uid"}
      if not steps and not (work / FOUND).exists():
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


def _open_target(work: pathlib.Path, request: Request) -> Images | None:
  """Opens NormSim's target, and looks at all of its rows."""
  if "normsim" not in request.scores:
    return None
  if request.target is None:
    raise ValueError("normsim needs a target, the embeddings of images")
  scratch = files.folder_in(work, UNPACKED)
  target = shards.open_images(
    request.target, scratch=scratch, arch=request.arch
  )
  pair_scores.check_rows(target.rows)
  return target


def _check_width(found: Shards, target: Images) -> None:
  """Raises ValueError if pairs and target are of different models."""
  if target.rows.dim != found.image.dim:
    raise ValueError(
      f"{target.rows.parts[0].name} has {target.rows.dim} columns, and "
      f"{found.image.parts[0].name} {found.image.dim}; embed the target by the "
      "model of the pairs"
    )


def _open(work: pathlib.Path, embeddings: str, request: Request) -> Shards:
  """Opens the embeddings; forgets the steps of another request."""
  scratch = files.folder_in(work, UNPACKED)
  found = shards.open_shards(embeddings, scratch=scratch, arch=request.arch)
  plan = {
    "temperature": request.temperature,
    "batch_size": request.batch_size,
    "max_pairs": request.max_pairs,
    "arch": request.arch,
    "files": [[str(x), *state] for x, state in _states(found.paths).items()],
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


def _choose(
  found: Shards, request: Request, columns: Mapping[str, np.ndarray]
) -> tuple[dict[str, int], Chosen]:
  """Returns how many copies are left out, and which pairs are kept."""
  among, counts = None, {}
  if request.once is not None:
    copies = [
      filter_steps.copies(found, x)
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
  if request.keep is not None:
    for name, choice in zip(request.scores, chosen.choices, strict=True):
      _warn_of_ties(name, columns[name], choice)
  return counts, chosen


def _warn_of_ties(name: str, score: np.ndarray, choice: Choice) -> None:
  """Warns if the order of the files decides about many pairs."""
  equal = choice.among & (score == choice.threshold)
  kept, left = (int(np.sum(equal & x)) for x in (choice.kept, ~choice.kept))
  if min(kept, left) > TIED * np.sum(choice.kept):
    log.warning(
      "%s cannot tell %d pairs apart, of which %d are kept, the first in the "
      "order of the files: all have the score of the threshold, %.4g; take "
      "another share, or another score after it",
      name,
      kept + left,
      kept,
      choice.threshold,
    )
