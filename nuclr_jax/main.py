"""nuclr: contrastive training with learned popularities.

nuclr ingest --input='cc3m/*.tar' --dataset=cc3m
nuclr ingest --input=captions.csv --images=photos --dataset=mine --split=test
  Makes a data set of images with captions: tar or parquet files of img2dataset,
  tables (CSV, TSV, JSON, Karpathy's splits), a folder of images with texts, or
  tfds:NAME. Broken items are listed. The same command goes on when interrupted.

nuclr convert --input=/data/tfds/food101/2.0.0
  Copies a TFDS data set from TFRecord files, its old format, to array_record.

nuclr train --config=configs/glyphs.py --workdir=runs/mine
  Trains, evaluates and writes metrics.json. The same command goes on from the
  newest checkpoint. Change a value with --config.objective.temperature=0.05.

nuclr evaluate --workdir=runs/mine
  Scores the newest checkpoint. --hubs=0.5 also corrects retrieval for hubs,
  --classes=digits scores class means and the like on labelled pictures.

nuclr report --workdir=runs/mine
  Writes report.html: curves, popularities, retrieval examples.

nuclr popularity --workdir=runs/mine
nuclr popularity --workdir=runs/other --embeddings=x.npz --temperature=0.01
  Solves the exact popularities of a run's training pairs, or of embeddings of
  any model (arrays image, text [pairs, dim]; or image.npy,text.npy); writes
  tables, a plot and a page of samples to popularity/ in the workdir.

nuclr embed --workdir=runs/mine --input=photos --output=embeddings
nuclr embed --config=configs/cc3m.py:clip_b16 --input=tfds:cc3m --features ...
  Writes image.npy and text.npy, with an index beside them, of what ingest
  reads. config.data.name = "embeddings" trains on them.

nuclr export --workdir=runs/mine --output=exported
  Writes the towers as Hugging Face's, with tokenizer and projections;
  config.model.pretrained reads them back.
"""

import sys
import traceback

from absl import app, flags
from absl import logging as absl_logging
import jax

from nuclr_jax import host, processes, verbs
from nuclr_jax.verbs import VERBS

USER_ERRORS = (ValueError, FloatingPointError, OSError)


def main(argv: list[str]) -> None:
  """Runs one verb; user errors end with a message and exit code 1."""
  absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax and TFDS are chatty
  host.keep_memory()
  if len(argv) != 2 or argv[1] not in VERBS:
    found = " ".join(argv[1:]) or "none"
    sys.exit(f"nuclr: needs one verb of {', '.join(VERBS)}; got {found}")
  try:
    if argv[1] == "train":
      processes.join(
        coordinator=verbs.COORDINATOR.value,
        num_processes=verbs.NUM_PROCESSES.value,
        process_id=verbs.PROCESS_ID.value,
        distributed=verbs.DISTRIBUTED.value,
      )
    # Reading data must not take hold of a GPU.
    process = 0 if argv[1] in ("ingest", "convert") else jax.process_index()
    host.show_progress(process=process)
    VERBS[argv[1]]()
  except KeyboardInterrupt:
    message = "\nnuclr: interrupted; the same command goes on"
    processes.exit_at_once(message, code=verbs.INTERRUPTED)
  except Exception as error:
    message = f"nuclr {argv[1]}: {error}"
    if isinstance(error, USER_ERRORS) and not verbs.DEBUG.value:
      message += "\n(--debug shows where)"
    else:
      traceback.print_exc()
    processes.exit_at_once(message)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the flags; --help is short and an unknown config key is named."""
  if {"--help", "-h", "-help"} & set(argv):
    print(__doc__ + flags.FLAGS.module_help(verbs))
    sys.exit(0)
  try:
    rest = flags.FLAGS(argv)
    if verbs.CONFIG.value is not None:
      verbs.CONFIG.value.keys()  # fails if the file could not be loaded
    return rest
  except OSError as error:
    *_, reason = str(error).strip().splitlines()
    sys.exit(f"nuclr: the config file cannot be loaded: {reason.strip()}")
  except flags.Error as error:
    *_, reason = str(error).strip().splitlines()
    sys.exit(f"nuclr: {reason.strip()}")
  except (AttributeError, KeyError) as error:  # from ml_collections
    given = ", ".join(a for a in argv if a.startswith("--config."))
    reason = error
    while isinstance(reason, Exception):  # they are nested
      reason = reason.args[0]
    reason = " ".join(reason.split())
    sys.exit(f"nuclr: unknown config key {reason} among {given}")


def run() -> None:
  """Entry point of the console script."""
  app.run(main, flags_parser=parse_flags)


if __name__ == "__main__":
  run()
