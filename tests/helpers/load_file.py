"""Python files that are in no package, as modules."""

import importlib.util
import pathlib
import types


def load_file(path: pathlib.Path) -> types.ModuleType:
  """The module that a file is."""
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
