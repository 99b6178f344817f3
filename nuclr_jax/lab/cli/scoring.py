"""What `nuclr evaluate` scores, and on which data.

A run is scored on its own held-out sets, or on those of --data, --zero_shot and
--input in their place; a published model on these; a config on its own sets or
on --input; embeddings of any model, --embeddings, on themselves. Modules are
imported where they are used, as in `verbs`.
"""

from collections.abc import Iterator, Mapping
import logging
import pathlib
import tempfile
from typing import Any, NamedTuple

from absl import flags as absl_flags
import jax

from nuclr_jax.lab import files
from nuclr_jax.lab.cli import chosen, flags
from nuclr_jax.lab.cli.flags import UsageError
from nuclr_jax.lab.files import remote

log = logging.getLogger(__name__)

SCORES = "scores.json"  # in the folder of --output
NAMED = 3  # items that are left out, and that a warning names


class Report(NamedTuple):
  """Scores, and what they are of."""

  model: Mapping[str, Any]
  data: list[Mapping[str, Any]]  # a mapping for each set
  metrics: Mapping[str, Any]  # lists of numbers with --interpolate


def score() -> Report:
  """Scores what the flags choose."""
  hubs, asked = flags.HUBS.value, flags.need_temperature()
  if flags.TEMPERATURE.value is not None and not asked:
    raise UsageError("--temperature is for --hubs=zeta and --prior only")
  if flags.OUTPUT.value:
    remote.check_new(flags.OUTPUT.value)  # before the model is read
  if flags.EMBEDDINGS.value:
    return _of_embeddings(flags.EMBEDDINGS.value)
  plan = _plan()  # before the model is read
  opened, sources = chosen.opened(pairs=bool(hubs or flags.PRIOR.value))
  if flags.INTERPOLATE.value:
    opened = _with_pairs_for_statistics(opened)
  correct = _corrections(*opened)
  data, metrics = _of_sets(*opened, sources, correct)
  for split, parts in plan.items():
    described, scores = _of_items(*opened, split, parts, correct)
    data.append(described)
    metrics |= scores
  if not metrics:
    log.warning(
      "nothing was scored, since no held-out set is named; give --data, "
      "--zero_shot or --input with a run, or name sets in the config"
    )
  model = {"step": int(opened[2].step)} if flags.WORKDIR.value else {}
  return Report(model | described_model(), data, metrics)


def described_model() -> dict[str, Any]:
  """Returns the flags that say what is scored, with changes of its config."""
  names = ("workdir", "config", "model", "architecture", "best", "average")
  given = set(flags.present())
  model = {x: absl_flags.FLAGS[x].value for x in names if x in given}
  changes = flags.CHANGES.value
  return model | ({"changes": list(changes)} if changes else {})


def write(report: Report, folder: str) -> None:
  """Writes a report as `scores.json` in a new folder."""
  with remote.new_folder(folder) as work:
    files.write_json(work / SCORES, report._asdict())


def shown(described: Mapping[str, Any]) -> str:
  """Says in a line what was scored.

  Example:
    >>> shown({"name": "val/mine", "data": "mine:val", "images": 5_000})
    'scored val/mine: mine:val, 5,000 images'
  """
  name = described["name"]
  counts = (
    f"{x:,} {what.replace('_', ' ')}"
    for what, x in described.items()
    if isinstance(x, int)
  )
  what = ", ".join([described["data"], *counts])
  return f"scored {name}: {what}" if name else f"scored {what}"


def _of_sets(parts, mesh, state, sources, correct):
  """Scores the open sets, corrected for hubs and with a prior if asked for."""
  from nuclr_jax.lab.train import interpolate, loop

  with jax.set_mesh(mesh):
    suites = correct(parts.evaluators, parts.data)
    scored = parts._replace(evaluators=suites)
    if shares := flags.INTERPOLATE.value:
      metrics = _columns(interpolate.curve(scored, mesh, state, shares))
    else:
      metrics = dict(loop.evaluate(scored, mesh, state))
  return list(_described(parts.data.held_out, sources)), metrics


def _corrections(parts, mesh, state):
  """Returns what adds to suites the evaluators of --hubs and --prior.

  It is a function of suites, and of the data whose sets are scored.
  """
  from nuclr_jax.lab import evaluate
  from nuclr_jax.lab.train import hooks, loop

  hubs, asked = flags.HUBS.value, flags.need_temperature()
  prior, tau = None, flags.TEMPERATURE.value
  if not (hubs or flags.PRIOR.value):
    return lambda suites, _: suites
  if hubs and not (parts.data.sets or flags.INPUT.value):
    raise UsageError("--hubs needs data with images and captions to retrieve")
  train, readout = parts.data.train, loop.readout(parts, state)
  if asked and tau is None:
    tau = hooks.one_temperature(readout, asked[0])
  if flags.PRIOR.value:
    prior = evaluate.make_prior(flags.PRIOR.value, train)
    evaluate.doubt_prior(train, readout.zeta, temperature=tau)
  own = loop.embedder(parts, mesh)(state)
  make = evaluate.bank_for(parts.data, hubs or (), temperature=tau)

  def bank(embed):
    del embed  # of --input, it looks up what the model has embedded
    return make(own)

  def correct(suites, data):
    if hubs:
      suites = evaluate.correct_hubs(
        suites, data, hubs, temperature=tau, bank=bank
      )
    if prior is not None:
      suites = evaluate.add_prior(suites, data, prior, temperature=tau)
    return suites

  return correct


def _with_pairs_for_statistics(opened):
  """Opens a run again, with its training pairs, if mixtures need them."""
  from nuclr_jax.lab.train import interpolate

  if not interpolate.has_statistics(opened[2]):
    return opened
  return chosen.opened(pairs=True)[0]


def _columns(by_share: Mapping[float, Mapping[str, float]]) -> dict[str, list]:
  """Makes a list of values of each metric, in the order of the shares."""
  columns = list(by_share.values())
  return {"interpolate": [f"{share:g}" for share in by_share]} | {
    name: [metrics[name] for metrics in columns] for name in columns[0]
  }


def _described(held_out, sources) -> Iterator[dict[str, Any]]:
  """Describes sets: how their scores begin, where they are from, their sizes.

  Args:
    held_out: The sets, by split.
    sources: Where they are from, as far as a flag or the config says that;
      others are of the data of the run itself.
  """
  from nuclr_jax.lab.data.source import label_of

  def describe(split, name, **counts):
    label = label_of(split, name)
    source = sources.get(label, f"the run's own split {split}")
    return {"name": label, "data": source, **counts}

  for split, found in held_out.items():
    for name, x in found.retrieval.items():
      sizes = {"images": len(x.image), "captions": len(x.captions)}
      yield describe(split, name, **sizes)
    for name, get in found.zero_shot.items():
      name, sizes = f"zero_shot_{name}", {}
      if label_of(split, name) in sources:  # else it would be opened again
        x = get()
        sizes = {"images": len(x.label), "classes": len(x.classes)}
      yield describe(split, name, **sizes)
    for kind in (found.probes, found.rated, found.others):
      for name in kind:
        yield describe(split, name)


def _plan() -> dict[str, list[Any]]:
  """Cuts --input into parts, by split; "" if it has none."""
  text, split = flags.INPUT.value, flags.SPLIT.value
  if text is None:
    return {}
  if text.endswith(chosen.TEXTS):
    raise UsageError(
      f"--input={text} is a file of texts, which has no pairs to score; give "
      "images with captions"
    )
  from nuclr_jax.lab.user_files import inputs

  how = chosen.how_to_read()
  plan = inputs.plan(text, made=False, **how)
  by_split: dict[str, list[Any]] = {}
  for part in plan.parts:
    by_split.setdefault(part.split, []).append(part)
  if not by_split:
    raise ValueError(f"--input={text} holds nothing to score")
  if split is not None or len(by_split) > 1:
    return by_split
  ((made, parts),) = by_split.items()
  if text.startswith("tfds:") and (own := _split_of_tfds(text)):
    return {own: parts}
  try:  # a name for what is read, unless the input tells its splits apart
    inputs.plan(text, made=False, **how | {"split": made})
  except ValueError:
    return {"": parts}
  raise UsageError(
    f"--input={text} has splits; name the one to score, such as --split=test"
  )


def _split_of_tfds(text: str) -> str | None:
  from nuclr_jax.lab.data import sets

  return sets.parse_set(text.removeprefix("tfds:"))[1]


def _of_items(parts, mesh, state, split, items, correct):
  """Scores a split of --input; its embeddings are in files meanwhile."""
  from nuclr_jax.lab import export
  from nuclr_jax.lab.data.embeddings import open_embeddings, set_of_rows
  from nuclr_jax.lab.data.source import label_of

  with tempfile.TemporaryDirectory(prefix="nuclr-") as place:
    folder = pathlib.Path(place, "embeddings")
    with jax.set_mesh(mesh):
      embedder = export.embedder_of(parts, mesh, state)
      counts = export.write_embeddings(
        embedder, chosen.read(items), folder, pairs=True
      )
      _warn_of_rejected(folder / export.embed.REJECTED)
      rows = open_embeddings(folder)
      metrics = _recall(set_of_rows(rows), rows.text, split, correct)
  source = flags.INPUT.value
  if not source.endswith(f":{split}"):  # as in tfds:mine:test
    source = label_of(source, split, by=":")
  kept = {k: x for k, x in counts.items() if x or k in ("images", "captions")}
  return {"name": split, "data": source, **kept}, metrics


def _recall(found, text, prefix="", correct=lambda suites, _: suites):
  """Computes the scores of a set whose images are rows of embeddings."""
  from nuclr_jax.lab import evaluate
  from nuclr_jax.lab.data.source import Data, HeldOut
  from nuclr_jax.lab.evaluate.ranking import unit_rows

  held_out = {prefix: HeldOut({"": found})}
  suites = correct(
    evaluate.evaluators_of(held_out), Data(None, None, (), held_out)
  )
  looked_up = evaluate.Embed(unit_rows, lambda _: unit_rows(text))
  return evaluate.run_evaluators(suites[prefix], looked_up, prefix)


def _of_embeddings(paths: str) -> Report:
  """Scores the pairs of --embeddings."""
  from nuclr_jax import sharding
  from nuclr_jax.lab.report import subject

  pairs = subject.from_files(paths, temperature=1.0)
  if pairs.of_texts:
    raise UsageError(
      f"--embeddings={paths} are of texts without images, which make no pairs "
      "to score"
    )
  data = pairs.as_set()
  with jax.set_mesh(sharding.make_mesh()):
    metrics = _recall(data, pairs.pairs.text)
  counts = {"images": len(data.image), "captions": len(data.caption_group)}
  described = {"name": "", "data": paths, **counts}
  return Report({"embeddings": paths}, [described], metrics)


def _warn_of_rejected(path: pathlib.Path) -> None:
  """Names the first of the items that are not scored."""
  rows = files.read_json_lines(path)
  if rows:
    named = ", ".join(f"{x['key']} ({x['reason']})" for x in rows[:NAMED])
    more = ", ..." if len(rows) > NAMED else ""
    log.warning(
      "--input: %d items are not scored: %s%s; nuclr embed lists them all",
      len(rows),
      named,
      more,
    )
