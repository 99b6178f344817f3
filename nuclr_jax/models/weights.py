"""From published layouts of weights to params and state, and back."""

from collections.abc import Iterator, Mapping, Sequence
import logging
import re
from typing import Any, NamedTuple

import jax
import numpy as np

from nuclr_jax.models.conversions import CONVERSIONS
from nuclr_jax.models.layouts import LAYOUTS
from nuclr_jax.models.rules import Layout, Rule
from nuclr_jax.types import Params, PyTree, Sides

log = logging.getLogger(__name__)

Tensors = Mapping[str, np.ndarray]


class Match(NamedTuple):
  """A rule with its numbers filled in."""

  ours: list[str]
  theirs: list[str]
  kind: str


def recognize(keys: Sequence[str]) -> str:
  """The name of the layout that has such keys.

  Args:
    keys: Of a file.

  Raises:
    ValueError: If none has, or several.

  Example:
    >>> recognize(["conv1.weight", "layer1.0.conv1.weight"])
    'torchvision_resnet'
  """
  found = [
    name
    for name, layout in LAYOUTS.items()
    if any(re.fullmatch(layout.mark, _bare(key, layout)) for key in keys)
  ]
  if len(found) != 1:
    raise ValueError(
      f"the keys must be of one known layout, {sorted(LAYOUTS)}; found "
      f"{found or 'none'} in {_some(keys)}"
    )
  return found[0]


def from_layout(
  tensors: Tensors,
  layout: str,
  params: Params,
  state: PyTree,
  *,
  sides: Sequence[str] | None = None,
) -> tuple[Params, PyTree]:
  """Puts a file's arrays where they belong in a model.

  Args:
    tensors: Arrays by key, of any floating dtype; what is of no use here, such
      as classification heads, is left out.
    layout: A name in `layouts.LAYOUTS`.
    params: Of a `dual_encoder`; only shapes matter.
    state: Likewise.
    sides: Which of "image" and "text" to read; None means those that the layout
      has. A side of a CLIP file brings its projection, too.

  Returns:
    Params and state; the arrays that were read are of NumPy and float32.

  Raises:
    ValueError: If keys are missing or left over, or shapes differ.

  Example:
    >>> tensors = pretrained.read("resnet50.safetensors")  # doctest: +SKIP
    >>> params, state = from_layout(  # doctest: +SKIP
    ...   tensors, "torchvision_resnet", params, state
    ... )
  """
  spec = LAYOUTS[layout]
  leaves = _leaves((params, state))
  shapes = {name: x.shape for name, x in leaves.items()}
  matches = _matches(layout, shapes, sides)
  tensors = {_bare(key, spec): x for key, x in tensors.items()}
  _check_keys(tensors, layout, matches, sides)
  _check_shapes(tensors, matches, shapes)
  for match in matches:
    theirs = [np.asarray(tensors[x], np.float32) for x in match.theirs]
    arrays = CONVERSIONS[match.kind].read(
      theirs, [shapes[x] for x in match.ours]
    )
    for name, x in zip(match.ours, arrays, strict=True):
      leaves[name] = np.ascontiguousarray(x)
  return jax.tree.unflatten(
    jax.tree.structure((params, state)), leaves.values()
  )


def to_layout(
  params: Params,
  state: PyTree,
  layout: str,
  *,
  sides: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
  """A model's arrays as a file of another library has them.

  Args:
    params: Of a `dual_encoder`.
    state: Likewise.
    layout: A name in `layouts.LAYOUTS`.
    sides: Which of "image" and "text" to write; None means those that the
      layout has.

  Returns:
    float32 arrays by key, without the prefix that some files have.

  Raises:
    ValueError: If this kind of tower has no such layout.

  Example:
    >>> from nuclr_jax import models
    >>> model = models.towers(
    ...   image_shape=(32, 32, 3),
    ...   vocab_size=9,
    ...   length=4,
    ...   image=dict(name="resnet50", stages=(1,), width=4),
    ...   text=dict(name="distilbert", width=8, layers=1, heads=2),
    ... )
    >>> params, state = model.init(jax.random.key(0))
    >>> tensors = to_layout(params, state, "hf_distilbert")
    >>> len(tensors), tensors["embeddings.word_embeddings.weight"].shape
    (20, (9, 8))
  """
  leaves = _leaves((params, state))
  tensors = {}
  for match in _matches(layout, leaves, sides):
    ours = [np.asarray(leaves[x], np.float32) for x in match.ours]
    theirs = CONVERSIONS[match.kind].write(ours, len(match.theirs))
    arrays = map(np.ascontiguousarray, theirs)
    tensors.update(zip(match.theirs, arrays, strict=True))
  return tensors


def _leaves(tree: PyTree) -> dict[str, Any]:
  """Arrays by slash-joined name, params and state in one dict."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  name = jax.tree_util.keystr
  return {name(path[1:], simple=True, separator="/"): x for path, x in leaves}


def _bare(key: str, layout: Layout) -> str:
  """A key without the layout's prefix; old files have other endings."""
  key = key.removeprefix(layout.prefix)
  key = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", key)
  return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", key)


def _pattern(template: str) -> str:
  """A template's regular expression; `{i1}` matches as `{i}` does."""
  parts = re.split(r"\{(\w)1?\}", template)
  parts[::2] = map(re.escape, parts[::2])
  parts[1::2] = [rf"(?P<{name}>\d+)" for name in parts[1::2]]
  return "".join(parts)


def _matches(
  layout: str, names: Mapping, sides: Sequence[str] | None
) -> list[Match]:
  """All that a model has of a layout's rules."""
  matches, covered = [], set()
  rules = list(_rules(layout, sides))
  for rule in rules:
    pattern = re.compile(_pattern(rule.ours[0]))
    for found in filter(None, map(pattern.fullmatch, names)):
      numbers = {key: int(value) for key, value in found.groupdict().items()}
      numbers |= {f"{key}1": value + 1 for key, value in numbers.items()}
      ours, theirs = (
        [name.format(**numbers) for name in part]
        for part in (rule.ours, rule.theirs)
      )
      matches.append(Match(ours, theirs, rule.kind))
      covered.update(ours)
  towers = tuple({f"{rule.ours[0].split('/')[0]}/" for rule in rules})
  towers = tuple(x for x in towers if "projection" not in x)
  other = [x for x in names if x.startswith(towers) and x not in covered]
  if other:
    raise ValueError(
      f"the layout is {layout}, which is of another kind of tower: it has no "
      f"{_some(other)}"
    )
  return matches


def _rules(layout: str, sides: Sequence[str] | None) -> Iterator[Rule]:
  """A layout's rules for some sides."""
  spec = LAYOUTS[layout]
  there = [side for side in Sides._fields if getattr(spec, side)]
  for side in there if sides is None else sides:
    if side not in there:
      raise ValueError(f"the layout is {layout}, which has no {side} tower")
    yield from getattr(spec, side)


def _check_keys(tensors, layout, matches, sides) -> None:
  """Raises ValueError if keys are missing or left over; logs ignored ones."""
  spec = LAYOUTS[layout]
  wanted = {key for match in matches for key in match.theirs}
  missing = sorted(wanted - set(tensors))
  other = set(spec.image + spec.text) - set(_rules(layout, sides))
  known = [*spec.ignored, *(_pattern(x) for r in other for x in r.theirs)]
  unused = sorted(set(tensors) - wanted)
  extra = [x for x in unused if not any(re.fullmatch(p, x) for p in known)]
  problems = [
    f"{len(keys)} keys are {what}: {_some(keys)}"
    for what, keys in (("missing", missing), ("left over", extra))
    if keys
  ]
  if problems:
    raise ValueError(
      f"the layout is {layout}, but {'; '.join(problems)}; is it a file of a "
      "tower of this size?"
    )
  if unused:
    log.info("%s: %d arrays not used: %s", layout, len(unused), _some(unused))


def _check_shapes(tensors, matches, shapes) -> None:
  """Raises ValueError unless arrays have the shapes of ours."""
  wrong, names = [], []
  for match in matches:
    ours = [np.broadcast_to(np.float32(0), shapes[x]) for x in match.ours]
    conversion = CONVERSIONS[match.kind]
    expected = conversion.write(ours, len(match.theirs))
    for i, (key, x) in enumerate(zip(match.theirs, expected, strict=True)):
      start = -1 if i == conversion.any_length else 0
      found = tensors[key].shape
      if found[start:] != x.shape[start:] or len(found) != x.ndim:
        wrong.append(f"{key} {list(found)} instead of {list(x.shape)}")
        names.append(match.ours[0])
  hints = {
    "text/tokens": "the tokenizer's vocabulary must be that of the file",
    "image_projection": "the model's dim must be that of the file",
    "text_projection": "the model's dim must be that of the file",
  }
  if wrong:
    hint = "".join(sorted({f"; {hints[x]}" for x in names if x in hints}))
    raise ValueError(
      f"{len(wrong)} arrays have other shapes: {_some(wrong)}{hint}"
    )


def _some(names: Sequence[str]) -> str:
  """The first ten of many names."""
  names = list(names)
  rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
  return ", ".join(map(str, names[:10])) + rest
