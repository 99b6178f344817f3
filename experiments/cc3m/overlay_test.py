"""The figure of runs over the published curves."""

from absl import logging
from absl.testing import flagsaver

from experiments.cc3m import overlay


def test_a_run_without_curves_is_named(tmp_path, monkeypatch):
  metric = overlay.PANELS[0][1]
  rows = {"whole": [{"step": 9, metric: 0.1}], "other": [{"step": 9}]}
  monkeypatch.setattr(overlay, "epochs_per_step", lambda path: 0.1)
  monkeypatch.setattr(overlay.records, "read_history", lambda x: rows[x.name])
  warned = []
  monkeypatch.setattr(logging, "warning", lambda text, *x: warned.append(x))
  out = tmp_path / "curves.png"
  with flagsaver.as_parsed(runs="whole,other", out=str(out)):
    overlay.main([])
  assert out.exists() and warned == [("other",)]
