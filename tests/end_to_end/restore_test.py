"""Checkpoints of a data set that has gained and lost samples since."""

import json
import logging
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from nuclr_jax import sharding
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.data import pair_index, source
from nuclr_jax.lab.data.records import read_records
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import checkpoint, extend, loop, records, resume
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.sample_state.queue import Memory

pytestmark = pytest.mark.usefixtures("no_diagnostics")

OLD, NEW = np.arange(1200), np.arange(100, 1500)[::-1]  # ids of all glyphs


def subset(records, ids, name):
  """A data set of some of the pairs; texts are numbered anew."""
  texts, text_id = np.unique(records.text_id[ids], return_inverse=True)
  return source.Records(
    records.image[ids],
    text_id.astype(np.int32),
    [records.captions[i] for i in texts],
    f"glyphs/{name}",
  )


@pytest.fixture(scope="module")
def build(tiny, data_dir):
  """Makes the parts of a run on some of the pairs."""
  data = experiment.load_data(tiny().data, data_dir=data_dir)
  (folder,) = (data_dir / "glyphs").glob("16px*/1.0.0")
  records = read_records(folder, "train")

  def make(config, ids, name):
    part = subset(records, ids, name)
    tokens = data.tokenizer.encode(part.captions)
    return experiment.build(
      config,
      data=data._replace(train=source.in_memory(part, tokens), held_out={}),
    )

  return make


@pytest.fixture(scope="module")
def run(tiny, build, tmp_path_factory):
  """A finished run on the old pairs: its config, workdir and parts."""
  config = complete(tiny(num_epochs=1, checkpoint_every=0))
  workdir = tmp_path_factory.mktemp("restore") / "run"
  parts = build(config, OLD, "old")
  assert loop.fit(config, workdir, parts=parts).finished
  return config, workdir, parts


def load(workdir, parts, num_devices=1):
  mesh = sharding.make_mesh(num_devices)
  manager, step = checkpoint.open_to_read(workdir)
  with jax.set_mesh(mesh):
    state = resume.start(parts, mesh, manager, step)
  manager.close()
  return jax.device_get(state)


@pytest.mark.parametrize("num_devices", [1, 8])
def test_rows_follow_their_samples(num_devices, build, run, caplog):
  config, workdir, parts = run
  changed = build(config, NEW, "new")
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    state = load(workdir, changed, num_devices)
  old = load(workdir, parts)
  jax.tree.map(np.testing.assert_array_equal, state.params, old.params)
  jax.tree.map(np.testing.assert_array_equal, state.opt_state, old.opt_state)

  sample, before = state.objective.sample, old.objective.sample
  n = len(NEW)
  there = NEW < len(OLD)
  for side in ("image", "text"):
    new_u = getattr(sample.pair.log_u, side)[:n]
    old_u = getattr(before.pair.log_u, side)
    np.testing.assert_array_equal(new_u[there], old_u[NEW[there]])
    np.testing.assert_array_equal(new_u[~there], -np.inf)
    assert np.isfinite(new_u).any()
  np.testing.assert_array_equal(
    sample.image.zeta[:n][there], before.image.zeta[NEW[there]]
  )
  captions = [
    part.data.train.captions(range(part.data.train.sizes.num_texts))
    for part in (parts, changed)
  ]
  expected = dict(zip(captions[0], before.text.zeta, strict=False))
  zeta = [expected.get(caption, 0.0) for caption in captions[1]]
  np.testing.assert_array_equal(sample.text.zeta[: len(zeta)], zeta)
  assert np.any(np.array(zeta) != 0)
  memory = state.objective.memory
  assert isinstance(memory, Memory)  # its ids were those of the old data
  np.testing.assert_array_equal(memory.log_denominator.image, np.inf)
  assert "of 1400 pairs, 300 are new and start unvisited; 100" in caplog.text
  assert " texts, " in caplog.text


@pytest.fixture
def copied(run, tmp_path):
  """A copy of the run, to change."""
  return shutil.copytree(run[1], tmp_path / "copy")


def files_of(workdir):
  names = records.CONFIG, records.HISTORY, records.TIMES, "extended.jsonl"
  paths = [workdir / x for x in names]
  return [x.read_bytes() if x.exists() else None for x in paths]


@pytest.mark.parametrize("num_epochs, enough", [(1, 2), (1.5, 2)])
def test_an_end_before_the_checkpoint_is_refused(
  num_epochs, enough, build, run, copied
):
  """Nothing would be trained, and later lines of the history would go."""
  config = run[0] | {"num_epochs": num_epochs}
  (copied / records.METRICS).unlink()
  before = files_of(copied)
  parts = build(config, np.arange(700), "few")
  assert parts.num_steps == (10 if num_epochs == 1 else 15)
  with pytest.raises(ValueError, match="is not finished and has a") as failed:
    loop.fit(config, copied, parts=parts)
  for text in (
    f"of step 18, but now it would end at step {parts.num_steps}",
    "it had 1200 training pairs and 18 steps, and there are 700 pairs. Use",
    f"raise --config.num_epochs from {num_epochs}, say to {enough}; nuclr ",
  ):
    assert text in str(failed.value)
  assert files_of(copied) == before
  assert checkpoint.steps(copied)[-1] == 18


def test_a_finished_run_stays_as_it_is_when_the_data_shrink(
  build, run, copied, caplog
):
  config, before = run[0], files_of(copied)
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    result = loop.fit(
      config, copied, parts=build(config, np.arange(700), "few")
    )
  assert result.finished and result.metrics["step"] == 18
  assert files_of(copied) == before
  assert "is not trained again" in caplog.text
  assert "planned anew" not in caplog.text


def test_more_epochs_of_fewer_pairs(build, run, copied, caplog):
  config = run[0] | {"num_epochs": 2}
  parts = build(config, np.arange(700), "few")
  manager, step = checkpoint.open_to_read(copied)
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    for _ in range(2):  # a run that is killed goes on from it again
      extend.begin(copied, parts, manager, step)
  manager.close()
  assert (
    "from 18 to 20 steps (num_epochs 1 to 2; 1200 to 700 training pairs); it "
    "goes on at step 18 with its optimizer, and with u and zeta of the pairs"
  ) in caplog.text
  (line,) = map(json.loads, (copied / "extended.jsonl").open())
  assert line == {"step": 18, "num_epochs": 1, "num_pairs": 1200}
  assert not (copied / records.METRICS).exists()


def test_training_goes_on(build, run, caplog):
  config, workdir, _ = run
  parts = build(config, NEW, "new")
  assert parts.num_steps == 1400 // 64 > 1200 // 64

  def stop(state, embed):
    os.kill(os.getpid(), signal.SIGTERM)
    return state

  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    stopped = loop.fit(
      config, workdir, parts=parts._replace(hooks=(Hook(1, stop),))
    )
  assert not stopped.finished
  assert not (workdir / records.METRICS).exists()  # it was of the old end
  assert "from 18 to 21 steps (1200 to 1400 training pairs)" in caplog.text
  assert "optimizer.learning_rate is planned anew: at step 18" in caplog.text
  caplog.clear()
  result = loop.fit(config, workdir, parts=parts)
  assert "planned anew" not in caplog.text
  assert result.finished and int(result.train_state.step) == parts.num_steps
  # The next checkpoint is one of the new data.
  again = load(workdir, parts)
  assert int(again.step) == parts.num_steps


def test_data_without_a_common_sample_are_refused(build, run):
  config, workdir, _ = run
  message = " 0% of the smaller one's pairs are in both, 50% are"
  with pytest.raises(ValueError, match=message):
    load(workdir, build(config, np.arange(5000, 6000), "other"))


def test_equal_contents_have_keys_of_their_own():
  found = pair_index.content_keys([b"a", b"b", b"a", b"a"])
  assert len(set(found.tolist())) == 4
  np.testing.assert_array_equal(
    found, pair_index.content_keys([b"a", b"b", b"a", b"a"])
  )
  np.testing.assert_array_equal(
    found[:3], pair_index.content_keys([b"a", b"b", b"a"])
  )


def test_state_for_other_data_than_there_are(build, run, tmp_path, monkeypatch):
  """An objective made for other pairs would train with a wrong n."""
  monkeypatch.setattr(sharding, "ROW_MULTIPLE", 64)
  config, _, parts = run
  more = build(config, np.arange(3000), "more").data.train
  wrong = parts._replace(data=parts.data._replace(train=more))
  with pytest.raises(ValueError, match="another number of pair ids than the"):
    loop.fit(config, tmp_path / "wrong", parts=wrong)
