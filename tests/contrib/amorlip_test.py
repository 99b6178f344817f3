"""AmorLIP against its official code (provenance: golden/README.md)."""

import jax
import jax.numpy as jnp
from make_step import make_step
from normalizers import DIM, GIVEN, TAU, batch, near
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
  """The temperature's is that of the case `adaptive`, where it is exact."""
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
  _, (by_params, image, text) = jax.jit(make_step(objective))(
    params, state, batch()
  )
  near(image, given("grad_image"))
  near(text, given("grad_text"))
  if case == "adaptive":
    scale = 1 / TAU  # d loss / d log_scale = scale d loss / d scale
    near(by_params["log_scale"] / scale, given("grad_logit_scale"))


@pytest.mark.parametrize("case", CASES)
def test_networks_and_their_gradients(case, x64):
  """Also log Z, last epoch's network, and the mixture of the two."""
  given = lambda name: GIVEN[f"amorlip/{case}/{name}"]
  pairs, online, previous = batch(), networks("net"), networks("prev")
  beta, similarity, total = given("beta"), pairs.image @ pairs.text.T, 0.0
  weight = np.where(np.eye(len(similarity)), given("pos_coef"), 1.0)
  for side, anchor, s in zip(
    Sides._fields, "IT", (similarity, similarity.T), strict=True
  ):
    params, x = getattr(online, side), getattr(pairs, side)
    near(network(params, x), given(f"log_net_{anchor}"))
    log_z = np.log(np.sum(weight * np.exp(s / TAU), axis=1))
    near(log_z, given(f"log_batch_{anchor}"))
    log_previous = network(getattr(previous, side), x)
    near(log_previous, given(f"log_prev_{anchor}"))
    target = given(f"log_lambda_{anchor}")
    near(
      np.log(beta * np.exp(log_previous) + (1 - beta) * np.exp(log_z)), target
    )
    loss, found = jax.value_and_grad(
      lambda params, x=x, target=target: jnp.mean(
        (network(params, x) - target) ** 2
      )
    )(params)
    total += loss
    for layer, leaves in found.items():
      for key, x in leaves.items():
        name = "bias" if key == "bias" else "weight"
        near(x.T, given(f"grad_net/{side}_mlp_{layer}_{name}"))
  near(total, given("fit_loss"))


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
