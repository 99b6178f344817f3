"""Writes tiny models as their libraries do, and what these compute from files.

.venv-parity/bin/python -m experiments.parity.published

Each folder is that of a published model: weights, config, tokenizer and
preprocessing. `expected.npz` holds JPEG files and captions with the embeddings
that the library computes from them, by its own processor and tokenizer, in
float64. `nuclr --model` must compute the same from the folder; the tests
compare. OpenCLIP's own transform needs torchvision, which is not installed, so
Pillow does here what torchvision lets it do.

`hf_clip_added` is saved by transformers 5 alone, processor and tokenizer too,
after a word was added to the vocabulary; it normalizes pixels that it has not
rescaled. `hf_siglip_t5`, saved in the same way, has a vocabulary as that of
SigLIP's first models: a file of sentencepiece, padded with </s> though it has a
<pad>. `open_clip_captions` has captions that
OpenCLIP cleans first, and an end token with a small id.
"""

import argparse
import contextlib
import io
import json
import pathlib
import shutil
import string

import numpy as np
from PIL import Image
from safetensors.torch import save_file
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors
import torch
import transformers

from experiments.parity import open_clip_cases, optional

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "published"
RAW_CAPTIONS = [
  "a dog&#39;s mat",
  "two\u00a0cats &amp;amp; a dog, on\nthe mat\u2019s \ufb02at",
  "A photo of <my-toy>",
]
CAPTIONS = ["A photo of a Dog!", "two  cats, on a mat", "the dog's mat - a cat"]
WORDS = "a photo of dog ! two cats , on mat the ' s - cat".split()
# Of the images, height and width; the first has a margin of 5 1/2 pixels.
SHAPES = ((50, 73), (64, 40), (33, 33))
SIZE, LENGTH, TEMPERATURE = 24, 9, 0.03
START, END = "<|startoftext|>", "<|endoftext|>"
ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}  # and NLLB
CLIP_TEXTS = {  # families by folder
  "open_clip_coca": "CoCa",
  "open_clip_eva02": "EVA-02",
  "open_clip_pe_core": "PE-Core",
  "open_clip_convnext": "ConvNeXt, MLP",
  "open_clip_vitamin": "ViTamin",
}
BLOCKS = dict(
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=2,
  num_attention_heads=4,
)


def photos(shapes=SHAPES) -> list[bytes]:
  """Makes JPEG files of smooth noise with sharp edges."""
  rng = np.random.default_rng(0)
  encoded = []
  for height, width in shapes:
    small = [max(x // 8, 1) for x in (height, width)]
    small = rng.integers(0, 256, (*small, 3), np.uint8)
    photo = np.array(Image.fromarray(small).resize((width, height)))
    photo[height // 3 :, width // 2 :] //= 3
    file = io.BytesIO()
    Image.fromarray(photo).save(file, "JPEG", quality=95)
    encoded.append(file.getvalue())
  return encoded


def randomized(model: torch.nn.Module) -> torch.nn.Module:
  """Moves all vectors, so that no bias is 0 and no scale is 1."""
  torch.manual_seed(0)
  with torch.no_grad():
    for x in model.parameters():
      if x.ndim == 1:
        x += 0.1 * torch.randn_like(x)
    model.logit_scale.fill_(-np.log(TEMPERATURE))
  return model.eval()


def tokenizer(special: dict[str, int], first: str | None, last: str):
  """Makes a tokenizer of whole words with an end token, and maybe a start."""
  ids = dict(special)
  for word in WORDS:
    ids.setdefault(word, max(ids.values()) + 1)
  if first and first not in ids:  # CLIP's have the largest ids
    ids |= {first: len(ids), last: len(ids) + 1}
  words = tokenizers.Tokenizer(models.WordLevel(ids, "<unk>"))
  words.normalizer = normalizers.Lowercase()
  words.pre_tokenizer = pre_tokenizers.Whitespace()
  ends = [x for x in (first, last) if x]
  words.post_processor = processors.TemplateProcessing(
    single=f"{first or ''} $A {last}".strip(),
    special_tokens=[(x, ids[x]) for x in ends],
  )
  return words, len(ids)


def save_inputs(
  folder, words, processor: dict, settings: dict, *, length: int = LENGTH
) -> None:
  """Writes the files that say how inputs are prepared."""
  words.save(str(folder / "tokenizer.json"))
  processor = (
    dict(
      do_resize=True,
      do_rescale=True,
      rescale_factor=1 / 255,
      do_normalize=True,
      image_mean=[0.4, 0.5, 0.6],
      image_std=[0.2, 0.3, 0.25],
    )
    | processor
  )
  for name, content in (
    ("preprocessor_config.json", processor),
    ("tokenizer_config.json", settings | {"model_max_length": length}),
  ):
    (folder / name).write_text(json.dumps(content, indent=1))


def hf_clip(folder: pathlib.Path) -> tuple:
  """Writes Hugging Face's CLIP, which crops the centre."""
  words, vocab_size = tokenizer({"!": 0, "<unk>": 1}, START, END)
  text = dict(vocab_size=vocab_size, max_position_embeddings=LENGTH)
  text |= dict(bos_token_id=vocab_size - 2, eos_token_id=vocab_size - 1)
  config = transformers.CLIPConfig(
    text_config=BLOCKS | text,
    vision_config=BLOCKS | dict(image_size=SIZE, patch_size=8),
    projection_dim=12,
  )
  model = randomized(transformers.CLIPModel(config))
  model.save_pretrained(folder)
  processor = dict(
    image_processor_type="CLIPImageProcessor",
    size={"shortest_edge": SIZE},
    crop_size={"height": SIZE, "width": SIZE},
    do_center_crop=True,
    resample=3,
  )
  settings = dict(tokenizer_class="CLIPTokenizerFast", pad_token=END)
  save_inputs(folder, words, processor, settings)
  return by_transformers(folder, model, words, END)


def hf_siglip(folder: pathlib.Path) -> tuple:
  """Writes Hugging Face's SigLIP, which squashes and attends to padding."""
  words, vocab_size = tokenizer({"<unk>": 0, "</s>": 1}, None, "</s>")
  text = dict(vocab_size=vocab_size, max_position_embeddings=LENGTH)
  config = transformers.SiglipConfig(
    text_config=BLOCKS | text,
    vision_config=BLOCKS | dict(image_size=SIZE, patch_size=8),
  )
  model = randomized(transformers.SiglipModel(config))
  model.save_pretrained(folder)
  processor = dict(
    image_processor_type="SiglipImageProcessor",
    size={"height": SIZE, "width": SIZE},
    resample=2,
  )
  token = {"content": "</s>", "special": True}
  settings = dict(
    tokenizer_class="SiglipTokenizer",
    pad_token="</s>",
    added_tokens_decoder={"1": token},
  )
  save_inputs(folder, words, processor, settings)
  # What `SiglipTokenizer` does before its own model of pieces.
  removed = str.maketrans("", "", string.punctuation)
  captions = [" ".join(x.lower().translate(removed).split()) for x in CAPTIONS]
  return by_transformers(folder, model, words, "</s>", captions)


def hf_clip_added(folder: pathlib.Path) -> tuple:
  """Writes Hugging Face's CLIP with a token after its end token."""
  letters = sorted({c for word in WORDS for c in word})
  pieces = [
    *letters,
    *(f"{x}</w>" for x in letters),
    "do",
    "dog</w>",
    START,
    END,
  ]
  words = transformers.CLIPTokenizer(
    vocab={x: i for i, x in enumerate(pieces)},
    merges=[("d", "o"), ("do", "g</w>")],
    model_max_length=LENGTH,
  )
  words.add_tokens(["<my-toy>"])
  text = dict(vocab_size=len(words), max_position_embeddings=LENGTH)
  text |= dict(bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id)
  config = transformers.CLIPConfig(
    text_config=BLOCKS | text,
    vision_config=BLOCKS | dict(image_size=SIZE, patch_size=8),
    projection_dim=12,
  )
  model = randomized(transformers.CLIPModel(config))
  processor = transformers.CLIPProcessor(
    transformers.CLIPImageProcessor(
      size={"height": SIZE, "width": SIZE},
      crop_size=SIZE,
      do_rescale=False,
      image_mean=[100.0, 120.0, 140.0],
      image_std=[50.0, 60.0, 70.0],
    ),
    words,
  )
  model.save_pretrained(folder)
  processor.save_pretrained(folder)
  captions = ["a dog", "A <my-toy> on the mat", "the <my-toy>"]
  return by_processor(folder, model, captions)


def hf_siglip_t5(folder: pathlib.Path) -> tuple | None:
  """Writes Hugging Face's SigLIP with sentencepiece; None if that is missing.

  Its ids are those of SigLIP's first models: <pad> 0, </s> 1, <unk> 2. The
  pieces are as many as the captions need, and the normalization has one rule.
  """
  library = optional.load("sentencepiece")
  if library is None:
    return None
  folder.mkdir(parents=True)
  rules = pathlib.Path("rules.tsv")
  with contextlib.chdir(folder):  # the file records the names
    rules.write_text("FB01\t66 69\n")
    library.SentencePieceTrainer.train(
      sentence_iterator=iter([" ".join(WORDS), *CAPTIONS] * 9),
      model_prefix="spiece",
      vocab_size=40,
      hard_vocab_limit=False,
      normalization_rule_tsv=str(rules),
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      minloglevel=2,
    )
    rules.unlink()
    pathlib.Path("spiece.vocab").unlink()
  words = transformers.SiglipTokenizer(
    str(folder / "spiece.model"), model_max_length=LENGTH
  )
  text = dict(vocab_size=len(words), max_position_embeddings=LENGTH)
  config = transformers.SiglipConfig(
    text_config=BLOCKS | text,
    vision_config=BLOCKS | dict(image_size=SIZE, patch_size=8),
  )
  model = randomized(transformers.SiglipModel(config))
  processor = transformers.SiglipProcessor(
    transformers.SiglipImageProcessor(
      size={"height": SIZE, "width": SIZE},
      do_normalize=False,
      rescale_factor=1 / 127.5,
    ),
    words,
  )
  model.save_pretrained(folder)
  processor.save_pretrained(folder)
  captions = ["two cats, on a do_g", "\ufb01\n A  zzz of", "mat"]
  return by_processor(folder, model, captions)


def by_processor(folder, model, captions) -> tuple:
  """Computes embeddings with a folder's own processor and tokenizer."""
  inputs = transformers.AutoProcessor.from_pretrained(folder)(
    images=[Image.open(io.BytesIO(x)) for x in photos()],
    text=captions,
    padding="max_length",
    max_length=LENGTH,
    truncation=True,
    return_tensors="pt",
  )
  pixels = inputs["pixel_values"].double()
  output = model.double()(pixel_values=pixels, input_ids=inputs["input_ids"])
  return output.image_embeds, output.text_embeds, captions


def by_transformers(folder, model, words, pad: str, captions=CAPTIONS) -> tuple:
  """Computes embeddings with a folder's own processor."""
  process = transformers.AutoImageProcessor.from_pretrained(folder)
  pixels = process(
    images=[Image.open(io.BytesIO(x)) for x in photos()], return_tensors="pt"
  )["pixel_values"]
  words = transformers.PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token=pad
  )
  ids = words(
    list(captions),
    padding="max_length",
    max_length=LENGTH,
    truncation=True,
    return_tensors="pt",
  )["input_ids"]
  output = model.double()(pixel_values=pixels.double(), input_ids=ids)
  return output.image_embeds, output.text_embeds


def open_clip(folder: pathlib.Path) -> tuple | None:
  """Writes OpenCLIP's ViT; None if the library is missing."""
  library = optional.load("open_clip.model")
  if library is None:
    return None
  words, vocab_size = tokenizer({"!": 0, "<unk>": 1}, START, END)
  shape = dict(layers=2, width=16, mlp_ratio=1.5)
  vision = shape | dict(head_width=4, patch_size=8, image_size=SIZE)
  text = shape | dict(heads=4, vocab_size=vocab_size, context_length=LENGTH)
  model = randomized(library.CLIP(12, vision, text))
  save_open_clip(folder, model, words, vision, text)
  words.enable_padding(pad_id=0, length=LENGTH)
  words.enable_truncation(LENGTH)
  ids = torch.tensor([x.ids for x in words.encode_batch(CAPTIONS)])
  return by_open_clip(model, ids)


def open_clip_captions(folder: pathlib.Path) -> tuple | None:
  """Writes OpenCLIP's ViT that cleans, and whose end token has a small id."""
  library = optional.load("open_clip.model")
  if library is None:
    return None
  words, vocab_size = tokenizer({"!": 0, "<unk>": 1, "a": 2, END: 3}, None, END)
  shape = dict(layers=2, width=16, mlp_ratio=1.5)
  vision = shape | dict(head_width=4, patch_size=8, image_size=SIZE)
  text = shape | dict(heads=4, vocab_size=vocab_size, context_length=LENGTH)
  text |= dict(pool_type="eos", eos_id=3, hf_tokenizer_name="tokenizer.json")
  text |= dict(tokenizer_kwargs={"clean": "canonicalize"})
  model = randomized(library.CLIP(12, vision, text))
  save_open_clip(folder, model, words, vision, text)
  settings = dict(tokenizer_class="PreTrainedTokenizerFast", pad_token="!")
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  encode = optional.load("open_clip.tokenizer").HFTokenizer(
    str(folder), context_length=LENGTH, **text["tokenizer_kwargs"]
  )
  return *by_open_clip(model, encode(RAW_CAPTIONS)), RAW_CAPTIONS


def open_clip_clipa(folder: pathlib.Path) -> tuple | None:
  """Writes OpenCLIP's CLIPA, whose tokenizer's last token becomes padding."""
  special = {"[PAD]": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3}
  text = open_clip_cases.FAMILIES["CLIPA"][1] | dict(
    hf_tokenizer_name="tokenizer.json",
    tokenizer_kwargs={"strip_sep_token": True},
  )
  settings = dict(pad_token="[PAD]", sep_token="[SEP]", cls_token="[CLS]")
  ends = ("[CLS]", "[SEP]")
  return by_family(folder, "CLIPA", special, ends, text, settings)


def open_clip_roberta(folder: pathlib.Path) -> tuple | None:
  """Writes OpenCLIP's model with a RoBERTa, whose padding has the id 1.

  Its name is none of transformers': the tests say how large it is.
  """
  text = open_clip_cases.FAMILIES["RoBERTa"][1] | dict(
    hf_tokenizer_name="tokenizer.json", hf_model_name="tiny-roberta"
  )
  settings = dict(pad_token="<pad>", eos_token="</s>", bos_token="<s>")
  ends = ("<s>", "</s>")
  return by_family(folder, "RoBERTa", ROBERTA, ends, text, settings)


def open_clip_nllb(folder: pathlib.Path) -> tuple | None:
  """Writes OpenCLIP's model with SigLIP's ViT and NLLB's encoder.

  Captions begin with the token of their language.
  """
  text = open_clip_cases.FAMILIES["NLLB, SigLIP"][1] | dict(
    hf_tokenizer_name="tokenizer.json", hf_model_name="tiny-nllb"
  )
  special = ROBERTA | {"eng_Latn": 4}
  settings = dict(pad_token="<pad>", eos_token="</s>")
  ends = ("eng_Latn", "</s>")
  return by_family(folder, "NLLB, SigLIP", special, ends, text, settings)


def by_clip_text(folder: pathlib.Path) -> tuple | None:
  """Writes one of OpenCLIP's models with CLIP's text tower."""
  family = CLIP_TEXTS[folder.name]
  text = open_clip_cases.FAMILIES[family][1] | dict(
    hf_tokenizer_name="tokenizer.json"
  )
  special, ends = {"!": 0, "<unk>": 1}, (START, END)
  return by_family(folder, family, special, ends, text, dict(pad_token="!"))


def by_family(folder, family, special, ends, text, settings) -> tuple | None:
  """Writes one of OpenCLIP's models with a tokenizer of transformers.

  A tower of timm is named after the folder: the tests say how large it is.
  """
  library = optional.load("open_clip.tokenizer")
  if library is None:
    return None
  words, vocab_size = tokenizer(special, *ends)
  size = open_clip_cases.case(family).inputs["image"].shape[1]
  vision = open_clip_cases.FAMILIES[family][0] | dict(image_size=size)
  if "timm_model_name" in vision:
    vision["timm_model_name"] = folder.name
  if "vocab_size" in text:
    text |= dict(vocab_size=vocab_size)
  text |= dict(context_length=LENGTH)
  model = randomized(open_clip_cases.make(family, text))
  save_open_clip(folder, model, words, vision, text)
  settings = settings | dict(tokenizer_class="PreTrainedTokenizerFast")
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  encode = library.HFTokenizer(
    str(folder), context_length=LENGTH, **text.get("tokenizer_kwargs", {})
  )
  return *by_open_clip(model, encode(CAPTIONS), size), CAPTIONS


MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]


def save_open_clip(folder, model, words, vision, text) -> None:
  """Writes OpenCLIP's files."""
  tensors = {k: v.contiguous() for k, v in model.state_dict().items()}
  folder.mkdir(parents=True)
  save_file(tensors, folder / "open_clip_model.safetensors")
  preprocess = dict(
    size=vision["image_size"],
    mode="RGB",
    mean=MEAN,
    std=STD,
    interpolation="bicubic",
    resize_mode="shortest",
    fill_color=0,
  )
  whole = dict(embed_dim=12, vision_cfg=vision, text_cfg=text)
  (folder / "open_clip_config.json").write_text(
    json.dumps(dict(model_cfg=whole, preprocess_cfg=preprocess), indent=1)
  )
  words.save(str(folder / "tokenizer.json"))


def by_open_clip(model, ids, size=SIZE) -> tuple:
  """Computes embeddings as OpenCLIP does."""
  pixels = []
  for photo in map(io.BytesIO, photos()):
    image = Image.open(photo)
    shorter = min(image.size)
    width, height = (int(size * x / shorter) for x in image.size)
    left, top = (round((x - size) / 2) for x in (width, height))
    image = image.resize((width, height), Image.BICUBIC)
    image = image.crop((left, top, left + size, top + size))
    pixels.append((np.asarray(image) / 255 - MEAN) / STD)
  model = model.double()
  pixels = torch.tensor(np.stack(pixels).transpose(0, 3, 1, 2))
  return model.encode_image(pixels), model.encode_text(ids)


def write(name: str, make, shapes=SHAPES) -> None:
  """Writes a folder, and what the library computes from it."""
  folder = OUT / name
  shutil.rmtree(folder, ignore_errors=True)
  torch.manual_seed(0)
  with torch.no_grad():
    embeddings = make(folder)
  if embeddings is None:
    return
  *embeddings, captions = (*embeddings, CAPTIONS)[:3]
  image, text = (
    torch.nn.functional.normalize(x, dim=-1).numpy() for x in embeddings
  )
  jpegs = {
    f"photo{i}": np.frombuffer(x, np.uint8)
    for i, x in enumerate(photos(shapes))
  }
  np.savez_compressed(
    folder / "expected.npz",
    captions=captions,
    image=np.float32(image),
    text=np.float32(text),
    temperature=TEMPERATURE,
    **jpegs,
  )
  print(f"{folder}: {sum(x.stat().st_size for x in folder.iterdir())} bytes")


def main() -> None:
  """Writes all folders, or those that are named."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  makers = (hf_clip, hf_clip_added, hf_siglip, hf_siglip_t5)
  makers += (open_clip, open_clip_captions, open_clip_clipa, open_clip_roberta)
  makers += (open_clip_nllb,)
  by_name = {f.__name__: f for f in makers}
  by_name |= dict.fromkeys(CLIP_TEXTS, by_clip_text)
  parser.add_argument("names", nargs="*", default=[*by_name])
  transformers.logging.set_verbosity_error()
  for name in parser.parse_args().names:
    write(name, by_name[name])


if __name__ == "__main__":
  main()
