"""Exact popularities within a run: refreshed, and to start from."""

import functools

import jax
import numpy as np
import pytest
import saved_popularity

from nuclr_jax import Sides, popularity, sharding
from nuclr_jax.lab.evaluate import evaluators
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import loop, resume, step
from nuclr_jax.lab.train.warm_start import POPULARITY_FILE

pytestmark = pytest.mark.usefixtures("no_diagnostics")

EVERY = 0.25  # epochs in which a run on `few_characters` does 5 steps


@pytest.fixture(scope="module")
def build(few_characters):
  """Makes the parts of a run on few characters."""
  return functools.partial(experiment.build, data=few_characters)


@pytest.fixture(scope="module")
def tiny(tiny):
  """The tiny config with 20 steps on that data."""
  return lambda *args, **kwargs: tiny(
    *args, **{"num_epochs": 4 * EVERY} | kwargs
  )


def solved(parts, mesh, state, **arguments):
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    pairs = evaluators.embed_pairs(embed, parts.data.train)
    return popularity.solve(
      pairs.image,
      pairs.text,
      temperature=parts.settings.objective.arguments["temperature"],
      text_id=pairs.text_id,
      **arguments,
    )


def tables(state):
  sample = jax.device_get(state.objective.sample)
  return Sides(sample.image, sample.text), sample.pair.log_u


def refresh(parts, devices=1):
  """The mesh, a first state, and what the first hook makes of it."""
  mesh = sharding.make_mesh(devices)
  pieces = (parts.model, parts.objective, parts.optimizer)
  init = lambda: step.init_state(*pieces, jax.random.key(0))
  layout = step.shardings(mesh, jax.eval_shape(init))
  state = jax.jit(init, out_shardings=layout)()
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    return mesh, state, parts.hooks[0].apply(state, embed)


def test_a_refresh_makes_zeta_and_log_u_exact(tiny, build):
  config = tiny(
    **{
      "refresh.every_epochs": EVERY,
      "refresh.max_pairs": 100_000,
      "refresh.tolerance": 1e-3,
      "objective.zeta.momentum": 0.1,
    }
  )
  parts = build(config)
  assert [hook.every for hook in parts.hooks] == [5]
  mesh, first, state = refresh(parts)
  exact = solved(parts, mesh, first)
  rows, log_u = tables(state)
  for side, found, ids, zeta in zip(
    Sides._fields, rows, exact.ids, exact.zeta, strict=True
  ):
    np.testing.assert_allclose(found.zeta[ids], zeta, atol=1e-6)
    others = np.setdiff1d(np.arange(len(found.zeta)), ids)
    np.testing.assert_array_equal(found.zeta[others], 0)  # not in the data
    np.testing.assert_array_equal(found.momentum, 0)
    visits = getattr(log_u, side)[: parts.data.train.sizes.num_pairs]
    np.testing.assert_allclose(visits, getattr(exact.log_u, side), atol=1e-4)
    xi = getattr(state.objective.shared.xi, side)
    np.testing.assert_allclose(xi, np.abs(found.zeta).max(), rtol=1e-6)


def test_refresh_on_eight_devices(tiny, build):
  config = tiny(**{"refresh.every_epochs": EVERY, "refresh.max_pairs": 500})
  _, _, alone = refresh(build(config))
  _, first, together = refresh(build(config), devices=8)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4),
    *(tables(state)[0] for state in (alone, together)),
  )
  same = lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim)
  sample = (first.objective.sample, together.objective.sample)
  assert all(jax.tree.leaves(jax.tree.map(same, *sample)))


def test_a_refresh_from_few_pairs_warns(tiny, build, caplog):
  def found(max_pairs):
    caplog.clear()
    settings = {"refresh.every_epochs": EVERY, "refresh.max_pairs": max_pairs}
    build(tiny(**settings))
    return [x for x in caplog.messages if "refresh.max_pairs" in x]

  assert not found(100_000)
  (message,) = found(2)
  assert message.startswith("refresh solves for 2 of ")
  needed = int(message.split("refresh.max_pairs to ")[1].split()[0])
  assert needed > 2 and not found(needed) and found(needed - 1)


@pytest.mark.parametrize(
  "name, overrides, message",
  [
    ("sogclr", {}, "refresh needs an objective with popularities"),
    ("nuclr_individual", {}, "refresh needs an objective with popularities"),
    (
      "tempnet",
      {"objective.name": "nuclr_variant"},
      "refresh needs .* one temperature, such as nuclr with a number",
    ),
    (
      "nuclr",
      {
        "objective.name": "nuclr_variant",
        "objective.anchor_average": "id",
      },
      "anchor_average 'pair'",
    ),
  ],
)
def test_refresh_refuses_what_has_no_zeta(
  name, overrides, message, tiny, build
):
  config = tiny(name, **{"refresh.every_epochs": EVERY} | overrides)
  with pytest.raises(ValueError, match=message):
    refresh(build(config))


@pytest.mark.parametrize(
  "refresh, message",
  [
    ({"every_epochs": -1.0}, "every_epochs must be a number of at least 0"),
    ({"every_epochs": 1.0, "max_pairs": 1}, "max_pairs must be at least 2"),
    ({"every_epochs": 1.0, "tolerance": -1.0}, "tolerance must be a number"),
    ({"every_epoch": 1.0}, "unknown keys .'every_epoch'. of refresh"),
    ({"max_pairs": 100}, "refresh lacks every_epochs"),
  ],
)
def test_bad_refreshes_are_refused_at_once(refresh, message, tiny, build):
  config = tiny().to_dict() | {"refresh": refresh}
  with pytest.raises(ValueError, match=message):
    build(config)


@pytest.fixture(scope="module")
def source(build, tiny):
  return build(tiny()).data.train


class TestWarmStart:
  """Zeta of a run that start from those of another one."""

  @pytest.fixture
  def path(self, source, tmp_path):
    path = tmp_path / POPULARITY_FILE
    saved_popularity.save_random(path, source)
    return path

  def config(self, tiny, path, name="nuclr"):
    return tiny(name).to_dict() | {"warm_start": str(path)}

  def test_zeta_and_xi_start_there(self, tiny, build, path):
    parts = build(self.config(tiny, path))
    mesh = sharding.make_mesh(8)
    with jax.set_mesh(mesh):
      state = resume.first_state(parts, mesh).objective
    zeta = np.load(path)["zeta_text"]
    found = state.sample.text.zeta[: len(zeta)]
    np.testing.assert_allclose(found, zeta, rtol=1e-6)
    np.testing.assert_allclose(
      state.shared.xi.text, np.abs(zeta).max(), rtol=1e-6
    )

  def test_other_data_is_refused(self, tiny, build, path, source):
    content = dict(np.load(path))
    np.savez(path, **content | {"fingerprint": "photos/train/7"})
    with pytest.raises(ValueError, match="of the data 'photos/train/7', this"):
      build(self.config(tiny, path))
    np.savez(path, **content | {"text_id": np.arange(7)})
    with pytest.raises(ValueError, match="has 7 of .* text ids; solve all"):
      build(self.config(tiny, path))

  def test_another_temperature_is_told(self, tiny, build, path, caplog):
    build(self.config(tiny, path))  # at 0.07, the file is of 0.1
    assert "popularities at temperature 0.1, this run has 0.07" in caplog.text

  def test_counts_of_ids(self, tiny, build, few_characters):
    parts = build(self.config(tiny, "counts"))
    train = few_characters.train
    ids = train.ids(np.arange(train.sizes.num_pairs))
    counts = np.bincount(ids.text)
    zeta = 0.07 * np.log(np.maximum(counts, 1))  # the config's temperature
    expected = zeta - np.average(zeta, weights=counts)
    np.testing.assert_allclose(parts.popularities.zeta.text, expected)
    assert counts.max() > counts.min()
    np.testing.assert_array_equal(parts.popularities.zeta.image, 0)

  def test_no_such_file(self, tiny, build, tmp_path):
    with pytest.raises(ValueError, match="write one with nuclr popularity"):
      build(self.config(tiny, tmp_path / "missing.npz"))

  def test_an_objective_without_zeta(self, tiny, build, path):
    with pytest.raises(ValueError, match="needs an objective with pop"):
      build(self.config(tiny, path, "sogclr"))

  def test_temperatures_that_a_network_tells(self, tiny, build):
    config = self.config(tiny, "counts", "tempnet")
    config["objective"]["name"] = "nuclr_variant"
    with pytest.raises(ValueError, match="warm_start needs .* one temperature"):
      build(config)
