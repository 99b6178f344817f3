"""Reads a page with lists as its script does, and runs it in Chromium."""

import base64
import html.parser
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class _Parser(html.parser.HTMLParser):
  """Collects tags, texts and what is in scripts, by id."""

  def __init__(self):
    super().__init__()
    self.tags, self.scripts, self.text, self.inside = [], {}, "", None

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag in ("script", "style"):
      self.inside = dict(attrs).get("id", tag)

  def handle_endtag(self, tag):
    if tag in ("script", "style"):
      self.inside = None

  def handle_data(self, data):
    if self.inside is None:
      self.text += data
    else:
      self.scripts[self.inside] = self.scripts.get(self.inside, "") + data


def parsed(path: pathlib.Path) -> _Parser:
  """Returns the tags, the scripts and the texts of a page."""
  parser = _Parser()
  parser.feed(path.read_text(encoding="utf-8"))
  parser.close()
  return parser


def decoded(x):
  return np.frombuffer(base64.b64decode(x["data"]), x["type"]).tolist()


def lists(path: pathlib.Path) -> dict[str, dict[str, list]]:
  """Returns the columns of all lists of a page, and the photos of rows."""
  found, scripts = {}, parsed(path).scripts
  texts = json.loads(scripts["common"])["texts"]
  for name, content in scripts.items():
    if name.startswith("rows-"):
      data = json.loads(content)
      columns = {}
      for column, x in data["columns"].items():
        (kind, values) = next(iter(x.items()))
        values = decoded(values)
        if kind == "texts":
          values = [texts[i] for i in values]
        columns[column] = values
      found[data["name"]] = columns | {"": decoded(data["photo"])}
  return found


def run(path: pathlib.Path, script: str, folder: pathlib.Path):
  """Runs a script at the end of a page, and returns what `result` then is.

  Skips the test if there is no Chromium.

  Args:
    path: The page.
    script: JavaScript, which sets `result`; it may await.
    folder: A folder for a copy of the page and the browser's files.
  """
  browser = next(filter(None, map(shutil.which, BROWSERS)), None)
  if browser is None:
    pytest.skip("no Chromium is installed")
  page = path.read_text(encoding="utf-8")
  driver = (
    "<script>(async () => { let result; try {" + script + "} catch (error) {"
    "result = {error: String(error.stack)}; } const made = document."
    "createElement('pre'); made.id = 'result'; made.textContent = btoa("
    "String.fromCharCode(...new TextEncoder().encode(JSON.stringify(result))));"
    "document.body.append(made); })();</script></body>"
  )
  copy = folder / "driven.html"
  copy.write_text(page.replace("</body>", driver), encoding="utf-8")
  command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
  command += [f"--user-data-dir={folder}/browser", "--virtual-time-budget=5000"]
  command += ["--dump-dom", copy.as_uri()]
  done = subprocess.run(
    command, capture_output=True, timeout=120, encoding="utf-8"
  )
  found = re.search(r'<pre id="result">([^<]*)</pre>', done.stdout)
  assert found, done.stderr[-2000:]
  result = json.loads(base64.b64decode(found[1]))
  assert not (isinstance(result, dict) and "error" in result), result
  return result
