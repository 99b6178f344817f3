"""The run, config, published model or embeddings that the flags choose.

Modules are imported where they are used, as in `verbs`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import logging
import pathlib
from typing import Any

from nuclr_jax.lab.cli import flags
from nuclr_jax.lab.cli.flags import UsageError
from nuclr_jax.lab.files import remote

log = logging.getLogger(__name__)

TEXTS = ".txt"  # the ending of an --input that is a text on each line
REPEATED = 0.9  # a smaller share of different captions is worth a warning


def check_sets(*, training: bool) -> None:
  """Raises ValueError or OSError if a set of --data is not there.

  It is for published models of images and texts, whose weights may take minutes
  to read.

  Args:
    training: Whether the model is trained; its config has looked at its sets.
  """
  if training or not (flags.MODEL.value and flags.DATA.value):
    return
  if not _sees_images():
    return
  from nuclr_jax.lab.data import sets, tfds_reader

  for text in flags.DATA.value:
    source = sets.parse_place(text).source
    tfds_reader.split_names(source, flags.DATA_DIR.value)


def opened(*, pairs: bool):
  """Opens the run, config or published model that the flags name, to score it.

  It warns of sets whose captions are cut, or repeat.

  Args:
    pairs: Whether the training pairs are needed.

  Returns:
    `(parts, mesh, train_state)`, whose held-out sets are those to score; and
    where each of them is from, by the beginning of the names of its scores.
  """
  from nuclr_jax.lab.train import build, loop, untrained

  given = (flags.DATA.value, flags.ZERO_SHOT.value)
  anew = bool(any(given) or flags.INPUT.value)
  if flags.WORKDIR.value:
    parts, mesh, state = loop.load(
      flags.WORKDIR.value,
      data_dir=flags.DATA_DIR.value,
      held_out={} if anew else None,
      pairs=pairs or not anew,
      **flags.chosen_state(),
    )
    if anew:
      parts = build.score_on(parts, {})
  else:
    parts, mesh, state = _opened_to_score(pairs=pairs)
  own = untrained.sources_of(parts.settings.data)
  parts, sources = _with_sets(parts, *given)
  _warn_of_captions(parts.data)
  return (parts, mesh, state), own | sources


def _with_sets(parts, captioned, classified):
  """Adds the sets of --data and --zero_shot to those of the parts."""
  from nuclr_jax.lab.data import embeddings, other_sets
  from nuclr_jax.lab.train import build

  if not (captioned or classified):
    return parts, {}
  data = parts.data
  if isinstance(data.tokenizer, embeddings.Lookup):
    if classified:
      raise UsageError(
        "--zero_shot is for models of photos, and this run is on embeddings; "
        "--data takes folders of nuclr embed"
      )
    data, found = other_sets.with_folders(data, captioned)
    parts = parts._replace(data=data)
  else:
    found = other_sets.open_sets(
      captioned, classified, data.inputs, data_dir=flags.DATA_DIR.value
    )
  held_out = {split: sets for split, sets in data.held_out.items() if any(sets)}
  for split, sets in found.held_out.items():
    own = held_out.get(split)
    held_out[split] = other_sets.join(own, sets) if own else sets
  return build.score_on(parts, held_out), found.sources


def _opened_to_score(*, pairs: bool):
  """Opens the config or published model that the flags name.

  Args:
    pairs: Whether the training pairs are needed.
  """
  from nuclr_jax.lab.train import build, untrained

  data, data_dir, train = flags.DATA.value, flags.DATA_DIR.value, None
  if flags.MODEL.value:
    if not (data or flags.ZERO_SHOT.value or flags.INPUT.value):
      raise UsageError(
        "--model needs data: --data=mine, --zero_shot=flowers=photos, or "
        "--input=photos"
      )
    _check_sees_images()
    if flags.need_temperature() and flags.TEMPERATURE.value is None:
      temperature_of_model()
    if "config.data.train" not in flags.present():
      if pairs and flags.INPUT.value:
        raise UsageError(
          "--hubs and --prior look at training pairs, and --model with --input "
          "has none; name them, such as --config.data.train=mine"
        )
      train = data if pairs else ()
      if data and pairs:
        _warn_of_bank(data)
  elif flags.INPUT.value:  # in place of the sets of the config
    parts, *rest = untrained.open_untrained(
      flags.chosen_settings(), data_dir=data_dir, pairs=pairs
    )
    return build.score_on(parts, {}), *rest
  return _opened_with_train(train, named=False)


def _warn_of_bank(data: Sequence[str]) -> None:
  """Warns if --hubs or --prior=counts learns from pairs that are scored."""
  from nuclr_jax.lab.evaluate.prior import COUNTS
  from nuclr_jax.lab.train import untrained

  if not (flags.HUBS.value or flags.PRIOR.value == COUNTS):
    return
  where = {"data_dir": flags.DATA_DIR.value}
  train = untrained.train_of(data, **where)
  if scored := untrained.scored_in_train(data, **where):
    log.warning(
      "--hubs and --prior=counts look at the pairs of %s, of which some are "
      "scored: corrected scores of %s look better than they are; name other "
      "pairs with --config.data.train=NAME:SPLIT",
      train,
      ", ".join(scored),
    )


def _opened_with_train(data: Sequence[str] | None, *, named: bool):
  """Opens a config or published model that trains on pairs of data sets.

  Args:
    data: The data sets; None for those of the config.
    named: Whether a split that the first set names is taken, as in
      `untrained.train_of`.
  """
  from nuclr_jax.lab.train import untrained

  data_dir, more = flags.DATA_DIR.value, {}
  if data is not None:
    train = untrained.train_of(data, named=named, data_dir=data_dir)
    more = {"data": {"train": train}}
  settings = flags.chosen_settings(more)
  return untrained.open_untrained(settings, data_dir=data_dir)


def _check_sees_images() -> None:
  """Raises UsageError if --model is one of texts alone."""
  from nuclr_jax.lab.train import untrained

  if not _sees_images():
    raise UsageError(f"--model={flags.MODEL.value} {untrained.OF_TEXTS}")


def _sees_images() -> bool:
  return flags.chosen_settings().data.name == "image_text"


def _warn_of_captions(data) -> None:
  """Warns, for each captioned set, of captions that are cut, or repeat."""
  from nuclr_jax.lab.data import cut_captions
  from nuclr_jax.lab.data.source import label_of

  for split, held_out in data.held_out.items():
    cut_captions.warn_of_held_out(data, split)
    for name, captioned in held_out.retrieval.items():
      name = label_of(split, name)
      count, texts = len(captioned.captions), len(set(captioned.captions))
      if texts < REPEATED * count:
        log.warning(
          "%s: %d captions are %d texts; every image of a text is a right "
          "answer to it (by_record/ has the scores without that). For names of "
          "classes, --zero_shot with a folder for each class is the score",
          name,
          count,
          texts,
        )


def temperature_of_model() -> float:
  """Returns the temperature of the config or published model in the flags.

  Raises:
    UsageError: If it has none, or not one for all samples.
  """
  tau = flags.chosen_settings().objective.arguments.get("temperature")
  if not isinstance(tau, float):
    raise UsageError(
      "this model has no single temperature; give --temperature, such as the "
      "one that it was trained with"
    )
  return tau


def one_share() -> float | None:
  """Returns the value of --interpolate; raises UsageError for several."""
  shares = flags.INTERPOLATE.value or [None]
  if len(shares) > 1:
    raise UsageError(
      "export takes one value of --interpolate; nuclr evaluate scores several"
    )
  return shares[0]


def how_to_read() -> dict[str, Any]:
  """Returns what the flags say of how --input is read; see `inputs.plan`."""
  return {
    "split": flags.SPLIT.value,
    "data_dir": flags.DATA_DIR.value,
    "images": flags.IMAGES.value,
    "image_column": flags.IMAGE_COLUMN.value,
    "caption_column": flags.CAPTION_COLUMN.value,
    "split_column": flags.SPLIT_COLUMN.value,
  }


def plan_of_input(*, one_split: bool = False):
  """Cuts --input into parts; None without it, or if it is a file of texts.

  What is written from several splits does not tell them apart, and may be
  trained on.

  Args:
    one_split: Whether several splits are an error, and not only a warning.
  """
  from nuclr_jax.lab.user_files import inputs

  text = flags.INPUT.value
  if text is None or text.endswith(TEXTS):
    return None
  plan = inputs.plan(text, made=False, **how_to_read())
  found = sorted({part.split for part in plan.parts})
  if len(found) > 1:
    has = f"--input={text} has the splits {', '.join(found)}"
    if one_split:
      raise UsageError(f"{has}; name one with --split, such as --split=train")
    log.warning(
      "%s, which are read as one: what is written does not tell them apart; "
      "--split reads one of them",
      has,
    )
  return plan


def state_of_source(plan) -> list[Any]:
  """Returns what differs once files have changed that embeddings are made of.

  These are the files of --input, and here, but not in a bucket, those of a
  model and a run's checkpoints. Prepared data sets are not looked at.

  Args:
    plan: What `plan_of_input` returned.
  """
  from nuclr_jax.lab import files
  from nuclr_jax.lab.train import checkpoint

  sums = (f"{x}/*/SHA256SUMS" for x in (checkpoint.NEWEST, checkpoint.BEST))
  places = {
    flags.MODEL.value: ("*", "*/*"),  # both encoders have folders of their own
    flags.ARCHITECTURE.value: ("*",),
    flags.WORKDIR.value: tuple(sums),
  }
  if plan is None:
    places[flags.INPUT.value] = ()
  found = [] if plan is None else list(plan.files)
  for place, patterns in places.items():
    path = None if place is None else remote.absolute(place)
    if isinstance(path, pathlib.Path):
      below = (x for pattern in patterns for x in path.glob(pattern))
      states = ((str(x), files.state_of(x)) for x in (path, *sorted(below)))
      found += [[x, *state] for x, state in states if state]
  return found


def embed_inputs(
  output: str | pathlib.Path,
  *,
  features: bool = False,
  pairs: bool = False,
  plan=None,
) -> Mapping[str, Any]:
  """Embeds --input with the run, config or model of the flags; see `export`.

  Without --input, it embeds the training pairs of the run or config.

  Args:
    output: The folder to make. From a file of texts, one on each line, it gets
      their embeddings alone.
    features: Whether to write features instead of embeddings.
    pairs: Whether the folder is for a page of pairs: it gets thumbnails, and at
      least one image must have a caption.
    plan: What `plan_of_input` returned, if it has been called.
  """
  from nuclr_jax.lab import export
  from nuclr_jax.lab.data import sentences
  from nuclr_jax.lab.user_files import named_images

  remote.check_new(output)  # before the model is read
  if flags.INPUT.value is None:
    return export.write_training_pairs(
      *_opened_with_pairs(), output, features=features
    )
  if flags.INPUT.value.endswith(TEXTS):
    _check_no_images()
    lines = sentences.read_all_lines(flags.INPUT.value)
    texts = list(filter(None, lines))
    if named_images.is_of_images(texts):
      raise ValueError(
        f"--input={flags.INPUT.value} has lines such as {texts[-1][:60]!r}, of "
        "a table of images; a .txt file has a text on each line. Rename it to "
        ".csv or .tsv to embed the images that it names"
      )
    with _embedder(features=features, images=False) as embedder:
      empty = len(lines) - len(texts)
      return export.write_texts(embedder, texts, output, empty_lines=empty)
  plan = plan or plan_of_input()

  with _embedder(features=features) as embedder:
    return export.write_embeddings(
      embedder, read(plan.parts), output, thumbnails=pairs, pairs=pairs
    )


def read(parts: Iterable[Any]) -> Iterator[Any]:
  """Yields the items of parts of --input, `user_files.items.Part`.

  Raises:
    OSError: If a file changes meanwhile.
  """
  from nuclr_jax.lab.user_files.items import check_unchanged

  for part in parts:
    yield from part.read()
    check_unchanged(part.stamp)


def _opened_with_pairs():
  """Opens the run or config of the flags, with its training pairs."""
  from nuclr_jax.lab.train import loop, untrained

  data_dir = flags.DATA_DIR.value
  if flags.CONFIG.value:
    settings = flags.chosen_settings()
    return untrained.open_untrained(settings, data_dir=data_dir)
  state = flags.chosen_state()
  return loop.load(flags.WORKDIR.value, data_dir=data_dir, **state)


def _embedder(*, features: bool, images: bool = True):
  """Opens the run, config or model of the flags; see `export`."""
  from nuclr_jax.lab import export

  how = {"data_dir": flags.DATA_DIR.value, "features": features}
  if flags.WORKDIR.value and not (flags.CONFIG.value or flags.MODEL.value):
    state = flags.chosen_state()
    run = flags.WORKDIR.value
    return export.embedder_of_run(run, images=images, **state, **how)
  settings = flags.chosen_settings()
  return export.embedder_of_config(settings, images=images, **how)


def _check_no_images() -> None:
  """Raises UsageError for flags that say how images are read."""
  for name, value in how_to_read().items():
    if value is not None and name != "data_dir":
      raise UsageError(
        f"--{name} is for images with captions, and --input="
        f"{flags.INPUT.value} is a file with a text on each line; leave it out"
      )


def subject(folder: pathlib.Path):
  """Returns the pairs to solve for, a `report.subject.Subject`.

  Args:
    folder: The --workdir: a run or, with another source of pairs, where output
      goes; embeddings of --input are written below it.
  """
  from nuclr_jax.lab.report import subject

  tau, data_dir = flags.TEMPERATURE.value, flags.DATA_DIR.value
  untrained = flags.CONFIG.value or flags.MODEL.value
  if not untrained and not flags.EMBEDDINGS.value:
    return subject.from_run(folder, data_dir=data_dir, temperature=tau)
  _check_no_run(folder)
  if not untrained:
    if tau is None:
      raise UsageError("popularity needs --temperature with --embeddings")
    return subject.from_files(flags.EMBEDDINGS.value, temperature=tau)
  if len(flags.DATA.value) > 1:
    raise UsageError("popularity takes one data set; run it once for each")
  if flags.DATA.value and "config.data.train" in flags.present():
    raise UsageError("give either --data or --config.data.train, not both")
  if flags.INPUT.value:
    if flags.INPUT.value.endswith(TEXTS) and tau is None:
      raise UsageError(
        "popularity of texts needs --temperature, such as 0.05: that of a "
        "model, if it has one, is for an image and a text"
      )
    tau = temperature_of_model() if tau is None else tau
    embeddings = folder / "embeddings"
    if embeddings.exists():
      raise UsageError(
        f"{embeddings} is there already: to solve again, give --embeddings="
        f"{embeddings} --temperature={tau:g} in place of --input and the "
        "model (they are of the model that was given then); to embed again, "
        "delete it or choose another --workdir"
      )
    counts = embed_inputs(embeddings, pairs=True)
    shown = (f"{x} {name.replace('_', ' ')}" for name, x in counts.items())
    print(", ".join(shown))
    if counts.get("rejected") or counts.get("without_caption"):
      print(
        f"rejected ones, and those without a caption: {embeddings}"
        "/rejected.jsonl"
      )
    return subject.from_files(str(embeddings), temperature=tau)
  if flags.MODEL.value and not flags.DATA.value:
    raise UsageError("popularity needs --input or --data with --model")
  if flags.MODEL.value:
    _check_sees_images()
    tau = temperature_of_model() if tau is None else tau
  opened = _opened_with_train(flags.DATA.value or None, named=True)
  return subject.from_state(*opened, temperature=tau)


def _check_no_run(folder: pathlib.Path) -> None:
  """Raises UsageError if the folder is a run, which has its own popularity/."""
  from nuclr_jax.lab.train import records

  if (folder / records.CONFIG).exists():
    raise UsageError(
      f"--workdir={folder} is a training run, and popularity/ in it is about "
      "its own pairs; choose another --workdir for these, or give --workdir "
      "alone to solve for the run"
    )
