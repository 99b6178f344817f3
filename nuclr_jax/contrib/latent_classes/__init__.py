"""Latent-class theory as tools: what contrastive losses say about classes.

Saunshi et al., A Theoretical Analysis of Contrastive Unsupervised
Representation Learning, ICML 2019; Merad et al., About contrastive
unsupervised representation learning for classification and its convergence,
2020.
"""

from nuclr_jax.contrib.latent_classes import bounds, guarantees
from nuclr_jax.contrib.latent_classes.bounds import coverage, norms
from nuclr_jax.contrib.latent_classes.classes import (
  any_collision,
  collision,
  deviation,
  probabilities,
)
from nuclr_jax.contrib.latent_classes.losses import LOSSES, of_margins
from nuclr_jax.contrib.latent_classes.supervised import (
  average_accuracy,
  average_loss,
  drawn_task_loss,
  few_of_each,
  task_loss,
  top_accuracy,
)
from nuclr_jax.contrib.latent_classes.unsupervised import (
  Split,
  block_loss,
  other_loss,
  split_loss,
  unsupervised_loss,
)

__all__ = [
  "LOSSES",
  "Split",
  "any_collision",
  "average_accuracy",
  "average_loss",
  "block_loss",
  "bounds",
  "collision",
  "coverage",
  "deviation",
  "drawn_task_loss",
  "few_of_each",
  "guarantees",
  "norms",
  "of_margins",
  "other_loss",
  "probabilities",
  "split_loss",
  "task_loss",
  "top_accuracy",
  "unsupervised_loss",
]
