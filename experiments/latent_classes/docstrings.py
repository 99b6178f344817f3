"""English sentences without a download: what installed modules say they do.

A document is a Python file of the standard library, NumPy, SciPy, scikit-learn
or Matplotlib, and its sentences are those of its docstrings: prose only, and
each in one document only. The files' topics stand in for the articles of
Wiki-3029. The sentences depend on the versions of the packages.

python -m experiments.latent_classes.docstrings FOLDER   # writes the documents
"""

import ast
import importlib
import os
import pathlib
import re
import sys
import warnings

import numpy as np

PACKAGES = ("matplotlib", "numpy", "scipy", "sklearn")
SENTENCES = 60  # of each document
WORDS = range(5, 41)  # in a sentence
LETTERS = 0.7  # at least this share of a sentence's characters
NO_PROSE = (">>>", "---", "===", "::")  # marks of code, headings and tables
LEFT_OUT = ("site-packages", "test", "tests", "externals")  # folders


def write_documents(folder: pathlib.Path) -> int:
  """Writes a text file for each document, a sentence on each line.

  Documents with fewer than `SENTENCES` sentences are not written; of longer
  ones, as many are chosen at random, in the same way every time.

  Args:
    folder: Where to write; made if it does not exist.

  Returns:
    The number of documents.
  """
  folder.mkdir(parents=True, exist_ok=True)
  rng, seen, count = np.random.default_rng(0), set(), 0
  for package, root in roots().items():
    for path in sorted(root.rglob("*.py")):
      below = path.relative_to(root)
      if set(below.parts[:-1]) & set(LEFT_OUT):
        continue
      sentences = [x for x in prose(path) if x not in seen]
      if len(sentences) < SENTENCES:
        continue
      seen.update(sentences)
      rows = np.sort(rng.permutation(len(sentences))[:SENTENCES])
      name = ".".join((package, *below.with_suffix("").parts))
      text = "".join(f"{sentences[i]}\n" for i in rows)
      (folder / f"{name}.txt").write_text(text, encoding="utf-8")
      count += 1
  return count


def roots() -> dict[str, pathlib.Path]:
  """Returns the folders of the packages, by name."""
  files = {"python": os.__file__} | {
    name: importlib.import_module(name).__file__ for name in PACKAGES
  }
  return {name: pathlib.Path(file).parent for name, file in files.items()}


def prose(path: pathlib.Path) -> list[str]:
  """Returns the different sentences of a Python file's docstrings, in order."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of escapes in others' strings
    try:
      tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # files that are tests of these
      return []
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  sentences = []
  for node in ast.walk(tree):
    if isinstance(node, kinds) and (text := ast.get_docstring(node)):
      for paragraph in re.split(r"\n\s*\n", text):
        if not any(mark in paragraph for mark in NO_PROSE):
          line = " ".join(paragraph.split())
          sentences += re.split(r"(?<=[.!?]) (?=[A-Z])", line)
  return list(dict.fromkeys(filter(is_sentence, sentences)))


def is_sentence(text: str) -> bool:
  """Returns whether a text ends like a sentence and is mostly words.

  Example:
    >>> is_sentence("Returns the mean of all values along an axis.")
    True
    >>> is_sentence("x : array_like of shape (n, 3), see `y`.")
    False
  """
  words = re.findall(r"[A-Za-z']+", text)
  letters = sum(map(len, words)) / max(len(text), 1)
  return text.endswith((".", "!", "?")) and (
    len(words) in WORDS and letters > LETTERS
  )


if __name__ == "__main__":
  place = pathlib.Path(sys.argv[1])
  print(f"{place}: {write_documents(place)} documents")
