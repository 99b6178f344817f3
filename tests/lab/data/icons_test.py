"""Icons: the package, names, untrusted drawings, splits, and preparation."""

import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import make_icons
import numpy as np
import pytest

from nuclr_jax.lab import data
from nuclr_jax.lab.data.icons import (
  builder,
  copies,
  drawing,
  families,
  names,
  pool,
  render,
)
from nuclr_jax.lab.data.icons import package as icons_package
from nuclr_jax.lab.data.icons.package import open_package, read_sets
from nuclr_jax.lab.data.icons.render import Icon
from nuclr_jax.lab.data.records import read_columns
from nuclr_jax.lab.data.tfds_reader import read_only_builder
from nuclr_jax.lab.evaluate import recall_by_origin
from nuclr_jax.lab.evaluate.evaluators import Embed
from nuclr_jax.lab.evaluate.retrieval import retrieval_evaluator

pytest.importorskip("resvg_py", reason="icons are drawn by resvg")
BOX = (0.0, 0.0, 24.0, 24.0)
SQUARE = '<path d="M0 0h24v24H0z"/>'


@pytest.fixture(scope="module")
def package(tmp_path_factory):
  folder = tmp_path_factory.mktemp("package")
  return make_icons.write_package(folder / "icons.tgz")


def prepare(data_dir, package, **arguments):
  arguments = dict(version=make_icons.VERSION, processes=1) | arguments
  return builder.prepare_icons(data_dir, package=package, size=16, **arguments)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, package):
  return prepare(tmp_path_factory.mktemp("icons"), package)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  return {
    str(x.relative_to(folder)): x.read_bytes()
    for x in sorted(folder.rglob("*"))
    if x.is_file() and x.name != ".lock"
  }


class TestPackage:
  def test_finds_sets_and_version(self, package):
    opened = open_package(package, make_icons.VERSION)
    assert opened.version == make_icons.VERSION and len(opened.places) == 14

  def test_hidden_icons_and_aliases_are_left_out(self, package):
    (first,) = read_sets(open_package(package), ["set4"])
    assert [x.name for x in first.icons] == sorted(make_icons.SHAPES)
    assert first.author == "Author of set4" and first.license == "MIT"

  def test_an_unknown_set(self, package):
    with pytest.raises(ValueError, match="no set 'set99'; it has 14 sets"):
      list(read_sets(open_package(package), ["set99"]))

  def test_another_version(self, package):
    with pytest.raises(ValueError, match="is version 1.0.0 .*pack .*2.0.0"):
      open_package(package, "2.0.0")

  def test_another_package(self, tmp_path):
    path = make_icons.write_package(tmp_path / "x.tgz", {}, name="left-pad")
    with pytest.raises(ValueError, match="the package left-pad, not @iconify"):
      open_package(path)

  @pytest.mark.parametrize("part", [0.2, 0.9])
  def test_a_truncated_file(self, package, tmp_path, part):
    raw = package.read_bytes()
    (tmp_path / "x.tgz").write_bytes(raw[: int(part * len(raw))])
    with pytest.raises(ValueError, match="x.tgz cannot be read.*npm pack .*n$"):
      open_package(tmp_path / "x.tgz")

  def test_a_flipped_byte(self, package, tmp_path):
    raw = bytearray(package.read_bytes())
    raw[len(raw) // 2] ^= 255
    (tmp_path / "x.tgz").write_bytes(raw)
    remedy = r"x.tgz cannot be read.*with npm pack @iconify/json@1\.0\.0$"
    with pytest.raises(ValueError, match=remedy):
      open_package(tmp_path / "x.tgz", "1.0.0")

  @pytest.mark.parametrize(
    ("content", "reason"),
    [
      (b"{", "is not JSON"),
      (b"[" * 100_000, "is not JSON"),
      (b"[]", "holds no object, but a list"),
      (b"{}", "is not a set of icons"),
      (b'{"icons": {"a": {}}}', "is not a set of icons"),
      (b'{"icons": {"a": {"body": 3}}}', "is not a set of icons"),
      (
        b'{"icons": {"a": {"body": "", "width": "x"}}}',
        "is not a set of icons",
      ),
      (b'{"icons": [1]}', "is not a set of icons"),
    ],
  )
  def test_wrong_json(self, tmp_path, content, reason):
    path = make_icons.write_package(tmp_path / "x.tgz", {"mine": content})
    with pytest.raises(ValueError, match=f"x.tgz.*mine.json {reason}"):
      list(read_sets(open_package(path)))

  def test_a_set_that_is_a_link(self, package, tmp_path):
    path = tmp_path / "x.tgz"
    with tarfile.open(package) as old, tarfile.open(path, "w:gz") as new:
      for member in old.getmembers():
        file = old.extractfile(member)
        if member.name == "package/json/set4.json":
          member.type, member.linkname = tarfile.SYMTYPE, "set3.json"
          member.size, file = 0, None
        new.addfile(member, file)
    with pytest.raises(ValueError, match="set package/json/set4.json cannot"):
      open_package(path)

  def test_a_set_that_is_too_large(self, package, monkeypatch):
    monkeypatch.setattr(icons_package, "MAX_SET", 200)
    with pytest.raises(ValueError, match="set[0-9]+.json cannot be read: more"):
      open_package(package)


class TestNames:
  @pytest.mark.parametrize(
    ("name", "expected"),
    [
      ("calendar-outline", ("calendar", "outline", "")),
      ("outline", ("outline", "", "")),
      ("grid-3x3", ("grid 3x3", "", "")),
      ("flag-4x3", ("flag", "", "4x3")),
      ("alarm-24px", ("alarm", "", "24px")),
      ("Arrow_Up", ("arrow up", "", "")),
      ("24-hours", ("24 hours", "", "")),
      ("battery-20", ("battery 20", "", "")),
      ("clock-20-outline", ("clock", "outline", "20")),
    ],
  )
  def test_parts(self, name, expected):
    suffixes = ["outline", "20-outline", "flag", "4x3"]
    if name == "grid-3x3":
      suffixes = ["outline"]
    assert tuple(names.split_name(name, suffixes)) == expected

  def test_a_style_that_the_set_does_not_declare_is_a_word(self):
    assert names.split_name("calendar-outline").words == "calendar outline"


class TestDrawing:
  @pytest.mark.parametrize("name", make_icons.BAD)
  def test_flaws(self, name):
    body, word = make_icons.BAD[name]
    with pytest.raises(ValueError, match=word):
      render.draw(Icon(name, body, BOX), 16)

  @pytest.mark.parametrize(
    "body",
    [
      "<g>" * 40 + "</g>" * 40,
      "<g/>" * 10_001,
      f'<path d="{"M0 0" * 300_000}"/>',
      '<filter id="a"><feGaussianBlur stdDeviation="1e9"/></filter>',
      "<filter>" + "<feFlood/>" * 501 + "</filter>",
      '<a:use xmlns:a="http://www.w3.org/2000/svg" href="#a"/>',
      '<use xmlns:a="http://www.w3.org/1999/xlink" a:href="/x.svg#a"/>',
      '<path style="fill:u\\72l(http://a.b/c)" d="M0 0"/>',
      '<g onload="x()"/>',
      "<?xml-stylesheet href='a.css'?><g/>",
      '</svg><svg><path d="M0 0"/>',
      "\ud800",
    ],
    ids=range(12),
  )
  def test_more_flaws(self, body):
    assert render.flaw(Icon("x", body, BOX))

  @pytest.mark.parametrize(
    "box", [(0, 0, 0, 24), (0, 0, 24, -1), (0, 0, np.inf, 1), (0, 0, 1e9, 1)]
  )
  def test_flaws_of_boxes(self, box):
    assert "box" in render.flaw(Icon("x", SQUARE, box))

  def test_colours_become_darkness_and_boxes_squares(self):
    red = '<path fill="red" d="M0 0h24v24H0z"/>'
    image = render.draw(Icon("x", red, (0.0, 0.0, 24.0, 12.0)), 16)[..., 0]
    assert not image[:4].any() and not image[12:].any()
    np.testing.assert_array_equal(image[4:12], 255 - 76)  # the luma of red

  def test_current_color_is_ink(self):
    body = '<path fill="currentColor" d="M0 0h24v24H0z"/>'
    assert (render.draw(Icon("x", body, BOX), 16) == 255).all()

  def test_a_moved_box(self):
    body = '<path d="M100 50h24v24h-24z"/>'
    image = render.draw(Icon("x", body, (100.0, 50.0, 24.0, 24.0)), 16)
    assert (image == 255).all()


class TestPool:
  def test_an_icon_that_takes_forever_is_left_out(self, monkeypatch, tmp_path):
    """Groups that use groups: 2**40 squares in little text."""
    script = pathlib.Path(render.__file__).read_text()
    copy = tmp_path / "render.py"
    copy.write_text(script.replace("SECONDS = 5 ", "SECONDS = 1 "))
    monkeypatch.setattr(render, "__file__", str(copy))
    bomb = '<g id="a0"><path d="M0 0h9v9z"/></g>'
    for i in range(25):
      use = f'<use href="#a{i}"/>'
      bomb += f'<g id="a{i + 1}">{use}{use}</g>'
    icons = [Icon("x", x, BOX) for x in (SQUARE, bomb, SQUARE)]
    with pool.painters(1, 16) as draw:
      done = draw(icons).result()
    assert done.drawn == [0, 2] and list(done.reasons) == [1]
    assert (done.images == 255).all() and len(done.images) == 2

  def test_a_process_that_dies_is_replaced(self, monkeypatch, tmp_path):
    script = pathlib.Path(render.__file__).read_text()
    copy = tmp_path / "render.py"
    copy.write_text(
      script.replace(
        "    _limit_time()\n",
        "    _limit_time()\n    if icon.name == 'die': os.abort()\n",
      )
    )
    monkeypatch.setattr(render, "__file__", str(copy))
    icons = [Icon(x, SQUARE, BOX) for x in ("a", "die", "die", "b")]
    with pool.painters(1, 16) as draw:
      done = draw(icons).result()
    assert done.drawn == [0, 3]
    assert all("SIGABRT" in x for x in done.reasons.values())

  def test_a_process_that_cannot_start(self, monkeypatch, tmp_path):
    copy = tmp_path / "render.py"
    copy.write_text("raise ImportError('no resvg here')")
    monkeypatch.setattr(render, "__file__", str(copy))
    with pool.painters(2, 16) as draw:
      drawing = draw([Icon("x", SQUARE, BOX)])
      with pytest.raises(ValueError, match="ended: ImportError: no resvg here"):
        drawing.result()

  def test_processes_end_with_an_error(self):
    with pytest.raises(KeyboardInterrupt):
      with pool.painters(2, 16) as draw:
        draw([Icon("x", SQUARE, BOX)] * 50)
        raise KeyboardInterrupt


class TestFamilies:
  def test_about_a_sixth_of_the_families_are_held_out(self):
    splits = [families.split_of(f"designer {i}") for i in range(4_000)]
    shares = [splits.count(x) / 4_000 for x in families.SPLITS]
    np.testing.assert_allclose(shares, [0.7, 0.15, 0.15], atol=0.02)

  def test_spellings_of_an_author(self):
    names = ("Google", "Google Inc", "google inc.", "The Google Authors")
    assert {families.normalised(x) for x in names} == {"google"}

  def test_no_set_is_in_two_families(self):
    path = pathlib.Path(families.__file__).with_name(families.TABLE)
    content = json.loads(path.read_text())["families"]
    listed = [x for family in content.values() for x in family["sets"]]
    assert len(listed) == len(set(listed))
    assert all(family["reason"] for family in content.values())


class TestCopies:
  def test_moves_and_sizes_are_no_matter_and_shapes_are(self):
    x = np.zeros((3, 32, 32, 1), np.uint8)
    x[0, 2:18, 2:6] = x[1, 8:24, 20:24] = x[2, 10:14, 4:20] = 255
    kinds = copies.kinds(copies.thumbnails(x[1:]), copies.thumbnails(x[:1]))
    assert kinds.tolist() == [copies.EXACT, copies.NONE]

  def test_near_pairs_are_those_of_a_loop(self):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (6, 144), np.uint8)
    y = np.clip(x + random.integers(-60, 60, x.shape), 0, 255).astype(np.uint8)
    pairs, value = copies.near_pairs(x, y, least=0.9)
    sim = np.array([[np.corrcoef(a, b)[0, 1] for b in y] for a in x])
    np.testing.assert_array_equal(pairs, np.argwhere(sim >= 0.9))
    np.testing.assert_allclose(value, sim[sim >= 0.9], rtol=1e-12)
    assert 0 < len(pairs)


class TestPreparation:
  def test_records(self, prepared):
    columns, _ = read_columns(prepared, "train")
    assert columns["image"].shape[1:] == (16, 16, 1)
    assert columns["image"].any((1, 2, 3)).all()
    rows = list(zip(columns["set"], columns["icon"], strict=True))
    i = rows.index(("set3", "arrow-left-24-filled"))
    assert columns["caption"][i] == "arrow left"
    assert (columns["style"][i], columns["size"][i]) == ("filled", "24")
    assert rows == sorted(rows) and ("set3", "old") not in rows

  def test_reading_in_order_shows_no_error_of_groups(self, prepared, caplog):
    """The records are in groups, which array_record logs an error about."""
    builder = read_only_builder(prepared)
    with caplog.at_level("ERROR", "absl"):
      read_columns(prepared, "train")
      assert not caplog.records
      builder.as_data_source("train")[0]
      assert "created with group size" in caplog.text

  def test_tfds_reads_the_records(self, prepared):
    source = read_only_builder(prepared).as_data_source("test")
    columns, _ = read_columns(prepared, "test")
    assert len(source) == len(columns["image"]) == 12
    for i, row in enumerate(source):
      np.testing.assert_array_equal(row["image"], columns["image"][i])
      assert row["icon"].decode() == columns["icon"][i]
      assert row["copy"] == columns["copy"][i] and row["index"] == i

  def test_other_processes_make_the_same_bytes(
    self, prepared, package, tmp_path
  ):
    code = (
      "from nuclr_jax.lab.data.icons import builder; "
      f"builder.prepare_icons({str(tmp_path)!r}, package={str(package)!r}, "
      f"version={make_icons.VERSION!r}, size=16, processes=2)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    (again,) = tmp_path.glob("icons/*")
    assert contents(again) == contents(prepared.parent)

  def test_splits_share_no_set(self, prepared):
    sets = [set(read_columns(prepared, x)[0]["set"]) for x in families.SPLITS]
    assert not sets[0] & sets[1] and not (sets[0] | sets[1]) & sets[2]
    assert not {"brands", "animated"} & (sets[0] | sets[1] | sets[2])

  def test_what_is_rejected_is_said(self, package, tmp_path, caplog):
    caplog.set_level("INFO")
    folder = prepare(tmp_path, package)
    with (folder.parent / "rejected.csv").open() as file:
      count = len(list(csv.DictReader(file)))
    assert f"{count} of 203 icons are left out; {folder.parent}" in caplog.text

  def test_tables(self, prepared):
    with (prepared.parent / "sets.csv").open() as file:
      rows = {row["set"]: row for row in csv.DictReader(file)}
    assert len(rows) == 12 and rows["set4"]["icons"] == "12"
    assert rows["set7"]["split"] == "test" and int(rows["set7"]["copies"]) > 0
    with (prepared.parent / "rejected.csv").open() as file:
      rejected = list(csv.DictReader(file))
    assert {x["icon"] for x in rejected} == {*make_icons.BAD, "flat"}

  def test_bits_depend_on_neither_processes_nor_kills(
    self, prepared, package, tmp_path
  ):
    place = tmp_path / prepared.parent.relative_to(prepared.parents[2])
    opened = open_package(package, make_icons.VERSION)
    chosen = drawing.choose_sets(opened)[:3]  # what a killed run has finished
    (place / "drawn").mkdir(parents=True)
    drawing.draw_sets(chosen, place / "drawn", size=16, processes=1)
    (place / "drawn" / "set1.npz").write_bytes(b"PK damaged")
    (place / "incomplete.1.0.0.abc").mkdir()
    again = prepare(tmp_path, package, processes=2)
    assert contents(again.parent) == contents(prepared.parent)

  def test_a_killed_command_goes_on(self, prepared, package, tmp_path):
    code = (
      "from nuclr_jax.lab.data.icons import builder; "
      f"builder.prepare_icons({str(tmp_path)!r}, package={str(package)!r}, "
      f"version={make_icons.VERSION!r}, size=16, processes=1)"
    )
    command = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 120
    while not list(tmp_path.rglob("*.npz")) and time.monotonic() < end:
      assert command.poll() is None or list(tmp_path.rglob("dataset_info.json"))
      time.sleep(0.02)
    command.send_signal(signal.SIGKILL)
    command.wait()
    again = prepare(tmp_path, package)
    assert contents(again.parent) == contents(prepared.parent)

  def test_prepared_data_need_no_package(self, prepared, tmp_path):
    data_dir = tmp_path / "data"
    shutil.copytree(prepared.parents[2], data_dir)
    prepare(data_dir, tmp_path / "missing.tgz")

  def test_a_missing_package(self, tmp_path):
    with pytest.raises(ValueError, match=r"npm pack @iconify/json@1\.0\.0"):
      prepare(tmp_path, None)

  def test_sets_in_one_string(self, package, tmp_path):
    with pytest.raises(ValueError, match=r"'set0'; give .* \('set0',\)"):
      prepare(tmp_path, package, sets="set0")

  def test_the_package_is_found_in_the_data_folder(self, package, tmp_path):
    shutil.copy(package, tmp_path / "iconify-json-1.0.0.tgz")
    prepare(tmp_path, None)

  def test_data_that_were_made_in_another_way(
    self, prepared, tmp_path, monkeypatch
  ):
    shutil.copytree(prepared.parents[1], tmp_path / "icons")
    prepare(tmp_path, None)  # needs no package
    monkeypatch.setattr(builder, "_renderer", lambda: "9.9.9")
    made = prepared.parent.name
    with pytest.raises(ValueError, match=f"{made} is of other sets.* 9.9.9"):
      prepare(tmp_path, None)

  def test_too_many_rejected(self, tmp_path):
    content = make_icons.sets()
    content["set4"]["icons"] |= {
      f"bad{i}": {"body": "<script/>"} for i in range(9)
    }
    path = make_icons.write_package(tmp_path / "x.tgz", content)
    with pytest.raises(ValueError, match="icons are rejected, more than 1 %"):
      prepare(tmp_path, path)
    assert not list(tmp_path.rglob("dataset_info.json"))

  def test_sets_of_one_split_only(self, package, tmp_path):
    with pytest.raises(ValueError, match="no icons for validation and test"):
      prepare(tmp_path, package, sets=("set0", "set1"))

  def test_chosen_sets_get_a_folder_of_their_own(self, prepared):
    assert builder.fingerprint(["a", "b"]) == builder.fingerprint(["b", "a"])
    assert builder.fingerprint(["a"]) not in prepared.parent.name

  def test_without_resvg(self, monkeypatch, package, tmp_path):
    monkeypatch.setattr(builder, "_renderer", lambda: None)
    with pytest.raises(ValueError, match=r'pip install "nuclr_jax\[icons\]"'):
      prepare(tmp_path, package)

  def test_size_out_of_range(self, package, tmp_path):
    with pytest.raises(ValueError, match="from 8 to 512 pixels, got 4"):
      builder.prepare_icons(tmp_path, version="1.0.0", size=4)


@pytest.fixture(scope="module")
def opened(prepared):
  return data.DATASETS["icons"](
    data_dir=prepared.parents[2], version=make_icons.VERSION, size=16
  )


class TestIcons:
  def test_equal_captions_are_one_text(self, opened):
    sizes = opened.train.sizes
    num_names = len({*make_icons.SHAPES, "wide"})
    assert sizes.num_texts == num_names < sizes.num_pairs
    ids = np.arange(sizes.num_pairs)
    captions = opened.train.captions(opened.train.ids(ids).text)
    assert captions.count("arrow left") == 8 + 3

  def test_captions_with_styles(self, prepared):
    styled = data.DATASETS["icons"](
      data_dir=prepared.parents[2],
      version=make_icons.VERSION,
      size=16,
      caption="name style",
      share_texts=False,
    )
    sizes = styled.train.sizes
    captions = styled.train.captions(np.arange(sizes.num_texts))
    assert sizes.num_texts == sizes.num_pairs
    assert "arrow left filled" in captions and "arrow left" in captions

  def test_a_pretrained_tokenizer(self, prepared, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "arrow", "left", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    arguments = dict(
      data_dir=prepared.parents[2], version=make_icons.VERSION, size=16
    )
    arguments |= dict(tokenizer=str(tmp_path), length=5)
    found = data.DATASETS["icons"](**arguments)
    captions = found.train.captions(np.arange(found.train.sizes.num_texts))
    ids = found.tokenizer.encode(["arrow left"])
    assert ids.tolist() == [[2, 4, 5, 3, 0]]
    pairs = found.train.fetch(np.arange(found.train.sizes.num_pairs))
    mine = captions.index("arrow left")
    assert (pairs.text[pairs.text_id == mine] == ids).all()
    with pytest.raises(ValueError, match="min_count is 2, but the words of"):
      data.DATASETS["icons"](**arguments, min_count=2)

  def test_weights_of_queries_are_those_of_a_loop(self, opened):
    held_out = opened.held_out["validation"].retrieval[""]
    random = np.random.default_rng(0)
    image = random.normal(size=(len(held_out.image), 4))
    text = random.normal(size=(len(held_out.captions), 4))
    embed = Embed(lambda _: image, lambda _: text)
    scores = retrieval_evaluator(held_out)(embed)
    sim = image @ text.T
    group = held_out.image_group
    hit = sim.argmax(1) == group
    found = group[sim.argmax(0)] == np.arange(len(text))
    balanced = np.mean([hit[group == t].mean() for t in range(len(text))])
    expected = {
      "natural/image_to_text": hit.mean(),
      "natural/text_to_image": found[group].mean(),
      "balanced/image_to_text": balanced,
      "balanced/text_to_image": found.mean(),
      "seen/image_to_text": hit.mean(),
    }
    for name, value in expected.items():
      np.testing.assert_allclose(
        scores[f"{name}/recall@1"], value, err_msg=name
      )
    assert not any(name.startswith("unseen") for name in scores)
    by_set = recall_by_origin(embed, held_out)
    for prefix in set(held_out.origin):
      mine = np.array([x == prefix for x in held_out.origin])
      at = by_set[prefix]
      np.testing.assert_allclose(at["image_to_text/recall@1"], hit[mine].mean())
      np.testing.assert_allclose(
        at["text_to_image/recall@1"], found[group[mine]].mean()
      )
