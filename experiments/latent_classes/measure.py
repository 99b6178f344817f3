"""Measures the runs of the study, each by its own part."""

from experiments import harness, labelled
from experiments.latent_classes import (
  counter_examples,
  plan,
  sentences,
  theorem,
)

# What measures the parts whose runs do not train.
OTHERS = {
  plan.SECTION_5_1: counter_examples.measure_radii,
  plan.APPENDIX_C: counter_examples.measure_negatives,
  plan.THEOREM_1: theorem.measure,
  plan.RATE_BY_WIDTH: theorem.measure,
}


def measure(run: harness.Run, place: harness.Place) -> harness.Row:
  """Measures any run of the study."""
  if sentences.is_training(run):
    return sentences.measure(run, place)
  return labelled.measure(run, place, OTHERS)
