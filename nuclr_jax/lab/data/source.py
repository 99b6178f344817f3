"""What a data set provides to a run, as plain data.

`Data` holds the training pairs as a `Source`, the tokenizer, the shape of the
images and the held-out sets. `evaluate.suites` chooses how held-out sets are
scored; nothing here knows about models or scores.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
import zlib

from jaxtyping import Float, Int, UInt8
import numpy as np

from nuclr_jax.lab.data.pair_index import Keys, content_keys
from nuclr_jax.types import Batch, Sides, Sizes, both

NUM_RANDOM = 32  # uniform numbers in [0, 1) that every example gets

Random = Float[np.ndarray, "batch numbers"]
ImageBatch = UInt8[np.ndarray, "batch height width channels"]
Transform = Callable[[ImageBatch, Random], ImageBatch]


def random_numbers(
  seed: int,
  epoch: int | Int[np.ndarray, "batch"],
  pair_ids: Int[np.ndarray, "batch"],
) -> Random:
  """Makes uniform numbers [batch, NUM_RANDOM] in [0, 1) by hashing.

  A source augments by these numbers alone. They depend only on the seed, the
  epoch and the pair id, so a pair looks the same in an epoch whatever the batch
  size and the numbers of processes and threads.

  Args:
    seed: The seed of the run, at least 0.
    epoch: The epoch, counted from 0, of all pairs or of each.
    pair_ids: The pairs; each gets a row of numbers.

  Example:
    >>> numbers = random_numbers(0, 7, np.array([3, 5]))
    >>> again = random_numbers(0, 7, np.array([5]))
    >>> numbers.shape, bool((numbers[1] == again[0]).all())
    ((2, 32), True)

  Reference: the hash is the finaliser of SplitMix64 (Steele et al., Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014).
  """
  rows = _mix(
    _mix(_mix(np.array([seed])) ^ _unsigned(epoch)) ^ _unsigned(pair_ids)
  )
  steps = np.arange(NUM_RANDOM, dtype=np.uint64) * _GOLDEN
  bits = _mix(rows[:, None] + steps)
  # The upper 53 bits: as many as a float64 holds exactly.
  return (bits >> np.uint64(11)) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _unsigned(x):
  return np.asarray(x).astype(np.uint64)


def _mix(x):
  """Makes every bit of the result depend on every bit of x; wraps around."""
  x = _unsigned(x) + _GOLDEN
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


class Files(NamedTuple):
  """The image files that pairs come from, by number; several may be copies."""

  of_pairs: Callable[[np.ndarray], np.ndarray]  # pair ids -> files
  names: Callable[[np.ndarray], list[str]]  # files -> their names


class Share(NamedTuple):
  """Consecutive pairs of a source, and their share in every batch."""

  name: str
  num_pairs: int
  weight: float  # relative to the other shares


class Source(NamedTuple):
  """Training pairs with ids 0 ... n - 1, read by id in any order."""

  sizes: Sizes
  # (pair ids, random = None) -> NumPy batch; augmented by the random numbers
  # if there are any, see `random_numbers`.
  fetch: Callable[..., Batch]
  ids: Callable[[np.ndarray], Sides]  # pair ids -> image ids, text ids
  captions: Callable[[np.ndarray], list[str]]  # text ids -> captions
  fingerprint: str  # of the prepared data; checkpoints record it
  # Makes keys, which identify samples after the data set has changed; None = no
  # keys.
  keys: Callable[[], Keys] | None = None
  files: Files | None = None  # None = every image id is a file without a name
  # What batches mix; () = nothing, the pairs are one set.
  shares: tuple[Share, ...] = ()
  # Opens the batches of a process, see `tar_stream.open_stream`; None = pairs
  # are read by id. Instead of ids, the pairs of a stream have numbers that only
  # equal images, texts or pairs have in common.
  open_stream: Callable[..., Any] | None = None


def source_of_samples(
  n: int,
  fetch: Callable[..., Batch],
  captions: Callable[[np.ndarray], list[str]],
  fingerprint: str,
  contents: Callable[[], Iterable[bytes]],
) -> Source:
  """Makes a source of n samples, each of which is both sides of a pair.

  Args:
    n: The number of samples.
    fetch: Makes a batch of pair ids and random numbers, as in `Source`.
    captions: Returns the names of samples by their ids, as in `Source`.
    fingerprint: Identifies the data; checkpoints record it.
    contents: Returns the content of each sample, a hash of which is its key.

  Example:
    >>> words = ["a dog", "a cat"]
    >>> source = source_of_samples(
    ...   len(words),
    ...   lambda ids, random=None: Batch(ids, ids, ids),
    ...   lambda text_ids: [words[i] for i in text_ids],
    ...   "words/2",
    ...   lambda: map(str.encode, words),
    ... )
    >>> source.sizes.num_pairs, source.captions([1])
    (2, ['a cat'])
  """

  def keys():
    sample_keys = content_keys(contents())
    return Keys(pair=sample_keys, image=sample_keys, text=sample_keys)

  def ids(pair_ids):
    return both(pair_ids)

  return Source(Sizes(n, n, n), fetch, ids, captions, fingerprint, keys)


class Records(NamedTuple):
  """All records of a split, in memory, in the order of their ids."""

  image: np.ndarray  # uint8 [n, height, width, channels]
  text_id: np.ndarray  # int32 [n]
  captions: list[str]  # by text id
  fingerprint: str


def in_memory(
  records: Records, tokens: np.ndarray, transform: Transform | None = None
) -> Source:
  """Serves a split from memory.

  Args:
    records: The split.
    tokens: Token ids [num_texts, length] of `records.captions`.
    transform: The augmentation; None = none.
  """
  n = len(records.image)

  def fetch(pair_ids, random=None):
    image, text_ids = records.image[pair_ids], records.text_id[pair_ids]
    if transform is not None and random is not None:
      image = transform(image, random)
    return Batch(
      image=image,
      text=tokens[text_ids],
      pair_id=np.asarray(pair_ids, np.int32),
      text_id=text_ids,
    )

  return Source(
    Sizes(n, n, len(records.captions)),
    fetch,
    lambda pair_ids: Sides(pair_ids, records.text_id[pair_ids]),
    lambda text_ids: [records.captions[i] for i in text_ids],
    records.fingerprint,
    partial(_record_keys, records),
  )


def _record_keys(records: Records) -> Keys:
  """Makes keys from contents; an image has the key of its pair."""
  text = content_keys(caption.encode() for caption in records.captions)
  pairs = zip(records.image, records.text_id, strict=True)
  pair = content_keys(
    image.tobytes() + text[text_id].tobytes() for image, text_id in pairs
  )
  return Keys(pair=pair, image=pair, text=text)


class LazyImages:
  """Images that are read on access, a few at a time.

  They are indexed like an array: `images[10:20]`, `images[np.array([3])]`.

  Example:
    >>> squares = LazyImages(5, lambda ids: ids**2)
    >>> len(squares), squares[1:3].tolist()
    (5, [1, 4])
  """

  def __init__(self, count: int, fetch: Callable[[np.ndarray], np.ndarray]):
    self._ids, self._fetch = np.arange(count), fetch

  def __len__(self) -> int:
    return len(self._ids)

  def __getitem__(self, which) -> np.ndarray:
    return self._fetch(self._ids[which])


Images = np.ndarray | LazyImages  # [n, height, width, channels]


class ImageTextSet(NamedTuple):
  """Images and captions for retrieval; those of the same group match."""

  image: Images
  image_group: np.ndarray
  captions: Sequence[str]
  caption_group: np.ndarray
  # Weights of the images and captions as queries, by the name of the scores.
  parts: Mapping[str, Sides] = {}
  # Where each image is from, such as its designer; scored on request, see
  # `evaluate.recall_by_origin`.
  origin: Sequence[str] | None = None
  # Ids, 0, 1, ..., of the images and of the captions, if some are equal: what
  # matches one of them matches all of its id. None = all differ.
  same: Sides | None = None
  fingerprint: str = ""  # of a prepared data set; "" = see `fingerprints`


class LabelledSet(NamedTuple):
  """Images, each with a class."""

  image: Images
  label: np.ndarray  # [n], from 0
  classes: Sequence[str] = ()  # their names, where they are known
  # Captions that describe each class; () = CLIP's prompts for `classes`.
  prompts: Sequence[Sequence[str]] = ()
  name: str = ""  # identifies the images; part of a source's fingerprint


class LabelledTexts(NamedTuple):
  """Texts, each with a class."""

  text: list[str]
  label: np.ndarray  # [n], from 0
  classes: Sequence[str]  # their names


class ProbeSets(NamedTuple):
  """Labelled images to train and to score classifiers of frozen features."""

  train: LabelledSet
  test: LabelledSet


class RatedPairs(NamedTuple):
  """Pairs of sentences and how similar people find them."""

  first: list[str]
  second: list[str]
  score: np.ndarray  # float64 [n], on any scale


class Scored(Protocol):
  """A held-out set that brings its own evaluators."""

  def evaluators(
    self, split: str, name: str
  ) -> Sequence[Callable[[Any], dict[str, float]]]:
    """Makes the evaluators of the set, see `evaluate.Evaluator`."""


class HeldOut(NamedTuple):
  """The held-out sets of one split, by kind and name.

  A name becomes part of the names of a set's metrics; "" adds nothing. A set
  behind a function is opened by the first evaluation that needs it.
  """

  retrieval: Mapping[str, ImageTextSet] = {}
  zero_shot: Mapping[str, Callable[[], LabelledSet]] = {}
  probes: Mapping[str, Callable[[], ProbeSets]] = {}
  rated: Mapping[str, RatedPairs] = {}
  others: Mapping[str, "Scored"] = {}


def label_of(split: str, name: str, *, by: str = "/") -> str:
  """Joins a split and a name, of which each may be empty.

  Example:
    >>> label_of("val", "coco"), label_of("", "coco"), label_of("val", "")
    ('val/coco', 'coco', 'val')
  """
  return by.join(filter(None, (split, name)))


def fingerprints(held_out: HeldOut) -> dict[str, str]:
  """Identifies the held-out sets of a split by what they hold.

  Nothing is opened or read for it: what is behind a function, or brings its own
  evaluators, is identified by its name alone, and images that are read on
  access by their number, unless they are of a prepared data set.

  Args:
    held_out: The sets of a split.

  Returns:
    A checksum by kind and name, such as "retrieval/coco".

  Example:
    >>> ids = np.arange(2)
    >>> a = ImageTextSet(np.zeros((2, 8, 8, 1)), ids, ["a", "b"], ids)
    >>> b = a._replace(captions=["a", "c"])
    >>> one, again, other = (
    ...   fingerprints(HeldOut({"mine": x})) for x in (a, a._replace(), b)
    ... )
    >>> list(one), one == again, one == other
    (['retrieval/mine'], True, False)
  """
  return {
    f"{kind}/{name}": _checksum(content)
    for kind, sets in held_out._asdict().items()
    for name, content in sets.items()
  }


def _checksum(content: Any) -> str:
  """Returns a checksum of a held-out set, see `fingerprints`."""
  if isinstance(content, ImageTextSet):
    parts: Sequence[Any] = (len(content.image), content.fingerprint)
    if not content.fingerprint:
      parts = *parts, *content[:4]
  elif isinstance(content, RatedPairs):
    parts = content
  else:
    return ""
  checksum = 0
  for part in parts:
    if isinstance(part, LazyImages):
      continue
    if isinstance(part, np.ndarray) and part.dtype != object:
      part = np.ascontiguousarray(part)
    else:
      part = repr(list(part) if isinstance(part, Iterable) else part).encode()
    checksum = zlib.crc32(part, checksum)
  return f"{checksum:08x}"


class AnyTokenizer(Protocol):
  """Turns texts into rows of numbers: a `tokenizer.Tokenizer` or a stand-in."""

  @property
  def text(self) -> str:
    """The whole definition; checkpoints record it."""

  @property
  def length(self) -> int:
    """How many numbers a row has."""

  @property
  def vocab_size(self) -> int:
    """Number of token ids; 0 if rows hold something else."""

  def encode(self, captions: Sequence[str]) -> np.ndarray:
    """Makes a row for each caption."""

  def is_cut(self, captions: Sequence[str]) -> np.ndarray:
    """Returns for each caption whether its row lacks the end of it."""


class Resize(NamedTuple):
  """How an image that is not augmented becomes a square."""

  # "squash": the whole image, whatever its shape. "crop": its shorter side, and
  # then the centre is cropped ("crop_torchvision" may differ by a pixel, see
  # `images.resize`). "naflex": whole patches, in the image's own shape, which
  # lie in the square (see `patches`). None: captioned images are squashed and
  # labelled ones cropped, as in the published CC3M recipe.
  mode: str | None = None
  kernel: str = "bicubic"  # or "bilinear"; both widen as the image shrinks
  patch: int | None = None  # the side of a patch, in pixels, for "naflex"


DEFAULT_RESIZE = Resize()


class Inputs(NamedTuple):
  """The inputs of a model: images (or rows) of a shape, and encoded texts."""

  image_shape: tuple[int, ...]
  tokenizer: AnyTokenizer
  resize: Resize = DEFAULT_RESIZE


class Data(NamedTuple):
  """What a data set provides to a run."""

  train: Source
  tokenizer: AnyTokenizer
  image_shape: tuple[int, ...]
  held_out: Mapping[str, HeldOut] = {}  # by split: validation, test
  num_classes: int | None = None  # of labelled data
  block_size: int | None = None  # consecutive pairs that share a class
  resize: Resize = DEFAULT_RESIZE  # how other images become those of the model
  named: Mapping[str, Any] | None = None  # by this `config.data`, if by any

  @property
  def inputs(self) -> Inputs:
    """The inputs of a model for these data."""
    return Inputs(self.image_shape, self.tokenizer, self.resize)

  @property
  def sets(self) -> dict[str, ImageTextSet]:
    """The first retrieval set of each split that has one."""
    return {
      split: next(iter(held_out.retrieval.values()))
      for split, held_out in self.held_out.items()
      if held_out.retrieval
    }


def without_pairs(sizes: Sizes, fingerprint: str, inputs: Inputs) -> Data:
  """Describes the data of a run without opening them.

  Args:
    sizes: The numbers of training pairs, images and texts.
    fingerprint: The fingerprint of the training pairs.
    inputs: The inputs of the run's model.
  """

  def not_opened(*args):
    raise ValueError(
      "the training pairs of this run were not opened; only their number is "
      "known: load the run with pairs=True on a machine that has the data"
    )

  train = Source(sizes, not_opened, not_opened, not_opened, fingerprint)
  return Data(train, inputs.tokenizer, inputs.image_shape, resize=inputs.resize)
