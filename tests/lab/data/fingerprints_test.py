"""What identifies held-out sets, so that scores of other ones are known."""

import numpy as np
import pytest

from nuclr_jax.lab.data.source import (
  HeldOut,
  ImageTextSet,
  LazyImages,
  RatedPairs,
  fingerprints,
)

IDS = np.arange(3)
IMAGES = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4, 1)
SET = ImageTextSet(IMAGES, IDS, ["a", "b", "c"], IDS)
RATED = RatedPairs(["a", "b"], ["c", "d"], np.array([0.0, 1.0]))


def of(**sets):
  return fingerprints(HeldOut(**{kind: {"x": x} for kind, x in sets.items()}))


@pytest.mark.parametrize(
  "changes",
  [
    {"image": IMAGES[::-1]},
    {"image_group": IDS[::-1]},
    {"captions": ["a", "b", "d"]},
    {"caption_group": np.array([0, 0, 1])},
  ],
  ids=lambda changes: next(iter(changes)),
)
def test_any_change_of_a_set_in_memory_is_seen(changes):
  assert of(retrieval=SET) == of(retrieval=SET._replace(image=IMAGES.copy()))
  assert of(retrieval=SET) != of(retrieval=SET._replace(**changes))


def test_rated_sentences():
  other = RATED._replace(score=np.array([0.0, 0.5]))
  assert of(rated=RATED) == of(rated=RATED) != of(rated=other)


def test_groups_of_any_type():
  names = np.array(["x", "y", "z"], object)
  found = [
    of(retrieval=SET._replace(image_group=x))
    for x in (names, names.copy(), names[::-1], names.astype(str))
  ]
  assert found[0] == found[1] != found[2] and found[3] != found[2]


def test_nothing_is_opened():
  def fails(*args):
    raise AssertionError("opened")

  lazy = SET._replace(image=LazyImages(3, fails))
  held_out = HeldOut({"x": lazy}, {"y": fails}, {"z": fails}, {}, {"": None})
  found = fingerprints(held_out)
  assert list(found) == ["retrieval/x", "zero_shot/y", "probes/z", "others/"]
  assert found["retrieval/x"] != of(retrieval=lazy._replace(captions=["a"] * 3))
