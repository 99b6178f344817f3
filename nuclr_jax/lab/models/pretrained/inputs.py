"""How a published model prepares its inputs, as keys of our configs.

A setting that would change pixels or token ids, but cannot be followed here, is
an error that names the key; none is ignored.
"""

from collections.abc import Mapping, Sequence
import logging
import math
import re
from typing import Any

from nuclr_jax import checks
from nuclr_jax.checks import Natural
from nuclr_jax.lab import files
from nuclr_jax.lab.models.layers import MEAN, STD
from nuclr_jax.lab.models.pretrained import hub
from nuclr_jax.lab.models.pretrained.specs import Json, read_spec

log = logging.getLogger(__name__)

KERNELS = {2: "bilinear", 3: "bicubic"}  # by Pillow's number
# Of Hugging Face's processors of images, what their files may leave out.
_DEFAULTS = {
  "do_resize": True,
  "do_rescale": True,
  "rescale_factor": 1 / 255,
  "do_normalize": True,
}
_HALF = [0.5, 0.5, 0.5]
_CROPPED = _DEFAULTS | {
  "size": {"shortest_edge": 224},
  "default_to_square": False,
  "do_center_crop": True,
  "crop_size": 224,
  "resample": 3,
  "image_mean": MEAN,
  "image_std": STD,
}
_SQUASHED = _DEFAULTS | {
  "size": {"height": 224, "width": 224},
  "default_to_square": True,
  "do_center_crop": False,
  "crop_size": 224,
  "image_mean": _HALF,
  "image_std": _HALF,
}
_NAFLEX = _DEFAULTS | {
  "default_to_square": True,  # of a size, which this processor does not have
  "patch_size": 16,
  "max_num_patches": 256,
  "resample": 2,
  "image_mean": _HALF,
  "image_std": _HALF,
}
PROCESSORS = {  # by the beginning of the processor's type
  "Bit": _CROPPED,
  "CLIP": _CROPPED,
  "Siglip": _SQUASHED | {"resample": 3},
  "Siglip2": _NAFLEX,
  "ViT": _SQUASHED | {"resample": 2},
}
# Keys that change no pixels: whose file it is, and how a call returns arrays.
# Without do_convert_rgb, grey images are an error there; here they are RGB.
HARMLESS = {
  *("image_processor_type", "feature_extractor_type", "processor_class"),
  *("do_convert_rgb", "data_format", "input_data_format", "return_tensors"),
  *("device", "disable_grouping", "auto_map", "transformers_version"),
  *("_processor_class", "_valid_processor_keys", "do_reduce_labels"),
}
# How a tokenizer of this class cleans captions before its own normalization.
CLEANING = {
  "SiglipTokenizer": "remove_punctuation",
  "GemmaTokenizer": "lower",
  "Siglip2Tokenizer": "lower",
}
# What OpenCLIP does after it has repaired a caption, white space included.
OPEN_CLIP_CLEANING = {
  "canonicalize": "canonicalize",
  "lower": "lower",
  "whitespace": False,
}
# What OpenCLIP takes if a config has no such key.
SAME = {
  "pos_embed_type": "learnable",
  "pool_type": "tok",
  "proj_type": "linear",
}
TOKENIZERS = ("tokenizer.json", "spiece.model")  # files of vocabularies
REPAIR = "repair_captions"  # our own key in a tokenizer_config.json


TOWERS, INPUTS = "the towers of this library", "the inputs of our towers"


def reject(name: str, spec: Json, known: set[str], ours: str = TOWERS) -> None:
  """Raises ValueError for keys that may describe something else than ours.

  Args:
    name: What has the keys.
    spec: The keys and their values; those without a value, or with that in
      `SAME`, say nothing.
    known: The keys that are read.
    ours: What they describe here.
  """
  if unknown := sorted(
    key
    for key in spec
    if key not in known and spec[key] and spec[key] != SAME.get(key)
  ):
    raise ValueError(
      f"{name} has {unknown}, which {ours} do not have; they have "
      f"{sorted(known)}"
    )


def of_processor(source, kind: str) -> tuple[dict, dict]:
  """Reads how Hugging Face's processor prepares images.

  Args:
    source: The folder, or the name on the hub.
    kind: The processor of such models, a name in `PROCESSORS`, in case that its
      file does not say what it is of.

  Returns:
    `(keys of config.model.image, keys of config.data)`.
  """
  names = ("preprocessor_config.json", "processor_config.json")
  path = hub.find_file(source, names)
  spec = read_spec(path)
  # transformers 5 writes the second one, with the processor of captions, and
  # prefers it to a file that an earlier version left there.
  if path.name == names[0] and (other := hub.find_optional(source, names[1])):
    both = read_spec(other)
    path, spec = (other, both) if "image_processor" in both else (path, spec)
  with files.reading(path):
    return _of_processor(spec.get("image_processor", spec), kind)


def _of_processor(spec: Json, kind: str) -> tuple[dict, dict]:
  given = spec.get("image_processor_type", spec.get("feature_extractor_type"))
  ending = r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$"
  name = re.sub(ending, "", given or kind)
  if name not in PROCESSORS:
    raise ValueError(
      f"images are prepared by a {given!r}; those that can be followed are of "
      f"{sorted(PROCESSORS)}"
    )
  defaults = PROCESSORS[name]
  reject("the processor of images", spec, {*defaults, *HARMLESS}, INPUTS)
  full = defaults | {k: x for k, x in spec.items() if x is not None}
  if not full["do_resize"]:
    raise ValueError(
      "do_resize is false, and the towers need images of one size; set it to "
      "true, with the size of the model's images"
    )
  image = _normalization(full)
  if "max_num_patches" in full:
    return image, _naflex(full)
  # Before 2022, a number: the shorter side of CLIP, both sides of others.
  size = _edges(full["size"], square=full["default_to_square"])
  crop = _edges(full["crop_size"], square=True)
  cropped, kernel = full["do_center_crop"], KERNELS.get(full["resample"])
  squares = [{"height": x, "width": x} for x in size.values()][:1]
  if size.keys() == {"shortest_edge"}:
    mode, fits = "crop", cropped and squares == [crop]
  else:
    mode, fits = "squash", squares == [size] and (crop == size or not cropped)
  if not fits or not kernel:
    raise ValueError(
      "images must be resized to a square, or their shorter side to "
      "the size that is then cropped, with the resample 2 or 3; got size "
      f"{full['size']}, crop_size {full['crop_size']}, do_center_crop "
      f"{cropped} and resample {full['resample']}"
    )
  return image, {"size": squares[0]["height"], "resize": mode, "kernel": kernel}


def _naflex(full: Json) -> dict[str, Any]:
  """Reads how images become patches, in their own shape."""
  most, patch = full["max_num_patches"], full["patch_size"]
  kernel, side = KERNELS.get(full["resample"]), math.isqrt(most)
  if not kernel or side < 2 or side**2 != most:
    raise ValueError(
      "images must be resized with the resample 2 or 3, to at most a square "
      "number of patches, such as 256, 576 or 1024; got resample "
      f"{full['resample']} and max_num_patches {most}, next to "
      f"{max(side, 2) ** 2} and {(max(side, 2) + 1) ** 2}"
    )
  return {
    "size": side * patch,
    "resize": "naflex",
    "kernel": kernel,
    "patch": patch,
  }


def _normalization(full: Json) -> dict[str, tuple[float, ...]]:
  """Reads the mean and the std of each channel: keys of config.model.image."""
  # Ours are (pixel / 255 - mean) / std, theirs (pixel * factor - mean) / std.
  scale = 255 * (full["rescale_factor"] if full["do_rescale"] else 1)
  mean, std = (
    _channels(key, full[key] if full["do_normalize"] else otherwise)
    for key, otherwise in (("image_mean", 0.0), ("image_std", 1.0))
  )
  return {
    "mean": tuple(x / scale for x in mean),
    "std": tuple(x / scale for x in std),
  }


def normalization_of(spec: Json) -> dict[str, tuple[float, ...]] | None:
  """Returns the mean and the std that a file names, in any library's terms.

  Args:
    spec: A processor of Hugging Face, or a config of OpenCLIP or timm.

  Returns:
    Keys of config.model.image; None if the file does not name both.

  Example:
    >>> normalization_of({"pretrained_cfg": {"mean": 0.5, "std": [0.2] * 3}})
    {'mean': (0.5, 0.5, 0.5), 'std': (0.2, 0.2, 0.2)}
  """
  for part in ("image_processor", "preprocess_cfg", "pretrained_cfg"):
    if isinstance(spec.get(part), Mapping):
      spec = spec[part]
  known = {key: x for key, x in spec.items() if x is not None}
  if known.keys() >= {"image_mean", "image_std"}:
    return _normalization(_DEFAULTS | known)
  if known.keys() >= {"mean", "std"}:
    return {key: _channels(key, known[key]) for key in ("mean", "std")}
  return None


def _edges(size, *, square: bool) -> dict[str, int]:
  """Returns Hugging Face's size of an image, in the form of its new files."""
  if isinstance(size, Mapping):
    return {key: x for key, x in size.items() if x is not None}
  if isinstance(size, Sequence):
    return dict(zip(("height", "width"), size, strict=True))
  return dict.fromkeys(
    ("height", "width") if square else ("shortest_edge",), size
  )


def _channels(key: str, value) -> tuple[float, float, float]:
  """Returns the numbers of the three channels, if one is given for all, too."""
  numbers = value if isinstance(value, Sequence) else [value] * 3
  if len(numbers) != 3:
    raise ValueError(f"{key} must be three numbers or one, got {value}")
  return tuple(numbers)


def of_tokenizer(source, kind: str, length: int, text: Json) -> dict[str, Any]:
  """Reads how Hugging Face's tokenizer prepares captions: keys of config.data.

  Args:
    source: The folder, or the name on the hub.
    kind: The processor of such models, as for `of_processor`.
    length: The number of positions of the text tower.
    text: The config of the text tower.
  """
  path = hub.find_file(source, ("tokenizer_config.json",))
  spec = read_spec(path)
  name = str(spec.get("tokenizer_class")).removesuffix("Fast")
  clean = CLEANING.get(name, False)
  with files.reading(path):
    for side in ("padding_side", "truncation_side"):
      if spec.get(side, "right") != "right":
        raise ValueError(f"{side} is {spec[side]!r}; texts can end right only")
    if clean and spec.get("do_lower_case") is False:
      raise ValueError(f"do_lower_case is false, and a {name} has lower case")
  if name == "GemmaTokenizer" and not spec.get("do_lower_case"):
    log.warning(
      "%s has no do_lower_case, and transformers keeps upper case with a %s; "
      "captions become lower case here, as SigLIP 2 was trained",
      path,
      name,
    )
  if kind == "Siglip" and clean == "lower" and "padding_side" not in spec:
    log.warning(
      "%s has no padding_side, and transformers pads left with a %s then; "
      "texts are padded right here, as SigLIP 2 was trained",
      path,
      name,
    )
  # None and 1e30 mean that the tokenizer has no limit.
  longest = spec.get("model_max_length") or length
  data = {"length": int(min(length, longest)), "clean": clean}
  if spec.get(REPAIR):
    data["repair"] = True
  if kind != "ViT":  # BERT masks the padding, which must be 0
    pad_id = _pad_id(source, spec)
    if kind == "Siglip" and pad_id is None:
      pad_id = text.get("pad_token_id", 1)
    if pad_id is not None:
      data["pad_id"] = pad_id
  if "vocab_size" in text:
    data["vocab_size"] = text["vocab_size"]
  return data


def _pad_id(source, spec: Json) -> int | None:
  """Returns the id of the padding token that a tokenizer_config.json names."""
  token = spec.get("pad_token")
  token = token.get("content") if isinstance(token, Mapping) else token
  if token is None:
    return None
  for number, added in (spec.get("added_tokens_decoder") or {}).items():
    if added.get("content") == token and number.isdecimal():
      return int(number)
  path = hub.find_file(source, ("tokenizer.json",))
  words = files.read_json(path)
  with files.reading(path):
    vocabulary = words["model"]["vocab"]
    if not isinstance(vocabulary, Mapping):  # Unigram's
      vocabulary = {name: i for i, (name, _) in enumerate(vocabulary)}
    added = {x["content"]: x["id"] for x in words.get("added_tokens") or ()}
    found = (vocabulary | added).get(token)
    if not checks.fits(found, Natural):
      raise ValueError(f"it lacks {token!r}, the pad_token of the tokenizer")
  return found


def of_open_clip(source, model: Json, spec: Json) -> tuple[dict, dict]:
  """Reads how OpenCLIP prepares inputs.

  Args:
    source: The folder, or the name on the hub.
    model: The `model_cfg` of an `open_clip_config.json`.
    spec: Its `preprocess_cfg`, at least "mean" and "std".

  Returns:
    `(keys of config.model.image, keys of config.data)`.
  """
  known = {"mean", "std", "interpolation", "resize_mode", "mode"}
  # The model's own image size holds, and the colour fills what squashing and
  # cropping never leave empty.
  reject("preprocess_cfg", spec, known | {"size", "fill_color"}, INPUTS)
  mode = spec.get("resize_mode", "shortest")
  if mode not in ("shortest", "squash"):
    raise ValueError(
      f"resize_mode is {mode!r}; images can be resized by 'shortest' or "
      "'squash'"
    )
  kernel = spec.get("interpolation", "bicubic")
  if kernel not in ("bicubic", "bilinear", "random"):
    raise ValueError(
      f"interpolation is {kernel!r}; it can be 'bicubic' or 'bilinear'"
    )
  if (colours := spec.get("mode", "RGB")) != "RGB":
    raise ValueError(f"mode is {colours!r}; images can be 'RGB' only")
  image = {
    "mean": _channels("mean", spec["mean"]),
    "std": _channels("std", spec["std"]),
  }
  data = {
    "size": _side(model["vision_cfg"].get("image_size", 224)),
    "resize": "squash" if mode == "squash" else "crop_torchvision",
    # OpenCLIP draws a kernel in training only.
    "kernel": "bicubic" if kernel == "random" else kernel,
  }
  return image, data | _open_clip_captions(model["text_cfg"])


def _open_clip_captions(text: Json) -> dict[str, Any]:
  options = text.get("tokenizer_kwargs") or {}
  reject("tokenizer_kwargs", options, {"clean", "strip_sep_token"}, INPUTS)
  # Python's lower case, which differs from that of the library `tokenizers`.
  own = not text.get("hf_tokenizer_name")
  if own and options.get("clean") == "whitespace":
    raise ValueError(
      "there is no hf_tokenizer_name, and OpenCLIP's own tokenizer keeps upper "
      "case if captions are cleaned by 'whitespace'; it can be followed with "
      "'lower', its default, or 'canonicalize'"
    )
  cleaning = options.get("clean", "lower" if own else "whitespace")
  if cleaning not in OPEN_CLIP_CLEANING:
    raise ValueError(
      f"captions are cleaned by {cleaning!r}; known are "
      f"{sorted(OPEN_CLIP_CLEANING)}"
    )
  data = {
    "length": text.get("context_length", 77),
    "clean": OPEN_CLIP_CLEANING[cleaning],
    "repair": True,
    "vocab_size": text["vocab_size"],
  }
  if options.get("strip_sep_token"):  # of BERT's tokenizer
    data["template"] = "[CLS] $A [PAD]"
  return data


def pad_id_beside(source, otherwise: int) -> int:
  """Returns the padding of the tokenizer beside a model's weights, if any."""
  try:
    path = hub.find_file(source, ("tokenizer_config.json",))
  except ValueError:
    path = None
  found = _pad_id(source, read_spec(path) if path else {})
  return otherwise if found is None else found


def _side(size) -> int:
  """Returns the side of OpenCLIP's image size, which must be a square."""
  sides = set(size) if isinstance(size, Sequence) else {size}
  if len(sides) != 1:
    raise ValueError(f"image_size is {size}; images can only be squares")
  return int(sides.pop())
