"""Writes the tables of README.md from the JSON files.

python -m experiments.parity

And the table of OpenCLIP's models in docs/guides/published_models.md, from
tests/golden/open_clip_names.json. `experiments.parity.towers`, `.exported`,
`.exported_open_clip`, `.naflex`, `.sentence_encoders`, `.captions` and
`.clip_benchmark` print the JSON files.
"""

from collections.abc import Sequence
import pathlib
from unittest import mock

from experiments import harness
from experiments.harness import markdown
from experiments.harness.statistics import MISSING
from nuclr_jax.lab import files
from nuclr_jax.lab.models.pretrained import architectures, open_clip, published
from nuclr_jax.types import Sides

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
GUIDE = ROOT / "docs" / "guides" / "published_models.md"
NAMES = ROOT / "tests" / "golden" / "open_clip_names.json"
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


def exported_open_clip_table(exported: dict) -> str:
  """Shows the errors of every family of OpenCLIP's models."""
  lines = [
    [
      family,
      *(f"{row[x]:.1e}" for x in ("image", "text", "read_back", "apart")),
    ]
    for family, row in exported["rows"].items()
  ]
  header = ["family", "images", "texts", "read back", "between inputs"]
  return markdown.table(header, lines)


def sentence_encoders_table(errors: dict) -> str:
  """Shows the errors of a sentence encoder, by the dtype of this library."""
  lines = [
    [f"{errors['texts']}", dtype, f"{errors[dtype]:.1e}"]
    for dtype in ("float32", "float64")
  ]
  return markdown.table(["texts", "dtype", "embeddings"], lines)


def naflex_table(results: dict) -> str:
  """Shows how far SigLIP 2 is from transformers, for any aspect ratio."""
  errors, grids = results["largest"], results["grids"]
  header = ["embeddings", "of the export", "positions", "images", "other grids"]
  line = [f"{errors[x]:.1e}" for x in ("read", "exported", "positions")]
  line += [f"{grids['images']:,}", f"{grids['different']}"]
  return markdown.table(header, [line])


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


def open_clip_table(names: Sequence[str]) -> str:
  """Shows which of OpenCLIP's models are read, by our towers, or why not."""
  configs = files.read_json(architectures.TABLE)
  rows: dict[tuple[str, str], list[str]] = {}
  for name in names:
    try:
      model, _ = read_config(configs[name])
    except ValueError as error:
      key = ("none", str(error).partition(";")[0])
    else:
      key = tuple(f"`{model[side]['name']}`" for side in Sides._fields)
    rows.setdefault(key, []).append(name)
  lines = [
    [*key, f"{len(names)}", ", ".join(names)] for key, names in rows.items()
  ]
  lines.sort(key=lambda line: line[0] == "none")
  return markdown.table(["images", "texts", "models", "names"], lines)


def read_config(config: dict) -> tuple[dict, dict]:
  """Returns `(config.model, config.data)` of OpenCLIP's model without files."""
  missing = mock.Mock(side_effect=ValueError)
  with mock.patch.object(open_clip.hub, "find_file", missing):
    model, data = open_clip.read_open_clip("a/b", {"model_cfg": config})
  published.leave_rest(model, data)
  return model, data


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
    "exported_open_clip": exported_open_clip_table(
      read("exported_open_clip_cpu")
    ),
    "sentence_encoders": sentence_encoders_table(read("sentence_encoders_cpu")),
    "naflex": naflex_table(read("naflex_cpu")),
    "captions": captions_table(read("captions")),
    "benchmark": benchmark_table(read("clip_benchmark")),
  }


def guide_tables() -> dict[str, str]:
  """Returns the tables of docs/guides/published_models.md, by mark."""
  return {"open_clip": open_clip_table(files.read_json(NAMES)["names"])}


if __name__ == "__main__":
  harness.report(HERE, tables(), {})
  page = markdown.insert(GUIDE.read_text("utf-8"), guide_tables())
  files.write_atomically(GUIDE, page)
