"""Photos with captions as a data set."""

from collections.abc import Mapping
import inspect
import os
from typing import Any

from nuclr_jax.data import tokenizer as tokenizers
from nuclr_jax.datasets.base import (
  Data,
  Inputs,
  first_of,
  retrieval_evaluators,
)


def image_text(
  *,
  train: str,
  data_dir: str | os.PathLike | None = None,
  size: int = 256,
  tokenizer: str = tokenizers.BUILD,
  length: int = 30,
  clean: bool = True,
  min_count: int = 1,
  scale: tuple[float, float] = (0.5, 1.0),
  flip: bool = True,
  num_ops: int = 2,
  level: float = 7.0,
  validation: tuple[str, ...] = (),
  validation_zero_shot: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
  zero_shot: tuple[str, ...] = (),
  probes: tuple[str, ...] = (),
) -> Data:
  """Photos with captions, as `nuclr ingest` or TFDS prepares them.

  Args:
    train: The training pairs: `NAME` or `NAME:SPLIT` of a prepared data set.
    data_dir: Folder of prepared data sets.
    size: Height and width of the pictures, in pixels.
    tokenizer: A file, a folder or a hub name, see `tokenizer.pretrained`; or
      "build", to make one of the training captions.
    length: Token ids per caption.
    clean: Whether captions are cleaned, see `tokenizer.pretrained`.
    min_count: See `tokenizer.build`.
    scale: Augmentation, see `captioned.source`; so are flip, num_ops and level.
    flip: Likewise.
    num_ops: Likewise.
    level: Likewise.
    validation: Captioned sets to retrieve in while training, `NAME` (its split
      validation) or `NAME:SPLIT`.
    validation_zero_shot: Sets with classes, see `evaluate.sets`, to classify
      while training. As published that is a test split; name another split if
      you choose by its scores.
    test: Captioned sets to retrieve in at the end, with the split test.
    zero_shot: Sets with classes, to classify at the end.
    probes: Likewise; on these, classifiers of frozen features are trained.

  Raises:
    ValueError: If a data set or a tokenizer is not there or cannot be read.
  """
  from nuclr_jax.data import captioned
  from nuclr_jax.evaluate import sets

  classified = {
    "validation": sets.places(validation_zero_shot),
    "test": sets.places(zero_shot),
  }
  probed = sets.places(probes)
  for place in (*classified["validation"], *classified["test"], *probed):
    sets.check(place, data_dir)
  for place in probed:
    sets.check(place._replace(split=None), data_dir, split="train")
  place = sets.parse(train)
  pairs = captioned.open_split(place.source, place.split or "train", data_dir)
  words = tokenizers.choose(
    tokenizer,
    lambda: captioned.captions(pairs),
    length=length,
    clean=clean,
    min_count=min_count,
  )
  options = dict(size=size, data_dir=data_dir)
  retrieval = {
    split: {
      place.name: sets.image_text_set(
        place.source, place.split or split, **options
      )
      for place in sets.places(names)
    }
    for split, names in (("validation", validation), ("test", test))
  }
  evaluators = retrieval_evaluators(retrieval)
  for split, found in classified.items():
    evaluators[split] += [
      sets.zero_shot_when_asked(place, **options) for place in found
    ]
  for place in probed:
    evaluators["test"].append(sets.probe_when_asked(place, **options))
  return Data(
    train=captioned.source(
      pairs,
      words,
      size=size,
      scale=scale,
      flip=flip,
      num_ops=num_ops,
      level=level,
    ),
    tokenizer=words,
    image_shape=(size, size, 3),
    evaluators=evaluators,
    sets=first_of(retrieval),
  )


def inputs_of(spec: Mapping[str, Any]) -> Inputs | None:
  """What models of a `config.data` take, if it says so without any data.

  None if the tokenizer is made of the training captions, for instance.
  """
  if spec["name"] != "image_text":
    return None
  own = {key: value for key, value in spec.items() if key != "name"}
  given = inspect.signature(image_text).bind(**own)
  given.apply_defaults()
  found = given.arguments
  if found["tokenizer"] == tokenizers.BUILD:
    return None
  words = tokenizers.pretrained(
    found["tokenizer"], length=found["length"], clean=found["clean"]
  )
  return Inputs((found["size"], found["size"], 3), words)
