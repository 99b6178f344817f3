"""nuclr: contrastive image-text training with learned popularities.

Usage: nuclr VERB [--flag=value ...]

nuclr VERB --help shows the flags of a verb, with examples. The exit code is 0
after success, 1 after an error, 2 if the command is wrong, and 130 if the run
was interrupted (run the same command again; train, ingest and filter
continue).
"""

from collections.abc import Sequence
import errno
import sys
import traceback
from typing import NoReturn

from absl import app
from absl import flags as absl_flags
from absl import logging as absl_logging
import jax

from nuclr_jax import __version__
from nuclr_jax.lab import distributed, progress
from nuclr_jax.lab.cli import chosen, flags, interrupts, usage
from nuclr_jax.lab.cli.usage import VERBS

USER_ERRORS = (ValueError, FloatingPointError, OSError)
WRONG_USE = 2  # exit code
RESUMABLE = ("train", "ingest", "convert", "filter")
NOTHING = "nothing was written"
HELP = {"--help", "-help", "-h"}
ANOTHER = "choose another folder with --workdir, --data_dir or --output"
REMEDIES = {
  errno.ENOSPC: "free some space and run the same command again to continue",
  **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), ANOTHER),
  errno.EEXIST: f"there is a file where a folder should be; {ANOTHER}",
  errno.ENOTDIR: f"there is a file where a folder should be; {ANOTHER}",
}


def run() -> None:
  """Runs the command line of this process."""
  progress.open_terminal()
  # Made when absl was imported, and written to by Orbax and TFDS.
  absl_logging.get_absl_handler().python_handler.setStream(sys.stderr)
  interrupts.listen()
  app.run(main, flags_parser=parse_flags)


def main(argv: Sequence[str]) -> None:
  """Runs one verb, and ends the process with a message if it fails.

  Args:
    argv: What `parse_flags` returned.
  """
  absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax and TFDS are chatty
  if not flags.DEBUG.value:
    progress.hide_what_threads_say()
  verb = argv[1]
  try:
    with interrupts.work("stopping"):
      _run(verb, argv[2:])
  except KeyboardInterrupt:
    _end_interrupted(verb)
  except Exception as error:
    if interrupts.was_raised():
      return _end_interrupted(verb)
    text = progress.paragraph(str(error)[:2000])
    message = f"nuclr {verb}: {text}{remedy(error)}"
    if isinstance(error, flags.UsageError):
      distributed.exit_at_once(message, code=WRONG_USE)
    expected = isinstance(error, USER_ERRORS) or _is_full_disk(error)
    if expected and not flags.DEBUG.value:
      message += "\n(--debug shows the traceback)"
    else:
      traceback.print_exc()
    distributed.exit_at_once(message)


def _run(verb: str, words: Sequence[str]) -> None:
  if verb == "train":
    distributed.join(
      coordinator=flags.COORDINATOR.value,
      num_processes=flags.NUM_PROCESSES.value,
      process_id=flags.PROCESS_ID.value,
      distributed=flags.DISTRIBUTED.value,
    )
  # jax.process_index() claims a GPU, which reading data does not need.
  process = 0 if verb in ("ingest", "convert") else jax.process_index()
  progress.log_to_stderr(process=process)
  VERBS[verb].run(*words)


def _end_interrupted(verb: str) -> None:
  what = "run the same command again to continue"
  message = f"\nnuclr: interrupted; {what if verb in RESUMABLE else NOTHING}"
  distributed.exit_at_once(message, code=interrupts.INTERRUPTED)


def remedy(error: Exception) -> str:
  """Returns what to do about a file system error, after a semicolon.

  Example:
    >>> remedy(OSError(errno.ENOSPC, "No space left on device"))
    '; free some space and run the same command again to continue'
  """
  code = errno.ENOSPC if _is_full_disk(error) else getattr(error, "errno", None)
  return f"; {REMEDIES[code]}" if code in REMEDIES else ""


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses a command, and ends the process if it is wrong or asks for help.

  Args:
    argv: The command line, starting with the name of the program.

  Returns:
    The name of the program, the verb, and what else is not a flag.
  """
  if "--version" in argv:
    print(__version__)
    sys.exit(0)
  wants_help = list(argv[1:2]) == ["help"] or HELP & set(argv)
  words = [word for i, word in enumerate(argv) if (i, word) != (1, "help")]
  verb = _verb(words[1:])
  if wants_help:
    print(usage.help_of(verb) if verb else f"{__doc__}\n{usage.overview()}")
    sys.exit(0)
  if verb is None:
    _stop(f"needs one of the verbs {', '.join(VERBS)}; see nuclr --help")
  try:
    rest = flags.parse(words)
    usage.check_words(verb, rest[1:])
    usage.check_taken(verb, flags.present())
    flags.check_values(training=verb == "train")
    flags.check_places()
    usage.check_together(verb, flags.present())
    if not flags.PROCESS_ID.value:
      progress.log.info("nuclr %s: loading", verb)  # which takes seconds
    flags.import_modules()
    # Before processes join or data is read.
    flags.chosen_settings(training=verb == "train")
    chosen.check_sets(training=verb == "train")
  except (absl_flags.Error, ValueError) as error:
    *_, reason = str(error).strip().splitlines() or [type(error).__name__]
    _stop(reason.strip().removeprefix("ValueError: ")[:2000])
  except OSError as error:  # a file or bucket that the flags name
    if flags.DEBUG.value:
      raise
    _stop(f"{error}{remedy(error)}"[:2000], code=1)
  return rest


def _verb(words: Sequence[str]) -> str | None:
  """Returns the verb among the words of a command, if any."""
  verb = next((word for word in words if word in VERBS), None)
  if verb is None and words and not words[0].startswith("-"):
    _stop(usage.unknown(words[0]))
  return verb


def _is_full_disk(error: Exception) -> bool:
  """Returns whether a disk is full; Orbax, for one, raises no OSError then."""
  return "No space left on device" in str(error)


def _stop(message: str, code: int = WRONG_USE) -> NoReturn:
  print(f"nuclr: {progress.paragraph(message)}", file=sys.stderr)
  sys.exit(code)


if __name__ == "__main__":
  run()
