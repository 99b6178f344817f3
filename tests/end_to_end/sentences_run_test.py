"""A run on sentences, with a term, is scored by rated pairs."""

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
