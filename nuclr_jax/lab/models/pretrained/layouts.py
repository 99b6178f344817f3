"""All layouts of files with published weights, by name."""

from nuclr_jax.lab.models.pretrained import hf_layouts, open_clip_layouts
from nuclr_jax.lab.models.pretrained.rules import Layout, Rule

LAYOUTS = hf_layouts.LAYOUTS | open_clip_layouts.LAYOUTS

__all__ = ["LAYOUTS", "Layout", "Rule"]
