"""negCLIPLoss and NormSim against what the published functions return.

`tests/golden/README.md` says how these numbers were made.
"""

import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
from repository import GOLDEN

from nuclr_jax.lab.data.shards import InMemory
from nuclr_jax.lab.evaluate import choose, pair_scores
from nuclr_jax.lab.report import filter_files, filtering
from nuclr_jax.lab.report.filter_steps import Request

# Rows in half precision are not of unit norm. Here, they are scaled, and were
# for the float64 numbers; the published code in float32 takes them as they are.
EXACT, AS_PUBLISHED = dict(atol=2e-6), dict(atol=5e-4)
KINDS = [("float64", EXACT), ("float32", AS_PUBLISHED)]


@pytest.fixture(scope="module")
def golden():
  with np.load(GOLDEN / "negcliploss_normsim.npz") as x:
    return dict(x)


@pytest.fixture(scope="module")
def sides(golden):
  return [InMemory(golden[x]) for x in ("image", "text")]


@pytest.mark.parametrize(("kind", "how"), KINDS)
@pytest.mark.parametrize("tau", [0.01, 0.07])
def test_negcliploss(golden, sides, kind, how, tau):
  """In one batch, and on average over partitions in even batches."""
  found = pair_scores.negcliploss(*sides, temperature=tau, batch_size=128)
  expected = golden[f"{kind}/{tau}/negcliploss_of_all"]
  np.testing.assert_allclose(found, expected, **how)
  found = [
    pair_scores.negcliploss(
      *sides,
      temperature=tau,
      batch_size=int(golden["batch_size"]),
      seed=(i,),
    )
    for i in range(golden["partitions"])
  ]
  expected = golden[f"{kind}/{tau}/negcliploss"]
  np.testing.assert_allclose(np.mean(found, axis=0), expected, **how)
  found = pair_scores.similarity(*sides)
  np.testing.assert_allclose(found, golden[f"{kind}/similarity"], **how)


@pytest.mark.parametrize(("kind", "how"), KINDS)
@pytest.mark.parametrize("norm", ["2", "inf"])
def test_normsim(golden, sides, kind, how, norm):
  target = InMemory(golden["target"])
  found = pair_scores.normsim(sides[0], target, norm=float(norm))
  np.testing.assert_allclose(found, golden[f"{kind}/normsim_{norm}"], **how)
  if norm == "2":  # the older score is the mean of squares
    vas = found.astype(float) ** 2 / len(target)
    np.testing.assert_allclose(vas, golden[f"{kind}/vas"], **how)


@pytest.mark.parametrize("norm", ["2", "inf"])
def test_the_command_keeps_the_same_pairs(golden, norm, tmp_path, monkeypatch):
  """First half of them by negCLIPLoss, of these 30 % of all by NormSim."""
  monkeypatch.setattr(filter_files.filter_page, "write", lambda *_: None)
  arrays = {"l14_img": golden["image"], "l14_txt": golden["text"]}
  (tmp_path / "m").mkdir()
  np.savez(tmp_path / "m" / "0.npz", **arrays)
  table = {"uid": [f"{i:032x}" for i in range(128)], "text": ["a"] * 128}
  parquet.write_table(pyarrow.table(table), tmp_path / "m" / "0.parquet")
  np.save(tmp_path / "target.npy", golden["target"])
  request = Request(
    ["negcliploss", "normsim"],
    keep=[0.5, 0.3],
    temperature=0.07,
    batch_size=int(golden["batch_size"]),
    partitions=int(golden["partitions"]),
    target=str(tmp_path / "target.npy"),
    norm=norm,
  )
  summary = filtering.write(
    request, tmp_path / "kept", embeddings=tmp_path / "m"
  )
  rows = parquet.read_table(tmp_path / "kept" / "scores.parquet").to_pydict()
  assert rows["kept"] == golden[f"float64/kept_{norm}"].tolist()
  assert summary["kept"] == 38 and summary["target_images"] == 40
  expected = golden["float64/0.07/negcliploss"]
  np.testing.assert_allclose(rows["negcliploss"], expected, **EXACT)
  expected = golden[f"float64/normsim_{norm}"]
  np.testing.assert_allclose(rows["normsim"], expected, **EXACT)
  assert np.load(tmp_path / "kept" / "uids.npy")["f1"].tolist() == [
    *np.flatnonzero(rows["kept"])
  ]


def test_shares_of_scores_of_the_published_code(golden):
  """`choose` alone, from the published numbers."""
  scores = [golden["float64/0.07/negcliploss"], golden["float64/normsim_inf"]]
  kept = choose.choose(scores, keep=[0.5, 0.3]).kept
  np.testing.assert_array_equal(kept, golden["float64/kept_inf"])
