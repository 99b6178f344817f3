"""Names that `nuclr popularity` suspects, judged by the pictures, blind.

nuclr popularity --workdir=runs/icons
python -m experiments.icons.judged sheets --workdir=runs/icons \
  --package=iconify-json-2.2.535.tgz --output=runs/judged
python -m experiments.icons.judged score --output=runs/judged

The second command writes sheets of the most suspicious pairs and of as many
random ones, mixed, and `key.csv`, which says which is which. Look at the sheets
alone, and write `verdicts.txt`: a line for each number, with "right", "wrong"
or "nothing" (the name says nothing about the picture) after it. The third one
writes `judged.csv` and `judged.json`, shares with Wilson intervals in percent.
"""

import argparse
import csv
import json
import pathlib
import textwrap

import numpy as np
from scipy.stats import binomtest

from nuclr_jax.lab import files
from nuclr_jax.lab.data.icons import package, render
from nuclr_jax.lab.data.icons.builder import prepare_icons
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.records import read_columns

COUNT, KEY = 100, 50  # pairs of each kind; of their order
COLUMNS, LINES, SIZE, MARGIN = 5, 4, 128, 44  # of a sheet; pixels
VERDICTS = ("right", "wrong", "nothing")
FIELDS = ("number", "set", "icon", "name", "suspect")
TABLE = pathlib.Path(__file__).with_name("judged.csv")


def chosen(suspects: pathlib.Path) -> list[tuple[int, bool]]:
  """Returns pairs, and whether each is a suspect, in random order.

  Args:
    suspects: The table that `nuclr popularity` wrote, the most suspicious pairs
      first.
  """
  with suspects.open(encoding="utf-8", newline="") as file:
    pairs = [int(row["pair"]) for row in csv.DictReader(file)]
  random = np.random.default_rng(KEY)
  others = random.choice(pairs[COUNT:], COUNT, replace=False).tolist()
  mixed = [(x, True) for x in pairs[:COUNT]] + [(x, False) for x in others]
  return [mixed[i] for i in random.permutation(len(mixed))]


def sheets(options) -> None:
  """Draws the sheets, and writes the key."""
  from PIL import Image, ImageDraw, ImageFont

  folder = prepare_icons(cache_dir(options.data_dir), version=options.version)
  columns, _ = read_columns(folder, "train")
  pairs = chosen(options.workdir / "popularity" / "suspects.csv")
  rows = [
    {
      "number": number,
      "set": columns["set"][pair],
      "icon": columns["icon"][pair],
      "name": columns["caption"][pair],
      "suspect": int(suspect),
    }
    for number, (pair, suspect) in enumerate(pairs, 1)
  ]
  source = package.open_package(options.package, options.version)
  drawings = {
    (x.prefix, icon.name): icon
    for x in package.read_sets(source, {row["set"] for row in rows})
    for icon in x.icons
  }
  options.output.mkdir(parents=True, exist_ok=True)
  font = ImageFont.load_default(size=13)
  of_sheet = COLUMNS * LINES
  for first in range(0, len(rows), of_sheet):
    sheet = Image.new(
      "L", (COLUMNS * (SIZE + MARGIN), LINES * (SIZE + MARGIN)), 255
    )
    pen = ImageDraw.Draw(sheet)
    for place, row in enumerate(rows[first : first + of_sheet]):
      left = (place % COLUMNS) * (SIZE + MARGIN) + MARGIN // 2
      top = (place // COLUMNS) * (SIZE + MARGIN)
      ink = render.draw(drawings[row["set"], row["icon"]], SIZE)[..., 0]
      sheet.paste(Image.fromarray(255 - ink), (left, top))
      words = f"{row['number']}: {row['name']}"
      lines = textwrap.wrap(words, 24, max_lines=2, placeholder=" ...")
      at = (left - MARGIN // 2 + 2, top + SIZE + 4)
      pen.text(at, "\n".join(lines), fill=0, font=font)
    sheet.save(options.output / f"sheet_{first // of_sheet + 1:02d}.png")
  _write(options.output / "key.csv", FIELDS, rows)


def score(options) -> None:
  """Joins verdicts with the key, and counts them."""
  text = (options.output / "verdicts.txt").read_text(encoding="utf-8")
  verdicts = dict(line.split() for line in text.splitlines() if line.strip())
  with (options.output / "key.csv").open(encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
  numbers = {row["number"] for row in rows}
  if verdicts.keys() != numbers or set(verdicts.values()) - set(VERDICTS):
    raise ValueError(
      f"verdicts.txt needs one of {VERDICTS} for each number in key.csv; check "
      f"{sorted(verdicts.keys() ^ numbers)[:5]}"
    )
  rows = [row | {"verdict": verdicts[row["number"]]} for row in rows]
  _write(TABLE, (*FIELDS, "verdict"), rows)
  text = json.dumps(shares(rows), indent=1)
  files.write_text(TABLE.with_suffix(".json"), text + "\n")
  print(text)


def shares(rows: list[dict[str, str]]) -> dict[str, dict[str, list[int]]]:
  """Returns shares of the verdicts, of suspects and of random pairs.

  Returns:
    For each verdict, and for "wrong or nothing", the share and the ends of its
    interval, in percent.

  Example:
    >>> rows = [{"suspect": "1", "verdict": "wrong"}] * 4
    >>> shares(rows)["suspects"]["wrong"]
    [100, 51, 100]
  """
  found: dict[str, dict[str, list[int]]] = {"suspects": {}, "random": {}}
  for flag, kind in (("1", "suspects"), ("0", "random")):
    verdicts = [x["verdict"] for x in rows if x["suspect"] == flag]
    for name in (*VERDICTS, "wrong or nothing") if verdicts else ():
      count = sum(x in name.split(" or ") for x in verdicts)
      interval = binomtest(count, len(verdicts)).proportion_ci(method="wilson")
      share = (count / len(verdicts), *interval)
      found[kind][name] = [round(100 * x) for x in share]
  return found


def _write(path: pathlib.Path, fields, rows) -> None:
  with path.open("w", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def main() -> None:
  """Runs one of the commands."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = parser.add_subparsers(required=True)
  for command in (sheets, score):
    one = commands.add_parser(command.__name__, help=command.__doc__)
    one.set_defaults(command=command)
    one.add_argument("--output", type=pathlib.Path, required=True)
    if command is sheets:
      one.add_argument("--workdir", type=pathlib.Path, required=True)
      one.add_argument("--package", type=pathlib.Path, required=True)
      one.add_argument("--version", default="2.2.535")
      one.add_argument("--data_dir")
  options = parser.parse_args()
  options.command(options)


if __name__ == "__main__":
  main()
