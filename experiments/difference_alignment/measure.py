"""Measures the runs of the study, each by its own part."""

from experiments import harness, labelled
from experiments.difference_alignment import (
  clusters,
  embedded,
  overhead,
  plan,
  sentences,
)

# What measures the parts whose runs do not train.
OTHERS = {
  plan.TABLE_7: clusters.measure_table_7,
  plan.WIDER: clusters.measure_wider,
  plan.FEW: clusters.measure_few,
  plan.OVERHEAD: overhead.measure,
}
EMBEDDED = ("margins", "pictures")  # parts whose embeddings are measured


def measure(run: harness.Run, place: harness.Place) -> harness.Row:
  """Measures any run of the study."""
  if sentences.is_of_text(run):
    return sentences.measure(run, place)
  if run.part.split("/")[-1] in EMBEDDED:
    return embedded.measure(run, place)
  return labelled.measure(run, place, OTHERS)
