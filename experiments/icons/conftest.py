"""What tests of icons share: a small drawn stand-in for them."""

import make_icons
import pytest

from nuclr_jax.lab.data.icons import builder


@pytest.fixture(scope="session")
def icons(tmp_path_factory):
  """A folder of prepared data with the stand-in, at 16 pixels."""
  pytest.importorskip("resvg_py", reason="icons are drawn by resvg")
  folder = tmp_path_factory.mktemp("icons")
  package = make_icons.write_package(folder / "icons.tgz")
  builder.prepare_icons(
    folder, version=make_icons.VERSION, size=16, package=package, processes=1
  )
  return folder
