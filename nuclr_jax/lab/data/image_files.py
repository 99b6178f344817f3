"""What is in the files of images, where the pixels alone do not tell."""

import contextlib
import io

from jaxtyping import UInt8
import numpy as np
import PIL.ExifTags
import PIL.Image

# Pillow has more decoders, some of which start other programs.
KINDS = tuple("JPEG PNG WEBP GIF BMP DIB TIFF AVIF JPEG2000 PPM".split())
DARK = 2**12  # 16 bits are black below it: cameras and scanners have 12


def opened(data: bytes) -> PIL.Image.Image:
  """Opens an image by its header; decodes nothing."""
  return PIL.Image.open(io.BytesIO(data), formats=KINDS)


def is_jpeg(data: bytes) -> bool:
  """Returns whether the bytes begin like a JPEG, whatever the file's name."""
  return data.startswith(b"\xff\xd8\xff")


def is_cut(data: bytes) -> bool:
  """Returns whether a JPEG or PNG lacks its end marker; bytes may follow it.

  An interrupted copy leaves zeros after the cut, which decoders take for data.
  Or another image follows; the bytes that it begins with are in no scan.
  """
  if data.startswith(b"\x89PNG"):
    return b"IEND" not in data
  if not is_jpeg(data):
    return False
  at = 2  # skips the header, whose thumbnail has an end marker, too
  while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda":
    is_fill = data[at + 1 : at + 2] == b"\xff"
    size = int.from_bytes(data[at + 2 : at + 4], "big")
    at += 1 if is_fill else 2 + size
  end = data.find(b"\xff\xd9", at)
  is_scan = data[at : at + 2] == b"\xff\xda"  # else the header is damaged
  return end < 0 or is_scan and data.find(b"\xff\xd8", at, end) >= 0


def grey_of(file: PIL.Image.Image) -> np.ndarray:
  """Returns one channel of more than 8 bits; white is its largest number."""
  grey = np.asarray(file)
  tag = PIL.ExifTags.Base.PhotometricInterpretation
  if file.format == "TIFF" and file.tag_v2.get(tag) == 0:  # white is 0
    return 65_535 - grey  # Pillow does so only if there are 8 bits
  return grey


def is_black(data: bytes, image: UInt8[np.ndarray, "height width 3"]) -> bool:
  """Returns whether a file of 16 bits a channel has 12 of them or fewer.

  The upper 8 are then next to black, of whatever picture.

  Args:
    data: The bytes of an image file.
    image: Its pixels: the upper 8 bits.

  Example:
    >>> image = np.full((4, 6), 3_000, np.uint16)  # reflectance x 10,000
    >>> png = io.BytesIO()
    >>> PIL.Image.fromarray(image).save(png, "PNG")
    >>> is_black(png.getvalue(), np.full((4, 6, 3), 3_000 >> 8, np.uint8))
    True
  """
  if is_jpeg(data) or image.max() >= DARK >> 8:
    return False
  with contextlib.suppress(Exception), opened(data) as file:
    if file.mode.startswith("I"):
      return bool(0 < np.max(grey_of(file)) < DARK)
    if file.mode.startswith("RGB") and ";16" in str(file.tile):
      return bool(image.any() or _lower_bytes(file).any())
  return False


def _lower_bytes(file: PIL.Image.Image) -> np.ndarray:
  """Returns the lower 8 of 16 bits a channel; Pillow keeps the upper ones.

  They are the upper ones if Pillow takes the bytes to be in the other order.
  """
  other = {"B": "L", "L": "B", "N": "B"}  # big, little or native endian
  tiles = []
  for tile in file.tile:
    raw, *rest = tile.args if isinstance(tile.args, tuple) else (tile.args,)
    args = (raw[:-1] + other[raw[-1]], *rest)  # RGB;16B becomes RGB;16L
    tiles.append(tile._replace(args=args))
  file.tile = tiles
  return np.asarray(file)[..., :3]
