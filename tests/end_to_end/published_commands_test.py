"""Commands on published models, by the launcher."""

import make_captioned
import pytest
from repository import CLIP, ROOT
import warm


class TestCommands:
  def nuclr(self, *args, **kwargs):
    return warm.run(["-m", "nuclr_jax.lab.cli.main", *args], cwd=ROOT, **kwargs)

  @pytest.mark.parametrize(
    ("args", "message"),
    [
      (
        ["evaluate"],
        "give one of --workdir, --config, --model or --embeddings",
      ),
      (
        ["evaluate", f"--model={CLIP}", "--workdir=x"],
        "give one of --workdir, --config, --model or --embeddings",
      ),
      (
        ["evaluate", f"--model={CLIP}"],
        "--model needs data: --data=mine, --zero_shot=",
      ),
      (
        ["popularity", f"--model={CLIP}", "--workdir=x"],
        "popularity needs --input or --data with --model",
      ),
      (
        ["popularity", "--input=photos", "--workdir=x"],
        "popularity takes --input with --model or --config only",
      ),
      (
        ["popularity", f"--model={CLIP}", "--embeddings=x", "--workdir=x"],
        "popularity takes only one of --embeddings or --model",
      ),
      (
        ["embed", f"--model={CLIP}", "--config=glyphs", "--input=x"],
        "give either --config or --model, not both",
      ),
    ],
  )
  def test_wrong(self, args, message):
    result = self.nuclr(*args)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr

  def test_the_folder_of_a_run_is_not_written_to(self, tmp_path):
    """Its popularity/ is that of the run."""
    (tmp_path / "config.json").write_text("{}")
    for source in (f"--model={CLIP}", "--config=glyphs", "--embeddings=x.npz"):
      result = self.nuclr("popularity", source, f"--workdir={tmp_path}")
      assert result.returncode == 2
      assert "is a training run, and popularity/ in it" in result.stderr
    assert [x.name for x in tmp_path.iterdir()] == ["config.json"]

  def test_photos_without_captions(self, tmp_path):
    """They leave nothing that would be in the way of the next attempt."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "0.jpg").write_bytes(make_captioned.photo(0))
    command = ["popularity", f"--model={CLIP}", f"--input={photos}"]
    command.append(f"--workdir={tmp_path / 'out'}")
    result = self.nuclr(*command)
    assert result.returncode == 1
    assert "none of 1 images has a caption" in result.stderr
    (photos / "0.txt").write_text("a photo of " + "the dog " * 20)
    result = self.nuclr(*command)
    assert result.returncode == 0, result.stderr
    assert "1 of 1 captions were cut to 9 tokens" in result.stderr

  def test_captions_that_an_evaluation_cuts_are_counted(self, tmp_path):
    rows = [(make_captioned.photo(i), [f"dog {i}"]) for i in range(4)]
    rows[0][1].append("a photo of " + "the dog " * 20)
    make_captioned.prepare(tmp_path, {"validation": rows, "test": rows[1:]})
    result = self.nuclr(
      "evaluate", f"--model={CLIP}", "--data=mine", f"--data_dir={tmp_path}"
    )
    assert result.returncode == 0, result.stderr
    assert "validation/mine: 1 of 5 captions are cut to 9" in result.stderr
    assert "test/mine: 1 of" not in result.stderr
    first, second, *scores = result.stdout.splitlines()
    assert first.endswith("mine: mine:validation, 4 images, 5 captions")
    assert second == "scored test/mine: mine:test, 3 images, 3 captions"
    assert {tuple(x.split("/")[:2]) for x in scores} == {
      ("validation", "mine"),
      ("test", "mine"),
    }

  def test_captions_that_repeat(self, tmp_path):
    rows = [(make_captioned.photo(i), ["a dog"]) for i in range(4)]
    make_captioned.prepare(tmp_path, {"test": rows})
    result = self.nuclr(
      "evaluate", f"--model={CLIP}", "--data=mine", f"--data_dir={tmp_path}"
    )
    assert result.returncode == 0, result.stderr
    assert "test/mine: 4 captions are 1 texts; every image" in result.stderr

  def test_popularity_of_photos(self, tmp_path):
    captions = ["a photo of the dog"[: 4 + 2 * i] for i in range(8)]
    folder = make_captioned.photo_folder(tmp_path / "photos", captions)
    result = self.nuclr(
      "popularity",
      f"--model={CLIP}",
      f"--input={folder}",
      f"--workdir={tmp_path / 'run'}",
    )
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "run" / "popularity" / "popularity.html").read_text()
    assert page.count("data:image/") > 8
    printed = dict(
      line.split()
      for line in result.stdout.splitlines()
      if len(line.split()) == 2
    )
    assert float(printed["temperature"]) == pytest.approx(0.03)
    assert (printed["images"], printed["converged"]) == ("8", "True")

  def test_a_filter_of_photos(self, tmp_path):
    """Those that are kept become a data set."""
    captions = ["a photo of the dog"[: 4 + 2 * i] for i in range(8)]
    folder = make_captioned.photo_folder(tmp_path / "photos", captions)
    result = self.nuclr(
      *("embed", f"--model={CLIP}", f"--input={folder}"),
      f"--output={tmp_path / 'target'}",
    )
    assert result.returncode == 0, result.stderr
    result = self.nuclr(
      *("filter", f"--model={CLIP}", f"--input={folder}", "--keep=0.9,0.7,0.5"),
      "--score=negcliploss,similarity,normsim",
      *(f"--target={tmp_path / 'target'}", f"--output={tmp_path / 'kept'}"),
    )
    assert result.returncode == 0, result.stderr
    assert "temperature            0.0300" in result.stdout
    assert "threshold/normsim      1.0000" in result.stdout
    result = self.nuclr(
      *("ingest", f"--input={tmp_path / 'kept' / 'kept.jsonl'}"),
      *(f"--images={folder}", "--dataset=mine", f"--data_dir={tmp_path}"),
    )
    assert result.returncode == 0, result.stderr
    assert "train captions  4" in result.stdout
