"""Captions in files as users have them: lines, lists and encodings."""

import gzip
import io
import json
import zipfile

from make_photos import PHOTOS, write_tar
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest

from nuclr_jax.lab.data import captions, sentences, tar_files
from nuclr_jax.lab.evaluate import prior
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.user_files import inputs
from nuclr_jax.lab.user_files.items import (
  BROKEN_ROW,
  NO_CAPTION,
  ONLY_HIDDEN,
  Item,
  Rejected,
)

FIVE = ["A dog runs.", "some  dog", "Größe, 犬", "a dog", "fur"]


def checked(given, **how):
  """Captions of the images, and reasons of what is rejected, by key."""
  items = [
    item
    for part in inputs.plan(str(given), **how).parts
    for item in records.check_items(part.read())
  ]
  return (
    {x.key: x.captions for x in items if isinstance(x, Item)},
    [(x.key, x.reason) for x in items if isinstance(x, Rejected)],
  )


def streamed(path):
  """The same, as a stream without ids reads a tar."""
  found = [part.content for part in tar_files.read_samples(str(path))]
  return (
    {x.key: x.captions for x in found if isinstance(x, tar_files.TarSample)},
    [(x.key, x.reason) for x in found if isinstance(x, tar_files.LeftOut)],
  )


def beside(folder, texts):
  """A tar and a folder of the same images and files beside them."""
  files = [(f"{key}.jpg", PHOTOS[0]) for key in {x[0] for x in texts}]
  files += [(f"{key}.{end}", data) for key, end, data in texts]
  (folder / "photos").mkdir()
  for name, data in files:
    (folder / "photos" / name).write_bytes(data)
  return write_tar(folder / "x.tar", sorted(files)), folder / "photos"


def everywhere(folder, texts):
  """What a tar, a stream and a folder make of texts; they have to agree."""
  tar, photos = beside(folder, texts)
  found = checked(tar)
  assert streamed(tar)[0] == found[0]
  kept, wrong = checked(photos)
  assert {key.removesuffix(".jpg"): x for key, x in kept.items()} == found[0]
  assert sorted(x.removesuffix(".jpg") for x, _ in wrong) == sorted(
    x for x, _ in found[1]
  )
  return found


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_line_of_a_text_file_is_a_caption(tmp_path, end):
  text = end.join([*FIVE[:2], "", "  ", *FIVE[2:], ""])
  found = everywhere(tmp_path, [("a", "txt", text.encode())])
  assert found == ({"a": FIVE}, [])


def test_only_line_ends_separate_captions(tmp_path):
  """Web captions hold what `str.splitlines` takes for the end of a line."""
  text = "one\u2028caption\x0bwith\x85all\x1cof them"
  assert len(text.splitlines()) == 5
  found = everywhere(tmp_path, [("a", "txt", f"{text}\n".encode())])
  assert found == ({"a": [text]}, [])


def test_lines_that_json_has_as_one_caption_are_one(tmp_path):
  """As img2dataset writes an alternative text with line breaks."""
  text = "Dogs.\nBuy one\r\nnow!\n"
  whole, other = (
    json.dumps({"caption": x}).encode() for x in (text, "Something else")
  )
  kept, _ = everywhere(
    tmp_path,
    [
      *[("a", "txt", text.encode()), ("a", "json", whole)],
      *[("b", "txt", text.encode()), ("b", "json", other)],
      *[("c", "txt", text.encode()), ("c", "json", b"{")],
    ],
  )
  lines = ["Dogs.", "Buy one", "now!"]
  assert kept == {"a": [text.strip()], "b": lines, "c": lines}


def test_a_column_of_text_files(tmp_path):
  """Parquet files made of webdataset's tars have the column `txt`."""
  table = {"jpg": PHOTOS[:2], "txt": ["\n".join(FIVE), "one"]}
  parquet.write_table(pa.table(table), tmp_path / "x.parquet")
  kept, _ = checked(tmp_path / "x.parquet")
  assert list(kept.values()) == [FIVE, ["one"]]


SIGNATURE = "utf-8-sig", "utf-16", "utf-32"
MARKED = {x: "a café".encode(x) for x in SIGNATURE}
MARKED["utf-16-be"] = b"\xfe\xff" + "a café".encode("utf-16-be")
NO_UTF8 = {
  "cp1252": "a café’s".encode("cp1252"),
  "utf-16-le": "a dog".encode("utf-16-le"),
  "utf-16-be": "a dog".encode("utf-16-be"),
}


def test_marks_say_the_encoding_and_are_no_part_of_a_caption(tmp_path):
  texts = [(f"{key}1", "txt", data) for key, data in MARKED.items()]
  texts += [
    (f"{key}2", "json", json.dumps({"caption": "a café"}).encode(key))
    for key in SIGNATURE
  ]
  texts += [("joined", "txt", b"\n".join([MARKED["utf-8-sig"]] * 2))]
  kept, wrong = everywhere(tmp_path, texts)
  assert wrong == []
  assert kept.pop("joined") == ["a café"] * 2
  assert len(kept) == 7 and set(map(tuple, kept.values())) == {("a café",)}


def test_why_an_image_has_no_caption(tmp_path):
  texts = [(key, "txt", data) for key, data in NO_UTF8.items()]
  texts += [("json", "json", '{"caption": "a café"}'.encode("cp1252"))]
  texts += [("empty", "txt", b"?!"), ("two", "txt", b"a dog\ncaf\xe9\n")]
  kept, wrong = everywhere(tmp_path, texts)
  assert kept == {"two": ["a dog"]}
  expected = dict.fromkeys([*NO_UTF8, "json", "two"], captions.NO_UTF8)
  assert dict(wrong) == expected | {"empty": NO_CAPTION}


@pytest.mark.parametrize("encoding", [*SIGNATURE, "utf-8"])
def test_tables_in_any_marked_encoding(tmp_path, encoding):
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  row = {"image": "0.jpg", "caption": "a café"}
  for ending, text in {
    "csv": "\ufeffimage,caption\n\ufeff0.jpg,a café\n",
    "tsv": "image\tcaption\r\n0.jpg\ta café\r\n",
    "json": json.dumps([row], ensure_ascii=False),
    "jsonl": json.dumps(row, ensure_ascii=False),
  }.items():
    path = tmp_path / f"{encoding}.{ending}"
    path.write_bytes(text.encode(encoding))
    assert checked(path) == ({"0.jpg": ["a café"]}, [])


def test_a_table_in_utf_16_without_a_mark(tmp_path):
  for ending, text in {"csv": "image,caption\n", "jsonl": "{}"}.items():
    path = tmp_path / f"x.{ending}"
    path.write_bytes(text.encode("utf-16-le"))
    with pytest.raises(ValueError, match="is not UTF-8: it begins with NULs"):
      inputs.plan(str(path))


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl"])
def test_a_table_that_is_no_text(tmp_path, ending):
  """A compressed one, or a spreadsheet that was renamed."""
  path, archive = tmp_path / f"x.{ending}", io.BytesIO()
  with zipfile.ZipFile(archive, "w") as file:
    file.writestr("[Content_Types].xml", "<Types/>")
  for data, message in {
    gzip.compress(b"image,caption\n"): "compressed with gzip; decomp",
    archive.getvalue(): "a ZIP archive or a spreadsheet .* CSV UTF-8",
    bytes.fromhex("d0cf11e0a1b11ae1")
    + bytes(504): "a file of older Excel .* export it",
  }.items():
    path.write_bytes(data)
    with pytest.raises(
      ValueError, match=f"x.{ending} is not a text file: it is {message}"
    ):
      inputs.plan(str(path))


@pytest.mark.parametrize("encoding", SIGNATURE)
def test_sentences_and_priors_with_a_mark(tmp_path, encoding):
  path = tmp_path / "x.csv"
  path.write_bytes("A café.\r\nA cat.\nA café.\n".encode(encoding))
  assert sentences.read_sentences(path) == ["A café.", "A cat."]
  path.write_bytes("5\tA café.\tDogs.\r\n0\tA dog.\tNoon.\n".encode(encoding))
  rated = sentences.read_rated_pairs(path)
  assert rated.score.tolist() == [5, 0] and rated.first[0] == "A café."
  path.write_bytes("a café,30\na cat,10\n".encode(encoding))
  found = prior.make_prior(path)(["a cat", "a café"])
  np.testing.assert_allclose(np.exp(found), [10, 30])


@pytest.mark.parametrize("data", NO_UTF8.values(), ids=NO_UTF8)
def test_sentences_that_are_not_utf_8(tmp_path, data):
  path = tmp_path / "x.txt"
  path.write_bytes(data)
  with pytest.raises(ValueError, match=r"x.txt.*(UTF-8|utf-8)"):
    sentences.read_sentences(path)
  path.write_bytes(b"one\ntwo\0\n")
  with pytest.raises(ValueError, match="holds NULs"):
    sentences.read_sentences(path)


QUOTED = ["it's", 'a "dog"', "both ' and \"", "Größe\n犬"]
PRINTED = {
  "JSON": json.dumps(QUOTED),
  "JSON, not ASCII": json.dumps([*QUOTED, "😀"]),
  "Python": str(QUOTED),
  "tuple": str(tuple(QUOTED)),
  "NumPy": str(np.array(QUOTED, object)),
  "over lines": str(np.array([*QUOTED, "x" * 90, "y" * 90])),
  "objects": str([{"raw": x, "tokens": [x]} for x in QUOTED]),
  "objects in JSON": json.dumps([{"caption": x, "id": 7} for x in QUOTED]),
  "in an object": json.dumps({"captions": QUOTED, "id": 7}),
  "bytes": str([x.encode() for x in QUOTED]),
  "an array": repr(np.array(QUOTED, object)),
  "an array of strings": repr(np.array(QUOTED)),
  "NumPy's strings": str(list(np.array(QUOTED))),
}


@pytest.mark.parametrize("kind", PRINTED)
def test_a_list_that_is_printed_is_its_captions(kind):
  more = {"JSON, not ASCII": ["😀"], "over lines": ["x" * 90, "y" * 90]}
  expected = QUOTED + more.get(kind, [])
  assert captions.tidy_captions([PRINTED[kind]]) == (expected, [])


@pytest.mark.parametrize(
  "text",
  [
    *["[MUSIC] a man", "[MUSIC] a man [APPLAUSE]", "[a dog]", "[1]", "[it's]"],
    *["[it's a dog's life]", "(a dog)", "('a dog')", '("a dog")', "['a dog"],
    *["[a, 'b']", "'a' 'b'", "[[a link]]", "{a dog}"],
  ],
)
def test_a_caption_in_brackets_is_no_list(text):
  assert captions.tidy_captions([text]) == ([text], [])


OTHERS = {
  "{'a': 1}": "an object (a)",
  "{'en': 'a dog', 'de': 'ein Hund'}": "an object (en, de)",
  "{'1': 'a', 'a b': 'c', 2: 'd'}": "an object",
  str(dict.fromkeys("abcdef", 1)): "an object (a, b, c, d)",
  '{"generated_text": "a dog"}': "an object (generated_text)",
  "[{'generated_text': 'a dog'}]": "an object (generated_text)",
  "[['a'], ['b']]": "a list in a list",
  "[('a dog', 0.9)]": "a list in a list",
  "{'caption': 7}": "of the type int",
}


@pytest.mark.parametrize("text", OTHERS)
def test_a_printed_object_without_a_caption_is_none(text):
  """The reason says what it is."""
  found = captions.tidy_captions([text])
  assert found == ([], [captions.NO_TEXT + OTHERS[text]])


@pytest.mark.parametrize("kind", ["json", "tables", "images"])
@pytest.mark.parametrize(
  "caption, what, flag",
  [
    ({"en": "a dog", "de": "ein Hund"}, "an object (en, de)", "caption/en"),
    ([{"en": "a dog"}], "an object (en)", "caption/en"),
    ([["a", "dog"]], "a list in a list", ""),
    *[(7, "of the type int", ""), (True, "of the type bool", "")],
    *[(None, "", ""), ([], "", ""), ({"caption": None}, "", "")],
    *[({}, "", ""), (float("nan"), "", "")],
  ],
)
def test_a_caption_that_is_no_text(tmp_path, kind, caption, what, flag):
  """A table has a flag that reads what is in an object."""
  hint = f"; give --caption_column={flag}" if flag else ""
  reason = f"{captions.NO_TEXT}{what}{hint}" if what else NO_CAPTION
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  if kind == "json":
    (tmp_path / "0.json").write_text(json.dumps({"caption": caption}))
    assert checked(tmp_path)[1] == [("0.jpg", reason.removesuffix(hint))]
    return
  image = "0.jpg" if kind == "tables" else PHOTOS[0]
  cells = [pa.array([caption])] if what or kind == "images" and caption else []
  if hint and isinstance(caption, dict):  # for keys that differ between rows
    cells.append(pa.array([[*caption.items()]], pa.map_("string", "string")))
  files = [tmp_path / f"{i}.parquet" for i in range(len(cells))]
  for path, cell in zip(files, cells, strict=True):
    parquet.write_table(pa.table({"image": [image], "caption": cell}), path)
  if kind == "tables":
    files.append(tmp_path / "x.jsonl")
    files[-1].write_text(json.dumps({"image": image, "caption": caption}))
  for path in files:
    assert {x for _, x in checked(path)[1]} == {reason}
    if hint:
      kept, _ = checked(path, caption_column=flag)
      assert [*kept.values()] == [["a dog"]]


@pytest.mark.parametrize("text", [b"", b" \n", b"?!\n"])
def test_an_empty_text_file_hides_no_json(tmp_path, text):
  texts = [("a", "txt", text), ("a", "json", b'{"caption": "a dog"}')]
  texts += [("b", "txt", text), ("b", "json", b'{"caption": ["?!"]}')]
  kept, wrong = everywhere(tmp_path, texts)
  assert (kept, dict(wrong)) == ({"a": ["a dog"]}, {"b": NO_CAPTION})


WORDS = ["NA", "#N/A", "n/a", "#NAME?", "#DIV/0!", "NaT", "NULL"]
WORDS += ["#ERROR!", "#SPILL!", "#CALC!", "#FIELD!", "#BUSY!", "#BLOCKED!"]
WORDS += ["#CONNECT!", "#UNKNOWN!", "#GETTING_DATA", "Err:501", "Err:540"]


@pytest.mark.parametrize("word", WORDS)
def test_the_word_for_a_missing_value_is_no_caption(word):
  """As R, pandas and spreadsheets write it."""
  found = captions.tidy_captions([f" {word} ", f"a {word}"])
  assert found == ([f"a {word}"], [captions.NO_VALUE])


def test_words_that_resemble_errors_of_spreadsheets_are_captions():
  texts = ["#ERROR", "#BUSY", "#SPILL! #BUSY!", "Err:50", "Err:404", "Err:5012"]
  assert captions.tidy_captions(texts) == (texts, [])


def test_what_is_missing_from_a_printed_list_is_listed():
  for text in ('["a", null]', "['a', None]", "['a' nan]", "['a', '']"):
    found = captions.tidy_captions([text])
    assert found == (["a"], [captions.EMPTY_CAPTION])
  assert captions.tidy_captions(["[]"]) == ([], [captions.EMPTY_CAPTION])


def test_a_list_that_was_cut_is_no_caption():
  """NumPy prints the ends of a long list only."""
  text = str(np.array([f"dog {i}" for i in range(2_000)], object))
  assert captions.tidy_captions([text]) == ([], [captions.CUT_LIST])
  assert captions.tidy_captions(["[... music]"])[1] == []


def test_an_enormous_list_is_read_at_once():
  for text in (
    "[" * 100_000,
    "['a'" + " " * 100_000 + "x]",
    "[" + "-" * 100_000,
    "[" + "\\'" * 100_000,
    "['" + '\\"' * 100_000,
  ):
    assert captions.tidy_captions([f"{text}]"])[1] in (
      [captions.TOO_LONG],
      [captions.EMPTY_CAPTION],
    )


def test_a_caption_of_any_reasonable_length():
  """A longer one, of which tokenizers make gigabytes, is left out alone."""
  longest = ("word " * captions.MAX_LETTERS)[: captions.MAX_LETTERS - 1] + "s"
  texts = ["a dog", longest, f"{longest}s"]
  assert captions.tidy_captions(texts) == (texts[:2], [captions.TOO_LONG])


def test_lists_in_cells_of_tables(tmp_path):
  """As Flickr30k's annotations have them, and a table that pandas printed."""
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  two = ["Two dogs, a cat", "it's a cat"]
  cell = json.dumps(two).replace('"', '""')
  for name, text in {
    "x.csv": f'filename,raw,split\n0.jpg,"{cell}",test\n',
    "y.csv": f'filename;raw\n0.jpg;"{np.array(two)}"\n',
    "z.jsonl": json.dumps({"filename": "0.jpg", "raw": str(two)}),
    "w.json": json.dumps(
      [{"filename": "0.jpg", "raw": [{"raw": x, "sentid": 7} for x in two]}]
    ),
  }.items():
    if name == "y.csv":
      text = text.replace('"it\'s a cat"', '""it\'s a cat""')
    (tmp_path / name).write_text(text)
    found = checked(tmp_path / name, caption_column="raw")
    assert found == ({"0.jpg": two}, [])


def test_the_results_of_flickr30k(tmp_path):
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  rows = [
    "image_name| comment_number| comment",
    "0.jpg| 0| Two men , outside .",
  ]
  rows += ["0.jpg| 1| A man .", "0.jpg| 4   A dog runs ."]  # as it is there
  (tmp_path / "results.csv").write_text("\n".join(rows))
  found = checked(
    tmp_path / "results.csv",
    image_column="image_name",
    caption_column="comment",
  )
  assert found[0] == {"0.jpg": ["Two men , outside .", "A man ."]}
  assert found[1] == [("line 4", BROKEN_ROW)]


JSON_TEXTS = {
  "list": '[\n  "a dog",\n  "a cat"\n]\n',
  "objects": '[{"caption": "a dog"},\n {"caption": "a cat"}]',
  "lines": '{"caption": "a dog"}\n{"text": "a cat"}\n',
  "set": "{'a dog', 'a cat'}",
}


def test_a_text_file_that_holds_json(tmp_path):
  texts = [(key, "txt", x.encode()) for key, x in JSON_TEXTS.items()]
  texts += [("one", "txt", b"{'raw': 'a dog'}")]
  texts += [("keys", "txt", b"{'a': 1}")]
  plain = {"music": "[MUSIC]\na dog]", "brace": "{a dog}"}
  texts += [(key, "txt", x.encode()) for key, x in plain.items()]
  kept, wrong = everywhere(tmp_path, texts)
  assert wrong == [("keys", f"{captions.NO_TEXT}an object (a)")]
  expected = dict.fromkeys(JSON_TEXTS, ["a dog", "a cat"])
  expected |= {key: x.split("\n") for key, x in plain.items()}
  assert kept == expected | {"one": ["a dog"]}


def test_endings_in_capitals(tmp_path):
  for key, ending, text in [
    *[("0", "TXT", "a dog"), ("1", "JSON", '{"caption": "a cat"}')],
    *[("2", "TXT", "no"), ("2", "txt", "an ape")],
  ]:
    (tmp_path / f"{key}.jpg").write_bytes(PHOTOS[int(key)])
    (tmp_path / f"{key}.{ending}").write_text(text)
  kept, _ = checked(tmp_path)
  assert list(kept.values()) == [["a dog"], ["a cat"], ["an ape"]]


@pytest.mark.parametrize("name", ["caption", "caption_0", "caption 0"])
def test_columns_of_captions_that_are_not_read(tmp_path, caplog, name):
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  others = [name.rstrip("0") + str(i) for i in (1, 2)]
  header = ",".join(["image", name, *others, "captions_source"])
  (tmp_path / "x.csv").write_text(f"{header}\n0.jpg,a,b,c,d\n")
  inputs.plan(str(tmp_path / "x.csv"), caption_column=name)
  assert f"column {name} alone, not from {', '.join(others)};" in caplog.text
  data = {x: ["a"] for x in (name, *others)} | {"image": PHOTOS[:1]}
  parquet.write_table(pa.table(data), tmp_path / "x.parquet")
  caplog.clear()
  inputs.plan(str(tmp_path / "x.parquet"), caption_column=name)
  assert f"column {name} alone, not from {', '.join(others)};" in caplog.text


def test_marks_within_files_of_sentences_and_priors(tmp_path):
  path = tmp_path / "x.tsv"
  path.write_text("5\ta dog\t\ufeffdogs\n\ufeff0\ta dog\ta cat\n")
  assert sentences.read_rated_pairs(path).second == ["dogs", "a cat"]
  for name, text in [
    ("x.csv", "a dog,3\n\ufeffa cat,1\n"),
    ("x.json", '{"a dog": 3, "\\ufeff a cat": 1}'),
  ]:
    (tmp_path / name).write_text(text)
    found = prior._read(tmp_path / name)
    assert found == {"a dog": 3, "a cat": 1}
    nul = "\0" if name == "x.csv" else "\\u0000"
    (tmp_path / name).write_text(text.replace("dog", f"dog{nul}"))
    with pytest.raises(ValueError, match="is not text in UTF-8"):
      prior._read(tmp_path / name)


def test_what_hides_captions_is_said(tmp_path, caplog):
  pair = [(".cache/0.jpg", PHOTOS[0]), (".cache/0.txt", b"a dog")]
  tar = write_tar(tmp_path / "x.tar", pair)
  assert checked(tar) == ({}, [("", ONLY_HIDDEN)])
  _, photos = beside(tmp_path, [("0", "txt", b"a dog")])
  (tmp_path / "more").mkdir()
  (photos / "linked").symlink_to(tmp_path / "more")
  assert checked(photos) == ({"0.jpg": ["a dog"]}, [])
  assert "1 links to folders, such as linked, are not followed" in caplog.text
