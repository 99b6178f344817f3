"""The rules of timm's image towers, whether alone or in OpenCLIP's models."""

from nuclr_jax.lab.models.pretrained.rules import (
  GRID,
  Row,
  block_rows,
  pool_rows,
  rules,
)

# Plain ViTs, EVA's and the Perception Encoder.
VIT = rules(
  "image",
  ("class_token", "cls_token", "flat"),
  (GRID, "pos_embed", "batched_grid"),
  ("positions", "pos_embed", "batched_grid"),
  ("patches", "patch_embed.proj", "conv_bias"),
  ("norm_before", "norm_pre", "norm"),
  *block_rows(
    "blocks.{i}.attn.qkv",
    "blocks.{i}.attn.proj",
    "blocks.{i}.norm1",
    "blocks.{i}.norm2",
    "blocks.{i}.mlp.fc1",
    "blocks.{i}.mlp.fc2",
  ),
  ("blocks/{i}/attention/query_bias", "blocks.{i}.attn.q_bias", "same"),
  ("blocks/{i}/attention/value_bias", "blocks.{i}.attn.v_bias", "same"),
  ("blocks/{i}/scale1", "blocks.{i}.ls1.gamma", "same"),
  ("blocks/{i}/scale2", "blocks.{i}.ls2.gamma", "same"),
  ("norm", "norm", "norm"),
  *pool_rows(
    "attn_pool.latent",
    "attn_pool.q attn_pool.kv",
    "attn_pool.proj",
    "attn_pool.norm",
    "attn_pool.mlp.fc1",
    "attn_pool.mlp.fc2",
  ),
)
_ATTN, _MLP = "blocks.{i}.attn", "blocks.{i}.mlp"
# EVA-02's models that have their own keys for queries, keys and values.
EVA02 = (
  *rules(
    "image",
    (
      "blocks/{i}/attention/qkv/kernel",
      f"{_ATTN}.q_proj.weight {_ATTN}.k_proj.weight {_ATTN}.v_proj.weight",
      "matrix",
    ),
    ("blocks/{i}/attention/query_bias", f"{_ATTN}.q_proj.bias", "same"),
    ("blocks/{i}/attention/value_bias", f"{_ATTN}.v_proj.bias", "same"),
    ("blocks/{i}/attention/norm", f"{_ATTN}.norm", "norm"),
    ("blocks/{i}/gate", f"{_MLP}.fc1_g", "linear"),
    ("blocks/{i}/up", f"{_MLP}.fc1_x", "linear"),
    ("blocks/{i}/hidden_norm", f"{_MLP}.norm", "norm"),
  ),
  *VIT,
)
_DOWN, _BLOCK = "stages.{s}.downsample", "stages.{s}.blocks.{b}"
CONVNEXT = rules(
  "image",
  ("stem/patches", "stem.0", "conv_bias"),
  ("norm_before", "stem.1", "norm"),
  ("stages/{s}/{b}/shrink_norm", f"{_DOWN}.0", "norm"),
  ("stages/{s}/{b}/shrink/patches", f"{_DOWN}.1", "conv_bias"),
  ("stages/{s}/{b}/conv", f"{_BLOCK}.conv_dw", "conv_bias"),
  ("stages/{s}/{b}/norm", f"{_BLOCK}.norm", "norm"),
  ("stages/{s}/{b}/up", f"{_BLOCK}.mlp.fc1", "linear"),
  ("stages/{s}/{b}/down", f"{_BLOCK}.mlp.fc2", "linear"),
  ("stages/{s}/{b}/scale", f"{_BLOCK}.gamma", "same"),
  ("last_norm", "head.norm", "norm"),
)
_STEM = "patch_embed.backbone"
_MBCONV = f"{_STEM}.stages.{{s}}.{{b}}"
VITAMIN = (
  *rules(
    "image",
    ("patches/first", f"{_STEM}.stem.conv1", "conv_bias"),
    ("patches/first_norm", f"{_STEM}.stem.norm1", "norm"),
    ("patches/second", f"{_STEM}.stem.conv2", "conv_bias"),
    ("patches/stages/{s}/{b}/norm", f"{_MBCONV}.pre_norm", "norm"),
    ("patches/stages/{s}/{b}/up", f"{_MBCONV}.conv1_1x1", "conv_1x1"),
    ("patches/stages/{s}/{b}/conv", f"{_MBCONV}.conv2_kxk", "conv_bias"),
    ("patches/stages/{s}/{b}/down", f"{_MBCONV}.conv3_1x1", "conv_1x1"),
    (
      "patches/stages/{s}/{b}/shortcut",
      f"{_MBCONV}.shortcut.expand",
      "conv_1x1",
    ),
    ("patches/last_norm", f"{_STEM}.pool.norm", "norm"),
    ("patches/last", f"{_STEM}.pool.proj", "conv_bias"),
    ("blocks/{i}/mlp_norm", f"{_MLP}.norm", "norm"),
    ("blocks/{i}/gate", f"{_MLP}.w0", "linear"),
    ("blocks/{i}/up", f"{_MLP}.w1", "linear"),
    ("blocks/{i}/down", f"{_MLP}.w2", "linear"),
    ("norm", "fc_norm", "norm"),
  ),
  *VIT,
)
# MobileCLIP's ViT.
MOBILECLIP_VIT = (
  *rules(
    "image",
    ("patches/layers/{c}", f"{_STEM}.{{c}}.conv", "conv_bias"),
    ("patches/norms/{c}", f"{_STEM}.{{c}}.bn", "batch_norm"),
  ),
  *VIT,
)


def _branches(ours: str, theirs: str, *names: str) -> tuple[Row, ...]:
  """Returns the rows of a sum of convolutions with these names."""
  rows = []
  for i, name in enumerate(names):
    rows.append((f"{ours}/convs/{i}", f"{theirs}{name}.conv", "conv"))
    rows.append((f"{ours}/norms/{i}", f"{theirs}{name}.bn", "batch_norm"))
  return (*rows, (f"{ours}/skip", f"{theirs}identity", "batch_norm"))


def _gate(ours: str, theirs: str) -> tuple[Row, ...]:
  return (
    (f"{ours}/down", f"{theirs}.fc1", "conv_1x1"),
    (f"{ours}/up", f"{theirs}.fc2", "conv_1x1"),
  )


# Blocks are counted by their MLPs, which all of them have.
_ONE = ("conv_kxk.0", "conv_scale")
_OURS, _THEIRS = "stages/{s}/{b}", "stages.{s}.blocks.{b}"
_MINE, _TIMMS = "stages/{t}/{c}", "stages.{t}.blocks.{c}"
_SHRINK = "stages.{t}.downsample.proj"
FASTVIT = rules(
  "image",
  *_branches("stem/{c}", "stem.{c}.", *_ONE),
  *_branches(
    "stages/{t}/0/shrink/shrink", f"{_SHRINK}.0.", "large_conv", "small_conv"
  ),
  *_gate("stages/{t}/0/shrink/gate", f"{_SHRINK}.0.se"),
  *_branches("stages/{t}/0/shrink/mix", f"{_SHRINK}.1.", *_ONE),
  ("stages/{t}/0/positions", "stages.{t}.pos_emb.pos_enc", "conv_bias"),
  *_branches(f"{_MINE}/mixer", f"{_TIMMS}.token_mixer.mixer.", *_ONE),
  (f"{_MINE}/mixer_norm", f"{_TIMMS}.token_mixer.norm.identity", "batch_norm"),
  (f"{_MINE}/norm", f"{_TIMMS}.norm", "batch_norm"),
  (f"{_MINE}/mix_scale", f"{_TIMMS}.token_mixer.layer_scale.gamma", "channels"),
  (f"{_MINE}/mlp_scale", f"{_TIMMS}.layer_scale.gamma", "channels"),
  (f"{_MINE}/scale1", f"{_TIMMS}.layer_scale_1.gamma", "channels"),
  (f"{_MINE}/scale2", f"{_TIMMS}.layer_scale_2.gamma", "channels"),
  (f"{_MINE}/attention/qkv", f"{_TIMMS}.token_mixer.qkv", "linear"),
  (f"{_MINE}/attention/out", f"{_TIMMS}.token_mixer.proj", "linear"),
  (f"{_OURS}/mlp/conv/convs/0", f"{_THEIRS}.mlp.conv.conv", "conv"),
  (f"{_OURS}/mlp/conv/norms/0", f"{_THEIRS}.mlp.conv.bn", "batch_norm"),
  (f"{_OURS}/mlp/up", f"{_THEIRS}.mlp.fc1", "conv_1x1"),
  (f"{_OURS}/mlp/down", f"{_THEIRS}.mlp.fc2", "conv_1x1"),
  *_branches("last", "final_conv.", *_ONE),
  *_gate("gate", "final_conv.se"),
)
