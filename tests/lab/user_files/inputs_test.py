"""Every kind of input, as users have it."""

import hashlib
import json
import os
import pathlib

from make_photos import (
  CAPTIONS,
  PHOTOS,
  photo_folder,
  read,
  reasons,
  rejected,
  write_pairs,
  write_tar,
)
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tensorflow_datasets as tfds

from nuclr_jax.lab import ingest
from nuclr_jax.lab.data import captioned, captions, pair_index, tfds_reader
from nuclr_jax.lab.ingest import publish
from nuclr_jax.lab.report import tables as report_tables
from nuclr_jax.lab.user_files import inputs, tables

# What each input format looks like: writes it, and returns the arguments.


def tars(folder):
  write_pairs(folder / "00000.tar", [0, 1, 2])
  write_pairs(folder / "00001.tar", [3, 4, 5])
  parquet.write_table(pa.table({"url": ["x"]}), folder / "00000.parquet")
  return {"input": str(folder)}


def scattered_tar(folder):
  """All images first, then all texts, as `tar cf x.tar *.jpg *.txt` does."""
  images = [(f"./{i}.JPEG", data) for i, data in enumerate(PHOTOS)]
  texts = [
    (f"./{i}.json", json.dumps({"caption": caption}).encode())
    for i, caption in enumerate(CAPTIONS)
  ]
  return {"input": str(write_tar(folder / "x.tar", images + texts))}


def parquet_of_img2dataset(folder):
  table = {"jpg": PHOTOS, "caption": CAPTIONS, "key": list("012345")}
  parquet.write_table(pa.table(table), folder / "0.parquet", row_group_size=2)
  return {"input": f"{folder}/*.parquet"}


def parquet_of_hugging_face(folder):
  images = [{"bytes": data, "path": "x.jpg"} for data in PHOTOS]
  table = pa.table({"image": images, "text": [[x] for x in CAPTIONS]})
  for split in ("train", "test"):
    chosen = table if split == "train" else table.slice(0, 1)
    parquet.write_table(chosen, folder / f"{split}-00000-of-00001.parquet")
  return {"input": str(folder)}


@pytest.mark.parametrize(
  "kind", ["large_binary", "binary_view", "dictionary", "struct of a view"]
)
def test_parquet_columns_of_bytes(tmp_path, kind):
  images = {
    "large_binary": lambda: pa.array(PHOTOS, pa.large_binary()),
    "binary_view": lambda: pa.array(PHOTOS, pa.binary_view()),
    "dictionary": lambda: pa.array(PHOTOS).dictionary_encode(),
    "struct of a view": lambda: pa.array(
      [{"bytes": x} for x in PHOTOS], pa.struct([("bytes", pa.binary_view())])
    ),
  }[kind]()
  path = tmp_path / "x.parquet"
  parquet.write_table(pa.table({"image": images, "caption": CAPTIONS}), path)
  (part,) = inputs.plan(str(path)).parts
  assert [item.image for item in part.read()] == PHOTOS


def table_of_open_clip(folder):
  rows = [f"sub/{i}.jpg\t{x}" for i, x in enumerate(CAPTIONS)]
  (folder / "x.csv").write_text("\n".join(["filepath\ttitle", *rows]))
  photo_folder(folder / "photos")
  return {"input": f"{folder}/x.csv", "images": f"{folder}/photos"}


def table_with_own_columns(folder):
  rows = [f'{i},"{x}",sub/{i}.jpg' for i, x in enumerate(CAPTIONS)]
  (folder / "x.csv").write_text("\n".join(["id,says,where", *rows]))
  photo_folder(folder / "photos")
  columns = {"image_column": "where", "caption_column": "says"}
  input = f"{folder}/x.csv"
  return {"input": input, "images": f"{folder}/photos", **columns}


def photos_among_what_is_hidden(folder):
  """Copies and thumbnails; the folder's own path may be hidden."""
  photos = photo_folder(folder / ".cache" / "photos")
  for place in (".ipynb_checkpoints", "sub/@eaDir/0.jpg", "__MACOSX/sub"):
    (photos / place).mkdir(parents=True)
    (photos / place / "9.jpg").write_bytes(PHOTOS[0])
    (photos / place / "9.txt").write_text("a copy")
    write_pairs(photos / place / "9.tar", [0])
  for i, caption in enumerate(CAPTIONS):
    (photos / "sub" / f"{i}.txt").write_text(caption)
    (photos / "sub" / f"._{i}.jpg").write_bytes(b"Mac OS X")
  (photos / "sub" / "Thumbs.db").write_bytes(b"x")
  return {"input": str(photos)}


def tars_among_what_is_hidden(folder):
  def hidden(of):
    return [(f"{of}9.jpg", PHOTOS[0]), (f"{of}9.txt", b"a copy")]

  for i in range(2):
    files = hidden("./.ipynb_checkpoints/") + hidden("__MACOSX/._")
    for j in range(3 * i, 3 * i + 3):
      files += [(f"./{j}.jpg", PHOTOS[j]), (f"./{j}.txt", CAPTIONS[j].encode())]
      files += hidden(f"@eaDir/{j}.jpg/")
    write_tar(folder / f"{i}.tar", files)
    write_tar(folder / f"._{i}.tar", hidden("a"))
  (folder / "__MACOSX").mkdir()
  write_tar(folder / "__MACOSX" / "9.tar", hidden("a"))
  return {"input": str(folder)}


def json_of_albef(folder):
  photo_folder(folder)
  rows = [
    {"image": str(folder / "sub" / f"{i}.jpg"), "caption": x, "image_id": i}
    for i, x in enumerate(CAPTIONS)
  ]
  (folder / "x.json").write_text(json.dumps(rows))
  return {"input": f"{folder}/x.json"}


def json_lines(folder):
  photo_folder(folder)
  rows = [
    {"file_name": f"sub/{i}.jpg", "text": [x]} for i, x in enumerate(CAPTIONS)
  ]
  (folder / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
  return {"input": f"{folder}/x.jsonl"}


def json_of_coco(folder):
  photo_folder(folder)
  table = {
    "images": [{"id": 9 - i, "file_name": f"sub/{i}.jpg"} for i in range(6)],
    "annotations": [
      {"image_id": 9 - i, "caption": x} for i, x in enumerate(CAPTIONS)
    ],
  }
  (folder / "x.json").write_text(json.dumps(table))
  return {"input": f"{folder}/x.json"}


def images_with_texts(folder):
  photo_folder(folder)
  for i, caption in enumerate(CAPTIONS):
    (folder / "sub" / f"{i}.txt").write_text(caption + "\n")
  return {"input": str(folder)}


def tfds_of_captions(folder):
  builder = Captions(data_dir=folder, file_format="array_record")
  builder.download_and_prepare()
  return {"input": "tfds:captions:val", "data_dir": folder}


class Captions(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A data set like `coco_captions`."""

  name = "captions"
  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    caption = {"id": np.int64, "text": tfds.features.Text()}
    features = {
      "image": tfds.features.Image(encoding_format="jpeg"),
      "captions": tfds.features.Sequence(caption),
    }
    return tfds.core.DatasetInfo(
      builder=self,
      disable_shuffling=True,
      features=tfds.features.FeaturesDict(features),
    )

  def _split_generators(self, dl_manager):
    return {"val": self._generate_examples()}

  def _generate_examples(self):
    for i, (image, caption) in enumerate(zip(PHOTOS, CAPTIONS, strict=True)):
      yield i, {"image": image, "captions": [{"id": i, "text": caption}]}


class Numbered(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A data set whose keys are numbers, from 0 on."""

  name = "numbered"
  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    features = {
      "image": tfds.features.Image(encoding_format="jpeg"),
      "caption": tfds.features.Text(),
      "key": np.int64,
    }
    return tfds.core.DatasetInfo(
      builder=self,
      disable_shuffling=True,
      features=tfds.features.FeaturesDict(features),
    )

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples()}

  def _generate_examples(self):
    for i, (image, caption) in enumerate(zip(PHOTOS, CAPTIONS, strict=True)):
      yield i, {"image": image, "caption": caption, "key": i}


FORMATS = [
  tars,
  scattered_tar,
  parquet_of_img2dataset,
  parquet_of_hugging_face,
  table_of_open_clip,
  table_with_own_columns,
  photos_among_what_is_hidden,
  tars_among_what_is_hidden,
  json_of_albef,
  json_lines,
  json_of_coco,
  images_with_texts,
  tfds_of_captions,
]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_every_format_gives_the_same_records(tmp_path, monkeypatch, make):
  monkeypatch.setattr(inputs, "PART_SIZE", 4)  # two parts
  (tmp_path / "in").mkdir()
  arguments = {"data_dir": tmp_path / "out"} | make(tmp_path / "in")
  folder = ingest.ingest(name="mine", workers=1, **arguments)
  assert folder.parts[-2:] == ("mine", "1.0.0")
  assert [row[1:] for row in read(folder)] == [
    (image, [caption]) for image, caption in zip(PHOTOS, CAPTIONS, strict=True)
  ]
  assert len({key for key, _, _ in read(folder)}) == 6
  assert publish.split_counts(folder) == {
    "train images": 6,
    "train captions": 6,
    "train rejected": 0,
  }
  assert not (folder.parent / "incomplete").exists()


def test_numbers_of_tfds_are_keys(tmp_path):
  builder = Numbered(data_dir=tmp_path, file_format="array_record")
  builder.download_and_prepare()
  folder = ingest.ingest(
    "tfds:numbered:train", "mine", data_dir=tmp_path, workers=1
  )
  expected = [str(i) for i in range(len(CAPTIONS))]
  assert [key for key, _, _ in read(folder)] == expected
  data = captioned.open_captioned("numbered", "train", tmp_path)
  assert [x.key for x in data.read(np.arange(len(CAPTIONS)))] == expected


def test_images_of_coco_without_annotation_are_listed(tmp_path):
  (tmp_path / "in").mkdir()
  path = pathlib.Path(json_of_coco(tmp_path / "in")["input"])
  table = json.loads(path.read_text())
  table["annotations"] = [x for x in table["annotations"] if x["image_id"] != 7]
  path.write_text(json.dumps(table))
  folder = ingest.ingest(str(path), "mine", data_dir=tmp_path, workers=1)
  found = publish.split_counts(folder)
  assert found["train images"] == 5 and found["train rejected"] == 1
  (row,) = rejected(folder, "train")
  assert row["reason"] == "no caption" and "sub/2.jpg" in row["key"]


def test_files_are_in_the_order_and_by_the_names_of_tfds(tmp_path):
  for number in (2, 0, 1):
    write_pairs(tmp_path / f"{number}.tar", [2 * number, 2 * number + 1])
  (tmp_path / "empty").mkdir()
  write_tar(tmp_path / "empty" / "0.tar", [])
  folder = ingest.ingest(
    f"{tmp_path}/[12].tar,{tmp_path}/empty,{tmp_path}/0.tar",
    "mine",
    data_dir=tmp_path,
    workers=1,
  )
  keys = [f"{i:05d}" for i in (2, 3, 4, 5, 0, 1)]
  assert [key for key, _, _ in read(folder)] == keys
  (row,) = rejected(folder)
  assert row["source"].endswith("empty/0.tar") and row["reason"] == "no sample"
  assert sorted(path.name for path in folder.glob("*array_record*")) == [
    f"mine-train.array_record-0000{i}-of-00003" for i in range(3)
  ]
  info = tfds.builder_from_directory(os.fspath(folder)).info
  assert info.splits["train"].shard_lengths == [2, 2, 2]
  assert info.full_name == "mine/1.0.0"


@pytest.mark.parametrize("table", [False, True])
def test_equal_names_in_several_folders_are_keys_of_several_images(
  tmp_path, monkeypatch, table
):
  for name in ("a", "b/c"):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "0.jpg").write_bytes(PHOTOS[0])
    (folder / "0.txt").write_text(f"in {name}")
    if table:
      (folder / "metadata.csv").write_text(f"file_name,text\n0.jpg,in {name}\n")
  expected = {"a/0.jpg": ["in a"], "b/c/0.jpg": ["in b/c"]}
  monkeypatch.chdir(tmp_path)
  for text in ("a,b/c", f"{tmp_path}/a,b/c"):
    parts = inputs.plan(text).parts
    items = [item for part in parts for item in part.read()]
    assert {item.key: item.captions for item in items} == expected
  (part,) = inputs.plan("a").parts
  assert [item.key for item in part.read()] == ["0.jpg"]


def test_a_folder_of_several_splits_gives_one(tmp_path):
  for number, split in enumerate(("train", "val", "train/more")):
    (tmp_path / "in" / split).mkdir(parents=True)
    write_pairs(tmp_path / "in" / split / "0.tar", [number])
  given = str(tmp_path / "in")
  for split, keys in (("train", ["00000", "00002"]), ("val", ["00001"])):
    folder = ingest.ingest(
      given, "mine", data_dir=tmp_path, split=split, workers=1
    )
    assert [row[0] for row in read(folder, split)] == keys
  with pytest.raises(ValueError, match="has the splits .* not test"):
    ingest.ingest(given, "mine", data_dir=tmp_path, split="test")


def test_tables_in_two_folders(tmp_path):
  """Equal names are other images; a home folder is spelled ~."""
  for number in (0, 1):
    folder = photo_folder(tmp_path / str(number))
    (folder / "sub" / "0.jpg").write_bytes(PHOTOS[number])
    row = {"image": "sub/0.jpg", "caption": CAPTIONS[number]}
    (folder / "x.jsonl").write_text(json.dumps(row))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("HOME", str(tmp_path))
    folder = ingest.ingest("~/0/x.jsonl,~/1/x.jsonl", "a", data_dir=tmp_path)
    assert [row[1:] for row in read(folder)] == [
      (PHOTOS[0], [CAPTIONS[0]]),
      (PHOTOS[1], [CAPTIONS[1]]),
    ]
    folder = ingest.ingest(
      "~/0/x.jsonl", "b", data_dir=tmp_path, images="~/1", workers=1
    )
  assert [row[1] for row in read(folder)] == [PHOTOS[1]]


def test_rows_of_an_image_are_joined_and_pairs_numbered(tmp_path):
  photo_folder(tmp_path)
  rows = [
    {"image": "sub/0.jpg", "caption": ["A dog.", " ?! ", "x"]},
    {"image": "sub/1.jpg", "caption": "a cat"},
    {"image": "sub/0.jpg", "caption": "a DOG"},
    {"image": str(tmp_path / "again.jpg"), "caption": "the sea"},
  ]
  (tmp_path / "again.jpg").write_bytes(PHOTOS[1])
  (tmp_path / "x.json").write_text(json.dumps(rows))
  folder = ingest.ingest(
    f"{tmp_path}/x.json", "mine", data_dir=tmp_path, workers=1
  )
  assert [row[2] for row in read(folder)] == [
    ["A dog.", "x", "a DOG"],
    ["a cat"],
    ["the sea"],
  ]
  assert reasons(folder) == {"sub/0.jpg": captions.EMPTY_CAPTION}
  index = pair_index.load_index(folder, "train")
  assert index.record.tolist() == [0, 0, 0, 1, 2]
  assert index.caption.tolist() == [0, 1, 2, 0, 0]
  assert index.image_id.tolist() == [0, 0, 0, 1, 1]
  assert index.text_id.tolist() == [0, 1, 0, 2, 3]
  for data, found in zip(PHOTOS, index.image_hash, strict=False):
    digest = hashlib.blake2b(data, digest_size=8).digest()
    assert int(found) == int.from_bytes(digest, "little")


def test_karpathys_splits(tmp_path):
  photo_folder(tmp_path / "photos")
  images = [
    {
      "filepath": "sub",
      "filename": f"{i}.jpg",
      "split": split,
      "sentences": [{"raw": CAPTIONS[i]}, {"raw": f"and {i}"}],
    }
    for i, split in enumerate("train restval val test train test".split())
  ]
  (tmp_path / "x.json").write_text(json.dumps({"images": images}))
  folder = ingest.ingest(
    f"{tmp_path}/x.json",
    "mine",
    data_dir=tmp_path,
    images=tmp_path / "photos",
    workers=1,
  )
  expected = {"train": [0, 1, 4], "validation": [2], "test": [3, 5]}
  for split, numbers in expected.items():
    assert read(folder, split) == [
      (f"sub/{i}.jpg", PHOTOS[i], [CAPTIONS[i], f"and {i}"]) for i in numbers
    ]
  options = {"images": tmp_path / "photos"}
  table = f"{tmp_path}/x.json"
  one = inputs.plan(table, split="test", **options)
  assert {part.split for part in one.parts} == {"test"}
  with pytest.raises(ValueError, match=r"'train', 'validation'\], not tests"):
    inputs.plan(table, split="tests", **options)


@pytest.mark.parametrize(
  ("text", "numbers"),
  [
    ("val[:50%]", [0, 1, 2]),
    ("val[2:4]", [2, 3]),
    ("val[-1:]", [5]),
    ("val[:1]+val[4:]", [0, 4, 5]),
  ],
)
def test_slices_of_tfds(tmp_path, text, numbers):
  """In the input they are made; in --split they are chosen from."""
  builder = Captions(data_dir=tmp_path, file_format="array_record")
  builder.download_and_prepare()
  for arguments in (
    {"text": f"tfds:captions:{text}"},
    {"text": "tfds:captions", "split": text, "made": False},
  ):
    parts = inputs.plan(**arguments, data_dir=tmp_path).parts
    items = [item for part in parts for item in part.read()]
    assert [x.image for x in items] == [PHOTOS[i] for i in numbers]
  data = tfds_reader.open_split("captions", text, tmp_path)
  assert data.length == len(numbers)


def test_a_split_that_is_not_made_must_be_there(tmp_path):
  """`nuclr embed --split=test` does not embed everything."""
  photo_folder(tmp_path / "all")
  for i, split in enumerate(("train", "test")):
    (tmp_path / "tars" / split).mkdir(parents=True)
    write_pairs(tmp_path / "tars" / split / "0.tar", [i])
  rows = [{"image": "x.jpg", "caption": "x"}]
  (tmp_path / "rows.json").write_text(json.dumps(rows))

  def chosen(name, split):
    parts = inputs.plan(f"{tmp_path}/{name}", split=split, made=False).parts
    return [part.read.args[0] for part in parts]

  (tar,) = chosen("tars", "test")
  assert tar.endswith("test/0.tar")
  for name in ("all", "rows.json", "tars/test/0.tar"):
    with pytest.raises(ValueError, match="no splits that --split=test could"):
      chosen(name, "test")
    assert len(chosen(name, None)) == 1
  with pytest.raises(ValueError, match="'test', 'train'\\], not val"):
    chosen("tars", "val")
  with pytest.raises(ValueError, match="slices are of TFDS data sets"):
    chosen("all", "train[:50%]")
  with pytest.raises(ValueError, match="names a split already; leave --split"):
    inputs.plan("tfds:cc3m:train", split="test", made=False)


MESSAGES = [
  ({"input": "none/*.tar"}, "none/.* does not exist"),
  ({"input": "{}"}, "nothing to read; supported inputs are"),
  ({"input": "{}/x.zip"}, "of the kinds .zip; .* supported inputs are"),
  ({"input": "{}/x.tsv,{}/x.tar"}, "of the kinds .tar, .tsv"),
  ({"input": "{}/x.tsv"}, "by URL.*\n.*img2dataset --url_list"),
  ({"input": "{}/urls.csv"}, "by URL.*\n.*img2dataset --url_list"),
  ({"input": "{}/url.json"}, "by URL.*\n.*img2dataset --url_list"),
  ({"input": "{}/y.csv"}, "columns .*'a', 'b'.* --image_column=NAME"),
  ({"input": "{}/y.csv", "image_column": "c"}, "no column c"),
  ({"input": "{}/bad.json"}, "is not a .json file"),
  ({"input": "{}/dict.json"}, "supported forms are a list"),
  ({"input": "{}/meta.parquet"}, "columns .*none can hold .* img2dataset"),
  (
    {"input": "{}/lists.parquet"},
    r"image \(list<element: binary>\), .*none can hold .* one image in each "
    "row;.* A row of several images must become several rows",
  ),
  (
    {"input": "{}/urls.parquet", "image_column": "url"},
    r"by URL, such as https://a.b/c\..*\n.* --url_list=.* --url_col=url",
  ),
  ({"input": "{}/urls.parquet", "image_column": "x"}, "has no column x"),
  ({"input": "{}/hub"}, r"splits \['test', 'val'\], not train"),
  ({"input": "{}/x.tar", "images": "{}"}, "goes with a table"),
  ({"input": "{}/y.csv", "images": "{}/no"}, "is not a folder"),
  ({"input": "tfds:no"}, "no data set 'no' is prepared in"),
  ({"input": "tfds:old"}, "nuclr convert --input="),
  ({"input": "{}/x.tar", "name": "My-Set"}, "is not a name"),
  ({"input": "{}/x.tar", "split": "all"}, "is not a name"),
  ({"input": "{}/x.tar", "max_size": 8}, "at least 16"),
  ({"input": "{}/x.tar", "max_pixels": 0}, "at least 256, got 0"),
  ({"input": "{}/x.tar", "workers": 0}, "at least 1"),
  ({"input": "{}/x.tar", "name": "captions"}, "is another data set"),
  (
    {"input": "{}/x.tar", "caption_column": "txt"},
    "--caption_column=txt goes with a table .* or Parquet files,.* kinds .tar",
  ),
  ({"input": "tfds:captions:val", "image_column": "image"}, "kinds tfds"),
  ({"input": "tfds:captions:val", "images": "{}"}, "kinds tfds"),
  (
    {"input": "{}/coco.json", "image_column": "file_name"},
    "form of COCO's annotations, .* leave --image_column=file_name out",
  ),
  ({"input": "{}/x.tar", "split": "train[:50%]"}, "is not a name; slices are"),
  ({"input": "tfds:captions", "split": "val[:1]"}, "'tfds:NAME:train.:10%.'"),
  ({"input": "tfds:captions"}, r"no split 'train'; it has \['val'\]"),
  ({"input": "tfds:captions:"}, "a data set or a split is missing"),
  ({"input": "tfds:captions:val[:9]"}, r"val\[:9\] is not a slice.*'val': 6"),
  (
    {"input": "tfds:captions:val[:x]"},
    "is not a slice of .*; slices are train",
  ),
  ({"input": "tfds:captions:val[:0]"}, r"no records in val\[:0\]"),
  ({"input": "tfds:captions:val[60%:20%]"}, r"no records in val\[60%:20%\]"),
  ({"input": "tfds:captions:val[:2]+no"}, "no split 'no'; it has"),
]


@pytest.fixture(scope="module")
def strange_inputs(tmp_path_factory):
  folder = tmp_path_factory.mktemp("strange")
  write_pairs(folder / "x.tar", [0])
  for name, text in {
    "x.zip": "",
    "x.tsv": "a dog\thttps://a.b/c.jpg\n",
    "urls.csv": "caption,url\na dog,https://a.b/c.jpg\n",
    "url.json": '[{"image": "https://a.b/c.jpg", "caption": "a dog"}]',
    "y.csv": "a,b\n1,2\n",
    "bad.json": "{",
    "dict.json": '{"a": 1}',
    "coco.json": '{"images": [{"id": 1}], "annotations": [{}]}',
  }.items():
    (folder / name).write_text(text)
  parquet.write_table(pa.table({"caption": ["x"]}), folder / "meta.parquet")
  table = {"image": [PHOTOS], "caption": ["a dog"]}
  parquet.write_table(pa.table(table), folder / "lists.parquet")
  table = {"jpg": [PHOTOS[0]], "url": ["https://a.b/c"], "caption": ["a dog"]}
  parquet.write_table(pa.table(table), folder / "urls.parquet")
  (folder / "hub").mkdir()
  for split in ("val", "test"):
    path = folder / "hub" / f"{split}-00000-of-00001.parquet"
    parquet.write_table(pa.table({"image": PHOTOS, "text": CAPTIONS}), path)
  builder = Captions(data_dir=folder, file_format="array_record")
  builder.download_and_prepare()
  old = folder / "old" / "1.0.0"
  old.mkdir(parents=True)
  for name in ("dataset_info.json", "features.json"):
    text = (folder / "captions" / "1.0.0" / name).read_text()
    (old / name).write_text(text.replace("array_record", "tfrecord"))
  return folder


@pytest.mark.parametrize(
  "arguments, message", MESSAGES, ids=lambda x: str(x)[:40]
)
def test_messages(strange_inputs, arguments, message):
  filled = {
    name: x.replace("{}", str(strange_inputs)) if isinstance(x, str) else x
    for name, x in arguments.items()
  }
  if arguments["input"] == "{}":
    (strange_inputs / "nothing").mkdir()
    filled["input"] += "/nothing"
  with pytest.raises(ValueError, match=message):
    ingest.ingest(**{"name": "mine", "data_dir": strange_inputs} | filled)
  assert not (strange_inputs / "mine" / "incomplete").exists()


def test_fields():
  text, image = tfds.features.Text(), tfds.features.Image()
  sequence = tfds.features.Sequence
  for features, name in [
    ({"text": text, "caption": text}, "caption"),
    ({"captions": sequence(text)}, "captions"),
    ({"captions": sequence({"id": np.int64, "text": text})}, "captions/text"),
    ({"caption": np.int64, "title": text}, "title"),
  ]:
    found = tfds_reader.caption_field(tfds.features.FeaturesDict(features))
    assert found == name
  with pytest.raises(ValueError, match=r"\['label'\] is a caption"):
    tfds_reader.caption_field({"label": text})
  assert tfds_reader.image_field({"a": image, "image": image}) == "image"
  for features in ({"a": image, "b": image}, {"image": text}):
    with pytest.raises(ValueError, match="only one image feature"):
      tfds_reader.image_field(features)
  rows = [
    ({"text": "x"}, "text", ["x"]),
    ({"text": np.array([b"x", b"\xff"], object)}, "text", ["x", "\ufffd"]),
    ({"text": None}, "text", []),
    ({"text": 7}, "text", [""]),
    ({"c": {"text": [b"x", b"y"]}}, "c/text", ["x", "y"]),
    ({"c": [{"text": b"x"}, {}]}, "c/text", ["x", ""]),
  ]
  for row, field, expected in rows:
    assert captions.captions_of(row, field) == expected


@pytest.mark.parametrize("ending, mark", [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("quoted", [(11,), (11, 30), (59,)])
def test_a_stray_quotation_mark_swallows_no_row(ending, mark, quoted, tmp_path):
  """It is one of the caption; cells in quotation marks may have lines."""
  lines = [f"filepath{mark}caption"]
  for i in range(60):
    start = '"' if i in quoted else ""
    lines.append(f"{i:03d}.jpg{mark}{start}a red circle")
  lines[21] = f'020.jpg{mark}"two ""red""\ncircles"'
  path = tmp_path / f"table.{ending}"
  path.write_text("\n".join(lines))
  rows = [row for _, row in tables.read_table(path, split="train")]
  assert [row.key for row in rows] == [f"{i:03d}.jpg" for i in range(60)]
  for i, row in enumerate(rows):
    expected = '"a red circle' if i in quoted else "a red circle"
    if i == 20:
      expected = 'two "red"\ncircles'
    assert list(row.captions) == [expected]


@pytest.mark.parametrize(
  "columns",
  [
    {"own_similarity": -0.5, "match_probability": 0.5},
    {"kind": "near", "similarity": 0.5, "nearest": "0.jpg"},
    {"score": -0.5},  # of somebody else, whose apostrophes are no marks
  ],
)
def test_tables_of_popularities_are_read_as_they_were(columns, tmp_path):
  texts = ["=1+1", "'tis", "''", "-5", " @me", "a dog", "it's"]
  names = ["-x.jpg", "'y.jpg", *(f"{i}.jpg" for i in range(5))]
  table = {"key": names, "caption": texts}
  table |= {k: [x] * len(texts) for k, x in columns.items()}
  report_tables.write(tmp_path / "x.csv", table)
  # Whoever has removed the marks gets the same.
  (tmp_path / "y.csv").write_text(
    "\n".join(
      ["key,caption,own_similarity,match_probability", "a.jpg,'tis,1,1"]
    )
  )
  found = tables.read_table(
    tmp_path / "x.csv", split="train", image_column="key"
  )
  rows = [row for _, row in found]
  of_popularity = "score" not in columns
  assert (rows[1].captions[0] == "'tis") == of_popularity
  assert (rows[0].key == "-x.jpg") == of_popularity
  if of_popularity:
    assert [row.key for row in rows] == names
    assert [row.captions[0] for row in rows] == texts
  found = tables.read_table(
    tmp_path / "y.csv", split="train", image_column="key"
  )
  assert [row.captions[0] for _, row in found] == ["'tis"]


def test_bytes_that_are_no_text_are_no_caption(tmp_path, caplog):
  """Nor is an image of an unknown kind left out in silence."""
  photos = tmp_path / "photos"
  photos.mkdir()
  for i, text in enumerate((b"a dog", "café".encode("latin-1"))):
    (photos / f"{i}.jpg").write_bytes(PHOTOS[i])
    (photos / f"{i}.txt").write_bytes(text)
  (photos / "2.HEIC").write_bytes(b"?")
  folder = ingest.ingest(str(photos), "mine", data_dir=tmp_path, workers=1)
  assert [row[2] for row in read(folder)] == [["a dog"]]
  assert reasons(folder) == {"1.jpg": captions.NO_UTF8}
  assert "files of these kinds are not read: .heic (1)" in caplog.text
  table = [{"image": "0.jpg", "caption": ["a d\ufffdg", "a dog"]}]
  (photos / "table.json").write_text(json.dumps(table))
  folder = ingest.ingest(
    f"{photos}/table.json", "other", data_dir=tmp_path, workers=1
  )
  assert reasons(folder) == {"0.jpg": captions.NO_UTF8}


def test_names_in_a_folder(tmp_path, caplog):
  """Dots, capitals, and texts that are called by the whole name of a file."""
  texts = {
    "v1.0/Track 2.1 (Clean).jpg": "v1.0/Track 2.1 (Clean).txt",
    "v1.0/Track 2.2 (Live).jpg": "v1.0/Track 2.2 (Live).jpg.txt",
    "IMG.0001.JPG": "IMG.0001.TXT",
    "Größe.png": "Größe.txt",
    "none.jpg": "none.en.txt",
  }
  (tmp_path / "in/v1.0").mkdir(parents=True)
  for i, (image, text) in enumerate(texts.items()):
    (tmp_path / "in" / image).write_bytes(PHOTOS[i])
    (tmp_path / "in" / text).write_text(f"caption of {image}")
  folder = ingest.ingest(
    str(tmp_path / "in"), "mine", data_dir=tmp_path, workers=1
  )
  found = {key: captions for key, _, captions in read(folder)}
  kept = [image for image in texts if image != "none.jpg"]
  assert found == {image: [f"caption of {image}"] for image in kept}
  assert reasons(folder) == {"none.jpg": "no caption"}
  assert "1 texts are not read, such as none.en.txt" in caplog.text


def test_names_that_utf8_cannot_encode_stay_apart(tmp_path):
  files = []
  for i, name in enumerate(("caf\udce9", "caf\udce8")):
    files += [(f"{name}.jpg", PHOTOS[i]), (f"{name}.txt", CAPTIONS[i].encode())]
  path = write_tar(tmp_path / "x.tar", files)
  folder = ingest.ingest(str(path), "mine", data_dir=tmp_path, workers=1)
  assert [image for _, image, _ in read(folder)] == PHOTOS[:2]
  assert rejected(folder) == []


def test_a_range_of_tars_is_their_list(tmp_path):
  for i in range(8, 11):
    write_pairs(tmp_path / f"{i:03d}.tar", [i])
  expected = inputs.plan(",".join(f"{tmp_path}/{i:03d}.tar" for i in (9, 10)))
  found = inputs.plan(f"{tmp_path}/{{009..010}}.tar")
  assert found.files == expected.files and len(found.parts) == 2
  with pytest.raises(ValueError, match="011.tar does not exist"):
    inputs.plan(f"{tmp_path}/{{009..011}}.tar")
