"""Trains on glyphs from end to end; prints JSON.

python -m experiments.accelerator.glyphs --cache=glyphs.npz --write_cache
python -m experiments.accelerator.glyphs --cache=glyphs.npz

The towers, the objective and the optimizer are those of `configs/glyphs.py`
without augmentation, and the batches are the same on every machine. Rendering
and reading the glyphs needs the whole library; the cache can be carried to a
machine that has the core only. `glyphs_cpu.json`, written on a CPU with
`--write_reference`, is what the losses are compared with: rounding grows during
training, so the difference is small at first and not at the end. The steps
that are compared have true float32 products, the others those of the device,
such as TF32.
"""

import pathlib
import time

from absl import app, flags
import jax
import numpy as np
import optax

from experiments.harness import benchmark
from nuclr_jax import Batch, objectives
from nuclr_jax.lab import files, models, progress
from nuclr_jax.lab.cli import malloc
from nuclr_jax.lab.evaluate.retrieval import recall
from nuclr_jax.lab.train import optimizer
from nuclr_jax.lab.train.step import init_state, make_train_step
from nuclr_jax.objectives import zeta_rules

CACHE = flags.DEFINE_string(
  "cache", None, "The glyphs as arrays.", required=True
)
WRITE_CACHE = flags.DEFINE_bool("write_cache", False, "Only writes the cache.")
WRITE = flags.DEFINE_bool("write_reference", False, "Writes glyphs_cpu.json.")
STEPS = flags.DEFINE_integer("steps", 2000, "Steps of training.")
BATCH = flags.DEFINE_integer("batch_size", 128, "Pairs per step.")
REFERENCE = pathlib.Path(__file__).parent / "glyphs_cpu.json"
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
COMPARED = 20  # steps; later, rounding has grown
WARM = COMPARED + 5  # steps before the clock starts, with two programs


def write_cache(path: str) -> None:
  """Renders the glyphs and writes them as arrays."""
  from nuclr_jax.lab.data.glyphs import glyphs

  pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
  data = glyphs()
  sizes, test = data.train.sizes, data.sets["test"]
  train = data.train.fetch(np.arange(sizes.num_pairs))
  np.savez_compressed(
    path,
    image=train.image,
    text_id=train.text_id,
    text=train.text,
    vocab_size=data.tokenizer.vocab_size,
    test_image=np.asarray(test.image[:]),
    test_group=test.image_group,
    test_text=data.tokenizer.encode(test.captions),
    test_text_group=test.caption_group,
  )


def train(cache: dict[str, np.ndarray]) -> dict:
  """Trains; returns the losses, the speed and recall@1 on the test."""
  steps, batch_size = STEPS.value, BATCH.value
  num_pairs, length = len(cache["image"]), cache["text"].shape[1]
  model = models.small(
    image_shape=cache["image"].shape[1:],
    vocab_size=int(cache["vocab_size"]),
    length=length,
    dim=128,
    image_stages=((2, 2, 32), (2, 1, 64), (2, 1, 128)),
    image_features=384,
  )
  objective = objectives.nuclr(
    num_pairs=num_pairs,
    num_texts=int(cache["text_id"].max()) + 1,
    temperature=0.07,
    zeta=zeta_rules.queue(dim=128, size=4096, rate=0.3),
  )
  rate = optax.warmup_cosine_decay_schedule(0, 2e-3, steps // 20, steps)
  adamw = optimizer.make_optimizer(
    rate, weight_decay=0.5, clip_norm=1.0, b2=0.98
  )
  parts, key = (model, objective, adamw), jax.random.key(0)
  state = jax.jit(lambda: init_state(*parts, key))()
  step = jax.jit(make_train_step(*parts, key), donate_argnums=0)
  order, losses, begun = np.random.default_rng(0), {}, 0.0
  for i in range(steps):
    if i == WARM:
      jax.block_until_ready(state)
      begun = time.perf_counter()
    ids = order.choice(num_pairs, batch_size, replace=False)
    ids = ids.astype(np.int32)
    texts = cache["text_id"][ids]
    batch = Batch(cache["image"][ids], cache["text"][ids], ids, ids, texts)
    exact = "float32" if i < COMPARED else None
    with jax.default_matmul_precision(exact):
      state, metrics = step(state, batch)
    if i + 1 in SHOWN:
      losses[str(i + 1)] = metrics["train/loss"]
  jax.block_until_ready(state)
  seconds = time.perf_counter() - begun
  return {
    "losses": {k: float(x) for k, x in losses.items()},
    "pairs_per_s": max(steps - WARM, 0) * batch_size / seconds,
    "recall": recall_at_1(model, state, cache),
  }


def recall_at_1(model, state, cache) -> float:
  """Scores the test's characters in %, with running averages."""

  @jax.jit
  def embed(batch):
    return model.apply(state.params["model"], state.model_state, batch)[0]

  scores = recall(
    embed(Batch(cache["test_image"], None, None)).image,
    embed(Batch(None, cache["test_text"], None)).text,
    cache["test_group"],
    cache["test_text_group"],
  )
  return 100 * scores["mean_recall@1"]


def main(argv) -> None:
  """Writes the cache, or trains and prints the JSON."""
  del argv
  malloc.keep_memory()
  progress.log_to_stderr()
  path = pathlib.Path(CACHE.value)
  if WRITE_CACHE.value or not path.exists():
    write_cache(CACHE.value)
    if WRITE_CACHE.value:
      return
  cache = files.read_arrays(path)
  found = train(cache)
  settings = {"steps": STEPS.value, "batch_size": BATCH.value}
  if WRITE.value:
    files.write_json(REFERENCE, benchmark.machine() | settings | found)
  if REFERENCE.exists():
    cpu = files.read_json(REFERENCE)
    if all(cpu[k] == x for k, x in settings.items()):
      differences = (
        abs(found["losses"][k] - x)
        for k, x in cpu["losses"].items()
        if int(k) <= COMPARED
      )
      found |= {"cpu": cpu, "greatest_difference": max(differences)}
  benchmark.show(benchmark.machine(), settings, found)


if __name__ == "__main__":
  app.run(main)
