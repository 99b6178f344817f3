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
# # Quickstart: train on glyphs, look at the results
#
# The data are images of characters in 16 fonts and their Unicode names: real
# image-text pairs with nothing to download. NUCLR trains on them, retrieves
# among characters that it never saw, and shows which samples are popular. It
# takes two to ten minutes on a laptop.
#
# Outside a checkout, as in Colab, set `REPOSITORY` to the address of the
# repository. With `SHORT` (or `NUCLR_SHORT=1`), the notebook does just enough
# to run.

# %%
"""Trains on glyphs; shows retrieval and popularities."""

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
import pathlib

import jax
import matplotlib.pyplot as plt
import numpy as np

from nuclr_jax.lab import progress, report
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.report import page
from nuclr_jax.lab.train import loop, records

progress.log_to_stderr()
WORKDIR = pathlib.Path("runs", "quickstart")

# %% [markdown]
# ## Train
#
# A config names the parts and their arguments; every key can be changed. If
# you run the cell again, the training continues where it stopped.

# %%
config = load_config("glyphs:nuclr")
config.num_epochs = 0.05 if SHORT else 4.0
config.optimizer.learning_rate.warmup_epochs = config.num_epochs / 10
config.data.size = 16 if SHORT else 32
config.eval_every = 0  # in steps; replaced by:
config.eval_every_epochs = config.num_epochs / 8
config.log_every = 5 if SHORT else 100
result = loop.fit(config, WORKDIR)

# %% [markdown]
# ## The numbers
#
# Recall@1 is how often a correct one of 1,000 captions (of 7,315 images) comes
# first; chance is 0.1 %. `diagnostics/...` show how the training is going; the
# documentation has a guide to them.

# %%
for name, value in result.metrics.items():
  if name.endswith(("recall@1", "/top1")) or name.startswith("diagnostics"):
    print(f"{name:45} {value:.3f}")

# %%
history = records.read_history(WORKDIR)
figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for place, names in zip(
  axes,
  (
    ("train/loss",),
    ("validation/image_to_text/recall@1", "validation/text_to_image/recall@1"),
    ("diagnostics/zeta_gain/image", "diagnostics/zeta_gain/text"),
  ),
  strict=True,
):
  page.plot(place, history, names)
plt.show()

# %% [markdown]
# ## Retrieval
#
# Images that the model has not seen, with the three names that it finds most
# similar; the correct one is marked.

# %%
parts, mesh, state = loop.load(WORKDIR)
test = parts.data.sets["test"]
with jax.set_mesh(mesh):
  embed = loop.embedder(parts, mesh)(state)
  image, text = embed.image(test.image), embed.text(test.captions)
best = np.argsort(-(image @ text.T), axis=1)[:, :3]
shown = np.random.default_rng(0).permutation(len(image))[:8]
figure, axes = plt.subplots(2, 4, figsize=(12, 5), layout="constrained")
for place, i in zip(axes.ravel(), shown, strict=True):
  place.imshow(np.squeeze(test.image[i]), cmap="gray")
  place.set_axis_off()
  right = test.caption_group[best[i]] == test.image_group[i]
  names = [
    f"[ {test.captions[j]} ]" if ok else test.captions[j]
    for j, ok in zip(best[i], right, strict=True)
  ]
  place.set_title("\n".join(names), fontsize=7)
plt.show()

# %% [markdown]
# ## Popularity
#
# ζ of a sample is high if many anchors are similar to it. These are the images
# with the highest and the lowest learned ζ:

# %%
zeta = np.asarray(state.objective.sample.image.zeta)
zeta = zeta[: parts.data.train.sizes.num_images]
order = np.argsort(zeta)
figure, axes = plt.subplots(2, 10, figsize=(12, 3), layout="constrained")
for row, ids in zip(axes, (order[::-1][:10], order[:10]), strict=True):
  images = parts.data.train.fetch(ids).image
  for place, i, pixels in zip(row, ids, images, strict=True):
    place.imshow(np.squeeze(pixels), cmap="gray")
    place.set_axis_off()
    place.set_title(f"{zeta[i]:+.3f}", fontsize=8)
plt.show()

# %% [markdown]
# ## The report
#
# It shows everything on one page, with galleries:
# `runs/quickstart/report.html`.

# %%
print(report.write(WORKDIR))
