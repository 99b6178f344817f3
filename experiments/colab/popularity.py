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
# # Popularities of a toy model
#
# Anchors x are uniform on a half disc, contrasts y in the unit square have
# density p(y | x) = exp(x . y / tau) / g(x). Here g is known, so that we can
# see how well NUCLR's learned popularities replace it. This is the study of
# `experiments/toy_dpm`, whose README says what follows from it.
#
# Outside of a checkout, as in Colab, set `REPOSITORY` to the address of the
# repository. `SHORT` (or `NUCLR_SHORT=1`) takes seconds instead of minutes.

# %%
"""The toy study of popularities, in pictures."""

# ruff: noqa: E402
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
if not ROOT.exists():
  subprocess.run(["git", "clone", REPOSITORY, ROOT], check=True)
if importlib.util.find_spec("nuclr_jax") is None:
  install = [sys.executable, "-m", "pip", "install", "--quiet", ROOT]
  subprocess.run(install, check=True)
  importlib.invalidate_caches()
sys.path.insert(0, str(ROOT / STUDY))

# %%
import jax
import matplotlib.pyplot as plt
import toy_plots
import toy_report
import toy_risks
import toy_summary

jax.config.update("jax_enable_x64", True)
settings = toy_risks.SHORT if SHORT else toy_risks.Settings()
print(settings)

# %% [markdown]
# ## One data set
#
# `popularity.solve` (Sinkhorn with extrapolation) and `popularity.descend` (the
# paper's gradient descent) find the same zeta.

# %%
examples = toy_risks.make_examples(settings)
for temperature, example in examples.items():
  print(
    f"tau {temperature:g}: largest difference {example.difference:.1e}, "
    f"gradient norm {example.gradient_norm:.1e}"
  )

# %% [markdown]
# ## Many data sets

# %%
measured = toy_risks.measure_all(settings)
results = toy_summary.summarise_all(settings, measured, examples)

# %% [markdown]
# ## Figure 2
#
# The popularities of the 100 contrasts (white dots), interpolated, and the
# error of the empirical risk with 95 % intervals of its mean.

# %%
figure = plt.figure(figsize=toy_plots.SIZE, layout="constrained")
toy_plots.draw_spaces(figure, examples, results)
plt.show()

# %% [markdown]
# ## Figure 6
#
# A lower temperature makes popularities more unequal.

# %%
figure = plt.figure(figsize=toy_plots.SIZE, layout="constrained")
toy_plots.draw_temperatures(figure, examples, results)
plt.show()

# %% [markdown]
# ## What no constant changes
#
# A constant factor on q~ shifts the risk and nothing else. Training follows the
# gradient, which the factor leaves alone: GCL's does not vanish at the truth.

# %%
figure = plt.figure(figsize=toy_plots.SIZE, layout="constrained")
toy_plots.draw_without_constants(figure, results)
plt.show()

# %%
print(toy_report.error_table(results))
print()
print(toy_report.shape_table(results))
