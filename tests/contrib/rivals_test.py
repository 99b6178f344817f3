"""What all sources of the denominator with a learned temperature must do."""

import jax
import jax.numpy as jnp
from normalizers import BATCH, DIM, GIVEN, NUM_PAIRS, TAU, batch
import numpy as np
import pytest

from nuclr_jax import Sides, contrib, objectives
from nuclr_jax.objectives import denominator, temperature_rules, zeta_rules


def drrho(**arguments):
  """Relative to the reference of the first golden batch."""
  objective = objectives.sogclr(**arguments)
  reference = Sides(*(GIVEN[f"inputs/ref_{x}"][0] for x in Sides._fields))

  def apply(params, state, pairs, **axes):
    relative = objectives.relative_to(pairs, reference)
    return objective.apply(params, state, relative, **axes)

  return objective._replace(apply=apply)


def test_derivatives_by_the_temperature(x64):
  """Against differences of the loss, at first visits: u depends on tau there.

  AmorLIP's lambda is the batch's in the first epoch. What FastCLIP-v3 released
  is not the derivative d of its loss L by log(1 / tau), but 2 d + L.
  """
  learned = temperature_rules.learned(TAU, rho=1.5)
  size = dict(num_pairs=NUM_PAIRS, temperature=learned)
  objective = objectives.add(
    sogclr=objectives.sogclr(**size),
    scent=objectives.sogclr(
      **size, gamma=denominator.Adaptive(2.0), positive_weight=0.4
    ),
    drrho=drrho(**size, positive_weight=4.0),
    nuclr=objectives.nuclr(**size, zeta=zeta_rules.fixed(init=0.05)),
    amorlip=contrib.amorlip(dim=DIM, steps_per_epoch=9, temperature=learned),
    released=contrib.fastclip_released(
      num_pairs=NUM_PAIRS, temperature=TAU, rho=1.5
    ),
  )
  params, state = objective.init()
  pairs, h = batch(), 1e-5

  def loss_fn(params):
    loss, (_, metrics) = objective.apply(params, state, pairs)
    return loss, {name: metrics[f"{name}/loss"] for name in params}

  differentiate = jax.jit(jax.grad(loss_fn, has_aux=True))
  gradient, losses = differentiate(params)
  (_, above), (_, below) = (
    differentiate(jax.tree.map(lambda x, s=s: x + s * h, params))
    for s in (1, -1)
  )
  expected = {name: (above[name] - below[name]) / (2 * h) for name in params}
  expected["released"] = 2 * expected["released"] + losses["released"]
  for name in params:
    np.testing.assert_allclose(
      gradient[name]["log_scale"], expected[name], rtol=1e-7, err_msg=name
    )


WIDTH_5 = dict(dim=5, temperature=TAU)


@pytest.mark.parametrize(
  "objective",
  [
    contrib.amorlip(**WIDTH_5, steps_per_epoch=9),
    contrib.neuclip(**WIDTH_5, num_prototypes=BATCH),
    contrib.softmax(dim=5, num_classes=2),
    contrib.swav(dim=5, num_prototypes=4),
  ],
  ids=repr,
)
def test_embeddings_of_another_width_are_refused(objective):
  pairs = batch()._replace(label=jnp.zeros(BATCH, int))
  with pytest.raises(ValueError, match="^dim is 5, but the .* have width 6;"):
    objective.apply(*objective.init(), pairs)


@pytest.mark.parametrize("positive_weight", [1.0, 1e-3])
def test_amorlip_without_memory_is_sogclr_of_the_batch(positive_weight, x64):
  """With a positive that counts, at num_pairs = B; at weight 1, it is CLIP."""
  pairs = batch()._replace(pair_id=jnp.arange(BATCH))
  weighted = dict(temperature=TAU, positive_weight=positive_weight)
  amorlip = contrib.amorlip(dim=DIM, steps_per_epoch=9, **weighted)
  found = gradients(amorlip, pairs)
  if positive_weight == 1.0:
    clip = objectives.clip(temperature=TAU, learn_temperature=False)
    expected = 2 * TAU * gradients(clip, pairs)
  else:
    sogclr = objectives.sogclr(num_pairs=BATCH, gamma=1.0, **weighted)
    expected = gradients(sogclr, pairs)
  np.testing.assert_allclose(found, expected, rtol=1e-9)


def gradients(objective, pairs, state=None):
  """Those of both sides, [2, batch, dim]."""
  params, first = objective.init()

  @jax.jit
  @jax.grad
  def gradient(embeddings):
    own = pairs._replace(image=embeddings[0], text=embeddings[1])
    return objective.apply(params, state or first, own)[0]

  return gradient(jnp.stack([pairs.image, pairs.text]))


@pytest.mark.parametrize("log_lambda", [5.0, -1000.0])
def test_amorlip_is_sogclr_whose_stored_u_is_a_networks(log_lambda, x64):
  """With gamma = 1 - beta, and the positive pulled by 1, not by all weights.

  An anchor's negatives weigh 1 / (1 - beta) at most, as where a network takes
  it for solved and it is not any longer.
  """
  beta, pairs = 0.8, batch()
  pairs = pairs._replace(pair_id=jnp.arange(BATCH))
  amorlip = contrib.amorlip(
    dim=DIM, steps_per_epoch=9, temperature=TAU, positive_weight=0.0, beta=beta
  )
  _, state = amorlip.init()
  state = after_an_epoch(state, log_lambda)
  sogclr = objectives.sogclr(num_pairs=BATCH, temperature=TAU, gamma=1 - beta)
  _, other = sogclr.init()
  similarity = pairs.image @ pairs.text.T
  own = jnp.diag(similarity)
  log_u = log_lambda - own / TAU
  pair = other.sample.pair._replace(log_u=Sides(log_u, log_u))
  other = other._replace(sample=other.sample._replace(pair=pair))
  weight = 0.0  # of all negatives of an anchor, on both sides
  for s in (similarity, similarity.T):
    terms = jnp.exp((s - own[:, None]) / TAU) * (1 - np.eye(BATCH))
    phi = jnp.sum(terms, axis=1)
    weight += phi / (beta * jnp.exp(log_u) + (1 - beta) * phi)
  if log_lambda < 0:
    np.testing.assert_allclose(weight, 2 * 5.0, rtol=1e-9)
  else:
    assert np.all(weight < 2 * 5.0)
  positive = jnp.stack([pairs.text, pairs.image])
  positive *= (weight - 2)[None, :, None] / BATCH
  np.testing.assert_allclose(
    gradients(amorlip, pairs, state),
    gradients(sogclr, pairs, other) + positive,
    rtol=1e-9,
  )


def test_amorlips_temperature_beside_a_network(x64):
  """The derivative at a constant lambda, without the mean of Z / lambda - 1."""
  beta, rho, log_lambda, h = 0.8, 1.5, 5.0, 1e-6
  amorlip = contrib.amorlip(
    dim=DIM,
    steps_per_epoch=9,
    temperature=temperature_rules.learned(TAU, rho=rho),
    beta=beta,
  )
  params, state = amorlip.init()
  state = after_an_epoch(state, log_lambda)
  gradient = jax.jit(jax.grad(lambda x: amorlip.apply(x, state, batch())[0]))
  similarity = np.float64(batch().image @ batch().text.T)

  def z(tau):
    """Of both sides, [2, batch]."""
    weights = np.where(np.eye(BATCH), 1e-3, 1.0)
    terms = weights * np.exp(similarity / tau)
    return np.stack([np.sum(terms, axis) for axis in (1, 0)])

  fixed = beta * np.exp(log_lambda) + (1 - beta) * z(TAU)

  def value(tau):
    parts = z(tau) / fixed + np.log(fixed) - 1 + rho - np.log(BATCH)
    return np.sum(tau * np.mean(parts, axis=1))

  expected = (value(TAU + h) - value(TAU - h)) / (2 * h)
  expected -= np.sum(np.mean(z(TAU) / fixed - 1, axis=1))
  np.testing.assert_allclose(
    gradient(params)["log_scale"], -TAU * expected, rtol=1e-6
  )


def after_an_epoch(state, log_lambda):
  """AmorLIP's state with networks that predict the same for all."""
  previous = state.shared.previous
  for network in previous:
    network["fc3"]["kernel"] *= 0
    network["fc3"]["bias"] = jnp.full(1, log_lambda)
  return state._replace(
    shared=state.shared._replace(previous=previous, count=jnp.int32(9))
  )
