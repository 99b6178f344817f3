"""`nuclr filter`: what it writes, what it refuses, and how it continues."""

import json
import os

import make_shards
import numpy as np
from pyarrow import parquet
import pytest

from nuclr_jax.lab.evaluate import choose, pair_scores
from nuclr_jax.lab.report import (
  filter_files,
  filter_page,
  filter_steps,
  filtering,
)
from nuclr_jax.lab.report.filter_steps import Request

ALL = Request(
  ["exact", "negcliploss", "similarity"],
  keep=[0.8, 0.6, 0.4],
  temperature=0.1,
  batch_size=32,
  partitions=2,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """What the command writes of two shards, by all scores in turn."""
  folder = tmp_path_factory.mktemp("filter")
  metadata = make_shards.datacomp(folder / "metadata")
  summary = filtering.write(ALL, folder / "kept", embeddings=str(metadata))
  return metadata, folder / "kept", summary


def test_the_table_has_a_row_for_each_pair(made):
  metadata, kept, summary = made
  table = parquet.read_table(kept / "scores.parquet")
  rows = table.to_pydict()
  assert rows["uid"] == [make_shards.uid(i) for i in range(65)]
  assert rows["row"] == [*range(40), *range(25)]
  assert rows["shard"][40] == str(metadata / "00000001.parquet")
  image, text = (x.astype(float) for x in make_shards.embeddings(65))
  expected = np.einsum("nd,nd->n", image, text)
  np.testing.assert_allclose(rows["similarity"], expected, atol=2e-3)
  assert sum(rows["kept"]) == summary["kept"] == 26
  above = [
    np.array(rows[name]) >= summary[f"threshold/{name}"] - 1e-6
    for name in ALL.scores
  ]
  assert np.all(above, axis=0).tolist() == rows["kept"]
  assert above[0].sum() == 52  # 0.8 of 65, the first score's own share
  assert summary["converged"] and summary["pairs_solved"] == 65


def test_a_sample_that_is_hardly_a_batch(made, tmp_path, no_page, caplog):
  request = Request(["exact"], keep=[0.5], temperature=0.1, max_pairs=20)
  summary = filtering.write(request, tmp_path / "kept", embeddings=str(made[0]))
  assert summary["pairs_solved"] == 20
  assert "exact weights of 65 pairs by a sample of 20" in caplog.text


def test_uids_are_what_resharder_looks_up(made):
  _, kept, _ = made
  table = parquet.read_table(kept / "scores.parquet").to_pydict()
  subset = np.load(kept / "uids.npy", mmap_mode="r")
  assert subset.dtype == np.dtype("u8,u8")
  chosen = {x for x, k in zip(table["uid"], table["kept"], strict=True) if k}
  for uid in table["uid"]:
    key = np.array([divmod(int(uid, 16), 2**64)], subset.dtype)[0]
    ends = (np.searchsorted(subset, key, side) for side in ("left", "right"))
    first, last = ends
    assert last - first == (uid in chosen)


def test_the_page_shows_examples_of_each_score(made):
  _, kept, _ = made
  page = (kept / "filter.html").read_text()
  for name in ALL.scores:
    assert f"<h2>{name}</h2>" in page
    assert (kept / f"{name}.png").exists()
  assert page.count("The highest of those that it drops") == 3
  assert page.count("At 30% of the pairs, ") == 3
  assert "https://example.org/" in page and "text 1" in page
  assert "src='http" not in page
  summary = json.loads((kept / "summary.json").read_text())
  assert summary["kept"] == 26 and summary["keep"] == [0.8, 0.6, 0.4]
  assert summary["scores"] == ALL.scores and "metadata" in summary["from"]


def test_examples_are_of_what_a_score_itself_chose():
  """The best of all by the first score may be dropped by the second."""
  a, b = np.arange(100.0), -np.arange(100.0)
  chosen = choose.choose([a, b], keep=[0.5, 0.25])
  first, second = map(filter_page._examples, [a, b], chosen.choices)
  kept, dropped, *_ = first.values()
  assert kept.tolist() == [*range(61, 49, -1)]
  assert dropped.tolist() == [*range(49, 37, -1)]
  kept, dropped, *_ = second.values()
  assert kept.tolist() == [*range(63, 75)]
  assert dropped.tolist() == [*range(75, 87)]


def same(a, b) -> bool:
  names = ("uids.npy", "scores.parquet", "summary.json")
  return all((a / x).read_bytes() == (b / x).read_bytes() for x in names)


@pytest.fixture
def no_page(monkeypatch):
  """Plots take most of the time."""
  monkeypatch.setattr(filter_files.filter_page, "write", lambda *_: None)


@pytest.mark.parametrize("at", ["similarity", "negcliploss", "balance"])
def test_an_interrupted_filter_continues_with_the_same_bits(
  at, made, tmp_path, monkeypatch, no_page
):
  metadata, kept, _ = made
  output, calls = tmp_path / "kept", []
  score = getattr(pair_scores, at)

  def interrupted(*args, **kwargs):
    calls.append(at)
    if at != "negcliploss" or len(calls) == 2:  # the second partition
      raise KeyboardInterrupt
    return score(*args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(pair_scores, at, interrupted)
    with pytest.raises(KeyboardInterrupt):
      filtering.write(ALL, output, embeddings=str(metadata))
  assert not output.exists()
  steps = {x.stem for x in (tmp_path / "unfinished.kept").glob("*.npy")}
  assert ("negcliploss_0" in steps) == (at != "similarity")
  filtering.write(ALL, output, embeddings=str(metadata))
  assert same(kept, output)
  assert not (tmp_path / "unfinished.kept").exists()


def test_steps_of_other_files_or_flags_are_made_again(
  made, tmp_path, monkeypatch, caplog, no_page
):
  metadata, kept, _ = made
  with monkeypatch.context() as patch:
    patch.setattr(filtering, "_choose", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      filtering.write(
        ALL._replace(temperature=0.5), tmp_path / "kept", embeddings=metadata
      )
  filtering.write(ALL, tmp_path / "kept", embeddings=str(metadata))
  assert "is of other files or flags, and is made again" in caplog.text
  assert same(kept, tmp_path / "kept")


def test_an_iteration_is_kept_now_and_then(
  made, tmp_path, monkeypatch, no_page
):
  metadata, kept, _ = made
  monkeypatch.setattr(filter_steps, "PERIOD", 0.0)
  log_sums, calls = pair_scores.log_sums, []

  def interrupted(*args, **kwargs):
    calls.append(1)
    if len(calls) == 8:
      raise KeyboardInterrupt
    return log_sums(*args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(pair_scores, "log_sums", interrupted)
    with pytest.raises(KeyboardInterrupt):
      filtering.write(ALL, tmp_path / "kept", embeddings=str(metadata))
  assert (tmp_path / "unfinished.kept" / "unfinished.npz").exists()
  filtering.write(ALL, tmp_path / "kept", embeddings=str(metadata))
  assert same(kept, tmp_path / "kept")


def test_bad_input_leaves_nothing(tmp_path, no_page):
  metadata = make_shards.datacomp(tmp_path / "metadata")
  path = metadata / "00000001.npz"
  with np.load(path) as x:
    arrays = dict(x)
  arrays["l14_img"][3] = np.nan
  np.savez(path, **arrays)
  request = Request(["similarity"], keep=[0.3])
  with pytest.raises(
    ValueError, match="row 3 of l14_img of .*1.npz is not fin"
  ):
    filtering.write(request, tmp_path / "kept", embeddings=str(metadata))
  with pytest.raises(
    ValueError, match="0.npz .*it has no array l15_img; it has"
  ):
    filtering.write(
      request._replace(arch="l15"),
      tmp_path / "kept",
      embeddings=str(metadata),
    )
  request = request._replace(arch="b32", keep=None, threshold=[2.0])
  with pytest.raises(ValueError, match="no pair of 65 is kept; lower"):
    filtering.write(request, tmp_path / "kept", embeddings=str(metadata))
  assert not (tmp_path / "kept").exists()


def test_copies_are_kept_once(tmp_path, no_page):
  """By checksums of images; by captions; by both."""
  image = [str(i % 60) for i in range(65)]
  text = [f"text {i % 50}" for i in range(65)]
  metadata = make_shards.datacomp(tmp_path / "d", sha256=image, text=text)
  scores = {}
  for once in ("image", "text", "pair"):
    request = Request(["similarity"], keep=[1.0], once=once)
    summary = filtering.write(
      request, tmp_path / once, embeddings=str(metadata)
    )
    table = parquet.read_table(tmp_path / once / "scores.parquet").to_pydict()
    scores[once] = np.array(table["similarity"]), np.array(table["kept"])
    assert summary["kept"] == 65 - summary["copies_left_out"]
  left_out = {k: np.flatnonzero(~kept) for k, (_, kept) in scores.items()}
  assert [len(left_out[x]) for x in ("image", "text", "pair")] == [5, 15, 0]
  score, kept = scores["image"]
  for i in range(5):
    pair = [i, i + 60]
    assert kept[pair].tolist() == (score[pair] == score[pair].max()).tolist()


def test_what_has_no_value_is_no_copy(tmp_path, no_page):
  """Null, NaN and no digits say nothing; embeddings decide then."""
  sums = ["ab", "ab", None, None, "", ""] + [f"{i:02x}" for i in range(59)]
  metadata = make_shards.datacomp(tmp_path / "d", sha256=sums)
  request = Request(["similarity"], keep=[1.0], once="image")
  found = filtering.write(request, tmp_path / "kept", embeddings=str(metadata))
  assert found["copies_left_out"] == 1
  nothing = [None] * 65
  metadata = make_shards.datacomp(tmp_path / "e", text=nothing)
  request = request._replace(once="text")
  found = filtering.write(request, tmp_path / "all", embeddings=str(metadata))
  assert found["copies_left_out"] == 0
  names = [f"class {i % 4}" for i in range(64)] + [None]
  metadata = make_shards.datacomp(tmp_path / "f", text=names)
  request = Request(["confidence"], keep=[0.5])
  with pytest.raises(ValueError, match="1 of 65 pairs have no caption, the fi"):
    filtering.write(request, tmp_path / "no", embeddings=str(metadata))
  numbers = [-1, -1, *range(63)]
  metadata = make_shards.datacomp(tmp_path / "g", text=numbers)
  request = Request(["similarity"], keep=[1.0], once="text")
  found = filtering.write(request, tmp_path / "int", embeddings=str(metadata))
  assert found["copies_left_out"] == 1


def test_a_file_that_changes_meanwhile_is_noticed(
  made, tmp_path, monkeypatch, no_page
):
  metadata = make_shards.datacomp(tmp_path / "d")
  choosing = filtering._choose

  def replaced(*args):
    path = metadata / "00000001.npz"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    return choosing(*args)

  with monkeypatch.context() as patch:
    patch.setattr(filtering, "_choose", replaced)
    with pytest.raises(ValueError, match="1.npz has changed while it was read"):
      filtering.write(ALL, tmp_path / "kept", embeddings=str(metadata))
  assert not (tmp_path / "kept").exists()
  filtering.write(ALL, tmp_path / "kept", embeddings=str(metadata))
  assert (tmp_path / "kept" / "uids.npy").read_bytes() == (
    made[1] / "uids.npy"
  ).read_bytes()


def test_images_of_the_target_are_equally_near(tmp_path, no_page):
  image = make_shards.embeddings(65)[0]
  np.save(tmp_path / "own.npy", image)
  metadata = make_shards.datacomp(tmp_path / "d")
  request = Request(
    ["normsim"], keep=[0.2], target=str(tmp_path / "own.npy"), arch="l14"
  )
  filtering.write(request, tmp_path / "kept", embeddings=str(metadata))
  table = parquet.read_table(tmp_path / "kept" / "scores.parquet").to_pydict()
  assert set(table["normsim"]) == {1.0}
  assert table["kept"] == [i < 13 for i in range(65)]


def test_without_uids_names_and_captions_are_listed(tmp_path, no_page):
  shards = make_shards.clip_retrieval(tmp_path / "c")
  request = Request(["similarity"], keep=[0.1])
  filtering.write(request, tmp_path / "kept", embeddings=str(shards))
  assert not (tmp_path / "kept" / "uids.npy").exists()
  lines = (tmp_path / "kept" / "kept.jsonl").read_text().splitlines()
  table = parquet.read_table(tmp_path / "kept" / "scores.parquet").to_pydict()
  rows = np.flatnonzero(table["kept"])
  assert [json.loads(x) for x in lines] == [
    {"image": f"{i:09d}", "caption": f"text {i}"} for i in rows
  ]
  with pytest.raises(ValueError, match="give the model's --temperature"):
    filtering.write(
      request._replace(scores=["exact"]),
      tmp_path / "again",
      embeddings=str(shards),
    )
  with pytest.raises(ValueError, match="confidence is for captions that are n"):
    filtering.write(
      request._replace(scores=["confidence"]),
      tmp_path / "again",
      embeddings=str(shards),
    )


@pytest.fixture
def target(tmp_path):
  path = tmp_path / "target.npy"
  np.save(path, make_shards.embeddings(7, seed=1)[0])
  return path


def near(target, **how):
  return Request(
    ["similarity", "normsim"], keep=[0.6, 0.4], target=str(target), **how
  )


def test_normsim_is_in_all_outputs(tmp_path, target):
  metadata = make_shards.datacomp(tmp_path / "metadata")
  image, z = make_shards.embeddings(65)[0], np.load(target)
  cosines = np.abs(image.astype(float) @ z.astype(float).T)
  for norm, expected in (
    ("inf", cosines.max(axis=1)),
    ("2", np.sqrt(np.sum(cosines**2, axis=1))),
  ):
    kept = tmp_path / norm
    filtering.write(near(target, norm=norm), kept, embeddings=metadata)
    rows = parquet.read_table(kept / "scores.parquet").to_pydict()
    np.testing.assert_allclose(rows["normsim"], expected, atol=2e-3)
    page = (kept / "filter.html").read_text()
    assert "<h2>normsim</h2>" in page and (kept / "normsim.png").exists()
    summary = json.loads((kept / "summary.json").read_text())
    assert summary["norm"] == norm and summary["target_images"] == 7
    assert summary["target"] == str(target) and summary["kept"] == 26
    scores = np.array(rows["normsim"])[np.array(rows["kept"])]
    assert scores.min() == pytest.approx(summary["threshold/normsim"])


def test_normsim_of_all_layouts(tmp_path, target, no_page):
  image, text = make_shards.embeddings(65)
  np.save(tmp_path / "image.npy", image)
  np.save(tmp_path / "text.npy", text)
  own = make_shards.embedded(tmp_path / "e", 65)
  cosines = np.abs(image.astype(float) @ np.load(target).astype(float).T)
  for i, (place, count) in enumerate(
    [
      (make_shards.clip_retrieval(tmp_path / "c"), [1]),
      (f"{tmp_path}/image.npy,{tmp_path}/text.npy", [1]),
      (own, 1 + np.arange(65) % 2),  # captions of each image
    ]
  ):
    kept = tmp_path / f"kept{i}"
    filtering.write(near(target), kept, embeddings=place)
    found = parquet.read_table(kept / "scores.parquet")["normsim"].to_numpy()
    expected = np.repeat(cosines.max(axis=1), count)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_equal_scores_have_a_page(tmp_path, target):
  """Images that are the target's have cosines of 1, up to rounding."""
  x = make_shards.embeddings(7, seed=1)[0]
  np.save(tmp_path / "x.npy", np.repeat(x, 5, axis=0))
  pairs = f"{tmp_path}/x.npy,{tmp_path}/x.npy"
  summary = filtering.write(near(target), tmp_path / "k", embeddings=pairs)
  assert summary["threshold/normsim"] == pytest.approx(1)
  assert summary["kept"] == 14 and (tmp_path / "k" / "normsim.png").exists()


def test_all_pairs_make_one_batch_once(tmp_path, no_page):
  metadata = make_shards.datacomp(tmp_path / "metadata")
  scores = []
  for partitions, batch_size in ((3, 65), (1, 100), (3, 64)):
    request = Request(
      ["negcliploss"],
      keep=[0.5],
      temperature=0.1,
      batch_size=batch_size,
      partitions=partitions,
    )
    kept = tmp_path / f"{batch_size}"
    summary = filtering.write(request, kept, embeddings=metadata)
    assert summary["partitions"] == (3 if batch_size == 64 else 1)
    table = parquet.read_table(kept / "scores.parquet").to_pydict()
    scores.append(table["negcliploss"])
  assert scores[0] == scores[1] != scores[2]


def test_another_target_makes_its_own_step_again(
  tmp_path, target, monkeypatch, no_page
):
  """And no other; the same target and norm do not."""
  metadata = make_shards.datacomp(tmp_path / "metadata")
  calls = []
  for name in ("similarity", "normsim"):
    score = getattr(pair_scores, name)

    def counted(*args, name=name, score=score, **kwargs):
      calls.append(name)
      return score(*args, **kwargs)

    monkeypatch.setattr(pair_scores, name, counted)

  def interrupted(request):
    calls.clear()
    with monkeypatch.context() as patch:
      patch.setattr(filtering, "_choose", lambda *_: 1 / 0)
      with pytest.raises(ZeroDivisionError):
        filtering.write(request, tmp_path / "kept", embeddings=metadata)
    return [*calls]

  assert interrupted(near(target)) == ["similarity", "normsim"]
  assert interrupted(near(target)) == []
  assert interrupted(near(target, norm="2")) == ["normsim"]
  np.save(target, make_shards.embeddings(8, seed=2)[0])
  assert interrupted(near(target)) == ["normsim"]
  filtering.write(near(target), tmp_path / "kept", embeddings=metadata)
  filtering.write(near(target), tmp_path / "new", embeddings=metadata)
  assert same(tmp_path / "kept", tmp_path / "new")


def test_a_bad_target_is_refused_before_anything_is_computed(
  tmp_path, target, monkeypatch, no_page
):
  metadata = make_shards.datacomp(tmp_path / "metadata")
  x = make_shards.embeddings(7)[0]
  for name, value in (("zero", 0), ("nan", np.nan)):
    np.save(tmp_path / f"{name}.npy", np.where(np.eye(7, 16, -3), x, x * value))
  np.save(tmp_path / "wide.npy", np.ones((3, 24)))
  monkeypatch.setattr(pair_scores, "similarity", lambda *_: 1 / 0)
  for name, message in (
    ("zero.npy", "^row 0 of .*zero.npy is zero; embed it again, or leave"),
    ("nan.npy", "^row 0 of .*nan.npy is not finite; embed it again"),
    (
      "wide.npy",
      "wide.npy has 24 columns, and l14_img of .*npz 16; embed the target by",
    ),
    ("missing.npy", "^--target=.*missing.npy does not exist$"),
  ):
    with pytest.raises(ValueError, match=message):
      filtering.write(
        near(tmp_path / name), tmp_path / "kept", embeddings=metadata
      )
    assert not (tmp_path / "kept").exists()
    assert not (tmp_path / "unfinished.kept").exists()
  with pytest.raises(ValueError, match="normsim needs a target"):
    filtering.write(
      near(target)._replace(target=None),
      tmp_path / "kept",
      embeddings=metadata,
    )


def test_only_models_of_openai_have_a_known_temperature(tmp_path, no_page):
  metadata = make_shards.datacomp(tmp_path / "d")
  for path in metadata.glob("*.npz"):
    with np.load(path) as x:
      np.savez(path, dfn_img=x["l14_img"], dfn_txt=x["l14_txt"])
  request = Request(["negcliploss"], keep=[0.5], partitions=1, arch="dfn")
  how = {"embeddings": str(metadata)}
  with pytest.raises(ValueError, match="only known of DataComp's arrays, l14"):
    filtering.write(request, tmp_path / "kept", **how)
  request = request._replace(temperature=0.07)
  assert filtering.write(request, tmp_path / "kept", **how)["kept"] == 32


def test_names_of_classes_have_confidences(tmp_path, no_page):
  text = [f"class {i % 3}" for i in range(65)]
  metadata = make_shards.datacomp(tmp_path / "d", text=text)
  request = Request(["confidence"], keep=[0.5])
  filtering.write(request, tmp_path / "kept", embeddings=str(metadata))
  table = parquet.read_table(tmp_path / "kept" / "scores.parquet").to_pydict()
  assert max(table["confidence"]) <= 0 and sum(table["kept"]) == 32


def test_pairs_that_are_embedded_first(tmp_path, no_page):
  """Once, unless they are other pairs; two captions are two pairs."""
  output, made = tmp_path / "kept", []

  def embed(folder):
    made.append(folder)
    make_shards.embedded(folder)

  def filtered(source, threshold):
    return filtering.write(
      Request(["similarity"], threshold=[threshold], once="image"),
      output,
      embed=embed,
      source={"input": source},
    )

  for source, count in (("a", 1), ("a", 1), ("b", 2)):
    with pytest.raises(ValueError, match="no pair of 60 is kept"):
      filtered(source, 2.0)
    assert len(made) == count
  summary = filtered("b", -1.0)
  assert summary["kept"] == 40 and summary["copies_left_out"] == 20
  assert len(made) == 2 and (output / "embeddings" / "text.npy").exists()
  lines = (output / "kept.jsonl").read_text().splitlines()
  assert json.loads(lines[3]) == {"image": "3.jpg", "caption": "text 3"}
  table = parquet.read_table(output / "scores.parquet").to_pydict()
  assert set(table["shard"]) == {"embeddings/texts.parquet"}


def test_pictures_are_shown_where_they_are_known(tmp_path):
  folder = make_shards.embedded(tmp_path / "e")
  request = Request(["similarity"], keep=[0.5])
  filtering.write(request, tmp_path / "kept", embeddings=folder)
  page = (tmp_path / "kept" / "filter.html").read_text()
  assert page.count("data:image/") > 50 and "39.jpg" in page


def test_without_tables_copies_are_equal_rows(tmp_path, no_page):
  image, text = make_shards.embeddings(30)
  image[10], text[10], image[20] = image[5], text[5], image[6]
  for name, x in (("image", image), ("text", text)):
    np.save(tmp_path / f"{name}.npy", x)
  for once, left_out in (("pair", 1), ("image", 2), ("text", 1)):
    summary = filtering.write(
      Request(["similarity"], keep=[1.0], once=once),
      tmp_path / once,
      embeddings=f"{tmp_path}/image.npy,{tmp_path}/text.npy",
    )
    assert summary["copies_left_out"] == left_out
  names = sorted(x.name for x in (tmp_path / "pair").iterdir())
  assert names == ["scores.parquet", "summary.json"]
