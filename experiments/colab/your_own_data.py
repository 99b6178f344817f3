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
# # Your own photos: a folder with captions, from files to zero-shot
#
# A folder of images, each with a text file beside it, becomes a data set on
# which two published encoders train. Here they are small and train from
# scratch on drawings of coloured shapes; for real photos use `pretrained`
# weights (see `configs/cc3m.py`).
#
# Outside a checkout, as in Colab, set `REPOSITORY` to the address of the
# repository. With `SHORT` (or `NUCLR_SHORT=1`), the notebook does just enough
# to run.

# %%
"""Ingests a folder, trains on it, and classifies by prompts."""

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
import itertools
import pathlib

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw

from nuclr_jax.lab import ingest, progress
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.evaluate import zero_shot
from nuclr_jax.lab.export import embedder_of_run
from nuclr_jax.lab.report import page
from nuclr_jax.lab.train import loop, records

progress.log_to_stderr()
ROOT = pathlib.Path("runs", "your_own_data")
DATA = ROOT / "data"  # prepared data sets

# %% [markdown]
# ## A folder of images
#
# It has `photo.txt` beside `photo.jpg`. Replace this cell with your own folder.

# %%
COLOURS = dict(red=(220, 40, 40), green=(40, 170, 60), blue=(50, 70, 220))
SHAPES = ("circle", "square", "triangle")


def draw(rng, colour, shape):
  image = Image.new("RGB", (80, 64), tuple(rng.integers(160, 256, 3)))
  x, y, r = rng.integers(18, 62), rng.integers(18, 46), rng.integers(9, 17)
  pen, box = ImageDraw.Draw(image), (x - r, y - r, x + r, y + r)
  if shape == "circle":
    pen.ellipse(box, COLOURS[colour])
  elif shape == "square":
    pen.rectangle(box, COLOURS[colour])
  else:
    corners = [(x, y - r), (x - r, y + r), (x + r, y + r)]
    pen.polygon(corners, COLOURS[colour])
  return image


def write_folder(folder, count, seed):
  rng = np.random.default_rng(seed)
  folder.mkdir(parents=True, exist_ok=True)
  kinds = itertools.cycle(itertools.product(COLOURS, SHAPES))
  for i, (colour, shape) in zip(range(count), kinds, strict=False):
    draw(rng, colour, shape).save(folder / f"{i}.jpg")
    words = rng.choice(["a photo of a", "there is a", "look, a"])
    (folder / f"{i}.txt").write_text(f"{words} {colour} {shape}")


write_folder(ROOT / "photos", 180 if SHORT else 900, seed=0)
write_folder(ROOT / "held_out", 90, seed=1)
figure, axes = plt.subplots(1, 6, figsize=(11, 2), layout="constrained")
for i, place in enumerate(axes):
  place.imshow(Image.open(ROOT / "photos" / f"{i}.jpg"))
  place.set_title((ROOT / "photos" / f"{i}.txt").read_text(), fontsize=8)
  place.set_axis_off()
plt.show()

# %% [markdown]
# ## From files to data sets
#
# Files that cannot be read are listed with the reason. In a shell: `nuclr
# ingest --input=photos --dataset=mine`.

# %%
for folder, split in (("photos", "train"), ("held_out", "validation")):
  where = ingest.ingest(str(ROOT / folder), "mine", data_dir=DATA, split=split)
print(where)

# %% [markdown]
# ## Train
#
# This is the CC3M recipe with small encoders. Each caption fits ten of the 90
# held-out images equally well, so its own image is at best among the first ten.

# %%
config = load_config("cc3m:nuclr,smoke")  # without smoke, the published size
config.data.train = "mine"
config.data.validation = config.data.test = ("mine:validation",)
for key in ("validation_zero_shot", "zero_shot", "probes"):
  config.data[key] = ()
config.model.image.width = 16
config.objective.temperature = 0.1
config.data.num_ops = 0  # RandAugment changes colours and shapes
config.batch_size = 32
config.num_epochs = 2.0 if SHORT else 40.0
config.log_every = 5 if SHORT else 100
config.eval_every_epochs = config.num_epochs / 8
result = loop.fit(config, ROOT / "run", data_dir=DATA)
history = records.read_history(ROOT / "run")
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
page.plot(axes[0], history, ["train/loss"])
page.plot(axes[1], history, ["validation/mine/mean_recall@10"])
plt.show()

# %% [markdown]
# ## Zero-shot
#
# The model was never told the classes. Each class is given by a caption that
# describes it.

# %%
classes = [" ".join(kind) for kind in itertools.product(COLOURS, SHAPES)]
rng = np.random.default_rng(2)
drawings = [draw(rng, *kind.split()) for kind in classes for _ in range(10)]
label = np.repeat(np.arange(len(classes)), 10)
with embedder_of_run(ROOT / "run", data_dir=DATA) as model:
  size = (model.image_size, model.image_size)
  image = np.stack([np.asarray(x.resize(size)) for x in drawings])
  image_vectors = model.encode.image(image)
  class_vectors = model.encode.text(classes)
sim = image_vectors @ class_vectors.T
scores = zero_shot.accuracy(image_vectors, class_vectors, label, top=(1,))
print(
  f"top-1 {100 * scores['top1']:.0f} %, by chance {100 / len(classes):.0f} %"
)
figure, axes = plt.subplots(2, 6, figsize=(11, 4), layout="constrained")
for place, i in zip(axes.ravel(), rng.permutation(len(image)), strict=False):
  place.imshow(image[i])
  place.set_axis_off()
  guess = sim[i].argmax()
  colour = "green" if guess == label[i] else "red"
  place.set_title(classes[guess], fontsize=9, color=colour)
plt.show()
