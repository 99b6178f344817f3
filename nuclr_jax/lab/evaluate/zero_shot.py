"""Zero-shot classification by prompts, from embeddings.

`zero_shot.json` holds the templates, and by WordNet id the names of ImageNet's
classes, that were published with CLIP (Radford et al., ICML 2021, MIT
licence).
"""

from collections.abc import Mapping, Sequence
import functools
import json
import logging
import pathlib
import re
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab.data.source import LabelledSet
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.lab.evaluate.ranking import class_means, ranks, unit_rows
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)

DEFAULT_TEMPLATES = ("a photo of a {}.",)
NAMED = 3  # groups of classes, and classes of a group, that warnings name
# "7", "007.cup", or a WordNet id that is not among ImageNet's classes.
NUMBER = re.compile(r"\d+|\d{3,}\..*|n\d{8}.*")


class Classes(NamedTuple):
  """The classes of a set, as embedded by their prompts."""

  embedding: Float[np.ndarray, "classes dim"]  # unit norm
  # A number for each class; equal for those whose prompts the model cannot tell
  # apart, which have the same embedding.
  prompts: Int[np.ndarray, "classes"]


def make_prompts(
  data_set: str, classes: Sequence[str]
) -> list[tuple[str, ...]]:
  """Makes CLIP's prompts for each class.

  Args:
    data_set: "cifar100", "dtd", "food101" and "imagenet..." (1k, R and the
      like) have their own templates, also as "Food-101"; all other names get
      "a photo of a {}.".
    classes: Names of the classes, or WordNet ids ("n01440764"). The 1,000 names
      "0" to "999" of a set "imagenet...", such as ImageNet-V2's folders, are
      taken for the numbers of the classes in the order of these ids.

  Example:
    >>> make_prompts("food101", ["apple_pie"])
    [('a photo of apple pie, a type of food.',)]
    >>> (prompts,) = make_prompts("imagenet_r", ["n01443537"])
    >>> prompts[0], len(prompts)
    ('a bad photo of a goldfish.', 80)
  """
  table = _table()
  family = _family(data_set)
  templates = table["templates"].get(family, DEFAULT_TEMPLATES)
  known = table["imagenet_names"]
  if family == "imagenet" and _are_numbers_of(classes, len(known)):
    in_order = sorted(known)
    classes = [in_order[int(c)] for c in classes]
  names = [known.get(c, c.replace("_", " ")) for c in classes]
  return [tuple(t.format(name) for t in templates) for name in names]


def class_embeddings(
  prompts: Float[np.ndarray, "prompts dim"],
  class_of_prompt: Int[np.ndarray, "prompts"],
) -> Float[np.ndarray, "classes dim"]:
  """Returns the unit-norm mean of each class's unit-norm prompt embeddings.

  Example:
    >>> class_embeddings(np.eye(2), np.array([0, 0])).round(3)
    array([[0.707, 0.707]])
  """
  return unit_rows(class_means(prompts, class_of_prompt))


def accuracy(
  image: Float[np.ndarray, "images dim"],
  classes: Float[np.ndarray, "classes dim"],
  label: Int[np.ndarray, "images"],
  *,
  top: tuple[int, ...] = (1, 3, 5, 10),
  zeta: Float[np.ndarray, "classes"] | float = 0.0,
  prompts: Int[np.ndarray, "classes"] | None = None,
) -> Metrics:
  """Computes the accuracy of the most similar classes; ties count as errors.

  Classes of the same prompts always tie. As in published code, which takes the
  first of the best classes, they are ranked one after another instead.

  Args:
    image: Unit-norm embeddings of the images.
    classes: Unit-norm embeddings of the classes.
    label: The class of each image.
    top: The values of k.
    zeta: The popularity of each class, subtracted from its similarities.
    prompts: A number for each class, equal for classes of the same prompts (see
      `Classes`); None = all are different.

  Returns:
    `top<k>`, the fraction of images whose class is among the k most similar
    (for k below the number of classes), and `mean_per_class`, the mean over
    classes of each class's top-1 fraction (insensitive to class sizes).

  Raises:
    ValueError: If a label is out of range.

  Example:
    >>> accuracy(np.eye(3)[[0, 1, 1]], np.eye(3), np.array([0, 1, 2]), top=(1,))
    {'top1': 0.6666666666666666, 'mean_per_class': 0.6666666666666666}
    >>> same, label = np.ones((2, 1)), np.array([0, 1])
    >>> accuracy(same, same, label, top=(1,))["top1"]
    0.0
    >>> accuracy(same, same, label, top=(1,), prompts=np.array([7, 7]))["top1"]
    0.5
  """
  wrong = label[(label < 0) | (label >= len(classes))]
  if wrong.size:
    raise ValueError(f"labels must be in [0, {len(classes)}), found {wrong[0]}")
  group, place = np.arange(len(classes)), np.zeros(len(classes), int)
  if prompts is not None:
    # With another popularity, a class of the same prompts does not tie.
    keys = np.stack([prompts, np.broadcast_to(zeta, len(classes))], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    place = np.array([np.sum(group[:c] == x) for c, x in enumerate(group)])
  rank = ranks(image, classes, group[label], group, zeta) + place[label]
  shares = {
    f"top{k}": float((rank < k).mean()) for k in top if k < len(classes)
  }
  per_class = [(rank[label == c] < 1).mean() for c in np.unique(label)]
  return shares | {"mean_per_class": float(np.mean(per_class))}


def zero_shot_evaluator(data: LabelledSet, name: str) -> Evaluator:
  """Makes an evaluator of `accuracy` by prompts, as `zero_shot_<name>/...`.

  Args:
    data: Images with classes that have prompts or names.
    name: The name of the data set. If the data have no prompts, it also selects
      CLIP's templates (see `make_prompts`).
  """

  def evaluate(embed: Embed) -> Metrics:
    classes = embed_classes(embed, data, name)
    scores = accuracy(
      embed.image(data.image),
      classes.embedding,
      data.label,
      prompts=classes.prompts,
    )
    return {f"zero_shot_{name}/{key}": x for key, x in scores.items()}

  return evaluate


def embed_classes(embed: Embed, data: LabelledSet, name: str) -> Classes:
  """Embeds the classes of a set by its prompts, or by CLIP's.

  It warns, once, of prompts that the model cannot tell apart or reads only in
  part, and of classes that are called by numbers.
  """
  groups = data.prompts or make_prompts(name, data.classes)
  rows = iter(embed.encode([prompt for group in groups for prompt in group]))
  keys = [tuple(_key(next(rows)) for _ in group) for group in groups]
  numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
  same = np.array([numbers[key] for key in keys])
  _, first = np.unique(same, return_index=True)
  distinct = [groups[i] for i in first]
  prompts = [prompt for group in distinct for prompt in group]
  owner = np.repeat(np.arange(len(distinct)), list(map(len, distinct)))
  names = list(data.classes) or [f"class {i}" for i in range(len(groups))]
  examples = [group[0] for group in groups]
  problems = [_equal(names, examples, same), _cut(embed, prompts)]
  if not data.prompts:
    problems += [_numbers(names, examples), _other_templates(name, names)]
  for problem in filter(None, problems):
    _warn_once(f"zero_shot_{name}: {problem}")
  return Classes(class_embeddings(embed.text(prompts), owner)[same], same)


def _key(row) -> bytes:
  return np.asarray(row).tobytes()


def _equal(
  names: Sequence[str],
  examples: Sequence[str],
  same: Int[np.ndarray, "classes"],
) -> str:
  """Says which classes have the same prompts, or nothing."""
  members = [np.flatnonzero(same == x) for x in np.unique(same)]
  members = [x for x in members if len(x) > 1]
  if not members:
    return ""
  texts = [
    f"{_listed([names[i] for i in x])} ({_listed([examples[i] for i in x])})"
    for x in members[:NAMED]
  ]
  more = "; ..." if len(members) > NAMED else ""
  return (
    f"the model reads the same prompts for {sum(map(len, members))} of "
    f"{len(same)} classes: {'; '.join(texts)}{more}. As in published code, an "
    "image is taken for the first of them, and never for another; only other "
    "names of the classes can tell them apart"
  )


def _cut(embed: Embed, prompts: Sequence[str]) -> str:
  """Says how many prompts the model reads without their ends, or nothing."""
  if embed.is_cut is None:
    return ""
  cut = [prompts[i] for i in np.flatnonzero(embed.is_cut(prompts))]
  if not cut:
    return ""
  return (
    f"{len(cut)} of {len(prompts)} prompts are cut to what the model reads, "
    f"such as {cut[0]!r}; shorten the names of such classes"
  )


def _listed(texts: Sequence[str]) -> str:
  """Joins the first texts that differ."""
  distinct = list(map(repr, dict.fromkeys(texts)))
  more = ["..."] if len(distinct) > NAMED else []
  return ", ".join(distinct[:NAMED] + more)


def _numbers(names: Sequence[str], examples: Sequence[str]) -> str:
  """Says which prompts have a number where words are expected, or nothing."""
  wrong = [
    text
    for name, text in zip(names, examples, strict=True)
    if NUMBER.fullmatch(name) and name.replace("_", " ") in text
  ]
  if not wrong:
    return ""
  return (
    f"{len(wrong)} of {len(names)} classes have numbers for names, and prompts "
    f"such as {wrong[0]!r}, which only suits images of numbers; name classes "
    "by what they show (WordNet ids are known of ImageNet's 1,000 classes)"
  )


def _other_templates(data_set: str, names: Sequence[str]) -> str:
  """Says if ImageNet's classes do not have its templates, or nothing."""
  known = set(names) & set(_table()["imagenet_names"])
  if not known or _family(data_set) == "imagenet":
    return ""
  return (
    f"{len(known)} classes are ImageNet's, but the set is not called imagenet, "
    "and so has one prompt a class in place of the published 80; give it that "
    "name, as imagenet=FOLDER"
  )


@functools.cache
def _warn_once(message: str) -> None:
  log.warning("%s", message)


def _family(data_set: str) -> str:
  """Returns the name of the templates of a data set."""
  plain = re.sub("[^a-z0-9]", "", data_set.lower())
  return "imagenet" if plain.startswith("imagenet") else plain


def _are_numbers_of(classes: Sequence[str], count: int) -> bool:
  """Returns whether the classes are called "0", "1", ... in any order."""
  return len(classes) == count and set(classes) == set(map(str, range(count)))


@functools.cache
def _table() -> Mapping[str, Mapping]:
  path = pathlib.Path(__file__).with_suffix(".json")
  return json.loads(path.read_text(encoding="utf-8"))
