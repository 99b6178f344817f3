"""Long runs: the data that are carried, the objectives, the rows."""

import json

import chex
import jax
import jax.numpy as jnp
import make_icons
import numpy as np
import pytest

from experiments.harness import training
from experiments.icons import long_runs, measure, plan, scores, tables
from experiments.icons.arms import ARMS, GRIDS
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


REFUSED = {
  "nuclr_exact": "nuclr_exact solves popularities",
  "clip_tokens": "clip_tokens has a term that sees tokens",
  "sogclr_tokens": "sogclr_tokens has a term that sees tokens",
  "sogclr_batch_tokens": "sogclr_batch_tokens has a term that sees tokens",
  "drrho": "drrho is relative to a reference",
}


@pytest.mark.parametrize("arm", [x for x in ARMS if x not in REFUSED])
def test_arms_have_the_objectives_of_the_study(cache, arm):
  icons, value = long_runs.read(cache), GRIDS[ARMS[arm].tuned][1]
  run = plan.make_run(plan.Scale(), plan.MAIN, arm, 0, value=value, rate=2e-3)
  # NeuCLIP has 4,096 prototypes, TempNet 64 of a batch.
  sizes = type(icons.sizes)(*[8_192] * 3)
  epoch = sizes.num_pairs // 4
  theirs = build.make_objective(
    resolve(measure.make_config(run)),
    **(sizes._asdict() | dict(num_steps=2 * epoch, steps_per_epoch=epoch)),
    dim=128,
  )
  settings = long_runs.settings_of(icons, arm, value)
  ours = long_runs.objective_of(settings, sizes, batch_size=4, epochs=2.0)
  vectors = np.random.default_rng(0).normal(size=(2, 64, 128))
  vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
  ids = np.arange(64, dtype=np.int32)
  pairs = Pairs(*vectors.astype(np.float32), ids, ids, ids // 2)
  pairs = jax.tree.map(jnp.asarray, pairs)
  found = []
  for objective in (ours, theirs):
    params, state = objective.init()
    for _ in range(2):  # the second step has seen all rows
      loss, (state, _) = objective.apply(params, state, pairs)
    found.append(loss)
  assert found[0] == found[1]


def test_what_has_not_been_packed_is_named(cache):
  icons = long_runs.read(cache)
  with pytest.raises(ValueError, match="arm must be one of clip, .* got pull"):
    long_runs.settings_of(icons, "pull", 0.08)
  with pytest.raises(ValueError, match="one of 0.03, 0.05, .*, got 0.1$"):
    long_runs.settings_of(icons, "clip", 0.1)
  for arm, message in REFUSED.items():
    with pytest.raises(ValueError, match=message):
      long_runs.settings_of(icons, arm, 0.08)


def test_popularities_are_those_of_a_run_that_starts_with_counts(cache, icons):
  packed = long_runs.read(cache)
  config = training.get_config("icons")("nuclr")
  config.data.update(version=make_icons.VERSION, size=16)
  config.warm_start = "counts"
  parts = build.build(config, data_dir=str(icons))
  temperature = config.objective.temperature
  found = long_runs.of_counts(packed, temperature)
  chex.assert_trees_all_close(found, parts.popularities, rtol=1e-6)


def test_runs_start_with_popularities(cache, monkeypatch):
  monkeypatch.setattr(long_runs, "CHUNK", 2)
  monkeypatch.setitem(long_runs.TOWERS["small"], "stages", ((4, 1, 16),))
  icons = long_runs.read(cache)
  settings = long_runs.settings_of(icons, "nuclr_counts", 0.08)
  expected = long_runs.of_counts(icons, 0.08)
  trained = long_runs.train(
    icons,
    long_runs.objective_of(settings, icons.sizes, batch_size=8, epochs=2.0),
    seeds=(0, 1),
    batch_size=8,
    epochs=2.0,
    popularities=expected,
  )
  zeta = trained.state.objective.sample.text.zeta  # fixed in this arm
  for of_seed in zeta:
    of_names = of_seed[: icons.sizes.num_texts]
    np.testing.assert_allclose(of_names, expected.zeta.text, rtol=1e-6)
  assert np.ptp(expected.zeta.text) > 0


def test_unmarked_names_have_ids_of_their_own(cache):
  icons = long_runs.read(cache)
  found = long_runs.unmarked(icons)
  assert found.sizes.num_texts == len(icons.image) > icons.sizes.num_texts
  np.testing.assert_array_equal(
    found.text[found.text_id], icons.text[icons.text_id]
  )


def test_a_part_is_that_of_the_study(cache, icons):
  """Its pairs, and the names that it then has seen."""
  config = training.get_config("icons")("clip")
  config.data.update(version=make_icons.VERSION, size=16)
  data = training.load_data(config, str(icons))
  expected = measure.subset(data.train, 20)
  found = long_runs.part_of(long_runs.read(cache), 20)
  everything = np.arange(20)
  batch, ids = expected.fetch(everything), expected.ids(everything)
  assert found.sizes == expected.sizes
  np.testing.assert_array_equal(found.image, batch.image)
  np.testing.assert_array_equal(found.image_id, ids.image)
  np.testing.assert_array_equal(found.text_id, ids.text)
  np.testing.assert_array_equal(found.text[found.text_id], batch.text)
  known = set(expected.captions(np.arange(expected.sizes.num_texts)))
  for split, theirs in data.sets.items():
    parts = scores.split_by(theirs, known).parts
    chex.assert_trees_all_equal(found.held_out[split].parts, parts)
    assert parts["seen"].text.any() and parts["unseen"].text.any()
  with pytest.raises(ValueError, match="--pairs must be at most"):
    long_runs.part_of(found, 21)


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
  words = (
    f"--cache={cache} --rows={rows} --arms=nuclr_queue:0.08 --batch_size=8"
  )
  words = [*words.split(), "--epochs=2", "--pairs=40"]
  for seeds in (1, 2, 2):  # one more, then none
    long_runs.main([*words, f"--seeds={seeds}"])
  lines = [json.loads(x) for x in rows.read_text().splitlines()]
  assert [x["seed"] for x in lines] == [0, 1]
  for row in lines:
    assert row["arm"] == "nuclr_queue" and row["τ"] == 0.08
    assert row["pairs"] == 40 and row["setting"].endswith(" pairs=40")
    for split in tables.SPLITS:
      assert row["sets"][split]
      assert 0 <= row[f"{split}/natural/mean_recall@10"] <= 1
  icons = long_runs.part_of(long_runs.read(cache), 40)
  objective = long_runs.objective_of(
    long_runs.settings_of(icons, "nuclr_queue", 0.08),
    icons.sizes,
    batch_size=8,
    epochs=2.0,
  )
  together = long_runs.train(
    icons, objective, seeds=(0, 1), batch_size=8, epochs=2.0
  )
  found = np.array([x["losses"] for x in lines])
  np.testing.assert_allclose(found, together.losses, rtol=1e-3)
  assert np.abs(found[0] - found[1]).max() > 0.01
