"""The optimizer of a run, and schedules in epochs."""

from collections.abc import Iterable, Mapping, Sequence
import math
import re
import types

import jax
import jax.numpy as jnp
import optax

from nuclr_jax import checks
from nuclr_jax.checks import Fraction, Natural, NonNegative, Positive
from nuclr_jax.lab.models import Model
from nuclr_jax.lab.ranges import StepSize, UpToOne
from nuclr_jax.lab.train.average import with_average
from nuclr_jax.types import PyTree, Schedule

DECAYS = ("constant", "cosine", "linear", "sqrt")
Decay = checks.one_of(DECAYS)
# Parts of a tower that embed its input, before the first block.
INPUTS = set("patches tokens positions types stem".split())
INPUTS |= {"class_token", "class_position", "norm_before"}
BLOCK = re.compile(r"model/[^/]+/(?:blocks/\d+|layers/\d+|stages/\d+/\d+)")


def make_schedule(
  value: NonNegative,
  *,
  num_steps: int,
  steps_per_epoch: int,
  freeze_epochs: NonNegative = 0.0,
  warmup_epochs: NonNegative = 0.0,
  warmup_steps: Natural = 0,
  first_value: NonNegative = 0.0,
  decay: Decay = "constant",
  decay_fraction: Positive = 1.0,
  stable_fraction: Fraction = 0.0,
  end_value: NonNegative = 0.0,
  drops: Sequence[Fraction] = (),
) -> Schedule:
  """Makes a schedule: zero, a linear rise, a constant phase, and a decay.

  Warm-up-stable-decay, which keeps its value until the end is near, has a
  `stable_fraction`. Hu et al. decay over the last 10 % of the steps; Hägele et
  al. recommend 20 % and "sqrt", which was better than "linear" there.

  Args:
    value: The value after the rise, at least 0.
    num_steps: Steps of the whole run.
    steps_per_epoch: Steps of an epoch, to convert epochs to steps.
    freeze_epochs: Epochs at the start during which the value is 0.
    warmup_epochs: Epochs of the linear rise from `first_value` that follows.
    warmup_steps: Steps of the rise, in addition to `warmup_epochs`.
    first_value: The value that the rise starts from, at least 0.
    decay: What follows the rise: "constant" keeps the value; "cosine", "linear"
      and "sqrt" lower it to `end_value`. After a share x of the steps of the
      decay, (1 + cos(pi x)) / 2, 1 - x or 1 - sqrt(x) of the way is left.
    decay_fraction: Fraction of the steps after the rise and the constant phase
      that the decay takes, in (0, 1].
    stable_fraction: Fraction of the steps after the rise during which the value
      stays constant before it decays, in [0, 1).
    end_value: The value after the decay, at least 0.
    drops: Fractions of the run, in (0, 1). At each of them the value is divided
      by ten once more.

  Raises:
    ValueError: If the decay is unknown, a value or fraction is out of range, or
      the run is too short for the rise. A rise may take the whole run.

  Example:
    >>> rate = make_schedule(
    ...   1.0, num_steps=10, steps_per_epoch=1, freeze_epochs=2, decay="cosine"
    ... )
    >>> [round(float(rate(step)), 2) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.0, 1.0, 0.5, 0.0]
    >>> rate = make_schedule(
    ...   1, num_steps=10, steps_per_epoch=1, decay="sqrt", stable_fraction=0.6
    ... )
    >>> [round(float(rate(step)), 2) for step in (0, 6, 7, 8, 10)]
    [1.0, 1.0, 0.5, 0.29, 0.0]

  References:
    Hu et al., MiniCPM: Unveiling the Potential of Small Language Models with
    Scalable Training Strategies, COLM 2024.
    Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed
    Training Durations, NeurIPS 2024.
  """
  if decay not in DECAYS:
    raise ValueError(f"decay must be one of {DECAYS}, got {decay!r}")
  values = dict(value=value, first_value=first_value, end_value=end_value)
  if not all(0 <= x < math.inf for x in values.values()):
    raise ValueError(f"values must be finite and at least 0, got {values}")
  if not all(0 < drop < 1 for drop in drops):
    raise ValueError(f"drops must be in (0, 1), got {drops}")
  if not 0 < decay_fraction <= 1:
    raise ValueError(f"decay_fraction must be in (0, 1], got {decay_fraction}")
  if not 0 <= stable_fraction < 1:
    raise ValueError(
      f"stable_fraction must be in [0, 1), got {stable_fraction}"
    )
  freeze = round(freeze_epochs * steps_per_epoch)
  warmup = round(warmup_epochs * steps_per_epoch) + warmup_steps
  rest = num_steps - freeze - warmup
  if freeze < 0 or warmup < 0 or rest < 0 or freeze >= num_steps:
    raise ValueError(
      f"freeze_epochs {freeze_epochs:g}, and warmup_epochs {warmup_epochs:g} "
      f"with warmup_steps {warmup_steps}, are {freeze} and {warmup} steps; "
      "they must be at least 0, together at most the run of "
      f"{num_steps} steps, and freeze_epochs shorter than it; in a short run, "
      "set warmup_epochs to 0"
    )
  stable = 0 if decay == "constant" else round(stable_fraction * rest)
  stable = max(min(stable, rest - 1), 0)
  phases = [
    optax.constant_schedule(0.0),
    optax.linear_schedule(first_value, value, max(warmup, 1)),
  ]
  ends = [freeze, freeze + warmup]
  if stable:
    phases.append(optax.constant_schedule(value))
    ends.append(freeze + warmup + stable)
  steps = max(round(decay_fraction * (rest - stable)), 1)
  phases.append(_decay(decay, value, end_value, steps))
  schedule = optax.join_schedules(phases, ends)
  if not drops:
    return schedule
  factors: dict[int, float] = {}
  for drop in drops:  # of a short run, several may come at one step
    step = round(drop * num_steps)
    factors[step] = 0.1 * factors.get(step, 1.0)
  factor = optax.piecewise_constant_schedule(1.0, factors)
  return lambda step: schedule(step) * factor(step)


@checks.checked
def make_optimizer(
  learning_rate: StepSize | Schedule,
  *,
  weight_decay: StepSize = 0.0,
  clip_norm: NonNegative = 0.0,
  b1: Fraction = 0.9,
  b2: Fraction = 0.999,
  eps: Positive = 1e-8,
  freeze: Sequence[str] = (),
  rate_factors: Mapping[str, Positive] = types.MappingProxyType({}),
  layer_decay: UpToOne = 1.0,
  weight_average: Fraction = 0.0,
) -> optax.GradientTransformation:
  """Makes AdamW that decays matrices only and leaves frozen parameters alone.

  `rate_factors` and `layer_decay` scale the learning rate of parts of the
  model. As in BEiT and in EVA-CLIP (open_clip#268), a factor multiplies the
  whole update of AdamW, with the weight decay. With `layer_decay` d, the parts
  of a tower of L blocks have the factors

    d^(L + 1)  what embeds its input (`INPUTS`), and the norm of a ResNet's stem
    d^(L - i)  block i = 0, ..., L - 1
    1          everything else: other norms, poolers and heads

  The blocks are the entries of `blocks`, of `layers`, or, one stage after the
  other, of `stages`. Parameters outside of towers, such as projections and the
  temperature, have the factor 1.

  Args:
    learning_rate: A number from 0 to 1,000, or a schedule of the step count.
    weight_decay: Weight decay of leaves with two or more axes, from 0 to 1,000.
    clip_norm: The largest global norm of the gradient; 0 does not clip.
    b1: Decay of Adam's first moment, in [0, 1).
    b2: Decay of Adam's second moment, in [0, 1).
    eps: Added to the root of Adam's second moment, greater than 0. Parameters
      with smaller gradients than that move less than the learning rate. A loss
      of a times the gradient takes the same steps with a times the eps.
    freeze: Regular expressions that match names of parameters or of parts of
      the model, such as `model/image` (everything below it) or
      `model/.*/layers/0`. A tower that is frozen as a whole runs in
      evaluation mode; if only parts of it are frozen, its batch statistics are
      still updated.
    rate_factors: Factors of the learning rate by regular expression, which
      matches as in `freeze`: `{"model/image": 0.1}`. Factors of several
      expressions that match the same parameter are multiplied.
    layer_decay: The decay d of the learning rate from one block to the block
      before it, in (0, 1]; 1 has no effect. Dong et al. fine-tune CLIP's
      ViT-B/16 with 0.6 and its ViT-L/14 with 0.65.
    weight_average: Decay of a moving average of the weights, see
      `average.with_average`; 0 keeps none.

  Raises:
    ValueError: If a number is out of range; from `init`, if an expression
      matches no parameter, or if `layer_decay` finds no block.

  Example:
    >>> params = {"model": {"image": {"kernel": jax.numpy.ones((2, 2))}}}
    >>> frozen = make_optimizer(0.1, freeze=("model/image",))
    >>> updates, _ = frozen.update(params, frozen.init(params), params)
    >>> float(updates["model"]["image"]["kernel"].sum())
    0.0

  References:
    Bao et al., BEiT: BERT Pre-Training of Image Transformers, ICLR 2022.
    Dong et al., CLIP Itself is a Strong Fine-tuner, arXiv:2212.06138.
    Sun et al., EVA-CLIP: Improved Training Techniques for CLIP at Scale,
    arXiv:2303.15389.
  """
  steps = [
    optax.adamw(
      learning_rate,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=lambda params: jax.tree.map(lambda x: x.ndim >= 2, params),
    )
  ]
  if clip_norm:
    steps.insert(0, optax.clip_by_global_norm(clip_norm))
  train = optax.chain(*steps)
  if freeze:
    train = optax.partition(
      {"train": train, "frozen": optax.set_to_zero()},
      lambda params: _labels(params, freeze),
    )
  if rate_factors or layer_decay < 1:
    train = optax.chain(train, _scale_by_name(rate_factors, layer_decay))
  return with_average(train, weight_average) if weight_average else train


def is_frozen(name: str, freeze: Sequence[str]) -> bool:
  """Returns whether a pattern matches a parameter, or a part that contains it.

  Args:
    name: The keys on the path to the parameter, joined with slashes.
    freeze: Regular expressions, see `make_optimizer`.

  Raises:
    ValueError: If a pattern is not a regular expression.

  Example:
    >>> names = ("model/image/dense/kernel", "model/image_projection")
    >>> [is_frozen(name, ("model/image",)) for name in names]
    [True, False]
  """
  try:
    return any(_matches(part, name) for part in freeze)
  except re.error as error:
    raise ValueError(
      f"freeze {tuple(freeze)} is not a regular expression: {error}"
    ) from error


def rate_factor(
  name: str, blocks: Sequence[str], layer_decay: UpToOne
) -> float:
  """Returns the factor of the learning rate that `layer_decay` gives.

  Args:
    name: The keys on the path to the parameter, joined with slashes.
    blocks: The names of all blocks, in order, see `blocks_of`.
    layer_decay: The decay from one block to the block before it.

  Example:
    >>> blocks = ["model/text/blocks/0", "model/text/blocks/1"]
    >>> rate_factor("model/text/blocks/0/up/bias", blocks, 0.5)
    0.25
    >>> rate_factor("model/text/tokens", blocks, 0.5)
    0.125
  """
  tower, part = "/".join(name.split("/")[:2]), "".join(name.split("/")[2:3])
  inside = [x for x in blocks if x.startswith(f"{tower}/")]
  for index, block in enumerate(inside):
    if name.startswith(f"{block}/"):
      return layer_decay ** (len(inside) - index)
  inputs = INPUTS
  if inside and inside[0].startswith(f"{tower}/stages/"):
    inputs = INPUTS | {"norm"}  # of the stem; elsewhere it mostly comes last
  return layer_decay ** (len(inside) + 1) if part in inputs else 1.0


def blocks_of(names: Iterable[str]) -> list[str]:
  """Returns the names of the blocks that parameters are in, in their order.

  Example:
    >>> blocks_of(
    ...   ["model/text/blocks/1/up/bias", "model/text/blocks/0/up/bias"]
    ... )
    ['model/text/blocks/0', 'model/text/blocks/1']
  """
  blocks = {match[0] for name in names if (match := BLOCK.match(name))}
  return sorted(blocks, key=lambda x: [int(i) for i in re.findall(r"\d+", x)])


def without_frozen_gradients(model: Model, freeze: Sequence[str]) -> Model:
  """Stops the gradients of a model's frozen parameters.

  The optimizer would drop these gradients anyway. Stopping them saves their
  computation, and the memory of the activations that only they need.

  Args:
    model: Any model.
    freeze: Regular expressions, see `make_optimizer`.

  Returns:
    The model with another `apply`.
  """
  if not freeze:
    return model

  def hold(path, x):
    frozen = is_frozen(f"model/{_name(path)}", freeze)
    return jax.lax.stop_gradient(x) if frozen else x

  def apply(params, *args, **kwargs):
    params = jax.tree_util.tree_map_with_path(hold, params)
    return model.apply(params, *args, **kwargs)

  return model._replace(apply=apply)


def _name(path) -> str:
  """Returns the keys on the path to a leaf, joined with slashes."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def _decay(
  decay: Decay, value: float, end_value: float, steps: int
) -> Schedule:
  """Returns a schedule that goes from `value` to `end_value` and stays."""
  if decay == "constant":
    return optax.constant_schedule(value)
  if decay == "linear":
    return optax.linear_schedule(value, end_value, steps)
  if decay == "cosine":
    # optax's own final value is relative to the first one, so shift the curve.
    cosine = optax.cosine_decay_schedule(value - end_value, steps)
    return lambda step: cosine(step) + end_value

  def one_minus_sqrt(step):
    share = jnp.clip(step / steps, 0.0, 1.0)
    return end_value + (value - end_value) * (1 - jnp.sqrt(share))

  return one_minus_sqrt


def _matches(pattern: str, name: str) -> bool:
  return re.fullmatch(f"(?:{pattern})(?:/.*)?", name) is not None


def _names(params: PyTree) -> list[str]:
  return [
    _name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)
  ]


def _labels(params: PyTree, freeze: Sequence[str]) -> PyTree:
  """Labels every leaf "train" or "frozen"."""
  names = _names(params)
  for pattern in freeze:
    _check_matches("freeze", pattern, names)
  labels = ["frozen" if is_frozen(x, freeze) else "train" for x in names]
  return jax.tree.unflatten(jax.tree.structure(params), labels)


def _check_matches(what: str, pattern: str, names: Sequence[str]) -> None:
  """Raises ValueError unless a pattern matches some parameter."""
  try:
    matches = any(_matches(pattern, name) for name in names)
  except re.error as error:
    raise ValueError(
      f"{what} pattern {pattern!r} is not a regular expression: {error}"
    ) from error
  if not matches:
    raise ValueError(
      f"{what} pattern {pattern!r} matches no parameter; they are {names}"
    )


def _scale_by_name(
  rate_factors: Mapping[str, float], layer_decay: float
) -> optax.GradientTransformation:
  """Multiplies updates by factors of their names; it has no state."""

  def init(params):
    names = _names(params)
    for pattern in rate_factors:
      _check_matches("rate_factors", pattern, names)
    if layer_decay < 1 and not blocks_of(names):
      raise ValueError(
        f"layer_decay {layer_decay} needs a tower with blocks, layers or "
        f"stages; the parameters are {names}"
      )
    return optax.EmptyState()

  def update(updates, state, params=None):
    del params
    names = _names(updates)
    blocks = blocks_of(names)
    factors = [
      rate_factor(name, blocks, layer_decay)
      * math.prod(x for key, x in rate_factors.items() if _matches(key, name))
      for name in names
    ]
    factors = jax.tree.unflatten(jax.tree.structure(updates), factors)
    return jax.tree.map(lambda x, y: x * y, updates, factors), state

  return optax.GradientTransformation(init, update)
