"""Published models with forged files for `chaos`.

A row of `MODELS` changes a small model that is fine, and says what its command
must answer. Whatever the change, nothing is written but the output, no stranger
is reached, and time and memory stay small (`chaos_trial.Case`).
"""

import json
import math
import shutil

from chaos_place import command
from chaos_trial import LISTENER, Case, canary
import numpy as np
from repository import PUBLISHED

HUGE = (10**6, 800_000, 2**31, 2**63, 10**400, 1e30, 1e308)
STRANGE = (0, -1, -1000, 1.5, 1e-30, math.nan, math.inf, "7", "x", [], {}, True)
USES = ("embed", "embed", "evaluate", "popularity")


def use(folder, place, rng, **expected):
  """A command that reads the model in `folder`/model."""
  verb = rng.choice(expected.pop("uses", USES))
  model = f"--model={folder}/model"
  data = f"--data_dir={place}/data"
  words = {
    "texts": [model, f"--input={folder}/texts.txt", f"--output={folder}/e"],
    "embed": [model, f"--input={place}/photos", f"--output={folder}/e"],
    "evaluate": [model, "--data=photos:train", data],
    "popularity": [model, f"--input={place}/photos", f"--workdir={folder}/p"],
    "train": [
      *command("train", place, folder / "w")[1:],
      f"--config.data.tokenizer={folder}/model",
    ],
  }
  name = "embed" if verb == "texts" else verb
  return Case([name, *words[verb]], **expected)


def model(base, change, says="", **expected):
  """A model that `change(folder, rng)` has changed."""

  def make(place, folder, rng):
    shutil.copytree(PUBLISHED / base, folder / "model")
    canary(folder)
    change(folder / "model", rng)
    return use(folder, place, rng, says=says, **dict(expected))

  make.__name__ = f"model({base}, {getattr(change, '__name__', '')})"
  return make


def put(name, *keys, value):
  """Sets a value in a JSON file of the model; the last key may be new."""

  def change(folder, rng):
    content = json.loads((folder / name).read_text())
    place = content
    for key in keys[:-1]:
      place = (
        place.setdefault(key, {}) if isinstance(place, dict) else place[key]
      )
    chosen = value(folder) if callable(value) else value
    place[keys[-1]] = chosen
    (folder / name).write_text(json.dumps(content))

  change.__name__ = f"{keys[-1]} = {value!r}"[:60]
  return change


def both(*changes):
  def change(folder, rng):
    for one in changes:
      one(folder, rng)

  change.__name__ = changes[-1].__name__
  return change


def without(name):
  def change(folder, rng):
    (folder / name).unlink()

  change.__name__ = f"without {name}"
  return change


def write(name, content):
  def change(folder, rng):
    (folder / name).write_bytes(content)

  change.__name__ = f"write {name}"
  return change


# Where the tokenizer of a model is said to be.
def elsewhere(name):
  place = put(
    "open_clip_config.json",
    "model_cfg",
    "text_cfg",
    "hf_tokenizer_name",
    value=name,
  )
  return model("open_clip", both(without("tokenizer.json"), place))


ELSEWHERE = [
  *("memory://x/..", "memory://x/../..", "memory://../x", "s3://other/x"),
  *("s3://other/..", "gs://other/x", "gs://other/..", "file:///etc", "s3://"),
  *("memory://cache/run/..", "S3://other/x", "s3:///x", "abfs://x/y", "..", ""),
  *("../canary/folder", "../../canary/cache", "/etc", "/dev/zero", "~", "a\0b"),
  *(7, None, ["s3://other/x"], {"a": 1}, "x" * 5000, "zip://a::s3://other/x"),
  lambda folder: f"{LISTENER.url}/x",
  lambda folder: str(folder.parents[1] / "canary" / "cache" / "0a1b2c"),
  lambda folder: f"file://{folder.parents[1]}/canary/cache",
  lambda folder: f"simplecache::{LISTENER.url}/x",
]


# Numbers of configs: what, and whether the model can be used with it.
def numbers(base, name, *keys):
  """Any of the strange values at any of these places."""

  def change(folder, rng):
    key = rng.choice(keys)
    value = rng.choice(HUGE + STRANGE)
    put(name, *key.split("."), value=value)(folder, rng)

  change.__name__ = f"numbers of {name}"
  return model(base, change, codes=(0, 1, 2))


def a_scale(value):
  """The learned log(1 / temperature)."""

  def change(folder, rng):
    from safetensors import numpy as safetensors

    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    tensors["logit_scale"] = np.array(value, np.float32)
    safetensors.save_file(tensors, path)

  change.__name__ = f"logit_scale {value}"
  return model("hf_clip", change, "scale|temperature", uses=["popularity"])


TOWER = "num_hidden_layers hidden_size intermediate_size num_attention_heads"
HF = [
  *(f"{x}_config.{y}" for x in ("text", "vision") for y in TOWER.split()),
  *("text_config.layer_norm_eps", "vision_config.layer_norm_eps"),
  *("text_config.max_position_embeddings", "text_config.vocab_size"),
  *("text_config.eos_token_id", "vision_config.patch_size", "projection_dim"),
  *("vision_config.image_size", "text_config.hidden_act", "model_type"),
]
OPEN_CLIP = [
  *("embed_dim", "vision_cfg.layers", "vision_cfg.width", "text_cfg.layers"),
  *("vision_cfg.image_size", "vision_cfg.patch_size", "vision_cfg.head_width"),
  *("vision_cfg.mlp_ratio", "text_cfg.width", "text_cfg.heads", "vision_cfg"),
  *("text_cfg.vocab_size", "text_cfg.context_length", "text_cfg.mlp_ratio"),
]
PROCESSOR = [
  *(
    "size.shortest_edge",
    "size",
    "crop_size",
    "crop_size.height",
    "image_mean",
  ),
  *("image_std", "resample", "rescale_factor", "do_resize", "do_center_crop"),
  *("image_processor_type", "do_normalize", "do_rescale"),
]
NUMBERS = [
  *[numbers("hf_clip", "config.json", *HF)] * 4,
  *[numbers("hf_siglip", "config.json", *HF)] * 2,
  numbers("hf_siglip2_naflex", "config.json", *HF, "vision_config.num_patches"),
  numbers(
    "hf_siglip2_naflex",
    "processor_config.json",
    *("image_processor.max_num_patches", "image_processor.patch_size"),
  ),
  *[
    numbers(
      "open_clip",
      "open_clip_config.json",
      *(f"model_cfg.{x}" for x in OPEN_CLIP),
    )
  ]
  * 4,
  *[numbers("hf_clip", "preprocessor_config.json", *PROCESSOR)] * 3,
  numbers("hf_clip", "tokenizer_config.json", "model_max_length", "pad_token"),
]


def of_texts(name, *keys, value):
  """A sentence encoder with one of the strange values."""

  def change(folder, rng):
    (folder.parent / "texts.txt").write_text("a dog\ntwo cats\n")
    key = rng.choice(keys)
    chosen = rng.choice(value) if isinstance(value, tuple) else value
    put(name, *key, value=chosen)(folder, rng)

  change.__name__ = f"{name} of a sentence encoder"
  base = "../sentence_encoders/mean"
  return model(base, change, codes=(0, 1, 2), uses=["texts"])


OUTSIDE = ("/etc", "../../canary", "..", "a/b", "memory://x", "1_Pooling\0")
ENCODERS = [
  of_texts(
    "config.json",
    *([x] for x in (*TOWER.split(), "max_position_embeddings", "vocab_size")),
    *([x] for x in ("model_type", "pad_token_id", "layer_norm_eps")),
    value=HUGE + STRANGE,
  ),
  of_texts("modules.json", [1, "path"], value=OUTSIDE + STRANGE),
  of_texts("modules.json", [0, "path"], [2, "path"], value=OUTSIDE),
  of_texts("modules.json", [0], [1], [1, "type"], value=STRANGE),
  of_texts(
    "1_Pooling/config.json",
    ["pooling_mode"],
    ["pooling_mode_mean_tokens"],
    ["word_embedding_dimension"],
    value=HUGE + STRANGE,
  ),
  of_texts(
    "sentence_bert_config.json",
    ["max_seq_length"],
    ["do_lower_case"],
    value=HUGE + STRANGE,
  ),
]


def a_number(base, name, keys, value, says=""):
  return model(
    base, put(name, *keys.split("."), value=value), says, codes=(1, 2)
  )


# Tokenizers.
def tokenizer(change, base="hf_clip", **expected):
  """A tokenizer.json whose content `change` has changed."""

  def forge(folder, rng):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content = change(content) or content
    path.write_text(json.dumps(content))

  forge.__name__ = f"tokenizer {change.__name__}"
  expected = {"codes": (1, 2), "uses": (*USES, "train")} | expected
  return model(base, forge, "token", **expected)


def unknown_is_missing(content):
  content["model"]["unk_token"] = "<nothing>"


def unknown_is_none(content):
  del content["model"]["unk_token"]


def template_of_nothing(content):
  content["post_processor"]["single"][0]["SpecialToken"]["id"] = "<nothing>"


def template_without_ids(content):
  content["post_processor"]["special_tokens"] = {}


def template_that_is_empty(content):
  content["post_processor"]["single"] = []


def a_map(content):
  content["normalizer"] = {
    "type": "Precompiled",
    "precompiled_charsmap": "/////w==",
  }


def another_map(content):
  content["normalizer"] = {
    "type": "Precompiled",
    "precompiled_charsmap": "BAAAAP///38AAAAA",
  }


def a_token_of(number, text="photo number"):
  """An added token; the library gives it another id, or makes room for it."""

  def change(content):
    content["added_tokens"].append(
      dict(
        id=number,
        content=text,
        single_word=False,
        lstrip=False,
        rstrip=False,
        normalized=False,
        special=True,
      )
    )

  change.__name__ = f"a_token_of({number}, {text})"
  return change


def a_word_of(number):
  def change(content):
    content["model"]["vocab"]["dog"] = number

  change.__name__ = f"a_word_of({number})"
  return change


def a_pattern_without_end(content):
  content["pre_tokenizer"] = {
    "type": "Split",
    "pattern": {"Regex": "(a*)*(a*)*b" * 4},
    "behavior": "Isolated",
    "invert": False,
  }


def a_pattern_that_is_none(content):
  content["normalizer"] = {
    "type": "Replace",
    "pattern": {"Regex": "(((("},
    "content": "",
  }


def replaced_again_and_again(content):
  content["normalizer"] = {
    "type": "Sequence",
    "normalizers": [
      {"type": "Replace", "pattern": {"String": "o"}, "content": "oooooooo"}
    ]
    * 12,
  }


def padding(content):
  content["padding"] = {
    "strategy": {"Fixed": 2**40},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 2**31,
    "pad_type_id": 0,
    "pad_token": "x",
  }


def many_continued(content):
  content["model"] = {
    "type": "WordPiece",
    "unk_token": "<nothing>",
    "vocab": {"a": 0},
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 2**40,
  }


def a_unigram(content):
  content["model"] = {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}


def pairs_of_nothing(content):
  content["model"] = {
    "type": "BPE",
    "vocab": {"a": 0},
    "merges": [["a", "b"]],
    "unk_token": "?",
  }


def a_list(content):
  return [content]


TOKENIZERS = [
  *map(
    tokenizer,
    (
      unknown_is_missing,
      template_of_nothing,
      template_without_ids,
      a_map,
      another_map,
      a_list,
      a_word_of(2**31 + 5),
      a_pattern_that_is_none,
      many_continued,
      a_unigram,
      pairs_of_nothing,
    ),
  ),
  *(
    tokenizer(x, codes=(0, 1, 2))
    for x in (
      a_pattern_without_end,
      replaced_again_and_again,
      padding,
      unknown_is_none,
      template_that_is_empty,
      a_word_of(-1),
      a_token_of(10**6),
      a_token_of(2**31),
      a_token_of(2**32 - 2),
      a_token_of(2**31, "photo"),
    )
  ),
  tokenizer(unknown_is_missing, "open_clip"),
  tokenizer(a_token_of(2**31), "hf_siglip", codes=(0, 1, 2)),
  model("hf_clip", write("tokenizer.json", b"[" * 10**5), "tokenizer"),
  model("hf_clip", write("tokenizer.json", b"\xff" * 99), "tokenizer"),
  model(
    "hf_siglip_t5", write("spiece.model", b"\n\xff\xff\xff\xff\x0f"), "spiece"
  ),
  model("hf_siglip_t5", write("spiece.model", b""), "spiece|token"),
  *(
    model(
      "hf_clip",
      write("tokenizer_config.json", x),
      "tokenizer_config|token",
      codes=(0, 1, 2),
    )
    for x in (
      b"[]",
      b"7",
      b"{",
      b"[" * 10**5,
      b'{"added_tokens_decoder": [1]}',
      b'{"added_tokens_decoder": {"x": {}}}',
      b'{"pad_token": {"a": 1}}',
    )
  ),
  *(
    model("hf_clip", write(name, x), name)
    for name in ("config.json", "preprocessor_config.json")
    for x in (b"[]", b"null", b"{", b"[" * 10**5, b"\xff\xfe", b"")
  ),
]


NAMES = [elsewhere(name) for name in ELSEWHERE]
MODELS = [
  a_number("hf_clip", "config.json", "vision_config.num_hidden_layers", 10**6),
  a_number("hf_clip", "config.json", "text_config.num_hidden_layers", 10**6),
  a_number("hf_clip", "config.json", "vision_config.layer_norm_eps", 1e30),
  a_number("hf_clip", "config.json", "vision_config.hidden_size", 2**31),
  a_number("hf_siglip", "config.json", "text_config.vocab_size", 2**40),
  a_number(
    "hf_clip", "preprocessor_config.json", "size.shortest_edge", 800_000
  ),
  a_number(
    "open_clip",
    "open_clip_config.json",
    "model_cfg.vision_cfg.image_size",
    800_000,
  ),
  a_number(
    "open_clip", "open_clip_config.json", "model_cfg.vision_cfg.layers", 10**6
  ),
  *map(a_scale, (-1000, 1000, math.nan, math.inf)),
  *NUMBERS,
  *ENCODERS,
]
