"""What `nuclr embed` wrote as a data set."""

import pathlib

import numpy as np

from nuclr_jax.datasets.base import Data, first_of, retrieval_evaluators
from nuclr_jax.evaluate import driver


def embeddings(
  *,
  train: str,
  validation: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
) -> Data:
  """Embeddings or features that `nuclr embed` wrote, for the model `heads`.

  Args:
    train: Folder of the training pairs.
    validation: Folders to retrieve in while training.
    test: Likewise at the end.

  Raises:
    ValueError: If a folder is not what `nuclr embed` writes.
  """
  from nuclr_jax.data import cached

  for paths in (validation, test):
    names = [pathlib.Path(path).name for path in paths]
    if len(set(names)) < len(names):
      raise ValueError(
        f"folders to retrieve in must differ in their last names, got {paths}"
      )
  folders = {path: cached.read(path) for path in (train, *validation, *test)}

  def retrieval(path):
    data = folders[path]
    return driver.ImageTextSet(
      data.image, np.arange(len(data.image)), data.captions, data.image_of_text
    )

  sets = {
    split: {pathlib.Path(path).name: retrieval(path) for path in paths}
    for split, paths in (("validation", validation), ("test", test))
  }
  pairs = folders[train]
  return Data(
    train=cached.source(pairs),
    tokenizer=cached.Lookup(list(folders.values())),
    image_shape=pairs.image.shape[1:],
    evaluators=retrieval_evaluators(sets),
    sets=first_of(sets),
  )
