"""Warnings of captions that are cut."""

import numpy as np
import pytest

from nuclr_jax.lab.data import Data, HeldOut, ImageTextSet, cut_captions
from nuclr_jax.lab.data.sentences import twice
from nuclr_jax.lab.data.tokenizer import build_tokenizer


def make_data(texts, length=3, **more):
  words = build_tokenizer(sorted(set(texts)), length=length)
  source = twice(texts, words.encode(texts), "mine")
  return Data(source, words, (length,), **more)


class TestTraining:
  def test_all_of_few(self, caplog):
    data = make_data(["a dog", "a dog and a cat", "the cat sat down", "cats"])
    cut_captions.warn_of_training(data)
    (line,) = caplog.messages
    assert line.startswith("2 of 4 training captions are cut to 3 tokens")
    assert "config.data.length" in line and "raise it" in line
    caplog.clear()
    cut_captions.warn_of_training(data, fresh=False)
    (line,) = caplog.messages
    assert "this run keeps its length" in line and "raise it" not in line

  def test_a_sample_of_many(self, caplog):
    """From the first to the last, and no more than that."""
    data = make_data([f"photo {i % 7}" + i % 10 * " x" for i in range(10_000)])
    source, asked = data.train, []

    def captions(text_ids):
      asked.append(text_ids)
      return source.captions(text_ids)

    spied = data._replace(train=source._replace(captions=captions))
    cut_captions.warn_of_training(spied)
    (text_ids,) = asked
    assert len(np.unique(text_ids)) == cut_captions.SAMPLE
    assert (text_ids[0], text_ids[-1]) == (0, 9_999)
    cut, rest = caplog.messages[0].split(" of a sample of ", 1)
    assert int(cut.replace(",", "")) == sum(i % 10 > 1 for i in text_ids)
    assert rest.startswith("4,096 of the 10,000 training captions are cut")

  @pytest.mark.parametrize("why", ["whole", "stream", "no words"])
  def test_nothing_to_say(self, why, caplog):
    data = make_data(["a dog", "a dog and a cat"], length=9)
    if why == "stream":
      data = make_data(["a dog", "a dog and a cat"])
      source = data.train._replace(open_stream=print, captions=None)
      data = data._replace(train=source)
    elif why == "no words":
      source = data.train._replace(captions=None)
      words = data.tokenizer._replace(num_ids=0)
      data = data._replace(train=source, tokenizer=words)
    cut_captions.warn_of_training(data)
    assert not caplog.messages


def test_held_out_sets(caplog):
  captions = ["a dog and a cat", *["a dog"] * 99]
  ids = np.arange(100)
  held_out = ImageTextSet(np.zeros((100, 8, 8, 3)), ids, captions, ids)
  sets = {"val": HeldOut({"mine": held_out, "": held_out})}
  data = make_data(captions, held_out=sets)
  cut_captions.warn_of_held_out(data, "val", share=0.02)
  assert not caplog.messages
  cut_captions.warn_of_held_out(data, "val")
  assert caplog.messages == [
    f"{name}: 1 of 100 captions are cut to 3 tokens"
    for name in ("val/mine", "val")
  ]


def test_a_run_names_sets_of_which_many_are_cut(caplog):
  captions, ids = ["a dog and a cat", *["a dog"] * 9], np.arange(10)
  held_out = ImageTextSet(np.zeros((10, 8, 8, 3)), ids, captions, ids)
  cut_captions.warn(
    make_data(captions, held_out={"test": HeldOut({"": held_out})})
  )
  found = [x.split(" captions")[0] for x in caplog.messages]
  assert found == ["1 of 10 training", "test: 1 of 10"]
