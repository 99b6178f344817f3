"""Rules of published layouts of weights, read in both directions.

A rule pairs our names with a file's keys. `{s}`, `{b}`, `{c}`, `{i}` stand for
numbers, `{s1}` for the number plus one, as torchvision counts stages and
convolutions from 1. The rules of a layout hold for any number of blocks: those
that a model has say which.
"""

from typing import NamedTuple


class Rule(NamedTuple):
  """One or more of our arrays, the keys that hold the same numbers, and how.

  `kind` is a name in `conversions.CONVERSIONS`.
  """

  ours: tuple[str, ...]
  theirs: tuple[str, ...]
  kind: str


class Layout(NamedTuple):
  """How files of one origin name their arrays."""

  mark: str  # a key (regular expression) that no other layout has
  image: tuple[Rule, ...] = ()
  text: tuple[Rule, ...] = ()
  prefix: str = ""  # in front of all keys of the encoder, in some files
  ignored: tuple[str, ...] = ()  # regular expressions of keys of no use here


def make(prefix: str, *rows: tuple[str, str, str]) -> tuple[Rule, ...]:
  """Makes rules of rows of (our names, their keys, kind).

  Args:
    prefix: Of our names: the side.
    rows: Blanks separate several names. A kind of `_LEAVES` stands for all
      arrays of a layer.

  Example:
    >>> [rule.theirs for rule in make("text", ("norm", "ln_final", "norm"))]
    [('ln_final.weight',), ('ln_final.bias',)]
  """
  return tuple(
    Rule(
      tuple(f"{prefix}/{name}{end}" for name in ours.split()),
      tuple(key + their_end for key in theirs.split()),
      leaf_kind,
    )
    for ours, theirs, kind in rows
    for end, their_end, leaf_kind in _LEAVES.get(kind, [("", "", kind)])
  )


_NORM = [("/scale", ".weight", "same"), ("/bias", ".bias", "same")]
# The arrays of a layer: their endings here and there, and their kind.
_LEAVES = {
  "norm": _NORM,
  "batch_norm": [
    *_NORM,
    ("/mean", ".running_mean", "same"),
    ("/var", ".running_var", "same"),
  ],
  "linear": [("/kernel", ".weight", "matrix"), ("/bias", ".bias", "same")],
  "packed": [("/kernel", "_weight", "matrix"), ("/bias", "_bias", "same")],
  "conv": [("/kernel", ".weight", "kernel")],
  "conv_bias": [("/kernel", ".weight", "kernel"), ("/bias", ".bias", "same")],
}


def blocks(
  qkv: str,
  out: str,
  norm1: str,
  norm2: str,
  up: str,
  down: str,
  *,
  packed: bool = False,
) -> tuple[tuple[str, str, str], ...]:
  """Rows of attention blocks; `qkv` is one key or three.

  PyTorch's own attention is `packed`: its keys have other endings.
  """
  return (
    ("blocks/{i}/attention/qkv", qkv, "packed" if packed else "linear"),
    ("blocks/{i}/attention/out", out, "linear"),
    ("blocks/{i}/norm1", norm1, "norm"),
    ("blocks/{i}/norm2", norm2, "norm"),
    ("blocks/{i}/up", up, "linear"),
    ("blocks/{i}/down", down, "linear"),
  )


def within(prefix: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
  """The same rules for the keys of a model that is part of another."""
  return tuple(
    rule._replace(theirs=tuple(prefix + key for key in rule.theirs))
    for rule in rules
  )
