"""Classifiers of frozen features: neighbours, class means, a linear layer."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np
import optax

from nuclr_jax import sharding
from nuclr_jax.lab.data.source import LabelledSet
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.lab.evaluate.ranking import class_means, in_chunks, unit_rows
from nuclr_jax.lab.evaluate.zero_shot import accuracy
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import Metrics

TOP = (1,)


def mean_classifier(
  train: Float[np.ndarray, "train dim"],
  train_label: Int[np.ndarray, "train"],
  test: Float[np.ndarray, "test dim"],
  test_label: Int[np.ndarray, "test"],
) -> Metrics:
  """Computes the accuracy of the nearest class mean, by cosine similarity.

  A class without any training row is never chosen.

  Args:
    train: Features of the training rows.
    train_label: The classes of the training rows, from 0.
    test: Features of the rows to classify.
    test_label: The classes of the rows to classify.

  Returns:
    `top1` and `mean_per_class` (see `zero_shot.accuracy`).

  Example:
    >>> x, label = np.eye(3), np.arange(3)
    >>> mean_classifier(x, label, x, label)["top1"]
    1.0

  Reference: Saunshi et al., A Theoretical Analysis of Contrastive Unsupervised
    Representation Learning, ICML 2019.
  """
  _check(train, train_label, test, test_label)
  classes = _num_classes(train_label, test_label)
  means = class_means(unit_rows(train), train_label, classes)
  trained = np.bincount(train_label, minlength=classes) > 0
  # `accuracy` ranks NaN last.
  centres = np.where(trained[:, None], unit_rows(means), np.nan)
  return accuracy(unit_rows(test), centres, test_label, top=TOP)


def nearest_neighbours(
  train: Float[np.ndarray, "train dim"],
  train_label: Int[np.ndarray, "train"],
  test: Float[np.ndarray, "test dim"],
  test_label: Int[np.ndarray, "test"],
  *,
  k: int = 20,
  temperature: float = 0.07,
) -> Metrics:
  """Computes the accuracy of a vote by the k most similar training rows.

  Row j votes for its class with weight exp(cosine similarity / temperature).

  Args:
    train: Features of the rows that vote.
    train_label: The classes of the rows that vote, from 0.
    test: Features of the rows to classify.
    test_label: The classes of the rows to classify.
    k: How many rows vote.
    temperature: The divisor of the similarities, greater than 0.

  Returns:
    `top1` and `mean_per_class` (see `zero_shot.accuracy`).

  Raises:
    ValueError: If shapes or numbers do not fit.

  Example:
    >>> x, label = np.eye(3), np.arange(3)
    >>> nearest_neighbours(x, label, x, label, k=2)["top1"]
    1.0

  Reference: Wu et al., Unsupervised Feature Learning via Non-Parametric
    Instance Discrimination, CVPR 2018.
  """
  _check(train, train_label, test, test_label)
  if not 1 <= k <= len(train) or not temperature > 0:
    raise ValueError(
      f"k must be in [1, {len(train)}] and temperature greater than 0, got {k} "
      f"and {temperature}"
    )
  classes = _num_classes(train_label, test_label)
  voters = sharding.replicate((unit_rows(train), train_label))
  options = dict(k=k, classes=classes, temperature=temperature)
  votes = in_chunks(
    lambda part: _votes(part, *voters, **options),
    len(train),
    unit_rows(test),
  )
  one_hot = np.eye(classes, dtype=np.float32)
  return accuracy(votes, one_hot, test_label, top=TOP)


def linear_probe(
  train: Float[np.ndarray, "train dim"],
  train_label: Int[np.ndarray, "train"],
  test: Float[np.ndarray, "test dim"],
  test_label: Int[np.ndarray, "test"],
  *,
  l2: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
  num_steps: int = 200,
  seed: int = 0,
) -> Metrics:
  """Computes the accuracy of multinomial logistic regression.

  It standardizes the features and minimizes the mean cross-entropy +
  l2 / 2 ||W||^2 by L-BFGS on all rows at once, which are split over the
  devices. If there are several values of `l2`, the one that is best on a tenth
  of the training rows is fitted again on all.

  Args:
    train: Features of the training rows.
    train_label: The classes of the training rows, from 0.
    test: Features of the rows to classify.
    test_label: The classes of the rows to classify.
    l2: The weights of the penalty to choose from.
    num_steps: The number of steps of L-BFGS.
    seed: Decides which tenth of the rows chooses `l2`.

  Returns:
    `top1` and `mean_per_class` (see `zero_shot.accuracy`), and `log10_l2` of
    the chosen weight.

  Raises:
    ValueError: If shapes or numbers do not fit.

  Example:
    >>> x, label = np.eye(3), np.arange(3)
    >>> linear_probe(x, label, x, label, l2=(1e-3,))["top1"]
    1.0
  """
  _check(train, train_label, test, test_label)
  classes = _num_classes(train_label, test_label)
  options = dict(l2=l2, num_steps=num_steps, seed=seed)
  classifier = fit_linear(train, train_label, num_classes=classes, **options)
  one_hot = np.eye(classes, dtype=np.float32)
  scores = accuracy(classifier(test), one_hot, test_label, top=TOP)
  return scores | {"log10_l2": float(np.log10(classifier.l2))}


def probe_evaluator(
  train: LabelledSet, test: LabelledSet, name: str
) -> Evaluator:
  """Makes an evaluator of classifiers, as `probe_<name>/<classifier>/...`.

  The classifiers of frozen features are `mean`, `neighbours` (20 at most) and
  `linear`.

  Args:
    train: Images to learn from.
    test: Images to score.
    name: The name of the data set.
  """
  classifiers = {
    "mean": mean_classifier,
    "neighbours": partial(nearest_neighbours, k=min(20, len(train.label))),
    "linear": linear_probe,
  }

  def evaluate(embed: Embed) -> Metrics:
    encode = embed.features.image
    features = encode(train.image), encode(test.image)
    scores = {}
    for kind, classify in classifiers.items():
      of_kind = classify(features[0], train.label, features[1], test.label)
      scores |= {f"probe_{name}/{kind}/{k}": x for k, x in of_kind.items()}
    return scores

  return evaluate


class Linear(NamedTuple):
  """A linear classifier: `classifier(rows)` gives logits [rows, classes]."""

  weight: Float[np.ndarray, "dim classes"]
  bias: Float[np.ndarray, "classes"]
  # Rows are standardized by the features' mean and standard deviation.
  mean: Float[np.ndarray, "dim"]
  deviation: Float[np.ndarray, "dim"]
  l2: float  # weight of the penalty

  def __call__(
    self, x: Float[np.ndarray, "rows dim"]
  ) -> Float[np.ndarray, "rows classes"]:
    """Returns the logits of rows of features."""
    x = (np.float32(x) - self.mean) / self.deviation
    return _logits((self.weight, self.bias), x)


def fit_linear(
  train: Float[np.ndarray, "train dim"],
  train_label: Int[np.ndarray, "train"],
  *,
  num_classes: int | None = None,
  l2: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
  num_steps: int = 200,
  seed: int = 0,
) -> Linear:
  """Fits the classifier of `linear_probe`.

  Args:
    train: Features of the training rows.
    train_label: The classes of the training rows, from 0.
    num_classes: The number of classes; by default, one more than the largest
      label.
    l2: The weights of the penalty to choose from.
    num_steps: The number of steps of L-BFGS.
    seed: Decides which tenth of the rows chooses `l2`.

  Example:
    >>> classifier = fit_linear(np.eye(3), np.arange(3), l2=(1e-3,))
    >>> classifier(np.eye(3)).argmax(axis=1).tolist()
    [0, 1, 2]
  """
  classes = num_classes or _num_classes(train_label)
  mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
  x = (np.float32(train) - mean) / deviation
  fit = partial(_fit, classes=classes, num_steps=num_steps)
  best = l2[0]
  if len(l2) > 1:
    order = np.random.default_rng(seed).permutation(len(x))
    held, rest = np.split(order, [max(len(x) // 10, 1)])
    right = {}
    for weight in l2:
      layer = fit(x[rest], train_label[rest], weight)
      guesses = np.argmax(_logits(layer, x[held]), axis=1)
      right[weight] = np.mean(guesses == train_label[held])
    best = max(l2, key=right.get)
  return Linear(*fit(x, train_label, best), mean, deviation, best)


def _fit(x, label, l2, *, classes, num_steps):
  """Fits `(W, b)`; rows that pad to a multiple of the devices have weight 0."""
  missing = -len(x) % sharding.num_devices()
  x = np.pad(np.float32(x), ((0, missing), (0, 0)))
  weight = np.pad(np.ones(len(label), np.float32), (0, missing)) / len(label)
  label = np.pad(label, (0, missing))
  options = dict(classes=classes, num_steps=num_steps)
  return jax.device_get(_minimise(x, label, weight, np.float32(l2), **options))


@partial(jax.jit, static_argnames=("classes", "num_steps"))
def _minimise(x, label, weight, l2, *, classes, num_steps):
  x, label, weight = sharding.constrain((x, label, weight), sharding.ROWS)

  def loss(layer):
    logits = jnp.matmul(x, layer[0], precision=tiles.PRECISION) + layer[1][None]
    errors = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return jnp.sum(weight * errors) + l2 / 2 * jnp.sum(layer[0] ** 2)

  optimizer = optax.lbfgs()
  value_and_grad = optax.value_and_grad_from_state(loss)
  layer = (jnp.zeros((x.shape[1], classes)), jnp.zeros(classes))

  def step(carry, _):
    layer, state = carry
    value, gradient = value_and_grad(layer, state=state)
    updates, state = optimizer.update(
      gradient, state, layer, value=value, grad=gradient, value_fn=loss
    )
    return (optax.apply_updates(layer, updates), state), None

  start = (layer, optimizer.init(layer))
  (layer, _), _ = jax.lax.scan(step, start, length=num_steps)
  return sharding.constrain(layer, sharding.REPLICATED)


def _logits(layer, x):
  return np.float32(x) @ layer[0] + layer[1]


@partial(jax.jit, static_argnames=("k", "classes", "temperature"))
def _votes(test, train, train_label, *, k, classes, temperature):
  test = sharding.constrain(test, sharding.ROWS)
  sim = jnp.matmul(test, train.T, precision=tiles.PRECISION)
  best, which = jax.lax.top_k(sim, k)
  # Relative to a query's best: exp cannot overflow, and the same class wins.
  weight = jnp.exp((best - best[:, :1]) / temperature)
  votes = jax.vmap(
    lambda label, weight: jnp.zeros(classes).at[label].add(weight)
  )(train_label[which], weight)
  return sharding.constrain(votes, sharding.REPLICATED)


def _num_classes(*labels) -> int:
  return int(max(label.max() for label in labels)) + 1


def _check(train, train_label, test, test_label) -> None:
  for name, x, label in (
    ("train", train, train_label),
    ("test", test, test_label),
  ):
    if x.ndim != 2 or len(x) != len(label) or not len(x):
      raise ValueError(
        f"{name} must be [rows, dim] with a label for each row, got "
        f"{list(x.shape)} and {len(label)} labels"
      )
    if not np.isfinite(x).all():
      raise ValueError(f"features of {name} are not finite")
    if label.min() < 0:
      raise ValueError(f"labels of {name} must be at least 0: {label.min()}")
  if train.shape[1] != test.shape[1]:
    raise ValueError(
      f"features must have one width, got {train.shape[1]} and {test.shape[1]}"
    )
