"""Damaged packages of icons, and forged drawings: a ValueError, and no more."""

import gzip
import json

from fuzz_test import FUZZ, damaged, harmless
from hypothesis import given
from hypothesis import strategies as st
import make_icons
import pytest

from nuclr_jax.lab.data.icons import render
from nuclr_jax.lab.data.icons.package import open_package, read_sets

pytest.importorskip("resvg_py", reason="icons are drawn by resvg")
DRAWING = (
  '<defs><linearGradient id="a"><stop offset=".5" stop-color="red"/>'
  '</linearGradient><filter id="b"><feGaussianBlur stdDeviation="2"/></filter>'
  '<clipPath id="c"><path d="M0 0h9v9z"/></clipPath></defs>'
  '<g clip-path="url(#c)" filter="url(#b)"><use href="#d" x="2"/></g>'
  '<path id="d" fill="url(#a)" d="M1.5 2a4 4 0 0 1 8 0c0 1 2 3-4 5z"/>'
)
ANY = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
  lambda x: (
    st.lists(x, max_size=2)
    | st.dictionaries(
      st.sampled_from(["body", "width", "icons", "info", "hidden", "author"]), x
    )
  ),
  max_leaves=6,
)


def read_all(path):
  return [x for part in read_sets(open_package(path)) for x in part.icons]


@pytest.mark.parametrize("packed", [True, False])
def test_packages(packed, tmp_path):
  path = make_icons.write_package(tmp_path / "x.tgz")
  good = path.read_bytes() if packed else gzip.decompress(path.read_bytes())

  @FUZZ
  @given(damaged(good))
  def check(data):
    path.write_bytes(data if packed else gzip.compress(data, 1))
    with harmless(tmp_path):
      read_all(path)

  check()


def test_sets_of_any_json(tmp_path):
  path = tmp_path / "x.tgz"

  @FUZZ
  @given(ANY, st.sampled_from(["", "icons", "info", "suffixes"]))
  def check(value, key):
    content = make_icons.make_set("mine", 0)
    content = content | {key: value} if key else value
    raw = json.dumps(content).encode()
    make_icons.write_package(path, {"mine": raw})
    with harmless(tmp_path):
      read_all(path)

  check()


def test_drawings(tmp_path):
  box = st.tuples(*[st.floats() | st.sampled_from([0.0, 24.0])] * 4)

  @FUZZ
  @given(damaged(DRAWING.encode()), box | st.just((0.0, 0.0, 24.0, 24.0)))
  def check(data, box):
    body = data.decode(errors="replace")
    with harmless(tmp_path):
      render.draw(render.Icon("x", body, box), 16)

  check()
