"""What a filter writes: a table of all pairs, and lists of the kept ones."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data import shards
from nuclr_jax.lab.data.shards import Shards
from nuclr_jax.lab.evaluate.choose import Chosen
from nuclr_jax.lab.report import filter_page
from nuclr_jax.lab.report.filter_steps import Request

TABLE_ROWS = 2**16  # that are written at a time


def write(
  new: pathlib.Path,
  found: Shards,
  request: Request,
  columns: Mapping[str, np.ndarray],
  chosen: Chosen,
  summary: Mapping[str, Any],
) -> None:
  """Writes the files of the output.

  Args:
    new: The folder.
    found: The pairs.
    request: Which scores chose.
    columns: All scores by name, and uids, if there are any.
    chosen: Which pairs are kept, and by which score.
    summary: What `summary.json` gets.
  """
  kept = chosen.kept
  _write_table(new / "scores.parquet", found, columns, kept)
  if "uid" in columns:
    with files.replacing(new / "uids.npy") as path, path.open("wb") as file:
      np.save(file, np.sort(columns["uid"][kept]))
  elif {"name", "caption"} <= set(found.columns):
    _write_names(new / "kept.jsonl", found, kept)
  choices = dict(zip(request.scores, chosen.choices, strict=True))
  scores = {name: columns[name] for name in choices}
  scores.setdefault("similarity", columns["similarity"])
  path = new / "filter.html"
  filter_page.write(path, found, scores, choices, kept, summary)
  files.write_json(new / "summary.json", summary)


def _write_table(path: pathlib.Path, found: Shards, columns, kept) -> None:
  """Writes a row for each pair, a group of rows at a time."""
  import pyarrow
  from pyarrow import parquet

  scores = {k: x for k, x in columns.items() if k != "uid"}
  fields = [("uid", pyarrow.string())] if "uid" in columns else []
  fields += [("shard", pyarrow.string()), ("row", pyarrow.int64())]
  fields += [(name, pyarrow.float32()) for name in scores]
  schema = pyarrow.schema([*fields, ("kept", pyarrow.bool_())])
  with (
    files.replacing(path) as new,
    parquet.ParquetWriter(new, schema) as writer,
  ):
    for first in range(0, len(kept), TABLE_ROWS):
      rows = np.arange(first, min(first + TABLE_ROWS, len(kept)))
      shard, row = found.places(rows)
      values = {
        "shard": [found.names[i] for i in shard],
        "row": row,
        **{name: x[rows].astype(np.float32) for name, x in scores.items()},
        "kept": kept[rows],
      }
      if "uid" in columns:
        values["uid"] = shards.as_text(columns["uid"][rows])
      writer.write_table(pyarrow.table(values, schema))


def _write_names(path: pathlib.Path, found: Shards, kept: np.ndarray) -> None:
  """Writes names and captions of the kept pairs, for `nuclr ingest`."""
  rows = np.flatnonzero(kept)
  with files.replacing(path) as new, new.open("w", encoding="utf-8") as file:
    names, captions = (found.columns[x].pick(rows) for x in ("name", "caption"))
    for name, caption in zip(names, captions, strict=True):
      row = {"image": name, "caption": caption}
      file.write(json.dumps(row, ensure_ascii=False) + "\n")
