"""`nuclr train --data`: sizes by the number of pairs, and the sets."""

import make_captioned
import pytest

import nuclr_jax
from nuclr_jax.lab import ingest
from nuclr_jax.lab.config import ConfigError, load_config
from nuclr_jax.lab.train import settings
from nuclr_jax.lab.train.own_pairs import config_of_pairs

PAIRS, HELD_OUT = 20, 6
HELD_OUT_SET = ("mine:train[80%:]",)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("own")
  for split, count in (("train", PAIRS), ("validation", HELD_OUT)):
    captions = [f"{split} {i}" for i in range(count)]
    photos = make_captioned.photo_folder(folder / split, captions)
    how = dict(split=split, data_dir=folder / "data", workers=1)
    ingest.ingest(str(photos), "mine", **how)
  return folder / "data"


# 2,500 epochs divided by the root of the number of pairs, at least 5 and at
# most 60; 8 steps in an epoch or more if the batch then has 16 to 256 pairs.
@pytest.mark.parametrize(
  "pairs, batch, epochs",
  [
    (16, 16, 60.0),
    (250, 16, 60.0),
    (634, 64, 60.0),
    (4_779, 256, 36.2),
    (128_000, 256, 7.0),
    (3_000_000, 256, 5.0),
  ],
)
@pytest.mark.parametrize("name", ["clip", "nuclr", "siglip", "sogclr"])
def test_sizes(pairs, batch, epochs, name):
  config = load_config(f"own:{pairs},{name}")
  found = settings.resolve(config)
  assert (found.batch_size, found.num_epochs) == (batch, epochs)
  assert 9 <= epochs / found.eval_every_epochs <= 11
  if name == "nuclr":
    size = config.objective.zeta.size
    assert size % batch == 0 and batch <= size <= min(pairs, 4096)


@pytest.mark.parametrize("argument", ["15", "20,30", "clop"])
def test_what_own_refuses(argument):
  with pytest.raises(ConfigError):
    load_config(f"own:{argument}")


def test_the_sets_are_counted_and_named(data_dir, caplog):
  caplog.set_level("INFO", logger="nuclr_jax")
  config = config_of_pairs(["mine"], data_dir=data_dir)
  assert config["data"]["train"] == "mine"
  assert config["data"]["validation"] == ("mine=mine:validation",)
  assert config["batch_size"] == 16 and "mine has 20 pairs, for" in caplog.text
  assert "a published model knows more" in caplog.text
  assert config["keep_best"] == "validation/mine/mean_recall@1"
  config = config_of_pairs(["mine:validation"], data_dir=data_dir, recipe="own")
  assert config["data"]["train"] == "mine:validation"
  assert config["data"]["validation"] == () and config["batch_size"] == 256
  both = config_of_pairs(["mine"], data_dir=data_dir, zero_shot=["pets"])
  assert both["data"]["zero_shot"] == ("pets",)


@pytest.mark.parametrize("recipe", ["own:20,sogclr", "configs/own.py:nuclr"])
def test_own_by_name_keeps_the_best_state_too(data_dir, recipe):
  config = config_of_pairs(["mine"], data_dir=data_dir, recipe=recipe)
  assert config["keep_best"] == "validation/mine/mean_recall@1"
  config = config_of_pairs(["mine:train"], data_dir=data_dir, recipe=recipe)
  assert config["keep_best"] is None  # without a score


def test_another_recipe_keeps_everything_but_its_sets(data_dir, caplog):
  caplog.set_level("INFO", logger="nuclr_jax")
  config = config_of_pairs(["mine"], data_dir=data_dir, recipe="cc3m:smoke")
  recipe = load_config("cc3m:smoke")
  assert config["model"] == recipe.model.to_dict()
  assert config["data"]["length"] == recipe.data.length
  assert config["keep_best"] is None
  assert "mine has 20 pairs; without --config, the config own" in caplog.text
  assert config["data"]["test"] == () and "probes" not in config["data"]


@pytest.mark.parametrize(
  "changes, warning",
  [
    ({}, None),
    ({"validation": ()}, "scored during training, or at its end; nuclr ingest"),
    ({"validation": (), "test": HELD_OUT_SET}, "during training; nuclr ingest"),
    ({"train": "mine:train[:80%]", "validation": HELD_OUT_SET}, None),
  ],
)
def test_a_run_without_scores_is_warned_of(data_dir, caplog, changes, warning):
  config = load_config("own:20")  # as `nuclr train` without --data does
  with config.unlocked():
    config.data.update(changes)
  nuclr_jax.build(config, data_dir=data_dir)
  assert ("no validation split" in caplog.text) == (warning is not None)
  assert (warning or "") in caplog.text
  caplog.clear()
  nuclr_jax.build(config, data_dir=data_dir, fresh=False)  # to score or resume
  assert "no validation split" not in caplog.text


def test_what_cannot_be_trained(data_dir, tmp_path):
  with pytest.raises(ConfigError, match="a stream of tars, whose captions"):
    config_of_pairs([f"{tmp_path}/x.tar"])
  with pytest.raises(
    ConfigError,
    match="mine:validation has 6 pairs: own takes .* of at least 16",
  ):
    config_of_pairs(["mine:validation"], data_dir=data_dir)
  with pytest.raises(ConfigError, match="trains on glyphs"):
    config_of_pairs(["mine"], data_dir=data_dir, recipe="glyphs")
  with pytest.raises(ValueError, match="nothing"):
    config_of_pairs(["nothing"], data_dir=data_dir)
