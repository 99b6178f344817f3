"""Families of icon sets, and their attribution."""

import numpy as np

from experiments.icons import attribution, families
from nuclr_jax.lab.data.icons import copies
from nuclr_jax.lab.data.icons.package import IconSet


def a_set(prefix, author, category="UI 24px", count=2):
  about = (prefix, prefix, author, "MIT", "https://a.b/l", "https://a.b")
  return IconSet(*about, category, False, (), (), [None] * count)


def test_authors_and_shares_join_sets():
  sets = [
    a_set("a", "Ann"),
    a_set("a2", "Ann", count=9),
    a_set("b", "Bob"),
    a_set("c", "Cy"),
    a_set("logos", "Ann", "Logos"),
    *(a_set(x, x) for pair in families.LINKS for x in pair[:2]),
  ]
  rows = [
    ("b", "a", "bob", "ann", 10, 5, "0.500", 0),
    ("c", "a", "cy", "ann", 10, 1, "0.100", 0),
    ("logos", "c", "ann", "cy", 10, 9, "0.900", 0),
  ]
  table = families.group(sets, rows)["families"]
  assert table["ann"]["sets"] == ["a", "a2", "b"]
  assert table["ann"]["reason"] == "b has 50 % in a"
  assert "logos" in table["brands"]["sets"] and "cy" not in table


def test_shares_leave_out_what_many_authors_have(monkeypatch):
  monkeypatch.setattr(families, "COMMON", 1)
  random = np.random.default_rng(0)
  plain = random.integers(0, 256, (1, copies.SIDE**2), np.uint8)
  own = random.integers(0, 256, (3, 2, copies.SIDE**2), np.uint8)
  sets = [a_set("a", "Ann"), a_set("a2", "Ann"), a_set("b", "Bob")]
  thumbs = [np.concatenate([plain, x]) for x in own]
  thumbs[1][1] = thumbs[0][1]
  near, exact, count = families.shares(sets, thumbs)
  assert count.tolist() == [2, 2, 2]
  np.testing.assert_array_equal(near, [[2, 1, 0], [1, 2, 0], [0, 0, 2]])
  np.testing.assert_array_equal(near, exact)


def test_attribution_escapes_what_sets_say():
  row = dict(
    set="a|b",
    author="<script>",
    author_url="javascript:alert(1)",
    license="MIT",
    license_url="https://a.b/l",
    icons="3",
    split="test",
  )
  (line,) = attribution.table([row]).splitlines()[2:]
  assert line == (
    '| &lt;script&gt; | <a href="https://a.b/l">MIT</a> | a\\|b 3 | test |'
  )
