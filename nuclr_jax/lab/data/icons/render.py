"""Draws icons: the body of an SVG becomes a small grey image.

An icon is untrusted input. `flaw` allows the elements that shapes are made of,
and nothing that leads out of the icon; what passes is drawn by resvg, in a
process of its own with limits on time and memory: this module, run as a script
(`pool` starts it). It imports nothing of this library.
"""

from collections.abc import Iterator
import io
import json
import math
import os
import pathlib
import re
import resource
import struct
import sys
from typing import NamedTuple
from xml.parsers import expat

import numpy as np

MAX_BODY = 2**20  # bytes; the largest published icon has 898,083
MAX_ELEMENTS = 10_000  # the most that a published icon has is 5,241
MAX_DEPTH = 32  # of elements in elements; published: 7
MAX_EFFECTS = 500  # primitives of filters
MAX_LENGTH = 10_000.0  # of a filter's numbers, and of the sides of an icon
FAINTEST = 32  # the darkness from which a pixel is part of the drawing
SECONDS = 5  # of computing, for one icon
MEMORY = 2**30  # bytes, beyond what the process has before the first icon
STATM = pathlib.Path("/proc/self/statm")  # pages of memory; Linux only
SHAPES = frozenset(
  "path g circle rect ellipse line polygon polyline defs use symbol "
  "clipPath mask marker pattern linearGradient radialGradient stop "
  "title desc".split()
)
EFFECTS = frozenset(
  "feBlend feColorMatrix feComponentTransfer feComposite feDropShadow feFlood "
  "feFuncA feFuncB feFuncG feFuncR feGaussianBlur feMerge feMergeNode "
  "feMorphology feOffset".split()
)
# They are not drawn: an image shows the first moment.
ANIMATIONS = frozenset("animate animateMotion animateTransform set".split())
ALLOWED = SHAPES | EFFECTS | ANIMATIONS | {"filter", "mpath"}
LENGTHS = frozenset("x y width height dx dy radius stdDeviation".split())
URL = re.compile(r"url\s*\(\s*['\"]?\s*(.?)", re.IGNORECASE | re.DOTALL)
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
READY, DRAWN, LEFT_OUT = b"\2", b"\1", b"\0"  # how an answer begins
# The inner <svg> cuts off what is beyond the icon's box.
PAGE = """<svg xmlns="http://www.w3.org/2000/svg"
 xmlns:xlink="http://www.w3.org/1999/xlink" width="{size}" height="{size}"
 viewBox="0 0 {side} {side}" color="black"><svg x="{x}" y="{y}"
 width="{width}" height="{height}"
 viewBox="{left} {top} {width} {height}">{body}</svg></svg>"""


class Icon(NamedTuple):
  """An icon as a package has it."""

  name: str
  body: str  # of the SVG: what is inside <svg>
  # left, top, width, height: the part of the plane that is shown
  box: tuple[float, float, float, float]


def draw(icon: Icon, size: int) -> np.ndarray:
  """Draws an icon: 0 is paper, 255 is black ink.

  The icon's own box is centred in a square. Colours are drawn on white and
  become their darkness, so that augmentation, which moves zeros in, continues
  the paper.

  Args:
    icon: The icon.
    size: Height and width of the image, in pixels.

  Returns:
    uint8 [size, size, 1].

  Raises:
    ValueError: If the icon has a `flaw`, or resvg cannot draw it.

  Example:
    >>> square = Icon("dot", '<path d="M0 0h4v4H0z"/>', (0, 0, 8, 4))
    >>> draw(square, 4)[..., 0]
    array([[  0,   0,   0,   0],
           [255, 255,   0,   0],
           [255, 255,   0,   0],
           [  0,   0,   0,   0]], dtype=uint8)
  """
  from PIL import Image
  import resvg_py

  if reason := flaw(icon):
    raise ValueError(reason)
  left, top, width, height = icon.box
  side = max(width, height)
  page = PAGE.format(
    size=size,
    side=side,
    x=(side - width) / 2,
    y=(side - height) / 2,
    width=width,
    height=height,
    left=left,
    top=top,
    body=icon.body,
  )
  try:
    png = resvg_py.svg_to_bytes(
      svg_string=page, background="white", skip_system_fonts=True
    )
  except Exception as error:
    raise ValueError(f"resvg: {error}") from error
  with Image.open(io.BytesIO(bytes(png))) as image:
    darkness = 255 - np.asarray(image.convert("L"))
  if darkness.shape != (size, size):
    raise ValueError(f"resvg: the image has the shape {darkness.shape}")
  if darkness.max() < FAINTEST:
    raise ValueError("nothing of it is to be seen on white")
  return darkness[..., None]


def flaw(icon: Icon) -> str | None:
  """Says why an icon is not drawn; None if nothing speaks against it.

  Example:
    >>> flaw(Icon("x", '<image href="/etc/passwd"/>', (0, 0, 8, 8)))
    'the element image is not allowed'
    >>> flaw(Icon("x", '<use href="other.svg#a"/>', (0, 0, 8, 8)))
    'it refers to something outside of it: other.svg#a'
  """
  width, height = icon.box[2:]
  if not all(math.isfinite(x) and abs(x) <= MAX_LENGTH for x in icon.box):
    return f"its box has numbers beyond {MAX_LENGTH:.0f}"
  if not (width > 0 and height > 0):
    return f"its box is empty ({width} x {height})"
  size = len(icon.body.encode(errors="replace"))
  if size > MAX_BODY:
    return f"it has {size:,} bytes; at most {MAX_BODY:,} are read"
  reader = _Reader()
  try:
    reader.read(icon.body)
  except expat.ExpatError as error:
    return f"it is not well-formed XML ({error})"
  except _Flaw as error:
    return str(error)
  return None


class _Flaw(ValueError):
  """Why an icon is not drawn."""


class _Reader:
  """Walks through the elements of an icon; raises `_Flaw`."""

  def __init__(self):
    self.elements = self.effects = self.depth = 0
    parser = self.parser = expat.ParserCreate()
    parser.StartElementHandler = self.start
    parser.EndElementHandler = self.end
    parser.StartDoctypeDeclHandler = self.declares
    parser.EntityDeclHandler = self.declares
    parser.ProcessingInstructionHandler = self.instructs

  def read(self, body: str) -> None:
    """Reads the body, as the content of an element."""
    try:
      self.parser.Parse("<svg>", False)
      self.parser.Parse(body, False)
      self.parser.Parse("</svg>", True)
    except UnicodeEncodeError as error:
      raise _Flaw("it has half of a character") from error

  def declares(self, *_) -> None:
    raise _Flaw("it declares a document type or entities")

  def instructs(self, *_) -> None:
    raise _Flaw("it has a processing instruction")

  def end(self, name: str) -> None:
    self.depth -= 1

  def start(self, name: str, attributes: dict[str, str]) -> None:
    """Checks an element; the first is the <svg> around the body."""
    self.elements += 1
    self.depth += 1
    if self.elements == 1:
      return
    if name not in ALLOWED:
      raise _Flaw(f"the element {name[:40]} is not allowed")
    if self.elements > MAX_ELEMENTS:
      raise _Flaw(f"it has more than {MAX_ELEMENTS:,} elements")
    if self.depth > MAX_DEPTH:
      raise _Flaw(f"its elements are nested more than {MAX_DEPTH} deep")
    is_effect = name in EFFECTS
    self.effects += is_effect
    if self.effects > MAX_EFFECTS:
      raise _Flaw(f"its filters have more than {MAX_EFFECTS} parts")
    for key, value in attributes.items():
      # Whatever prefix it declares for the namespace of links.
      if key.rpartition(":")[2] == "href" and not value.strip().startswith("#"):
        raise _Flaw(f"it refers to something outside of it: {value[:40]}")
      if key.startswith("on"):
        raise _Flaw(f"it has a script ({key[:40]})")
      _check_value(value)
      if key in LENGTHS and (is_effect or name == "filter"):
        _check_lengths(key, value)


def _check_value(value: str) -> None:
  """Lets an attribute refer to the icon itself only."""
  if "\\" in value or "@import" in value.lower():
    raise _Flaw("an attribute has an escape or @import")
  if "url" in value.lower():
    for first in URL.findall(value):
      if first != "#":
        raise _Flaw(f"it refers to something outside of it: {value[:40]}")


def _check_lengths(key: str, value: str) -> None:
  """Limits the numbers of a filter, whose area and radius take time."""
  for number in NUMBER.findall(value):
    if abs(float(number)) > MAX_LENGTH:
      raise _Flaw(f"a number of its filter is beyond {MAX_LENGTH:.0f}: {key}")


def _limit_memory() -> None:
  """Limits the memory of this process; it leaves no core dump.

  The memory is limited on Linux only: macOS has no file that says how much of
  it a process has from the beginning.
  """
  limits = {resource.RLIMIT_CORE: 0}
  if STATM.exists():
    in_use = int(STATM.read_text().split()[0]) * resource.getpagesize()
    limits[resource.RLIMIT_AS] = in_use + MEMORY
  for kind, limit in limits.items():
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
      limit = min(limit, hard)
    resource.setrlimit(kind, (limit, hard))


def _limit_time() -> None:
  """Lets this process compute for `SECONDS` more; SIGXCPU then ends it."""
  used = resource.getrusage(resource.RUSAGE_SELF)
  _, hard = resource.getrlimit(resource.RLIMIT_CPU)
  limit = math.ceil(used.ru_utime + used.ru_stime) + SECONDS
  if hard != resource.RLIM_INFINITY:
    limit = min(limit, hard)
  resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def _requests(file: io.BufferedIOBase) -> Iterator[Icon]:
  """Reads what `pool` asks for: one icon in each line of JSON."""
  for line in file:
    name, body, box = json.loads(line)
    yield Icon(name, body, tuple(box))


def _serve(size: int) -> None:
  """Answers each icon with an image or with the reason why there is none."""
  import PIL.Image  # noqa: F401  before the memory is limited
  import resvg_py  # noqa: F401

  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # what a library prints is no answer
  _limit_memory()
  answers.write(READY)
  answers.flush()
  for icon in _requests(sys.stdin.buffer):
    _limit_time()
    try:
      answer = DRAWN + draw(icon, size).tobytes()
    except (KeyboardInterrupt, SystemExit):
      raise
    except BaseException as error:  # a panic of Rust is no Exception
      text = (str(error) or type(error).__name__).encode(errors="replace")[:500]
      answer = LEFT_OUT + struct.pack("<H", len(text)) + text
    answers.write(answer)
    answers.flush()


if __name__ == "__main__":
  _serve(int(sys.argv[1]))
