"""The tables of README.md."""

from experiments import labelled
from experiments.difference_alignment import clusters, plan, sentences
from experiments.harness import Options, Results, markdown
from experiments.harness.statistics import (
  MISSING,
  paired,
  statistics,
)
from experiments.labelled import Rows, by_setting, data_of, percent, score

SCORES = {
  "recall@1": "R@1",
  "mu/top_1": "μ, top-1",
  "trained/top_1": "Tr, top-1",
  "verification": "verification",
  "nearest_8/top_1": "8 neighbours",
  "silhouette": "silhouette",
}
# Parts whose settings go on in another part, with other weights.
ALSO = {"faint": ("batches",), "as_sum": ("batches", "unseen", "margins")}


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = labelled.trained(results)
  of_part = labelled.of_part
  return {
    "status": labelled.status(results),
    "table 7": table_7(of_part(results, plan.TABLE_7)),
    "clusters": cluster_table(
      of_part(results, plan.WIDER), clusters.SPREADS, "× deviation"
    ),
    "few points": cluster_table(
      of_part(results, plan.FEW), clusters.SAMPLES, "points each"
    ),
    "overhead": overhead(of_part(results, plan.OVERHEAD)),
    "batches": trained(rows, "batches", 2),
    "unseen": trained(rows, "unseen", 2),
    "sweep": trained(rows, "sweep", 1),
    "faint": trained(rows, "faint", 2),
    "as a sum": trained(rows, "as_sum", 2),
    "margins": trained(rows, "margins", 2),
    "pictures": trained(rows, "pictures", 2),
    "sentences": of_sentences(rows),
  }


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns what the term changes: paired differences.

  A name is that of a row, a weight and a score: "ntxent 32: 0.5: R@1". The
  parts that repeat such names are put in front: "glyphs/margins: ...". The
  difference of the two kinds of differences is "chain − star: 0.5: R@1".
  """
  del options
  rows, found = labelled.trained(results), {}
  for part in ("digits/batches", "digits/faint", "glyphs/unseen"):
    found |= differences(rows, part)
  for part in ("digits/margins", "glyphs/margins", "digits/pictures"):
    changes = differences(rows, part)
    found |= {f"{part}: {name}": value for name, value in changes.items()}
  return found | chain_and_star(rows) | differences_of_sentences(rows)


def differences(rows: Rows, part: str) -> dict[str, str]:
  """Returns what the term changes in the runs of a part."""
  settings, found = settings_of(rows, part), {}
  for setting, seeds in settings.items():
    first, _, weight = setting.rpartition(" ")
    for name, label in SCORES.items():
      with_term, without = (
        {row["seed"]: 100 * score(row, name) for row in x}
        for x in (seeds, settings.get(f"{first} 0", ()))
      )
      found[f"{first}: {weight}: {label}"] = paired(with_term, without).show()
  return found


def chain_and_star(rows: Rows) -> dict[str, str]:
  """Returns by how much chain is ahead of star, at each weight of both."""
  settings, found = by_setting(rows, "digits/sweep"), {}
  for setting, seeds in settings.items():
    kind, weight = setting.split()
    if kind != "star":
      continue
    for name, label in SCORES.items():
      chain, star = (
        {row["seed"]: 100 * score(row, name) for row in x}
        for x in (settings.get(f"chain {weight}", ()), seeds)
      )
      found[f"chain − star: {weight}: {label}"] = paired(chain, star).show()
  return found


def settings_of(rows: Rows, part: str) -> dict[str, list]:
  """Groups the rows of a part, and of those where its settings go on."""
  data, _, name = part.partition("/")
  settings = by_setting(rows, part)
  firsts = {x.rpartition(" ")[0] for x in settings}
  for other in ALSO.get(name, ()):
    more = by_setting(rows, f"{data}/{other}")
    settings |= {
      x: seeds for x, seeds in more.items() if x.rpartition(" ")[0] in firsts
    }
  return settings


def table_7(rows: Rows) -> str:
  """Compares published accuracies with those measured on Table 6."""
  if not rows:
    return ""
  lines = []
  for name in clusters.CASES:
    train, test = clusters.PUBLISHED[name]
    cells = [
      statistics(row["cases"][name][str(k)][split] for row in rows).show()
      for k in clusters.NEIGHBOURS
      for split in ("train", "test")
    ]
    lines.append([f"({name}1)", f"{train} / {test}", *cells])
  header = ["case", "paper, training / test"]
  for k in clusters.NEIGHBOURS:
    header += [f"k = {k}, training", f"k = {k}, test"]
  return markdown.table(header, lines)


def cluster_table(rows: Rows, numbers: tuple, unit: str) -> str:
  """Shows test accuracies for wider clusters or fewer points.

  Below those of a kind are the differences of a consistent case and an
  inconsistent one, within the same draws.

  Args:
    rows: One row per seed.
    numbers: The number that each column is for.
    unit: The unit of the numbers, for the header.
  """
  if not rows:
    return ""
  columns = range(len(numbers))

  def of_seeds(kind, name, i):
    return {row["seed"]: row["cases"][kind][name][i]["test"] for row in rows}

  def row(kind, name):
    found = (statistics(of_seeds(kind, name, i).values()) for i in columns)
    return [kind, f"({name})", *(x.show() for x in found)]

  def difference(kind, ours, theirs):
    found = (
      paired(*(of_seeds(kind, x, i) for x in (ours, theirs))) for i in columns
    )
    return [kind, f"({ours}) − ({theirs})", *(x.show() for x in found)]

  lines = [
    line
    for kind in clusters.KINDS
    for line in (
      *(row(kind, name) for name in clusters.CASES),
      *(difference(kind, *pair) for pair in clusters.COMPARED),
    )
  ]
  return markdown.table(["", "", *(f"{x:g} {unit}" for x in numbers)], lines)


def trained(rows: Rows, part: str, words: int) -> str:
  """Shows the scores of a part; the last word of a setting is its weight.

  Args:
    rows: The rows of all training runs.
    part: The part of the study.
    words: How many words of a setting, from the first, name a table row.
  """
  lines = []
  of_data = {
    data: settings_of(rows, f"{data}/{part}") for data in data_of(rows)
  }
  weights = {x.split()[-1] for settings in of_data.values() for x in settings}
  weights = sorted(weights, key=float)
  for data, settings in of_data.items():
    for first in dict.fromkeys(" ".join(x.split()[:words]) for x in settings):
      for name, label in (SCORES | {"variation_chain": "variation"}).items():
        cells = []
        for weight in weights:
          seeds = settings.get(f"{first} {weight}", [])
          if name.startswith("variation") and seeds:
            value = statistics(score(x, name) for x in seeds)
            cells.append(value.show(2))
          else:
            cells.append(percent(seeds, name))
        if set(cells) != {MISSING}:
          lines.append([data, first, label, *cells])
  if not lines:
    return ""
  header = ["data", "host, batch" if words > 1 else "differences", ""]
  return markdown.table([*header, *(f"λ = {x}" for x in weights)], lines)


def of_sentences(rows: Rows) -> str:
  """Shows correlations with the scores of pairs, times 100, as in Table 5."""
  lines, weights = [], {}
  for data in data_of(rows):
    settings = by_setting(rows, f"{data}/{sentences.PART}")
    weights |= dict.fromkeys(x.split()[-1] for x in settings)
    first = [row for seeds in settings.values() for row in seeds]
    for name in first[0]["words"] if first else ():
      lines.append(
        [
          f"{data}, {name.split('/')[0]}",
          f"{100 * first[0]['words'][name]:.1f}",
          statistics(100 * x["untrained"][name] for x in first).show(),
          *(
            statistics(100 * x["metrics"][f"test/{name}"] for x in seeds).show()
            for seeds in settings.values()
          ),
        ]
      )
  header = [
    "pairs",
    "shared words",
    "untrained",
    *(f"λ = {x}" for x in weights),
  ]
  return markdown.table(header, lines) if lines else ""


def differences_of_sentences(rows: Rows) -> dict[str, str]:
  """Returns what the term changes in the correlations, times 100."""
  found = {}
  for data in data_of(rows):
    settings = by_setting(rows, f"{data}/{sentences.PART}")
    for setting, seeds in settings.items():
      first, _, weight = setting.rpartition(" ")
      for name in seeds[0]["words"]:
        with_term, without = (
          {x["seed"]: 100 * x["metrics"][f"test/{name}"] for x in part}
          for part in (seeds, settings.get(f"{first} 0", ()))
        )
        value = paired(with_term, without).show()
        found[f"{data}, {name.split('/')[0]}: {weight}"] = value
  return found


def overhead(rows: Rows) -> str:
  """Shows the time of a step, as in Table 8."""
  if not rows:
    return ""
  lines = [
    [
      host,
      batch,
      f"{x['host_ms']:.1f}",
      f"{x['with_ms']:.1f}",
      f"{x['ratio']:.2f}",
    ]
    for host, batches in rows[0]["hosts"].items()
    for batch, x in batches.items()
  ]
  header = ["host", "batch", "host, ms", "with alignment, ms", "ratio"]
  return markdown.table(header, lines)
