"""The choice of evaluators for a data set: from held-out sets to scores."""

from collections.abc import Callable, Mapping, Sequence
import functools

import numpy as np

from nuclr_jax.data.source import ClassScores, Data, HeldOut
from nuclr_jax.evaluate.evaluators import Evaluator
from nuclr_jax.evaluate.hubness import (
  CSLS,
  Method,
  corrected_retrieval_evaluator,
  make_bank,
)
from nuclr_jax.evaluate.latent import (
  classifiers_evaluator,
  losses_evaluator,
  same_class_evaluator,
  variation_evaluator,
)
from nuclr_jax.evaluate.prior import Prior, prior_evaluators
from nuclr_jax.evaluate.probe import probe_evaluator
from nuclr_jax.evaluate.retrieval import retrieval_evaluator
from nuclr_jax.evaluate.sts import sts_evaluator
from nuclr_jax.evaluate.zero_shot import zero_shot_evaluator

Suites = Mapping[str, Sequence[Evaluator]]  # by split

SPLITS = ("validation", "test")
# Scores that are meaningful for classes that were not trained on.
OF_UNSEEN = ("recall", "variation")


def choose_evaluators(data: Data) -> dict[str, list[Evaluator]]:
  """Returns the evaluators of a data set's held-out sets, by split.

  They are in the order of their metrics: retrieval, zero-shot classification,
  probes, rated sentences, then scores of classes; sets of a kind keep their
  order.

  Args:
    data: The data set.

  Returns:
    Evaluators of the splits "validation" and "test".

  Raises:
    ValueError: If a split or a score of classes is unknown, or a score cannot
      be computed from the images.

  Example:
    >>> from nuclr_jax.data.source import ImageTextSet
    >>> from nuclr_jax.evaluate.evaluators import Embed
    >>> ids, eye = np.arange(2), lambda x: np.eye(2)
    >>> captioned = ImageTextSet(np.zeros((2, 8, 8, 1)), ids, ["a", "b"], ids)
    >>> data = Data(None, None, (8, 8, 1), {"test": HeldOut({"": captioned})})
    >>> (evaluator,) = choose_evaluators(data)["test"]
    >>> evaluator(Embed(eye, eye))["mean_recall@1"]
    1.0
  """
  if unknown := sorted(set(data.held_out) - set(SPLITS)):
    raise ValueError(
      f"held-out sets must be of the splits {SPLITS}, got {unknown}"
    )
  return {
    split: _evaluators(split, data.held_out.get(split, HeldOut()))
    for split in SPLITS
  }


def correct_hubs(
  suites: Suites,
  data: Data,
  methods: Sequence[Method],
  *,
  temperature: float | None = None,
) -> dict[str, list[Evaluator]]:
  """Adds retrieval corrected for hubs, of every captioned set.

  Args:
    suites: The evaluators so far.
    data: The data set; its training pairs are embedded once for all sets.
    methods: "csls", "zeta", or strengths of zeta, see `hubness`.
    temperature: The temperature of the objective; zeta needs it.

  Returns:
    The evaluators, with those of corrected retrieval at the end of each split.
  """
  of_zeta = any(method != CSLS for method in methods)
  bank = make_bank(data.train, temperature=temperature if of_zeta else None)

  def corrected(split):
    captioned = data.held_out.get(split, HeldOut()).retrieval
    return [
      corrected_retrieval_evaluator(
        x, bank, methods, name, temperature=temperature
      )
      for name, x in captioned.items()
    ]

  return {
    split: [*suites.get(split, ()), *corrected(split)] for split in SPLITS
  }


def add_prior(
  suites: Suites, data: Data, prior: Prior, *, temperature: float
) -> dict[str, list[Evaluator]]:
  """Adds retrieval and zero-shot classification with a prior to each split.

  Args:
    suites: The evaluators so far.
    data: The data set.
    prior: What `prior.make_prior` returned.
    temperature: The temperature of the objective.

  Returns:
    The evaluators, with those that use the prior at the end of each split.
  """
  return {
    split: [
      *suites.get(split, ()),
      *prior_evaluators(
        data.held_out.get(split, HeldOut()), prior, temperature=temperature
      ),
    ]
    for split in SPLITS
  }


def _evaluators(split: str, held_out: HeldOut) -> list[Evaluator]:
  """Returns the evaluators of one split."""
  return [
    *(retrieval_evaluator(x, name) for name, x in held_out.retrieval.items()),
    *(
      _when_asked(lambda x=x, name=name: zero_shot_evaluator(x(), name))
      for name, x in held_out.zero_shot.items()
    ),
    *(
      _when_asked(lambda x=x, name=name: probe_evaluator(*x(), name))
      for name, x in held_out.probes.items()
    ),
    *(sts_evaluator(x, name) for name, x in held_out.rated.items()),
    *(
      evaluator
      for name, x in held_out.classes.items()
      for evaluator in _of_classes(split, x, name)
    ),
  ]


def _when_asked(make: Callable[[], Evaluator]) -> Evaluator:
  """Delays making an evaluator, and opening its set, until it first runs."""
  make = functools.cache(make)
  return lambda embed: make()(embed)


def _of_classes(split: str, sets: ClassScores, name: str) -> list[Evaluator]:
  """Makes the evaluators of labelled images, in the order of `sets.scores`."""
  train, test, scores, ways, num_negatives = sets
  make = {
    "classes": lambda: classifiers_evaluator(train, test, name, ways=ways),
    "losses": lambda: losses_evaluator(test, name, num_negatives=num_negatives),
    "probe": lambda: probe_evaluator(train, test, name),
    "recall": lambda: same_class_evaluator(test, name),
    "variation": lambda: variation_evaluator(test, name),
  }
  for score in scores:
    if score not in make:
      raise ValueError(f"scores must be among {tuple(make)}, got {score!r}")
  if train is None:
    scores = [x for x in scores if x in OF_UNSEEN]
  if "classes" in scores:
    _check_same_classes(split, sets, name)
  return [make[x]() for x in scores]


def _check_same_classes(split: str, sets: ClassScores, name: str) -> None:
  train, test = (set(np.unique(x.label)) for x in (sets.train, sets.test))
  if train != test:
    raise ValueError(
      f"{name}: the splits train and {split} must have images of the same "
      f"classes; these are in one only: {sorted(map(int, train ^ test))[:10]}; "
      "leave 'classes' out of the scores, or give splits that have all"
    )
