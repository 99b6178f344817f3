"""Duplicate photos: exact and near copies, as a table and on a page.

Copies are one image to the solver, under one id; here every file counts, also
one without a caption. Which copies are near depends on the model. If it was
trained on the pairs, images of one caption are similar because of the training,
and only images of different captions are linked: training takes them for
negatives of each other. An untrained model links images whatever their
captions.
"""

import html
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.report import near_duplicates, near_threshold, neighbours
from nuclr_jax.lab.report.browse import Listing
from nuclr_jax.lab.report.near_threshold import Threshold
from nuclr_jax.lab.report.subject import Subject

CLUSTER_SHOWN = 12  # of a page, at first
EXACT, NEAR = "exact", "near"


class Duplicates(NamedTuple):
  """Clusters of photos, and what each photo in them is a copy of."""

  clusters: list[np.ndarray]  # photos, the largest cluster first
  cluster: np.ndarray  # [photos], from 1; 0 = in none
  nearest: np.ndarray  # [photos], the most similar one in the cluster, or -1
  similarity: np.ndarray  # [photos], to `nearest`
  is_exact: np.ndarray  # [photos], whether `nearest` is an exact copy
  threshold: Threshold  # the least similarity of a link
  recall: float | None = 1.0  # share of all links, see `near_duplicates.recall`


def find(subject: Subject) -> Duplicates:
  """Finds clusters of photos that are copies of each other.

  Args:
    subject: The pairs. `near_threshold.derive` says which are near copies.

  Returns:
    The clusters. In each of them, exact copies are next to each other.
  """
  photos, partner = subject.photos, None
  if subject.trained:  # every photo is in a pair
    partner = near_duplicates.partners(photos.of_pairs, subject.pairs.ids.text)
  # The numbers of contents, in the order of the photos.
  _, first, row = np.unique(
    photos.content, return_index=True, return_inverse=True
  )
  content = first[row]
  x, n = photos.embedding, len(content)
  threshold = near_threshold.derive(
    x,
    partner,
    temperature=subject.temperature,
    content=content,
    of="images",
  )
  of = dict(threshold=threshold.similarity, of="images")
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


def columns(
  subject: Subject, found: Duplicates, rows: np.ndarray | None = None
) -> dict[str, Any]:
  """Returns the table of all photos in clusters, the largest cluster first.

  `similarity` is that to `nearest`, the most similar photo of the cluster; of
  an exact copy, it is 1. Without names, `nearest` is an image id.

  Args:
    subject: The pairs.
    found: The clusters.
    rows: The photos in another order.
  """
  if rows is None:
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


def listing(subject: Subject, found: Duplicates) -> Listing:
  """Returns all photos in clusters as a list of the page."""
  number, names = counts(found), subject.photos.names
  title = "Duplicate images: exact and near copies"
  which = (
    "Mark what to remove, and keep one of each. Copies with different captions "
    "may have one wrong."
  )
  if subject.trained:
    title = "Near-duplicate images: suspected false negatives"
    which = (
      "Near copies are images of different captions, which training takes for "
      "negatives of each other: give them one caption, or keep one of them."
    )
  text = near_threshold.in_words(found.threshold, "images")
  about = (
    f"<p>{number['duplicate_clusters']:,} clusters, with "
    f"{number['exact_copies']:,} images that have an exact copy and "
    f"{number['near_copies']:,} that only have near copies. {which}</p><p>"
    f"{html.escape(text)} A cluster is linked step by step: its ends may be "
    f"less similar than that.{near_duplicates.in_words(found.recall)}</p>"
  )
  rows = np.concatenate([np.zeros(0, int), *_in_order(subject, found)])
  return Listing(
    "duplicates",
    title,
    about,
    "duplicates.csv",
    columns(subject, found, rows),
    rows,
    {
      **({} if names else {"image": "image"}),
      "kind": "copy:",
      "nearest": "most like" if names else "most like image",
      "similarity": "similarity",
    },
    [
      ("largest cluster first", None, False),
      ("most similar first", "similarity", True),
      ("least similar first", "similarity", False),
      *([("by name", "key", False)] if names else []),
    ],
    group="cluster",
  )


def _in_order(subject: Subject, found: Duplicates) -> list[np.ndarray]:
  """Returns the photos of clusters: exact copies, then different captions."""
  pair, ordered = pair_of(subject), []
  for members in found.clusters:
    if len(members) > CLUSTER_SHOWN:
      exact = np.flatnonzero(found.is_exact[members])
      _, distinct = np.unique(
        _captions(subject, pair[members]), return_index=True
      )
      order = [*exact, *np.sort(distinct), *range(len(members))]
      members = members[list(dict.fromkeys(order))]
    ordered.append(members)
  return ordered


def _captions(subject: Subject, pairs: np.ndarray) -> list[str]:
  """Returns the captions of pairs; "" for the index -1."""
  known = np.flatnonzero(pairs >= 0)
  captions = [""] * len(pairs)
  texts = subject.captions(subject.pairs.ids.text[pairs[known]])
  for i, caption in zip(known, texts, strict=True):
    captions[i] = caption
  return captions
