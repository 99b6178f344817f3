"""The pairs whose popularities are solved: of a run, or from files."""

from collections.abc import Callable, Mapping, Sequence
import logging
import os
import pathlib
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data import shards
from nuclr_jax.lab.data.captions import as_text
from nuclr_jax.lab.data.embeddings import (
  CONTENT,
  COUNTS,
  KEY,
  THUMBNAIL,
  index_of_rows,
  is_of_texts,
  open_embeddings,
  open_texts,
  read_column,
)
from nuclr_jax.lab.data.pair_index import content_hash, repeats
from nuclr_jax.lab.data.source import AnyTokenizer, ImageTextSet, Source
from nuclr_jax.lab.evaluate.evaluators import embed_pairs
from nuclr_jax.lab.train import loop
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.hooks import one_temperature
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.objectives import Readout
from nuclr_jax.types import Pairs, Sides, each

log = logging.getLogger(__name__)

ROWS = 2**14  # that are scaled at a time
LARGEST = 512**2  # pixels of a thumbnail
ARRAYS = ("image", "text", "image_id", "text_id", "caption")  # of an .npz
COPIES = 0.1  # a larger share of equal rows without ids is worth a warning


class Photos(NamedTuple):
  """The files of the images, one by one.

  An image id stands for all copies of an image, which are one sample to the
  solver. A search for duplicate files needs each of them, and those that are in
  no pair because they have no caption.
  """

  embedding: np.ndarray  # [photos, dim], unit norm
  content: np.ndarray  # [photos], equal numbers for exact copies
  of_pairs: np.ndarray  # [pairs], the photo of each pair
  images: Callable[[np.ndarray], np.ndarray | None]  # by photo
  names: Sequence[str] | None  # None = not known


class Subject(NamedTuple):
  """Pairs with embeddings, and what is known about them."""

  pairs: Pairs  # NumPy arrays
  temperature: float
  captions: Callable[[np.ndarray], Sequence[str]]  # by text id
  photos: Photos
  zeta: Sides | None = None  # learned, [ids] each, row = id
  log_u: Sides | None = None  # learned, [pairs] each
  fingerprint: str = ""
  trained: bool = False  # whether the model was trained on these pairs
  counts: Mapping[str, int] = {}  # of what became no pair or was cut, if known
  tokenizer: AnyTokenizer | None = None  # to count the captions that are cut
  of_texts: bool = False  # whether there are no images: texts against texts

  def images(self, rows: np.ndarray) -> np.ndarray | None:
    """Returns the images of pairs, by index; None if they are not known."""
    return self.photos.images(self.photos.of_pairs[rows])

  def as_set(self) -> ImageTextSet:
    """Returns the pairs as a set for retrieval, with embeddings for images.

    Each photo of a pair is a query once, and each pair's text is one. Texts of
    one id are equal, and so are photos of one content.
    """
    photo, row = np.unique(self.photos.of_pairs, return_inverse=True)
    text_id = self.pairs.text_id
    return ImageTextSet(
      self.photos.embedding[photo],
      np.arange(len(photo)),
      self.captions(text_id),
      row,
      same=repeats(self.photos.content[photo], text_id),
    )

  def keys(self, rows: np.ndarray) -> list[str]:
    """Returns the names of the photos of pairs, which must be known."""
    return [self.photos.names[i] for i in self.photos.of_pairs[rows]]


def from_run(
  workdir: pathlib.Path,
  *,
  data_dir: str | os.PathLike | None = None,
  temperature: float | None = None,
  parts: Experiment | None = None,
) -> Subject:
  """Embeds the training pairs of a run with its newest checkpoint.

  Raises:
    ValueError: If there is no run, or its objective has no single temperature.
  """
  opened = loop.load(workdir, data_dir=data_dir, parts=parts)
  subject = from_state(*opened, temperature=temperature)
  return subject._replace(trained=True)


def from_state(
  parts: Experiment,
  mesh: Mesh,
  state: TrainState,
  *,
  temperature: float | None = None,
) -> Subject:
  """Embeds the training pairs of parts that are open.

  Args:
    parts: What `loop.load` or `untrained.open_untrained` returned.
    mesh: The same.
    state: The same.
    temperature: The temperature to solve with; None means the objective's.

  Raises:
    ValueError: If the objective has no single temperature.
  """
  readout = loop.readout(parts, state)
  if temperature is None:
    temperature = one_temperature(readout, "popularity")
  source = parts.data.train
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    pairs = embed_pairs(embed, source)
  if parts.settings.reference is not None:  # they are of other similarities
    readout = Readout()
  zeta, log_u = readout.zeta, readout.log_u
  if zeta is not None:
    zeta = each(lambda x, n: np.asarray(x)[:n], zeta, source.sizes.ids)
  if log_u is not None:
    log_u = each(lambda x: np.asarray(x)[pairs.pair_id], log_u)
  return Subject(
    pairs,
    temperature,
    source.captions,
    _photos_of_source(pairs, source),
    zeta,
    log_u,
    source.fingerprint,
    tokenizer=parts.data.tokenizer,
  )


def _photos_of_source(pairs: Pairs, source: Source) -> Photos:
  """Returns the files of a source; without any, one for every image id.

  Files that share an image id are exact copies.
  """
  number = pairs.ids.image
  if source.files is not None:
    number = source.files.of_pairs(pairs.pair_id)
  numbers, first, of_pairs = np.unique(
    number, return_index=True, return_inverse=True
  )
  return Photos(
    pairs.image[first],
    pairs.ids.image[first],
    of_pairs,
    lambda rows: source.fetch(pairs.pair_id[first[rows]]).image,
    None if source.files is None else source.files.names(numbers),
  )


def from_files(paths: str, *, temperature: float | None) -> Subject:
  """Reads embeddings of any model from files.

  Args:
    paths: One `.npz` with arrays `image` and `text` [pairs, dim] and, if ids
      repeat or captions are known, `image_id`, `text_id` [pairs] and `caption`
      (strings, one for each pair); or two `.npy` files joined by a comma,
      images first; or the folder that `nuclr embed` made, in which each of
      texts without images is a pair with itself. With `text_id`,
      `text` may have a row per id, which `text_id` then indexes; the same holds
      for `image` and `image_id`. An array with as many rows as pairs has a row
      for each pair. Rows are scaled to unit norm.
    temperature: The temperature to solve with, greater than 0.

  Raises:
    ValueError: If a file cannot be read or lacks something.
  """
  if temperature is None:
    raise ValueError("embeddings from files need --temperature")
  paths = ",".join(str(files.remote.fetch(x)) for x in paths.split(","))
  folder = pathlib.Path(paths)
  of_texts = is_of_texts(folder)
  if of_texts:
    content, photos, counts = *_read_texts(folder), _counts(folder)
  elif folder.is_dir():
    content, photos, counts = _read_cached(paths)
  else:
    content, photos, counts = _read(paths), None, {}
  missing = {"image", "text"} - set(content)
  if missing:
    raise ValueError(
      f"{paths} lacks the arrays {sorted(missing)}, it has {sorted(content)}"
    )
  if unused := sorted(set(content) - set(ARRAYS)):
    raise ValueError(
      f"{paths} has the arrays {unused}, which are not used; those that are: "
      f"{', '.join(ARRAYS)}. Rename them, or leave them out"
    )
  sides, ids, hashes = [], [], {}
  for side in Sides._fields:
    x = content[side]
    if x.ndim != 2 or x.dtype.kind != "f" or not x.size:
      raise ValueError(
        f"{side} must be floating of shape [rows, dim], got "
        f"{x.dtype}{list(x.shape)}"
      )
    i = content.get(f"{side}_id", np.arange(len(x)))
    if i.ndim != 1 or i.dtype.kind not in "iu" or not i.size:
      raise ValueError(
        f"{side}_id must be integers of shape [pairs], got "
        f"{i.dtype}{list(i.shape)}; number the {side}s"
      )
    if len(x) != len(i):
      if i.min() < 0 or i.max() >= len(x):
        raise ValueError(
          f"{side}_id must point into the {len(x)} rows of {side}, found "
          f"{i.min()} to {i.max()}"
        )
      x = x[i]
    elif _is_other_order(i):
      raise ValueError(
        f"{side}_id puts the {len(x)} rows of {side} in another order; are "
        f"they of pairs or of ids? Of pairs: leave {side}_id out; of ids: give "
        f"{side}[{side}_id] without it"
      )
    sides.append(_unit_norm(side, x))
    ids.append(i)
    if f"{side}_id" not in content:
      hashes[side] = _hashes(sides[-1])
      _warn_of_copies(side, hashes[side])
  if len(ids[0]) != len(ids[1]):
    raise ValueError(
      f"image and text must have one entry for each pair, got {len(ids[0])} "
      f"and {len(ids[1])}; say by image_id or text_id which belong together"
    )
  pairs = Pairs(*sides, np.arange(len(ids[0])), *ids)
  if photos is None:  # one for every image id
    numbers, first, of_pairs = np.unique(
      pairs.image_id, return_index=True, return_inverse=True
    )
    image = pairs.image
    if not np.array_equal(first, np.arange(len(image))):  # else, no copy
      image = image[first]
    numbers = hashes.get("image", numbers)  # equal rows are copies
    photos = Photos(image, numbers, of_pairs, lambda rows: None, None)
  return Subject(
    pairs,
    temperature,
    _captions(content.get("caption"), pairs.text_id),
    photos,
    counts=counts,
    of_texts=of_texts,
  )


def decoded(thumbnails: Sequence[bytes]) -> np.ndarray:
  """Decodes thumbnails; one that is none becomes a grey square."""
  from nuclr_jax.lab.data import images

  size, squares, wrong = images.THUMBNAIL, [], 0
  for data in thumbnails:
    try:
      if images.num_pixels(data) > LARGEST:
        raise ValueError("it is not a thumbnail")
      squares.append(images.resize_fast(images.decode(data), size))
    except ValueError:
      squares.append(np.full((size, size, 3), 128, np.uint8))
      wrong += 1
  if wrong:
    log.warning(
      "%d of %d thumbnails that the page shows cannot be decoded, or have more "
      "than %d pixels; grey squares are in their place",
      wrong,
      len(thumbnails),
      LARGEST,
    )
  return np.stack(squares)


def _is_other_order(ids: np.ndarray) -> bool:
  """Returns whether ids are a permutation of 0, 1, ..., but not in order."""
  order = np.arange(len(ids))
  return not np.array_equal(ids, order) and np.array_equal(np.sort(ids), order)


def _read(paths: str) -> dict[str, Any]:
  """Reads the arrays of one .npz file or of two .npy files."""
  names = paths.split(",")
  if not (len(names) == 2 or paths.endswith(".npz")):
    raise ValueError(
      "--embeddings must be one .npz, two .npy files, image.npy,text.npy, or "
      f"the folder that nuclr embed made; got {paths}"
    )
  if len(names) == 1:
    return files.read_arrays(paths)
  shards.check_order([pathlib.Path(x) for x in names])
  arrays = {}
  for side, name in zip(Sides._fields, names, strict=True):
    with files.reading(name) as path:
      arrays[side] = np.load(path, mmap_mode="r")
  return arrays


def _read_cached(folder: str) -> tuple[dict[str, Any], Photos, dict[str, Any]]:
  """Reads arrays, photos and counts of a folder that `nuclr embed` made."""
  data = open_embeddings(folder)
  index, image = index_of_rows(data), _unit_norm("image", data.image)
  small, content = (read_column(folder, x) for x in (THUMBNAIL, CONTENT))
  photos = Photos(
    image,
    np.arange(len(image)) if content is None else np.array(content, np.uint64),
    index.record,
    lambda rows: small and decoded([small[i] for i in rows]),
    read_column(folder, KEY),
  )
  # Captions of one id may be spelt differently: the first one stands for all.
  _, first, row = np.unique(
    index.text_id, return_index=True, return_inverse=True
  )
  caption = index.caption[first[row]]
  arrays = {
    "image": image[index.record],
    "text": np.asarray(data.text)[caption],
    "image_id": index.image_id,
    "text_id": index.text_id,
    "caption": [data.captions[i] for i in caption],
  }
  return arrays, photos, _counts(data.folder)


def _read_texts(folder: pathlib.Path) -> tuple[dict[str, Any], None]:
  """Reads arrays of a folder of texts: each is a pair with itself.

  Equal texts are one.
  """
  text, captions = open_texts(folder)
  numbers: dict[str, int] = {}
  ids = np.array([numbers.setdefault(x, len(numbers)) for x in captions])
  sides = {"image": text, "text": text, "image_id": ids, "text_id": ids}
  return sides | {"caption": captions}, None


def _counts(folder: pathlib.Path) -> dict[str, Any]:
  """Reads the counts of a folder that `nuclr embed` made, if it has them."""
  path = folder / COUNTS
  return files.read_json(path) if path.exists() else {}


def _unit_norm(side: str, x: np.ndarray) -> np.ndarray:
  """Scales rows to unit norm, in float32; warns if they were not."""
  wrong = shards.without_direction(x)
  if len(wrong):
    raise ValueError(
      f"{side} must be finite and not zero; row {wrong[0]} is not "
      f"({len(wrong)} such rows). Find out what made them, or leave these "
      "pairs out"
    )
  unit, norm = np.empty(x.shape, np.float32), np.empty(len(x))
  for start in range(0, len(x), ROWS):
    rows = slice(start, start + ROWS)
    unit[rows], norm[rows] = shards.scaled(x[rows], str)
  if np.abs(norm - 1).max(initial=0) > 1e-2:
    log.warning("%s embeddings are scaled to unit norm", side)
  return unit


def _hashes(rows: np.ndarray) -> np.ndarray:
  """Returns a number for each row, the same for equal rows."""
  hashes = (content_hash(x.tobytes()) for x in rows)
  return np.fromiter(hashes, np.uint64, len(rows))


def _warn_of_copies(side: str, hashes: np.ndarray) -> None:
  """Warns if many rows are equal, which count as different without ids."""
  rows = len(hashes)
  copies = rows - len(np.unique(hashes))
  if copies > COPIES * rows:
    log.warning(
      "%d of %d rows of %s are copies of others, and count as wrong answers to "
      "them; %s_id in an .npz says which are equal",
      copies,
      rows,
      side,
      side,
    )


def _captions(caption, text_id):
  """Returns a function from text ids to captions, or to names without any."""
  if caption is None:
    return lambda ids: [f"text {i}" for i in ids]
  if np.shape(caption) != np.shape(text_id):
    raise ValueError(
      f"caption must have one entry for each of {len(text_id)} pairs, got "
      f"{list(np.shape(caption))}"
    )
  texts, first = np.unique(text_id, return_index=True)
  return lambda ids: [
    str(as_text(x) if isinstance(x, bytes) else x)
    for x in (caption[i] for i in first[np.searchsorted(texts, ids)])
  ]
