"""NeuCLIP against autograd of its formulas (provenance: golden/README.md)."""

import jax
import jax.numpy as jnp
from make_step import make_step
from normalizers import BATCH, DIM, GIVEN, TAU, batch, near
import numpy as np
import pytest

from nuclr_jax import Sides, contrib, objectives
from nuclr_jax.objectives import temperature_rules


def started(objective, vector):
  """The first state, but with these prototypes and no restart ahead."""
  params, state = objective.init()
  shared = state.shared._replace(vector=vector, count=jnp.int32(100))
  return params, state._replace(shared=shared)


def test_formulas(x64):
  case = "neuclip_formula"
  rule = temperature_rules.learned(TAU, rho=float(GIVEN[f"{case}/rho"]))
  objective = contrib.neuclip(
    dim=DIM,
    num_prototypes=10,
    temperature=rule,
    epsilon=float(GIVEN[f"{case}/eps"]),
    num_updates=0,
  )
  # The golden prototypes are filed under the anchors.
  vector = Sides(
    jnp.asarray(GIVEN[f"{case}/W_T"]), jnp.asarray(GIVEN[f"{case}/W_I"])
  )
  params, state = started(objective, vector)
  step = jax.jit(make_step(objective))
  (loss, (_, metrics)), (by_params, image, text) = step(params, state, batch())
  expected = f"{case}/detached"
  near(loss, GIVEN[f"{expected}/loss"])
  near(image, GIVEN[f"{expected}/grad_image"])
  near(text, GIVEN[f"{expected}/grad_text"])
  for side, anchor in zip(Sides._fields, "IT", strict=True):
    alpha = GIVEN[f"{expected}/alpha_{anchor}"]
    near(metrics[f"log_normalizer/{side}"], alpha.mean())
  # d loss / d log_scale = -tau d loss / d tau
  by_tau = GIVEN[f"{expected}/grad_tau"]
  near(-by_params["log_scale"] / TAU, by_tau)
  above, below = (loss_of(TAU + h, expected) for h in (1e-6, -1e-6))
  near((above - below) / 2e-6, by_tau, 1e-7)


def loss_of(tau, case):
  """The formula at a temperature, with the golden alpha."""
  similarity = np.asarray(batch().image @ batch().text.T)
  epsilon, rho = (float(GIVEN[f"neuclip_formula/{x}"]) for x in ("eps", "rho"))
  total, own = 0.0, np.diag(similarity)
  for s, anchor in ((similarity, "I"), (similarity.T, "T")):
    terms = np.exp((s - own[:, None]) / tau)
    g = (terms.sum(1) - 1) / (BATCH - 1)
    alpha = GIVEN[f"{case}/alpha_{anchor}"]
    value = np.exp(-alpha) * (epsilon + g) + alpha - 1 + rho
    total += tau * value.mean()
  return total


def test_prototypes_move_down_the_gradient_of_the_loss(x64):
  """AdaGrad's first sums of squares are those of the golden gradients."""
  case = "neuclip_formula"
  objective = contrib.neuclip(
    dim=DIM,
    num_prototypes=10,
    temperature=TAU,
    epsilon=float(GIVEN[f"{case}/eps"]),
    num_updates=1,
    rate=1e-3,
  )
  first = Sides(*(jnp.asarray(GIVEN[f"{case}/W_{x}"]) for x in "TI"))
  _, (state, _) = jax.jit(objective.apply)(*started(objective, first), batch())
  moved = jax.tree.map(jnp.subtract, state.shared.vector, first)
  for side, anchor in zip(Sides._fields, "TI", strict=True):
    gradient = GIVEN[f"{case}/attached/grad_W_{anchor}"] * BATCH / TAU
    near(getattr(state.shared.square, side), gradient**2)
    near(getattr(moved, side), -1e-3 * np.sign(gradient), 1e-6)


@pytest.mark.parametrize("steps", [(0, 1, 2), (1, 2)], ids=["all", "bank"])
def test_prototypes_that_are_embeddings(steps, x64):
  """The mean of exp(h) over them is the denominator, for every anchor.

  They are all pairs, the own one included, or a bank of earlier batches. No
  gradient reaches them: that of the encoders has the batch's pairs alone.
  """
  batches = [batch(step) for step in steps]
  vector = Sides(
    jnp.concatenate([x.image for x in batches]),
    jnp.concatenate([x.text for x in batches]),
  )
  objective = contrib.neuclip(
    dim=DIM,
    num_prototypes=len(steps) * BATCH,
    temperature=TAU,
    epsilon=0,
    num_updates=0,
  )
  params, state = started(objective, vector)
  run, pairs = jax.jit(make_step(objective)), batch()
  (_, (after, _)), (_, image, text) = run(params, state, pairs)
  for old, new in zip(vector, after.shared.vector, strict=True):
    np.testing.assert_array_equal(old, new)
  own = np.sum(pairs.image * pairs.text, axis=1)
  alphas, slope = [], 0.0
  for x, contrasts, prototypes in (
    (pairs.image, pairs.text, vector.text),
    (pairs.text, pairs.image, vector.image),
  ):
    h = (x @ prototypes.T - own[:, None]) / TAU
    alphas.append(np.log(np.mean(np.exp(h), axis=1)))
    h = (x @ contrasts.T - own[:, None]) / TAU
    w = np.exp(h - alphas[-1][:, None]) / (BATCH - 1) * (1 - np.eye(BATCH))
    of_side = (w - np.diag(w.sum(1))) / BATCH
    slope += of_side if prototypes is vector.text else of_side.T
  near(image, slope @ pairs.text)
  near(text, slope.T @ pairs.image)
  for i in range(BATCH):  # in a batch of its copies, an anchor is the mean
    copies = pairs._replace(
      image=jnp.tile(pairs.image[i], (BATCH, 1)),
      text=jnp.tile(pairs.text[i], (BATCH, 1)),
    )
    (_, (_, metrics)), _ = run(params, state, copies)
    for side, alpha in zip(Sides._fields, alphas, strict=True):
      near(metrics[f"log_normalizer/{side}"], alpha[i])


def test_prototypes_that_are_the_batch_make_clip(x64):
  """The gradient of 2 tau InfoNCE, times B / (B - 1)."""
  pairs = batch()
  objective = contrib.neuclip(
    dim=DIM, num_prototypes=BATCH, temperature=TAU, epsilon=0, num_updates=0
  )
  (_, (state, _)), (_, *found) = jax.jit(make_step(objective))(
    *objective.init(), pairs
  )
  near(state.shared.vector.image, pairs.image)
  clip = objectives.clip(temperature=TAU, learn_temperature=False)
  _, (_, *expected) = jax.jit(make_step(clip))(*clip.init(), pairs)
  for a, b in zip(found, expected, strict=True):
    near(a, 2 * TAU * BATCH / (BATCH - 1) * b)


def test_prototypes_learn_the_denominators_of_a_batch(x64):
  """They end where the loss is that of SogCLR, tau log(epsilon + g)."""
  objective = contrib.neuclip(
    dim=DIM, num_prototypes=64, temperature=TAU, num_updates=300, rate=0.3
  )
  rng = np.random.default_rng(0)
  vector = Sides(*jnp.asarray(rng.normal(size=(2, 64, DIM))))
  apply = jax.jit(objective.apply)
  loss, (_, metrics) = apply(*started(objective, vector), batch())
  for side in Sides._fields:
    assert metrics[f"log_normalizer_error/{side}"] < 0.05
  sogclr = objectives.sogclr(
    num_pairs=40, temperature=TAU, positive_weight=39e-6
  )
  expected, _ = sogclr.apply(*sogclr.init(), batch())
  expected -= 2 * TAU * np.log(39)
  assert expected < loss < expected + 1e-3


def test_batches_replace_prototypes_in_turn():
  """Three batches fill 20 prototypes; those of a restart come first again."""
  objective = contrib.neuclip(
    dim=DIM, num_prototypes=20, num_updates=0, restart_every=4
  )
  apply = jax.jit(objective.apply)
  params, state = objective.init()
  for number in range(5):
    pairs = batch()._replace(text=jnp.roll(batch().text, number, axis=1))
    _, (state, _) = apply(params, state, pairs)
    vector = state.shared.vector.text
    begin = number * BATCH if number < 3 else 0
    if number != 3:
      near(vector[begin : begin + BATCH], pairs.text[: 20 - begin], 1e-6)
  assert np.all(np.any(np.asarray(vector) != 0, axis=1))


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(num_prototypes=0), "num_prototypes must be a whole number of at"),
    (dict(epsilon=-1.0), "epsilon must be a number of at least 0, got -1.0"),
    (dict(num_pairs=4095), "at most the number of pairs 4095.*got 4096"),
    (dict(batch_size=8), "replace at most 4000 prototypes, got num_prototypes"),
    (
      dict(temperature=temperature_rules.individual()),
      "no rows to keep them in",
    ),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    contrib.neuclip(dim=DIM, **arguments)


def test_a_restart_must_reach_all_prototypes():
  objective = contrib.neuclip(dim=DIM, num_prototypes=17, restart_every=2)
  with pytest.raises(ValueError, match="at most 16 prototypes, got num_pro"):
    objective.apply(*objective.init(), batch())
