"""What SuperCLIP's term refuses."""

import jax
import numpy as np
import pytest

from nuclr_jax.lab.config import load_config, override
from nuclr_jax.lab.train import build
from tests.contrib.token_prediction_test import (
  VOCAB,
  WIDTH,
  B,
  captions,
  make,
  some,
)
from tests.lab.data.sentences_test import make_config, write_sentences


class TestBadInput:
  @pytest.mark.parametrize(
    "sizes, message",
    [
      (dict(vocab_size=0), r"these data have none \(vocab_size = 0\)"),
      (dict(num_features=None), "this model passes on none"),
      (dict(num_features=0), "dim must be a whole number of at least 1"),
      (
        dict(special_ids=(0, VOCAB)),
        f"below vocab_size = {VOCAB}, got {VOCAB}",
      ),
      (dict(special_ids=(-1,)), "got -1; is it the vocabulary"),
      (dict(seed=-1), "seed must be"),
    ],
  )
  def test_sizes(self, sizes, message):
    with pytest.raises(ValueError, match=message):
      make(**sizes)

  @pytest.mark.parametrize(
    "extra, message",
    [
      (None, "found nothing; models of two towers"),
      ({"text": np.ones((B, 3), int)}, r"found text int64\[8, 3\]"),
      (
        dict(image_features=np.ones((B, 9)), text=np.ones((B, 3), int)),
        r"\[batch, 5\].*found image_features float64\[8, 9\]",
      ),
      (
        dict(image_features=np.ones((B, WIDTH)), text=np.ones((B, 3))),
        r"text float64\[8, 3\]",
      ),
      (
        dict(image_features=np.ones((B, WIDTH)), text=np.ones(B, int)),
        r"text int64\[8\]",
      ),
      (
        dict(image_features=np.ones((3, WIDTH)), text=np.ones((B, 3), int)),
        r"extras \[batch, ...\].* extra/image_features float64\[3, 5\]",
      ),
      ([1.0], "extra list"),
    ],
  )
  def test_extras(self, extra, message):
    pairs, term = some()._replace(extra=extra), make()
    with pytest.raises(ValueError, match=message):
      term.apply(*term.init(), pairs)

  @pytest.mark.parametrize("wrong", [VOCAB, -1])
  def test_another_vocabulary(self, wrong):
    tokens = captions(0)
    tokens[2, 1] = wrong
    pairs, term = some(tokens=tokens), make()
    with pytest.raises(
      ValueError, match=f"below vocab_size = 23, found {wrong}"
    ):
      term.apply(*term.init(), pairs)
    assert np.isnan(jax.jit(term.apply)(*term.init(), pairs)[0])

  @pytest.mark.parametrize(
    "config, changes, message",
    [
      ("labelled", {"weight": "1.0"}, "these data have none"),
      ("labelled", {"weight": "0.0"}, "these data have none"),
      ("glyphs:smoke", {"weight": "-1.0"}, "weight must be a number of at lea"),
      ("glyphs:smoke", {"seed": "1"}, "must be a mapping with a weight"),
      (
        "glyphs:smoke",
        {"weight": "1.0", "vocab_size": "9"},
        r"unknown keys \['vocab_size'\]",
      ),
    ],
  )
  def test_configs(self, config, changes, message):
    """All of it before the run has a folder."""
    prefix = "terms.contrib:token_prediction"
    named = [(f"{prefix}.{key}", x) for key, x in changes.items()]
    with pytest.raises(ValueError, match=message):
      build.build(override(load_config(config), named))

  def test_a_model_without_an_image_tower(self, tmp_path):
    """Sentences have tokens, and two views of them."""
    config = make_config(write_sentences(tmp_path))
    config.terms = {"contrib:token_prediction": {"weight": 1.0}}
    with pytest.raises(ValueError, match="this model passes on none"):
      build.build(config)
