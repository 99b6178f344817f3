"""What every objective must do: one suite, one row per objective."""

import functools
import re
from unittest import mock

from absl.testing import parameterized
import chex
import hlo
import jax
import jax.numpy as jnp
import make_pairs
from make_step import (
  everywhere,
  first_state,
  layout,
  make_step,
  on_mesh,
  rows,
)
import numpy as np
import pytest

from nuclr_jax import Pairs, Sides, contrib, objectives, sharding
from nuclr_jax.contrib.objectives.neuclip import Prototypes
from nuclr_jax.contrib.objectives.tempnet import Learned
from nuclr_jax.objectives import (
  denominator,
  temperature_rules,
  zeta_rules,
)
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.sample_state.queue import Memory
from nuclr_jax.types import each

N, TEXTS, BATCH = 4096, 3072, 32  # numbers that no other dimension has
SIZES = dict(num_pairs=N, num_texts=TEXTS)


def drrho():
  """Half of the numbers of an embedding are those of the reference."""
  objective = objectives.sogclr(**SIZES, positive_weight=1.0)

  def apply(params, state, pairs, **axes):
    own, reference = (
      Sides(unit_norm(pairs.image[:, x]), unit_norm(pairs.text[:, x]))
      for x in (slice(4), slice(4, None))
    )
    pairs = objectives.relative_to(pairs._replace(**own._asdict()), reference)
    return objective.apply(params, state, pairs, **axes)

  return objective._replace(apply=apply)


OBJECTIVES = dict(
  clip=objectives.clip(),
  ntxent=objectives.ntxent(),
  siglip=objectives.siglip(),
  debiased=objectives.debiased(),
  hard_negatives=objectives.debiased(hardness=1.0),
  cyclip=objectives.cyclip(),
  spectral=objectives.spectral(),
  vicreg=contrib.vicreg(),
  sogclr=objectives.sogclr(**SIZES),
  sogclr_by_id_learned=objectives.sogclr(
    **SIZES, anchor_average="id", temperature=temperature_rules.learned()
  ),
  scent_by_id_learned=objectives.sogclr(
    **SIZES,
    gamma=denominator.Adaptive(2.0),
    anchor_average="id",
    temperature=temperature_rules.learned(),
  ),
  drrho=drrho(),
  isogclr=objectives.isogclr(**SIZES),
  nuclr=objectives.nuclr(**SIZES, temperature=0.1),
  nuclr_by_id=objectives.nuclr_variant(
    **SIZES,
    temperature=0.1,
    gamma=denominator.Adaptive(2.0),
    anchor_average="id",
    positive=denominator.by_zeta(),
  ),
  nuclr_released_learned=objectives.nuclr_variant(
    **SIZES,
    temperature=temperature_rules.learned(0.1),
    positive=denominator.released(steps_per_epoch=1),
  ),
  nuclr_queue=objectives.nuclr(
    **SIZES, temperature=0.1, zeta=zeta_rules.queue(dim=8, size=5120)
  ),
  nuclr_individual_queue=objectives.nuclr(
    **SIZES,
    temperature=temperature_rules.individual(0.1, rate=0.01),
    zeta=zeta_rules.queue(dim=8, size=5120, momentum=0.1),
  ),
  nuclr_tempnet_queue=objectives.nuclr(
    **SIZES,
    temperature=contrib.tempnet(
      dim=8, num_prototypes=BATCH, bounds=(0.05, 0.2), rate=0.01
    ),
    zeta=zeta_rules.queue(dim=8, size=5120),
  ),
  neuclip=contrib.neuclip(dim=8, num_prototypes=48, restart_every=2),
  amorlip=contrib.amorlip(dim=8, steps_per_epoch=2),
  fastclip_released=contrib.fastclip_released(**SIZES),
  sum=objectives.add(
    sogclr=objectives.sogclr(**SIZES),
    siglip=objectives.scale(objectives.siglip(), 0.5),
  ),
)
# Those of prototypes are 2 in each of the updates.
MOST_COLLECTIVES = dict(
  amorlip=12,
  drrho=7,
  fastclip_released=7,
  neuclip=14,
  nuclr_individual_queue=11,
  nuclr_tempnet_queue=11,
  scent_by_id_learned=7,
  sogclr=7,
  sogclr_by_id_learned=7,
  sum=9,
)


@functools.cache
def on_one_device(objective):
  """The step that all others are compared with."""
  return jax.jit(make_step(objective))


def pairs(key=0, **kwargs):
  return make_pairs.make_pairs(
    key, batch=BATCH, dim=8, num_pairs=N, num_texts=TEXTS, **kwargs
  )


def in_order(state):
  """A memory holds the pairs of a batch in its order: sorted by their ids.

  Prototypes are sorted by their first numbers.
  """
  if isinstance(getattr(state.shared, "temperature", ()), Learned):
    learned = state.shared.temperature
    order = each(
      lambda x: np.argsort(x.prototypes[:, 0], stable=True), learned.network
    )
    sort = lambda x: each(_sort_prototypes, x, order)
    adam = learned.moment
    adam = adam._replace(mu=sort(adam.mu), nu=sort(adam.nu))
    learned = Learned(sort(learned.network), adam)
    state = state._replace(shared=state.shared._replace(temperature=learned))
  if isinstance(state.shared, Prototypes):
    first = state.shared.vector
    order = each(lambda x: np.argsort(x[:, 0], stable=True), first)
    vector, square = (
      each(lambda x, i: x[i], table, order) for table in state.shared[:2]
    )
    return state._replace(shared=Prototypes(vector, square, 0))
  if not isinstance(state.memory, Memory):
    return state
  order = np.argsort(state.memory.pair_id, stable=True)
  return state._replace(memory=jax.tree.map(lambda x: x[order], state.memory))


def _sort_prototypes(network, order):
  return network._replace(
    prototypes=network.prototypes[order], slope=network.slope[order]
  )


def collective_shapes(hlo: str) -> list[str]:
  kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
  return re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", hlo)


def assert_only_touched_rows_change(old, new, batch):
  ids = dict(pair=batch.pair_id, image=batch.pair_id, text=batch.text_id)
  for space, touched in ids.items():
    before = jax.tree.leaves(getattr(old.sample, space))
    after = jax.tree.leaves(getattr(new.sample, space))
    for a, b in zip(before, after, strict=True):
      changed = np.flatnonzero(np.asarray(a) != np.asarray(b))
      assert set(changed) <= set(np.asarray(touched))


def assert_no_collective_grows_with_the_data_set(hlo):
  shapes = collective_shapes(hlo)
  assert shapes  # the batch does cross devices
  per_device = {str(n // k) for n in (N, TEXTS) for k in (1, 8)}
  for shape in shapes:
    numbers = re.findall(r"\d+", re.sub(r"\{[^}]*\}", "", shape))
    assert not per_device.intersection(numbers), shape


def test_ids_and_labels_of_64_bits_are_refused():
  """JAX on its own makes one id of two that are 2**32 apart."""
  objective, ids = objectives.clip(), np.arange(4)
  pairs = Pairs(jnp.eye(4), jnp.eye(4), ids)
  for name in ("pair_id", "image_id", "text_id", "label"):
    wrong = pairs._replace(**{name: np.array([1, 2, 3, 2**32 + 1])})
    with pytest.raises(ValueError, match=f"{name} must fit in int32, found 42"):
      objective.apply(*objective.init(), wrong)
  objective.apply(*objective.init(), pairs._replace(text_id=ids - 2))


@pytest.mark.parametrize("name", ["clip", "sogclr", "nuclr", "latent_class"])
def test_an_infinite_embedding_is_not_hidden(name):
  """All logits with the first image are -inf here, and exp(-inf) is 0."""
  objective = contrib.latent_class(num_negatives=2)
  objective = OBJECTIVES.get(name, objective)
  infinite = jnp.eye(4).at[0, 0].set(jnp.inf)
  finite = (0.5 * jnp.ones((4, 4))).at[1:, 0].set(-0.5)
  apply = jax.jit(objective.apply)
  for image, text in ((infinite, finite), (finite, infinite)):
    loss, _ = apply(*objective.init(), Pairs(image, text, jnp.arange(4)))
    assert jnp.isnan(loss)


class ObjectivesTest(chex.TestCase):
  @parameterized.named_parameters(OBJECTIVES.items())
  def test_one_step(self, objective):
    """Keeps types, moves its own rows only, in any order of the batch."""
    with jax.enable_x64(True):
      params, state = first_state(objective)
      batch, step = pairs(), on_one_device(objective)
      (loss, (new, metrics)), (_, *grads) = step(params, state, batch)
      chex.assert_trees_all_equal_shapes_and_dtypes(state, new)
      chex.assert_tree_all_finite((loss, metrics))
      chex.assert_shape([loss, *metrics.values()], ())
      assert_only_touched_rows_change(state, new, batch)
      order = np.random.default_rng(0).permutation(BATCH)
      shuffled = jax.tree.map(lambda x: x[order], batch)
      (again, (other, _)), (_, *other_grads) = step(params, state, shuffled)
      chex.assert_trees_all_close(
        (loss, in_order(new), [g[order] for g in grads]),
        (again, in_order(other), other_grads),
        rtol=1e-11,
        atol=1e-13,
      )
      coarse = pairs(dtype=jnp.bfloat16)
      exact = coarse._replace(
        image=coarse.image.astype(float), text=coarse.text.astype(float)
      )
      (expected, _), _ = step(params, state, exact)
    # Embeddings in bfloat16 are computed in float32. The state can be donated:
    # no two leaves share a buffer.
    params, state = first_state(objective)
    types = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    apply = jax.jit(objective.apply, donate_argnums=1)
    loss, (new, metrics) = apply(params, state, jax.device_get(coarse))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == types
    chex.assert_tree_all_finite((loss, metrics))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)

  @parameterized.named_parameters((x, x) for x in OBJECTIVES)
  def test_tiles_on_eight_devices_equal_all_at_once_on_one(self, name):
    objective = OBJECTIVES[name]
    with jax.enable_x64(True):
      batches, mesh = [pairs(key) for key in range(3)], sharding.make_mesh(8)
      first, results = first_state(objective), []
      with mock.patch.object(tiles, "CPU_TILE", 3), jax.set_mesh(mesh):
        lowered = on_mesh(objective, mesh).lower(*first, batches[0])
        compiled = lowered.compile()
        laid_out = jax.device_put(first, (everywhere(mesh), layout(mesh)))
        ours = jax.device_put(batches, rows(mesh))
      for step, (params, state), given in (
        (on_one_device(objective), first, batches),
        (compiled, laid_out, ours),
      ):
        for batch in given:
          (loss, (state, metrics)), grads = step(params, state, batch)
        results.append(jax.device_get((loss, metrics, grads, state)))
    chex.assert_trees_all_close(*results, rtol=1e-11, atol=1e-13)
    assert_no_collective_grows_with_the_data_set(compiled.as_text())
    found = hlo.count(compiled.as_text())["num_collectives"]
    assert 3 <= found <= MOST_COLLECTIVES.get(name, 18)

  @parameterized.named_parameters(OBJECTIVES.items())
  def test_no_matrix_of_all_pairs(self, objective):
    """Of a batch of 4,096, in tiles of 512."""
    n = 4096
    params, state = jax.eval_shape(lambda: first_state(objective))
    floats = jax.ShapeDtypeStruct((n, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((n,), jnp.int32)
    batch = Pairs(floats, floats, ids, text_id=ids)
    with mock.patch.object(tiles, "TILE", tiles.CPU_TILE):
      step = jax.jit(make_step(objective)).lower(params, state, batch)
    # Comparisons of ids are in the program as matrices, but not in memory.
    temporary = step.compile().memory_analysis().temp_size_in_bytes
    workspace = 0 if jax.default_backend() == "cpu" else 2**25  # of cuBLAS
    assert 8 * n < temporary < 4 * n**2 / 2 + workspace
