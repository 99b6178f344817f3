"""The order of rows in `nuclr filter`: of tables, and of equal scores."""

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


def test_many_equal_scores_at_the_threshold_are_told(
  tmp_path, monkeypatch, caplog
):
  """Then the order of the files chooses; of a few pairs, nobody cares."""
  monkeypatch.setattr(filter_files.filter_page, "write", lambda *_: None)
  image, text = make_shards.embeddings(400)
  x, y = (
    a / np.linalg.norm(a.astype(float), axis=1)[:, None] for a in (image, text)
  )
  best = np.argsort(-np.sum(x * y, axis=1))
  for equal, told in ((0, False), (51, False), (60, True)):
    rows, other = image.copy(), text.copy()
    some = best[150 : 150 + equal]  # of 200 that are kept
    rows[some], other[some] = image[best[150]], text[best[150]]
    np.savez(tmp_path / f"{equal}.npz", image=rows, text=other)
    caplog.clear()
    summary = filtering.write(
      Request(["similarity"], keep=[0.5]),
      tmp_path / f"kept_{equal}",
      embeddings=tmp_path / f"{equal}.npz",
    )
    assert summary["kept"] == 200
    assert ("similarity cannot tell 60 pairs" in caplog.text) == told
  assert "of which 50 are kept" in caplog.text
