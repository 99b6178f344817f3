"""Runs on sentences: with a term, and with sentences that are cut."""

import pytest

from nuclr_jax.lab.export import embedder_of_run
from nuclr_jax.lab.train import loop
from tests.lab.data.sentences_test import make_config, write_sentences


def test_a_run_with_alignment_learns(tmp_path, no_diagnostics):
  config = make_config(
    write_sentences(tmp_path),
    **{"terms.contrib:difference_alignment.weight": 0.1},
  )
  result = loop.fit(config, tmp_path / "first")
  assert result.metrics["test/rated/spearman"] > 0.5
  with pytest.raises(ValueError, match="takes texts only, not RGB"):
    with embedder_of_run(tmp_path / "first"):
      pass


def test_a_run_says_that_sentences_are_cut(tmp_path, no_diagnostics, caplog):
  """Once before its first step, and again where it goes on."""
  lines = [f"the sentence {i} is long" for i in range(32)]
  (tmp_path / "train.txt").write_text("\n".join(lines))
  changes = {"data.test": (), "data.length": 5, "model.encoder.num_layers": 1}

  def warnings_of(num_epochs):
    caplog.clear()
    config = make_config(tmp_path, **changes, num_epochs=num_epochs)
    loop.fit(config, tmp_path / "run")
    return [x for x in caplog.messages if "are cut to 5 tokens" in x]

  (line,) = warnings_of(1.0)
  assert line.startswith("32 of 32 training captions") and "raise it" in line
  (line,) = warnings_of(2.0)
  assert line.startswith("32 of 32 training captions") and "keeps its" in line
