"""Documents of sentences: two sentences of a document are a positive pair.

In the terms of latent-class theory, each document is a class. Its sentences are
drawn in blocks, for `curl` and `quick_thought`. Documents are text files in a
folder (an article of Wiki-3029, say), or the records of a prepared TFDS text
data set (a review of IMDb).
"""

import logging
import os
import pathlib
import re

import numpy as np

from nuclr_jax.checks import Count
from nuclr_jax.contrib.labelled_images import CLASS, keep_part, two_views
from nuclr_jax.contrib.latent_scores import ClassScores
from nuclr_jax.lab import files
from nuclr_jax.lab.data import tfds_reader
from nuclr_jax.lab.data.sentences import read_lines
from nuclr_jax.lab.data.source import (
  Data,
  HeldOut,
  LabelledSet,
  LabelledTexts,
)
from nuclr_jax.lab.data.tokenizer import BUILD, choose_tokenizer
from nuclr_jax.lab.ranges import Length

log = logging.getLogger(__name__)

SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}  # of each document
FEWEST = 10  # sentences of a document that is split
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|<br />")


def documents(
  *,
  train: str | None,
  classify: tuple[str, ...] = (),
  data_dir: str | os.PathLike | None = None,
  tokenizer: str = BUILD,
  length: Length = 32,
  min_count: Count = 1,
  block_size: Count = 1,
  per_class: Count | None = None,
  scores: tuple[str, ...] = ("classes",),
  validation_scores: tuple[str, ...] = ("classes",),
  ways: tuple[Count, ...] = (2, 10),
  num_negatives: tuple[Count, ...] = (1,),
) -> Data:
  """Reads documents and makes pairs of their sentences.

  Pair i begins with sentence i, and its positive is any sentence of the same
  document. The documents of a folder are also the classes that are scored:
  70 % of the sentences of each are trained on, 10 % validate and 20 % test, and
  the split is the same in every run. With `classify`, all sentences are trained
  on and other texts are scored.

  Args:
    train: A folder with a text file for each document, a sentence on each line;
      or `NAME:SPLIT`, a prepared data set with a text feature, whose records
      are split into sentences after ".", "!" and "?".
    classify: Two labelled splits of texts, `NAME:SPLIT`, to train and to test
      classifiers on; a text is cut to `length` tokens.
    data_dir: Folder of prepared data sets.
    tokenizer: A file, a folder or a hub name, see
      `tokenizer.pretrained_tokenizer`; or "build", to build one from the
      training sentences.
    length: Token ids per text.
    min_count: The number of sentences in which a word must occur to become a
      token of a built tokenizer.
    block_size: Consecutive pairs that share a document, see
      `labelled.two_views`.
    per_class: How many training sentences of each document to keep; None = all.
    scores: The scores of the test split, see `labelled.labelled`.
    validation_scores: The scores of the validation split.
    ways: The numbers of classes of the tasks that are averaged over.
    num_negatives: The numbers of negatives of the contrastive losses that are
      measured.

  Raises:
    ValueError: If documents are not named or cannot be read, or are too few.

  Reference: Saunshi et al., ICML 2019, Section 8 and Table 2.
  """
  # Not at the top: the core imports this file without OpenCV.
  from nuclr_jax.lab.data.sets import parse_place

  if train is None:
    raise ValueError(
      "config.data.train is missing; name a folder with a text file for each "
      "document, or a prepared data set and its split, such as "
      "imdb_reviews:unsupervised"
    )
  if len(classify) not in (0, 2):
    raise ValueError(
      "classify must name the texts to train on and those to test on, got "
      f"{classify}"
    )
  name = parse_place(train).name
  texts = read_documents(train, data_dir=data_dir)
  splits = {"train": texts} if classify else split_documents(texts)
  words = choose_tokenizer(
    tokenizer,
    lambda: splits["train"].text,
    length=length,
    clean=False,
    min_count=min_count,
  )

  def encoded(texts, split):
    return LabelledSet(
      words.encode(texts.text), texts.label, texts.classes, name=split
    )

  sets = {split: encoded(x, f"{name}/{split}") for split, x in splits.items()}
  sets |= keep_part({"train": sets["train"]}, per_class=per_class)
  scored = {"validation": validation_scores, "test": scores}
  if classify:
    name = parse_place(classify[0]).name
    known, test = (
      encoded(read_labelled_texts(x, data_dir=data_dir), x) for x in classify
    )
    sets["test"], scored = test, {"test": scores}
  else:
    known = sets["train"]
  return Data(
    train=two_views(
      sets["train"], lambda x, random: x, positive=CLASS, block_size=block_size
    ),
    tokenizer=words,
    image_shape=(length,),
    held_out={
      split: HeldOut(
        others={
          name: ClassScores(known, sets[split], names, ways, num_negatives)
        }
      )
      for split, names in scored.items()
    },
    num_classes=len(texts.classes),
    block_size=block_size,
  )


def read_documents(
  place: str, *, data_dir: str | os.PathLike | None = None
) -> LabelledTexts:
  r"""Reads the sentences of documents; each document is a class.

  Documents with a single sentence are left out, with a warning: it has no
  positive.

  Args:
    place: A folder or `NAME:SPLIT`, see `documents`.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there are no two documents with two sentences.

  Example:
    >>> folder = tmp_path / "documents"
    >>> folder.mkdir()
    >>> for name in ("cat", "dog"):
    ...   _ = (folder / f"{name}.txt").write_text("It eats.\nIt sleeps.\n")
    >>> read_documents(str(folder)).label.tolist()
    [0, 0, 1, 1]
  """
  folder = pathlib.Path(place).expanduser()
  if folder.is_dir():
    found = {
      path.stem: read_lines(path)
      for path in files.visible(folder.glob("*.txt"), folder)
    }
  else:
    records, text, _ = _open_texts(place, data_dir)
    found = {
      str(i): split_sentences(_decoded(row[text]))
      for i, row in enumerate(
        tfds_reader.all_rows(records.read, records.length)
      )
    }
  kept = {name: lines for name, lines in found.items() if len(lines) > 1}
  if len(kept) < 2:
    raise ValueError(
      f"{place} has {len(kept)} documents of two sentences or more, at least 2 "
      "are needed; a folder has a text file NAME.txt for each document"
    )
  if len(kept) < len(found):
    log.warning(
      "%s: %d of %d documents have fewer than two different sentences and are "
      "left out",
      place,
      len(found) - len(kept),
      len(found),
    )
  return LabelledTexts(
    [line for lines in kept.values() for line in lines],
    np.repeat(np.arange(len(kept)), [len(lines) for lines in kept.values()]),
    list(kept),
  )


def read_labelled_texts(
  place: str, *, data_dir: str | os.PathLike | None = None
) -> LabelledTexts:
  """Reads the texts and the class labels of a prepared data set.

  Args:
    place: `NAME:SPLIT`.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such split, or it has texts without a label.
  """
  records, text, label = _open_texts(place, data_dir)
  if label is None:
    raise ValueError(
      f"{records.name} has no class label; its features are "
      f"{sorted(records.features)}"
    )
  rows = list(tfds_reader.all_rows(records.read, records.length))
  labels = np.array([int(row[label]) for row in rows])
  if labels.min() < 0:  # as TFDS marks missing labels
    raise ValueError(
      f"{records.name} has texts without a label ({labels.min()}); choose a "
      "split whose texts have one"
    )
  names = records.features[label].names
  return LabelledTexts([_decoded(row[text]) for row in rows], labels, names)


def split_documents(texts: LabelledTexts) -> dict[str, LabelledTexts]:
  """Splits the sentences of each document at random into `SHARES`.

  The splits are the same in every run, and every document is in all of them.

  Args:
    texts: The sentences of documents.

  Raises:
    ValueError: If a document has fewer than `FEWEST` sentences.

  Example:
    >>> lines, label = [str(i) for i in range(20)], np.arange(20) // 10
    >>> texts = LabelledTexts(lines, label, ["cat", "dog"])
    >>> {name: len(x.text) for name, x in split_documents(texts).items()}
    {'train': 14, 'validation': 2, 'test': 4}
  """
  counts = np.bincount(texts.label)
  if (short := np.flatnonzero(counts < FEWEST)).size:
    raise ValueError(
      f"{len(short)} of {len(counts)} documents have fewer than {FEWEST} "
      "different sentences, which is too few to train, to validate and to "
      f"test: {[texts.classes[c] for c in short[:5]]}; remove them, or name "
      "other texts to score (config.data.classify)"
    )
  rng, rows = np.random.default_rng(0), {split: [] for split in SHARES}
  ends = np.cumsum(list(SHARES.values()))[:-1]
  for c, count in enumerate(counts):
    order = rng.permutation(np.flatnonzero(texts.label == c))
    parts = np.split(order, np.round(ends * count).astype(int))
    for split, part in zip(SHARES, parts, strict=True):
      rows[split] += sorted(part.tolist())
  return {
    split: LabelledTexts(
      [texts.text[i] for i in chosen], texts.label[chosen], texts.classes
    )
    for split, chosen in rows.items()
  }


def split_sentences(text: str) -> list[str]:
  """Splits a text into its different sentences.

  They end at ".", "!" or "?" before white space, and at HTML's line breaks.

  Example:
    >>> split_sentences("It is 3.5 m. Is it?<br />Yes! Yes!")
    ['It is 3.5 m.', 'Is it?', 'Yes!']
  """
  parts = (part.strip() for part in SENTENCE_END.split(text))
  return list(dict.fromkeys(part for part in parts if part))


def _open_texts(place, data_dir):
  """Opens a split; finds its text feature and its class label, if any."""
  import tensorflow_datasets as tfds

  from nuclr_jax.lab.data.sets import parse_place

  where = parse_place(place)
  if where.split is None:
    raise ValueError(
      f"{place} is neither a folder nor a data set with a split; write "
      f"{place}:train, for instance"
    )
  records = tfds_reader.open_split(where.source, where.split, data_dir)
  kinds = {
    kind: [k for k, f in records.features.items() if isinstance(f, kind)]
    for kind in (tfds.features.Text, tfds.features.ClassLabel)
  }
  texts, labels = kinds.values()
  if not texts:
    raise ValueError(
      f"{records.name} has no text feature; its features are "
      f"{sorted(records.features)}"
    )
  text = "text" if "text" in texts else texts[0]
  return records, text, labels[0] if labels else None


def _decoded(text: bytes | str) -> str:
  return text.decode() if isinstance(text, bytes) else text
