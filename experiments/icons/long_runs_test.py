"""Long runs: the data that are carried, the objectives, the rows."""

import json

import chex
import jax
import make_icons
import numpy as np
import pytest

from experiments.harness import training
from experiments.icons import long_runs, measure, plan, tables
from nuclr_jax import Pairs
from nuclr_jax.lab import models
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.settings import resolve


@pytest.fixture(scope="module")
def cache(icons):
  config = training.get_config("icons")("clip")
  config.data.update(version=make_icons.VERSION, size=16)
  packed = long_runs.pack(config, str(icons))
  path = icons / "icons.xz"
  long_runs.write(packed, path)
  found = long_runs.read(path)
  chex.assert_trees_all_equal(found[:4], packed[:4])
  for split, data in found.held_out.items():
    expected = packed.held_out[split]
    np.testing.assert_array_equal(data.image, expected.image[:])
    np.testing.assert_array_equal(data.captions, expected.captions)
    chex.assert_trees_all_equal(data.parts, expected.parts)
    assert list(data.origin) == list(expected.origin)
  assert found.family == packed.family
  return path


@pytest.mark.parametrize("arm", ["clip", "sogclr", "nuclr_queue", "nuclr_zero"])
def test_objectives_are_those_of_the_study(cache, arm):
  icons, random = long_runs.read(cache), np.random.default_rng(0)
  run = plan.make_run(plan.Scale(), plan.MAIN, arm, 0, value=0.06, rate=2e-3)
  sizes = dict(
    num_pairs=len(icons.image),
    num_images=int(icons.image_id.max()) + 1,
    num_texts=len(icons.text),
  )
  theirs = build.make_objective(
    resolve(measure.make_config(run)),
    **sizes,
    dim=long_runs.DIM,
    num_steps=100,
    steps_per_epoch=10,
  )
  ours = long_runs.objective_of(arm, 0.06, icons)
  vectors = random.normal(size=(2, 16, long_runs.DIM)).astype(np.float32)
  vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
  ids = np.arange(16, dtype=np.int32)
  pairs = Pairs(*vectors, ids, icons.image_id[ids], icons.text_id[ids])
  found = []
  for objective in (ours, theirs):
    params, state = objective.init()
    for _ in range(2):  # the second step has seen all rows
      loss, (state, _) = objective.apply(params, state, pairs)
    found.append(loss)
  assert found[0] == found[1]


def test_towers_are_those_of_the_study_or_larger(cache):
  icons = long_runs.read(cache)
  model = dict(training.get_config("icons")("clip").model)
  assert model.pop("name") == "small"
  theirs = models.small(
    image_shape=icons.image.shape[1:],
    vocab_size=icons.vocab_size,
    length=icons.text.shape[1],
    **model,
  )
  key = jax.random.key(0)
  expected = jax.eval_shape(theirs.init, key)
  for name in long_runs.TOWERS:
    found = jax.eval_shape(long_runs.model_of(icons, name).init, key)
    if name == "small":
      chex.assert_trees_all_equal(found, expected)
    else:
      sizes = (
        sum(x.size for x in jax.tree.leaves(y)) for y in (found, expected)
      )
      assert next(sizes) > next(sizes)


def test_an_unknown_arm_is_named(cache):
  with pytest.raises(ValueError, match="one of clip, sogclr.* got 'siglip'"):
    long_runs.objective_of("siglip", 0.1, long_runs.read(cache))


def test_drawings_move_by_a_pixel_at_most():
  image = np.zeros((64, 5, 5, 1), np.uint8)
  image[:, 2, 2] = 9
  found = np.asarray(long_runs.moved(image, jax.random.key(0)))
  places = np.argwhere(found == 9)
  assert len(places) == 64
  assert {tuple(x) for x in places[:, 1:3]} == {
    (i, j) for i in (1, 2, 3) for j in (1, 2, 3)
  }


def test_every_pair_is_seen_once_an_epoch():
  stream = long_runs.batches_of(0, 11, 5)
  first, second = (np.concatenate([next(stream), next(stream)]) for _ in "ab")
  assert len(set(first)) == len(set(second)) == 10
  assert list(first) != list(second)


def test_seeds_have_rows_as_if_alone(cache, tmp_path, monkeypatch):
  monkeypatch.setattr(long_runs, "CHUNK", 2)
  monkeypatch.setitem(long_runs.TOWERS["small"], "stages", ((4, 1, 16),))
  rows = tmp_path / "rows.jsonl"
  words = f"--cache={cache} --rows={rows} --arms=nuclr_queue:0.1 --batch_size=8"
  words = [*words.split(), "--epochs=2"]
  for seeds in (1, 2, 2):  # one more, then none
    long_runs.main([*words, f"--seeds={seeds}"])
  lines = [json.loads(x) for x in rows.read_text().splitlines()]
  assert [x["seed"] for x in lines] == [0, 1]
  for row in lines:
    assert row["arm"] == "nuclr_queue" and row["τ"] == 0.1
    for split in tables.SPLITS:
      assert row["sets"][split]
      assert 0 <= row[f"{split}/natural/mean_recall@10"] <= 1
  icons = long_runs.read(cache)
  objective = long_runs.objective_of("nuclr_queue", 0.1, icons)
  together = long_runs.train(
    icons, objective, seeds=(0, 1), batch_size=8, epochs=2.0
  )
  found = np.array([x["losses"] for x in lines])
  np.testing.assert_allclose(found, together.losses, rtol=1e-3)
  assert np.abs(found[0] - found[1]).max() > 0.01
