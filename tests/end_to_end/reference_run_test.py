"""A run relative to the embeddings of another run, which embed has written."""

import json
import math
import shutil

import chex
import jax
import numpy as np
from pyarrow import parquet
import pytest
from repository import ROOT
import warm

from nuclr_jax import sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.data import loader
from nuclr_jax.lab.data.embeddings import open_embeddings
from nuclr_jax.lab.report import subject
from nuclr_jax.lab.train import build, loop, records, resume
from nuclr_jax.types import Sizes

WIDTH = 12  # of the reference's embeddings; those of the model have 16


@pytest.fixture(scope="module")
def data(data_dir, tiny):
  """The glyphs, without evaluations."""
  loaded = build.load_data(tiny().data, data_dir=data_dir)
  return loaded._replace(held_out={})


@pytest.fixture(scope="module")
def folder(tiny, data_dir, tmp_path_factory, no_diagnostics):
  """What `nuclr embed` makes of a run of five steps."""
  place = tmp_path_factory.mktemp("reference")
  five_steps = {"num_epochs": 5 * 64 / 43_000, "model.dim": WIDTH}
  config = tiny("sogclr,smoke", **five_steps)
  parts = build.build(config, data_dir=data_dir)
  loop.fit(config, place / "a", parts=parts._replace(evaluators={}))
  shutil.copy(place / "a" / "config.json", place / "config.json")
  words = f"embed --workdir={place}/a --data_dir={data_dir} --output={place}/r"
  words = ["-m", "nuclr_jax.lab.cli.main", *words.split()]
  done = warm.run(words, cwd=ROOT)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "captions         43172" in done.stdout
  return place / "r"


@pytest.fixture(scope="module")
def run(tiny, data, folder, tmp_path_factory, no_diagnostics):
  """A run of twenty steps with this reference: its config and workdir."""
  workdir = tmp_path_factory.mktemp("run") / "b"
  config = relative(tiny, folder)
  loop.fit(config, workdir, parts=build.build(config, data=data))
  return config, workdir


def relative(tiny, folder, name="sogclr", **more):
  how = {"reference": str(folder), "log_every": 1, **more}
  if name == "sogclr":
    how |= {"objective.positive_weight": 100.0, "objective.gamma": 0.7}
  return tiny(f"{name},smoke", **how)


def losses(workdir):
  rows = records.read_history(workdir)
  return [x["train/loss"] for x in rows if "train/loss" in x]


def test_the_first_loss_against_loops(run, data, folder):
  """With the rows of the reference looked up by captions and images."""
  config, workdir = run
  parts = build.build(config, data=data)
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    state = resume.first_state(parts, mesh)
  seed, size = config.seed, config.batch_size
  with loader.batches(data.train, batch_size=size, seed=seed) as stream:
    batch = next(stream)
  pairs, _ = parts.model.apply(
    state.params["model"], state.model_state, batch, key=None, train=True
  )
  images, texts = np.load(folder / "image.npy"), np.load(folder / "text.npy")
  captions = parquet.read_table(folder / "texts.parquet")["caption"].to_pylist()
  row_of = {x: i for i, x in enumerate(captions)}
  rows = [row_of[x] for x in data.train.captions(batch.text_id)]
  x, y, r, q = (
    np.float64(a)
    for a in (pairs.image, pairs.text, images[batch.pair_id], texts[rows])
  )
  similarity = x @ y.T - r @ q.T
  n, tau, k = data.train.sizes.num_pairs, 0.08, 100.0
  total = 0.0
  for s in (similarity, similarity.T):
    for i in range(size):
      negatives = [
        math.exp((s[i, j] - s[i, i]) / tau)
        for j in range(size)
        if batch.text_id[i] != batch.text_id[j]
      ]
      u = (n - 1) / (size - 1) * sum(negatives)
      total += tau * math.log(k + u) / size
  assert losses(workdir)[0] == pytest.approx(total, rel=1e-5)
  without = x @ y.T
  assert np.abs(similarity - without).max() > 0.1


def test_it_goes_on_with_the_same_bits(run, data, tmp_path):
  config, workdir = run
  again = tmp_path / "again"
  shutil.copytree(workdir, again)
  for step in (15, 20):
    shutil.rmtree(again / "checkpoints" / str(step), ignore_errors=True)
  (again / "metrics.json").unlink()
  assert not (again / "checkpoints" / "20").exists()
  parts = build.build(config, data=data)
  result = loop.fit(config, again, parts=parts)
  expected = loop.load(workdir, parts=parts)[2]
  chex.assert_trees_all_equal(*jax.device_get((result.train_state, expected)))
  assert losses(again) == losses(workdir)


def test_eight_devices(tiny, run, data, folder, tmp_path):
  """The losses are those of one device, up to rounding."""
  config = relative(tiny, folder, num_devices=8)
  loop.fit(config, tmp_path / "b", parts=build.build(config, data=data))
  np.testing.assert_allclose(losses(tmp_path / "b"), losses(run[1]), rtol=1e-4)


def test_a_run_is_loaded_without_the_folder(run, data, folder, tmp_path):
  """But the memory of a queue is as wide as its rows."""
  _, workdir = run
  gone = tmp_path / "b"
  shutil.copytree(workdir, gone)
  text = (gone / "config.json").read_text()
  (gone / "config.json").write_text(text.replace(str(folder), "gone"))
  settings = records.read_settings(gone)
  parts = build.build(settings, data=data, fresh=False)
  assert int(loop.load(gone, parts=parts)[2].step) == 20
  # What the state remembers is not of the similarities that a page shows.
  shown = subject.from_run(gone, parts=parts)
  assert shown.log_u is None and shown.zeta is None


def test_a_memory_of_embeddings_is_as_wide_as_these(
  tiny, data, folder, tmp_path
):
  config = relative(tiny, folder, "nuclr", **{"objective.zeta.size": 256})
  config.num_epochs = 3 * 64 / 43_000
  parts = build.build(config, data=data)
  memory = loop.fit(config, tmp_path / "q", parts=parts)
  memory = memory.train_state.objective.memory
  assert memory.embedding.image.shape[1] == 16 + WIDTH
  norms = np.linalg.norm(memory.embedding.text[:192], axis=1)
  np.testing.assert_allclose(norms, math.sqrt(2), rtol=1e-5)
  config.reference = "gone"
  with pytest.raises(ValueError, match="gone lacks image.npy, text.npy"):
    build.build(config, data=data)


def test_another_reference_cannot_take_over(run, data, folder, tmp_path):
  """Not even in its folder; nor can it be left out."""
  config, workdir = run
  again, place = tmp_path / "b", tmp_path / "r"
  shutil.copytree(workdir, again)
  shutil.copytree(folder, place)
  text = (again / "config.json").read_text()
  (again / "config.json").write_text(text.replace(str(folder), str(place)))
  moved = config.copy_and_resolve_references()
  moved.reference = str(place)
  (again / "metrics.json").unlink()
  shutil.rmtree(again / "checkpoints" / "20")
  rows = np.load(place / "image.npy")
  np.save(place / "image.npy", rows[:, ::-1])
  (place / files.DIGESTS).unlink()
  parts = build.build(moved, data=data)
  with pytest.raises(ValueError, match="with reference '43172 captions in"):
    loop.fit(moved, again, parts=parts)
  moved.reference = None
  with pytest.raises(ValueError, match="reference is .* there, None here"):
    loop.fit(moved, again, parts=build.build(moved, data=data))


def test_rows_of_other_data_end_a_run_before_it_begins(
  tiny, data, folder, tmp_path
):
  """Of the pairs of another version, or in another number."""
  config, train = relative(tiny, folder), data.train
  fewer = train._replace(sizes=Sizes(43_000, 43_000, 5_836))
  others = train._replace(captions=lambda ids: ["A"] * len(ids))
  for source, message in {
    fewer: "has 43172 captions .* and there are 43000 training pairs",
    others: "other captions than 43172 of 43172 training pairs",
  }.items():
    parts = build.build(config, data=data._replace(train=source))
    with pytest.raises(ValueError, match=f"config.reference: .*{message}"):
      loop.fit(config, tmp_path / "x", parts=parts)
  assert not (tmp_path / "x" / "checkpoints").exists()


def test_embed_without_input_writes_the_pairs_in_their_order(folder, data):
  """In place of a table of the input, hashes of the pairs' contents."""
  cached = open_embeddings(folder)
  ids = data.train.ids(np.arange(43_172))
  assert cached.captions == data.train.captions(ids.text)
  np.testing.assert_array_equal(cached.image_of_text, np.arange(43_172))
  table = parquet.read_table(folder / "images.parquet")
  keys = data.train.keys().image
  np.testing.assert_array_equal(table["content"].to_numpy(), keys)
  counts = json.loads((folder / "counts.json").read_text())
  assert counts["images"] == counts["captions"] == 43_172
  same = np.flatnonzero(ids.text == ids.text[0])
  assert len(same) > 1 and len(np.unique(cached.text[same], axis=0)) == 1
