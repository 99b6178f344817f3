"""Factories of other modules in a config: of a user, of `contrib`."""

import json
import os
import sys

import pytest
import tiny_config
import warm

from nuclr_jax.lab import extensions
from nuclr_jax.lab.config import ConfigError, complete, load_config
from nuclr_jax.lab.train import build, settings

MINE = '''
"""Factories of a user."""

from os import system

import jax
import jax.numpy as jnp
import optax

from nuclr_jax import objectives
from nuclr_jax.checks import Count, Positive
from nuclr_jax.contrib import labelled
from nuclr_jax.lab import models
from nuclr_jax.sample_state import zeta_rules
from nuclr_jax.types import Schedule


def pull(*, num_pairs: int, weight: Positive = 1.0) -> objectives.Objective:
  assert num_pairs == 1_197

  def loss(params, pairs):
    distance = jnp.sum((pairs.image - pairs.text) ** 2, axis=1)
    return weight * jnp.mean(distance), {"weight": jnp.float32(weight)}

  return objectives.stateless(loss)


def slow(*, rate: Positive = 0.1):
  return zeta_rules.batch(rate=rate)


def spread():
  return pull(num_pairs=1_197)


def digits(*, size: Count):
  return labelled(size=size, scores=("recall",), validation_scores=())


def tower(*, image_shape, width: Count = 4):
  return models.ENCODERS["convnet"](
    image_shape=image_shape, stages=((8, 1, width),), num_features=width
  )


def momentum(learning_rate: Positive | Schedule, *, decay: Positive = 0.9):
  return optax.sgd(learning_rate, momentum=decay)


def count(held_out, *, factor: Count = 1):
  return lambda embed: {"sets": float(factor * len(held_out.others))}


def broken(:
'''


@pytest.fixture
def mine(tmp_path):
  (tmp_path / "mine.py").write_text(MINE.replace("def broken(:\n", ""))
  (tmp_path / "wrong.py").write_text(MINE)
  return tmp_path


def run(folder, verb, *words):
  return warm.run(
    ["-m", "nuclr_jax.lab.cli.main", verb, "--workdir=run", *words], cwd=folder
  )


CONFIG = "--config=labelled:nuclr,digits"
CHANGES = tiny_config.as_flags(tiny_config.of_digits(3))
OWN = [
  "--import=mine",
  "--config.objective.name=mine:pull",
  "--config.objective.weight=2.0",
  "--config.data.name=mine:digits",
  "--config.data.size=8",
  "--config.model.encoder.name=mine:tower",
  "--config.model.encoder.width=6",
  "--config.optimizer.name=mine:momentum",
  "--config.optimizer.learning_rate={'value': 0.1, 'decay': 'cosine'}",
  "--config.optimizer.decay=0.5",
  "--config.terms.mine:spread.weight=0.5",
  "--config.evaluators.mine:count.factor=3",
]
WITHOUT = {"model.encoder", "data.s", "data.v", "optimizer.l", "terms"}
FEWER = [x for x in CHANGES if not any(f"config.{key}" in x for key in WITHOUT)]


def test_a_run_of_ones_own_parts(mine):
  done = run(mine, "train", CONFIG, *FEWER, *OWN)
  assert done.returncode == 0, done.stderr
  config = json.loads((mine / "run" / "config.json").read_text())
  assert config["objective"] == {"name": "mine:pull", "weight": 2.0}
  assert config["data"] == {"name": "mine:digits", "size": 8}
  metrics = json.loads((mine / "run" / "metrics.json").read_text())
  assert metrics["test/sets"] == 3.0
  for verb in ("report", "evaluate"):
    refused = run(mine, verb)
    assert refused.returncode == 1
    assert "if you trust it, add --import=mine" in refused.stderr
    done = run(mine, verb, "--import=mine")
    assert done.returncode == 0, done.stderr
  assert "mine:pull" in (mine / "run" / "report.html").read_text()


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--config.objective.name=mine:pull"], "add --import=mine (in Python"),
    (
      [*OWN[:2], "--config.objective.weight=-1"],
      "config.objective.weight must be a number greater than 0, got -1",
    ),
    ([*OWN[:2], "--config.objective.wieght=1"], "unknown keys ['wieght']"),
    ([*OWN[:1], "--config.objective.name=mine:system"], "is 'mine:system'"),
    ([*OWN[:1], "--config.objective.name=mine:pul"], "is 'mine:pul'; known"),
    (["--config.objective.name=swav"], "there is contrib:swav; known names"),
    (["--import=nowhere"], "--import=nowhere cannot be imported: ModuleNot"),
    (["--import=wrong"], "--import=wrong cannot be imported: SyntaxError"),
  ],
)
def test_what_is_refused(mine, words, message):
  done = run(mine, "train", CONFIG, *CHANGES, *words)
  assert done.returncode == 2 and message in done.stderr, done.stderr
  assert not (mine / "run").exists()


def test_nothing_is_imported_because_a_config_says_so(mine, monkeypatch):
  monkeypatch.syspath_prepend(mine)
  config = complete(load_config("glyphs:clip"))
  config["objective"] = {"name": "mine:pull"}
  with pytest.raises(ConfigError, match="names the module mine, which is not"):
    settings.resolve(config)
  assert "mine" not in sys.modules
  config["objective"] = {"name": "os:system", "command": "true"}
  with pytest.raises(ConfigError, match="names the module os, which is not"):
    settings.resolve(config)


def test_a_rule_in_python(mine, monkeypatch):
  monkeypatch.syspath_prepend(mine)
  monkeypatch.setattr(extensions, "_allowed", dict(extensions._allowed))
  extensions.allow("mine")
  config = complete(load_config("labelled:nuclr,digits"))
  config["objective"]["zeta"] = {"name": "mine:slow", "rate": 0.2}
  assert build.build(config).objective.init()


def test_an_installed_package_names_its_modules(tmp_path, monkeypatch):
  package = tmp_path / "their_package"
  package.mkdir()
  (package / "__init__.py").write_text(MINE.replace("def broken(:\n", ""))
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
