"""OpenCLIP's models whose towers are timm's or transformers', if installed.

The models are made by OpenCLIP itself, from configs as it has them; only the
sizes of timm's and transformers' parts are replaced, in `tiny_parts`. At their
published sizes, most do not fit this comparison's memory.
"""

from collections.abc import Mapping
import contextlib
import functools
from typing import Any
from unittest import mock

import torch
import transformers

from experiments.parity import optional
from experiments.parity.cases import Case, images, texts
from experiments.parity.optional_cases import encode

LENGTH, IDS, DIM, SIZE = 8, 30, 12, 24
SHAPE = dict(layers=1, width=16, mlp_ratio=1.5)
TEXT = SHAPE | dict(heads=4, vocab_size=IDS, context_length=LENGTH)
VIT = SHAPE | dict(head_width=4, patch_size=8, image_size=SIZE)
OURS = dict(width=16, layers=1, heads=4, hidden=24)
# timm's arguments.
EVA = dict(embed_dim=16, depth=1, num_heads=4, mlp_ratio=1.5)
EVA |= dict(img_size=SIZE, patch_size=8)
ROBERTA = dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1)
ROBERTA |= dict(num_attention_heads=4, max_position_embeddings=514)
ROBERTA |= dict(vocab_size=IDS, layer_norm_eps=1e-5, pad_token_id=1)
ROBERTA |= dict(type_vocab_size=1)
NLLB = dict(d_model=16, encoder_layers=1, encoder_attention_heads=4)
NLLB |= dict(encoder_ffn_dim=24, vocab_size=IDS, pad_token_id=1)
NLLB |= dict(scale_embedding=True, activation_function="relu")
NLLB |= dict(decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=8)


@contextlib.contextmanager
def tiny_parts(sizes: Mapping[str, Any]):
  """Makes timm's and transformers' parts of OpenCLIP's models small.

  Args:
    sizes: What timm's `create_model` takes.
  """
  timm, hf = optional.load("timm"), optional.load("open_clip.hf_model")
  create = timm.create_model

  def tiny(name, **arguments):
    if "vitamin" in name:
      stem = timm.models.vitamin.VitCfg((8, 16, 16), (1, 2, 1), stem_width=8)
      arguments["embed_cfg"] = stem
    if "base_mci" in name:
      hybrid = timm.models.vision_transformer_hybrid
      stem = hybrid.ConvStem(
        channels=(4, 4, 16),
        stride=(4, 2, 2),
        kernel_size=(4, 2, 2),
        padding=0,
        act_layer=torch.nn.GELU,
      )
      embed = functools.partial(hybrid.HybridEmbed, backbone=stem, proj=False)
      arguments["embed_layer"] = embed
    if name == "fastvit_mci0":
      positions = timm.models.fastvit.RepConditionalPosEnc
      arguments["pos_embs"] = (None, positions)
    return create(name, **arguments | sizes)

  def config(name):
    if "nllb" in name:
      return transformers.M2M100Config(**NLLB)
    return transformers.RobertaConfig(**ROBERTA)

  with (
    mock.patch.object(timm, "create_model", tiny),
    mock.patch.object(hf.AutoConfig, "from_pretrained", config),
  ):
    yield


def timm(name: str, pool: str, proj: str | None = None) -> dict[str, Any]:
  """Returns a `vision_cfg` with a tower of timm."""
  tower = dict(timm_model_name=name, timm_pool=pool, timm_proj=proj)
  return tower | dict(image_size=SIZE)


HF_TEXT = dict(hf_model_name="roberta-base", hf_pooler_type="mean_pooler")
HF_TEXT |= dict(hf_tokenizer_name="roberta-base", hf_model_pretrained=False)
NLLB_TEXT = dict(hf_model_name="facebook/nllb-200-distilled-600M")
NLLB_TEXT |= dict(hf_pooler_type="cls_pooler", hf_proj_type="linear")
NLLB_TEXT |= dict(hf_model_pretrained=False)
CLIPA_VIT = VIT | dict(no_ln_pre=True, pool_type="avg")
CLIPA_VIT |= dict(final_ln_after_pool=True)
BIDIRECTIONAL = dict(no_causal_mask=True)
CONVNEXT = dict(depths=(1, 1, 1, 1), dims=(4, 8, 16, 32))
VITAMIN = dict(embed_dim=16, depth=1, num_heads=4, img_size=32)
MCI_VIT = dict(embed_dim=16, depth=1, num_heads=4, mlp_ratio=1.5, img_size=32)
# All that `fastvit_mci0` has, in two stages, to get a small file.
MCI0 = dict(layers=(1, 1), embed_dims=(16, 32), mlp_ratios=(3, 3))
MCI0 |= dict(downsamples=(False, True), se_downsamples=(False, True))
MCI0 |= dict(token_mixers=("repmixer", "attention"))
MCI3 = dict(layers=(1, 1, 1, 1, 1), embed_dims=(4, 8, 16, 32, 64))
FAMILIES = {  # vision_cfg, text_cfg, what timm takes
  "CLIPA": (CLIPA_VIT, TEXT | BIDIRECTIONAL | dict(pool_type="last"), {}),
  "MetaCLIP 2": (VIT, TEXT | dict(pool_type="eos", eos_id=2), {}),
  "CoCa": (
    VIT | dict(attentional_pool=True, attn_pooler_heads=4),
    TEXT | dict(embed_cls=True),
    {},
  ),
  "RoBERTa": (VIT, HF_TEXT, {}),
  "NLLB": (VIT, NLLB_TEXT, {}),
  "NLLB, SigLIP": (
    timm("vit_base_patch16_siglip_384", "map", "none"),
    NLLB_TEXT,
    EVA | dict(embed_dim=DIM),
  ),
  "MobileCLIP2-L": (
    timm("vit_large_patch14_clip_224", "token"),
    TEXT | BIDIRECTIONAL,
    EVA,
  ),
  "MobileCLIP-B": (timm("vit_base_mci_224", "token"), TEXT, MCI_VIT),
  "MobileCLIP2-S0": (
    timm("fastvit_mci0", "avg"),
    TEXT | BIDIRECTIONAL,
    MCI0,
  ),
  "MobileCLIP2-S3": (
    timm("fastvit_mci3", "avg"),
    TEXT | BIDIRECTIONAL,
    MCI3,
  ),
  "EVA-01": (timm("eva_giant_patch14_224", "token"), TEXT, EVA),
  "EVA-02": (
    timm("eva02_base_patch16_clip_224", "token"),
    TEXT,
    EVA | dict(ref_feat_shape=(4, 4)),
  ),
  "EVA-02-E": (timm("eva02_enormous_patch14_clip_224", "token"), TEXT, EVA),
  "PE-Core": (
    timm("vit_pe_core_base_patch16_224", "map"),
    TEXT,
    EVA | dict(ref_feat_shape=(4, 4), attn_pool_num_heads=2),
  ),
  "PE-Core-G": (
    timm("vit_pe_core_gigantic_patch14_448", "map"),
    TEXT,
    EVA | dict(ref_feat_shape=(4, 4), attn_pool_num_heads=2),
  ),
  "ConvNeXt": (timm("convnext_base", "", "linear"), TEXT, CONVNEXT),
  "ConvNeXt, MLP": (timm("convnext_large", "", "mlp"), TEXT, CONVNEXT),
  "ViTamin": (timm("vitamin_base_224", "", "linear"), TEXT, VITAMIN),
  "ViTamin-XL": (
    timm("vitamin_xlarge_256", "", "linear"),
    TEXT,
    VITAMIN | dict(pos_embed="none"),
  ),
}
# Arguments of our towers beside `OURS`, and other arguments of `models.towers`.
GELU = dict(activation="gelu")
CLIP = dict(name="clip_text", max_length=LENGTH, **GELU)
VISION = dict(name="clip_vit_b32", patch=8, **GELU)
IMAGE_BIAS = dict(projection_bias=["image"])
PE = dict(name="perception_encoder", patch=8, rotary=4, pool_heads=2)
NEXT = dict(name="convnext", stages=(1, 1, 1, 1), width=4)
MOBILE_TEXT = CLIP | dict(causal=False, pool="end")
FAST = dict(name="fastvit", width=16, stages=(1, 1), gated=1)
FAST3 = dict(name="fastvit", width=4, stages=(1,) * 5, expansion=4)
FAST3 |= dict(attending=2, gated=0, norm="layer", stem_scale=False)
NLLB_TOWER = dict(name="nllb", dropout=0.0)
TAMIN = dict(name="vitamin", width=16, layers=1, heads=4, stem=8)
TAMIN |= dict(stem_blocks=(1, 2))
TOWERS = {
  "CLIPA": (
    VISION | dict(norm_before=False, patch_bias=False, pool="mean"),
    CLIP | dict(causal=False),
    {},
  ),
  "MetaCLIP 2": (VISION, CLIP | dict(end_id=2), {}),
  "CoCa": (
    VISION | dict(pool="query", probe=(DIM, 4)),
    CLIP | dict(pool="class", max_length=LENGTH + 1),
    {},
  ),
  "RoBERTa": (
    VISION,
    dict(name="roberta", hidden=64, head=14, max_length=514, dropout=0.0),
    {},
  ),
  "NLLB": (VISION, NLLB_TOWER, {}),
  "NLLB, SigLIP": (
    dict(name="siglip_vit_b16", patch=8, width=DIM, hidden=18, **GELU),
    NLLB_TOWER,
    dict(projected=["text"]),
  ),
  "MobileCLIP2-L": (VISION, MOBILE_TEXT, IMAGE_BIAS),
  "MobileCLIP-B": (dict(name="mobileclip_vit", stem=4), CLIP, IMAGE_BIAS),
  "MobileCLIP2-S0": (FAST, MOBILE_TEXT, IMAGE_BIAS),
  "MobileCLIP2-S3": (FAST3, MOBILE_TEXT, IMAGE_BIAS),
  "EVA-01": (dict(name="eva", patch=8), CLIP, IMAGE_BIAS),
  "EVA-02": (dict(name="eva", patch=8, gated=True, rotary=4), CLIP, IMAGE_BIAS),
  "EVA-02-E": (dict(name="eva", patch=8, post_norm=True), CLIP, IMAGE_BIAS),
  "PE-Core": (PE, CLIP, IMAGE_BIAS),
  "PE-Core-G": (PE | dict(class_token=False), CLIP, IMAGE_BIAS),
  "ConvNeXt": (NEXT, CLIP, {}),
  "ConvNeXt, MLP": (NEXT | dict(head=2 * DIM), CLIP, {}),
  "ViTamin": (TAMIN, CLIP, {}),
  "ViTamin-XL": (TAMIN | dict(positions=False), CLIP, {}),
}
LAYOUTS = {
  "CLIPA": "open_clip",
  "MetaCLIP 2": "open_clip",
  "CoCa": "open_clip",
  "RoBERTa": "open_clip_bert",
  "NLLB": "open_clip_nllb",
  "NLLB, SigLIP": "open_clip_siglip_nllb",
  "MobileCLIP-B": "open_clip_mobileclip_vit",
  "MobileCLIP2-S0": "open_clip_fastvit",
  "MobileCLIP2-S3": "open_clip_fastvit",
  "EVA-02": "open_clip_eva02",
  "ConvNeXt": "open_clip_convnext",
  "ConvNeXt, MLP": "open_clip_convnext_mlp",
  "ViTamin": "open_clip_vitamin",
  "ViTamin-XL": "open_clip_vitamin",
}
# The tests have what these share with no other; of CLIPA and RoBERTa, whole
# folders, which `published` writes. All are compared here.
GOLDEN = ("CoCa", "NLLB", "EVA-02", "EVA-02-E", "PE-Core", "ConvNeXt, MLP")
GOLDEN += ("ViTamin", "MobileCLIP-B", "MobileCLIP2-S0")
TRAINED = ("fastvit", "mobileclip_vit")  # have batch normalization
OWN_SIZES = ("convnext", "vitamin", "fastvit")  # not those of `OURS`


def make(family: str, changed: Mapping[str, Any] | None = None):
  """Makes OpenCLIP's model of a family, also with a changed `text_cfg`."""
  library = optional.load("open_clip.model")
  vision, text, sizes = FAMILIES[family]
  text = changed or text
  is_convnext = "convnext" in vision.get("timm_model_name", "convnext")
  custom = not is_convnext or "hf_model_name" in text or "embed_cls" in text
  with tiny_parts(sizes):
    return (library.CustomTextCLIP if custom else library.CLIP)(
      DIM, vision, text
    )


def captions(family: str):
  """Draws captions with the padding and the end token of a family."""
  ids = texts(IDS, LENGTH, 2, clip=True)
  if family.startswith(("RoBERTa", "NLLB")):
    ids[ids == 1] = 2
    ids[ids == 0] = 1
  if family == "MetaCLIP 2":
    ids[ids == 2] = 3
    ids[ids == IDS - 1] = 2
  return ids


def case(family: str) -> Case:
  """Makes the case of a family."""
  image, text, more = TOWERS[family]
  name = image["name"]
  size = 32 if name in (*OWN_SIZES, *TRAINED) else SIZE
  if len(image.get("stages", ())) == 5:
    size = 80  # so that batch statistics are of more than two positions
  if name not in OWN_SIZES:
    image = OURS | image
  arguments = dict(image=image, text=OURS | text, dim=DIM, vocab_size=IDS)
  return Case(
    f"OpenCLIP {family}",
    LAYOUTS.get(family, "open_clip_timm"),
    lambda: make(family),
    encode,
    arguments | dict(projection_bias=False) | more,
    dict(image=images(size), text=captions(family)),
    train=name in TRAINED,
    golden=family in GOLDEN,
  )


def cases(*, tiny: bool) -> list[Case]:
  """Makes the cases of all families, which are tiny only."""
  libraries = ("timm", "open_clip.model", "open_clip.hf_model")
  if not tiny or any(optional.load(x) is None for x in libraries):
    return []
  return [case(family) for family in FAMILIES]
