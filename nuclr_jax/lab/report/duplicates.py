"""Duplicate photos: exact and near copies, as a table and on a page.

Copies are one image to the solver, under one id; here every file counts, also
one without a caption. Which copies are near depends on the model. If it was
trained on the pairs, images of one caption are similar because of the training,
and only images of different captions are linked: training takes them for
negatives of each other. An untrained model links images whatever their
captions.
"""

from typing import Any, NamedTuple

import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.report import near_duplicates, neighbours, page
from nuclr_jax.lab.report.subject import Subject

NUM_CLUSTERS, CLUSTER_SHOWN = 24, 12  # on a page
EXACT, NEAR = "exact", "near"


class Duplicates(NamedTuple):
  """Clusters of photos, and what each photo in them is a copy of."""

  clusters: list[np.ndarray]  # photos, the largest cluster first
  cluster: np.ndarray  # [photos], from 1; 0 = in none
  nearest: np.ndarray  # [photos], the most similar one in the cluster, or -1
  similarity: np.ndarray  # [photos], to `nearest`
  is_exact: np.ndarray  # [photos], whether `nearest` is an exact copy
  threshold: float  # the least similarity of a link
  recall: float | None = 1.0  # share of all links, see `near_duplicates.recall`


def find(subject: Subject) -> Duplicates:
  """Finds clusters of photos that are copies of each other.

  Args:
    subject: The pairs. At similarities above 1 - temperature / 2, the loss can
      hardly tell two images apart: they are near copies.

  Returns:
    The clusters. In each of them, exact copies are next to each other.
  """
  photos, threshold = subject.photos, 1 - subject.temperature / 2
  partner = None
  if subject.trained:  # every photo is in a pair
    partner = subject.pairs.ids.text[pair_of(subject)]
  # The numbers of contents, in the order of the photos.
  _, first, row = np.unique(
    photos.content, return_index=True, return_inverse=True
  )
  content = first[row]
  of = dict(threshold=threshold, of="images")
  x, n = photos.embedding, len(content)
  groups = near_duplicates.clusters(x, partner, content=content, **of)
  recall = near_duplicates.recall(x, partner, groups, **of)
  show = progress.reporter("clusters of images", len(groups), brief=True)
  cluster, nearest = np.zeros(n, int), np.full(n, -1)
  similarity, clusters = np.zeros(n), []
  for number, group in enumerate(groups, 1):
    members = group[np.argsort(content[group], kind="stable")]
    at, similarity[members] = neighbours.nearest_members(
      x[members], content[members]
    )
    cluster[members], nearest[members] = number, members[at]
    clusters.append(members)
    show(number)
  is_exact = (nearest >= 0) & (content[nearest] == content)
  return Duplicates(
    clusters, cluster, nearest, similarity, is_exact, threshold, recall
  )


def pair_of(subject: Subject) -> np.ndarray:
  """Returns the index of the first pair of each photo; -1 if it has none."""
  pair = np.full(len(subject.photos.content), -1)
  photos, first = np.unique(subject.photos.of_pairs, return_index=True)
  pair[photos] = first
  return pair


def columns(subject: Subject, found: Duplicates) -> dict[str, Any]:
  """Returns the table of all photos in clusters, the largest cluster first.

  `similarity` is that to `nearest`, the most similar photo of the cluster; of
  an exact copy, it is 1. Without names, `nearest` is an image id.
  """
  rows = np.concatenate([np.zeros(0, int), *found.clusters])
  pair = pair_of(subject)
  image = np.where(pair < 0, -1, subject.pairs.ids.image[pair])
  nearest, names = found.nearest[rows], subject.photos.names
  return {
    "cluster": found.cluster[rows],
    "image": ["" if i < 0 else i for i in image[rows]],
    **({"key": [names[i] for i in rows]} if names else {}),
    "kind": [EXACT if x else NEAR for x in found.is_exact[rows]],
    "similarity": found.similarity[rows],
    "nearest": [names[i] for i in nearest] if names else image[nearest],
    "caption": _captions(subject, pair[rows]),
  }


def counts(found: Duplicates) -> dict[str, int]:
  """Counts clusters, and the photos in them of both kinds."""
  return {
    "duplicate_clusters": len(found.clusters),
    "exact_copies": int(found.is_exact.sum()),
    "near_copies": int(np.sum((found.cluster > 0) & ~found.is_exact)),
  }


def section(subject: Subject, found: Duplicates) -> str:
  """Shows the largest clusters."""
  number, names = counts(found), subject.photos.names
  title, which = "Duplicate images: exact and near copies", ""
  if subject.trained:
    title = "Near-duplicate images: suspected false negatives"
    which = (
      " Near copies are images of different captions, which training takes for "
      "negatives of each other."
    )
  more = len(found.clusters) > NUM_CLUSTERS
  parts = [
    f"<h2>{title}</h2><p>{number['duplicate_clusters']:,} clusters, with "
    f"{number['exact_copies']:,} images that have an exact copy and "
    f"{number['near_copies']:,} that only have near copies, at a cosine "
    f"similarity of at least {found.threshold:.4g}.{which} A cluster is linked "
    "step by step: its ends may be less similar than that."
    f"{near_duplicates.in_words(found.recall)} duplicates.csv lists"
    f" all of them{f'; these are the {NUM_CLUSTERS} largest' if more else ''}."
    "</p>"
  ]
  pair = pair_of(subject)
  for members in found.clusters[:NUM_CLUSTERS]:
    captions = _captions(subject, pair[members])
    # Of a large cluster, the page shows exact copies, then different captions.
    exact = np.flatnonzero(found.is_exact[members])
    _, distinct = np.unique(captions, return_index=True)
    order = [*exact, *np.sort(distinct), *range(len(members))]
    shown = list(dict.fromkeys(order))[:CLUSTER_SHOWN]
    notes = [
      _note(names, found, members[i], captions[i]) for i in sorted(shown)
    ]
    images = subject.photos.images(members[sorted(shown)])
    parts.append(
      f"<h3>{len(members):,} images</h3>{page.gallery(images, notes)}"
    )
  return "".join(parts)


def _note(names, found: Duplicates, photo, caption: str) -> str:
  """Says what a photo is a copy of, as HTML."""
  nearest = found.nearest[photo]
  of = f" of {page.shown(names[nearest])}" if names else ""
  kind = f"exact copy{of}"
  if not found.is_exact[photo]:
    kind = f"near copy{of}, {found.similarity[photo]:.4f}"
  key = f"<b>{page.shown(names[photo])}</b><br>" if names else ""
  return f"{key}{page.shown(caption or 'no caption')}<br>{kind}"


def _captions(subject: Subject, pairs: np.ndarray) -> list[str]:
  """Returns the captions of pairs; "" for the index -1."""
  known = np.flatnonzero(pairs >= 0)
  captions = [""] * len(pairs)
  texts = subject.captions(subject.pairs.ids.text[pairs[known]])
  for i, caption in zip(known, texts, strict=True):
    captions[i] = caption
  return captions
