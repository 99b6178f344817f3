"""Writes the attribution of the icons into docs/icons.md.

python -m experiments.icons.attribution --sets=FOLDER/sets.csv

The table is the one that the library writes beside the prepared data set.
"""

import argparse
from collections import defaultdict
import csv
import html
import pathlib
import re

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data.captions import of_cell

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "icons.md"
BEGIN, END = "<!-- sets: begin -->", "<!-- sets: end -->"
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
  lines = [
    "| by | licence | sets and icons | split |",
    "| --- | --- | --- | --- |",
  ]
  for (author, licence, split), found in sets.items():
    url = found[0][0]["license_url"]
    listed = ", ".join(f"{name} {row['icons']}" for row, name in found)
    cells = cell(author), cell(licence, url), listed, split
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def main() -> None:
  """Replaces the table of the page."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--sets", type=pathlib.Path, required=True)
  flags = parser.parse_args()
  with flags.sets.open(newline="", encoding="utf-8") as file:
    rows = [
      {key: of_cell(x) for key, x in row.items()}
      for row in csv.DictReader(file)
    ]
  before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
  _, _, after = rest.partition(END)
  text = f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"
  files.write_text(PAGE, text)


if __name__ == "__main__":
  main()
