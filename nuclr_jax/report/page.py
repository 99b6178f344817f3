"""Pieces of HTML pages: galleries, plots, one file that needs no other."""

import base64
from collections.abc import Callable, Mapping, Sequence
import html
import io
import pathlib

from matplotlib.figure import Figure
import numpy as np
from PIL import Image

from nuclr_jax import files

LARGEST = 128  # pixels of an image on a page
NUM_SHOWN = 24  # samples in a gallery

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0;
       text-align: left; vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; }
.gallery { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: 0; width: 7.5rem; font-size: 11px; line-height: 1.3; }
figure img { width: 64px; height: 64px; image-rendering: pixelated;
       display: block; } .plot { max-width: 100%; }
.right { color: #16703a; } .wrong { color: #a8261c; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 12px; }
"""


def write(path: pathlib.Path, title: str, sections: Sequence[str]) -> None:
  """Writes a page of its sections."""
  title = html.escape(title)
  files.write_atomically(
    path,
    f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
    f"<style>{STYLE}</style><body><h1>{title}</h1>{''.join(sections)}"
    "</body></html>",
  )


def gallery(images: np.ndarray | None, notes: Sequence[str]) -> str:
  """Images, each with a note in HTML; notes alone if there are none.

  Rows of features instead of images are not shown either.
  """
  if images is None or images.ndim < 3:
    figures = [f"<figure>{note}</figure>" for note in notes]
  else:
    figures = [
      f"<figure><img src='{png(image)}' alt=''>{note}</figure>"
      for image, note in zip(images, notes, strict=True)
    ]
  return f"<div class=gallery>{''.join(figures)}</div>"


def popular(
  side: str,
  zeta: np.ndarray,
  *,
  choose: Callable[[np.ndarray], np.ndarray],
  captions: Callable[[np.ndarray], Sequence[str]],
  images: Callable[[np.ndarray], np.ndarray | None],
) -> list[str]:
  """Galleries of the samples of greatest and of smallest zeta.

  Args:
    side: "image" or "text".
    zeta: Of the samples, which are known by their rows.
    choose: Takes rows in the order of a gallery, gives those that are shown.
    captions: Of rows.
    images: Of rows; None if there are none.
  """
  order, sections = np.argsort(zeta, kind="stable"), []
  for which, found in (("Most", order[::-1]), ("Least", order)):
    rows = choose(found)
    notes = [
      f"{html.escape(caption)}<br>&zeta; = {zeta[i]:+.4f}"
      for i, caption in zip(rows, captions(rows), strict=True)
    ]
    sections.append(
      f"<h2>{which} popular {side}s</h2>" + gallery(images(rows), notes)
    )
  return sections


def table(numbers: Mapping[str, str]) -> str:
  """Names, and what is shown of each."""
  rows = "".join(
    f"<tr><td>{html.escape(name)}<td class=n>{html.escape(shown)}"
    for name, shown in numbers.items()
  )
  return f"<table>{rows}</table>"


def png(image: np.ndarray) -> str:
  """An image as a data address."""
  buffer, small = io.BytesIO(), Image.fromarray(np.squeeze(image))
  small.thumbnail((LARGEST, LARGEST))
  small.save(buffer, format="png")
  return _data_address(buffer.getvalue())


def save(figure: Figure, path: pathlib.Path) -> str:
  """Saves a plot beside the report and shows it inside."""
  figure.savefig(path, dpi=110)
  return f"<img class=plot alt='' src='{_data_address(path.read_bytes())}'>"


def _data_address(data: bytes) -> str:
  return "data:image/png;base64," + base64.b64encode(data).decode()


def plot(axes, rows: Sequence[Mapping[str, float]], names: Sequence[str]):
  """Draws numbers of a history over its steps; those that are there.

  Args:
    axes: Of Matplotlib.
    rows: Of `records.read_history`.
    names: Of the numbers.
  """
  for name in names:
    points = [(row["step"], row[name]) for row in rows if name in row]
    if points:
      axes.plot(*zip(*points, strict=True), marker=".", label=name)
  axes.set_xlabel("step")
  axes.grid(alpha=0.3)
  if axes.lines:
    axes.legend(frameon=False)
