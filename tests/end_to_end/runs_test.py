"""Whole runs: what they leave, which state they keep, and how they go on."""

import functools
import json
import math
import os
import shutil
import signal

import chex
import jax
import numpy as np
import pytest

from nuclr_jax import sharding
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.train import best, checkpoint, loop, records
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.train.settings import resolve


@pytest.fixture(scope="module")
def build(scored_glyphs):
  """Makes the parts of a tiny run; its data is read once."""
  return functools.partial(experiment.build, data=scored_glyphs)


def test_a_run_leaves_everything_in_its_workdir(tiny, data_dir, tmp_path):
  config = tiny(eval_every=10)
  result = loop.fit(config, tmp_path, data_dir=data_dir)
  assert result.finished and int(result.train_state.step) == 20
  metrics = json.loads((tmp_path / "metrics.json").read_text())
  assert metrics == result.metrics
  for name in (
    "test/image_to_text/recall@1",
    "test/text_to_image/recall@1",
    "test/zero_shot_script/top1",
    "test/zero_shot_digits/top1",
  ):
    assert 0 <= metrics[name] <= 1
  assert all(isinstance(x, int | float) for x in metrics.values())
  assert metrics["step"] == 20 and metrics["examples_seen"] == 20 * 64
  history = records.read_history(tmp_path)
  assert [row["step"] for row in history] == [5, 10, 10, 15, 20, 20]
  assert all(math.isfinite(x) for row in history for x in row.values())
  assert len(list((tmp_path / "tensorboard").glob("events*"))) == 2
  visited = np.isfinite(result.train_state.objective.sample.pair.log_u.image)
  assert visited.sum() == 20 * 64  # within one epoch every id is new

  # The same command again does not train again.
  before = (tmp_path / "metrics.json").stat().st_mtime_ns
  again = loop.fit(config, tmp_path, data_dir=data_dir)
  assert again.finished and again.metrics == metrics
  assert (tmp_path / "metrics.json").stat().st_mtime_ns == before

  # Killed between the last checkpoint and the end: only evaluated again.
  (tmp_path / "metrics.json").unlink()
  assert loop.fit(config, tmp_path, data_dir=data_dir).metrics == metrics


def test_the_best_state_on_validation_is_kept(
  tiny, build, tmp_path, no_diagnostics
):
  score = "validation/mean_recall@10"
  # Every 5 of 674 steps of 64 pairs.
  config = tiny(eval_every_epochs=5 / 674, keep_best=score, seed=1)
  parts = build(config)
  loop.fit(config, tmp_path, parts=parts)
  found = {
    row["step"]: row[score]
    for row in records.read_history(tmp_path)
    if score in row
  }
  assert sorted(found) == [0, 5, 10, 15, 20]  # also the state before training
  step = max(found, key=found.get)  # the first of equal ones

  def load(**kwargs):
    return loop.load(tmp_path, parts=parts, **kwargs)

  best = load(checkpoints=checkpoint.BEST)
  assert int(best[2].step) == step
  assert loop.evaluate(*best)[score] == found[step]
  assert int(load()[2].step) == 20

  # Killed between the checkpoint of step 15 and its validation: it is done when
  # the run goes on.
  history = tmp_path / "history.jsonl"
  shutil.rmtree(tmp_path / "checkpoints" / "20")
  (tmp_path / "metrics.json").unlink()
  lines = history.read_text().splitlines(keepends=True)
  lost = [x for x in lines if '"step": 15' in x and "validation/" in x]
  assert len(lost) == 1
  history.write_text("".join(x for x in lines if x not in lost))
  loop.fit(config, tmp_path, parts=parts)
  again = {
    row["step"]: row[score]
    for row in records.read_history(tmp_path)
    if score in row
  }
  assert again == found

  # A damaged checkpoint is set aside; from the one before, the run comes past
  # its best step again, and to the same end.
  expected = jax.device_get(load()[2])
  damaged = next((tmp_path / "checkpoints" / "20" / "state" / "d").iterdir())
  damaged.write_bytes(bytes(len(damaged.read_bytes())))
  (tmp_path / "metrics.json").unlink()
  loop.fit(config, tmp_path, parts=parts)
  assert (tmp_path / "checkpoints" / "20.damaged").exists()
  chex.assert_trees_all_equal(jax.device_get(load()[2]), expected)
  assert int(load(checkpoints=checkpoint.BEST)[2].step) == step


def test_a_best_state_is_kept_before_its_score_is_written(
  tiny, build, tmp_path, no_diagnostics, monkeypatch
):
  """Killed while it is kept: its step is scored again, and it is kept."""
  score = "validation/mean_recall@10"
  every = dict(eval_every=2, checkpoint_every=2)
  config = tiny(num_epochs=0.006, keep_best=score, **every)
  parts, save = build(config), checkpoint.save

  def save_all_but_the_best(manager, step, state, meta):
    if best.SCORES in meta and step == 2:
      raise InterruptedError("killed")
    save(manager, step, state, meta)

  def scored():
    return [x["step"] for x in records.read_history(tmp_path) if score in x]

  def only_the_second(evaluators, embed, split):
    steps.append(split)
    return {score: float(len(steps) == 2)}

  steps = []
  monkeypatch.setattr(checkpoint, "save", save_all_but_the_best)
  monkeypatch.setattr(loop, "run_evaluators", only_the_second)
  with pytest.raises(InterruptedError):
    loop.fit(config, tmp_path, parts=parts)
  assert scored() == [0]
  monkeypatch.setattr(checkpoint, "save", save)
  steps = [""]
  loop.fit(config, tmp_path, parts=parts)
  assert scored()[:2] == [0, 2]
  best_step = loop.load(tmp_path, parts=parts, checkpoints=checkpoint.BEST)[2]
  assert int(best_step.step) == 2


def test_a_best_state_without_a_checkpoint_belongs_to_its_config(
  tiny, build, tmp_path, no_diagnostics
):
  """As of a run that was killed before its first checkpoint."""
  score = "validation/mean_recall@10"
  config = tiny(num_epochs=0.003, keep_best=score)
  parts = build(config)
  loop.fit(config, tmp_path, parts=parts)
  rows = records.read_history(tmp_path)
  assert score in rows[0] and rows[0]["step"] == 0
  shutil.rmtree(tmp_path / "checkpoints")
  other = tiny(num_epochs=0.003, keep_best=score, seed=1)
  with pytest.raises(ValueError, match="seed is 0 there, 1 here"):
    loop.fit(other, tmp_path, parts=build(other))
  # The same config begins anew, with a history of its own.
  history = tmp_path / "history.jsonl"
  history.write_text('{"step": 0, "validation/of_before": 1.0}\n')
  loop.fit(config, tmp_path, parts=parts)
  assert records.read_history(tmp_path) == rows


def test_what_may_differ_is_that_of_the_config(
  tiny, build, tmp_path, no_diagnostics
):
  config = tiny(num_epochs=0.006, eval_every=2)
  loop.fit(config, tmp_path, parts=build(tiny(num_epochs=0.006)))
  steps = [
    row["step"]
    for row in records.read_history(tmp_path)
    if any(name.startswith("validation/") for name in row)
  ]
  assert steps == [2, 4]


def bytes_of(state):
  return sum(x.nbytes for x in jax.tree.leaves((state.params, state.opt_state)))


def bytes_on_a_device(state):
  leaves = jax.tree.leaves((state.params, state.opt_state))
  return sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_restores_on_another_number_of_devices(
  tiny, scored_glyphs, tmp_path, monkeypatch, no_diagnostics
):
  """1, 8 and 6 devices, rows moved: one trajectory within rounding."""
  monkeypatch.setattr(sharding, "MIN_SPLIT", 64)
  config = complete(tiny(log_every=1, batch_size=48))
  workdir = tmp_path / "moved"
  parts = experiment.build(config, data=scored_glyphs._replace(held_out={}))
  straight = loop.fit(config, tmp_path / "straight", parts=parts)
  last = parts.num_steps
  runs = [(1, 3, False), (8, 7, True), (6, last, False)]
  for num_devices, last, split in runs:
    here = config | dict(
      num_devices=num_devices, shard_params=split, offload_rows=not split
    )
    part = parts._replace(settings=resolve(here), num_steps=last)
    moved = loop.fit(here, workdir, parts=part)
    zeta = moved.train_state.objective.sample.image.zeta
    kind = "device" if split else "pinned_host"
    assert zeta.sharding.memory_kind == kind
    share = bytes_on_a_device(moved.train_state) / bytes_of(moved.train_state)
    assert share < 0.2 if num_devices == 8 else share > 0.9
    (workdir / "metrics.json").unlink()
  chex.assert_trees_all_close(
    jax.device_get(moved.train_state.objective),
    jax.device_get(straight.train_state.objective),
    rtol=1e-3,
    atol=1e-4,
  )
  losses = [
    [
      row["train/loss"]
      for row in records.read_history(x)
      if "train/loss" in row
    ]
    for x in (tmp_path / "straight", workdir)
  ]
  np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_stopped_run_with_refreshes_goes_on_bit_for_bit(
  tiny, few_pairs, tmp_path, no_diagnostics
):
  config = tiny(
    num_epochs=0.2,  # 20 steps
    **{
      "refresh.every_epochs": 0.05,
      "refresh.max_pairs": 500,
      "model.dropout": 0.1,
      "log_every": 4,  # the stop comes within such a window
    },
  )
  parts = experiment.build(config, data=few_pairs)
  straight = loop.fit(config, tmp_path / "straight", parts=parts)

  def stop(state, embed):
    os.kill(os.getpid(), signal.SIGTERM)
    return state

  interrupted = parts._replace(hooks=(Hook(10, stop), *parts.hooks))
  half = loop.fit(config, tmp_path / "halves", parts=interrupted)
  assert not half.finished and int(half.train_state.step) == 10
  whole = loop.fit(config, tmp_path / "halves", parts=parts)
  jax.tree.map(
    np.testing.assert_array_equal,
    *map(jax.device_get, (whole.train_state, straight.train_state)),
  )
  histories = [
    (tmp_path / x / "history.jsonl").read_text() for x in ("straight", "halves")
  ]
  assert histories[0] == histories[1]
