"""Reads the JSON files of published models, which are not trusted.

`KINDS` has the ranges of their numbers, so that a size that no model has is
found before an array is made of it.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Annotated, Any

from nuclr_jax import checks
from nuclr_jax.checks import Natural, Range
from nuclr_jax.lab import files
from nuclr_jax.lab.ranges import (
  MAX_PATCHES,
  Eps,
  Ids,
  Layers,
  Length,
  Mean,
  Side,
  Std,
  Width,
  up_to,
)

Json = Mapping[str, Any]
Named = Mapping | None
Flag = bool | None
Scale = Annotated[
  float, Range("a number from 0.000001 to 1,000", lambda x: 1e-6 <= x <= 1e3)
]
Ratio = Annotated[
  float, Range("a number from 0.01 to 100", lambda x: 0.01 <= x <= 100)
]
# By key, in whatever mapping of a file it is; other keys may be anything.
KINDS = {
  # Parts of a config
  **dict.fromkeys(("model_cfg", "vision_cfg", "text_cfg"), Mapping),
  **dict.fromkeys(("vision_config", "text_config"), Named),
  **dict.fromkeys(("vision_config_dict", "text_config_dict"), Named),
  **dict.fromkeys(("preprocess_cfg", "image_processor"), Named),
  **dict.fromkeys(("tokenizer_kwargs", "act_kwargs", "norm_kwargs"), Named),
  # Sizes of towers
  **dict.fromkeys(("hidden_size", "dim", "embedding_size"), Width),
  **dict.fromkeys(("intermediate_size", "hidden_dim", "width"), Width),
  **dict.fromkeys(("projection_dim", "embed_dim", "head_width"), Width),
  **dict.fromkeys(("num_attention_heads", "n_heads", "heads"), Width),
  **dict.fromkeys(("num_hidden_layers", "n_layers"), Layers),
  "layers": Layers | Sequence[Layers],
  "depths": Sequence[Layers],
  **dict.fromkeys(("max_position_embeddings", "context_length"), Length),
  "vocab_size": Ids,
  "patch_size": Side,
  "num_patches": up_to(MAX_PATCHES),
  "max_num_patches": up_to(MAX_PATCHES) | None,
  "mlp_ratio": Ratio,
  **dict.fromkeys(("layer_norm_eps", "eps"), Eps),
  "eos_id": Natural,
  "pad_token_id": Natural | None,
  **dict.fromkeys(("hidden_act", "layer_type", "timm_model_name"), str),
  **dict.fromkeys(("model_type", "hf_tokenizer_name", "pool_type"), str | None),
  **dict.fromkeys(("timm_pool", "timm_proj", "approximate"), str | None),
  **dict.fromkeys(("quick_gelu", "vision_use_head"), Flag),
  **dict.fromkeys(("no_causal_mask", "proj_bias", "embed_cls"), Flag),
  **dict.fromkeys(("no_ln_pre", "final_ln_after_pool"), Flag),
  **dict.fromkeys(("strip_sep_token", "output_tokens"), Flag),
  "attn_pooler_heads": Width,
  **dict.fromkeys(("proj_type", "hf_model_name"), str | None),
  **dict.fromkeys(("hf_pooler_type", "hf_proj_type"), str | None),
  "activation": str,
  "position_embedding_type": str | None,
  # Sentence encoders
  **dict.fromkeys(("word_embedding_dimension", "embedding_dimension"), Width),
  "max_seq_length": Length | None,
  "pooling_mode": str | Sequence[str] | None,
  **dict.fromkeys(("model_args", "prompts"), Named),
  # Images
  "image_size": Side | Sequence[Side] | None,
  "size": Side | Sequence[Side] | Named,
  "crop_size": Side | Sequence[Side] | Named,
  **dict.fromkeys(("shortest_edge", "longest_edge", "height"), Side | None),
  **dict.fromkeys(("mean", "image_mean"), Mean | Sequence[Mean] | None),
  **dict.fromkeys(("std", "image_std"), Std | Sequence[Std] | None),
  "rescale_factor": Scale | None,
  "resample": Natural | None,
  **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), Flag),
  **dict.fromkeys(("do_center_crop", "default_to_square"), Flag),
  **dict.fromkeys(("image_processor_type", "feature_extractor_type"), str),
  **dict.fromkeys(("interpolation", "resize_mode", "mode"), str | None),
  # Captions
  "model_max_length": Annotated[
    float, Range("a number of at least 1", lambda x: x >= 1)
  ]
  | None,
  "added_tokens_decoder": Mapping[str, Mapping] | None,
  "pad_token": str | Mapping | None,
  "content": str,
  "tokenizer_class": str | None,
  **dict.fromkeys(("padding_side", "truncation_side"), str),
  **dict.fromkeys(("do_lower_case", "repair_captions"), Flag),
}

ACTIVATIONS = {  # by their names in Hugging Face's configs
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
  "quick_gelu": "quick_gelu",
}


def read_spec(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON file of a published model, and checks its values.

  Raises:
    ValueError: If it holds no object, or a value is none of `KINDS`; the
      message names the file and the key.

  Example:
    >>> path = tmp_path / "config.json"
    >>> _ = path.write_text('{"vision_config": {"num_hidden_layers": 1e6}}')
    >>> read_spec(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nuclr_jax.lab.files.local.UnreadableError: ...config.json cannot be read:
    num_hidden_layers must be a whole number from 1 to 1,000, got 1000000.0
  """
  spec = files.read_json(path)
  with files.reading(path):
    _check(spec)
  return spec


def sizes_of(spec: Json, *, eps: float, activation: str) -> dict[str, Any]:
  """Reads what all transformers of Hugging Face share, as our arguments.

  Args:
    spec: The config of a transformer.
    eps: The eps of LayerNorm, if the config has none.
    activation: The name there of the activation, if the config has none.

  Raises:
    ValueError: If our towers do not have the activation.

  Example:
    >>> spec = {"hidden_size": 8, "num_attention_heads": 2}
    >>> sizes_of(spec, eps=1e-12, activation="gelu")["hidden"]
    32
  """
  width = spec.get("hidden_size", 768)
  name = spec.get("hidden_act", activation)
  if name not in ACTIVATIONS:
    raise ValueError(
      f"hidden_act is {name!r}; our towers have {sorted(ACTIVATIONS)}"
    )
  return {
    "width": width,
    "layers": spec.get("num_hidden_layers", 12),
    "heads": spec.get("num_attention_heads", 12),
    "hidden": spec.get("intermediate_size", 4 * width),
    "eps": spec.get("layer_norm_eps", eps),
    "activation": ACTIVATIONS[name],
  }


def _check(spec: Json) -> None:
  for key, value in spec.items():
    kind = KINDS.get(key)
    if kind is not None and not checks.fits(value, kind):
      shown = repr(value)
      raise ValueError(
        f"{key} must be {checks.allowed(kind)}, got "
        f"{shown[:80] + '...' if len(shown) > 80 else shown}"
      )
    if isinstance(value, Mapping):
      _check(value)
