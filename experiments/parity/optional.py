"""Imports libraries without the modules that they import but do not need."""

import importlib
import importlib.machinery
import importlib.metadata
import sys
import types

# timm and OpenCLIP import these modules, but the towers do not use them.
NOT_NEEDED = (
  "torchvision torchvision.datasets torchvision.datasets.folder "
  "torchvision.models torchvision.models.feature_extraction torchvision.ops "
  "torchvision.ops.misc torchvision.transforms "
  "torchvision.transforms.functional"
).split()


class _Anything(type):
  """A metaclass whose classes have any attribute: another such class."""

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
  """Imports a module; returns None if it or a module that it needs is missing.

  Missing modules of `NOT_NEEDED` are replaced by stubs.
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


def versions() -> dict[str, str]:
  """Returns the versions of the installed libraries, for the JSON."""
  names = (
    "torch transformers sentence-transformers timm open_clip_torch".split()
  )
  installed = {
    x.name: x.version
    for x in importlib.metadata.distributions()
    if x.name in names
  }
  return {name: installed[name] for name in names if name in installed}


def _is_missing(name: str) -> bool:
  try:
    importlib.import_module(name)
  except ImportError:
    return True
  return False
