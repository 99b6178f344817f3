"""Glyphs: characters of matplotlib's fonts, and their Unicode names.

Real image-text pairs with nothing to download: about 54,000 pictures of 7,300
characters in 16 font files, each captioned with the character's name ("LATIN
SMALL LETTER A WITH GRAVE"). Splits are by character, never by picture. Many
fonts draw one character, many characters look alike and words have a long
tail, which is what popularity is about.
"""

from collections.abc import Collection, Iterator
import functools
import hashlib
import logging
import os
import pathlib
from typing import NamedTuple
import unicodedata

import matplotlib
import matplotlib.ft2font
import numpy as np
from PIL import Image, ImageDraw, ImageFont
import tensorflow_datasets as tfds

from nuclr_jax.data import prepared, sources

log = logging.getLogger(__name__)

FONTS = tuple(
  family + style
  for family, styles in {
    "DejaVuSans": ("", "-Bold", "-BoldOblique", "-Oblique"),
    "DejaVuSansMono": ("", "-Bold", "-BoldOblique", "-Oblique"),
    "DejaVuSerif": ("", "-Bold", "-BoldItalic", "-Italic"),
    "STIXGeneral": ("", "Bol", "BolIta", "Italic"),
  }.items()
  for style in styles
)
SPLITS = {"validation": 500, "test": 1000}  # characters; the rest train
SPLIT_SEED = 0
SCRIPTS = (
  "LATIN GREEK CYRILLIC ARABIC ARMENIAN GEORGIAN HEBREW TIFINAGH NKO LAO LISU "
  "OGHAM"
).split()
FORMAT = 2  # of the records; a change makes new configurations


class Glyph(NamedTuple):
  """A character that a font file draws."""

  font: str
  code_point: int


def prepare(data_dir: str | os.PathLike, *, size: int = 32) -> pathlib.Path:
  """Renders the data set below `data_dir` unless it is there.

  Args:
    data_dir: Folder of prepared data sets; made if missing.
    size: Height and width of the grey pictures, in pixels.

  Returns:
    The folder of the prepared TFDS data set (array_record files), with splits
    train, validation and test. Its name carries a fingerprint of the fonts
    and settings, so that other fonts or sizes make another folder.

  Raises:
    ValueError: If `size` is below 8.

  Example:
    >>> folder = prepare(tmp_path, size=16)  # doctest: +SKIP
  """
  if size < 8:
    raise ValueError(f"size must be at least 8 pixels, got {size}")
  config = tfds.core.BuilderConfig(name=f"{size}px_{_fingerprint(size)}")
  version = str(Glyphs.VERSION)
  folder = pathlib.Path(data_dir) / Glyphs.name / config.name / version
  if folder.exists():
    if not (folder / prepared.INFO).exists():
      raise sources.damaged(folder / prepared.INFO, "it is missing")
    return folder
  log.info("rendering the glyphs into %s", folder)
  tfds.disable_progress_bar()
  builder = Glyphs(
    size=size,
    config=config,
    data_dir=os.fspath(data_dir),
    file_format="array_record",
  )
  try:
    builder.download_and_prepare()
  except FileExistsError:
    log.info("another process prepared %s meanwhile", folder)
  return folder


class Glyphs(tfds.core.GeneratorBasedBuilder):
  """TFDS builder; record i of a split is the pair with id i."""

  VERSION = tfds.core.Version("1.0.0")

  def __init__(self, *, size: int = 32, **kwargs):
    self._size = size
    super().__init__(**kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description=__doc__,
      disable_shuffling=True,
      features=tfds.features.FeaturesDict(
        {
          "image": tfds.features.Tensor(
            shape=(self._size, self._size, 1), dtype=np.uint8, encoding="bytes"
          ),
          "caption": tfds.features.Text(),
          "index": np.int64,
          "text_id": np.int64,
        }
      ),
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    glyphs = list(render(self._size))
    named = {c for font in FONTS for c in _code_points(font_path(font))}
    visible = {glyph.code_point for glyph, _ in glyphs}
    splits = split_characters(named, visible)
    return {
      split: self._generate_examples(glyphs, characters)
      for split, characters in splits.items()
    }

  def _generate_examples(self, glyphs, characters):
    text_id = {character: i for i, character in enumerate(characters)}
    chosen = [(g, image) for g, image in glyphs if g.code_point in text_id]
    for i, (glyph, image) in enumerate(chosen):
      yield (
        i,
        {
          "image": image[..., None],
          "caption": unicodedata.name(chr(glyph.code_point)),
          "index": i,
          "text_id": text_id[glyph.code_point],
        },
      )


def split_characters(
  code_points: Collection[int], visible: Collection[int]
) -> dict[str, list[int]]:
  """Splits the visible characters into train, validation and test, sorted.

  Args:
    code_points: Everything that the fonts name; it fixes the order in which
      characters are drawn for the splits.
    visible: Those that have ink, which may depend on the size.

  Example:
    >>> splits = split_characters(range(5000), range(5000))
    >>> {name: len(characters) for name, characters in splits.items()}
    {'train': 3500, 'validation': 500, 'test': 1000}
  """
  shuffled = np.random.default_rng(SPLIT_SEED).permutation(sorted(code_points))
  kept = [int(c) for c in shuffled if int(c) in visible]
  splits, start = {"train": kept[sum(SPLITS.values()) :]}, 0
  for name, count in SPLITS.items():
    splits[name] = kept[start : start + count]
    start += count
  return {name: sorted(characters) for name, characters in splits.items()}


def script_of(caption: str) -> int:
  """Index in `SCRIPTS` of a letter's script; -1 for any other character.

  Example:
    >>> script_of("GREEK SMALL LETTER ALPHA"), script_of("GREEK RHO SYMBOL")
    (1, -1)
  """
  first, *rest = caption.split()
  return SCRIPTS.index(first) if first in SCRIPTS and "LETTER" in rest else -1


def render(size: int) -> Iterator[tuple[Glyph, np.ndarray]]:
  """Draws every named glyph that has ink, white on black.

  Yields:
    `(Glyph, uint8 [size, size])`, ordered by font file and code point.
  """
  for number, font_name in enumerate(FONTS):
    path = font_path(font_name)
    font = ImageFont.truetype(
      path, round(0.62 * size), layout_engine=ImageFont.Layout.BASIC
    )
    for code_point in _code_points(path):
      image = _draw(font, chr(code_point), size)
      if image.any():
        yield Glyph(font_name, code_point), image
    log.info("glyphs: drew font file %d of %d", number + 1, len(FONTS))


def _draw(font, character: str, size: int) -> np.ndarray:
  """Draws on a common baseline, the ink centred horizontally."""
  left, _, right, _ = font.getbbox(character, anchor="ls")
  image = Image.new("L", (size, size))
  x = (size - (right - left)) / 2 - left
  ImageDraw.Draw(image).text(
    (x, 0.72 * size), character, fill=255, font=font, anchor="ls"
  )
  return np.asarray(image)


def font_path(font_name: str) -> str:
  """Where matplotlib keeps a font file of `FONTS`; FileNotFoundError if not."""
  folder = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
  path = folder / f"{font_name}.ttf"
  if not path.exists():
    raise FileNotFoundError(
      f"matplotlib's font file {path} is missing; install matplotlib >= 3.9 "
      "from its wheel, which brings the fonts"
    )
  return str(path)


def _code_points(path: str) -> list[int]:
  """Code points of a font that have a name and are meant to be seen."""
  charmap = matplotlib.ft2font.FT2Font(path).get_charmap()
  invisible = ("Zs", "Zl", "Zp", "Cf", "Cc", "Co", "Cn", "Cs")
  return sorted(
    c
    for c in charmap
    if unicodedata.name(chr(c), "")
    and unicodedata.category(chr(c)) not in invisible
  )


@functools.cache
def _fingerprint(size: int) -> str:
  """A hash of everything that decides which record has which id."""
  digest = hashlib.sha256(
    repr(
      (FORMAT, size, SPLITS, SPLIT_SEED, unicodedata.unidata_version)
    ).encode()
  )
  for font_name in FONTS:
    digest.update(pathlib.Path(font_path(font_name)).read_bytes())
  return digest.hexdigest()[:12]
