"""Finds the full train step's memory on machines without them; prints JSON.

python -m experiments.step_time.real_towers_memory --targets=h200,8xh200,v5e:4x4

The step is ResNet-50 and DistilBERT, NUCLR and AdamW, at the batch size of the
CC3M recipe; memory is what XLA plans per device. `not_at_hand.py` explains what
that needs and means.
"""

import json
import sys

from absl import app, flags
import jax
import jax.numpy as jnp

from experiments.harness import benchmark
from experiments.step_time import targets
from experiments.step_time.common import recipe
from nuclr_jax import Batch, sharding
from nuclr_jax.lab import models
from nuclr_jax.lab.train import optimizer
from nuclr_jax.lab.train.microbatch import microbatched
from nuclr_jax.lab.train.step import init_state, make_train_step, shardings

TARGETS = flags.DEFINE_list(
  "targets", ["h200", "8xh200", "v5e:4x4"], "[count x] h200, or a TPU slice."
)
BATCHES = flags.DEFINE_list("batch_sizes", ["512"], "Global batch sizes.")
SIZE = flags.DEFINE_integer(
  "size", 256, "Height and width of the images, in pixels."
)
MICROBATCHES = flags.DEFINE_integer(
  "num_microbatches", 1, "Parts of a batch that the towers see one by one."
)
NUM_PAIRS = flags.DEFINE_integer("num_pairs", 2_798_889, "Rows of state.")
LENGTH, VOCABULARY, DIM = 30, 30_522, 256


def compile_for(target: str, batch: int):
  """Compiles the train step of configs/cc3m.py for a target."""
  mesh = targets.mesh(target)
  model = models.towers(
    image_shape=(SIZE.value, SIZE.value, 3),
    vocab_size=VOCABULARY,
    length=LENGTH,
    image=dict(name="resnet50"),
    text=dict(name="distilbert"),
    dim=DIM,
    dtype="bfloat16",
  )
  model = microbatched(model, MICROBATCHES.value)
  objective = recipe(NUM_PAIRS.value, DIM)
  parts = (model, objective, optimizer.make_optimizer(2e-4, weight_decay=0.02))
  key = jax.random.key(0)
  rows = jax.sharding.NamedSharding(mesh, sharding.ROWS)

  def described(x, layout):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)

  with jax.set_mesh(mesh):
    state = jax.eval_shape(lambda: init_state(*parts, key))
    layout = shardings(mesh, state)
    size = (batch, SIZE.value, SIZE.value, 3)
    inputs = Batch(
      described(jax.ShapeDtypeStruct(size, jnp.uint8), rows),
      described(jax.ShapeDtypeStruct((batch, LENGTH), jnp.int32), rows),
      described(jax.ShapeDtypeStruct((batch,), jnp.int32), rows),
    )
    step = jax.jit(
      make_train_step(*parts, key),
      out_shardings=(layout, None),
      donate_argnums=0,
    )
    state = jax.tree.map(described, state, layout)
    return step.lower(state, inputs).compile()


def main(argv) -> None:
  """Compiles for all targets and batch sizes, and prints the JSON."""
  del argv
  targets.prepare()
  rows = []
  for target in TARGETS.value:
    for batch in map(int, BATCHES.value):
      memory = compile_for(target, batch).memory_analysis()
      sizes = {
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "most": memory.peak_memory_in_bytes,
      }
      rows.append(
        {"target": target, "batch_size": batch}
        | {f"{name}_gib": x / 2**30 for name, x in sizes.items()}
      )
      print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
  settings = {"jax": jax.__version__, "size": SIZE.value}
  settings |= {"num_microbatches": MICROBATCHES.value}
  benchmark.show(settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)
