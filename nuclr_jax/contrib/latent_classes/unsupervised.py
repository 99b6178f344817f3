"""Contrastive losses of labelled features, as exact expectations.

Class c has probability rho(c), and D_c is uniform over its rows. An anchor and
its positive are two draws from D_c, possibly of the same row; a negative is a
draw from D_c', for a class c' drawn from rho. The bounds hold for such draws.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
from jaxtyping import Float, Int
import numpy as np

from nuclr_jax import checks
from nuclr_jax.contrib.latent_classes import losses
from nuclr_jax.contrib.latent_classes.classes import (
  collision,
  labelled,
  rho_of,
)
from nuclr_jax.types import AnyArray

Key = Any  # a JAX random key
MAX_BLOCKS = 100_000  # per class, if all of them are formed


class Split(NamedTuple):
  """The loss with one negative, split by whether its class is the anchor's.

  `total = collision * same + (1 - collision) * other`.
  """

  total: float
  same: float  # L_un^=
  other: float  # L_un^!=; NaN with a single class
  collision: float  # tau


class _Draws(NamedTuple):
  """Probabilities of anchors, and of each anchor's positives and negatives."""

  anchor: np.ndarray  # [anchors]
  positive: np.ndarray  # [anchors, rows]
  negative: np.ndarray  # [anchors, rows]


def unsupervised_loss(
  features: Float[AnyArray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  loss: str = "logistic",
  num_negatives: int = 1,
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Computes L_un = E[loss(f(x)^T (f(x^+) - f(x_i^-)), i = 1 ... N)].

  Nothing is sampled (see `losses.expected`); the cost is rows^2 times a few
  hundred operations.

  Args:
    features: The features f(x), of any norm.
    label: Class labels 0, 1, ...; every class must have rows.
    loss: A name in `LOSSES`.
    num_negatives: The number of negatives, N.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Raises:
    ValueError: If the labels, the loss or the probabilities do not fit.

  Example:
    >>> round(unsupervised_loss(np.zeros((4, 2)), np.array([0, 0, 1, 1])), 9)
    1.0

  Reference: Saunshi et al., ICML 2019, eq. (4); Merad et al., 2020, eq. (6).
  """
  draws = _draws(label, label, probability)
  return _mean(features, features, draws, loss, num_negatives)


def split_loss(
  features: Float[AnyArray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  loss: str = "logistic",
  probability: Float[np.ndarray, "classes"] | None = None,
) -> Split:
  """Computes L_un with one negative, and its two parts.

  Args:
    features: The features f(x), of any norm.
    label: Class labels 0, 1, ...; every class must have rows.
    loss: A name in `LOSSES`.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Example:
    >>> split_loss(np.eye(2), np.array([0, 1]), loss="hinge")
    Split(total=0.5, same=1.0, other=0.0, collision=0.5)

  Reference: Saunshi et al., eq. (8).
  """
  rho = rho_of(label, probability)
  draws, own = _draws(label, label, rho), rho[label]
  tau = collision(rho)
  # If the classes agree, the anchor's is c with probability rho(c)^2 / tau; if
  # they differ, with probability rho(c) (1 - rho(c)) / (1 - tau).
  same = _mean(
    features,
    features,
    draws._replace(anchor=draws.anchor * own / tau, negative=draws.positive),
    loss,
    1,
  )
  if len(rho) == 1:
    return Split(same, same, float("nan"), 1.0)
  apart = np.where(draws.positive > 0, 0.0, draws.negative)
  other = _mean(
    features,
    features,
    draws._replace(
      anchor=draws.anchor * (1 - own) / (1 - tau),
      negative=apart / (1 - own)[:, None],
    ),
    loss,
    1,
  )
  return Split(tau * same + (1 - tau) * other, same, other, tau)


@checks.checked
def other_loss(
  features: Float[AnyArray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  loss: str = "logistic",
  num_negatives: checks.Count = 1,
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Computes L_un^!= of k negatives: those of the anchor's class are removed.

  The classes of the anchor and its negatives are drawn from rho, given that not
  all of them are equal; the loss is that of the negatives that remain. It costs
  as much as k times `unsupervised_loss`; with one negative it is
  `split_loss(...).other`.

  Args:
    features: The features f(x), of any norm.
    label: Class labels 0, 1, ...; every class must have rows.
    loss: A name in `LOSSES`.
    num_negatives: The number of negatives, k.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Raises:
    ValueError: If there is one class only, or the labels, the loss or the
      probabilities do not fit.

  Example:
    >>> x, label = np.eye(2), np.array([0, 1])
    >>> round(other_loss(x, label, loss="hinge", num_negatives=3), 9)
    0.0

  Reference: Saunshi et al., Appendix B.1.
  """
  rho = rho_of(label, probability)
  if len(rho) == 1:
    raise ValueError("there must be two classes or more, got one")
  k = num_negatives
  draws, own = _draws(label, label, rho), rho[label]
  apart = np.where(draws.positive > 0, 0.0, draws.negative)
  apart /= (1 - own)[:, None]
  total = 0.0
  for kept in range(1, k + 1):
    # How probable it is that as many negatives are of other classes.
    share = math.comb(k, kept) * (1 - own) ** kept * own ** (k - kept)
    some = draws._replace(anchor=draws.anchor * share, negative=apart)
    total += _mean(features, features, some, loss, kept)
  return total / (1 - collision(rho, k))


@checks.checked
def block_loss(
  features: Float[AnyArray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  key: Key | None = None,
  *,
  block_size: checks.Count,
  num_blocks: int = 256,
  loss: str = "logistic",
  num_negatives: int = 1,
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Computes L_un^block: positives and negatives are means of blocks.

  Args:
    features: The features f(x), of any norm.
    label: Class labels 0, 1, ...; every class must have rows.
    key: A JAX random key that draws the blocks; None forms all of them,
      (rows of the class)^block_size for each class.
    block_size: The number of draws from one class that a block averages.
    num_blocks: The number of blocks to draw from each class; the estimate has
      the sampling error of that many draws.
    loss: A name in `LOSSES`.
    num_negatives: The number of negative blocks.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Raises:
    ValueError: If the labels, the loss or the probabilities do not fit, or if
      there are too many blocks to form.

  Example:
    >>> x, label = np.eye(4), np.array([0, 0, 1, 1])
    >>> block_loss(x, label, block_size=2) < unsupervised_loss(x, label)
    True

  Reference: Saunshi et al., eq. (12).
  """
  rho, (features, label) = rho_of(label, probability), labelled(features, label)
  means, owner = [], []
  for c in range(len(rho)):
    rows = np.flatnonzero(label == c)
    if key is None:
      if len(rows) ** block_size > MAX_BLOCKS:
        raise ValueError(
          f"class {c} has {len(rows)}^{block_size} blocks; give a key to draw "
          "some of them"
        )
      block = list(itertools.product(rows, repeat=block_size))
    else:
      shape = (num_blocks, block_size)
      block = rows[
        jax.random.randint(jax.random.fold_in(key, c), shape, 0, len(rows))
      ]
    means.append(features[np.array(block)].mean(axis=1))
    owner += [c] * len(block)
  draws = _draws(label, np.array(owner), rho)
  return _mean(features, np.concatenate(means), draws, loss, num_negatives)


def _draws(label, row_label, probability) -> _Draws:
  """Makes the draws of anchors with `label` and of rows with `row_label`."""
  rho = rho_of(label, probability)
  anchor, row = (
    rho[x] / np.bincount(x)[x] for x in (np.asarray(label), row_label)
  )
  same = np.equal.outer(label, row_label)
  positive = same / np.bincount(row_label)[label][:, None]
  return _Draws(anchor, positive, np.broadcast_to(row, same.shape))


def _mean(features, rows, draws: _Draws, loss, num_negatives) -> float:
  """Returns the expected loss over all anchors."""
  x, y = (np.asarray(a, np.float64) for a in (features, rows))
  if (len(x), len(y)) != draws.positive.shape:
    raise ValueError(
      f"features and labels differ in length: {len(x)} and "
      f"{len(draws.positive)}"
    )
  if not np.isfinite(x).all():
    raise ValueError("features are not finite")
  each = losses.expected(
    x @ y.T,
    draws.positive,
    draws.negative,
    loss=loss,
    num_negatives=num_negatives,
  )
  return float(np.sum(draws.anchor * each))
