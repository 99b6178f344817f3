"""Studies are tested by their `*_test.py`; their modules have no examples."""

import pytest

from nuclr_jax import sharding


def pytest_ignore_collect(collection_path):
  if collection_path.is_file() and not collection_path.match("*_test.py"):
    return True
  return None


@pytest.fixture(scope="module", autouse=True)
def one_device():
  """Runs use one device, as in a process of their own, not all eight."""
  make_mesh = sharding.make_mesh
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      sharding,
      "make_mesh",
      lambda count=None, **how: make_mesh(count or 1, **how),
    )
    yield
