"""The flags of `nuclr`, and the config that they choose and change."""

from collections.abc import Mapping, Sequence
import functools
import logging
import math
import os
import re
import sys
from typing import Any

from absl import flags

from nuclr_jax.lab import extensions
from nuclr_jax.lab.cli import parsers
from nuclr_jax.lab.config import (
  ConfigError,
  load_config,
  merge_named,
  override,
)
from nuclr_jax.lab.files import bucket, remote

log = logging.getLogger(__name__)

CONFIG = flags.DEFINE_string(
  "config",
  None,
  "The config: a file such as configs/glyphs.py, or the name of a config that "
  "the library ships, such as glyphs, with an optional argument after a colon "
  "(glyphs:sogclr,smoke); or the config.json of a run. --config.KEY=VALUE "
  "changes any key, for example --config.objective.temperature=0.05; a new "
  "--config.objective.name drops the config's arguments of the old objective. "
  "The last of several changes of a key counts; for a tuple, values "
  "accumulate.",
)
CHANGES = flags.DEFINE_multi_string(
  "config_change", [], "The KEY=VALUE of each --config.KEY=VALUE."
)
MODEL = flags.DEFINE_string(
  "model",
  None,
  "A published model: a name on the Hugging Face hub such as "
  "openai/clip-vit-base-patch32; a folder with CLIP, SigLIP, a sentence "
  "encoder or an exported model; or, with --architecture, a file of weights. "
  "--config.KEY=VALUE changes the config that it stands for, but not the sizes "
  "of its towers.",
)
ARCHITECTURE = flags.DEFINE_string(
  "architecture",
  None,
  "What the weights of --model=epoch_3.pt are of: OpenCLIP's name, such as "
  "ViT-B-32, OpenCLIP's config of it, a .json file, or a folder or a name on "
  "the hub of a model like it.",
)
DATA = flags.DEFINE_list(
  "data",
  [],
  "The data sets to use: NAME or NAME:SPLIT of what nuclr ingest or TFDS has "
  "prepared, with commas between several. SPLIT may be a slice of TFDS such as "
  "test[:50%]. For evaluate and a run on embeddings: folders of nuclr embed.",
)
ZERO_SHOT = flags.DEFINE_list(
  "zero_shot",
  [],
  "The labelled sets to classify: a prepared data set, or a folder with a "
  "sub-folder for each class; NAME=SET names it.",
)
WORKDIR = flags.DEFINE_string("workdir", None, "The folder of the run.")
DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "The folder of prepared data sets. Defaults to $NUCLR_DATA_DIR, or else to "
  "~/.cache/nuclr_jax.",
)
INPUT = flags.DEFINE_string(
  "input",
  None,
  "What to read: files, a pattern, a folder, or tfds:NAME for a TFDS data set; "
  "for embed and popularity, also a .txt file with a text on each line.",
)
DATASET = flags.DEFINE_string(
  "dataset", None, "The name of the data set to make."
)
SPLIT = flags.DEFINE_string(
  "split",
  None,
  "The name of the split to make (default: train). If the input has several "
  "splits, only this one is read; from a table that names splits, all are read "
  "by default. A slice of TFDS is part of the input: "
  "--input='tfds:NAME:train[:10%]'.",
)
IMAGES = flags.DEFINE_string(
  "images",
  None,
  "The folder that paths in a table are relative to (default: the table's).",
)
IMAGE_COLUMN = flags.DEFINE_string(
  "image_column",
  None,
  "The column of a table that holds the images. Needed only if it does not "
  "have one of the usual names.",
)
CAPTION_COLUMN = flags.DEFINE_string(
  "caption_column",
  None,
  "The column of a table that holds the captions; or several, A,B, or a field "
  "of a struct, A/FIELD. Needed only if it has none of the usual names.",
)
SPLIT_COLUMN = flags.DEFINE_string(
  "split_column",
  None,
  "The column of a table that names splits: train, validation or test in each "
  "row. Needed only if it does not have one of the usual names. With "
  "--split_column= the table names none.",
)
MAX_SIZE = flags.DEFINE_integer(
  "max_size",
  None,
  "Shrink images whose shorter side has more pixels than this. 384 is enough "
  "for training at 256.",
  lower_bound=16,
)
MAX_PIXELS = flags.DEFINE_integer(
  "max_pixels",
  None,
  "Reject images with more pixels than this, before they are decoded (default: "
  "67 million).",
  lower_bound=256,
  upper_bound=178_956_970,  # Pillow's own limit
)
WORKERS = flags.DEFINE_integer(
  "workers",
  None,
  "The number of processes that read the input (default: one per core).",
  lower_bound=1,
)
IN_PLACE = flags.DEFINE_bool(
  "in_place",
  False,
  "Leave the images in the tar files, and make an index of them only. The tar "
  "files are then needed for training.",
)
BEAM_PIPELINE_OPTIONS = flags.DEFINE(
  parsers.BeamParser(),
  "beam_pipeline_options",
  None,
  "Read the input on the workers of an Apache Beam pipeline. These are its "
  "options without their dashes, such as runner=FlinkRunner,flink_master=HOST. "
  "All workers must see the input and the folder of prepared data sets.",
)
TEMPERATURE = flags.DEFINE_float(
  "temperature",
  None,
  "The temperature to use instead of the run's own.",
  lower_bound=1e-6,
)
BEST = flags.DEFINE_bool(
  "best",
  False,
  "Use the checkpoint with the best validation score instead of the newest. "
  "The run must have been trained with --config.keep_best.",
)
AVERAGE = flags.DEFINE_bool(
  "average",
  True,
  "Use the averaged weights if the run keeps an average "
  "(--config.optimizer.weight_average). --noaverage uses those of the last "
  "step.",
)
OUTPUT = flags.DEFINE_string(
  "output", None, "The folder to write. It must not exist yet."
)
LAYOUT = flags.DEFINE_enum(
  "layout",
  "hugging_face",
  ["hugging_face", "open_clip"],
  "The library that should read the exported model. open_clip takes the towers "
  "of OpenCLIP's models, and opens the folder as local-dir: and its path.",
)
FEATURES = flags.DEFINE_bool(
  "features",
  False,
  "Write the features of the encoders, before the projection into the shared "
  "space.",
)
INTERPOLATE = flags.DEFINE(
  parsers.SharesParser(),
  "interpolate",
  None,
  "Use weights between those of the model that the run began from (0) and its "
  "own (1). export takes one such share; evaluate takes several, with commas "
  "between them, and prints a column of scores for each.",
)
HUBS = flags.DEFINE(
  parsers.HubsParser(),
  "hubs",
  None,
  "Also evaluate retrieval that is corrected for hubs: csls (which needs no "
  "temperature), zeta (rank by sim - zeta / 2), or another strength "
  "of zeta, such as 1; with commas between several.",
)
flags.register_validator(
  TEMPERATURE,
  lambda x: x is None or 0 < x < math.inf,
  "must be greater than 0 and finite",
)
PRIOR = flags.DEFINE_string(
  "prior",
  None,
  "Also evaluate with a prior of the texts: rank by sim + temperature * log p. "
  "'counts' counts them among the training captions; otherwise a .json file "
  "that maps texts to counts, or a .csv file of texts and counts.",
)
EMBEDDINGS = flags.DEFINE_string(
  "embeddings", None, "The embeddings to use instead of those of a run."
)
MAX_PAIRS = flags.DEFINE_integer(
  "max_pairs",
  None,
  "Solve for a random sample of this many pairs, and extend the solution to "
  "all of them.",
  lower_bound=2,
)
COORDINATOR = flags.DEFINE_string(
  "coordinator",
  None,
  "The address of process 0 as host:port, if several processes train together.",
)
NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "The number of processes that train together."
)
PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "The number of this process, counted from 0."
)
DISTRIBUTED = flags.DEFINE_bool(
  "distributed",
  None,
  "Look for other processes to train with. The default is to look for them "
  "under Slurm and on TPU slices only.",
)
IMPORT = flags.DEFINE_list(
  "import",
  [],
  "Modules with factories of your own, in the current folder or installed, "
  "with commas between several. A config names them as MODULE:FACTORY, such as "
  "--import=mine --config.objective.name=mine:pull. A run of such parts needs "
  "the flag whenever it is opened.",
)
DEBUG = flags.DEFINE_bool("debug", False, "Show the traceback of every error.")
IN_BUCKETS = (  # flags of files and folders
  *("input", "workdir", "data_dir", "output", "embeddings", "model", "data"),
  *("zero_shot", "prior", "architecture", "target"),
)
# Those of one path each; --input may be a long pattern.
PATHS = {*IN_BUCKETS, CONFIG.name, IMAGES.name, DATASET.name} - {INPUT.name}
# Bytes: 255 and 4,095 on Linux, 255 and 1,023 on macOS.
MAX_NAME = os.pathconf("/", "PC_NAME_MAX")
MAX_PATH = os.pathconf("/", "PC_PATH_MAX") - 1
# Keys of a config that flags choose.
CHOSEN = {
  "data": ("data.validation", "data.test"),
  "zero_shot": ("data.zero_shot",),
}
CHANGE = re.compile(r"--?(no)?config\.([^=]*)(=.*)?", re.DOTALL)


class UsageError(ValueError):
  """A command that lacks a flag, or whose flags do not go together."""


def parse(words: Sequence[str]) -> list[str]:
  """Parses the words of a command, and sets the flags.

  Args:
    words: The command line, starting with the name of the program.

  Returns:
    The words that are not flags.

  Raises:
    absl.flags.Error: For an unknown flag, or a value that it does not take.
  """
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()  # what another command line has left
  return flags.FLAGS(_with_changes(words))


def present() -> list[str]:
  """Returns the names of the flags on the command line, without `--`."""
  every = (flags.FLAGS[name] for name in flags.FLAGS)
  names = dict.fromkeys(flag.name for flag in every if flag.present)
  keys = [change.partition("=")[0] for change in CHANGES.value]
  return [x for x in names if x != CHANGES.name] + [f"config.{x}" for x in keys]


def import_modules() -> None:
  """Imports the modules of --import, also from the current folder.

  Raises:
    ValueError: If one cannot be imported.
  """
  if IMPORT.value and os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())
  for module in IMPORT.value:
    extensions.allow(module)


def check_places() -> None:
  """Raises ValueError for a path in a bucket that a flag cannot take."""
  for name in present():
    value = None if "." in name else flags.FLAGS[name].value
    for text in value if isinstance(value, list) else [value]:
      if isinstance(text, str) and bucket.is_remote(text):
        if name not in IN_BUCKETS:
          raise ValueError(
            f"--{name}={text} must be on this machine; in a bucket may be "
            f"--{', --'.join(IN_BUCKETS)}"
          )
        # NAME=gs://..., tfds:gs://...
        bucket.open_system(re.sub(r"^([^:/]*=|tfds:)", "", text))


def check_values(*, training: bool = False) -> None:
  """Raises ValueError for flags that are empty, or lists in several flags.

  Also for changes of a config that there is not, that is one of two, or that
  another flag overrules.

  Args:
    training: Whether the command trains: then --config is how to train --model,
      and changes may follow what --data chooses.
  """
  for flag in (flags.FLAGS[name] for name in present() if "." not in name):
    if flag.present > 1 and isinstance(flag.value, list):
      raise ValueError(
        f"--{flag.name} is given {flag.present} times; give it once, with "
        "commas between several values"
      )
    if flag.present > 1:
      log.warning(
        "--%s is given %d times; the last one counts, %s",
        flag.name,
        flag.present,
        flag.value,
      )
    may_be_empty = (BEAM_PIPELINE_OPTIONS.name, SPLIT_COLUMN.name)
    for text in flag.value if isinstance(flag.value, list) else [flag.value]:
      if isinstance(text, str):
        _check_text(flag.name, text)
    if flag.value in ("", []) and flag.name not in may_be_empty:
      raise ValueError(
        f"--{flag.name}= is empty; give a value, or leave it out"
      )
  if None not in (CONFIG.value, MODEL.value) and not training:
    raise ConfigError("give either --config or --model, not both")
  for key, _, text in (change.partition("=") for change in CHANGES.value):
    _check_text(f"config.{key}", text)
    if not (CONFIG.value or MODEL.value or (training and DATA.value)):
      raise ConfigError(f"--config.{key} needs --config as well")
    for name, keys in CHOSEN.items():
      if key in keys and flags.FLAGS[name].present and not training:
        raise ConfigError(f"give either --{name} or --config.{key}, not both")


def _check_text(name: str, text: str) -> None:
  """Raises ValueError for a text that is not UTF-8, or too long for a path."""
  shown = text if len(text) <= 80 else f"{text[:80]}..."
  try:
    size = len(text.encode())
    longest = max(len(part.encode()) for part in text.split("/"))
  except UnicodeEncodeError as error:
    raise ValueError(
      f"--{name}={shown!r} is not UTF-8; rename the file, or type it again"
    ) from error
  if name in PATHS and (longest > MAX_NAME or size > MAX_PATH):
    raise ValueError(
      f"--{name}={shown} is too long: a name may have {MAX_NAME} bytes, a path "
      f"{MAX_PATH:,}, and it has {longest:,} and {size:,}"
    )


def chosen_settings(
  more: Mapping[str, Any] = {}, *, training: bool = False
) -> Any:
  """Returns the settings of the config that the flags describe.

  Args:
    more: Values that take precedence, nested as in a config.
    training: Whether they are for training: of a model, the config is then one
      that trains it.

  Returns:
    `settings.Settings`, or None without --config and --model.

  Raises:
    ValueError: If the config cannot be loaded, or a name, key or value in it is
      wrong; the message names the flag at fault.
  """
  if not (CONFIG.value or MODEL.value or (training and DATA.value)):
    return None
  changes = [change.partition("=") for change in CHANGES.value]
  changes = [(key, value) for key, _, value in changes]
  from nuclr_jax.lab.train import settings, untrained  # slow imports

  try:
    base = _base(tuple(changes) if training else None)
    changed = override(base, changes)
    if MODEL.value:
      untrained.check_kept(base["model"], changed["model"])
    return settings.resolve(merge_named(changed, more))
  except ConfigError as error:
    guilty = [
      f"--config.{key}={value}"
      for key, value in changes
      if _is_below(key, error.key) or _is_below(error.key, key)
    ]
    prefix = f"{', '.join(guilty)}: " if guilty else ""
    raise ConfigError(f"{prefix}{error}", error.key) from error


@functools.cache
def _base(training: tuple[tuple[str, str], ...] | None) -> Any:
  """Returns the config of --config, --model or --data; it is made once.

  Args:
    training: The changes of a config that trains; None for others, which look
      at no data set yet.
  """
  from nuclr_jax.lab.train import finetune, own_pairs, untrained

  sets = dict(zero_shot=ZERO_SHOT.value, data_dir=DATA_DIR.value)
  of_what = ARCHITECTURE.value
  if MODEL.value and training is None:
    return untrained.config_of_published(MODEL.value, architecture=of_what)
  if MODEL.value:
    return finetune.config_of_training(
      MODEL.value,
      architecture=of_what,
      recipe=CONFIG.value,
      changes=training,
      data=DATA.value,
      **sets,
    )
  if training is None or not DATA.value:
    return load_config(CONFIG.value)
  return own_pairs.config_of_pairs(DATA.value, recipe=CONFIG.value, **sets)


def need_temperature() -> list[str]:
  """Returns what `nuclr evaluate` is asked for that needs one temperature."""
  needs_it = {
    "--hubs=zeta": any(method != "csls" for method in HUBS.value or ()),
    "--prior": bool(PRIOR.value),
  }
  return [name for name, needed in needs_it.items() if needed]


def chosen_state() -> dict[str, Any]:
  """Returns what --best and --average choose, as arguments of `loop.load`.

  Raises:
    UsageError: If --average is given for a run that keeps no average.
  """
  from nuclr_jax.lab.train import checkpoint, records  # a slow import

  if flags.FLAGS[AVERAGE.name].present and AVERAGE.value:
    folder = remote.fetch(WORKDIR.value, choose=checkpoint.of_newest)
    optimizer = records.read_settings(folder).optimizer
    if not optimizer.arguments.get("weight_average"):
      raise UsageError(
        f"{WORKDIR.value} keeps no average of the weights; leave --average out"
      )
  name = checkpoint.BEST if BEST.value else checkpoint.NEWEST
  return {"checkpoints": name, "averaged": AVERAGE.value}


def _is_below(key: str, parent: str) -> bool:
  return bool(parent) and f"{key}.".startswith(f"{parent}.")


def _with_changes(words: Sequence[str]) -> list[str]:
  """Returns the words with each `--config.KEY=VALUE` as a value of `CHANGES`.

  absl needs the whole name of every flag in advance, and these names contain
  the keys of a config that is not loaded yet.
  """
  rewritten, rest = [], list(words)
  while rest:
    word = rest.pop(0)
    match = CHANGE.fullmatch(word)
    if match is None:
      rewritten.append(word)
      continue
    negated, key, value = match.groups()
    if value is None and not negated and rest and rest[0][:1] != "-":
      value = f"={rest.pop(0)}"  # --config.KEY VALUE
    value = value or ("=false" if negated else "=true")
    rewritten.append(f"--{CHANGES.name}={key}{value}")
  return rewritten
