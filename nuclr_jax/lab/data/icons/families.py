"""Which sets of icons belong together, which are chosen, and who gets which.

Sets of one author, or that share drawings, are a family and stay in one split.
`families.json` lists families that the author's name alone would not find;
`experiments/icons/families.py` shows the evidence.
"""

import functools
import hashlib
import importlib.resources
import json
import re

from nuclr_jax.lab.data.icons.package import IconSet

TABLE = "families.json"
SPLITS = ("train", "validation", "test")
BOUNDS = (0.7, 0.85)  # of the hashes of families that are trained on, and so on
SALT = "icons"  # so that other data sets split the same names otherwise
# What is left out unless `sets` names it.
CATEGORIES = ("Logos", "Archive / Unmaintained")
# The share of a set's icons from which it is animated: an image would show the
# first moment, in which lines have yet to be drawn.
ANIMATED, ANIMATION = 0.5, "<animate"
# Companies' suffixes and the like, which authors' names have or lack.
LEGAL = re.compile(r"\b(inc|llc|gmbh|ag|corporation|s a|b v|authors|team)\b")


@functools.cache
def table() -> dict[str, dict[str, str]]:
  """Returns the families of sets, with reasons, and the sets of brands.

  Returns:
    "families": the family of each listed set, "reasons": why, by family, and
    "brands": sets of logos whose category does not say so, with the reason.
  """
  place = importlib.resources.files("nuclr_jax.lab.data.icons") / TABLE
  content = json.loads(place.read_text(encoding="utf-8"))
  families, reasons = {}, {}
  for name, family in content["families"].items():
    families |= dict.fromkeys(family["sets"], name)
    reasons[name] = family["reason"]
  return {
    "families": families,
    "reasons": reasons,
    "brands": content["brands"],
  }


def family_of(icon_set: IconSet) -> str:
  """Returns the family of a set: the table's, or else its author."""
  listed = table()["families"].get(icon_set.prefix)
  return listed or normalised(icon_set.author)


def normalised(author: str) -> str:
  """Returns what the spellings of an author's name have in common.

  Example:
    >>> normalised("Google Inc"), normalised("The Bootstrap Authors")
    ('google', 'bootstrap')
  """
  words = re.sub(r"[\W_]+", " ", author.lower()).strip()
  short = LEGAL.sub(" ", words.removeprefix("the "))
  return " ".join(short.split()) or words or author


def split_of(family: str) -> str:
  """Returns the split of a family: 70, 15 and 15 % of all possible names.

  It depends on nothing but the name, so that splits stay when sets are added.

  Example:
    >>> split_of("google"), split_of("streamline")
    ('train', 'train')
  """
  digest = hashlib.sha256(f"{SALT}/{family}".encode()).digest()
  at = int.from_bytes(digest[:8], "big") / 2**64
  return SPLITS[sum(at >= bound for bound in BOUNDS)]


def why_left_out(icon_set: IconSet) -> str | None:
  """Says why a set is not chosen by default; None if it is."""
  if icon_set.prefix in table()["brands"]:
    return "logos of brands"
  if icon_set.category in CATEGORIES:
    return icon_set.category.lower()
  if icon_set.hidden or icon_set.category is None:
    return "hidden or without a category"
  if re.search(r"\bNC\b", icon_set.license):
    return "not for commercial use"
  animated = sum(ANIMATION in icon.body for icon in icon_set.icons)
  if animated > ANIMATED * len(icon_set.icons):
    return "animated"
  return None
