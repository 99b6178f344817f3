"""Makes the parts of a run from its settings.

To replace a part with your own, pass `build(config)._replace(model=...)` to
`train.fit` as `parts`.
"""

from collections.abc import Mapping
import logging
import os
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np
import optax

from nuclr_jax import sharding
from nuclr_jax.lab.config import Config
from nuclr_jax.lab.data import Data, HeldOut, Inputs, elsewhere, inputs_of
from nuclr_jax.lab.data.reference import Reference, width_of
from nuclr_jax.lab.data.tokenizer import Tokenizer
from nuclr_jax.lab.evaluate import suites
from nuclr_jax.lab.factories import Bound
from nuclr_jax.lab.models import Model
from nuclr_jax.lab.train import warm_start
from nuclr_jax.lab.train.hooks import (
  Hook,
  check_has_u,
  exact_start,
  first_popularities,
)
from nuclr_jax.lab.train.microbatch import microbatched
from nuclr_jax.lab.train.optimizer import is_frozen, without_frozen_gradients
from nuclr_jax.lab.train.settings import Settings, bind_data, resolve
from nuclr_jax.objectives import Objective, add, scale
from nuclr_jax.types import Popularities, Sides, Sizes

log = logging.getLogger(__name__)


class Experiment(NamedTuple):
  """All parts of a run."""

  settings: Settings
  data: Data
  model: Model
  objective: Objective
  optimizer: optax.GradientTransformation
  num_steps: int
  hooks: tuple[Hook, ...] = ()
  popularities: Popularities | None = None  # what the first state starts with
  evaluators: suites.Suites = {}  # by split: validation, test
  reference: Reference | None = None  # opened by `fit`
  # The parts that the config names, as `build` made them; others are one's own.
  named: Mapping[str, Any] = {}

  def own(self) -> list[str]:
    """Returns the names of the parts that the config does not name."""
    besides = ("settings", "named", "reference")
    parts = [x for x in self._fields if x not in besides]
    return [x for x in parts if getattr(self, x) is not self.named.get(x, self)]


def build(
  config: Config | Settings,
  *,
  data_dir: str | os.PathLike | None = None,
  data: Data | None = None,
  fresh: bool = True,
) -> Experiment:
  """Makes the parts that a config names; prepares the data if necessary.

  Args:
    config: A mapping such as `configs/glyphs.py` makes.
    data_dir: Folder of prepared data sets, see `places.cache_dir`.
    data: The data to train on in place of those that the config names. What
      `load_data` returned for the same `config.data` lets many runs in one
      process read the data only once.
    fresh: Whether to include the warm start, which only a first state needs,
      and to check what a run that has begun can no longer change.

  Returns:
    An `Experiment`.

  Raises:
    ValueError: If a name or key is unknown, or a factory rejects an argument.
  """
  settings = resolve(config)
  _check_views_differ(settings)
  data = data or load_data(settings.data, data_dir=data_dir)
  if fresh:
    check_end(settings.model, data.inputs)
    _tell_of_exports(settings, data)
  evaluators = suites.choose_evaluators(data, _more_evaluators(settings))
  if fresh and settings.data.name == "image_text":
    _warn_unless_scored(evaluators)
  sizes = data.train.sizes
  span = span_of(settings, sizes)
  model = make_model(settings, data.inputs)
  objective = make_objective(
    settings,
    **span,
    **sizes._asdict(),
    batch_size=settings.batch_size,
    dim=_width(settings),
    num_classes=data.num_classes,
    data_block_size=data.block_size,
    num_features=model.num_features,
    special_ids=special_ids(data.inputs),
    vocab_size=data.tokenizer.vocab_size,
  )
  if data.train.open_stream is not None:
    _check_streamable(objective, settings.objective.name)
  popularities = None
  start = warm_start.parse(settings.warm_start)
  if fresh and start.is_exact:
    exact_start(start.rows, data.train, objective, settings)  # refuses early
  elif fresh and start.rows == warm_start.PASS_U:
    check_has_u(objective)
  elif fresh and start.rows is not None:
    popularities = first_popularities(start.rows, data.train, objective)
  hooks = ()
  refresh = settings.refresh
  if refresh is not None and refresh.arguments.get("every_epochs"):
    data.tokenizer.encode(data.train.captions(np.arange(1)))  # or raises
    from_run = dict(source=data.train, objective=objective, seed=settings.seed)
    hooks = (refresh(**from_run, **span),)
  parts = Experiment(
    settings=settings,
    data=data,
    model=model,
    objective=objective,
    optimizer=settings.optimizer(**span),
    num_steps=span["num_steps"],
    hooks=hooks,
    popularities=popularities,
    evaluators=evaluators,
  )
  named = parts._asdict()
  if data.named != settings.recorded["data"]:
    del named["data"]
  return parts._replace(named=named)


def _tell_of_exports(settings: Settings, data: Data) -> None:
  """Says what an export of the run will prepare in another way."""
  if (settings.model.name, settings.data.name) == ("towers", "image_text"):
    sets = data.held_out.values()
    labelled = any(x.zero_shot or x.probes for x in sets)
    for text in elsewhere.differences(data.resize, labelled=labelled):
      log.info("%s", text)


def _warn_unless_scored(evaluators: suites.Suites) -> None:
  """Warns if nothing is scored while captioned pairs are trained on."""
  if not evaluators["validation"]:
    log.warning(
      "no validation split: nothing is scored during training%s; nuclr ingest "
      "--split=validation makes one, which --data=mine takes; or --config.data."
      "validation=\"('mine:train[90%%:]',)\" holds out pairs that --data="
      "mine:train[:90%%] leaves",
      "" if evaluators["test"] else ", or at its end",
    )


def score_on(parts: Experiment, held_out: Mapping[str, HeldOut]) -> Experiment:
  """Returns parts with other held-out sets in place of all their own.

  Args:
    parts: The parts of a run.
    held_out: The sets, by split; any names of splits.
  """
  more = _more_evaluators(parts.settings)
  return parts._replace(
    data=parts.data._replace(held_out=held_out),
    evaluators=suites.evaluators_of(held_out, more),
  )


def _more_evaluators(settings: Settings):
  """Returns the function that makes the evaluators that a config names."""
  of_config = settings.evaluators.values()
  return lambda held_out: [bound(held_out=held_out) for bound in of_config]


def span_of(settings: Settings, sizes: Sizes) -> dict[str, int]:
  """Returns the run's `num_steps` and `steps_per_epoch`.

  Raises:
    ValueError: If the run has no step, or too many.
  """
  steps_per_epoch = sizes.num_pairs // settings.batch_size
  num_steps = round(settings.num_epochs * steps_per_epoch)
  if num_steps < 1:
    raise ValueError(
      f"the run has no step: num_epochs {settings.num_epochs}, batch_size "
      f"{settings.batch_size}, {sizes.num_pairs} training pairs; lower "
      "batch_size, or raise num_epochs"
    )
  if num_steps >= 2**31:  # steps are counted in int32
    raise ValueError(f"{num_steps:.3g} steps are too many; lower num_epochs")
  return {"num_steps": num_steps, "steps_per_epoch": steps_per_epoch}


def _width(settings: Settings) -> int | None:
  """Returns the width of the embeddings that the objective sees, if known.

  The folder of a reference is opened only if the objective asks for the width.
  """
  dim, bound = settings.model.arguments.get("dim"), settings.objective
  asked = (bound, *bound.arguments.values())
  if dim is None or settings.reference is None:
    return dim
  if not any(isinstance(x, Bound) and x.takes("dim") for x in asked):
    return None
  return dim + width_of(settings.reference)


def special_ids(inputs: Inputs) -> tuple[int, ...]:
  """Returns the ids that captions have whatever they say, padding included.

  Args:
    inputs: The inputs of the model. There are no such ids if rows hold
      something other than token ids.

  Example:
    >>> from nuclr_jax.lab.data.tokenizer import build_tokenizer
    >>> words = build_tokenizer(["a"], length=4, first_and_last=True)
    >>> special_ids(Inputs((8, 8, 1), words))
    (0, 2, 5)
  """
  if not inputs.tokenizer.vocab_size:
    return ()
  return tuple(np.unique(inputs.tokenizer.encode([""])).tolist())


def make_objective(settings: Settings, **of_the_run: Any) -> Objective:
  """Makes the objective of a run and adds its terms.

  Args:
    settings: The settings of the run.
    **of_the_run: `num_steps` and `steps_per_epoch`, for schedules, and whatever
      else of `settings.OF_THE_RUN` is known, for factories and rules that take
      it.

  Raises:
    ValueError: If a factory rejects an argument.
  """
  objective, scaled = settings.objective(**of_the_run), {}
  for name, bound in settings.terms.items():
    term = bound(**of_the_run)
    if bound.more["weight"]:  # a term of weight 0 is checked, too
      scaled[_short(name)] = scale(term, bound.more["weight"])
  if not scaled:
    return objective
  return add(**{_short(settings.objective.name): objective}, **scaled)


def _short(name: str) -> str:
  """FACTORY of MODULE:FACTORY."""
  return name.rpartition(":")[2]


def make_model(settings: Settings, inputs: Inputs) -> Model:
  """Makes the model of a run, for the inputs of its data.

  Raises:
    ValueError: If a factory rejects an argument.
  """
  frozen = frozen_towers(settings)
  has_lora = settings.model.arguments.get("lora_rank")
  if has_lora and not set(Sides._fields).issubset(frozen):
    raise ValueError(
      "model.lora_rank adds adapters to towers that are to be frozen; set "
      "--config.optimizer.freeze=\"('model/image', 'model/text')\""
    )
  _check_naflex(settings.model, inputs)
  model = settings.model(
    image_shape=inputs.image_shape,
    vocab_size=inputs.tokenizer.vocab_size,
    length=inputs.tokenizer.length,
    frozen=frozen,
  )
  freeze = settings.optimizer.arguments.get("freeze", ())
  return microbatched(
    without_frozen_gradients(model, freeze), settings.num_microbatches
  )


def frozen_towers(settings: Settings) -> tuple[str, ...]:
  """Returns which towers of a model the optimizer's `freeze` holds as a whole.

  They are "image" and "text" of models with one each, and the "encoder" of
  `views`; by name, or by a pattern that matches everything below it.
  """
  freeze = settings.optimizer.arguments.get("freeze", ())
  return tuple(
    x
    for x in (*Sides._fields, "encoder")
    if any(is_frozen(f"model/{x}{end}", freeze) for end in ("", "/-"))
  )


def _check_naflex(model: Bound, inputs: Inputs) -> None:
  """Raises ValueError if packed patches go to a tower that takes pixels.

  It would take the places of patches, and black ones, for a part of the image.
  """
  tower = model.arguments.get("image")
  name = tower.name if isinstance(tower, Bound) else model.name
  reads = name == "naflex_vit" or ":" in name  # another module's may read them
  if inputs.resize.mode == "naflex" and not reads:
    raise ValueError(
      f"data.resize is 'naflex', and images are then packed patches, which "
      f"{name!r} does not take; choose another resize, or the image tower "
      "'naflex_vit'"
    )


def check_end(model: Bound, inputs: Inputs) -> None:
  """Checks that a text tower finds where captions end.

  CLIP's takes the feature of the end token, BERT's masks the padding.

  Args:
    model: The model of the run's settings.
    inputs: The inputs of the model.

  Raises:
    ValueError: If captions have no end token, or end with another one, or if
      they are padded with another id.
  """
  bound, tokenizer = model.arguments.get("text"), inputs.tokenizer
  if not isinstance(bound, Bound) or not isinstance(tokenizer, Tokenizer):
    return
  tower = bound.values()
  pad_id = tower.get("pad_id")
  if tower.get("pool") == "class":  # of CoCa
    pad_id = 0
  if pad_id not in (None, tokenizer.pad_id):
    raise ValueError(
      f"captions are padded with the id {tokenizer.pad_id}, and the text tower "
      f"{bound.name} masks {pad_id}; set config.data.pad_id={pad_id}, or name "
      "the tokenizer of this model"
    )
  if bound.name != "clip_text" or not (
    tower["pool"] == "end" or tower["pool"] is None and tower["causal"]
  ):
    return
  found, end_id = tokenizer.end_id, tower["end_id"]
  if found is None:
    raise ValueError(
      "the tokenizer ends captions with no token of its own, whose feature the "
      "text tower clip_text takes; choose another tokenizer or tower"
    )
  taken = tokenizer.largest_id if end_id is None else end_id
  if found != taken:
    raise ValueError(
      f"the tokenizer ends captions with id {found}, and the text tower "
      f"clip_text takes the feature of id {taken}"
      f"{', the largest' if end_id is None else ''}; set "
      f"config.model.text.end_id={found}, or name the tokenizer of this model"
    )


def mesh_of(settings: Settings) -> Mesh:
  """Makes the mesh of a run, and checks that a batch fits it.

  Raises:
    ValueError: If the batch does not divide evenly over devices and
      microbatches, or the number of devices or slices is impossible.
  """
  mesh = sharding.make_mesh(
    settings.num_devices, num_slices=settings.num_slices
  )
  pieces = settings.num_microbatches
  if settings.batch_size % (mesh.size * pieces):
    raise ValueError(
      "batch_size must be a multiple of the number of devices times "
      f"num_microbatches, got {settings.batch_size}, {mesh.size} and "
      f"{pieces}; change one, or use fewer devices with num_devices"
    )
  return mesh


def load_data(
  spec: Config | Bound, *, data_dir: str | os.PathLike | None = None
) -> Data:
  """Reads the data that `config.data` names; prepares it if necessary.

  Args:
    spec: `config.data`, a mapping or a `ConfigDict`, or the data of a run's
      settings.
    data_dir: Folder of prepared data sets, see `places.cache_dir`.

  Raises:
    ValueError: For an unknown name or key.
  """
  bound = bind_data(spec)
  return bound(data_dir=data_dir)._replace(named=bound.spec)


def load_inputs(
  spec: Config | Bound, *, data_dir: str | os.PathLike | None = None
) -> Inputs:
  """Returns the model inputs of `config.data`; reads the data only if needed.

  Raises:
    ValueError: For an unknown name or key.
  """
  bound = bind_data(spec)
  return inputs_of(bound.spec) or load_data(bound, data_dir=data_dir).inputs


def _check_streamable(objective: Objective, name: str) -> None:
  """Raises ValueError if an objective keeps a value for each sample."""
  _, state = jax.eval_shape(objective.init)
  if jax.tree.leaves(state.sample):
    raise ValueError(
      f"the objective {name} keeps values for every pair, which need ids, but "
      "config.data.train is a stream of tars; index the tars with nuclr ingest "
      "--in_place (they stay where they are) and name that data set, or choose "
      "an objective that keeps none, such as clip, siglip, contrib:amorlip or "
      "contrib:neuclip"
    )


def _check_views_differ(settings: Settings) -> None:
  """Raises ValueError if both views of a sentence would be equal."""
  if (settings.data.name, settings.model.name) != ("sentences", "views"):
    return
  if settings.model.arguments["encoder"].values().get("dropout", 0.0) == 0:
    raise ValueError(
      "config.model.encoder has no dropout, so that both views of a sentence "
      "are equal; set config.model.encoder.dropout, say to 0.1"
    )
  if "encoder" in frozen_towers(settings):
    raise ValueError(
      "config.optimizer.freeze holds the whole encoder, which then has no "
      "dropout, so that both views of a sentence are equal; leave one of its "
      "layers out"
    )
