"""Compares models with what PyTorch computes from their exported folders.

python -m experiments.parity.exported   # prints JSON, exits 1 on failure

Models with random weights are exported to each kind of folder and loaded as the
folder says: by `VisionTextDualEncoderModel`, `CLIPModel` or `SiglipModel`, or
by the `load.py` beside two encoders. Embeddings of the same images and captions
must agree, and so must the pixels that the folder's processor makes of a JPEG
file with those of `nuclr embed`.
"""

import importlib.util
import io
import pathlib
import sys
import tempfile

import jax
import numpy as np
from PIL import Image
import torch
import transformers

from experiments.harness import benchmark
from experiments.parity import optional
from nuclr_jax import Batch
from nuclr_jax.lab import models
from nuclr_jax.lab.data import images
from nuclr_jax.lab.data.source import DEFAULT_RESIZE, Resize
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.export import Exported, write_model

SIZE, LENGTH, DIM, TOLERANCE = 64, 16, 24, 1e-4
CAPTIONS = ["A dog, running!", "two cats on a mat - asleep", "a mat"]
WORDS = build_tokenizer(CAPTIONS, length=LENGTH, first_and_last=True)
SMALL = dict(width=32, layers=2, heads=4)
VIT = SMALL | dict(name="vit_s16", patch=16, eps=1e-12)
BERT = SMALL | dict(name="bert", max_length=20)
CASES = {
  "ResNet-50 and DistilBERT, published sizes": dict(
    image=dict(name="resnet50"), text=dict(name="distilbert")
  ),
  "ResNet and BERT": dict(
    image=dict(name="resnet50", stages=(1, 2), width=8), text=BERT
  ),
  "ViT and DistilBERT": dict(image=VIT, text=BERT | dict(name="distilbert")),
  "ViT and mean of BERT": dict(image=VIT, text=BERT | dict(pooling="mean")),
  "ViT and max of DistilBERT": dict(
    image=VIT, text=BERT | dict(name="distilbert", pooling="max")
  ),
  "dual encoder": dict(
    image=VIT | dict(pooler=True),
    text=BERT | dict(pooler=True),
    projection_bias=False,
  ),
  "CLIP": dict(
    image=SMALL | dict(name="clip_vit_b32", patch=16),
    text=SMALL | dict(name="clip_text", max_length=20),
    projection_bias=False,
  ),
  "SigLIP": dict(
    image=SMALL | dict(name="siglip_vit_b16", width=DIM),
    text=SMALL | dict(name="siglip_text", max_length=LENGTH, width=DIM),
    projected=("text",),
  ),
}
# How images become squares in a case; others squash them.
RESIZE = {"CLIP": Resize("crop"), "SigLIP": Resize("squash", "bilinear")}


def randomized(tree, seed: int):
  """Moves all vectors and scalars, so that no bias is 0 and no scale is 1."""
  rng = np.random.default_rng(seed)

  def move(x):
    more = 0.1 * np.abs(rng.normal(size=x.shape))
    return np.float32(x if x.ndim > 1 else x + more)

  return jax.tree.map(move, tree)


def theirs(folder: pathlib.Path, pixels, tokens) -> tuple:
  """Computes embeddings of unit norm with PyTorch."""
  if (folder / "config.json").exists():
    model = transformers.AutoModel.from_pretrained(folder).eval()
    mask = (tokens != 0).long()
    if isinstance(model, transformers.SiglipModel):
      mask = None  # it attends to padding
    outputs = model(pixel_values=pixels, input_ids=tokens, attention_mask=mask)
    return outputs.image_embeds, outputs.text_embeds
  spec = importlib.util.spec_from_file_location("load", folder / "load.py")
  load = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(load)
  load.to_pixels = lambda images, return_tensors: {"pixel_values": images}
  return load.embed_images(pixels), load.embed_texts(CAPTIONS)


def pixel_error(folder: pathlib.Path, resize: Resize) -> float:
  """Returns the largest difference of pixels on the scale [0, 1].

  They are what the folder's processor makes of noise in a JPEG file, before
  they are normalized, and what `nuclr embed` makes of it.
  """
  file = io.BytesIO()
  noise = np.random.default_rng(2).integers(0, 256, (200, 261, 3), np.uint8)
  Image.fromarray(noise).save(file, "JPEG", quality=90)
  place = (
    folder if (folder / "config.json").exists() else folder / "image_encoder"
  )
  process = transformers.AutoImageProcessor.from_pretrained(place)
  theirs = process(
    images=Image.open(file), do_normalize=False, return_tensors="np"
  )["pixel_values"][0]
  ours = images.resize(images.decode(file.getvalue()), SIZE, resize) / 255
  return float(np.abs(ours.transpose(2, 0, 1) - theirs).max())


def compare(spec, folder: pathlib.Path, resize: Resize) -> tuple[float, float]:
  """Exports a model; returns the largest differences.

  They are of embeddings, and of pixels.
  """
  model = models.towers(
    image_shape=(SIZE, SIZE, 3),
    vocab_size=WORDS.vocab_size,
    length=LENGTH,
    dim=DIM,
    **spec,
  )
  params, state = randomized(model.init(jax.random.key(0)), 0)
  whole = dict(spec, name="towers", dim=DIM)
  write_model(Exported(whole, params, state, WORDS, SIZE, 0.05, resize), folder)
  pixels = np.random.default_rng(1).normal(size=(3, SIZE, SIZE, 3))
  pixels, tokens = pixels.astype(np.float32), WORDS.encode(CAPTIONS)
  ours, _ = model.apply(params, state, Batch(pixels, tokens, None))
  with torch.no_grad():
    expected = theirs(
      folder,
      torch.tensor(pixels.transpose(0, 3, 1, 2)),
      torch.tensor(tokens, dtype=torch.long),
    )
  error = max(
    float(np.abs(np.asarray(a) - b.numpy()).max())
    for a, b in zip((ours.image, ours.text), expected, strict=True)
  )
  return error, pixel_error(folder, resize)


def main() -> None:
  """Prints the errors as JSON; exits 1 if one is above the tolerance."""
  transformers.logging.set_verbosity_error()
  errors, pixels = {}, {}
  for name, spec in CASES.items():
    with tempfile.TemporaryDirectory() as folder:
      errors[name], pixels[name] = compare(
        spec, pathlib.Path(folder) / "out", RESIZE.get(name, DEFAULT_RESIZE)
      )
  benchmark.show(
    benchmark.machine(),
    optional.versions(),
    {"embeddings": errors, "pixels": pixels},
  )
  failed = [
    name for name in CASES if not max(errors[name], pixels[name]) < TOLERANCE
  ]
  sys.exit(f"FAILED: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
  main()
