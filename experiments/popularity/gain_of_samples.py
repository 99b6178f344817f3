r"""How well does a sample of the training pairs tell how good zeta is?

python -m experiments.popularity.gain_of_samples --workdir=runs/demo \
  > experiments/popularity/gain_of_samples.json

Prints `zeta_gain` of a finished run, with its interval, as diagnostics measure
it on random samples of the training pairs, and on all of them. `covered` says
how often the interval of a sample has the value of all pairs in it.
"""

from absl import app, flags
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import benchmark
from nuclr_jax.lab.train import diagnostics, loop
from nuclr_jax.lab.train.batches import fixed_batches
from nuclr_jax.types import Pairs, Sides

WORKDIR = flags.DEFINE_string("workdir", "runs/demo", "The folder of the run.")
SAMPLES = 2048, 4096, 8192, 16384
DRAWS = 5
ENDS = "zeta_gain", "zeta_gain_low", "zeta_gain_high"


def embed(parts, state) -> Pairs:
  """Embeds the training pairs, in whole batches, as diagnostics do."""

  @jax.jit
  def apply(batch):
    return parts.model.apply(
      state.params["model"], state.model_state, batch, key=None, train=False
    )[0]

  batch_size = parts.settings.batch_size
  count = parts.data.train.sizes.num_pairs // batch_size
  batches = [jax.device_get(apply(x)) for x in fixed_batches(parts, count)()]
  return jax.tree.map(lambda *x: np.concatenate(x), *batches)


def main(argv) -> None:
  """Measures a run."""
  del argv
  parts, mesh, state = loop.load(WORKDIR.value)
  with jax.set_mesh(mesh):
    pairs, readout = embed(parts, state), loop.readout(parts, state)
  measure = jax.jit(
    diagnostics.measure, static_argnames=("sizes", "batch_size")
  )

  def gain(rows):
    some = jax.tree.map(lambda x: jnp.asarray(x[rows]), pairs)
    found = measure(
      some,
      readout,
      sizes=parts.data.train.sizes,
      batch_size=parts.settings.batch_size,
    )
    return {
      side: {name: float(found[f"{name}/{side}"]) for name in ENDS}
      for side in Sides._fields
    }

  count = len(pairs.pair_id)
  of_all, samples = gain(np.arange(count)), {}
  for size in SAMPLES:
    drawn = [
      gain(np.random.default_rng(seed).permutation(count)[:size])
      for seed in range(DRAWS)
    ]
    samples[size] = {side: _summary(of_all, drawn, side) for side in of_all}
  benchmark.show(
    benchmark.machine(),
    {"pairs": count, "draws": DRAWS, "all": of_all, "samples": samples},
  )


def _summary(of_all, drawn, side) -> dict:
  """Returns means over samples of one size, and how good intervals are."""
  ends = np.array([[x[side][name] for name in ENDS] for x in drawn])
  known = ends[~np.isnan(ends).any(axis=1)]
  if not len(known):
    return {"known": 0}
  truth = of_all[side]["zeta_gain"]
  means = dict(zip(ENDS, known.mean(axis=0).tolist(), strict=True))
  covered = (known[:, 1] <= truth) & (truth <= known[:, 2])
  return {
    "known": len(known),
    "covered": int(covered.sum()),
    "least": known[:, 0].min(),
    "most": known[:, 0].max(),
    **means,
  }


if __name__ == "__main__":
  app.run(main)
