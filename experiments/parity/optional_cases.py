"""The published encoders in PyTorch: timm's and OpenCLIP's, if installed."""

from experiments.parity import optional
from experiments.parity.cases import (
  Case,
  channels_first,
  images,
  texts,
  token_ids,
)

TINY = dict(width=16, layers=2, heads=4, hidden=24)  # our tiny transformers
TIMM = dict(embed_dim=16, depth=2, num_heads=4, mlp_ratio=1.5)  # and timm's
TIMM |= dict(img_size=24, patch_size=8)


def timm(*, tiny: bool) -> list[Case]:
  """Makes the cases of timm: ResNet-50, ViT-B/16 and DINOv2's ViT-S/14."""
  library = optional.load("timm")
  if library is None:
    return []

  def case(name, layout, tower, dim, size, **sizes):
    return Case(
      f"timm {name}",
      layout,
      lambda: library.create_model(name, num_classes=0, **sizes),
      lambda model, inputs: {"image": model(channels_first(inputs["image"]))},
      dict(image=tower, dim=dim),
      dict(image=images(size)),
      train=layout == "torchvision_resnet",
    )

  resnet = ("resnet50", "torchvision_resnet")
  vit = ("vit_base_patch16_224", "timm_vit")
  dinov2 = ("vit_small_patch14_dinov2", "timm_vit")
  if tiny:  # no ResNet, since timm's stem has a fixed width
    ours = TINY | dict(patch=8)
    return [
      case(*vit, dict(name="vit_b16", **ours), 16, 24, **TIMM),
      case(*dinov2, dict(name="dinov2_vit_s14", **ours), 16, 24, **TIMM),
    ]
  return [
    case(*resnet, dict(name="resnet50"), 2048, 224),
    case(*vit, dict(name="vit_b16"), 768, 224),
    case(*dinov2, dict(name="dinov2_vit_s14"), 384, 224, img_size=224),
  ]


def open_clip(*, tiny: bool) -> list[Case]:
  """Makes the cases of CLIP in OpenCLIP: ViT-B/32 and ResNet-50.

  OpenAI's files have the same layout.
  """
  library = optional.load("open_clip.model")
  if library is None:
    return []
  text = dict(layers=12, vocab_size=49408, context_length=77)
  text |= dict(width=512, heads=8)
  vit = dict(layers=12, width=768, patch_size=32, image_size=224)
  resnet = dict(layers=(3, 4, 6, 3), width=64, image_size=224)
  dims, our_vit, our_resnet, ours = (512, 1024), dict(patch=32), {}, {}
  if tiny:
    shape = dict(layers=2, width=16, mlp_ratio=1.5)
    text = shape | dict(heads=4, vocab_size=30, context_length=8)
    vit = shape | dict(head_width=4, patch_size=8, image_size=24)
    resnet = dict(layers=(1, 2, 1, 1), width=2, head_width=16, image_size=64)
    our_vit, ours = TINY | dict(patch=8), TINY
    our_resnet = dict(stages=resnet["layers"], width=2, heads=4, features=12)
    dims = (12, 12)
  length, vocab_size = text["context_length"], text["vocab_size"]

  def case(name, image, dim, tower, **arguments):
    return Case(
      name,
      "open_clip",
      lambda: library.CLIP(dim, image, text, quick_gelu=True),
      encode,
      dict(
        image=tower,
        text=dict(name="clip_text", max_length=length, **ours),
        dim=dim,
        vocab_size=vocab_size,
        projection_bias=False,
        **arguments,
      ),
      dict(
        image=images(image["image_size"]),
        text=texts(vocab_size, length, 2, clip=True),
      ),
      train="resnet" in tower["name"],
    )

  our_vit |= dict(name="clip_vit_b32")
  our_resnet |= dict(name="clip_resnet50")
  return [
    case("OpenCLIP", vit, dims[0], our_vit),
    case("OpenCLIP ResNet", resnet, dims[1], our_resnet, projected=["text"]),
  ]


def open_clip_siglip(*, tiny: bool) -> list[Case]:
  """Makes the case of SigLIP's ViT-B/16 in OpenCLIP, whose trunk is timm's.

  Its activation is the exact GELU.
  """
  library, timm = optional.load("open_clip.model"), optional.load("timm")
  if library is None or timm is None:
    return []
  trunk = "vit_base_patch16_siglip_224"
  image = dict(timm_model_name=trunk, timm_pool="map", timm_proj="none")
  text = dict(no_causal_mask=True, proj_bias=True, pool_type="last")
  text |= dict(norm_kwargs=dict(eps=1e-6))
  sizes = dict(width=768, heads=12, layers=12)
  size, vocab_size, length, patch, ours = 224, 32000, 64, 16, {}
  if tiny:
    size, vocab_size, length, patch, ours = 24, 30, 8, 8, TINY
    sizes = dict(width=16, heads=4, layers=2, mlp_ratio=1.5)
  text |= sizes | dict(vocab_size=vocab_size, context_length=length)

  def make():
    model = library.CustomTextCLIP(sizes["width"], image, text)
    if tiny:
      model.visual.trunk = timm.create_model(trunk, num_classes=0, **TIMM)
    return model

  ours = ours | dict(activation="gelu")
  return [
    Case(
      "OpenCLIP SigLIP",
      "open_clip_siglip",
      make,
      encode,
      dict(
        image=dict(name="siglip_vit_b16", patch=patch, **ours),
        text=dict(name="siglip_text", max_length=length, **ours),
        dim=sizes["width"],
        vocab_size=vocab_size,
        projected=["text"],
      ),
      dict(image=images(size), text=texts(vocab_size, length, 2)),
    )
  ]


def encode(model, inputs):
  """Computes both embeddings, of unit norm, as OpenCLIP does."""
  image = model.encode_image(channels_first(inputs["image"]), normalize=True)
  text = model.encode_text(token_ids(inputs["text"]), normalize=True)
  return {"image": image, "text": text}


def cases(*, tiny: bool) -> list[Case]:
  """Makes all cases of timm and OpenCLIP at one size."""
  return [
    *timm(tiny=tiny),
    *open_clip(tiny=tiny),
    *open_clip_siglip(tiny=tiny),
  ]
