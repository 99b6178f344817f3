"""The choice of evaluators for a data set: from held-out sets to scores."""

from collections.abc import Callable, Mapping, Sequence
import functools

from nuclr_jax.lab.data.source import Data, HeldOut
from nuclr_jax.lab.evaluate.evaluators import Evaluator
from nuclr_jax.lab.evaluate.hubness import (
  CSLS,
  MakeBank,
  Method,
  corrected_retrieval_evaluator,
  make_bank,
)
from nuclr_jax.lab.evaluate.prior import Prior, prior_evaluators
from nuclr_jax.lab.evaluate.probe import probe_evaluator
from nuclr_jax.lab.evaluate.retrieval import retrieval_evaluator
from nuclr_jax.lab.evaluate.sts import sts_evaluator
from nuclr_jax.lab.evaluate.zero_shot import zero_shot_evaluator

Suites = Mapping[str, Sequence[Evaluator]]  # by split

SPLITS = ("validation", "test")


def choose_evaluators(
  data: Data, more: Callable[[HeldOut], Sequence[Evaluator]] = lambda _: ()
) -> dict[str, list[Evaluator]]:
  """Returns the evaluators of a data set's held-out sets, by split.

  They are in the order of their metrics: retrieval, zero-shot classification,
  probes, rated sentences, then what other sets bring; sets of a kind keep their
  order.

  Args:
    data: The data set.
    more: Makes further evaluators of the held-out sets of a split.

  Returns:
    Evaluators of the splits "validation" and "test".

  Raises:
    ValueError: If a split is unknown, or a set cannot make its evaluators.

  Example:
    >>> from nuclr_jax.lab.data.source import ImageTextSet
    >>> from nuclr_jax.lab.evaluate.evaluators import Embed
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
  found = {split: data.held_out.get(split, HeldOut()) for split in SPLITS}
  return evaluators_of(found, more)


def evaluators_of(
  held_out: Mapping[str, HeldOut],
  more: Callable[[HeldOut], Sequence[Evaluator]] = lambda _: (),
) -> dict[str, list[Evaluator]]:
  """Returns the evaluators of sets by split, as `choose_evaluators` does.

  Args:
    held_out: The sets of any splits.
    more: Makes further evaluators of the sets of a split.
  """
  return {
    split: [*_evaluators(split, sets), *(more(sets) if any(sets) else ())]
    for split, sets in held_out.items()
  }


def bank_for(
  data: Data, methods: Sequence[Method], *, temperature: float | None = None
) -> MakeBank:
  """Makes the bank of a data set's training pairs that methods need.

  Args:
    data: The data set; its training pairs are embedded once for each model.
    methods: See `correct_hubs`.
    temperature: The temperature of the objective.
  """
  of_zeta = any(method != CSLS for method in methods)
  return make_bank(data.train, temperature=temperature if of_zeta else None)


def correct_hubs(
  suites: Suites,
  data: Data,
  methods: Sequence[Method],
  *,
  temperature: float | None = None,
  bank: MakeBank | None = None,
) -> dict[str, list[Evaluator]]:
  """Adds retrieval corrected for hubs, of every captioned set.

  Args:
    suites: The evaluators so far.
    data: The data set.
    methods: "csls", "zeta", or strengths of zeta, see `hubness`.
    temperature: The temperature of the objective; zeta needs it.
    bank: What `bank_for` returned; None = that of these data.

  Returns:
    The evaluators, with those of corrected retrieval at the end of each split.
  """
  if bank is None:
    bank = bank_for(data, methods, temperature=temperature)

  def corrected(split):
    captioned = data.held_out.get(split, HeldOut()).retrieval
    return [
      corrected_retrieval_evaluator(
        x, bank, methods, name, temperature=temperature
      )
      for name, x in captioned.items()
    ]

  return {
    split: [*suites.get(split, ()), *corrected(split)]
    for split in _splits(suites, data)
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
    for split in _splits(suites, data)
  }


def _splits(suites: Suites, data: Data) -> list[str]:
  return list(dict.fromkeys([*suites, *data.held_out]))


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
      for name, x in held_out.others.items()
      for evaluator in x.evaluators(split, name)
    ),
  ]


def _when_asked(make: Callable[[], Evaluator]) -> Evaluator:
  """Delays making an evaluator, and opening its set, until it first runs."""
  make = functools.cache(make)
  return lambda embed: make()(embed)
