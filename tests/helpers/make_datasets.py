"""Files as Hugging Face's `datasets` writes them, without `datasets`.

Schemas with their metadata, the batches and the files beside them are those of
`datasets` 5.2.0 with pyarrow 26.0.1: `Dataset.from_dict(...)` with the feature
`Image()`, then `to_parquet` or `save_to_disk`.
"""

import json

import pyarrow as pa
from pyarrow import parquet

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {
  IMAGE: {"_type": "Image"},
  pa.string(): {"dtype": "string", "_type": "Value"},
  pa.list_(pa.string()): {
    "feature": {"dtype": "string", "_type": "Value"},
    "_type": "List",
  },
}


def by_path(paths):
  """What `datasets` has for images that it was given by path."""
  return [{"bytes": None, "path": None if x is None else str(x)} for x in paths]


def table_of(**columns):
  """A table; lists are images if they are of structs, else texts."""
  arrays = {}
  for name, values in columns.items():
    first = next((x for x in values if x is not None), "")
    is_image = isinstance(first, dict) and first.keys() == {"bytes", "path"}
    kind = IMAGE if is_image else pa.string() if first == "" else None
    arrays[name] = pa.array(values, kind)
  table = pa.table(arrays)
  features = {x.name: FEATURES.get(x.type, {}) for x in table.schema}
  info = json.dumps({"info": {"features": features}})
  return table.replace_schema_metadata({"huggingface": info})


def to_parquet(path, table):
  """`Dataset.to_parquet`, which leaves images where they are."""
  parquet.write_table(table, path)
  return path


def save_to_disk(folder, table, *, split=None, num_shards=1):
  """`Dataset.save_to_disk`: streams of Arrow, then the list of them."""
  folder.mkdir(parents=True)
  names = [f"data-{i:05d}-of-{num_shards:05d}.arrow" for i in range(num_shards)]
  size = -(-table.num_rows // num_shards)
  for i, name in enumerate(names):
    with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
      writer.write_table(table.slice(i * size, size))
  features = json.loads(table.schema.metadata[b"huggingface"])["info"]
  state = {
    "_data_files": [{"filename": name} for name in names],
    "_fingerprint": "01034475345d13f9",
    "_format_columns": None,
    "_format_kwargs": {},
    "_format_type": None,
    "_output_all_columns": False,
    "_split": split,
  }
  (folder / "state.json").write_text(json.dumps(state, indent=2))
  info = {"citation": "", "description": ""} | features
  info |= {"homepage": "", "license": ""}
  (folder / "dataset_info.json").write_text(json.dumps(info, indent=2))
  return folder


def save_dict(folder, **tables):
  """`DatasetDict.save_to_disk`."""
  for name, table in tables.items():
    save_to_disk(folder / name, table, split="train")
  listed = json.dumps({"splits": list(tables)})
  (folder / "dataset_dict.json").write_text(listed)
  return folder
