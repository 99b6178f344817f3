"""Guarantees for the encoder that contrastive learning finds.

Saunshi et al. bound the loss of the mean classifier of the learned encoder,
which minimizes the contrastive loss of a sample, by losses of any encoder f of
the same class. The paper leaves constants open; here they are those of its
proofs. With `generalization=0`, each is a statement about one and the same f.
The losses on both sides must be the same one of `losses.LOSSES`.
"""

import math

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax import checks
from nuclr_jax.contrib.latent_classes import losses
from nuclr_jax.contrib.latent_classes.classes import (
  any_collision,
  check_probability,
  collision,
  labelled,
)
from nuclr_jax.types import AnyArray

SHARP = 1 / math.sqrt(3)  # see `collision_constant`


def of_minimizer(
  unsupervised: float,
  probability: Float[np.ndarray, "classes"],
  *,
  loss: losses.Loss = "logistic",
  generalization: float = 0.0,
) -> float:
  """Bounds the mean classifier's loss of the learned encoder.

  L_sup^mu <= (L_un - tau l(0) + Gen_M) / (1 - tau), averaged over tasks of two
  classes; l(0) is the loss of a margin of 0, which is 1 in the paper.

  Args:
    unsupervised: The `unsupervised_loss` of any encoder of the class.
    probability: The class probabilities, rho.
    loss: A name in `losses.LOSSES`.
    generalization: Gen_M; 0 bounds the loss of the same encoder.

  Returns:
    A bound on `average_loss(ways=2, probability=rho)` of the learned encoder.

  Raises:
    ValueError: If there is one class only, or the loss is unknown.

  Example:
    >>> of_minimizer(0.5, np.full(4, 0.25), generalization=0.3)
    0.7333333333333334

  Reference: Saunshi et al., Theorem 4.1.
  """
  tau = _tau(probability)
  rest = unsupervised - tau * _loss_of(0.0, 1, loss) + generalization
  return float(rest / (1 - tau))


def by_deviation(
  other: float,
  deviation: float,
  probability: Float[np.ndarray, "classes"],
  *,
  loss: losses.Loss = "logistic",
  generalization: float = 0.0,
  sharp: bool = False,
) -> float:
  """Bounds the mean classifier's loss by the spread within classes.

  L_sup^mu <= L_un^!= + c' tau / (1 - tau) s(f) + Gen_M / (1 - tau), averaged
  over tasks of two classes.

  Args:
    other: L_un^!=, `split_loss(...).other` of any encoder f of the class.
    deviation: s(f), the `classes.deviation` of the same encoder.
    probability: The class probabilities, rho.
    loss: A name in `losses.LOSSES`.
    generalization: Gen_M; 0 bounds the loss of the same encoder.
    sharp: Whether c' is the smallest that holds, see `collision_constant`.

  Returns:
    A bound on `average_loss(ways=2, probability=rho)` of the learned encoder.

  Raises:
    ValueError: If there is one class only, or the loss is unknown.

  Example:
    >>> round(by_deviation(0.5, 1.0, np.full(5, 0.2), loss="hinge"), 4)
    0.8536

  Reference: Saunshi et al., Theorem 4.5.
  """
  return by_deviation_of_many(
    other,
    deviation,
    probability,
    num_negatives=1,
    loss=loss,
    generalization=generalization,
    sharp=sharp,
  )


def by_deviation_of_many(
  other: float,
  deviation: float,
  probability: Float[np.ndarray, "classes"],
  *,
  num_negatives: checks.Count,
  loss: losses.Loss = "logistic",
  generalization: float = 0.0,
  sharp: bool = False,
) -> float:
  """Bounds the mean classifier's loss on the tasks that k negatives make.

  The bound is

    ((1 - tau') L_un^!= + c' k tau_1 s(f) + Gen_M) / (1 - tau_k)

  with tau' = P(all negatives are of the anchor's class), tau_k = P(any is) and
  tau_1 = P(the first is).

  Args:
    other: L_un^!=, the `other_loss` of any encoder f of the class.
    deviation: s(f), the `classes.deviation` of the same encoder.
    probability: The class probabilities, rho.
    num_negatives: The number of negatives, k.
    loss: A name in `losses.LOSSES`.
    generalization: Gen_M; 0 bounds the loss of the same encoder.
    sharp: Whether c' is the smallest that holds, see `collision_constant`.

  Returns:
    A bound on the `drawn_task_loss` of the learned encoder.

  Raises:
    ValueError: If there is one class only, the loss is unknown, or
      `num_negatives` is below 1.

  Example:
    >>> rho = np.full(5, 0.2)
    >>> bound = by_deviation_of_many(0.5, 0.0, rho, num_negatives=2)
    >>> round(bound, 4)  # 0.5 (1 - 0.04) / 0.64
    0.75

  Reference: Saunshi et al., Theorem 6.1, which is Theorem B.1 of its appendix.
  """
  tau = _tau(probability)
  every = collision(probability, num_negatives)
  constant = collision_constant(loss, sharp=sharp)
  total = (1 - every) * other + generalization
  total += constant * num_negatives * tau * deviation
  return float(total / (1 - any_collision(probability, num_negatives)))


@checks.checked
def collision_constant(loss: losses.Loss, *, sharp: bool = False) -> float:
  r"""Returns c' of Lemma 4.4, L_un^= - l(0) <= c' s(f).

  The proof has c' = sqrt(2) for hinge and natural logarithms. The smallest
  constant is 1 / sqrt(3): x^+ and x^- are alike, so that only half of E|z|, for
  z = f(x)^T (f(x^-) - f(x^+)), counts, and E|a - b| <= 2 sigma / sqrt(3) for
  two draws of any law (Gini's mean difference). Wide uniform laws come
  arbitrarily near. In units of log 2, both are larger by 1 / log 2.

  Args:
    loss: A name in `losses.LOSSES`.
    sharp: Whether to return the smallest constant, not the proof's.

  Raises:
    ValueError: If the loss is unknown.

  Example:
    >>> [round(collision_constant("hinge", sharp=x), 3) for x in (False, True)]
    [1.414, 0.577]

  Reference: Saunshi et al., Lemma A.1.
  """
  constant = SHARP if sharp else math.sqrt(2)
  return constant / math.log(2) if loss == "logistic" else constant


def subgaussian(
  features: Float[AnyArray, "rows dim"], label: Int[np.ndarray, "rows"]
) -> float:
  """Bounds sigma, with which each class is sub-Gaussian in every direction.

  By Hoeffding's lemma, sigma is at most half of the largest distance between
  two rows of a class. It takes O(n^2 d) for a class of n rows.

  Args:
    features: The features f(x), of any norm.
    label: Class labels.

  Raises:
    ValueError: If a feature is not finite, or the lengths differ.

  Example:
    >>> subgaussian(np.array([[0.0], [3.0], [7.0]]), np.array([0, 0, 1]))
    1.5

  Reference: Saunshi et al., Lemma 5.1.
  """
  (x, label), largest = labelled(features, label), 0.0
  for c in np.unique(label):
    rows = x[label == c]
    for row in rows:
      largest = max(largest, np.linalg.norm(rows - row, axis=1).max())
  return float(largest / 2)


def margin(radius: float, sigma: float, epsilon: float) -> float:
  """Returns the margin gamma that classes of this spread need.

  gamma = 1 + 2 R sigma sqrt(2 log max(R, 1) + log(3 / epsilon)).

  Args:
    radius: R, the largest norm of f(x).
    sigma: With which every class is sub-Gaussian, see `subgaussian`.
    epsilon: The slack, in (0, 3).

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> round(margin(1.0, 0.1, 0.1), 4)
    1.3688

  Reference: Saunshi et al., Lemma 5.1 and its proof, Appendix A.2.
  """
  if radius < 0 or sigma < 0 or not 0 < epsilon < 3:
    raise ValueError(
      "radius and sigma must be at least 0 and epsilon in (0, 3), got "
      f"{radius}, {sigma} and {epsilon}"
    )
  inside = 2 * math.log(max(radius, 1.0)) + math.log(3 / epsilon)
  return 1 + 2 * radius * sigma * math.sqrt(inside)


def by_margin(margin_loss: float, gamma: float, epsilon: float) -> float:
  """Bounds the hinge loss of different classes by that with a margin.

  L_un^!= <= gamma L_gamma,sup^mu + epsilon.

  Args:
    margin_loss: L_gamma,sup^mu, `average_loss(scores / gamma, ways=2,
      loss="hinge", probability=rho)` of the mean classifier's scores.
    gamma: The `margin`.
    epsilon: The slack that gamma was computed with.

  Returns:
    A bound on `split_loss(loss="hinge").other`.

  Example:
    >>> by_margin(0.5, 2.0, 0.1)
    1.1

  Reference: Saunshi et al., Lemma 5.1.
  """
  return gamma * margin_loss + epsilon


def competitive(
  margin_loss: float,
  gamma: float,
  epsilon: float,
  deviation: float,
  probability: Float[np.ndarray, "classes"],
  *,
  generalization: float = 0.0,
  sharp: bool = False,
) -> float:
  """Bounds the hinge loss of the learned mean classifier by any other's.

  L_sup^mu <= gamma L_gamma,sup^mu + c' tau / (1 - tau) s(f)
              + Gen_M / (1 - tau) + epsilon,

  which is `by_margin` in `by_deviation`. (The paper prints tau / (1 - tau) in
  front of Gen_M as well; Theorem 4.5 has 1 / (1 - tau).)

  Args:
    margin_loss: L_gamma,sup^mu of any encoder f of the class, see `by_margin`.
    gamma: The `margin` of the same encoder.
    epsilon: The slack that gamma was computed with.
    deviation: s(f), the `classes.deviation` of the same encoder.
    probability: The class probabilities, rho.
    generalization: Gen_M; 0 bounds the loss of the same encoder.
    sharp: Whether c' is the smallest that holds, see `collision_constant`.

  Returns:
    A bound on `average_loss(ways=2, loss="hinge", probability=rho)` of the
    learned encoder.

  Raises:
    ValueError: If there is one class only.

  Example:
    >>> round(competitive(0.5, 2.0, 0.25, 0.0, np.full(5, 0.2)), 9)
    1.25

  Reference: Saunshi et al., Corollary 5.1.1.
  """
  return by_deviation(
    by_margin(margin_loss, gamma, epsilon),
    deviation,
    probability,
    loss="hinge",
    generalization=generalization,
    sharp=sharp,
  )


@checks.checked
def generalization(
  rademacher: float,
  radius: float,
  num_samples: checks.Count,
  *,
  failure: float = 0.05,
  num_negatives: checks.Count = 1,
  loss: losses.Loss = "logistic",
) -> float:
  """Computes Gen_M, what a sample of M tuples may hide.

  With probability 1 - delta, L_un of the encoder that minimizes the sample's
  loss is at most L_un(f) + Gen_M for every f of the class:

    Gen_M = 2 sqrt(12 k) eta R R_S(F) / M
            + 3 B (sqrt(log(4 / delta) / 2 M) + sqrt(log(2 / delta) / 2 M)),

  where the loss is eta-Lipschitz and at most B for norms of at most R.

  Args:
    rademacher: R_S(F), the `rademacher_average` of the class on the sample.
    radius: R, the largest norm of f(x).
    num_samples: M, the number of tuples (x, x^+, x_1^-, ..., x_k^-).
    failure: delta, the probability that it does not hold.
    num_negatives: k.
    loss: A name in `losses.LOSSES`.

  Raises:
    ValueError: If the loss is unknown or a number is out of range.

  Example:
    >>> round(generalization(0.0, 1.0, 10_000, loss="hinge"), 4)
    0.2554

  Reference: Saunshi et al., Lemma 4.2, which is Lemma A.2 for k = 1.
  """
  k = num_negatives
  if not 0 < failure < 1 or radius < 0 or rademacher < 0:
    raise ValueError(
      "failure must be in (0, 1), radius and rademacher at least 0, got "
      f"{failure}, {radius} and {rademacher}"
    )
  largest = _loss_of(-2 * radius**2, k, loss)
  lipschitz = 1 / math.log(2) if loss == "logistic" else 1.0
  complexity = 2 * math.sqrt(12 * k) * lipschitz * radius * rademacher
  tails = sum(math.sqrt(math.log(x / failure)) for x in (2, 4))
  tails /= math.sqrt(2 * num_samples)
  return complexity / num_samples + 3 * largest * tails


def rademacher_average(
  values: Float[AnyArray, "encoders numbers"],
  *,
  num_draws: checks.Count = 1_000,
  seed: int = 0,
) -> float:
  """Estimates R_S(F) of finitely many encoders.

  R_S(F) = E[sup_f <sigma, f_S>], over signs sigma; f_S are all coordinates of
  f(x), f(x^+) and f(x_i^-), for all tuples of the sample.

  Args:
    values: f_S of each encoder.
    num_draws: The number of random signs to average over.
    seed: Decides the signs.

  Example:
    >>> rademacher_average(np.array([[3.0], [-3.0]]))
    3.0

  Reference: Saunshi et al., Section 4.1.
  """
  values = np.asarray(values, np.float64)
  rng = np.random.default_rng(seed)
  signs = rng.choice([-1.0, 1.0], (num_draws, values.shape[1]))
  return float(np.mean(np.max(signs @ values.T, axis=1)))


def _tau(probability) -> float:
  if len(check_probability(probability)) == 1:
    raise ValueError("there must be two classes or more, got one")
  return collision(probability)


def _loss_of(margin, count, loss) -> float:
  """Returns the loss of `count` equal margins."""
  return float(losses.of_margins(np.full((1, count), margin), loss)[0])
