"""What pip installs: the files of the package, the locked versions."""

import json
import re
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
import pytest
from repository import ROOT

from nuclr_jax.lab.cli import doctor, usage

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_of_the_package_is_installed():
  """Setuptools skips folders without `__init__.py` and unlisted suffixes."""
  patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
  paths = [
    path
    for path in (ROOT / "nuclr_jax").rglob("*")
    if path.is_file() and path.suffix != ".pyc"
  ]
  assert len(paths) > 50
  for path in paths:
    assert (path.parent / "__init__.py").exists(), path
    assert any(path.match(p) for p in ["*.py", *patterns]), path


def test_type_checkers_read_the_annotations():
  assert (ROOT / "nuclr_jax" / "py.typed").exists()
  assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_a_version_is_the_same_everywhere():
  version = PROJECT["project"]["version"]
  for name, pattern in {
    "nuclr_jax/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## ([\d.]+)",
  }.items():
    found = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
    assert found[0] == version, name


def test_a_tag_builds_what_ci_has_built():
  """The release workflow takes the actions of CI, in the same versions."""
  ci, release = (
    (ROOT / ".github" / "workflows" / name).read_text()
    for name in ("ci.yml", "release.yml")
  )
  actions = set(
    re.findall(r"uses: (actions/(?:checkout|setup-python)@\S+)", ci)
  )
  assert len(actions) == 2
  assert all(action in release for action in actions)


def test_the_container_names_extras_and_verbs_that_there_are():
  text = (ROOT / "Dockerfile").read_text()
  extras = re.findall(r"EXTRAS=(\w+)", text)
  extras += re.search(r"such as\n# ([\w,]+)\.", text)[1].split(",")
  assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])
  assert len(extras) == 4
  verbs = re.findall(r"# +docker run .* nuclr(?::gpu)? (\w+)", text)
  assert verbs == ["train", "doctor"] and set(verbs) <= set(usage.VERBS)
  ignored = (ROOT / ".dockerignore").read_text().split()
  for needed in ("nuclr_jax", "configs", "pyproject.toml", "README.md"):
    assert needed not in ignored


def test_every_supported_python_is_tested():
  """What is declared is in CI, and `nuclr doctor` knows it."""
  marker = "Programming Language :: Python :: "
  declared = [x for x in PROJECT["project"]["classifiers"] if marker in x]
  versions = [x.removeprefix(marker) for x in declared]
  ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
  matrix = re.search(r"^  test:.*?python: (\[.*?\])", ci, re.DOTALL | re.M)
  assert json.loads(matrix[1]) == versions
  required = PROJECT["project"]["requires-python"]
  assert [x for x in versions if x in SpecifierSet(required)] == versions
  assert required == f">={versions[0]}"
  for version in versions:
    assert doctor.is_known(tuple(map(int, version.split("."))))
  assert not doctor.is_known((3, 10))
  assert not doctor.is_known((3, 1 + int(versions[-1].split(".")[1])))


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_make_takes_the_lock_of_a_python(python, tmp_path):
  """From a stand-in for the interpreter, which says what it prints."""
  fake = tmp_path / "python"
  version = tuple(map(int, python.split(".")))
  script = tmp_path / "stand_in.py"
  script.write_text(
    f"import sys; sys.version_info = {version}; exec(sys.argv[2])\n"
  )
  fake.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{script}' \"$@\"\n")
  fake.chmod(0o755)
  (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
  ran = subprocess.run(
    ["make", "--no-print-directory", "--eval=show: ; @echo $(TESTED)", "show"]
    + [f"PYTHON={fake}"],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  name = "tested.txt" if python == "3.11" else "tested-3.12.txt"
  assert ran.stdout == f"requirements/{name}\n", ran.stderr


@pytest.mark.parametrize("name", ["tested.txt", "tested-3.12.txt"])
def test_a_lock_has_every_dependency_in_a_version_that_is_allowed(name):
  text = (ROOT / "requirements" / name).read_text()
  lines = text.replace("\\\n", "").splitlines()
  entries = [x.split("--hash=") for x in lines if x and not x.startswith("#")]
  assert all(hashes for _, *hashes in entries)
  pins = [Requirement(pin) for pin, *_ in entries]
  versions = {x.name: str(x.specifier).removeprefix("==") for x in pins}
  assert len(versions) == len(pins)  # one version on every Python
  needed = [
    *PROJECT["project"]["dependencies"],
    *PROJECT["project"]["optional-dependencies"]["test"],
    *PROJECT["dependency-groups"]["build"],
    *PROJECT["build-system"]["requires"],
  ]
  for text in needed:
    requirement = Requirement(text)
    version = versions.get(canonicalize_name(requirement.name))
    assert version, f"{text} is not locked; run `make lock`"
    assert requirement.specifier.contains(version), (
      f"{text} does not allow the locked {version}; run `make lock`"
    )
