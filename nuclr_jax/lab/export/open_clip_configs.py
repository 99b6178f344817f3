"""OpenCLIP's config of a model, from the arguments of our towers.

What a config means is said in one place, where it is read
(`pretrained.open_clip`). This is its inverse: of all configs that a tower may
have there, the one that is read as this tower, argument by argument. So no
folder is written that OpenCLIP would build otherwise, and a tower that is read
can be written.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
import math
from typing import Any, NamedTuple

from nuclr_jax.lab.models.pretrained import LAYOUTS, open_clip, timm_towers
from nuclr_jax.lab.models.pretrained.open_clip import Part
from nuclr_jax.lab.models.towers import bound_tower
from nuclr_jax.types import Sides

Arguments = Mapping[str, Any]  # of a tower's factory, defaults included
Json = dict[str, Any]
CONFIGS = Sides("vision_cfg", "text_cfg")
READERS = Sides(open_clip.read_image, open_clip.read_text)
# Arguments that change no feature of an image or a text once a model is
# trained, or that the preprocessing says. A patch that is not whole is left out
# by OpenCLIP, too.
OF_TRAINING = {
  *("dropout", "attended_dropout", "zero_init", "dtype", "remat", "attention"),
  *("mean", "std", "leave_rest"),
}
ELSE = "choose --layout=hugging_face, which has a ResNet, ViT, BERT, CLIP or "
ELSE += "SigLIP"
SHOWN = 5  # differences
# The parts of a layout's name, by our tower.
OF_IMAGES = {
  "siglip_vit_b16": "siglip",
  "eva": "timm",
  "perception_encoder": "timm",
  "clip_vit_l14": "timm",
  "mobileclip_vit": "mobileclip_vit",
  "fastvit": "fastvit",
  "convnext": "convnext",
  "vitamin": "vitamin",
}
OF_TEXTS = {"roberta": "bert", "nllb": "nllb"}


class OpenClip(NamedTuple):
  """A model as OpenCLIP describes it."""

  config: Json  # its `model_cfg`
  layout: str  # of its weights, a name in `pretrained.LAYOUTS`
  prefix: str = ""  # of the keys of texts


class _Found(NamedTuple):
  """A config of one tower, and what it is read as."""

  config: Json
  part: Part
  differences: dict[str, tuple[Any, Any]]  # theirs and ours, by argument

  def distance(self) -> tuple[int, int]:
    """Returns how much differs; kinds of parts count more than sizes."""
    kinds = sum(isinstance(x, bool | str) for x, _ in self.differences.values())
    return kinds, len(self.differences)


def open_clip_config(
  towers: Sides[Arguments],
  *,
  dim: int,
  image_size: int,
  vocab_size: int,
  length: int,
  projections: Collection[str],
) -> OpenClip:
  """Returns how OpenCLIP describes a model of these towers.

  Args:
    towers: The arguments of both towers, and their names.
    dim: The width of the embeddings.
    image_size: Height and width of the images, in pixels.
    vocab_size: The number of token ids.
    length: The number of token ids per text.
    projections: The names of all parameters of projections.

  Raises:
    ValueError: If OpenCLIP has no such towers, or not both of them in one
      model; the message says what differs.

  Example:
    >>> model = open_clip_config(
    ...   Sides(
    ...     {"name": "convnext"}, {"name": "clip_text", "activation": "gelu"}
    ...   ),
    ...   dim=512,
    ...   image_size=320,
    ...   vocab_size=49_408,
    ...   length=77,
    ...   projections=("image_projection", "text_projection"),
    ... )
    >>> model.layout, model.config["vision_cfg"]["timm_model_name"]
    ('open_clip_convnext', 'convnext_base')
  """
  wanted = Sides(
    *(
      Part(
        dict(tower),
        f"{side}_projection" in projections,
        f"{side}_projection_bias" in projections,
        vocab_size if side == "text" else None,
      )
      for side, tower in zip(Sides._fields, towers, strict=True)
    )
  )
  candidates = Sides(
    [*_visions(_facts("image", wanted.image), image_size)],
    [*_languages(_facts("text", wanted.text), vocab_size, length)],
  )
  quick_gelu, image, text = _find(wanted, candidates, dim)
  _check_sizes(image, text, image_size, length)
  layout = _layout(image, text, projections)
  # As published: OpenCLIP has two kinds of models, whose keys of texts differ.
  is_custom = (
    "timm_model_name" in image.config and image.part.tower["name"] != "convnext"
  ) or bool(text.config.get("embed_cls"))
  has_own_text = is_custom or "hf_model_name" in text.config
  return OpenClip(
    {"embed_dim": dim}
    | ({"custom_text": True} if is_custom else {})
    | ({"quick_gelu": True} if quick_gelu else {})
    | {"vision_cfg": image.config, "text_cfg": text.config},
    layout,
    LAYOUTS[layout].prefix if has_own_text else "",
  )


def _visions(image: Arguments, size: int) -> Iterator[Json]:
  """Yields each `vision_cfg` that an image tower may have."""
  sizes = {"image_size": size}
  if "features" in image:  # CLIP's ResNet
    yield sizes | {
      "layers": list(image["stages"]),
      "width": image["width"],
      "head_width": image["width"] * 32 // image["heads"],
    }
  if "pooler" in image:  # a ViT
    config = sizes | {
      "layers": image["layers"],
      "width": image["width"],
      "head_width": image["width"] // image["heads"],
      "patch_size": image["patch"],
      "mlp_ratio": _ratio(image),
    }
    if not image["norm_before"]:
      config["no_ln_pre"] = True
    if image["pool"] == "query":
      config |= {
        "attentional_pool": True,
        "attn_pooler_heads": image["probe"][1],
      }
    if image["pool"] == "mean":
      config |= {"pool_type": "avg", "final_ln_after_pool": True}
    yield config
  names = sorted(
    timm_towers.names(),
    key=lambda name: not timm_towers.takes_images_of(name, size),
  )
  for name in names:
    tower = timm_towers.find(name)
    for pool, projection in timm_towers.HEADS[tower["name"]]:
      yield sizes | {
        "timm_model_name": name,
        "timm_model_pretrained": False,
        "timm_pool": pool,
        "timm_proj": projection or None,
      }


def _languages(text: Arguments, vocab_size: int, length: int) -> Iterator[Json]:
  """Yields each `text_cfg` that a text tower may have."""
  shared = {
    # OpenCLIP reads the tokenizer from the folder if any name is given.
    "hf_tokenizer_name": "tokenizer.json",
    "tokenizer_kwargs": {"clean": "whitespace"},
  }
  for name, (tower, _) in open_clip.HF_TEXTS.items():
    pooling, projection = open_clip.HF_HEADS[tower["name"]]
    yield shared | {
      "hf_model_name": name,
      "hf_pooler_type": pooling,
      "hf_proj_type": projection,
      "context_length": length,
    }
  if "causal" not in text:
    return
  with_class = text["pool"] == "class"
  config = shared | {
    "context_length": text["max_length"] - with_class,
    "vocab_size": vocab_size,
    "width": text["width"],
    "heads": text["heads"],
    "layers": text["layers"],
    "mlp_ratio": _ratio(text),
  }
  if not text["causal"]:
    config["no_causal_mask"] = True
  if with_class:
    config["embed_cls"] = True
  elif text["pool"] == "last":
    config["pool_type"] = "last"
  elif text["end_id"] is not None:
    config |= {"pool_type": "eos", "eos_id": text["end_id"]}
  if text["eps"] != open_clip.EPS:
    config["norm_kwargs"] = {"eps": text["eps"]}
  if text["activation"] == "gelu_tanh":
    config["act_kwargs"] = {"approximate": "tanh"}
  if not text["projected"]:
    config["proj_type"] = "none"
  if text["projection_bias"]:
    config["proj_bias"] = True
  yield config


def _ratio(tower: Arguments) -> float:
  """Returns what OpenCLIP multiplies the width by, and then rounds down."""
  ratio = tower["hidden"] / tower["width"]
  if int(tower["width"] * ratio) == tower["hidden"]:
    return ratio
  return math.nextafter(ratio, math.inf)


def _find(
  wanted: Sides[Part], candidates: Sides[Sequence[Json]], dim: int
) -> tuple[bool, _Found, _Found]:
  """Returns whether GELUs are quick, and the config of each tower.

  Raises:
    ValueError: If no config is read as a tower, or not with the other one's.
  """
  found = [
    Sides(
      *(
        _nearest(side, part, configs, {"embed_dim": dim, "quick_gelu": quick})
        for side, part, configs in zip(
          Sides._fields, wanted, candidates, strict=True
        )
      )
    )
    for quick in (False, True)
  ]
  for side, part in wanted._asdict().items():
    _check_found(side, part, [getattr(x, side) for x in found])
  for quick_gelu, towers in enumerate(found):
    if not any(x is None or x.differences for x in towers):
      return bool(quick_gelu), *towers
  both = (f"{_facts(*x)['activation']!r}" for x in wanted._asdict().items())
  raise ValueError(
    "OpenCLIP has one activation for both towers, got "
    f"{' and '.join(both)} of the image tower and the text tower"
  )


def _nearest(
  side: str, wanted: Part, configs: Sequence[Json], shared: Json
) -> _Found | None:
  """Returns the first config that is read as a tower, or else the nearest.

  None if all are of another kind of tower.
  """
  found = []
  ours = _facts(side, wanted)
  for spec in configs:
    if shared["quick_gelu"] and "act_kwargs" in spec:
      continue  # OpenCLIP's quick GELU takes no arguments
    part = getattr(READERS, side)(shared | {getattr(CONFIGS, side): spec})
    theirs = _facts(side, part)
    if theirs["kind"] is not ours["kind"]:
      continue
    differ = {
      key: (x, ours[key]) for key, x in theirs.items() if x != ours[key]
    }
    found.append(_Found(spec, part, differ))
    if not differ:
      break
  return min(found, key=_Found.distance, default=None)


def _facts(side: str, part: Part) -> dict[str, Any]:
  """Returns all that decides what a tower computes, each in one way of saying.

  `kind` is the function that makes the tower; several names may share it.
  """
  bound = bound_tower(side, part.tower)
  kind = bound.factory
  while isinstance(kind, partial):
    kind = kind.func
  facts = {
    key: tuple(x) if isinstance(x, Sequence) and not isinstance(x, str) else x
    for key, x in bound.values().items()
    if key not in OF_TRAINING
  }
  if "hidden" in facts:
    facts["hidden"] = facts["hidden"] or 4 * facts["width"]
  if facts.get("patch_bias", False) is None:
    facts["patch_bias"] = not facts["norm_before"]
  if "causal" in facts:
    facts["pool"] = facts["pool"] or ("end" if facts["causal"] else "last")
  if "layer_scale" in facts:  # of which the number is where training starts
    facts["layer_scale"] = facts["layer_scale"] is not None
  return facts | {
    "kind": kind,
    "projected": part.is_projected,
    "projection_bias": part.is_biased,
    "vocab_size": part.vocab_size,
  }


def _check_found(side: str, wanted: Part, found) -> None:
  """Raises ValueError unless a config is read as a tower exactly."""
  ours = wanted.tower["name"]
  known = (x for x in found if x is not None)
  nearest = min(known, key=_Found.distance, default=None)
  if nearest is None:
    raise ValueError(f"OpenCLIP has no {side} tower like {ours!r}; {ELSE}")
  if not nearest.differences:
    return
  config = nearest.config
  name = config.get("timm_model_name") or config.get("hf_model_name")
  differ = [
    f"{key} is {x!r} and there {theirs!r}"
    for key, (theirs, x) in nearest.differences.items()
  ]
  more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
  raise ValueError(
    f"OpenCLIP has no {side} tower like this {ours!r}: of the nearest, "
    f"{name or 'its own'}, it differs: {', '.join(differ[:SHOWN])}{more}; "
    f"{ELSE}"
  )


def _check_sizes(image: _Found, text: _Found, size: int, length: int) -> None:
  """Raises ValueError unless towers take such images and texts."""
  name = image.config.get("timm_model_name", "")
  if not timm_towers.takes_images_of(name, size):
    ours = _facts("image", image.part)
    sizes = {
      int(other.rpartition("_")[2])
      for other in timm_towers.names()
      if ours
      == _facts("image", image.part._replace(tower=timm_towers.find(other)))
    }
    raise ValueError(
      f"OpenCLIP takes this image tower from timm ({name}), which has it for "
      f"images of {', '.join(map(str, sorted(sizes)))} pixels only, and the "
      f"run has {size}; train with one of these as config.data.size"
    )
  takes = text.config["context_length"]
  if takes != length:
    raise ValueError(
      f"OpenCLIP pads texts to the {takes} positions of the text tower, and "
      f"the tokenizer has {length}; they must be the same"
    )


def _layout(image: _Found, text: _Found, projections) -> str:
  """Returns the name of the layout, which has the keys of both towers."""
  of_text = OF_TEXTS.get(text.part.tower["name"], "")
  of_image = ""
  if "timm_model_name" in image.config:
    tower = image.part.tower
    of_image = OF_IMAGES[tower["name"]]
    if tower["name"] == "eva" and tower.get("gated"):
      of_image = "eva02"
    elif tower["name"] == "convnext" and tower.get("head"):
      of_image = "convnext_mlp"
    elif of_image == "siglip" and not of_text:
      plain = text.part.is_projected and not text.part.is_biased
      of_image = "timm" if plain else "siglip"
  layout = "_".join(filter(None, ("open_clip", of_image, of_text)))
  known = LAYOUTS.get(layout)
  rules = (*known.image, *known.text) if known else ()
  lost = set(projections) - {name for rule in rules for name in rule.ours}
  if not known or lost:
    raise ValueError(
      f"no model of OpenCLIP has the image tower {image.part.tower['name']!r} "
      f"and the text tower {text.part.tower['name']!r} together, with the "
      f"projections {sorted(projections)}, so that its names of such weights "
      "are not known here"
    )
  return layout
