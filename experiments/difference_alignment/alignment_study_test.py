"""The study of difference alignment: docstrings, verification, sentences."""

import itertools
import pathlib

import numpy as np
import pytest

from experiments.difference_alignment import (
  clusters,
  docstrings,
  embedded,
  sentences,
  tables,
)
from experiments.difference_alignment import plan as plans
from experiments.harness import Options, Place
from nuclr_jax.lab.data.source import RatedPairs

DOCSTRING = """Sums rows.

The sum of every row is returned as an array. It has as many entries as
the matrix has rows.  See the other one.

    >>> sums(x)

* An item of a list is no sentence of prose.
"""


class TestDocstrings:
  def test_sentences_of_paragraphs(self):
    assert docstrings.paragraphs_of(DOCSTRING) == [
      [
        "The sum of every row is returned as an array.",
        "It has as many entries as the matrix has rows.",
      ]
    ]

  def test_files_are_trained_or_tested_on(self, tmp_path, monkeypatch):
    package = tmp_path / "some_package"
    (package / "tests").mkdir(parents=True)
    text = "The number of this {} file is said by it.\n\nIt has nothing else to"
    for i in range(40):
      body = f'"""{text.format(f"first{i}")} say {i}."""\n'
      (package / f"file_{i}.py").write_text(body)
    (package / "__init__.py").write_text((package / "file_0.py").read_text())
    (package / "tests" / "file.py").write_text(f'"""{text.format("no")}."""')
    (package / "template.py").write_text("def {name}(:")
    monkeypatch.syspath_prepend(tmp_path)
    found = docstrings.read(("some_package",))
    tested = [x for docs in found.test[0] for part in docs for x in part]
    everything = found.train + tested
    assert len(set(everything)) == len(everything) == 80
    assert 0 < len(tested) < 40 and not any("no" in x.split() for x in tested)

  def test_scores_say_how_close_sentences_are(self):
    test = [  # a sentence is its package, docstring, paragraph and place
      [
        [[f"{a}{b}{c}{d}" for d in range(3)] for c in range(2)]
        for b in range(3)
      ]
      for a in range(3)
    ]
    pairs = docstrings.rated_pairs(test, 12)
    assert len({x[1:] for x in pairs}) == len(pairs) == 48
    for score, first, second in pairs:
      alike = [x == y for x, y in zip(first, second, strict=True)]
      shared = len(list(itertools.takewhile(bool, alike)))
      assert shared == score
      if score == 3:
        assert int(second[3]) == int(first[3]) + 1


class TestVerification:
  def test_classes_that_a_threshold_tells_apart(self):
    label = np.repeat(np.arange(4), 10)
    assert embedded.verification(np.eye(4)[label], label) == 1.0

  def test_collapse_is_chance(self):
    label = np.repeat(np.arange(4), 10)
    assert embedded.verification(np.ones((40, 1)), label) == 0.5

  @pytest.mark.parametrize("seed", range(5))
  def test_the_threshold_is_the_best(self, seed):
    rng = np.random.default_rng(seed)
    cosine, same = rng.uniform(-1, 1, 30), rng.random(30) < 0.5
    chosen = embedded._threshold(cosine, same)
    right = [np.mean((cosine > t) == same) for t in [-1, *cosine, 1]]
    assert np.mean((cosine > chosen) == same) == max(right)


def test_shared_words():
  rated = RatedPairs(
    ["A dog runs", "a b c d", "x y"],
    ["a dog RUNS", "a b e f", "z w"],
    np.array([9.0, 2.0, 1.0]),
  )
  assert sentences.shared(rated) == pytest.approx(1.0)


def test_sentences_of_a_folder(tmp_path):
  """A short run, as `--data sts --smoke --data_dir=...` makes it."""
  options = Options(tmp_path, tmp_path, seeds=2, smoke=True)
  with pytest.raises(ValueError, match="sts needs --data_dir, a folder with"):
    sentences.plan("sts", options, plans.as_sum)
  words = "one two three four five six seven eight nine ten eleven".split()
  names = [f"{a} {b} {c}" for a in words for b in words for c in words[:2]]
  (tmp_path / "train.txt").write_text("\n".join(names))
  lines = [f"{i % 3}\t{names[i]}\t{names[2 * i]}\n" for i in range(20)]
  (tmp_path / "sts12.tsv").write_text("".join(lines))
  options = options._replace(data_dir=str(tmp_path))
  runs = sentences.plan("sts", options, plans.as_sum)
  assert [x.seed for x in runs] == [0, 1] * 3 + [0]
  folder = pathlib.Path(tmp_path, "run")
  folder.mkdir()
  row = sentences.measure(runs[2], Place(folder, tmp_path / "shared"))
  assert -1 <= row["metrics"]["test/sts12/spearman"] <= 1
  assert set(row["words"]) == set(row["untrained"]) == {"sts12/spearman"}


def test_clusters_are_compared_within_draws():
  rows = [
    {
      "seed": seed,
      "cases": {
        kind: {
          name: [{"test": 90.0 + seed * (1 + i)}]
          for i, name in enumerate(clusters.CASES)
        }
        for kind in clusters.KINDS
      },
    }
    for seed in (1, 2)
  ]
  table = tables.cluster_table(rows, (2.0,), "× deviation")
  assert "| as in Table 6 | (b) − (a) | 1.5 ± 6.4 |" in table


def test_the_weight_of_a_sum():
  """Pairs of the differences of a batch, counted."""
  for batch in (3, 4, 9):
    columns = range(batch - 1)
    pairs = len(list(itertools.combinations(columns, 2)))
    assert plans.as_sum(0.5, batch) == 0.5 * pairs
