"""What `config.warm_start` names, and files of popularities to start from."""

import logging
import os
import re
from typing import NamedTuple

import numpy as np

from nuclr_jax.lab.config import ConfigError
from nuclr_jax.lab.data.pair_index import same_data
from nuclr_jax.lab.files import read_arrays, remote, replacing
from nuclr_jax.popularity.exact import Popularity
from nuclr_jax.types import Sides, Sizes

log = logging.getLogger(__name__)

POPULARITY_FILE = "popularity.npz"
EXACT, EXACT_U, PASS_U = "exact", "exact_u", "pass_u"
MOMENTS = re.compile(r"moments(?:=(.*))?")


class WarmStart(NamedTuple):
  """What a run starts with, beside its weights."""

  # of per-sample state: a file, "counts", `EXACT`, `EXACT_U` or `PASS_U`
  rows: str | None = None
  batches: int | None = 0  # most of the pass for the moments; None: an epoch

  @property
  def is_exact(self) -> bool:
    """Whether per-sample state is computed from the first weights."""
    return self.rows in (EXACT, EXACT_U)


def parse(text: str | os.PathLike | None) -> WarmStart:
  """Reads `config.warm_start`.

  Args:
    text: One of these or both, with a comma in between. First, what per-sample
      state starts from: a file of `save_popularity`; "counts"; "exact", u and
      zeta of the first weights; "exact_u", only u; "pass_u", u as the pass for
      the moments leaves it. Then "moments" or "moments=BATCHES" for Adam's
      moments, from an epoch or from so many batches of it.

  Raises:
    ConfigError: If the number of batches is not a whole number of at least 1,
      or missing for "pass_u".

  Example:
    >>> parse("exact,moments=200")
    WarmStart(rows='exact', batches=200)
    >>> parse("popularity.npz"), parse("moments").batches
    (WarmStart(rows='popularity.npz', batches=0), None)
  """
  if text is None:
    return WarmStart()
  rows, comma, last = os.fspath(text).rpartition(",")
  match = MOMENTS.fullmatch(last)
  if last == PASS_U:
    raise ConfigError(
      f"warm_start: {PASS_U} is u of a pass; give {PASS_U},moments or "
      f"{PASS_U},moments=200",
      "warm_start",
    )
  if match is None:
    return WarmStart(os.fspath(text))
  if match[1] is not None and not re.fullmatch("0*[1-9][0-9]{0,8}", match[1]):
    raise ConfigError(
      "warm_start: moments must be a number of batches of at least 1, such as "
      f"moments=200, or alone, for an epoch; got {last!r}",
      "warm_start",
    )
  if comma and not rows:
    raise ConfigError(
      f"warm_start: nothing comes before the comma of {text!r}", "warm_start"
    )
  return WarmStart(rows or None, None if match[1] is None else int(match[1]))


def save_popularity(
  path: str | os.PathLike,
  found: Popularity,
  *,
  temperature: float,
  fingerprint: str,
) -> None:
  """Writes zeta with its ids, the temperature and the data's fingerprint.

  The file also has log_u of every pair, for inspection; runs do not read it.
  """
  with replacing(path) as new, new.open("wb") as file:
    np.savez(
      file,
      image_id=found.ids.image,
      text_id=found.ids.text,
      zeta_image=found.zeta.image,
      zeta_text=found.zeta.text,
      log_u_image=found.log_u.image,
      log_u_text=found.log_u.text,
      temperature=temperature,
      fingerprint=fingerprint,
    )


def load_zeta(
  path: str | os.PathLike,
  sizes: Sizes,
  *,
  temperature: float,
  fingerprint: str,
) -> Sides:
  """Reads the zeta of every image id and text id of a data set.

  Args:
    path: The file that `save_popularity` wrote.
    sizes: The sizes of the data set.
    temperature: The temperature of the run; a warning is logged if the file has
      another one, because its zeta are then only a starting point.
    fingerprint: The fingerprint of the data set.

  Raises:
    ValueError: If there is no such file, or it belongs to other data.
  """
  path = remote.fetch(path)
  try:
    arrays = read_arrays(path)
    zeta = Sides(arrays["zeta_image"], arrays["zeta_text"])
    ids = Sides(arrays["image_id"], arrays["text_id"])
    file_fingerprint = str(arrays["fingerprint"])
    tau = float(arrays["temperature"])
  except (LookupError, TypeError, ValueError) as error:
    raise ValueError(
      f"warm_start: {path} is not the {POPULARITY_FILE} of a run ({error}); "
      "write one with nuclr popularity --workdir=..."
    ) from error
  if not same_data(file_fingerprint, fingerprint):
    raise ValueError(
      f"warm_start: {path} is of the data {file_fingerprint!r}, this run has "
      f"{fingerprint!r}; solve the popularities of a run on the same data"
    )
  for side, file_ids, size in zip(Sides._fields, ids, sizes.ids, strict=True):
    if not np.array_equal(file_ids, np.arange(size)):
      raise ValueError(
        f"warm_start: {path} has {len(file_ids)} of {size} {side} ids; solve "
        "all pairs"
      )
    of_side = getattr(zeta, side)
    if of_side.shape != (size,) or not np.isfinite(of_side).all():
      raise ValueError(
        f"warm_start: {path} does not have one finite zeta for each {side}; "
        "solve the popularities again"
      )
  if abs(tau - temperature) > 0.01 * temperature:
    log.warning(
      "warm_start: %s has the popularities at temperature %.3g, this run has "
      "%.3g, so they are only a starting point",
      path,
      tau,
      temperature,
    )
  return zeta
