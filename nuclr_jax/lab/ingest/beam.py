"""Ingest on several machines: the parts of the input as a Beam pipeline.

Workers only write parts; the launching process plans them, and publishes the
data set. Both need the same storage, a folder or a bucket. A runner may start a
part twice, even at the same time; the files are the same, whichever ends first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import io
import logging
import os
import pathlib
import pickle
import re
import socket
import tempfile

import cv2
import PIL

from nuclr_jax import __version__
from nuclr_jax.lab import progress
from nuclr_jax.lab.files import bucket, replacing
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.user_files.items import Part
from nuclr_jax.lab.user_files.tables import Row

FLAG = "--beam_pipeline_options"
ENDINGS = ("array_record", "rejected.jsonl", "npz")  # npz says "complete"
COUNTERS = "nuclr_ingest"  # the namespace of Beam's counters
# Two workers of different versions might write different bytes.
VERSIONS = {
  "nuclr_jax": __version__,
  "OpenCV": cv2.__version__,
  "Pillow": PIL.__version__,
}

log = logging.getLogger(__name__)


def check_options(options: Sequence[str]) -> None:
  """Checks, before any work, that there is Beam and that it takes the options.

  Args:
    options: Options such as "--runner=FlinkRunner".

  Raises:
    ValueError: If Beam is not installed, or does not take an option.

  Example:
    >>> check_options(["runner=FlinkRunner"])
    Traceback (most recent call last):
    ValueError: an option of Beam must be --NAME=VALUE, got runner=FlinkRunner
  """
  for option in options:
    if not re.match(r"--\w", option):
      raise ValueError(f"an option of Beam must be --NAME=VALUE, got {option}")
  try:
    from apache_beam.runners.portability import portable_runner
  except ImportError as error:
    raise ValueError(
      f"{FLAG} needs Apache Beam, which cannot be imported ({error}); install "
      'it with pip install "nuclr_jax[beam]"'
    ) from error
  try:
    with contextlib.redirect_stderr(io.StringIO()) as said:
      pipeline = _pipeline(options)
      known = pipeline.options.get_all_options()
      given = pipeline.options.get_all_options(retain_unknown_options=True)
  except SystemExit as error:  # argparse has printed hundreds of lines
    reason = said.getvalue().strip().splitlines()[-1].partition("error: ")[2]
    raise ValueError(f"{FLAG}: {reason}") from error
  except (ImportError, ValueError) as error:
    raise ValueError(f"{FLAG}: {error}") from error
  os.rmdir(pipeline.local_tempdir)  # it will not run
  unknown = sorted(set(given) - set(known))
  # A runner in another language has options of its own, which it checks.
  if unknown and not isinstance(
    pipeline.runner, portable_runner.PortableRunner
  ):
    raise ValueError(
      f"{FLAG}: Beam has no option --{unknown[0]}; its options are those of "
      "PipelineOptions in Beam's documentation, without the dashes"
    )


def write_parts(
  jobs: Sequence[tuple[Part, pathlib.Path]],
  sizes: Mapping[str, int | None],
  options: Sequence[str],
  show: Callable[..., None],
  *,
  shared: str | None = None,
) -> None:
  """Writes parts on the workers of a Beam pipeline, and waits for them.

  Args:
    jobs: Parts, and the stems of their files, see `records.write_part`.
    sizes: The options of `records.write_part`.
    options: Options of Beam, which `check_options` has seen.
    show: `show(written, more)` reports the number of parts written so far.
    shared: A folder in a bucket, through which the files go, if workers do not
      see the folder of the stems; parts that are in it are not written again.

  Raises:
    OSError: If the pipeline fails.
    ValueError: If the parts were written, but to another storage.
  """
  import apache_beam as beam

  stems = [os.fspath(stem) for _, stem in jobs]
  for (part, _), stem in zip(jobs, stems, strict=True):
    save_job(part, stem)
  if shared is not None:
    stems = [f"{shared}/{stem.name}" for _, stem in jobs]
    for (_, stem), far in zip(jobs, stems, strict=True):
      bucket.upload(stem.with_suffix(".job"), f"{far}.job")
  pipeline = _pipeline(options)
  log.info("Beam's %s begins", type(pipeline.runner).__name__)
  _ = (
    pipeline
    | "list parts" >> beam.Create(stems)
    | "spread parts" >> beam.Reshuffle()
    | "write parts" >> beam.Map(run_job, sizes=dict(sizes), versions=VERSIONS)
  )
  try:
    with progress.every_period(lambda: show(_num_written(stems))):
      result = pipeline.run()
      result.wait_until_finish()
  except Exception as error:  # each runner has its own
    *_, reason = str(error).strip().splitlines() or [type(error).__name__]
    if reason.startswith("KeyboardInterrupt"):  # in a worker in this process
      raise KeyboardInterrupt from error
    raise OSError(
      f"the Beam pipeline has failed; finished parts are kept: {reason}"
    ) from error
  if missing := len(stems) - _num_written(stems):
    raise ValueError(
      f"the Beam pipeline has ended, but {missing} of its {len(stems)} parts "
      f"are not in {os.path.dirname(stems[0])}; --data_dir must be a folder "
      "that all workers share, and the pipeline must not be cancelled"
    )
  if shared is not None:
    fetch = progress.reporter("finished parts copied here", len(stems))
    for done, ((_, stem), far) in enumerate(zip(jobs, stems, strict=True), 1):
      for ending in ENDINGS:
        bucket.download(f"{far}.{ending}", stem.with_suffix(f".{ending}"))
      fetch(done)
    bucket.remove(shared)
  show(len(stems), ", ".join(f"{n} {name}" for name, n in _counts(result)))


def save_job(part: Part, stem: str) -> None:
  """Writes STEM.job, from which a worker learns what to read.

  Runners take small pipelines only, and a part of a table may have megabytes.

  Args:
    part: The part.
    stem: The stem of its files, see `records.write_part`.
  """
  with replacing(f"{stem}.job") as new, new.open("wb") as file:
    pickle.dump((part, _witness(part)), file)


def run_job(
  stem: str, *, sizes: Mapping[str, int | None], versions: Mapping[str, str]
) -> None:
  """Writes a part on a worker, if it sees what the launching process sees.

  Args:
    stem: The stem of a part, for which `save_job` was called; it may be in a
      bucket.
    sizes: The options of `records.write_part`.
    versions: `VERSIONS` of the launching process.

  Raises:
    ValueError: If files are missing here, or versions differ.
  """
  here = f"the worker on {socket.gethostname()}"
  if versions != VERSIONS:
    raise ValueError(
      f"{here} has {VERSIONS}, the launching process {dict(versions)}; install "
      "the same versions on all workers"
    )
  if not bucket.exists(f"{stem}.job"):
    raise ValueError(
      f"{here} does not see {stem}.job; --data_dir must be a folder that all "
      "workers share, or in a bucket"
    )
  if bucket.is_remote(stem):
    if not bucket.exists(f"{stem}.npz"):
      with tempfile.TemporaryDirectory(prefix="nuclr-") as folder:
        near = os.path.join(folder, os.path.basename(stem))
        bucket.download(f"{stem}.job", pathlib.Path(f"{near}.job"))
        run_job(near, sizes=sizes, versions=versions)
        for ending in ENDINGS:
          bucket.upload(pathlib.Path(f"{near}.{ending}"), f"{stem}.{ending}")
    return
  with open(f"{stem}.job", "rb") as file:
    part, witness = pickle.load(file)
  if witness is not None and not os.path.exists(witness):
    raise ValueError(
      f"{here} does not see {witness}; --input, and the images that it names, "
      "must be on storage that all workers share, at the same paths"
    )
  from apache_beam.metrics import Metrics

  counts = records.write_part(part, stem, **sizes)
  for name, count in zip(("images", "rejected"), counts, strict=True):
    Metrics.counter(COUNTERS, name).inc(count)


def _pipeline(options: Sequence[str]):
  """Makes an empty pipeline, whose workers log errors only."""
  import apache_beam as beam
  from apache_beam.options import pipeline_options

  chosen = pipeline_options.PipelineOptions(list(options))
  workers = chosen.view_as(pipeline_options.WorkerOptions)
  if workers.default_sdk_harness_log_level is None:
    workers.default_sdk_harness_log_level = "ERROR"
  return beam.Pipeline(options=chosen)


def _witness(part: Part) -> str | None:
  """Returns a file that a part reads and that exists, if there is one.

  A worker that does not see it would take all of the input for missing.
  """
  first = part.read.args[0]  # a file, a folder, or the rows of a table
  rows = [] if isinstance(first, str) else first
  paths = [x.path for x in rows if isinstance(x, Row)] or [first]
  return next((x for x in paths if os.path.exists(x)), None)


def _num_written(stems: Sequence[str]) -> int:
  """Counts the parts that are finished."""
  folder = os.path.dirname(stems[0])
  far = bucket.is_remote(folder)
  names = bucket.names_in(folder) if far else set(os.listdir(folder))
  return sum(f"{os.path.basename(stem)}.npz" in names for stem in stems)


def _counts(result) -> Iterator[tuple[str, int]]:
  """Yields the counters of a pipeline, if its runner keeps any."""
  with contextlib.suppress(NotImplementedError):
    for counter in result.metrics().query()["counters"]:
      if counter.key.metric.namespace == COUNTERS:
        yield counter.key.metric.name, counter.result
