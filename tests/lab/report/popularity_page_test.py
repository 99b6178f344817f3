"""`nuclr popularity`: tables, page and warm-start file."""

import csv
import json
import re

import make_pairs
import numpy as np
import pytest
import read_page

from nuclr_jax import popularity
from nuclr_jax.lab import files
from nuclr_jax.lab.report import popularity as popularity_page
from nuclr_jax.lab.report import subject, tables
from nuclr_jax.lab.train import build, loop
from nuclr_jax.lab.train.warm_start import POPULARITY_FILE


def table(path):
  with path.open(newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tiny, few_characters, no_diagnostics, tmp_path_factory):
  """A tiny run, its parts, and the files that the verb wrote."""
  folder = tmp_path_factory.mktemp("a run")
  config = tiny(num_epochs=1.0)
  parts = build.build(config, data=few_characters)
  loop.fit(config, folder, parts=parts)
  found = subject.from_run(folder, parts=parts)
  page = popularity_page.write(found, folder, max_pairs=1000)
  return folder, parts, found, page


def test_tables_have_a_row_per_id(run):
  folder, parts, found, _ = run
  sizes = parts.data.train.sizes
  images = table(folder / "popularity" / "images.csv")
  texts = table(folder / "popularity" / "texts.csv")
  assert len(images) == sizes.num_images
  present = np.unique(found.pairs.text_id)
  assert [int(row["id"]) for row in texts] == list(present)
  assert set(images[0]) >= {
    "id", "caption", "zeta_learned", "zeta_exact", "log_u_exact", "cluster",
  }  # fmt: skip
  captions = parts.data.train.captions(present)
  assert [row["caption"] for row in texts] == captions
  assert sum(int(row["pairs"]) for row in texts) == sizes.num_pairs
  learned = [float(row["zeta_learned"]) for row in texts]
  np.testing.assert_allclose(learned, found.zeta.text[present], atol=1e-6)


def test_summary_agrees_with_the_tables(run):
  folder, *_ = run
  summary = json.loads((folder / "popularity" / "summary.json").read_text())
  for side in ("image", "text"):
    rows = table(folder / "popularity" / f"{side}s.csv")
    learned, exact = (
      np.array([float(row[f"zeta_{name}"]) for row in rows])
      for name in ("learned", "exact")
    )
    expected = np.corrcoef(learned, exact)[0, 1]
    assert summary[f"{side}/pearson"] == pytest.approx(expected, abs=1e-4)
  assert summary["converged"]


def test_the_page_has_all_lists(run):
  """What to do comes first, what the solver counted last."""
  folder, _, found, path = run
  text = read_page.parsed(path).text
  places = [
    text.index(x)
    for x in (
      "What to do",
      "Suspected label noise",
      "Near-duplicate images",
      "Popular images",
      "Popular texts",
      "Near-duplicate texts",
      "iterations",
    )
  ]
  assert places == sorted(places)
  assert text.index("Find wrong captions") < text.index("Look at duplicates")
  assert (folder / "popularity" / "zeta.png").stat().st_size > 5000
  common = json.loads(read_page.parsed(path).scripts["common"])
  assert len(common["thumbnails"]) > 100
  assert all(
    x.startswith("data:image/png") for x in common["thumbnails"].values()
  )
  photos = [x[""][0] for x in read_page.lists(path).values() if x[""]]
  assert {str(x) for x in photos} <= common["thumbnails"].keys()


@pytest.mark.parametrize("name", ["suspects", "duplicates", "images", "texts"])
def test_lists_have_the_rows_of_tables(run, name):
  folder, _, found, path = run
  rows = table(folder / "popularity" / f"{name}.csv")
  listed = read_page.lists(path)[name]
  if name in ("images", "texts"):  # the most popular first
    rows.sort(key=lambda x: -float(x["zeta_exact"]))
    zeta = np.array([float(x["zeta_exact"]) for x in rows])
    expected = np.exp((zeta - np.median(zeta)) / found.temperature)
    np.testing.assert_allclose(listed["popularity"], expected, rtol=1e-4)
  assert len(listed["caption"]) == len(rows)
  common = set(rows[0] if rows else ()) & set(listed)
  assert not rows or {"caption", "cluster", "pair"} & common
  for column in common - {"key"}:
    if name == "duplicates":  # clusters are in another order inside
      continue
    values = [x[column] for x in rows]
    if isinstance(listed[column][0], str):
      assert listed[column] == values
    else:
      values = np.array(values, float)
      np.testing.assert_allclose(listed[column], values, rtol=1e-5, atol=1e-7)


def test_the_file_for_warm_starts_has_all_ids_of_the_run(run):
  folder, parts, found, _ = run
  file = np.load(folder / "popularity" / POPULARITY_FILE)
  assert str(file["fingerprint"]) == parts.data.train.fingerprint
  np.testing.assert_array_equal(file["image_id"], np.arange(1_280))
  np.testing.assert_array_equal(file["text_id"], np.unique(found.pairs.text_id))
  assert len(file["zeta_text"]) == len(file["text_id"])


def test_suspects_of_a_run_are_far_from_their_neighbours(run):
  """By the definition of the score, in loops."""
  folder, _, found, _ = run
  rows = table(folder / "popularity" / "suspects.csv")
  pairs = found.pairs
  assert sorted(int(x["pair"]) for x in rows) == list(pairs.pair_id)
  scores = [float(x["neighbours_distance"]) for x in rows]
  assert scores == sorted(scores, reverse=True)
  for row in (rows[0], rows[100], rows[-1]):
    i = int(np.flatnonzero(pairs.pair_id == int(row["pair"]))[0])
    expected = []
    for x, y in ((pairs.image, pairs.text), (pairs.text, pairs.image)):
      sim = np.float64(x) @ x[i]
      sim[i] = -9
      near = np.argsort(sim)[-10:]
      expected.append(1 - np.mean([y[i] @ y[j] for j in near]))
    # Equal captions are neighbours in any order.
    assert float(row["neighbours_distance"]) == pytest.approx(
      np.mean(expected), abs=0.02
    )


def written(tmp_path, image, text, temperature=0.1, **options):
  """The text of the page, and the summary, of given embeddings."""
  np.savez(tmp_path / "x.npz", image=image, text=text, **options)
  given = subject.from_files(str(tmp_path / "x.npz"), temperature=temperature)
  path = popularity_page.write(given, tmp_path)
  summary = json.loads(path.with_name("summary.json").read_text())
  return read_page.parsed(path).text, summary


class TestDoubts:
  """What the page warns of."""

  def test_nothing(self, tmp_path):
    text = make_pairs.unit_rows(3, 60, 8)
    image = text + 0.2 * make_pairs.unit_rows(4, 60, 8)
    said, summary = written(tmp_path, image, text)
    assert "useless" not in said and "most of the data" not in said
    assert "not determined" not in said
    assert summary["undetermined_images"] == summary["undetermined_texts"] == 0
    assert 0.8 < summary["duplicates_threshold"] < 1
    assert "near_copies" in summary and summary["near_copies"] < 6

  def test_equal_weights(self, tmp_path):
    """A model whose embeddings are all nearly the same ranks nothing."""
    ones = np.ones((60, 8))
    image = ones + 0.01 * make_pairs.unit_rows(3, 60, 8)
    text = ones + 0.01 * make_pairs.unit_rows(4, 60, 8)
    said, summary = written(tmp_path, image, text)
    assert "The order of suspects is useless" in said
    for side in ("image", "text"):
      assert f"The ranking of {side}s is useless" in said
    # At 1 - temperature / 2, all 60 would be near-duplicates.
    assert summary["near_copies"] < 6

  def test_weights_on_own_pairs_alone(self, tmp_path):
    """A look-alike aside, each anchor is sure of its partner."""
    text = make_pairs.unit_rows(3, 60, 512)
    text[1] = text[0] + 0.01 * text[2]
    image = text + 0.2 * make_pairs.unit_rows(4, 60, 512)
    image[:2] = text[:2]
    said, summary = written(tmp_path, image, text, temperature=0.05)
    for side in ("image", "text"):
      assert f"of 58 of 60 {side}s is not determined" in said
      assert summary[f"undetermined_{side}s"] == 58
      assert f"The ranking of {side}s is useless" not in said

  def test_no_two_are_told_apart(self, tmp_path):
    ones = np.ones((60, 8))
    image = ones + 1e-6 * make_pairs.unit_rows(3, 60, 8)
    text = ones + 1e-6 * make_pairs.unit_rows(4, 60, 8)
    said, summary = written(tmp_path, image, text)
    assert "Near copies cannot be told from other images" in said
    assert summary["near_copies"] == 0
    assert "duplicates_threshold" not in summary

  def test_most_are_copies(self, tmp_path):
    text = make_pairs.unit_rows(3, 60, 8)
    image = make_pairs.unit_rows(5, 20, 8)[np.arange(60) % 20]
    image = image + 1e-3 * make_pairs.unit_rows(4, 60, 8)
    said, summary = written(tmp_path, image, text)
    assert summary["near_copies"] == 60 and summary["duplicate_clusters"] == 20
    assert "60 of 60 images are near-duplicates by this threshold" in said


class TestFiles:
  """Embeddings of another model."""

  def test_suspects_have_little_weight(self, tmp_path):
    """Wrong captions of a model that has not seen them come first."""
    text = make_pairs.unit_rows(3, 40, 8)
    image = text + 0.2 * make_pairs.unit_rows(4, 40, 8)
    text[[5, 9]] = text[[9, 5]]
    np.savez(tmp_path / "x.npz", image=image, text=text)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    popularity_page.write(given, tmp_path)
    rows = table(tmp_path / "popularity" / "suspects.csv")
    assert {int(x["pair"]) for x in rows[:2]} == {5, 9}
    weights = [float(x["match_probability"]) for x in rows]
    assert weights == sorted(weights) and "neighbours_distance" not in rows[0]

  @pytest.mark.parametrize("shared", [True, False])
  def test_suspects_among_class_names_look_like_other_classes(
    self, shared, tmp_path
  ):
    """Captions that are equal name a class, also under ids of their own."""
    label = np.arange(80) % 4
    text = make_pairs.unit_rows(3, 4, 8)[label]
    image = 3 * text + make_pairs.unit_rows(4, 80, 8)
    given, caption = label.copy(), [f"class {i}" for i in label]
    for i, j in ((5, 6), (10, 15)):
      given[[i, j]] = given[[j, i]]
      text[[i, j]] = text[[j, i]]
      caption[i], caption[j] = caption[j], caption[i]
    ids = given if shared else np.arange(80)
    np.savez(
      tmp_path / "x.npz", image=image, text=text, text_id=ids, caption=caption
    )
    pairs = subject.from_files(str(tmp_path / "x.npz"), temperature=0.5)
    path = popularity_page.write(pairs, tmp_path)
    rows = table(tmp_path / "popularity" / "suspects.csv")
    assert {int(x["pair"]) for x in rows[:4]} == {5, 6, 10, 15}
    found = [float(x["self_confidence"]) for x in rows]
    assert found == sorted(found) and found[0] < 0.1 < 0.9 < found[-1]
    assert "match_probability" in rows[0]
    summary = json.loads(path.with_name("summary.json").read_text())
    assert summary["suspects_ordered_by"] == "self_confidence"
    assert "names of classes" in path.read_text()

  def solved(self, tmp_path, *, trained=False, **content):
    """The folder of tables, for embeddings of a model."""
    np.savez(tmp_path / "x.npz", **content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    popularity_page.write(given._replace(trained=trained), tmp_path)
    return tmp_path / "popularity"

  def test_a_wrong_pair_is_suspicious_however_often_it_occurs(self, tmp_path):
    """Its copies do not vouch for it."""
    topics = make_pairs.unit_rows(0, 10, 16)
    topic = np.arange(200) // 20
    image, text = (
      topics[topic] + 0.2 * make_pairs.unit_rows(key, 200, 16) for key in (1, 2)
    )
    row = np.append(np.arange(200), [0] * 12)  # the first image once, and again
    column = np.append(np.arange(200), [20] * 12)  # with a text of topic 1
    folder = self.solved(
      tmp_path,
      trained=True,
      image=image[row],
      text=text[column],
      image_id=row,
      text_id=column,
    )
    first = table(folder / "suspects.csv")[:12]
    assert {int(x["pair"]) for x in first} == set(range(200, 212))
    assert len({x["neighbours_distance"] for x in first}) == 1

  def test_a_caption_that_fits_better(self, tmp_path):
    """Only of another image, so that right pairs have none."""
    text = make_pairs.unit_rows(3, 40, 8)
    image = text[np.r_[:40, 7]] + 0.1 * make_pairs.unit_rows(4, 41, 8)[0]
    text_id = np.r_[:40, 8]
    text_id[[5, 9]] = 9, 5
    image_id = np.r_[:40, 7]  # the last pair is the image 7 with the text 8
    image[40] = image[7]
    folder = self.solved(
      tmp_path,
      image=image,
      text=text[text_id],
      image_id=image_id,
      text_id=text_id,
      caption=[f"c{i}" for i in text_id],
    )
    listed = read_page.lists(folder / "popularity.html")["suspects"]
    found = dict(zip(listed["caption"], listed["rather"], strict=True))
    assert found == {f"c{i}": "" for i in range(40)} | {"c5": "c9", "c9": "c5"}

  @pytest.mark.parametrize("last", [False, True])
  @pytest.mark.parametrize("trained", [False, True])
  def test_texts_alike_in_any_order_of_rows(self, last, trained, tmp_path):
    """Texts 0 and 1 share the image 0, but have others, too."""
    text = make_pairs.unit_rows(3, 30, 8)
    text[1] = text[0] + 1e-3 * make_pairs.unit_rows(5, 1, 8)
    text_id = np.r_[0, 1, 0, 1, 0, 1, 2:30]
    image_id = np.r_[0, 0, 1:33]
    image = make_pairs.unit_rows(4, 33, 8)[image_id]
    order = np.r_[2:34, 0, 1] if last else np.arange(34)
    content = dict(image=image, image_id=image_id, text_id=text_id)
    content = {name: x[order] for name, x in content.items()}
    folder = self.solved(tmp_path, trained=trained, text=text, **content)
    clusters = [int(x["cluster"]) for x in table(folder / "texts.csv")]
    assert clusters == [1, 1] + [0] * 28

  def test_equal_rows_without_ids_are_exact_copies(self, tmp_path):
    image = make_pairs.unit_rows(4, 60, 8)
    image[41] = image[7]
    text = make_pairs.unit_rows(3, 60, 8)
    folder = self.solved(tmp_path, image=image, text=text)
    copies = table(folder / "duplicates.csv")
    assert [x["kind"] for x in copies] == ["exact"] * 2
    assert {int(x["image"]) for x in copies} == {7, 41}

  def test_rare_captions_are_no_classes(self, tmp_path):
    label = np.r_[np.arange(72) % 4, np.arange(4, 12)]
    text = make_pairs.unit_rows(3, 12, 8)
    image = text[label] + 0.3 * make_pairs.unit_rows(4, 80, 8)
    np.savez(tmp_path / "x.npz", image=image, text=text, text_id=label)
    pairs = subject.from_files(str(tmp_path / "x.npz"), temperature=0.5)
    path = popularity_page.write(pairs, tmp_path)
    rows = table(tmp_path / "popularity" / "suspects.csv")
    assert "self_confidence" not in rows[0]
    summary = json.loads(path.with_name("summary.json").read_text())
    assert summary["suspects_ordered_by"] == "match_probability"

  def setup_method(self):
    self.text = make_pairs.unit_rows(0, 20, 8)
    self.text_id = np.arange(50) % 20
    noise = 0.3 * make_pairs.unit_rows(1, 50, 8)
    self.image = self.text[self.text_id] + noise
    self.content = dict(
      image=self.image,
      text=self.text,
      text_id=self.text_id,
      caption=np.array([f"caption, {i}" for i in self.text_id]),
    )

  def test_arrays_that_are_not_used_are_an_error(self, tmp_path):
    """A wrong name for ids would make all images different."""
    content = self.content | {"image_ids": np.arange(50), "uid": np.arange(50)}
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(ValueError, match=r"arrays \['image_ids', 'uid'\], whi"):
      subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)

  def test_swapped_arrays_are_an_error(self, tmp_path):
    for name in ("text", "image"):
      np.save(tmp_path / f"{name}.npy", self.image)
    given = ",".join(str(tmp_path / f"{x}.npy") for x in ("text", "image"))
    with pytest.raises(
      ValueError, match=r"text.npy is given as .* images, and"
    ):
      subject.from_files(given, temperature=0.1)

  def test_copies_without_ids_are_warned_of(self, tmp_path, caplog):
    arrays = dict(image=self.image, text=self.text[self.text_id])
    np.savez(tmp_path / "x.npz", **arrays)
    subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    assert "30 of 50 rows of text are copies" in caplog.text
    assert "rows of image" not in caplog.text
    caplog.clear()
    np.savez(tmp_path / "x.npz", **arrays, text_id=self.text_id)
    subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    assert "copies" not in caplog.text

  def test_captions_of_bytes(self, tmp_path):
    """As TFDS gives them; bytes that are no UTF-8 show as such."""
    texts = [f"café {i}".encode() for i in range(19)] + [b"caf\xe9"]
    caption = np.array([texts[i] for i in self.text_id])
    np.savez(tmp_path / "x.npz", **self.content | {"caption": caption})
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    assert given.captions([7, 19]) == ["café 7", "caf\ufffd"]

  def test_npz(self, tmp_path):
    np.savez(tmp_path / "x.npz", **self.content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    popularity_page.write(given, tmp_path)
    rows = table(tmp_path / "popularity" / "texts.csv")
    assert rows[7]["caption"] == "caption, 7"
    assert not [x for x in rows[7] if x.endswith("learned")]
    unit = self.image / np.linalg.norm(self.image, axis=1, keepdims=True)
    exact = popularity.solve(
      unit, self.text[self.text_id], temperature=0.1, text_id=self.text_id
    )
    found = [float(row["zeta_exact"]) for row in rows]
    # Both stop at a residual of 1e-3, times the temperature.
    np.testing.assert_allclose(found, exact.zeta.text, atol=1e-4)

  def test_the_page_has_both_ends_of_many(self, tmp_path, monkeypatch):
    monkeypatch.setattr("nuclr_jax.lab.report.popularity_page.ENDS", 4)
    np.savez(tmp_path / "x.npz", **self.content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    path = popularity_page.write(given, tmp_path)
    rows = table(tmp_path / "popularity" / "texts.csv")
    rows.sort(key=lambda x: -float(x["zeta_exact"]))
    expected = [x["caption"] for x in rows[:4] + rows[-4:]]
    assert read_page.lists(path)["texts"]["caption"] == expected
    text = read_page.parsed(path).text
    assert "leaves out 12 in the middle, which texts.csv has" in text

  def test_texts_that_look_like_formulas(self, tmp_path):
    """A spreadsheet takes them for text, and readers get them as they were."""
    texts = ["=1+1", "@A1", "+1", "-1+2", "\t=1", "\r=1", "  =1", "'tis", "''"]
    texts += ["＝1", "\n-1", "a=b", "5-3", "it's", "x@y", 'a,"=1', "photo.jpg"]
    texts += ["-5", "=", "''=1"]
    caption = np.array([texts[i] for i in self.text_id])
    np.savez(tmp_path / "x.npz", **self.content | {"caption": caption})
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    folder = popularity_page.write(given, tmp_path).parent
    for name in ("texts.csv", "images.csv", "suspects.csv"):
      cells = table(folder / name)
      for row in cells:
        assert not re.match(r"\s*[=@+\-＝]|[\t\r\n]", row["caption"])
        float(
          row.get("zeta_exact", 0)
        )  # numbers stay numbers, negative ones too
      assert {x["caption"] for x in cells} >= {"a=b", "photo.jpg", "'=1+1"}
      assert {x["caption"] for x in tables.read(folder / name)} == set(texts)
      for column in cells[0].keys() - {"caption"}:
        assert not [x for x in cells if x[column].startswith("'")], column
    assert [x["caption"] for x in tables.read(folder / "texts.csv")] == texts

  def test_links_in_an_unpacked_folder(self, tmp_path):
    """What they lead to stays as it is."""
    np.savez(tmp_path / "x.npz", **self.content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    folder, secret = tmp_path / "popularity", tmp_path / "secret"
    secret.write_text("precious")
    folder.mkdir()
    names = ["images.csv", "texts.csv", "suspects.csv", "duplicates.csv"]
    names += ["popularity.npz", "summary.json", "summary.json.tmp", "zeta.png"]
    for name in [*names, "popularity.html", "popularity.html.tmp"]:
      (folder / name).symlink_to(secret)
    popularity_page.write(given, tmp_path)
    assert secret.read_text() == "precious"
    links = {x.name for x in folder.iterdir() if x.is_symlink()}
    assert links == {"summary.json.tmp", "popularity.html.tmp"}

  def test_a_folder_that_is_a_link(self, tmp_path):
    np.savez(tmp_path / "x.npz", **self.content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "popularity").symlink_to("elsewhere")
    with pytest.raises(ValueError, match="popularity is a link to elsewhere"):
      popularity_page.write(given, tmp_path)
    assert not list((tmp_path / "elsewhere").iterdir())

  def test_two_at_once(self, tmp_path):
    np.savez(tmp_path / "x.npz", **self.content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    with files.locked(tmp_path / "popularity"):
      with pytest.raises(ValueError, match="popularity is in use by process"):
        popularity_page.write(given, tmp_path)
    assert popularity_page.write(given, tmp_path).exists()

  def test_texts_alone_after_pairs(self, tmp_path):
    """No table of other data stays beside theirs."""
    np.savez(tmp_path / "x.npz", **self.content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    folder = popularity_page.write(given, tmp_path).parent
    (folder / "marks.csv").write_text("not ours")
    popularity_page.write(given._replace(of_texts=True), tmp_path)
    assert {x.name for x in folder.iterdir() if x.name[0] != "."} == {
      *("texts.csv", "popularity.npz", "summary.json", "popularity.html"),
      *("zeta.png", "marks.csv"),
    }

  def test_tables_by_id_on_both_sides(self, tmp_path):
    image_id = np.arange(50) % 30
    content = self.content | dict(image=3 * self.image[:30], image_id=image_id)
    np.savez(tmp_path / "x.npz", **content)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    assert len(given.pairs.pair_id) == 50
    norm = np.linalg.norm(given.pairs.image, axis=1)
    np.testing.assert_allclose(norm, 1, rtol=1e-5)  # scaled
    popularity_page.write(given, tmp_path)
    summary = json.loads((tmp_path / "popularity/summary.json").read_text())
    assert (summary["pairs"], summary["pairs_solved"]) == (50, 50)
    assert (summary["images"], summary["texts"]) == (30, 20)

  @pytest.mark.parametrize(
    "change, message",
    [
      (dict(text_id=np.array(["a"] * 50)), "text_id must be integers"),
      (dict(image=np.zeros((50, 8))), "must be finite and not zero; row 0 is"),
      (dict(image=np.full((50, 8), np.inf)), r"row 0 is not \(50 such rows"),
      (dict(image=np.ones(50)), "image must be floating of shape"),
      (dict(text=np.ones((3, 8)), text_id=np.arange(3)), "got 50 and 3; say"),
      (dict(text=None), r"lacks the arrays \['text'\], it has"),
      (
        dict(image_id=np.arange(50)[::-1]),
        "50 rows of image in another order.*: leave image_id out",
      ),
      (dict(text_id=np.arange(50)), "must point into the 20 rows of text"),
      (dict(caption=np.array(["one"])), "one entry for each of 50 pairs"),
    ],
  )
  def test_what_is_wrong_is_said(self, change, message, tmp_path):
    content = {
      k: v for k, v in (self.content | change).items() if v is not None
    }
    np.savez(tmp_path / "x.npz", **content)
    with pytest.raises(ValueError, match=message):
      subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)

  @pytest.mark.parametrize("factor", [1e-30, 1e30])
  def test_norms_of_any_size(self, factor, tmp_path):
    """Squares overflow in float32; a norm of inf would make every row zero."""
    image = self.content["image"]
    scaled = self.content | {"image": (image * factor).astype(np.float32)}
    np.savez(tmp_path / "x.npz", **scaled)
    given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.1)
    norm = np.linalg.norm(given.pairs.image, axis=1)
    np.testing.assert_allclose(norm, 1, rtol=1e-5)

  def test_no_temperature_or_no_file(self, tmp_path):
    with pytest.raises(ValueError, match="need --temperature"):
      subject.from_files("x.npz", temperature=None)
    with pytest.raises(ValueError, match="no.npz does not exist"):
      subject.from_files(str(tmp_path / "no.npz"), temperature=0.1)
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="broken.npz cannot be read"):
      subject.from_files(str(tmp_path / "broken.npz"), temperature=0.1)
    with pytest.raises(ValueError, match="one .npz, two .npy files"):
      subject.from_files("x.npy", temperature=0.1)
