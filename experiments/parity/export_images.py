"""Compares how libraries prepare photos for an export with how a run does.

python -m experiments.parity.export_images --write-golden

A tiny CLIP is exported for each way to make squares, in both layouts. OpenCLIP
and transformers open the folders, and prepare and embed wide, tall and tiny
photos, from JPEG files on. It prints JSON: the smallest cosine of their
embeddings with those of the run, and how many of the photos have other pixels.
`tests/golden/export_images.npz` has the photos and the pixels that the
libraries make of them.
"""

import argparse
import io
import json
import pathlib
import tempfile

import cv2
import jax
import numpy as np
import open_clip
from PIL import Image
import torch
import transformers

from nuclr_jax.lab import export
from nuclr_jax.lab.data import elsewhere, images
from nuclr_jax.lab.train import loop, untrained

ROOT = pathlib.Path(__file__).parents[2] / "tests" / "golden"
CLIP, GOLDEN = ROOT / "published" / "hf_clip", ROOT / "export_images.npz"
SHAPES = (  # height and width
  *((40, 60), (41, 60), (60, 41), (100, 333), (333, 100), (480, 641)),
  *((33, 1000), (1000, 33), (3, 600), (600, 3), (1, 200), (200, 1)),
  *((16, 16), (3, 5), (7, 8), (1, 3), (64, 65)),
)
MODES = ("squash", "crop", "crop_torchvision", None)
KERNELS = ("bicubic", "bilinear")


def photo(seed: int, height: int, width: int) -> bytes:
  """JPEG bytes of coarse random colours, which change along both sides."""
  coarse = [max(2, min(x, most)) for x, most in ((height, 9), (width, 40))]
  rng = np.random.default_rng(seed)
  image = rng.integers(0, 256, (*coarse, 3)).astype(np.uint8)
  image = cv2.resize(image, (width, height))
  options = [cv2.IMWRITE_JPEG_QUALITY, 92]
  return cv2.imencode(".jpg", image, options)[1].tobytes()


def by_open_clip(folder: pathlib.Path, photos):
  """Embeds photos as OpenCLIP does; also returns the pixels."""
  name = f"local-dir:{folder}"
  model, _, prepare = open_clip.create_model_and_transforms(name)
  pixels = torch.stack([prepare(x) for x in photos])
  return model.eval().encode_image(pixels), pixels


def by_transformers(folder: pathlib.Path, photos):
  """Embeds photos as transformers does; also returns the pixels."""
  auto = transformers.AutoImageProcessor
  prepare = auto.from_pretrained(folder, backend="pil")
  found = [prepare(x, return_tensors="pt")["pixel_values"][0] for x in photos]
  model = transformers.CLIPModel.from_pretrained(folder).eval()
  output = model.get_image_features(pixel_values=torch.stack(found))
  return getattr(output, "pooler_output", output), torch.stack(found)


def compare(mode, kernel, files, work: pathlib.Path):
  """Yields, for each layout, a row and the pixels of the library."""
  config = untrained.config_of_published(CLIP)
  config["data"] |= {"resize": mode, "kernel": kernel}
  parts, mesh, state = untrained.open_untrained(config, pairs=False)
  size, how = parts.data.image_shape[0], parts.data.resize
  squares = np.stack(
    [images.resize(images.decode(x), size, how) for x in files]
  )
  with jax.set_mesh(mesh):
    ours = loop.embedder(parts, mesh)(state).image(squares)
  image = config["model"]["image"]
  for layout, library in (
    (elsewhere.OPEN_CLIP, by_open_clip),
    (elsewhere.HUGGING_FACE, by_transformers),
  ):
    folder = work / f"{mode}-{kernel}-{layout}"
    export.write_model(
      export.model.exported(parts, state), folder, layout=layout
    )
    with torch.no_grad():
      theirs, pixels = library(
        folder, [Image.open(io.BytesIO(x)) for x in files]
      )
    theirs = theirs.numpy() / np.linalg.norm(theirs, axis=1, keepdims=True)
    pixels = pixels.numpy().transpose(0, 2, 3, 1)
    pixels = (pixels * image["std"] + image["mean"]) * 255
    pixels = np.round(pixels).astype(np.uint8)
    yield (
      {
        "resize": mode,
        "kernel": kernel,
        "layout": layout,
        "smallest_cosine": float((ours * theirs).sum(axis=1).min()),
        "other_pixels": int((pixels != squares).any(axis=(1, 2, 3)).sum()),
        "photos": len(files),
        "told": len(elsewhere.differences(how, [layout], labelled=False)),
      },
      pixels,
    )


def main() -> None:
  """Prints the rows, and writes the golden file if asked to."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write-golden", action="store_true")
  arguments = parser.parse_args()
  files = [photo(seed, *shape) for seed, shape in enumerate(SHAPES)]
  golden = {
    f"jpeg/{i}": np.frombuffer(x, np.uint8) for i, x in enumerate(files)
  }
  rows = []
  with tempfile.TemporaryDirectory() as place:
    for mode in MODES:
      for kernel in KERNELS:
        for row, pixels in compare(mode, kernel, files, pathlib.Path(place)):
          rows.append(row)
          # All that the files of an export tell apart.
          kind = "crop" if "crop" in str(mode) else "squash"
          key = f"{row['layout']}/{kind}/{kernel}"
          np.testing.assert_array_equal(golden.setdefault(key, pixels), pixels)
  if arguments.write_golden:
    np.savez_compressed(GOLDEN, **golden)
  print(json.dumps(rows, indent=2))


if __name__ == "__main__":
  main()
