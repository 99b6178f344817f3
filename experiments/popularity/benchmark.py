"""Measures time and memory of exact popularities; prints JSON.

python -m experiments.popularity.benchmark --pairs=43000 --texts=6000 --dim=128

Embeddings are drawn at random: captions around 300 topics, and for each pair an
image near its caption. `plain` is Sinkhorn's iteration without extrapolation,
in the same process and on the same problem.
"""

import time

from absl import app, flags
import jax
import numpy as np

from experiments.harness import benchmark
from nuclr_jax import popularity
from nuclr_jax.lab.cli import malloc
from nuclr_jax.popularity import sinkhorn
from tests.helpers import peak_memory

PAIRS = flags.DEFINE_integer("pairs", 43_000, "Number of pairs.")
TEXTS = flags.DEFINE_integer("texts", 6_000, "Number of distinct captions.")
DIM = flags.DEFINE_integer("dim", 128, "Width of the embeddings.")
TEMPERATURES = flags.DEFINE_multi_float("temperature", [0.07], "Temperatures.")
TOLERANCE = flags.DEFINE_float("tolerance", 1e-3, "Largest allowed residual.")
PLAIN = flags.DEFINE_bool("plain", True, "Also solves without extrapolation.")


def unit(x):
  """Scales rows to unit norm, in float32."""
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def embeddings():
  """Draws the image, text and text id of each pair."""
  rng = np.random.default_rng(0)
  topics = unit(rng.normal(size=(300, DIM.value)))
  topic = topics[rng.integers(0, 300, TEXTS.value)]
  text = unit(topic + 0.8 * unit(rng.normal(size=topic.shape)))
  text_id = rng.integers(0, TEXTS.value, PAIRS.value)
  noise = unit(rng.normal(size=(PAIRS.value, DIM.value)))
  return unit(text[text_id] + 0.7 * noise), text[text_id], text_id


def solve(image, text, text_id, temperature: float) -> dict[str, float]:
  """Solves once; returns time, iterations and residual."""
  began = time.monotonic()
  solution = popularity.solve(
    image,
    text,
    temperature=temperature,
    text_id=text_id,
    tolerance=TOLERANCE.value,
  )
  seconds = time.monotonic() - began
  return {
    "seconds": round(seconds, 2),
    "iterations": solution.iterations,
    "residual": solution.residual,
    "converged": solution.converged,
  }


def main(argv) -> None:
  """Solves once to compile, then measures every temperature."""
  del argv
  malloc.keep_memory()
  data = embeddings()
  solve(*data, temperature=10.0)  # compiles
  results = []
  for temperature in TEMPERATURES.value:
    row = {"temperature": temperature} | solve(*data, temperature)
    if PLAIN.value:
      # The extrapolation uses the last MEMORY iterates; 0 turns it off.
      memory, sinkhorn.MEMORY = sinkhorn.MEMORY, 0
      row["plain"] = solve(*data, temperature)
      sinkhorn.MEMORY = memory
    results.append(row)
  peak = peak_memory.peak_bytes() / 2**30
  benchmark.show(
    {
      "pairs": PAIRS.value,
      "texts": TEXTS.value,
      "dim": DIM.value,
      "device": jax.devices()[0].device_kind,
      "jax": jax.__version__,
      "peak_memory_GiB": round(peak, 2),
      "results": results,
    }
  )


if __name__ == "__main__":
  app.run(main)
