"""MkDocs hook: notebooks become pages, with the outputs stored in them."""

import pathlib

from jinja2 import DictLoader
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

FOLDER = pathlib.Path(__file__).parents[1] / "experiments" / "colab"
# nbconvert's Markdown, plus the language of the code, which the notebooks do
# not name, and a class on outputs, which the style sheet uses.
TEMPLATE = """
{%- extends "markdown/index.md.j2" -%}
{% block input %}
```python
{{ cell.source }}
```
{% endblock %}
{% block stream %}
```{.text .output}
{{ output.text }}
```
{% endblock %}
{% block data_png %}
![Drawn by the cell above]({{ output.metadata.filenames["image/png"] }})
{% endblock %}
"""
NOTE = """
*This page is the notebook [{0}.ipynb]({0}.ipynb) with the outputs of a complete
run.*
"""


def convert(path: pathlib.Path) -> tuple[str, dict[str, bytes]]:
  """Converts a notebook without running it.

  Args:
    path: The notebook; its first cell must begin with the title.

  Returns:
    The page, and the images that it shows, keyed by their paths relative to it.
  """
  exporter = MarkdownExporter(
    extra_loaders=[DictLoader({"page.md.j2": TEMPLATE})],
    template_file="page.md.j2",
  )
  page, resources = exporter.from_filename(
    str(path), resources={"output_files_dir": path.stem}
  )
  title, rest = page.strip().split("\n", 1)
  return title + "\n" + NOTE.format(path.stem) + rest, resources["outputs"]


def on_files(files, config):
  """Adds the notebooks' pages to the files of the documentation."""
  for path in sorted(FOLDER.glob("*.ipynb")):
    page, images = convert(path)
    contents = {f"{path.stem}.md": page, path.name: path.read_bytes()} | images
    for name, content in contents.items():
      uri = f"notebooks/{name}"
      files.append(File.generated(config, uri, content=content))
  return files
