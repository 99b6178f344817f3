"""AmorLIP against its official code (provenance: golden/README.md)."""

import chex
import jax
import jax.numpy as jnp
from make_step import make_step
from normalizers import BATCH, DIM, GIVEN, TAU, batch, near
import numpy as np
import pytest

from nuclr_jax import Sides, contrib
from nuclr_jax.contrib.objectives.amorlip import network
from nuclr_jax.objectives import temperature_rules

CASES = ["readme", "clip", "adaptive"]
pytestmark = pytest.mark.filterwarnings("ignore:rho is 4.25")


def networks(kind):
  """Those of both sides, as PyTorch has them: [outputs, inputs]."""

  def side(name):
    def of(layer, *names):
      found = (
        jnp.asarray(GIVEN[f"amorlip/{kind}/{name}_mlp_{layer}_{x}"])
        for x in ("weight", "bias")
      )
      return dict(zip(names, found, strict=True))

    params = {x: of(x, "kernel", "bias") for x in ("fc1", "fc2", "fc3")}
    for x in params.values():
      x["kernel"] = x["kernel"].T
    return params | {x: of(x, "scale", "bias") for x in ("norm1", "norm2")}

  return Sides(side("image"), side("text"))


def started(objective, **changes):
  params, state = objective.init()
  return params, state._replace(shared=state.shared._replace(**changes))


@pytest.mark.parametrize("case", CASES)
def test_encoders_gradients(case, x64):
  """And the temperature's, and the logged value.

  Without `--adaptive_tau`, both lack log lambda; with it, the derivative is the
  library's, and the value has the positive twice.
  """
  given = lambda name: GIVEN[f"amorlip/{case}/{name}"]
  objective = contrib.amorlip(
    dim=DIM,
    steps_per_epoch=10,
    # rho is counted once in the official code, and on each side here.
    temperature=temperature_rules.learned(TAU, rho=float(given("rho")) / 2),
    positive_weight=float(given("pos_coef")),
    beta=float(given("beta")),
  )
  params, state = started(
    objective, previous=networks("prev"), count=jnp.int32(10)
  )
  (loss, _), (by_params, image, text) = jax.jit(make_step(objective))(
    params, state, batch()
  )
  near(image, given("grad_image"))
  near(text, given("grad_text"))
  both_own = 2 * np.mean(np.sum(batch().image * batch().text, axis=1)) / TAU
  log_lambda = sum(given(f"log_lambda_{x}").mean() for x in "IT")
  log_lambda -= 2 * np.log(BATCH)  # as rho is compared with it
  value = loss / TAU + 2  # Z / lambda instead of Z / lambda - 1
  by_tau = -by_params["log_scale"] / TAU
  if case == "adaptive":
    value -= both_own
  else:
    value -= log_lambda
    by_tau -= log_lambda - both_own
  near(TAU * value, given("loss"))
  near(-(TAU**2) * by_tau, given("grad_logit_scale"))


@pytest.mark.parametrize("case", CASES)
def test_what_the_networks_are_to_predict(case, x64):
  """Log Z, last epoch's network, and the mixture of the two."""
  given = lambda name: GIVEN[f"amorlip/{case}/{name}"]
  pairs, online, previous = batch(), networks("net"), networks("prev")
  beta, similarity = given("beta"), pairs.image @ pairs.text.T
  weight = np.where(np.eye(len(similarity)), given("pos_coef"), 1.0)
  for side, anchor, s in zip(
    Sides._fields, "IT", (similarity, similarity.T), strict=True
  ):
    x = getattr(pairs, side)
    near(network(getattr(online, side), x), given(f"log_net_{anchor}"))
    log_z = np.log(np.sum(weight * np.exp(s / TAU), axis=1))
    near(log_z, given(f"log_batch_{anchor}"))
    log_previous = network(getattr(previous, side), x)
    near(log_previous, given(f"log_prev_{anchor}"))
    mixed = beta * np.exp(log_previous) + (1 - beta) * np.exp(log_z)
    near(np.log(mixed), given(f"log_lambda_{anchor}"))


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_the_networks(case, x64):
  """Adam's first moments are a tenth of the golden gradients.

  The average moves in every second step.
  """
  given = lambda name: GIVEN[f"amorlip/{case}/{name}"]
  objective = contrib.amorlip(
    dim=DIM,
    steps_per_epoch=10,
    temperature=TAU,
    positive_weight=float(given("pos_coef")),
    beta=float(given("beta")),
    num_updates=1,
  )
  online, previous = networks("net"), networks("prev")
  params, first = started(
    objective,
    online=online,
    average=previous,
    previous=previous,
    count=jnp.int32(11),
  )
  apply = jax.jit(objective.apply)
  _, (state, metrics) = apply(params, first, batch())
  fit_loss = sum(metrics[f"log_lambda_error/{x}"] ** 2 for x in Sides._fields)
  near(fit_loss, given("fit_loss"))
  moved = state.shared
  for side in Sides._fields:
    of_side = lambda x, side=side: getattr(x, side)
    moment = of_side(moved.moment)[0]
    for layer, leaves in moment.mu.items():
      for key, mean in leaves.items():
        name = "bias" if key == "bias" else "weight"
        gradient = given(f"grad_net/{side}_mlp_{layer}_{name}").T
        near(10 * mean, gradient)
        near(1000 * moment.nu[layer][key], gradient**2)
        old, new, average, last = (
          of_side(x)[layer][key]
          for x in (online, moved.online, moved.average, previous)
        )
        step = 1e-3 * gradient / (np.abs(gradient) + 1e-8)
        near(old - new, step)
        near(average, 0.92 * last + 0.08 * new)
  _, (state, _) = apply(params, state, batch())
  chex.assert_trees_all_equal(state.shared.average, moved.average)


def test_networks_learn_and_are_replaced_each_epoch():
  """With cosines that the official code cannot exponentiate in float32."""
  pairs = batch()
  pairs = pairs._replace(text=pairs.image)
  objective = contrib.amorlip(
    dim=DIM, steps_per_epoch=40, temperature=0.01, rate=0.03
  )
  apply = jax.jit(objective.apply)
  params, state = objective.init()
  errors, previous = [], []
  for _ in range(81):
    loss, (state, metrics) = apply(params, state, pairs)
    assert np.isfinite(loss)
    errors.append(float(metrics["log_lambda_error/image"]))
    previous.append(state.shared.previous.image["fc3"]["kernel"])
  changed = [i for i in range(1, 81) if np.any(previous[i] != previous[i - 1])]
  assert changed == [39, 79]
  assert errors[39] < 0.3 * errors[0] and errors[40] > errors[39]


def test_a_beta_that_rounding_puts_below_its_range():
  """Its logarithm would be NaN, from the second epoch on."""
  found = []
  for last in (-1e-7, 0.0):
    beta = lambda t, last=last: jnp.where(t == 0, 0.5, last)
    objective = contrib.amorlip(dim=DIM, steps_per_epoch=1, beta=beta)
    params, state = objective.init()
    for _ in range(2):
      loss, (state, _) = objective.apply(params, state, batch())
    found.append(float(loss))
  assert np.isfinite(found[0]) and found[0] == found[1]


def test_a_state_of_float32_stays_so_beside_embeddings_of_float64(x64):
  """At the end of an epoch, too, where new networks are drawn."""
  objective = contrib.amorlip(dim=DIM, steps_per_epoch=1)
  params, state = objective.init()
  old = jax.tree.map(
    lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, state
  )
  _, (new, _) = jax.eval_shape(objective.apply, params, old, batch())
  chex.assert_trees_all_equal_shapes_and_dtypes(new, old)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(steps_per_epoch=0), "steps_per_epoch must be a whole number of at"),
    (dict(beta=1.5), r"beta must be in \[0, 1\] or a schedule"),
    (
      dict(temperature=temperature_rules.individual()),
      "no rows to keep them in",
    ),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    contrib.amorlip(**dict(dim=DIM, steps_per_epoch=10) | arguments)
