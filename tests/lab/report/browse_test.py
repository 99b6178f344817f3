"""Lists of a page: what it holds, and what its script does in a browser."""

import csv
import io
import json
import re

import numpy as np
import pytest
import read_page

from nuclr_jax.lab.data.captions import FORMULA, as_cell
from nuclr_jax.lab.report import browse, page, tables
from nuclr_jax.lab.report.browse import Listing

CAPTIONS = [
  "</script><script>document.title='stolen'</script>",
  "<img src=x onerror=\"document.title='stolen'\">",
  "<!-- <script> -->",
  'she said "a, b"\nand left\r\n',
  "=HYPERLINK(1)",
  "+1",
  "-1",
  "@x",
  "'tis",
  " =1",
  "ein Mädchen, 犬 🐶",
  "plain",
]
NAMES = [f"folder/{i} <b>&amp;.jpg" for i in range(len(CAPTIONS))]
LONG = "a" * (browse.LIMITS[0] + 7)
SCORE = [5.0, 1.0, float("nan"), 3.0, 4.0, 2.0, *(6.0 + i for i in range(6))]


def listing(name="suspects", **changes):
  columns = {
    "key": NAMES,
    "pair": np.arange(12) + 2**24 + 1,  # not exact in float32
    "caption": CAPTIONS,
    "score": np.array(SCORE, np.float32),
    "cluster": np.repeat([1, 2], 6),
  }
  orders = [("first", None, False), ("score", "score", False)]
  orders += [("score, falling", "score", True), ("name", "key", False)]
  return Listing(
    name,
    "Title",
    "<p>about</p>",
    f"{name}.csv",
    columns,
    np.arange(12),
    {"score": "score"},
    orders,
  )._replace(**changes)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  """A page with two lists: one is in groups, and has a text that is cut."""
  path = tmp_path_factory.mktemp("page") / "page.html"
  grouped = listing("duplicates", group="cluster")
  captions = [*CAPTIONS[:-1], LONG]
  grouped = grouped._replace(columns=grouped.columns | {"caption": captions})
  big = Listing(
    "many",
    "Many",
    "",
    "many.csv",
    {"n": np.arange(1000), "cluster": np.repeat([1, 2], [990, 10])},
    np.zeros(1000, int),
    {"n": "number"},
    [("first", None, False)],
    group="cluster",
  )
  images = np.arange(12)[:, None, None, None] * np.ones((12, 8, 8, 1))
  made = browse.sections(
    [listing(), grouped, big], lambda rows: np.uint8(images[rows])
  )
  page.write(path, "A <page>", made)
  return path


def test_texts_are_data_and_never_html(path):
  found = read_page.parsed(path)
  tags = [tag for tag, _ in found.tags]
  # Five scripts: the rows of three lists, what is common, and the code.
  assert tags.count("script") == 5 and tags.count("section") == 3
  assert not {"img", "b"} & set(tags)
  assert not [x for _, attrs in found.tags for x in attrs if x[:2] == "on"]
  rows = read_page.lists(path)["suspects"]
  assert rows["caption"] == CAPTIONS and rows["key"] == NAMES
  assert rows["pair"] == [2**24 + 1 + i for i in range(12)]
  np.testing.assert_array_equal(rows["score"], SCORE)
  for text in (*CAPTIONS[:3], "&amp;"):
    assert text not in found.text


def test_a_page_loads_nothing(path):
  found = read_page.parsed(path)
  (policy,) = (x for tag, x in found.tags if tag == "meta" and "content" in x
               and "http-equiv" in x)  # fmt: skip
  assert policy["content"].startswith("default-src 'none'; img-src data:;")
  assert not [x for _, x in found.tags if "src" in x]
  code = found.scripts["script"] + found.scripts["style"]
  assert not re.search(
    r"fetch\(|XMLHttp|import\(|https?:|url\(|innerHTML", code
  )


def test_long_texts_are_cut_and_counted(path):
  rows = read_page.lists(path)["duplicates"]
  assert rows["caption"][-1] == LONG[: browse.LIMITS[0]]
  common = json.loads(read_page.parsed(path).scripts["common"])
  number = common["texts"].index(rows["caption"][-1])
  assert common["missing"] == {str(number): 7}


def test_the_page_is_small_with_large_captions(tmp_path):
  """Of 300 captions of a megabyte, it has the beginnings."""
  n = 20_000
  captions = [f"caption {i}" for i in range(n)]
  captions[:300] = [f"{i} " + "x" * 1_000_000 for i in range(300)]
  columns = {"caption": captions, "score": np.arange(n, dtype=np.float32)}
  x = listing(columns=columns, photo=np.zeros(n, int))
  assert sum(map(len, browse.sections([x], lambda rows: None))) < 4_000_000


def test_rows_beyond_the_limit_are_named(monkeypatch, tmp_path):
  monkeypatch.setattr(browse, "ROWS", 5)
  made = browse.sections([listing()], lambda rows: None)
  page.write(tmp_path / "x.html", "x", made)
  text = read_page.parsed(tmp_path / "x.html").text
  assert "The page has 5 of the 12 rows; suspects.csv has all." in text
  assert read_page.lists(tmp_path / "x.html")["suspects"]["key"] == NAMES[:5]


def test_a_list_without_rows_has_no_controls(tmp_path):
  empty = browse.head(listing(), 0)
  page.write(tmp_path / "x.html", "x", browse.sections([empty], lambda x: None))
  found = read_page.parsed(tmp_path / "x.html")
  (attrs,) = (x for tag, x in found.tags if tag == "section")
  assert attrs == {"id": "suspects"} and "about" in found.text
  assert read_page.lists(tmp_path / "x.html")["suspects"]["caption"] == []


def test_thumbnails_are_those_of_first_rows(monkeypatch):
  """Of both ends where each caption is shown once, of the first of groups."""
  monkeypatch.setattr(browse, "THUMBNAILS", 4)
  assert browse._with_thumbnail(listing()).tolist() == [0, 1, 2, 3]
  captions = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "f", "f"]
  columns = listing().columns | {"caption": captions}
  once = listing(once=True, columns=columns)
  assert browse._with_thumbnail(once).tolist() == [0, 2, 11, 9]
  grouped = listing(columns=columns, group="cluster", photo=np.arange(12) + 5)
  assert browse._with_thumbnail(grouped).tolist() == [5, 6, 7, 8]


DRIVER = """
const of = list => list.rows.map(row => textOf(list, "caption", row));
const marks = list => [...list.cards.querySelectorAll(
  ".card.marked input:checked")].length;
const list = open("suspects"), other = open("duplicates"), many = open("many");
result = { title: document.title, shown: list.cards.children.length };
result.cardText = list.cards.children[1].textContent;
result.pictures = list.cards.querySelectorAll("img.small").length;
const boxes = list.cards.querySelectorAll("input");
for (const i of [3, 4, 10]) boxes[i].click();
result.saved = saved.textContent;
await new Promise(done => setTimeout(done, 100));
result.last = document.body.lastElementChild.id;
list.search.value = "FOLDER/1";
list.search.dispatchEvent(new Event("input"));
result.filtered = of(list);
result.markedInFilter = marks(list);
list.search.value = "";
list.search.dispatchEvent(new Event("input"));
for (const i of [1, 2]) {
  list.order.selectedIndex = i;
  list.order.dispatchEvent(new Event("change"));
  result["order" + i] = [...list.rows];
  result["marked" + i] = marks(list);
}
list.only.click();
result.only = [...list.rows];
list.only.click();
result.csv = csvOf(list);
list.marked = new Set(list.photo.keys());
result.all = csvOf(list);
other.cards.querySelectorAll("input")[11].click();
result.cut = csvOf(other);
result.cutCard = other.cards.querySelectorAll(".card")[11].textContent;
result.groups = [...many.cards.children].map(x => x.textContent);
many.cards.querySelector(".group button").click();
result.opened = many.items.length;
let blob, name;
URL.createObjectURL = x => { blob = x; return "data:,"; };
HTMLAnchorElement.prototype.click = function() { name = this.download; };
save(other);
result.blob = await blob.text();
result.name = name;
const letters = [];
for (let i = 0; i < 65536; i++) if (i < 0xd800 || i > 0xdfff)
  letters.push(i);
result.first = letters.filter(i => FORMULA.test(String.fromCharCode(i)));
result.between = letters.filter(
  i => FORMULA.test(String.fromCharCode(i) + "=1"));
result.exact = [exact(new Float32Array([0.1, -1e-9, 3]), 0),
  exact(new Float32Array([0.1, -1e-9, 3]), 1), exact(new Int32Array([7]), 0)];
result.numbers = [number(1.00004), number(0.25), number(1e-7), number(12345)];
"""


@pytest.fixture(scope="module")
def seen(path, tmp_path_factory):
  """What the page does in Chromium."""
  return read_page.run(path, DRIVER, tmp_path_factory.mktemp("browser"))


def rows_of(text):
  """The rows of a CSV text as `tables.read` gives them."""
  found = list(csv.reader(io.StringIO(text, newline="")))
  return found[0], found[1:]


class TestBrowser:
  def test_texts_of_others_are_shown_as_text(self, seen):
    assert seen["title"] == "A <page>"
    assert seen["shown"] == 12 and seen["pictures"] == 12
    assert CAPTIONS[1] in seen["cardText"] and NAMES[1] in seen["cardText"]

  def test_a_filter_keeps_marks(self, seen):
    # The bar is the last in the page, also below what follows the lists.
    assert seen["last"] == "saved"
    expected = [x for x, name in zip(CAPTIONS, NAMES, strict=True)
                if "folder/1" in name]  # fmt: skip
    assert seen["filtered"] == expected and len(expected) == 3
    assert seen["markedInFilter"] == 1
    assert "Save 3 of suspects as CSV" in seen["saved"]

  def test_orders_keep_marks(self, seen):
    """Rows without a number come last."""
    rising = [1, 5, 3, 4, 0, 6, 7, 8, 9, 10, 11, 2]
    assert seen["order1"] == rising
    assert seen["order2"] == [*rising[:-1][::-1], 2]
    assert seen["marked1"] == seen["marked2"] == 3
    assert sorted(seen["only"]) == [3, 4, 10]

  def test_csv_is_that_of_tables(self, seen, tmp_path):
    """By Python's own reader: quotes, newlines, formulas, other scripts."""
    header, rows = rows_of(seen["csv"])
    assert header == ["key", "pair", "caption", "score", "cluster"]
    assert [int(x[1]) for x in rows] == [2**24 + 1 + i for i in (3, 4, 10)]
    assert rows[1][2] == "'=HYPERLINK(1)"
    path = tmp_path / "x.csv"
    path.write_text(seen["all"], encoding="utf-8", newline="")
    found = tables.read(path)
    assert [x["caption"] for x in found] == CAPTIONS
    assert [x["key"] for x in found] == NAMES
    assert [x["score"] for x in found][:3] == ["5", "1", ""]
    written = tmp_path / "y.csv"
    tables.write(written, {"caption": CAPTIONS})
    with written.open(encoding="utf-8", newline="") as file:
      cells = [x[0] for x in rows_of(file.read())[1]]
    assert cells == [as_cell(x) for x in CAPTIONS]
    _, rows = rows_of(seen["all"])
    assert [x[2] for x in rows] == cells

  def test_a_cut_text_is_never_exported_as_a_whole(self, seen):
    header, (row,) = rows_of(seen["cut"])
    assert header[-1] == "caption_beginning"
    assert row[header.index("caption")] == ""
    assert row[-1] == LONG[: browse.LIMITS[0]]
    assert "more" in seen["cutCard"] and len(seen["cutCard"]) < 500
    assert seen["blob"] == seen["cut"]
    assert seen["name"] == "duplicates_marked.csv"

  def test_large_groups_are_folded(self, seen):
    groups = seen["groups"]
    assert groups[0] == "cluster 1: 990 rows"
    assert groups[13] == "Show the other 978 of cluster 1"
    assert groups[14] == "cluster 2: 10 rows" and len(groups) == 24
    assert seen["opened"] == 1000 + 2

  def test_formulas_are_those_of_captions(self, seen):
    """For all characters of the first plane, at the beginning and later."""
    letters = [i for i in range(65536) if not 0xD800 <= i <= 0xDFFF]
    assert seen["first"] == [i for i in letters if FORMULA.match(chr(i))]
    both = [i for i in letters if FORMULA.match(chr(i) + "=1")]
    assert seen["between"] == both and len(both) > 20

  def test_numbers_say_no_more_than_they_hold(self, seen):
    assert seen["exact"] == ["0.1", "-1e-9", "7"]
    assert seen["numbers"] == ["1", "0.25", "1.0e-7", "12,345"]


def test_without_a_browser_the_test_is_skipped(monkeypatch, path, tmp_path):
  monkeypatch.setattr(read_page, "BROWSERS", ("no such browser",))
  with pytest.raises(pytest.skip.Exception, match="no Chromium"):
    read_page.run(path, "", tmp_path)
