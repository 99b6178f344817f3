"""Sums and multiples of objectives."""

from typing import Any

from nuclr_jax import checks
from nuclr_jax.objectives.base import Objective, Readout
from nuclr_jax.types import Sample, State, shows_its_call


def add(**terms: Objective) -> Objective:
  """Sums objectives; params, state and metrics are keyed by the terms' names.

  Each term's own loss is the metric `<term>/loss`. A value is read from the one
  term that has it: with `add(nuclr=nuclr(...), cyclic=...)` the temperature and
  zeta are those of `nuclr`. Popularities are written to the one term that has
  them; `assign` is None if none or several do.

  Args:
    **terms: The objectives, by name.

  Raises:
    ValueError: If there is no term, or one is not an `Objective`; from
      `readout`, if several terms have the value.

  Example:
    >>> from nuclr_jax.objectives import clip, cyclic_consistency, scale
    >>> objective = add(clip=clip(), cyclic=scale(cyclic_consistency(), 0.5))
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> loss, (_, metrics) = objective.apply(*objective.init(), pairs)
    >>> sorted(metrics)
    ['clip/loss', 'clip/temperature', 'cyclic/loss']
  """
  if not terms:
    raise ValueError("add needs at least one term, such as add(clip=clip())")
  for name, term in terms.items():
    if not isinstance(term, Objective):
      raise ValueError(
        f"{name} must be an Objective, such as clip(), got {term!r}"
      )

  def init():
    firsts = {name: term.init() for name, term in terms.items()}
    params = {name: first[0] for name, first in firsts.items()}
    return params, _join({name: first[1] for name, first in firsts.items()})

  def apply(params, state, pairs, **axes):
    losses, states, metrics = {}, {}, {}
    for name, term in terms.items():
      losses[name], (states[name], of_term) = term.apply(
        params[name], _part(state, name), pairs, **axes
      )
      of_term = of_term | {"loss": losses[name]}
      metrics |= {f"{name}/{key}": x for key, x in of_term.items()}
    return sum(losses.values()), (_join(states), metrics)

  def readout(params, state):
    readouts = {
      name: term.readout(params[name], _part(state, name))
      for name, term in terms.items()
    }
    return Readout(*(_the_one(field, readouts) for field in Readout._fields))

  def assign(state, popularities):
    (name,) = writable
    states = {term: _part(state, term) for term in terms}
    states[name] = terms[name].assign(states[name], popularities)
    return _join(states)

  writable = [name for name, term in terms.items() if term.assign]
  call = f"add({', '.join(f'{name}={x!r}' for name, x in terms.items())})"
  only = assign if len(writable) == 1 else None
  return Objective(init, apply, readout, only, call)


@shows_its_call
@checks.checked
def scale(objective: Objective, weight: checks.Finite) -> Objective:
  """Multiplies the loss, and so its gradient, by a finite number.

  The weight does not change how state moves (popularities, individual
  temperatures).

  Args:
    objective: Any objective.
    weight: A finite number; it may be negative.

  Raises:
    ValueError: If the weight is not finite.

  Example:
    >>> from nuclr_jax.objectives import clip
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> losses = [
    ...   x.apply(*x.init(), pairs)[0] for x in (clip(), scale(clip(), 2.0))
    ... ]
    >>> bool(losses[1] == 2 * losses[0])
    True
  """

  def apply(params, state, pairs, **axes):
    loss, rest = objective.apply(params, state, pairs, **axes)
    return weight * loss, rest

  return objective._replace(apply=apply)


def _the_one(field: str, readouts: dict[str, Readout]) -> Any:
  """Returns the value of the one term that has it; None if no term does."""
  values = {name: getattr(x, field) for name, x in readouts.items()}
  values = {name: x for name, x in values.items() if x is not None}
  if len(values) > 1:
    raise ValueError(
      f"the terms {' and '.join(sorted(values))} both have a {field}; which "
      "one is meant is not known, so read it from the term itself"
    )
  return next(iter(values.values()), None)


def _join(states: dict[str, State]) -> State:
  """Joins states into one, whose parts are dicts keyed by term."""
  groups = [
    {name: getattr(state.sample, group) for name, state in states.items()}
    for group in Sample._fields
  ]
  memory = {name: state.memory for name, state in states.items()}
  shared = {name: state.shared for name, state in states.items()}
  return State(Sample(*groups), memory, shared)


def _part(state: State, name: str) -> State:
  """Returns the state of one term; the inverse of `_join`."""
  sample = Sample(*(group[name] for group in state.sample))
  return State(sample, state.memory[name], state.shared[name])
