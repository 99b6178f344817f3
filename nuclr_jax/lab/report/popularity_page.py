"""The page of `nuclr popularity`: what to do, lists of rows, and numbers."""

from collections.abc import Mapping, Sequence
import html
import pathlib
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from matplotlib.figure import Figure
import numpy as np

from nuclr_jax.lab.report import (
  browse,
  duplicates,
  near_duplicates,
  near_threshold,
  page,
  suspects,
)
from nuclr_jax.lab.report.browse import Listing
from nuclr_jax.lab.report.duplicates import Duplicates
from nuclr_jax.lab.report.near_threshold import Threshold
from nuclr_jax.lab.report.subject import Subject
from nuclr_jax.lab.report.suspects import Suspects
from nuclr_jax.popularity import Popularity
from nuclr_jax.popularity.exact import UNDETERMINED

MOST, LARGE = 0.5, 0.1  # of the rows: in clusters, and in a single one
MIN_LARGE = 100  # rows of a cluster that may be large
CLUSTER_SHOWN = 12  # texts of a cluster, at first
LARGEST = 80  # of a log popularity, which float32 holds
ENDS = 10_000  # the most and the least popular samples that the page has
PLOT = "zeta.png"
# Columns of a side's table that are not for looking.
TABLE_ONLY = ("log_u_learned", "log_u_exact")


class SidePage(NamedTuple):
  """One side's table, with a row per id."""

  name: str  # "image" or "text"
  pair: Int[np.ndarray, "ids"]  # index of one pair of each id
  columns: dict[str, Any]


class Alike(NamedTuple):
  """Clusters of texts."""

  clusters: Sequence[Int[np.ndarray, "_"]]  # the largest first
  threshold: Threshold
  recall: float | None  # see `near_duplicates.recall`


class Solved(NamedTuple):
  """What the page is about."""

  subject: Subject
  solution: Popularity
  sides: Sequence[SidePage]  # images and texts, or texts alone
  copies: Duplicates | None  # None if there are no images
  doubtful: Suspects | None  # likewise
  alike: Alike
  summary: Mapping[str, Any]


def write(path: pathlib.Path, found: Solved) -> None:
  """Writes the page, and its plot beside it.

  Args:
    path: The file.
    found: What it is about.
  """
  subject, texts = found.subject, found.sides[-1]
  lists = []
  if found.doubtful:
    lists.append(suspects.listing(subject, found.solution, found.doubtful))
  if found.copies:
    lists.append(duplicates.listing(subject, found.copies))
  lists += [_popular(subject, x) for x in found.sides]
  lists.append(_alike(subject, texts, found.alike))
  plot = page.save(_plot(found.sides), path.with_name(PLOT))
  name = path.parent.parent.name
  page.write(
    path,
    f"Popularities: {name}",
    [
      _opening(found, lists),
      *browse.sections(lists, subject.photos.images),
      f"<h2 id=numbers>Numbers</h2>{plot}{_table(found.summary)}",
    ],
  )


def doubts(found: Solved) -> list[str]:
  """Says what is not to be trusted, as text."""
  tau, said = found.subject.temperature, []
  if found.doubtful and found.doubtful.says_little:
    said.append(
      f"The order of suspects is useless: all pairs have nearly the same "
      f"{found.doubtful.by.replace('_', ' ')}, so this model hardly tells "
      "captions apart. Train longer, or take another model."
    )
  for side in found.sides:
    undetermined = getattr(found.solution.undetermined, side.name)
    if np.mean(undetermined) > UNDETERMINED:
      said.append(
        f"ζ of {undetermined.sum():,} of {len(undetermined):,} "
        f"{side.name}s is not determined at this temperature, {tau:g}: nearly "
        "all weight is on their own pairs, so any popularity fits. Do not "
        "trust their ranking, or choose a higher temperature."
      )
    elif is_flat(side.columns["zeta_exact"], tau):
      said.append(
        f"The ranking of {side.name}s is useless: all of them are equally "
        "popular, since the model gives nearly equal weights to all pairs."
      )
  if not found.solution.converged:
    said.append(
      "The solver stopped before it converged, with a residual of "
      f"{found.solution.residual:.2g}: popularities are rough."
    )
  groups = [("texts", found.alike.clusters, len(found.sides[-1].pair))]
  if found.copies:
    number = len(found.subject.photos.content)
    groups.insert(0, ("images", found.copies.clusters, number))
  for of, clusters, number in groups:
    said += crowded(of, clusters, number)
  return said


def is_flat(zeta: Float[np.ndarray, "ids"], temperature: float) -> bool:
  """Returns whether popularities are equal up to 5 %.

  Example:
    >>> is_flat(np.array([0.0, 0.001]), 0.1), is_flat(np.array([0, 0.1]), 0.1)
    (True, False)
  """
  return bool(np.std(zeta) / temperature < suspects.INDISTINCT)


def crowded(
  of: str, clusters: Sequence[Int[np.ndarray, "_"]], number: int
) -> list[str]:
  """Says if near-duplicates are most of the data, or one cluster is large.

  Args:
    of: What the rows are.
    clusters: Those of near-duplicates, the largest first.
    number: The number of rows.

  Example:
    >>> crowded("images", [np.arange(216)], 248)[0][:56]
    '216 of 248 images are near-duplicates by this threshold,'
    >>> crowded("images", [np.arange(2)], 248)
    []
  """
  count, said = sum(map(len, clusters)), []
  if count > MOST * number:
    said.append(
      f"{count:,} of {number:,} {of} are near-duplicates by this threshold, "
      "which are most of the data. Either the data repeat, or the model does "
      f"not tell these {of} apart: look at some before you remove any."
    )
  elif clusters and len(clusters[0]) > max(MIN_LARGE, LARGE * number):
    said.append(
      f"One cluster has {len(clusters[0]):,} of {number:,} {of}. It is linked "
      "step by step, and its ends may have nothing in common."
    )
  return said


def _opening(found: Solved, lists: Sequence[Listing]) -> str:
  """Says what to do, what is not to be trusted and what was left out."""
  sizes = ", ".join(
    f"{len(side.pair):,} different {side.name}s" for side in found.sides
  )
  said = doubts(found)
  said = "".join(f"<li>{html.escape(x)}" for x in said)
  steps = [
    f"<li><a href=#{x.name}><b>{title}</b></a> {text}"
    for x in lists
    for title, text in [_step(found, x)]
  ]
  return (
    f"<p>{len(found.subject.pairs.pair_id):,} pairs: {sizes}. Click on what "
    "you want to mark; marks stay when you filter or sort. The bar at the "
    "bottom saves marked rows as CSV.</p>"
    + (f"<ul class=wrong>{said}</ul>" if said else "")
    + f"<h2>What to do</h2><ol class=todo>{''.join(steps)}</ol>"
    + _left_out(found.summary)
    + "<p><a href=#numbers>Numbers</a> of the solver are at the end.</p>"
  )


def _step(found: Solved, listing: Listing) -> tuple[str, str]:
  """Returns what to do with a list: a title and a sentence, in HTML."""
  if listing.name == "suspects":
    return (
      "Find wrong captions.",
      "Go through the list from its beginning, mark the wrong ones, stop where "
      "most are right.",
    )
  if listing.name == "duplicates":
    number = duplicates.counts(found.copies)
    return (
      "Look at duplicates.",
      f"{number['exact_copies']:,} images have an exact copy, "
      f"{number['near_copies']:,} only near copies.",
    )
  if listing.name == "text_duplicates":
    return (
      "Look at texts that are nearly the same.",
      f"{listing.size:,} texts in {len(found.alike.clusters):,} clusters.",
    )
  many = {"texts": "images", "images": "captions"}[listing.name]
  return (
    f"See which {listing.name} are popular.",
    f"The first ones suit many {'texts' if found.subject.of_texts else many}, "
    "such as generic ones; the least popular ones suit hardly any but their "
    "own.",
  )


def _popular(subject: Subject, side: SidePage) -> Listing:
  """Returns the samples of a side, the most popular first."""
  zeta = side.columns["zeta_exact"]
  order = np.argsort(-zeta, kind="stable")
  if len(order) > 2 * ENDS:
    order = np.r_[order[:ENDS], order[-ENDS:]]
  excess = (zeta - np.median(zeta)) / subject.temperature
  columns = {"popularity": np.exp(np.minimum(excess, LARGEST)), **side.columns}
  left = len(zeta) - len(order)
  source, cut = f"{side.name}s.csv", ""
  if left:
    cut = f" The page leaves out {left:,} in the middle, which {source} has."
  return Listing(
    f"{side.name}s",
    f"Popular {side.name}s",
    f"<p>Popularity is exp(&zeta;/&tau;), how often {_a(side.name)} is similar "
    "to anchors that are not its own; 1 is that of the median. The list begins "
    f"with the most popular {side.name}s; sort it to see the least popular "
    f"ones.{cut}</p>",
    source,
    {
      k: [x[i] for i in order] if isinstance(x, list) else np.asarray(x)[order]
      for k, x in columns.items()
      if k not in TABLE_ONLY
    },
    subject.photos.of_pairs[side.pair[order]],
    {
      **({} if "key" in columns else {"id": f"{side.name} id"}),
      "popularity": "popularity",
      "pairs": "pairs",
    },
    [
      ("most popular first", None, False),
      ("least popular first", "zeta_exact", False),
      ("least similar to its partner first", "own_similarity", False),
      *([("by name", "key", False)] if "key" in columns else []),
      ("by caption", "caption", False),
    ],
    once=True,
  )


def _a(name: str) -> str:
  return f"an {name}" if name == "image" else f"a {name}"


def _alike(subject: Subject, texts: SidePage, alike: Alike) -> Listing:
  """Returns the texts in clusters, the largest cluster first."""
  title, what = (
    "Near-duplicate texts",
    "texts that the model can hardly tell apart",
  )
  if subject.trained:
    title += ": suspected false negatives"
    what = "texts that training takes for negatives of each other"
  captions, rows = texts.columns["caption"], [np.zeros(0, int)]
  for members in alike.clusters:
    distinct = _one_each(members, captions, CLUSTER_SHOWN)
    rest = np.setdiff1d(members, distinct)
    rows.append(np.r_[distinct, rest])
  order = np.concatenate(rows)
  said = near_threshold.in_words(alike.threshold, "texts").replace(
    "copies have", "duplicates have"
  )
  names = "cluster", "id", "key", "caption", "pairs"
  return Listing(
    "text_duplicates",
    title,
    f"<p>{len(alike.clusters):,} clusters of {what}."
    f"{near_duplicates.in_words(alike.recall)}</p><p>{html.escape(said)}</p>",
    "texts.csv",
    {
      k: [texts.columns[k][i] for i in order]
      for k in names
      if k in texts.columns
    },
    subject.photos.of_pairs[texts.pair[order]],
    {"pairs": "pairs"},
    [
      ("largest cluster first", None, False),
      ("by caption", "caption", False),
    ],
    group="cluster",
  )


def _one_each(rows, captions, count: int) -> np.ndarray:
  """Returns the first `count` rows with different captions."""
  first = {}
  for row in rows:
    first.setdefault(captions[row], row)
    if len(first) == count:
      break
  return np.array(list(first.values()), int)


def _left_out(summary) -> str:
  """Says what became no pair, and what the model has not seen of captions."""
  phrases = {
    "without_caption": "images without a caption, which are in no pair",
    "rejected": "images and captions that were rejected",
    "captions_cut": "captions of which the model has seen the beginning only",
  }
  items = "".join(
    f"<li>{summary[name]:,} {phrase}"
    for name, phrase in phrases.items()
    if summary.get(name)
  )
  where = ""
  if summary.get("without_caption") or summary.get("rejected"):
    where = "<p>rejected.jsonl, beside the embeddings, names the first two.</p>"
  return f"<ul>{items}</ul>{where}" if items else ""


def _table(summary) -> str:
  return page.table(
    {
      name: f"{x:.4g}" if isinstance(x, float) else str(x)
      for name, x in summary.items()
    }
  )


def _plot(sides) -> Figure:
  """Plots learned against exact zeta, or the distribution of the exact ones."""
  figure = Figure(figsize=(10, 4.4), layout="constrained")
  plots = figure.subplots(1, len(sides), squeeze=False)[0]
  for axes, side in zip(plots, sides, strict=True):
    exact = side.columns["zeta_exact"]
    learned = side.columns.get("zeta_learned")
    axes.set_title(f"{side.name}s")
    axes.set_xlabel("exact zeta")
    if learned is None:
      axes.hist(exact, bins=80, color="#456")
      axes.set_ylabel(f"{side.name}s")
      continue
    axes.scatter(exact, learned, s=3, alpha=0.2, linewidths=0, color="#456")
    low, high = float(np.min(exact)), float(np.max(exact))
    # Zeta is determined only up to a constant, so the diagonal is shifted.
    shift = float(np.mean(learned) - np.mean(exact))
    axes.plot([low, high], [low + shift, high + shift], color="#a8261c", lw=1)
    axes.set_ylabel("learned zeta")
    axes.grid(alpha=0.3)
  return figure
