"""Published weights in our models, and our weights in published layouts.

Weights are loaded step by step:

    a path, or a name on the hub
      -> a file on disk                         hub.find_file
      -> arrays by the keys of their library    load.read_tensors
      -> the name of their layout               convert.recognize
      -> params and state of a model            convert.from_layout

`load.load_towers` takes all steps for one or both towers,
`load.load_dual_encoder` for a whole model with its projections. `layouts` is
the table that both directions read: a rule for each array, with its names in
our params and in the file. `convert.to_layout` converts params and state back
to arrays by the library's keys; `nuclr_jax.lab.export` writes them to files.
`published.read_published` reads how to build a published model in the first
place, and how to prepare its inputs; `sentence_encoders` does so for encoders
of texts alone.
"""

from nuclr_jax.lab.models.pretrained.convert import (
  from_layout,
  recognize,
  to_layout,
)
from nuclr_jax.lab.models.pretrained.hub import find_file
from nuclr_jax.lab.models.pretrained.layouts import LAYOUTS, Layout, Rule
from nuclr_jax.lab.models.pretrained.load import (
  PROJECTION_KEYS,
  PROJECTIONS,
  check_towers,
  load_dual_encoder,
  load_towers,
  read_logit_bias,
  read_logit_scale,
  read_tensors,
)
from nuclr_jax.lab.models.pretrained.normalization import check_normalization
from nuclr_jax.lab.models.pretrained.published import Published, read_published
from nuclr_jax.lab.models.pretrained.sentence_encoders import check_encoder

__all__ = [
  "LAYOUTS",
  "PROJECTIONS",
  "PROJECTION_KEYS",
  "Layout",
  "Published",
  "Rule",
  "check_encoder",
  "check_normalization",
  "check_towers",
  "find_file",
  "from_layout",
  "load_dual_encoder",
  "load_towers",
  "read_logit_bias",
  "read_logit_scale",
  "read_published",
  "read_tensors",
  "recognize",
  "to_layout",
]
