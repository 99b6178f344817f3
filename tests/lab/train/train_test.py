"""`fit`: one loop that stops, resumes, refuses and reports."""

import functools
import json
import math
import os
import shutil
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax import objectives, sharding
from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import (
  checkpoint,
  loop,
  optimizer,
  records,
)
from nuclr_jax.lab.train.step import TrainState, init_state, make_train_step

pytestmark = pytest.mark.usefixtures("no_diagnostics")


@pytest.fixture(scope="module")
def build(scored_glyphs):
  """Makes the parts of a tiny run; its data is read once."""
  return functools.partial(experiment.build, data=scored_glyphs)


@pytest.fixture(scope="module")
def build_plain(build):
  """Makes the parts of a tiny run without scores."""
  data = build.keywords["data"]._replace(held_out={})
  return functools.partial(experiment.build, data=data)


SHORT = dict(num_epochs=0.002)  # a single step


@pytest.fixture(scope="module")
def short_run(tiny, build_plain, tmp_path_factory):
  """The workdir of a finished run of `SHORT`."""
  workdir = tmp_path_factory.mktemp("short") / "run"
  loop.fit(tiny(**SHORT), workdir, parts=build_plain(tiny(**SHORT)))
  return workdir


@pytest.fixture
def short_copy(short_run, tmp_path):
  return shutil.copytree(short_run, tmp_path / "run")


def test_a_run_from_the_first_step_takes_over_no_line(tmp_path):
  for start_step, kept in ((3, [0, 1, 3]), (0, [])):
    history = "".join(json.dumps({"step": i}) + "\n" for i in (0, 1, 3, 4))
    (tmp_path / "history.jsonl").write_text(history)
    with records.open_recorder(tmp_path, start_step=start_step):
      pass
    assert [x["step"] for x in records.read_history(tmp_path)] == kept


def test_an_unknown_score_to_keep_stops_at_once(tiny, build, tmp_path):
  config = tiny(keep_best="validation/recall")
  with pytest.raises(ValueError, match="'validation/recall', which is not a"):
    loop.fit(config, tmp_path, parts=build(config))
  assert not checkpoint.steps(tmp_path)
  with pytest.raises(ValueError, match="keep_best"):
    loop.load(tmp_path, parts=build(config), checkpoints=checkpoint.BEST)


def test_a_second_run_in_a_workdir_is_refused(tiny, build_plain, tmp_path):
  config = tiny(**SHORT)
  parts = build_plain(config)
  with files.locked(tmp_path):
    message = f"in use by process {os.getpid()} on"
    with pytest.raises(ValueError, match=message):
      loop.fit(config, tmp_path, parts=parts)
    assert {x.name for x in tmp_path.iterdir()} == {".lock"}
  assert loop.fit(config, tmp_path, parts=parts).finished


def test_a_model_is_not_overwritten_by_a_run(tiny, build_plain, tmp_path):
  """Folders of published models have a config.json, too."""
  text = '{"model_type": "bert"}'
  (tmp_path / "config.json").write_text(text)
  config = tiny(**SHORT)
  with pytest.raises(ValueError, match="is not of a run, and a run there"):
    loop.fit(config, tmp_path, parts=build_plain(config))
  assert (tmp_path / "config.json").read_text() == text


def test_more_steps_than_can_be_counted(tiny, build):
  with pytest.raises(ValueError, match="steps are too many; lower num_epochs"):
    build(tiny(num_epochs=1e30))


def test_runs_can_share_their_data(tiny, build):
  assert build(tiny()).data is build(tiny(seed=1)).data
  with pytest.raises(ValueError, match="config.data.name is 'cc3m'"):
    experiment.load_data({"name": "cc3m"})


def test_evaluating_leaves_a_run_in_progress_alone(
  tiny, build_plain, short_copy, tmp_path
):
  config = tiny(**SHORT)
  with pytest.raises(ValueError, match="no complete checkpoint"):
    records.write_config(tmp_path, complete(config))
    loop.load(tmp_path, parts=build_plain(config))
  folder = short_copy / "checkpoints"
  (folder / "90.orbax-checkpoint-tmp").mkdir()
  (folder / "99").mkdir()
  before = sorted(folder.iterdir())
  loop.load(short_copy, parts=build_plain(config))
  assert sorted(folder.iterdir()) == before
  # The run itself moves aside what a dead one left, however often.
  (folder / "99.incomplete").mkdir()
  (folder / "99.incomplete" / "file").touch()
  loop.fit(config, short_copy, parts=build_plain(config))
  assert (folder / "99.incomplete2").exists()
  assert checkpoint.steps(short_copy) == [1]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_acts_as_without_a_run(sent):
  came = []
  before = signal.signal(sent, lambda *_: came.append("before"))
  try:
    with distributed.stop_on_signal() as stop_requested:
      assert not stop_requested(1)
      os.kill(os.getpid(), sent)
      assert stop_requested(2) and not came
      os.kill(os.getpid(), sent)
      assert came == ["before"]
    os.kill(os.getpid(), sent)
    assert came == ["before"] * 2
  finally:
    signal.signal(sent, before)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_ignored_remains_so(sent):
  """Shells start what is in the background of a script without Ctrl-C."""
  before = signal.signal(sent, signal.SIG_IGN)
  try:
    with distributed.stop_on_signal() as stop_requested:
      os.kill(os.getpid(), sent)
      assert not stop_requested(1)
    assert signal.getsignal(sent) is signal.SIG_IGN
  finally:
    signal.signal(sent, before)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_not_asked_for_is_not_lost(sent):
  """It comes after the last step has ended, while that is being saved."""
  came = []
  before = signal.signal(sent, lambda *_: came.append("before"))
  try:
    with distributed.stop_on_signal(6, 8) as stop_requested:
      answer = signal.getsignal(sent).answer
      assert answer() == "finishing step 7 and saving it"
      assert not stop_requested(7)
      assert answer() == "finishing step 8 and saving it"
      assert not stop_requested(8)
      os.kill(os.getpid(), sent)
      assert answer() == "saving step 8" and not came
    assert came == ["before"]
  finally:
    signal.signal(sent, before)


def test_what_of_a_state_must_be_finite():
  """Log u is -inf for pairs that were never visited."""
  state = TrainState(
    step=jnp.int32(1),
    params={"model": jnp.ones(2)},
    model_state={},
    opt_state=(jnp.ones(2), jnp.int32(3)),
    objective={"log_u": jnp.full(2, -jnp.inf)},
  )
  records.check_finite(1, state, str)
  for part, name in (("params", "parameter/"), ("opt_state", "optimizer/")):
    broken = state._replace(
      **{part: jax.tree.map(lambda x: x * jnp.inf, getattr(state, part))}
    )
    with pytest.raises(FloatingPointError, match=f"is not finite: {name}"):
      records.check_finite(1, broken, str)


class TestRefusals:
  def test_workdir_of_another_config(self, tiny, build_plain, short_run):
    config = tiny(**SHORT)
    config.objective.temperature = 0.5
    with pytest.raises(ValueError, match="objective.temperature is 0.07 there"):
      loop.fit(config, short_run, parts=build_plain(config))

  def test_checkpoint_of_other_data(self, tiny, build_plain, short_copy):
    config = complete(tiny(**SHORT))
    parts = build_plain(config)
    source = parts.data.train._replace(fingerprint="other", keys=None)
    other = experiment.build(config, data=parts.data._replace(train=source))
    with pytest.raises(ValueError, match="was made with data"):
      loop.fit(config, short_copy, parts=other)

  def test_damaged_checkpoint(self, tiny, build_plain, short_copy):
    (step,) = (short_copy / "checkpoints").iterdir()
    for path in (step / "state").rglob("*"):
      if path.is_file():
        path.write_bytes(b"")
    parts = build_plain(tiny(**SHORT))
    with pytest.raises(ValueError, match="are damaged") as error:
      loop.load(short_copy, parts=parts)
    assert str(step.parent) in str(error.value)
    (step / files.DIGESTS).unlink()  # nothing says so, until it is read
    with pytest.raises(ValueError, match="cannot be read") as error:
      loop.load(short_copy, parts=parts)
    assert str(step) in str(error.value)

  def test_parts_that_the_config_does_not_name(
    self, tiny, build_plain, short_run, tmp_path
  ):
    config = tiny(**SHORT)
    parts = build_plain(config)
    own = parts._replace(objective=objectives.clip(temperature=0.1))
    with pytest.raises(ValueError, match="with other parts .* as parts="):
      loop.load(short_run, parts=own)
    loop.fit(config, tmp_path, parts=own)
    loop.load(tmp_path, parts=own)

  @pytest.mark.parametrize(
    "overrides, message",
    [
      (dict(batch_size=63, num_devices=2), "multiple of the number of devices"),
      (dict(num_devices=9), r"num_devices must be in \[1, 8\]"),
      (dict(num_devices=7), "must divide 46080 .*; choose 6 with num_dev"),
      (dict(batch_size=10**6), "the run has no step"),
      (dict(num_epochs=0.0), "num_epochs must be a number greater than 0"),
      (dict(seed=-1), "seed must be a whole number in"),
      (
        {"optimizer.learning_rate.value": -1.0},
        "optimizer.learning_rate.value must be a number of at",
      ),
      (
        {"objective.zeta.rate.value": -1.0},
        "objective.zeta.rate.value must be a number of at least",
      ),
    ],
  )
  def test_numbers(self, tiny, build_plain, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
      config = tiny(**overrides)
      loop.fit(config, tmp_path / "new", parts=build_plain(config))
    assert not (tmp_path / "new").exists()

  @pytest.mark.parametrize(
    "change, message",
    [
      (dict(colour="red"), r"unknown config keys \['colour'\]"),
      (dict(objective=dict(name="clp")), "config.objective.name is 'clp'"),
      (dict(objective=dict(name="clip", gamma=1)), "unknown keys.*gamma"),
      (dict(data=dict(name="cc3m")), "config.data.name is 'cc3m'"),
      (dict(model=dict(name="small", width=3)), "unknown keys.*width"),
      (dict(optimizer=dict(learning_rate=1, lr=1)), "unknown keys.*lr"),
      (
        dict(optimizer=dict(learning_rate=dict(value=1, warm=2))),
        "unknown keys.*warm.*of optimizer.learning_rate",
      ),
    ],
  )
  def test_names(self, tiny, data_dir, tmp_path, change, message):
    config = tiny().to_dict() | change
    with pytest.raises(ValueError, match=message):
      loop.fit(config, tmp_path / "new", data_dir=data_dir)
    assert not (tmp_path / "new").exists()

  def test_workdir_without_a_run(self, tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
      loop.load(tmp_path)


class TestOptimizer:
  PARAMS = {
    "model": {"image": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}},
    "objective": {"log_scale": jnp.ones(())},
  }

  @pytest.mark.parametrize(
    "numbers, message",
    [
      (
        dict(learning_rate=-0.1),
        "learning_rate must be a number of at least 0",
      ),
      (
        dict(weight_decay=math.nan),
        "weight_decay must be a number of at least",
      ),
      (dict(clip_norm=-1.0), "clip_norm must be a number of at least 0"),
      (dict(b2=1.5), r"b2 must be in \[0, 1\), got 1.5"),
    ],
  )
  def test_numbers_out_of_range(self, numbers, message):
    with pytest.raises(ValueError, match=message):
      optimizer.make_optimizer(**{"learning_rate": 0.1} | numbers)

  def test_decays_matrices_only(self):
    tx = optimizer.make_optimizer(0.1, weight_decay=1.0)
    zero = jax.tree.map(jnp.zeros_like, self.PARAMS)
    updates, _ = tx.update(zero, tx.init(self.PARAMS), self.PARAMS)
    np.testing.assert_allclose(updates["model"]["image"]["kernel"], -0.1)
    assert not np.any(updates["model"]["image"]["bias"])
    assert not np.any(updates["objective"]["log_scale"])

  def test_nobody_computes_gradients_of_frozen_parameters(self, tiny, build):
    """Frozen are a tower and a part of the other."""
    freeze = ("model/image", "model/text/tokens")
    gradients = {}
    for name, frozen in (("some", freeze), ("none", ())):
      parts = build(tiny(**{"optimizer.freeze": frozen}))
      model, batch = parts.model, parts.data.train.fetch(np.arange(8))
      params, state = model.init(jax.random.key(0))

      def loss(params, model=model, state=state, batch=batch):
        pairs, _ = model.apply(params, state, batch, key=None, train=False)
        return jnp.sum(pairs.image * pairs.text)

      gradients[name] = jax.jit(jax.grad(loss))(params)
    some, every = gradients["some"], gradients["none"]
    assert not any(np.any(x) for x in jax.tree.leaves(some["image"]))
    assert not np.any(some["text"]["tokens"]["embedding"])
    assert np.any(every["text"]["tokens"]["embedding"])
    chex.assert_trees_all_close(some["text"]["norm"], every["text"]["norm"])
    chex.assert_trees_all_close(
      some["image_projection"], every["image_projection"]
    )

  def test_freeze_pattern_that_is_none(self):
    with pytest.raises(ValueError, match="is not a regular expression"):
      optimizer.is_frozen("model/image", ("model/[",))

  def test_freeze_pattern_without_a_match(self):
    tx = optimizer.make_optimizer(0.1, freeze=("model/vision",))
    with pytest.raises(ValueError, match="'model/vision' matches no parameter"):
      tx.init(self.PARAMS)

  def test_cosine_over_a_share_of_the_run(self):
    """FastCLIP's gamma: from 1 to its end over half of the run, then flat."""
    gamma = optimizer.make_schedule(
      1.0,
      num_steps=8,
      steps_per_epoch=2,
      decay="cosine",
      decay_fraction=0.5,
      end_value=0.2,
    )
    found = [float(gamma(step)) for step in (0, 2, 4, 8)]
    np.testing.assert_allclose(found, [1.0, 0.6, 0.2, 0.2], rtol=1e-6)
    with pytest.raises(ValueError, match="decay_fraction must be in"):
      optimizer.make_schedule(
        1.0, num_steps=8, steps_per_epoch=2, decay_fraction=1.5
      )

  def test_schedule_longer_than_the_run(self):
    with pytest.raises(ValueError, match="at most the run"):
      optimizer.make_schedule(
        1.0, num_steps=10, steps_per_epoch=10, warmup_epochs=2
      )


def test_padding_and_state_survive_the_step(tiny, build):
  """Shapes and dtypes of the whole state are the same after a step."""
  parts = build(tiny())
  key = jax.random.key(0)
  trained = (parts.model, parts.objective, parts.optimizer)
  state = init_state(*trained, key)
  log_u = state.objective.sample.pair.log_u.image
  assert len(log_u) % sharding.ROW_MULTIPLE == 0
  step = make_train_step(*trained, key)
  batch = parts.data.train.fetch(np.arange(64))
  step = jax.jit(step)
  new_state, metrics = step(state, batch)
  step(new_state, batch)
  assert step._cache_size() == 1  # no weak type makes it compile again
  chex.assert_trees_all_equal_shapes_and_dtypes(state, new_state)
  assert {"train/loss", "train/gradient_norm"} <= set(metrics)
