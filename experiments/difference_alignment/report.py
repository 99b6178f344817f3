"""The tables of README.md."""

from experiments.difference_alignment import toy
from experiments.labelled_reports import (
  Lines,
  Numbers,
  data_of,
  of_settings,
  percent,
  score,
  status,
  summarise,
)
from nuclr_jax import markdown

SCORES = {
  "recall@1": "R@1",
  "mu/top_1": "μ, top-1",
  "trained/top_1": "Tr, top-1",
}


def tables(lines: Lines, measured: Numbers) -> dict[str, str]:
  """All of them, by their marks."""
  found = {
    "status": status(lines, measured),
    "table 7": table_7(measured["toy"]),
    "clusters": clusters(measured["toy"], "wider"),
    "few points": clusters(measured["toy"], "few"),
    "overhead": overhead(measured["overhead"]),
  }
  parts = dict(batches=2, unseen=2, sweep=1)
  for part, words in parts.items():
    rows = trained(lines, part, words)
    if rows:
      found[part] = rows
  return found


def table_7(results: Numbers) -> str:
  """Published accuracies, and those of the published distributions."""
  rows = []
  for name, parts in results["table 7"].items():
    train, test = toy.PUBLISHED[name]
    cells = [
      f"{summarise(found[split])}"
      for found in parts.values()
      for split in ("train", "test")
    ]
    rows.append([f"({name}1)", f"{train} / {test}", *cells])
  header = ["case", "paper, training / test"]
  for k in toy.NEIGHBOURS:
    header += [f"k = {k}, training", f"k = {k}, test"]
  return markdown.table(header, rows)


def clusters(results: Numbers, what: str) -> str:
  """Test accuracies where clusters are wider, or points fewer."""
  values = toy.SPREADS if what == "wider" else toy.SAMPLES
  rows = [
    [kind, f"({name})", *(str(summarise(x["test"])) for x in parts)]
    for kind, found in results[what].items()
    for name, parts in found.items()
  ]
  unit = "× deviation" if what == "wider" else "points each"
  return markdown.table(["", "", *(f"{x:g} {unit}" for x in values)], rows)


def trained(lines: Lines, part: str, words: int) -> str:
  """Scores of a part; the last word of a setting is its weight.

  Args:
    lines: All.
    part: Of the study.
    words: How many words of a setting say what is compared.
  """
  rows, weights = [], []
  for data in data_of(lines):
    settings = of_settings(lines, f"{data}/{part}")
    weights = weights or list(dict.fromkeys(x.split()[-1] for x in settings))
    for first in dict.fromkeys(" ".join(x.split()[:words]) for x in settings):
      for name, label in (SCORES | {"variation_chain": "variation"}).items():
        cells = []
        for weight in weights:
          found = settings.get(f"{first} {weight}")
          if not found:
            cells.append("–")
          elif name.startswith("variation"):
            value = summarise(score(x, name) for x in found)
            cells.append(f"{value.mean:.2f} ± {value.error:.2f}")
          else:
            cells.append(percent(found, name))
        if set(cells) != {"–"}:
          rows.append([data, first, label, *cells])
  header = ["data", "host, batch" if words > 1 else "differences", ""]
  return markdown.table([*header, *(f"λ = {x}" for x in weights)], rows)


def overhead(measured: Numbers) -> str:
  """Table 8."""
  rows = [
    [
      host,
      batch,
      f"{x['host_ms']:.1f}",
      f"{x['with_ms']:.1f}",
      f"{x['ratio']:.2f}",
    ]
    for host, batches in measured["hosts"].items()
    for batch, x in batches.items()
  ]
  header = ["host", "batch", "host, ms", "with alignment, ms", "ratio"]
  return markdown.table(header, rows)
