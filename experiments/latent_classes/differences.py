"""The paired differences of top-1 that README.md states."""

from collections.abc import Iterator
import itertools

import numpy as np

from experiments import labelled
from experiments.harness import Options, Results
from experiments.harness.statistics import Statistics, paired
from experiments.labelled import Rows, by_setting, course, data_of
from experiments.latent_classes import sentences

CLASSIFIERS = {"Tr": "trained", "μ": "mu"}
BATCHES = {"table 2": "as many pairs", "table 2b": "as many blocks"}


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns differences of test top-1 in points, by name.

  The score is that of the mean classifier unless a name says otherwise:

  - "figure 2: digits: 100 %: k = 64 − 16", and "more images: digits: k = 4:
    100 − 50 %"; "figure 2: digits: steps above 0" counts the differences of
    neighbouring k whose intervals are above 0, "2 of 9";
  - "table 2: digits: as many pairs: curl: b = 10 − 1", and "table 2: digits: as
    many pairs: b = 10: quick_thought − curl";
  - "table 1: digits: supervised Tr − supervised μ";
  - "few labels: digits: 10 %: contrastive μ − supervised Tr".

  "deviation: digits: 1: bound / Theorem 4.1" is the ratio of both bounds at the
  end of training.
  """
  del options
  rows = labelled.trained(results)
  found = {}
  for data in data_of(rows):
    for differences in (_negatives, _images, _blocks, _table_1, _few_labels):
      for name, difference in differences(rows, data):
        found[name] = difference.show_interval()
    steps = [x for _, x in _negatives(rows, data, whole=False)]
    above = sum(x.mean > x.half_width for x in steps)
    found[f"figure 2: {data}: steps above 0"] = f"{above} of {len(steps)}"
    for k, seeds in by_setting(rows, f"{data}/deviation").items():
      last = [
        np.mean([course(x, name)[1][-1] for x in seeds])
        for name in ("bound_by_deviation", "bound_of_pairs")
      ]
      name = f"deviation: {data}: {k}: bound / Theorem 4.1"
      found[name] = f"{last[0] / last[1]:.2f}"
  return found


def _difference(
  ours: Rows, theirs: Rows, classifier: str = "μ", other: str = "μ"
) -> Statistics:
  """Compares top-1 of two settings, each with one of `CLASSIFIERS`."""
  scores = (
    {
      row["seed"]: 100 * labelled.score(row, f"{CLASSIFIERS[name]}/top_1")
      for row in rows
    }
    for rows, name in ((ours, classifier), (theirs, other))
  )
  return paired(*scores)


def _negatives(
  rows: Rows, data: str, *, whole: bool = True
) -> Iterator[tuple[str, Statistics]]:
  """Compares neighbouring numbers of negatives, and the last with the first.

  Args:
    rows: The rows of the study.
    data: The name of a data set.
    whole: Whether the last is compared with the first as well.
  """
  by_share = _by(by_setting(rows, f"{data}/figure 2"), last=False)
  for share, by_k in by_share.items():
    steps = list(itertools.pairwise(by_k))
    if whole:
      steps.append((list(by_k)[0], list(by_k)[-1]))
    for low, high in steps:
      name = f"figure 2: {data}: {_percent(share)}: k = {high} − {low}"
      yield name, _difference(by_k[high], by_k[low])


def _images(rows: Rows, data: str) -> Iterator[tuple[str, Statistics]]:
  """Compares neighbouring amounts of images."""
  by_k = _by(by_setting(rows, f"{data}/figure 2"), last=True)
  for k, by_share in by_k.items():
    for low, high in itertools.pairwise(by_share):
      change = f"{_percent(high)[:-2]} − {_percent(low)}"
      name = f"more images: {data}: k = {k}: {change}"
      yield name, _difference(by_share[high], by_share[low])


def _blocks(rows: Rows, data: str) -> Iterator[tuple[str, Statistics]]:
  """Compares all sizes of blocks, and both methods at each size."""
  for part, batches in BATCHES.items():
    by_method = _by(by_setting(rows, f"{data}/{part}"), last=False)
    for method, by_size in by_method.items():
      for low, high in itertools.combinations(by_size, 2):
        name = f"table 2: {data}: {batches}: {method}: b = {high} − {low}"
        yield name, _difference(by_size[high], by_size[low])
    if len(by_method) == 2:
      for b, curl in by_method["curl"].items():
        name = f"table 2: {data}: {batches}: b = {b}: quick_thought − curl"
        yield name, _difference(by_method["quick_thought"][b], curl)


def _table_1(rows: Rows, data: str) -> Iterator[tuple[str, Statistics]]:
  """Compares models and classifiers that have learned from all labels."""
  models = dict(by_setting(rows, f"{data}/table 1"))
  if data == sentences.DATA:  # as in Table 1 of the README
    blocks = by_setting(rows, f"{data}/table 2b")
    models["contrastive"] = blocks.get(f"curl {sentences.BLOCKS[-1]}", [])
  kinds = [
    (model, kind)
    for model in ("supervised", "contrastive")
    for kind in CLASSIFIERS
  ]
  for (model, kind), (other, its) in itertools.combinations(kinds, 2):
    difference = _difference(models[model], models[other], kind, its)
    yield f"table 1: {data}: {model} {kind} − {other} {its}", difference


def _few_labels(rows: Rows, data: str) -> Iterator[tuple[str, Statistics]]:
  """Compares contrastive embeddings with the supervised model's head."""
  by_model = _by(by_setting(rows, f"{data}/few labels"), last=False)
  for share, supervised in by_model.get("supervised", {}).items():
    for kind in CLASSIFIERS:
      contrastive = by_model["contrastive"][share]
      name = f"few labels: {data}: {_percent(share)}: contrastive {kind} − "
      difference = _difference(contrastive, supervised, kind, "Tr")
      yield f"{name}supervised Tr", difference


def _by(settings: dict[str, list], *, last: bool) -> dict[str, dict[str, list]]:
  """Groups settings of two words by the first, or the last, in order."""
  words = sorted((x.split() for x in settings), key=lambda x: float(x[1]))
  found: dict[str, dict[str, list]] = {}
  if last:
    for first, second in sorted(words, key=lambda x: float(x[0])):
      found.setdefault(second, {})[first] = settings[f"{first} {second}"]
    return found
  for first, second in words:
    found.setdefault(first, {})[second] = settings[f"{first} {second}"]
  return found


def _percent(share: str) -> str:
  return f"{100 * float(share):g} %"
