"""Zero-shot classification by prompts, from embeddings.

`zero_shot.json` holds the templates, and by WordNet id the names of ImageNet's
classes, that were published with CLIP (Radford et al., ICML 2021, MIT
licence).
"""

from collections.abc import Mapping, Sequence
import functools
import json
import pathlib

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.data.source import LabelledSet
from nuclr_jax.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.evaluate.ranking import ranks, unit_rows
from nuclr_jax.latent_classes import class_means
from nuclr_jax.types import Metrics

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def make_prompts(
  data_set: str, classes: Sequence[str]
) -> list[tuple[str, ...]]:
  """Makes CLIP's prompts for each class.

  Args:
    data_set: "cifar100", "dtd", "food101" and "imagenet..." (1k, R and the
      like) have their own templates; all other names get "a photo of a {}.".
    classes: Names of the classes, or WordNet ids ("n01440764").

  Example:
    >>> make_prompts("food101", ["apple_pie"])
    [('a photo of apple pie, a type of food.',)]
    >>> (prompts,) = make_prompts("imagenet_r", ["n01443537"])
    >>> prompts[0], len(prompts)
    ('a bad photo of a goldfish.', 80)
  """
  table = _table()
  family = "imagenet" if data_set.startswith("imagenet") else data_set
  templates = table["templates"].get(family, DEFAULT_TEMPLATES)
  names = [table["imagenet_names"].get(c, c.replace("_", " ")) for c in classes]
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
) -> Metrics:
  """Computes the accuracy of the most similar classes; ties count as errors.

  Args:
    image: Unit-norm embeddings of the images.
    classes: Unit-norm embeddings of the classes.
    label: The class of each image.
    top: The values of k.
    zeta: The popularity of each class, subtracted from its similarities.

  Returns:
    `top<k>`, the fraction of images whose class is among the k most similar
    (for k below the number of classes), and `mean_per_class`, the mean over
    classes of each class's top-1 fraction (insensitive to class sizes).

  Raises:
    ValueError: If a label is out of range.

  Example:
    >>> accuracy(np.eye(3)[[0, 1, 1]], np.eye(3), np.array([0, 1, 2]), top=(1,))
    {'top1': 0.6666666666666666, 'mean_per_class': 0.6666666666666666}
  """
  wrong = label[(label < 0) | (label >= len(classes))]
  if wrong.size:
    raise ValueError(f"labels must be in [0, {len(classes)}), found {wrong[0]}")
  rank = ranks(image, classes, label, np.arange(len(classes)), zeta)
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
    scores = accuracy(embed.image(data.image), classes, data.label)
    return {f"zero_shot_{name}/{key}": x for key, x in scores.items()}

  return evaluate


def embed_classes(
  embed: Embed, data: LabelledSet, name: str
) -> Float[np.ndarray, "classes dim"]:
  """Embeds the classes of a set by its prompts, or by CLIP's."""
  groups = data.prompts or make_prompts(name, data.classes)
  prompts = [prompt for group in groups for prompt in group]
  class_of_prompt = np.repeat(np.arange(len(groups)), list(map(len, groups)))
  return class_embeddings(embed.text(prompts), class_of_prompt)


@functools.cache
def _table() -> Mapping[str, Mapping]:
  path = pathlib.Path(__file__).with_suffix(".json")
  return json.loads(path.read_text(encoding="utf-8"))
