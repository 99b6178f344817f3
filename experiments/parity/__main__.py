"""Writes the tables of README.md from the JSON files.

python -m experiments.parity

`experiments.parity.towers`, `.exported`, `.sentence_encoders`, `.captions` and
`.clip_benchmark` print them.
"""

import pathlib

from experiments import harness
from experiments.harness import markdown
from experiments.harness.statistics import MISSING
from nuclr_jax.lab import files

HERE = pathlib.Path(__file__).parent
PARTS = {  # names in the JSON -> headers
  "outputs": "outputs",
  "gradients": "gradients",
  "trained": "outputs in training",
  "statistics": "statistics",
}


def read(name: str) -> dict:
  """Reads a JSON file of this folder."""
  return files.read_json(HERE / f"{name}.json")


def towers_table(towers: dict) -> str:
  """Shows the errors of every encoder."""
  lines = [
    [
      row["encoder"],
      row["size"],
      *(f"{row[x]:.1e}" if x in row else MISSING for x in PARTS),
    ]
    for row in towers["rows"]
  ]
  return markdown.table(["encoder", "size", *PARTS.values()], lines)


def exported_table(exported: dict) -> str:
  """Shows the errors of every exported model."""
  lines = [
    [name, f"{error:.1e}", f"{exported['pixels'][name]:.1e}"]
    for name, error in exported["embeddings"].items()
  ]
  return markdown.table(["exported", "embeddings", "pixels"], lines)


def sentence_encoders_table(errors: dict) -> str:
  """Shows the errors of a sentence encoder, by the dtype of this library."""
  lines = [
    [f"{errors['texts']}", dtype, f"{errors[dtype]:.1e}"]
    for dtype in ("float32", "float64")
  ]
  return markdown.table(["texts", "dtype", "embeddings"], lines)


def captions_table(results: dict) -> str:
  """Counts the odd captions whose token ids are equal, or why they differ."""
  rows = results["rows"]
  reasons = list(next(iter(rows.values())))
  lines = [
    [name, *(f"{row[x]}" for x in reasons)] for name, row in rows.items()
  ]
  return markdown.table(["tokenizer, library", *reasons], lines)


def benchmark_table(scores: dict) -> str:
  """Shows the scores of one run by both libraries."""
  lines = [
    [name, f"{row['nuclr']:.4f}", f"{row['clip_benchmark']:.4f}"]
    for name, row in scores.items()
  ]
  return markdown.table(["score", "nuclr evaluate", "CLIP_benchmark"], lines)


def versions_line(results: dict) -> str:
  """Names the machine and the libraries."""
  names = ("jax", "torch", "transformers", "timm", "open_clip_torch")
  libraries = [f"{x} {results[x]}" for x in names if x in results]
  return f"{results['cores']} cores ({', '.join(libraries)})."


def tables() -> dict[str, str]:
  """Returns all tables, by mark."""
  towers = read("towers_cpu")
  return {
    "machine": versions_line(towers),
    "towers": towers_table(towers),
    "exported": exported_table(read("exported_cpu")),
    "sentence_encoders": sentence_encoders_table(read("sentence_encoders_cpu")),
    "captions": captions_table(read("captions")),
    "benchmark": benchmark_table(read("clip_benchmark")),
  }


if __name__ == "__main__":
  harness.report(HERE, tables(), {})
