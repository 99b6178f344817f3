"""`nuclr filter` compares tables with arrays before it writes anything."""

import make_shards
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest

from nuclr_jax.lab.report import filter_files, filtering
from nuclr_jax.lab.report.filter_steps import Request


def test_a_sorted_table_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(filter_files.filter_page, "write", lambda *_: None)
  image, text = (x.astype(float) for x in make_shards.embeddings(65))
  similarity = {"clip_l14_similarity_score": np.sum(image * text, axis=1)}
  folder = make_shards.datacomp(tmp_path / "d", **similarity)
  request = Request(["similarity"], keep=[0.2])
  summary = filtering.write(request, tmp_path / "kept", embeddings=folder)
  assert summary["kept"] == 13
  path = folder / "00000000.parquet"
  table = pyarrow.table(parquet.read_table(path).to_pydict())
  parquet.write_table(table.sort_by("uid"), path)
  with pytest.raises(ValueError, match="0.parquet and 00000000.npz do not li"):
    filtering.write(request, tmp_path / "again", embeddings=folder)
  assert not (tmp_path / "again").exists()
