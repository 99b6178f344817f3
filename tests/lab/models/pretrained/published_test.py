"""Models as their libraries publish them: what is read, and what is computed.

`golden/published` holds tiny models in their libraries' own files, and what the
libraries compute from JPEG files and captions.
"""

import functools
import json
import math
import shutil
import subprocess

import jax
import jpeg
import make_captioned
import numpy as np
import pytest
from repository import CLIP, PUBLISHED
from safetensors import numpy as safetensors
import tokenizers

from nuclr_jax.lab.data.embeddings import (
  THUMBNAIL,
  open_embeddings,
  read_column,
)
from nuclr_jax.lab.export import (
  embedder_of_config,
  exported,
  write_embeddings,
  write_model,
)
from nuclr_jax.lab.export.model import LAYOUTS
from nuclr_jax.lab.files import bucket
from nuclr_jax.lab.models.layers import MEAN, STD
from nuclr_jax.lab.models.pretrained import (
  open_clip,
  read_published,
  timm_towers,
)
from nuclr_jax.lab.report import subject
from nuclr_jax.lab.train import loop, untrained
from nuclr_jax.lab.user_files.items import Item

FOLDERS = sorted(x for x in PUBLISHED.iterdir() if x.is_dir())
SIGLIP_T5 = PUBLISHED / "hf_siglip_t5"
# Its export brings nothing that that of hf_siglip does not, and the exports of
# OpenCLIP's other families are tested in lab/export.
FAMILIES = ("nllb", "coca", "eva02", "pe_core", "convnext", "vitamin")
EXPORTED = [
  x
  for x in FOLDERS
  if x not in (SIGLIP_T5, *(PUBLISHED / f"open_clip_{x}" for x in FAMILIES))
]
# What only one library has, and what an export for the other says.
REFUSED = {
  ("hf_siglip", "open_clip"): "no image tower like this 'siglip_vit_b16': of",
  ("hf_siglip2_naflex", "open_clip"): "no image tower like 'naflex_vit'; choo",
  **{
    (f"open_clip_{x}", "hugging_face"): f"this {what}; choose --layout=open_cl"
    for x, what in (
      ("clipa", "image.pool, image.patch_bias, text.causal"),
      ("roberta", "text.head, text.pad_id"),
    )
  },
}


TINY = dict(width=16, layers=1, heads=4)
VIT = TINY | dict(patch=8, hidden=24)
SIGLIP_VIT = dict(VIT, width=12, hidden=18, activation="gelu")
TIMM = {
  "open_clip_nllb": dict(name="siglip_vit_b16") | SIGLIP_VIT,
  "open_clip_eva02": dict(name="eva", gated=True, rotary=4) | VIT,
  "open_clip_pe_core": dict(name="perception_encoder", rotary=4, pool_heads=2)
  | VIT,
  "open_clip_convnext": dict(name="convnext", width=4, stages=(1, 1, 1, 1)),
  "open_clip_vitamin": dict(name="vitamin", stem=8, stem_blocks=(1, 2)) | TINY,
}


@pytest.fixture(autouse=True)
def tiny_names(monkeypatch):
  """The towers of timm and transformers that OpenCLIP's folders name."""
  for name, tower in TIMM.items():
    monkeypatch.setitem(timm_towers.TOWERS, name, tower)
  for name, hidden in (("roberta", 64), ("nllb", 24)):
    tower = dict(name=name, hidden=hidden, **TINY)
    monkeypatch.setitem(open_clip.HF_TEXTS, f"tiny-{name}", (tower, 30))


def items(expected):
  """The photos and captions, one pair after the other."""
  count = len(expected["captions"])
  photos = (expected[f"photo{i}"].tobytes() for i in range(count))
  pairs = zip(photos, expected["captions"], strict=True)
  return [
    Item(str(i), "x", photo, [str(x)]) for i, (photo, x) in enumerate(pairs)
  ]


@functools.cache
def expected_of(folder):
  with np.load(folder / "expected.npz") as content:
    return dict(content)


class TestComputed:
  @jpeg.golden_pixels
  @pytest.mark.parametrize("folder", FOLDERS, ids=lambda x: x.name)
  def test_from_files_to_embeddings(self, folder, tmp_path):
    """The library's own processor, tokenizer and float64 model agree."""
    expected = expected_of(folder)
    config = untrained.config_of_published(folder)
    with embedder_of_config(config) as opened:
      write_embeddings(
        opened, items(expected), tmp_path / "out", thumbnails=True
      )
    found = open_embeddings(tmp_path / "out")
    np.testing.assert_allclose(found.image, expected["image"], atol=2e-6)
    np.testing.assert_allclose(found.text, expected["text"], atol=2e-6)
    np.testing.assert_allclose(
      config["objective"]["temperature"], expected["temperature"], rtol=1e-6
    )

  def test_thumbnails(self, tmp_path):
    """A page can show the images of a folder of embeddings."""
    expected = expected_of(CLIP)
    config = untrained.config_of_published(CLIP)
    with embedder_of_config(config) as opened:
      write_embeddings(
        opened, items(expected), tmp_path / "out", thumbnails=True
      )
      write_embeddings(opened, items(expected), tmp_path / "without")
    assert read_column(tmp_path / "without", THUMBNAIL) is None
    pairs = subject.from_files(str(tmp_path / "out"), temperature=0.1)
    shown = pairs.images(np.array([2, 0]))
    assert shown.shape == (2, 96, 96, 3) and shown.dtype == np.uint8
    # The third photo is a square, so its small copy is much like it.
    square = subject.from_files(str(tmp_path / "without"), temperature=0.1)
    assert square.images(np.array([0])) is None
    assert np.abs(np.float32(shown[0].mean()) - np.float32(shown[1].mean())) > 1


def export(folder, out, layout):
  """Exports a published model with its own preprocessing, as `nuclr export`."""
  config = untrained.config_of_published(folder)
  parts, _, state = untrained.open_untrained(config, pairs=False)
  return write_model(exported(parts, state), out, layout=layout)


class TestExported:
  @jpeg.golden_pixels
  @pytest.mark.parametrize("layout", LAYOUTS)
  @pytest.mark.parametrize("folder", EXPORTED, ids=lambda x: x.name)
  def test_reads_back(self, folder, layout, tmp_path, caplog):
    """What a library wrote, and we wrote again, computes the same."""
    if message := REFUSED.get((folder.name, layout)):
      with pytest.raises(ValueError, match=message):
        export(folder, tmp_path / "out", layout)
      assert not list(tmp_path.iterdir())
      return
    out = export(folder, tmp_path / "out", layout)
    expected = expected_of(folder)
    config = untrained.config_of_published(out)
    assert config["objective"]["temperature"] == pytest.approx(0.03)
    with embedder_of_config(config) as opened:
      write_embeddings(opened, items(expected), tmp_path / "embeddings")
    found = open_embeddings(tmp_path / "embeddings")
    # The libraries crop the first photo differently.
    is_open_clip = folder.name.startswith("open_clip")
    other = is_open_clip != (layout == "open_clip")
    first = int(other and config["data"]["resize"] != "squash")
    # And OpenCLIP repairs captions, which a folder for Hugging Face records.
    assert config["data"].get("repair", False) == (
      is_open_clip or layout == "open_clip"
    )
    assert ("repair" in caplog.text) == other
    np.testing.assert_allclose(
      found.image[first:], expected["image"][first:], atol=2e-6
    )
    np.testing.assert_allclose(found.text, expected["text"], atol=2e-6)

  def test_digests_are_verified(self, tmp_path):
    out = export(CLIP, tmp_path / "out", "open_clip")
    weights = out / "open_clip_model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    config = untrained.config_of_published(out)
    with pytest.raises(ValueError, match="is damaged: open_clip_model"):
      untrained.open_untrained(config, pairs=False)

  def test_digests_of_others(self, tmp_path):
    """`sha256sum` writes a file of the name that ours have."""
    folder = shutil.copytree(CLIP, tmp_path / "x")
    command = "sha256sum * > SHA256SUMS"
    subprocess.run(command, cwd=folder, shell=True, check=True)
    config = untrained.config_of_published(folder)
    untrained.open_untrained(config, pairs=False)
    # One above is nobody's but the user's, whatever it says.
    (tmp_path / "SHA256SUMS").write_text("some files\n")
    untrained.open_untrained(config, pairs=False)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  model.safetensors\n")
    with pytest.raises(ValueError, match="model.safetensors has changed"):
      untrained.open_untrained(config, pairs=False)


class TestOpened:
  def test_parts_without_data(self):
    parts, _, state = untrained.open_untrained(
      untrained.config_of_published(CLIP), pairs=False
    )
    assert parts.evaluators == {"validation": [], "test": []}
    assert loop.readout(parts, state).temperature == pytest.approx(0.03)
    with pytest.raises(ValueError, match="were not opened"):
      parts.data.train.fetch(np.arange(2))

  def test_splits(self, tmp_path):
    rows = make_captioned.ROWS
    make_captioned.prepare(tmp_path, {"train": rows, "test": rows[:2]})
    make_captioned.prepare(tmp_path, {"train": rows}, name="Other")
    make_captioned.prepare(tmp_path, {"validation": rows}, name="Third")

    def splits(*names, key="test"):
      config = untrained.config_of_published(
        CLIP, data=names, data_dir=tmp_path
      )
      return config["data"]["train"], config["data"][key]

    assert splits("mine") == ("mine", ("mine=mine:test",))
    assert splits("other") == ("other", ("other=other:train",))
    # Queries for hubs and priors are those of the training split.
    assert splits("mine:test[:1]") == ("mine", ("mine=mine:test[:1]",))
    assert splits("mine:test", "other") == (
      "mine",
      ("mine=mine:test", "other=other:train"),
    )
    assert splits() == ("", ())
    # A validation split is scored as such, also where there is no other.
    assert splits("third", key="validation") == (
      "third:validation",
      ("third=third:validation",),
    )
    assert splits("third") == ("third:validation", ())
    # Popularities are those of the split that is named.
    for name, expected in (("mine:test", "mine:test"), ("mine", "mine")):
      found = untrained.train_of([name], named=True, data_dir=tmp_path)
      assert found == expected
    half = "third:validation[:50%]"
    assert splits(half, key="validation") == (
      "third:validation[:50%]",
      (f"third={half}",),
    )

  def test_scores(self, tmp_path):
    """Recall of a published model is that of its embeddings."""
    rows = [(make_captioned.photo(i), [f"a photo of {i}"]) for i in range(4)]
    rows[0][1].append("two cats on the mat")
    make_captioned.prepare(tmp_path, {"test": rows})
    parts, mesh, state = untrained.open_untrained(
      untrained.config_of_published(CLIP, data=["mine"], data_dir=tmp_path),
      data_dir=tmp_path,
    )
    with jax.set_mesh(mesh):
      scores = loop.evaluate(parts, mesh, state)
      pairs = subject.from_state(parts, mesh, state).pairs
    image = pairs.image[[0, 2, 3, 4]]  # of five captions, two are of the first
    sim = pairs.text @ image.T
    own = np.array([0, 0, 1, 2, 3])
    # An image that is as similar as the right one counts as an error.
    right = sim[np.arange(5), own]
    hits = np.sum(sim >= right[:, None], axis=1) == 1
    assert scores["test/mine/text_to_image/recall@1"] == hits.mean()

  def test_labelled_folder_alone(self, tmp_path):
    for name in ("dog", "cat"):
      folder = tmp_path / "pets" / name
      folder.mkdir(parents=True)
      for i in range(3):
        (folder / f"{i}.jpg").write_bytes(make_captioned.photo(i))
    config = untrained.config_of_published(
      CLIP, zero_shot=[f"pets={tmp_path / 'pets'}"], data_dir=tmp_path
    )
    parts, mesh, state = untrained.open_untrained(config, data_dir=tmp_path)
    with jax.set_mesh(mesh):
      scores = loop.evaluate(parts, mesh, state)
    assert scores["test/zero_shot_pets/top1"] == 0.5  # the same photos in both


def write_files(
  folder, spec, *, name="config.json", processor=None, words=None
):
  """Writes the files of a published model, its weights apart."""
  folder.mkdir(exist_ok=True)
  contents = {
    name: spec,
    "preprocessor_config.json": processor,
    "tokenizer_config.json": words or {},
  }
  for file, content in contents.items():
    if content is not None:
      (folder / file).write_text(json.dumps(content))
  scale = {"logit_scale": np.array(np.log(100), np.float32)}
  safetensors.save_file(scale, folder / "model.safetensors")
  return folder


CROPPED = dict(size=224, crop_size=224, do_center_crop=True, resample=3)
SQUASHED = dict(size=dict(height=256, width=256), resample=2)
LARGE = dict(hidden_size=1024, intermediate_size=4096, num_attention_heads=16)


class TestConfigs:
  """The numbers are those of the published files."""

  def test_openai_clip(self, tmp_path):
    """openai/clip-vit-large-patch14, whose files repeat the text's sizes."""
    text = dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12)
    vision = dict(LARGE, num_hidden_layers=24, patch_size=14)
    spec = dict(
      model_type="clip",
      projection_dim=768,
      text_config_dict=text,
      vision_config=vision,
    )
    found = read_published(write_files(tmp_path / "x", spec, processor=CROPPED))
    assert found.temperature == pytest.approx(0.01)
    blocks = dict(eps=1e-5, activation="quick_gelu")
    assert found.model == dict(
      name="towers",
      pretrained=str(tmp_path / "x"),
      dim=768,
      projection_bias=False,
      image=dict(
        name="clip_vit_b32",
        patch=14,
        width=1024,
        layers=24,
        heads=16,
        hidden=4096,
        mean=MEAN,
        std=STD,
        **blocks,
      ),
      text=dict(
        name="clip_text",
        max_length=77,
        width=768,
        layers=12,
        heads=12,
        hidden=3072,
        **blocks,
      ),
    )
    assert found.data == dict(
      name="image_text",
      tokenizer=str(tmp_path / "x"),
      size=224,
      resize="crop",
      kernel="bicubic",
      length=77,
      clean=False,
    )

  @pytest.mark.parametrize("size", [224, 336])
  def test_a_processor_of_another_size(self, tmp_path, caplog, size):
    """Files of clip-vit-large-patch14-336 with the smaller one's processor."""
    vision = dict(LARGE, num_hidden_layers=24, patch_size=14, image_size=size)
    spec = dict(model_type="clip", projection_dim=768, vision_config=vision)
    found = read_published(write_files(tmp_path / "x", spec, processor=CROPPED))
    assert found.data["size"] == 224
    said = "prepared at 224 pixels, and its config says 336" in caplog.text
    assert said == (size == 336)

  def test_an_adapter_changes_the_weights(self, tmp_path):
    vision = dict(LARGE, num_hidden_layers=24, patch_size=14)
    spec = dict(model_type="clip", projection_dim=768, vision_config=vision)
    folder = write_files(tmp_path / "x", spec, processor=CROPPED)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ValueError, match="has an adapter_config.json: its wei"):
      read_published(folder)

  def test_laion_clip(self, tmp_path):
    """OpenCLIP's models in Hugging Face's layout have exact GELUs."""
    act = dict(hidden_act="gelu")
    spec = dict(model_type="clip", text_config=act, vision_config=act)
    found = read_published(write_files(tmp_path / "x", spec, processor=CROPPED))
    for side in ("image", "text"):
      assert found.model[side]["activation"] == "gelu"
    assert found.model["image"]["patch"] == 32
    assert (found.model["text"]["heads"], found.model["dim"]) == (8, 512)

  @pytest.mark.parametrize(
    ("text", "end"),
    [
      (dict(eos_token_id=2), {}),  # the largest, whatever it is
      (dict(eos_token_id=49407), {}),
      (dict(eos_token_id=49407, vocab_size=49409), dict(end_id=49407)),
      (dict(vocab_size=49409), dict(end_id=49407)),  # what no file needs to say
      (dict(eos_token_id=0, vocab_size=9), dict(end_id=0)),
    ],
  )
  def test_end_of_clip(self, tmp_path, text, end):
    spec = dict(model_type="clip", text_config=text)
    found = read_published(write_files(tmp_path / "x", spec, processor=CROPPED))
    text = found.model["text"]
    assert {k: x for k, x in text.items() if k == "end_id"} == end

  def test_metaclip_2(self, tmp_path):
    """facebook/metaclip-2-worldwide-huge-quickgelu: an end with the id 2."""
    text = dict(vocab_size=901_629, eos_token_id=2, pad_token_id=1)
    spec = dict(model_type="metaclip_2", text_config=text)
    found = read_published(write_files(tmp_path / "x", spec, processor=CROPPED))
    assert found.model["text"]["end_id"] == 2
    assert found.model["text"]["name"] == "clip_text"
    assert found.data["resize"] == "crop"

  @pytest.mark.parametrize(
    ("processor", "mean", "std"),
    [
      (dict(do_normalize=False), (0, 0, 0), (1, 1, 1)),
      (
        dict(rescale_factor=1 / 127.5),
        [x / 2 for x in MEAN],
        [x / 2 for x in STD],
      ),
      (
        dict(do_rescale=False, image_mean=[1, 2, 3], image_std=51),
        (1 / 255, 2 / 255, 3 / 255),
        (0.2, 0.2, 0.2),
      ),
      (
        dict(do_rescale=False, do_normalize=False),
        (0, 0, 0),
        (1 / 255, 1 / 255, 1 / 255),
      ),
      # The defaults of SigLIP's processor, as of any model's.
      (
        dict(
          image_processor_type="SiglipImageProcessorFast",
          do_center_crop=False,
          do_convert_rgb=False,
        ),
        *[(0.5, 0.5, 0.5)] * 2,
      ),
    ],
  )
  def test_pixels(self, tmp_path, processor, mean, std):
    spec = dict(model_type="clip")
    processor = dict(size=[224, 224], crop_size=224, resample=3) | processor
    folder = write_files(tmp_path / "x", spec, processor=processor)
    image = read_published(folder).model["image"]
    np.testing.assert_allclose(image["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(image["std"], std, rtol=1e-12)

  def test_the_processor_that_transformers_5_left(self, tmp_path):
    """It wins over an older file, which may be that of the first model."""
    spec = dict(model_type="clip")
    folder = write_files(tmp_path / "x", spec, processor=CROPPED)
    path = folder / "processor_config.json"
    path.write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert read_published(folder).data["size"] == 224
    square = {"shortest_edge": 96, "longest_edge": None}
    new = CROPPED | dict(size=square, crop_size=96)
    path.write_text(json.dumps({"image_processor": new}))
    assert read_published(folder).data["size"] == 96

  @pytest.mark.parametrize("longest", [None, 10**30, 1e30, 64, "absent"])
  def test_padding_and_length_of_siglip(self, tmp_path, longest):
    """Of a tokenizer.json alone, as transformers 5 writes it."""
    text = dict(vocab_size=32_000, pad_token_id=7)
    spec = dict(model_type="siglip", text_config=text)
    words = dict(tokenizer_class="SiglipTokenizer", pad_token="</s>")
    if longest != "absent":
      words["model_max_length"] = longest
    folder = write_files(tmp_path / "x", spec, processor=SQUASHED, words=words)
    ids = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    model = tokenizers.models.WordLevel(ids, "<unk>")
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
    data = read_published(folder).data
    assert (data["length"], data["pad_id"]) == (64, 1)
    assert data["clean"] == "remove_punctuation"

  def test_siglip_2(self, tmp_path, caplog):
    """google/siglip2-large-patch16-256."""
    blocks = dict(LARGE, num_hidden_layers=24)
    spec = dict(
      model_type="siglip",
      text_config=dict(blocks, vocab_size=256_000),
      vision_config=dict(blocks, image_size=256),
    )
    words = dict(
      tokenizer_class="GemmaTokenizerFast",
      pad_token={"content": "<pad>"},
      added_tokens_decoder={"0": {"content": "<pad>"}},
      model_max_length=64,
    )
    folder = write_files(tmp_path / "x", spec, processor=SQUASHED, words=words)
    found = read_published(folder)
    assert found.model["projected"] == ("text",)
    assert found.model["dim"] == found.model["image"]["width"] == 1024
    assert found.model["text"]["activation"] == "gelu_tanh"
    data = dict(size=256, resize="squash", kernel="bilinear")
    data |= dict(length=64, clean="lower", pad_id=0)
    assert data.items() <= found.data.items()
    assert "pads left with a GemmaTokenizer then" in caplog.text
    assert "keeps upper case with a GemmaTokenizer" in caplog.text
    caplog.clear()
    words |= dict(padding_side="right", do_lower_case=True)
    write_files(folder, spec, processor=SQUASHED, words=words)
    read_published(folder)
    assert not caplog.text

  OPEN_CLIP_TEXT = dict(
    context_length=77, vocab_size=49408, width=512, heads=8, layers=12
  )

  def open_clip(self, folder, vision, text=None, preprocess=None, **more):
    text = text or self.OPEN_CLIP_TEXT
    model = dict(embed_dim=1024, vision_cfg=vision, text_cfg=text) | more
    preprocess = preprocess or dict(resize_mode="squash")
    spec = dict(model_cfg=model, preprocess_cfg=preprocess)
    return read_published(
      write_files(folder / "x", spec, name="open_clip_config.json")
    )

  def test_open_clip_resnet(self, tmp_path):
    """OpenAI's RN50, in OpenCLIP's layout."""
    vision = dict(image_size=224, layers=[3, 4, 6, 3], width=64)
    found = self.open_clip(tmp_path, vision, quick_gelu=True)
    image = dict(name="clip_resnet50", stages=(3, 4, 6, 3), width=64)
    assert image.items() <= found.model["image"].items()
    assert "activation" not in found.model["image"]
    assert found.model["projected"] == ("text",)
    assert not found.model["projection_bias"]
    assert found.model["text"]["activation"] == "quick_gelu"
    assert found.data["resize"] == "squash"
    # It has no tokenizer of its own.
    assert found.data["tokenizer"] == "openai/clip-vit-base-patch32"

  @pytest.mark.parametrize(
    "name",
    [
      *("memory://x/..", "s3://other/x", "gs://other/x", "hf://org/name"),
      *("/etc", "~/secrets", "../words", "..", "a/../b", "a/b/c", "C:\\x"),
      *("", "words", 5, ["google/t5"], None),
    ],
  )
  def test_a_tokenizer_is_named_on_the_hub(self, tmp_path, monkeypatch, name):
    """Never by a path, nor in a bucket: nothing of the kind is opened."""
    (tmp_path / "words").mkdir()  # a name on the hub could be a folder here
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bucket, "open_system", None)
    text = self.OPEN_CLIP_TEXT | {"hf_tokenizer_name": name}
    vision = dict(image_size=224, layers=[3, 4, 6, 3], width=64)
    wrong = "hf_tokenizer_name (is .* on the Hugg|must be a text)"
    with pytest.raises(ValueError, match=wrong):
      self.open_clip(tmp_path, vision, text)

  def test_open_clip_siglip(self, tmp_path):
    """ViT-SO400M-14-SigLIP-384."""
    vision = dict(
      image_size=384,
      timm_model_name="vit_so400m_patch14_siglip_384",
      timm_pool="map",
      timm_proj="none",
    )
    text = dict(
      context_length=64,
      vocab_size=32_000,
      hf_tokenizer_name="timm/ViT-B-16-SigLIP",
      tokenizer_kwargs=dict(clean="canonicalize"),
      width=1152,
      heads=16,
      layers=27,
      mlp_ratio=3.7362,
      no_causal_mask=True,
      proj_bias=True,
      pool_type="last",
      norm_kwargs=dict(eps=1e-6),
    )
    found = self.open_clip(tmp_path, vision, text, embed_dim=1152)
    sizes = dict(width=1152, layers=27, heads=16, hidden=4304)
    for side in ("image", "text"):
      assert sizes.items() <= found.model[side].items()
    assert found.model["image"]["patch"] == 14
    assert found.model["text"]["activation"] == "gelu"
    data = dict(length=64, clean="canonicalize", pad_id=1, size=384)
    data |= dict(tokenizer="timm/ViT-B-16-SigLIP")
    assert data.items() <= found.data.items()


def forged(tmp_path, source, file, keys, value):
  """A copy of a published model in which one value is another."""
  folder = tmp_path / "forged"
  shutil.copytree(source, folder)
  spec = inner = json.loads((folder / file).read_text())
  for key in keys[:-1]:
    inner = inner[key]
  inner[keys[-1]] = value
  (folder / file).write_text(json.dumps(spec))
  return folder


OPEN_CLIP = PUBLISHED / "open_clip"
CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WORDS, OPEN = "tokenizer_config.json", "open_clip_config.json"
NO_SIZES = [math.nan, math.inf, -1, 0, 1e308, 2.5, True, "12", None, {}, [1]]
NO_SIZES += [10**6, 2**63, 10**30]
SIZES = [
  *(
    (CLIP, CONFIG, (side, key))
    for side in ("text_config", "vision_config")
    for key in (
      "hidden_size",
      "num_hidden_layers",
      "num_attention_heads",
      "intermediate_size",
    )
  ),
  (CLIP, CONFIG, ("text_config", "max_position_embeddings")),
  (CLIP, CONFIG, ("vision_config", "patch_size")),
  (CLIP, CONFIG, ("projection_dim",)),
  *(
    (OPEN_CLIP, OPEN, ("model_cfg", "text_cfg", key))
    for key in ("context_length", "width", "heads", "layers")
  ),
  *(
    (OPEN_CLIP, OPEN, ("model_cfg", "vision_cfg", key))
    for key in ("width", "patch_size", "head_width")
  ),
  (CLIP, PROCESSOR, ("size", "shortest_edge")),
  (CLIP, PROCESSOR, ("crop_size", "height")),
]


class TestForged:
  """Whoever publishes a model may write anything into its files."""

  @pytest.mark.parametrize(("source", "file", "keys"), SIZES)
  def test_sizes(self, tmp_path, source, file, keys):
    for i, value in enumerate(NO_SIZES):
      folder = forged(tmp_path / str(i), source, file, keys, value)
      with pytest.raises(ValueError, match=keys[-1]) as error:
        untrained.config_of_published(folder)
      assert file in str(error.value)

  @pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
      (("vision_config", "num_hidden_layers"), 3, "2 layers .* and 3 in the"),
      (("text_config", "num_hidden_layers"), 1_000, "2 layers .* and 1,000"),
      (("text_config", "max_position_embeddings"), 77, "of 9 tokens, .* 77"),
      (("vision_config", "layer_norm_eps"), 1e30, "layer_norm_eps must be"),
      (("text_config", "layer_norm_eps"), 1e-320, "layer_norm_eps must be"),
    ],
  )
  def test_the_weights_are_of_another_tower(
    self, tmp_path, keys, value, message
  ):
    folder = forged(tmp_path, CLIP, CONFIG, keys, value)
    with pytest.raises(ValueError, match=message):
      untrained.config_of_published(folder)

  @pytest.mark.parametrize("tower", ["vision", "text"])
  def test_one_array_is_no_layer(self, tmp_path, tower):
    keys = (f"{tower}_config", "num_hidden_layers")
    folder = forged(tmp_path, CLIP, CONFIG, keys, 1_000)
    tensors = safetensors.load_file(folder / "model.safetensors")
    layers = f"{tower}_model.encoder.layers"
    tensors |= {
      f"{layers}.{i}.layer_norm1.weight": np.zeros(1) for i in range(1_000)
    }
    safetensors.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="2 layers in the weights, and 1,000"):
      untrained.config_of_published(folder)

  @pytest.mark.parametrize(
    ("source", "file", "keys", "value", "message"),
    [
      (
        OPEN_CLIP,
        OPEN,
        ("model_cfg", "vision_cfg", "image_size"),
        800_000,
        "image_size must be a whole number from 1 to 4,096",
      ),
      (
        OPEN_CLIP,
        OPEN,
        ("model_cfg", "vision_cfg", "image_size"),
        4_096,
        "262,144 patches, and the weights are for 10",
      ),
      (CLIP, PROCESSOR, ("image_std",), [0.2, 0, 0.2], "image_std must be"),
      (CLIP, PROCESSOR, ("image_std",), [0.2] * 4, "must be three numbers"),
      (CLIP, PROCESSOR, ("image_mean",), math.nan, "image_mean must be"),
      (CLIP, PROCESSOR, ("rescale_factor",), 0, "rescale_factor must be"),
      (CLIP, PROCESSOR, ("do_resize",), "no", "do_resize must be True or"),
      (CLIP, WORDS, ("model_max_length",), -1, "model_max_length must be"),
      (CLIP, WORDS, ("added_tokens_decoder",), [1], "added_tokens_decoder"),
      (CLIP, WORDS, ("pad_token",), 5, "pad_token must be"),
      (CLIP, CONFIG, ("text_config",), [1], "text_config must be a mapping"),
      (CLIP, CONFIG, ("text_config", "vocab_size"), 2**31, "vocab_size must"),
    ],
  )
  def test_other_values(self, tmp_path, source, file, keys, value, message):
    folder = forged(tmp_path, source, file, keys, value)
    with pytest.raises(ValueError, match=message):
      untrained.config_of_published(folder)

  @pytest.mark.parametrize("file", [CONFIG, PROCESSOR, WORDS])
  def test_nested_too_deep(self, tmp_path, file):
    shutil.copytree(CLIP, tmp_path / "x")
    (tmp_path / "x" / file).write_text('{"a": ' * 100_000)
    message = f"{file} cannot be read: .*nested too deep"
    with pytest.raises(ValueError, match=message):
      untrained.config_of_published(tmp_path / "x")

  @pytest.mark.parametrize(
    "scale", [-1000.0, 100.0, math.nan, math.inf, [[1.0, 2.0]]]
  )
  def test_temperature(self, tmp_path, scale):
    folder = shutil.copytree(CLIP, tmp_path / "x")
    tensors = safetensors.load_file(folder / "model.safetensors")
    tensors["logit_scale"] = np.array(scale, np.float32)
    safetensors.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="logit_scale must be one number from"):
      untrained.config_of_published(folder)


class TestErrors:
  def read(self, tmp_path, spec, **files):
    read_published(write_files(tmp_path / "x", spec, **files))

  def test_only_the_file_with_the_error_is_named(self, tmp_path):
    processor = CROPPED | dict(do_resize=False)
    with pytest.raises(ValueError, match="do_resize is false") as error:
      self.read(tmp_path, dict(model_type="clip"), processor=processor)
    assert str(error.value).count("cannot be read") == 1
    assert "preprocessor_config.json cannot be read" in str(error.value)
    folder = write_files(tmp_path / "y", dict(model_type="clip"))
    (folder / "preprocessor_config.json").unlink(missing_ok=True)
    with pytest.raises(
      ValueError, match="none of preprocessor_config"
    ) as error:
      read_published(folder)
    assert "cannot be read" not in str(error.value)

  @pytest.mark.parametrize(
    ("spec", "processor", "message"),
    [
      (dict(model_type="llava"), CROPPED, "is a model of type 'llava'; .*clip"),
      ({}, CROPPED, "is a model of type None"),
      (
        dict(model_type="siglip", vision_config=dict(vision_use_head=False)),
        SQUASHED,
        "no attention pooling",
      ),
      (
        dict(model_type="clip", text_config=dict(hidden_act="relu")),
        CROPPED,
        "hidden_act is 'relu'; our towers have .*gelu",
      ),
      (dict(model_type="clip"), None, "none of preprocessor_config.json"),
      (
        dict(model_type="clip"),
        CROPPED | dict(size=256),
        "size 256, crop_size 224",
      ),
      (dict(model_type="clip"), CROPPED | dict(resample=1), "and resample 1"),
      (
        dict(model_type="clip"),
        CROPPED | dict(do_resize=False),
        "do_resize is",
      ),
      (dict(model_type="clip"), CROPPED | dict(do_pad=True), "has .'do_pad'."),
      (
        dict(model_type="clip"),
        CROPPED | dict(size=dict(longest_edge=224)),
        "size {'longest_edge': 224}",
      ),
      (
        dict(model_type="clip"),
        CROPPED | dict(size=dict(height=224, width=200)),
        "size {'height': 224, 'width': 200}",
      ),
      (
        dict(model_type="siglip"),
        SQUASHED | dict(do_center_crop=True, crop_size=224),
        "crop_size 224, do_center_crop True",
      ),
      (
        dict(model_type="clip"),
        CROPPED | dict(image_processor_type="ConvNextImageProcessor"),
        "by a 'ConvNextImageProcessor'; .*CLIP",
      ),
      (
        dict(model_type="clip"),
        CROPPED | dict(image_mean=[0.5, 0.5]),
        "image_mean must be three numbers",
      ),
      *(
        (
          dict(model_type="clip", text_config=dict(eos_token_id=x)),
          CROPPED,
          "eos_token_id of text_config must be one of the 49408 ids",
        )
        for x in (None, [49407], 49408, -1)
      ),
      (
        dict(model_type="clip", text_config=dict(vocab_size=18)),
        CROPPED,
        "one of the 18 ids, .* got 49407, the default",
      ),
      (
        dict(model_type="clip"),
        CROPPED | dict(do_center_crop=False),
        "do_center_crop False",
      ),
      (
        dict(model_type="vision-text-dual-encoder"),
        CROPPED,
        "'vit' and 'bert' can be read",
      ),
    ],
  )
  def test_what_the_towers_do_not_have(
    self, tmp_path, spec, processor, message
  ):
    with pytest.raises(ValueError, match=message):
      self.read(tmp_path, spec, processor=processor)

  @pytest.mark.parametrize(
    ("words", "message"),
    [
      (dict(padding_side="left"), "padding_side is 'left'"),
      (dict(truncation_side="left"), "truncation_side is 'left'"),
      (
        dict(tokenizer_class="SiglipTokenizer", do_lower_case=False),
        "do_lower_case is false",
      ),
      (dict(pad_token="<pad>"), "none of tokenizer.json"),
    ],
  )
  def test_tokenizers(self, tmp_path, words, message):
    spec = dict(model_type="siglip")
    with pytest.raises(ValueError, match=message):
      self.read(tmp_path, spec, processor=SQUASHED, words=words)

  @pytest.mark.parametrize(
    ("text", "preprocess", "message"),
    [
      (dict(tokenizer_kwargs=dict(clean="x")), {}, "cleaned by 'x'; known"),
      (
        dict(tokenizer_kwargs=dict(clean="whitespace")),
        {},
        "own tokenizer keeps upper case",
      ),
      (
        dict(tokenizer_kwargs=dict(language="eng_Latn")),
        {},
        "tokenizer_kwargs has .'language'.",
      ),
      (dict(tokenizer_mode="clips"), {}, "text_cfg has .'tokenizer_mode'."),
      (dict(pool_type="first"), {}, "pool_type is 'first' in text_cfg"),
      (dict(proj_type="mlp"), {}, "proj_type is 'mlp'; it can be 'linear' or"),
      (dict(hf_model_name="x/y"), {}, "is transformers' 'x/y'; those that"),
      ({}, dict(resize_mode="longest"), "resize_mode is 'longest'"),
      ({}, dict(interpolation="nearest"), "interpolation is 'nearest'"),
      ({}, dict(mode="L"), "mode is 'L'"),
      ({}, dict(crop_pct=0.9), "preprocess_cfg has .'crop_pct'."),
    ],
  )
  def test_open_clip_inputs(self, tmp_path, text, preprocess, message):
    vision = dict(image_size=224, layers=[1], width=64)
    text = TestConfigs.OPEN_CLIP_TEXT | text
    with pytest.raises(ValueError, match=message):
      TestConfigs().open_clip(tmp_path, vision, text, preprocess=preprocess)

  def test_what_open_clip_may_leave_out(self, tmp_path):
    vision = dict(image_size=[96, 96], layers=[1], width=64, pool_type="tok")
    text = dict(tokenizer_kwargs=None, proj_type="linear")
    text |= TestConfigs.OPEN_CLIP_TEXT
    preprocess = dict(mean=None, std=0.5, interpolation="random", fill_color=9)
    found = TestConfigs().open_clip(
      tmp_path, vision, text, preprocess=preprocess
    )
    assert found.model["image"]["mean"] == MEAN
    assert found.model["image"]["std"] == (0.5, 0.5, 0.5)
    data = dict(size=96, kernel="bicubic", repair=True, clean="lower")
    assert data.items() <= found.data.items()

  @pytest.mark.parametrize(
    ("end_id", "message"),
    [
      (
        None,
        r"ends captions with id 17, .* of id 18, the largest; .*end_id=17",
      ),
      (3, r"ends captions with id 17, .* of id 3; set .*end_id=17"),
    ],
  )
  def test_another_end(self, end_id, message):
    """A feature that is not that of the end would be of no caption as a whole.

    So it was after transformers' first configs, and it is in theirs to this
    day: all captions with the added token have the same feature.
    """
    config = untrained.config_of_published(PUBLISHED / "hf_clip_added")
    found = config["model"]["text"].pop("end_id")
    assert found != config["data"]["vocab_size"] - 1
    message = message.replace("17", str(found)).replace("18", str(found + 1))
    if end_id is not None:
      config["model"]["text"]["end_id"] = end_id
    with pytest.raises(ValueError, match=message):
      untrained.open_untrained(config, pairs=False)

  def test_another_padding(self):
    """A RoBERTa that masks none of the padding would be of other texts."""
    config = untrained.config_of_published(PUBLISHED / "open_clip_roberta")
    config["model"]["text"]["pad_id"] = 0
    with pytest.raises(ValueError, match="the id 1, and .* roberta masks 0"):
      untrained.open_untrained(config, pairs=False)

  def test_no_end(self, tmp_path):
    """A tokenizer that adds no end token, for instance of add_eos = false."""
    config = untrained.config_of_published(CLIP)
    words = json.loads((CLIP / "tokenizer.json").read_text())
    words["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    config["data"]["tokenizer"] = str(tmp_path)
    with pytest.raises(ValueError, match="ends captions with no token of its"):
      untrained.open_untrained(config, pairs=False)

  @pytest.mark.parametrize(
    ("vision", "message"),
    [
      (dict(layers=12, width=768), "lacks 'patch_size'"),
      (
        dict(layers=12, width=768, patch_size=32, attentional_pool="parallel"),
        "attentional_pool is 'parallel'; our towers",
      ),
      (dict(timm_model_name="convnext_base"), "timm's 'convnext_base'"),
      (
        dict(timm_model_name="vit_tiny_patch16_siglip_224", timm_pool="map"),
        "with a SIZE of .'base', 'giantopt'",
      ),
    ],
  )
  def test_open_clip(self, tmp_path, vision, message):
    with pytest.raises(ValueError, match=message):
      TestConfigs().open_clip(tmp_path, vision)
