"""README and documentation are right: commands, lines of code, links."""

import base64
import doctest
import html
import importlib
import inspect
import json
import pathlib
import re
import shlex
import sys

import griffe
from load_file import load_file
from mkdocs.commands.build import build
from mkdocs.config import load_config as load_mkdocs_config
import pytest
from repository import ROOT

from nuclr_jax.lab import extensions
from nuclr_jax.lab.cli import main, verbs
from nuclr_jax.lab.config import load_config, override
from nuclr_jax.lab.train import checkpoint, records, settings

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "experiments" / "colab").glob("*.ipynb"))
hooks, equations, formulas, notebooks = (
  load_file(DOCS / f"{name}.py")
  for name in ("hooks", "equations", "formulas", "notebooks")
)
# A page loads what these attributes name, other than the target of a link.
LOADED = re.compile(r"<(?!a )\w[^>]* (?:src|href|data)=[\"']?([^\"'\s>]+)")
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import )[\"']?([^\"')]+)")


COMMENT = re.compile(r"<!--=\s*(.*?)\s*-->", re.DOTALL)


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
        if "nuclr" in words and "±" not in words:  # no output
          yield pytest.param(
            page,
            words[words.index("nuclr") + 1 :],
            id=f"{page.stem}: {line[:40]}",
          )


def test_the_readme_is_short():
  text = (ROOT / "README.md").read_text()
  assert len(text.split()) <= 600
  assert "<!--" not in text
  for target in re.findall(r"\]\(([^)#]+)\)", text):
    assert (ROOT / target).exists(), target


def test_the_map_of_the_code_has_every_package():
  text = (ROOT / "CONTRIBUTING.md").read_text()
  for folder in (ROOT / "nuclr_jax", ROOT / "nuclr_jax" / "lab"):
    for path in folder.iterdir():
      if path.suffix == ".py" and not path.name.startswith("__"):
        assert f"`{path.name}`" in text, path
      elif (path / "__init__.py").exists() and path.name not in (
        "lab",
        "contrib",
      ):
        assert f"`{path.name}/`" in text, path


GUIDES = [DOCS / "concepts.md", *(DOCS / "guides").glob("*.md")]


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_guides_have_few_numbers(page):
  """At most two measured ones in a paragraph; tables have the others."""
  for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", page.read_text()):
    measured = [x for x in COMMENT.findall(block) if not x.startswith("given")]
    assert sum(1 + x.count(" | ") for x in measured) <= 2, block


@pytest.fixture
def mine(page, tmp_path, monkeypatch):
  """The module `mine` that a guide shows, for what its commands name."""
  code = re.findall(
    r"^```python\n(\"\"\"mine\.py.*?)^```", page.read_text(), re.M | re.S
  )
  (tmp_path / "mine.py").write_text("".join(code))
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(extensions, "_allowed", dict(extensions._allowed))
  yield
  sys.modules.pop("mine", None)


@pytest.mark.parametrize("page, words", list(commands()))
def test_commands_have_flags_and_keys_that_exist(page, words, mine):
  verb, *arguments = words
  config, changes = None, []
  for word in arguments:
    name, _, value = word.partition("=")
    if not name.startswith("--"):
      free = word == "..." or main.VERBS[verb].words
      assert free, f"{word} is not a flag"
      continue
    key = name.removeprefix("--")
    assert key.split(".")[0] in main.VERBS[verb].taken, key
    if key == "import":
      extensions.allow(value)
    if key == "config":
      config = load_config(value)
    elif (verb, key) == ("train", "model"):  # by default, its recipe is this
      config = config or load_config("finetune_clip")
    elif key.startswith("config."):
      shell_variable = value.startswith("$")
      key = key.removeprefix("config.")
      changes.append((key, "1" if shell_variable else value))
  if changes:
    assert config is not None, "--config is missing"
    settings.resolve(override(config, changes))


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
  made = {DOCS / "notebooks" / f"{x.stem}.md" for x in NOTEBOOKS}
  for target in re.findall(r"\]\(([^)#]+)\)", text):
    path = page.parent / target
    assert path.exists() or path.resolve() in made, target
  for path in re.findall(
    r"`((?:nuclr_jax|experiments|configs|tests)/[\w/.]+)`", text
  ):
    assert "NAME" in path or (ROOT / path).exists(), path


def test_every_page_is_in_the_navigation():
  listed = re.findall(
    r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M
  )
  pages = [str(x.relative_to(DOCS)) for x in PAGES]
  pages += [f"notebooks/{x.stem}.md" for x in NOTEBOOKS]
  assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize(
  "module",
  "objectives pairwise popularity contrib.latent_classes lab.models "
  "lab.data".split(),
)
def test_the_reference_has_all_public_names(module):
  """A function that a module of the package is named after needs a line."""
  name = module.rpartition(".")[2]
  text = (DOCS / "api" / f"{name}.md").read_text()
  package = importlib.import_module(f"nuclr_jax.{module}")
  assert f"::: nuclr_jax.{module}\n" in text
  folder = pathlib.Path(package.__file__).parent
  for public in package.__all__:
    hidden = (folder / f"{public}.py").exists()
    if hidden and not inspect.ismodule(getattr(package, public)):
      assert f"::: nuclr_jax.{module}.{public}.{public}\n" in text


@pytest.mark.parametrize("module", [equations, formulas])
def test_examples_of_the_code_of_the_pages(module):
  results = doctest.testmod(module)
  assert results.attempted and not results.failed


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """The built site; the reference, which takes long, has no docstrings."""
  folder = tmp_path_factory.mktemp("site")
  config = load_mkdocs_config(
    str(ROOT / "mkdocs.yml"), plugins=["search"], site_dir=str(folder)
  )
  build(config)
  return folder


def test_the_site_loads_nothing_from_elsewhere(site):
  pages, styles = (sorted(site.rglob(f"*.{x}")) for x in ("html", "css"))
  assert len(pages) > len(PAGES) and styles
  loaded = [x for page in pages for x in LOADED.findall(page.read_text())]
  assert {"js", "css", "png"} <= {x.rsplit(".")[-1] for x in loaded}
  for style in styles:
    loaded += LOADED_BY_STYLE.findall(style.read_text())
  assert not [x for x in loaded if re.match(r"(\w+:)?//", x)]


@pytest.mark.parametrize(
  "tag",
  [
    "<script src=https://cdn.net/x.js>",
    "<link rel='stylesheet' href='//cdn.net/x.css'>",
    '<img alt="x" src="http://cdn.net/x.png">',
  ],
)
def test_what_a_page_loads_is_seen(tag):
  assert "//cdn.net/x." in LOADED.search(tag)[1]
  assert not LOADED.search('<a class="x" href="https://a.org">')


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_formulas_are_typeset(page, site):
  """A page has as many formulas in MathML as its source has in TeX."""
  text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
  text = re.sub(r"`[^`]*`", "", text)
  built = (site / page.relative_to(DOCS)).with_suffix(".html").read_text()
  assert built.count("<math ") == len(re.findall(r"(\$+)[^$]+\1", text))
  assert 'arithmatex">\\' not in built
  if page.stem == "concepts":
    assert "<munder><mo>&#x02211;</mo><mi>i</mi></munder>" in built


@pytest.mark.parametrize("tex", [r"\sums_i x_i", r"\frac{1}{2"])
def test_formulas_with_mistakes_are_errors(tex):
  with pytest.raises(ValueError, match="must have known commands"):
    formulas.mathml(tex)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda x: x.stem)
def test_notebooks_are_pages_with_their_outputs(path, site):
  page = (site / "notebooks" / path.stem).with_suffix(".html")
  content = page.read_text()
  text = html.unescape(re.sub(r"<[^>]*>", "", content))
  shown = {
    (page.parent / image).read_bytes()
    for image in re.findall(r'<img alt="Drawn by[^>]* src="([^"]+)"', content)
  }
  stored = set()
  for cell in json.loads(path.read_text())["cells"]:
    if cell["cell_type"] == "code":
      assert "".join(cell["source"]) in text
    for output in cell.get("outputs", ()):
      assert "".join(output.get("text", "")).strip("\n") in text
      if "data" in output:
        stored.add(base64.b64decode(output["data"]["image/png"]))
  assert shown == stored
  assert page.with_suffix(".ipynb").read_bytes() == path.read_bytes()


def test_the_page_on_stability_has_all_files_of_a_workdir():
  text = (DOCS / "stability.md").read_text()
  for name in (
    *(records.CONFIG, records.METRICS, records.HISTORY, records.TIMES),
    *(f"{checkpoint.NEWEST}/", f"{checkpoint.BEST}/"),
  ):
    assert f"`{name}`" in text
  for code in (main.WRONG_USE, verbs.INTERRUPTED):
    assert f"{code} if the " in text


def test_the_reference_has_examples_and_fields():
  extensions = griffe.Extensions(equations.Equations())
  package = griffe.load(
    "nuclr_jax.objectives", search_paths=[ROOT], extensions=extensions
  )
  types = griffe.load(
    "nuclr_jax.types", search_paths=[ROOT], extensions=extensions
  )
  fields = types["State"].docstring.value
  assert "  shared: counters and scalars" in fields
  parsed = package["clip.clip"].docstring.parse("google")
  assert griffe.DocstringSectionKind.examples in {x.kind for x in parsed}
