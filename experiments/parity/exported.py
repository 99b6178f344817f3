"""Compares models with what PyTorch computes from their exported folders.

python -m experiments.parity.exported   # prints JSON, exits 1 on failure

Models with random weights are exported to each kind of folder and loaded as the
folder says: by `VisionTextDualEncoderModel`, by `CLIPModel`, or by the
`load.py` beside two encoders. Embeddings of the same images and captions must
agree.
"""

import importlib.util
import pathlib
import sys
import tempfile

import jax
import numpy as np
import torch
import transformers

from experiments.harness import benchmark
from experiments.parity import optional
from nuclr_jax import Batch, models
from nuclr_jax.data.tokenizer import build_tokenizer
from nuclr_jax.export import Exported, write_model

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
}


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
    outputs = model(
      pixel_values=pixels, input_ids=tokens, attention_mask=(tokens != 0).long()
    )
    return outputs.image_embeds, outputs.text_embeds
  spec = importlib.util.spec_from_file_location("load", folder / "load.py")
  load = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(load)
  load.to_pixels = lambda images, return_tensors: {"pixel_values": images}
  return load.embed_images(pixels), load.embed_texts(CAPTIONS)


def compare(spec, folder: pathlib.Path) -> float:
  """Exports a model; returns the largest difference of its embeddings."""
  model = models.towers(
    image_shape=(SIZE, SIZE, 3),
    vocab_size=WORDS.vocab_size,
    length=LENGTH,
    dim=DIM,
    **spec,
  )
  params, state = randomized(model.init(jax.random.key(0)), 0)
  whole = dict(spec, name="towers", dim=DIM)
  write_model(Exported(whole, params, state, WORDS, SIZE, 0.05), folder)
  pixels = np.random.default_rng(1).normal(size=(3, SIZE, SIZE, 3))
  pixels, tokens = pixels.astype(np.float32), WORDS.encode(CAPTIONS)
  ours, _ = model.apply(params, state, Batch(pixels, tokens, None))
  with torch.no_grad():
    expected = theirs(
      folder,
      torch.tensor(pixels.transpose(0, 3, 1, 2)),
      torch.tensor(tokens, dtype=torch.long),
    )
  return max(
    float(np.abs(np.asarray(a) - b.numpy()).max())
    for a, b in zip((ours.image, ours.text), expected, strict=True)
  )


def main() -> None:
  """Prints the errors as JSON; exits 1 if one is above the tolerance."""
  transformers.logging.set_verbosity_error()
  errors = {}
  for name, spec in CASES.items():
    with tempfile.TemporaryDirectory() as folder:
      errors[name] = compare(spec, pathlib.Path(folder) / "out")
  benchmark.show(
    benchmark.machine(), optional.versions(), {"embeddings": errors}
  )
  failed = [name for name, error in errors.items() if not error < TOLERANCE]
  sys.exit(f"FAILED: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
  main()
