"""Converts arrays of a published layout to params and state, and back."""

from collections.abc import Iterator, Mapping, Sequence
import logging
import math
import re
import statistics
from typing import Any, NamedTuple

import jax
import numpy as np

from nuclr_jax.lab.models.pretrained.conversions import CONVERSIONS
from nuclr_jax.lab.models.pretrained.layouts import LAYOUTS, Layout, Rule
from nuclr_jax.types import Params, PyTree, Sides

log = logging.getLogger(__name__)
MORE = 16  # times as many patches as in a file

Tensors = Mapping[str, np.ndarray]


class Match(NamedTuple):
  """A rule with its numbers filled in."""

  ours: list[str]
  theirs: list[str]
  kind: str


def recognize(keys: Sequence[str]) -> str:
  """Returns the name of the layout that a file with these keys has.

  Args:
    keys: All keys of the file.

  Raises:
    ValueError: If the keys fit no layout, or several.

  Example:
    >>> recognize(["conv1.weight", "layer1.0.conv1.weight"])
    'torchvision_resnet'
  """
  names = [
    name
    for name, layout in LAYOUTS.items()
    if _has(layout.mark, layout, keys)
    and not (layout.needs and not _has(layout.needs, layout, keys))
    and not (layout.unless and _has(layout.unless, layout, keys))
  ]
  if len(names) != 1:
    raise ValueError(
      f"the keys must fit one of the layouts {sorted(LAYOUTS)}, but they fit "
      f"{names or 'none'}: {_first_ten(keys)}; give a file as one of these "
      "libraries saves it"
    )
  return names[0]


def check_sizes(
  shapes: Mapping[str, Sequence[int]],
  side: str,
  tower: Mapping[str, Any],
  image_size: int,
) -> None:
  """Raises ValueError unless a tower is as deep and as long as that of a file.

  A tower that is not might take forever to build, before `from_layout` could
  compare all shapes.

  Args:
    shapes: The shapes of the file's arrays, by key.
    side: "image" or "text".
    tower: The arguments of the tower's factory.
    image_size: The height and width of images; their patches may be up to
      `MORE` times as many as in the file.
  """
  name = recognize(list(shapes))
  layout = LAYOUTS[name]
  bare = {_bare(key, layout): shape for key, shape in shapes.items()}
  number = "b" if "stages" in tower else "i"  # which counts its layers
  blocks, rows = [], 0
  for rule in _rules_of(name, (side,)):
    for template in rule.theirs:
      pattern = re.compile(_pattern(template))
      matches = list(filter(None, map(pattern.fullmatch, bare)))
      if matches and number in pattern.groupindex:
        numbers = [key.groupdict() for key in matches]
        blocks.append(len({tuple(map(x.get, "sbi")) for x in numbers}))
      if rule.ours[-1 if side == "image" else 0] == f"{side}/positions":
        for key in matches:
          rows = rows or math.prod(bare[key[0]][:-1])
  # Some arrays are in a few layers only, up to half of those of a ResNet: the
  # others count.
  layers = statistics.median_high(blocks or [0])
  expected = sum(tower.get("stages", ())) or tower.get("layers", layers)
  if expected != layers:
    raise ValueError(
      f"the {side} tower has {layers:,} layers in the weights, and "
      f"{expected:,} in the config"
    )
  own = tower.get("grid", 0) ** 2
  if side == "image" and own and own != rows:
    raise ValueError(
      f"the weights have {rows:,} learned positions of patches, and the config "
      f"has {own:,}"
    )
  patches = (image_size // tower.get("patch", image_size)) ** 2
  if side == "image" and rows and patches > MORE * rows:
    raise ValueError(
      f"images of {image_size} x {image_size} have {patches:,} patches, and "
      f"the weights are for {rows:,}; up to {MORE} times as many are possible"
    )
  if side == "text" and (length := tower.get("max_length", rows)) != rows:
    raise ValueError(
      f"the weights are for texts of {rows:,} tokens, and the config has "
      f"{length:,}"
    )


def from_layout(
  tensors: Tensors,
  layout: str,
  params: Params,
  state: PyTree,
  *,
  sides: Sequence[str] | None = None,
) -> tuple[Params, PyTree]:
  """Puts the arrays of a file where they belong in a model.

  Position embeddings of images are resized to the model's grid by bicubic
  interpolation with antialiasing, as Pillow, timm and OpenCLIP do it. (DINOv2's
  own code does not antialias, and its cubic kernel has a = -0.75 instead of
  -0.5. Both agree for images of 518 x 518 pixels, which its files are of; for
  others the features differ.) Those of CLIP's texts are stretched (see
  `clip_text`).

  Args:
    tensors: Arrays by key, of any floating dtype. Arrays that a tower does not
      use, such as classification heads, are ignored.
    layout: A name in `layouts.LAYOUTS`.
    params: The params of a `dual_encoder`; of those replaced, only the shapes
      matter.
    state: The model's state; of what is replaced, only the shapes matter.
    sides: Which of "image" and "text" to read; None reads those that the layout
      has. A CLIP file also sets the projections of these sides.

  Returns:
    The new params and state; arrays that were read are float32 NumPy arrays.

  Raises:
    ValueError: If keys are missing or left over, if shapes differ, or if the
      file has no projection for a side that the model projects.

  Example:
    >>> tensors = pretrained.read_tensors("a.safetensors")  # doctest: +SKIP
    >>> params, state = from_layout(  # doctest: +SKIP
    ...   tensors, "torchvision_resnet", params, state
    ... )
  """
  leaves = _leaves((params, state))
  shapes = {name: x.shape for name, x in leaves.items()}
  tensors, matches = check_layout(tensors, layout, shapes, sides)
  for match in matches:
    for key in match.theirs:
      if tensors[key].dtype.kind in "biu":
        raise ValueError(
          f"{key!r} is of {tensors[key].dtype}: quantized weights cannot be "
          "read; save the model in float16, bfloat16 or float32"
        )
    theirs = [np.asarray(tensors[key], np.float32) for key in match.theirs]
    ours = CONVERSIONS[match.kind].read(theirs, [shapes[x] for x in match.ours])
    for name, x in zip(match.ours, ours, strict=True):
      leaves[name] = np.ascontiguousarray(x)
  return jax.tree.unflatten(
    jax.tree.structure((params, state)), leaves.values()
  )


def check_layout(tensors: Tensors, layout: str, shapes: Mapping, sides=None):
  """Checks that a file has all arrays of a model, and returns how they match.

  Args:
    tensors: Arrays by key; only their shapes matter.
    layout: A name in `layouts.LAYOUTS`.
    shapes: The shapes of params and state, by slash-joined name.
    sides: As for `from_layout`.

  Returns:
    The arrays by bare key, and the matches.

  Raises:
    ValueError: As `from_layout`.
  """
  matches = _matches(layout, shapes, sides)
  bare = {_bare(key, LAYOUTS[layout]): x for key, x in tensors.items()}
  _check_keys(bare, layout, matches, sides)
  _check_shapes(bare, matches, shapes)
  return bare, matches


def to_layout(
  params: Params,
  state: PyTree,
  layout: str,
  *,
  sides: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
  """Returns the arrays of a model by the keys of another library.

  Args:
    params: The params of a `dual_encoder`.
    state: The model's state.
    layout: A name in `layouts.LAYOUTS`.
    sides: Which of "image" and "text" to write; None writes those that the
      layout has.

  Returns:
    float32 arrays by key, without the prefix that some files have.

  Raises:
    ValueError: If a tower is of a kind that the layout does not describe, or
      if it has no place for a projection.

  Example:
    >>> from nuclr_jax.lab import models
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
    ours = [np.asarray(leaves[name], np.float32) for name in match.ours]
    theirs = CONVERSIONS[match.kind].write(ours, len(match.theirs))
    arrays = map(np.ascontiguousarray, theirs)
    tensors.update(zip(match.theirs, arrays, strict=True))
  return tensors


def _leaves(tree: PyTree) -> dict[str, Any]:
  """Returns the arrays of params and state by slash-joined name."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  name = jax.tree_util.keystr
  return {name(path[1:], simple=True, separator="/"): x for path, x in leaves}


def _bare(key: str, layout: Layout) -> str:
  """Returns a key without the layout's prefix and with the current endings.

  Old BERT files have LayerNorm.gamma and LayerNorm.beta.
  """
  key = key.removeprefix(layout.prefix)
  key = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", key)
  return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", key)


def _has(pattern: str, layout: Layout, keys: Sequence[str]) -> bool:
  return any(re.fullmatch(pattern, _bare(key, layout)) for key in keys)


def _pattern(template: str) -> str:
  """Returns a template's regular expression; `{i1}` matches what `{i}` does."""
  parts = re.split(r"\{(\w)1?\}", template)
  parts[::2] = map(re.escape, parts[::2])
  parts[1::2] = [rf"(?P<{name}>\d+)" for name in parts[1::2]]
  return "".join(parts)


def _matches(
  layout: str, names: Mapping, sides: Sequence[str] | None
) -> list[Match]:
  """Returns the layout's rules, filled in for every array that they cover.

  An array that several rules cover is that of the first.

  Raises:
    ValueError: If a tower has arrays that no rule covers, or if a layout of
      both towers does not cover a projection.
  """
  matches, covered = [], set()
  rules = list(_rules_of(layout, sides))
  for rule in rules:
    pattern = re.compile(_pattern(rule.ours[0]))
    rest = (name for name in names if name not in covered)
    for name in filter(None, map(pattern.fullmatch, list(rest))):
      numbers = {key: int(value) for key, value in name.groupdict().items()}
      numbers |= {f"{key}1": value + 1 for key, value in numbers.items()}
      ours, theirs = (
        [template.format(**numbers) for template in templates]
        for templates in (rule.ours, rule.theirs)
      )
      matches.append(Match(ours, theirs, rule.kind))
      covered.update(ours)
  towers = tuple({f"{rule.ours[0].split('/')[0]}/" for rule in rules})
  towers = tuple(x for x in towers if "projection" not in x)
  uncovered = [x for x in names if x.startswith(towers) and x not in covered]
  if uncovered:
    raise ValueError(
      f"the layout is {layout}, which describes another kind of tower: it has "
      f"no {_first_ten(uncovered)}"
    )
  described = [x for rule in rules for x in rule.ours if "projection" in x]
  lost = [f"{side}_projection" for side in Sides._fields]
  lost = [x for x in lost if x in names and x not in described]
  if described and len(towers) == 2 and lost:
    raise ValueError(
      f"the layout is {layout}, which has no {lost[0]}; leave the side out of "
      "projected"
    )
  return matches


def _rules_of(layout: str, sides: Sequence[str] | None) -> Iterator[Rule]:
  """Yields a layout's rules for these sides, or for all sides that it has."""
  spec = LAYOUTS[layout]
  known = [side for side in Sides._fields if getattr(spec, side)]
  for side in known if sides is None else sides:
    if side not in known:
      raise ValueError(f"the layout is {layout}, which has no {side} tower")
    yield from getattr(spec, side)


def _check_keys(tensors, layout, matches, sides) -> None:
  """Raises ValueError if keys are missing or left over; logs ignored ones."""
  spec = LAYOUTS[layout]
  wanted = {key for match in matches for key in match.theirs}
  missing = sorted(wanted - set(tensors))
  # Where a file holds both towers, the keys of the unread one are known, too.
  unread = set(spec.image + spec.text) - set(_rules_of(layout, sides))
  known = [*spec.ignored, *(_pattern(x) for r in unread for x in r.theirs)]
  unused = sorted(set(tensors) - wanted)
  extra = [x for x in unused if not any(re.fullmatch(p, x) for p in known)]
  if merged := [x for x in extra if "reparam_conv" in x]:
    raise ValueError(
      f"the branches of {len(merged) // 2} convolutions are merged for "
      f"inference ({merged[0]}), and are read as they were trained only; give "
      "the file from before that, as OpenCLIP publishes it"
    )
  problems = [
    f"{len(keys)} keys are {what}: {_first_ten(keys)}"
    for what, keys in (("missing", missing), ("left over", extra))
    if keys
  ]
  if problems:
    projections = {
      key
      for rule in _rules_of(layout, sides)
      for key in rule.theirs
      if "projection" in rule.ours[0]
    }
    hint = "does the file belong to a tower of this size?"
    if projections & {*missing, *extra}:
      hint = "projected and projection_bias must be those of the file"
    raise ValueError(
      f"the layout is {layout}, but {'; '.join(problems)}; {hint}"
    )
  # The scale of the logits is read elsewhere, as the temperature.
  if unused := [x for x in unused if x not in ("logit_scale", "logit_bias")]:
    log.info(
      "%s: %d of %d arrays not loaded into the towers: %s",
      layout,
      len(unused),
      len(tensors),
      _first_ten(unused),
    )


def _check_shapes(tensors, matches, shapes) -> None:
  """Raises ValueError unless the arrays fit our shapes."""
  wrong, names = [], []
  for match in matches:
    conversion = CONVERSIONS[match.kind]
    ours = [shapes[x] for x in match.ours]
    if conversion.any_length == 0:  # any number of positions
      ours = [(*(1,) * (len(x) - 1), x[-1]) for x in ours]
    # A broadcast scalar has our shape, but takes no memory.
    ours = [np.broadcast_to(np.float32(0), x) for x in ours]
    expected = conversion.write(ours, len(match.theirs))
    for i, (key, x) in enumerate(zip(match.theirs, expected, strict=True)):
      start = -1 if i == conversion.any_length else 0
      shape = tensors[key].shape
      if shape[start:] != x.shape[start:] or len(shape) != x.ndim:
        wrong.append(f"{key} {list(shape)} instead of {list(x.shape)}")
        names.append(match.ours[0])
  hints = {
    "text/tokens": "the tokenizer's vocabulary must be that of the file",
    "image_projection": "the model's dim must be that of the file",
    "text_projection": "the model's dim must be that of the file",
  }
  if wrong:
    hint = "".join(sorted({f"; {hints[x]}" for x in names if x in hints}))
    raise ValueError(
      f"{len(wrong)} arrays have other shapes: {_first_ten(wrong)}{hint}"
    )


def _first_ten(names: Sequence[str]) -> str:
  """Joins the first ten names, and says how many more there are."""
  names = list(names)
  rest = f" and {len(names) - 10} more" if len(names) > 10 else ""
  return ", ".join(map(str, names[:10])) + rest
