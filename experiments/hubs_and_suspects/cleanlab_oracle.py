"""Writes what cleanlab finds in random probabilities, as a test's reference.

.venv-cleanlab/bin/python -m experiments.hubs_and_suspects.cleanlab_oracle

in an environment with cleanlab 2.9; it needs nothing of this repository.
"""

import json
import pathlib

import numpy as np

CLASSES, ROWS = 6, 90
OUTPUT = pathlib.Path(__file__).parents[2] / "tests/golden/cleanlab.json"


def main() -> None:
  """Writes the file."""
  import cleanlab  # not among the dependencies

  rng = np.random.default_rng(0)
  truth = rng.integers(CLASSES, size=ROWS)
  logits = rng.normal(size=(ROWS, CLASSES)) + 2 * np.eye(CLASSES)[truth]
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  p = np.round(p, 6)
  p /= p.sum(axis=1, keepdims=True)
  label = np.where(
    rng.uniform(size=ROWS) < 0.2, rng.integers(CLASSES, size=ROWS), truth
  )

  def quality(method, adjust):
    return cleanlab.rank.get_label_quality_scores(
      label, p, method=method, adjust_pred_probs=adjust
    ).tolist()

  flagged = cleanlab.filter.find_label_issues(
    label, p, filter_by="confident_learning", n_jobs=1
  )
  found = {
    "cleanlab": cleanlab.__version__,
    "probabilities": p.tolist(),
    "label": label.tolist(),
    "thresholds": cleanlab.count.get_confident_thresholds(label, p).tolist(),
    "flagged": flagged.tolist(),
    "self-confidence": quality("self_confidence", False),
    "adjusted margin": quality("normalized_margin", True),
  }
  OUTPUT.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
