"""How files of published weights name their arrays, as tables of rules.

A rule pairs our names with the keys of a file. `{s}`, `{b}`, `{c}` and `{i}`
are placeholders for numbers; `{s1}` is that number plus one, since torchvision
counts stages and convolutions from 1. The rules of a layout hold for any number
of blocks: the model determines how many there are.
"""

from typing import NamedTuple


class Rule(NamedTuple):
  """Our names, the keys of the same numbers in a file, and their conversion.

  `kind` is a name in `convert.CONVERSIONS`.
  """

  ours: tuple[str, ...]
  theirs: tuple[str, ...]
  kind: str


class Layout(NamedTuple):
  """How the files of one library name their arrays."""

  mark: str  # regular expression of a key that no other layout has
  image: tuple[Rule, ...] = ()
  text: tuple[Rule, ...] = ()
  prefix: str = ""  # before every key of the encoder in some files
  ignored: tuple[str, ...] = ()  # regular expressions of unused keys
  # Regular expression of a key by which a file with the mark is of another
  # layout.
  unless: str | None = None


Row = tuple[str, str, str]  # our names, their keys, kind; blanks separate names

_NORM = [("/scale", ".weight", "same"), ("/bias", ".bias", "same")]
# Kinds of whole layers: for each array of the layer, the endings of our name
# and of their key, and the array's kind.
_LAYERS = {
  "norm": _NORM,
  "batch_norm": [
    *_NORM,
    ("/mean", ".running_mean", "same"),
    ("/var", ".running_var", "same"),
  ],
  "linear": [("/kernel", ".weight", "matrix"), ("/bias", ".bias", "same")],
  "packed": [("/kernel", "_weight", "matrix"), ("/bias", "_bias", "same")],
  "conv": [("/kernel", ".weight", "kernel")],
  "conv_bias": [("/kernel", ".weight", "kernel"), ("/bias", ".bias", "same")],
}


def _rules(side: str, *rows: Row) -> tuple[Rule, ...]:
  """Expands rows into rules: a layer becomes one rule for each of its arrays.

  Example:
    >>> [rule.theirs for rule in _rules("text", ("norm", "ln_final", "norm"))]
    [('ln_final.weight',), ('ln_final.bias',)]
  """
  return tuple(
    Rule(
      tuple(f"{side}/{name}{our_end}" for name in ours.split()),
      tuple(key + their_end for key in theirs.split()),
      array_kind,
    )
    for ours, theirs, kind in rows
    for our_end, their_end, array_kind in _LAYERS.get(kind, [("", "", kind)])
  )


def _nested(prefix: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
  """Returns these rules for a model that is part of a larger one."""
  return tuple(
    rule._replace(theirs=tuple(prefix + key for key in rule.theirs))
    for rule in rules
  )


def _biased_projection(key: str) -> tuple[Rule, ...]:
  """Returns the rules of the text side's projection as a linear layer."""
  return (
    Rule(("text_projection",), (f"{key}.weight",), "matrix"),
    Rule(("text_projection_bias",), (f"{key}.bias",), "same"),
  )


def _block_rows(
  qkv: str,
  out: str,
  norm1: str,
  norm2: str,
  up: str,
  down: str,
  *,
  packed: bool = False,
) -> tuple[Row, ...]:
  """Returns the rows of attention blocks.

  `qkv` is one key, or three separated by blanks. PyTorch's own attention is
  `packed`: the endings of its keys differ.
  """
  return (
    ("blocks/{i}/attention/qkv", qkv, "packed" if packed else "linear"),
    ("blocks/{i}/attention/out", out, "linear"),
    ("blocks/{i}/norm1", norm1, "norm"),
    ("blocks/{i}/norm2", norm2, "norm"),
    ("blocks/{i}/up", up, "linear"),
    ("blocks/{i}/down", down, "linear"),
  )


def _hf_blocks(attention: str, before: str, after: str):
  """Returns the rows of ViT's or BERT's blocks, which differ in three names."""
  block = "encoder.layer.{i}"
  heads = f"{block}.attention.{attention}"
  return _block_rows(
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
    *_block_rows(
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
  return _block_rows(
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
  return _block_rows(
    f"{attention}.q_proj {attention}.k_proj {attention}.v_proj",
    f"{attention}.out_proj",
    f"{block}.layer_norm1",
    f"{block}.layer_norm2",
    f"{block}.mlp.fc1",
    f"{block}.mlp.fc2",
  )


def _open_clip(prefix: str):
  block = f"{prefix}transformer.resblocks.{{i}}"
  return _block_rows(
    f"{block}.attn.in_proj",
    f"{block}.attn.out_proj",
    f"{block}.ln_1",
    f"{block}.ln_2",
    f"{block}.mlp.c_fc",
    f"{block}.mlp.c_proj",
    packed=True,
  )


def _pool_rows(
  probe: str,
  qkv: str,
  out: str,
  norm: str,
  up: str,
  down: str,
  *,
  packed: bool = False,
) -> tuple[Row, ...]:
  """Returns the rows of attention pooling by a learned probe."""
  return (
    ("pool/probe", probe, "flat"),
    ("pool/attention/qkv", qkv, "packed" if packed else "linear"),
    ("pool/attention/out", out, "linear"),
    ("pool/norm", norm, "norm"),
    ("pool/up", up, "linear"),
    ("pool/down", down, "linear"),
  )


_GRID = "class_position positions"
_TORCHVISION = _rules(
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
_HF_RESNET = _rules(
  "image",
  ("stem", f"{_STEM}.convolution", "conv"),
  ("norm", f"{_STEM}.normalization", "batch_norm"),
  ("stages/{s}/{b}/convs/{c}", f"{_LAYER}.convolution", "conv"),
  ("stages/{s}/{b}/norms/{c}", f"{_LAYER}.normalization", "batch_norm"),
  ("stages/{s}/{b}/shortcut/0", f"{_SHORTCUT}.convolution", "conv"),
  ("stages/{s}/{b}/shortcut/1", f"{_SHORTCUT}.normalization", "batch_norm"),
)
# With and without a class token, LayerScale and attention pooling.
_TIMM_VIT = _rules(
  "image",
  ("class_token", "cls_token", "flat"),
  (_GRID, "pos_embed", "batched_grid"),
  ("positions", "pos_embed", "batched_grid"),
  ("patches", "patch_embed.proj", "conv_bias"),
  *_block_rows(
    "blocks.{i}.attn.qkv",
    "blocks.{i}.attn.proj",
    "blocks.{i}.norm1",
    "blocks.{i}.norm2",
    "blocks.{i}.mlp.fc1",
    "blocks.{i}.mlp.fc2",
  ),
  ("blocks/{i}/scale1", "blocks.{i}.ls1.gamma", "same"),
  ("blocks/{i}/scale2", "blocks.{i}.ls2.gamma", "same"),
  ("norm", "norm", "norm"),
  *_pool_rows(
    "attn_pool.latent",
    "attn_pool.q attn_pool.kv",
    "attn_pool.proj",
    "attn_pool.norm",
    "attn_pool.mlp.fc1",
    "attn_pool.mlp.fc2",
  ),
)
_POSITIONS = "embeddings.position_embeddings"
_HF_VIT = _rules(
  "image",
  ("class_token", "embeddings.cls_token", "flat"),
  (_GRID, _POSITIONS, "batched_grid"),
  ("patches", "embeddings.patch_embeddings.projection", "conv_bias"),
  *_hf_blocks("attention", "layernorm_before", "layernorm_after"),
  ("norm", "layernorm", "norm"),
  ("pooler/linear", "pooler.dense", "linear"),
)
_HF_DINOV2 = _rules(
  "image",
  ("class_token", "embeddings.cls_token", "flat"),
  (_GRID, _POSITIONS, "batched_grid"),
  ("patches", "embeddings.patch_embeddings.projection", "conv_bias"),
  *_hf_dinov2_blocks(),
  ("norm", "layernorm", "norm"),
)
_HF_BERT = _rules(
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
_HF_DISTILBERT = _rules(
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
_HF_CLIP_IMAGE = _PROJECTIONS["image"] + _rules(
  "image",
  ("class_token", f"{_VISION}.class_embedding", "same"),
  (_GRID, f"{_VISION}.position_embedding.weight", "grid"),
  ("patches", f"{_VISION}.patch_embedding", "conv"),
  ("norm_before", "vision_model.pre_layrnorm", "norm"),
  *_hf_clip("vision_model"),
  ("norm", "vision_model.post_layernorm", "norm"),
)
_HF_CLIP_TEXT = _PROJECTIONS["text"] + _rules(
  "text",
  ("tokens", f"{_TEXT}.token_embedding.weight", "same"),
  ("positions", f"{_TEXT}.position_embedding.weight", "stretched"),
  *_hf_clip("text_model"),
  ("norm", "text_model.final_layer_norm", "norm"),
)
_HF_SIGLIP_IMAGE = _rules(
  "image",
  ("positions", f"{_VISION}.position_embedding.weight", "grid"),
  ("patches", f"{_VISION}.patch_embedding", "conv_bias"),
  *_hf_clip("vision_model"),
  ("norm", "vision_model.post_layernorm", "norm"),
  *_pool_rows(
    f"{_HEAD}.probe",
    f"{_HEAD}.attention.in_proj",
    f"{_HEAD}.attention.out_proj",
    f"{_HEAD}.layernorm",
    f"{_HEAD}.mlp.fc1",
    f"{_HEAD}.mlp.fc2",
    packed=True,
  ),
)
_HF_SIGLIP_TEXT = _biased_projection("text_model.head") + _rules(
  "text",
  ("tokens", f"{_TEXT}.token_embedding.weight", "same"),
  ("positions", f"{_TEXT}.position_embedding.weight", "same"),
  *_hf_clip("text_model"),
  ("norm", "text_model.final_layer_norm", "norm"),
)
_VISUAL, _ATTNPOOL = "visual.layer{s1}.{b}", "visual.attnpool"
# A ViT, or CLIP's own ResNet, whose last layer is its projection.
_OPEN_CLIP_IMAGE = (
  Rule(("image_projection",), ("visual.proj",), "same"),
  *_rules(
    "image",
    ("class_token", "visual.class_embedding", "same"),
    (_GRID, "visual.positional_embedding", "grid"),
    ("patches", "visual.conv1", "conv"),
    ("norm_before", "visual.ln_pre", "norm"),
    *_open_clip("visual."),
    ("norm", "visual.ln_post", "norm"),
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
  *_rules(
    "text",
    ("tokens", "token_embedding.weight", "same"),
    ("positions", "positional_embedding", "stretched"),
    *_open_clip(""),
    ("norm", "ln_final", "norm"),
  ),
)
_OPEN_CLIP_SIGLIP_TEXT = _biased_projection("text.text_projection") + _rules(
  "text",
  ("tokens", "text.token_embedding.weight", "same"),
  ("positions", "text.positional_embedding", "same"),
  *_open_clip("text."),
  ("norm", "text.ln_final", "norm"),
)

_COUNTERS = r".*\.num_batches_tracked"
_IDS = r".*\.position_ids"
_SIGLIP = r"vision_model\.head\.probe|text_model\.head\.weight"
LAYOUTS = {
  "torchvision_resnet": Layout(
    mark=r"layer1\.0\.conv1\.weight",
    image=_TORCHVISION,
    ignored=(_COUNTERS, r"fc\..*"),
  ),
  "hf_resnet": Layout(
    mark=r"embedder\.embedder\.convolution\.weight",
    image=_HF_RESNET,
    prefix="resnet.",
    ignored=(_COUNTERS, r"classifier\..*"),
  ),
  "timm_vit": Layout(
    mark=r"patch_embed\.proj\.weight",
    image=_TIMM_VIT,
    ignored=(r"head\..*", "mask_token"),
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
    ignored=(_IDS, r"vocab_.*", r"(pre_)?classifier\..*", r"qa_outputs\..*"),
  ),
  "hf_bert": Layout(
    mark=r"encoder\.layer\.\d+\.attention\.self\.query\.weight",
    text=_HF_BERT,
    prefix="bert.",
    ignored=(_IDS, r"cls\..*", r"classifier\..*", r"pooler\..*"),
  ),
  "hf_clip": Layout(
    mark=r"(vision_model|text_model)\.encoder\.layers\.0\.layer_norm1\.bias",
    image=_HF_CLIP_IMAGE,
    text=_HF_CLIP_TEXT,
    ignored=(_IDS, "logit_scale"),
    unless=_SIGLIP,
  ),
  "hf_siglip": Layout(
    mark=_SIGLIP,
    image=_HF_SIGLIP_IMAGE,
    text=_HF_SIGLIP_TEXT,
    ignored=(_IDS, "logit_scale", "logit_bias"),
  ),
  "hf_dual_encoder": Layout(
    mark=r"vision_model\.encoder\.layer\.0\.layernorm_before\.bias",
    image=_PROJECTIONS["image"] + _nested("vision_model.", _HF_VIT),
    text=_PROJECTIONS["text"] + _nested("text_model.", _HF_BERT),
    ignored=(_IDS, "logit_scale"),
  ),
  "open_clip": Layout(
    mark=(
      r"visual\.(ln_pre\.weight|attnpool\.c_proj\.weight)|"
      r"transformer\.resblocks\.0\.ln_1\.weight"
    ),
    image=_OPEN_CLIP_IMAGE,
    text=_OPEN_CLIP_TEXT,
    prefix="text.",  # of models with "custom_text" in their config
    ignored=(
      r"logit_\w+|attn_mask|input_resolution|context_length|vocab_size",
      _COUNTERS,
    ),
    unless=r"visual\.trunk\..*|text_projection\.weight",
  ),
  "open_clip_siglip": Layout(
    mark=(
      r"visual\.trunk\.patch_embed\.proj\.weight|"
      r"text\.transformer\.resblocks\.0\.ln_1\.weight"
    ),
    image=_nested("visual.trunk.", _TIMM_VIT),
    text=_OPEN_CLIP_SIGLIP_TEXT,
    ignored=(r"logit_\w+",),
    unless=r"visual\.(ln_pre\.weight|attnpool\..*)|text\.text_projection",
  ),
}
