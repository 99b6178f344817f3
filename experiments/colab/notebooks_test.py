"""Notebooks run as they are, in short, and are what their sources say."""

import functools
import json
import pathlib
import re
import runpy
import shutil

import jax
import matplotlib.pyplot
import pytest
import tiny_config

from nuclr_jax.lab import config
from nuclr_jax.lab.train import diagnostics

HERE = pathlib.Path(__file__)
ROOT = HERE.parents[2]
SOURCES = sorted(
  x for x in (ROOT / "experiments/colab").glob("*.py") if x != HERE
)


def cells(source: pathlib.Path):
  """(kind, text) of each cell of a source."""
  text = source.read_text().split("\n# ---\n", 1)[1]
  for cell in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
    kind, code = cell.split("\n", 1)
    code = code.strip("\n")
    if kind == " [markdown]":
      yield "markdown", re.sub(r"^# ?", "", code, flags=re.MULTILINE)
    else:
      yield "code", code


@pytest.mark.parametrize("source", SOURCES, ids=lambda x: x.stem)
def test_the_notebook_has_the_cells_of_its_source(source):
  notebook = json.loads(source.with_suffix(".ipynb").read_text())
  found = [
    (cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]
  ]
  assert found == list(cells(source))
  outputs = [x for cell in notebook["cells"] for x in cell.get("outputs", ())]
  # Those of a whole run, for readers who do not run it.
  assert any("image/png" in x.get("data", ()) for x in outputs)
  assert {x["output_type"] for x in outputs} <= {"display_data", "stream"}
  assert {x["name"] for x in outputs if "name" in x} <= {"stdout"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda x: x.stem)
def test_the_first_cell_of_code_installs(source):
  first = next(text for kind, text in cells(source) if kind == "code")
  assert '"-m", "pip", "install"' in first and "REPOSITORY" in first
  assert "\nimport jax" not in first


def test_these_are_all():
  names = "compare_objectives popularity quickstart your_own_data your_own_loop"
  assert [x.stem for x in SOURCES] == names.split()


def small(load, given):
  config = load(given)
  if given.startswith("glyphs"):
    config.update_from_flattened_dict(tiny_config.TOWERS)
    config.model.text_layers = 0
  if given.startswith("cc3m"):
    config.model.image.stages = (1,)
  return config


@pytest.mark.parametrize("source", SOURCES, ids=lambda x: x.stem)
def test_it_runs(source, data_dir, tmp_path, monkeypatch):
  """Somewhere else than in the checkout, whose packages are installed.

  The towers are smaller, and what no cell shows is not measured.
  """
  if "diagnostics" not in source.read_text():
    monkeypatch.setattr(diagnostics, "of_run", lambda *_: lambda _: {})
  shutil.copy(source, tmp_path)
  if "toy_dpm" in source.read_text():  # looks for it
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("NUCLR_SHORT", "1")
  monkeypatch.setenv("NUCLR_DATA_DIR", str(data_dir))
  monkeypatch.setattr(matplotlib.pyplot, "show", lambda: drawn.append(1))
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(
    config, "load_config", functools.partial(small, config.load_config)
  )
  drawn = []
  x64 = jax.config.jax_enable_x64
  try:
    runpy.run_path(str(tmp_path / source.name))
  finally:
    jax.config.update("jax_enable_x64", x64)
    matplotlib.pyplot.close("all")
  plots = [text for kind, text in cells(source) if "plt.show()" in text]
  assert len(drawn) == len(plots) > 0
