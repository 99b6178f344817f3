"""Rules that pair our names of arrays with the keys of a file.

`{s}`, `{b}`, `{c}` and `{i}` are placeholders for numbers; `{s1}` is that
number plus one, since torchvision counts stages and convolutions from 1. The
rules of a layout hold for any number of blocks: the model determines how many
there are. By `{s}`, `{b}` and `{i}` the blocks of a file are counted; numbers
of what not all blocks have can have other letters.
"""

from typing import NamedTuple

GRID = "class_position positions"
COUNTERS = r".*\.num_batches_tracked"
IDS = r".*\.position_ids"


class Rule(NamedTuple):
  """Our names, the keys of the same numbers in a file, and their conversion.

  `kind` is a name in `conversions.CONVERSIONS`.
  """

  ours: tuple[str, ...]
  theirs: tuple[str, ...]
  kind: str


class Layout(NamedTuple):
  """How the files of one library name their arrays."""

  mark: str  # regular expression of a key that no other layout has
  image: tuple[Rule, ...] = ()
  text: tuple[Rule, ...] = ()
  prefix: str = ""  # before every key of the encoder in some files
  ignored: tuple[str, ...] = ()  # regular expressions of unused keys
  # Regular expressions of another key that it must have, and of one by which a
  # file with the mark is of another layout.
  needs: str | None = None
  unless: str | None = None


Row = tuple[str, str, str]  # our names, their keys, kind; blanks separate names

_NORM = [("/scale", ".weight", "same"), ("/bias", ".bias", "same")]
# Kinds of whole layers: for each array of the layer, the endings of our name
# and of their key, and the array's kind.
_LAYERS = {
  "norm": _NORM,
  "batch_norm": [
    *_NORM,
    ("/mean", ".running_mean", "same"),
    ("/var", ".running_var", "same"),
  ],
  "linear": [("/kernel", ".weight", "matrix"), ("/bias", ".bias", "same")],
  "packed": [("/kernel", "_weight", "matrix"), ("/bias", "_bias", "same")],
  "conv": [("/kernel", ".weight", "kernel")],
  "conv_1x1": [("/kernel", ".weight", "pointwise"), ("/bias", ".bias", "same")],
  "conv_bias": [("/kernel", ".weight", "kernel"), ("/bias", ".bias", "same")],
  "patches": [("/kernel", ".weight", "patches"), ("/bias", ".bias", "same")],
}


def rules(side: str, *rows: Row) -> tuple[Rule, ...]:
  """Expands rows into rules: a layer becomes one rule for each of its arrays.

  Example:
    >>> [rule.theirs for rule in rules("text", ("norm", "ln_final", "norm"))]
    [('ln_final.weight',), ('ln_final.bias',)]
  """
  return tuple(
    Rule(
      tuple(f"{side}/{name}{our_end}" for name in ours.split()),
      tuple(key + their_end for key in theirs.split()),
      array_kind,
    )
    for ours, theirs, kind in rows
    for our_end, their_end, array_kind in _LAYERS.get(kind, [("", "", kind)])
  )


def nested(prefix: str, inner: tuple[Rule, ...]) -> tuple[Rule, ...]:
  """Returns the rules of a model that is part of a larger one."""
  return tuple(
    rule._replace(theirs=tuple(prefix + key for key in rule.theirs))
    for rule in inner
  )


def projection(side: str, key: str) -> tuple[Rule, ...]:
  """Returns the rules of a side's projection as a linear layer."""
  name = f"{side}_projection"
  return (
    Rule((name,), (f"{key}.weight",), "matrix"),
    Rule((f"{name}_bias",), (f"{key}.bias",), "same"),
  )


def block_rows(
  qkv: str,
  out: str,
  norm1: str,
  norm2: str,
  up: str,
  down: str,
  *,
  packed: bool = False,
) -> tuple[Row, ...]:
  """Returns the rows of attention blocks.

  `qkv` is one key, or three separated by blanks. PyTorch's own attention is
  `packed`: the endings of its keys differ.
  """
  return (
    ("blocks/{i}/attention/qkv", qkv, "packed" if packed else "linear"),
    ("blocks/{i}/attention/out", out, "linear"),
    ("blocks/{i}/norm1", norm1, "norm"),
    ("blocks/{i}/norm2", norm2, "norm"),
    ("blocks/{i}/up", up, "linear"),
    ("blocks/{i}/down", down, "linear"),
  )


def pool_rows(
  probe: str,
  qkv: str,
  out: str,
  norm: str,
  up: str,
  down: str,
  *,
  packed: bool = False,
) -> tuple[Row, ...]:
  """Returns the rows of attention pooling by a learned probe."""
  return (
    ("pool/probe", probe, "flat"),
    ("pool/attention/qkv", qkv, "packed" if packed else "linear"),
    ("pool/attention/out", out, "linear"),
    ("pool/norm", norm, "norm"),
    ("pool/up", up, "linear"),
    ("pool/down", down, "linear"),
  )
