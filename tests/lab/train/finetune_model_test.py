"""The config that trains a published model, and weights without a config."""

import json

from absl.testing import flagsaver
import make_captioned
import numpy as np
import pytest
from repository import CLIP, PUBLISHED
from safetensors import numpy as safetensors

from nuclr_jax.lab.cli import flags
from nuclr_jax.lab.config import ConfigError
from nuclr_jax.lab.models.pretrained import read_published
from nuclr_jax.lab.train import finetune, untrained

OPEN_CLIP, SIGLIP = PUBLISHED / "open_clip", PUBLISHED / "hf_siglip"
NAFLEX = PUBLISHED / "hf_siglip2_naflex"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("data")
  rows = make_captioned.ROWS
  sets = {"train": rows, "validation": rows, "test": rows}
  make_captioned.prepare(folder, sets)
  make_captioned.prepare(folder, {"test": rows}, name="Other")
  return folder


@pytest.fixture
def chosen(data_dir):
  """What flags stand for, as settings for training."""

  def choose(*words):
    flags._base.cache_clear()
    with flagsaver.flagsaver():
      flags.parse(["nuclr", "train", f"--data_dir={data_dir}", *words])
      flags.check_values(training=True)
      return flags.chosen_settings(training=True)

  return choose


class TestTraining:
  @pytest.mark.parametrize("folder", [CLIP, OPEN_CLIP, SIGLIP, NAFLEX])
  def test_what_the_model_decides(self, folder, chosen):
    """All of it: the towers, the inputs and the scale of the logits."""
    published = read_published(folder)
    config = chosen(f"--model={folder}", "--data=mine").recorded
    assert published.model.items() <= config["model"].items()
    assert published.data.items() <= config["data"].items()
    assert config["model"].keys() - published.model.keys() <= {
      "dtype",
      "normalize",
    }
    objective = config["objective"]
    if folder in (SIGLIP, NAFLEX):
      scalars = safetensors.load_file(folder / "model.safetensors")
      assert objective == {
        "name": "siglip",
        "init_scale": pytest.approx(1 / 0.03),
        "init_bias": float(scalars["logit_bias"][0]),
      }
    else:
      assert objective["temperature"] == pytest.approx(0.03)
      assert objective["name"] == "sogclr"
    # The rest is the recipe's.
    assert config["optimizer"]["layer_decay"] == 0.75
    assert config["data"]["scale"] == (0.9, 1.0)
    sets = {key: config["data"][key] for key in ("train", "validation", "test")}
    assert sets == {
      "train": "mine",
      "validation": ("mine=mine:validation",),
      "test": ("mine=mine:test",),
    }

  @pytest.mark.parametrize(
    ("words", "expected"),
    [
      (["--config=finetune_clip:nuclr"], {"name": "nuclr", "gamma": 0.8}),
      (["--config.objective.name=sogclr"], {"name": "sogclr"}),
      (
        ["--config.objective.temperature={'name': 'learned'}"],
        {"temperature": {"name": "learned"}},
      ),
      (["--config.objective.temperature=0.5"], {"temperature": 0.5}),
    ],
  )
  def test_another_objective(self, chosen, words, expected):
    """It begins at the model's temperature, unless another one is asked for."""
    config = chosen(f"--model={CLIP}", "--data=mine", *words).recorded
    found = config["objective"]
    assert expected.items() <= found.items()
    if "temperature" not in expected:
      assert found["temperature"] == pytest.approx(0.03)

  def test_a_rule_begins_at_the_temperature_of_the_model(
    self, chosen, tmp_path
  ):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
      "from nuclr_jax.lab.config import load_config\n"
      "def get_config():\n"
      "  config = load_config('finetune_clip:sogclr')\n"
      "  del config.objective.temperature\n"
      "  config.objective.temperature = {'name': 'learned'}\n"
      "  return config\n"
    )
    words = f"--config={recipe}", "--zero_shot=pets=/photos"
    config = chosen(f"--model={CLIP}", *words).recorded
    assert config["objective"]["temperature"] == {
      "name": "learned",
      "temperature": pytest.approx(0.03),
    }
    data = config["data"]  # the sets are those of the recipe
    assert (data["train"], data["validation"]) == ("mine", ("mine",))
    assert data["zero_shot"] == ("pets=/photos",)

  def test_splits(self, chosen):
    named = chosen(f"--model={CLIP}", "--data=mine:train[:50%],other:test")
    data = named.recorded["data"]
    assert data["train"] == "mine:train[:50%],other:test"
    assert (data["validation"], data["test"]) == ((), ())
    words = ["--data=mine:test", "--zero_shot=pets=/photos"]
    words += ["--config.data.validation=('mine:train',)"]
    data = chosen(f"--model={CLIP}", *words).recorded["data"]
    assert data["validation"] == ("mine:train",)
    assert data["zero_shot"] == ("pets=/photos",)
    stream = chosen(f"--model={CLIP}", "--data=/data/0.tar,/data/1.tar")
    assert stream.recorded["data"]["train"] == "/data/0.tar,/data/1.tar"
    assert stream.recorded["objective"]["name"] == "clip"  # keeps no rows

  @pytest.mark.parametrize(
    ("words", "message"),
    [
      (["--model=CLIP"], "needs --data=mine to be trained"),
      (["--model=CLIP", "--data=other"], "no split train .*--data=other:test"),
      (
        ["--model=CLIP", "--data=mine", "--config=glyphs"],
        "trains the model .* with --model, it must train towers on image_text",
      ),
      (
        ["--model=CLIP", "--data=mine", "--config.model.image.heads=2"],
        "^--config.model.image.heads=2: .*heads is 4 in the files .* got 2",
      ),
      (
        ["--model=CLIP", "--data=mine", "--config.model.pretrained=x"],
        "^--config.model.pretrained=x: config.model.pretrained is ",
      ),
      (
        ["--model=MEAN", "--data=mine"],
        "encodes texts only, and has no images",
      ),
    ],
  )
  def test_what_is_refused(self, chosen, words, message):
    mean = PUBLISHED.parent / "sentence_encoders" / "mean"
    words = [
      x.replace("=CLIP", f"={CLIP}").replace("=MEAN", f"={mean}") for x in words
    ]
    with pytest.raises(ValueError, match=message):
      chosen(*words)

  def test_other_verbs_keep_the_sizes(self):
    base = {"image": {"heads": 4, "activation": "gelu"}, "dim": 8}
    untrained.check_kept(base, base | {"image": {"heads": 4, "eps": 1.0}})
    with pytest.raises(ConfigError, match="config.model.dim is 8 in the files"):
      untrained.check_kept(base, base | {"dim": 9})


class TestWeightsAlone:
  """A checkpoint of OpenCLIP's training, as its keys are after `.pt`."""

  @pytest.fixture
  def epoch(self, tmp_path):
    tensors = safetensors.load_file(OPEN_CLIP / "open_clip_model.safetensors")
    path = tmp_path / "epoch_3.safetensors"
    safetensors.save_file({f"module.{k}": x for k, x in tensors.items()}, path)
    return path

  def test_with_its_architecture(self, epoch, tmp_path):
    whole = read_published(OPEN_CLIP)
    spec = json.loads((OPEN_CLIP / "open_clip_config.json").read_text())
    path = tmp_path / "tiny.json"  # as OpenCLIP has it for a name
    path.write_text(json.dumps(spec["model_cfg"]))
    for architecture in (OPEN_CLIP, path):
      found = read_published(epoch, architecture=architecture)
      assert found.temperature == pytest.approx(0.03)
      assert found.model["pretrained"] == str(epoch)
      sizes = {"image": whole.model["image"], "text": whole.model["text"]}
      if architecture == path:  # which says nothing of pixels
        sizes["image"] = sizes["image"] | {
          key: found.model["image"][key] for key in ("mean", "std")
        }
      assert sizes.items() <= found.model.items()
    config = untrained.config_of_published(epoch, architecture=OPEN_CLIP)
    parts, _, state = untrained.open_untrained(config, pairs=False)
    tensors = safetensors.load_file(epoch)
    np.testing.assert_array_equal(
      state.params["model"]["image_projection"],
      tensors["module.visual.proj"],
    )

  def test_of_another_architecture(self, epoch):
    """Whose depth is another; widths are compared when they are loaded."""
    with pytest.raises(ValueError, match="has 2 layers in the weights, and 12"):
      untrained.config_of_published(epoch, architecture="ViT-B-32")

  @pytest.mark.parametrize(
    ("architecture", "message"),
    [
      (None, "epoch_3.safetensors has nothing but weights, .*=ViT-B-32"),
      ("ViT-B32", "ViT-B32 is no architecture; .* Did you mean ViT-B-32"),
      ("config.json", "is not OpenCLIP's config of a model: it lacks vision_c"),
      ("ViT-B-32-none/..", "is no architecture"),
      ("mt5-xl-ViT-H-14", "^architecture mt5-xl-ViT-H-14: "),
      ("mean", "is not a model of images and texts in one file"),
    ],
  )
  def test_what_is_refused(self, epoch, architecture, message):
    places = {
      "config.json": CLIP / "config.json",
      "mean": PUBLISHED.parent / "sentence_encoders" / "mean",
    }
    architecture = places.get(architecture, architecture)
    with pytest.raises(ValueError, match=message):
      read_published(epoch, architecture=architecture)

  def test_a_model_that_describes_itself(self):
    with pytest.raises(ValueError, match="for a file of weights alone"):
      read_published(CLIP, architecture="ViT-B-32")

  def test_a_file_that_is_not_there(self, tmp_path):
    """Without the flag, it would be missing still."""
    said = "epoch_3.pt, the weights of ViT-B-32, does not exist"
    with pytest.raises(ValueError, match=said):
      read_published(tmp_path / "epoch_3.pt", architecture="ViT-B-32")


def test_a_recipe_without_a_temperature(caplog):
  """Weights that have no logit_scale."""
  published = read_published(CLIP)._replace(temperature=None)
  spec = {"name": "clip", "temperature": 0.5}
  assert finetune._begin(spec, published, None) == spec
  assert "has no temperature" in caplog.text
