"""Draws docs/figures/popular.png: icons and their popularity.

Four rows of training images with their captions: the most popular, the least
popular, and the two largest clusters of near-duplicates. They come from a
finished run and its table of popularities:

make icons
nuclr popularity --workdir=runs/icons
python docs/popular_figure.py runs/icons   # from the root of the repository
"""

import argparse
import csv
import pathlib
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from nuclr_jax.lab.train import loop

NUM_SHOWN, CAPTION_WIDTH = 7, 14  # images in a row, characters in a line
COLUMN, TILE, HEADING, LINE, GAP = 1.0, 0.62, 0.3, 0.11, 0.14  # inches
OUTPUT = pathlib.Path(__file__).parent / "figures" / "popular.png"


def distinct(samples, key):
  """Returns the first samples with different keys, as many as fit in a row."""
  first = {}
  for sample in samples:
    first.setdefault(key(sample), sample)
  return list(first.values())[:NUM_SHOWN]


def cluster_or_caption(sample):
  """Returns a sample's cluster, or its caption if it has no near-duplicates."""
  return sample["cluster"] if sample["cluster"] != "0" else sample["caption"]


def zeta_range(samples):
  """Returns the first and the last popularity in a row, as text."""
  first, last = (float(samples[i]["zeta_exact"]) for i in (0, -1))
  return f"ζ = {first:.3f} to {last:.3f}".replace("-", "−")


def rows_of(samples):
  """Yields the heading and the samples of every row of the figure."""
  samples = sorted(samples, key=lambda x: -float(x["zeta_exact"]))
  # Near-duplicates are equally popular, so one of each cluster is enough.
  for which, order in (("most", samples), ("least", samples[::-1])):
    shown = distinct(order, cluster_or_caption)
    yield f"The {which} popular images ({zeta_range(shown)})", shown
  for number in ("1", "2"):  # the largest first
    members = [x for x in samples if x["cluster"] == number]
    captions = len({x["caption"] for x in members})
    short = sorted(members, key=lambda x: len(x["caption"]))
    yield (
      f"Near-duplicates: {len(members)} images, {captions} different captions",
      distinct(short, lambda x: x["caption"]),
    )


def draw(rows, fetch):
  """Draws a figure with a band for each row, as high as its longest caption.

  Args:
    rows: The heading and the samples of each row.
    fetch: Maps image ids to the images.
  """
  captions = [
    [textwrap.fill(x["caption"], CAPTION_WIDTH) for x in samples]
    for _, samples in rows
  ]
  bands = [
    HEADING + TILE + LINE * max(x.count("\n") + 1 for x in row) + GAP
    for row in captions
  ]
  width, height = NUM_SHOWN * COLUMN, sum(bands)
  figure, top = plt.figure(figsize=(width, height)), height
  for (heading, samples), texts, band in zip(
    rows, captions, bands, strict=True
  ):
    figure.text(
      *(0.19 / width, (top - 0.1) / height),
      heading,
      va="top",
      fontsize=9,
      weight="bold",
    )
    images = fetch(np.array([int(x["id"]) for x in samples]))
    for i, (text, image) in enumerate(zip(texts, images, strict=True)):
      left, bottom = (i + 0.5) * COLUMN - TILE / 2, top - HEADING - TILE
      axes = figure.add_axes(
        (left / width, bottom / height, TILE / width, TILE / height)
      )
      axes.imshow(np.squeeze(image), cmap="gray", vmin=0, vmax=255)
      axes.set(xticks=[], yticks=[])
      axes.set_xlabel(text, fontsize=6.5, labelpad=3)
    top -= band
  return figure


def main(workdir: pathlib.Path) -> None:
  """Draws the figure."""
  with (workdir / "popularity" / "images.csv").open(encoding="utf-8") as file:
    rows = list(rows_of(csv.DictReader(file)))
  parts, _, _ = loop.load(workdir)
  # A source is read by pair ids; each icon has its own pair.
  figure = draw(rows, lambda ids: parts.data.train.fetch(ids).image)
  OUTPUT.parent.mkdir(exist_ok=True)
  figure.savefig(OUTPUT, dpi=160)


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("workdir", type=pathlib.Path, help="a run on icons")
  main(parser.parse_args().workdir)
