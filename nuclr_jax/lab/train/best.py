"""The state of a run that has scored best on validation so far.

It is kept beside the newest checkpoints. Its meta has all its scores, and
identifies the validation sets that they are of, so that a resumed run compares
only scores of one name and of the same sets.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import logging
import math
import pathlib
from typing import Any

from nuclr_jax.lab.train import checkpoint
from nuclr_jax.lab.train.checkpoint import Meta
from nuclr_jax.types import PyTree

# `keep_if_best(step, state, scores)` saves a state that scores best so far, and
# returns when it is complete.
KeepIfBest = Callable[[int, PyTree, Mapping[str, Any]], None]

# Keys of a meta: the score that decided, all scores, and the validation sets.
DECIDED, SCORES, SETS = "best", "scores", "validation"

log = logging.getLogger(__name__)


@contextlib.contextmanager
def open_best(
  workdir: pathlib.Path, *, score: str | None, meta: Meta
) -> Iterator[KeepIfBest]:
  """Opens the folder of the best checkpoint of a run.

  It warns if the state in it was scored on other validation sets, which the
  next score then replaces, or was kept for another score.

  Args:
    workdir: Folder of the run.
    score: The score to maximize, such as "validation/coco/mean_recall@1"; None
      keeps nothing.
    meta: The meta of the run, see `resume.meta`; the scores are added to it, so
      that a resumed run knows the score to beat.

  Yields:
    `keep_if_best(step, state, scores)`. It raises ValueError if `score` is not
    among the scores.
  """
  if score is None:
    yield lambda step, state, scores: None
    return
  manager = checkpoint.open_to_write(
    workdir, max_to_keep=1, name=checkpoint.BEST
  )

  def keep_if_best(step, state, scores):
    if score not in scores:
      raise ValueError(
        f"keep_best is {score!r}, which is not a score of this run; its scores "
        f"are {sorted(scores)}"
      )
    best_step, best_value = checkpoint.latest(manager), -math.inf
    if best_step is not None:
      kept = checkpoint.read_meta(manager, best_step)
      if not _changed_sets(kept, meta):
        best_value = _scores_of(kept).get(score, best_value)
      elif step <= best_step:  # steps of a folder only grow
        manager.delete(best_step)
        best_step = None
    value = float(scores[score])
    # A run resumed from before its best step passes that step again.
    if value > best_value and (best_step is None or step > best_step):
      numbers = {name: float(x) for name, x in scores.items()}
      more = {DECIDED: {score: value}, SCORES: numbers}
      checkpoint.save(manager, step, state, meta | more)
      manager.wait_until_finished()
      log.info("step %d is the best so far: %s = %.4f", step, score, value)

  with contextlib.closing(manager):
    step = checkpoint.latest(manager)
    if step is not None:
      kept = checkpoint.read_meta(manager, step)
      for text in _warnings(kept, meta, score):
        log.warning("%s: %s", checkpoint.folder_of(manager) / str(step), text)
    yield keep_if_best


def _scores_of(kept: Meta) -> Mapping[str, float]:
  """Returns the scores of a kept state; earlier versions kept only one."""
  return kept.get(SCORES, kept[DECIDED])


def _changed_sets(kept: Meta, meta: Meta) -> list[str]:
  """Returns which validation sets are others than those of a kept state.

  What earlier versions kept does not say; its sets are taken for the same.
  """
  old, new = kept.get(SETS), meta.get(SETS)
  if old is None or new is None:
    return []
  return sorted(x for x in {*old, *new} if old.get(x) != new.get(x))


def _warnings(kept: Meta, meta: Meta, score: str) -> Iterator[str]:
  """Says why the scores of a kept state are not those to come."""
  if changed := _changed_sets(kept, meta):
    yield (
      "this state scored best on other validation sets than there are now "
      f"({', '.join(changed)}), so it is replaced at the next validation; "
      "scores of earlier steps in history.jsonl are of the old sets"
    )
  elif score not in kept[DECIDED]:
    known = _scores_of(kept)
    then = "the next validation replaces it"
    if score in known:
      then = f"a later state with more than its {known[score]:.4f} replaces it"
    yield (
      f"this state was kept for {', '.join(kept[DECIDED])}, and keep_best is "
      f"{score} now: {then}. Earlier states that history.jsonl shows with more "
      "were not kept"
    )
