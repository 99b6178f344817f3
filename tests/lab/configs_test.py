"""Every config name makes a run that can be trained."""

import argparse
import itertools
import re
import shlex
import sys
import types

import chex
import jax
from load_file import load_file
import numpy as np
import pytest
from repository import CONFIGS, ROOT
import safetensors.numpy

from nuclr_jax.lab.config import DEFAULTS, ConfigError, override
from nuclr_jax.lab.data import DATASETS
from nuclr_jax.lab.models import TEXT_TOWERS
from nuclr_jax.lab.models.pretrained.architectures import find_architecture
from nuclr_jax.lab.train import build, loop, settings
from nuclr_jax.lab.train.step import init_state, make_train_step
from nuclr_jax.types import Sizes

glyphs, cc3m = load_file(CONFIGS / "glyphs.py"), load_file(CONFIGS / "cc3m.py")


@pytest.fixture(scope="module")
def data(data_dir):
  return DATASETS["glyphs"](data_dir=data_dir, size=16)


@pytest.mark.parametrize("name", glyphs.ALGORITHMS)
def test_a_step_of_every_config(name, tiny, data, monkeypatch):
  monkeypatch.setitem(DATASETS, "glyphs", lambda **_: data)
  config = tiny(name)
  config.data = {"name": "glyphs"}
  parts = build.build(config)
  pieces = (parts.model, parts.objective, parts.optimizer)
  key = jax.random.key(0)
  state = jax.eval_shape(lambda: init_state(*pieces, key))
  step = make_train_step(*pieces, key)
  batch = data.train.fetch(np.arange(64))
  after, metrics = jax.eval_shape(step, state, batch)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
  assert {"train/loss", "train/gradient_norm"} <= set(metrics)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=str)
def test_a_config_has_all_keys_and_factories_take_them(path):
  config = load_file(path).get_config()
  assert set(config.keys()) == set(DEFAULTS)
  if "siglip2" in path.name and "siglip_text" not in TEXT_TOWERS:
    pytest.skip("no SigLIP towers yet")
  settings.resolve(config)


def test_the_recipe_names_keys_that_exist():
  path = ROOT / "experiments" / "cc3m" / "README.md"
  pattern = r"--config\.([\w.]+)=(?:\"([^\"]*)\"|([^\s`)]*))"
  changes = re.findall(pattern, path.read_text())
  assert len(changes) > 2
  for key, quoted, word in changes:
    is_cc3m = key.startswith(("data.", "model."))
    config = (cc3m if is_cc3m else glyphs).get_config()
    if key.startswith("objective."):
      config = cc3m.get_config("nuclr_official")  # whose ablations it lists
    change = (key, quoted or word)
    settings.resolve(override(config, [change]))


def test_the_recipe_names_configs_that_exist():
  """Also those of a loop, and every pair of words of OpenCLIP's recipes."""
  text = (ROOT / "experiments" / "cc3m" / "README.md").read_text()
  named = set(re.findall(r"--config=(configs/\w+\.py(?::[\w,]+)?)[\s`]", text))
  assert len(named) >= 5
  for words in re.findall(
    r"for scale in (.*); do\n +for name in (.*); do", text
  ):
    named |= {
      f"configs/openclip.py:{scale},{name}"
      for scale, name in itertools.product(*map(str.split, words))
    }
  openclip = load_file(CONFIGS / "openclip.py")
  pairs = itertools.product(openclip.SCALES, openclip.ALGORITHMS)
  named |= {f"configs/openclip.py:{','.join(x)}" for x in pairs}
  for name in named:
    path, _, argument = name.partition(":")
    resolved = settings.resolve(load_file(ROOT / path).get_config(argument))
    if path.endswith("openclip.py"):
      scale = openclip.SCALES[argument.split(",")[0] or "cc3m"]
      sizes = Sizes(*3 * [scale["pairs"]])
      resolved.optimizer(**build.span_of(resolved, sizes))


def test_the_recipe_runs_datacomps_evaluation(tmp_path, monkeypatch):
  """By the arguments of its evaluate.py, on weights that PyTorch has saved."""
  text = (ROOT / "experiments" / "cc3m" / "README.md").read_text()
  (block,) = re.findall(r"\nfolder=\$PWD.*?\n(.*?)\n```", text, re.DOTALL)
  block = block.replace("$folder", str(tmp_path)).replace("\\\n", "")
  _, flag, code, python, *command = shlex.split(block)
  assert (flag, python) == ("-c", "python")
  parser = argparse.ArgumentParser()
  parser.add_argument("script")
  for name in ("use_model", "data_dir"):
    parser.add_argument(f"--{name}")
  parser.add_argument("--train_output_dir", required=True)
  given = parser.parse_args(command)
  architecture, weights = given.use_model.split(maxsplit=1)
  assert find_architecture(architecture)

  arrays = {"visual.proj": np.ones(2, np.float32), "logit_bias": np.ones(1)}
  safetensors.numpy.save_file(arrays, tmp_path / "open_clip_model.safetensors")
  saved = {}
  torch = types.SimpleNamespace(save=lambda x, path: saved.update({path: x}))
  monkeypatch.setitem(sys.modules, "torch", torch)
  monkeypatch.setitem(sys.modules, "safetensors.torch", safetensors.numpy)
  monkeypatch.setattr(safetensors, "torch", safetensors.numpy, raising=False)
  exec(code, {})
  assert list(saved) == [weights] and list(saved[weights]) == ["visual.proj"]


@pytest.mark.parametrize("name", ["", "sogclr", "nuclr_official,float32"])
def test_cc12m_is_cc3m_on_other_data(name):
  small, large = (
    load_file(CONFIGS / f"{x}.py").get_config(name) for x in ("cc3m", "cc12m")
  )
  assert (small.data.train, large.data.train) == ("cc3m", "cc12m")
  assert small.optimizer == large.optimizer
  assert large.objective.get("zeta", {}).get("init", 0.0) == 0.0
  assert small.model == large.model
  assert (
    load_file(CONFIGS / "cc12m.py").get_config("smoke").data.train == "smoke"
  )


def test_captions_of_the_released_code_have_ids_of_their_own():
  for name in cc3m.ALGORITHMS:
    shares = cc3m.get_config(name).data.share_texts
    assert shares == (name != "nuclr_official")


def test_vicreg_alone_has_embeddings_of_any_norm():
  for name in glyphs.ALGORITHMS:
    assert glyphs.get_config(name).model.normalize == (name != "vicreg")


@pytest.mark.parametrize("name", ["glyphs", "icons", "openclip"])
def test_drrho_is_not_trained_without_a_reference(name, tmp_path, monkeypatch):
  """And says so before it prepares data."""
  get_config = load_file(CONFIGS / f"{name}.py").get_config
  assert not get_config("clip").reference
  config = get_config("drrho")
  config.reference = str(tmp_path / config.reference)
  monkeypatch.setattr(build, "load_data", None)
  message = "config.reference: .*/reference lacks image.npy, .* nuclr embed"
  with pytest.raises(ValueError, match=message):
    loop.fit(config, tmp_path / "run")
  assert not (tmp_path / "run" / "config.json").exists()


def test_a_learned_temperature_has_the_published_rate():
  """A fifth of the others' on CC3M, by the README of FastCLIP's code."""
  openclip = load_file(CONFIGS / "openclip.py")
  one, span = np.ones(()), dict(num_steps=20_000, steps_per_epoch=1_000)
  learned = set()
  for name in openclip.ALGORITHMS:
    resolved = settings.resolve(openclip.get_config(name))
    objective = build.make_objective(
      resolved,
      **span,
      **Sizes(*3 * [10_000])._asdict(),
      batch_size=resolved.batch_size,
      dim=8,
    )
    params, _ = jax.eval_shape(objective.init)
    learned |= {name} if "log_scale" in params else set()
  assert learned == {*openclip.OWN_TAU_RATE, "clip", "siglip"}
  for name in openclip.OWN_TAU_RATE:
    optimizer = settings.resolve(openclip.get_config(name)).optimizer(**span)
    scale, term = {"log_scale": one}, {"bias": one}
    for objective in scale, {"sogclr": scale, "token_prediction": term}:
      params = {"model": {"bias": one}, "objective": objective}
      state = optimizer.init(params)
      for _ in range(2):  # the first rate of the warm-up is 0
        updates, state = optimizer.update(params, state, params)
      moved = updates["objective"].pop("sogclr", updates["objective"])
      ratio = moved["log_scale"] / updates["model"]["bias"]
      assert ratio == pytest.approx(0.2)
      if others := updates["objective"].get("token_prediction"):
        assert others["bias"] == updates["model"]["bias"]


@pytest.mark.parametrize(
  "name, argument, weight",
  [
    ("glyphs", "clip,tokens", 1.0),
    ("glyphs", "fastclip_v3,tokens,smoke", 0.14),
    ("glyphs", "neuclip,tokens", 0.16),
    ("glyphs", "tempnet,tokens", 0.16),
    ("openclip", "fastclip_v3,tokens", 0.14),
    ("openclip", "clip,cc12m,tokens", 1.0),
    ("icons", "sogclr,lit,tokens", 0.16),
    ("cc3m", "tokens", 0.02),
    ("cc3m", "nuclr_official,tokens", 0.02),
    ("cc3m", "fastclip_v3,tokens", 0.14),
    ("cc12m", "siglip,tokens", 1.0),
  ],
)
def test_tokens_are_weighed_as_superclip_does(name, argument, weight):
  """1 with `clip`; 2 temperature in units of similarity."""
  config = load_file(CONFIGS / f"{name}.py").get_config(argument)
  term = settings.resolve(config).terms["contrib:token_prediction"]
  assert term.more["weight"] == pytest.approx(weight)
  plain = argument.replace("tokens", "").replace(",,", ",").strip(",")
  assert not load_file(CONFIGS / f"{name}.py").get_config(plain).terms


@pytest.mark.parametrize(
  "argument, eps",
  [("clip,cc12m", 1e-6), ("sogclr,cc12m", 2e-8), ("sogclr,cc3m", 1e-8)],
)
def test_epsilon_is_that_of_open_clip(argument, eps):
  """Of ViTs at the scale of `clip`; that of ResNets is 1e-8."""
  config = load_file(CONFIGS / "openclip.py").get_config(argument)
  temperature = config.objective.get("temperature")
  if argument == "sogclr,cc12m":
    assert temperature == 0.01
  assert config.optimizer.eps == pytest.approx(eps)


def test_icons_with_a_sentence_encoder():
  icons = load_file(CONFIGS / "icons.py")
  tuned, locked = map(icons.get_config, ("minilm", "sogclr,lit,smoke"))
  for config in (tuned, locked):
    settings.resolve(config)
    assert config.data.tokenizer == config.model.text.pretrained
  assert tuned.objective.name == "nuclr" and tuned.num_epochs == 3
  assert locked.objective.name == "sogclr" and locked.num_epochs < 1
  assert locked.optimizer.freeze == tuple(tuned.optimizer.rate_factors)
  for wrong in ("minilm,lit", "lit,clop"):
    with pytest.raises(ConfigError, match="must be one of"):
      icons.get_config(wrong)
