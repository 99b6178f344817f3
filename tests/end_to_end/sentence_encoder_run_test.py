"""Runs and commands of published sentence encoders."""

import json

import jax
import make_captioned
import numpy as np
from pyarrow import parquet
import pytest
from repository import GOLDEN, ROOT
import warm

from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.models.pretrained import read_published
from nuclr_jax.lab.train import loop

MEAN = GOLDEN / "sentence_encoders" / "mean"


@pytest.mark.parametrize("locked", [False, True])
def test_a_run(locked, tmp_path, no_diagnostics):
  """Fine-tuned, or locked: then it stays as it was published."""
  rows = [(make_captioned.photo(i), [f"a photo of {i}"]) for i in range(16)]
  make_captioned.prepare(tmp_path, {"train": rows})
  published = read_published(MEAN)
  config = load_config("finetune_clip:clip,smoke").to_dict()
  config["data"] |= {
    **published.data,
    **dict(name="image_text", train="mine", size=16),
    **dict.fromkeys(("validation", "test", "zero_shot"), ()),
  }
  config["model"] |= {
    "dim": 8,
    "image": dict(name="resnet50", stages=(1,), width=2),
    "text": published.model["encoder"] | {"pretrained": str(MEAN)},
  }
  config["optimizer"] |= dict(layer_decay=1.0, weight_average=0.0)
  if locked:
    config["optimizer"]["freeze"] = ("model/text",)
  config |= dict(batch_size=8, num_epochs=2.0, num_devices=1)
  loop.fit(config, tmp_path / "run", data_dir=tmp_path)
  parts, _, state = loop.load(tmp_path / "run", data_dir=tmp_path)
  first = parts.model.load(*parts.model.init(jax.random.key(0)))[0]["text"]
  same = jax.tree.map(
    lambda x, y: bool(np.array_equal(x, y)),
    first,
    state.params["model"]["text"],
  )
  assert all(jax.tree.leaves(same)) == locked


def test_empty_lines_are_counted(tmp_path):
  """Those at the end of a file move no row."""
  texts = ["a dog", "a cat", "dogs"]
  (tmp_path / "a.txt").write_text("a dog\n\n \r\na cat\n\ndogs\n\n\n")
  (tmp_path / "b.txt").write_text("a dog\na cat\ndogs\n\n")
  for name, count in (("a", 3), ("b", 0)):
    words = ["embed", f"--input={name}.txt", f"--output={name}"]
    done = warm.run(
      ["-m", "nuclr_jax.lab.cli.main", *words, f"--model={MEAN}"],
      cwd=tmp_path,
      env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert ("3 empty lines have no row; texts" in done.stderr) == bool(count)
    counts = json.loads((tmp_path / name / "counts.json").read_text())
    assert counts.get("empty_lines", 0) == count
    table = parquet.read_table(tmp_path / name / "texts.parquet")
    assert table["caption"].to_pylist() == texts
    assert len(np.load(tmp_path / name / "text.npy")) == len(texts)


@pytest.mark.parametrize(
  "command, code, message",
  [
    ("evaluate --data=mine", 2, "encodes texts only, and has no images"),
    ("popularity --workdir=w --data=mine", 2, "encodes texts only"),
    ("popularity --workdir=w --input=a.txt", 2, "texts needs --temperature"),
    ("embed --output=o --input=photos", 1, "the model takes texts only"),
    ("embed --output=o --input=a.txt --images=photos", 2, "--images is for"),
    ("embed --output=o --input=b.txt", 1, "b.txt does not exist"),
    ("embed --output=o --input=empty.txt", 1, "there are no texts to embed"),
    ("embed --output=o --input=table.txt", 1, "of a table of images; a .txt"),
  ],
)
def test_commands_that_are_refused(command, code, message, tmp_path):
  make_captioned.photo_folder(tmp_path / "photos", ["a dog", "a cat"])
  (tmp_path / "a.txt").write_text("a dog\n")
  (tmp_path / "empty.txt").write_text("\n\n")
  (tmp_path / "table.txt").write_text("image,caption\na.jpg,a dog\nb.jpg,dogs")
  words = ["-m", "nuclr_jax.lab.cli.main", *command.split()]
  env = {"NUCLR_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
  done = warm.run([*words, f"--model={MEAN}"], cwd=tmp_path, env=env)
  assert done.returncode == code, done.stderr
  assert message in " ".join(done.stderr.split())
  assert "Traceback" not in done.stderr
  assert not (tmp_path / "o").exists()
