"""Objectives in anybody's training loop: meshes, maps, derivatives, libraries.

The oracle is the same batch on one device, without a mesh.
"""

import functools
from functools import partial

import chex
import equinox as eqx
from flax import linen, nnx
from flax.training.train_state import TrainState
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import make_pairs
import numpy as np
import optax
import pytest

from nuclr_jax import Pairs, Sides, contrib, objectives, sharding
from nuclr_jax.types import Popularities, both

N, B, DIM = 48, 16, 8
QUEUE = objectives.zeta_rules.queue(dim=DIM, size=N)
SIZES = dict(num_pairs=N, num_images=N, num_texts=N)
# All at once, so that a context compiles one program.
ALL = objectives.add(
  clip=objectives.clip(),
  siglip=objectives.siglip(),
  nuclr=objectives.nuclr(**SIZES, temperature=0.1, zeta=QUEUE),
)
NUCLR = objectives.nuclr(num_pairs=N, temperature=0.1)
PAIRS = make_pairs.make_pairs(0, batch=B, dim=DIM, num_pairs=N, num_texts=20)
WHOLE, ROWS = P(), P("data")


def step_of(objective, **axes):
  """A function whose results are ((loss, (state, metrics)), gradients)."""

  def loss_fn(embeddings, params, state, ids):
    pairs = Pairs(*embeddings, *ids)
    return objective.apply(params, state, pairs, **axes)

  return jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)


@functools.cache
def on_one_device(objective):
  return jax.jit(step_of(objective))


def arguments(objective):
  """The state has seen another batch, so that its rows differ."""
  params, state = objective.init()
  embeddings, ids = tuple(PAIRS[:2]), tuple(PAIRS[2:5])
  seen = ((ids[0] + 5) % N, *ids[1:])
  (_, (state, _)), _ = on_one_device(objective)(embeddings, params, state, seen)
  return embeddings, params, state, ids


@pytest.fixture(scope="module")
def expected():
  """Arguments and results, for `ALL` and for `NUCLR` alone."""

  @functools.cache
  def of(objective):
    args = arguments(objective)
    return args, on_one_device(objective)(*args)

  return of


def check(results, expected):
  (loss, (state, metrics)), gradients = jax.device_get(results)
  (wanted, (old, old_metrics)), old_gradients = jax.device_get(expected)
  close = partial(chex.assert_trees_all_close, rtol=1e-5, atol=2e-6)
  close((loss, metrics), (wanted, old_metrics))
  close(state, old)
  close(gradients, old_gradients)


def laid_out(args, mesh, rows):
  """Puts arguments on a mesh; with `rows`, per-sample state is split, too."""

  def put(tree, spec):
    return jax.device_put(tree, NamedSharding(mesh, spec))

  embeddings, params, state, ids = args
  state = state._replace(
    sample=put(state.sample, rows),
    memory=put(state.memory, rows),
    shared=put(state.shared, WHOLE),
  )
  return put(embeddings, rows), put(params, WHOLE), state, put(ids, rows)


AUTO, EXPLICIT = (AxisType.Auto,), (AxisType.Explicit,)
MESHES = dict(
  auto=((8,), ("data",), AUTO),
  explicit=((8,), ("data",), EXPLICIT),
  explicit_batch=((8,), ("batch",), EXPLICIT),
  explicit_model=((4, 2), ("data", "model"), 2 * EXPLICIT),
  mixed=((4, 2), ("data", "model"), EXPLICIT + AUTO),
)


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_in_context(name, expected):
  objective = ALL if name in ("auto", "explicit") else NUCLR
  args, results = expected(objective)
  shape, names, kinds = MESHES[name]
  mesh = jax.make_mesh(shape, names, axis_types=kinds)
  rows = P(names[0])
  with jax.set_mesh(mesh):
    args = laid_out(args, mesh, rows)
    found = jax.jit(step_of(objective))(*args)
  check(found, results)
  if EXPLICIT[0] in kinds:  # the state stays where it is
    _, (state, _) = found[0]
    for x in jax.tree.leaves((state.sample, state.memory)):
      assert x.sharding.spec[0] == names[0]


def test_a_mesh_with_another_name_of_its_axis(expected):
  args, results = expected(NUCLR)
  mesh = jax.make_mesh((8,), ("batch",), axis_types=AUTO)
  with jax.set_mesh(mesh):
    args = laid_out(args, mesh, P("batch"))
    check(jax.jit(step_of(NUCLR, axes="batch"))(*args), results)


def test_arrays_on_a_mesh_that_is_not_in_context(expected):
  args, results = expected(NUCLR)
  mesh = jax.make_mesh((8,), ("data",))
  check(jax.jit(step_of(NUCLR))(*laid_out(args, mesh, ROWS)), results)


def test_popularities_from_outside_do_not_bind_the_state_to_a_device(expected):
  """A state that `assign` returns enters a mesh as one that `init` does."""
  (embeddings, params, state, ids), _ = expected(NUCLR)
  _, state = NUCLR.init()
  zeta = np.linspace(-0.2, 0.3, N)
  new = Popularities(both(np.arange(N)), both(zeta), np.arange(N), both(zeta))
  state = NUCLR.assign(state, new)
  args = embeddings, params, state, ids
  mesh = jax.make_mesh((8,), ("data",))
  rows = NamedSharding(mesh, ROWS)
  with jax.set_mesh(mesh):
    on_mesh = jax.device_put((embeddings, ids), rows)
    found = jax.jit(step_of(NUCLR))(on_mesh[0], params, state, on_mesh[1])
  check(found, on_one_device(NUCLR)(*args))


def test_a_donated_state_that_is_not_on_the_mesh_yet(expected):
  """The compiler used to split its rows, but not the new ones."""
  args, results = expected(NUCLR)
  mesh = jax.make_mesh((8,), ("data",))
  embeddings, params, _, ids = laid_out(args, mesh, ROWS)
  state = jax.tree.map(jnp.array, args[2])
  step = jax.jit(step_of(NUCLR), donate_argnums=2)
  check(step(embeddings, params, state, ids), results)


@pytest.mark.parametrize("name", ["library", "explicit"])
def test_a_mesh_without_jit(name, expected):
  args, results = expected(NUCLR)
  mesh = sharding.make_mesh(8)
  if name == "explicit":
    mesh = jax.make_mesh((8,), ("data",), axis_types=EXPLICIT)
  with jax.set_mesh(mesh):
    found = step_of(NUCLR)(*laid_out(args, mesh, ROWS))
  check(found, results)


def mapped(objective, state, rows, *, axis="data", checked=True, **axes):
  """A step within `jax.shard_map`."""
  layout = state._replace(
    sample=jax.tree.map(lambda _: rows, state.sample),
    memory=jax.tree.map(lambda _: rows, state.memory),
    shared=WHOLE,
  )
  step = step_of(objective, **axes)

  def per_device(*args):
    (loss, aux), (embeddings, params) = step(*args)
    if not checked:  # then, each device's gradient is that of all their losses
      embeddings = jax.tree.map(
        lambda x: x / jax.lax.axis_size(axis), embeddings
      )
      params = jax.lax.pmean(params, axis)
    return (loss, aux), (embeddings, params)

  split = P(axis)
  return partial(
    jax.shard_map,
    per_device,
    in_specs=(split, WHOLE, layout, split),
    out_specs=((WHOLE, (layout, WHOLE)), (split, WHOLE)),
    check_vma=checked,
  )


SHARD_MAPS = dict(
  whole=dict(rows=WHOLE),
  split=dict(rows=ROWS),
  split_unchecked=dict(rows=ROWS, checked=False),
  other_name=dict(rows=P("batch"), axis="batch", axes="batch"),
)


@pytest.mark.parametrize("name", SHARD_MAPS)
def test_shard_map(name, expected):
  objective = ALL if name.startswith("split") else NUCLR
  args, results = expected(objective)
  settings = SHARD_MAPS[name]
  name = settings.get("axis", "data")
  mesh = jax.make_mesh((8,), (name,), axis_types=AUTO)
  step = mapped(objective, args[2], **settings)(mesh=mesh)
  check(jax.jit(step)(*args), results)


@pytest.mark.parametrize("checked", [True, False])
def test_the_released_rule_in_a_shard_map(checked, expected):
  """Its xi is the greatest zeta of all devices' rows, not of each one's own."""
  zeta = Sides(jnp.linspace(-0.1, 0.3, N), jnp.linspace(0.2, -0.1, N))
  released = objectives.nuclr_variant(
    **SIZES,
    temperature=0.1,
    positive=objectives.denominator.released(steps_per_epoch=1),
    zeta=objectives.zeta_rules.fixed(init=zeta),
  )
  args, results = expected(released)
  np.testing.assert_allclose(results[0][1][0].shared.xi, (0.3, 0.2), rtol=1e-6)
  mesh = jax.make_mesh((8,), ("data",), axis_types=AUTO)
  step = mapped(released, args[2], ROWS, checked=checked)(mesh=mesh)
  check(jax.jit(step)(*args), results)


@pytest.mark.parametrize(
  ("kind", "names"),
  [(AUTO, {"data"}), (EXPLICIT, {"data"}), (EXPLICIT, {"data", "model"})],
)
def test_shard_map_beside_a_model_axis(kind, names, expected):
  args, results = expected(NUCLR)
  mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=2 * kind)
  step = mapped(NUCLR, args[2], ROWS)(mesh=mesh, axis_names=names)
  check(jax.jit(step)(*laid_out(args, mesh, ROWS)), results)


def test_shard_map_of_the_library_mesh(expected):
  args, results = expected(NUCLR)
  rows = ("slice", "data")
  step = mapped(NUCLR, args[2], P(rows), axis=rows)
  mesh = sharding.make_mesh(8, num_slices=2)
  check(jax.jit(step(mesh=mesh))(*args), results)


def test_shard_map_over_an_unknown_axis_is_refused(expected):
  args, _ = expected(NUCLR)
  mesh = jax.make_mesh((8,), ("batch",), axis_types=AUTO)
  step = mapped(NUCLR, args[2], WHOLE, axis="batch")(mesh=mesh)
  with pytest.raises(ValueError, match=r"over batch .* axes=.batch."):
    jax.jit(step).lower(*args)


@pytest.mark.parametrize("checked", [True, False])
def test_the_remedy_names_all_axes_that_may_split_the_batch(checked, expected):
  args, results = expected(NUCLR)
  names = ("data", "model")
  mesh = jax.make_mesh((4, 2), names, axis_types=2 * AUTO)
  step = partial(mapped, NUCLR, args[2], WHOLE, axis=names, checked=checked)
  with pytest.raises(ValueError, match=r"axes=\('data', 'model'\)\), leaving"):
    jax.jit(step()(mesh=mesh)).lower(*args)
  check(jax.jit(step(axes=names)(mesh=mesh))(*args), results)


def test_an_axis_of_a_mesh_that_also_splits_the_data(expected):
  args, results = expected(NUCLR)
  mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=2 * AUTO)
  with jax.set_mesh(mesh):
    check(jax.jit(step_of(NUCLR, axes="model"))(*args), results)


def test_ids_that_are_the_same_on_all_devices():
  """They look like repeated samples; this used to give a wrong loss."""
  clip = objectives.clip()
  mesh = jax.make_mesh((8,), ("data",), axis_types=AUTO)
  params, state = clip.init()

  def local(image, text):
    pairs = Pairs(image, text, jnp.arange(len(image)))
    return clip.apply(params, state, pairs, axes="data")[0]

  def step(**checked):
    f = jax.shard_map(local, mesh=mesh, in_specs=ROWS, out_specs=P(), **checked)
    return jax.jit(f)(*PAIRS[:2])

  with pytest.raises(ValueError, match="over data, but pair_id is .* slice"):
    step()
  assert jnp.isnan(step(check_vma=False))
  pieces = [x.reshape(8, -1, DIM) for x in PAIRS[:2]]
  assert jnp.all(jnp.isnan(jax.pmap(local, axis_name="data")(*pieces)))


def test_axes_that_nothing_is_gathered_over_are_refused(expected):
  args, _ = expected(NUCLR)
  step = step_of(NUCLR, axes="data")
  with pytest.raises(ValueError, match="axes names data, but .* mesh are none"):
    step(*args)
  pieces = jax.tree.map(lambda x: x.reshape(2, 8, *x.shape[1:]), args[0])
  ids = jax.tree.map(lambda x: x.reshape(2, 8), args[3])
  step = jax.vmap(step, (0, None, None, 0), axis_name="data")
  with pytest.raises(ValueError, match="data is an axis of jax.vmap"):
    step(pieces, *args[1:3], ids)


@pytest.mark.parametrize("checked", [True, False])
def test_an_axis_that_the_mesh_does_not_have_is_refused(expected, checked):
  """It would leave every device with a loss of its own."""
  args, _ = expected(NUCLR)
  mesh = jax.make_mesh((8,), ("batch",), axis_types=AUTO)
  step = mapped(
    NUCLR, args[2], WHOLE, axis="batch", checked=checked, axes="btch"
  )
  with pytest.raises(ValueError, match="axes names btch, .* mesh are batch"):
    jax.jit(step(mesh=mesh)).lower(*args)


def test_tables_of_a_wrong_length_are_refused(expected):
  mesh = jax.make_mesh((8,), ("data",), axis_types=AUTO)
  args, _ = expected(NUCLR)
  short = jax.tree.map(lambda x: x[:40], args[2].sample)
  args = *args[:2], args[2]._replace(sample=short), args[3]
  layout = args[2]._replace(
    sample=jax.tree.map(lambda _: ROWS, short), shared=WHOLE
  )
  step = jax.shard_map(
    step_of(NUCLR),
    mesh=mesh,
    in_specs=(ROWS, WHOLE, layout, ROWS),
    out_specs=WHOLE,
  )
  with pytest.raises(ValueError, match="48 rows .* got 5 rows on each of 8"):
    jax.jit(step).lower(*args)


def pmapped(objective, args, axis, **axes):
  """A step within `jax.pmap`, with copies of params and state."""
  step = step_of(objective, **axes)

  def per_device(*args):
    out, (embeddings, params) = step(*args)
    mean = jax.tree.map(lambda x: x / jax.device_count(), embeddings)
    return out, (mean, jax.lax.pmean(params, axis) if axis else params)

  def cut(tree):
    return jax.tree.map(lambda x: x.reshape(8, -1, *x.shape[1:]), tree)

  # On the host, where to cut and stack arrays compiles nothing.
  embeddings, params, state, ids = jax.device_get(args)
  out, (embeddings, params) = jax.device_get(
    jax.pmap(per_device, axis_name=axis, in_axes=(0, None, None, 0))(
      cut(embeddings), params, state, cut(ids)
    )
  )
  out, params = jax.tree.map(lambda x: x[3], (out, params))  # all are the same
  embeddings = jax.tree.map(lambda x: x.reshape(B, DIM), embeddings)
  return out, (embeddings, params)


@pytest.mark.parametrize("axis", ["data", "i"])
def test_pmap(axis, expected):
  objective = ALL if axis == "data" else NUCLR
  args, results = expected(objective)
  axes = {} if axis == "data" else {"axes": axis}
  check(pmapped(objective, args, axis, **axes), results)


@pytest.mark.parametrize(
  ("axis", "message"), [("i", "axes='i'"), (None, 'jax.pmap.axis_name="data"')]
)
def test_pmap_over_an_unknown_axis_is_refused(axis, message, expected):
  """It used to give the mean over devices of losses of two pairs each."""
  args, _ = expected(NUCLR)
  with pytest.raises(ValueError, match=message):
    pmapped(NUCLR, args, axis)


def seeds_of(args):
  """Two runs, whose embeddings differ."""
  embeddings, *others = jax.device_get(args)
  turned = jax.tree.map(lambda x: np.stack([x[:, ::-1] * 2, x]), embeddings)
  return turned, *jax.tree.map(lambda x: np.stack([x, x]), tuple(others))


def second(tree):
  return jax.tree.map(lambda x: x[1], jax.device_get(tree))


@pytest.mark.parametrize("mesh", [None, "auto"])
def test_vmap_over_seeds(mesh, expected):
  objective = ALL if mesh is None else NUCLR
  args, results = expected(objective)
  step = jax.jit(jax.vmap(step_of(objective)))
  if mesh is None:
    found = step(*seeds_of(args))
  else:
    shape, names, kinds = MESHES[mesh]
    with jax.set_mesh(jax.make_mesh(shape, names, axis_types=kinds)):
      found = step(*seeds_of(args))
  check(second(found), results)


@pytest.mark.parametrize("over", ["shard_map", "pmap"])
def test_a_run_on_each_device(over, expected):
  """With `axes=()`, nothing crosses devices."""
  args, results = expected(NUCLR)
  step = step_of(NUCLR, axes=())
  if over == "pmap":
    found = jax.pmap(step, devices=jax.devices()[:2])(*seeds_of(args))
  else:

    def per_device(*args):
      found = step(*jax.tree.map(lambda x: x[0], args))
      return jax.tree.map(lambda x: x[None], found)

    devices = jax.devices()[:2]
    mesh = jax.make_mesh((2,), ("seed",), axis_types=AUTO, devices=devices)
    seed = P("seed")
    mapped = jax.shard_map(per_device, mesh=mesh, in_specs=seed, out_specs=seed)
    found = jax.jit(mapped)(*seeds_of(args))
  check(second(found), results)


def test_checkpoint(expected):
  args, results = expected(ALL)

  def loss_fn(embeddings, params, state, ids):
    return ALL.apply(params, state, Pairs(*embeddings, *ids))

  f = jax.checkpoint(loss_fn)
  step = jax.value_and_grad(f, argnums=(0, 1), has_aux=True)
  check(jax.jit(step)(*args), results)


def loss_of(objective, args):
  """The loss as a function of (embeddings, params)."""
  _, _, state, ids = args

  def loss_fn(learned):
    embeddings, params = learned
    return objective.apply(params, state, Pairs(*embeddings, *ids))[0]

  return loss_fn


def test_a_derivative_in_a_direction(expected):
  """Forward mode gives what the gradient says."""
  args, results = expected(ALL)
  learned = args[:2]
  direction = jax.tree.map(
    lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape),
    learned,
  )
  loss, derivative = jax.jit(partial(jax.jvp, loss_of(ALL, args)))(
    (learned,), (direction,)
  )
  np.testing.assert_allclose(loss, results[0][0], rtol=1e-5)
  products = jax.tree.map(jnp.vdot, results[1], direction)
  total = sum(jax.tree.leaves(products))
  np.testing.assert_allclose(derivative, total, rtol=1e-4)


def test_hessian_vector_products(expected):
  """SigLIP has them; where weights are constants, the message says what to do.

  SigLIP's is compared with autodiff through its definition.
  """
  siglip, clip = objectives.siglip(), objectives.clip()
  seen, _ = expected(NUCLR)
  args = seen[0], *siglip.init(), seen[3]
  direction = jax.tree.map(jnp.cos, args[:2])

  def product(f):
    return jax.jit(partial(jax.jvp, jax.grad(f)))((args[:2],), (direction,))[1]

  def dense(learned):
    (image, text), params = learned
    z = jnp.exp(params["log_scale"]) * image @ text.T + params["logit_bias"]
    text_id = args[3][2]
    negative = text_id[:, None] != text_id[None]
    negatives = jnp.where(negative, jax.nn.softplus(z), 0)
    return (jnp.sum(negatives) + jnp.sum(jax.nn.softplus(-jnp.diag(z)))) / B

  chex.assert_trees_all_close(
    product(loss_of(siglip, args)), product(dense), rtol=1e-4, atol=1e-5
  )
  gradient = jax.grad(loss_of(NUCLR, seen))
  learned = seen[:2]
  with pytest.raises(NotImplementedError, match="finite differences"):
    jax.eval_shape(lambda x: jax.jvp(gradient, (x,), (x,)), learned)
  with pytest.raises(NotImplementedError, match="finite differences"):
    jax.eval_shape(jax.grad(lambda x: jnp.sum(gradient(x)[0][0])), learned)
  args = seen[0], *clip.init(), seen[3]  # with a learned temperature
  loss_fn = loss_of(clip, args)
  with pytest.raises(NotImplementedError, match="finite differences"):
    twice = jax.grad(lambda x: jax.jvp(loss_fn, (x,), (x,))[1])
    jax.eval_shape(twice, args[:2])


NEED_NEGATIVES = dict(
  clip=objectives.clip(),
  ntxent=objectives.ntxent(),
  siglip=objectives.siglip(),
  spectral=objectives.spectral(),
  debiased=objectives.debiased(),
  sogclr=objectives.sogclr(num_pairs=N),
  nuclr=objectives.nuclr(num_pairs=N),
)


@pytest.mark.parametrize("name", NEED_NEGATIVES)
def test_a_batch_of_one_id(name):
  """Nothing is a negative, so nothing would be learned."""
  objective = NEED_NEGATIVES[name]
  (params, state), apply = objective.init(), jax.jit(objective.apply)
  pairs = PAIRS._replace(text_id=PAIRS.pair_id)
  for ids in ("pair_id", "text_id"):
    wrong = pairs._replace(**{ids: jnp.zeros(B, int)})
    with pytest.raises(ValueError, match="16 pairs .* share one image or text"):
      objective.apply(params, state, wrong)
    # One other pair is enough.
    right = wrong._replace(**{ids: jnp.zeros(B, int).at[3].set(1)})
    assert jnp.isnan(apply(params, state, wrong)[0])
    assert jnp.isfinite(apply(params, state, right)[0])


def test_objectives_without_negatives_take_any_ids():
  objective = contrib.vicreg()
  pairs = PAIRS._replace(pair_id=jnp.zeros(B, int))
  assert jnp.isfinite(objective.apply(*objective.init(), pairs)[0])


# Native loops of three libraries. The oracle is the plain loop's second loss.

X = jnp.asarray(make_pairs.unit_rows(1, N, DIM), jnp.float32)
BATCHES = jnp.arange(N).reshape(3, B)[:2]
CLIP = objectives.clip(temperature=0.1)
LEARNED = objectives.add(clip=CLIP, nuclr=NUCLR)  # with params and state
KERNEL = jnp.asarray(make_pairs.unit_rows(2, DIM, DIM), jnp.float32)


def pairs_of(model, ids):
  def unit(z):
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)

  return Pairs(unit(model(X[ids])), unit(model(X[ids][:, ::-1])), ids)


@pytest.fixture(scope="module")
def plain_losses():
  params, state = LEARNED.init()
  learned, losses = (KERNEL, params), []

  @jax.jit
  def step(learned, state, ids):
    def loss_fn(learned):
      pairs = pairs_of(lambda x: x @ learned[0], ids)
      return LEARNED.apply(learned[1], state, pairs)

    (loss, (state, _)), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
      learned
    )
    moved = jax.tree.map(lambda x, g: x - 0.1 * g, learned, gradient)
    return moved, state, loss

  for ids in BATCHES:
    learned, state, loss = step(learned, state, ids)
    losses.append(loss)
  return losses


def test_linen(plain_losses):
  model = linen.Dense(DIM, use_bias=False)
  params, state = LEARNED.init()
  learned = {"model": {"params": {"kernel": KERNEL}}, "objective": params}
  train_state = TrainState.create(
    apply_fn=model.apply, params=learned, tx=optax.sgd(0.1)
  )

  @jax.jit
  def step(train_state, state, ids):
    def loss_fn(learned):
      pairs = pairs_of(partial(model.apply, learned["model"]), ids)
      return LEARNED.apply(learned["objective"], state, pairs)

    (loss, (state, _)), grads = jax.value_and_grad(loss_fn, has_aux=True)(
      train_state.params
    )
    return train_state.apply_gradients(grads=grads), state, loss

  losses = []
  for ids in BATCHES:
    train_state, state, loss = step(train_state, state, ids)
    losses.append(loss)
  np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)


def test_nnx(plain_losses):
  params, state = LEARNED.init()

  class Learned(nnx.Module):
    def __init__(self):
      self.model = nnx.Linear(DIM, DIM, use_bias=False, rngs=nnx.Rngs(0))
      self.model.kernel[...] = KERNEL
      self.objective = nnx.data(jax.tree.map(nnx.Param, params))

  learned = Learned()
  optimizer = nnx.Optimizer(learned, optax.sgd(0.1), wrt=nnx.Param)

  @nnx.jit
  def step(learned, optimizer, state, ids):
    def loss_fn(learned):
      params = nnx.to_pure_dict(nnx.state(learned.objective))
      pairs = pairs_of(learned.model, ids)
      return LEARNED.apply({"nuclr": {}} | params, state, pairs)

    (loss, (state, _)), grads = nnx.value_and_grad(loss_fn, has_aux=True)(
      learned
    )
    optimizer.update(learned, grads)
    return state, loss

  losses = []
  for ids in BATCHES:
    state, loss = step(learned, optimizer, state, ids)
    losses.append(loss)
  np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)


def test_equinox(plain_losses):
  params, state = LEARNED.init()
  model = eqx.nn.Linear(DIM, DIM, use_bias=False, key=jax.random.key(0))
  model = eqx.tree_at(lambda x: x.weight, model, KERNEL.T)
  learned, optimizer = (model, params), optax.sgd(0.1)
  opt_state = optimizer.init(eqx.filter(learned, eqx.is_inexact_array))

  @eqx.filter_jit
  def step(learned, opt_state, state, ids):
    def loss_fn(learned):
      model, params = learned
      return LEARNED.apply(params, state, pairs_of(jax.vmap(model), ids))

    (loss, (state, _)), grads = eqx.filter_value_and_grad(
      loss_fn, has_aux=True
    )(learned)
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(learned, updates), opt_state, state, loss

  losses = []
  for ids in BATCHES:
    learned, opt_state, state, loss = step(learned, opt_state, state, ids)
    losses.append(loss)
  np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
