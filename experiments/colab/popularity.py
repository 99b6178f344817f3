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
# # Popularities: exact, learned, and where the truth is known
#
# NUCLR learns a popularity ζ for every sample. For fixed embeddings, the exact
# ζ are the solution of an equation. This notebook solves it, compares the
# solution with the ζ learned in training, and shows the most popular samples.
# Then it studies a toy model whose popularities are known
# (`experiments/toy_dpm`, whose README has the conclusions).
#
# Outside a checkout, as in Colab, set `REPOSITORY` to the address of the
# repository. With `SHORT` (or `NUCLR_SHORT=1`), the notebook does just enough
# to run.

# %%
"""Shows exact and learned popularities, and the toy study."""

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys

REPOSITORY = ""  # @param {type:"string"}
SHORT = os.environ.get("NUCLR_SHORT") == "1"

STUDY = pathlib.Path("experiments", "toy_dpm")
HERE = pathlib.Path.cwd()
ROOT = next(
  (x for x in (HERE, *HERE.parents) if (x / STUDY).is_dir()),
  HERE / "nuclr",
)
if not ROOT.exists():  # only the toy study needs a clone
  assert REPOSITORY, "set REPOSITORY to the address of the repository"
  subprocess.run(["git", "clone", REPOSITORY, ROOT], check=True)
if importlib.util.find_spec("nuclr_jax") is None:
  # JAX for the GPU or TPU of this runtime, if it has one.
  devices = {
    "/dev/nvidia0": "cuda12",
    "/dev/accel0": "tpu",
    "/dev/vfio/0": "tpu",
  }
  extras = {x for path, x in devices.items() if os.path.exists(path)}
  source = f"{ROOT}[{','.join(extras)}]"
  install = [sys.executable, "-m", "pip", "install", "--quiet", source]
  subprocess.run(install, check=True)
  importlib.invalidate_caches()
sys.path.insert(0, str(ROOT))

# %% [markdown]
# ## A run, and its exact popularities
#
# A short run on glyphs. `popularity.solve` takes any embeddings
# of pairs; `nuclr popularity --workdir=...` does all of this section in one
# command.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

from nuclr_jax import popularity
from nuclr_jax.lab import progress
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.evaluate import evaluators
from nuclr_jax.lab.train import loop

progress.log_to_stderr()
config = load_config("glyphs:nuclr")
config.num_epochs = 0.05 if SHORT else 4.0
config.optimizer.learning_rate.warmup_epochs = config.num_epochs / 10
config.data.size = 16 if SHORT else 32
workdir = pathlib.Path("runs", "popularity")
loop.fit(config, workdir)
parts, mesh, state = loop.load(workdir)
source = parts.data.train
subset = np.random.default_rng(0).permutation(source.sizes.num_pairs)
subset = np.sort(subset[: 500 if SHORT else 10_000])
with jax.set_mesh(mesh):
  embed = loop.embedder(parts, mesh)(state)
  pairs = evaluators.embed_pairs(embed, source, subset)
readout = loop.readout(parts, state)
exact = popularity.solve(
  pairs.image,
  pairs.text,
  image_id=pairs.ids.image,
  text_id=pairs.ids.text,
  num_pairs=source.sizes.num_pairs,
  temperature=float(readout.temperature),
)
print(f"residual {exact.residual:.1e}, iterations {exact.iterations}")

# %% [markdown]
# ## Learned against exact
#
# ζ is unique up to a constant. After a long training the points lie near a
# line (correlation 0.83 for images and 0.93 for texts after 8 epochs in
# `experiments/popularity`).

# %%
learned = np.asarray(state.objective.sample.text.zeta)[exact.ids.text]
figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
axes.plot(exact.zeta.text, learned - learned.mean(), ".", markersize=3)
correlation = np.corrcoef(exact.zeta.text, learned)[0, 1]
axes.set(title=f"texts: correlation {correlation:.2f}")
axes.set(xlabel="exact ζ", ylabel="learned ζ")
plt.show()

# %% [markdown]
# ## The most and the least popular names

# %%
order = exact.ids.text[np.argsort(exact.zeta.text)]
for title, ids in (("most", order[::-1][:8]), ("least", order[:8])):
  print(f"{title} popular: " + "; ".join(source.captions(ids)))

# %% [markdown]
# ## The toy model
#
# Anchors x are uniform on a half disc, and contrasts y in the unit square have
# the density p(y | x) = exp(x . y / tau) / g(x). Here g is known, so that we
# can see how well popularities replace it. From here on everything is float64.

# %%
from experiments.harness import command, plots, run_here
from experiments.toy_dpm import __main__ as toy
from experiments.toy_dpm import figures, risks, summary, tables

jax.config.update("jax_enable_x64", True)
options = command.parse_arguments(toy.STUDY, ["--smoke"] if SHORT else [])

# %% [markdown]
# ## One data set
#
# `popularity.solve` (Sinkhorn with extrapolation) and
# `nuclr_jax.contrib.gradient_descent` (the paper's) find the same zeta.

# %%
for temperature in risks.TEMPERATURES:
  example = risks.make_example(temperature)
  print(
    f"tau {temperature:g}: largest difference {example.difference:.1e}, "
    f"gradient norm {example.gradient_norm:.1e}"
  )

# %% [markdown]
# ## Many data sets

# %%
results = run_here(toy.STUDY, options)
numbers = summary.summarise_all(results)

# %% [markdown]
# ## Figure 2
#
# The popularities of the 100 contrasts (white dots), interpolated, and the
# error of the empirical risk with 95 % intervals of its mean.

# %%
figure = plt.figure(figsize=plots.SIZE, layout="constrained")
figures.draw_spaces(figure, numbers)
plt.show()

# %% [markdown]
# ## Figure 6
#
# A lower temperature makes popularities more unequal.

# %%
figure = plt.figure(figsize=plots.SIZE, layout="constrained")
figures.draw_temperatures(figure, numbers)
plt.show()

# %% [markdown]
# ## What no constant changes
#
# A constant factor of q~ shifts the risk and changes nothing else. Training
# follows the gradient, which does not depend on the factor: GCL's gradient does
# not vanish at the truth.

# %%
figure = plt.figure(figsize=plots.SIZE, layout="constrained")
figures.draw_without_constants(figure, numbers)
plt.show()

# %%
print(tables.error_table(numbers))
print()
print(tables.shape_table(numbers))
