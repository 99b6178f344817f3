"""Scores a run of ours with CLIP_benchmark, and compares with `nuclr evaluate`.

python -m experiments.parity.clip_benchmark --benchmark=PATH [--out=DIR]

A tiny CLIP is trained on generated photos and exported in OpenCLIP's layout.
`--benchmark` is the command `clip_benchmark` of an environment of its own, with
clip_benchmark, open_clip_torch, torchvision, scikit-learn and numpy below 2.4.
It scores the same photos from tar files: retrieval, and zero-shot
classification of colours. The two must give the same scores. (Captions do not
repeat: ties are errors for us, and chance for CLIP_benchmark.) Prints JSON;
exits with 1 if they differ.
"""

import argparse
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from nuclr_jax.lab.evaluate.zero_shot import DEFAULT_TEMPLATES
from tests.helpers import shapes

NUCLR = (sys.executable, "-m", "nuclr_jax.lab.cli.main")
TOLERANCE = 1e-6
CONFIG = """
from nuclr_jax.lab.config import load_config

def get_config():
  config = load_config("cc3m:clip,smoke")
  blocks = dict(width=32, layers=2, heads=2, activation="gelu", eps=1e-5)
  config.model = dict(
    name="towers", dim=32, projection_bias=False, dtype="float32",
    image=dict(name="clip_vit_b32", patch=8, **blocks),
    text=dict(name="clip_text", max_length=16, **blocks),
  )
  config.data.update(resize="crop_torchvision", probes=())
  config.data.update(validation=(), validation_zero_shot=())
  config.num_epochs = 20.0
  config.eval_every_epochs = 0.0
  return config
"""


def train(out: pathlib.Path) -> None:
  """Trains a tiny CLIP on generated photos, and exports it."""
  data = out / "data"
  data.mkdir()
  (out / "config.py").write_text(CONFIG)
  for seed, (split, count) in enumerate({"train": 200, "test": 48}.items()):
    shapes.write_tar(out / f"{split}.tar", count, seed=seed)
    if split == "test":
      keep_distinct(out / "test.tar")
    run(
      "ingest",
      f"--input={out / split}.tar",
      "--dataset=smoke",
      f"--split={split}",
      f"--data_dir={data}",
    )
  shapes.write_classes(data / "smoke_classes", 6, seed=3)
  where = f"--workdir={out / 'run'}", f"--data_dir={data}"
  run("train", f"--config={out / 'config.py'}", *where)
  run("export", *where, f"--output={out / 'exported'}", "--layout=open_clip")


def keep_distinct(path: pathlib.Path) -> None:
  """Drops photos whose caption an earlier photo has."""
  with tarfile.open(path) as tar:
    members = {x.name: tar.extractfile(x).read() for x in tar.getmembers()}
  captions = {}
  for name, content in members.items():
    if name.endswith(".txt"):
      captions.setdefault(content, name.removesuffix(".txt"))
  keys = set(captions.values())
  with tarfile.open(path, "w") as tar:
    for name, content in members.items():
      if name.partition(".")[0] in keys:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def run(*arguments: str) -> None:
  """Runs a verb of the launcher."""
  subprocess.run([*NUCLR, *arguments], check=True, stdout=sys.stderr)


def write_shards(out: pathlib.Path) -> None:
  """Writes the test photos as CLIP_benchmark reads them."""
  captioned, labelled = out / "captioned", out / "labelled"
  for folder in (captioned, labelled):
    (folder / "test").mkdir(parents=True)
    (folder / "test" / "nshards.txt").write_text("1")
  (captioned / "dataset_type.txt").write_text("retrieval")
  (captioned / "test" / "0.tar").write_bytes((out / "test.tar").read_bytes())
  names = sorted(shapes.COLOURS)
  (labelled / "classnames.txt").write_text("\n".join(names))
  templates = (x.replace("{}", "{c}") for x in DEFAULT_TEMPLATES)
  (labelled / "zeroshot_classification_templates.txt").write_text(
    "\n".join(templates)
  )
  with tarfile.open(labelled / "test" / "0.tar", "w") as tar:
    places = (out / "data" / "smoke_classes" / "test").glob("*/*.jpg")
    for i, path in enumerate(sorted(places)):
      label = str(names.index(path.parent.name)).encode()
      for ending, content in (("jpg", path.read_bytes()), ("cls", label)):
        member = tarfile.TarInfo(f"{i:05d}.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def benchmark_scores(command: str, out: pathlib.Path) -> dict[str, float]:
  """Runs CLIP_benchmark on both sets."""
  scores = {}
  for name, task in (
    ("captioned", "zeroshot_retrieval"),
    ("labelled", "zeroshot_classification"),
  ):
    result = out / f"{name}.json"
    model = ("--model", f"local-dir:{out / 'exported'}", "--pretrained", "")
    where = ("--dataset", f"wds/{name}", "--dataset_root", str(out / name))
    how = ("--task", task, "--no_amp", "--num_workers", "0")
    more = ("--recall_k", "1", "5", "--output", str(result))
    subprocess.run(
      [command, "eval", *model, *where, *how, *more],
      check=True,
      stdout=sys.stderr,
    )
    scores |= json.loads(result.read_text())["metrics"]
  return scores


def main() -> None:
  """Prints both libraries' scores as JSON; exits with 1 if they differ."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--benchmark", required=True)
  parser.add_argument("--out")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(args.out or folder).absolute()
    out.mkdir(parents=True, exist_ok=True)
    train(out)
    write_shards(out)
    theirs = benchmark_scores(args.benchmark, out)
    ours = json.loads((out / "run" / "metrics.json").read_text())
  pairs = (
    {
      f"test/smoke/{way}/recall@{k}": f"{side}_retrieval_recall@{k}"
      for way, side in (("image_to_text", "text"), ("text_to_image", "image"))
      for k in (1, 5)
    }
    | {f"test/zero_shot_smoke_classes/top{k}": f"acc{k}" for k in (1, 5)}
    | {"test/zero_shot_smoke_classes/mean_per_class": "mean_per_class_recall"}
  )
  rows = {
    name: {"nuclr": ours[name], "clip_benchmark": theirs[other]}
    for name, other in pairs.items()
  }
  print(json.dumps(rows, indent=2))
  wrong = [
    name
    for name, row in rows.items()
    if abs(row["nuclr"] - row["clip_benchmark"]) > TOLERANCE
  ]
  sys.exit(f"FAILED: {', '.join(wrong)}" if wrong else None)


if __name__ == "__main__":
  main()
