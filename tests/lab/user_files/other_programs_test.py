"""Files as other programs write them: none is read wrongly in silence."""

import base64
import gzip
import json
import unicodedata

import make_bucket
from make_photos import PHOTOS, photo_folder, write_pairs, write_tar
import pyarrow as pa
from pyarrow import dataset, parquet
import pytest

from nuclr_jax.lab.data import captions
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.report import tables as report_tables
from nuclr_jax.lab.user_files import image_folder, inputs, tables
from nuclr_jax.lab.user_files.items import (
  NO_CAPTION,
  NO_FILE,
  NO_SPLIT,
  Rejected,
)


def planned(given, **how):
  """By split, the number of the photo and the captions of each item.

  Of what is rejected, it is the reason.
  """
  found = {}
  for part in inputs.plan(str(given), **how).parts:
    for item in records.check_items(part.read()):
      found.setdefault(part.split, []).append(
        item.reason
        if isinstance(item, Rejected)
        else (PHOTOS.index(item.image), *item.captions)
      )
  return found


def photos(folder):
  """A folder of photos 0.jpg to 5.jpg."""
  photo_folder(folder)
  return folder / "sub"


def rows_of(path):
  return [row for _, row in tables.read_table(path, split="train")]


def to_parquet(path, /, **cells):
  path.parent.mkdir(parents=True, exist_ok=True)
  parquet.write_table(pa.table(cells), path)
  return path


# COCO's annotations.


def coco(folder, ids, of):
  """A file of images with these ids, and captions of these ids."""
  images = [{"id": x, "file_name": f"{i}.jpg"} for i, x in enumerate(ids)]
  texts = [{"image_id": x, "caption": f"text {i}"} for i, x in enumerate(of)]
  path = photos(folder) / "coco.json"
  path.write_text(json.dumps({"images": images, "annotations": texts}))
  return path


def test_images_of_coco_that_share_an_id_are_refused(tmp_path):
  """As where files are joined that number their images from 0."""
  with pytest.raises(ValueError, match="id 1 for two images, 0.jpg and 2.jpg"):
    planned(coco(tmp_path, [1, 2, 1], [1, 2, 1]))


def test_an_image_of_coco_may_be_listed_twice(tmp_path):
  path = coco(tmp_path, [1, 2], [1, 2])
  content = json.loads(path.read_text())
  content["images"] *= 2
  path.write_text(json.dumps(content))
  assert planned(path) == {"train": [(0, "text 0"), (1, "text 1")]}


def test_ids_of_coco_may_be_quoted_in_one_list(tmp_path):
  path = coco(tmp_path, [7, "8"], ["7", 8])
  assert planned(path) == {"train": [(0, "text 0"), (1, "text 1")]}


# Several images in a row.


def test_captions_of_two_images_in_a_row_are_not_mixed(tmp_path):
  """As in Winoground."""
  path = to_parquet(
    tmp_path / "x.parquet",
    image_0=[{"bytes": PHOTOS[0]}],
    image_1=[{"bytes": PHOTOS[1]}],
    caption_0=["text 0"],
    caption_1=["text 1"],
  )
  with pytest.raises(ValueError, match="in the columns image_0, image_1; name"):
    planned(path)
  with pytest.raises(ValueError, match="columns image_0, image_1, and capt"):
    planned(path, image_column="image_0")
  for i in range(2):
    how = dict(image_column=f"image_{i}", caption_column=f"caption_{i}")
    assert planned(path, **how) == {"train": [(i, f"text {i}")]}


def test_a_table_of_two_images_in_a_row(tmp_path):
  path = photos(tmp_path) / "x.csv"
  path.write_text("image1,image2,caption1,caption2\n0.jpg,1.jpg,a,b\n")
  with pytest.raises(ValueError, match="columns image1, image2, and capt"):
    planned(path, image_column="image1")
  how = dict(image_column="image1", caption_column="caption1,caption2")
  assert planned(path, **how) == {"train": [(0, "a", "b")]}


def test_a_numbered_image_alone_has_all_captions(tmp_path):
  path = photos(tmp_path) / "x.csv"
  path.write_text("image1,caption1,caption2\n0.jpg,a,b\n")
  found = planned(path, image_column="image1")
  assert found == {"train": [(0, "a", "b")]}


def test_further_images_of_a_row_are_named(tmp_path, caplog):
  path = to_parquet(
    tmp_path / "x.parquet",
    image=PHOTOS[:2],
    conditioning_image=PHOTOS[2:4],
    sha256=[b"x", b"y"],
    text=[b"a", b"b"],
  )
  assert planned(path) == {"train": [(0, "a"), (1, "b")]}
  assert "the column image, not from conditioning_image;" in caplog.text


@pytest.mark.parametrize("image", ["image", "scan"])
def test_checksums_are_no_images(image, tmp_path, caplog):
  cells = {"content_hash": [b"x"], image: PHOTOS[:1], "text": [b"a"]}
  cells |= {"image_sha1": [b"y"]}
  path = to_parquet(tmp_path / "x.parquet", **cells)
  assert planned(path) == {"train": [(0, "a")]}
  assert not caplog.messages


def test_one_unusual_column_of_bytes_is_that_of_images(tmp_path):
  cells = {"scan": PHOTOS[:1], "caption": [b"a"]}
  assert planned(to_parquet(tmp_path / "x.parquet", **cells)) == {
    "train": [(0, "a")]
  }


def test_rows_of_the_same_key_are_all_read(tmp_path):
  """As where an image has a row for each of its captions."""
  path = to_parquet(
    tmp_path / "x.parquet",
    key=[b"k", b"k", b"l"],
    jpg=[PHOTOS[0], PHOTOS[0], PHOTOS[1]],
    caption=["a", "b", "c"],
  )
  assert planned(path) == {"train": [(0, "a"), (0, "b"), (1, "c")]}
  (part,) = inputs.plan(str(path)).parts
  keys = [item.key for item in part.read()]
  assert keys == ["k", "x-000000001", "l"]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_()])
def test_zero_is_a_key(tmp_path, kind):
  keys = pa.array([0, 1, None]).cast(kind)
  given = to_parquet(
    tmp_path / "x.parquet", key=keys, jpg=PHOTOS[:3], caption=["a", "b", "c"]
  )
  (part,) = inputs.plan(str(given)).parts
  expected = [str(x) for x in keys[:2].to_pylist()]
  assert [x.key for x in part.read()] == [*expected, "x-000000002"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_spellings_of_a_path_are_one_image(tmp_path, kind, monkeypatch):
  folder = photos(tmp_path)
  names = ["0.jpg", "./0.jpg", f"{folder}/0.jpg", "../sub//0.jpg", "1.jpg"]
  cells = {"image": names, "caption": list("abcde")}
  if kind == "parquet":
    to_parquet(folder / "x.parquet", **cells)
  else:
    rows = map(",".join, zip(*cells.values(), strict=True))
    (folder / "x.csv").write_text("\n".join([",".join(cells), *rows]))
  expected = {"train": [(0, *"abcd"), (1, "e")]}
  assert planned(folder / f"x.{kind}") == expected
  monkeypatch.chdir(folder)
  for given in (f"x.{kind},../sub/x.{kind}", f"./x.{kind},{folder}/x.{kind}"):
    assert planned(given, images=".") == expected


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
  write_pairs(photos(tmp_path) / "0.tar", [0, 1])
  given = f"{tmp_path}/sub/0.tar,{tmp_path}/sub/../sub/0.tar"
  assert len(inputs.plan(given).parts) == 1


NANOSECONDS = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
  "times",
  [
    NANOSECONDS,
    NANOSECONDS.dictionary_encode(),
    pa.array([123_456_789], pa.duration("ns")),
    pa.array([2**40], pa.int64()).cast(pa.timestamp("s")),  # after 9999
    pa.array([2**30], pa.int32()).cast(pa.date32()),
  ],
  ids=lambda x: str(x.type).split("<")[0],
)
def test_times_that_python_cannot_hold(tmp_path, kind, times):
  """Of files, say: a table of paths has whatever its writer found useful."""
  cells = {"image": ["0.jpg"], "caption": ["a dog"], "mtime": times}
  path = photos(tmp_path) / f"x.{kind}"
  if kind == "parquet":
    to_parquet(path, **cells)
  else:
    with pa.OSFile(str(path), "wb") as file:
      table = pa.table(cells)
      with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
  assert planned(path) == {"train": [(0, "a dog")]}


def test_a_column_that_cannot_be_read_is_named(tmp_path):
  exif = pa.StructArray.from_arrays(
    [pa.array(["a camera"]), NANOSECONDS], ["model", "taken"]
  )
  path = photos(tmp_path) / "x.parquet"
  to_parquet(path, image=["0.jpg"], caption=["a dog"], exif=exif)
  with pytest.raises(ValueError, match="x.parquet: the column exif .*Leave it"):
    planned(path)


def of_spark(path, names):
  """The columns of Spark's binaryFile, and captions."""
  return to_parquet(
    path,
    path=[f"file:{path.parent}/{x}" for x in names],
    modificationTime=[0] * len(names),
    content=PHOTOS[: len(names)],
    caption=["text"] * len(names),
  )


@pytest.mark.parametrize("kind", ["binary", "dictionary", "list"])
def test_texts_that_parquet_stores_as_bytes(tmp_path, kind):
  """As Impala and Hive write them, beside columns of other kinds."""
  folder = photos(tmp_path)

  def stored(*texts):
    cells = [x.encode() for x in texts]
    if kind == "list":
      return pa.array([[x] for x in cells])
    return pa.array(cells).dictionary_encode() if kind[0] == "d" else cells

  path = to_parquet(
    folder / "x.parquet",
    image=["0.jpg", "1.jpg"],
    title=["of something else"] * 2,
    caption=stored("a dog", "ein Hündchen"),
    split=stored("train", "test")
    if kind != "list"
    else pa.array([b"train", b"test"]),
    file_name=PHOTOS[2:4],  # is no text
    vector=[bytes(8)] * 2,
  )
  expected = {"train": [(0, "a dog")], "test": [(1, "ein Hündchen")]}
  assert planned(path) == expected
  assert planned(path, split="test") == {"test": expected["test"]}
  assert planned(path, split="test", made=False) == {"test": expected["test"]}


def test_an_unusual_column_of_splits_that_is_stored_as_bytes(tmp_path):
  rows = {"caption": ["a dog", "a cat"], "use": [b"train", b"test"]}
  expected = {"train": [(0, "a dog")], "test": [(1, "a cat")]}
  photos(tmp_path)
  for image in (PHOTOS[:2], ["sub/0.jpg", "sub/1.jpg"]):
    path = to_parquet(tmp_path / "x.parquet", image=image, **rows)
    assert planned(path) == expected


def as_json(*values):
  """Texts of JSON, as `datasets` 4.7 and later store a column of mixed types.

  DuckDB stores its columns of JSON like that, too.
  """
  cells = [x and json.dumps(x, separators=(",", ":")) for x in values]
  return pa.array(cells, pa.json_())


def rows_of_json(folder, image, kind):
  """Captions of several types, lists and structs of them, and splits."""
  captions = as_json('a "big" dog\nin a café', ["a", "b"], 2012, {"en": "c"})
  items = as_json("a dog", {"text": "a cat"}, "fish", 2012)
  cells = {
    "image": image,
    "caption": captions,
    "captions": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4]), items),
    "of": pa.StructArray.from_arrays([items], ["en"]),
    "split": as_json("test", "val", "test", None),
  }
  if kind == "parquet":
    return to_parquet(folder / "x.parquet", **cells)
  table, path = pa.table(cells), folder / "x.arrow"
  with pa.ipc.new_stream(str(path), table.schema) as writer:
    writer.write_table(table)
  return path


@pytest.mark.parametrize("image", ["bytes", "paths"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_json_are_parsed(tmp_path, kind, image):
  """As those of a file of JSON lines."""
  images = [f"{i}.jpg" for i in range(4)] if image == "paths" else PHOTOS[:4]
  path = rows_of_json(photos(tmp_path), images, kind)
  whole = {"split_column": ""}
  number = f"{captions.NO_TEXT}of the type int"
  structs = (
    f"{captions.NO_TEXT}an object (en); give --caption_column=caption/en"
  )
  assert planned(path, caption_column="caption", **whole)["train"] == [
    (0, 'a "big" dog\nin a café'),
    (1, "a", "b"),
    number,
    structs,
  ]
  found = planned(path, caption_column="captions", **whole)["train"]
  assert found == [(0, "a dog"), (1, "a cat"), (2, "fish"), number]
  assert planned(path, caption_column="of/en", **whole)["train"] == found
  found = planned(path, caption_column="caption/en", **whole)["train"]
  assert found == [*[NO_CAPTION] * 3, (3, "c")]
  assert planned(path, caption_column="captions") == {
    "test": [(0, "a dog"), (2, "fish"), NO_SPLIT],
    "validation": [(1, "a cat")],
  }


def test_paths_and_splits_of_unusual_columns_of_json(tmp_path):
  columns = {"caption": as_json("a dog", "a cat")}
  columns["use"] = as_json("train", "test")
  expected = {"train": [(0, "a dog")], "test": [(1, "a cat")]}
  photos(tmp_path)
  for image in (PHOTOS[:2], as_json("sub/0.jpg", "sub/1.jpg")):
    path = to_parquet(tmp_path / "x.parquet", image=image, **columns)
    assert planned(path) == expected


def test_a_text_that_is_no_json_stays(tmp_path):
  path = to_parquet(
    tmp_path / "x.parquet",
    image=PHOTOS[:2],
    caption=pa.array(["a dog", "[" * 100_000], pa.json_()),
  )
  assert planned(path)["train"] == [(0, "a dog"), captions.TOO_LONG]


def test_empty_files_of_bytes(tmp_path):
  rows = {
    "image": pa.array([], pa.string()),
    "split": pa.array([], pa.binary()),
  }
  rows["caption"] = pa.array([], pa.string())
  assert planned(to_parquet(tmp_path / "x.parquet", **rows)) == {}
  rows["image"] = pa.array([], pa.binary())
  assert planned(to_parquet(tmp_path / "x.parquet", **rows)) == {}
  parquet.ParquetWriter(tmp_path / "y.parquet", pa.table(rows).schema).close()
  assert planned(tmp_path / "y.parquet") == {}


def test_binary_files_of_spark(tmp_path):
  path = of_spark(tmp_path / "x.parquet", ["none.jpg", "gone.jpg"])
  assert planned(path) == {"train": [(0, "text"), (1, "text")]}


def test_paths_of_spark_have_one_slash(tmp_path):
  names = "my dog.jpg", "my%20dog.jpg", "0.jpg"
  path = of_spark(photos(tmp_path) / "x.parquet", names)
  for i, name in enumerate(names):
    (path.parent / name).write_bytes(PHOTOS[i])
  expected = {"train": [(i, "text") for i in range(3)]}
  assert planned(path, image_column="path") == expected


def test_a_column_of_texts_may_be_called_content(tmp_path):
  path = photos(tmp_path) / "x.parquet"
  cells = {"image": ["0.jpg"], "caption": ["a dog"]}
  to_parquet(path, content=["It is a dog."], **cells)
  assert planned(path) == {"train": [(0, "a dog")]}


def test_bytes_of_images_beside_paths_are_named(tmp_path, caplog):
  path = tmp_path / "x.parquet"
  cells = {"image_data": PHOTOS[:2], "caption": ["a", "b"]}
  cells |= {"filename": ["0.jpg", "1.jpg"], "sha256": [b"x", b"y"]}
  to_parquet(path, **cells)
  assert planned(path) == {"train": [NO_FILE] * 2}
  assert "column image_data, which has the bytes of images" in caplog.text
  assert "--image_column=image_data reads these" in caplog.text
  assert "sha256" not in caplog.text
  caplog.clear()
  found = planned(path, image_column="image_data")
  assert found == {"train": [(0, "a"), (1, "b")]} and not caplog.text
  del cells["image_data"]
  planned(to_parquet(path, **cells))
  assert not caplog.text


# Folders of Parquet files.


def in_parts(folder, said, column="split"):
  """What pandas, Spark and others write in parts by a column."""
  table = pa.table(
    {
      "image": PHOTOS[: len(said)],
      "caption": [f"text {i}" for i in range(len(said))],
      column: said,
    }
  )
  dataset.write_dataset(
    table,
    folder,
    format="parquet",
    partitioning=[column],
    partitioning_flavor="hive",
  )
  return folder


def test_parts_by_a_column_of_splits_are_splits(tmp_path, caplog):
  folder = in_parts(tmp_path / "x", ["train", "Test", "val", "train"])
  assert planned(folder) == {"train": [(0, "text 0"), (3, "text 3")]}
  assert planned(folder, split="test") == {"test": [(1, "text 1")]}
  found = planned(folder, split="validation", made=False)
  assert found == {"validation": [(2, "text 2")]}
  assert len(planned(f"{folder}/*/*.parquet")["train"]) == 4
  assert "files are of several splits (split=Test, split=train" in caplog.text


def test_parts_of_unknown_splits_are_refused(tmp_path):
  folder = in_parts(tmp_path / "x", ["train", "fold 3"])
  with pytest.raises(ValueError, match="not known, split=fold 3; call them"):
    planned(folder)


@pytest.mark.parametrize("column", ["label", "set"])
def test_parts_by_another_column_are_no_splits(tmp_path, column):
  folder = in_parts(tmp_path / "x", ["7", "8"], column)
  assert len(planned(folder)["train"]) == 2


def test_parts_of_large_splits(tmp_path):
  """As Hugging Face's converter names them."""
  for i, name in enumerate(("partial-train", "test")):
    path = tmp_path / "default" / name / "0000.parquet"
    to_parquet(path, image=[PHOTOS[i]], caption=["a"])
  assert planned(tmp_path) == {"train": [(0, "a")]}


@pytest.mark.parametrize("given", ["{}", "{}/*.parquet"])
@pytest.mark.parametrize("name", ["train", "test"])
def test_a_split_beside_a_file_that_names_none(tmp_path, caplog, given, name):
  for i, stem in enumerate((name, "more")):
    to_parquet(tmp_path / f"{stem}.parquet", image=[PHOTOS[i]], caption=["a"])
  assert len(planned(given.format(tmp_path))["train"]) == 2
  said = "files are of several splits (others, test), and all" in caplog.text
  assert said == (name == "test")


def test_what_spark_has_not_finished_is_left_out(tmp_path, caplog):
  for i, name in enumerate(("part-0", "_temporary/0/part-0")):
    path = tmp_path / "_x" / f"{name}.parquet"
    to_parquet(path, image=[PHOTOS[i]], caption=["a"])
  assert planned(tmp_path / "_x") == {"train": [(0, "a")]}
  assert "1 Parquet files are not read, such as _temporary/0" in caplog.text


@pytest.mark.parametrize(
  "name, program",
  [
    ("_delta_log/00000000000000000000.json", "Delta Lake"),
    (".hoodie/hoodie.properties", "Hudi"),
    ("metadata/v1.metadata.json", "Iceberg"),
    ("_spark_metadata/0", "Spark's streams"),
  ],
)
def test_tables_whose_log_says_which_files_count(tmp_path, name, program):
  to_parquet(tmp_path / "x" / "0.parquet", image=PHOTOS[:1], caption=["old"])
  (tmp_path / name).parent.mkdir()
  (tmp_path / name).write_text("{}")
  with pytest.raises(ValueError, match=f"is a table of {program}, whose log"):
    planned(tmp_path)


def test_images_beside_tars_are_named(tmp_path, caplog):
  write_pairs(photos(tmp_path) / "x.tar", [0])
  to_parquet(tmp_path / "sub" / "x.parquet", url=["a"])
  assert len(planned(tmp_path)["train"]) == 1
  assert ".tar files are read, and not the 6 images there;" in caplog.text
  caplog.clear()
  to_parquet(tmp_path / "sub" / "y.parquet", jpg=PHOTOS[:1], caption=["a"])
  assert len(planned(tmp_path)["train"]) == 1
  assert "not the 6 images and 1 Parquet files there" in caplog.text


def test_tars_with_the_tables_of_img2dataset_are_all_that_is_there(
  tmp_path, caplog
):
  write_pairs(tmp_path / "00000.tar", [0])
  to_parquet(tmp_path / "00000.parquet", url=["a"])
  assert len(planned(tmp_path)["train"]) == 1
  assert not caplog.text


@pytest.mark.parametrize("place", ["here", "bucket"])
def test_files_of_other_endings_are_named(tmp_path, caplog, place):
  """As `tar --gzip`, other systems and other programs call them."""
  tar = write_pairs(tmp_path / "x.tar", [0]).read_bytes()
  table = to_parquet(tmp_path / "x", jpg=PHOTOS[:1], caption=["a"]).read_bytes()
  files = {
    "tars/0.tar": tar,
    "tars/0.tar.idx": b"of webdataset",
    "tars/0_stats.json": b"{}",
    "tars/1.tar.gz": gzip.compress(tar),
    "tars/a/2.TAR": tar,
    "tars/3.tgz": gzip.compress(tar),
    "tars/4.tar.gz": gzip.compress(tar),
    "tars/.5.tgz": b"hidden",
    "tables/0.parquet": table,
    "tables/1.pq": table,
    "tables/2.PARQUET": table,
  }
  root, system = tmp_path, None
  if place == "bucket":
    root, system = "memory:/", make_bucket.memory()
  for name, data in files.items():
    if system:
      system.pipe(f"/{name}", data)
    else:
      (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / name).write_bytes(data)
  assert len(planned(f"{root}/tars")["train"]) == 1
  (said,) = caplog.messages
  assert "endings are not read: .tar.gz (2), .tgz (1), .TAR (1); deco" in said
  assert "compressed, and let the names end in .tar or .parquet" in said
  caplog.clear()
  assert len(planned(f"{root}/tables")["train"]) == 1
  (said,) = caplog.messages
  assert "endings are not read: .pq (1), .PARQUET (1);" in said


@pytest.mark.parametrize("kind", ["tar", "parquet"])
@pytest.mark.parametrize("place", ["here", "bucket"])
def test_files_of_any_other_kind_are_named(tmp_path, caplog, kind, place):
  write_pairs(tmp_path / "0.tar", [0])
  to_parquet(tmp_path / "0.parquet", jpg=PHOTOS[:1], caption=["a dog"])
  read_one = (tmp_path / f"0.{kind}").read_bytes()
  unread = "d.csv e.JSONL f.arrow g.zip h.feather b.parq c.parquet.snappy "
  unread += "1.tar.part 2.tar.1 notes"
  silent = "README.md LICENSE _SUCCESS _stats.json 0_stats.json x.tar.idx "
  silent += "dataset_infos.json .hidden"
  root, system = tmp_path / "x", make_bucket.memory()
  root.mkdir()
  for name in [f"0.{kind}", *unread.split(), *silent.split()]:
    data = read_one if name == f"0.{kind}" else b"?"
    (root / name).write_bytes(data)
    system.pipe(f"/x/{name}", data)
  given = root if place == "here" else "memory://x"
  assert len(planned(given)["train"]) == 1
  (said,) = caplog.messages
  _, _, rest = said.partition("not read: ")
  assert set(rest.partition("; ")[0].split(", ")) == {
    *[".csv (1)", ".JSONL (1)", ".arrow (1)", ".zip (1)", ".feather (1)"],
    *[".parq (1)", ".parquet.snappy (1)", ".tar.part (1)", ".tar.1 (1)"],
    "notes (1)",
  }


# Tables.


@pytest.mark.parametrize(
  "first", ["0.jpg,a dog", "a dog\tsub/0.JPEG", "0.jpg#0\ta dog"]
)
def test_a_table_without_a_header_loses_no_pair(tmp_path, first):
  path = photos(tmp_path) / "x.csv"
  path.write_text(f"{first}\n1.jpg,a cat\n")
  for how in ({}, {"image_column": "0.jpg", "caption_column": "a dog"}):
    with pytest.raises(ValueError, match="no header: .* Write one above it"):
      planned(path, **how)


@pytest.mark.parametrize(
  "hint", ["sep=;", '"sep=;"', "SEP=;", "sep=,", "sep=|", "sep=\t", r"sep=\t"]
)
@pytest.mark.parametrize("name", ["x.csv", "metadata.csv"])
def test_a_line_for_excel_names_the_delimiter(tmp_path, hint, name):
  """And the numbers of lines are still those of the file."""
  mark = hint.strip('"')[4:].replace(r"\t", "\t")
  rows = ["file_name", "caption"], ["0.jpg", "a dog"], ["1.jpg"], ["2.jpg", "a"]
  lines = [hint, *map(mark.join, rows)]
  path = photos(tmp_path) / name
  path.write_text("\r\n".join([*lines, ""]), "utf-8-sig", newline="")
  good, bad, other = rows_of(path)
  assert (good.captions, other.captions) == (["a dog"], ["a"])
  assert bad.key == "line 4"
  assert image_folder.describes_images(path) == (name == "metadata.csv")


def test_a_file_that_ends_behind_the_line_for_excel(tmp_path):
  path = photos(tmp_path) / "x.csv"
  path.write_text("sep=;\n")
  with pytest.raises(ValueError, match="has the columns"):
    planned(path)


def test_quotation_marks_behind_backslashes(tmp_path):
  """As Spark and MySQL write them."""
  path = photos(tmp_path) / "x.csv"
  lines = [
    "image,caption",
    r'0.jpg,"a \"big\" dog, running"',
    r'1.jpg,"a \"cat\""',
    r'2.jpg,"C:\"',
    r"3.jpg,5\" wide",
    '4.jpg,"two \\"red\\"',
    'circles"',
    r'5.jpg,"\"a\" b"c',
  ]
  path.write_text("\n".join(lines))
  expected = [
    'a "big" dog, running',
    'a "cat"',
    "C:\\",
    r"5\" wide",
    'two "red"\ncircles',
    r'"\"a\" b"c',
  ]
  assert planned(path) == {"train": list(enumerate(expected))}


@pytest.mark.parametrize("quote", ['""', r"\""])
@pytest.mark.parametrize("header", ["image,caption", "caption,image"])
def test_long_descriptions_in_quotation_marks(tmp_path, header, quote):
  """As models write them in Markdown."""
  path = photos(tmp_path) / "x.csv"
  points = "\n".join(f"- point {i}, {quote}big{quote}" for i in range(3000))
  texts = "a dog", f'"Scene: 7.jpg\n\n{points}"', "a cat"
  lines = [header]
  for i, text in enumerate(texts):
    cells = {"image": f"{i}.jpg", "caption": text}
    lines.append(",".join(map(cells.get, header.split(","))))
  path.write_text("\n".join(lines))
  text = texts[1][1:-1].replace(quote, '"')
  assert len(text) > 2**15  # which is more than a caption may have
  assert [x.captions for x in rows_of(path)] == [["a dog"], [text], ["a cat"]]


def test_suspects_have_long_captions(tmp_path):
  path = photos(tmp_path) / "suspects.csv"
  text = "\n".join(f"point {i}" for i in range(25))
  columns = {"image": ["0.jpg", "1.jpg"], "caption": [text, "a cat"]}
  report_tables.write(path, columns)
  assert planned(path) == {"train": [(0, text), (1, "a cat")]}


@pytest.mark.parametrize(
  "lines",
  [
    ["image,caption", '0.jpg,"a dog', "1.jpg,a cat", '2.jpg,24"'],
    ["image,caption", '0.jpg,"a dog', '1.jpg,24"'],
    ["caption,image", '"a dog,0.jpg', "a cat,1.jpg", '24",2.jpg'],
    ["caption,image", '"a dog,0.jpg', '24",1.jpg'],
    ["image,caption,by", '0.jpg,"a dog,me', '1.jpg,24",me'],
    ["image\tcaption", '0\t"a dog', '1\t24"'],
    ["image,caption", '0,"a dog', *["1,a cat"] * 30, '2,24"'],
  ],
)
def test_rows_between_two_stray_quotation_marks_are_not_lost(tmp_path, lines):
  """Such as those that stand for inches."""
  path = tmp_path / "x.csv"
  path.write_text("\n".join(lines))
  found = rows_of(path)
  assert len(found) == len(lines) - 1
  assert found[0].captions == ['"a dog'] and found[-1].captions == ['24"']


@pytest.mark.parametrize("mark", [", ", "; "])
def test_blanks_before_quotation_marks(tmp_path, mark):
  """As tables are written by hand."""
  path = photos(tmp_path) / "x.csv"
  texts = ['"a dog"', '"a cat, a dog; a cow"', '"two ""big""\n cats"', 'a "b"']
  rows = [f"{i}.jpg{mark}{x}" for i, x in enumerate(texts)]
  path.write_text("\n".join([f"image{mark}caption", *rows]))
  expected = ["a dog", "a cat, a dog; a cow", 'two "big"\n cats', 'a "b"']
  assert planned(path) == {"train": list(enumerate(expected))}


def test_blanks_that_are_of_the_text_stay(tmp_path):
  path = photos(tmp_path) / "x.csv"
  path.write_text('image,caption\n0.jpg, "a dog" in quotes\n')
  assert planned(path) == {"train": [(0, '"a dog" in quotes')]}


def test_tabs_and_lines_in_a_cell_of_a_tsv_file(tmp_path):
  path = photos(tmp_path) / "x.tsv"
  path.write_text('image\tcaption\n0.jpg\t"a\tb\nc"\n1.jpg\td\n')
  assert planned(path) == {"train": [(0, "a\tb\nc"), (1, "d")]}


@pytest.mark.parametrize("line", ['0.jpg,"', 'x",",y', '"\\"",x', '0,"""a'])
def test_many_stray_quotation_marks_are_looked_at_at_once(tmp_path, line):
  path = tmp_path / "x.csv"
  path.write_text(f"image,caption\n{line}\n" + f"a\n{line}\n" * 5_000)
  assert len(rows_of(path)) == 10_001


@pytest.mark.parametrize(
  "kind, how",
  [
    ("csv", "base64"),
    ("csv", "web"),
    ("csv", "Pillow's"),
    ("jsonl", "lines"),
    ("parquet", "url"),
  ],
)
def test_images_that_are_written_as_text_are_called_so(tmp_path, kind, how):
  text = {
    "base64": lambda x: base64.b64encode(x).decode(),
    "lines": lambda x: base64.encodebytes(x).decode(),
    "url": lambda x: base64.urlsafe_b64encode(x).decode(),
    "web": lambda x: f"data:image/jpeg;base64,{base64.b64encode(x).decode()}",
    "Pillow's": lambda x: "<PIL.Image.Image image mode=RGB size=9x9 at 0x7F>",
  }[how](PHOTOS[0])
  path = tmp_path / f"x.{kind}"
  if kind == "csv":
    path.write_text(f'image,caption\n"{text}",a dog\n')
  elif kind == "jsonl":
    path.write_text(json.dumps({"image": text, "caption": "a dog"}))
  else:
    to_parquet(path, image=[text], caption=["a dog"])
  with pytest.raises(ValueError, match="has images as text .* of their paths"):
    planned(path)


@pytest.mark.parametrize("text", [" ", "1", "a", "\n"])
def test_enormous_cells_are_looked_at_at_once(tmp_path, text):
  """Or forged files would keep the command busy for hours."""
  long = text * 10**6
  row = {"image": f"{long}!", "caption": f"x {text * 30_000}! 1. 2. 3. 4."}
  (tmp_path / "x.jsonl").write_text(json.dumps(row))
  assert planned(tmp_path / "x.jsonl") == {"train": [NO_FILE]}
  assert captions.tidy_captions([row["caption"]])[1] == []


def test_accents_may_be_encoded_in_two_ways(tmp_path):
  """A Mac writes a letter and its accent apart."""
  names = "caf\u00e9.jpg", "cafe\u0301.jpg"
  for i in range(2):
    folder = tmp_path / str(i)
    folder.mkdir()
    (folder / names[i]).write_bytes(PHOTOS[i])
    table = f"file_name,caption\n{names[1 - i]},a dog\n"
    (folder / "x.csv").write_text(table)
    assert planned(folder / "x.csv") == {"train": [(i, "a dog")]}
    (folder / "x.csv").rename(folder / "metadata.csv")
    assert planned(folder) == {"train": [(i, "a dog")]}


@pytest.mark.parametrize("kind", ["json", "jsonl"])
@pytest.mark.parametrize(
  "rows, expected, warning",
  [
    (
      [{"title": "IMG_0"}, {"title": "IMG_1", "caption": "a cat"}],
      [NO_CAPTION, (1, "a cat")],
      "caption alone, not from title;",
    ),
    (
      [{"caption": "a dog"}, {"caption": "a cat", "caption_1": "cats"}],
      [(0, "a dog"), (1, "a cat")],
      "caption alone, not from caption_1;",
    ),
    (
      [{"caption": "a dog"}, {"captions": ["a cat"], "caption": "cats"}],
      [(0, "a dog"), (1, "cats")],
      "caption alone, not from captions;",
    ),
    (
      [{}, {"caption_2": "b", "caption_1": "a"}],
      [NO_CAPTION, (1, "a", "b")],
      "",
    ),
  ],
)
def test_keys_that_the_first_objects_leave_out(
  tmp_path, caplog, kind, rows, expected, warning
):
  """As R's jsonlite, Go and MongoDB leave out what has no value."""
  path = photos(tmp_path) / f"x.{kind}"
  # More rows than are asked for splits stand before those that count.
  rows = [{"image": "none.jpg", **rows[0]}] * 1_001 + [
    {"image": f"{i}.jpg", **row} for i, row in enumerate(rows)
  ]
  lines = map(json.dumps, rows)
  path.write_text("\n".join(lines) if kind == "jsonl" else json.dumps(rows))
  assert planned(path)["train"][-2:] == expected
  assert warning in caplog.text and bool(warning) == bool(caplog.text)


def test_a_split_that_the_first_object_leaves_out(tmp_path):
  path = photos(tmp_path) / "x.jsonl"
  rows = [{"image": "0.jpg"}, {"image": "1.jpg", "use": "test"}]
  path.write_text("\n".join(json.dumps(x | {"text": "a"}) for x in rows))
  found = planned(path, split_column="use")
  assert found == {"test": [NO_SPLIT, (1, "a")]}


@pytest.mark.parametrize("top", ["J\u00fcrg", "Ju\u0308rg"])
@pytest.mark.parametrize("folder", ["", "M\u00fcnchen", "Mu\u0308nchen"])
@pytest.mark.parametrize("name", ["caf\u00e9.jpg", "cafe\u0301.jpg"])
def test_accents_of_folders_may_be_encoded_otherwise(
  tmp_path, top, folder, name
):
  """As where a Mac made the files, and Linux the folder that they are in."""
  place = tmp_path / top / folder
  place.mkdir(parents=True)
  (place / name).write_bytes(PHOTOS[0])
  for form in ("NFC", "NFD"):
    named = unicodedata.normalize(form, f"{folder}/{name}".lstrip("/"))
    path = tmp_path / top / "x.csv"
    path.write_text(f"file_name,caption\n{named},a dog\n")
    assert planned(path) == {"train": [(0, "a dog")]}
    path.write_text(f"file_name,caption\n{path.parent}/{named},a dog\n")
    assert planned(path) == {"train": [(0, "a dog")]}


def test_a_table_of_links_whose_photos_are_here(tmp_path):
  """As AI Challenger's captions."""
  row = {"url": "http://a.b/x", "image_id": "0.jpg", "caption": ["a", "b"]}
  path = photos(tmp_path) / "x.json"
  path.write_text(json.dumps([row]))
  with pytest.raises(ValueError, match="are here already, --image_column=NAME"):
    planned(path)
  assert planned(path, image_column="image_id") == {"train": [(0, "a", "b")]}


def test_what_is_asked_about_an_image_is_no_caption(tmp_path):
  """As in the talks of LLaVA's data."""
  path = photos(tmp_path) / "x.json"
  talk = [{"from": "human", "value": "<image>\nWhat is it?"}]
  talk += [{"from": "gpt", "value": "a dog"}]
  path.write_text(json.dumps([{"image": "0.jpg", "conversations": talk}]))
  with pytest.raises(ValueError, match="conversations/value has what is asked"):
    planned(path, caption_column="conversations/value")


# Captions that are none.


@pytest.mark.parametrize("word", ["None", "nan", "NaN", "<NA>", "null", r"\N"])
def test_words_for_missing_values_are_no_captions(tmp_path, word):
  """Programs print them: str() of a missing caption, or a table's COPY."""
  folder = photos(tmp_path)
  (folder / "x.csv").write_text(
    f"image,caption\n0.jpg,{word}\n1.jpg,a {word}\n2.jpg, {word} \n"
  )
  found = planned(folder / "x.csv")
  assert found["train"] == [
    captions.NO_VALUE,
    (1, f"a {word}"),
    captions.NO_VALUE,
  ]


def test_labels_of_boxes_are_no_captions(tmp_path):
  """As YOLO and KITTI have them beside images."""
  folder = photos(tmp_path)
  texts = [
    "0 0.51 0.42 0.2 0.3\n7 .1 .2 .05 6e-2 0.9\n",
    "Car 0.00 0 1.85 387.63 181.54 423.81 203.12\n",
    "lot 12 13 14 15\nversion 1.0 2.0 3.0 and 4.0\n",
  ]
  for i, text in enumerate(texts):
    (folder / f"{i}.txt").write_text(text)
  found = planned(tmp_path)["train"]
  assert found[:2] == [captions.BOX] * 2
  assert found[2] == (2, "lot 12 13 14 15", "version 1.0 2.0 3.0 and 4.0")


def test_a_text_of_several_images_is_named(tmp_path, caplog):
  """A mask of the same name may lie beside a photo."""
  folder = photos(tmp_path)
  for name, data in {
    "0.png": PHOTOS[3],
    "1.png": PHOTOS[4],
    "0.txt": b"both",
    "1.txt": b"of the JPEG",
    "1.png.txt": b"of the PNG",
  }.items():
    (folder / name).write_bytes(data)
  found = [x for x in planned(tmp_path)["train"] if isinstance(x, tuple)]
  assert found == [
    (0, "both"),
    (3, "both"),
    (1, "of the JPEG"),
    (4, "of the PNG"),
  ]
  assert "1 texts are read as the captions of several images" in caplog.text
  assert "such as 0.jpg and 0.png;" in caplog.text


def test_files_of_no_split_beside_those_of_one_are_named(tmp_path, caplog):
  """A folder of photos of trains is not the training split."""
  folder = photos(tmp_path)
  for i, name in enumerate(("train", "train", "car", "car", "car", "car")):
    (folder / name).mkdir(exist_ok=True)
    (folder / f"{i}.jpg").rename(folder / name / f"{i}.jpg")
    (folder / name / f"{i}.txt").write_text("a photo")
  assert [i for i, _ in planned(folder)["train"]] == [0, 1]
  assert "the 4 files that are of no split, such as car/2.jpg;" in caplog.text
  assert len(planned(f"{folder}/*")["train"]) == 6


def test_splits_in_a_tar_are_named(tmp_path, caplog):
  files = []
  for i, folder in enumerate(("train2017", "./val2017", "a/test")):
    files += [(f"{folder}/{i}.jpg", PHOTOS[i]), (f"{folder}/{i}.txt", b"a")]
  write_tar(tmp_path / "x.tar", files[:2])
  assert len(planned(tmp_path / "x.tar")["train"]) == 1
  assert not caplog.text
  write_tar(tmp_path / "x.tar", files)
  assert len(planned(tmp_path / "x.tar")["train"]) == 3
  assert "in folders called test, train2017, val2017, and all" in caplog.text


@pytest.mark.parametrize("ending", ["caption", "text", "cls", "txt.gz"])
def test_texts_of_other_endings_in_a_tar_are_named(tmp_path, caplog, ending):
  """A writer of webdataset's takes any ending."""
  files = []
  for i in range(3):
    name = f"a.{i}" if ending == "text" else i
    files += [(f"{name}.jpg", PHOTOS[i]), (f"{name}.{ending}", b"a dog")]
  write_tar(tmp_path / "x.tar", files)
  assert planned(tmp_path / "x.tar") == {"train": ["no caption"] * 3}
  (said,) = caplog.messages
  assert f"endings beside them are not read: .{ending} (3);" in said
  caplog.clear()
  files += [(f"{i}.txt", b"a cat") for i in range(3)]
  files = [(name.removeprefix("a."), data) for name, data in files]
  write_tar(tmp_path / "x.tar", files)
  assert planned(tmp_path / "x.tar") == {
    "train": [(i, "a cat") for i in range(3)]
  }
  assert not caplog.text


def test_leftovers_in_a_bucket(tmp_path, caplog):
  system = make_bucket.memory()
  for i, name in enumerate(("0", "_temporary/0/1")):
    path = to_parquet(tmp_path / "x.parquet", image=[PHOTOS[i]], caption=["a"])
    system.pipe(f"/_x/{name}.parquet", path.read_bytes())
  for given in ("memory://_x", "memory://_x/**/*.parquet"):
    caplog.clear()
    assert planned(given) == {"train": [(0, "a")]}
    assert "1 Parquet files are not read" in caplog.text
  system.pipe("/_x/_delta_log/0.json", b"{}")
  with pytest.raises(ValueError, match="is a table of Delta Lake"):
    planned("memory://_x")
