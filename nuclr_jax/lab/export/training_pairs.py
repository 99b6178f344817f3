"""Writes a model's embeddings of the pairs that it trains on to files.

The folder is like that of `embed.write_embeddings`: `image.npy` has a row for
each distinct image and `text.npy` one for each pair, in the order of their ids,
so that the rows line up with any run on the same pairs.
"""

import os

import jax
from jax.sharding import Mesh
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data.embeddings import (
  ARRAYS,
  CAPTION,
  CONTENT,
  COUNTS,
  IMAGE,
  IMAGES,
  KEY,
  TEXTS,
)
from nuclr_jax.lab.data.source import LazyImages
from nuclr_jax.lab.export.embed import COUNTED, array_file, table_file
from nuclr_jax.lab.train import loop
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import Metrics, Sides


def write_training_pairs(
  parts: Experiment,
  mesh: Mesh,
  state: TrainState,
  folder: str | os.PathLike,
  *,
  features: bool = False,
) -> Metrics:
  """Embeds the training pairs of parts that are open, and writes the files.

  Images are not augmented, and those that pairs share are embedded once; so are
  texts. All embeddings are held in memory.

  Args:
    parts: What `loop.load` or `untrained.open_untrained` returned.
    mesh: The same.
    state: The same.
    folder: The folder to make, here or in a bucket; it must not exist.
    features: Whether to write the towers' features instead of embeddings.

  Returns:
    The counts that `write_embeddings` returns; nothing is rejected.

  Raises:
    ValueError: If the folder exists, or the pairs are a stream of tars.
  """
  source, tokenizer = parts.data.train, parts.data.tokenizer
  if source.open_stream is not None:
    raise ValueError(
      "the training pairs are a stream of tars, which have no ids; give the "
      "tars as --input"
    )
  pair_ids = np.arange(source.sizes.num_pairs)
  ids = source.ids(pair_ids)
  numbers, first, image_of_pair = np.unique(
    ids.image, return_index=True, return_inverse=True
  )
  images = LazyImages(len(first), lambda i: source.fetch(first[i]).image)
  texts, text_of_pair = np.unique(ids.text, return_inverse=True)
  captions = source.captions(texts)
  cut = tokenizer.is_cut(captions) if tokenizer.vocab_size else [False]
  content = [None] * len(numbers)
  if source.keys is not None:
    content = source.keys().image[numbers].tolist()
  with files.remote.new_folder(folder) as work:
    with jax.set_mesh(mesh):
      embed = loop.embedder(parts, mesh)(state)
      encode = embed.features if features else Sides(embed.image, embed.text)
      with array_file(work / ARRAYS.image) as append:
        append(encode.image(images))
      with array_file(work / ARRAYS.text) as append:
        append(encode.text(captions)[text_of_pair])
    with table_file(work / IMAGES) as append:
      rows = zip(numbers, content, strict=True)
      append([{KEY: f"image {i}", CONTENT: x} for i, x in rows])
    with table_file(work / TEXTS) as append:
      pairs = zip(image_of_pair.tolist(), text_of_pair, strict=True)
      append([{IMAGE: i, CAPTION: captions[j]} for i, j in pairs])
    counts = dict.fromkeys(COUNTED, 0) | {
      "images": len(numbers),
      "captions": len(pair_ids),
      "captions_cut": int(np.resize(cut, len(texts))[text_of_pair].sum()),
    }
    files.write_json(work / COUNTS, counts)
    files.write_digests(work)
  return counts
