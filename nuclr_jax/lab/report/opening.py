"""The first screen of a report: what was trained, how well, what to do next."""

import collections
from collections.abc import Mapping, Sequence
import functools
import html
import logging
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from nuclr_jax.lab import evaluate, progress
from nuclr_jax.lab.data.source import HeldOut, ImageTextSet, label_of
from nuclr_jax.lab.evaluate.retrieval import right_ids
from nuclr_jax.lab.report import page
from nuclr_jax.lab.train import journal, loop, records, resume
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.types import Metrics, Sides

log = logging.getLogger(__name__)

MOST = 4  # scores, and warnings
NOTICEABLE = 0.02  # of a score: a smaller change is none
LATE = 0.8  # of the steps: after that, a rise is "at the end"


def chance(data: ImageTextSet) -> Sides:
  """Returns the recall@1 of a random ranking, by the side of the queries.

  It is the mean share of right answers among the candidates, where equal
  captions, or images, are one candidate.

  Args:
    data: The set.

  Example:
    >>> ids = np.arange(4)
    >>> chance(ImageTextSet(np.zeros((4, 2)), ids, list("abcd"), ids))
    Sides(image=0.25, text=0.25)
  """
  groups = data.image_group, data.caption_group
  if data.same is None:
    counts = [collections.Counter(x.tolist()) for x in groups]
    right = [
      np.mean([other[g] for g in own.tolist()]) / sum(other.values())
      for own, other in zip(groups, counts[::-1], strict=True)
    ]
    return Sides(*map(float, right))
  found = right_ids(*groups, data.same)
  sizes = [len(np.unique(x)) for x in data.same][::-1]
  return Sides(
    *(
      float(np.mean([len(sets[i]) for i in ids.tolist()]) / size)
      for sets, ids, size in zip(found, data.same, sizes, strict=True)
    )
  )


def chances(held_out: Mapping[str, HeldOut]) -> Metrics:
  """Returns what a random ranking scores, by the names of metrics.

  Args:
    held_out: The sets by split; those with captions, and those with classes,
      have a chance.
  """
  found = {}
  for split, sets in held_out.items():
    for name, data in sets.retrieval.items():
      of_sides, prefix = chance(data), label_of(split, name)
      found[f"{prefix}/image_to_text/recall@1"] = of_sides.image
      found[f"{prefix}/text_to_image/recall@1"] = of_sides.text
      found[f"{prefix}/mean_recall@1"] = sum(of_sides) / 2
    for name, get in sets.zero_shot.items():
      prefix = label_of(split, f"zero_shot_{name}")
      classified = get()
      count = len(classified.prompts or classified.classes)
      found[f"{prefix}/top1"] = 1 / count
  return found


def before_training(
  parts: Experiment, mesh: Mesh, held_out: Mapping[str, HeldOut]
) -> Metrics:
  """Scores the model that the run began from.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run.
    held_out: The sets to score it on, by split.
  """
  if not any(any(x) for x in held_out.values()):
    return {}
  log.info("scoring the model before training ...")
  words = parts.data.tokenizer
  make = evaluate.make_embedder(
    parts.model, words.encode, mesh, is_cut=words.is_cut
  )
  scored = parts._replace(evaluators=evaluate.evaluators_of(held_out))
  try:
    model = resume.first_model(parts.model, mesh, seed=parts.settings.seed)
    with jax.set_mesh(mesh):
      return loop.score(scored, make(*model))
  except (OSError, ValueError) as error:  # weights that are there no more
    reason = progress.first_line(error)
    log.warning("the model before training is not scored: %s", reason)
    return {}


def cheap_sets(held_out: Mapping[str, HeldOut]) -> dict[str, HeldOut]:
  """Returns the sets with captions or classes, each of which is opened once.

  Args:
    held_out: The sets by split.
  """
  return {
    split: HeldOut(
      retrieval=x.retrieval,
      zero_shot={k: functools.cache(get) for k, get in x.zero_shot.items()},
    )
    for split, x in held_out.items()
  }


def verdict(curve: Sequence[tuple[int, float]], random: float | None) -> str:
  """Says in a sentence what a validation curve calls for.

  Args:
    curve: Steps and scores, of which larger ones are better.
    random: The score of a random ranking, if it is known.

  Example:
    >>> verdict([(10, 0.1), (80, 0.3), (100, 0.4)], 0.01)
    'still rising (+33 % in the last fifth of the steps): train longer'
    >>> verdict([(10, 0.1), (50, 0.4), (100, 0.3)], 0.01)
    'best at step 50, and 25 % lower at the end: keep_best keeps that state'
  """
  if not curve:
    return ""
  steps, scores = map(np.array, zip(*curve, strict=True))
  last, at = float(scores[-1]), int(np.argmax(scores))
  if random is not None and last < 2 * random:
    return (
      "hardly better than chance: do captions belong to their images? Try "
      "another learning rate or temperature"
    )
  if len(curve) < 3:
    return "scored too rarely to say whether it still rises (eval_every_epochs)"
  late = float(np.interp(LATE * steps[-1], steps, scores))
  best = float(scores[at])
  if last - late > NOTICEABLE * max(late, 1e-9):
    rise = 100 * (last / max(late, 1e-9) - 1)
    return (
      f"still rising (+{rise:.0f} % in the last fifth of the steps): train "
      "longer"
    )
  if best - last > NOTICEABLE * best:
    return (
      f"best at step {steps[at]:,}, and {100 * (1 - last / best):.0f} % lower "
      "at the end: keep_best keeps that state"
    )
  return "level at the end: more epochs would hardly help"


def section(
  workdir: pathlib.Path,
  parts: Experiment,
  *,
  metrics: Metrics | None,
  history: Sequence[Mapping[str, float]],
  before: Metrics,
  random: Metrics,
  alarms: Sequence[str],
) -> str:
  """Returns the first section of a report.

  Args:
    workdir: Folder of the run.
    parts: The parts of the run.
    metrics: The final metrics; None if it has not finished.
    history: The rows of the history.
    before: What `before_training` returned.
    random: What `chances` returned.
    alarms: What the newest diagnostics warn of.
  """
  scores = metrics or newest(history)
  names = records.headlines(scores)[:MOST]
  what = [html.escape(x) for x in described(workdir, parts, metrics, history)]
  text = f"<p>{'<br>'.join(what)}</p>"
  if names:
    rows = [
      [name, *(_percent(name, x.get(name)) for x in (scores, before, random))]
      for name in names
    ]
    text += page.grid(["", "the run", "before training", "by chance"], rows)
  todo = []
  validation = [x for x in scores if x.startswith("validation/")]
  if chosen := records.headlines(validation)[:1]:
    name = chosen[0]
    found = verdict(page.points(history, name), random.get(name))
    todo += [f"{name}: {found}"] if found else []
  todo += alarms[:MOST]
  if len(alarms) > MOST:
    todo.append(f"{len(alarms) - MOST} more warnings under Health")
  items = "".join(f"<li>{html.escape(x)}" for x in todo)
  return text + (f"<ul>{items}</ul>" if items else "")


def newest(history: Sequence[Mapping[str, float]]) -> Metrics:
  """Returns the newest value of each metric.

  Args:
    history: The rows of a history.
  """
  return {name: x for row in history for name, x in row.items()}


def _percent(name: str, x: float | None) -> str:
  return "–" if x is None else page.shown_score(name, x)


def described(
  workdir: pathlib.Path,
  parts: Experiment,
  metrics: Metrics | None,
  history: Sequence[Mapping[str, float]],
) -> list[str]:
  """Says what was trained on what, for how long, where: a line for each.

  Args:
    workdir: Folder of the run.
    parts: The parts of the run.
    metrics: The final metrics; None if it has not finished.
    history: The rows of the history.
  """
  settings, sizes = parts.settings, parts.data.train.sizes
  recorded = settings.recorded
  objective = recorded["objective"]
  data = recorded["data"].get("train") or recorded["data"]["name"]
  tau = objective.get("temperature")
  if isinstance(tau, Mapping):
    tau = tau.get("name") or tau.get("temperature")
  if isinstance(tau, float):
    tau = f"{tau:.4g}"
  words = [
    f"{objective['name']}" + (f", temperature {tau}" if tau else ""),
    f"{sizes.num_pairs:,} pairs of {data}",
    f"batch {settings.batch_size:,}",
  ]
  step = int(max((row["step"] for row in history), default=0))
  done = f"{step:,} of {parts.num_steps:,} steps" if metrics is None else ""
  epochs = f"{settings.num_epochs:g} epochs ({parts.num_steps:,} steps)"
  words.append(done or epochs)
  lines = ["; ".join(words)]
  if place := _where(journal.read(workdir)):
    lines.append(place)
  if metrics is None:
    lines.append("The run has not finished: these are its newest scores.")
  return lines


def _where(lines: Sequence[Mapping[str, Any]]) -> str:
  """Says for how long, on what and with which code a run was trained."""
  begun = [x for x in lines if x["event"] == "begin"]
  ended = [x for x in lines if x["event"] == "end"]
  if not begun:
    return ""
  last = begun[-1]
  seconds = sum(x.get("seconds", 0) for x in ended)
  took = progress.duration(seconds) if seconds else "an unknown time"
  if seconds and len(ended) < len(begun):  # a process was killed, or is at it
    took = f"at least {took}"
  parts = [f"{took} on {last.get('devices')} x {last.get('device')}"]
  if len(begun) > 1:
    parts.append(f"begun {len(begun)} times")
  version = (last.get("versions") or {}).get("nuclr_jax")
  code = f"nuclr_jax {version}"
  if last.get("commit"):
    code += f", commit {last['commit']}"
  return "; ".join([*parts, code])
