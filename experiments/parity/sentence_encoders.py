"""Compares sentence encoders with sentence-transformers, in float64.

.venv-parity/bin/python -m experiments.parity.sentence_encoders FOLDER
.venv-parity/bin/python -m experiments.parity.sentence_encoders --write-golden

The first prints, as JSON, the largest difference of any number of an embedding
from what the library computes in float64 from the same folder: of `nuclr embed`
in float32, and of the same code where jnp.float32 stands for float64. It exits
with 1 if one is above its tolerance. The second writes tiny encoders with
random weights, as the library saves them, to tests/golden/sentence_encoders.
"""

import argparse
import json
import pathlib
import shutil
import sys
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import sentence_transformers
from sentence_transformers.sentence_transformer import modules
import torch
import transformers

from experiments.harness import benchmark
from experiments.parity import optional
from nuclr_jax.lab.export import embedder_of_config
from nuclr_jax.lab.models import layers
from nuclr_jax.lab.models.pretrained import convert
from nuclr_jax.lab.train import untrained

OUT = pathlib.Path(__file__).parents[2] / "tests/golden/sentence_encoders"
TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
TEXTS = [
  "a photo of a dog",
  "  A Photo of the DOG on the mat!",
  "Two cats, on a mat; caf\u00e9 na\u00efve \u039f\u0394\u039f\u03a3",
  "\u732b\u3068\u72ac, \U0001f408 and 12:30?!",
  "the dog's mat - a cat " * 80,
  "a [SEP] b [MASK]",
  "Donaudampfschifffahrtsgesellschaftskapit\u00e4n",
]
WORDS = "a photo of dog two cats on mat the ' s - cat ! , caf ##e".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = dict(
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=24,
  max_position_embeddings=20,
)
# The files of sentence-transformers 2, as most published folders have them.
OLD_POOLING = {
  "word_embedding_dimension": 16,
  "pooling_mode_cls_token": False,
  "pooling_mode_mean_tokens": True,
  "pooling_mode_max_tokens": False,
  "pooling_mode_mean_sqrt_len_tokens": False,
}


def texts() -> list[str]:
  """Returns sentences of all kinds, and names of letters."""
  letters = (unicodedata.name(chr(i), "") for i in range(0x40, 0x250))
  return [*TEXTS, *(x.lower() for x in letters if x)]


def expected(folder: pathlib.Path, sentences: list[str]) -> np.ndarray:
  """Computes embeddings with the library, in float64."""
  model = sentence_transformers.SentenceTransformer(
    str(folder), device="cpu", model_kwargs={"dtype": torch.float64}
  )
  found = model.encode(sentences, convert_to_tensor=True, batch_size=16)
  assert found.dtype == torch.float64
  return found.numpy()


def ours(folder: pathlib.Path, sentences: list[str]) -> np.ndarray:
  """Computes embeddings as `nuclr embed` does."""
  config = untrained.config_of_published(folder)
  with embedder_of_config(config, images=False) as embedder:
    return embedder.encode.text(sentences)


def compare(folder: pathlib.Path) -> dict[str, float]:
  """Returns the largest differences from the library, by dtype."""
  sentences = texts()
  right = expected(folder, sentences)
  errors = {}
  for dtype in TOLERANCES:
    if dtype == "float64":
      compute_in_float64()
    found = ours(folder, sentences)
    assert found.dtype == dtype, found.dtype
    errors[dtype] = float(np.abs(found - right).max())
  return errors


def compute_in_float64() -> None:
  """Makes float64 of what the library does in float32, in this process."""
  jax.config.update("jax_enable_x64", True)
  jnp.float32 = layers.DTYPES["float32"] = jnp.float64
  for name, conversion in convert.CONVERSIONS.items():

    def read(theirs, shapes, read=conversion.read):
      return read([np.float64(x) for x in theirs], shapes)

    convert.CONVERSIONS[name] = conversion._replace(read=read)


def tiny(folder: pathlib.Path, kind: str, pooling: str, **options) -> None:
  """Writes a tiny encoder of random weights, normalized unless it is a max."""
  torch.manual_seed(0)
  vocabulary = {x: i for i, x in enumerate(SPECIAL + WORDS)}
  base = OUT / "base"
  words = transformers.BertTokenizer(vocab=vocabulary, model_max_length=20)
  sizes = dict(SIZES, vocab_size=len(vocabulary) + 3)  # three are never used
  if kind == "bert":
    model = transformers.BertModel(transformers.BertConfig(**sizes))
  else:
    model = transformers.DistilBertModel(
      transformers.DistilBertConfig(
        vocab_size=sizes["vocab_size"],
        max_position_embeddings=20,
        dim=16,
        n_layers=2,
        n_heads=4,
        hidden_dim=24,
      )
    )
  with torch.no_grad():
    for x in model.parameters():
      x += 0.1 * torch.randn_like(x)
  model.save_pretrained(base)
  words.save_pretrained(base)
  parts = [
    modules.Transformer(str(base), **options),
    modules.Pooling(16, pooling_mode=pooling),
  ]
  if pooling != "max":
    parts.append(modules.Normalize())
  sentence_transformers.SentenceTransformer(modules=parts).save(
    str(folder), create_model_card=False
  )
  shutil.rmtree(base)


def write_golden() -> None:
  """Writes the tiny encoders, and what the library computes from them."""
  shutil.rmtree(OUT, ignore_errors=True)
  tiny(OUT / "mean", "bert", "mean", max_seq_length=12)
  tiny(OUT / "cls", "bert", "cls", do_lower_case=True)
  tiny(OUT / "max", "distilbert", "max", max_seq_length=9)
  old = OUT / "mean"
  (old / "1_Pooling/config.json").write_text(json.dumps(OLD_POOLING))
  (old / "sentence_bert_config.json").write_text(
    json.dumps({"max_seq_length": 12, "do_lower_case": False})
  )
  shutil.rmtree(old / "2_Normalize")
  kinds = json.loads((old / "modules.json").read_text())
  for kind in kinds:
    name = kind["type"].rsplit(".", 1)[-1]
    kind["type"] = f"sentence_transformers.models.{name}"
  (old / "modules.json").write_text(json.dumps(kinds))
  for folder in sorted(OUT.iterdir()):
    right = expected(folder, TEXTS)
    np.savez_compressed(folder / "expected.npz", texts=TEXTS, text=right)
    size = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
    print(f"{folder}: {size} bytes")


def main() -> None:
  """Prints the differences of a folder, or writes the tiny ones."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("folder", nargs="?", type=pathlib.Path)
  parser.add_argument("--write-golden", action="store_true")
  args = parser.parse_args()
  transformers.utils.logging.disable_progress_bar()
  if args.write_golden:
    return write_golden()
  errors = compare(args.folder)
  benchmark.show(
    benchmark.machine(), optional.versions(), {"texts": len(texts())}, errors
  )
  wrong = [k for k, most in TOLERANCES.items() if not errors[k] < most]
  sys.exit(f"FAILED: {', '.join(wrong)}" if wrong else None)


if __name__ == "__main__":
  main()
