"""Scores that know how often each text is asked for: logit adjustment.

A model trained with zeta = 0 (CLIP, SogCLR) scores a text y of an image x by
log p(y | x) / p(y), which is right if all candidates are asked for equally
often. If they are asked for as often as p says, sim + temperature log p(y) is
right; see docs/what_zeta_is.md.
"""

import collections
from collections.abc import Callable, Sequence
import csv
import io
import logging
import math
import os
import pathlib

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import tidy_text
from nuclr_jax.lab.data.pair_index import canonical
from nuclr_jax.lab.data.source import HeldOut, Source
from nuclr_jax.lab.data.text_files import open_text
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.lab.evaluate.retrieval import scores_of
from nuclr_jax.lab.evaluate.zero_shot import accuracy, embed_classes
from nuclr_jax.popularity.frequency import COUNTS
from nuclr_jax.types import Metrics, Sides

log = logging.getLogger(__name__)

CHUNK = 2**16  # captions read at a time
MAX_BYTES = 2**30  # of a table
# What reading a table may raise.
WRONG = (OSError, ValueError, TypeError, OverflowError, csv.Error)
NOTICEABLE = 0.1  # a share of repetitions, a spread of zeta in temperatures
FEW = 0.9  # a smaller share of known texts calls for a warning
# Texts (captions, or names of classes) -> log p of each, up to a constant; None
# if it knows none of them.
Prior = Callable[[Sequence[str]], Float[np.ndarray, "texts"] | None]


def make_prior(prior: str | os.PathLike, train: Source | None = None) -> Prior:
  r"""Makes a prior from "counts" or from a file.

  Args:
    prior: "counts" takes how often the words of a text are those of a caption
      of a training pair (see `canonical`), plus 1/2 so that unseen texts can be
      chosen; it warns where fewer than 90 % of the texts it is asked for are
      captions. Otherwise a .json file that maps texts to counts (or
      probabilities), or a .csv file of texts and counts.
    train: The training pairs; "counts" needs them.

  Raises:
    ValueError: For "counts" without pairs, or a file that is no such table.
      What is returned raises ValueError if the file has some of the texts it is
      asked for, but not all.

  Example:
    >>> path = tmp_path / "asked.csv"
    >>> _ = path.write_text("a dog,30\na cat,10\n")
    >>> np.exp(make_prior(path)(["a cat", "a dog"])).round()
    array([10., 30.])
  """
  if prior == COUNTS:
    if train is None:
      raise ValueError("the prior 'counts' needs the training pairs")
    return _of_captions(train)
  path = files.remote.fetch(prior)
  known = _read(path)

  def log_prior(texts):
    missing = [x for x in texts if tidy_text(x) not in known]
    if len(missing) == len(texts):
      return None
    if missing:
      raise ValueError(
        f"{path} lacks {len(missing)} of {len(texts)} texts, such as "
        f"{missing[0]!r}; give each a count greater than 0"
      )
    return np.log([known[tidy_text(x)] for x in texts])

  return log_prior


def _of_captions(train: Source) -> Prior:
  """Counts the captions of the training pairs, once they are asked for."""
  counted: dict[str, int] = {}

  def log_prior(texts):
    if not counted:
      counted.update(count_captions(train))
    found = np.array([counted.get(canonical(x), 0) for x in texts])
    known = np.mean(found > 0)
    if known == 0:
      return None
    if known < FEW:
      unseen = texts[int(np.argmin(found))]
      log.warning(
        "--prior=counts: only %.0f %% of %d texts are training captions; all "
        "others, such as %r, get the same small prior",
        100 * known,
        len(texts),
        unseen,
      )
    return np.log(found + 0.5)

  return log_prior


def count_captions(train: Source) -> dict[str, int]:
  """Counts of how many training pairs each distinct caption is the text.

  Captions of the same words are one, by their `canonical` form: they may share
  a text id, of which only the first caption is known.
  """
  n, num_texts = train.sizes.num_pairs, train.sizes.num_texts
  of_text = np.zeros(num_texts, np.int64)
  for start in range(0, n, CHUNK):
    ids = train.ids(np.arange(start, min(start + CHUNK, n))).text
    of_text += np.bincount(ids, minlength=num_texts)
  counted: dict[str, int] = {}
  for start in range(0, num_texts, CHUNK):
    ids = np.arange(start, min(start + CHUNK, num_texts))
    for caption, number in zip(train.captions(ids), of_text[ids], strict=True):
      words = canonical(caption)
      counted[words] = counted.get(words, 0) + int(number)
  return counted


def counts_by_text(train: Source) -> Int[np.ndarray, "texts"]:
  """Counts the training pairs that have a text's caption, by text id."""
  counted, num_texts = count_captions(train), train.sizes.num_texts
  found = np.empty(num_texts, np.int64)
  for start in range(0, num_texts, CHUNK):
    ids = np.arange(start, min(start + CHUNK, num_texts))
    found[ids] = [counted[canonical(x)] for x in train.captions(ids)]
  return found


def _read(path: pathlib.Path) -> dict[str, float]:
  """Reads a table of texts and counts."""
  try:
    files.check_size(path, MAX_BYTES)
    with open_text(path, errors="strict") as file:
      text = file.read()
    if path.suffix == ".json":
      table = files.parse_json(text, object_pairs_hook=tuple)
      if not isinstance(table, tuple):
        raise ValueError(f"it holds {text[:20]!r}, which is not an object")
      pairs = [(x, float(number)) for x, number in table]
    else:
      pairs = _rows(text)
  except WRONG as error:
    raise ValueError(
      f"--prior: {path} is not a table of texts and counts ({error}); give "
      '"counts", a .json file such as {"a dog": 30}, or a .csv file with a '
      "text and a count in each line"
    ) from error
  pairs = [(tidy_text(x), number) for x, number in pairs]  # as captions are
  found = dict(pairs)
  problem = next(
    (f"the count of {x!r} is {p:g}" for x, p in pairs if not 0 < p < math.inf),
    "it has no texts" if not pairs else "",
  )
  if not problem and (bad := next((x for x in found if "\0" in x), None)):
    problem = f"{bad!r} is not text in UTF-8"
  if not problem and len(found) < len(pairs):
    texts = collections.Counter(x for x, _ in pairs)
    problem = f"{texts.most_common(1)[0][0]!r} occurs twice"
  if problem:
    raise ValueError(
      f"--prior: {path}: {problem}; each text needs one count greater than 0"
    )
  return found


def _rows(text: str) -> list[tuple[str, float]]:
  """Reads lines of a text and a count; blank lines are left out."""
  lines = csv.reader(io.StringIO(text, newline=""))
  pairs = []
  for row in lines:
    if not any(map(str.strip, row)):
      continue
    if len(row) != 2:
      raise ValueError(f"line {lines.line_num} has {len(row)} columns, not 2")
    try:
      pairs.append((row[0], float(row[1])))
    except ValueError:
      raise ValueError(
        f"the count in line {lines.line_num} is {row[1]!r}"
      ) from None
  return pairs


def doubt_prior(
  train: Source, zeta: Sides | None, *, temperature: float
) -> None:
  """Warns of what speaks against a prior in the scores of a trained model.

  sim + temperature log p is right where zeta was 0 in training, and equal
  captions were negatives of each other.

  Args:
    train: The training pairs.
    zeta: The popularities of the objective; None = it has none.
    temperature: The temperature of the objective.
  """
  sizes = train.sizes
  if zeta is not None:
    spread = float(np.std(np.asarray(zeta.text)[: sizes.num_texts]))
    if (spread := spread / temperature) > NOTICEABLE:
      log.warning(
        "--prior: zeta of texts has a spread of %.2g temperatures in this run, "
        "and similarities hold it already, as far as it stands for log p; a "
        "prior is right for runs with zeta = 0",
        spread,
      )
  if sizes.num_texts < (1 - NOTICEABLE) * sizes.num_pairs:
    log.warning(
      "--prior: %d training pairs share %d texts. Pairs with one text are no "
      "negatives of each other, so that similarities hold a part of log p "
      "already, and a prior gains less (experiments/when_it_pays)",
      sizes.num_pairs,
      sizes.num_texts,
    )


def prior_evaluators(
  held_out: HeldOut, prior: Prior, *, temperature: float
) -> list[Evaluator]:
  """Makes evaluators of retrieval and zero-shot sets with a prior of the texts.

  Candidates are ranked by sim + temperature log p; images as candidates have
  no prior. Metrics are those without a prior, called `prior/...`. A set is left
  out, with a warning, if the prior knows none of its texts.

  Args:
    held_out: The sets of a split.
    prior: What `make_prior` returned. For zero-shot sets it is asked for the
      names of the classes; without names, for the first prompt of each.
    temperature: The temperature of the objective.
  """

  def zeta_of(texts, what):
    log_p = prior(texts)
    if log_p is None:
      log.warning(
        "--prior: it has none of the %d texts of %s, such as %r; this set is "
        "left out",
        len(texts),
        what,
        texts[0],
      )
      return None
    return -temperature * log_p

  def of_retrieval(name, data):
    def evaluate(embed: Embed) -> Metrics:
      zeta = zeta_of(
        data.captions, f"the set {name!r}" if name else "retrieval"
      )
      if zeta is None:
        return {}
      scores = scores_of(
        data,
        embed.image(data.image),
        embed.text(data.captions),
        Sides(0.0, zeta),
      )
      return _named(f"{name}/" if name else "", scores)

    return evaluate

  def of_classes(name, get):
    def evaluate(embed: Embed) -> Metrics:
      data = get()
      names = list(data.classes) or [x[0] for x in data.prompts]
      zeta = zeta_of(names, f"zero_shot_{name}")
      if zeta is None:
        return {}
      classes = embed_classes(embed, data, name)
      scores = accuracy(
        embed.image(data.image),
        classes.embedding,
        data.label,
        zeta=zeta,
        prompts=classes.prompts,
      )
      return _named(f"zero_shot_{name}/", scores)

    return evaluate

  return [
    *(of_retrieval(name, x) for name, x in held_out.retrieval.items()),
    *(of_classes(name, x) for name, x in held_out.zero_shot.items()),
  ]


def _named(prefix: str, scores: Metrics) -> Metrics:
  return {f"prior/{prefix}{key}": x for key, x in scores.items()}
