"""Runs of a user's own parts, by the launcher and in Python."""

import json

import jax.numpy as jnp
from own_parts import MINE
import pytest
import tiny_config
import warm

from nuclr_jax import objectives
from nuclr_jax.lab import export, report
from nuclr_jax.lab.config import complete, load_config
from nuclr_jax.lab.train import build, loop


@pytest.fixture
def mine(tmp_path):
  (tmp_path / "mine.py").write_text(MINE)
  (tmp_path / "wrong.py").write_text("def broken(:\n")
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
    assert "damaged" not in refused.stderr
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
    (
      [*OWN[:1], "--config.objective.name=mine:pul"],
      "'mine:pul', but mine defines no pub",
    ),
    (
      [*OWN[:1], "--config.terms.mine:heavy.weight=2.0"],
      "has a parameter weight, and so does every such mapping; rename",
    ),
    (["--config.objective.name=swav"], "there is contrib:swav; known names"),
    (["--import=nowhere"], "--import=nowhere cannot be imported: ModuleNot"),
    (["--import=wrong"], "--import=wrong cannot be imported: SyntaxError"),
  ],
)
def test_what_is_refused(mine, words, message):
  done = run(mine, "train", CONFIG, *CHANGES, *words)
  assert done.returncode == 2 and message in done.stderr, done.stderr
  assert not (mine / "run").exists()


def test_a_run_of_parts_that_its_config_does_not_name(tmp_path):
  config = load_config("labelled:ntxent,digits")
  config.update_from_flattened_dict(tiny_config.of_digits(2))
  workdir, pull = (
    tmp_path / "run",
    objectives.stateless(
      lambda params, pairs: (jnp.mean((pairs.image - pairs.text) ** 2), {})
    ),
  )
  named = build.build(config)
  assert named.own() == []
  parts = named._replace(objective=pull)
  assert loop.fit(config, workdir, parts=parts).finished
  recorded = json.loads((workdir / "config.json").read_text())
  assert recorded.pop("own_parts") == parts.own() == ["objective"]
  assert complete(recorded) == named.settings.recorded
  for open_run in (loop.load, report.write, export.model_of_run):
    with pytest.raises(ValueError, match="parts of its own .objective., which"):
      open_run(workdir)
  with pytest.raises(ValueError, match="has objective of its own, and no part"):
    loop.fit(config, workdir)
  page = report.write(workdir, parts=parts).read_text()
  assert "its own objective, which this config does not name" in page
  (workdir / "config.json").write_text(json.dumps(recorded | {"own_parts": 7}))
  with pytest.raises(ValueError, match="config.json is damaged: own_parts"):
    loop.load(workdir)
