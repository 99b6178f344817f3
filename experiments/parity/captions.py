"""Compares token ids with those of OpenCLIP and transformers.

.venv-parity/bin/python -m experiments.parity.captions > captions.json
.venv-parity/bin/python -m experiments.parity.captions --write-golden

Each case is a tokenizer as its library saves it, with a vocabulary as it is
published: CLIP's own, one of sentencepiece with SigLIP's ids (<pad> 0, </s> 1,
<unk> 2) and normalization, and one of Gemma's kind. It encodes the captions of
`odd_captions`. A caption whose ids differ is filed under the reason: it spells
a token; it has characters newer than the Unicode of Python, whose category or
case the libraries do not agree about; or another one.
"""

import argparse
import contextlib
import functools
import gzip
import json
import pathlib
import random
import tempfile
import unicodedata

import numpy as np
import transformers

from experiments.parity import odd_captions, optional
from nuclr_jax.lab.data import cleaning, tokenizer
from nuclr_jax.lab.models.pretrained import inputs

GOLDEN = (
  pathlib.Path(__file__).parents[2] / "tests" / "golden" / "captions.json"
)
PIECES, LENGTH = 4_000, 64
REASONS = ("equal", "spells a token", "newer characters", "other")
START, END = "<|startoftext|>", "<|endoftext|>"
SPM = dict(vocab_size=PIECES, hard_vocab_limit=False, minloglevel=2)


def open_clip():
  """Returns OpenCLIP's module of tokenizers."""
  return optional.load("open_clip.tokenizer")


def clip_vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
  """Returns CLIP's tokens by id, and its merges."""
  library = open_clip()
  text = gzip.open(library.default_bpe()).read().decode()
  merges = [tuple(x.split()) for x in text.split("\n")[1 : 49152 - 256 - 2 + 1]]
  letters = [*library.bytes_to_unicode().values()]
  tokens = [*letters, *(f"{x}</w>" for x in letters), *map("".join, merges)]
  return [*tokens, START, END], merges


def train(folder: pathlib.Path, name: str, **options) -> str:
  """Trains a vocabulary of sentencepiece on words of CLIP's."""
  library = optional.load("sentencepiece")
  words = [x[:-4] for x in clip_vocabulary()[0] if x.endswith("</w>")]
  words = [x for x in words if x.isascii() and x.isalpha()]
  rng = random.Random(1)
  texts = [
    " ".join(words[int(len(words) * rng.random() ** 2)] for _ in range(8))
    for _ in range(30_000)
  ]
  texts += [x[:200] for x in odd_captions.captions() if x.isprintable()] * 3
  folder.mkdir()
  with contextlib.chdir(folder):
    library.SentencePieceTrainer.train(
      sentence_iterator=iter(texts), model_prefix="model", **SPM, **options
    )
  path = folder / name
  (folder / "model.model").rename(path)
  (folder / "model.vocab").unlink()
  return str(path)


def folders(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """Makes a folder for each kind of tokenizer, as transformers saves it."""
  tokens, merges = clip_vocabulary()
  ids = {x: i for i, x in enumerate(tokens)}
  transformers.CLIPTokenizer(
    vocab=ids, merges=merges, model_max_length=77
  ).save_pretrained(root / "clip")
  spiece = train(
    root / "unigram",
    "spiece.model",
    **dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
    normalization_rule_name="nmt_nfkc",
  )
  transformers.SiglipTokenizer(spiece).save_pretrained(root / "siglip")
  special = dict(pad_token="</s>", eos_token="</s>", unk_token="<unk>")
  settings = dict(tokenizer_class="T5Tokenizer", extra_ids=0, **special)
  write_settings(root / "unigram", settings)
  transformers.AutoTokenizer.from_pretrained(root / "unigram").save_pretrained(
    root / "t5"
  )
  added = ("<pad>", "</s>", "<unk>")  # as transformers 4 saved it
  settings["added_tokens_decoder"] = {
    str(i): {"content": x, "special": True} for i, x in enumerate(added)
  }
  write_settings(root / "unigram", settings)
  train(
    root / "bpe",
    "tokenizer.model",
    **dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, model_type="bpe"),
    **dict(eos_piece="<eos>", bos_piece="<bos>", byte_fallback=True),
    **dict(add_dummy_prefix=False, remove_extra_whitespaces=False),
    normalization_rule_name="identity",
  )
  settings = dict(tokenizer_class="GemmaTokenizer", padding_side="right")
  settings |= dict(add_bos_token=False, add_eos_token=True, pad_token="<pad>")
  write_settings(root / "bpe", settings | dict(do_lower_case=True))
  transformers.AutoTokenizer.from_pretrained(root / "bpe").save_pretrained(
    root / "gemma"
  )
  names = ("clip", "siglip", "unigram", "t5", "gemma")
  return {name: root / name for name in names}


def write_settings(folder: pathlib.Path, settings: dict) -> None:
  """Writes a tokenizer_config.json."""
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def by_transformers(folder: pathlib.Path, kind: str, length: int) -> tuple:
  """Returns the library's way from captions to ids, and ours."""
  words = transformers.AutoTokenizer.from_pretrained(folder)
  how = dict(padding="max_length", truncation=True, max_length=length)
  data = inputs.of_tokenizer(folder, kind, length, {})
  ours = tokenizer.pretrained_tokenizer(folder, **data)
  return lambda x: words(x, **how)["input_ids"], ours.encode


def by_open_clip(
  folder: pathlib.Path, clean: str | None, *, own: bool
) -> tuple:
  """Returns OpenCLIP's way from captions to ids, and ours."""
  options = {"clean": clean} if clean else {}
  length = 77 if own else LENGTH
  text = dict(context_length=length, vocab_size=49_408 if own else PIECES)
  text["tokenizer_kwargs"] = options
  if own:
    theirs = open_clip().SimpleTokenizer(**options)
  else:
    text["hf_tokenizer_name"] = "some/name"
    theirs = open_clip().HFTokenizer(str(folder), LENGTH, **options)
  data = inputs._open_clip_captions(text)
  if not own:
    data["pad_id"] = inputs.open_clip_pad_id(folder, text)
  return theirs, tokenizer.pretrained_tokenizer(folder, **data).encode


def cases(places: dict[str, pathlib.Path]) -> dict[str, tuple]:
  """Returns both ways from captions to ids, by what is compared."""
  clip = functools.partial(by_open_clip, places["clip"], own=True)
  other = functools.partial(by_open_clip, clean="canonicalize", own=False)
  return {
    "CLIP, transformers": by_transformers(places["clip"], "CLIP", 77),
    "CLIP, OpenCLIP": clip(None),
    "CLIP, OpenCLIP, canonicalize": clip("canonicalize"),
    "SigLIP, transformers": by_transformers(places["siglip"], "Siglip", LENGTH),
    "SigLIP, OpenCLIP, tokenizer.json": other(places["t5"]),
    "SigLIP, OpenCLIP, spiece.model": other(places["unigram"]),
    "SigLIP 2, OpenCLIP": other(places["gemma"]),
  }


def reason(caption: str) -> str:
  """Returns why the ids of a caption may differ."""
  text = cleaning.repaired(caption).lower()
  if any(x in text for x in spelled()):
    return "spells a token"
  is_new = any(unicodedata.category(x) == "Cn" for x in text)
  return "newer characters" if is_new else "other"


def spelled() -> list[str]:
  """Returns the tokens that captions spell."""
  return [START, END, "<start_of_text>", "<end_of_text>", "</s>", "<unk>"]


def compare(theirs, ours) -> dict[str, int]:
  """Counts the captions whose ids are equal or differ, by the reason."""
  counts = dict.fromkeys(REASONS, 0)
  for caption in odd_captions.captions():
    same = np.array_equal(np.asarray(theirs([caption])), ours([caption]))
    counts["equal" if same else reason(caption)] += 1
  return counts


def write_golden() -> None:
  """Writes captions and what the libraries' own cleaning makes of them."""
  kinds = {
    "lower": "lower",
    "canonicalize": "canonicalize",
    "none": "whitespace",
  }
  texts = [x for x in odd_captions.captions(40, 0) if len(x) < 200]
  golden = {"captions": texts}
  for ours, theirs in kinds.items():
    golden[ours] = [*map(open_clip().get_clean_fn(theirs), texts)]
  words = transformers.SiglipTokenizer.__new__(transformers.SiglipTokenizer)
  words.do_lower_case = True
  golden["remove_punctuation"] = [*map(words.canonicalize_text, texts)]
  GOLDEN.write_text(json.dumps(golden, indent=0) + "\n")


def main() -> None:
  """Prints the counts of each case, or writes the tests' captions."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write-golden", action="store_true")
  transformers.logging.set_verbosity_error()
  if parser.parse_args().write_golden:
    write_golden()
    return
  with tempfile.TemporaryDirectory() as root:
    places = folders(pathlib.Path(root))
    rows = {name: compare(*both) for name, both in cases(places).items()}
  versions = {"transformers": transformers.__version__}
  versions["open_clip_torch"] = optional.load("open_clip").__version__
  print(json.dumps({**versions, "rows": rows}, indent=1))


if __name__ == "__main__":
  main()
