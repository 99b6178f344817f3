"""What a loop of one's own may hand over by mistake, and what it is told."""

import jax
import jax.numpy as jnp
import make_pairs
import pytest

from nuclr_jax import contrib, objectives
from nuclr_jax.objectives import zeta_rules

N, B, DIM = 24, 8, 4
QUEUE = zeta_rules.queue(dim=DIM, size=16)
OBJECTIVES = dict(
  clip=objectives.clip(),
  siglip=objectives.siglip(),
  sogclr=objectives.sogclr(num_pairs=N),
  isogclr=objectives.isogclr(num_pairs=N, rho=1.0),
  nuclr=objectives.nuclr(num_pairs=N, zeta=QUEUE),
  debiased=objectives.debiased(),
  cyclip=objectives.cyclip(),
  vicreg=contrib.vicreg(),
  spectral=objectives.spectral(),
  sum=objectives.add(
    clip=objectives.clip(), nuclr=objectives.nuclr(num_pairs=N)
  ),
  multiple=objectives.scale(objectives.sogclr(num_pairs=N), 0.5),
)
STATEFUL = ("sogclr", "isogclr", "nuclr", "sum", "multiple")
PAIRS = make_pairs.make_pairs(0, batch=B, dim=DIM, num_pairs=N)
IMAGE, ID = PAIRS.image, PAIRS.pair_id


def refused(objective, params, state, pairs, message, **axes):
  """Both while `jax.jit` traces it, and without."""

  def apply(params, state, pairs):
    return objective.apply(params, state, pairs, **axes)

  for f in (apply, jax.jit(apply)):
    with pytest.raises(ValueError, match=message):
      f(params, state, pairs)


BATCHES = {
  "a tuple": (tuple(PAIRS[:3]), "nuclr_jax.Pairs.* got tuple"),
  "a mapping": (PAIRS._asdict(), "nuclr_jax.Pairs.* got dict"),
  "an array": (IMAGE, "nuclr_jax.Pairs.* got .*; the order is apply"),
  "nothing": (None, "nuclr_jax.Pairs.* got NoneType"),
  "one axis": (dict(image=IMAGE[:, 0]), r"got image float32\[8\], text"),
  "complex": (dict(image=IMAGE + 0j), r"got image complex64\[8, 4\]"),
  "whole": (dict(text=ID[:, None]), r"text int32\[8, 1\]"),
  "no image": (dict(image=None), "got image NoneType"),
  "a list": (dict(image=[1.0, 2.0]), "got image list"),
  "other sizes": (
    dict(text=IMAGE[:5]),
    r"image float32\[8, 4\], text .*\[5, 4",
  ),
  "floating ids": (dict(pair_id=ID * 1.0), r"pair_id float32\[8\]"),
  "no ids": (dict(pair_id=None), "pair_id NoneType"),
  "few ids": (dict(text_id=ID[:5]), r"text_id int32\[5\]"),
  "no rows": (
    {k: x[:0] for k, x in PAIRS._asdict().items() if x is not None},
    r"none of them empty; got image float32\[0, 4\]",
  ),  # fmt: skip
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name, objective):
  pairs, message = BATCHES[name]
  if isinstance(pairs, dict) and name != "a mapping":
    pairs = PAIRS._replace(**pairs)
  refused(objective, *objective.init(), pairs, message)


@pytest.mark.parametrize("axes", [3, (3,), object()])
def test_axes(axes):
  for objective in (OBJECTIVES["clip"], OBJECTIVES["sum"]):
    message = "axes must be the name of a mesh axis, several names, .. or None"
    params, state = objective.init()
    with pytest.raises(ValueError, match=message):
      objective.apply(params, state, PAIRS, axes=axes)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_belongs_to_no_or_another_objective(name):
  objective = OBJECTIVES[name]
  params, state = objective.init()
  if jax.tree.leaves((params, state)):
    refused(objective, state, params, PAIRS, "params must have .* this State ")
  refused(
    objective, params, PAIRS, state, "state must have .* this Pairs lacks"
  )
  wrong = objectives.debiased() if name in STATEFUL else OBJECTIVES["sogclr"]
  refused(
    objective, params, wrong.init()[1], PAIRS, "state must have .* this State "
  )
  refused(
    objective, {"scale": ID}, state, PAIRS, "params must have .* scale beyond"
  )


@pytest.mark.parametrize("name", STATEFUL)
def test_states_in_other_containers(name):
  """Some libraries restore NamedTuples as mappings."""
  params, state = OBJECTIVES[name].init()
  message = "init makes, in a State; this dict lacks nothing"
  refused(OBJECTIVES[name], params, state._asdict(), PAIRS, message)


@pytest.mark.parametrize("name", ["sogclr", "nuclr"])
def test_states_whose_counters_were_cast(name):
  """In bfloat16, a counter stops at 256, and ids are rounded."""
  params, state = OBJECTIVES[name].init()
  cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)
  message = "lacks .*shared/count of integers, and has .*shared/count beyond"
  refused(OBJECTIVES[name], params, cast, PAIRS, message)


@pytest.mark.parametrize(
  "right, made",
  [
    (OBJECTIVES["sogclr"], objectives.sogclr(num_pairs=N - 1)),
    (OBJECTIVES["multiple"], objectives.sogclr(num_pairs=N - 1)),
    (
      OBJECTIVES["nuclr"],
      objectives.nuclr(num_pairs=N, zeta=zeta_rules.queue(dim=DIM, size=12)),
    ),
    (
      objectives.nuclr(num_pairs=N),
      objectives.nuclr(num_pairs=N, num_texts=N - 1),
    ),
  ],
)
def test_states_of_fewer_rows(right, made):
  """Rows beyond the end would be read as NaN, and never written."""
  wrong = made.init()[1]
  message = "the state has a table of (12|23) rows where the objective needs"
  refused(right, {}, wrong, PAIRS._replace(pair_id=jnp.arange(B)), message)


def test_containers_of_params_are_free():
  """Libraries have their own, with the same names."""

  class Own(dict):
    pass

  jax.tree_util.register_pytree_with_keys(
    Own,
    lambda x: (
      [(jax.tree_util.DictKey(k), x[k]) for k in sorted(x)],
      sorted(x),
    ),
    lambda keys, values: Own(zip(keys, values, strict=True)),
  )
  objective = OBJECTIVES["siglip"]
  params, state = objective.init()
  loss, _ = objective.apply(Own(params), state, PAIRS)
  assert loss == objective.apply(params, state, PAIRS)[0]


def test_an_init_that_cannot_be_traced():
  """It may compute on the host; then nothing is compared."""

  def init():
    return {"scale": jnp.full((), float(jnp.ones(())))}, ()

  def apply(params, state, pairs):
    return params["scale"] * jnp.sum(pairs.image), (state, {})

  objective = objectives.Objective(init, apply)
  loss, _ = objective.apply(*objective.init(), PAIRS)
  assert loss == jnp.sum(PAIRS.image)


def test_other_integers_are_ids_too():
  objective = OBJECTIVES["nuclr"]
  pairs = PAIRS._replace(pair_id=jax.device_get(ID).astype("uint8"))
  assert jnp.isfinite(objective.apply(*objective.init(), pairs)[0])
