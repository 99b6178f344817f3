"""Near-duplicates and neighbours, against all pairs in float64."""

import json
import logging

import make_pairs
import numpy as np
import pytest

from nuclr_jax.lab.report import (
  cells,
  duplicates,
  near_duplicates,
  neighbours,
  subject,
)
from nuclr_jax.lab.report import popularity as popularity_page
from nuclr_jax.popularity import progress as eta


def planted(n, dim=24, *, copies=40, seed=0):
  """Rows, of which some are copies with noise, in chains and in a crowd."""
  rng = np.random.default_rng(seed)
  x = (
    rng.normal(size=(n, dim))
    + 3 * rng.normal(size=(n // 10, dim))[np.arange(n) % (n // 10)]
  )
  to, source = rng.permutation(n)[: 2 * copies].reshape(2, -1)
  x[to] = x[source] + 0.05 * rng.normal(size=(copies, dim))
  x[:20] = x[0] + 0.05 * rng.normal(size=(20, dim))
  return np.float32(x / np.linalg.norm(x, axis=1, keepdims=True))


def expected_clusters(x, partner, threshold, content=None):
  """Floods the graph of all links, computed in float64."""
  x = np.float64(x)
  linked = x @ x.T >= threshold
  if partner is not None:
    linked &= partner[:, None] != partner
  if content is not None:
    linked |= content[:, None] == content
  found, left = [], set(range(len(x)))
  while left:
    todo, members = [left.pop()], []
    while todo:
      members.append(todo.pop())
      linked_rows = left & set(np.flatnonzero(linked[members[-1]]))
      left -= linked_rows
      todo += linked_rows
    found.append(sorted(members))
  found = [x for x in found if len(x) > 1]
  return sorted(found, key=lambda members: (-len(members), members[0]))


def as_lists(found):
  return [members.tolist() for members in found]


def threshold_away_from_ties(x, near=0.97):
  """The middle of the widest gap between similarities near a threshold."""
  sim = np.sort((np.float64(x) @ np.float64(x).T).ravel())
  sim = sim[(sim > near - 0.01) & (sim < near + 0.01)]
  widest = np.argmax(np.diff(sim))
  assert sim[widest + 1] - sim[widest] > 1e-5
  return float(sim[widest : widest + 2].mean())


@pytest.fixture(params=["all pairs", "cells"])
def compared(request, monkeypatch):
  """How rows are compared; a few hundred rows have cells of 16."""
  monkeypatch.setattr(cells, "SIMILARITIES", 1_000)
  monkeypatch.setattr(cells, "COMPONENTS", 6)
  if request.param == "all pairs":
    monkeypatch.setattr(
      near_duplicates, "SHARE", 0
    )  # none are looked at singly
  else:
    monkeypatch.setattr(cells, "EXACT", 100)
    monkeypatch.setattr(cells, "CELL", 16)
    monkeypatch.setattr(cells, "PROBES", 6)
  return request.param


class TestClusters:
  @pytest.mark.parametrize("partners", [None, 3, 50])
  @pytest.mark.parametrize("contents", [None, 350])
  def test_are_the_components_of_all_links(self, partners, contents, compared):
    x, rng = planted(400), np.random.default_rng(1)
    partner = None if partners is None else rng.integers(partners, size=400)
    content = None if contents is None else rng.integers(contents, size=400)
    threshold = threshold_away_from_ties(x)
    found = near_duplicates.clusters(
      x, partner, threshold=threshold, content=content
    )
    expected = expected_clusters(x, partner, threshold, content)
    assert len(expected) > 5 and as_lists(found) == expected
    share = near_duplicates.recall(x, partner, found, threshold=threshold)
    assert share == 1

  def test_the_threshold_is_one_of_float64(self, compared):
    """Although products are in float32, which is 100,000 times coarser."""
    x = make_pairs.unit_rows(0, 300, 12).astype(np.float32)
    sim = np.float64(x) @ np.float64(x).T - 2 * np.eye(300)
    i, j = np.unravel_index(np.argmax(sim), sim.shape)
    for least, expected in ((-1e-12, [[i, j]]), (1e-12, [])):
      found = near_duplicates.clusters(x, threshold=float(sim[i, j]) + least)
      assert as_lists(found) == expected

  def test_are_the_same_each_time(self, compared):
    x = planted(400)
    first, second = (
      as_lists(near_duplicates.clusters(x, threshold=0.97)) for _ in "ab"
    )
    assert first == second

  @pytest.mark.parametrize("partners", [None, 2, 5])
  def test_own_rows_of_a_cell_are_linked_to_all(self, partners):
    """Also those that a pivot has connected, to guests that it has not."""
    for seed in range(30):
      rng = np.random.default_rng(seed)
      angle = rng.permutation(np.linspace(0, rng.uniform(0.2, 2), 25))
      x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
      partner = None if partners is None else rng.integers(partners, size=25)
      pairs = near_duplicates._Pairs(x, x, partner, np.cos(0.1))
      own, guests = np.split(rng.permutation(25), [18])
      found = near_duplicates._links_of_cell(pairs, own, guests)
      label = near_duplicates._components([(a, b) for a, b, _ in found], 25)
      linked = x @ x.T >= np.cos(0.1)
      if partners is not None:
        linked &= partner[:, None] != partner
      start, end = np.nonzero(linked)
      whole = near_duplicates._components([(start, end)], 25)
      from_own = np.isin(start, own)
      assert (label[start] == label[end])[from_own].all()
      assert len({*zip(label, whole, strict=True)}) == len({*label})

  @pytest.mark.parametrize("partners", [None, 2, 5])
  @pytest.mark.parametrize("noise", [0, 1e-7, 0.1])
  def test_a_crowd_needs_few_links(
    self, noise, partners, compared, monkeypatch
  ):
    """The crowd, a collapsed model, is connected through single rows."""
    n, rng = 600, np.random.default_rng(0)
    x = np.eye(1, 8) + noise / np.sqrt(8) * rng.normal(size=(n, 8))
    x = np.float32(x / np.linalg.norm(x, axis=1, keepdims=True))
    x[-3:] = -np.eye(8)[1:4]
    partner = None if partners is None else np.arange(n) % partners
    kept, components = [], near_duplicates._components

    def counting(links, n):
      kept.extend(links)
      return components(kept, n)

    monkeypatch.setattr(near_duplicates, "_components", counting)
    found = near_duplicates.clusters(x, partner, threshold=0.9)
    assert as_lists(found) == [list(range(n - 3))]
    assert sum(len(start) for start, _ in kept) < n * 20 < n**2 / 10

  def test_links_are_reduced_as_they_come(self, monkeypatch):
    """Memory does not grow with the number of links."""
    rng, n = np.random.default_rng(0), 300
    links = [rng.integers(n, size=(2, 40)) for _ in range(5)]
    links += [np.stack([np.arange(9), np.arange(1, 10)])] * 20
    monkeypatch.setattr(near_duplicates, "LINKS", 0.1)
    label = near_duplicates._components([tuple(x) for x in links], n)
    matrix = np.eye(n, dtype=bool)
    for start, end in links:
      matrix[start, end] = matrix[end, start] = True
    reach = np.linalg.matrix_power(matrix.astype(float), 64) > 0
    np.testing.assert_array_equal(label[:, None] == label, reach)
    _, first = np.unique(label, return_index=True)
    assert (np.diff(first) > 0).all()

  def test_a_share_of_links_is_missed(self, monkeypatch):
    """The measured share is that of all links, whatever is in clusters."""
    monkeypatch.setattr(cells, "EXACT", 100)
    x = planted(400)
    whole = near_duplicates.clusters(x, threshold=0.97)
    partly = [members for members in whole[::2]] + [whole[1][:2]]
    share = near_duplicates.recall(x, None, partly, threshold=0.97)
    linked = np.float64(x) @ np.float64(x).T >= 0.97
    label = np.arange(400)
    for members in partly:
      label[members] = members[0]
    np.fill_diagonal(linked, False)
    expected = np.mean((label[:, None] == label)[linked])
    assert 0.1 < expected < 0.95 and share == pytest.approx(expected)
    # A half of the links is within the only cluster, an eighth of the rows.
    x = np.concatenate(
      [
        np.eye(2)[[0] * 50 + [1] * 50] @ np.eye(2, 400),
        x[:300] @ np.eye(24, 400, 9),
      ]
    )
    monkeypatch.setattr(cells, "SAMPLED", 400 * 80)
    share = near_duplicates.recall(x, None, [np.arange(50)], threshold=0.999999)
    assert share == pytest.approx(0.5, abs=0.2)
    x = x[100:, 9:33]
    assert near_duplicates.recall(x[::40], None, [], threshold=0.97) == 1
    apart = make_pairs.unit_rows(0, 150, 64)
    assert near_duplicates.recall(apart, None, [], threshold=0.97) is None


class TestNearest:
  def test_are_those_of_all_pairs(self, compared, monkeypatch):
    monkeypatch.setattr(cells, "PROBES", 25)  # all cells
    monkeypatch.setattr(neighbours, "BLOCK", 30)
    x = planted(400)
    found = neighbours.nearest(x, 7)
    sim = np.float64(x) @ np.float64(x).T
    np.fill_diagonal(sim, -np.inf)
    expected = -np.sort(-sim, axis=1)[:, :7]
    np.testing.assert_allclose(1 - found.distance, expected, atol=1e-6)
    np.testing.assert_allclose(
      np.take_along_axis(sim, found.row, axis=1), expected, atol=1e-6
    )
    assert all(len(set(row)) == 7 for row in found.row.tolist())
    assert neighbours.share_of_nearest(x, found) == 1

  def test_the_share_that_is_found(self, compared, monkeypatch):
    monkeypatch.setattr(cells, "PROBES", 2)
    x = make_pairs.unit_rows(0, 400, 32).astype(np.float32)
    found = neighbours.nearest(x, 7)
    sim = np.float64(x) @ np.float64(x).T
    np.fill_diagonal(sim, -np.inf)
    best = np.argsort(-sim, axis=1)[:, :7]
    expected = np.mean(
      [
        len(set(a) & set(b)) / 7
        for a, b in zip(best.tolist(), found.row.tolist(), strict=True)
      ]
    )
    assert (compared == "cells") == (expected < 0.9)
    share = neighbours.share_of_nearest(x, found)
    assert share == pytest.approx(expected)

  @pytest.mark.parametrize("n", [1, 2, 5])
  def test_there_are_no_more_than_all_others(self, n):
    found = neighbours.nearest(make_pairs.unit_rows(0, n, 3), 10)
    assert found.row.shape == found.distance.shape == (n, n - 1)
    for i, row in enumerate(found.row.tolist()):
      assert sorted([i, *row]) == list(range(n))

  def test_copies_of_a_row_are_not_itself(self, compared):
    """Also where there are more copies than neighbours or rows of a cell."""
    x = np.tile(make_pairs.unit_rows(0, 2, 8), (150, 1))
    found = neighbours.nearest(x, 3)
    np.testing.assert_allclose(found.distance, 0, atol=1e-6)
    rows = np.arange(300)[:, None]
    assert (found.row != rows).all() and ((found.row - rows) % 2 == 0).all()
    assert all(len(set(row)) == 3 for row in found.row.tolist())

  def test_small_cells_do_not_leave_rows_without_neighbours(
    self, compared, monkeypatch
  ):
    monkeypatch.setattr(cells, "PROBES", 1)
    x = planted(400)
    found = neighbours.nearest(x, 60)  # more than a cell has
    assert (found.row >= 0).all() and np.isfinite(found.distance).all()


def test_what_takes_long_says_so(monkeypatch, caplog):
  """With times to go; what is over at once says nothing."""
  monkeypatch.setattr(cells, "EXACT", 100)
  monkeypatch.setattr(cells, "CELL", 16)
  monkeypatch.setattr(cells, "SIMILARITIES", 1_000)
  x = planted(400)

  def lines():
    caplog.clear()
    with caplog.at_level(logging.INFO, "nuclr_jax"):
      found = near_duplicates.clusters(x, threshold=0.97, of="photos")
      near_duplicates.recall(x, None, found, threshold=0.97, of="photos")
      near = neighbours.nearest(x, 3, of="photos")
      neighbours.share_of_nearest(x, near, of="photos")
    return [record.getMessage() for record in caplog.records]

  assert not [line for line in lines() if "ETA" in line]
  monkeypatch.setattr(eta, "PERIOD", 0)
  text = "\n".join(lines())
  for what in (
    "400 photos put into cells",
    "400 photos compared ",
    "sampled photos compared with all",
    "400 photos compared with neighbours",
    "sampled photos compared ",
  ):
    (line, *_) = [x for x in text.splitlines() if what in x]
    assert "ETA" in line


def test_what_was_missed_is_in_the_summary(tmp_path, monkeypatch):
  """Of few pairs, nothing is missed; of many, the share is measured."""
  x = planted(400)
  np.savez(tmp_path / "x.npz", image=x, text=x)
  given = subject.from_files(str(tmp_path / "x.npz"), temperature=0.06)

  def summary(name, given):
    popularity_page.write(given, tmp_path / name)
    path = tmp_path / name / "popularity" / "summary.json"
    return json.loads(path.read_text())

  exact = summary("exact", given)
  assert exact["duplicates_recall"] == exact["text_clusters_recall"] == 1
  assert "neighbours_recall" not in exact
  monkeypatch.setattr(cells, "EXACT", 100)
  monkeypatch.setattr(cells, "CELL", 16)
  in_cells = summary("cells", given._replace(trained=True))
  assert in_cells["duplicate_clusters"] == exact["duplicate_clusters"] > 5
  assert 0.9 < in_cells["duplicates_recall"] <= 1
  assert 0.5 < in_cells["neighbours_recall"] <= 1
  assert duplicates.find(given).recall == in_cells["duplicates_recall"]
