"""Times whole commands that embed photos and captions, ours and transformers'.

.venv-parity/bin/python -m experiments.step_time.embedding

CLIP's ViT-B/16 with random weights is written by transformers; `nuclr embed
--model` and a script with transformers then embed the same JPEG files and
captions, each in a process of its own and in alternation. Times are of whole
processes, imports and compilation included, since that is what a user waits
for. The embeddings are compared, too.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

from experiments.harness import benchmark
from experiments.parity import optional
from nuclr_jax.lab.data import embeddings

SCRIPT = """
import pathlib, sys
import numpy as np, torch, transformers
from PIL import Image
model, photos, out = map(pathlib.Path, sys.argv[1:])
transformers.logging.set_verbosity_error()
clip = transformers.CLIPModel.from_pretrained(model).eval()
process = transformers.AutoImageProcessor.from_pretrained(model)
words = transformers.PreTrainedTokenizerFast(
  tokenizer_file=str(model / "tokenizer.json"), pad_token="<|endoftext|>")
paths = sorted(photos.glob("*.jpg"))
captions = [x.with_suffix(".txt").read_text() for x in paths]
unit = torch.nn.functional.normalize
rows = [[], []]
with torch.no_grad():
  for i in range(0, len(paths), 32):
    images = [Image.open(x).convert("RGB") for x in paths[i : i + 32]]
    pixels = process(images=images, return_tensors="pt")["pixel_values"]
    tokens = words(captions[i : i + 32], padding="max_length", max_length=77,
      truncation=True, return_tensors="pt")
    output = clip(pixel_values=pixels, input_ids=tokens["input_ids"],
      attention_mask=tokens["attention_mask"])
    rows[0].append(output.image_embeds), rows[1].append(output.text_embeds)
out.mkdir()
for name, x in zip(("image", "text"), rows):
  np.save(out / f"{name}.npy", unit(torch.cat(x), dim=-1).numpy())
"""


def write_photos(folder: pathlib.Path, count: int) -> None:
  """Writes JPEG files of 500 x 375 pixels, each with a caption."""
  rng = np.random.default_rng(0)
  words = "a photo of the dog cat on mat two red".split()
  for i in range(count):
    small = rng.integers(0, 256, (25, 33, 3), np.uint8)
    photo = Image.fromarray(small).resize((500, 375), Image.BICUBIC)
    photo.save(folder / f"{i:05d}.jpg", quality=90)
    caption = " ".join(rng.choice(words, 10))
    (folder / f"{i:05d}.txt").write_text(caption)


def write_clip(folder: pathlib.Path) -> None:
  """Writes CLIP's ViT-B/16 with random weights, and a small tokenizer."""
  from tokenizers import Tokenizer, models, pre_tokenizers, processors
  import torch
  import transformers

  from experiments.parity import published

  torch.manual_seed(0)
  start, end = 49_406, 49_407  # the largest ids
  ids = {"!": 0, "<unk>": 1} | {published.START: start, published.END: end}
  for i, word in enumerate("a photo of the dog cat on mat two red".split(), 2):
    ids[word] = i
  words = Tokenizer(models.WordLevel(ids, "<unk>"))
  words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  words.post_processor = processors.TemplateProcessing(
    single=f"{published.START} $A {published.END}",
    special_tokens=[(published.START, start), (published.END, end)],
  )
  config = transformers.CLIPConfig(
    text_config=dict(eos_token_id=end), vision_config=dict(patch_size=16)
  )
  transformers.CLIPModel(config).save_pretrained(folder)
  processor = dict(
    image_processor_type="CLIPImageProcessor",
    size={"shortest_edge": 224},
    crop_size={"height": 224, "width": 224},
    do_center_crop=True,
    resample=3,
  )
  settings = dict(tokenizer_class="CLIPTokenizerFast", pad_token=published.END)
  published.save_inputs(folder, words, processor, settings, length=77)


def main() -> None:
  """Prints the times and the largest difference as JSON."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--photos", type=int, default=88)
  parser.add_argument("--rounds", type=int, default=3)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    home = pathlib.Path(folder)
    model, photos = home / "model", home / "photos"
    model.mkdir(), photos.mkdir()
    write_photos(photos, args.photos)
    write_clip(model)
    (home / "script.py").write_text(SCRIPT)

    def run(out, *command):
      began = time.monotonic()
      subprocess.run(
        [sys.executable, *map(str, command)], check=True, stdout=sys.stderr
      )
      return time.monotonic() - began

    def ours(out):
      nuclr = ("-m", "nuclr_jax.lab.cli.main", "embed", f"--model={model}")
      return run(out, *nuclr, f"--input={photos}", f"--output={out}")

    def theirs(out):
      return run(out, home / "script.py", model, photos, out)

    times = {"nuclr": [], "transformers": []}
    for i in range(args.rounds):
      times["nuclr"].append(ours(home / f"ours{i}"))
      times["transformers"].append(theirs(home / f"theirs{i}"))
    cached = embeddings.open_embeddings(home / "ours0")
    error = max(
      float(np.abs(x - np.load(home / "theirs0" / f"{side}.npy")).max())
      for side, x in (("image", cached.image), ("text", cached.text))
    )
  ratios = [a / b for a, b in zip(*times.values(), strict=True)]
  seconds = {name: statistics.median(x) for name, x in times.items()}
  benchmark.show(
    benchmark.machine(),
    optional.versions(),
    {
      "photos": args.photos,
      "seconds": seconds,
      "ratio": statistics.median(ratios),
      "ratios": ratios,
      "largest_difference": error,
    },
  )


if __name__ == "__main__":
  main()
