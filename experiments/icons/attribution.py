"""Writes the counts and the attribution of the icons into docs/icons.md.

python -m experiments.icons.attribution --data_dir=DATA --version=2.2.535

Both are of the data set that the library prepares by default, and of the table
beside it.
"""

import argparse
from collections import Counter, defaultdict
import csv
import html
import pathlib
import re

from experiments.harness import markdown
from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data.captions import of_cell
from nuclr_jax.lab.data.icons.builder import SETS, prepare_icons
from nuclr_jax.lab.data.icons.families import SPLITS
from nuclr_jax.lab.data.records import read_columns

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "icons.md"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
SAFE = re.compile(r"https://[\w./~%+-]+")


def cell(text: str, url: str = "") -> str:
  r"""Makes a cell of a Markdown table of a text that anybody may have written.

  >>> cell("a|b <c>", "https://a.b/c"), cell("x", "javascript:x")
  ('<a href="https://a.b/c">a\\|b &lt;c&gt;</a>', 'x')
  """
  plain = html.escape(progress.plain(text, keep=""), quote=False)
  escaped = re.sub(r"([|\[\]_*`\\])", r"\\\1", plain)
  return f'<a href="{url}">{escaped}</a>' if SAFE.fullmatch(url) else escaped


def table(rows: list[dict[str, str]]) -> str:
  """Makes a line of each author and licence, with the sets."""
  sets = defaultdict(list)
  for row in sorted(rows, key=lambda x: (x["author"].lower(), x["set"])):
    key = row["author"], row["license"], row["split"]
    sets[key].append((row, cell(row["set"], row["author_url"])))
  lines = []
  for (author, licence, split), found in sets.items():
    url = found[0][0]["license_url"]
    listed = ", ".join(f"{name} {row['icons']}" for row, name in found)
    lines.append([cell(author), cell(licence, url), listed, split])
  header = ["by", "licence", "sets and icons", "split"]
  return markdown.table(header, lines)


def counts(rows: list[dict[str, str]], names: dict[str, list[str]]) -> str:
  """Makes a line of each split.

  Args:
    rows: The table of sets.
    names: The names of all icons of each split.
  """
  header = ["split", "families", "sets", "icons", "distinct names"]
  header += ["most icons of a name", "icons whose name training has"]
  header += ["copies of icons in splits above"]
  lines, known = [], set(names["train"])
  for split in SPLITS:
    mine = [row for row in rows if row["split"] == split]
    found = Counter(names[split])
    seen = sum(n for name, n in found.items() if name in known)
    share = f"{100 * seen / found.total():.0f} %"
    numbers = len({x["family"] for x in mine}), len(mine), found.total()
    copies = sum(int(x["copies"]) for x in mine)
    lines.append(
      [split, *(f"{x:,}" for x in (*numbers, len(found), max(found.values())))]
      + (["", ""] if split == "train" else [share, f"{copies:,}"])
    )
  return markdown.table(header, lines)


def replace(text: str, mark: str, new: str) -> str:
  """Replaces what is between the marks of a page."""
  begin, end = BEGIN.format(mark), END.format(mark)
  before, _, rest = text.partition(begin)
  _, found, after = rest.partition(end)
  if not found:
    raise ValueError(f"{PAGE} has no {begin} ... {end}")
  return f"{before}{begin}\n\n{new}\n\n{end}{after}"


def main() -> None:
  """Replaces the tables of the page."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--data_dir", type=pathlib.Path, required=True)
  parser.add_argument("--version", required=True)
  flags = parser.parse_args()
  folder = prepare_icons(flags.data_dir, version=flags.version)
  names = {x: read_columns(folder, x)[0]["caption"] for x in SPLITS}
  with (folder.parent / SETS).open(newline="", encoding="utf-8") as file:
    rows = [
      {key: of_cell(x) for key, x in row.items()}
      for row in csv.DictReader(file)
    ]
  text = replace(PAGE.read_text(encoding="utf-8"), "sets", table(rows))
  files.write_text(PAGE, replace(text, "counts", counts(rows, names)))


if __name__ == "__main__":
  main()
