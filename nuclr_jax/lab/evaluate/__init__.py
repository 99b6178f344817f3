"""Evaluation: pure functions of embeddings, and the evaluators built on them.

`choose_evaluators` turns the held-out sets of a data set into the evaluators of
a run.
"""

from nuclr_jax.lab.evaluate.evaluators import (
  Embed,
  Evaluator,
  embed_pairs,
  make_embedder,
  run_evaluators,
)
from nuclr_jax.lab.evaluate.prior import doubt_prior, make_prior
from nuclr_jax.lab.evaluate.retrieval import recall_by_origin
from nuclr_jax.lab.evaluate.suites import (
  add_prior,
  bank_for,
  choose_evaluators,
  correct_hubs,
  evaluators_of,
)

__all__ = [
  "Embed",
  "Evaluator",
  "add_prior",
  "bank_for",
  "choose_evaluators",
  "correct_hubs",
  "embed_pairs",
  "evaluators_of",
  "make_embedder",
  "doubt_prior",
  "make_prior",
  "recall_by_origin",
  "run_evaluators",
]
