"""A module of a user, whose factories configs name."""

MINE = '''
"""Factories of a user."""

from os import system

import jax
import jax.numpy as jnp
import optax

from nuclr_jax import objectives
from nuclr_jax.checks import Count, Positive
from nuclr_jax.contrib import labelled
from nuclr_jax.lab import models
from nuclr_jax.sample_state import zeta_rules
from nuclr_jax.types import Schedule


def pull(*, num_pairs: int, weight: Positive = 1.0) -> objectives.Objective:
  assert num_pairs == 1_197

  def loss(params, pairs):
    distance = jnp.sum((pairs.image - pairs.text) ** 2, axis=1)
    return weight * jnp.mean(distance), {"weight": jnp.float32(weight)}

  return objectives.stateless(loss)


def slow(*, rate: Positive = 0.1):
  return zeta_rules.batch(rate=rate)


def heavy(*, weight: Positive):
  return pull(num_pairs=1_197, weight=weight)


def spread():
  return pull(num_pairs=1_197)


def digits(*, size: Count):
  return labelled(size=size, scores=("recall",), validation_scores=())


def tower(*, image_shape, width: Count = 4):
  return models.ENCODERS["convnet"](
    image_shape=image_shape, stages=((8, 1, width),), num_features=width
  )


def momentum(learning_rate: Positive | Schedule, *, decay: Positive = 0.9):
  return optax.sgd(learning_rate, momentum=decay)


def count(held_out, *, factor: Count = 1):
  return lambda embed: {"sets": float(factor * len(held_out.others))}


def forgotten():
  pull(num_pairs=1_197)


def _hidden():
  return pull(num_pairs=1_197)


class Nested:
  pull = pull
'''
