"""What users have from Hugging Face's `datasets`, pandas and webdataset.

`make_datasets` writes the files as `datasets` does. Inputs that `datasets`
5.2.0 and 2.14.7 wrote were read as well, those of 5.2.0 with the order, bytes
and captions of its `load_dataset`, `load_from_disk` and `from_parquet`.
"""

import json

from make_datasets import (
  by_path,
  save_dict,
  save_to_disk,
  table_of,
  to_parquet,
)
from make_photos import CAPTIONS, PHOTOS, photo_folder, read, rejected
import pyarrow as pa
from pyarrow import parquet
import pytest

from nuclr_jax.lab import ingest
from nuclr_jax.lab.data.tar_members import DAMAGED
from nuclr_jax.lab.user_files import batches, columns, inputs
from nuclr_jax.lab.user_files.items import (
  AWAY,
  BROKEN_ROW,
  NO_FILE,
  NO_IMAGE,
  NO_SPLIT,
  Rejected,
  tidy,
)


@pytest.fixture
def photos(tmp_path):
  """The paths of the photos."""
  photo_folder(tmp_path / "photos")
  return [tmp_path / "photos" / "sub" / f"{i}.jpg" for i in range(6)]


def planned(given, **how):
  """By split, the number of the photo and the captions of each item.

  Of what is rejected, it is the key and the reason.
  """
  found = {}
  for part in inputs.plan(str(given), **how).parts:
    for item in part.read():
      item, _ = tidy(item)
      found.setdefault(part.split, []).append(
        (item.key, item.reason)
        if isinstance(item, Rejected)
        else (PHOTOS.index(item.image), *item.captions)
      )
  return found


ALL = {"train": list(enumerate(CAPTIONS))}


# Images by path in Parquet and Arrow.


@pytest.mark.parametrize("how", ["to_parquet", "save_to_disk"])
def test_paths_without_bytes(tmp_path, photos, how):
  table = table_of(image=by_path(photos), caption=CAPTIONS)
  if how == "to_parquet":
    given = to_parquet(tmp_path / "x.parquet", table)
  else:
    given = save_to_disk(tmp_path / "x", table)
  assert planned(given) == ALL


def test_paths_are_relative_to_the_file_or_to_the_flag(tmp_path, photos):
  """`datasets` has them relative to the folder in which it ran."""
  names = [f"sub/{i}.jpg" for i in range(6)]
  table = table_of(image=by_path(names), caption=CAPTIONS)
  inside = to_parquet(tmp_path / "photos" / "x.parquet", table)
  assert planned(inside) == ALL
  (tmp_path / "a").mkdir()
  away = to_parquet(tmp_path / "a" / "x.parquet", table)
  assert planned(away) == {"train": [(name, NO_FILE) for name in names]}
  assert planned(away, images=tmp_path / "photos") == ALL
  with pytest.raises(ValueError, match="or to --images=FOLDER"):
    ingest.ingest(str(away), "mine", data_dir=tmp_path, workers=1)


def test_bytes_in_some_rows_and_paths_in_others(tmp_path, photos):
  rows = by_path(photos)
  rows[0] = {"bytes": PHOTOS[0], "path": "gone.jpg"}
  rows[1] = {"bytes": PHOTOS[1], "path": None}
  rows[2] = None
  rows[3] = {"bytes": b"", "path": None}
  rows[4] = {"bytes": None, "path": "/no/where.jpg"}
  table = table_of(image=rows, caption=[*CAPTIONS[:5], None])
  assert planned(to_parquet(tmp_path / "x.parquet", table)) == {
    "train": [
      *[(0, CAPTIONS[0]), (1, CAPTIONS[1])],
      *[("x-000000002", NO_IMAGE), ("x-000000003", NO_IMAGE)],
      *[("/no/where.jpg", NO_FILE), (5,)],
    ]
  }


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_a_column_of_paths_is_a_table(tmp_path, photos, kind):
  """As pandas writes it: rows of one image are joined, splits are read."""
  paths = pa.array([str(x) for x in photos for _ in range(2)])
  if kind == "large_string":
    paths = paths.cast(pa.large_string())
  elif kind == "dictionary":
    paths = paths.dictionary_encode()
  texts = [x for text in CAPTIONS for x in (text, f"again {text}")]
  splits = ["train"] * 10 + ["test"] * 2
  thumbnails = [b"?"] * 12
  table = {"image": paths, "caption": texts, "thumb": thumbnails}
  parquet.write_table(
    pa.table(table | {"split": splits}), tmp_path / "x.parquet"
  )
  expected = [(i, x, f"again {x}") for i, x in enumerate(CAPTIONS)]
  found = planned(tmp_path / "x.parquet")
  assert found == {"train": expected[:5], "test": expected[5:]}


def test_files_with_images_and_files_with_paths_are_not_mixed(tmp_path):
  for name, images in (("a", PHOTOS), ("b", ["x.jpg"] * 6)):
    table = pa.table({"image": images, "caption": CAPTIONS})
    parquet.write_table(table, tmp_path / f"{name}.parquet")
  with pytest.raises(ValueError, match="some files have the bytes"):
    planned(f"{tmp_path}/*.parquet")
  with pytest.raises(ValueError, match="has the images themselves; leave"):
    planned(f"{tmp_path}/a.parquet", images=tmp_path)


# Links.


@pytest.mark.parametrize("how", ["to_parquet", "save_to_disk"])
@pytest.mark.parametrize("link", ["https://a.b/1.jpg", "hf://datasets/a/1.jpg"])
def test_links_without_bytes_are_refused(tmp_path, how, link):
  rows = [{"bytes": PHOTOS[0], "path": "https://a.b/0.jpg"}, *by_path([link])]
  table = table_of(image=rows, caption=CAPTIONS[:2])
  if how == "to_parquet":
    given = to_parquet(tmp_path / "x.parquet", table)
  else:
    given = save_to_disk(tmp_path / "x", table)
  with pytest.raises(ValueError, match=rf"such as {link},.*\n.*embed_table"):
    planned(given)
  full = to_parquet(tmp_path / "y.parquet", table.slice(0, 1))
  assert planned(full) == {"train": [(0, CAPTIONS[0])]}


@pytest.mark.parametrize("statistics", [True, False])
def test_links_are_found_in_every_row_group(tmp_path, statistics):
  rows = [{"bytes": x, "path": "0.jpg"} for x in PHOTOS[:5]]
  rows += by_path(["HTTPS://a.b/1.jpg"])
  table = table_of(image=rows, caption=CAPTIONS)
  how = {"row_group_size": 2, "write_statistics": statistics}
  parquet.write_table(table, tmp_path / "x.parquet", **how)
  with pytest.raises(ValueError, match="by URL, such as HTTPS"):
    planned(tmp_path / "x.parquet")


def test_links_are_found_behind_a_damaged_row_group(tmp_path):
  rows = by_path(["0.jpg", "0.jpg", "0.jpg", "https://a.b/1.jpg"])
  table = table_of(image=rows, caption=CAPTIONS[:4])
  path = tmp_path / "x.parquet"
  parquet.write_table(table, path, row_group_size=2)
  group = parquet.ParquetFile(path).metadata.row_group(0)
  column = group.column(1)
  at = column.dictionary_page_offset or column.data_page_offset
  data = bytearray(path.read_bytes())
  data[at : at + 16] = b"\xff" * 16
  path.write_bytes(data)
  assert column.path_in_schema == "image.path"
  with pytest.raises(ValueError, match="by URL, such as https://a.b/1"):
    planned(path)


@pytest.mark.parametrize(
  "header, column, caption",
  [
    ("URL,TEXT", "URL", "TEXT"),
    ("photo_id,photo_url,photo_image_url", "photo_image_url", "COLUMN"),
    ("image_link,caption_0,caption_1", "image_link", "caption_0"),
  ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_tables_of_links_name_their_columns(
  tmp_path, kind, header, column, caption
):
  names, path = header.split(","), tmp_path / f"x.{kind}"
  cells = {name: "https://a.b/0.jpg" for name in names}
  if kind == "csv":
    path.write_text(f"{header}\n{','.join(cells.values())}\n")
  elif kind == "jsonl":
    path.write_text(json.dumps(cells))
  else:
    parquet.write_table(pa.table({k: [x] for k, x in cells.items()}), path)
  said = rf"--input_format={kind} --url_col={column} --caption_col={caption} "
  if kind == "jsonl":  # img2dataset does not read it
    said = r"names images by URL.*Parquet or CSV file"
  with pytest.raises(ValueError, match=said):
    planned(path)


# Folders of images with metadata.


def image_folder(folder, rows, kind, photos=PHOTOS):
  """Writes photos, and the table of them that `imagefolder` reads."""
  folder.mkdir(parents=True, exist_ok=True)
  for row in rows:
    name = next(iter(row.values()))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(photos[int(name.rsplit("/")[-1][0])])
  path = folder / f"metadata.{kind}"
  if kind == "parquet":
    cells = {x: [row[x] for row in rows] for x in rows[0]}
    parquet.write_table(pa.table(cells), path)
  elif kind == "jsonl":
    path.write_text("\n".join(map(json.dumps, rows)))
  else:
    lines = [list(rows[0]), *(row.values() for row in rows)]
    path.write_text("\n".join(",".join(f'"{x}"' for x in y) for y in lines))
  return folder


KINDS = "csv", "jsonl", "parquet"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", ["file_name", "photo_file_name"])
def test_image_folder(tmp_path, kind, column):
  rows = [{column: f"{i}.jpg", "text": x} for i, x in enumerate(CAPTIONS)]
  assert planned(image_folder(tmp_path / "x", rows, kind)) == ALL


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["in each folder", "above", "by word"])
def test_image_folder_with_splits(tmp_path, kind, place):
  """Equal names in several splits are several images."""
  word = "my_" * (place == "by word")
  folders = [f"{word}train", f"{word}validation", f"{word}test"]
  rows = {
    x: {"file_name": f"{i}.jpg", "text": CAPTIONS[i]}
    for i, x in enumerate(folders)
  }
  top, photos = tmp_path / "x", [PHOTOS[0], PHOTOS[1], PHOTOS[2]]
  for i, folder in enumerate(folders):
    (top / folder).mkdir(parents=True)
    (top / folder / "0.jpg").write_bytes(photos[i])
    rows[folder]["file_name"] = "0.jpg"
    if place != "above":
      image_folder(top / folder, [rows[folder]], kind, photos[i:])
  if place == "above":
    named = [x | {"file_name": f"{y}/0.jpg"} for y, x in rows.items()]
    image_folder(top, named, kind)
    for i, folder in enumerate(folders):
      (top / folder / "0.jpg").write_bytes(photos[i])
  assert planned(top) == {"train": [(0, CAPTIONS[0])]}
  for i, split in enumerate(["train", "validation", "test"]):
    for made in (True, False):
      found = planned(top, split=split, made=made)
      assert found == {split: [(i, CAPTIONS[i])]}
  with pytest.raises(ValueError, match="has the splits .*, not fold"):
    planned(top, split="fold")


def test_image_folder_with_a_column_of_splits(tmp_path):
  rows = [
    {"file_name": f"{i}.jpg", "text": CAPTIONS[i], "split": split}
    for i, split in enumerate(["train", "test", "val"])
  ]
  folder = image_folder(tmp_path / "x", rows, "csv")
  (folder / "3.jpg").write_bytes(PHOTOS[3])
  found = planned(folder)
  assert found.pop("train") == [(0, CAPTIONS[0]), ("3.jpg", NO_SPLIT)]
  assert found == {"test": [(1, CAPTIONS[1])], "validation": [(2, CAPTIONS[2])]}
  assert planned(folder, split="test") == {"test": [(1, CAPTIONS[1])]}


def test_images_that_metadata_leaves_out(tmp_path, caplog):
  """Those have their captions beside them, or are listed."""
  rows = [
    {"file_name": "0.jpg", "text": "a"},
    {"file_name": "1.jpg", "text": ""},
  ]
  folder = image_folder(tmp_path / "x", rows, "csv")
  for i in (2, 3):
    (folder / f"{i}.jpg").write_bytes(PHOTOS[i])
  (folder / "0.txt").write_text("not this")
  (folder / "2.txt").write_text("c")
  made = ingest.ingest(str(folder), "mine", data_dir=tmp_path, workers=1)
  assert read(made) == [
    ("0.jpg", PHOTOS[0], ["a"]),
    ("2.jpg", PHOTOS[2], ["c"]),
  ]
  assert {x["key"] for x in rejected(made)} == {"1.jpg", "3.jpg"}
  assert "read from metadata.csv, not from 1 texts beside images" in caplog.text


def test_metadata_may_name_nothing_outside(tmp_path):
  """Nor through links; a row that is cut or has no image is listed."""
  rows = [{"file_name": "0.jpg", "text": "a"}]
  folder = image_folder(tmp_path / "x", rows, "jsonl")
  (tmp_path / "1.jpg").write_bytes(PHOTOS[1])
  (folder / "link.jpg").symlink_to(tmp_path / "1.jpg")
  (folder / "up").symlink_to(tmp_path)
  away = ["../1.jpg", str(tmp_path / "1.jpg"), "link.jpg", "up/1.jpg", "/"]
  no_names = ["\0.jpg", "x" * 5000 + "/0.jpg"]  # of any file
  with (folder / "metadata.jsonl").open("a") as file:
    for name in [*away, *no_names, None]:
      file.write("\n" + json.dumps({"file_name": name, "text": "b"}))
    file.write('\n{"file_name": "0.jp')
  assert planned(folder) == {
    "train": [
      (0, "a"),
      *[(name, AWAY) for name in away],
      *[(name, NO_FILE) for name in no_names],
      *[("row 8", NO_IMAGE), ("row 9", BROKEN_ROW)],
    ]
  }


def test_bad_rows_above_the_splits_are_listed(tmp_path):
  """Wherever they may belong; those of another split are not."""
  names = ["train/0.jpg", "test/1.jpg"]
  rows = [{"file_name": x, "text": "a"} for x in names]
  folder = image_folder(tmp_path / "x", rows, "jsonl")
  with (folder / "metadata.jsonl").open("a") as file:
    file.write('\n{"file_name": null, "text": "b"}')
    file.write('\n{"file_name": "test/../../2.jpg", "text": "b"}')
  unnamed = ("row 2", NO_IMAGE)
  assert planned(folder) == {"train": [(0, "a"), unnamed]}
  away = ("test/../../2.jpg", AWAY)
  assert planned(folder, split="test") == {"test": [(1, "a"), unnamed, away]}


def test_metadata_may_name_images_of_any_ending(tmp_path):
  (tmp_path / "0.jfif").write_bytes(PHOTOS[0])
  (tmp_path / "metadata.csv").write_text("file_name,text\n0.jfif,a\n")
  assert planned(tmp_path) == {"train": [(0, "a")]}


def test_other_files_that_are_called_metadata(tmp_path, caplog):
  folder = tmp_path / "x"
  folder.mkdir()
  (folder / "0.jpg").write_bytes(PHOTOS[0])
  (folder / "0.txt").write_text("a dog")
  (folder / "metadata.csv").write_text("id,license\n0,MIT\n")
  assert planned(folder) == {"train": [(0, "a dog")]}
  assert f"to read captions from a table, give --input={folder}" in caplog.text


@pytest.mark.parametrize(
  "tables, message",
  [
    ({"metadata.csv": "file_name,label\n0.jpg,3\n"}, "--caption_column=NAME"),
    (
      {"metadata.csv": "a_file_name,b_file_name,text\n0.jpg,0.jpg,a\n"},
      "images in the columns a_file_name, b_file_name; .* --image_column=NAME",
    ),
    (
      {"metadata.jsonl": '{"file_names": ["0.jpg"], "text": "a"}'},
      "a row of several images must become several rows",
    ),
    (
      {
        "metadata.csv": "file_name,text\n0.jpg,a\n",
        "metadata.jsonl": '{"file_name": "0.jpg", "text": "b"}',
      },
      "metadata.csv, metadata.jsonl; keep one",
    ),
  ],
)
def test_metadata_that_is_not_understood(tmp_path, tables, message):
  (tmp_path / "0.jpg").write_bytes(PHOTOS[0])
  for name, text in tables.items():
    (tmp_path / name).write_text(text)
  with pytest.raises(ValueError, match=message):
    planned(tmp_path)
  with pytest.raises(ValueError, match="--images=.* goes with a table"):
    planned(tmp_path, images=tmp_path)


# Folders of save_to_disk.


def saved(number=6, first=0):
  rows = [{"bytes": x, "path": "0.jpg"} for x in PHOTOS[first:number]]
  return table_of(image=rows, caption=CAPTIONS[first:number])


@pytest.mark.parametrize("num_shards", [1, 3])
def test_saved_data_set(tmp_path, num_shards):
  folder = save_to_disk(tmp_path / "x", saved(), num_shards=num_shards)
  # What `Dataset.map` leaves in the folder.
  save_to_disk(tmp_path / "y", saved(2))
  cache = tmp_path / "y" / "data-00000-of-00001.arrow"
  cache.rename(folder / "cache-61d2d25754572132.arrow")
  assert planned(folder) == ALL
  assert planned(f"{folder}/data-*.arrow") == ALL
  with pytest.raises(ValueError, match="not listed in state.json: .* --input="):
    planned(f"{folder}/*.arrow")
  made = ingest.ingest(str(folder), "mine", data_dir=tmp_path, workers=1)
  assert [x[1:] for x in read(made)] == [
    (image, [text]) for image, text in zip(PHOTOS, CAPTIONS, strict=True)
  ]


def test_saved_splits(tmp_path):
  """Their folders say what they are, not what they were loaded as."""
  tables = {"train": saved(2), "test": saved(4, 2), "extra": saved(6, 4)}
  folder = save_dict(tmp_path / "x", **tables)
  texts = list(enumerate(CAPTIONS))
  expected = {"train": texts[:2], "test": texts[2:4], "extra": texts[4:]}
  assert planned(folder) == {"train": expected["train"]}
  for split, rows in expected.items():
    for made in (True, False):
      assert planned(folder, split=split, made=made) == {split: rows}
  assert planned(folder / "test") == {"test": expected["test"]}
  assert planned(folder / "test", split="val") == {"val": expected["test"]}
  with pytest.raises(ValueError, match=r"'test', 'extra'\], not validation"):
    planned(folder, split="validation")
  with pytest.raises(ValueError, match="splits .'a', 'b'., not train"):
    planned(save_dict(tmp_path / "y", a=saved(1), b=saved(1)))


def test_a_saved_data_set_may_say_its_split(tmp_path):
  folder = save_to_disk(tmp_path / "x", saved(1), split="test")
  rows = [(0, CAPTIONS[0])]
  assert planned(folder) == {"test": rows}
  assert planned(folder, split="train") == {"train": rows}
  assert planned(folder, split="test", made=False) == {"test": rows}
  with pytest.raises(ValueError, match="of the split test, not train; leave"):
    planned(folder, split="train", made=False)
  plain = save_to_disk(tmp_path / "y", saved(1))
  with pytest.raises(ValueError, match="names no split, such as test; leave"):
    planned(plain, split="test", made=False)


def test_arrow_files_of_paths_and_of_splits(tmp_path, photos):
  paths = [str(x) for x in photos]
  splits = ["train"] * 3 + ["val"] * 3
  table = table_of(image=paths, caption=CAPTIONS, split=splits)
  expected = {"train": ALL["train"][:3], "validation": ALL["train"][3:]}
  assert planned(save_to_disk(tmp_path / "x", table)) == expected
  table = table_of(image=by_path(paths), caption=CAPTIONS, split=splits)
  assert planned(save_to_disk(tmp_path / "y", table)) == expected


def test_half_written_folders(tmp_path):
  def fresh(name, **how):
    return save_to_disk(tmp_path / name, saved(), **how)

  lost = fresh("lost", num_shards=3)
  (lost / "data-00001-of-00003.arrow").unlink()
  with pytest.raises(ValueError, match="lacks 1 of 3 files .* data-00001"):
    planned(lost)
  unfinished = fresh("unfinished")
  (unfinished / "state.json").unlink()
  with pytest.raises(ValueError, match="no state.json, which save_to_disk"):
    planned(unfinished)
  half = save_dict(tmp_path / "half", train=saved(), test=saved())
  (half / "train" / "state.json").unlink()
  with pytest.raises(ValueError, match="train has no state.json"):
    planned(half)
  with pytest.raises(ValueError, match="holds 2 folders .* such as --input="):
    for name in "ab":
      save_to_disk(tmp_path / "many" / name, saved(1))
    planned(tmp_path / "many")
  old = fresh("old")
  state = json.loads((old / "state.json").read_text())
  state["_indices_data_files"] = [{"filename": "indices.arrow"}]
  (old / "state.json").write_text(json.dumps(state))
  with pytest.raises(ValueError, match="order of their own, as datasets"):
    planned(old)
  for name in ("../x.arrow", "/etc/passwd", "", None, 3):
    state |= {"_indices_data_files": None, "_data_files": [{"filename": name}]}
    (old / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="does not list the names of files"):
      planned(old)


def test_a_stream_that_ends_too_early_is_listed(tmp_path):
  """pyarrow takes the end of a file for the end of its stream."""
  folder = save_to_disk(tmp_path / "x", saved())
  path = folder / "data-00000-of-00001.arrow"
  data = path.read_bytes()
  with pa.ipc.open_stream(path) as reader:
    first = reader.schema
  with pa.ipc.new_stream(str(path), first) as writer:
    for i in range(6):
      writer.write_table(saved().slice(i, 1))
  several = path.read_bytes()
  cut = f"{DAMAGED} ({batches.CUT})"
  for content, number, reason in [
    (data[:-8], 6, cut),  # the end of a stream is missing
    (data[:-900], 0, DAMAGED),
    (data + data, 6, cut),
    (several[: len(several) // 2], None, DAMAGED),
  ]:
    path.write_bytes(content)
    *found, last = planned(folder)["train"]
    assert last == ("row group 0", reason)
    number = len(found) if number is None else number
    assert found == ALL["train"][:number]
  assert 1 < number < 5
  for content in (several[:200], b""):
    path.write_bytes(content)
    assert planned(folder) == {"train": [("", DAMAGED)]}


@pytest.mark.parametrize("kind", ["zstd", "lz4", "dictionary"])
def test_compressed_streams_are_not_expanded(tmp_path, kind):
  """Nobody knows how much they hold; `datasets` writes none."""
  folder = save_to_disk(tmp_path / "x", saved())
  path, table = folder / "data-00000-of-00001.arrow", saved()
  if kind == "dictionary":
    texts = table["caption"].combine_chunks().dictionary_encode()
    table = table.set_column(1, "caption", texts)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
      writer.write_table(table)
    assert planned(folder) == ALL
  codec = "zstd" if kind == "dictionary" else kind
  how = pa.ipc.IpcWriteOptions(compression=codec)
  with pa.ipc.new_stream(str(path), table.schema, options=how) as writer:
    writer.write_table(table)
  assert batches._scan(path) == (0, batches.COMPRESSED)
  reason = f"{DAMAGED} ({batches.COMPRESSED})"
  assert planned(folder) == {"train": [("row group 0", reason)]}


def test_feather_files_are_refused(tmp_path):
  with pa.ipc.new_file(str(tmp_path / "x.arrow"), saved().schema) as writer:
    writer.write_table(saved())
  with pytest.raises(ValueError, match="is a Feather file, .* as Parquet"):
    planned(tmp_path / "x.arrow")


# Columns of captions.


def one(tmp_path, kind, rows):
  """Writes rows of the photos."""
  photo_folder(tmp_path / "photos")
  for i, row in enumerate(rows):
    row["image"] = f"photos/sub/{i}.jpg"
  path = tmp_path / f"x.{kind}"
  if kind == "jsonl":
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
  cells = {x: [row.get(x) for row in rows] for x in rows[0]}
  cells["image"] = by_path(tmp_path / x for x in cells["image"])
  if kind == "parquet":
    return to_parquet(path, table_of(**cells))
  return save_to_disk(tmp_path / "x", table_of(**cells))


EVERY = pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])


@EVERY
@pytest.mark.parametrize("stem", ["caption_{}", "Caption {}", "text{}"])
def test_numbered_columns_are_all_read(tmp_path, kind, stem):
  """In the order of their numbers; empty cells are no captions."""
  names = [stem.format(i) for i in (10, 0, 2)]
  texts = [["c", "a", "b"], [None, "a", " "], [None, None, None]]
  rows = [dict(zip(names, x, strict=True)) for x in texts]
  found = planned(one(tmp_path, kind, rows))
  assert found == {"train": [(0, "a", "b", "c"), (1, "a"), (2,)]}


def test_rows_may_have_more_captions_than_the_first(tmp_path):
  rows = [{"caption_1": "a"}, {"caption_2": "c", "caption_1": "b"}]
  found = planned(one(tmp_path, "jsonl", rows))
  assert found == {"train": [(0, "a"), (1, "b", "c")]}


@EVERY
def test_captions_in_lists_and_structs(tmp_path, kind):
  """flickr30k has a list, Karpathy's rows structs, older `datasets` lists."""
  for name, texts in {
    "captions": ["a", "b"],
    "sentences": [{"raw": "a", "sentid": 1}, {"raw": "b", "sentid": 2}],
    "Sentences": {"raw": ["a", "b"], "sentid": [1, 2]},
  }.items():
    (tmp_path / name).mkdir()
    path = one(tmp_path / name, kind, [{name: texts}])
    assert planned(path) == {"train": [(0, "a", "b")]}


@EVERY
def test_columns_that_the_user_names(tmp_path, kind):
  rows = [{"short": "a", "long": "b", "of": {"en": "c", "de": "d"}}]
  rows[0]["a/b"] = "e"
  path = one(tmp_path, kind, rows)
  for flag, texts in {
    "long": ["b"],
    "short,long": ["a", "b"],
    "of/de": ["d"],
    "of/en, short": ["c", "a"],
    "a/b": ["e"],
    "short,a/b": ["a", "e"],
  }.items():
    assert planned(path, caption_column=flag) == {"train": [(0, *texts)]}
  for flag in ("none", "short,none", "none/en"):
    with pytest.raises(ValueError, match="has no column none(/en)?; it has"):
      planned(path, caption_column=flag)
  with pytest.raises(ValueError, match="--caption_column=NAME"):
    planned(path)


@EVERY
def test_capitals_make_no_difference_unless_two_columns_differ_by_them(
  tmp_path, kind
):
  assert planned(one(tmp_path, kind, [{"TEXT": "a"}])) == {"train": [(0, "a")]}
  (tmp_path / "y").mkdir()
  path = one(tmp_path / "y", kind, [{"Caption": "a", "CAPTION": "b"}])
  with pytest.raises(ValueError, match="Caption, CAPTION; name one with --cap"):
    planned(path)


@EVERY
def test_other_columns_of_captions_are_named(tmp_path, kind, caplog):
  path = one(tmp_path, kind, [{"title": "a", "text": "b"}])
  assert planned(path) == {"train": [(0, "a")]}
  said = "column title alone, not from text; --caption_column=NAME chooses, and"
  assert f"{said} --caption_column=title,text reads all" in caplog.text


@pytest.mark.parametrize(
  "header, chosen, others",
  [
    ("caption,caption_0", ["caption"], ["caption_0"]),
    ("title,caption_0,caption_1", ["caption_0", "caption_1"], ["title"]),
    ("text,sentence_1", ["text"], ["sentence_1"]),
    ("comment,title1,title2", ["title1", "title2"], ["comment"]),
    ("description", ["description"], []),
    ("caption,caption.1,caption.2", ["caption"], ["caption.1", "caption.2"]),
    ("text,text_duplicated_0", ["text"], ["text_duplicated_0"]),
    ("caption...2,caption...3", ["caption...2", "caption...3"], []),
  ],
)
def test_the_likeliest_columns_are_read(caplog, header, chosen, others):
  found = columns.choose_captions("t.csv", header.split(","), None)
  assert found == tuple(chosen)
  warned = f"not from {', '.join(others)}; --caption_column" in caplog.text
  assert warned == bool(others)


def test_karpathys_rows_have_their_path_in_two_columns(tmp_path, caplog):
  """As COCO is on the hub; others have the whole path in one of them."""
  photo_folder(tmp_path)
  rows = [
    {"filepath": "sub", "filename": "0.jpg", "sentences": ["a", "b"]},
    {"filepath": "sub/1.jpg", "filename": "1.jpg", "sentences": ["c"]},
  ]
  (tmp_path / "x.json").write_text(json.dumps(rows))
  found = planned(tmp_path / "x.json")
  assert found == {"train": [(0, "a", "b"), (1, "c")]} and not caplog.text


@pytest.mark.parametrize(
  "name",
  [
    *("x.tar", "x.csv", "x.json", "x.parquet"),
    *("data/metadata.csv", "data/metadata.jsonl"),
  ],
)
def test_pointers_of_git_lfs_are_named(tmp_path, name):
  """A clone of a repository of the hub has them, without Git LFS."""
  pointer = "version https://git-lfs.github.com/spec/v1\n"
  pointer += f"oid sha256:{'0' * 64}\nsize 147000000\n"
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.write_text(pointer)
  with pytest.raises(ValueError, match=f"{name} is a pointer of .* lfs pull"):
    planned(path if "/" not in name else path.parent)
  (tmp_path / "y").mkdir()
  (tmp_path / "y" / "0.jpg").write_text(pointer)
  (tmp_path / "y" / "0.txt").write_text("a dog")
  with pytest.raises(ValueError, match="a pointer of Git LFS; run `git lfs"):
    ingest.ingest(str(tmp_path / "y"), "mine", data_dir=tmp_path, workers=1)


def test_lines_of_json_in_a_file_called_json(tmp_path):
  """As `to_json` of `datasets` writes them."""
  photo_folder(tmp_path)
  rows = [{"image": f"sub/{i}.jpg", "caption": CAPTIONS[i]} for i in range(6)]
  (tmp_path / "x.json").write_text("\n".join(map(json.dumps, rows)))
  assert planned(tmp_path / "x.json") == ALL
  (tmp_path / "y.json").write_text('[{"image": "sub/0.jpg"')
  with pytest.raises(ValueError, match="is not a .json file"):
    planned(tmp_path / "y.json")
  (tmp_path / "z.json").write_text('{"image": {"0": "sub/0.jpg"}}')
  with pytest.raises(ValueError, match=r"of pandas, to_json\(orient='records'"):
    planned(tmp_path / "z.json")


def test_paths_that_other_programs_write(tmp_path, caplog):
  """Windows, `file://`, and structs that `to_csv` of `datasets` prints."""
  photo_folder(tmp_path)
  printed = {"bytes": None, "path": str(tmp_path / "sub" / "3.jpg")}
  lines = ["sub\\0.jpg", ".\\sub\\1.jpg", f"file://{tmp_path}/sub/2.jpg"]
  lines += [f'"{printed}"', "C:\\sub\\4.jpg"]
  rows = "".join(f"{x},{i},s\n" for i, x in enumerate(lines))
  (tmp_path / "x.csv").write_text(f"Image Path,Caption,path\n{rows}")
  assert planned(tmp_path / "x.csv", image_column="Image Path") == {
    "train": [*[(i, str(i)) for i in range(4)], ("C:\\sub\\4.jpg", NO_FILE)]
  }
  planned(tmp_path / "x.csv")
  assert "read from the column path, not from Image Path;" in caplog.text
  held = {"bytes": b"\xff", "path": "0.jpg"}
  (tmp_path / "y.csv").write_text(f'image,caption\n"{held}",a\n')
  with pytest.raises(ValueError, match="has the bytes of images, printed"):
    planned(tmp_path / "y.csv")
