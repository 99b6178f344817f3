"""Compares exports of OpenCLIP's families with what OpenCLIP makes of them.

python -m experiments.parity.exported_open_clip   # prints JSON

A tiny model of each family, with random weights, is exported with
`--layout=open_clip`. OpenCLIP opens the folder as `local-dir:`, with strict
loading of its arrays, and embeds JPEG files and captions with the folder's own
preprocessing and tokenizer, for which it needs torchvision. The embeddings, the
temperature and the bias must be those of the model that was exported, and those
of the folder that this library reads as `--model`. It exits with 1 if one is
not.

Towers of timm and transformers are named after those that are published, and
are as small as `open_clip_cases` makes them, under both libraries' names.
"""

import argparse
import contextlib
import io
import pathlib
import re
import sys
import tempfile
from unittest import mock

import jax
import numpy as np
from PIL import Image
import torch
import transformers

from experiments.harness import benchmark
from experiments.parity import (
  cases,
  open_clip_cases,
  optional,
  optional_cases,
  published,
)
from nuclr_jax import Batch
from nuclr_jax.lab import models
from nuclr_jax.lab.data import images
from nuclr_jax.lab.data.source import Resize
from nuclr_jax.lab.data.tokenizer import Tokenizer, pretrained_tokenizer
from nuclr_jax.lab.export import Exported, embedder_of_config, write_model
from nuclr_jax.lab.models.pretrained import open_clip, timm_towers
from nuclr_jax.lab.train import untrained
from nuclr_jax.types import Sides

TOLERANCE, TEMPERATURE, BIAS = 1e-5, 0.03, -12.5
APART = 1e-3  # how much two inputs must differ, or little would be shown
RESIZE = Resize("crop_torchvision")
PIXELS = dict(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
START, END, ROBERTA = published.START, published.END, published.ROBERTA
# What a family's captions begin and end with, and how they are padded; others
# are as CLIP's.
CLIP = ({"!": 0, "<unk>": 1}, START, END, {})
CAPTIONS = {
  "CLIPA": (
    {"[PAD]": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3},
    *("[CLS]", "[SEP]"),
    dict(template="[CLS] $A [PAD]"),
  ),
  **dict.fromkeys(
    ("MetaCLIP 2", "CLIP, mixed"),
    ({"!": 0, "<unk>": 1, END: 2}, None, END, {}),
  ),
  "SigLIP": (
    {"<unk>": 0, "</s>": 1},
    *(None, "</s>"),
    dict(pad_id=1, clean="canonicalize"),
  ),
  "RoBERTa": (ROBERTA, "<s>", "</s>", dict(pad_id=1)),
  **dict.fromkeys(
    ("NLLB", "NLLB, SigLIP"),
    (
      ROBERTA | {"eng_Latn": 4},
      *("eng_Latn", "</s>"),
      dict(pad_id=1, template="eng_Latn $A </s>"),
    ),
  ),
}


def randomized(tree):
  """Draws all arrays so that each of them matters, as `cases.randomized`."""
  rng = np.random.default_rng(0)

  def draw(x):
    if x.ndim > 1:
      x = rng.normal(size=x.shape) * np.prod(x.shape[:-1]) ** -0.5
      return np.float32(x)
    return np.float32(x + 0.3 * np.abs(rng.normal(size=x.shape)))

  return jax.tree.map(draw, tree)


def families() -> dict[str, cases.Case]:
  """Returns the tiny cases of all families, by name."""
  chosen = [
    *optional_cases.open_clip(tiny=True),
    *optional_cases.open_clip_siglip(tiny=True),
    *open_clip_cases.cases(tiny=True),
  ]
  found = {x.name.removeprefix("OpenCLIP").strip() or "CLIP": x for x in chosen}
  # What no published model has together.
  towers = found["CLIP"].towers
  image = towers["image"] | dict(pool="mean", activation="gelu", heads=2)
  text = towers["text"] | dict(causal=False, pool="end", end_id=2, eps=1e-3)
  text |= dict(activation="gelu_tanh", hidden=25)
  towers = towers | dict(image=image, text=text)
  return found | {"CLIP, mixed": found["CLIP"]._replace(towers=towers)}


@contextlib.contextmanager
def tiny_names(family: str, case: cases.Case):
  """Gives a tiny tower the name of a published one, in both libraries.

  timm's names say for images of which size a tower is; this one's says 24.
  """
  vision, sizes = {}, {}
  if family == "SigLIP":
    vision = {"timm_model_name": "vit_base_patch16_siglip_224"}
    sizes = optional_cases.TIMM
  elif family in open_clip_cases.FAMILIES:
    vision, _, sizes = open_clip_cases.FAMILIES[family]
  image, text = case.towers["image"], case.towers["text"]
  towers, texts, real = {}, {}, vision.get("timm_model_name", "")
  size = case.inputs["image"].shape[1]
  tiny = re.sub(r"_\d+$", f"_{size}", real)
  if real:
    towers[tiny] = image | {"name": timm_towers.find(real)["name"]}
    towers[tiny].pop("head", None)
  for name, (tower, _) in open_clip.HF_TEXTS.items():
    if tower["name"] == text["name"]:
      small = {key: x for key, x in text.items() if key in tower}
      texts[name] = (small, case.towers["vocab_size"])
      break
  timm = optional.load("timm")
  create = timm.create_model

  def by_real_name(name, **arguments):
    return create(real if name == tiny else name, **arguments)

  with (
    mock.patch.dict(timm_towers.TOWERS, towers),
    mock.patch.dict(open_clip.HF_TEXTS, texts),
    mock.patch.object(timm, "create_model", by_real_name),
    open_clip_cases.tiny_parts(sizes),
  ):
    yield


def tokenizer(family: str, case: cases.Case, folder: pathlib.Path) -> Tokenizer:
  """Makes the tokenizer of a family."""
  special, first, last, options = CAPTIONS.get(family, CLIP)
  words, _ = published.tokenizer(dict(special), first, last)
  folder.mkdir()
  words.save(str(folder / "tokenizer.json"))
  options = dict(clean=False, repair=True) | options
  return pretrained_tokenizer(
    folder,
    length=case.inputs["text"].shape[1],
    vocab_size=case.towers["vocab_size"],
    **options,
  )


def read_back(folder: pathlib.Path, photos) -> dict[str, np.ndarray]:
  """Embeds photos and captions with a folder, as `nuclr embed --model` does."""
  config = untrained.config_of_published(folder)
  with embedder_of_config(config) as opened:
    how = opened.image_size, opened.resize
    squares = [images.resize(images.decode(x), *how) for x in photos]
    return {
      "image": opened.encode.image(np.stack(squares)),
      "text": opened.encode.text(published.CAPTIONS),
    }


def compare(family: str, case: cases.Case, work: pathlib.Path) -> dict:
  """Exports a model; returns the largest differences."""
  words, folder = tokenizer(family, case, work / "words"), work / "out"
  size = case.inputs["image"].shape[1]
  spec = case.towers | {"image": case.towers["image"] | PIXELS}
  del spec["vocab_size"]
  model = models.towers(
    image_shape=(size, size, 3),
    vocab_size=words.vocab_size,
    length=words.length,
    **spec,
  )
  params, state = randomized(model.init(jax.random.key(0)))
  bias = BIAS if "SigLIP" in family else None
  whole = Exported(
    dict(spec, name="towers"),
    *(params, state, words, size, TEMPERATURE, RESIZE, bias),
  )
  photos = published.photos()
  squares = [images.resize(images.decode(x), size, RESIZE) for x in photos]
  tokens = words.encode(published.CAPTIONS)
  batch = Batch(np.stack(squares), tokens, None)
  ours, _ = jax.jit(model.apply)(params, state, batch)
  library = optional.load("open_clip")
  with tiny_names(family, case):
    write_model(whole, folder, layout="open_clip")
    theirs, prepare = library.create_model_from_pretrained(
      f"local-dir:{folder}"
    )
    again = read_back(folder, photos)
  ids = library.get_tokenizer(f"local-dir:{folder}")(published.CAPTIONS)
  np.testing.assert_array_equal(ids.numpy(), tokens)
  pixels = torch.stack([prepare(Image.open(io.BytesIO(x))) for x in photos])
  theirs = theirs.eval().double()
  with torch.no_grad():
    expected = {
      "image": theirs.encode_image(pixels.double(), normalize=True),
      "text": theirs.encode_text(ids, normalize=True),
    }
    scalars = [1 / float(theirs.logit_scale.exp()) - TEMPERATURE]
    if bias is not None:
      scalars.append(float(theirs.logit_bias) - bias)
  if bias is None and theirs.logit_bias is not None:
    raise ValueError(f"{family} has a bias of the logits")
  row = {
    side: float(np.abs(np.asarray(getattr(ours, side)) - x.numpy()).max())
    for side, x in expected.items()
  }
  row["read_back"] = max(
    float(np.abs(again[side] - x.numpy()).max()) for side, x in expected.items()
  )
  row["scalars"] = max(map(abs, scalars))
  row["apart"] = min(
    float(torch.pdist(x, p=torch.inf).min()) for x in expected.values()
  )
  return row


def main() -> None:
  """Prints the errors as JSON; exits 1 if one is above the tolerance."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--only", default="", help="part of a family's name")
  only = parser.parse_args().only
  transformers.logging.set_verbosity_error()
  rows = {}
  for family, case in families().items():
    if only not in family:
      continue
    with tempfile.TemporaryDirectory() as folder:
      rows[family] = compare(family, case, pathlib.Path(folder))
  benchmark.show(benchmark.machine(), optional.versions(), {"rows": rows})
  failed = [
    family
    for family, row in rows.items()
    if not max(row[x] for x in (*Sides._fields, "read_back", "scalars"))
    < TOLERANCE
    or not row["apart"] > APART
  ]
  sys.exit(f"FAILED: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
  main()
