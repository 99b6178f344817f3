"""Makes a prepared data set, which TFDS can read, from users' files.

The input is cut into parts, which processes check and write independently.
Finished parts are kept, so that the same call resumes after any interruption. A
bad item never stops the work and never vanishes: everything that was left out
is listed beside the records, with the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import hashlib
import logging
import os
import pathlib
import re
import shutil

from nuclr_jax.lab import distributed, files, progress
from nuclr_jax.lab.data.images import MAX_PIXELS, MIN_SIZE
from nuclr_jax.lab.data.places import INFO, data_set_path, without_records
from nuclr_jax.lab.ingest import beam, publish, records
from nuclr_jax.lab.user_files import inputs
from nuclr_jax.lab.user_files.items import Part

log = logging.getLogger(__name__)

VERSION = "1.0.0"
FORMAT = 3  # of unfinished work, which can be resumed in the same format only


def ingest(
  input: str,
  name: str,
  *,
  data_dir: str | os.PathLike | None = None,
  split: str | None = None,
  images: str | os.PathLike | None = None,
  image_column: str | None = None,
  caption_column: str | None = None,
  split_column: str | None = None,
  max_size: int | None = None,
  max_pixels: int | None = None,
  workers: int | None = None,
  in_place: bool = False,
  beam_options: Sequence[str] | None = None,
) -> pathlib.Path:
  """Makes a data set of images with captions, or adds a split to one.

  Record i of a split is the i-th good image of the input, with one or more
  captions and its key in the input (keys may repeat in different files).
  Everything that was rejected is listed in NAME-SPLIT.rejected.jsonl.

  Args:
    input: Files of img2dataset (tar or parquet), an annotation table, a folder
      of images with texts or metadata, a folder of `save_to_disk`, or
      `tfds:NAME`; also a pattern, a folder of such files, or a list separated
      by commas. `tfds:NAME` reads the split that `split` names,
      `tfds:NAME:SPLIT` the one in the string.
    name: Name of the data set.
    data_dir: Folder of prepared data sets, see `places.cache_dir`. If it
      is in a bucket, the data set is made here and copied there.
    split: Name of the split, "train" by default. From a table that names
      splits, in a column or as Karpathy's does, all of them are made by
      default, else only this one.
    images: Folder that the paths of a table are relative to.
    image_column: Column of the images, if it has an unusual name.
    caption_column: Column of the captions, if it has an unusual name; several
      are separated by commas.
    split_column: Column that names the splits, if it has an unusual name; "" =
      there is none, whatever the names of columns.
    max_size: The largest shorter side of an image, in pixels; larger images are
      shrunk to it.
    max_pixels: Images with more pixels are rejected before they are decoded; by
      default `images.MAX_PIXELS`, 67 million.
    workers: Number of processes that read; by default one for each core. With
      more than one, a script needs `if __name__ == "__main__"`.
    in_place: Whether images stay in the tar files, which are then needed to
      read the data set (see `data.in_place`). Ids and order are the same.
      Images that are not JPEG, or are shrunk, are copied all the same.
    beam_options: Read on the workers of an Apache Beam pipeline with these
      options, such as `["--runner=FlinkRunner"]`, instead of in processes. The
      data set is the same; input and `data_dir` must be on storage that all
      workers share, or in a bucket.

  Returns:
    The folder of the data set.

  Raises:
    ValueError: If the input is not understood or holds no good image, if the
      split exists already, finished from another input, or with other options,
      or if Beam is not installed or does not take its options.
    OSError: If files cannot be written, or if workers fail.

  Example:
    >>> ingest("cc3m/*.tar", "cc3m")  # doctest: +SKIP
    PosixPath('/home/me/.cache/nuclr_jax/cc3m/1.0.0')
  """
  _check(name, split or "train", max_size, max_pixels, workers)
  place = data_set_path(data_dir, name)
  if beam_options is not None:
    if workers is not None:
      raise ValueError(
        f"--workers={workers} is the number of processes without Beam; leave "
        f"it out, and give {beam.FLAG} the option of the runner"
      )
    beam.check_options(beam_options)
  if images is not None:
    images = os.path.abspath(os.path.expanduser(images))
  options = {
    "images": images,
    "image_column": image_column,
    "caption_column": caption_column,
    "split_column": split_column,
  }
  plan = inputs.plan(input, split=split, data_dir=data_dir, **options)
  if in_place and not all(str(x[0]).endswith(".tar") for x in plan.files):
    raise ValueError(
      f"--in_place is for tar files, which --input={input} is not; leave the "
      "flag out to copy the images"
    )
  if in_place:
    of_tars = files.bucket.buckets_in(*(x[0] for x in plan.files))
    if others := sorted(of_tars - files.bucket.buckets_in(place)):
      log.info(
        "the images stay in %s: whoever reads the data set needs %s=%s",
        ", ".join(others),
        files.bucket.BUCKETS,
        ",".join(others),
      )
  for planned in {part.split for part in plan.parts}:
    _check(name, planned, max_size, max_pixels, workers)
  sizes = {"max_size": max_size, "max_pixels": max_pixels or MAX_PIXELS}
  how = sizes | {"in_place": in_place}
  with files.remote.local_folder(
    place, choose=without_records, alone=True
  ) as home:
    return _make_splits(plan, home, options, how, workers, beam_options)


def _make_splits(
  plan: inputs.Plan,
  home: pathlib.Path,
  options: Mapping,
  how: Mapping[str, int | bool | None],
  workers: int | None,
  beam_options: Sequence[str] | None,
) -> pathlib.Path:
  """Makes the planned splits in the local folder of a data set."""
  folder, work = home / VERSION, home / "incomplete"
  files.folder_in(home.parent, home.name)
  files.check_no_link(folder)
  files.check_no_links(work)
  splits = list(dict.fromkeys(part.split for part in plan.parts))
  with files.locked(home):
    _remove_half_copied(home, folder)
    existing = publish.published_splits(folder, in_place=how["in_place"])
    _remove_leftovers(work, existing)
    todo = [part for part in plan.parts if part.split not in existing]
    # None, not False: a data set that is older than the option has no value.
    in_place = how["in_place"] or None
    options = {**options, **how, "in_place": in_place, "input": plan.files}
    for old in sorted(set(splits) & set(existing)):
      publish.check_same_options(folder, old, options)
      log.info("split %s is in %s already; it is left as it is", old, folder)
    if todo or not plan.parts:
      made = list(dict.fromkeys(part.split for part in todo))
      cut = {"part_size": inputs.PART_SIZE, "format": FORMAT, "splits": made}
      _begin(work, options | cut)
      workers = workers or distributed.num_cores()
      _write_parts(todo, work, how, workers, beam_options)
      publish.publish(
        [(part.split, _stem(work, part)) for part in todo],
        work,
        folder,
        options,
      )
  return folder


def _check(name, split, max_size, max_pixels, workers) -> None:
  for what, value in (("--dataset", name), ("--split", split)):
    if "[" in value or "+" in value:
      raise ValueError(
        f"{what}={value} is not a name; slices are part of the input, such as "
        "--input='tfds:NAME:train[:10%]', and --split names what is made"
      )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", value) or value == "all":
      raise ValueError(
        f"{what}={value} is not a name; use lower-case letters, digits and _, "
        "with a letter first, and not the word all"
      )
  if max_size is not None and max_size < MIN_SIZE:
    raise ValueError(
      f"--max_size must be at least {MIN_SIZE} pixels, got {max_size}"
    )
  if max_pixels is not None and max_pixels < MIN_SIZE**2:
    raise ValueError(
      f"--max_pixels must be at least {MIN_SIZE**2}, got {max_pixels}"
    )
  if workers is not None and workers < 1:
    raise ValueError(f"--workers must be at least 1, got {workers}")


def _remove_leftovers(work: pathlib.Path, existing: Mapping) -> None:
  """Removes the leftovers of an ingest that was killed after publishing."""
  path = work / "ingest.json"
  made = files.read_json(path)["splits"] if path.exists() else []
  if not made or set(made) & set(existing):  # splits appear together
    shutil.rmtree(work, ignore_errors=True)


def _begin(work: pathlib.Path, options: Mapping) -> None:
  """Records what is being ingested, or checks it against unfinished work."""
  path = work / "ingest.json"
  if path.exists():
    other = publish.differing(path, options)
    if set(other) - {"input"}:
      raise ValueError(
        f"{work} holds an unfinished ingest of another {', '.join(other)}; "
        "finish it with the command that began it, or delete the folder"
      )
    log.info("resuming the work in %s", work)
    if other:
      log.info("the input has changed; what has not changed is not read again")
  files.folder_in(work.parent, work.name)
  files.write_text(path, publish.noted(options))


def _stem(work: pathlib.Path, part: Part) -> pathlib.Path:
  """Names the files of a part by what it reads, so that inputs may change."""
  read = part.read
  facts = part.split, read.func.__name__, read.args, read.keywords, part.stamp
  digest = hashlib.sha256(repr(facts).encode("utf-8", "replace")).hexdigest()
  return work / f"part-{digest[:16]}"


def _write_parts(
  todo: Sequence[Part],
  work: pathlib.Path,
  how: Mapping[str, int | bool | None],
  workers: int,
  beam_options: Sequence[str] | None,
) -> None:
  """Writes the missing parts and logs the progress."""
  for path in work.glob("*.tmp"):
    path.unlink(missing_ok=True)  # a worker that was left behind may end, too
  stems = [_stem(work, part) for part in todo]
  jobs = [
    (part, stem)
    for part, stem in zip(todo, stems, strict=True)
    if not stem.with_suffix(".npz").exists()
  ]
  log.info("%d parts, of which %d must still be read", len(todo), len(jobs))
  done, images, rejected = len(todo) - len(jobs), 0, 0
  show = progress.reporter("parts", len(todo), start=done)
  if jobs and beam_options is not None:
    beam.write_parts(
      jobs,
      how,
      beam_options,
      lambda written, more="": show(done + written, more),
      shared=_shared(work, how),
    )
    return
  for count, counts in enumerate(_results(jobs, how, workers), 1):
    images, rejected = images + counts[0], rejected + counts[1]
    show(done + count, f"{images} images, {rejected} rejected")


def _remove_half_copied(home: pathlib.Path, folder: pathlib.Path) -> None:
  """Removes what is in a bucket of an ingest that was killed at its end."""
  place = files.remote.original(home)
  far = files.bucket.is_remote(place)
  if far and folder.exists() and not (folder / INFO).exists():
    log.warning("%s is incomplete, and is made again", place)
    shutil.rmtree(folder)


def _shared(work: pathlib.Path, how: Mapping) -> str | None:
  """Returns a folder in the bucket that the data set goes to, if it does.

  Parts that were written with other options are in another one.
  """
  place = files.remote.original(work)
  if not files.bucket.is_remote(place):
    return None
  return f"{place}.{hashlib.sha256(repr(how).encode()).hexdigest()[:8]}"


def _results(
  jobs: Sequence[tuple[Part, pathlib.Path]],
  how: Mapping[str, int | bool | None],
  workers: int,
) -> Iterator[tuple[int, int]]:
  """Runs the jobs and yields the result of each as soon as it ends."""
  if min(workers, len(jobs)) <= 1:
    for job in jobs:
      yield records.write_part(*job, **how)
    return
  try:
    with distributed.worker_pool(min(workers, len(jobs))) as pool:
      submitted = [pool.submit(records.write_part, *job, **how) for job in jobs]
      for future in futures.as_completed(submitted):
        yield future.result()
  except futures.process.BrokenProcessPool as error:
    raise OSError(
      "a worker process was killed, perhaps for lack of memory; the same "
      "command resumes, and --workers=N uses fewer processes"
    ) from error
