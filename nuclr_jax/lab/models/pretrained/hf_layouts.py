"""How files of torchvision and of Hugging Face name their arrays."""

from nuclr_jax.lab.models.pretrained.rules import (
  COUNTERS,
  GRID,
  IDS,
  Layout,
  Rule,
  block_rows,
  nested,
  pool_rows,
  projection,
  rules,
)


def _hf_blocks(attention: str, before: str, after: str):
  """Returns the rows of ViT's or BERT's blocks, which differ in three names."""
  block = "encoder.layer.{i}"
  heads = f"{block}.attention.{attention}"
  return block_rows(
    f"{heads}.query {heads}.key {heads}.value",
    f"{block}.attention.output.dense",
    f"{block}.{before}",
    f"{block}.{after}",
    f"{block}.intermediate.dense",
    f"{block}.output.dense",
  )


def _hf_dinov2_blocks():
  block = "encoder.layer.{i}"
  heads = f"{block}.attention.attention"
  return (
    *block_rows(
      f"{heads}.query {heads}.key {heads}.value",
      f"{block}.attention.output.dense",
      f"{block}.norm1",
      f"{block}.norm2",
      f"{block}.mlp.fc1",
      f"{block}.mlp.fc2",
    ),
    ("blocks/{i}/scale1", f"{block}.layer_scale1.lambda1", "same"),
    ("blocks/{i}/scale2", f"{block}.layer_scale2.lambda1", "same"),
  )


def _hf_distilbert_blocks():
  block = "transformer.layer.{i}"
  attention = f"{block}.attention"
  return block_rows(
    f"{attention}.q_lin {attention}.k_lin {attention}.v_lin",
    f"{attention}.out_lin",
    f"{block}.sa_layer_norm",
    f"{block}.output_layer_norm",
    f"{block}.ffn.lin1",
    f"{block}.ffn.lin2",
  )


def _hf_clip(prefix: str):
  """Returns the rows of one side's blocks, whose keys begin with `prefix`."""
  block = f"{prefix}.encoder.layers.{{i}}"
  attention = f"{block}.self_attn"
  return block_rows(
    f"{attention}.q_proj {attention}.k_proj {attention}.v_proj",
    f"{attention}.out_proj",
    f"{block}.layer_norm1",
    f"{block}.layer_norm2",
    f"{block}.mlp.fc1",
    f"{block}.mlp.fc2",
  )


_TORCHVISION = rules(
  "image",
  ("stem", "conv1", "conv"),
  ("norm", "bn1", "batch_norm"),
  ("stages/{s}/{b}/convs/{c}", "layer{s1}.{b}.conv{c1}", "conv"),
  ("stages/{s}/{b}/norms/{c}", "layer{s1}.{b}.bn{c1}", "batch_norm"),
  ("stages/{s}/{b}/shortcut/0", "layer{s1}.{b}.downsample.0", "conv"),
  ("stages/{s}/{b}/shortcut/1", "layer{s1}.{b}.downsample.1", "batch_norm"),
)
_STEM, _STAGE = "embedder.embedder", "encoder.stages.{s}.layers.{b}"
_LAYER, _SHORTCUT = f"{_STAGE}.layer.{{c}}", f"{_STAGE}.shortcut"
_HF_RESNET = rules(
  "image",
  ("stem", f"{_STEM}.convolution", "conv"),
  ("norm", f"{_STEM}.normalization", "batch_norm"),
  ("stages/{s}/{b}/convs/{c}", f"{_LAYER}.convolution", "conv"),
  ("stages/{s}/{b}/norms/{c}", f"{_LAYER}.normalization", "batch_norm"),
  ("stages/{s}/{b}/shortcut/0", f"{_SHORTCUT}.convolution", "conv"),
  ("stages/{s}/{b}/shortcut/1", f"{_SHORTCUT}.normalization", "batch_norm"),
)
_POSITIONS = "embeddings.position_embeddings"
_HF_VIT = rules(
  "image",
  ("class_token", "embeddings.cls_token", "flat"),
  (GRID, _POSITIONS, "batched_grid"),
  ("patches", "embeddings.patch_embeddings.projection", "conv_bias"),
  *_hf_blocks("attention", "layernorm_before", "layernorm_after"),
  ("norm", "layernorm", "norm"),
  ("pooler/linear", "pooler.dense", "linear"),
)
_HF_DINOV2 = rules(
  "image",
  ("class_token", "embeddings.cls_token", "flat"),
  (GRID, _POSITIONS, "batched_grid"),
  ("patches", "embeddings.patch_embeddings.projection", "conv_bias"),
  *_hf_dinov2_blocks(),
  ("norm", "layernorm", "norm"),
)
HF_BERT = rules(
  "text",
  ("tokens", "embeddings.word_embeddings.weight", "same"),
  (
    "positions",
    f"{_POSITIONS}.weight embeddings.token_type_embeddings.weight",
    "positions_and_types",
  ),
  ("norm", "embeddings.LayerNorm", "norm"),
  *_hf_blocks("self", "attention.output.LayerNorm", "output.LayerNorm"),
  ("pooler/linear", "pooler.dense", "linear"),
)
_HF_DISTILBERT = rules(
  "text",
  ("tokens", "embeddings.word_embeddings.weight", "same"),
  ("positions", f"{_POSITIONS}.weight", "same"),
  ("norm", "embeddings.LayerNorm", "norm"),
  *_hf_distilbert_blocks(),
)

_VISION, _TEXT = "vision_model.embeddings", "text_model.embeddings"
_HEAD = "vision_model.head"
_PROJECTIONS = {
  side: (Rule((f"{side}_projection",), (f"{key}.weight",), "matrix"),)
  for side, key in (("image", "visual_projection"), ("text", "text_projection"))
}
_HF_CLIP_IMAGE = _PROJECTIONS["image"] + rules(
  "image",
  ("class_token", f"{_VISION}.class_embedding", "same"),
  (GRID, f"{_VISION}.position_embedding.weight", "grid"),
  ("patches", f"{_VISION}.patch_embedding", "conv"),
  ("norm_before", "vision_model.pre_layrnorm", "norm"),
  *_hf_clip("vision_model"),
  ("norm", "vision_model.post_layernorm", "norm"),
)
_HF_CLIP_TEXT = _PROJECTIONS["text"] + rules(
  "text",
  ("tokens", f"{_TEXT}.token_embedding.weight", "same"),
  ("positions", f"{_TEXT}.position_embedding.weight", "stretched"),
  *_hf_clip("text_model"),
  ("norm", "text_model.final_layer_norm", "norm"),
)
_HF_SIGLIP_IMAGE = rules(
  "image",
  ("positions", f"{_VISION}.position_embedding.weight", "grid"),
  ("patches", f"{_VISION}.patch_embedding", "patches"),
  *_hf_clip("vision_model"),
  ("norm", "vision_model.post_layernorm", "norm"),
  *pool_rows(
    f"{_HEAD}.probe",
    f"{_HEAD}.attention.in_proj",
    f"{_HEAD}.attention.out_proj",
    f"{_HEAD}.layernorm",
    f"{_HEAD}.mlp.fc1",
    f"{_HEAD}.mlp.fc2",
    packed=True,
  ),
)
_HF_SIGLIP_TEXT = projection("text", "text_model.head") + rules(
  "text",
  ("tokens", f"{_TEXT}.token_embedding.weight", "same"),
  ("positions", f"{_TEXT}.position_embedding.weight", "same"),
  *_hf_clip("text_model"),
  ("norm", "text_model.final_layer_norm", "norm"),
)
_SIGLIP = r"vision_model\.head\.probe|text_model\.head\.weight"
LAYOUTS = {
  "torchvision_resnet": Layout(
    mark=r"layer1\.0\.conv1\.weight",
    image=_TORCHVISION,
    ignored=(COUNTERS, r"fc\..*"),
  ),
  "hf_resnet": Layout(
    mark=r"embedder\.embedder\.convolution\.weight",
    image=_HF_RESNET,
    prefix="resnet.",
    ignored=(COUNTERS, r"classifier\..*"),
  ),
  "hf_vit": Layout(
    mark=r"encoder\.layer\.0\.layernorm_before\.bias",
    image=_HF_VIT,
    prefix="vit.",
    ignored=(r"classifier\..*", r"pooler\..*"),
  ),
  "hf_dinov2": Layout(
    mark=r"encoder\.layer\.0\.layer_scale1\.lambda1",
    image=_HF_DINOV2,
    prefix="dinov2.",
    ignored=(r"classifier\..*", r"embeddings\.mask_token"),
  ),
  "hf_distilbert": Layout(
    mark=r"transformer\.layer\.\d+\.attention\.q_lin\.weight",
    text=_HF_DISTILBERT,
    prefix="distilbert.",
    ignored=(IDS, r"vocab_.*", r"(pre_)?classifier\..*", r"qa_outputs\..*"),
  ),
  "hf_bert": Layout(
    mark=r"encoder\.layer\.\d+\.attention\.self\.query\.weight",
    text=HF_BERT,
    prefix="bert.",
    ignored=(IDS, r"cls\..*", r"classifier\..*", r"pooler\..*"),
  ),
  "hf_clip": Layout(
    mark=r"(vision_model|text_model)\.encoder\.layers\.0\.layer_norm1\.bias",
    image=_HF_CLIP_IMAGE,
    text=_HF_CLIP_TEXT,
    ignored=(IDS, "logit_scale"),
    unless=_SIGLIP,
  ),
  "hf_siglip": Layout(
    mark=_SIGLIP,
    image=_HF_SIGLIP_IMAGE,
    text=_HF_SIGLIP_TEXT,
    ignored=(IDS, "logit_scale", "logit_bias"),
  ),
  "hf_dual_encoder": Layout(
    mark=r"vision_model\.encoder\.layer\.0\.layernorm_before\.bias",
    image=_PROJECTIONS["image"] + nested("vision_model.", _HF_VIT),
    text=_PROJECTIONS["text"] + nested("text_model.", HF_BERT),
    ignored=(IDS, "logit_scale"),
  ),
}
