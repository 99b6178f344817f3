"""The state that scored best on validation, kept beside the newest ones."""

from collections.abc import Callable, Iterator
import contextlib
import logging
import math
import pathlib

from nuclr_jax import checkpoint
from nuclr_jax.train_state import TrainState
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)

# `offer(step, train_state, scores)` keeps the state if its score is the best.
Offer = Callable[[int, TrainState, Metrics], None]


@contextlib.contextmanager
def keeper(
  workdir: pathlib.Path, score: str | None, meta: checkpoint.Meta
) -> Iterator[Offer]:
  """Opens the folder `best` of a run; what was best before stays known.

  Args:
    workdir: Folder of the run.
    score: Which score is to be greatest, such as
      "validation/coco/mean_recall@1"; None keeps nothing.
    meta: Of the run's checkpoints.

  Yields:
    An `Offer`. It raises ValueError if there is no such score.
  """
  if score is None:
    yield lambda step, train_state, scores: None
    return
  manager = checkpoint.open_to_write(
    workdir, max_to_keep=1, name=checkpoint.BEST
  )

  def offer(step, train_state, scores):
    if score not in scores:
      raise ValueError(
        f"keep_best is {score!r}, which is no score; there are {sorted(scores)}"
      )
    manager.wait_until_finished()
    kept, best = checkpoint.latest(manager), -math.inf
    if kept is not None:
      scored = checkpoint.read_meta(manager, kept)["best"]
      best = scored.get(score, best)
    value = float(scores[score])
    # A run that goes on from before the best step comes past it again.
    if value > best and (kept is None or step > kept):
      found = {"best": {score: value}}
      checkpoint.save(manager, step, train_state, meta | found)
      log.info("step %d is the best so far: %s = %.4f", step, score, value)

  with contextlib.closing(manager):
    yield offer
