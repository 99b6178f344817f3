"""nuclr: contrastive training with learned popularities.

nuclr VERB [--flag=value ...]; `nuclr VERB --help` shows its flags and examples.
Exit codes: 0 done, 1 an error, 2 a wrong command, 130 interrupted (the same
command goes on).
"""

from collections.abc import Callable, Sequence
import errno
import logging
import sys
import textwrap
import traceback
from typing import NamedTuple, NoReturn

from absl import app, flags
from absl import logging as absl_logging
import jax

from nuclr_jax import __version__, host, options, processes, settings, verbs

USER_ERRORS = (ValueError, FloatingPointError, OSError)
WRONG_USE = 2  # exit code
ANOTHER = "choose another folder by --workdir, --data_dir or --output"
REMEDIES = {
  errno.ENOSPC: "free some space; the same command goes on",
  errno.EROFS: ANOTHER,
  errno.EACCES: ANOTHER,
  errno.EPERM: ANOTHER,
  errno.EEXIST: f"a file is where a folder should be; {ANOTHER}",
  errno.ENOTDIR: f"a file is where a folder should be; {ANOTHER}",
}


class Verb(NamedTuple):
  """What a verb does, and its flags."""

  run: Callable[[], None]  # the first line of its docstring is its help
  flags: tuple[str, ...]
  example: str  # as one types it; lines that begin with spaces explain


READS = ("input", "split", "images", "image_column", "caption_column")
VERBS = {
  "ingest": Verb(
    verbs.ingest,
    (*READS, "dataset", "max_size", "workers", "data_dir"),
    """
nuclr ingest --input='cc3m/*.tar' --dataset=cc3m
nuclr ingest --input=captions.csv --images=photos --dataset=mine --split=test
  Tar or parquet files of img2dataset, tables (CSV, TSV, JSON, Karpathy's
  splits), a folder of images with texts, or tfds:NAME. Broken items are listed.
  The same command goes on when it was interrupted.
""",
  ),
  "convert": Verb(
    verbs.convert,
    ("input", "data_dir"),
    """
nuclr convert --input=/data/tfds/food101/2.0.0
""",
  ),
  "train": Verb(
    verbs.train,
    (
      *("config", "workdir", "data_dir"),
      *("coordinator", "num_processes", "process_id", "distributed"),
    ),
    """
nuclr train --config=configs/glyphs.py --workdir=runs/mine
nuclr train --config=glyphs:sogclr,smoke --workdir=runs/smoke --config.seed=1
  The same command goes on from the newest checkpoint; a finished run is not
  trained again. metrics.json in the workdir has the final numbers.
""",
  ),
  "evaluate": Verb(
    verbs.evaluate,
    ("workdir", "data_dir", "best", "hubs", "temperature", "classes"),
    """
nuclr evaluate --workdir=runs/mine --hubs=0.5
nuclr evaluate --workdir=runs/mine --classes=digits
""",
  ),
  "report": Verb(
    verbs.report,
    ("workdir", "data_dir"),
    """
nuclr report --workdir=runs/mine
  report.html in the workdir: numbers, curves, health, popularities, retrieval.
""",
  ),
  "popularity": Verb(
    verbs.popularity,
    ("workdir", "data_dir", "embeddings", "temperature", "max_pairs"),
    """
nuclr popularity --workdir=runs/mine
nuclr popularity --workdir=runs/other --embeddings=x.npz --temperature=0.01
  Of embeddings of any model (arrays image, text [pairs, dim]; or
  image.npy,text.npy; or the folder that nuclr embed made). popularity/ in the
  workdir has tables, a plot and a page of samples.
""",
  ),
  "embed": Verb(
    verbs.embed,
    (*READS, "workdir", "config", "data_dir", "output", "features", "best"),
    """
nuclr embed --workdir=runs/mine --input=photos --output=embeddings
nuclr embed --config=cc3m:clip_b16 --input=tfds:cc3m --features --output=cached
  image.npy and text.npy, with an index beside them. config.data.name =
  "embeddings" trains on them.
""",
  ),
  "export": Verb(
    verbs.export,
    ("workdir", "data_dir", "output", "best"),
    """
nuclr export --workdir=runs/mine --output=exported
  Towers as Hugging Face's, with tokenizer and projections;
  config.model.pretrained reads them back.
""",
  ),
  "doctor": Verb(
    verbs.doctor,
    ("data_dir",),
    """
nuclr doctor
""",
  ),
}


def main(argv: list[str]) -> None:
  """Runs one verb; user errors end with a message."""
  absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax and TFDS are chatty
  # It repeats the error that Orbax raises, with a traceback for each array.
  logging.getLogger("asyncio").setLevel(logging.CRITICAL)
  host.keep_memory()
  name = argv[1]
  try:
    if name == "train":
      processes.join(
        coordinator=options.COORDINATOR.value,
        num_processes=options.NUM_PROCESSES.value,
        process_id=options.PROCESS_ID.value,
        distributed=options.DISTRIBUTED.value,
      )
    # Reading data must not take hold of a GPU.
    process = 0 if name in ("ingest", "convert") else jax.process_index()
    host.show_progress(process=process)
    VERBS[name].run()
  except KeyboardInterrupt:
    message = "\nnuclr: interrupted; the same command goes on"
    processes.exit_at_once(message, code=verbs.INTERRUPTED)
  except Exception as error:
    message = f"nuclr {name}: {str(error)[:2000]}{remedy(error)}"
    if isinstance(error, verbs.UsageError):
      processes.exit_at_once(message, code=WRONG_USE)
    known = isinstance(error, USER_ERRORS) or _is_full_disk(error)
    if known and not options.DEBUG.value:
      message += "\n(--debug shows where)"
    else:
      traceback.print_exc()
    processes.exit_at_once(message)


def remedy(error: Exception) -> str:
  """What to do about an error of the file system."""
  code = errno.ENOSPC if _is_full_disk(error) else getattr(error, "errno", None)
  return f"; {REMEDIES[code]}" if code in REMEDIES else ""


def _is_full_disk(error: Exception) -> bool:
  """Also where a library has its own errors, as Orbax."""
  return "No space left on device" in str(error)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the flags of one verb.

  Args:
    argv: The command line, the program's name first.

  Returns:
    The program's name and the verb. What cannot be done ends the process with
    a message.
  """
  if "--version" in argv:
    print(__version__)
    sys.exit(0)
  argv = [x for x in argv if x != "help"] + ["--help"] * ("help" in argv[1:2])
  name, wants_help = _verb(argv[1:]), {"--help", "-h", "-help"} & set(argv)
  if wants_help:
    print(help_of(name) if name else overview())
    sys.exit(0)
  if name is None:
    _stop(f"needs one verb of {', '.join(VERBS)}; nuclr --help explains them")
  try:
    rest = flags.FLAGS(_with_config(argv))
  except flags.Error as error:
    *_, reason = str(error).strip().splitlines()
    _stop(reason.strip().removeprefix("ValueError: "))
  except (AttributeError, KeyError) as error:  # from ml_collections
    given = ", ".join(a for a in argv if a.startswith("--config."))
    reason = error
    while isinstance(reason, Exception):  # they are nested
      reason = reason.args[0]
    reason = " ".join(reason.split())
    _stop(f"unknown config key {reason} among {given}")
  except ValueError as error:  # from the config file
    _stop(str(error))
  if len(rest) != 2:
    _stop(f"takes one verb and flags that begin with --, got {rest[1:]}")
  own = (*VERBS[name].flags, "debug")
  for flag in flags.FLAGS.get_flags_for_module(options):
    if flag.present and flag.name not in own:
      _stop(f"{name} takes no --{flag.name}; it takes --{', --'.join(own)}")
  return rest


def overview() -> str:
  """What `nuclr --help` says."""
  width = max(map(len, VERBS))
  lines = [f"  {x:<{width}}  {_summary(VERBS[x])}" for x in VERBS]
  return "\n".join([__doc__, *lines])


def help_of(name: str) -> str:
  """What `nuclr VERB --help` says."""
  verb = VERBS[name]
  lines = [_summary(verb), verb.example]
  for flag in (*verb.flags, "debug"):
    found = flags.FLAGS[flag]
    lines += textwrap.wrap(
      f"--{flag}: {found.help}", 78, subsequent_indent="    "
    )
  return "\n".join(lines)


def _verb(words: Sequence[str]) -> str | None:
  """The verb among the words of a command; None if there is no word."""
  found = [word for word in words if word in VERBS]
  others = [word for word in words[:1] if not word.startswith("-")]
  if not found and others:
    _stop(f"needs one verb of {', '.join(VERBS)}; got {others[0]}")
  return found[0] if found else None


def _with_config(argv: Sequence[str]) -> list[str]:
  """The words, with a config of the library as a file.

  Raises:
    ValueError: If a config file cannot be loaded.
  """
  words, left = [], iter(argv)
  for word in left:
    key, equals, value = word.partition("=")
    if key == "--config":
      value = value if equals else next(left, "")
      settings.load(value)  # flags would not say what is wrong
      word = f"--config={settings.path_of(value)}"
    words.append(word)
  return words


def _summary(verb: Verb) -> str:
  return verb.run.__doc__.splitlines()[0]


def _stop(message: str) -> NoReturn:
  print(f"nuclr: {message}", file=sys.stderr)
  sys.exit(WRONG_USE)


def run() -> None:
  """Entry point of the console script."""
  app.run(main, flags_parser=parse_flags)


if __name__ == "__main__":
  run()
