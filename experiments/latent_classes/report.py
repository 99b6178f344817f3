"""The tables of README.md."""

from collections.abc import Iterable

import numpy as np

from experiments.labelled_reports import (
  Lines,
  Numbers,
  course,
  data_of,
  of_settings,
  percent,
  status,
)
from experiments.latent_classes import study
from nuclr_jax import markdown

KINDS = ("trained", "mu", "mu_5")
SCORES = ("avg_2", "avg_10", "top_10", "top_1")


def tables(lines: Lines, exact: Numbers) -> dict[str, str]:
  """All of them, by their marks."""
  return {
    "status": status(lines, exact),
    "table 1": table_1(lines),
    "table 2": table_2(lines),
    "figure 2": figure_2(lines),
    "bounds": bounds(lines),
    "section 5.1": section_5_1(exact),
    "appendix C": appendix_c(exact),
    "theorem 1": theorem_1(exact),
  }


def table_1(lines: Lines) -> str:
  """Supervised and contrastive representations."""
  rows = []
  for data in data_of(lines):
    settings = of_settings(lines, f"{data}/table 1")
    for name in SCORES:
      cells = [
        percent(settings[x], f"{kind}/{name}")
        for x in ("supervised", "contrastive")
        for kind in KINDS
      ]
      if any(x != "–" for x in cells):
        rows.append([data, name.replace("_", "-"), *cells])
  names = ("Tr", "μ", "μ-5")
  header = ["data", "", *(f"supervised {x}" for x in names)]
  return markdown.table(header + [f"contrastive {x}" for x in names], rows)


def table_2(lines: Lines) -> str:
  """Blocks: CURL and quick thoughts."""
  parts = {"table 2": "pairs", "table 2b": "blocks"}
  rows, sizes = [], _numbers(lines, parts)
  for data in data_of(lines):
    for part, batch in parts.items():
      settings = of_settings(lines, f"{data}/{part}")
      if not settings:
        continue
      for name in ("avg_2", "top_1"):
        for method in ("curl", "quick_thought"):
          own = [f"{method} {b}" for b in sizes]
          cells = _percents(settings, own, f"mu/{name}")
          what = f"μ, {name.replace('_', '-')}"
          rows.append([data, f"as many {batch}", what, method, *cells])
  header = ["data", "batches", "", "", *(f"b = {b}" for b in sizes)]
  return markdown.table(header, rows)


def figure_2(lines: Lines) -> str:
  """Accuracies over k and the amount of data."""
  rows, negatives = [], _numbers(lines, ["figure 2"])
  for data in data_of(lines):
    settings = of_settings(lines, f"{data}/figure 2")
    for fraction in dict.fromkeys(x.split()[0] for x in settings):
      for name in ("avg_2", "top_1"):
        own = [f"{fraction} {k}" for k in negatives]
        cells = _percents(settings, own, f"mu/{name}")
        share = f"{100 * float(fraction):g} %"
        rows.append([data, share, f"μ, {name.replace('_', '-')}", *cells])
  header = ["data", "pictures", "", *(f"k = {k}" for k in negatives)]
  return markdown.table(header, rows)


def bounds(lines: Lines) -> str:
  """At the end of training, and how often the bounds held along it."""
  rows = []
  for data in data_of(lines):
    for n, found in of_settings(lines, f"{data}/curves").items():
      names = {
        "un": f"unsupervised_{n}",
        "sup": "mean_classifier",
        "bound": "bound" if n == "1" else f"bound_{n}",
      }
      values = {
        key: np.array([course(x, name)[1] for x in found])
        for key, name in names.items()
      }
      tracks = [
        np.corrcoef(un, sup)[0, 1] if len(un) > 2 else np.nan
        for un, sup in zip(values["un"], values["sup"], strict=True)
      ]
      # Lemma 1 without log C, Lemma 2 without 1 / p_cc.
      plain = values["un"]
      if n == "1":
        plain = values["bound"] - np.log(study.SIZES[data].classes)
      rows.append(
        [
          data,
          n,
          *(f"{values[key][:, -1].mean():.3f}" for key in ("un", "sup")),
          f"{values['bound'][:, -1].mean():.3f}",
          f"{100 * np.mean(values['sup'] <= values['bound']):.0f} %",
          f"{100 * np.mean(values['sup'] <= plain):.0f} %",
          f"{np.mean(tracks):.2f}",
        ]
      )
  header = ["data", "N", "L_un", "L_sup^μ", "bound", "bound holds"]
  return markdown.table([*header, "without its constant", "correlation"], rows)


def section_5_1(exact: Numbers) -> str:
  """Where f_1 loses against f_0, whose loss is 1, over r."""
  found, rows = exact["counter-examples"]["figure 1"], []
  kinds = {
    "unsupervised": "L_un(f_1)",
    "mean classifier": "L_sup^μ(f_1)",
    "separable": "L_sup(f_1), best W",
  }
  for name, x in found.items():
    for key, label in kinds.items():
      rows.append([name, label, *(f"{y:.2f}" for y in x[key])])
  radii = next(iter(found.values()))["radius"]
  return markdown.table(["", "", *(f"r = {r:g}" for r in radii)], rows)


def appendix_c(exact: Numbers) -> str:
  """Likewise, over the number of negatives."""
  found = exact["counter-examples"]["appendix C"]
  rows = [
    [
      f"{name}, {x['classes']} classes",
      f"{x['mean classifier']:.2f}",
      *(f"{y:.2f}" for y in x["unsupervised"]),
    ]
    for name, x in found.items()
  ]
  many = next(iter(found.values()))["negatives"]
  header = ["", "L_sup^μ(f_1)", *(f"L_un(f_1), k = {k}" for k in many)]
  return markdown.table(header, rows)


def theorem_1(exact: Numbers) -> str:
  """The loss at the end, by width."""
  rows = [
    [
      width,
      f"{np.mean(x['last']):.1e}",
      f"{np.max(x['last']):.1e}",
      f"{np.min(x['min_norm']):.2f}",
      f"{np.max(x['max_norm']):.1f}",
    ]
    for width, x in exact["theorem 1"]["widths"].items()
  ]
  steps = exact["theorem 1"]["steps"]
  header = ["width m", f"loss after {steps} steps, mean", "largest"]
  return markdown.table([*header, "smallest norm", "largest norm"], rows)


def _numbers(lines: Lines, parts: Iterable[str]) -> list[str]:
  """The last words of the settings of parts, of all data sets, in order."""
  found = {
    setting.split()[-1]
    for data in data_of(lines)
    for part in parts
    for setting in of_settings(lines, f"{data}/{part}")
  }
  return sorted(found, key=int)


def _percents(settings, names: Iterable[str], score: str) -> list[str]:
  """Of settings by their names; a dash for those that a data set lacks."""
  return [percent(settings[x], score) if x in settings else "–" for x in names]
