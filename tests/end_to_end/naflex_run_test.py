"""SigLIP 2 for images of any aspect ratio: trained, exported, read back."""

import make_photos
import numpy as np
from repository import PUBLISHED, ROOT
import warm

from nuclr_jax.lab.data.embeddings import open_embeddings

NAFLEX = PUBLISHED / "hf_siglip2_naflex"
SHAPES = [(20, 120), (120, 20), (64, 64), (40, 60), (16, 200), (90, 30)]


def nuclr(*arguments):
  done = warm.run(["-m", "nuclr_jax.lab.cli.main", *arguments], cwd=ROOT)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def test_a_run_goes_to_transformers_and_back(tmp_path):
  files = []
  for i, shape in enumerate(2 * SHAPES):
    image = make_photos.encoded(make_photos.pixels(i, *shape), quality=90)
    files += [(f"{i}.jpg", image), (f"{i}.txt", f"a dog {i}".encode())]
  tar = make_photos.write_tar(tmp_path / "photos.tar", files)
  place = f"--data_dir={tmp_path / 'data'}"
  nuclr("ingest", f"--input={tar}", "--dataset=mine", place, "--workers=1")
  nuclr(
    *("train", f"--model={NAFLEX}", "--data=mine", place),
    *(f"--workdir={tmp_path / 'run'}", "--config.num_epochs=2"),
    *("--config.batch_size=4", "--config.model.dtype=float32"),
  )
  exported = tmp_path / "exported"
  nuclr("export", f"--workdir={tmp_path / 'run'}", f"--output={exported}")
  found = []
  for i, model in enumerate(
    (
      f"--model={NAFLEX}",
      f"--workdir={tmp_path / 'run'}",
      f"--model={exported}",
    )
  ):
    output = tmp_path / f"embedded{i}"
    nuclr("embed", model, f"--input={tar}", f"--output={output}")
    found.append(open_embeddings(output))
  before, trained, read = found
  for side in ("image", "text"):
    ours, theirs = getattr(trained, side), getattr(read, side)
    assert len(ours) == 12
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert np.abs(ours - getattr(before, side)).max() > 1e-4
  scored = nuclr("evaluate", f"--model={exported}", "--data=mine:train", place)
  assert "12 images, 12 captions" in scored
