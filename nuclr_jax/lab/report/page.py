"""Pieces of self-contained HTML pages: galleries, tables and plots."""

import base64
from collections.abc import Callable, Mapping, Sequence
import html
import io
import pathlib
import re

from matplotlib.figure import Figure
import numpy as np
from PIL import Image

from nuclr_jax.lab import files

LARGEST = 192  # width or height of an image on a page, in pixels
SMALL = 64  # of which every pixel is to be seen
NUM_SHOWN = 24  # samples in a gallery
# The last part of the names of scores that are shares. Other scores are losses,
# norms and the like.
SHARES = r"(mean_)?recall(@\d+)?|top_?\d+|avg_\d+|mean_per_class"
MAX_TEXT = 500  # characters of a caption

# Whatever a page holds, it loads nothing and sends nothing.
NO_NETWORK = (
  "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
  "script-src 'unsafe-inline'"
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0;
       text-align: left; vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; }
.gallery { display: grid; gap: 1.2rem .9rem;
       grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); }
figure { margin: 0; font-size: 13px; line-height: 1.35;
       overflow-wrap: anywhere; }
figure img { width: 100%; aspect-ratio: 1; object-fit: contain;
       display: block; background: #f5f5f5; }
.small { image-rendering: pixelated; } .plot { max-width: 100%; }
.right { color: #16703a; } .wrong { color: #a8261c; }
details { margin-top: 1.5rem; } summary { cursor: pointer; font-weight: 600; }
.wide { overflow-x: auto; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 12px; }
"""


def write(path: pathlib.Path, title: str, sections: Sequence[str]) -> None:
  """Writes a page made of these sections."""
  title = html.escape(title)
  files.write_atomically(
    path,
    "<!doctype html><html lang=en><meta charset=utf-8>"
    "<meta name=viewport content='width=device-width, initial-scale=1'>"
    f'<meta http-equiv=Content-Security-Policy content="{NO_NETWORK}">'
    f"<title>{title}</title>"
    f"<style>{STYLE}</style><body><h1>{title}</h1>{''.join(sections)}"
    "</body></html>",
  )


def gallery(images: np.ndarray | None, notes: Sequence[str]) -> str:
  """Returns a gallery of images, each with a note in HTML.

  Without images, or with rows of features instead, it shows only the notes.
  """
  if images is None or images.ndim < 3:
    figures = [f"<figure>{note}</figure>" for note in notes]
  else:
    figures = [
      f"<figure><img {_class_of(image)}src='{thumbnail(image)}' alt=''>{note}"
      "</figure>"
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
  """Returns galleries of the samples with the greatest and the smallest zeta.

  Args:
    side: "image" or "text".
    zeta: The zeta of each sample; a sample's row identifies it.
    choose: Takes rows in the order of a gallery, and returns those to show.
    captions: Returns the captions of rows.
    images: Returns the images of rows, or None if there are none.
  """
  order, sections = np.argsort(zeta, kind="stable"), []
  for which, ranked in (("Most", order[::-1]), ("Least", order)):
    rows = choose(ranked)
    notes = [
      f"{shown(caption)}<br>&zeta; = {zeta[i]:+.4f}"
      for i, caption in zip(rows, captions(rows), strict=True)
    ]
    sections.append(
      f"<h2>{which} popular {side}s</h2>" + gallery(images(rows), notes)
    )
  return sections


def shown(text: str) -> str:
  """Returns a text as HTML; of a very long one, the beginning.

  Example:
    >>> shown("a < b")
    'a &lt; b'
  """
  more = len(text) - MAX_TEXT
  end = f"... ({more:,} more characters)" if more > 0 else ""
  return html.escape(text[:MAX_TEXT]) + end


def is_share(name: str) -> bool:
  """Returns whether a metric is a share, which is shown in percent.

  Example:
    >>> is_share("test/mean_recall@1"), is_share("train/loss")
    (True, False)
  """
  return bool(re.fullmatch(SHARES, name.rsplit("/", 1)[-1]))


def shown_score(name: str, x: float) -> str:
  """Formats the value of a metric.

  Example:
    >>> shown_score("test/mean_recall@1", 0.5), shown_score("step", 1000)
    ('50.0 %', '1,000')
  """
  if not isinstance(x, float):
    return f"{x:,}"
  return f"{100 * x:.1f} %" if is_share(name) else f"{x:.3g}"


def folded(title: str, content: str) -> str:
  """Returns a part of a page that opens on a click.

  Args:
    title: What is always seen.
    content: The rest, in HTML.
  """
  title = html.escape(title)
  return f"<details><summary>{title}</summary>{content}</details>"


def table(numbers: Mapping[str, str]) -> str:
  """Returns a table of names and their values."""
  rows = "".join(
    f"<tr><td>{html.escape(name)}<td class=n>{html.escape(shown)}"
    for name, shown in numbers.items()
  )
  return f"<table>{rows}</table>"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a table of several columns, which scrolls if it is wide.

  Args:
    header: The titles of the columns.
    rows: The cells of each row.

  Example:
    >>> grid(["a"], [["<1"]])
    '<div class=wide><table><tr><th>a<tr><td>&lt;1</table></div>'
  """
  lines = [f"<tr>{''.join(f'<th>{html.escape(x)}' for x in header)}"]
  lines += [
    f"<tr>{''.join(f'<td>{html.escape(x)}' for x in row)}" for row in rows
  ]
  return f"<div class=wide><table>{''.join(lines)}</table></div>"


def thumbnail(image: np.ndarray) -> str:
  """Returns an image as a data URL: PNG if it is small, else JPEG.

  Example:
    >>> thumbnail(np.zeros((8, 8, 1), np.uint8))[:15]
    'data:image/png;'
  """
  buffer, made = io.BytesIO(), Image.fromarray(np.squeeze(image))
  kind = "png" if _is_small(image) else "jpeg"
  made.thumbnail((LARGEST, LARGEST))
  made.save(buffer, format=kind, **({} if kind == "png" else {"quality": 85}))
  return _data_address(buffer.getvalue(), kind)


def _is_small(image: np.ndarray) -> bool:
  return max(image.shape[:2]) <= SMALL


def _class_of(image: np.ndarray) -> str:
  return "class=small " if _is_small(image) else ""


def save(figure: Figure, path: pathlib.Path) -> str:
  """Saves a plot beside the report, and returns it as HTML."""
  with files.replacing(path) as new:
    figure.savefig(new, dpi=110, format="png")
    data = new.read_bytes()
  return f"<img class=plot alt='' src='{_data_address(data)}'>"


def _data_address(data: bytes, kind: str = "png") -> str:
  return f"data:image/{kind};base64," + base64.b64encode(data).decode()


def points(
  rows: Sequence[Mapping[str, float]], name: str
) -> list[tuple[float, float]]:
  """Returns the steps at which a number was recorded, and its values.

  Args:
    rows: The rows of a history (see `records.read_history`).
    name: The name of the number.

  Example:
    >>> points([{"step": 1}, {"step": 2, "train/loss": 0.5}], "train/loss")
    [(2, 0.5)]
  """
  return [(row["step"], row[name]) for row in rows if name in row]


def plot(axes, rows: Sequence[Mapping[str, float]], names: Sequence[str]):
  """Plots numbers of a history over its steps; missing ones are left out.

  The interval of a number, metric_low/side to metric_high/side, is shaded.

  Args:
    axes: The axes of Matplotlib to plot on.
    rows: The rows of the history (see `records.read_history`).
    names: The names of the numbers.
  """
  for name in names:
    found = points(rows, name)
    if not found:
      continue
    (line,) = axes.plot(
      *zip(*found, strict=True), marker=".", label=name.replace("$", r"\$")
    )
    metric, _, side = name.rpartition("/")
    low, high = f"{metric}_low/{side}", f"{metric}_high/{side}"
    known = [row for row in rows if low in row and high in row]
    ends = [(row["step"], row[low], row[high]) for row in known]
    if ends:
      axes.fill_between(
        *zip(*ends, strict=True), color=line.get_color(), alpha=0.15
      )
  axes.set_xlabel("step")
  axes.grid(alpha=0.3)
  if axes.lines:
    axes.legend(frameon=False)
