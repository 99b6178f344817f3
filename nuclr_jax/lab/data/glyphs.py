"""Glyphs: characters of matplotlib's fonts, and their Unicode names.

Real image-text pairs with nothing to download: about 54,000 images of 7,300
characters in 16 font files, each captioned with the character's name ("LATIN
SMALL LETTER A WITH GRAVE"). Splits are by character, never by image. Many
fonts draw the same character, many characters look alike, and word
frequencies have a long tail, which is what popularity is about.

The module also loads scikit-learn's handwritten digits, which look enough like
glyphs to be classified by a model of glyphs.
"""

from collections.abc import Collection, Iterator
import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import pathlib
import shutil
from typing import NamedTuple
import unicodedata

import numpy as np

from nuclr_jax.checks import Count, NonNegative
from nuclr_jax.lab import files
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.data.records import data_of_records, read_records
from nuclr_jax.lab.data.source import Data, HeldOut, ImageTextSet, LabelledSet
from nuclr_jax.lab.data.tfds_reader import is_prepared
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.ranges import Length, Pixels

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
SPLITS = {"validation": 500, "test": 1000}  # characters; all others train
SPLIT_SEED = 0
SCRIPTS = (
  "LATIN GREEK CYRILLIC ARABIC ARMENIAN GEORGIAN HEBREW TIFINAGH NKO LAO LISU "
  "OGHAM"
).split()
DIGIT_PROMPTS = tuple(
  (f"DIGIT {name}",)
  for name in "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()
)
FORMAT = 2  # of the records; another format gets another folder
DESCRIPTION = "Characters of matplotlib's fonts, captioned with their names."


class Glyph(NamedTuple):
  """A character that a font file draws."""

  font: str
  code_point: int


def glyphs(
  *,
  data_dir: str | os.PathLike | None = None,
  size: Pixels = 32,
  length: Length = 12,
  min_count: Count = 1,
  shift: NonNegative = 0.0,
  scale: NonNegative = 0.0,
  share_texts: bool = True,
) -> Data:
  """Loads the glyphs, which the first run that needs them renders.

  The held-out sets are characters for retrieval and letters to classify by
  script ("script"); the test split also has handwritten digits ("digits").

  Args:
    data_dir: Folder of prepared data sets.
    size: Height and width of the images, in pixels.
    length: Token ids per caption.
    min_count: The number of captions in which a word must occur to become a
      token.
    shift: Largest move of an augmented image along each axis, in pixels.
    scale: Largest change of the logarithm of its size along each axis.
    share_texts: Whether training knows which captions repeat; if not, see
      `hide_repetitions`.
  """
  folder = prepare_glyphs(cache_dir(data_dir), size=size)
  held_out = {}
  for split in SPLITS:
    x = read_records(folder, split)
    captioned = ImageTextSet(
      x.image, x.text_id, x.captions, np.arange(len(x.captions))
    )
    zero_shot = {"script": functools.partial(_scripts, captioned)}
    if split == "test":
      zero_shot["digits"] = functools.partial(_digits, size)
    held_out[split] = HeldOut({"": captioned}, zero_shot)
  train = read_records(folder, "train")
  return data_of_records(
    train,
    held_out,
    build_tokenizer(train.captions, length=length, min_count=min_count),
    shift=shift,
    scale=scale,
    share_texts=share_texts,
  )


def prepare_glyphs(
  data_dir: str | os.PathLike, *, size: int = 32
) -> pathlib.Path:
  """Renders the data set below `data_dir` unless it exists.

  Args:
    data_dir: Folder of prepared data sets; created if missing.
    size: Height and width of the grey images, in pixels.

  Returns:
    The folder of the prepared TFDS data set (array_record files), with splits
    train, validation and test. Its name carries a fingerprint of the fonts
    and settings, so that other fonts or sizes get another folder.

  Raises:
    ValueError: If `size` is below 8.

  Example:
    >>> folder = prepare_glyphs(tmp_path, size=16)  # doctest: +SKIP
  """
  import tensorflow_datasets as tfds

  if size < 8:
    raise ValueError(f"size must be at least 8 pixels, got {size}")
  make = _builder_class()
  name = f"{size}px_{_fingerprint(size)}"
  version = str(make.VERSION)
  folder = pathlib.Path(data_dir) / make.name / name / version
  if is_prepared(folder):
    return folder
  place = files.folder_in(pathlib.Path(data_dir), make.name, name)
  with files.locked(place, wait=True):
    if folder.exists():
      return folder  # another process has made it meanwhile
    for old in folder.parent.glob(f"incomplete.*_{version}"):
      shutil.rmtree(old)  # left by a process that was killed
    log.info("rendering the glyphs into %s", folder)
    tfds.disable_progress_bar()
    with _silent():
      builder = make(
        size=size,
        config=tfds.core.BuilderConfig(name=name),
        data_dir=os.fspath(data_dir),
        file_format="array_record",
      )
      builder.download_and_prepare()
  return folder


@contextlib.contextmanager
def _silent() -> Iterator[None]:
  """Keeps TFDS from speaking of downloads, and of a config that is ours."""
  absl = logging.getLogger("absl")
  level = absl.level
  absl.setLevel(logging.ERROR)
  try:
    with contextlib.redirect_stdout(None):
      yield
  finally:
    absl.setLevel(level)


@functools.cache
def _builder_class():
  """Makes the class of the TFDS builder; record i of a split is pair i.

  It is defined in a function because its base class imports TFDS, which the
  core does without.
  """
  import tensorflow_datasets as tfds

  class Glyphs(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, size: int = 32, **kwargs):
      self._size = size
      super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
      return tfds.core.DatasetInfo(
        builder=self,
        description=DESCRIPTION,
        disable_shuffling=True,
        features=tfds.features.FeaturesDict(
          {
            "image": tfds.features.Tensor(
              shape=(self._size, self._size, 1),
              dtype=np.uint8,
              encoding="bytes",
            ),
            "caption": tfds.features.Text(),
            "index": np.int64,
            "text_id": np.int64,
          }
        ),
      )

    def _split_generators(self, dl_manager):
      del dl_manager
      drawn = list(render_glyphs(self._size))
      named = {c for font in FONTS for c in _code_points(font_path(font))}
      visible = {glyph.code_point for glyph, _ in drawn}
      splits = split_characters(named, visible)
      return {
        split: self._generate_examples(drawn, characters)
        for split, characters in splits.items()
      }

    def _generate_examples(self, drawn, characters):
      text_id = {character: i for i, character in enumerate(characters)}
      chosen = [(g, image) for g, image in drawn if g.code_point in text_id]
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

  return Glyphs


def split_characters(
  code_points: Collection[int], visible: Collection[int]
) -> dict[str, list[int]]:
  """Splits the visible characters into train, validation and test, sorted.

  Args:
    code_points: All code points that the fonts name; they fix the order in
      which characters are assigned to splits.
    visible: The code points that have ink, which may depend on the size.

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
  """Returns the index in `SCRIPTS` of a letter's script; otherwise -1.

  Example:
    >>> script_of("GREEK SMALL LETTER ALPHA"), script_of("GREEK RHO SYMBOL")
    (1, -1)
  """
  first, *rest = caption.split()
  return SCRIPTS.index(first) if first in SCRIPTS and "LETTER" in rest else -1


def render_glyphs(size: int) -> Iterator[tuple[Glyph, np.ndarray]]:
  """Draws every named glyph that has ink, white on black.

  Args:
    size: Height and width of the images, in pixels.

  Yields:
    `(Glyph, uint8 [size, size])`, ordered by font file and code point.
  """
  from PIL import ImageFont

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
  """Draws a character on a common baseline, its ink centred horizontally."""
  from PIL import Image, ImageDraw

  left, _, right, _ = font.getbbox(character, anchor="ls")
  image = Image.new("L", (size, size))
  x = (size - (right - left)) / 2 - left
  ImageDraw.Draw(image).text(
    (x, 0.72 * size), character, fill=255, font=font, anchor="ls"
  )
  return np.asarray(image)


def font_path(font_name: str) -> str:
  """Returns the path of a font file of `FONTS`, which comes with matplotlib.

  Raises:
    FileNotFoundError: If the file is missing.
  """
  import matplotlib

  folder = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
  path = folder / f"{font_name}.ttf"
  if not path.exists():
    raise FileNotFoundError(
      f"matplotlib's font file {path} is missing; install matplotlib >= 3.9 "
      "from its wheel, which brings the fonts"
    )
  return str(path)


def _code_points(path: str) -> list[int]:
  """Lists a font's code points that have a name and are meant to be seen."""
  import matplotlib.ft2font

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
  """Hashes everything that decides which record has which id."""
  digest = hashlib.sha256(
    repr(
      (FORMAT, size, SPLITS, SPLIT_SEED, unicodedata.unidata_version)
    ).encode()
  )
  for font_name in FONTS:
    digest.update(pathlib.Path(font_path(font_name)).read_bytes())
  return digest.hexdigest()[:12]


def _scripts(glyphs_of_split: ImageTextSet) -> LabelledSet:
  """Selects the letters among the glyphs, labelled with their script."""
  image, group, captions = glyphs_of_split[:3]
  script = np.array([script_of(caption) for caption in captions])
  label = script[group]
  letters = label >= 0
  prompts = [(f"{name} LETTER",) for name in SCRIPTS]
  return LabelledSet(image[letters], label[letters], SCRIPTS, prompts)


def _digits(size: int) -> LabelledSet:
  """Loads handwritten digits, with prompts worded like the names of glyphs."""
  image, label = digits_like_glyphs(size)
  return LabelledSet(image, label, prompts=DIGIT_PROMPTS)


def digits_like_glyphs(size: int) -> tuple[np.ndarray, np.ndarray]:
  """Loads all 1,797 handwritten digits, as large as a glyph.

  Args:
    size: Height and width of the images, in pixels.

  Returns:
    Images uint8 [1797, size, size, 1], white on black, and labels 0 ... 9.

  Example:
    >>> images, labels = digits_like_glyphs(32)
    >>> images.shape, labels[:3].tolist()
    ((1797, 32, 32, 1), [0, 1, 2])
  """
  height = round(0.5 * size)  # a glyph's digit is about half as high as its box
  digits, label = enlarged_digits(height)
  images = np.zeros((len(digits), size, size, 1), np.uint8)
  top = round(0.72 * size) - height  # the glyphs' baseline
  left = (size - height) // 2
  images[:, top : top + height, left : left + height] = digits
  return images, label


def enlarged_digits(size: int) -> tuple[np.ndarray, np.ndarray]:
  """Loads all 1,797 handwritten digits, enlarged from 8 x 8 pixels.

  Args:
    size: Height and width of the images, in pixels.

  Returns:
    Images uint8 [1797, size, size, 1], white on black, and labels 0 ... 9.

  Example:
    >>> enlarged_digits(16)[0].shape
    (1797, 16, 16, 1)
  """
  from PIL import Image

  def resized(digit):
    pixels = Image.fromarray((digit * (255 / 16)).astype(np.uint8))
    return pixels.resize((size, size), Image.Resampling.BICUBIC)

  # Reads scikit-learn's file directly: importing the library takes seconds.
  package = pathlib.Path(importlib.util.find_spec("sklearn").origin).parent
  file = package / "datasets" / "data" / "digits.csv.gz"
  rows = np.loadtxt(file, delimiter=",")  # 64 pixels 0 ... 16 and the label
  digits = rows[:, :-1].reshape(-1, 8, 8)
  images = np.stack([np.asarray(resized(x)) for x in digits])
  return images[..., None], rows[:, -1].astype(np.int64)
