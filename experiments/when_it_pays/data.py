"""Long-tailed characters: images in noise, captions that repeat unmarked.

Which text is asked for how often is known, and the answer is often uncertain:
the letters of a subset differ in accents, and are small and noisy. Training
draws a letter by its frequency and a font among `TRAIN_FONTS`; every training
pair has an id of its own, so that equal captions are negatives of each other,
as they are in data that nobody has searched for repetitions. The test has every
letter in the other fonts equally often and is weighted afterwards.

A share of the captions may be replaced by paraphrases of `BOILERPLATES`, which
say nothing about the image. Or equal captions are marked: they share one id,
and are no negatives of each other.
"""

import functools
import itertools
from typing import NamedTuple
import unicodedata

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab.data import glyphs
from nuclr_jax.lab.data.augment import augment
from nuclr_jax.lab.data.source import Data, Records, in_memory
from nuclr_jax.lab.data.tokenizer import build_tokenizer

TEST_FONTS = (
  "DejaVuSans-Bold",
  "DejaVuSansMono",
  "DejaVuSerif-Italic",
  "STIXGeneral",
)
TRAIN_FONTS = tuple(x for x in glyphs.FONTS if x not in TEST_FONTS)
SIZE = 16  # pixels
NOISE = 0.3  # standard deviation, of white
VIEWS = 5  # noisy test images of a letter in a font
BOILERPLATES = (
  *("BLACK SYMBOL", "PRINTED SIGN", "STOCK PHOTO", "VECTOR GRAPHIC"),
  *("COMPANY LOGO", "OLD TYPEFACE", "WEBSITE ICON", "DIGITAL ARTWORK"),
  *("BLANK PAGE", "BOOK COVER", "HANDMADE STAMP", "SCANNED DOCUMENT"),
  *("DESIGN ELEMENT", "COLOURING SHEET", "MODERN POSTER", "ROYALTY CLIPART"),
  *("PRODUCT SAMPLE", "PROFILE PICTURE", "PATTERN TILE", "MISSING PREVIEW"),
)
OPENINGS = ("", "THE", "THIS IS", "AN IMAGE OF", "PICTURE SHOWS", "SIMPLE")
ENDINGS = ("", "ON WHITE", "ISOLATED", "FREE DOWNLOAD", "IN HIGH RESOLUTION")


class Tails(NamedTuple):
  """A long-tailed data set and its test."""

  data: Data
  item: Int[np.ndarray, "pairs"]  # the letter of each training pair
  p: Float[np.ndarray, "items"]  # how often a letter is drawn
  captions: list[str]  # all distinct ones: of the letters, then boilerplates
  caption: Int[np.ndarray, "pairs"]  # the caption of each training pair
  text_id: Int[np.ndarray, "pairs"]  # that training knows
  test_image: np.ndarray  # [tests, size, size, 1]
  test_item: Int[np.ndarray, "tests"]


@functools.cache
def letters() -> tuple[list[int], np.ndarray]:
  """Returns the Latin letters of all fonts; images [fonts, letters, ...]."""
  drawn = dict(glyphs.render_glyphs(SIZE))

  def is_letter(point):
    name = unicodedata.name(chr(point))
    return name.startswith("LATIN") and "LETTER" in name

  def images(point):
    return [drawn.get(glyphs.Glyph(font, point)) for font in glyphs.FONTS]

  points = sorted({x.code_point for x in drawn if is_letter(x.code_point)})
  found = {point: images(point) for point in points}
  whole = {c: x for c, x in found.items() if all(y is not None for y in x)}
  return list(whole), np.array(list(whole.values())).swapaxes(0, 1)


@functools.lru_cache(maxsize=4)
def make_tails(
  *,
  seed: int,
  exponent: float,
  num_items: int,
  num_pairs: int,
  boilerplate: float = 0.0,
  marked: bool = False,
) -> Tails:
  """Draws letters whose frequencies fall as rank^-exponent.

  Args:
    seed: Decides everything that is drawn.
    exponent: 0 draws all letters equally often.
    num_items: How many letters there are.
    num_pairs: How many training pairs there are.
    boilerplate: The share of captions that paraphrase a boilerplate.
    marked: Whether equal captions share one id.
  """
  points, images = letters()
  rng = np.random.default_rng(seed)
  chosen = rng.choice(len(points), num_items, replace=False)
  p = rng.permutation(np.arange(1, num_items + 1.0) ** -exponent)
  p /= p.sum()
  item = rng.choice(num_items, num_pairs, p=p)
  fonts = [glyphs.FONTS.index(x) for x in TRAIN_FONTS]
  image = images[rng.choice(fonts, num_pairs), chosen[item]]
  pixels = noisy(image, rng)
  clean = images[[glyphs.FONTS.index(x) for x in TEST_FONTS]][:, chosen]
  clean = np.tile(clean.reshape(-1, SIZE, SIZE), (VIEWS, 1, 1))
  test_image = noisy(clean, rng)
  test_item = np.tile(np.arange(num_items), len(TEST_FONTS) * VIEWS)
  names = [unicodedata.name(chr(points[i])) for i in chosen]
  of_pair = [names[i] for i in item]
  for i in np.flatnonzero(rng.uniform(size=num_pairs) < boilerplate):
    of_pair[i] = rng.choice(paraphrases())
  captions = names + sorted(set(of_pair) - set(names))
  position = {text: i for i, text in enumerate(captions)}
  caption = np.array([position[x] for x in of_pair])
  text_id = caption if marked else np.arange(num_pairs)
  name = f"tails/{seed}/{exponent}/{num_items}/{num_pairs}/{boilerplate}"
  records = Records(
    pixels,
    text_id.astype(np.int32),
    captions if marked else of_pair,
    name + "/marked" * marked,
  )
  words = build_tokenizer(captions, length=12)
  shift = augment(shift=1.0, scale=0.0)
  data = Data(
    train=in_memory(records, words.encode(records.captions), shift),
    tokenizer=words,
    image_shape=(SIZE, SIZE, 1),
  )
  test = test_image, test_item
  return Tails(data, item, p, captions, caption, text_id, *test)


@functools.cache
def paraphrases() -> list[str]:
  """Returns all wordings of all boilerplates."""
  parts = itertools.product(OPENINGS, BOILERPLATES, ENDINGS)
  return [" ".join(filter(None, words)) for words in parts]


def noisy(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Adds white noise to images [n, size, size]; returns uint8 [..., 1]."""
  x = images + 255 * NOISE * rng.normal(size=images.shape)
  return np.clip(x, 0, 255).astype(np.uint8)[..., None]
