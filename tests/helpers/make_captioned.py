"""TFDS data sets of photos for tests, built as others build theirs."""

import pathlib

import cv2
import numpy as np
import shapes
import tensorflow_datasets as tfds


def photo(seed, *, height=40, width=60):
  """JPEG bytes of a smooth field of colours."""
  coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3))
  image = cv2.resize(coarse.astype(np.uint8), (width, height))
  return shapes.encode(image)


def photo_folder(folder, captions):
  """Photos 0.jpg, 1.jpg, ... in a new folder, with their captions beside."""
  folder.mkdir(parents=True)
  for i, caption in enumerate(captions):
    (folder / f"{i}.jpg").write_bytes(photo(i))
    (folder / f"{i}.txt").write_text(caption)
  return folder


A, B, C = map(photo, range(3))
ROWS = [(A, ["A dog.", "two cats"]), (B, ["a dog!"]), (A, ["the sea"])]
CAPTIONS = ["A dog.", "two cats", "a dog!", "the sea"]  # by pair
SEQUENCE = {"captions": tfds.features.Sequence(tfds.features.Text())}


def prepare(
  data_dir,
  splits,
  *,
  name="Mine",
  captions=None,
  column=lambda texts: {"captions": texts},
  config=None,
  version="1.0.0",
):
  """Builds a TFDS data set of rows `(image, captions)` by split."""

  class Photos(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

    def _info(self):
      image = {"image": tfds.features.Image(encoding_format="jpeg")}
      features = tfds.features.FeaturesDict(image | (captions or SEQUENCE))
      return tfds.core.DatasetInfo(
        builder=self, features=features, disable_shuffling=True
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate(rows) for split, rows in splits.items()}

    def _generate(self, rows):
      for i, (image, texts) in enumerate(rows):
        yield i, {"image": image} | column(texts)

    def _generate_examples(self):
      raise NotImplementedError

  Photos.name = name.lower()
  builder = Photos(data_dir=data_dir, file_format="array_record")
  builder.download_and_prepare()
  return pathlib.Path(builder.data_dir)
