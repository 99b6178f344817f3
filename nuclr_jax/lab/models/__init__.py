"""Models that embed images and texts in one space.

`base` has the protocol, `Model(init, apply)`, and the dual encoder. The models
that a config can name are in `MODELS`: `small` for a CPU, `towers` of published
encoders (resnet, clip_resnet, vgg and vit for images; bert and clip_text for
texts; made of `layers` and the attention blocks of `transformer`), `views` with
one encoder for both sides, and `heads` on precomputed features. `statistics`
recomputes a model's batch statistics; `pretrained` reads published weights.
"""

from nuclr_jax.lab.models.base import Model, Tower, dual_encoder, from_nnx
from nuclr_jax.lab.models.heads import heads
from nuclr_jax.lab.models.small import small
from nuclr_jax.lab.models.statistics import batch_statistics
from nuclr_jax.lab.models.towers import IMAGE_TOWERS, TEXT_TOWERS, towers
from nuclr_jax.lab.models.views import ENCODERS, one_encoder, views

MODELS = {"heads": heads, "small": small, "towers": towers, "views": views}

__all__ = [
  "ENCODERS",
  "IMAGE_TOWERS",
  "MODELS",
  "TEXT_TOWERS",
  "Model",
  "Tower",
  "batch_statistics",
  "dual_encoder",
  "from_nnx",
  "heads",
  "one_encoder",
  "small",
  "towers",
  "views",
]
