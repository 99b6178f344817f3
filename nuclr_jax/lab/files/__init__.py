"""Files and folders, on this machine and in buckets.

`writing` writes files that are never seen half-written, and follows no links;
`local` reads files from untrusted sources, and locks folders. Their functions
are those of this package, with those of `untrusted`, which keeps libraries from
filling the memory or panicking, and of `hidden`, which says what is not part of
a data set. `bucket` reads from gs:// and s3://, and `remote` copies from there
and back; `copies`, `push`, `lease` and `checksum` are its parts.
"""

from nuclr_jax.lab.files import bucket, remote
from nuclr_jax.lab.files.hidden import is_hidden, visible
from nuclr_jax.lab.files.local import (
  DIGESTS,
  LOCK,
  UnreadableError,
  allow_open,
  as_pattern,
  check_digests,
  complete_folder,
  damage,
  has_digests,
  inside,
  join_damage,
  keep_trying,
  locked,
  read_arrays,
  read_json,
  read_json_lines,
  reading,
  state_of,
  write_digests,
)
from nuclr_jax.lab.files.untrusted import (
  LITTLE,
  MAX_EXPANSION,
  MAX_IMAGE,
  check_expansion,
  check_size,
  parse_json,
  without_panics,
)
from nuclr_jax.lab.files.writing import (
  check_no_link,
  check_no_links,
  folder_in,
  fresh_folder,
  open_in_place,
  replacing,
  write_atomically,
  write_json,
  write_text,
)

__all__ = [
  "DIGESTS",
  "LITTLE",
  "LOCK",
  "MAX_EXPANSION",
  "MAX_IMAGE",
  "UnreadableError",
  "allow_open",
  "as_pattern",
  "bucket",
  "check_digests",
  "check_expansion",
  "check_no_link",
  "check_no_links",
  "check_size",
  "complete_folder",
  "damage",
  "folder_in",
  "fresh_folder",
  "has_digests",
  "inside",
  "is_hidden",
  "join_damage",
  "keep_trying",
  "locked",
  "open_in_place",
  "parse_json",
  "read_arrays",
  "read_json",
  "read_json_lines",
  "reading",
  "remote",
  "replacing",
  "state_of",
  "visible",
  "without_panics",
  "write_atomically",
  "write_digests",
  "write_json",
  "write_text",
]
