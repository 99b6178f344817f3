"""How files of OpenCLIP, and of timm alone, name their arrays."""

import functools
import re

from nuclr_jax.lab.models.pretrained import timm_rules
from nuclr_jax.lab.models.pretrained.hf_layouts import HF_BERT
from nuclr_jax.lab.models.pretrained.rules import (
  COUNTERS,
  GRID,
  IDS,
  Layout,
  Rule,
  block_rows,
  nested,
  projection,
  rules,
)


def _open_clip(prefix: str):
  block = f"{prefix}transformer.resblocks.{{i}}"
  return block_rows(
    f"{block}.attn.in_proj",
    f"{block}.attn.out_proj",
    f"{block}.ln_1",
    f"{block}.ln_2",
    f"{block}.mlp.c_fc",
    f"{block}.mlp.c_proj",
    packed=True,
  )


_VISUAL, _ATTNPOOL = "visual.layer{s1}.{b}", "visual.attnpool"
_COCA = "visual.attn_pool.attn"
# A ViT, also CoCa's, or CLIP's own ResNet, whose last layer is its projection.
_OPEN_CLIP_IMAGE = (
  Rule(("image_projection",), ("visual.proj",), "same"),
  *rules(
    "image",
    ("class_token", "visual.class_embedding", "same"),
    (GRID, "visual.positional_embedding", "grid"),
    ("patches", "visual.conv1", "conv"),
    ("norm_before", "visual.ln_pre", "norm"),
    *_open_clip("visual."),
    ("norm", "visual.ln_post", "norm"),
    ("pool/queries", "visual.attn_pool.query", "same"),
    ("pool/norm_queries", "visual.attn_pool.ln_q", "norm"),
    ("pool/norm_keys", "visual.attn_pool.ln_k", "norm"),
    ("pool/q/kernel", f"{_COCA}.q_proj_weight", "matrix"),
    ("pool/k/kernel", f"{_COCA}.k_proj_weight", "matrix"),
    ("pool/v/kernel", f"{_COCA}.v_proj_weight", "matrix"),
    ("pool/bias", f"{_COCA}.in_proj_bias", "same"),
    ("pool/out", f"{_COCA}.out_proj", "linear"),
    ("stem/convs/{c}", "visual.conv{c1}", "conv"),
    ("stem/norms/{c}", "visual.bn{c1}", "batch_norm"),
    ("stages/{s}/{b}/convs/{c}", f"{_VISUAL}.conv{{c1}}", "conv"),
    ("stages/{s}/{b}/norms/{c}", f"{_VISUAL}.bn{{c1}}", "batch_norm"),
    ("stages/{s}/{b}/shortcut/0", f"{_VISUAL}.downsample.0", "conv"),
    (
      "stages/{s}/{b}/shortcut/1",
      f"{_VISUAL}.downsample.1",
      "batch_norm",
    ),
    (
      "pool/mean_position pool/positions",
      f"{_ATTNPOOL}.positional_embedding",
      "grid",
    ),
    (
      "pool/attention/qkv",
      f"{_ATTNPOOL}.q_proj {_ATTNPOOL}.k_proj {_ATTNPOOL}.v_proj",
      "linear",
    ),
    ("pool/attention/out", f"{_ATTNPOOL}.c_proj", "linear"),
  ),
)
_OPEN_CLIP_TEXT = (
  Rule(("text_projection",), ("text_projection",), "same"),
  *rules(
    "text",
    ("tokens", "token_embedding.weight", "same"),
    ("class_token", "cls_emb", "same"),
    ("positions", "positional_embedding", "stretched"),
    *_open_clip(""),
    ("norm", "ln_final", "norm"),
  ),
)
_OPEN_CLIP_SIGLIP_TEXT = projection("text", "text.text_projection") + rules(
  "text",
  ("tokens", "text.token_embedding.weight", "same"),
  ("positions", "text.positional_embedding", "same"),
  *_open_clip("text."),
  ("norm", "text.ln_final", "norm"),
)
# RoBERTa, and the head that OpenCLIP puts on the mean of its features.
_ONE_TYPE = {"positions_and_types": "positions_and_type"}
_ROBERTA = tuple(
  x._replace(kind=_ONE_TYPE.get(x.kind, x.kind)) for x in HF_BERT
)
_OPEN_CLIP_BERT = (
  Rule(("text_projection",), ("proj.2.weight",), "matrix"),
  *nested("transformer.", _ROBERTA),
  *rules("text", ("head", "proj.0", "linear")),
)
_LAYER = "layers.{i}"
_SELF = f"{_LAYER}.self_attn"
_OPEN_CLIP_NLLB = (
  Rule(("text_projection",), ("proj.weight",), "matrix"),
  *nested(
    "transformer.",
    rules(
      "text",
      ("tokens", "embed_tokens.weight", "same"),
      *block_rows(
        f"{_SELF}.q_proj {_SELF}.k_proj {_SELF}.v_proj",
        f"{_SELF}.out_proj",
        f"{_LAYER}.self_attn_layer_norm",
        f"{_LAYER}.final_layer_norm",
        f"{_LAYER}.fc1",
        f"{_LAYER}.fc2",
      ),
      ("norm", "layer_norm", "norm"),
    ),
  ),
)
_TRUNK = "visual.trunk."
_TIMM_HEAD = projection("image", f"{_TRUNK}head")  # timm's classifier

# Keys that tell towers apart: of texts by OpenCLIP or transformers, and of
# images by EVA-02, ConvNeXt, or timm at all.
_OF_CLIP, _OF_BERT = "text_projection", r"transformer\.embeddings\..*"
_OF_NLLB = r"transformer\.embed_tokens\.weight"
_WAVES = r"transformer\.embed_positions\.weights"  # which are computed here
_OF_EVA02 = r"visual\.trunk\.blocks\.0\.attn\.q_proj\.weight"
_OF_CONVNEXT = r"visual\.trunk\.stem\.0\.weight"
_OF_TIMM = r"visual\.trunk\..*"
_SCALARS = r"logit_\w+|attn_mask|input_resolution|context_length|vocab_size"
_CUSTOM = "text."  # before the keys of texts, with "custom_text" in a config
# One of timm's image towers beside CLIP's text tower.
_of_timm = functools.partial(
  Layout, text=_OPEN_CLIP_TEXT, prefix=_CUSTOM, ignored=(_SCALARS,)
)


def _convnext(head: str, *more: Rule) -> Layout:
  """Returns the layout of a ConvNeXt with a projection of this key."""
  return _of_timm(
    mark=_OF_CONVNEXT,
    needs=re.escape(f"{head}.weight"),
    image=(
      Rule(("image_projection",), (f"{head}.weight",), "matrix"),
      *nested(_TRUNK, timm_rules.CONVNEXT),
      *more,
    ),
  )


LAYOUTS = {
  "timm_vit": Layout(
    mark=r"patch_embed\.proj\.weight",
    image=timm_rules.VIT,
    ignored=(r"head\..*", "mask_token"),
  ),
  "open_clip": Layout(
    mark=(
      r"visual\.(ln_pre\.weight|attnpool\.c_proj\.weight)|"
      r"transformer\.resblocks\.0\.ln_1\.weight"
    ),
    image=_OPEN_CLIP_IMAGE,
    text=_OPEN_CLIP_TEXT,
    prefix=_CUSTOM,
    ignored=(_SCALARS, COUNTERS, r"text_decoder\..*"),
    unless=rf"{_OF_TIMM}|{_OF_BERT}|{_OF_NLLB}|text_projection\.weight",
  ),
  "open_clip_siglip": Layout(
    mark=(
      r"visual\.trunk\.patch_embed\.proj\.weight|"
      r"text\.transformer\.resblocks\.0\.ln_1\.weight"
    ),
    image=nested("visual.trunk.", timm_rules.VIT),
    text=_OPEN_CLIP_SIGLIP_TEXT,
    ignored=(r"logit_\w+",),
    unless=(
      r"visual\.(ln_pre\.weight|attnpool\..*)|"
      rf"(text\.)?({_OF_CLIP}|{_OF_NLLB})"
    ),
  ),
  "open_clip_timm": _of_timm(
    mark=r"visual\.trunk\.patch_embed\.proj\.weight",
    needs=_OF_CLIP,
    image=_TIMM_HEAD + nested(_TRUNK, timm_rules.VIT),
    unless=_OF_EVA02,
  ),
  "open_clip_eva02": _of_timm(
    mark=_OF_EVA02,
    image=_TIMM_HEAD + nested(_TRUNK, timm_rules.EVA02),
  ),
  "open_clip_convnext": _convnext("visual.head.proj"),
  "open_clip_convnext_mlp": _convnext(
    "visual.head.mlp.fc2",
    *rules("image", ("head", "visual.head.mlp.fc1", "linear")),
  ),
  "open_clip_vitamin": _of_timm(
    mark=r"visual\.trunk\.patch_embed\.backbone\.pool\.proj\.weight",
    image=(
      Rule(("image_projection",), ("visual.head.proj.weight",), "matrix"),
      *nested(_TRUNK, timm_rules.VITAMIN),
    ),
  ),
  "open_clip_mobileclip_vit": _of_timm(
    mark=r"visual\.trunk\.patch_embed\.backbone\.0\.conv\.weight",
    image=_TIMM_HEAD + nested(_TRUNK, timm_rules.MOBILECLIP_VIT),
    ignored=(_SCALARS, COUNTERS),
  ),
  "open_clip_fastvit": _of_timm(
    mark=r"visual\.trunk\.final_conv\..*",
    image=(
      *projection("image", f"{_TRUNK}head.fc"),
      *nested(_TRUNK, timm_rules.FASTVIT),
    ),
    ignored=(_SCALARS, COUNTERS),
  ),
  "open_clip_bert": Layout(
    mark=_OF_BERT,
    image=_OPEN_CLIP_IMAGE,
    text=_OPEN_CLIP_BERT,
    prefix=_CUSTOM,
    ignored=(_SCALARS, COUNTERS, IDS),
    unless=_OF_TIMM,
  ),
  "open_clip_nllb": Layout(
    mark=_OF_NLLB,
    image=_OPEN_CLIP_IMAGE,
    text=_OPEN_CLIP_NLLB,
    prefix=_CUSTOM,
    ignored=(_SCALARS, COUNTERS, _WAVES),
    unless=_OF_TIMM,
  ),
  "open_clip_siglip_nllb": Layout(
    mark=_OF_NLLB,
    needs=_OF_TIMM,
    image=nested(_TRUNK, timm_rules.VIT),
    text=_OPEN_CLIP_NLLB,
    prefix=_CUSTOM,
    ignored=(_SCALARS, _WAVES),
  ),
}
