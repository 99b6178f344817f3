"""Files and folders, on this machine and in buckets.

`local` writes files that are never seen half-written and reads files from
untrusted sources; its functions are those of this package, with those of
`hidden`, which says what is no part of a data set. `bucket` reads from gs://
and s3://, and `remote` copies from there and back; `copies`, `push`, `lease`
and `checksum` are its parts.
"""

from nuclr_jax.files import bucket, remote
from nuclr_jax.files.hidden import is_hidden, visible
from nuclr_jax.files.local import (
  DIGESTS,
  LITTLE,
  LOCK,
  MAX_EXPANSION,
  UnreadableError,
  allow_open,
  as_pattern,
  check_digests,
  check_expansion,
  complete_folder,
  damage,
  has_digests,
  inside,
  join_damage,
  keep_trying,
  locked,
  read_arrays,
  read_json,
  read_lines,
  reading,
  state_of,
  write_atomically,
  write_digests,
  write_json,
)
from nuclr_jax.files.untrusted import check_size, without_panics

__all__ = [
  "DIGESTS",
  "LITTLE",
  "LOCK",
  "MAX_EXPANSION",
  "UnreadableError",
  "allow_open",
  "as_pattern",
  "bucket",
  "check_digests",
  "check_expansion",
  "check_size",
  "complete_folder",
  "damage",
  "has_digests",
  "inside",
  "is_hidden",
  "join_damage",
  "keep_trying",
  "locked",
  "read_arrays",
  "read_json",
  "read_lines",
  "reading",
  "remote",
  "state_of",
  "visible",
  "without_panics",
  "write_atomically",
  "write_digests",
  "write_json",
]
