"""Compares SigLIP 2 for images of any aspect ratio with transformers.

python -m experiments.parity.naflex                  # prints JSON
python -m experiments.parity.naflex --write-golden   # a tiny model, for tests

The folder and its `expected.npz` are as those of `published`, of photos that
are wide, tall, tiny and square. transformers resizes them with Pillow here, as
`nuclr --model` does. Its `Siglip2Processor` takes 256 patches of 16 pixels
whatever the folder says, so that it is told what the folder says.

Printed are the largest differences of positions, resized to the grids of 256
patches, to those of PyTorch; and of embeddings, of the folder by this library
and of its export by transformers, to those that transformers computed from the
folder; and how many images of random sizes are resized to other patches than
transformers has. Exits with 1 if one is above 1e-5, or there is such an image.
"""

import argparse
import io
import pathlib
import sys
import tempfile

import jax.numpy as jnp
import numpy as np
from PIL import Image
import torch
import transformers

from experiments.harness import benchmark
from experiments.parity import optional, published
from nuclr_jax.lab.data import patches
from nuclr_jax.lab.data.embeddings import open_embeddings
from nuclr_jax.lab.export import (
  embedder_of_config,
  exported,
  write_embeddings,
  write_model,
)
from nuclr_jax.lab.models.naflex import resize_positions
from nuclr_jax.lab.train import untrained
from nuclr_jax.lab.user_files.items import Item

NAME, TOLERANCE = "hf_siglip2_naflex", 1e-5
FOLDER = published.OUT / NAME
# Height and width. Of 36 patches, the wide and the tall photo have fewer rows
# or columns than the 4 x 4 positions, and more of the others.
SHAPES = ((40, 220), (190, 20), (3, 2), (33, 33), (64, 48), (1, 300))
CAPTIONS = [
  "A photo of a Dog!",
  "two  cats, on a mat",
  "the dog's mat - a cat",
  "a cat on the mat of the dog",
  "mat",
  "zzz",
]
PATCHES = dict(patch_size=8, max_num_patches=36)
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
MERGES = [("d", "o"), ("do", "g"), ("c", "a"), ("ca", "t")]


def tokenizer() -> transformers.Siglip2Tokenizer:
  """Makes a tokenizer of letters and four longer pieces."""
  letters = sorted({x for word in published.WORDS for x in word} | {"\u2581"})
  pieces = [*SPECIAL, *letters, *("".join(x) for x in MERGES)]
  return transformers.Siglip2Tokenizer(
    vocab={x: i for i, x in enumerate(pieces)},
    merges=MERGES,
    model_max_length=published.LENGTH,
    padding_side="right",
    model_input_names=["input_ids"],
  )


def naflex(folder: pathlib.Path) -> tuple:
  """Writes the folder; returns embeddings of images and texts, and captions."""
  words = tokenizer()
  text = dict(vocab_size=len(words), max_position_embeddings=published.LENGTH)
  config = transformers.Siglip2Config(
    text_config=published.BLOCKS | text | dict(bos_token_id=2, eos_token_id=1),
    vision_config=published.BLOCKS | dict(patch_size=8, num_patches=16),
  )
  model = published.randomized(transformers.Siglip2Model(config))
  processor = transformers.Siglip2Processor(
    transformers.Siglip2ImageProcessor(
      **PATCHES, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25]
    ),
    words,
  )
  model.save_pretrained(folder)
  processor.save_pretrained(folder)
  return *embeddings(folder), CAPTIONS


def embeddings(folder: pathlib.Path) -> tuple[torch.Tensor, torch.Tensor]:
  """Computes with a folder's model, processor and tokenizer, in float64."""
  model = transformers.AutoModel.from_pretrained(folder).eval().double()
  process = transformers.AutoImageProcessor.from_pretrained(
    folder, backend="pil"
  )
  photos = [Image.open(io.BytesIO(x)) for x in published.photos(SHAPES)]
  images = process(images=photos, return_tensors="pt")
  images["pixel_values"] = images["pixel_values"].double()
  words = transformers.AutoTokenizer.from_pretrained(folder)
  texts = words(
    CAPTIONS,
    padding="max_length",
    max_length=published.LENGTH,
    truncation=True,
    return_tensors="pt",
  )
  output = model(**images, input_ids=texts["input_ids"])
  return output.image_embeds, output.text_embeds


def of_positions() -> float:
  """Resizes random positions to grids of up to 256 patches, and compares.

  They have 1 to 128 rows and as many columns as fit. For a single column and
  more rows than there are positions, `interpolate` of PyTorch 2.14 repeats the
  first row; transformers has a formula of its own, with which the tower agrees.
  """
  side, rng = 16, np.random.default_rng(0)
  positions = rng.normal(size=(side, side, 4)).astype(np.float32)
  theirs = torch.from_numpy(positions).double().permute(2, 0, 1)[None]
  error = 0.0
  for rows in range(1, 129):
    grid = (rows, 256 // rows)
    expected = torch.nn.functional.interpolate(
      theirs, grid, mode="bilinear", align_corners=False, antialias=True
    )
    places = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), -1)
    found = resize_positions(
      jnp.asarray(positions), jnp.array([grid]), jnp.asarray(places)[None]
    )
    expected = expected[0].permute(1, 2, 0).reshape(-1, 4).numpy()
    error = max(error, float(np.abs(np.asarray(found)[0] - expected).max()))
  return error


def of_grids(count: int = 2_000) -> dict[str, int]:
  """Counts images that transformers resizes to other rows and columns."""
  from transformers.models.siglip2 import image_processing_pil_siglip2 as theirs

  rng, different = np.random.default_rng(0), 0
  for _ in range(count):
    # Of all orders of magnitude, so that many are long, or very small.
    height, width = np.exp(rng.uniform(0, np.log(20_000), 2)).astype(int)
    patch, side = rng.choice((8, 14, 16)), rng.integers(2, 33)
    expected = theirs.get_image_size_for_max_num_patches(
      int(height), int(width), int(patch), int(side) ** 2
    )
    found = patches.grid_of(
      int(height), int(width), size=int(side * patch), patch=int(patch)
    )
    different += tuple(int(patch) * x for x in found) != expected
  return {"images": count, "different": different}


def of_embeddings() -> dict[str, float]:
  """Embeds what the folder has, exports it, and compares both."""
  with np.load(FOLDER / "expected.npz") as content:
    expected = [content[side] for side in ("image", "text")]
  config = untrained.config_of_published(FOLDER)
  pairs = zip(published.photos(SHAPES), CAPTIONS, strict=True)
  items = [Item(f"{i}", "x", x, [y]) for i, (x, y) in enumerate(pairs)]
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder)
    with embedder_of_config(config) as opened:
      write_embeddings(opened, items, out / "embeddings")
    ours = open_embeddings(out / "embeddings")
    parts, _, state = untrained.open_untrained(config, pairs=False)
    write_model(exported(parts, state), out / "exported")
    with torch.no_grad():
      theirs = embeddings(out / "exported")
  found = {"read": (ours.image, ours.text), "exported": theirs}
  return {
    name: max(
      float(np.abs(np.asarray(a) - b).max())
      for a, b in zip(sides, expected, strict=True)
    )
    for name, sides in found.items()
  }


def main() -> None:
  """Writes the folder, or prints differences; exits 1 if one is too large."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--write-golden", action="store_true")
  transformers.logging.set_verbosity_error()
  torch.set_num_threads(1)
  if parser.parse_args().write_golden:
    published.write(NAME, naflex, SHAPES)
    return
  errors = {"positions": of_positions(), **of_embeddings()}
  grids = of_grids()
  benchmark.show(
    benchmark.machine(),
    optional.versions(),
    {"largest": errors, "grids": grids},
  )
  failed = [name for name, error in errors.items() if not error < TOLERANCE]
  failed += ["grids"] * bool(grids["different"])
  sys.exit(f"FAILED: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
  main()
