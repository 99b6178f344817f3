"""What `nuclr evaluate` writes about the model that it has scored."""

from absl.testing import flagsaver

from nuclr_jax.lab.cli import scoring


def test_all_flags_of_the_model_are_written():
  """Also those without which the same file is another model."""
  given = {"model": "epoch_3.pt", "architecture": "ViT-B-32"}
  changes = ["data.resize=squash"]
  with flagsaver.as_parsed(**given, config_change=changes, output="out"):
    assert scoring.described_model() == {**given, "changes": changes}
  with flagsaver.as_parsed(workdir="run", average="false"):
    assert scoring.described_model() == {"workdir": "run", "average": False}
