"""Whether `nuclr filter` notices that what it has embedded is another now."""

import os
import pathlib

from absl.testing import flagsaver
import make_photos
import make_shards
import pytest

from nuclr_jax.lab.cli import chosen, filter_flags, flags, verbs
from nuclr_jax.lab.report import filter_files
from nuclr_jax.lab.train import checkpoint


def touch(path: pathlib.Path) -> None:
  """Writes a file, with another time than before."""
  path.parent.mkdir(parents=True, exist_ok=True)
  before = path.stat().st_mtime_ns if path.exists() else 0
  path.write_text("x")
  os.utime(path, ns=(before + 10**9,) * 2)


@pytest.mark.parametrize(
  "flag, below",
  [
    ("model", "model/model.safetensors"),
    ("model", "model/image_encoder/model.safetensors"),
    ("architecture", "model.json"),
    ("workdir", f"run/{checkpoint.NEWEST}/20/SHA256SUMS"),
    ("workdir", f"run/{checkpoint.BEST}/20/SHA256SUMS"),
    ("input", "texts.txt"),
  ],
)
def test_another_file_is_another_source(flag, below, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with flagsaver.flagsaver(**{flag: below.partition("/")[0]}):
    states = [chosen.state_of_source(None)]
    for _ in range(2):
      touch(pathlib.Path(below))
      states += [chosen.state_of_source(None)] * 2
  first, second, again, third, _ = states
  assert first != second == again != third


def test_a_model_of_the_hub_has_no_files_here():
  with flagsaver.flagsaver(model="openai/clip-vit-base-patch32"):
    assert chosen.state_of_source(None) == []


def test_changed_photos_are_embedded_again(tmp_path, monkeypatch):
  """Although an earlier command has embedded those of the same name."""
  photos, embedded = tmp_path / "photos", []

  def embed(folder, *, plan, **_):
    embedded.append([x.key for part in plan.parts for x in part.read()])
    make_shards.embedded(folder)

  def filtered(threshold):
    values = dict(
      input=f"{photos}",
      model=f"{tmp_path}",
      output=f"{tmp_path / 'out' / 'kept'}",
      score=["similarity"],
      threshold=[threshold],
    )
    with flagsaver.flagsaver(**values):
      verbs.filter_pairs()

  (tmp_path / "out").mkdir()
  monkeypatch.setattr(chosen, "embed_inputs", embed)
  monkeypatch.setattr(filter_files.filter_page, "write", lambda *_: None)
  make_photos.photo_folder(photos)
  for _ in range(2):
    with pytest.raises(ValueError, match="is kept"):
      filtered(2.0)
  assert len(embedded) == 1  # the second command continues the first
  changed = sorted(photos.rglob("*.jpg"))[0]
  changed.unlink()
  filtered(-1.0)
  assert len(embedded) == 2 and len(embedded[1]) == len(embedded[0]) - 1


def test_pairs_of_several_splits_are_not_filtered_as_one(tmp_path, caplog):
  """Those that are kept are trained on."""
  make_photos.photo_folder(tmp_path / "photos")
  names = sorted(x.name for x in (tmp_path / "photos").rglob("*.jpg"))[:2]
  table = tmp_path / "photos" / "t.csv"
  rows = [f"{names[0]},a dog,test", f"{names[1]},a cat,train"]
  table.write_text("\n".join(["image,caption,split", *rows]))
  with flagsaver.flagsaver(input=f"{table}"):
    with pytest.raises(flags.UsageError, match="has the splits test, train;"):
      filter_flags.to_embed()
    assert len(chosen.plan_of_input().parts) == 2
    assert "does not tell them apart" in caplog.text
  with flagsaver.flagsaver(input=f"{table}", split="train"):
    assert filter_flags.to_embed()["source"]["split"] == "train"
