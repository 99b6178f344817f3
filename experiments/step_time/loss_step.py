"""Measures time and memory of NUCLR's loss step in several forms; prints JSON.

python -m experiments.step_time.loss_step --batch_sizes=512,2048 --dims=256

A loss step is the forward pass, the backward pass (to the embeddings) and the
update of the state.

  tiles     this library: no matrix of all pairs
  dense     this library with one tile as large as the batch
  torch     the dense form in PyTorch (left out without the extra `parity`)
  kernels   this library with the kernels of `contrib.pallas_passes`; on TPUs,
            elsewhere with --kernels (interpreted, which takes long)
  products  only the matrix products that `tiles` needs, tile by tile

The forms are timed in alternation in each round; a ratio is the median of the
rounds' ratios. `temporary_mib` is what XLA allocates in addition to arguments
and results. A form that would not fit is compiled (for its memory) but not run.
Products are those of the library, which depend on the device. On a GPU,
--precisions=F32,BF16_BF16_F32_X6 adds `tiles` in true float32 and with products
of six bf16 passes, which CPUs do not have.
"""

import functools
import logging
import time
from unittest import mock

from absl import app, flags
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import benchmark
from experiments.step_time import common
from nuclr_jax import objectives
from nuclr_jax.contrib.pallas_passes import tpu_kernels
from nuclr_jax.lab.cli import malloc
from nuclr_jax.pairwise import tiles
from nuclr_jax.sample_state import zeta_rules

log = logging.getLogger(__name__)

BATCHES = flags.DEFINE_list(
  "batch_sizes", ["512", "2048", "8192"], "Batch sizes."
)
DIMS = flags.DEFINE_list("dims", ["256"], "Widths of embeddings.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of rounds.")
SECONDS = flags.DEFINE_float(
  "seconds", 1.0, "Approximate seconds per form and round."
)
NUM_PAIRS = flags.DEFINE_integer("num_pairs", 3_000_000, "Rows of state.")
MAX_DENSE = flags.DEFINE_integer(
  "max_dense", 8192, "Largest batch of dense forms."
)
TILE = flags.DEFINE_integer(
  "tile", None, "Rows of a tile, instead of the default."
)
KERNELS = flags.DEFINE_boolean(
  "kernels", None, "Whether to time kernels; None: on TPUs only."
)
PRECISIONS = flags.DEFINE_list(
  "precisions", [], "Also time `tiles` with these precisions."
)
SETTINGS = dict(temperature=0.05)
RATE = 1e-6  # the rate of zeta, in units of similarity


def embeddings(batch: int, dim: int) -> np.ndarray:
  """Draws unit embeddings [2, batch, dim] of weakly aligned pairs."""
  x = np.random.default_rng(0).normal(size=(3, batch, dim))
  x = x[:2] + x[2]
  x /= np.linalg.norm(x, axis=-1, keepdims=True)
  return x.astype(np.float32)


def ids_of(batch: int, step: int) -> np.ndarray:
  """Returns distinct ids; consecutive steps have different ids."""
  return (step * batch + np.arange(batch)) % NUM_PAIRS.value


class Jax:
  """The objective of this library with a given tile size, and products."""

  def __init__(self, batch, dim, tile, *, products=None, kernels=False):
    objective = objectives.nuclr(
      num_pairs=NUM_PAIRS.value,
      zeta=zeta_rules.batch(
        estimator="official", rate=RATE / SETTINGS["temperature"]
      ),
      **SETTINGS,
    )
    if kernels:
      objective = tpu_kernels(objective)

    vectors, ids = embeddings(batch, dim), ids_of(batch, 0)
    state = jax.eval_shape(lambda: objective.init()[1])
    patch = dict(CPU_TILE=tile, TILE=tile)
    if products:
      patch["product"] = functools.partial(jnp.matmul, precision=products)
    with mock.patch.multiple(tiles, **patch):
      lowered = common.loss_step(objective).lower(state, vectors, ids)
    self.step, self.init = lowered.compile(), objective.init
    memory = self.step.memory_analysis()
    self.temporary_mib = memory.temp_size_in_bytes / 2**20

  def start(self, vectors):
    """Returns the first state, and the embeddings on the device."""
    return self.init()[1], jax.device_put(vectors)

  def run(self, state, vectors, ids):
    """Does one step."""
    return self.step(state, vectors, ids)

  def on_host(self, gradient):
    """Copies a gradient from the device."""
    return jax.device_get(gradient)

  def wait(self, state):
    """Waits until all steps are done."""
    jax.block_until_ready(state)


class Torch:
  """The dense form in PyTorch."""

  temporary_mib = None

  def __init__(self):
    import torch

    from experiments.step_time import torch_form

    self.torch, self.make = torch, torch_form.Nuclr
    self.device = "cuda" if torch.cuda.is_available() else "cpu"

  def start(self, vectors):
    """Returns the first state, and the embeddings on the device."""
    state = self.make(
      num_pairs=NUM_PAIRS.value,
      zeta_rate=RATE,
      device=self.device,
      **SETTINGS,
    )
    return state, self.torch.tensor(vectors, device=self.device)

  def run(self, state, vectors, ids):
    """Does one step."""
    ids = self.torch.as_tensor(ids, device=self.device)
    return state, self.torch.stack(state.step(*vectors, ids))

  def on_host(self, gradient):
    """Copies a gradient from the device."""
    return gradient.cpu()

  def wait(self, state):
    """Waits until all steps are done."""
    del state
    if self.device == "cuda":
      self.torch.cuda.synchronize()


class Products:
  """The matrix products of both passes: similarities, and two gradients.

  Similarities are computed once if one tile holds them all, else twice.
  """

  def __init__(self, tile: int):
    def first(rows, columns, row_sums, column_sums):
      sim = tiles.product(rows, columns.T)
      return row_sums + sim.sum(axis=1), column_sums

    def second(rows, columns, row_sums, column_sums):
      sim = tiles.product(rows, columns.T)
      row_sums += tiles.product(sim, columns)
      return row_sums, column_sums + tiles.product(sim.T, rows)

    def one_tile(image, text):
      sim = tiles.product(image, text.T)
      return tiles.product(sim, text), tiles.product(sim.T, image)

    def step(image, text):
      if tiles.is_one(len(image), len(text), tile):
        return one_tile(image, text)
      zero = jnp.zeros(len(image))
      each = functools.partial(tiles.for_each, tile=tile)
      sums, _ = each(first, image, text, zero, zero)
      # XLA must not drop the first pass or run it beside the second, so the
      # second depends on its result.
      image *= 1 + 1e-9 * sums[:, None]
      zeros = jnp.zeros_like(image)
      return each(second, image, text, zeros, zeros)

    self.step, self.temporary_mib = jax.jit(step), None

  def start(self, vectors):
    """Returns the first state, and the embeddings on the device."""
    return None, jax.device_put(vectors)

  def run(self, state, vectors, ids):
    """Does one step."""
    del state, ids
    sums = self.step(*vectors)
    return sums, jnp.stack(sums)

  def wait(self, state):
    """Waits until all steps are done."""
    jax.block_until_ready(state)


def time_of(form, vectors, steps: int) -> float:
  """Measures milliseconds per step, after one step to warm up."""
  state, vectors = form.start(vectors)
  batch = vectors.shape[1]
  state, _ = form.run(state, vectors, ids_of(batch, 0))
  form.wait(state)
  start = time.perf_counter()
  for i in range(steps):
    state, _ = form.run(state, vectors, ids_of(batch, i + 1))
  form.wait(state)
  return (time.perf_counter() - start) / steps * 1e3


def differences(forms: dict, vectors) -> dict[str, float]:
  """Returns how far each form's gradients are from those of `tiles`.

  The greatest difference of a component, relative to the greatest component.
  """
  batch = vectors.shape[1]
  gradients = {}
  for name, form in forms.items():
    if name != "products":
      state, on_device = form.start(vectors)
      for _ in range(2):
        state, gradient = form.run(state, on_device, ids_of(batch, 0))
      gradients[name] = np.asarray(form.on_host(gradient))
      del state
  expected = gradients["tiles"]
  scale = np.abs(expected).max()
  return {
    name: float(np.abs(x - expected).max() / scale)
    for name, x in gradients.items()
  }


def make_forms(batch: int, dim: int) -> dict:
  """Makes the forms; returns them by name."""
  default = tiles.CPU_TILE if jax.default_backend() == "cpu" else tiles.TILE
  tile = TILE.value or default
  forms = {
    "tiles": Jax(batch, dim, tile),
    "dense": Jax(batch, dim, batch),
    "products": Products(tile),
  }
  more = {
    f"tiles {x}": dict(products=common.named(x)) for x in PRECISIONS.value
  }
  on_tpu = jax.default_backend() == "tpu"
  if KERNELS.value or (KERNELS.value is None and on_tpu):
    more["kernels"] = dict(kernels=True)
  for name, options in more.items():
    try:
      forms[name] = Jax(batch, dim, tile, **options)
    except (
      NotImplementedError,
      ValueError,
      jax.errors.JaxRuntimeError,
    ) as error:
      log.warning("%s is left out: %s", name, error)
  try:
    forms["torch"] = Torch()
  except ModuleNotFoundError:
    pass
  return forms


def compare(batch: int, dim: int) -> dict:
  """Measures all forms at one batch size and width."""
  vectors, forms = embeddings(batch, dim), make_forms(batch, dim)
  run = {
    name: form
    for name, form in forms.items()
    if batch <= MAX_DENSE.value or name not in ("dense", "torch")
  }
  steps = {
    name: max(1, round(1e3 * SECONDS.value / time_of(form, vectors, 1)))
    for name, form in run.items()
  }
  times = benchmark.take_turns(
    {
      name: functools.partial(time_of, form, vectors, steps[name])
      for name, form in run.items()
    },
    ROUNDS.value,
  )

  differ = differences(run, vectors)

  def column(name, form):
    ms = times.get(name)
    numbers = {"temporary_mib": form.temporary_mib}
    if name in differ:
      numbers["gradients_differ_by"] = differ[name]
    if ms:
      numbers |= {
        "ms": float(np.median(ms)),
        "ratio_to_tiles": benchmark.ratio(ms, times["tiles"]),
      }
    return numbers

  return {
    "batch_size": batch,
    "dim": dim,
    "forms": {name: column(name, form) for name, form in forms.items()},
  }


def main(argv) -> None:
  """Measures all batch sizes and widths, and prints the JSON."""
  del argv
  malloc.keep_memory()
  rows = []
  settings = {"num_pairs": NUM_PAIRS.value, "rounds": ROUNDS.value}
  for dim in map(int, DIMS.value):
    for batch in map(int, BATCHES.value):
      rows.append(compare(batch, dim))
      benchmark.show_so_far(benchmark.machine(), settings, {"rows": rows})
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)
