"""Labelled pictures, two views of each, as a data set."""

from functools import partial
import os

import numpy as np

from nuclr_jax.datasets.base import Data
from nuclr_jax.evaluate import driver, latent
from nuclr_jax.latent_classes import bounds

SCORES = ("classes", "recall", "losses", "variation", "probe")
WITHOUT_TRAINING = ("recall", "variation")  # need no pictures of the classes


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
  block_size: int = 1,
  classes: int | None = None,
  per_class: int | None = None,
  unseen: bool = False,
  scores: tuple[str, ...] = SCORES,
  validation_scores: tuple[str, ...] = ("classes", "recall", "losses"),
  ways: tuple[int, ...] = (2, 10),
  num_negatives: tuple[int, ...] = (1,),
) -> Data:
  """Two views of labelled pictures, for the model `views`.

  What the objective sees is scored by linear classifiers ("classes"), by the
  "recall" of others of one's class, by contrastive and supervised "losses" with
  their bounds and by the "variation" of differences, see `evaluate.latent`; the
  encoder's features by classifiers ("probe"), see `evaluate.probe`.

  Args:
    train: "digits" (scikit-learn's), "glyphs" (characters in 16 fonts), or
      `NAME:SPLIT` or a folder of classes, see `evaluate.sets`.
    validation: Likewise; the first two bring their own, others have none
      without.
    test: Likewise; by default the split test of `train`.
    data_dir: Folder of prepared data sets.
    size: Height and width of the pictures, in pixels.
    shift: Augmentation, see `transforms.augment`.
    scale: Likewise.
    flip: Whether half of the views are mirrored.
    positive: See `data.labelled.views`.
    block_size: Likewise.
    classes: See `data.labelled.part`.
    per_class: Likewise.
    unseen: Whether to test on classes that are not trained on, see
      `data.labelled.unseen`; of them there are recalls and variations only.
    scores: What is computed of the split test, see `SCORES`.
    validation_scores: Likewise of validation.
    ways: Classes of the tasks that are averaged over.
    num_negatives: Of the contrastive losses that are measured.

  Raises:
    ValueError: If a data set is not there or has no classes.
  """
  from nuclr_jax.data import labelled as pictures
  from nuclr_jax.data import transforms
  from nuclr_jax.evaluate import sets

  place = sets.parse(train)
  for name in (*validation_scores, *scores):
    if name not in SCORES:
      raise ValueError(f"scores must be among {SCORES}, got {name!r}")
  _check_numbers("ways", ways, 2)
  _check_numbers("num_negatives", num_negatives, 1, bounds.MAX_DRAWS)
  splits = _read(train, validation, test, size=size, data_dir=data_dir)
  there, needed = int(splits["train"].label.max()) + 1, 4 if unseen else 2
  if there < needed:
    raise ValueError(
      f"{train} has {there} class(es), at least {needed} are needed"
    )
  splits = pictures.part(splits, classes=classes)
  if unseen:
    splits = pictures.unseen(splits)
  splits = pictures.part(splits, per_class=per_class)
  chosen = {"validation": validation_scores, "test": scores}
  measured = dict(ways=ways, num_negatives=num_negatives)
  if unseen:
    chosen = {
      split: [x for x in found if x in WITHOUT_TRAINING]
      for split, found in chosen.items()
    }
  evaluators = {
    split: _evaluators(splits, split, place.name, found, **measured)
    for split, found in chosen.items()
    if split in splits
  }
  augment = transforms.augment(shift=shift, scale=scale, flip=flip)
  return Data(
    train=pictures.views(
      splits["train"], augment, positive=positive, block_size=block_size
    ),
    tokenizer=pictures.NoText(),
    image_shape=splits["train"].image.shape[1:],
    evaluators={"validation": [], "test": []} | evaluators,
    sets={},
    num_classes=int(splits["train"].label.max()) + 1,
    block_size=block_size,
  )


def with_classes(
  data: Data, train: str, *, data_dir: str | os.PathLike | None = None
) -> Data:
  """The data of any run, with scores of labelled pictures in its split test.

  Linear classifiers, recalls and losses, as `labelled` has them, of what the
  run's objective sees of pictures, as `transfer/classes_<name>/...`.

  Args:
    data: Of the run.
    train: Labelled pictures, see `labelled`; they are read in the run's size.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If the run does not take pictures, or the data are not there.

  Example:
    >>> from nuclr_jax.datasets import glyphs
    >>> data = with_classes(glyphs(size=16), "digits")  # doctest: +SKIP
  """
  from nuclr_jax.evaluate import sets

  shape = data.image_shape
  if len(shape) != 3 or shape[0] != shape[1]:
    raise ValueError(f"the run takes inputs of shape {shape}, not pictures")
  splits = _read(train, None, None, size=shape[0], data_dir=data_dir)
  for split, x in splits.items():
    splits[split] = x._replace(image=_in_colours(x.image, shape[-1]))
  given = _evaluators(
    splits, "test", sets.parse(train).name, ("classes", "recall", "losses")
  )

  def transfer(embed):
    return driver.run(given, embed, "transfer")

  test = [*data.evaluators.get("test", ()), transfer]
  return data._replace(evaluators=dict(data.evaluators) | {"test": test})


def _in_colours(image: np.ndarray, channels: int) -> np.ndarray:
  """Grey pictures as coloured ones, or coloured ones as grey ones."""
  if image.shape[-1] == 3 and channels == 1:
    return np.rint(image @ np.array([0.299, 0.587, 0.114]))[..., None].astype(
      np.uint8
    )
  if image.shape[-1] == 1:
    return np.repeat(image, channels, axis=-1)
  if image.shape[-1] != channels:
    raise ValueError(
      f"pictures have {image.shape[-1]} channels, the run takes {channels}"
    )
  return image


def _check_numbers(name, values, least, most=np.inf) -> None:
  if wrong := [x for x in values if not least <= x <= most or x != int(x)]:
    upto = f" and at most {most}" if most < np.inf else ""
    raise ValueError(
      f"{name} must be whole numbers of at least {least}{upto}, got {wrong}"
    )


def _evaluators(
  splits, split, name, scores, *, ways=(2, 10), num_negatives=(1,)
) -> list[driver.Evaluator]:
  """The evaluators of a split of `Labelled` pictures."""
  everyone = set(np.unique(splits["train"].label))
  if "classes" in scores and set(np.unique(splits[split].label)) != everyone:
    different = everyone ^ set(np.unique(splits[split].label))
    raise ValueError(
      f"{name}: the splits train and {split} must have pictures of the same "
      f"classes, these are in one only: {sorted(map(int, different))[:10]}; "
      "leave 'classes' out of the scores, or give splits that have all"
    )
  train, test = (
    driver.LabelledSet(x.image, x.label, ())
    for x in (splits["train"], splits[split])
  )
  kinds = {
    "classes": lambda: latent.classifiers_evaluator(
      train, test, name, ways=ways
    ),
    "losses": lambda: latent.losses_evaluator(
      test, name, num_negatives=num_negatives
    ),
    "probe": lambda: driver.probe_evaluator(train, test, name),
    "recall": lambda: latent.same_class_evaluator(test, name),
    "variation": lambda: latent.variation_evaluator(test, name),
  }
  return [kinds[x]() for x in scores]


def _read(train, validation, test, *, size, data_dir):
  """`Labelled` pictures by split."""
  from nuclr_jax.data import labelled as pictures
  from nuclr_jax.evaluate import sets

  at_hand = {
    "digits": pictures.digits,
    "glyphs": partial(pictures.glyphs, data_dir=data_dir),
  }
  if train in at_hand:
    if validation is not None or test is not None:
      raise ValueError(
        f"{train} brings validation and test, got {validation} and {test}"
      )
    return at_hand[train](size)
  place = sets.parse(train)
  wanted = {"train": train, "validation": validation, "test": test}
  if test is None:
    wanted["test"] = f"{place.name}={place.source}:test"
  places = [sets.parse(x)[1:] for x in wanted.values() if x is not None]
  if len(set(places)) < len(places):
    raise ValueError(f"two splits are the same pictures: {wanted}")
  found, classes = {}, None
  for split, text in wanted.items():
    if text is not None:
      where = sets.parse(text)
      data = sets.labelled_set(where, size=size, split=split, data_dir=data_dir)
      # Prompts tell the classes' names.
      if classes is not None and list(data.prompts) != classes:
        raise ValueError(
          f"{text} has other classes than {train}: {len(data.prompts)} and "
          f"{len(classes)}, or of other names"
        )
      classes = list(data.prompts)
      images, label = data.image[:], np.asarray(data.label)
      found[split] = pictures.Labelled(images, label, f"{text}/{size}")
  return found
