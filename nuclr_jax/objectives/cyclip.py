"""CyCLIP: CLIP with consistent similarities within and across modalities."""

import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base
from nuclr_jax.objectives.clip import clip
from nuclr_jax.objectives.combine import add
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import shows_its_call


@shows_its_call
@checks.checked
def cyclip(
  *,
  temperature: checks.Temperature = 0.07,
  learn_temperature: bool = True,
  in_modal: checks.NonNegative = 0.25,
  cross_modal: checks.NonNegative = 0.25,
) -> base.Objective:
  """Makes CLIP plus cyclic consistency, `add(clip=clip(), cyclic=...)`.

  Args:
    temperature: Divides cosine similarities; greater than 0. The first value
      if it is learned.
    learn_temperature: Whether the temperature is learned, as in `clip`.
    in_modal: Weight of the consistency within modalities, at least 0.
    cross_modal: Weight of the consistency across modalities, at least 0.

  Returns:
    An `Objective` without state. Params and metrics of `clip` are under the
    name "clip", those of the consistency under "cyclic".

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> objective = cyclip(temperature=0.1, learn_temperature=False)
    >>> pairs = Pairs(jnp.ones((4, 1)), jnp.ones((4, 1)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(f"{loss:.4f}")  # log 4, and nothing is inconsistent
    1.3863

  Reference: Goel et al., CyCLIP: Cyclic Contrastive Language-Image
    Pretraining, NeurIPS 2022.
  """
  return add(
    clip=clip(temperature=temperature, learn_temperature=learn_temperature),
    cyclic=cyclic_consistency(in_modal=in_modal, cross_modal=cross_modal),
  )


@shows_its_call
@checks.checked
def cyclic_consistency(
  *,
  in_modal: checks.NonNegative = 0.25,
  cross_modal: checks.NonNegative = 0.25,
) -> base.Objective:
  r"""Makes a penalty on differences of similarities that should agree.

  With the matrices I and T of the batch's embeddings, the loss is

    (in_modal / B) ||I I^T - T T^T||^2 + (cross_modal / B) ||I T^T - T I^T||^2

  (Frobenius norms; the published loss divides similarities by the temperature
  and multiplies by its square, which cancels). With P = I - T, Q = I + T,
  a = <P^T P, Q^T Q> and b = tr((P^T Q)^2), the squared norms are (a + b) / 2
  and (a - b) / 2: this takes O(B d^2), makes no [B, B] matrix, and is exact
  where I is close to T.

  Args:
    in_modal: Weight of the first term, at least 0.
    cross_modal: Weight of the second term, at least 0.

  Returns:
    An `Objective` without params and state. Ids are not used.

  Raises:
    ValueError: If a weight is negative.

  Example:
    >>> objective = cyclic_consistency(in_modal=0.0, cross_modal=1.0)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2)[jnp.array([0, 0])], jnp.arange(2))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(loss)  # I T^T - T I^T has the entries -1 and 1, B = 2
    1.0

  Reference: Goel et al., CyCLIP: Cyclic Contrastive Language-Image
    Pretraining, NeurIPS 2022.
  """

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    p, q = image - text, image + text
    cross = tiles.matmul(p.T, q)
    a = jnp.sum(tiles.matmul(p.T, p) * tiles.matmul(q.T, q))
    b = jnp.sum(cross * cross.T)
    loss = in_modal * (a + b) / 2 + cross_modal * (a - b) / 2
    return loss / len(image), {}

  return base.stateless(loss_fn)
