"""What `nuclr evaluate` scores, and what it writes about the model."""

from absl.testing import flagsaver
import pytest
from repository import CLIP

from nuclr_jax.lab.cli import chosen, flags, scoring
from nuclr_jax.lab.data import tfds_reader
from nuclr_jax.lab.export import Exported, write_model
from nuclr_jax.lab.train import untrained
from tests.lab.export.export_test import SIZE, TOWERS, WORDS, first, make


def test_all_flags_of_the_model_are_written():
  """Also those without which the same file is another model."""
  given = {"model": "epoch_3.pt", "architecture": "ViT-B-32"}
  changes = ["data.resize=squash"]
  with flagsaver.as_parsed(**given, config_change=changes, output="out"):
    assert scoring.described_model() == {**given, "changes": changes}
  with flagsaver.as_parsed(workdir="run", average="false"):
    assert scoring.described_model() == {"workdir": "run", "average": False}


@pytest.fixture(autouse=True)
def fresh():
  """A command reads its config once; these tests are several commands."""
  flags._base.cache_clear()
  yield
  flags._base.cache_clear()


@pytest.fixture(scope="module")
def without_temperature(tmp_path_factory):
  """An export of two encoders, of a run that has no temperature."""
  spec = TOWERS["vit and bert"]
  params, state = first(make(spec), seed=1)
  whole = spec | dict(name="towers", dim=6)
  folder = tmp_path_factory.mktemp("exports") / "out"
  return write_model(Exported(whole, params, state, WORDS, SIZE), folder)


@pytest.mark.parametrize(
  "given",
  [
    dict(data="mine", hubs="zeta"),
    dict(input="photos", prior="counts"),
    dict(data="mine", workdir="x"),
    dict(input="photos", workdir="x"),
  ],
  ids=" ".join,
)
def test_a_model_without_a_temperature(
  given, without_temperature, tmp_path, monkeypatch
):
  """It is asked for before any data are read."""
  monkeypatch.setattr(scoring, "_plan", dict)
  message = "no single temperature; give --temperature"
  with flagsaver.as_parsed(model=str(without_temperature), **given):
    with pytest.raises(flags.UsageError, match=message):
      if "workdir" in given:
        chosen.subject(tmp_path / "x")
      else:
        scoring.score()


@pytest.mark.parametrize(
  ("data", "known", "train", "scored"),
  [
    ("coco", ["test", "val"], "coco:test", ["coco:test"]),
    ("coco:val,x=coco:test", ["test", "val"], "coco:val", ["coco:val"]),
    ("coco", ["validation"], "coco:validation", ["coco:validation"]),
    ("coco:val[:9]", ["val"], "coco:val[:9]", ["coco:val[:9]"]),
    ("coco:val[:9],x=coco:val[9:]", ["val"], "coco:val[:9]", ["coco:val[:9]"]),
    ("mine", ["train"], "mine", ["mine:train"]),
    ("mine:test+train[:9]", ["test", "train"], "mine", ["mine:test+train[:9]"]),
    ("mine:test + train", ["test", "train"], "mine", ["mine:test + train"]),
    ("mine", ["test", "train"], "mine", []),
  ],
)
def test_pairs_that_are_scored_and_looked_at(
  data, known, train, scored, monkeypatch, caplog
):
  """A correction for hubs that has seen the answers says so."""
  monkeypatch.setattr(tfds_reader, "split_names", lambda *_: known)
  opened = []
  monkeypatch.setattr(
    untrained, "open_untrained", lambda config, **_: opened.append(config)
  )
  with flagsaver.as_parsed(model=str(CLIP), data=data.split(","), hubs="csls"):
    chosen._opened_to_score(pairs=True)
  assert opened[0].data.arguments["train"] == train
  said = f"look at the pairs of {train}, of which some are scored: corrected "
  said += f"scores of {', '.join(scored)} look better than they are"
  assert (said in caplog.text) == bool(scored)
