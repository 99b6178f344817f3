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


@pytest.mark.parametrize("case", ["readme", "clip", "adaptive"])
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


def test_networks_and_their_gradients(x64):
  pairs, online = batch(), networks("net")
  for side, anchor in zip(Sides._fields, "IT", strict=True):
    params, x = getattr(online, side), getattr(pairs, side)
    near(network(params, x), GIVEN[f"amorlip/readme/log_net_{anchor}"])
    target = jnp.asarray(GIVEN[f"amorlip/readme/log_lambda_{anchor}"])
    found = jax.grad(
      lambda params, x=x, target=target: jnp.mean(
        (network(params, x) - target) ** 2
      )
    )(params)
    for layer, name, key in (
      ("fc1", "weight", "kernel"),
      ("norm2", "weight", "scale"),
      ("fc3", "bias", "bias"),
    ):
      expected = GIVEN[f"amorlip/readme/grad_net/{side}_mlp_{layer}_{name}"]
      near(found[layer][key].T, expected)


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
