"""Turns encoded images into square arrays of one size.

All images are decoded here, so that a picture has the same pixels by whatever
route it arrives: `decode` reads those of data sets; `decode_input` reads those
of users' files, and says what is wrong with them.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
import contextlib
import functools
import math
import multiprocessing
import os
import re
from typing import Any

import cv2
from jaxtyping import Float, UInt8
import numpy as np
import PIL.Image

from nuclr_jax.lab import distributed
from nuclr_jax.lab.data import patches
from nuclr_jax.lab.data.image_files import (
  grey_of,
  is_black,
  is_cut,
  is_jpeg,
  opened,
)
from nuclr_jax.lab.data.source import DEFAULT_RESIZE, Resize

Image = UInt8[np.ndarray, "height width 3"]
Resized = UInt8[np.ndarray, "rows columns 3"]

# Reasons not to use an image.
UNREADABLE = "unreadable image"  # not an image, or not of a known kind
TRUNCATED = "truncated image"  # the end is missing
TOO_SMALL = "too small"  # a side is below `MIN_SIZE`
TOO_MANY = "too many pixels"  # in the header; nothing is decoded then
BLACK = "black: 12 bits or fewer in 16; scale it up"
BLANK = "nothing to see on white"  # where it is not transparent, it is white

# Not .pgm and .pbm: masks and depths have these, beside photos of their names.
ENDINGS = tuple(
  ".jpg .jpeg .jpe .jfif .png .webp .gif .bmp .tif .tiff "
  ".avif .jp2 .ppm".split()
)
MIN_SIZE = 16  # pixels per side, of images to train on
MAX_PIXELS = 2**26  # of an image; 200 MB of them
THUMBNAIL = 96  # pixels
MAX_ASPECT = 100  # of an image that is cropped after it is resized
TRIES = 10  # attempts to draw a random crop that fits
# Uniform numbers that a random crop needs.
CROP_NUMBERS = 2 * TRIES + 3

# What OpenCV decodes to the same pixels, faster, by kind and Pillow's mode.
BY_OPENCV, PLAIN = ("PNG", "WEBP", "BMP"), ("1", "L", "P", "RGB")
POINTER = b"version https://git-lfs."  # what a clone without Git LFS has
# How images of other kinds begin; AVIF is read if Pillow can.
_OTHERS = {
  "AVIF": rb".{4}ftypavi[fs]",
  "HEIC": rb".{4}ftyp(hei[cmsx]|hev[cmsx]|mif1|msf1)",
  "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL ",
  "SVG": rb"(?i)(\xef\xbb\xbf)?\s*<(?!!doctype html|html|head)[^\0]*\bsvg\b",
}

cv2.setNumThreads(0)  # images are spread over threads instead
# Errors say what is wrong; the log would have a line for every broken image.
(cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging).setLogLevel(0)


def decode(data: bytes) -> Image:
  """Decodes JPEG, PNG, WebP, GIF, BMP or TIFF bytes to red, green, blue.

  What is transparent becomes white, as on a page: colours that alpha hides may
  be anything, and a black icon would become a black square. Of 16 bits, the
  upper 8 are kept, of animations the first frame, and grey images are repeated
  in three channels. Colour profiles are ignored, and so are orientation tags
  other than TIFF's: published recipes, which use Pillow, do the same.

  Args:
    data: The bytes of an image file.

  Raises:
    ValueError: If the bytes are not an image, or only a part of one, or if it
      has more than `MAX_PIXELS` pixels.

  Example:
    >>> png = cv2.imencode(".png", np.zeros((4, 6, 4), np.uint8))[1].tobytes()
    >>> decode(png).shape, decode(png).min()
    ((4, 6, 3), np.uint8(255))
  """
  if num_pixels(data) > MAX_PIXELS:
    raise ValueError(
      f"an image of {len(data)} bytes claims more than {MAX_PIXELS:,} pixels"
    )
  return _decode(data)[0]


def decode_input(
  data: bytes, *, max_pixels: int = MAX_PIXELS, min_size: int = 1
) -> Image:
  """Decodes an image of a user's file, see `decode`, if it can be used.

  A decoder takes what follows a cut in a JPEG for grey, a white icon is a white
  square on white, and 12 bits in a file of 16 are black: none of them is what
  its name or caption says.

  Args:
    data: The bytes of an image file.
    max_pixels: The largest number of pixels that may be decoded.
    min_size: The least height and width, in pixels.

  Raises:
    ValueError: If the image cannot be used; the message is the reason, in a few
      words.

  Example:
    >>> png = cv2.imencode(".png", np.zeros((4, 6, 4), np.uint8))[1].tobytes()
    >>> decode_input(png)
    Traceback (most recent call last):
    ...
    ValueError: nothing to see on white
  """
  if is_cut(data):
    raise ValueError(TRUNCATED)
  try:
    count = num_pixels(data)
    if count <= max_pixels:
      image, is_blank = _decode(data)
  except ValueError as error:
    raise ValueError(_unreadable(data)) from error
  if count > max_pixels:
    raise ValueError(TOO_MANY)
  if min(image.shape[:2]) < min_size:
    raise ValueError(TOO_SMALL)
  if is_blank:
    raise ValueError(BLANK)
  if is_black(data, image):
    raise ValueError(BLACK)
  return image


def content_of(data: bytes, image: Image) -> bytes:
  """Returns what two image files share if they hold the same picture.

  A data set of `nuclr ingest` has JPEGs as they are, and makes one of the
  pixels of any other file: those are told apart by their pixels.

  Args:
    data: The bytes of an image file.
    image: What they are decoded to.

  Example:
    >>> image = np.zeros((4, 6, 3), np.uint8)
    >>> a, b = (cv2.imencode(x, image)[1].tobytes() for x in (".png", ".bmp"))
    >>> content_of(a, image) == content_of(b, image)
    True
  """
  if is_jpeg(data):
    return data
  return repr(image.shape).encode() + image.tobytes()


def num_pixels(data: bytes) -> int:
  """Reads from an image's header how many pixels it has; decodes none of them.

  A few kilobytes may claim any number of pixels, which would fill the memory.

  Args:
    data: The bytes of an image file.

  Raises:
    ValueError: If the bytes do not begin like an image.

  Example:
    >>> png = cv2.imencode(".png", np.zeros((4, 6, 3), np.uint8))[1].tobytes()
    >>> num_pixels(png)
    24
  """
  try:
    with opened(data) as header:
      return header.width * header.height
  except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
    return 2**62  # Pillow does not say how many
  except Exception as error:  # formats have errors of their own
    raise _undecodable(data) from error


def resize(image: Image, size: int, how: Resize = DEFAULT_RESIZE) -> Resized:
  """Makes an image a square of size x size pixels, as published models do.

  The kernels are Pillow's, which widen as the image shrinks, so that nothing
  aliases. The pixels are those of Hugging Face's processors: with "crop", the
  shorter side is resized first and the centre cropped then, and both the longer
  side and the margins are rounded down. torchvision, and so OpenCLIP, rounds
  margins to an even number where they end in one half: "crop_torchvision". With
  "naflex", an image keeps its aspect ratio, and the square holds its patches.

  Args:
    image: The image.
    size: Height and width of the result, in pixels.
    how: The mode and the kernel; without a mode, the image is squashed.

  Returns:
    The square; with "naflex", what `patches.pack` makes, which is wider.

  Example:
    >>> resize(np.full((600, 300, 3), 7, np.uint8), 32).mean().item()
    7.0
    >>> wide = np.zeros((4, 12, 3), np.uint8)
    >>> wide[:, 4:8] = 255
    >>> resize(wide, 4, Resize("crop")).min(), resize(wide, 4).min()
    (np.uint8(255), np.uint8(0))
  """
  whole = PIL.Image.fromarray(image)
  kernel = PIL.Image.Resampling[how.kernel.upper()]
  if how.mode in (None, "squash"):
    return np.array(whole.resize((size, size), kernel))
  if how.mode == patches.NAFLEX:
    grid = dict(size=size, patch=how.patch)
    rows, columns = patches.grid_of(*image.shape[:2], **grid)
    sides = columns * how.patch, rows * how.patch
    return patches.pack(np.array(whole.resize(sides, kernel)), **grid)
  shorter = min(whole.size)
  longest = MAX_ASPECT * shorter
  if max(whole.size) > longest:  # else a line may fill the memory
    starts = [max(x - longest, 0) // 2 for x in image.shape[:2]]
    rows, columns = (slice(x, x + longest) for x in starts)
    whole = PIL.Image.fromarray(image[rows, columns])
  width, height = (int(size * x / shorter) for x in whole.size)
  to_whole = round if how.mode == "crop_torchvision" else int
  left, top = (to_whole((x - size) / 2) for x in (width, height))
  part = np.array(whole.resize((width, height), kernel))
  return part[top : top + size, left : left + size]


def thumbnail(image: Image, size: int = THUMBNAIL) -> bytes:
  """Returns a small square of the whole image, as JPEG bytes.

  Args:
    image: The image.
    size: Height and width of the square, in pixels.

  Example:
    >>> decode(thumbnail(np.zeros((60, 300, 3), np.uint8), 32)).shape
    (32, 32, 3)
  """
  small = cv2.cvtColor(resize_fast(image, size), cv2.COLOR_RGB2BGR)
  return cv2.imencode(".jpg", small)[1].tobytes()


def resize_fast(image: Image, size: int | tuple[int, int]) -> Resized:
  """Approximates `resize` with OpenCV, several times faster.

  Random crops are resized in this way. OpenCV's kernels do not widen as the
  image shrinks. An image that shrinks is therefore resized to twice the size
  and then halved; if it is larger still, blocks of whole pixels are averaged
  first. For factors of 1.4 and more, a linear resize is closer to a cubic
  kernel that widens.

  Args:
    image: The image.
    size: Height and width of the result, in pixels; one number, or both.

  Example:
    >>> resize_fast(np.full((600, 300, 3), 7, np.uint8), 32).mean().item()
    7.0
  """
  shape, size = np.array(image.shape[:2]), np.broadcast_to(size, 2)
  if (shape <= size).all():
    return _resize_to(image, size, cv2.INTER_CUBIC)
  blocks = np.maximum(shape // (2 * size), 1)
  if (blocks > 1).any():
    image = _resize_to(image, shape // blocks, cv2.INTER_AREA)
  left = shape / blocks / size
  kind = cv2.INTER_CUBIC if left.min() < 1.4 else cv2.INTER_LINEAR
  image = _resize_to(image, 2 * size, kind)
  return _resize_to(image, size, cv2.INTER_AREA)


def random_resized_crop(
  image: Image,
  random: Float[np.ndarray, "numbers"],
  *,
  size: int,
  scale: tuple[float, float] = (0.5, 1.0),
  ratio: tuple[float, float] = (3 / 4, 4 / 3),
  flip: bool = True,
  patch: int | None = None,
) -> Resized:
  """Crops a random part and resizes it to size x size pixels; mirrors half.

  The part's share of the area is uniform in `scale`, and the logarithm of its
  width / height is uniform between those of `ratio`. A part that does not fit
  is drawn again; after ten failures the largest central part of an allowed
  ratio is taken.

  With `patch`, the part keeps its shape: `ratio` is relative to the width /
  height of the image, and the result has whole patches (`patches.grid_of`).

  Args:
    image: The image.
    random: At least `CROP_NUMBERS` uniform numbers in [0, 1).
    size: Height and width of the result, in pixels.
    scale: Smallest and largest share of the area.
    ratio: Smallest and largest width / height.
    flip: Whether to mirror half of the images left to right.
    patch: The side of a patch, in pixels; None makes squares.

  Example:
    >>> image = np.arange(30 * 40 * 3).astype(np.uint8).reshape(30, 40, 3)
    >>> whole = random_resized_crop(
    ...   image[:, :30], np.zeros(23), size=30, scale=(1, 1), ratio=(1, 1)
    ... )
    >>> bool((whole == image[:, 29::-1]).all())  # 0 < 1/2: mirrored
    True

  Reference: Szegedy et al., Going Deeper with Convolutions, CVPR 2015.
  """
  height, width = image.shape[:2]
  if patch is not None:
    ratio = tuple(x * width / height for x in ratio)
  rows, columns, fits = _crop_shape(height, width, random, scale, ratio)
  place = random[2 * TRIES : 2 * TRIES + 2] if fits else (0.5, 0.5)
  top = int(place[0] * (height - rows + 1))
  left = int(place[1] * (width - columns + 1))
  part = image[top : top + rows, left : left + columns]
  if patch is not None:
    grid = patches.grid_of(rows, columns, size=size, patch=patch)
    size = tuple(x * patch for x in grid)
  part = resize_fast(part, size)
  return part[:, ::-1] if flip and random[2 * TRIES + 2] < 0.5 else part


def in_threads(f: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
  """Computes `[f(x) for x in items]` with as many threads as there are cores.

  A worker process of Grain computes the items one after another, because its
  siblings use the other cores.

  Args:
    f: The function of an item.
    items: The items; the first ones are computed while an iterator yet makes
      the others.

  Example:
    >>> in_threads(lambda x: x**2, [1, 2, 3])
    [1, 4, 9]
  """
  if multiprocessing.parent_process() is not None:
    return list(map(f, items))
  return list(_threads(os.getpid()).map(f, items))


def _undecodable(data: bytes) -> ValueError:
  why = _unreadable(data).removeprefix(UNREADABLE)
  return ValueError(f"{len(data)} bytes cannot be decoded as an image{why}")


def _unreadable(data: bytes) -> str:
  """Returns `UNREADABLE`, and what the image is if that can be known."""
  with contextlib.suppress(Exception), opened(data) as file:
    if file.mode in ("F", "I"):
      return f"{UNREADABLE} (32 bits a channel; convert it to 8 or 16)"
  for kind, beginning in _OTHERS.items():
    if re.match(beginning, data[:1024], re.DOTALL):
      return f"{UNREADABLE} ({kind}; convert it to PNG or JPEG)"
  if data.startswith(POINTER):
    return f"{UNREADABLE} (a pointer of Git LFS; run `git lfs pull`)"
  return UNREADABLE


def _decode(data: bytes) -> tuple[Image, bool]:
  """Decodes an image; also returns whether all that is in it is transparent.

  Raises:
    ValueError: If it is broken.
  """
  try:
    if is_jpeg(data):
      return _by_opencv(data), False
    with opened(data) as file:
      is_plain = file.mode in PLAIN and not file.has_transparency_data
      is_plain &= not getattr(file, "default_image", False)  # beside frames
      if file.format == "BMP" and file.mode == "RGB":  # no masks, no 5 bits
        is_plain &= file.tile[0].args[0] in ("BGR", "BGRX")
      if is_plain and file.format in BY_OPENCV:
        return _by_opencv(data), False
      if file.format == "PNG":
        opened(data).verify()  # checksums, which loading does not look at
      return _on_white(file)
  except MemoryError:
    raise
  except Exception as error:  # formats have errors of their own
    raise _undecodable(data) from error


def _by_opencv(data: bytes) -> Image:
  flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
  image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
  if image is None:
    raise _undecodable(data)
  return image


def _on_white(file: PIL.Image.Image) -> tuple[Image, bool]:
  """Puts an image on white; also returns whether nothing of it can be seen."""
  image = file
  if file.mode.startswith(("I", "F")):  # one channel of more than 8 bits
    grey = grey_of(file)
    if file.mode == "F" or grey.min() < 0 or grey.max() > 65_535:
      raise ValueError("32 bits have no range of grey that is known")
    image = PIL.Image.fromarray(np.uint8(grey.astype(int) >> 8))  # as of RGB
    if "transparency" in file.info:
      alpha = np.uint8(255 * (grey != file.info["transparency"]))
      image.putalpha(PIL.Image.fromarray(alpha))
  if file.format == "GIF" and not image.has_transparency_data:
    alpha = PIL.Image.new("L", file.size)  # a frame may leave a part uncovered
    alpha.paste(255, file.tile[0].extents)
    image.putalpha(alpha)
  if not image.has_transparency_data:
    return np.array(image.convert("RGB")), False
  image = image.convert("RGBA")
  white = PIL.Image.new("RGB", image.size, "white")
  white.paste(image, mask=image)
  is_opaque = image.getchannel("A").getextrema() == (255, 255)
  pixels = np.array(white)
  return pixels, bool(not is_opaque and pixels.min() == 255)


def _resize_to(image, shape, interpolation):
  rows, columns = map(int, shape)
  return cv2.resize(image, (columns, rows), interpolation=interpolation)


def _crop_shape(height, width, random, scale, ratio) -> tuple[int, int, bool]:
  """Returns the rows and columns of a crop, and whether a random one fits."""
  low, high = map(math.log, ratio)
  for i in range(TRIES):
    area = height * width * (scale[0] + random[2 * i] * (scale[1] - scale[0]))
    shape = math.exp(low + random[2 * i + 1] * (high - low))
    rows, columns = (
      round(math.sqrt(area / shape)),
      round(math.sqrt(area * shape)),
    )
    if 0 < rows <= height and 0 < columns <= width:
      return rows, columns, True
  shape = min(max(width / height, ratio[0]), ratio[1])
  rows, columns = (
    min(height, round(width / shape)),
    min(width, round(height * shape)),
  )
  return max(rows, 1), max(columns, 1), False


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
  """Makes the pool of a process, by its id: threads do not survive a fork."""
  del process
  return ThreadPoolExecutor(distributed.num_cores())
