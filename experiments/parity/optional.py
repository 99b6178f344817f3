"""Libraries that import more than they need here."""

import importlib
import importlib.machinery
import sys
import types

# timm and OpenCLIP import these when they are imported themselves.
NOT_NEEDED = (
  "torchvision torchvision.datasets torchvision.datasets.folder "
  "torchvision.models torchvision.models.feature_extraction torchvision.ops "
  "torchvision.ops.misc torchvision.transforms "
  "torchvision.transforms.functional ftfy"
).split()


class _Anything(type):
  """A class with any attribute, each a class of this kind."""

  def __getattr__(cls, name):
    if name.startswith("__"):
      raise AttributeError(name)
    return _Anything(name, (), {})


class _Stub(types.ModuleType):
  __path__ = []

  def __getattr__(self, name):
    if name.startswith("__"):
      raise AttributeError(name)
    return _Anything(name, (), {})


def load(name: str) -> types.ModuleType | None:
  """Imports a module; None if it, or something else that it needs, is missing.

  The modules of `NOT_NEEDED` are replaced by stubs where they are missing.
  """
  for missing in NOT_NEEDED:
    if missing not in sys.modules and _is_missing(missing):
      stub = _Stub(missing)
      stub.__spec__ = importlib.machinery.ModuleSpec(missing, None)
      sys.modules[missing] = stub
      package, _, child = missing.rpartition(".")
      if package:
        setattr(sys.modules[package], child, stub)
  try:
    return importlib.import_module(name)
  except ImportError as error:
    print(f"not compared with {name}: {error}")
    return None


def _is_missing(name: str) -> bool:
  try:
    importlib.import_module(name)
  except ImportError:
    return True
  return False
