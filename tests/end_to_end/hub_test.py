"""Models of the Hugging Face hub, by a stand-in of it."""

from collections.abc import Iterator
import pathlib
import shutil

import make_captioned
import numpy as np
import pytest
from repository import CLIP, GOLDEN, ROOT
import stand_in_hub
import warm


@pytest.fixture
def hub(tmp_path) -> Iterator[type[stand_in_hub.Handler]]:
  """A hub with a model that has weights in Flax's own format only."""
  model = tmp_path / "hub" / "team" / "clip"
  shutil.copytree(CLIP, model)
  (model / "model.safetensors").unlink()
  shutil.copy(GOLDEN / "flax_files" / "clip" / "flax_model.msgpack", model)
  with stand_in_hub.running(tmp_path / "hub") as found:
    yield found


@pytest.fixture
def photos(tmp_path) -> pathlib.Path:
  captions = [f"a photo of a dog {i}" for i in range(4)]
  return make_captioned.photo_folder(tmp_path / "photos", captions)


def run(hub, *command, **more):
  """A new process, as `huggingface_hub` reads its settings when imported."""
  return warm.run(command, cwd=ROOT, env=hub.environment | more)


def test_a_model_of_the_hub(hub, photos, tmp_path):
  def embed(name, **more):
    command = ("embed", "--model=team/clip", f"--input={photos}")
    result = run(
      hub,
      "-m",
      "nuclr_jax.lab.cli.main",
      *command,
      f"--output={tmp_path / name}",
      **more,
    )
    assert result.returncode == 0, result.stderr
    return np.load(tmp_path / name / "image.npy")

  image = embed("first")
  assert image.shape == (4, 12)
  assert "team/clip/flax_model.msgpack" in hub.asked
  assert "team/clip/pytorch_model.bin" not in hub.asked
  # Everything is in the cache now, also what the hub does not have.
  hub.asked.clear()
  np.testing.assert_array_equal(embed("again", HF_HUB_OFFLINE="1"), image)
  assert not hub.asked


FIND = """
import sys
from nuclr_jax.lab.models.pretrained import load
try:
  print(load.read_logit_scale(sys.argv[1]))
except ValueError as error:
  print(error)
"""


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (None, "3.5"),
    ("repository", "Check the name"),
    ("gated", "a private or gated model needs `hf auth login`"),
    ("weights", "team/clip on the hub has none of model.safetensors"),
  ],
)
def test_what_is_missing(hub, change, message, tmp_path):
  if change == "repository":
    shutil.rmtree(hub.folder / "team" / "clip")
  elif change == "gated":
    hub.token = "secret"
  elif change == "weights":
    (hub.folder / "team" / "clip" / "flax_model.msgpack").unlink()
  (tmp_path / "find.py").write_text(FIND)
  result = run(hub, tmp_path / "find.py", "team/clip")
  assert message in result.stdout, result.stdout + result.stderr


def test_a_sentence_encoder(hub, tmp_path):
  """Its files in folders are found, too, and nothing asks for it again."""
  folder = GOLDEN / "sentence_encoders" / "mean"
  shutil.copytree(folder, hub.folder / "team" / "words")
  with np.load(folder / "expected.npz") as expected:
    texts, right = expected["texts"].tolist(), expected["text"]
  texts = [" ".join(x.split()) for x in texts]
  (tmp_path / "texts.txt").write_text("\n".join(texts))
  words = ["-m", "nuclr_jax.lab.cli.main", "embed", "--model=team/words"]
  words.append(f"--input={tmp_path}/texts.txt")
  for i in range(2):
    done = run(hub, *words, f"--output={tmp_path}/out{i}")
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / f"out{i}" / "text.npy")
    np.testing.assert_allclose(found, right, atol=2e-6)
    asked = [x for x in hub.asked if (hub.folder / x).is_file()]
    assert len(asked) == len(set(asked)) > 6
