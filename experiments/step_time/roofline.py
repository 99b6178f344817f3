"""Bounds the speed of the whole CC3M step from XLA's own counts; prints JSON.

python -m experiments.step_time.roofline --targets=h200,8xh200

The step of `configs/cc3m.py` is compiled for machines that are not available
(see `not_at_hand`), as a whole and in parts: towers, loss, optimizer. A part
takes at least the time of its flops at the stated peak, or of its bytes at the
memory's bandwidth; the sum of the parts bounds the step. Flops are those of the
products and convolutions in the jaxpr, where library calls are still visible;
those of the loss are the library's on this device, three passes of bfloat16.
Bytes are what the kernels of the compiled program read and write, most of it
activations. A kernel that reads some rows of an array counts all of the array.
Networks are not in the bound: `collective_mb` says what crosses them.

With --parts=loss --keep=OLD.json, only the loss is counted again.
"""

from collections.abc import Callable
import functools
import json
import pathlib
import sys

from absl import app, flags
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import optax

from experiments.harness import benchmark
from experiments.step_time import targets
from experiments.step_time.common import MEMORY, peak, recipe
from nuclr_jax import Batch, sharding
from nuclr_jax.lab import files, models
from nuclr_jax.lab.train import optimizer
from tests.helpers import hlo
from tests.helpers.make_step import trace_step

TARGETS = flags.DEFINE_list("targets", ["h200", "8xh200"], "[count x] h200.")
BATCHES = flags.DEFINE_list("batch_sizes", ["512", "1536"], "Global sizes.")
SIZE = flags.DEFINE_integer("size", 256, "Height and width, in pixels.")
REMAT = flags.DEFINE_string("remat", "none", "What towers compute again.")
COUNTED = ("towers", "loss", "optimizer")
PARTS = flags.DEFINE_list("parts", list(COUNTED), "What is counted.")
KEEP = flags.DEFINE_string("keep", None, "Earlier JSON with the other parts.")
benchmark.one_of("parts", COUNTED)
LENGTH, VOCABULARY, DIM, NUM_PAIRS = 30, 30_522, 256, 2_798_889
# Of an H200: flop/s in bfloat16 and float32, and bytes/s of the connection to
# the host (PCIe 5, one direction).
BFLOAT16, FLOAT32 = map(peak, ("BF16_BF16_F32", "F32"))
HOST = 64e9


def parts_of(
  mesh: Mesh, batch: int, key: jax.Array
) -> dict[str, tuple[Callable, float]]:
  """Returns the parts of a step as (function that traces, peak flop/s)."""
  model = models.towers(
    image_shape=(SIZE.value, SIZE.value, 3),
    vocab_size=VOCABULARY,
    length=LENGTH,
    image=dict(name="resnet50", remat=REMAT.value),
    text=dict(name="distilbert", remat=REMAT.value),
    dim=DIM,
    dtype="bfloat16",
  )
  objective = recipe(NUM_PAIRS, DIM)
  adamw = optimizer.make_optimizer(2e-4, weight_decay=0.02)
  rows, whole = (
    NamedSharding(mesh, spec) for spec in (sharding.ROWS, sharding.REPLICATED)
  )

  def described(tree, layout):
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout), tree
    )

  params, state = described(jax.eval_shape(model.init, key), whole)
  moments = described(jax.eval_shape(adamw.init, params), whole)
  pixels = (batch, SIZE.value, SIZE.value, 3)
  inputs = described(
    (
      jax.ShapeDtypeStruct(pixels, jnp.uint8),
      jax.ShapeDtypeStruct((batch, LENGTH), jnp.int32),
    ),
    rows,
  )
  vectors = described(
    (jax.ShapeDtypeStruct((batch, DIM), jnp.float32),) * 2, rows
  )

  def towers(params, state, inputs, cotangent):
    def embed(params):
      pairs, new = model.apply(
        params,
        state,
        Batch(*inputs, None),
        key=key,
        train=True,
      )
      return (pairs.image, pairs.text), new

    _, pull_back, new = jax.vjp(embed, params, has_aux=True)
    return pull_back(cotangent), new

  def update(gradient, moments, params):
    updates, moments = adamw.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments

  embed = functools.partial(jax.jit(towers).trace, params, state, inputs)
  update = jax.jit(update, donate_argnums=(1, 2))
  return {
    "towers": (functools.partial(embed, vectors), BFLOAT16),
    "loss": (
      functools.partial(trace_step, objective, mesh, batch, DIM),
      BFLOAT16,
    ),
    "optimizer": (
      functools.partial(update.trace, params, moments, params),
      FLOAT32,
    ),
  }


def kept_parts() -> dict[tuple[str, int], dict]:
  """Reads the parts of an earlier count, by target and batch size."""
  if not KEEP.value:
    return {}
  rows = files.read_json(pathlib.Path(KEEP.value))["rows"]
  return {(row["target"], row["batch_size"]): row["parts"] for row in rows}


def main(argv) -> None:
  """Bounds the step for all targets and batch sizes, and prints the JSON."""
  del argv
  targets.prepare()
  rows, key = [], jax.random.key(0)  # the devices of a target hold nothing
  kept = kept_parts()
  for target in TARGETS.value:
    mesh = targets.mesh(target)
    for batch in map(int, BATCHES.value):
      with jax.set_mesh(mesh):
        parts = kept.get((target, batch), {}) | {
          name: hlo.bound(trace(), rate, MEMORY["h200"], mesh.size)
          for name, (trace, rate) in parts_of(mesh, batch, key).items()
          if name in PARTS.value
        }
      photos = batch * SIZE.value**2 * 3 / mesh.size
      parts["input"] = {"gb": photos / 1e9, "ms": 1e3 * photos / HOST}
      compute = sum(parts[x]["ms"] for x in COUNTED)
      rows.append(
        {
          "target": target,
          "batch_size": batch,
          "parts": parts,
          "ms": compute,  # the input comes in the meantime
          "pairs_per_s": 1e3 * batch / max(compute, parts["input"]["ms"]),
        }
      )
      print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
  settings = {"jax": jax.__version__, "size": SIZE.value, "remat": REMAT.value}
  benchmark.show(settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)
