"""What TempNet refuses, and configs that name it."""

import math

import jax
from normalizers import DIM, NUM_PAIRS, batch
import pytest

from nuclr_jax import contrib, objectives
from nuclr_jax.lab.config import ConfigError, load_config, override
from nuclr_jax.lab.train.hooks import one_temperature
from nuclr_jax.lab.train.settings import resolve
from tests.contrib.tempnet_test import nuclr, rule, sogclr

WORDS = [("objective.temperature.name", "contrib:tempnet")]


def test_it_does_not_know_the_temperatures_of_pairs():
  objective = nuclr()
  readout = objective.readout(*objective.init())
  assert readout.temperature is None
  with pytest.raises(ValueError, match="needs one temperature, which this"):
    one_temperature(readout, "popularity")


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(num_prototypes=0), r"temperature.num_prototypes must be a whole num"),
    (
      dict(bounds=(0.1, 0.05)),
      r"temperature.bounds must be \(low, high\) with",
    ),
    (
      dict(bounds=(0.0, 0.05)),
      r"temperature.bounds must be a tuple of 2, each",
    ),
    (dict(dropout=1.0), r"temperature.dropout must be in \[0, 1\), got 1.0"),
    (dict(rate=-1.0), r"temperature.rate must be in \[0, 1\] or a schedule"),
    (dict(rho=math.nan), "temperature.rho must be a finite number"),
    (dict(batch_size=6), "must be at most the batch size 6, .* got 7"),
    (dict(seed=-1), "temperature.seed must be a whole number in"),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    rule(**arguments)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(num_prototypes=9), "must be at most the batch size 8, .* got 9"),
    (dict(dim=5), "temperature.dim is 5, but the embeddings have width 6"),
  ],
)
def test_batches_that_do_not_fit(arguments, message):
  objective = sogclr(**arguments)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(objective.apply, *objective.init(), batch())


def test_it_needs_a_u_per_pair_and_rows():
  with pytest.raises(ValueError, match="anchor_average must be 'pair'"):
    objectives.sogclr(
      num_pairs=NUM_PAIRS, temperature=rule(), anchor_average="id"
    )
  with pytest.raises(ValueError, match="got individual temperatures"):
    contrib.neuclip(dim=DIM, temperature=rule())


def test_a_config_names_it():
  settings = resolve(
    override(
      load_config("glyphs:nuclr"),
      [*WORDS, ("objective.temperature.num_prototypes", "64")],
    )
  )
  made = settings.objective(
    num_pairs=100, dim=8, num_steps=20, steps_per_epoch=10
  )
  assert "temperature=tempnet(dim=8, num_prototypes=64" in repr(made)
  with pytest.raises(ConfigError, match=r"dropout must be in \[0, 1\), got 2"):
    wrong = [*WORDS, ("objective.temperature.dropout", "2")]
    resolve(override(load_config("glyphs:nuclr"), wrong))
