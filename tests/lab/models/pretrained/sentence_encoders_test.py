"""Published sentence encoders: what is read, computed, refused and trained.

`golden/sentence_encoders` was written by sentence-transformers itself
(`experiments.parity.sentence_encoders`), with what it computes in float64.
"""

import json
import shutil

import jax
import numpy as np
import pytest
import read_page
from repository import CLIP, GOLDEN
from safetensors import numpy as safetensors

from nuclr_jax import Batch
from nuclr_jax.lab import models
from nuclr_jax.lab.data.embeddings import (
  open_embeddings,
  open_lookup,
  open_texts,
)
from nuclr_jax.lab.export import embedder_of_config, write_texts
from nuclr_jax.lab.models.pretrained import read_published
from nuclr_jax.lab.report import popularity, subject
from nuclr_jax.lab.train import loop, untrained

ENCODERS = GOLDEN / "sentence_encoders"
FOLDERS = sorted(x for x in ENCODERS.iterdir() if x.is_dir())
MEAN = ENCODERS / "mean"
TOWER = dict(name="bert", width=16, layers=2, heads=4, hidden=24, max_length=20)
LETTERS = ["a dog", "two cats on the mat", "a dog", "the photo of a mat"]


def embedded(folder, texts, **changes):
  config = untrained.config_of_published(folder)
  with embedder_of_config(config, images=False, **changes) as embedder:
    return embedder.encode.text(texts)


class TestComputed:
  @pytest.mark.parametrize("folder", FOLDERS, ids=lambda x: x.name)
  def test_from_texts_to_embeddings(self, folder):
    """Tokens, pooling and norm are those of the library in float64."""
    with np.load(folder / "expected.npz") as expected:
      texts, right = expected["texts"].tolist(), expected["text"]
    found = embedded(folder, texts)
    np.testing.assert_allclose(found, right, atol=2e-6)
    norms = np.linalg.norm(right, axis=1)
    assert (folder.name == "max") == (np.abs(norms - 1).max() > 0.1)

  def test_a_vocabulary_alone(self, tmp_path):
    """`vocab.txt`, as BERT's first files are; [MASK] is a token of its own."""
    folder = with_vocabulary(shutil.copytree(MEAN, tmp_path / "x"))
    with np.load(MEAN / "expected.npz") as expected:
      texts, right = expected["texts"].tolist(), expected["text"]
    np.testing.assert_allclose(embedded(folder, texts), right, atol=2e-6)

  def test_weights_of_half_precision(self, tmp_path):
    folder = shutil.copytree(MEAN, tmp_path / "x")
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    safetensors.save_file(
      {key: x.astype(np.float16) for key, x in tensors.items()}, path
    )
    right = embedded(MEAN, LETTERS)
    np.testing.assert_allclose(embedded(folder, LETTERS), right, atol=1e-3)

  def test_padding_that_is_left_out_changes_nothing(self):
    """Texts are sorted and cut; the model itself sees them as they were."""
    parts, mesh, state = untrained.open_untrained(
      untrained.config_of_published(MEAN), pairs=False
    )
    texts = ["cat " * (i % 10) for i in range(40)]
    tokens = parts.data.tokenizer.encode(texts)
    assert tokens.shape == (40, 12)
    params = state.params["model"]
    pairs, _ = parts.model.apply(
      params, state.model_state, Batch(None, tokens, None)
    )
    with jax.set_mesh(mesh):
      embed = loop.embedder(parts, mesh)(state)
      np.testing.assert_allclose(embed.text(texts), pairs.text, atol=1e-6)

  def test_a_projection_beside_the_weights_is_random(self):
    """It is in no file, and was zero once."""
    config = untrained.config_of_published(MEAN)
    config["model"] |= {"projected": True, "dim": 4}
    with embedder_of_config(config, images=False) as embedder:
      found = embedder.encode.text(LETTERS)
    assert found.shape == (4, 4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_what_files_say():
  found = read_published(MEAN)
  blocks = dict(eps=1e-12, activation="gelu", pooling="mean")
  assert found.model == dict(
    name="views",
    pretrained=str(MEAN),
    encoder=TOWER | blocks,
    dim=16,
    projected=False,
    normalize=True,
  )
  assert found.data == dict(
    name="sentences",
    tokenizer=str(MEAN),
    length=12,
    clean=False,
    vocab_size=len(
      json.loads((MEAN / "tokenizer.json").read_text())["model"]["vocab"]
    )
    + 3,
  )
  assert found.temperature is None
  other = read_published(ENCODERS / "max")
  assert not other.model["normalize"]
  assert other.model["encoder"]["name"] == "distilbert"
  assert other.data["length"] == 9


def changed(folder, name, **changes):
  """Changes keys of a JSON file; None removes one."""
  path = folder / name
  content = json.loads(path.read_text()) if path.exists() else {}
  content |= changes
  content = {key: x for key, x in content.items() if x is not None}
  path.write_text(json.dumps(content))


def replaced(folder, old, new):
  path = folder / "modules.json"
  assert old in path.read_text()
  path.write_text(path.read_text().replace(old, new))


POOLING, OPTIONS = "1_Pooling/config.json", "sentence_bert_config.json"
LIBRARY = "config_sentence_transformers.json"
REFUSED = {
  "another encoder": (
    lambda x: changed(x, "config.json", model_type="mpnet"),
    "the texts' encoder is of the type 'mpnet'; .* 'bert' and 'distilbert'",
  ),
  "relative positions": (
    lambda x: changed(x, "config.json", position_embedding_type="relative_key"),
    "position_embedding_type is 'relative_key'; our towers have 'absolute'",
  ),
  "a decoder": (
    lambda x: changed(x, "config.json", is_decoder=True),
    "is_decoder is True, which the towers of this library do not have",
  ),
  "padding of RoBERTa": (
    lambda x: changed(x, "config.json", pad_token_id=1),
    "pad_token_id is 1; our towers mask the id 0",
  ),
  "an adapter": (
    lambda x: changed(x, "adapter_config.json", r=8),
    "adapter_config.json: its weights change those of another model",
  ),
  "the last token": (
    lambda x: changed(
      x, POOLING, pooling_mode="lasttoken", pooling_mode_mean_tokens=None
    ),
    "features are pooled by lasttoken; our towers pool by one of cls, mean",
  ),
  "two poolings": (
    lambda x: changed(x, POOLING, pooling_mode_max_tokens=True),
    "pooled by mean, max; our",
  ),
  "the square root": (
    lambda x: changed(
      x,
      POOLING,
      pooling_mode_mean_tokens=False,
      pooling_mode_mean_sqrt_len_tokens=True,
    ),
    "pooled by pooling_mode_mean_sqrt_len_tokens; our",
  ),
  "no pooling": (
    lambda x: changed(x, POOLING, pooling_mode_mean_tokens=False),
    "pooled by nothing; our",
  ),
  "pooling without the prompt": (
    lambda x: changed(x, POOLING, include_prompt=False),
    "include_prompt is false; our towers pool all tokens",
  ),
  "pooling of another width": (
    lambda x: changed(x, POOLING, word_embedding_dimension=32),
    "word_embedding_dimension is 32, and the encoder's features have 16",
  ),
  "another module": (
    lambda x: replaced(x, "models.Normalize", "models.Dense"),
    "its modules are Transformer, Pooling, Dense; those that can be followed",
  ),
  "a module of one's own": (
    lambda x: replaced(x, "sentence_transformers.models.Pooling", "mine.Pool"),
    "its modules are Transformer, mine.Pool, Normalize; those",
  ),
  "no modules": (
    lambda x: (x / "modules.json").write_text('{"0": 1}'),
    "modules.json cannot be read: it must be a list of modules, each with",
  ),
  "a folder elsewhere": (
    lambda x: replaced(x, '"1_Pooling"', '"../other"'),
    "'../other' is not the name of a folder beside it",
  ),
  "the transformer in a folder": (
    lambda x: replaced(x, '"path": ""', '"path": "0_Transformer"'),
    "the transformer is in '0_Transformer'; move its files beside",
  ),
  "normalized tokens": (
    lambda x: (
      (x / "2_Normalize").mkdir()
      or changed(
        x, "2_Normalize/config.json", module_input_name="token_embeddings"
      )
    ),
    "module_input_name is 'token_embeddings'; it must be 'sentence_embedding'",
  ),
  "options of the transformer": (
    lambda x: changed(x, OPTIONS, tokenizer_args={"use_fast": False}),
    "the transformer has .'tokenizer_args'., which our sentence encoders do",
  ),
  "a longer text": (
    lambda x: changed(x, OPTIONS, max_seq_length=21),
    "max_seq_length is 21, and the encoder has 20 positions",
  ),
  "a prompt": (
    lambda x: changed(
      x, LIBRARY, prompts={"query": "query: "}, default_prompt_name="query"
    ),
    "default_prompt_name is 'query', a text that goes before every other, "
    "'query: '; put it there yourself",
  ),
  "a shorter embedding": (
    lambda x: changed(x, LIBRARY, truncate_dim=8),
    "truncate_dim is 8; embeddings cannot be cut here",
  ),
  "sparse embeddings": (
    lambda x: changed(x, LIBRARY, model_type="SparseEncoder"),
    "it is a 'SparseEncoder', not a 'SentenceTransformer'",
  ),
  "upper case": (
    lambda x: changed(x, "tokenizer_config.json", do_lower_case=False),
    "lowercase is True, and do_lower_case of tokenizer_config.json False; make",
  ),
  "padding left": (
    lambda x: changed(x, "tokenizer_config.json", padding_side="left"),
    "padding_side is 'left'; texts can end right only",
  ),
  "no positive length": (
    lambda x: changed(x, OPTIONS, max_seq_length=-1),
    "max_seq_length must be .* got -1",
  ),
}


def with_vocabulary(folder):
  """Puts a vocab.txt in place of a tokenizer.json."""
  content = json.loads((folder / "tokenizer.json").read_text())
  words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
  (folder / "vocab.txt").write_text("\n".join(words))
  (folder / "tokenizer.json").unlink()
  return folder


class TestRefused:
  def test_a_vocabulary_with_other_rules(self, tmp_path):
    folder = with_vocabulary(shutil.copytree(MEAN, tmp_path / "x"))
    changed(folder, "tokenizer_config.json", strip_accents=False)
    with pytest.raises(
      ValueError, match="strip_accents .* is False, and a voc"
    ):
      untrained.config_of_published(folder)

  @pytest.mark.parametrize("name", REFUSED)
  def test_what_cannot_be_followed(self, name, tmp_path):
    change, message = REFUSED[name]
    folder = shutil.copytree(MEAN, tmp_path / "x")
    change(folder)
    with pytest.raises(ValueError, match=message):
      untrained.config_of_published(folder)

  @pytest.mark.parametrize(
    "name, changes",
    [
      (LIBRARY, dict(prompts={"query": "query: "}, default_prompt_name=None)),
      (LIBRARY, dict(prompts={"no": ""}, default_prompt_name="no")),
      (OPTIONS, dict(unpad_inputs=True, model_args={}, max_seq_length=None)),
      (POOLING, dict(pooling_mode="mean", include_prompt=True)),
    ],
  )
  def test_what_changes_nothing(self, name, changes, tmp_path):
    folder = shutil.copytree(MEAN, tmp_path / "x")
    changed(folder, name, **changes)
    config = untrained.config_of_published(folder)
    assert config["model"] == untrained.config_of_published(MEAN)["model"] | {
      "pretrained": str(folder)
    }

  def test_lower_case_before_the_tokenizer(self, tmp_path):
    folder = shutil.copytree(MEAN, tmp_path / "x")
    changed(folder, OPTIONS, do_lower_case=True)
    assert read_published(folder).data["clean"] == "lower"

  def test_images(self, tmp_path):
    with pytest.raises(ValueError, match="encodes texts only, and has no im"):
      untrained.config_of_published(MEAN, data=["mine"], data_dir=tmp_path)
    config = untrained.config_of_published(MEAN)
    with pytest.raises(ValueError, match="takes texts only, not RGB images"):
      with embedder_of_config(config):
        pass


class TestTexts:
  @pytest.fixture
  def folder(self, tmp_path):
    config = untrained.config_of_published(MEAN)
    with embedder_of_config(config, images=False) as embedder:
      counts = write_texts(embedder, LETTERS, tmp_path / "texts")
    assert counts == {"captions": 4, "captions_cut": 0}
    return tmp_path / "texts"

  def test_files(self, folder):
    text, captions = open_texts(folder)
    assert captions == LETTERS
    np.testing.assert_allclose(text, embedded(MEAN, LETTERS), atol=1e-6)
    with pytest.raises(ValueError, match="texts without images, which make no"):
      open_embeddings(folder)
    damaged = bytearray((folder / "text.npy").read_bytes())
    damaged[-1] ^= 1
    (folder / "text.npy").write_bytes(damaged)
    with pytest.raises(ValueError, match="text.npy has changed|is damaged"):
      open_texts(folder)

  def test_popularities(self, folder, tmp_path):
    """Equal texts are one sample, and each text is its own pair."""
    pairs = subject.from_files(str(folder), temperature=0.05)
    assert pairs.of_texts
    assert pairs.pairs.ids.text.tolist() == [0, 1, 0, 2]
    np.testing.assert_array_equal(pairs.pairs.image, pairs.pairs.text)
    page = popularity.write(pairs, tmp_path / "out")
    files = sorted(x.name for x in page.parent.iterdir())
    assert "texts.csv" in files and "images.csv" not in files
    summary = json.loads((page.parent / "summary.json").read_text())
    assert (summary["pairs"], summary["texts"]) == (4, 3)
    said = read_page.parsed(page).text
    assert "See which texts are popular" in said and "images" not in said
    assert list(read_page.lists(page)) == ["texts", "text_duplicates"]

  def test_of_a_model_with_images(self, tmp_path):
    """Its text tower embeds texts, too, into the space of both."""
    with np.load(CLIP / "expected.npz") as expected:
      texts, right = expected["captions"].tolist(), expected["text"]
    np.testing.assert_allclose(embedded(CLIP, texts), right, atol=2e-6)


def tower_of(**text):
  """A model of two towers, the text tower with the weights of `mean`."""
  return models.towers(
    image_shape=(8, 8, 3),
    vocab_size=read_published(MEAN).data["vocab_size"],
    length=12,
    dim=6,
    image=dict(name="resnet50", stages=(1,), width=2),
    text=TOWER | {"pretrained": str(MEAN)} | text,
  )


class TestTowers:
  def test_features(self):
    model = tower_of(pooling="mean")
    params, state = model.load(*model.init(jax.random.key(0)))
    config = untrained.config_of_published(MEAN)
    parts, _, _ = untrained.open_untrained(config, pairs=False)
    tokens = parts.data.tokenizer.encode(LETTERS)
    found = model.features(params, state, Batch(None, tokens, None)).text
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(found, embedded(MEAN, LETTERS), atol=1e-6)

  @pytest.mark.parametrize(
    "text, message",
    [
      ({}, "with .'pooling': 'mean'., and the config's has .'pooling': 'first"),
      (dict(pooling="mean", heads=2), "with .'heads': 4., and .* .'heads': 2"),
      (dict(pooling="max", eps=1e-6), "name its file of weights instead"),
    ],
  )
  def test_another_tower_than_that_of_the_files(self, text, message):
    model = tower_of(**text)
    with pytest.raises(ValueError, match=message):
      model.load(*model.init(jax.random.key(0)))
    model = tower_of(**text, pretrained=str(MEAN / "model.safetensors"))
    model.load(*model.init(jax.random.key(0)))

  def test_the_size_of_minilm(self):
    tower = models.TEXT_TOWERS["minilm_l6"](vocab_size=30522, length=16)
    params, _ = jax.eval_shape(tower.init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(params)) == 22_565_376 - 768
    assert params["blocks"][0]["up"]["kernel"].shape == (384, 1536)

  def test_a_pooler_needs_the_first_token(self):
    with pytest.raises(ValueError, match="pooler is a layer on the first tok"):
      tower_of(pooling="mean", pooler=True)
    with pytest.raises(ValueError, match="pooling must be one of"):
      tower_of(pooling="last")


def test_features_in_place_of_a_locked_tower(tmp_path):
  """A text is then a row that was embedded before, and the model the same."""
  config = untrained.config_of_published(MEAN)
  how = dict(features=True, images=False)
  with embedder_of_config(config, **how) as embedder:
    write_texts(embedder, LETTERS, tmp_path / "texts")
  lookup = open_lookup(tmp_path / "texts")
  assert lookup.length == 16
  whole = tower_of(pooling="mean")
  params, state = whole.load(*whole.init(jax.random.key(0)))
  model = models.towers(
    image_shape=(8, 8, 3),
    vocab_size=lookup.vocab_size,
    length=lookup.length,
    dim=6,
    image=dict(name="resnet50", stages=(1,), width=2),
    text=dict(name="rows"),
  )
  shapes = jax.eval_shape(model.init, jax.random.key(0))[0]
  assert shapes["text"] == {}
  fewer = params | {"text": {}}
  found, _ = model.apply(
    fewer, state | {"text": {}}, Batch(None, lookup.encode(LETTERS), None)
  )
  parts, _, _ = untrained.open_untrained(config, pairs=False)
  tokens = parts.data.tokenizer.encode(LETTERS)
  expected, _ = whole.apply(params, state, Batch(None, tokens, None))
  np.testing.assert_allclose(found.text, expected.text, atol=1e-6)
  with pytest.raises(ValueError, match="no cached embedding of 'a horse'"):
    lookup.encode(["a horse"])
