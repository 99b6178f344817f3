"""CLIP's prompts for zero-shot classification.

`prompts.json` holds the templates and the names of ImageNet's classes that were
published with CLIP (Radford et al., ICML 2021, MIT licence), the latter by
WordNet id.
"""

from collections.abc import Mapping, Sequence
import functools
import json
import pathlib

DEFAULT = ("a photo of a {}.",)


def make(data_set: str, classes: Sequence[str]) -> list[tuple[str, ...]]:
  """The prompts of each class.

  Args:
    data_set: "cifar100", "dtd", "food101", "imagenet..." (1k, R and the like)
      take their own templates, others "a photo of a {}.".
    classes: Names of the classes, or WordNet ids ("n01440764").

  Example:
    >>> make("food101", ["apple_pie"])
    [('a photo of apple pie, a type of food.',)]
    >>> make("imagenet_r", ["n01443537"])[0][0], len(make("imagenet_r", "x")[0])
    ('a bad photo of a goldfish.', 80)
  """
  table = _table()
  family = "imagenet" if data_set.startswith("imagenet") else data_set
  templates = table["templates"].get(family, DEFAULT)
  names = [table["imagenet_names"].get(c, c.replace("_", " ")) for c in classes]
  return [tuple(t.format(name) for t in templates) for name in names]


@functools.cache
def _table() -> Mapping[str, Mapping]:
  path = pathlib.Path(__file__).with_suffix(".json")
  return json.loads(path.read_text(encoding="utf-8"))
