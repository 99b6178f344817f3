"""Studies are tested by their `*_test.py`; their modules have no examples."""


def pytest_ignore_collect(collection_path):
  if collection_path.is_file() and not collection_path.match("*_test.py"):
    return True
  return None
