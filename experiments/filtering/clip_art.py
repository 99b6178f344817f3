"""Clip art: drawings of many authors with their titles, from Debian's package.

In the folder of prepared data, once:

apt-get download openclipart-svg
dpkg-deb -x openclipart-svg_*.deb openclipart
"""

from collections import Counter
import html
import io
import logging
import pathlib
import re
from typing import NamedTuple
import zlib

from jaxtyping import Bool, UInt8
import numpy as np

from experiments.harness import training
from nuclr_jax.lab import files
from nuclr_jax.lab.data.icons.render import FAINTEST

FOLDER, CACHE = "openclipart", "clip_art/{size}px"
REMEDY = (
  "the files of Debian's openclipart-svg: `apt-get download openclipart-svg` "
  "and `dpkg-deb -x openclipart-svg_*.deb {}` write them"
)
MOST = 20  # drawings with the same caption; one title is there 1,375 times
HELD_OUT = 5  # one of so many captions

log = logging.getLogger(__name__)


class ClipArt(NamedTuple):
  """All drawings that have a caption, in the order of their files."""

  image: UInt8[np.ndarray, "drawings height width 1"]  # 255 is black ink
  caption: list[str]
  held_out: Bool[np.ndarray, "drawings"]  # by caption

  @property
  def fingerprint(self) -> str:
    """Identifies the drawings and captions."""
    text = "\n".join(self.caption).encode()
    return f"clip art {zlib.crc32(self.image.tobytes(), zlib.crc32(text)):08x}"


def read_clip_art(data_dir: str | None, size: int) -> ClipArt:
  """Reads the drawings, which the first call renders.

  A drawing's caption is its title or, where more than `MOST` have the same
  title, the words of its file's name; of more drawings with one caption, the
  first are kept.

  Args:
    data_dir: The folder of prepared data sets.
    size: Height and width of the images, in pixels.

  Raises:
    ValueError: If the package is not there.
  """
  place = training.folder_beside(data_dir, FOLDER, REMEDY.format(FOLDER))
  cache = place.parent / CACHE.format(size=size) / "drawings.npz"
  with files.locked(cache.parent, wait=True):
    if not cache.exists():
      _render(place, cache, size)
  with np.load(cache) as arrays:
    image, titles, names = (arrays[x] for x in ("image", "title", "name"))
  count = Counter(titles.tolist())
  captions = [
    title if title and count[title] <= MOST else name
    for title, name in zip(titles.tolist(), names.tolist(), strict=True)
  ]
  chosen, seen = [], Counter()
  for i, caption in enumerate(captions):
    seen[caption] += 1
    if caption and seen[caption] <= MOST:
      chosen.append(i)
  kept = [captions[i] for i in chosen]
  held_out = [zlib.crc32(x.encode()) % HELD_OUT == 0 for x in kept]
  return ClipArt(image[chosen], kept, np.array(held_out))


def title_of(svg: str) -> str:
  """Reads the title in a drawing's metadata; "" if there is none.

  Example:
    >>> title_of("<metadata><dc:title> Red &amp;  blue </dc:title></metadata>")
    'Red & blue'
  """
  found = re.search(r"<dc:title[^>]*>(.*?)</dc:title>", svg, re.DOTALL)
  return " ".join(html.unescape(found[1]).split()) if found else ""


def words_of(stem: str) -> str:
  """Returns the words of a file's name, without numbers.

  Example:
    >>> words_of("aiga_no-dogs_01")
    'aiga no dogs'
  """
  return " ".join(re.findall(r"[^\W\d_]+", stem))


def draw(svg: str, size: int) -> UInt8[np.ndarray, "size size 1"]:
  """Draws a drawing in the middle of a white square; 255 is black ink.

  Raises:
    ValueError: If resvg cannot draw it, or nothing of it is to be seen.
  """
  from PIL import Image
  import resvg_py

  square = Image.new("L", (size, size), 255)
  for side in ("width", "height"):  # whichever is the longer one
    png = resvg_py.svg_to_bytes(
      svg_string=svg,
      background="white",
      dpi=96,  # without it, no unit but pixels has a size
      skip_system_fonts=True,
      **{side: size},
    )
    with Image.open(io.BytesIO(bytes(png))) as image:
      if max(image.size) <= size:
        margins = ((size - x) // 2 for x in image.size)
        square.paste(image.convert("L"), tuple(margins))
        break
  darkness = 255 - np.asarray(square)
  if darkness.max() < FAINTEST:
    raise ValueError("nothing of it is to be seen on white")
  return darkness[..., None]


def _render(place: pathlib.Path, cache: pathlib.Path, size: int) -> None:
  """Draws all files below a folder into an `.npz` file."""
  images, titles, names, failed = [], [], [], 0
  for path in sorted(place.rglob("*.svg")):
    svg = path.read_text(errors="replace")
    try:
      images.append(draw(svg, size))
    except ValueError:
      failed += 1
      continue
    titles.append(title_of(svg))
    names.append(words_of(path.stem))
  log.info("clip art: %d drawn, %d cannot be", len(images), failed)
  with files.replacing(cache) as new, new.open("wb") as file:
    np.savez_compressed(file, image=images, title=titles, name=names)
