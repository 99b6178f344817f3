"""What whole runs share: texts are bags of words, which compile sooner."""

import functools

import pytest


@pytest.fixture(scope="session")
def tiny(tiny):
  return functools.partial(tiny, **{"model.text_layers": 0})
