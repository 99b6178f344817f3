r"""A frozen sentence encoder, whose features take the place of token ids.

python -m experiments.icons.frozen --data_dir=DATA > names.txt
nuclr embed --features --model=minilm --input=names.txt \
  --output=DATA/icons_minilm

`minilm` is all-MiniLM-L6-v2, see docs/guides/published_models.md.
"""

import argparse

from experiments.harness import training
from nuclr_jax.lab.data.embeddings import Lookup, open_lookup
from nuclr_jax.lab.data.source import Data

FOLDER = "icons_minilm"  # in the folder of prepared data


def open_features(data_dir: str | None) -> Lookup:
  """Opens the features of all names.

  Raises:
    ValueError: If they have not been written.
  """
  remedy = (
    "the features of a frozen encoder; the commands that write it are in the "
    "docstring of experiments/icons/frozen.py"
  )
  return open_lookup(training.folder_beside(data_dir, FOLDER, remedy))


def with_features(data: Data, lookup: Lookup) -> Data:
  """Replaces the token ids of all texts by features."""
  train = data.train

  def fetch(pair_ids, random=None):
    batch = train.fetch(pair_ids, random)
    return batch._replace(text=lookup.encode(train.captions(batch.text_id)))

  return data._replace(
    train=train._replace(
      fetch=fetch, fingerprint=f"{train.fingerprint}/{lookup.text}"
    ),
    tokenizer=lookup,
  )


def use_features(config) -> None:
  """Takes the towers of `icons:lit`, with features as the text tower."""
  config.model = training.get_config("icons")("lit").model
  config.model.text = dict(name="rows")


def names_of(data: Data) -> list[str]:
  """Returns the names of all splits, each once."""
  train = data.train
  names = dict.fromkeys(train.captions(range(train.sizes.num_texts)))
  for held_out in data.sets.values():
    names |= dict.fromkeys(held_out.captions)
  return list(names)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--data_dir", help="folder of prepared data sets")
  config = training.get_config("icons")("clip")
  found = training.load_data(config, parser.parse_args().data_dir)
  print("\n".join(names_of(found)))
