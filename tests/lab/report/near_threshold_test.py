"""The threshold of near-duplicates, on planted copies."""

import make_pairs
import numpy as np
import pytest

from nuclr_jax.lab.report import near_duplicates, near_threshold

TAU = 0.07


def unit(x):
  return np.float32(x / np.linalg.norm(x, axis=1, keepdims=True))


def planted(base, copies, edit, seed=0):
  """Rows and edited copies of some, and which row each is a copy of.

  An edit is as long as a share of the median distance to the nearest row.
  """
  random = np.random.default_rng(seed)
  base = np.float64(base)
  distance = np.linalg.norm(base[:, None] - base, axis=2)
  np.fill_diagonal(distance, np.inf)
  source = random.choice(len(base), copies, replace=False)
  moved = edit * np.median(distance.min(axis=1))
  change = unit(random.normal(size=(copies, base.shape[1])))
  x = np.concatenate([base, base[source] + moved * change])
  return x, np.r_[np.arange(len(base)), source]


def classes(n, dim, size=20):
  random = np.random.default_rng(0)
  middle = random.normal(size=(n // size, dim))
  return unit(middle[np.arange(n) % len(middle)] + 0.3 * unit_noise(n, dim))


def unit_noise(n, dim):
  return np.random.default_rng(1).normal(size=(n, dim))


def flat(n, dim):
  """Rows of a few dimensions, as trained embeddings are."""
  return unit(unit_noise(n, dim) / np.arange(1, dim + 1))


def linked(x, found):
  """The numbers of clusters; a row in none has its own."""
  label = np.arange(len(x))
  for members in near_duplicates.clusters(x, threshold=found.similarity):
    label[members] = members.min()
  return label


CASES = {
  "even": make_pairs.unit_rows(0, 400, 32),
  "classes": classes(400, 32),
  "small classes": classes(400, 32, size=11),
  "few dimensions": flat(400, 32),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("copies, edit", [(40, 0.0), (40, 0.1), (360, 0.1)])
def test_copies_are_found_and_no_others(name, copies, edit):
  """Also where nearly every row has one."""
  x, source = planted(CASES[name], copies, edit)
  found = near_threshold.derive(unit(x), temperature=TAU)
  np.testing.assert_array_equal(linked(unit(x), found), source)


@pytest.mark.parametrize("name", CASES)
def test_a_collapsed_model_changes_nothing_but_the_scale(name):
  """All similarities are above 0.99, where 1 - tau / 2 would link all."""
  x, source = planted(CASES[name], 40, 0.05)
  cone = unit(np.c_[0.08 * x, np.ones(len(x))])
  assert (cone @ cone.T).min() > 0.98 > 1 - TAU / 2
  found = near_threshold.derive(cone, temperature=TAU)
  assert found.similarity > 0.998
  np.testing.assert_array_equal(linked(cone, found), source)


def test_roundings_are_no_distances():
  x = unit(np.c_[1e-4 * CASES["even"], np.ones(400)])
  found = near_threshold.derive(x, temperature=TAU)
  assert not found.known and found.dimension is None
  assert not near_duplicates.clusters(x, threshold=found.similarity)


def even(n, dim):
  """Rows that spread evenly in a few of 16 dimensions."""
  plane = np.zeros((n, 16))
  plane[:, :dim] = np.random.default_rng(0).uniform(-1, 1, (n, dim))
  plane[:, -1] = 1
  return unit(plane)


@pytest.mark.parametrize("dim", [4, 6, 8])
def test_the_dimension_is_that_of_the_rows(dim):
  found = near_threshold.derive(even(4000, dim), temperature=TAU)
  assert found.dimension == pytest.approx(dim, rel=0.2)


@pytest.mark.parametrize("dim", [4, 6])
def test_few_rows_are_that_near_by_accident(dim):
  """Of rows that spread evenly, as many as the chance that was asked for."""
  x = even(16_000, dim)
  found = near_threshold.derive(x, temperature=TAU)
  groups = near_duplicates.clusters(x, threshold=found.similarity)
  share = sum(map(len, groups)) / len(x)
  assert near_threshold.CHANCE / 10 < share < 2 * near_threshold.CHANCE


def test_exact_copies_and_partners_are_no_neighbours():
  """Neither forty copies of one row nor rows of one text move the threshold."""
  x = CASES["few dimensions"]
  expected = near_threshold.derive(x, temperature=TAU)
  many = np.concatenate([np.repeat(x[:20], 40, axis=0), x[20:]])
  content = np.r_[np.repeat(np.arange(20), 40), np.arange(20, 400)]
  found = near_threshold.derive(many, temperature=TAU, content=content)
  assert found == expected
  text = np.repeat(np.arange(400), 5)
  images = unit(np.repeat(x, 5, axis=0) + 1e-3 * unit_noise(2000, 32))
  found = near_threshold.derive(images, text, temperature=TAU)
  alone = near_threshold.derive(images, temperature=TAU)
  assert found.similarity < alone.similarity
  assert not near_duplicates.clusters(
    images, text, threshold=found.similarity + 0.01
  )


def test_rows_that_are_all_equally_far_apart():
  """No chance of a nearer one: half of their distance, the root of 2."""
  found = near_threshold.derive(np.eye(40, dtype=np.float32), temperature=TAU)
  assert found.similarity == pytest.approx(1 - (2**0.5 / 2) ** 2 / 2)
  assert "farther away than half" in near_threshold.in_words(found, "images")


@pytest.mark.parametrize("rows", [2, 16])
def test_few_rows_tell_nothing(rows):
  found = near_threshold.derive(CASES["even"][:rows], temperature=TAU)
  assert found == near_threshold.Threshold(1 - TAU / 2, None)
  partner = np.zeros(400, int)  # all of one text: no row has a neighbour
  same = near_threshold.derive(CASES["even"], partner, temperature=TAU)
  assert same == found
  assert "too few images" in near_threshold.in_words(found, "images")


def test_the_words_have_the_number():
  found = near_threshold.derive(CASES["even"], temperature=TAU)
  words = near_threshold.in_words(found, "images")
  assert f"{found.similarity:.3f}"[:4] in words and "0.1%" in words
