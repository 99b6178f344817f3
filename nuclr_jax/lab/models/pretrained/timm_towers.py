"""timm's image towers that OpenCLIP names, as arguments of ours."""

from collections.abc import Iterator
import re
from typing import Any

from nuclr_jax.lab.models.pretrained import inputs
from nuclr_jax.lab.models.pretrained.specs import Json

KEYS = ("patch", "width", "layers", "heads", "hidden")
# Widths, layers, heads and hidden units of timm's ViTs for SigLIP.
SIGLIP_SIZES = {
  "base": (768, 12, 12, 3072),
  "large": (1024, 24, 16, 4096),
  "so400m": (1152, 27, 16, 4304),
  "giantopt": (1536, 40, 16, 6144),
}
# The sizes of images for which timm has such a ViT, by size and patch.
SIGLIP_IMAGES = {
  ("base", 16): (224, 256, 384, 512),
  ("base", 32): (256,),
  ("large", 16): (256, 384, 512),
  ("so400m", 14): (224, 378, 384),
  ("so400m", 16): (256, 384, 512),
  ("giantopt", 16): (256, 384),
}


def _eva(*sizes: int, **more: Any) -> dict[str, Any]:
  return {"name": "eva"} | dict(zip(KEYS, sizes, strict=True)) | more


def _perception(size: int, *sizes: int, **more: Any) -> dict[str, Any]:
  sizes = dict(zip(KEYS, sizes, strict=True))
  rotary = {"rotary": size // sizes["patch"]}
  return {"name": "perception_encoder"} | sizes | rotary | more


def _convnext(width: int, *stages: int, **more: Any) -> dict[str, Any]:
  return {"name": "convnext", "width": width, "stages": stages} | more


def _vitamin(stem: int, *sizes: int, **more: Any) -> dict[str, Any]:
  names = ("width", "layers", "heads")
  tower = {"name": "vitamin", "stem": stem} | more
  return tower | dict(zip(names, sizes, strict=True))


def _fastvit(width: int, *stages: int, **more: Any) -> dict[str, Any]:
  return {"name": "fastvit", "width": width, "stages": stages} | more


_MCI = dict(expansion=4, attending=2, gated=0, norm="layer", stem_scale=False)
_EVA02 = dict(gated=True, rotary=16)
_L14 = (14, 1024, 24, 16, 4096)
TOWERS = {  # by their names in timm
  "eva_giant_patch14_224": _eva(14, 1408, 40, 16, 6144),
  "eva02_base_patch16_clip_224": _eva(16, 768, 12, 12, 2048, **_EVA02),
  "eva02_large_patch14_clip_224": _eva(14, 1024, 24, 16, 2730, **_EVA02),
  "eva02_large_patch14_clip_336": _eva(14, 1024, 24, 16, 2730, **_EVA02),
  "eva02_enormous_patch14_clip_224": _eva(
    *(14, 1792, 64, 16, 15360), post_norm=True
  ),
  "vit_pe_core_tiny_patch16_384": _perception(384, 16, 192, 12, 3, 768),
  "vit_pe_core_small_patch16_384": _perception(384, 16, 384, 12, 6, 1536),
  "vit_pe_core_base_patch16_224": _perception(224, 16, 768, 12, 12, 3072),
  "vit_pe_core_large_patch14_336": _perception(336, *_L14),
  "vit_pe_core_gigantic_patch14_448": _perception(
    *(448, 14, 1536, 50, 16, 8960), class_token=False
  ),
  "vit_large_patch14_clip_224": {
    "name": "clip_vit_l14",
    "activation": "gelu",
    **dict(zip(KEYS, _L14, strict=True)),
  },
  "vitamin_small_224": _vitamin(64, 384, 14, 6),
  "vitamin_base_224": _vitamin(128, 768, 14, 12),
  **{
    f"vitamin_large{more}_{size}": _vitamin(160, 1024, 31, 16)
    for more in ("", "2")
    for size in (224, 256, 336, 384)
  },
  **{
    f"vitamin_xlarge_{size}": _vitamin(192, 1152, 32, 16, positions=False)
    for size in (256, 336, 384)
  },
  "convnext_tiny": _convnext(96, 3, 3, 9, 3),
  "convnext_small": _convnext(96, 3, 3, 27, 3),
  "convnext_base": _convnext(128, 3, 3, 27, 3),
  "convnext_large": _convnext(192, 3, 3, 27, 3),
  "convnext_xlarge": _convnext(256, 3, 3, 27, 3),
  "convnext_xxlarge": _convnext(384, 3, 4, 30, 3, eps=1e-5),
  "fastvit_mci0": _fastvit(64, 2, 6, 10, 2),
  "fastvit_mci1": _fastvit(64, 4, 12, 20, 4),
  "fastvit_mci2": _fastvit(80, 4, 12, 24, 4),
  "fastvit_mci3": _fastvit(96, 2, 12, 24, 4, 2, **_MCI),
  "fastvit_mci4": _fastvit(128, 2, 12, 24, 4, 4, **_MCI),
  "vit_base_mci_224": {
    "name": "mobileclip_vit",
    "width": 768,
    "layers": 12,
    "heads": 12,
    "stem": 192,
  },
}
# The pooling and the projection that OpenCLIP's configs name, by our tower. A
# pooling of "" is timm's own; without a projection, timm's classifier is one.
HEADS = {
  "siglip_vit_b16": (("map", "none"),),
  "eva": (("token", ""),),
  "perception_encoder": (("map", ""),),
  "clip_vit_l14": (("token", ""),),
  "mobileclip_vit": (("token", ""),),
  "fastvit": (("avg", ""),),
  "vitamin": (("", "linear"),),
  "convnext": (("", "linear"), ("", "mlp")),
}


def read_timm(vision: Json, dim: int) -> tuple[dict[str, Any], bool, bool]:
  """Reads the `vision_cfg` of a model with an image tower of timm.

  Args:
    vision: The `vision_cfg`.
    dim: The width of the embeddings.

  Returns:
    The keys of `config.model.image`, whether images are projected, and whether
    by a layer with a bias.

  Raises:
    ValueError: If there is no such tower here.

  Example:
    >>> tower, *projection = read_timm(
    ...   {"timm_model_name": "convnext_base", "timm_pool": ""}, dim=512
    ... )
    >>> tower["stages"], projection
    ((3, 3, 27, 3), [True, False])
  """
  known = {"timm_model_name", "timm_pool", "timm_proj", "image_size"}
  # How it starts, and what is dropped in training.
  known |= {"timm_model_pretrained", "timm_drop", "timm_drop_path"}
  inputs.reject("vision_cfg", vision, known)
  name = vision["timm_model_name"]
  tower = find(name)
  if tower is None:
    if name.startswith("naflexvit"):
      raise ValueError(
        f"the image tower is timm's {name[:100]!r}, for images of any aspect "
        "ratio; such models are read from the files of transformers only, as "
        "google/siglip2-base-patch16-naflex has them"
      )
    raise ValueError(
      f"the image tower is timm's {name[:100]!r}; of timm's, those that can be "
      f"read are {', '.join(TOWERS)}, and vit_SIZE_patchN_siglip_PIXELS with a "
      f"SIZE of {sorted(SIGLIP_SIZES)}"
    )
  pool, projection = (
    vision.get(key, default) or ""
    for key, default in (("timm_pool", "avg"), ("timm_proj", "linear"))
  )
  heads = HEADS[tower["name"]]
  if (pool, projection) not in heads:
    raise ValueError(
      f"the image tower is timm's {name!r} with pooling and projection "
      f"{(pool, projection)}; ours has {' or '.join(map(str, heads))}"
    )
  if projection == "mlp":
    tower = tower | {"head": 2 * dim}
  return tower, projection != "none", projection == ""


def find(name: str) -> dict[str, Any] | None:
  """Finds our tower by its name in timm.

  Example:
    >>> find("vit_so400m_patch14_siglip_384")["heads"]
    16
  """
  return TOWERS.get(name) or _siglip(name)


def names() -> Iterator[str]:
  """Yields the names in timm of all image towers that `read_timm` reads.

  Example:
    >>> [x for x in names() if x.endswith("_378")]
    ['vit_so400m_patch14_siglip_378']
  """
  yield from TOWERS
  for (size, patch), images in SIGLIP_IMAGES.items():
    yield from (f"vit_{size}_patch{patch}_siglip_{x}" for x in images)


def takes_images_of(name: str, size: int) -> bool:
  """Returns whether timm's tower takes images of a size, in pixels.

  OpenCLIP builds a tower for the images that its name says, whatever its own
  config has as `image_size`. A ConvNeXt takes images of any size.

  Example:
    >>> takes_images_of("vitamin_large_336", 224)
    False
    >>> takes_images_of("convnext_base", 320)
    True
  """
  own = re.search(r"_(\d+)$", name)
  return own is None or int(own[1]) == size


def _siglip(name: str) -> dict[str, Any] | None:
  parts = re.fullmatch(
    r"vit_(\w+?)_patch([1-9]\d{0,3})_siglip(?:_gap)?(_\d+)?", name
  )
  if not parts or parts[1] not in SIGLIP_SIZES:
    return None
  sizes = (int(parts[2]), *SIGLIP_SIZES[parts[1]])
  # timm's activation, unlike that of Hugging Face's.
  return {"name": "siglip_vit_b16", "activation": "gelu"} | dict(
    zip(KEYS, sizes, strict=True)
  )
