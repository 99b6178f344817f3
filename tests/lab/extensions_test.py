"""Factories of other modules in a config: of a user, of `contrib`."""

import os
import re
import sys

import jax
from own_parts import MINE
import pytest

from nuclr_jax.lab import extensions
from nuclr_jax.lab.config import ConfigError, complete, load_config
from nuclr_jax.lab.train import build, records, settings

# What no config may call, whatever the user has imported.
FORGED = [
  "mine:system",  # defined elsewhere
  "mine:labelled",
  "mine:objectives",
  "mine:jax",
  "mine:_hidden",
  "mine:__import__",
  "mine:__loader__",
  "mine:pull.__globals__",
  "mine:Nested.pull",
  "mine:pull:more",
  "mine:",
  ":pull",
  ":",
  "mine.:pull",
  "./mine:pull",
  "mine\x1b[2J:pull",
  "mine:pull\u202e",
  "mine: pull",
  "x" * 100_000 + ":" + "y" * 100_000,
  7,
  None,
  ["mine:pull"],
]


@pytest.fixture
def mine(tmp_path):
  (tmp_path / "mine.py").write_text(MINE)
  return tmp_path


def test_nothing_is_imported_because_a_config_says_so(mine, monkeypatch):
  monkeypatch.syspath_prepend(mine)
  config = complete(load_config("glyphs:clip"))
  config["objective"] = {"name": "mine:pull"}
  with pytest.raises(ConfigError, match="names the module mine, and a config"):
    settings.resolve(config)
  assert "mine" not in sys.modules
  config["objective"] = {"name": "os:system", "command": "true"}
  with pytest.raises(ConfigError, match="names the module os, and a config"):
    settings.resolve(config)


@pytest.fixture
def imported(mine, monkeypatch):
  """`mine` may be named in configs, in this process."""
  monkeypatch.syspath_prepend(mine)
  monkeypatch.setattr(extensions, "_allowed", dict(extensions._allowed))
  extensions.allow("mine")
  yield sys.modules["mine"]
  del sys.modules["mine"]


RETURNS = {
  "objective": "an Objective (nuclr_jax.objectives.base.Objective)",
  "objective.zeta": "a ZetaRule (nuclr_jax.sample_state.zeta_rules.ZetaRule)",
  "data": "a Data (nuclr_jax.lab.data.source.Data)",
  "model": "a Model (nuclr_jax.lab.models.base.Model)",
  "model.encoder": "a Tower (nuclr_jax.lab.models.base.Tower)",
  "optimizer": "a GradientTransformation (optax.GradientTransformation)",
  "terms": "an Objective (nuclr_jax.objectives.base.Objective)",
  "evaluators": "a function",
}


@pytest.mark.parametrize("key", RETURNS)
def test_a_factory_that_forgets_to_return(key, imported):
  section, _, part = key.partition(".")
  config = complete(load_config("labelled:nuclr,digits"))
  spec = {"name": "mine:forgotten"}
  config[section] = {
    "terms": {"mine:forgotten": {"weight": 1.0}},
    "evaluators": {"mine:forgotten": {}},
  }.get(section, {**config[section], part: spec} if part else spec)
  bound = getattr(settings.resolve(config), section)
  if section in ("terms", "evaluators"):
    bound = bound["mine:forgotten"]
  message = re.escape(f"mine:forgotten must return {RETURNS[key]}, got None")
  prefix = "^objective.zeta: " if key == "objective.zeta" else "^"
  run = dict(image_shape=(8, 8, 1), vocab_size=9, length=4)
  with pytest.raises(ValueError, match=prefix + message):
    bound(num_pairs=1_197, num_steps=9, steps_per_epoch=9, **run)


@pytest.mark.parametrize("name", FORGED, ids=lambda x: repr(x)[:20])
def test_a_forged_name_calls_nothing(name, imported, monkeypatch):
  monkeypatch.setattr(imported, "system", pytest.fail)
  config = complete(load_config("glyphs:clip"))
  before = set(sys.modules)
  for key in ("objective", "data", "model", "optimizer"):
    with pytest.raises(ConfigError, match=f"config.{key}"):
      settings.resolve(config | {key: {"name": name}})
  if isinstance(name, str):
    for key in ("terms", "evaluators"):
      with pytest.raises(ConfigError, match=f"config.{key}"):
        settings.resolve(config | {key: {name: {"weight": 1.0}}})
  assert set(sys.modules) == before


@pytest.mark.parametrize("name", ["mine.sub:pull", "Mine:pull", "ｍine:pull"])
def test_another_module_is_not_imported(name, imported):
  config = complete(load_config("glyphs:clip"))
  before = set(sys.modules)
  with pytest.raises(
    ConfigError, match="a config alone cannot cause an import"
  ):
    settings.resolve(config | {"objective": {"name": name}})
  assert set(sys.modules) == before


def test_annotations_may_be_texts(tmp_path, monkeypatch):
  """As with `from __future__ import annotations`, and of common types."""
  text = """
from __future__ import annotations
from typing import Literal
from nuclr_jax.checks import Count

def pull(
  *args,
  size: Count,
  how: Literal["a", "b"] = "a",
  parts: list[int] = (),
  weights: dict[str, float] = {},
  unknown: Nowhere = None,
  **more,
):
  raise AssertionError
"""
  (tmp_path / "texts.py").write_text(text)
  (tmp_path / "known.py").write_text(text.replace("unknown: Nowhere", "x"))
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(extensions, "_allowed", dict(extensions._allowed))
  config = complete(load_config("glyphs:clip"))

  def resolved(**arguments):
    return settings.resolve(config | {"objective": arguments}).objective

  for module in ("texts", "known"):
    extensions.allow(module)
    good = dict(size=3, how="b", parts=(1, 2), weights={"x": 0.5})
    bound = resolved(name=f"{module}:pull", **good)
    assert bound.arguments == good and bound.values()["how"] == "b"
  for wrong, message in {
    "size": "a whole number of at least 1",
    "how": "one of .'a', 'b'.",
    "parts": "a tuple, each a whole number",
    "weights": "a mapping, each value a finite number",
  }.items():
    with pytest.raises(
      ConfigError, match=f"objective.{wrong} must be {message}"
    ):
      resolved(**{"name": "known:pull", "size": 3, wrong: 0.5})


RULES = """
from nuclr_jax.checks import Count, NonNegative, Positive
from nuclr_jax.lab import models
from nuclr_jax.objectives import denominator, temperature_rules


def own(*, weight: NonNegative):
  return denominator.running_max(weight=weight)


def warm(*, temperature: Positive):
  return temperature_rules.learned(temperature, rho=1.0)


def small(*, image_shape, vocab_size, length, frozen, dim: Count):
  return models.small(
    image_shape=image_shape, vocab_size=vocab_size, length=length, dim=dim,
    image_stages=((4, 1, 16),),
  )


def eye(*, image_shape, depth: Count = 1):
  return models.ENCODERS["convnet"](
    image_shape=image_shape, stages=((4, 1, 8),) * depth, num_features=5
  )


def mouth(*, vocab_size, length):
  return models.ENCODERS["transformer"](
    vocab_size=vocab_size, length=length, width=8, heads=1
  )
"""


def test_rules_models_and_towers_of_ones_own(tmp_path, monkeypatch, data_dir):
  (tmp_path / "rules.py").write_text(RULES)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(extensions, "_allowed", dict(extensions._allowed))
  extensions.allow("rules")
  config = complete(load_config("glyphs:nuclr"))
  config["data"] |= {"size": 16}
  config["model"] = {"name": "rules:small", "dim": 6}
  config["objective"] = {
    "name": "nuclr_variant",
    "positive": {"name": "rules:own", "weight": 0.5},
    "temperature": {"name": "rules:warm", "temperature": 0.3},
  }
  parts = build.build(config, data_dir=data_dir)
  assert parts.own() == []
  params, state = parts.objective.init()
  readout = parts.objective.readout(params, state)
  assert float(readout.temperature) == pytest.approx(0.3)
  shapes = jax.eval_shape(parts.model.init, jax.random.key(0))[0]
  assert shapes["image_projection"].shape[-1] == 6
  config["model"] = {
    "name": "towers",
    "dim": 7,
    "image": {"name": "rules:eye", "depth": 2},
    "text": {"name": "rules:mouth"},
  }
  model = build.make_model(settings.resolve(config), parts.data.inputs)
  shapes = jax.eval_shape(model.init, jax.random.key(0))[0]
  assert shapes["image_projection"].shape == (5, 7)
  assert shapes["text_projection"].shape == (8, 7)
  config["model"]["image"]["depth"] = 0
  with pytest.raises(ConfigError, match="model.image.depth must be a whole"):
    settings.resolve(config)


def test_scores_of_ones_own_are_left_out_with_a_warning(tmp_path, caplog):
  recorded = complete(load_config("glyphs:clip"))
  records.write_config(tmp_path, recorded, own=["evaluators", "hooks"])
  assert records.read_settings(tmp_path).recorded == recorded
  assert "had evaluators, hooks of its own" in caplog.text


def test_a_broken_package_does_not_hide_a_slip(tmp_path, monkeypatch):
  (tmp_path / "broken.py").write_text("raise RuntimeError('broken')")
  monkeypatch.syspath_prepend(tmp_path)
  modules = {"theirs": "broken"}
  monkeypatch.setattr(extensions, "_entry_points", lambda: modules)
  config = complete(load_config("glyphs:clip"))
  with pytest.raises(ConfigError, match="is 'clop'; known names are"):
    settings.resolve(config | {"objective": {"name": "clop"}})
  with pytest.raises(ConfigError, match="cannot be imported: RuntimeError: b"):
    settings.resolve(config | {"objective": {"name": "theirs:pull"}})


def test_a_rule_in_python(imported):
  config = complete(load_config("labelled:nuclr,digits"))
  config["objective"]["zeta"] = {"name": "mine:slow", "rate": 0.2}
  assert build.build(config).objective.init()


def test_an_installed_package_names_its_modules(tmp_path, monkeypatch):
  package = tmp_path / "their_package"
  package.mkdir()
  (package / "__init__.py").write_text(MINE)
  info = tmp_path / "their_package-1.0.dist-info"
  info.mkdir()
  (info / "METADATA").write_text("Name: their_package\nVersion: 1.0\n")
  (info / "entry_points.txt").write_text(
    "[nuclr_jax]\ntheirs = their_package\n"
  )
  monkeypatch.syspath_prepend(os.fspath(tmp_path))
  extensions._entry_points.cache_clear()
  try:
    assert extensions.find("theirs:pull").__name__ == "pull"
    assert extensions.find("theirs:system") is None
    assert extensions.like("pull") == ["theirs:pull"]
  finally:
    extensions._entry_points.cache_clear()
    sys.modules.pop("their_package", None)
