"""The study of experiments/normalizers: what methods are asked, and answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from experiments.harness import Results, command
from experiments.normalizers import __main__ as main
from experiments.normalizers import (
  denominators,
  measure,
  plan,
  predictions,
  tables,
)
from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.contrib.objectives.amorlip import amorlip, network
from nuclr_jax.contrib.objectives.neuclip import neuclip
from nuclr_jax.lab.train.hooks import exact_log_u
from nuclr_jax.types import Sizes

N, DIM, TAU = 12, 6, 0.3
SIZES = Sizes(N, N, N - 1)
LOG_TERMS = np.log(N - 1)


@pytest.fixture(scope="module")
def pairs():
  """Pairs of which the first two share a text."""
  x = np.random.default_rng(0).normal(size=(2, N, DIM)).astype(np.float32)
  x[1, 1] = x[1, 0]
  x /= np.linalg.norm(x, axis=-1, keepdims=True)
  ids = np.arange(N, dtype=np.int32)
  return Pairs(*x, ids, ids, np.maximum(ids - 1, 0))


def logits_of(pairs, tau=TAU):
  """Both sides' h_ij of all pairs; the own one is -inf, as shared texts are."""
  sim = (pairs.image @ pairs.text.T).astype(float)
  found = []
  for x in (sim, sim.T):
    h = (x - np.diag(x)[:, None]) / tau
    same = pairs.text_id[:, None] == pairs.text_id
    found.append(np.where(same, -np.inf, h))
  return Sides(*found)


def asked(name, objective, pairs, batch_size=N, state=None, **settings):
  params, first = objective.init()
  return denominators.ask(
    *(denominators.READERS[name], objective, params, state or first, pairs),
    sizes=SIZES,
    batch_size=batch_size,
    seed=0,
    temperature=TAU,
    **settings,
  )


def test_exact_is_the_sum_over_all_negatives(pairs):
  zeta = Sides(*np.random.default_rng(1).normal(size=(2, N)) * 0.1)
  zeta.text[1] = zeta.text[0]
  found = exact_log_u(pairs, zeta, temperature=TAU)
  h = logits_of(pairs)
  for x, log_h, z in zip(found, h, (zeta.text, zeta.image), strict=True):
    np.testing.assert_allclose(x, logsumexp(log_h - z / TAU, 1), rtol=1e-5)


def test_a_batch_of_all_pairs_is_exact(pairs):
  right = [logsumexp(x, axis=1) for x in logits_of(pairs)]
  sogclr = objectives.sogclr(**SIZES._asdict(), temperature=TAU, gamma=1.0)
  found = asked("rows", sogclr, pairs)
  for what in ("used", "batch"):
    np.testing.assert_allclose(np.stack(found[what]), right, rtol=1e-5)
  assert np.all(np.stack(found["stored"]) == -np.inf)  # no pair was seen
  clip = objectives.clip(temperature=TAU, learn_temperature=False)
  used = asked("batch", clip, pairs)["used"]
  np.testing.assert_allclose(np.stack(used), np.logaddexp(right, 0), rtol=1e-5)


def test_each_batch_meets_the_same_state(pairs):
  sogclr = objectives.sogclr(**SIZES._asdict(), temperature=TAU, gamma=0.5)
  _, state = sogclr.init()
  rows = state.sample.pair._replace(log_u=Sides(jnp.zeros(N), jnp.ones(N)))
  state = state._replace(sample=state.sample._replace(pair=rows))
  found = asked("rows", sogclr, pairs, batch_size=4, state=state)
  np.testing.assert_array_equal(found["stored"].text, np.ones(N))
  phi = np.exp(np.stack(found["batch"]))
  used = np.log(0.5 * np.exp(np.stack(found["stored"])) + 0.5 * phi)
  np.testing.assert_allclose(np.stack(found["used"]), used, rtol=1e-5)


def test_prototypes_that_are_all_texts_are_nearly_exact(pairs):
  objective = neuclip(
    dim=DIM, num_prototypes=N, temperature=TAU, num_updates=0, epsilon=1e-6
  )
  found = asked("prototypes", objective, pairs, epsilon=1e-6)
  for x, own, other in zip(
    found["used"],
    (pairs.image, pairs.text),
    (pairs.text, pairs.image),
    strict=True,
  ):
    own_sim = np.sum(pairs.image * pairs.text, axis=1)
    h = (own @ other.T - own_sim[:, None]) / TAU
    right = logsumexp(h, axis=1) - np.log(N) + LOG_TERMS
    np.testing.assert_allclose(x, right, rtol=1e-4)


def test_prototypes_are_not_asked_in_the_step_of_a_restart(pairs):
  period = measure.period_of(N)
  objective = neuclip(
    dim=DIM, num_prototypes=N, num_updates=0, restart_every=period
  )
  params, state = objective.init()
  pairs = jax.tree.map(jnp.asarray, pairs)
  _, (state, _) = objective.apply(params, state, pairs)
  count = jnp.int32(period)
  state = state._replace(shared=state.shared._replace(count=count))
  asked = measure.between_restarts(state, N)
  other = pairs._replace(image=pairs.text, text=pairs.image)
  for before, same in ((state, False), (asked, True)):
    _, (after, _) = objective.apply(params, before, other)
    vectors = before.shared.vector.text, after.shared.vector.text
    assert np.array_equal(*vectors) == same


def test_a_network_is_mixed_with_the_batch(pairs):
  objective = amorlip(
    dim=DIM, steps_per_epoch=5, temperature=TAU, beta=0.8, positive_weight=1e-3
  )
  _, state = objective.init()
  found = asked("network", objective, pairs, beta=0.8, positive_weight=1e-3)
  own = np.sum(pairs.image * pairs.text, axis=1) / TAU
  for x, params, stored, used, h in zip(
    *((pairs.image, pairs.text), state.shared.previous),
    *(found["stored"], found["used"], logits_of(pairs)),
    strict=True,
  ):
    log_lambda = network(params, jnp.asarray(x)) - own
    np.testing.assert_allclose(stored, log_lambda, rtol=1e-4)
    z = np.exp(logsumexp(h, axis=1)) + 1e-3
    right = np.log(0.8 * np.exp(log_lambda) + 0.2 * z)
    np.testing.assert_allclose(used, right, rtol=1e-4)


def test_nothing_to_compare_is_no_error():
  nothing = np.full(3, np.nan)
  assert denominators.error(nothing, np.zeros(3)) is None
  assert denominators.error(np.ones(3), np.zeros(3))["sd"] == 0


@pytest.mark.parametrize("name", plan.ARMS)
def test_configs_are_those_of_the_arms(name):
  config = measure.make_config(plan.make_run("all, 512", name, 3))
  assert config.batch_size == 512 and config.num_epochs == 4.0
  assert config.objective.temperature == plan.TAU and config.seed == 3
  assert config.optimizer.learning_rate.value == 4e-3
  if name == "neuclip":
    assert config.objective.restart_every == 40


def played():
  """Rows in which the error of each arm is its place in the plan."""
  options = command.parse_arguments(main.STUDY, [])
  rows = {}
  for run in plan.plan(options, {}):
    x = 1.0 + list(plan.ARMS).index(run.setting) + 0.1 * run.seed
    x *= 2 if run.part == "all, 512" else 1
    side = {"mean": -x, "rms": 2 * x, "sd": x}
    errors = {what: {"image": side, "text": side} for what in tables.WHATS}
    if run.setting == "clip":
      errors["stored"] = {"image": None, "text": None}
    exact = {"image": {"mean": 3.0, "sd": 1.0}, "text": {"mean": 5.0, "sd": 1}}
    rows[run.key] = {"errors": errors, "exact": exact, "seed": run.seed}
  return options, rows


def test_tables_of_played_rows():
  options, rows = played()
  assert len(rows) == 2 * (8 * 3 + 2)
  shown = main.STUDY.tables(options, Results(rows, planned=len(rows)))
  assert "CLIP |" not in shown["stored"].replace("NeuCLIP", "")
  line = next(x for x in shown["growth"].splitlines() if "γ 0.8" in x)
  assert line.split(" | ")[1:3] == ["2.00 ± 0.00", "2.00 ± 0.00"]
  assert "4.00 ± 0.00" in shown["exact"]
  outcomes = predictions.of_errors(rows)
  assert {x.prediction for x in outcomes} == set(range(1, 11))
  by_name = {x.what: x for x in outcomes}
  gap = by_name["all, 512, used, sd: NeuCLIP − SogCLR, γ 0.8"]
  assert gap.found.mean == pytest.approx(10) and gap.verdict == "fails"


def test_empty_tables_have_no_rows():
  options, _ = played()
  shown = main.STUDY.tables(options, Results({}, planned=1))
  assert shown["used"].count("\n") == 1


def test_costs_have_outcomes():
  found = predictions.of_costs(
    {"clip": {"ratio_to_clip": 1.0}, "neuclip": {"ratio_to_clip": 1.2}}
  )
  assert [x.verdict for x in found] == ["holds", "fails"]
