"""The layout of the package: imports go one way, files stay small."""

import ast
import importlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from repository import ROOT

import nuclr_jax
from tests import indicators
from tests.indicators import unit_of

PACKAGE, TESTS = ROOT / "nuclr_jax", ROOT / "tests"
PACKAGES = sorted(PACKAGE.rglob("__init__.py"))
# A module may import those before it only. `lab/__init__.py` imports nothing;
# the package's own imports, at first use, what it names.
CORE = (
  "types checks sharding pairwise sample_state objectives popularity".split()
)
LAB = (
  "distributed progress files ranges extensions config factories models data "
  "user_files ingest evaluate train export report cli"
).split()
ORDER = ["lab.__init__", *CORE, *(f"lab.{name}" for name in LAB)]
ORDER += ["__init__", "contrib"]
# At most, with some slack; `tests/indicators.py` says what each number means.
CEILINGS = dict(
  top_level_names=9,
  layers=11,
  arrows=117,
  config_arguments=11,
  config_modules=8,
  checks_per_step=1,
  files_to_loss=19,
  lines_to_loss=2_700,
  core_lines=3_500,
)


def modules():
  return sorted(PACKAGE.rglob("*.py"))


def layer(path: pathlib.Path) -> str:
  return unit_of(path.relative_to(PACKAGE).with_suffix("").parts)


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
        layers.add(unit_of(tuple(rest)))
  return layers & set(ORDER)


def packages_of(path: pathlib.Path) -> set[str]:
  """Top-level packages that a file imports from, anywhere in it."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name.split(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      found.add((node.module or "").split(".")[0])
  return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_imports_point_left(path):
  own = layer(path)
  assert own in ORDER, f"{own} has no place in the order of modules"
  right = {x for x in imported(path) if ORDER.index(x) > ORDER.index(own)}
  assert not right, f"{path.name} imports {right}"


def core_modules():
  return [x for x in modules() if layer(x) in {*CORE, "__init__"}]


@pytest.mark.parametrize("path", core_modules(), ids=lambda p: p.name)
def test_the_core_imports_jax_numpy_and_itself(path):
  allowed = {*sys.stdlib_module_names, *("jax", "jaxtyping", "numpy")}
  assert packages_of(path) <= {*allowed, "nuclr_jax"}
  if layer(path) == "__init__":
    # For type checkers, it names `fit`, `load` and `build`; that an import does
    # without the lab is tested below.
    assert imported(path) - set(CORE) == {"lab.train"}
  else:
    assert imported(path) <= set(CORE)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_no_file_is_too_long(path):
  assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_no_file_imports_tensorflow(path):
  """The formats of its data sets are read without it."""
  assert "tensorflow" not in packages_of(path)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_no_regular_expression_is_possessive(path):
  """Before Python 3.11.5, possessive groups match something else."""
  assert not re.search(r"[)\]][*+?]\+|\(\?>", path.read_text())


# What writes a file or makes a folder, and follows links.
WRITES = {
  *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "symlink_to"),
  *("copy", "copyfile", "copytree", "save", "savez", "savefig", "save_file"),
  *("ParquetWriter", "ArrayRecordWriter", "record_writer", "EventsWriter"),
}
LIBRARIES = {"np", "numpy", "shutil", "safetensors", "parquet", "os", "figure"}
# What makes new files and folders, which no link leads to.
SAFE = {"replacing", "fresh_folder", "complete_folder", "new_folder"}
# Functions that need not do so.
MAY_WRITE = {
  "checkpoint._plain": "in a folder for temporary files, which is new",
  "distributed.check_shared": "the name is random, and `files` comes later",
  "pytorch._rewrite": "in a folder for temporary files, which is new",
  "tfds_reader.record_writer": "its callers are looked at",
  "trackers.tensorboard": "the name is random",
}


def calls_of(node, above=(), function=""):
  """Yields the calls in a module, their functions, and all `with` around."""
  if isinstance(node, ast.FunctionDef):
    function = node.name
  if isinstance(node, ast.Call):
    yield node, function, above
  for child in ast.iter_child_nodes(node):
    inner = isinstance(node, ast.With)
    yield from calls_of(child, (*above, node) if inner else above, function)


def name_of(call) -> str:
  return getattr(call.func, "attr", getattr(call.func, "id", ""))


def writes(call) -> bool:
  """Returns whether a call writes a file, or makes a folder."""
  owner = getattr(getattr(call.func, "value", None), "id", "")
  if owner == "files":
    return False
  if name_of(call) == "open":
    modes = [x.value for x in (*call.args, *(k.value for k in call.keywords))
             if isinstance(x, ast.Constant)]  # fmt: skip
    return any(set(x) & set("wax+") for x in modes if set(x) <= set("rwaxbt+"))
  if name_of(call) in ("copy", "save"):  # also methods of other things
    return owner in LIBRARIES
  return name_of(call) in WRITES


def is_safe(block: ast.With) -> bool:
  """Returns whether what a block writes is new."""
  made = (x.context_expr for x in block.items)
  return any(isinstance(x, ast.Call) and name_of(x) in SAFE for x in made)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_only_files_writes_files(path):
  """Elsewhere, a link that somebody has prepared might be followed."""
  if layer(path) == "lab.files":
    return
  for call, function, blocks in calls_of(ast.parse(path.read_text())):
    if writes(call) and f"{path.stem}.{function}" not in MAY_WRITE:
      where = f"{path.name}:{call.lineno}"
      assert any(map(is_safe, blocks)), f"{where} writes without `files`"


def test_the_tests_of_a_package_are_in_a_folder_of_its_name():
  """Files have names of their own, by which pytest can tell them apart."""
  paths = sorted(TESTS.rglob("*_test.py"))
  assert len({path.name for path in paths}) == len(paths)
  for path in paths:
    folder = path.parent.relative_to(TESTS)
    if folder.parts[:1] not in [("faults",), ("end_to_end",), ("helpers",)]:
      assert (PACKAGE / folder).is_dir(), path


def test_the_tests_of_the_library_import_no_study():
  """Those of a study lie beside it, and `make test_studies` runs them."""
  paths = [*TESTS.rglob("*.py"), ROOT / "conftest.py"]
  assert len(paths) > 50
  for path in [*paths, *PACKAGE.rglob("*.py")]:
    assert "experiments" not in packages_of(path), path


def test_train_names_no_objective():
  text = (PACKAGE / "lab" / "train" / "loop.py").read_text()
  assert not any(name in text for name in ("nuclr(", "sogclr", "clip("))


def test_objectives_need_no_library_of_models_or_data():
  """Whoever has a loop of their own installs JAX and no more."""
  code = (
    "import sys\n"
    "for name in ('flax', 'orbax', 'grain', 'tensorflow_datasets', "
    "'array_record', 'ml_collections', 'tensorboardX', 'matplotlib', 'cv2', "
    "'tokenizers', 'optax', 'chex', 'absl', 'nuclr_jax.lab'):\n"
    "  sys.modules[name] = None\n"
    "import nuclr_jax, nuclr_jax.objectives, nuclr_jax.pairwise\n"
    "import nuclr_jax.popularity, nuclr_jax.sample_state\n"
  )
  subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", nuclr_jax.__all__)
def test_public_names_are_there(name):
  """Also those that are imported at their first use."""
  assert getattr(nuclr_jax, name) is not None and name in dir(nuclr_jax)


def test_a_name_that_is_not_public():
  with pytest.raises(
    AttributeError, match="'nuclr_jax' has no attribute 'fti'"
  ):
    nuclr_jax.fti  # noqa: B018


@pytest.mark.parametrize("path", PACKAGES, ids=lambda p: p.parent.name)
def test_packages_say_what_is_public(path):
  module = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
  package = importlib.import_module(module)
  assert len(package.__all__) == len(set(package.__all__))
  for name in package.__all__:
    assert hasattr(package, name), f"{module} has no {name}"


# The distributions that training on arrays needs.
OF_TRAINING = "absl-py flax jax jaxtyping msgpack numpy optax orbax-checkpoint"
OF_TRAINING += " scipy tokenizers"


def test_training_on_data_in_memory_needs_few_libraries():
  """Objectives, models and the train step can be imported with these alone."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  wanted = [re.match(r"[\w-]+", x)[0] for x in project["dependencies"]]
  assert set(OF_TRAINING.split()) < set(wanted)
  missing = set(wanted) - set(OF_TRAINING.split())
  top_level = importlib.metadata.packages_distributions()
  hidden = [k for k, x in top_level.items() if missing & set(x)]
  assert {"grain", "tensorflow_datasets", "google_crc32c"} < set(hidden)
  hidden += ["chex", "tensorflow", "torch"]
  code = (
    "import sys\n"
    f"sys.modules |= dict.fromkeys({hidden})\n"
    "import nuclr_jax.lab.train.loop, nuclr_jax.lab.models\n"
    "import nuclr_jax.pairwise\n"
  )
  subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def counted(data_dir):
  """The indicators of the package, by name."""
  command = [sys.executable, indicators.__file__, "--json"]
  command += [f"--package={PACKAGE}", f"--data_dir={data_dir}"]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize("name", CEILINGS)
def test_a_newcomer_has_no_more_to_keep_in_mind(name, counted):
  assert counted[name] <= CEILINGS[name]


def test_imports_between_packages_form_no_circle(counted):
  assert counted["circle"] is None and counted["layers"] >= 3
