"""The layout of the package: imports go one way, files stay small."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "nuclr_jax"
# A module may import those before it only.
ORDER = (
  "types checks alarms markdown host hub sharding data ingest models tiles "
  "latent_classes pairwise objectives popularity optimizer processes records "
  "pace train_state checkpoint best evaluate datasets hooks settings "
  "factories experiment diagnostics restore run train embed hf_configs export "
  "report doctor options verbs main"
).split()


def modules():
  return sorted(PACKAGE.rglob("*.py"))


def layer(path: pathlib.Path) -> str:
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: pathlib.Path) -> set[str]:
  """Layers of this package that a file imports."""
  layers = set()
  for node in ast.walk(ast.parse(path.read_text())):
    names = []
    if isinstance(node, ast.ImportFrom) and node.module:
      names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    for name in names:
      package, *rest = name.split(".")
      if package == "nuclr_jax" and rest:
        layers.add(rest[0])
  return layers & set(ORDER)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_imports_point_left(path):
  own = layer(path)
  if own == "__init__":
    return
  assert own in ORDER, f"{own} has no place in the order of modules"
  right = {x for x in imported(path) if ORDER.index(x) > ORDER.index(own)}
  assert not right, f"{path.name} imports {right}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_no_file_is_too_long(path):
  assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_no_file_imports_tensorflow(path):
  """The formats of its data sets are read without it."""
  for node in ast.walk(ast.parse(path.read_text())):
    names = []
    if isinstance(node, ast.ImportFrom):
      names = [node.module or ""]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    assert "tensorflow" not in {name.split(".")[0] for name in names}


def test_train_names_no_objective():
  text = (PACKAGE / "train.py").read_text()
  assert not any(name in text for name in ("nuclr(", "sogclr", "clip("))


def test_the_core_needs_no_input_libraries():
  """Objectives, models and the train step without TFDS and Grain."""
  code = (
    "import sys\n"
    "for name in ('grain', 'tensorflow_datasets', 'array_record', "
    "'ml_collections', 'tensorflow', 'torch', 'chex'):\n"
    "  sys.modules[name] = None\n"
    "import nuclr_jax.train, nuclr_jax.models, nuclr_jax.pairwise\n"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
