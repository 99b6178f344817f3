"""Labelled pictures, two views of each, as a data set."""

import os

import numpy as np

from nuclr_jax.datasets.base import Data


def labelled(
  *,
  train: str = "digits",
  validation: str | None = None,
  test: str | None = None,
  data_dir: str | os.PathLike | None = None,
  size: int = 16,
  shift: float = 1.0,
  scale: float = 0.1,
  flip: bool = False,
  positive: str = "view",
  ways: tuple[int, ...] = (2, 10),
  num_negatives: tuple[int, ...] = (1,),
) -> Data:
  """Two views of labelled pictures, for the model `views`.

  Validation and test are scored by classifiers on what the objective sees, by
  probes of the encoder's features, and by the contrastive loss with its bounds,
  see `evaluate.latent` and `evaluate.probe`.

  Args:
    train: "digits" (scikit-learn's), or `NAME:SPLIT` or a folder of classes,
      see `evaluate.sets`.
    validation: Likewise; the digits bring their own, others have none without.
    test: Likewise; by default the split test of `train`.
    data_dir: Folder of prepared data sets.
    size: Height and width of the pictures, in pixels.
    shift: Augmentation, see `transforms.shift_and_scale`.
    scale: Likewise.
    flip: Whether half of the views are mirrored.
    positive: See `data.labelled.views`.
    ways: Classes of the tasks that are averaged over.
    num_negatives: Of the contrastive losses that are measured.

  Raises:
    ValueError: If a data set is not there or has no classes.
  """
  from nuclr_jax.data import labelled as pictures
  from nuclr_jax.data import transforms
  from nuclr_jax.evaluate import driver, latent

  splits = _read(train, validation, test, size=size, data_dir=data_dir)
  sets = {
    name: driver.LabelledSet(x.image, x.label, ()) for name, x in splits.items()
  }
  kinds = {
    "classes": lambda x, name: latent.classifiers_evaluator(
      sets["train"], x, name, ways=ways
    ),
    "losses": lambda x, name: latent.losses_evaluator(
      x, name, num_negatives=num_negatives
    ),
    "probe": lambda x, name: driver.probe_evaluator(sets["train"], x, name),
  }
  name = train.partition(":")[0].partition("=")[0]
  evaluators = {
    split: [make(data, name) for make in kinds.values()]
    for split, data in sets.items()
    if split != "train"
  }
  augment = transforms.augment(shift=shift, scale=scale, flip=flip)
  return Data(
    train=pictures.views(splits["train"], augment, positive=positive),
    tokenizer=pictures.NoText(),
    image_shape=splits["train"].image.shape[1:],
    evaluators={"validation": [], "test": []} | evaluators,
    sets={},
    num_classes=int(sets["train"].label.max()) + 1,
  )


def _read(train, validation, test, *, size, data_dir):
  """`Labelled` pictures by split."""
  from nuclr_jax.data import labelled as pictures
  from nuclr_jax.evaluate import sets

  if train == "digits":
    return pictures.digits(size)
  place = sets.parse(train)
  wanted = {"train": train, "validation": validation, "test": test}
  if test is None:
    wanted["test"] = f"{place.name}={place.source}:test"
  found = {}
  for split, text in wanted.items():
    if text is not None:
      where = sets.parse(text)
      data = sets.labelled_set(where, size=size, split=split, data_dir=data_dir)
      images, label = data.image[:], np.asarray(data.label)
      found[split] = pictures.Labelled(images, label, f"{text}/{size}")
  return found
