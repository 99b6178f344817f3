"""Tables that name splits: no row to test on becomes one to train on."""

import csv
import json
import re

from make_photos import PHOTOS, read, rejected
import pyarrow as pa
from pyarrow import parquet
import pytest

from nuclr_jax.lab import ingest
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.user_files import columnar, inputs, tables
from nuclr_jax.lab.user_files.items import NO_CAPTION, NO_SPLIT, Rejected

SPLITS = [
  "train",
  "Val",
  "test",
  "restval",
  "dev",
  "TEST",
  "training",
  " train",
]
EXPECTED = {"train": "0367", "validation": "14", "test": "25"}
KINDS = "csv", "tsv", "json", "jsonl", "parquet"


def write(folder, kind, splits, column="split"):
  """A table of images 0.jpg, 1.jpg and so on."""
  rows = [
    {"image": f"{i}.jpg", "caption": f"thing {i}", column: split}
    for i, split in enumerate(splits)
  ]
  path = folder / f"t.{kind}"
  if kind == "json":
    path.write_text(json.dumps(rows))
  elif kind == "jsonl":
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  elif kind == "parquet":
    data = {key: [row[key] for row in rows] for key in rows[0]}
    data["image"] = [PHOTOS[i % 6] for i in range(len(rows))]
    parquet.write_table(pa.table(data), path, row_group_size=3)
  else:
    with path.open("w", newline="") as file:
      delimiter = "\t" if kind == "tsv" else ","
      writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
      writer.writeheader()
      writer.writerows(rows)
  for i in range(len(rows)):
    (folder / f"{i}.jpg").write_bytes(PHOTOS[i % 6])
  return path


def planned(given, **how):
  """The last digits of captions, and reasons of rejections, split by split."""
  kept, wrong = {}, {}
  for part in inputs.plan(str(given), **how).parts:
    for item in part.read():
      if isinstance(item, Rejected):
        wrong.setdefault(part.split, []).append(item.reason)
      else:
        numbers = (caption[-1] for caption in item.captions)
        kept[part.split] = kept.get(part.split, "") + "".join(numbers)
  return kept, wrong


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", ["split", "Partition", "set"])
def test_a_column_of_splits(tmp_path, kind, column):
  path = write(tmp_path, kind, SPLITS, column)
  assert planned(path) == (EXPECTED, {})
  for made in (True, False):  # by nuclr ingest, or only read
    found = planned(path, split="test", made=made)
    assert found == ({"test": "25"}, {})
    found = planned(path, split="val", made=made)
    assert found == ({"validation": "14"}, {})
  with pytest.raises(ValueError, match="'validation'], not vali; name one"):
    inputs.plan(str(path), split="vali")


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_splits_are_an_error_that_names_them(tmp_path, kind):
  path = write(tmp_path, kind, ["train", "tset", "fold3", "test"])
  message = "column split .* values fold3, tset, .*--split_column="
  with pytest.raises(ValueError, match=message):
    inputs.plan(str(path))
  found = planned(path, split_column="", split="mine")
  assert found == ({"mine": "0123"}, {})


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_flags_are_no_splits(tmp_path, kind):
  for column, values in [("split", [0, 1, 2]), ("is_test", [False, True])]:
    path = write(tmp_path, kind, values, column)
    with pytest.raises(ValueError, match=f"column {column} names splits, but"):
      inputs.plan(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_split_are_listed(tmp_path, kind):
  path = write(tmp_path, kind, ["val", None, "test", "val", None, "test", ""])
  reasons = {"test": [NO_SPLIT] * 3}  # there is no train
  assert planned(path) == ({"validation": "03", "test": "25"}, reasons)
  path = write(tmp_path, kind, ["", "", ""])
  assert planned(path, split="mine") == ({"mine": "012"}, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_vague_name_is_one_of_splits_by_its_values(tmp_path, kind, caplog):
  path = write(tmp_path, kind, ["cc3m", "sbu"], "subset")
  assert planned(path) == ({"train": "01"}, {})
  assert "subset, with the values cc3m, sbu, is not taken for" in caplog.text
  with pytest.raises(ValueError, match="the values cc3m, sbu"):
    inputs.plan(str(path), split_column="subset")
  path = write(tmp_path, kind, ["train", "sbu"], "subset")
  with pytest.raises(ValueError, match="has the values sbu, which"):
    inputs.plan(str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_the_user_names(tmp_path, kind):
  path = write(tmp_path, kind, ["train", "test"], "use")
  assert planned(path, split_column="") == ({"train": "01"}, {})
  assert planned(path, split_column="use") == ({"train": "0", "test": "1"}, {})
  with pytest.raises(ValueError, match="no column other; it has"):
    inputs.plan(str(path), split_column="other")


@pytest.mark.parametrize("kind", KINDS)
def test_any_column_may_name_splits_by_its_values(tmp_path, kind, caplog):
  path = write(tmp_path, kind, ["train", "test", "val"], "ml_use")
  expected = {"train": "0", "test": "1", "validation": "2"}
  assert planned(path) == (expected, {})
  assert "column ml_use is taken for one of splits" in caplog.text
  for values in (["train", "car", "plane"], ["train", "train", "train"]):
    path = write(tmp_path, kind, values, "label")  # a train is a vehicle
    assert planned(path, split="test") == ({"test": "012"}, {})
  path = write(tmp_path, kind, ["", "test", "train"], "use")
  assert planned(path)[1] == {"train": [NO_SPLIT]}
  path = write(tmp_path, kind, ["train", "test", "val"], "Data-Split")
  assert planned(path) == (expected, {})
  path = write(tmp_path, kind, [True, False], "train")
  assert planned(path) == ({"train": "01"}, {})
  assert "column train, with the values false, true, is not" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_with_some_words_for_splits_is_warned_of(
  tmp_path, kind, caplog
):
  path = write(tmp_path, kind, ["train", "eval", ""], "mode")
  assert planned(path) == ({"train": "012"}, {})
  assert (
    "column mode has the values eval, train, (blank), and is not taken"
    in (caplog.text)
  )
  assert "--split_column=mode" in caplog.text
  with pytest.raises(ValueError, match="has the values eval, which are not"):
    inputs.plan(str(path), split_column="mode")
  caplog.clear()
  write(tmp_path, kind, ["train", *"abcdefghi"], "kind")  # a vehicle
  inputs.plan(str(path))
  assert "the column kind" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  "values, shown",
  [
    (["", "", "test"], "test, (blank)"),
    (["train", None, "train"], "train, (blank)"),
    (["test", "testing", "test"], "test, testing"),
    (["train", "train", "training"], ""),  # a vehicle
    ([None, "car", "bus"], ""),
  ],
)
def test_an_unusual_column_of_one_split_is_warned_of(
  tmp_path, kind, caplog, values, shown
):
  path = write(tmp_path, kind, values, "use")
  for split in ("train", "test"):
    caplog.clear()
    assert planned(path, split=split) == ({split: "012"}, {})
    said = [x for x in caplog.messages if "the column use" in x]
    assert len(said) == bool(shown)
    for message in said:
      assert f"has the values {shown}, and is not taken for one" in message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", ["split", "use"])
def test_words_for_splits_may_be_numbered(tmp_path, kind, column, caplog):
  """As the names of folders may."""
  values = ["train_2014", "Val2014", "test-1", "train"]
  path = write(tmp_path, kind, values, column)
  expected = {"train": "03", "validation": "1", "test": "2"}
  assert planned(path) == (expected, {})
  assert planned(path, split="val", made=False)[0] == {"validation": "1"}
  path = write(tmp_path, kind, [f"train_{i}" for i in range(9)], "name")
  caplog.clear()
  assert planned(path) == ({"train": "012345678"}, {})
  assert "the column name" not in caplog.text


def test_splits_that_parquet_stores_as_bytes_or_by_number(tmp_path):
  for values in (pa.array([b"train", b"test"]), pa.array(["train", "test"])):
    data = {"image": PHOTOS[:2], "caption": ["thing 0", "thing 1"]}
    data["split"] = values.dictionary_encode()
    parquet.write_table(pa.table(data), tmp_path / "x.parquet")
    found = planned(tmp_path / "x.parquet")
    assert found == ({"train": "0", "test": "1"}, {})


def test_splits_of_karpathy_in_capitals_or_missing(tmp_path):
  for i in range(3):
    (tmp_path / f"{i}.jpg").write_bytes(PHOTOS[i])

  def written(splits):
    images = [
      {"filename": f"{i}.jpg", "sentences": [{"raw": f"thing {i}"}]}
      | ({"split": x} if x else {})
      for i, x in enumerate(splits)
    ]
    (tmp_path / "x.json").write_text(json.dumps({"images": images}))
    return tmp_path / "x.json"

  found = planned(written(["Train", " TEST", "restval"]))
  assert found == ({"train": "02", "test": "1"}, {})
  assert planned(written([""] * 3), split="test") == ({"test": "012"}, {})
  reasons = {"train": [NO_SPLIT]}
  assert planned(written(["train", "", "test"]))[1] == reasons


@pytest.mark.parametrize(
  "names",
  [
    ("Train", "Test"),
    ("training", "testing"),
    ("train2017", "test1"),
    ("trainA", "testA"),
    ("TrainImages", "TestImages"),
  ],
)
def test_folders_are_called_by_splits_in_many_ways(tmp_path, names, caplog):
  for name in names:
    (tmp_path / name).mkdir()
    (tmp_path / name / "0.jpg").write_bytes(PHOTOS[0])
    (tmp_path / name / "0.txt").write_text(f"{name} 0")
  for split, name in zip(("train", "test"), names, strict=True):
    (part,) = inputs.plan(str(tmp_path), split=split).parts
    assert [x.key for x in part.read()] == [f"{name}/0.jpg"]
  assert "several splits" not in caplog.text
  assert planned(f"{tmp_path}/*") == ({"train": "00"}, {})
  said = ", ".join(sorted(re.sub("Images|A$", "", x) for x in names))
  assert f"of several splits ({said})" in caplog.text


@pytest.mark.parametrize("name", ["cc-{}-000.parquet", "{}.parquet"])
def test_files_are_called_by_splits(tmp_path, name, caplog):
  for i, split in enumerate(("train", "test")):
    data = {"image": PHOTOS[:1], "caption": [f"thing {i}"]}
    parquet.write_table(pa.table(data), tmp_path / name.format(split))
  assert planned(tmp_path) == ({"train": "0"}, {})
  assert planned(tmp_path, split="test") == ({"test": "1"}, {})
  assert "several splits" not in caplog.text
  assert planned(f"{tmp_path}/*.parquet") == ({"train": "10"}, {})
  assert "are of several splits (test, train), and all" in caplog.text
  # Files that do not all name one may be called by what they show.
  data["caption"] = ["thing 2"]
  parquet.write_table(pa.table(data), tmp_path / "cars.parquet")
  assert sorted(planned(tmp_path)[0]["train"]) == ["0", "1", "2"]


def test_splits_in_images_of_coco(tmp_path):
  images = [
    {"id": i, "file_name": f"{i}.jpg", "split": x}
    for i, x in enumerate(["train", "val", "test"])
  ]
  annotations = [{"image_id": i, "caption": f"thing {i}"} for i in (0, 2)]
  content = {"images": images, "annotations": annotations}
  (tmp_path / "x.json").write_text(json.dumps(content))
  rows = list(tables.read_table(tmp_path / "x.json", split="train"))
  assert [split for split, _ in rows] == ["train", "test", "validation"]
  assert rows[2][1] == Rejected("1.jpg", str(tmp_path / "x.json"), NO_CAPTION)


def test_a_later_row_may_be_the_first_that_names_its_split(tmp_path):
  rows = [{"image": f"{i}.jpg", "caption": f"{i}"} for i in range(3)]
  rows[1]["split"] = "test"
  (tmp_path / "x.json").write_text(json.dumps(rows))
  found = list(tables.read_table(tmp_path / "x.json", split="train"))
  assert [split for split, _ in found] == ["test"] * 3
  assert [getattr(row, "reason", "") for _, row in found] == [
    *(NO_SPLIT, "", NO_SPLIT)
  ]


def test_equal_rows_of_different_splits_stay_apart(tmp_path):
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  text = (
    "image,caption,split\n0.jpg,a 1,train\n0.jpg,a 2,test\n0.jpg,a 3,train\n"
  )
  (tmp_path / "x.csv").write_text(text)
  kept, _ = planned(tmp_path / "x.csv")
  assert kept == {"train": "13", "test": "2"}


def unnamed(folder, kind, first):
  """A file without splits, or, of Parquet, with a column that is empty."""
  path = write(folder, kind, [None, None])
  if kind == "parquet":  # with a column of pyarrow's type null
    path = path.rename(folder / f"{first}.{kind}")
    data = parquet.read_table(path).to_pydict()
    data["caption"] = [f"thing {first}", f"thing {first + 1}"]
    parquet.write_table(pa.table(data), path)
    return path
  (folder / f"{first}.csv").write_text(
    f"image,caption\n0.jpg,thing {first}\n1.jpg,thing {first + 1}\n"
  )
  return folder / f"{first}.csv"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_that_name_no_split_beside_some_that_do(tmp_path, kind, caplog):
  """Their rows are of no split, as those of one file would be."""
  more = unnamed(tmp_path, kind, 4), unnamed(tmp_path, kind, 6)
  named = write(tmp_path, kind, ["train", "test", "val", ""])
  for first, last in ((named, more), (more[0], (more[1], named))):
    given = ",".join(map(str, (first, *last)))
    kept, wrong = planned(given)
    assert kept == {"train": "0", "test": "1", "validation": "2"}
    assert wrong == {"train": [NO_SPLIT] * 5}
    assert "2 files name no split, such as" in caplog.text
    for split, key in (("test", "test"), ("val", "validation")):
      kept, wrong = planned(given, split=split)
      assert kept == {key: {"test": "1", "val": "2"}[split]}
    found = planned(given, split="test", made=False)
    assert found == ({"test": "1"}, {"test": [NO_SPLIT]})
  caplog.clear()
  both = ",".join(map(str, more))
  (found,) = planned(both, split="test")[0].items()
  assert (found[0], sorted(found[1])) == ("test", [*"4567"])
  assert not caplog.records


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_may_be_of_a_split_by_its_name(tmp_path, kind):
  more = unnamed(tmp_path, kind, 4)
  more = more.rename(tmp_path / f"cc-train-0.{kind}")
  named = write(tmp_path, kind, ["test", "val"])
  kept, wrong = planned(f"{named},{more}")
  assert kept == {"test": "0", "validation": "1", "train": "45"}
  assert not wrong
  assert planned(f"{named},{more}", split="test")[0] == {"test": "0"}


def test_tables_of_a_folder_that_name_no_split(tmp_path):
  for name, split in (("a", "train"), ("b", "test"), ("c", None)):
    (tmp_path / name).mkdir()
    (tmp_path / name / "0.jpg").write_bytes(PHOTOS[0])
    row = {"file_name": "0.jpg", "text": name} | (
      {"split": split} if split else {}
    )
    (tmp_path / name / "metadata.jsonl").write_text(json.dumps(row))
  kept, wrong = planned(tmp_path)
  assert (kept, wrong) == ({"train": "a", "test": "b"}, {"train": [NO_SPLIT]})


def test_folders_of_splits_in_a_table_are_warned_of(tmp_path, caplog):
  for folder in ("train", "test"):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "0.jpg").write_bytes(PHOTOS[0])
  rows = [
    {"file_name": f"{x}/0.jpg", "text": f"a {i}"}
    for i, x in enumerate(("train", "test"))
  ]
  path = tmp_path / "metadata.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  assert planned(path) == ({"train": "01"}, {})
  assert "folders called test, train, and all of them become" in caplog.text


def test_several_columns_of_one_name(tmp_path):
  (tmp_path / "x.csv").write_text("image,caption,caption\n0.jpg,a,b\n")
  with pytest.raises(ValueError, match="several columns with the name caption"):
    inputs.plan(f"{tmp_path}/x.csv")


def test_a_damaged_row_group_is_listed(tmp_path):
  path = write(tmp_path, "parquet", ["train", "test", "train", "test"])
  at = parquet.ParquetFile(path).metadata.row_group(1).column(2)
  at = at.dictionary_page_offset or at.data_page_offset
  data = bytearray(path.read_bytes())
  data[at : at + 16] = b"\xff" * 16
  path.write_bytes(data)
  assert None in columnar.said_of_splits(str(path), 1, "split")
  kept, wrong = planned(path)
  assert kept == {"train": "02", "test": "1"}
  assert records.DAMAGED in wrong["train"]


def test_ingest_makes_all_splits_of_a_table(tmp_path):
  path = write(tmp_path, "parquet", [*SPLITS, None])
  options = {"data_dir": tmp_path / "out", "workers": 1}
  folder = ingest.ingest(str(path), "mine", **options)
  for split, numbers in EXPECTED.items():
    assert read(folder, split) == [
      (f"t-{int(i):09d}", PHOTOS[int(i) % 6], [f"thing {i}"]) for i in numbers
    ]
  (row,) = rejected(folder)
  assert (row["key"], row["reason"]) == ("t-000000008", NO_SPLIT)
  assert not rejected(folder, "validation") + rejected(folder, "test")
  with pytest.raises(ValueError, match="already, of another split_column"):
    ingest.ingest(str(path), "mine", split_column="", **options)


def test_what_is_only_read_must_name_its_splits(tmp_path):
  """A file that lacks the column is not read as whatever is asked for."""
  path = write(tmp_path, "parquet", "abcd", "kind")
  assert planned(path, split="test") == ({"test": "0123"}, {})
  with pytest.raises(ValueError, match="no splits that --split=test could"):
    planned(path, split="test", made=False)
  of_hub = path.rename(tmp_path / "test-00000-of-00001.parquet")
  found = planned(of_hub, split="test", made=False)
  assert found == ({"test": "0123"}, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_called_train_does_not_hide_the_splits(tmp_path, kind):
  """Other columns are asked if one is about something else."""
  path = write(tmp_path, kind, ["train", "test", "train", "test"], "use")
  if kind == "parquet":
    table = parquet.read_table(path)
    category = pa.array(["train", "cat", "dog", "bus"])
    parquet.write_table(table.add_column(0, "category", category), path)
  elif kind in ("csv", "tsv"):
    mark = "\t" if kind == "tsv" else ","
    lines = path.read_text().splitlines()
    first = ["category", "train", "cat", "dog", "bus"]
    path.write_text("\n".join(map(mark.join, zip(first, lines, strict=True))))
  else:
    text = path.read_text()
    for word in ("train", "cat", "dog", "bus"):
      text = text.replace('{"image"', f'{{"category": "{word}", "image" ', 1)
    path.write_text(text.replace('"image" ', '"image"'))
  assert planned(path) == ({"train": "02", "test": "13"}, {})


def test_rows_that_name_no_split_are_not_taken_for_the_one_asked_for(tmp_path):
  write(tmp_path, "csv", ["test", "train"]).rename(tmp_path / "a.csv")
  write(tmp_path, "csv", ["x", "y"], "kind").rename(tmp_path / "b.csv")
  given = f"{tmp_path}/a.csv,{tmp_path}/b.csv"
  found = planned(given, split="test", made=False)
  assert found == ({"test": "0"}, {})


def test_folders_above_an_input_name_no_split(tmp_path):
  folder = tmp_path / "val"
  folder.mkdir()
  path = write(folder, "parquet", "ab", "kind")
  with pytest.raises(ValueError, match="no splits that --split=val could"):
    inputs.plan(str(path), split="val", made=False)
