"""Published sentence encoders, in the folders of sentence-transformers.

`modules.json` lists the parts: a transformer, what pools its features, and
whether they are normalized. Other files say how texts become token ids.
Whatever would change a text's embedding and cannot be followed here is an error
that names it; nothing of that kind is ignored.
"""

from collections.abc import Mapping
import json
import os
import pathlib
import re
from typing import Any

from nuclr_jax.lab import files
from nuclr_jax.lab.models.pretrained import hub, inputs
from nuclr_jax.lab.models.pretrained.specs import Json, read_spec, sizes_of

MODULES = "modules.json"
LIBRARY = "sentence_transformers."
KNOWN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
# Our pooling by the name in newer files, and by the key that is true in others.
POOLINGS = {"cls": "first", "mean": "mean", "max": "max"}
KEYS = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
  "pooling_mode_max_tokens": "max",
}
# Of the transformer's own options, by the type of its model.
OPTIONS = ("sentence_bert_config.json", "sentence_distilbert_config.json")
# What they may say: keys that are read, one that changes no number, and what
# newer files say of every encoder of texts.
READ = {"max_seq_length", "do_lower_case", "unpad_inputs"}
OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
EXPECTED = {
  "transformer_task": "feature-extraction",
  "modality_config": {"text": OUTPUT},
  "module_output_name": "token_embeddings",
}
# What a tokenizer of BERT does in spite of its tokenizer.json: keys of
# tokenizer_config.json with their defaults, and the keys that they overrule.
OVERRULED = {
  "do_lower_case": (True, "lowercase"),
  "strip_accents": (None, "strip_accents"),
  "tokenize_chinese_chars": (True, "handle_chinese_chars"),
}


def find_modules(source: str | os.PathLike) -> pathlib.Path | None:
  """Returns the list of a sentence encoder's modules; None if it has none.

  Args:
    source: A folder, or a name on the hub.

  Example:
    >>> _ = (tmp_path / "modules.json").write_text("[]")
    >>> find_modules(tmp_path).name, find_modules(tmp_path / "modules")
    ('modules.json', None)
  """
  return hub.find_optional(source, MODULES)


def read_sentence_encoder(
  source: str | os.PathLike,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads how to build a sentence encoder, and how to prepare its texts.

  Args:
    source: A folder with a `modules.json`, or a name on the hub.

  Returns:
    `(config.model, config.data)`, for the model `views` and the data
    `sentences`, without the names of weights and tokenizer.

  Raises:
    ValueError: If it has a part that cannot be followed.
  """
  pooling, *normalize = _read_modules(source)
  for folder in normalize:
    _check_normalize(source, folder)
  path = hub.find_file(source, ("config.json",))
  spec = read_spec(path)
  with files.reading(path):
    encoder = encoder_of(spec)
  width = encoder["width"]
  encoder["pooling"] = _read_pooling(source, pooling, width=width)
  _check_prompt(source)
  _check_tokenizer(source)
  longest = encoder["max_length"]
  data = inputs.of_tokenizer(source, "ViT", longest, spec)
  model = {
    "name": "views",
    "encoder": encoder,
    "dim": width,
    "projected": False,
    "normalize": bool(normalize),
  }
  return model, {"name": "sentences"} | data | _read_options(source, longest)


def check_encoder(
  source: str | os.PathLike, arguments: Mapping[str, Any]
) -> None:
  """Raises ValueError if a tower is not the sentence encoder of its weights.

  Shapes of weights show neither the number of heads nor the pooling. Weights
  without a `modules.json` beside them may be those of any tower.

  Args:
    source: Where the weights are.
    arguments: The arguments of the tower's factory, defaults included.
  """
  if find_modules(source) is None:
    return
  other = "to take the transformer alone, name its file of weights instead"
  try:
    encoder = read_sentence_encoder(source)[0]["encoder"]
  except ValueError as error:
    raise ValueError(f"{error}; {other}") from error
  wrong = {
    key: x
    for key, x in encoder.items()
    if key != "name" and x != _value(key, arguments)
  }
  if wrong:
    ours = {key: _value(key, arguments) for key in wrong}
    raise ValueError(
      f"{source} is a sentence encoder with {wrong}, and the config's has "
      f"{ours}; change the config, or, {other}"
    )


def write_modules(folder: pathlib.Path, tower: Mapping[str, Any]) -> None:
  """Writes the files that say how a tower in Hugging Face's layout pools.

  Args:
    folder: The folder of the tower.
    tower: The arguments of its factory, defaults included.
  """
  modules = [
    {"idx": i, "name": str(i), "path": path, "type": f"{LIBRARY}models.{kind}"}
    for i, (path, kind) in enumerate(
      (("", "Transformer"), ("1_Pooling", "Pooling"))
    )
  ]
  files.write_text(folder / MODULES, json.dumps(modules, indent=2))
  by_name = {name: key for key, name in KEYS.items()}
  pooling = {"word_embedding_dimension": tower["width"]} | {
    by_name[name]: ours == tower["pooling"] for name, ours in POOLINGS.items()
  }
  place = files.folder_in(folder, "1_Pooling") / "config.json"
  files.write_text(place, json.dumps(pooling, indent=2))


def encoder_of(spec: Json) -> dict[str, Any]:
  """Returns the factory and its arguments of a BERT's or DistilBERT's config.

  Args:
    spec: The content of its `config.json`.

  Raises:
    ValueError: If it is of another type, or our towers lack a part of it.
  """
  kind = spec.get("model_type")
  if kind not in ("bert", "distilbert"):
    raise ValueError(
      f"the texts' encoder is of the type {kind!r}; those that can be read are "
      "'bert' and 'distilbert'"
    )
  positions = spec.get("position_embedding_type") or "absolute"
  if positions != "absolute":
    raise ValueError(
      f"position_embedding_type is {positions!r}; our towers have 'absolute'"
    )
  for key in ("is_decoder", "add_cross_attention", "pruned_heads", "auto_map"):
    if spec.get(key):
      raise ValueError(
        f"{key} is {str(spec[key])[:80]}, which {inputs.TOWERS} do not have"
      )
  if spec.get("pad_token_id", 0) != 0:
    raise ValueError(
      f"pad_token_id is {spec['pad_token_id']}; our towers mask the id 0"
    )
  if kind == "bert":
    sizes = sizes_of(spec, eps=1e-12, activation="gelu")
  else:
    sizes = {
      "width": spec.get("dim", 768),
      "layers": spec.get("n_layers", 6),
      "heads": spec.get("n_heads", 12),
      "hidden": spec.get("hidden_dim", 3072),
    }
    if (name := spec.get("activation", "gelu")) != "gelu":
      raise ValueError(f"activation is {name!r}; our DistilBERT has 'gelu'")
  max_length = spec.get("max_position_embeddings", 512)
  return {"name": kind, "max_length": max_length} | sizes


def _read_pooling(source: str | os.PathLike, folder: str, width: int) -> str:
  """Returns our name of the pooling of features of a width."""
  path = hub.find_file(source, (f"{folder}/config.json",))
  spec = read_spec(path)
  with files.reading(path):
    modes = spec.get("pooling_mode")
    if modes is None:
      modes = [KEYS.get(k, k) for k, x in spec.items() if x and "mode" in k]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLINGS:
      raise ValueError(
        f"features are pooled by {', '.join(map(str, modes)) or 'nothing'}; "
        f"our towers pool by one of {', '.join(POOLINGS)}"
      )
    if spec.get("include_prompt") is False:
      raise ValueError(
        "include_prompt is false; our towers pool all tokens of a text"
      )
    for key in ("word_embedding_dimension", "embedding_dimension"):
      if spec.get(key, width) != width:
        raise ValueError(
          f"{key} is {spec[key]}, and the encoder's features have {width}"
        )
  return POOLINGS[modes[0]]


def _read_modules(source: str | os.PathLike) -> list[str]:
  """Returns the folders of the modules behind the transformer."""
  path = hub.find_file(source, (MODULES,))
  with files.reading(path):
    files.check_size(path)
    modules = files.parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(modules, list) or not all(
      isinstance(x, dict)
      and isinstance(x.get("type"), str)
      and isinstance(x.get("path"), str)
      for x in modules
    ):
      raise ValueError("it must be a list of modules, each with type and path")
    types = [x["type"] for x in modules]
    names = [
      x.rsplit(".", 1)[-1] if x.startswith(LIBRARY) else x for x in types
    ]
    if names not in KNOWN:
      raise ValueError(
        f"its modules are {', '.join(names)[:200] or 'none'}; those that can "
        f"be followed are {' or '.join(map(', '.join, KNOWN))}"
      )
    if modules[0]["path"]:
      raise ValueError(
        f"the transformer is in {modules[0]['path'][:80]!r}; move its files "
        "beside modules.json, and make its path there ''"
      )
    folders = [x["path"] for x in modules[1:]]
    for folder in folders:
      if not re.fullmatch(r"\w[\w-]{0,99}", folder):
        raise ValueError(
          f"{folder[:100]!r} is not the name of a folder beside it"
        )
  return folders


def _check_normalize(source: str | os.PathLike, folder: str) -> None:
  """Raises ValueError if something else than embeddings is normalized."""
  path = hub.find_optional(source, f"{folder}/config.json")
  if path is None:
    return
  spec = read_spec(path)
  with files.reading(path):
    for key in ("module_input_name", "module_output_name"):
      if (name := spec.get(key, "sentence_embedding")) != "sentence_embedding":
        raise ValueError(f"{key} is {name!r}; it must be 'sentence_embedding'")


def _read_options(source: str | os.PathLike, longest: int) -> dict[str, Any]:
  """Reads how the transformer takes texts: keys of `config.data`."""
  path = hub.find_optional(source, *OPTIONS)
  if path is None:
    return {}  # the tokenizer's length, as there
  spec = read_spec(path)
  with files.reading(path):
    given = {k: x for k, x in spec.items() if x != EXPECTED.get(k)}
    inputs.reject("the transformer", given, READ, "our sentence encoders")
    options = {"clean": "lower"} if spec.get("do_lower_case") else {}
    length = spec.get("max_seq_length")
    if length is None:
      return options
    if length > longest:
      raise ValueError(
        f"max_seq_length is {length}, and the encoder has {longest} positions"
      )
  return options | {"length": length}


def _check_prompt(source: str | os.PathLike) -> None:
  """Raises ValueError if texts get a prompt, or it is not a dense encoder."""
  path = hub.find_optional(source, "config_sentence_transformers.json")
  if path is None:
    return
  spec = read_spec(path)
  with files.reading(path):
    kind = spec.get("model_type") or "SentenceTransformer"
    if kind != "SentenceTransformer":
      raise ValueError(f"it is a {kind!r}, not a 'SentenceTransformer'")
    if (size := spec.get("truncate_dim")) is not None:
      raise ValueError(
        f"truncate_dim is {size!r}; embeddings cannot be cut here, so make it "
        "null and cut them afterwards"
      )
    name, prompts = spec.get("default_prompt_name"), spec.get("prompts") or {}
    if name is not None and prompts.get(name) != "":
      raise ValueError(
        f"default_prompt_name is {name!r}, a text that goes before every "
        f"other, {str(prompts.get(name))[:80]!r}; put it there yourself, and "
        "make default_prompt_name null"
      )


def _check_tokenizer(source: str | os.PathLike) -> None:
  """Raises ValueError if its two files describe different tokenizers."""
  spec = read_spec(hub.find_file(source, ("tokenizer_config.json",)))
  path = hub.find_optional(source, "tokenizer.json")
  if path is None:  # a vocab.txt, which is read with the defaults
    for key, (default, _) in OVERRULED.items():
      if spec.get(key, default) != default:
        raise ValueError(
          f"{source}: {key} of tokenizer_config.json is {spec[key]}, and a "
          f"vocab.txt is read with {default}; give a tokenizer.json"
        )
    return
  content = files.read_json(path)
  with files.reading(path):
    normalizer = content.get("normalizer")
    kind = isinstance(normalizer, Mapping) and normalizer.get("type")
    is_bert = "Bert" in str(spec.get("tokenizer_class"))
    if not is_bert or kind != "BertNormalizer":
      return
    for key, (default, ours) in OVERRULED.items():
      if spec.get(key, default) != normalizer.get(ours):
        raise ValueError(
          f"{ours} is {normalizer.get(ours)}, and {key} of "
          f"tokenizer_config.json {spec.get(key, default)}; make them equal"
        )


def _value(key: str, arguments: Mapping[str, Any]) -> Any:
  """Returns an argument of a tower as a file would have it."""
  if key == "hidden" and arguments.get(key) is None:
    return 4 * arguments["width"]
  return arguments.get(key)
