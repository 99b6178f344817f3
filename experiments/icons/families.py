"""Finds sets of icons that share drawings, and writes the table of families.

python -m experiments.icons.families --package=iconify-json-2.2.535.tgz \
  --folder=/tmp/icons

All sets are drawn into the folder (once; a killed run goes on). Then every pair
of sets gets the share of the smaller set's drawings that are near copies of one
in the other. Circles, plus signs and arrows are alike everywhere, so drawings
that more than `COMMON` authors have are left out. The pairs go to `shared.csv`,
the histogram of all pairs by different authors is printed, and the families
with several authors go to `families.json` in the library.
"""

import argparse
from collections import defaultdict
import itertools
import pathlib

import numpy as np

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data.icons import copies, drawing, families
from nuclr_jax.lab.data.icons.package import open_package, read_sets

HERE = pathlib.Path(__file__).parent
SAMPLE = 250  # drawings of each set that are looked for in all others
COMMON = 4  # authors that may have a drawing, beyond which it is a plain shape
LEAST = 0.02  # the share from which a pair of sets is listed
# The share from which two sets are of one family. Of the pairs by different
# authors, fewer and fewer have larger shares, as happens by chance, up to here;
# then come the few that have a common origin.
FAMILY = 0.12
# Logos are drawn after the brands' own, whoever draws them.
BRANDS = {
  "brandico": "logos of brands",
  "devicon": "logos of programming languages and tools",
  "devicon-line": "logos of programming languages and tools",
  "devicon-original": "logos of programming languages and tools",
  "devicon-plain": "logos of programming languages and tools",
  "entypo-social": "logos of brands",
  "fa-brands": "logos of brands",
  "fa6-brands": "logos of brands",
  "gcp": "products of one company",
  "skill-icons": "logos of programming languages and tools",
  "unjs": "logos of packages",
}
LINKS = (  # that names and descriptions of sets tell
  ("line-md", "ic", "Material Line Icons"),
  ("la", "fa-solid", "Line Awesome redraws Font Awesome"),
  ("sidekickicons", "heroicons", "SidekickIcons extends HeroIcons"),
)
TABLE = pathlib.Path(families.__file__).with_name(families.TABLE)
COLUMNS = (
  *("smaller", "larger", "author_of_smaller", "author_of_larger"),
  *("drawings", "shared", "share", "exact"),
)


def drawings_of_sets(package: str, folder: pathlib.Path):
  """Draws all sets; returns them, and their distinct thumbnails."""
  sets = [x for x in read_sets(open_package(package)) if x.icons]
  drawn = drawing.draw_sets(
    sorted(sets, key=lambda x: x.prefix), folder, size=32, processes=2
  )
  thumbs = []
  for x in drawn:
    path = folder / f"{x.icon_set.prefix}.thumbs.npz"
    if not path.exists():
      found = np.unique(copies.thumbnails(x.images()), axis=0)
      with files.replacing(path) as new, new.open("wb") as file:
        np.savez(file, thumbs=found[found.any(1)])
    thumbs.append(files.read_arrays(path)["thumbs"])
  return [x.icon_set for x in drawn], thumbs


def shares(sets, thumbs):
  """Computes the share of each set's drawings that each other set has.

  Returns:
    Numbers [sets, sets] of sampled drawings of the row's set with a near copy
    in the column's, and with an exact one; and the numbers sampled.
  """
  random = np.random.default_rng(0)
  chosen = [random.permutation(len(x))[:SAMPLE] for x in thumbs]
  queries = np.concatenate([x[i] for x, i in zip(thumbs, chosen, strict=True)])
  origin = np.repeat(np.arange(len(sets)), [len(x) for x in chosen])
  author = np.array([families.normalised(x.author) for x in sets])
  has = np.zeros((len(queries), len(sets)), np.int8)  # 1: near, 2: exact
  owner = np.repeat(np.arange(len(sets)), [len(x) for x in thumbs])
  pairs, value = copies.near_pairs(queries, np.concatenate(thumbs))
  kind = np.where(value == 1, 2, 1).astype(np.int8)
  np.maximum.at(has, (pairs[:, 0], owner[pairs[:, 1]]), kind)
  holders = np.stack([has[:, author == x].any(1) for x in np.unique(author)], 1)
  particular = holders.sum(1) <= COMMON
  near, exact = np.zeros((2, len(sets), len(sets)), int)
  np.add.at(near, origin[particular], has[particular] > 0)
  np.add.at(exact, origin[particular], has[particular] > 1)
  return near, exact, np.bincount(origin[particular], minlength=len(sets))


def group(sets, rows) -> dict:
  """Joins sets of one author, and those that share drawings, into families.

  Returns:
    What `families.json` holds: families of several authors, each called like
    the author of its largest set, and sets of brands.
  """
  authors = {x.prefix: families.normalised(x.author) for x in sets}
  brands = {x.prefix for x in sets if x.category == "Logos"} | set(BRANDS)
  parent = {k: k for k in authors}

  def root(k):
    while parent[k] != k:
      k = parent[k]
    return k

  reasons = defaultdict(list)
  by_author = defaultdict(list)
  for k in sorted(authors):
    if k not in brands:
      by_author[authors[k]].append(k)
  links = [(x, y, None) for _, (x, *more) in by_author.items() for y in more]
  links += [
    (row[0], row[1], f"{row[0]} has {100 * float(row[6]):.0f} % in {row[1]}")
    for row in rows
    if float(row[6]) >= FAMILY and not brands & {row[0], row[1]}
  ]
  for x, y, _ in [*links, *LINKS]:
    parent[root(x)] = root(y)
  for x, y, reason in [*links, *LINKS]:
    if reason and authors[x] != authors[y]:
      reasons[root(x)].append(reason)
  size = {x.prefix: len(x.icons) for x in sets}
  result = {}
  for k, why in reasons.items():
    mine = [x for x in sorted(authors) if x not in brands and root(x) == k]
    name = authors[max(mine, key=size.get)]
    result[name] = {"sets": mine, "reason": "; ".join(why)}
  result["brands"] = {
    "sets": sorted(brands),
    "reason": "logos are drawn after the brands' own",
  }
  return {"families": dict(sorted(result.items())), "brands": BRANDS}


def main() -> None:
  """Writes `shared.csv` and `families.json`, and prints the histogram."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--package", required=True)
  parser.add_argument("--folder", type=pathlib.Path, required=True)
  flags = parser.parse_args()
  progress.log_to_stderr()
  flags.folder.mkdir(parents=True, exist_ok=True)
  sets, thumbs = drawings_of_sets(flags.package, flags.folder)
  near, exact, count = shares(sets, thumbs)
  author = [families.normalised(x.author) for x in sets]
  rows, others = [], defaultdict(int)
  for i, j in itertools.combinations(range(len(sets)), 2):
    small, large = sorted((i, j), key=lambda k: (len(thumbs[k]), k))
    if not count[small]:
      continue
    share = near[small, large] / count[small]
    if author[i] != author[j]:
      others[int(share * 50)] += 1
    if share >= LEAST:
      rows.append(
        (
          *(sets[k].prefix for k in (small, large)),
          *(author[k] for k in (small, large)),
          *(count[small], near[small, large]),
          *(f"{share:.3f}", exact[small, large]),
        )
      )
  rows.sort(key=lambda row: (-float(row[6]), row))
  files.write_text(HERE / "shared.csv", drawing.as_csv(COLUMNS, rows))
  files.write_json(TABLE, group(sets, rows))
  print("pairs of sets by different authors, by the share of drawings")
  for bucket in sorted(others):
    print(f"{2 * bucket:3d} - {2 * bucket + 2} %  {others[bucket]}")


if __name__ == "__main__":
  main()
