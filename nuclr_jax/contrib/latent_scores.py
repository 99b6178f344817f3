"""Latent-class scores of a model: mean classifiers, losses and their bounds."""

from collections.abc import Sequence
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nuclr_jax.contrib import latent_classes
from nuclr_jax.contrib.latent_classes import bounds, guarantees
from nuclr_jax.contrib.objectives import difference_alignment
from nuclr_jax.lab.data.source import LabelledSet
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.lab.evaluate.probe import fit_linear, probe_evaluator
from nuclr_jax.lab.evaluate.ranking import class_means, unit_rows
from nuclr_jax.lab.evaluate.retrieval import same_class_recall
from nuclr_jax.types import Metrics, Pairs

log = logging.getLogger(__name__)

SCORES = ("classes", "recall", "losses", "variation", "probe")
# Scores that are meaningful for classes that were not trained on.
OF_UNSEEN = ("recall", "variation")
FEW = 5  # labelled rows of each class, for mu_5
MAX_ROWS = 1_000  # from which losses and bounds are computed
LARGEST_RANGE = 2_000.0  # of similarities; above it, N > 1 is left out


class ClassScores(NamedTuple):
  """Labelled images, and the scores of latent classes to compute on them."""

  train: LabelledSet | None  # None = no images of the classes of `test`
  test: LabelledSet
  scores: Sequence[str]  # from `SCORES`, in the order of metrics
  ways: Sequence[int] = (2, 10)  # classes of the tasks that are averaged over
  num_negatives: Sequence[int] = (1,)  # of the contrastive losses

  def evaluators(self, split: str, name: str) -> list[Evaluator]:
    """Makes the evaluators of the set, in the order of `scores`.

    Args:
      split: The split that `test` is of, for messages.
      name: The name of the data set.

    Raises:
      ValueError: If a score is unknown, or cannot be computed from the images.
    """
    train, test, scores, ways, num_negatives = self
    make = {
      "classes": lambda: classifiers_evaluator(train, test, name, ways=ways),
      "losses": lambda: losses_evaluator(
        test, name, num_negatives=num_negatives
      ),
      "probe": lambda: probe_evaluator(train, test, name),
      "recall": lambda: same_class_evaluator(test, name),
      "variation": lambda: variation_evaluator(test, name),
    }
    for score in scores:
      if score not in make:
        raise ValueError(f"scores must be among {SCORES}, got {score!r}")
    if train is None:
      scores = [x for x in scores if x in OF_UNSEEN]
    if "classes" in scores:
      _check_same_classes(split, self, name)
    return [make[x]() for x in scores]


def classifiers_evaluator(
  train: LabelledSet,
  test: LabelledSet,
  name: str,
  *,
  ways: Sequence[int] = (2, 10),
  top: Sequence[int] = (1, 10),
  seed: int = 0,
) -> Evaluator:
  """Makes an evaluator of linear classifiers on what the objective sees.

  `classes_<name>/<classifier>/avg_<k>` is the mean accuracy over all k-way
  tasks, `.../top_<r>` the accuracy of the r best of all classes. The
  classifiers are `mu` (class means of the training rows), `mu_5` (class means
  of five rows of each class) and `trained` (`probe.fit_linear` on all classes;
  a task keeps the logits of its classes).

  Args:
    train: Labelled images to learn from.
    test: Labelled images to score.
    name: The name of the data set.
    ways: The values of k, at least 2; those above the number of classes are
      left out.
    top: The values of r; those not below the number of classes are left out.
    seed: Decides which five rows are taken and which rows choose the penalty of
      the trained classifier.

  Raises:
    ValueError: If a value of `ways` is out of range.

  Reference: Saunshi et al., ICML 2019, Table 1.
  """
  _check_numbers("ways", ways, 2)

  def evaluate(embed: Embed) -> Metrics:
    x, y = (embed.outputs.image(part.image) for part in (train, test))
    classes = int(max(train.label.max(), test.label.max())) + 1
    few = latent_classes.few_of_each(train.label, FEW, seed)
    weights = {
      "mu": class_means(x, train.label, classes),
      "mu_5": class_means(x[few], train.label[few], classes),
    }
    logits = {kind: y @ w.T for kind, w in weights.items()}
    logits["trained"] = fit_linear(x, train.label, seed=seed)(y)
    scores = {}
    for kind, s in logits.items():
      for k in ways:
        if k <= classes:
          scores[f"{kind}/avg_{k}"] = latent_classes.average_accuracy(
            s, test.label, ways=k
          )
      for r in top:
        if r < classes:
          scores[f"{kind}/top_{r}"] = latent_classes.top_accuracy(
            s, test.label, top=r
          )
    return {f"classes_{name}/{k}": v for k, v in scores.items()}

  return evaluate


def losses_evaluator(
  data: LabelledSet,
  name: str,
  *,
  num_negatives: Sequence[int] = (1,),
  max_rows: int = MAX_ROWS,
) -> Evaluator:
  """Makes an evaluator of contrastive and mean-classifier losses, and bounds.

  The scores are called `classes_<name>/...`, use natural logarithms, and are
  computed from about `max_rows` rows, of which every class has its share and at
  least one:

    unsupervised_<N>   L_un^N                    mean_classifier  L_sup^mu
    same, other        the parts of L_un, N = 1  collision        tau
    bound              Lemma 1 of Merad et al., from N = 1
    bound_<N>          Lemma 2, L_un^N / p_cc(N)
    pairs              L_sup^mu, averaged over tasks of two classes
    bound_of_pairs     Theorem 4.1 of Saunshi et al., without Gen_M
    deviation          s(f) of Saunshi et al.
    bound_by_deviation Theorem 4.5, without Gen_M
    min_norm, max_norm range of ||f(x)||

  Args:
    data: Labelled images.
    name: The name of the data set.
    num_negatives: The values of N, at least 1. Values other than 1 get a
      `bound_<N>` if N draws can hit every class. They are left out, with a
      warning, where similarities range over more than `LARGEST_RANGE`, because
      exact values would take minutes.
    max_rows: About how many rows are used, always the same ones.

  Raises:
    ValueError: If a value of `num_negatives` is out of range.
  """
  _check_numbers("num_negatives", num_negatives, 1, bounds.MAX_DRAWS)

  def evaluate(embed: Embed) -> Metrics:
    rows = _share_of_each_class(data.label, max_rows)
    label = np.unique(data.label[rows], return_inverse=True)[1]
    x = embed.outputs.image(data.image[rows])
    rho = latent_classes.probabilities(label)
    kind = dict(loss="cross_entropy")
    split = latent_classes.split_loss(x, label, **kind)
    logits = x @ class_means(x, label).T
    low, high = latent_classes.norms(x)
    spread = latent_classes.deviation(x, label)
    scores = {
      "mean_classifier": latent_classes.task_loss(logits, label, **kind),
      "same": split.same,
      "other": split.other,
      "collision": split.collision,
      "bound": bounds.of_all_classes(split.total, rho),
      "deviation": spread,
      "pairs": latent_classes.average_loss(
        logits, label, ways=2, probability=rho, **kind
      ),
      "bound_of_pairs": guarantees.of_minimizer(split.total, rho, **kind),
      "bound_by_deviation": guarantees.by_deviation(
        split.other, spread, rho, **kind
      ),
      "min_norm": low,
      "max_norm": high,
    }
    for n in num_negatives:
      loss = split.total
      if n > 1 and 2 * high**2 > LARGEST_RANGE:
        message = "%s: norms up to %.3g; L_un of %d negatives is left out"
        log.warning(message, name, high, n)
        continue
      if n > 1:
        loss = latent_classes.unsupervised_loss(
          x, label, num_negatives=n, **kind
        )
      scores[f"unsupervised_{n}"] = loss
      if n > 1 and n >= len(rho):
        scores[f"bound_{n}"] = bounds.by_coverage(loss, rho, n)
    return {f"classes_{name}/{k}": v for k, v in scores.items()}

  return evaluate


def same_class_evaluator(data: LabelledSet, name: str) -> Evaluator:
  """Makes an evaluator of same-class recall by what the objective sees.

  `classes_<name>/recall@<k>` is `retrieval.same_class_recall` of unit-norm
  rows. Rows that are alone in their class are left out.

  Args:
    data: Labelled images.
    name: The name of the data set.

  Raises:
    ValueError: If no class has two rows.
  """
  rows = np.flatnonzero(np.bincount(data.label)[data.label] > 1)
  if not len(rows):
    raise ValueError(
      f"{name}: no class has two images, so none can be recalled; leave "
      "'recall' out of the scores"
    )

  def evaluate(embed: Embed) -> Metrics:
    x = unit_rows(embed.outputs.image(data.image[rows]))
    scores = same_class_recall(x, data.label[rows])
    return {f"classes_{name}/{k}": v for k, v in scores.items()}

  return evaluate


def variation_evaluator(
  data: LabelledSet, name: str, *, max_rows: int = MAX_ROWS
) -> Evaluator:
  """Makes an evaluator of how consistent differences are.

  It computes the value of `difference_alignment` for differences
  between classes, whether or not the run learns from labels. The values are
  called `classes_<name>/variation_<chain or star>`, in units of the mean norm
  of what the objective sees, for rows in a random order; star is the mean
  distance. They are 0 if all outputs are 0.

  Args:
    data: Labelled images.
    name: The name of the data set.
    max_rows: How many rows are used at most, always the same ones in the same
      order.

  Reference: Chen et al., ICLR 2024, Figure 8.
  """
  rows = np.random.default_rng(0).permutation(len(data.label))[:max_rows]
  label = jnp.asarray(data.label[rows])

  @jax.jit  # once for all evaluations
  def variations(x):
    x /= jnp.maximum(jnp.mean(jnp.linalg.norm(x, axis=1)), 1e-30)
    pairs, values = Pairs(x, x, jnp.arange(len(x)), label=label), {}
    for differences in ("chain", "star"):
      term = difference_alignment(differences=differences, labels=True)
      values[differences], _ = term.apply(*term.init(), pairs)
    return values

  def evaluate(embed: Embed) -> Metrics:
    values = variations(embed.outputs.image(data.image[rows]))
    return {
      f"classes_{name}/variation_{kind}": float(value)
      for kind, value in values.items()
    }

  return evaluate


def _check_numbers(name, values, least, most=np.inf) -> None:
  if wrong := [x for x in values if not least <= x <= most or x != int(x)]:
    upto = f" and at most {most}" if most < np.inf else ""
    raise ValueError(
      f"{name} must be whole numbers of at least {least}{upto}, got {wrong}"
    )


def _share_of_each_class(label: np.ndarray, count: int) -> np.ndarray:
  """Returns about `count` rows: every class has its share, and at least one."""
  if len(label) <= count:
    return np.arange(len(label))
  order = np.random.default_rng(0).permutation(len(label))
  chosen = []
  for c in np.unique(label):
    members = order[label[order] == c]
    share = max(1, round(count * len(members) / len(label)))
    chosen.append(members[:share])
  return np.sort(np.concatenate(chosen))


def _check_same_classes(split: str, sets: ClassScores, name: str) -> None:
  train, test = (set(np.unique(x.label)) for x in (sets.train, sets.test))
  if train != test:
    raise ValueError(
      f"{name}: the splits train and {split} must have images of the same "
      f"classes; these are in one only: {sorted(map(int, train ^ test))[:10]}; "
      "leave 'classes' out of the scores, or give splits that have all"
    )
