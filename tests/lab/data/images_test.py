"""Decoded, resized and cropped images against Pillow and plain NumPy."""

import io
import math
import struct
import threading
import time

import cv2
import numpy as np
from PIL import Image, ImageOps
import pytest
from scipy import stats
import sklearn.datasets

from nuclr_jax.lab.data import images
from nuclr_jax.lab.data.source import Resize, random_numbers

PHOTOS = sklearn.datasets.load_sample_images().images  # [427, 640, 3]
SMALL = cv2.resize(PHOTOS[0], (90, 60), interpolation=cv2.INTER_AREA)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
  out = io.BytesIO()
  image.save(out, kind, **options)
  return out.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
  return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def difference(left, right) -> np.ndarray:
  return np.abs(np.float64(left) - np.float64(right))


def check_depth(data: bytes, largest: int, is_black: bool) -> None:
  """Checks how a file of 16 bits is decoded, and whether it is an input."""
  assert images.decode(data).max() == largest >> 8  # in data sets that exist
  if is_black:
    with pytest.raises(ValueError, match="^black: 12 bits or fewer in 16"):
      images.decode_input(data)
  else:
    images.decode_input(data)


class TestDecode:
  @pytest.mark.parametrize("shown", [False, True])
  def test_an_animation_may_have_an_image_beside_its_frames(self, shown):
    """It is what Pillow shows; OpenCV begins with the frames."""
    colours = (Image.new("RGB", (20, 20), x) for x in ("red", "lime", "blue"))
    first, *others = colours
    how = {"save_all": True, "append_images": others, "default_image": shown}
    data = encoded(first, "PNG", **how)
    assert (images.decode(data) == [255, 0, 0]).all()
    np.testing.assert_array_equal(images.decode(data), by_pillow(data))

  @pytest.mark.parametrize(
    ("mode", "kind"),
    [
      ("RGB", "JPEG"),
      ("L", "JPEG"),
      ("CMYK", "JPEG"),
      ("RGB", "PNG"),
      ("RGBA", "PNG"),
      ("LA", "PNG"),
      ("P", "PNG"),
      ("1", "PNG"),
      ("RGB", "WEBP"),
      ("RGB", "GIF"),
      ("RGB", "BMP"),
      ("L", "TIFF"),
    ],
  )
  def test_what_pillow_reads(self, mode, kind):
    data = encoded(Image.fromarray(SMALL).convert(mode), kind)
    found = images.decode(data)
    assert found.shape == (60, 90, 3) and found.dtype == np.uint8
    assert difference(found, by_pillow(data)).max() <= 1

  @pytest.mark.parametrize("header", [40, 52, 56, 108, 124])
  @pytest.mark.parametrize(
    ("bits", "masks", "has_masks"),
    [
      (32, (0xFF000000, 0xFF0000, 0xFF00), True),
      (32, (0xFF0000, 0xFF00, 0xFF), True),
      (32, (0xFF0000, 0xFF00, 0xFF), False),
      (16, (0xF800, 0x7E0, 0x1F), True),
      (16, (0x7C00, 0x3E0, 0x1F), True),
      (16, (0x7C00, 0x3E0, 0x1F), False),
    ],
  )
  def test_masks_of_bmp(self, header, bits, masks, has_masks):
    """As GIMP writes them; without any, 16 bits are 5 for each colour."""
    numbers, wanted = np.zeros((60, 92), "<u4"), np.zeros((60, 92, 3))
    for i, mask in enumerate(masks):
      lowest = mask & -mask
      largest = mask // lowest
      colour = np.uint32(np.pad(SMALL[..., i], ((0, 0), (0, 2))))
      colour = colour * largest // 255
      numbers += colour * np.uint32(lowest)
      wanted[..., i] = colour * 255 / largest
    pixels = numbers[::-1, :, None].view(np.uint8)[..., : bits // 8].tobytes()
    sizes = (92, 60, 1, bits, 3 * has_masks, len(pixels), 0, 0, 0, 0)
    info = struct.pack("<IiiHH6I", header, *sizes)
    info += struct.pack("<3I", *masks) if has_masks else b""
    info = info.ljust(header, b"\0")
    start = 14 + len(info)
    names = struct.pack("<2sI4xI", b"BM", start + len(pixels), start)
    found = images.decode(names + info + pixels)
    assert difference(found, wanted).max() <= 1

  @pytest.mark.parametrize("end", [b"", b"\0", bytes(99)])
  def test_a_gif_without_its_last_byte(self, end):
    first, second = Image.fromarray(SMALL), Image.fromarray(SMALL[::-1])
    for others in ([], [second]):
      how = {"save_all": True, "append_images": others}
      data = encoded(first, "GIF", **how)
      found = images.decode_input(data[:-1] + end)
      np.testing.assert_array_equal(found, by_pillow(data))

  @pytest.mark.parametrize("mode", ["RGB", "L"])
  def test_what_the_first_frame_of_a_gif_leaves_uncovered_is_white(self, mode):
    """As in browsers, whatever the background is said to be."""
    frame = Image.fromarray(SMALL // 2).convert(mode)
    data = encoded(frame, "GIF")
    size, place = struct.pack("<2H", 90, 60), struct.pack("<2H", 7, 4)
    assert data[6:10] == size and data.count(b"," + bytes(4) + size) == 1
    canvas = struct.pack("<2HBB", 100, 70, data[10], 3)
    data = data[:6] + canvas + data[12:]
    data = data.replace(b"," + bytes(4) + size, b"," + place + size)
    wanted = np.full((70, 100, 3), 255)
    wanted[4:64, 7:97] = by_pillow(encoded(frame, "GIF"))
    np.testing.assert_array_equal(images.decode_input(data), wanted)

  def test_channels_are_red_green_blue(self):
    red = Image.new("RGB", (9, 5), (200, 30, 60))
    found = images.decode(encoded(red, "PNG"))
    assert (found == [200, 30, 60]).all()

  @pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
      ("RGBA", "PNG", {}),
      ("LA", "PNG", {}),
      ("P", "PNG", {"transparency": 3}),
      ("P", "PNG", {"transparency": bytes(range(0, 256, 16))}),
      ("RGB", "PNG", {"transparency": (255, 0, 0)}),
      ("L", "PNG", {"transparency": 90}),
      ("RGBA", "WEBP", {"lossless": True, "exact": True}),
      ("P", "GIF", {"transparency": 3}),
      ("RGBA", "TIFF", {}),
      ("LA", "TIFF", {}),
      ("RGBA", "PNG", {"save_all": True, "append_images": "other"}),
      ("RGBA", "WEBP", {"lossless": True, "exact": True, "append_images": "o"}),
      ("P", "GIF", {"transparency": 3, "append_images": "other"}),
      ("RGBA", "TIFF", {"append_images": "other"}),
    ],
  )
  def test_what_is_transparent_is_white(self, mode, kind, options):
    """Against the blend in float64; of several frames, the first one counts."""
    clear = cv2.resize(np.eye(4, dtype=np.uint8) * 200 + 30, (90, 60))
    image = Image.fromarray(np.dstack([SMALL, clear]))
    image = image.quantize(16) if mode == "P" else image.convert(mode)
    if mode in ("L", "RGB"):
      image.paste(options["transparency"], (20, 20, 60, 50))
    if "append_images" in options:
      other = Image.new("RGBA", (90, 60), "red").convert(mode)
      options = options | {"append_images": [other], "save_all": True}
    data = encoded(image, kind, **options)
    with Image.open(io.BytesIO(data)) as stored:
      pixels = np.array(stored.convert("RGBA"), np.float64)
    alpha = pixels[..., 3:] / 255
    wanted = alpha * pixels[..., :3] + (1 - alpha) * 255
    found = images.decode(data)
    assert difference(found, wanted).max() <= 0.5 + 1e-9
    assert difference(found, pixels[..., :3]).mean() > 2  # not just dropped

  def test_white_is_that_of_processors_which_have_one(self):
    """All colours with all alphas, by Pillow's own blend, to the bit."""
    alpha, colour = np.mgrid[:256, :256].astype(np.uint8)
    image = Image.fromarray(np.dstack([colour, colour, colour, alpha]))
    white = Image.new("RGBA", image.size, "white")
    wanted = Image.alpha_composite(white, image).convert("RGB")
    found = images.decode(encoded(image, "PNG"))
    np.testing.assert_array_equal(found, np.array(wanted))

  @pytest.mark.parametrize("channels", [1, 3, 4])
  @pytest.mark.parametrize("kind", [".png", ".tiff"])
  def test_sixteen_bits_and_alpha(self, channels, kind):
    image = np.dstack([SMALL, np.tile(np.uint8(range(90)), (60, 1))])
    deep = np.uint16(image[..., [2, 1, 0, 3]][..., :channels]) * 257
    found = images.decode(cv2.imencode(kind, deep)[1].tobytes())
    alpha = np.float64(image[..., 3:]) / 255
    wanted = {
      1: image[..., [2]],
      3: image[..., :3],
      4: alpha * image[..., :3] + (1 - alpha) * 255,
    }[channels]
    assert difference(found, wanted).max() <= 0.5 + 1e-9

  def test_grey_of_sixteen_bits_that_is_transparent(self):
    grey = np.uint16(np.arange(5400).reshape(60, 90))
    data = encoded(Image.fromarray(grey), "PNG", transparency=2570)
    found = images.decode(data)
    assert (found[28, 50] == 255).all()  # 28 * 90 + 50 = 2570
    assert found[28, 51, 0] == 10 and found.min() == 0

  def test_grey_and_colours_of_sixteen_bits_are_equal(self):
    """The same picture in both forms has the same pixels."""
    grey = np.uint16(np.random.default_rng(0).integers(0, 2**16, (40, 50)))
    one = images.decode(encoded(Image.fromarray(grey), "PNG"))
    ok, colours = cv2.imencode(".png", np.dstack([grey] * 3))
    np.testing.assert_array_equal(one, images.decode(colours.tobytes()))

  @pytest.mark.parametrize("kind", ["PNG", "TIFF"])
  @pytest.mark.parametrize(
    ("largest", "is_black"),
    [(4095, True), (9, True), (4096, False), (0, False)],
  )
  def test_scans_of_twelve_bits_are_no_input(self, kind, largest, is_black):
    grey = np.uint16(np.linspace(0, largest, 1200).reshape(30, 40))
    data = encoded(Image.fromarray(grey), kind)
    check_depth(data, largest, is_black)

  @pytest.mark.parametrize("channels", [3, 4])
  @pytest.mark.parametrize(
    ("kind", "options"),
    [
      (".png", []),
      (".tiff", [cv2.IMWRITE_TIFF_COMPRESSION, 1]),  # none
      (".tiff", [cv2.IMWRITE_TIFF_COMPRESSION, 5]),  # LZW
    ],
  )
  @pytest.mark.parametrize(
    ("largest", "is_black"),
    [(4095, True), (3000, True), (255, True), (4096, False), (0, False)],
  )
  def test_colours_of_twelve_bits_are_no_input(
    self, kind, options, channels, largest, is_black
  ):
    """As from satellites, microscopes and cameras."""
    deep = np.full((30, 40, channels), 65_535, np.uint16)
    deep[..., :3] = np.linspace(0, largest, 3600).reshape(30, 40, 3)
    data = cv2.imencode(kind, deep, options)[1].tobytes()
    check_depth(data, largest, is_black)

  @pytest.mark.parametrize("mode", ["1", "L", "I;16"])
  def test_white_may_be_zero(self, mode):
    """As medical scanners write it; Pillow inverts 8 bits, and not 16."""
    deep = np.uint16(np.random.default_rng(0).integers(0, 2**16, (40, 50)))
    white_is_zero = {"tiffinfo": {262: 0}}
    if mode == "I;16":  # Pillow writes the numbers as they are
      data = encoded(Image.fromarray(65_535 - deep), "TIFF", **white_is_zero)
      wanted = deep >> 8
    else:
      image = Image.fromarray(np.uint8(deep >> 8)).convert(mode)
      data = encoded(image, "TIFF", **white_is_zero)
      wanted = np.array(image.convert("L"))
    with Image.open(io.BytesIO(data)) as file:
      assert file.mode == mode and file.tag_v2[262] == 0
    found = images.decode(data)
    np.testing.assert_array_equal(found, np.dstack([wanted] * 3))
    np.testing.assert_array_equal(images.decode_input(data), found)

  @pytest.mark.parametrize(
    ("brightest", "is_black"), [(4095, True), (4096, False), (0, False)]
  )
  def test_black_where_white_is_zero(self, brightest, is_black):
    grey = np.uint16(np.linspace(0, brightest, 1200).reshape(30, 40))
    how = {"tiffinfo": {262: 0}}
    data = encoded(Image.fromarray(65_535 - grey), "TIFF", **how)
    if is_black:
      with pytest.raises(ValueError, match="^black: 12 bits or fewer in 16"):
        images.decode_input(data)
    else:
      assert images.decode_input(data).max() == brightest >> 8

  def test_dark_colours_of_eight_bits_are_input(self):
    dark = np.uint8(SMALL // 20)
    for kind in ("PNG", "TIFF"):
      data = encoded(Image.fromarray(dark), kind)
      np.testing.assert_array_equal(images.decode_input(data), dark)

  def test_black_icons_stay_apart(self):
    icons = []
    for i in range(6):
      alpha = np.zeros((32, 32), np.uint8)
      alpha[4 + 3 * i : 10 + 3 * i, 5:25] = 255
      black = np.dstack([np.zeros((32, 32, 3), np.uint8), alpha])
      icons.append(encoded(Image.fromarray(black), "PNG"))
    assert len({by_pillow(x).tobytes() for x in icons}) == 1
    assert len({images.decode_input(x).tobytes() for x in icons}) == 6

  @pytest.mark.parametrize("colour", [(255, 255, 255), (9, 80, 7)])
  def test_what_white_hides_is_no_input(self, colour):
    """White icons, and pictures of which nothing is opaque."""
    alpha = np.zeros((32, 32), np.uint8)
    alpha[8:24, 8:24] = 255 if colour == (255, 255, 255) else 0
    image = np.dstack([np.full((32, 32, 3), colour, np.uint8), alpha])
    data = encoded(Image.fromarray(image), "PNG")
    with pytest.raises(ValueError, match="^nothing to see on white$"):
      images.decode_input(data)
    assert images.decode(data).min() == 255  # in data sets that exist
    image[10, 10] = 254, 255, 255, 255
    images.decode_input(encoded(Image.fromarray(image), "PNG"))
    images.decode_input(encoded(Image.new("RGBA", (32, 32), "white"), "PNG"))

  @pytest.mark.parametrize(
    ("data", "reason"),
    [
      (b"", "unreadable image"),
      (b"<html><svg></svg>", "unreadable image"),
      (b"\n<?xml version='1.0'?><!-- x --><svg>", "unreadable image (SVG; "),
      (b"\0\0\0\x18ftypheic" + bytes(99), "unreadable image (HEIC; "),
      (b"\0\0\0\x18ftypavif" + bytes(99), "unreadable image (AVIF; "),
      (b"%PDF-1.4", "unreadable image"),
    ],
  )
  def test_what_is_no_image_that_is_read(self, data, reason):
    with pytest.raises(ValueError) as error:
      images.decode_input(data)
    text = str(error.value)
    assert text == reason or text == f"{reason}convert it to PNG or JPEG)"

  def test_thirty_two_bits_are_not_guessed(self):
    grey = np.float32(SMALL[..., 0]) / 255
    for image in (grey, np.int32(grey * 1e6)):
      with pytest.raises(ValueError, match="32 bits a channel"):
        images.decode_input(encoded(Image.fromarray(image), "TIFF"))

  def test_flipped_bits_of_transparent_pngs(self):
    alpha = np.full((60, 90, 1), 200, np.uint8)
    data = encoded(Image.fromarray(np.dstack([SMALL, alpha])), "PNG")
    for at in range(200, len(data) - 20, len(data) // 9):
      broken = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
      with pytest.raises(ValueError, match="unreadable image"):
        images.decode_input(broken)

  def test_the_same_picture_in_other_files(self):
    image = Image.fromarray(SMALL)
    files = [encoded(image, "PNG", compress_level=i) for i in (1, 9)]
    files += [encoded(image, "BMP"), encoded(image.convert("RGBA"), "PNG")]
    jpeg = encoded(image, "JPEG")
    contents = {images.content_of(x, images.decode(x)) for x in files}
    assert len(set(files)) == 4 and len(contents) == 1
    assert images.content_of(jpeg, images.decode(jpeg)) is jpeg

  @pytest.mark.parametrize("orientation", [3, 6, 8])
  def test_orientation_is_not_obeyed(self, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(SMALL), "JPEG", exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert not np.array_equal(np.array(turned), by_pillow(data))
    assert difference(images.decode(data), by_pillow(data)).max() <= 1

  def test_sixteen_bits(self):
    grey = np.array(Image.fromarray(SMALL).convert("L"))
    data = encoded(Image.fromarray(np.uint16(grey) * 257), "PNG")
    assert (images.decode(data) == grey[..., None]).all()

  @pytest.mark.parametrize("data", [b"", b"x", b"no image" * 99, bytes(999)])
  def test_no_image(self, data):
    with pytest.raises(ValueError, match=f"{len(data)} bytes cannot be deco"):
      images.decode(data)

  @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF"])
  @pytest.mark.parametrize("share", [0.3, 0.9])
  def test_truncated(self, kind, share, capfd):
    data = encoded(Image.fromarray(SMALL), kind)
    with pytest.raises(ValueError, match="cannot be decoded"):
      images.decode(data[: int(share * len(data))])
    assert "[ERROR" not in capfd.readouterr().err  # OpenCV's log

  def test_a_header_of_too_many_pixels(self):
    data = bytearray(encoded(Image.fromarray(SMALL), "BMP"))
    data[18:26] = np.array([2**20, 2**20], "<i4").tobytes()  # width, height
    with pytest.raises(ValueError, match="claims more than 67,108,864"):
      images.decode(bytes(data))


class TestResize:
  @pytest.mark.parametrize("size", [32, 224, 700])
  def test_as_published_models_expect(self, size):
    """From the file to the pixels, as Hugging Face's processors see them."""
    data = encoded(Image.fromarray(PHOTOS[0]), "JPEG", quality=90)
    square = Image.open(io.BytesIO(data)).resize((size, size), Image.BICUBIC)
    found = images.resize(images.decode(data), size)
    np.testing.assert_array_equal(found, np.array(square))

  # Height, width, size; the largest mean difference from Pillow's bicubic
  # (of 256 levels, on either photo), which measures 0.2 to 2.5. Pillow's own
  # bilinear differs by 0.3 to 2.1, OpenCV's plain bicubic by 0.2 to 16.
  @pytest.mark.parametrize(
    ("height", "width", "size", "bound"),
    [
      (427, 640, 256, 1.9),
      (427, 640, 224, 2.1),
      (427, 640, 64, 1.8),
      (427, 640, 32, 1.9),
      (427, 640, 400, 1.3),
      (300, 300, 256, 0.4),
      (200, 350, 256, 0.75),
      (120, 160, 256, 0.25),
      (100, 640, 128, 0.5),
      (427, 100, 128, 2.6),
    ],
  )
  def test_close_to_pillow(self, height, width, size, bound):
    for photo in PHOTOS:
      part = np.ascontiguousarray(photo[:height, :width])
      found = images.resize_fast(part, size)
      bicubic = Image.fromarray(part).resize((size, size), Image.BICUBIC)
      assert difference(found, np.array(bicubic)).mean() < bound
      assert abs(np.mean(np.float64(found) - np.array(bicubic))) < 0.16

  @pytest.mark.parametrize("size", [32, 64])
  def test_no_aliasing(self, size):
    for photo in PHOTOS:
      plain = cv2.resize(photo, (size, size), interpolation=cv2.INTER_CUBIC)
      exact = Image.fromarray(photo).resize((size, size), Image.BICUBIC)
      ours = difference(images.resize_fast(photo, size), exact).mean()
      assert 3 * ours < difference(plain, exact).mean()

  @pytest.mark.parametrize("resize", [images.resize, images.resize_fast])
  @pytest.mark.parametrize("shape", [(50, 250), (250, 50), (90, 131)])
  @pytest.mark.parametrize("size", [20, 64, 100])
  def test_every_pixel_is_in_its_place(self, resize, shape, size):
    """A slope stays one: pixel i shows the place (i + 1/2) n / size."""
    for axis in (0, 1):
      n = shape[axis]
      values = np.arange(n).reshape(-1, 1, 1) * 255 / n
      slope = np.rint(np.broadcast_to(values, (n, shape[1 - axis], 3)))
      if axis:
        slope = slope.swapaxes(0, 1)
      found = resize(slope.astype(np.uint8), size)
      places = ((np.arange(size) + 0.5) * n / size - 0.5) * 255 / n
      lines = found.mean(axis=(1 - axis, 2))
      inner = slice(size // 10, -(size // 10))
      wrong = lines[inner] - places[inner]
      # Rounding is 1 or so; half a pixel of the result would be 1.3 or more.
      assert np.abs(wrong).max() < 1.5 and abs(wrong.mean()) < 0.6

  @pytest.mark.parametrize("resize", [images.resize, images.resize_fast])
  def test_the_same_size_changes_nothing(self, resize):
    square = PHOTOS[0][:256, :256]
    np.testing.assert_array_equal(resize(square, 256), square)

  @pytest.mark.parametrize("resize", [images.resize, images.resize_fast])
  @pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 2)])
  def test_tiny_and_thin(self, resize, shape):
    found = resize(np.full((*shape, 3), 9, np.uint8), 16)
    assert found.shape == (16, 16, 3) and (found == 9).all()

  @pytest.mark.parametrize("kernel", ["bicubic", "bilinear"])
  @pytest.mark.parametrize(
    ("shape", "scaled"),
    # Height and width, and what Hugging Face's rule makes of them at 48 pixels.
    [((60, 300), (48, 240)), ((310, 61), (243, 48)), ((64, 64), (48, 48))],
  )
  def test_crop(self, shape, scaled, kernel):
    """The shorter side is resized first; then the centre is cropped."""
    photo = PHOTOS[0][: shape[0], : shape[1]]
    how = Resize("crop", kernel)
    whole = Image.fromarray(photo).resize(
      scaled[::-1], getattr(Image, kernel.upper())
    )
    top, left = ((x - 48) // 2 for x in scaled)
    expected = np.array(whole.crop((left, top, left + 48, top + 48)))
    np.testing.assert_array_equal(images.resize(photo, 48, how), expected)
    expected = Image.fromarray(photo).resize(
      (48, 48), getattr(Image, kernel.upper())
    )
    found = images.resize(photo, 48, Resize("squash", kernel))
    np.testing.assert_array_equal(found, np.array(expected))

  @pytest.mark.parametrize(
    ("width", "left", "rounded"),
    # torchvision's int(round((width - 48) / 2.0)) rounds a half to even.
    [(50, 1, 1), (51, 1, 2), (53, 2, 2), (55, 3, 4), (48, 0, 0)],
  )
  def test_margins(self, width, left, rounded):
    photo = PHOTOS[0][:48, :width]
    for mode, start in (("crop", left), ("crop_torchvision", rounded)):
      np.testing.assert_array_equal(
        images.resize(photo, 48, Resize(mode)), photo[:, start : start + 48]
      )

  @pytest.mark.parametrize("shape", [(2, 99_999), (99_998, 2)])
  def test_crop_of_a_line(self, shape):
    """The middle of a line is cropped before the line is made larger."""
    image = np.zeros((*shape, 3), np.uint8)
    axis = int(np.argmax(shape))
    middle = np.moveaxis(image, axis, 0)
    middle[shape[axis] // 2 - 5 : shape[axis] // 2 + 5] = 200
    found = images.resize(image, 64, Resize("crop"))
    assert found.shape == (64, 64, 3) and (found == 200).all()


@pytest.fixture
def boxes(monkeypatch):
  """Crops images of 256 x 200 and the like; gives (top, left, rows, columns).

  A place is read from the pixels: red is the column, green the row.
  """
  found = []

  def look(part, size):
    found.append((*part[0, 0, 1::-1], *part.shape[:2]))
    square = np.zeros((size, size, 3), np.uint8)
    square[:, 0] = 1
    return square

  def crop(height, width, num, **options):
    rows, columns = np.indices((height, width), np.uint8)
    image = np.stack([columns, rows, 0 * rows], axis=-1)
    numbers = random_numbers(0, 0, np.arange(num))
    found.clear()
    flipped = [
      images.random_resized_crop(image, x, size=2, **options)[0, 1, 0]
      for x in numbers
    ]
    return np.array(found, int), np.array(flipped)

  monkeypatch.setattr(images, "resize_fast", look)
  return crop


class TestRandomResizedCrop:
  def test_areas_ratios_and_places_are_uniform(self, boxes):
    """Parts of 0.1 to 0.5 all fit into a square at the first try."""
    found, flipped = boxes(240, 240, 4000, scale=(0.1, 0.5))
    top, left, rows, columns = found.T
    share, ratio = rows * columns / 240**2, np.log(columns / rows)
    assert share.min() > 0.097 and share.max() < 0.505
    assert np.abs(ratio).max() < math.log(4 / 3) + 0.015
    for x, low, high in (
      (share, 0.1, 0.5),
      (ratio, math.log(3 / 4), math.log(4 / 3)),
      # Whole pixels: a place is one of 240 - rows + 1.
      ((top + 0.5) / (241 - rows), 0.0, 1.0),
      ((left + 0.5) / (241 - columns), 0.0, 1.0),
    ):
      assert stats.kstest(x, "uniform", (low, high - low)).pvalue > 0.01
    numbers = np.stack([share, ratio, top / rows, left / columns, flipped])
    correlation = np.corrcoef(numbers) - np.eye(5)
    correlation[[2, 3, 0, 0], [0, 0, 2, 3]] = 0  # a large part is near 0
    correlation[[1, 1, 2, 3], [2, 3, 1, 1]] = 0  # likewise a long one
    correlation[[2, 3], [3, 2]] = 0
    assert np.abs(correlation).max() < 0.06
    assert abs(flipped.mean() - 0.5) < 0.03

  def test_as_published_for_large_parts(self, boxes):
    """Those that do not fit are drawn again, as in this plain loop."""
    (*_, rows, columns), _ = (x.T for x in boxes(200, 250, 3000))
    rng, expected = np.random.default_rng(1), []
    while len(expected) < 3000:
      area = 200 * 250 * rng.uniform(0.5, 1)
      ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
      w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
      if w <= 250 and h <= 200:
        expected.append((w * h, w / h))
    area, ratio = np.transpose(expected)
    assert stats.ks_2samp(rows * columns, area).pvalue > 0.01
    assert stats.ks_2samp(columns / rows, ratio).pvalue > 0.01

  def test_corners_are_reached(self, boxes):
    found, _ = boxes(60, 80, 3000, scale=(0.5, 0.5), ratio=(1.0, 1.0))
    top, left, rows, columns = found.T
    assert set(rows) == set(columns) == {49}
    assert (set(top), set(left)) == (set(range(12)), set(range(32)))

  @pytest.mark.parametrize(
    ("shape", "part"), [((30, 250), (30, 40)), ((250, 30), (40, 30))]
  )
  def test_long_images(self, boxes, shape, part):
    """No part of half the area fits: the largest in the middle is taken."""
    found, flipped = boxes(*shape, 50)
    middle = [(n - m) // 2 for n, m in zip(shape, part, strict=True)]
    assert set(map(tuple, found[:, 2:])) == {part}
    assert difference(found[:, :2], middle).max() <= 1
    assert 10 < flipped.sum() < 40

  def test_no_flip(self, boxes):
    assert not boxes(60, 60, 50, flip=False)[1].any()

  def test_pixels(self):
    numbers = np.full(images.CROP_NUMBERS, 0.5)
    whole = images.random_resized_crop(
      PHOTOS[0], numbers, size=64, scale=(0.5, 0.5), ratio=(1.0, 1.0)
    )
    side = round(math.sqrt(0.5 * 427 * 640))
    top, left = (427 - side + 1) // 2, (640 - side + 1) // 2
    part = PHOTOS[0][top : top + side, left : left + side]
    np.testing.assert_array_equal(whole, images.resize_fast(part, 64))
    numbers[-1] = 0.49
    mirrored = images.random_resized_crop(
      PHOTOS[0], numbers, size=64, scale=(0.5, 0.5), ratio=(1.0, 1.0)
    )
    np.testing.assert_array_equal(mirrored, whole[:, ::-1])


class TestThreads:
  def test_order(self):
    def late(i):
      time.sleep(0.002 * (i % 3))
      return i, threading.current_thread().name

    found = images.in_threads(late, range(40))
    assert [i for i, _ in found] == list(range(40))
    assert threading.current_thread().name not in {name for _, name in found}

  def test_errors_come_through(self):
    with pytest.raises(ZeroDivisionError):
      images.in_threads(lambda x: 1 // x, [1, 0, 2])
