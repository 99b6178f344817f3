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
# # Compare objectives on the same data
#
# CLIP, SogCLR and NUCLR, each with its tuned temperature, train on the same
# images and captions. One seed says little: `experiments/bimodal` has the
# comparison with intervals (at batch 128 they differ by a point at most).
#
# Outside a checkout, as in Colab, set `REPOSITORY` to the address of the
# repository. With `SHORT` (or `NUCLR_SHORT=1`), the notebook does just enough
# to run.

# %%
"""Compares CLIP, SogCLR and NUCLR on glyphs."""

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

import matplotlib.pyplot as plt

from nuclr_jax.lab import progress
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.train import build, loop, records

progress.log_to_stderr()
NAMES = ("clip", "nuclr") if SHORT else ("clip", "sogclr", "nuclr")
SEEDS = 1  # more seeds take proportionally longer, and are more conclusive

# %% [markdown]
# ## Train
#
# The data are read once. Keys of the config are changed in the same way for
# every objective.

# %%
runs, data = {}, None
for name in NAMES:
  for seed in range(SEEDS):
    config = load_config(f"glyphs:{name}")
    config.seed = seed
    config.num_epochs = 0.05 if SHORT else 4.0
    config.optimizer.learning_rate.warmup_epochs = config.num_epochs / 10
    config.data.size = 16 if SHORT else 32
    config.log_every = 5 if SHORT else 100
    config.eval_every = 0  # in steps; replaced by:
    config.eval_every_epochs = config.num_epochs / 4
    data = data or build.load_data(config.data)
    workdir = pathlib.Path("runs", "compare", f"{name}_{seed}")
    result = loop.fit(config, workdir, parts=build.build(config, data=data))
    runs.setdefault(name, []).append(
      (result.metrics, records.read_history(workdir))
    )

# %% [markdown]
# ## Scores
#
# Retrieval among unseen characters, and handwritten digits classified by the
# names of their classes. Scores are in percent, averaged over seeds.

# %%
SCORES = {
  "test/mean_recall@1": "R@1",
  "test/mean_recall@10": "R@10",
  "test/zero_shot_digits/top1": "digits",
}
print(f"{'':10}" + "".join(f"{x:>10}" for x in SCORES.values()))
for name, by_seed in runs.items():
  means = [
    100 * sum(metrics[key] for metrics, _ in by_seed) / len(by_seed)
    for key in SCORES
  ]
  print(f"{name:10}" + "".join(f"{x:10.1f}" for x in means))

# %% [markdown]
# ## During training
#
# The losses have different scales and cannot be compared. These numbers can:
# recall, the effective number of negatives of an anchor, alignment, and the
# speed of a step.

# %%
PANELS = (
  "validation/mean_recall@1",
  "diagnostics/effective_negatives/image",
  "diagnostics/alignment",
)
figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for place, key in zip(axes, PANELS, strict=True):
  for name, by_seed in runs.items():
    for number, (_, history) in enumerate(by_seed):
      rows = [(row["step"], row[key]) for row in history if key in row]
      label = None if number else name
      color = f"C{NAMES.index(name)}"
      place.plot(*zip(*rows, strict=True), ".-", color=color, label=label)
  place.set(title=key, xlabel="step")
axes[0].legend()
plt.show()
for name in NAMES:
  times = records.read_history(
    pathlib.Path("runs", "compare", f"{name}_0"), records.TIMES
  )
  speeds = sorted(x["pairs_per_second"] for x in times if len(x) > 1)
  print(f"{name:10}{speeds[len(speeds) // 2]:10,.0f} pairs/s")
