# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: -all
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An objective in your own training loop
#
# The pairs are two views of handwritten digits, each with some pixels removed;
# the loop is plain Flax and optax. Everything that NUCLR remembers about the
# samples is in the `state` that goes in and comes out.
#
# Outside a checkout, as in Colab, set `REPOSITORY` to the address of the
# repository. With `SHORT` (or `NUCLR_SHORT=1`), the notebook does just enough
# to run.

# %%
"""Trains NUCLR and CLIP in a plain Flax and optax loop."""

import importlib.util
import os
import subprocess
import sys

REPOSITORY = ""  # @param {type:"string"}
SHORT = os.environ.get("NUCLR_SHORT") == "1"

if importlib.util.find_spec("nuclr_jax") is None:
  assert REPOSITORY, "set REPOSITORY to the address of the repository"
  # JAX for the GPU or TPU of this runtime, if it has one.
  devices = {
    "/dev/nvidia0": "cuda12",
    "/dev/accel0": "tpu",
    "/dev/vfio/0": "tpu",
  }
  extras = {x for path, x in devices.items() if os.path.exists(path)}
  source = f"nuclr_jax[{','.join(extras)}] @ git+{REPOSITORY}"
  install = [sys.executable, "-m", "pip", "install", "--quiet", source]
  subprocess.run(install, check=True)

# %%
from functools import partial

from flax import nnx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import sklearn.datasets

from nuclr_jax import Pairs, objectives

digits = sklearn.datasets.load_digits()
x = jnp.float32(digits.data / 16)  # [1797, 64]
STEPS, BATCH = (40, 64) if SHORT else (1500, 64)

# %% [markdown]
# ## The loop
#
# `objective.apply` returns `loss, (state, metrics)`. `pair_id` is the row of
# a sample in the data set. The state is both an argument and a result of the
# step; since it is donated, it is updated in place.


# %%
def train(objective, key):
  first, key = jax.random.split(key)
  encoder = nnx.Sequential(
    nnx.Linear(64, 128, rngs=nnx.Rngs(first)),
    nnx.relu,
    nnx.Linear(128, 16, rngs=nnx.Rngs(first)),
  )
  graph, weights = nnx.split(encoder)
  params, state = objective.init()
  optimizer = optax.adam(1e-3)
  learned = (weights, params)

  def embed(weights, x):
    z = nnx.merge(graph, weights)(x)
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)

  def loss_fn(learned, state, views, ids):
    return objective.apply(
      learned[1], state, Pairs(*embed(learned[0], views), ids)
    )

  @partial(jax.jit, donate_argnums=(0, 1, 2))
  def step(learned, opt_state, state, key):
    which, hide = jax.random.split(key)
    ids = jax.random.choice(which, len(x), (BATCH,), replace=False)
    views = x[None, ids] * jax.random.bernoulli(hide, 0.7, (2, BATCH, 64))
    (loss, (state, _)), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
      learned, state, views, ids
    )
    updates, opt_state = optimizer.update(gradient, opt_state)
    return optax.apply_updates(learned, updates), opt_state, state, loss

  opt_state, losses = optimizer.init(learned), []
  for step_key in jax.random.split(key, STEPS):
    learned, opt_state, state, loss = step(learned, opt_state, state, step_key)
    losses.append(loss)
  return np.asarray(embed(learned[0], x)), state, np.array(losses)


# %% [markdown]
# ## Two objectives
#
# Another objective is another line. The losses have different scales; the
# accuracy of the nearest neighbour among all other digits is comparable.

# %%
compared = {
  "CLIP": objectives.clip(temperature=0.1, learn_temperature=False),
  "NUCLR": objectives.nuclr(num_pairs=len(x), temperature=0.1),
}
results = {name: train(x, jax.random.key(0)) for name, x in compared.items()}
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for place, (name, (z, _, losses)) in zip(axes, results.items(), strict=True):
  place.plot(losses)
  sim = z @ z.T - 2 * np.eye(len(z))
  accuracy = np.mean(digits.target[sim.argmax(axis=1)] == digits.target)
  place.set(title=f"{name}: neighbour {100 * accuracy:.1f} %", xlabel="step")
plt.show()

# %% [markdown]
# ## What NUCLR remembers
#
# `log_u` is the logarithm of each sample's averaged denominator; `zeta` are
# the popularities. Digits that resemble many other digits have a high ζ.

# %%
state = results["NUCLR"][1]
zeta = np.asarray(state.sample.text.zeta)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
log_u = np.asarray(state.sample.pair.log_u.image)
left.hist(log_u[np.isfinite(log_u)], bins=50)  # -inf: never visited
left.set_title("log u")
right.boxplot([zeta[digits.target == c] for c in range(10)])
right.set(title="ζ by digit", xticks=range(1, 11), xticklabels=range(10))
plt.show()
