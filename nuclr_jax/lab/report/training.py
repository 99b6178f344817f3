"""The report of a run: one HTML file, and its plots as PNG files."""

from collections.abc import Mapping, Sequence
import html
import importlib.metadata
import json
import logging
import os
import pathlib
import platform

import jax
from matplotlib.figure import Figure
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.evaluate.ranking import in_chunks
from nuclr_jax.lab.evaluate.retrieval import match_of
from nuclr_jax.lab.report import health, opening, page
from nuclr_jax.lab.train import (
  checkpoint,
  diagnostics,
  extend,
  loop,
  records,
  trackers,
)
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.types import Sides, both

log = logging.getLogger(__name__)


def write(
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  parts: Experiment | None = None,
  mixtures: Mapping[str, Sequence] = {},
) -> pathlib.Path:
  """Writes `report.html` and `report/*.png` for the newest checkpoint.

  Args:
    workdir: The folder of a run.
    data_dir: The folder of prepared data sets.
    parts: The parts of the run, if its config does not name them.
    mixtures: By metric, its values in mixtures with the model that the run
      began from; the shares of the run's weights are those of "interpolate".

  Returns:
    The path of `report.html`.

  Raises:
    ValueError: If the workdir holds no run or no complete checkpoint.
  """
  choose = checkpoint.of_newest
  with files.remote.local_folder(workdir, choose=choose) as folder:
    return _write(folder.absolute(), data_dir, parts, mixtures)


def _write(workdir: pathlib.Path, data_dir, parts, mixtures) -> pathlib.Path:
  """Writes the report of a run in a local folder."""
  parts, mesh, state = loop.load(workdir, data_dir=data_dir, parts=parts)
  plots = files.folder_in(workdir, "report")
  history = records.read_history(workdir)
  times = records.read_history(workdir, records.TIMES)
  scale = diagnostics.scale_of(parts)
  final = None
  if (workdir / records.METRICS).exists():
    final = records.read_metrics(workdir)
  held_out = opening.cheap_sets(parts.data.held_out)
  sections = [
    opening.section(
      workdir,
      parts,
      metrics=final,
      history=history,
      before=opening.before_training(parts, mesh, held_out),
      random=opening.chances(held_out),
      alarms=health.warnings(history, scale),
    ),
    _curves(history, plots),
    _mixtures(mixtures, plots),
    health.section(history, times, plots, scale),
    _sample_state(parts, state, plots),
    _retrieval(parts, mesh, state),
    _metrics(workdir, final),
    _config(parts),
  ]
  path = workdir / "report.html"
  page.write(path, workdir.name, sections)
  trackers.show(workdir, parts.settings, sorted(plots.glob("*.png")))
  log.info("wrote %s", files.remote.original(path))
  return path


def _metrics(workdir, final) -> str:
  """Returns all final metrics, folded, and when the run was extended."""
  extended = "".join(
    f"<p>{html.escape(extend.in_words(x))}</p>"
    for x in files.read_json_lines(workdir / extend.EXTENDED)
  )
  if final is None:
    return extended
  shown = {name: page.shown_score(name, x) for name, x in final.items()}
  title = f"All {len(final)} metrics"
  return page.folded(title, page.table(shown)) + extended


def _curves(history, plots) -> str:
  """Plots the loss and the headline validation scores over steps."""
  figure = Figure(figsize=(11, 3.6), layout="constrained")
  left, right = figure.subplots(1, 2)
  page.plot(left, history, ["train/loss"])
  scores = dict.fromkeys(
    name
    for row in history
    for name in row
    if name.startswith("validation/") and records.is_headline(name)
  )
  page.plot(right, history, list(scores))
  low, high = right.get_ylim()
  right.set_ylim(min(0, low), min(1, high))
  return "<h2>Training</h2>" + page.save(figure, plots / "curves.png")


def _mixtures(mixtures, plots) -> str:
  """Plots the headline scores over mixtures with the first model."""
  if not mixtures:
    return ""
  shares = [float(x) for x in mixtures["interpolate"]]
  metrics = {k: x for k, x in mixtures.items() if k != "interpolate"}
  figure = Figure(figsize=(5.5, 3.6), layout="constrained")
  axes = figure.subplots()
  rows = [
    {"step": share} | {k: values[i] for k, values in metrics.items()}
    for i, share in enumerate(shares)
  ]
  page.plot(axes, rows, records.headlines(metrics))
  axes.set_xlabel("share of the weights of this run")
  cells = [
    [k, *(page.shown_score(k, x) for x in values)]
    for k, values in metrics.items()
  ]
  all_metrics = page.grid(["metric", *mixtures["interpolate"]], cells)
  return (
    "<h2>Mixtures with the model that the run began from</h2>"
    + page.save(figure, plots / "mixtures.png")
    + page.folded("All metrics of the mixtures", all_metrics)
  )


def _sample_state(parts, state, plots) -> str:
  """Shows histograms of the tables, and the most and least popular samples."""
  readout = loop.readout(parts, state)
  sizes, tau = parts.data.train.sizes, readout.temperature
  pairs = both(sizes.num_pairs)
  tables = {  # titles, the tables of both sides, their rows without padding
    "log u, {}s as anchors": (readout.log_u, pairs),
    "temperature of {}s": (tau if isinstance(tau, Sides) else None, pairs),
    "log u by {} id": (readout.log_u_by_id, sizes.ids),
    "zeta of {}s": (readout.zeta, sizes.ids),
  }
  histograms = {}
  for side in Sides._fields:
    for title, (table, num_rows) in tables.items():
      if table is not None:
        values = np.asarray(getattr(table, side))[: getattr(num_rows, side)]
        histograms[title.format(side)] = values[np.isfinite(values)]
  if not histograms:
    return ""
  figure = Figure(figsize=(3.4 * len(histograms), 2.8), layout="constrained")
  axes = np.atleast_1d(figure.subplots(1, len(histograms)))
  for axis, (name, values) in zip(axes, histograms.items(), strict=True):
    axis.hist(values, bins=60, color="#456")
    axis.set_title(name, fontsize=10)
    axis.locator_params(axis="x", nbins=4)
  plot = page.save(figure, plots / "state.png")
  return f"<h2>Per-sample state</h2>{plot}" + "".join(
    _popular(parts.data.train, side, np.asarray(zeta)[:size])
    for side, zeta, size in zip(
      Sides._fields, readout.zeta or (), sizes.ids, strict=False
    )
  )


def _popular(source, side, zeta) -> str:
  """Returns galleries of the samples with the greatest and smallest zeta."""
  pair_of = _pairs_by_id(source, side)
  known = np.flatnonzero(pair_of >= 0)
  pairs = pair_of[known]
  sections = page.popular(
    side,
    zeta[known],
    choose=lambda rows: rows[: page.NUM_SHOWN],
    captions=lambda rows: source.captions(source.ids(pairs[rows]).text),
    images=lambda rows: source.fetch(pairs[rows]).image,
  )
  return "".join(sections)


def _pairs_by_id(source, side) -> np.ndarray:
  """Returns one pair of every image id or text id; -1 if it has none."""
  pair_ids = np.arange(source.sizes.num_pairs)
  pair_of = np.full(getattr(source.sizes.ids, side), -1)
  pair_of[getattr(source.ids(pair_ids), side)] = pair_ids
  return pair_of


def _retrieval(parts, mesh, state) -> str:
  """Shows images with their three best captions, right and wrong."""
  examples = parts.data.sets.get("test")
  if examples is None:
    return ""
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    image = embed.image(examples.image)
    text = embed.text(examples.captions)
  best = in_chunks(
    lambda x: np.argsort(-(x @ text.T), axis=1)[:, :3], len(text), image
  )
  group_of, matches = examples.image_group, match_of(examples)
  right = np.array([matches(i, t) for i, t in enumerate(best[:, 0])])
  first = {}
  for group, caption in zip(
    examples.caption_group, examples.captions, strict=True
  ):
    first.setdefault(group, caption)
  section = "<h2>Retrieval on the test split: image to text</h2>"
  for title, rows in (("right", right), ("wrong", ~right)):
    shown = np.random.default_rng(0).permutation(np.flatnonzero(rows))
    shown = shown[: page.NUM_SHOWN // 2]
    notes = [
      f"<b>{html.escape(first[group_of[i]])}</b><br>"
      + "<br>".join(
        f"<span class="
        f"{'right' if matches(i, t) else 'wrong'}>"
        f"{page.shown(examples.captions[t])}</span>"
        for t in best[i]
      )
      for i in shown
    ]
    section += f"<h3 class={title}>{title}</h3>"
    section += page.gallery(examples.image[shown], notes)
  return section


def _config(parts) -> str:
  """Shows the config, and the versions of Python and of libraries."""
  versions = {
    name: importlib.metadata.version(name)
    for name in ("nuclr_jax", "jax", "flax", "optax", "grain", "numpy")
  }
  versions["python"] = platform.python_version()
  shown = json.dumps(parts.settings.recorded, indent=2)
  own = ", ".join(parts.own())
  note = f"<p>The run has its own {own}, which this config does not name.</p>"
  of_run = f"{note if own else ''}<pre>{html.escape(shown)}</pre>"
  of_now = f"<pre>{html.escape(json.dumps(versions, indent=2))}</pre>"
  return page.folded("Config", of_run) + page.folded(
    "Versions that made this report", of_now
  )
