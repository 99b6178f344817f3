r"""All pairs of a batch, in two passes: the numerical core.

Images and texts both serve as anchors. For image i as anchor and text j as
contrast the logit is

  L_ij = (sim_ij - sim_ii - bias_j) / temperature_i,

and pair j is not a negative of pair i if they share an image or a text. Every
softmax-like objective needs two passes over these logits:

1. `log_sum_exp`: the anchors' log-sum-exp values, from which the objective
   computes its weights;
2. `weighted`: the sum of exp(L_ij + weight_i), its gradient (computed in the
   same pass), and the sums over anchors that per-contrast state needs.

Both work tile by tile (see `tiles`), in float32 or better whatever the dtype of
the embeddings, with the products that suit the device (`tiles.product`): memory
is O(batch dim + tile^2). If one tile holds all, the similarities are computed
once for both passes. On a mesh each device has the rows of its images and
gathers all texts, once; the gradients of the texts are scattered back, and what
is one number per row is on every device. The gradient of the second pass treats
the weights as constants, so its own derivative would be wrong: differentiating
twice raises an error.
"""

from nuclr_jax.pairwise.batch import (
  embeddings,
  nan_without_negatives,
  num_negatives,
  own_similarity,
  replicated_ids,
  unit_norm,
)
from nuclr_jax.pairwise.passes import (
  Logits,
  Weighted,
  log_sum_exp,
  logits,
  weighted,
)
from nuclr_jax.pairwise.sums import sum_over_negatives

__all__ = [
  "Logits",
  "Weighted",
  "embeddings",
  "log_sum_exp",
  "logits",
  "nan_without_negatives",
  "num_negatives",
  "own_similarity",
  "replicated_ids",
  "sum_over_negatives",
  "unit_norm",
  "weighted",
]
