"""The tables of README.md."""

from collections.abc import Iterable

import numpy as np

from experiments import labelled
from experiments.harness import Options, Results, markdown
from experiments.harness.statistics import MISSING
from experiments.labelled import Rows, by_setting, course, data_of, percent
from experiments.latent_classes import plan, sentences, theorem
from nuclr_jax.contrib.latent_classes import guarantees

KINDS = ("trained", "mu", "mu_5")
EXACT_PARTS = (
  plan.SECTION_5_1,
  plan.APPENDIX_C,
  plan.THEOREM_1,
  plan.RATE_BY_WIDTH,
)
SCORES = ("avg_2", "avg_10", "top_10", "top_1")


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = labelled.trained(results)
  exact = {
    part: labelled.by_setting(results.rows.values(), part)
    for part in EXACT_PARTS
  }
  return {
    "status": labelled.status(results),
    "table 1": table_1(rows),
    "table 2": table_2(rows),
    "figure 2": figure_2(rows),
    "few labels": few_labels(rows),
    "bounds": bounds(rows),
    "deviation": deviation(rows),
    "section 5.1": section_5_1(exact[plan.SECTION_5_1]),
    "appendix C": appendix_c(exact[plan.APPENDIX_C]),
    "theorem 1": theorem_1(exact[plan.THEOREM_1]),
    "theorem 1, rate 1/m": theorem_1(exact[plan.RATE_BY_WIDTH]),
    "width": width_of_theorem(exact[plan.THEOREM_1]),
  }


def table_1(rows: Rows) -> str:
  """Compares supervised and contrastive representations."""
  lines = []
  for data in data_of(rows):
    settings = by_setting(rows, f"{data}/table 1")
    if (
      data == sentences.DATA
    ):  # the contrastive model of Table 2, as in paper 1
      largest = f"curl {sentences.BLOCKS[-1]}"
      blocks = by_setting(rows, f"{data}/table 2b")
      settings = settings | {"contrastive": blocks.get(largest, [])}
    for name in SCORES:
      cells = [
        percent(settings.get(x, []), f"{kind}/{name}")
        for x in ("supervised", "contrastive")
        for kind in KINDS
      ]
      if any(x != MISSING for x in cells):
        lines.append([data, name.replace("_", "-"), *cells])
  names = ("Tr", "μ", "μ-5")
  header = ["data", "", *(f"supervised {x}" for x in names)]
  return _table(header + [f"contrastive {x}" for x in names], lines)


def table_2(rows: Rows) -> str:
  """Compares block sizes of CURL and quick thoughts."""
  parts = {"table 2": "pairs", "table 2b": "blocks"}
  lines, sizes = [], _numbers(rows, parts)
  for data in data_of(rows):
    for part, batch in parts.items():
      settings = by_setting(rows, f"{data}/{part}")
      if not settings:
        continue
      for name in ("avg_2", "top_1"):
        for method in ("curl", "quick_thought"):
          names = [f"{method} {b}" for b in sizes]
          cells = _percents(settings, names, f"mu/{name}")
          what = f"μ, {name.replace('_', '-')}"
          lines.append([data, f"as many {batch}", what, method, *cells])
  header = ["data", "batches", "", "", *(f"b = {b}" for b in sizes)]
  return _table(header, lines)


def few_labels(rows: Rows) -> str:
  """Compares models with labels of some images: paper 1, Section 8.1."""
  lines, kinds = [], (("supervised", KINDS[:2]), ("contrastive", KINDS[:2]))
  for data in data_of(rows):
    settings = by_setting(rows, f"{data}/few labels")
    for fraction in dict.fromkeys(x.split()[1] for x in settings):
      for name in ("avg_2", "top_1"):
        cells = [
          percent(settings.get(f"{model} {fraction}", []), f"{kind}/{name}")
          for model, classifiers in kinds
          for kind in classifiers
        ]
        share = f"{100 * float(fraction):g} %"
        lines.append([data, share, name.replace("_", "-"), *cells])
  header = ["data", "labels", ""]
  header += [f"{model} {kind}" for model, _ in kinds for kind in ("Tr", "μ")]
  return _table(header, lines)


def deviation(rows: Rows) -> str:
  """Shows the final terms of Theorem 4.5, and how informative its bound is."""
  names = {
    "pairs": "pairs",
    "other": "other",
    "s": "deviation",
    "bound": "bound_by_deviation",
    "of pairs": "bound_of_pairs",
  }
  lines = []
  for data in data_of(rows):
    for k, seeds in by_setting(rows, f"{data}/deviation").items():
      values = {
        key: np.array([course(x, name)[1] for x in seeds])
        for key, name in names.items()
      }
      bound, loss = values["bound"], values["pairs"]
      # The term of s(f) is smaller by the ratio of both constants.
      ratio = guarantees.collision_constant("hinge", sharp=True)
      ratio /= guarantees.collision_constant("hinge")
      sharp = values["other"] + ratio * (bound - values["other"])
      tracks = [
        np.corrcoef(x, y)[0, 1] for x, y in zip(bound, loss, strict=True)
      ]
      lines.append(
        [
          data,
          k,
          *(f"{x[:, -1].mean():.3f}" for x in (loss, values["other"])),
          f"{values['s'][:, -1].mean():.2f}",
          *(f"{x[:, -1].mean():.3f}" for x in (bound, sharp)),
          f"{values['of pairs'][:, -1].mean():.3f}",
          f"{100 * np.mean(loss <= sharp):.0f} %",
          f"{100 * np.mean(bound < np.log(2)):.0f} %",
          f"{np.mean(tracks):.2f}",
        ]
      )
  header = ["data", "k", "L_sup^μ", "L_un^≠", "s(f)", "bound", "sharp bound"]
  header += ["Theorem 4.1", "sharp bound holds", "bound below log 2"]
  return _table([*header, "correlation"], lines)


def figure_2(rows: Rows) -> str:
  """Shows accuracies over k and over the amount of data."""
  lines, negatives = [], _numbers(rows, ["figure 2"])
  for data in data_of(rows):
    settings = by_setting(rows, f"{data}/figure 2")
    for fraction in dict.fromkeys(x.split()[0] for x in settings):
      for name in ("avg_2", "top_1"):
        names = [f"{fraction} {k}" for k in negatives]
        cells = _percents(settings, names, f"mu/{name}")
        share = f"{100 * float(fraction):g} %"
        lines.append([data, share, f"μ, {name.replace('_', '-')}", *cells])
  header = ["data", "images", "", *(f"k = {k}" for k in negatives)]
  return _table(header, lines)


def bounds(rows: Rows) -> str:
  """Shows the final losses and bounds, and how often the bounds held."""
  lines = []
  for data in data_of(rows):
    for n, seeds in by_setting(rows, f"{data}/curves").items():
      names = {
        "un": f"unsupervised_{n}",
        "sup": "mean_classifier",
        "bound": "bound" if n == "1" else f"bound_{n}",
      }
      values = {
        key: np.array([course(x, name)[1] for x in seeds])
        for key, name in names.items()
      }
      tracks = [
        np.corrcoef(un, sup)[0, 1] if len(un) > 2 else np.nan
        for un, sup in zip(values["un"], values["sup"], strict=True)
      ]
      # The bounds without their constants: log C in Lemma 1, 1 / p_cc in
      # Lemma 2.
      plain = values["un"]
      if n == "1":
        plain = values["bound"] - np.log(plan.SIZES[data].classes)
      lines.append(
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
  return _table([*header, "without its constant", "correlation"], lines)


def section_5_1(examples: dict[str, Rows]) -> str:
  """Shows the losses of f_1 over r; f_0, with loss 1, wins where L_un > 1."""
  kinds = {
    "unsupervised": "L_un(f_1)",
    "mean classifier": "L_sup^μ(f_1)",
    "separable": "L_sup(f_1), best W",
  }
  lines = [
    [name, label, *(f"{y:.2f}" for y in x[key])]
    for name, (x,) in examples.items()
    for key, label in kinds.items()
  ]
  radii = [f"r = {r:g}" for (x,) in examples.values() for r in x["radius"]]
  return _table(["", "", *dict.fromkeys(radii)], lines)


def appendix_c(examples: dict[str, Rows]) -> str:
  """Shows the losses of f_1 over the number of negatives."""
  lines = [
    [
      f"{name}, {x['classes']} classes",
      f"{x['mean classifier']:.2f}",
      *(f"{y:.2f}" for y in x["unsupervised"]),
    ]
    for name, (x,) in examples.items()
  ]
  many = [
    f"L_un(f_1), k = {k}" for (x,) in examples.values() for k in x["negatives"]
  ]
  return _table(["", "L_sup^μ(f_1)", *dict.fromkeys(many)], lines)


def theorem_1(widths: dict[str, Rows]) -> str:
  """Shows by width the final loss, and norms over all steps."""
  lines, steps = [], 0
  for width, seeds in widths.items():
    steps = seeds[0]["steps"]
    last = [x["last"] for x in seeds]
    lines.append(
      [
        width,
        f"{np.mean(last):.1e}",
        f"{np.max(last):.1e}",
        f"{min(x['min_norm'] for x in seeds):.2f}",
        f"{max(x['max_norm'] for x in seeds):.1f}",
        _moved(seeds),
      ]
    )
  header = ["width m", f"loss after {steps} steps, mean", "largest"]
  header += ["smallest norm", "largest norm", "weights moved"]
  return _table(header, lines)


def _moved(seeds: Rows) -> str:
  """Formats how far weights moved; a dash for rows that do not say it."""
  moved = [x["moved"] for x in seeds if "moved" in x]
  return f"{100 * np.mean(moved):.1f} %" if moved else MISSING


def width_of_theorem(widths: dict[str, Rows]) -> str:
  """Shows the width that the theorem asks for to reach the loss of each."""
  lines = [
    [width, f"{loss:.1e}", f"{theorem.width_of_theorem(loss):.0e}"]
    for width, seeds in widths.items()
    for loss in [np.mean([x["last"] for x in seeds])]
  ]
  return _table(["width m", "loss reached", "n^24 d / ε"], lines)


def _table(header: list[str], lines: list[list[str]]) -> str:
  """Formats a table; the empty string if it has no lines."""
  return markdown.table(header, lines) if lines else ""


def _numbers(rows: Rows, parts: Iterable[str]) -> list[str]:
  """Returns the numbers that end the settings of parts, in order."""
  numbers = {
    setting.split()[-1]
    for data in data_of(rows)
    for part in parts
    for setting in by_setting(rows, f"{data}/{part}")
  }
  return sorted(numbers, key=int)


def _percents(
  settings: dict[str, Rows], names: Iterable[str], score: str
) -> list[str]:
  """Formats the score of each setting; a dash for one that is missing."""
  return [percent(settings.get(x, []), score) for x in names]
