"""Configs: what the command line may change, and how."""

import inspect
import json

from absl.testing import flagsaver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax.lab import models
from nuclr_jax.lab.cli import flags
from nuclr_jax.lab.config import (
  DEFAULTS,
  ConfigError,
  complete,
  load_config,
  merge_named,
  override,
)
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.settings import TABLES, resolve
from nuclr_jax.objectives import RULES

# What the data and the encoders decide.
OF_THE_RUN = {
  "data": {"data_dir"},
  "model": {"image_shape", "vocab_size", "length", "frozen"},
  "objective": {
    *("num_pairs", "num_images", "num_texts"),
    *("dim", "steps_per_epoch"),
  },
}


def change(config, *changes):
  """The config after `KEY=VALUE` changes, as the command line checks it."""
  pairs = [tuple(x.split("=", 1)) for x in changes]
  return resolve(override(config, pairs)).recorded


@pytest.fixture(scope="module")
def glyphs():
  return load_config("glyphs")


# Values of arguments that have no default.
REQUIRED = {
  "train": "digits",
  "encoder": "{'name': 'transformer'}",
  "image": "{'name': 'vit_b16'}",
  "text": "{'name': 'bert'}",
}


def values_of(factory, of_the_run=()):
  """Arguments of a factory, with a value for each."""
  return {
    x.name: REQUIRED[x.name] if x.default is x.empty else x.default
    for x in inspect.signature(factory).parameters.values()
    if x.name not in of_the_run
  }


@pytest.mark.parametrize(
  "section, name",
  [(key, name) for key, x in TABLES.items() for name in x.known],
)
def test_every_keyword_of_a_factory_can_be_set(section, name, glyphs):
  before = complete(glyphs) | {section: {"name": "another"}}
  values = values_of(TABLES[section].known[name], OF_THE_RUN[section])
  keys = values.keys()
  changes = [f"{section}.{key}={x}" for key, x in values.items()]
  config = change(before, f"{section}.name={name}", *changes)
  assert config[section].keys() == keys | {"name"}
  with pytest.raises(ConfigError, match=r"unknown keys \['colour'\]") as error:
    change(before, f"{section}.name={name}", *changes, f"{section}.colour=3")
  assert error.value.key == f"{section}.colour"
  for key in keys:
    assert repr(key) in str(error.value)


@pytest.mark.parametrize(
  "argument, name",
  [(key, name) for key, rules in RULES.items() for name in rules],
)
def test_every_keyword_of_a_rule_can_be_set(argument, name, glyphs):
  before = complete(glyphs) | {"objective": {"name": "nuclr_variant"}}
  rule, key = RULES[argument][name], f"objective.{argument}"
  expected = values_of(rule, OF_THE_RUN["objective"])
  changes = [f"{key}.{x}={value}" for x, value in expected.items()]
  config = change(before, f"{key}.name={name}", *changes)
  assert config["objective"][argument] == {"name": name} | expected
  with pytest.raises(ConfigError, match=f"of {key} '{name}'; known") as error:
    change(before, f"{key}.name={name}", f"{key}.colour=3")
  assert error.value.key == f"{key}.colour"


def test_a_run_passes_its_numbers_to_objectives_and_their_rules():
  of_the_run = dict(num_pairs=32, num_texts=5, dim=6)

  def make(**objective):
    spec = {"name": "nuclr_variant", "temperature": 0.1} | objective
    return build.make_objective(
      resolve(complete(load_config("glyphs")) | {"objective": spec}),
      num_steps=8,
      steps_per_epoch=2,
      **of_the_run,
    )

  _, state = make(zeta={"name": "queue", "size": 24}).init()
  assert state.memory.embedding.image.shape == (24, 6)
  assert state.sample.image.zeta.shape == (32,)
  assert state.sample.text.zeta.shape == (5,)
  objective = make(
    positive={"name": "released"}, zeta={"name": "fixed", "init": 0.25}
  )
  params, state = objective.init()
  pairs = make_pairs.make_pairs(0, batch=4, dim=6, num_pairs=32, num_texts=5)
  seen = []
  for _ in range(3):
    _, (state, _) = objective.apply(params, state, pairs)
    seen.append(float(state.shared.xi.text))
  assert seen == [0.0, 0.25, 0.25]  # it moves at the end of an epoch


def test_a_keyword_of_an_encoder_is_what_the_encoder_gets():
  config = load_config("cc3m:smoke")
  assert "hidden" not in config.model.text
  widths = []
  for changes in ([], ["model.text.hidden=48", "model.text.layers=2"]):
    spec = dict(change(config, *changes)["model"])
    del spec["name"]
    model = models.towers(
      image_shape=(32, 32, 3), vocab_size=9, length=4, **spec
    )
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    shapes = {x.shape for x in jax.tree.leaves(params["text"])}
    layers = sum(
      "attention" in jax.tree_util.keystr(path) and x.shape == (32, 32)
      for path, x in jax.tree_util.tree_leaves_with_path(params["text"])
    )
    widths.append(((48,) in shapes, layers))
  (with_48, layers), (with_48_now, layers_now) = widths
  assert not with_48 and with_48_now
  assert layers_now == 2 * layers > 0


class TestAnotherName:
  """A mapping with a name is a factory and its arguments."""

  BASE = {
    "objective": {
      "name": "nuclr",
      "temperature": 0.07,
      "zeta": {"name": "queue", "size": 4096, "rate": 0.3},
    },
    "seed": 1,
  }

  def objective(self, **changes):
    changes = [
      (f"objective.{x}".replace("__", "."), changes[x]) for x in changes
    ]
    return override(self.BASE, changes)["objective"]

  def test_it_drops_the_arguments_of_the_old_factory(self):
    assert self.objective(name="sogclr") == {"name": "sogclr"}
    assert self.objective(zeta__name="batch") == {
      "name": "nuclr",
      "temperature": 0.07,
      "zeta": {"name": "batch"},
    }

  def test_it_keeps_what_the_command_line_gives(self):
    before = self.objective(temperature="0.5", name="clip")
    after = self.objective(name="clip", temperature="0.5")
    assert before == after == {"name": "clip", "temperature": 0.5}
    assert self.objective(zeta__rate="0.1", zeta__name="batch")["zeta"] == {
      "name": "batch",
      "rate": 0.1,
    }
    # All of the old factory goes, also another factory inside of it.
    assert self.objective(name="isogclr", zeta__rate="0.1") == {
      "name": "isogclr",
      "zeta": {"rate": 0.1},
    }

  def test_the_same_name_drops_nothing(self):
    assert self.objective(name="nuclr") == self.BASE["objective"]
    assert self.objective(zeta__name="queue", zeta__size="8")["zeta"] == {
      "name": "queue",
      "size": 8,
      "rate": 0.3,
    }

  def test_nothing_else_changes(self):
    config = override(self.BASE, [("objective.name", "clip")])
    assert config.pop("objective") == {"name": "clip"}
    assert config.pop("seed") == 1
    assert config == {
      key: x for key, x in DEFAULTS.items() if x is not ... and key != "seed"
    }

  def test_a_number_becomes_a_factory_or_a_schedule_and_back(self):
    assert self.objective(temperature__name="learned")["temperature"] == {
      "name": "learned"
    }
    schedule = self.objective(
      temperature__value="1.0", temperature__decay="cosine"
    )
    assert schedule["temperature"] == {"value": 1.0, "decay": "cosine"}
    assert self.objective(zeta="None")["zeta"] is None
    assert self.objective(zeta="0.3")["zeta"] == 0.3


CONFIGS = st.recursive(
  st.integers(0, 2),
  lambda inner: (
    st.dictionaries(st.sampled_from("abc"), inner)
    | st.builds(
      lambda name, rest: {"name": name} | rest,
      st.sampled_from("xy"),
      st.dictionaries(st.sampled_from("abc"), inner),
    )
  ),
  max_leaves=8,
).filter(lambda x: isinstance(x, dict))


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(CONFIGS, CONFIGS)
def test_merging_again_changes_nothing(base, overrides):
  merged = merge_named(base, overrides)
  assert merge_named(merged, overrides) == merged
  assert merge_named(base, {}) == base

  def contains(whole, part):
    return all(
      contains(whole[key], x) if isinstance(x, dict) else whole[key] == x
      for key, x in part.items()
    )

  assert contains(merged, overrides)


TYPED = dict(
  count=128,
  rate=0.5,
  flag=False,
  text="cc3m",
  items=("coco",),
  nothing=None,
  schedule={"value": 1.0},
)


@pytest.mark.parametrize(
  "changes, expected",
  [
    # The type of the config's value.
    (["count=64"], 64),
    (["count=1", "count=2"], 2),  # the last one counts
    (["rate=2"], 2.0),
    (["rate=1e-3"], 1e-3),
    (["rate=inf"], float("inf")),
    (["flag=True"], True),
    (["flag=1"], True),
    (["flag=false"], False),
    (["text=123"], "123"),
    (["text=('a',)"], "('a',)"),
    (["items=('a', 'b')"], ("a", "b")),
    (["items=a"], ("a",)),
    (["items=/data/a:train[10%:]"], ("/data/a:train[10%:]",)),
    (["items=a", "items=b"], ("a", "b")),
    (["items=((2, 1, 32), (2, 1, 64))"], ((2, 1, 32), (2, 1, 64))),
    (["items=()"], ()),
    # None, of any type, and mappings instead of numbers.
    (["count=None"], None),
    (["rate=None"], None),
    (["text=None"], None),
    (["items=None"], None),
    (["rate={'value': 1.0, 'drops': [0.5]}"], {"value": 1.0, "drops": (0.5,)}),
    # Keys that the config does not name, or whose value is None.
    *(
      ([f"{key}={text}"], expected)
      for key in ("nothing", "new")
      for text, expected in {
        "3": 3,
        "-0.5": -0.5,
        "1e-3": 1e-3,
        "True": True,
        "true": True,
        "None": None,
        "(1, 2)": (1, 2),
        "[1, (2, 3)]": (1, (2, 3)),
        "validation/mean_recall@1": "validation/mean_recall@1",
        "wiki.txt": "wiki.txt",
        "'3'": "3",
        "": "",
      }.items()
    ),
    (["schedule=0.5"], 0.5),
  ],
)
def test_values_have_types(changes, expected):
  pairs = [tuple(x.split("=", 1)) for x in changes]
  value = override(TYPED, pairs)[pairs[0][0]]
  assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
  "changes, key, message",
  [
    (["count=1.5"], "count", "takes a whole number such as 128, got '1.5'"),
    (["count=True"], "count", "takes a whole number"),
    (["rate=fast"], "rate", "takes a number such as 0.5, got 'fast'"),
    (["flag=maybe"], "flag", "takes true or false, got 'maybe'"),
    (["items=a, b"], "items", "takes a tuple such as"),
    (["new.a=1", "new=2"], "new", "either new or parts of it"),
    (["new=2", "new.a=1"], "new.a", "either new or new.a, not both"),
  ],
)
def test_values_that_do_not_fit(changes, key, message):
  with pytest.raises(ConfigError, match=message) as error:
    override(TYPED, [tuple(x.split("=", 1)) for x in changes])
  assert error.value.key == key


@pytest.mark.parametrize(
  "changes, key, message",
  [
    (["batch_sze=1"], "batch_sze", r"unknown config keys \['batch_sze'\]"),
    (["objective=clip"], "objective", "objective must be a mapping"),
    (
      ["batch_size=None"],
      "batch_size",
      "must be a whole number of at least 1, got None",
    ),
    (
      ["seed=-1"],
      "seed",
      r"seed must be a whole number in \[0, 2\*\*32\), got -1",
    ),
    (["seed=99999999999999999999"], "seed", "seed must be a whole"),
    (["log_every=0.5"], "log_every", "takes a whole number"),
    (["num_devices='2'"], "num_devices", "of at least 1, or None, got '2'"),
    (["shard_params=None"], "shard_params", "must be True or False, got None"),
    (
      ["num_epochs=inf"],
      "num_epochs",
      r"greater than 0, got inf; float32 holds numbers up to 2\*\*127",
    ),
    (
      ["batch_size=2147483648"],
      "batch_size",
      r"at least 1, got 2147483648; int32 holds numbers up to 2\*\*31 - 1",
    ),
    (["num_devices=-2147483648"], None, "or None, got -2147483648$"),
    (["seed=4294967296"], "seed", r"\[0, 2\*\*32\), got 4294967296$"),
    (
      ["objective.positive_weight=1e300"],
      "objective.positive_weight",
      r"at least 0, got 1e\+300; float32 holds numbers up to 2\*\*127",
    ),
    (["objective.temperature=1e300"], None, r"1e6 possible;.* got 1e\+300$"),
    (
      ["objective.bounds=(0.1, 1e300)", "objective.name=isogclr"],
      "objective.bounds",
      r"got \(0.1, 1e\+300\); float32 holds numbers up to",
    ),
    (
      ["objective.name=isogclr", "objective.temperature.name=contrib:tempnet"],
      "objective.temperature",
      "such as contrib:tempnet, choose sogclr.*, got .'name': 'contrib:tempnet",
    ),
    (["objective.name=clop"], "objective.name", "known names are"),
    (["optimizer.lr=1"], "optimizer.lr", "of optimizer 'adamw'; known are"),
    (["refresh.every=1"], "refresh.every", "known are .'every_epochs'"),
    (
      ["reference=r", "objective.name=siglip"],
      "reference",
      "clip, contrib:fastclip_released, isogclr, nuclr, nuclr_variant, sogclr "
      "and those of your own, .* "
      "and not with siglip; change that, or leave the reference out",
    ),
    (
      ["reference=r", "objective.name=contrib:neuclip"],
      "reference",
      "not with contrib:neuclip",
    ),
    (
      ["reference=r", "terms.cyclic_consistency.weight=1"],
      "reference",
      "contrib:token_prediction and terms of your own, and not with "
      "cyclic_consistency, which compares more than images with texts",
    ),
    (
      ["reference=r", "refresh.every_epochs=1"],
      "reference",
      "solved without a reference",
    ),
    (["reference=r", "warm_start=x.npz"], "reference", "warm_start=counts"),
    (["optimizer.name=adam"], "optimizer.name", "known names are .'adamw"),
    (["terms.cyclic.weight=1"], "terms.cyclic.name", "is 'cyclic'; known"),
    (["terms.cyclic_consistency.in_modal=1"], None, "mapping with a weight"),
    (["model.name=towers"], "model", "model 'towers' lacks image, text"),
    (
      ["model.name=views", "model.encoder.name=vgg"],
      "model.encoder.name",
      "config.model.encoder.name is 'vgg'; known names are .'bert'",
    ),
    (
      ["model.name=views", "model.encoder.name=vgg16", "model.encoder.wide=2"],
      "model.encoder.wide",
      "of model.encoder 'vgg16'; known are",
    ),
    (["model.name=views", "model.encoder=vgg16"], None, "a mapping with a nam"),
    (["objective.gamma.decay=cosine"], "objective.gamma", "lacks value"),
    (
      ["objective.gamma.name=falling"],
      "objective.gamma.name",
      "known names are",
    ),
    (["objective.zeta.name=qeue"], "objective.zeta.name", "known names are"),
    (["objective.num_pairs=3"], "objective.num_pairs", "unknown keys"),
    (
      ["objective.zeta.name=queue", "objective.zeta.dim=3"],
      "objective.zeta.dim",
      "unknown keys",
    ),
    (
      ["objective.zeta.rate.value=1", "objective.zeta.rate.vale=1"],
      "objective.zeta.rate.vale",
      "of objective.zeta.rate; known are",
    ),
    (
      [
        "objective.zeta.name=batch",
        "objective.zeta.rate.image.value=1",
        "objective.zeta.rate.text.vale=1",
      ],
      "objective.zeta.rate.text.vale",
      "known are .'decay'",
    ),
    *(
      (
        ["objective.gamma.value=0.9", f"objective.gamma.{name}=1.5"],
        f"objective.gamma.{name}",
        r"must be in \(0, 1\].* got 1.5",
      )
      for name in ("value", "first_value", "end_value")
    ),
    (
      ["objective.zeta.name=batch", "objective.zeta.rate.value=3"],
      "objective.zeta.rate.value",
      r"must be in \[0, 2\]",
    ),
    # What would fill the memory, or take forever.
    (["data.size=513"], "data.size", "whole number from 8 to 512, got 513"),
    (["data.length=131073"], "data.length", "from 1 to 131,072, got 131073"),
    (["model.dim=131073"], "model.dim", "from 1 to 131,072, got 131073"),
    (["model.text_layers=1001"], "model.text_layers", "from 0 to 1,000"),
    (["model.image_stages=((1, 1, 131073),)"], "model.image_stages", "must be"),
    (
      ["objective.zeta.name.x=1"],
      "objective.zeta.name",
      "name is {'x': 1}, which is not a text; known names are .'batch'",
    ),
  ],
)
def test_names_and_keys_that_no_factory_takes(changes, key, message, glyphs):
  with pytest.raises(ConfigError, match=message) as error:
    change(glyphs, *changes)
  assert key is None or error.value.key == key


@pytest.mark.parametrize(
  "changes",
  [
    ["terms.contrib:token_prediction.weight=1"],
    ["objective.name=contrib:fastclip_released", "objective.temperature=0.1"],
  ],
)
def test_a_reference_goes_with_what_is_relative(changes, glyphs):
  """The first reads no embeddings; the second sees what `sogclr` does."""
  assert change(glyphs, "reference=r", *changes)["reference"] == "r"


def test_the_command_line_is_read_as_it_is_written():
  words = ["nuclr", "train", "--config=glyphs", "--config.seed", "3"]
  words += ["--config.shard_params", "--noconfig.offload_rows"]
  words += ["-config.objective.name=sogclr", "--config.keep_best=a=b"]
  words += ["--config.optimizer.b1=0.8"]  # not in the file
  with flagsaver.flagsaver():
    assert flags.parse(words) == ["nuclr", "train"]
    config = flags.chosen_settings().recorded
    assert {"config", "config.seed", "config.objective.name"} <= set(
      flags.present()
    )
  assert config["seed"] == 3
  assert config["shard_params"] and not config["offload_rows"]
  assert config["objective"] == {"name": "sogclr"}
  assert config["keep_best"] == "a=b"
  assert config["optimizer"]["b1"] == 0.8
  assert config["optimizer"]["b2"] == load_config("glyphs").optimizer.b2


def test_a_json_file_is_data(tmp_path, glyphs):
  """A run's config.json begins another run; nothing in it is executed."""
  path, recorded = tmp_path / "config.json", resolve(glyphs).recorded
  path.write_text(json.dumps(recorded))
  assert complete(load_config(f"{path}")) == recorded
  with flagsaver.flagsaver(config=f"{path}", config_change=["seed=3"]):
    assert flags.chosen_settings().recorded == recorded | {"seed": 3}
  with pytest.raises(ValueError, match="takes no argument; leave out :smoke"):
    load_config(f"{path}:smoke")
  path.write_text(json.dumps(recorded | {"own_parts": ["model"]}))
  with pytest.raises(ValueError, match=r"parts of its own, \['model'\]"):
    load_config(f"{path}")
  for text in ("{'seed': print('executed')}", "{", "[" * 100_000, "\0"):
    path.write_text(text)
    with pytest.raises(ValueError, match="config.json cannot be read"):
      load_config(f"{path}")
  path.write_text("[1]")
  with pytest.raises(ValueError, match=r"must hold an object, got \[1\]"):
    load_config(f"{path}")


@pytest.mark.parametrize("name", ["config.yaml", "config", "config.PY"])
def test_other_files_are_no_configs(name, tmp_path):
  (tmp_path / name).write_text("def get_config():\n  return {}\n")
  with pytest.raises(ValueError, match="neither a .py .* nor a .json file"):
    load_config(f"{tmp_path / name}")


def test_an_error_names_the_flag():
  with flagsaver.flagsaver(
    config="glyphs",
    config_change=["seed=1", "objective.name=clip", "objective.gamma=0.5"],
  ):
    with pytest.raises(ValueError, match="^--config.objective.gamma=0.5: unkn"):
      flags.chosen_settings()


def test_numbers_of_numpy_and_jax_are_numbers(glyphs):
  """As configs that are made in Python have them."""
  config = complete(glyphs)
  config |= {"batch_size": np.int64(64), "num_epochs": jnp.float32(0.5)}
  config |= {"shard_params": np.True_}
  config["model"] |= {"image_stages": np.array([[4, 2, 64]])}
  config["objective"] |= {"temperature": np.array(0.25)}
  checked = resolve(config).recorded
  assert json.loads(json.dumps(checked)) == json.loads(
    json.dumps(
      checked
      | {"batch_size": 64, "num_epochs": 0.5, "shard_params": True}
      | {"model": checked["model"] | {"image_stages": [[4, 2, 64]]}}
      | {"objective": checked["objective"] | {"temperature": 0.25}}
    )
  )
