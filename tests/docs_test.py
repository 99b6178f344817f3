"""What README and documentation say is so: commands, lines of code, links."""

import doctest
import functools
import importlib
import inspect
import pathlib
import re
import shlex

import griffe
from load_file import load_file
import pytest

from nuclr_jax import main, settings

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
hooks, equations = (
  load_file(DOCS / "hooks.py"),
  load_file(DOCS / "equations.py"),
)


def name_of(page):
  return str(page.relative_to(ROOT))


def commands():
  """Every `nuclr` command in a block of code."""
  for page in (ROOT / "README.md", *PAGES):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S)
    for language, block in blocks:
      if language:
        continue
      for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "nuclr" in words:
          yield pytest.param(
            words[words.index("nuclr") + 1 :], id=f"{page.stem}: {line[:40]}"
          )


@pytest.mark.parametrize("words", list(commands()))
def test_commands_have_flags_and_keys_that_exist(words):
  verb, *given = words
  config = None
  for word in given:
    name, _, value = word.partition("=")
    if not name.startswith("--"):
      assert word in ("...",), f"{word} is no flag"
      continue
    key = name.removeprefix("--")
    assert key.split(".")[0] in main.VERBS[verb].flags, key
    if key == "config":
      config = settings.load(value)
    elif key.startswith("config."):
      assert config is not None, "--config comes first"
      functools.reduce(lambda x, part: x[part], key.split(".")[1:], config)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_code_are_there(page):
  quoted = [x.groupdict() for x in hooks.QUOTED.finditer(page.read_text())]
  assert bool(quoted) == (page.parent.name == "papers")
  for cell in quoted:
    assert hooks.line_number(**cell) > 0
  if quoted:
    path, code = quoted[0].values()
    number = hooks.line_number(path, code)
    assert f"`{path}:{number}`" in hooks.on_page_markdown(page.read_text())
    assert code in (ROOT / path).read_text().splitlines()[number - 1]
    with pytest.raises(ValueError, match="has 0 lines with 'nowhere'"):
      hooks.line_number(path, "nowhere")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_files_are_there(page):
  text = page.read_text()
  for target in re.findall(r"\]\(([^)#]+)\)", text):
    assert (page.parent / target).exists(), target
  for path in re.findall(
    r"`((?:nuclr_jax|experiments|configs|tests)/[\w/.]+)`", text
  ):
    assert (ROOT / path).exists(), path


def test_every_page_is_in_the_navigation():
  listed = re.findall(
    r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M
  )
  assert sorted(listed) == sorted(str(x.relative_to(DOCS)) for x in PAGES)


@pytest.mark.parametrize(
  "name",
  "objectives pairwise popularity latent_classes models datasets".split(),
)
def test_the_reference_has_all_public_names(name):
  """A function that a module of the package is named after needs a line."""
  page = "data" if name == "datasets" else name
  text = (DOCS / "api" / f"{page}.md").read_text()
  package = importlib.import_module(f"nuclr_jax.{name}")
  assert f"::: nuclr_jax.{name}\n" in text
  folder = pathlib.Path(package.__file__).parent
  for public in package.__all__:
    hidden = (folder / f"{public}.py").exists()
    if hidden and not inspect.ismodule(getattr(package, public)):
      assert f"::: nuclr_jax.{name}.{public}.{public}\n" in text


def test_examples_of_the_code_of_the_pages():
  found = doctest.testmod(equations)
  assert found.attempted and not found.failed


def test_the_reference_has_examples_and_fields():
  extensions = griffe.Extensions(equations.Equations())
  package = griffe.load(
    "nuclr_jax.objectives", search_paths=[ROOT], extensions=extensions
  )
  fields = package["base.Rows"].docstring.value
  assert "  pair: leaves [num_pairs, ...], read at `pair_id`\n" in fields
  parsed = package["clip.clip"].docstring.parse("google")
  assert griffe.DocstringSectionKind.examples in {x.kind for x in parsed}


def test_packages_are_those_of_the_folders():
  text = (ROOT / "pyproject.toml").read_text()
  listed = re.findall(r'^    "(nuclr_jax[\w.]*)",$', text, re.M)
  found = [
    ".".join(x.parent.relative_to(ROOT).parts)
    for x in (ROOT / "nuclr_jax").rglob("__init__.py")
  ]
  assert sorted(listed) == sorted([*found, "nuclr_jax.configs"])
