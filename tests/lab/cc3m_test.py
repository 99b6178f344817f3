"""The recipe for CC3M: its configs and its schedules."""

import functools
import math

import jax
import numpy as np
import pytest

from configs import cc3m
from nuclr_jax import contrib
from nuclr_jax.lab import models
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.data import Data, Source
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import optimizer, settings
from nuclr_jax.types import Sides, Sizes

STEPS_PER_EPOCH = 5466
NUM_STEPS = 30 * STEPS_PER_EPOCH
NUM_PAIRS = STEPS_PER_EPOCH * 512 + 307
VOCAB_SIZES = {
  "build": 90,
  "distilbert-base-uncased": 30_522,
  "openai/clip-vit-base-patch16": 49_408,
}


def build(name, **more):
  """The parts of a config, on data of CC3M's size that nobody reads."""
  config = cc3m.get_config(name)

  class Words:
    vocab_size = VOCAB_SIZES[config.data.tokenizer]
    length = config.data.length

    def encode(self, captions):
      return np.zeros((len(captions), self.length), np.int32)

  sizes = Sizes(NUM_PAIRS, NUM_PAIRS - 9, NUM_PAIRS - 1000)
  source = Source(sizes, None, None, None, "cc3m")
  shape = (config.data.size, config.data.size, 3)
  data = Data(source, Words(), shape)
  return experiment.build(config, data=data, **more)


@pytest.fixture
def given(monkeypatch):
  """What factories are called with, by name; no towers are made."""
  found = {}

  def spy(factory):
    @functools.wraps(factory)
    def call(*args, **kwargs):
      found[factory.__name__] = kwargs | dict(enumerate(args))
      return factory(*args, **kwargs)

    return call

  for name, factory in list(settings.OBJECTIVES.items()):
    monkeypatch.setitem(settings.OBJECTIVES, name, spy(factory))
  monkeypatch.setattr(contrib, "vicreg", spy(contrib.vicreg), raising=False)
  for rules in settings.RULES.values():
    for name, factory in list(rules.items()):
      monkeypatch.setitem(rules, name, spy(factory))
  towers = functools.wraps(models.towers)(lambda **_: models.Model(None, None))
  monkeypatch.setitem(settings.MODELS, "towers", spy(towers))
  optimizers = settings.OPTIMIZER.known
  for name, factory in list(optimizers.items()):
    monkeypatch.setitem(optimizers, name, spy(factory))
  return found


class TestConfigs:
  @pytest.mark.parametrize("name", ["", *cc3m.ALGORITHMS])
  def test_algorithms(self, name, given):
    config = complete(cc3m.get_config(name))
    parts = build(name)
    assert parts.settings.recorded == config
    assert parts.num_steps == NUM_STEPS
    spec = dict(config["objective"])
    objective = given[spec.pop("name").removeprefix("contrib:")]
    for key, value in spec.items():
      if not isinstance(value, dict):
        assert objective[key] == value
    # The shapes of all state, without making it.
    state = jax.eval_shape(lambda: parts.objective.init())[1]
    rows = {x.shape[0] for x in jax.tree.leaves(state.sample)}
    assert rows <= {NUM_PAIRS, NUM_PAIRS - 9, NUM_PAIRS - 1000}

  def test_small(self):
    parts, *others = (build(f"{name},smoke") for name in cc3m.ALGORITHMS)
    towers = parts.settings.model.spec | {"normalize": None}
    for other in others:
      assert other.settings.model.spec | {"normalize": None} == towers
    shapes = jax.eval_shape(parts.model.init, jax.random.key(0))[0]
    assert sum(x.size for x in jax.tree.leaves(shapes)) < 100_000

  def test_default_is_nuclr(self):
    assert cc3m.get_config().objective == cc3m.get_config("nuclr").objective
    assert cc3m.get_config().to_dict() == cc3m.get_config(",nuclr").to_dict()

  def test_frozen_image_tower(self, given):
    build("lit,siglip")
    assert given["make_optimizer"]["freeze"] == ("model/image",)
    assert given["towers"]["frozen"] == ("image",)
    build("siglip")
    assert given["make_optimizer"]["freeze"] == given["towers"]["frozen"] == ()
    assert given["siglip"]["init_bias"] == -10.0

  def test_precision(self):
    assert cc3m.get_config("sogclr").model.dtype == "bfloat16"
    assert cc3m.get_config("sogclr,float32").model.dtype == "float32"
    assert cc3m.get_config("float32,smoke").model.dtype == "float32"

  def test_clip(self, given):
    parts = build("clip_b16")
    towers, data = given["towers"], parts.settings.data.spec
    names = [towers[side].name for side in ("image", "text")]
    assert names == ["clip_vit_b16", "clip_text"]
    assert (towers["dim"], towers["projection_bias"]) == (512, False)
    assert towers["image_shape"] == (224, 224, 3) and towers["length"] == 77
    assert (data["size"], data["length"], data["clean"]) == (224, 77, False)

  @pytest.mark.parametrize("name", ["", "clip_b16"])
  def test_published_towers(self, name):
    parts = build(name)
    params, _ = jax.eval_shape(parts.model.init, jax.random.key(0))
    count = sum(x.size for x in jax.tree.leaves(params))
    resnet50, distilbert, clip = 23_508_032, 66_362_880, 149_620_737
    projections = (2048 + 1 + 768 + 1) * 256
    expected = {
      "": resnet50 + distilbert + projections,
      "clip_b16": clip - 1,  # its temperature is the objective's
    }
    assert count == expected[name]
    assert parts.model.load is not None

  @pytest.mark.parametrize("arg", ["nucl", "clip,nuclr", "smok"])
  def test_unknown(self, arg):
    with pytest.raises(ValueError, match="must be one of .*nuclr_official"):
      cc3m.get_config(arg)


class TestSchedules:
  def stairs(self, epoch):
    """The released code's text rate of zeta, which changes between epochs."""
    if epoch < 5:
      return 0.0
    drop = 1.0 if epoch < 15 else 0.1 if epoch < 22 else 0.01
    return 5e-6 * drop * (1 + math.cos(math.pi * (epoch - 5) / 24)) / 2

  def test_official_zeta(self, given):
    build("nuclr_official")
    rates, tau = given["batch"]["rate"], given["nuclr_variant"]["temperature"]
    assert isinstance(rates, Sides) and tau == 0.01  # the unit of the rates
    for epoch in range(30):
      step = epoch * STEPS_PER_EPOCH + STEPS_PER_EPOCH // 2
      found, drop = (
        float(rates.text(step)) * tau,
        10.0 ** -((epoch >= 15) + (epoch >= 22)),
      )
      assert found == pytest.approx(self.stairs(epoch), abs=1e-7 * drop)
      assert rates.image(step) == pytest.approx(0.1 * rates.text(step))
    freeze = 5 * STEPS_PER_EPOCH
    assert rates.text(freeze - 1) == 0 == rates.text(NUM_STEPS)
    assert rates.text(freeze) == pytest.approx(5e-6 / tau)

  def test_sinkhorn_zeta(self, given):
    build("nuclr")
    rate = given["queue"]["rate"]
    steps = (0, STEPS_PER_EPOCH - 1, STEPS_PER_EPOCH, NUM_STEPS)
    assert [float(rate(x)) for x in steps] == pytest.approx([0, 0, 0.3, 0.3])

  def test_learning_rate(self, given):
    build("nuclr")
    rate = given["make_optimizer"]["learning_rate"]
    assert float(rate(0)) == pytest.approx(1e-5, rel=1e-5)
    assert float(rate(250)) == pytest.approx((1e-5 + 2e-4) / 2)
    assert float(rate(500)) == pytest.approx(2e-4)
    for epoch in range(1, 30):  # the released stairs, in their middle
      left = (1 + math.cos(math.pi * epoch / 30)) / 2
      found = float(rate((epoch + 0.5) * STEPS_PER_EPOCH))
      assert found == pytest.approx(1e-6 + left * (2e-4 - 1e-6), abs=3e-6)
    assert rate(500 + 5000) == rate(500)
    assert float(rate(NUM_STEPS)) == pytest.approx(1e-6, rel=1e-3)
    values = [float(rate(x)) for x in range(500, NUM_STEPS, 5000)]
    assert values == sorted(values, reverse=True)
    assert given["make_optimizer"]["weight_decay"] == 0.02

  def test_gamma_of_fastclip(self, given):
    build("fastclip_v3")
    gamma = given["sogclr"]["gamma"]
    steps = (0, NUM_STEPS // 4, NUM_STEPS // 2, NUM_STEPS)
    assert [float(gamma(x)) for x in steps] == pytest.approx(
      [1, 0.6, 0.2, 0.2], rel=1e-3
    )

  @pytest.mark.parametrize("drops", [(0.0,), (0.5, 1.0), (-0.5,)])
  def test_drops_out_of_range(self, drops):
    with pytest.raises(ValueError, match=r"drops must be in \(0, 1\)"):
      optimizer.make_schedule(1.0, num_steps=9, steps_per_epoch=1, drops=drops)

  def test_drops_are_shares_of_the_run(self):
    rate = optimizer.make_schedule(
      1.0, num_steps=8, steps_per_epoch=1, drops=(0.25, 0.5)
    )
    found = [float(rate(step)) for step in range(8)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01])

  def test_first_value_out_of_range(self):
    with pytest.raises(
      ValueError, match="values must be finite and at least 0.*first"
    ):
      optimizer.make_schedule(
        1.0, num_steps=9, steps_per_epoch=1, first_value=-1.0
      )
