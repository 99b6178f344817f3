"""The published PyTorch losses, step by step (provenance: golden/README.md)."""

import jax
import jax.numpy as jnp
from make_step import make_step
import numpy as np
import pytest
from repository import GOLDEN

from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.objectives import denominator, temperature_rules, zeta_rules

LOSSES = np.load(GOLDEN / "official_losses.npz")
FIRST = ("nuclr_first_tau0.05", "nuclr_first_tau0.01", "nuclr_first_frozen")
STEPS = ("nuclr_steps", "nuclr_diamond_steps")
PRECISION = dict(float64=1e-9, float32=1e-4)


def value(case, name):
  return LOSSES[f"{case}/{name}"]


def assert_close(found, expected, tolerance, what):
  """Largest error, relative to the largest entry."""
  found, expected = np.asarray(found), np.asarray(expected)
  scale = np.max(np.abs(expected)) or 1.0
  error = np.max(np.abs(found - expected)) / scale
  assert error < tolerance, f"{what}: relative error {error:.1e}"


def compiled(objective, params):
  """Compiles `(state, pairs) -> (loss, state, gradients)`."""
  step = jax.jit(make_step(objective))

  def run(state, pairs):
    (loss, (state, _)), (_, image, text) = step(params, state, pairs)
    return loss, state, Sides(image, text)

  return run


def batch(step, dtype):
  return Pairs(
    jnp.asarray(value(step, "image"), dtype),
    jnp.asarray(value(step, "text"), dtype),
    jnp.asarray(value(step, "ids")),
  )


@pytest.fixture(params=PRECISION)
def dtype(request):
  with jax.enable_x64(request.param == "float64"):
    yield request.param


def nuclr(case, steps):
  """The official settings; the rates are a schedule over `steps`."""

  def rate(name):
    tau = float(value(case, "tau"))  # the unit of our rates
    values = np.array([float(value(step, name)) / tau for step in steps])
    return lambda count: jnp.asarray(values)[count]

  # xi changes once per epoch, and these are fewer steps.
  xi = float(value(case, "xi"))
  positive = denominator.released(steps_per_epoch=10, init=xi)
  if "diamond" in case:
    positive = denominator.by_zeta()
  return objectives.nuclr_variant(
    num_pairs=int(value(case, "n")),
    temperature=float(value(case, "tau")),
    gamma=float(value(case, "gamma")),
    zeta=zeta_rules.batch(
      estimator="official",
      rate=Sides(rate("eta_I"), rate("eta_T")),
      momentum=1 - float(value(case, "theta")),
    ),
    positive=positive,
  )


def with_zeta(case, state, dtype):
  sample = state.sample
  return state._replace(
    sample=sample._replace(
      image=sample.image._replace(
        zeta=jnp.asarray(value(case, "zeta_I0"), dtype)
      ),
      text=sample.text._replace(
        zeta=jnp.asarray(value(case, "zeta_T0"), dtype)
      ),
    )
  )


@pytest.mark.parametrize(
  ("case", "dtype"),
  [(x, "float64") for x in FIRST] + [("nuclr_first_tau0.01", "float32")],
  indirect=["dtype"],
)
def test_nuclr_first_visit(case, dtype):
  objective = nuclr(case, [case])
  params, state = objective.init()
  pairs, state = batch(case, dtype), with_zeta(case, state, dtype)
  _, state, grads = compiled(objective, params)(state, pairs)
  sample, ids, tol = state.sample, pairs.pair_id, PRECISION[dtype]
  assert_close(grads[0], value(case, "grad_image"), tol, "grad_image")
  assert_close(grads[1], value(case, "grad_text"), tol, "grad_text")
  log_u = sample.pair.log_u
  assert_close(log_u.image[ids], value(case, "log_u_I"), tol, "log_u.image")
  assert_close(log_u.text[ids], value(case, "log_u_T"), tol, "log_u.text")
  assert_close(sample.image.zeta, value(case, "zeta_I1"), tol, "zeta.image")
  assert_close(sample.text.zeta, value(case, "zeta_T1"), tol, "zeta.text")
  assert_close(sample.image.momentum, value(case, "mom_I"), tol, "momentum")
  assert_close(sample.text.momentum, value(case, "mom_T"), tol, "momentum")
  if "frozen" in case:
    assert not np.any(sample.text.momentum)


@pytest.mark.parametrize("case", STEPS)
def test_nuclr_four_steps(case, dtype):
  tol, steps = PRECISION[dtype], [f"{case}/{number}" for number in range(4)]
  objective = nuclr(case, steps)
  params, first = objective.init()
  run, state = compiled(objective, params), with_zeta(case, first, dtype)
  for step in steps:
    _, state, grads = run(state, batch(step, dtype))
    assert_close(grads[0], value(step, "grad_image"), tol, "grad_image")
    assert_close(grads[1], value(step, "grad_text"), tol, "grad_text")
    sample = state.sample
    for side, letter in (("image", "I"), ("text", "T")):
      log_u = np.asarray(getattr(sample.pair.log_u, side))
      expected = value(step, f"log_u_{letter}")
      seen = np.isfinite(expected)
      np.testing.assert_array_equal(np.isfinite(log_u), seen)
      assert_close(log_u[seen], expected[seen], tol, f"log_u.{side}")
      rows = getattr(sample, side)
      assert_close(rows.zeta, value(step, f"zeta_{letter}"), tol, "zeta")
      assert_close(rows.momentum, value(step, f"mom_{letter}"), tol, "momentum")


def test_sogclr_three_steps(dtype):
  case = "sogclr_steps"
  # The official code adds 1e-10 to a denominator.
  tol = max(PRECISION[dtype], 1e-6)
  objective = objectives.sogclr(
    num_pairs=int(value(case, "n")),
    temperature=float(value(case, "tau")),
    gamma=float(value(case, "gamma")),
  )
  params, state = objective.init()
  run = compiled(objective, params)
  for number in range(3):
    step = f"{case}/{number}"
    pairs = batch(step, dtype)
    _, state, grads = run(state, pairs)
    assert_close(grads[0], value(step, "grad_image"), tol, "grad_image")
    assert_close(grads[1], value(step, "grad_text"), tol, "grad_text")
    log_u, ids = state.sample.pair.log_u, pairs.pair_id
    assert_close(log_u.image[ids], value(step, "log_u_I"), tol, "log_u.image")
    assert_close(log_u.text[ids], value(step, "log_u_T"), tol, "log_u.text")


def test_isogclr_three_steps(dtype):
  case = "isogclr_steps"
  # The official code adds 1e-10 to a denominator.
  tol = max(PRECISION[dtype], 1e-7)
  number = lambda name: float(value(case, name))
  objective = objectives.isogclr(
    num_pairs=int(value(case, "n")),
    temperature=number("tau_init"),
    gamma=number("gamma"),
    rho=number("rho"),
    rate=number("eta") / number("tau_init"),
    momentum=1 - number("beta_u"),
    bounds=(number("tau_min"), number("tau_max")),
  )
  assert number("grad_clip") == temperature_rules.MAX_GRADIENT
  params, state = objective.init()
  run = compiled(objective, params)
  for step in [f"{case}/{i}" for i in range(3)]:
    pairs = batch(step, dtype)
    _, state, grads = run(state, pairs)
    assert_close(grads[0], value(step, "grad_image"), tol, "grad_image")
    assert_close(grads[1], value(step, "grad_text"), tol, "grad_text")
    rows, ids = state.sample.pair, pairs.pair_id
    for side, letter in (("image", "I"), ("text", "T")):
      log_u = getattr(rows.log_u, side)[ids]
      tau = getattr(rows.temperature, side)
      momentum = getattr(rows.temperature_momentum, side)
      assert_close(log_u, value(step, f"log_u_{letter}"), tol, "log_u")
      assert_close(tau, value(step, f"tau_{letter}"), tol, "temperature")
      expected = value(step, f"tau_mom_{letter}")
      assert_close(momentum, expected, tol, "temperature_momentum")


def clip(case, learn):
  tau = float(value(case, "tau"))
  return objectives.clip(temperature=tau, learn_temperature=learn)


def debiased(case, _):
  return objectives.debiased(
    temperature=float(value(case, "tau")),
    tau_plus=float(value(case, "tau_plus")),
  )


def cyclip(case, learn):
  return objectives.cyclip(
    temperature=float(value(case, "tau")),
    learn_temperature=learn,
    in_modal=float(value(case, "lambda_inmodal")),
    cross_modal=float(value(case, "lambda_crossmodal")),
  )


def siglip(case, _):
  return objectives.siglip(
    init_scale=float(value(case, "scale")),
    init_bias=float(value(case, "bias")),
  )


def spectral(case, _):
  assert value(case, "mu") == 1
  return objectives.spectral()


STATELESS = dict(
  infonce=clip,
  dcl=debiased,
  cyclip=cyclip,
  siglip=siglip,
  siglip_bidir=siglip,
  spectral=spectral,
)


@pytest.mark.parametrize(
  "case, learn_temperature",
  [(case, False) for case in STATELESS] + [("infonce", True), ("cyclip", True)],
)
def test_stateless(case, learn_temperature, dtype):
  tol = PRECISION[dtype]
  objective = STATELESS[case](case, learn_temperature)
  image = jnp.asarray(value(case, "image"), dtype)
  text = jnp.asarray(value(case, "text"), dtype)
  pairs = Pairs(image, text, jnp.arange(len(image)))
  params, state = objective.init()
  loss, _, grads = compiled(objective, params)(state, pairs)
  assert_close(loss, value(case, "loss"), tol, "loss")
  expected = Sides(value(case, "grad_image"), value(case, "grad_text"))
  if case == "spectral":
    # The official code moves rows of norm >= 1 to the sphere, so that rounding
    # decides which rows of the golden gradient are tangential. Ours need unit
    # norm, whose gradient removes the other part again.
    grads = Sides(tangential(grads.image, image), tangential(grads.text, text))
    expected = Sides(
      tangential(expected.image, image), tangential(expected.text, text)
    )
  assert_close(grads.image, expected.image, tol, "grad_image")
  assert_close(grads.text, expected.text, tol, "grad_text")


def tangential(gradient, x):
  return gradient - jnp.sum(gradient * x, axis=1, keepdims=True) * x
