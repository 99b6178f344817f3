"""The config with which `nuclr train --model` trains a published model.

The model decides its towers and how its inputs are prepared, and a recipe, the
name of a config, everything else: the objective, the optimizer, the crops.
"""

from collections.abc import Mapping, Sequence
import logging
import os
from typing import Any

from nuclr_jax.lab.config import ConfigError, complete, load_config, override
from nuclr_jax.lab.data import tar_files
from nuclr_jax.lab.data.options import Captions, HeldOutNames, Square
from nuclr_jax.lab.models.pretrained import (
  Published,
  check_towers,
  read_logit_bias,
  read_published,
)
from nuclr_jax.lab.train import untrained
from nuclr_jax.lab.train.settings import TABLES, bind

log = logging.getLogger(__name__)

RECIPES = {False: "finetune_clip", True: "finetune_siglip2"}  # is it a SigLIP?
OF_A_STREAM = "finetune_clip:clip"  # whose objective keeps nothing for a pair
# Keys of `config.data` that say which sets are used.
OF_SETS = {"weights", "num_pairs", *HeldOutNames._fields}
# Keys of a recipe that are kept beside those of the model.
KEPT = ("dtype", "normalize")


def config_of_training(
  source: str | os.PathLike,
  *,
  recipe: str | None = None,
  changes: Sequence[tuple[str, str]] = (),
  architecture: str | os.PathLike | None = None,
  data: Sequence[str] = (),
  zero_shot: Sequence[str] = (),
  data_dir: str | os.PathLike | None = None,
) -> dict[str, Any]:
  """Makes the config that trains a published model on pairs.

  Args:
    source: The model, see `pretrained.read_published`.
    recipe: A config for `config.load_config`, on photos and with two towers;
      by default finetune_siglip2 for a model with a bias of the logits, and
      finetune_clip for all others, with CLIP's objective for a stream of tars.
    changes: Changes for `config.override`, of which those of the objective are
      made before the model's temperature is set.
    architecture: What a file of weights is of, see `read_published`.
    data: Captioned sets to train on: `NAME` stands for the training split of a
      prepared data set, and its validation and test splits are scored;
      `NAME:SPLIT` for a single split. Or tars that are read as a stream.
      Without any, the sets are those of the recipe.
    zero_shot: Labelled sets to classify at the end, see `data.sets`.
    data_dir: Folder of prepared data sets.

  Returns:
    A complete config.

  Raises:
    ValueError: If there is no such model, recipe or data set, the model is of
      texts alone, or the recipe is for other models.
  """
  published = read_published(source, architecture=architecture)
  spec = published.model
  if "encoder" in spec:
    raise ValueError(f"{source} {untrained.OF_TEXTS}")
  towers = {side: spec[side] for side in ("image", "text")}
  check_towers(source, towers, published.data["size"])
  bias = read_logit_bias(source)
  if recipe is None and not data:
    raise ConfigError(
      "--model needs --data=mine to be trained, what nuclr ingest made of your "
      "pairs, or --config, whose data it then takes"
    )
  name = recipe or RECIPES[bias is not None]
  if recipe is None and bias is None and tar_files.are_tars(",".join(data)):
    name = OF_A_STREAM
  chosen = [x for x in changes if x[0].startswith("objective.")]
  values = complete(override(load_config(name), chosen))
  if (values["model"]["name"], values["data"]["name"]) != (
    "towers",
    "image_text",
  ):
    raise ConfigError(
      f"--config={name} trains the model {values['model']['name']} on "
      f"{values['data']['name']}; with --model, it must train towers on "
      "image_text, as finetune_clip, finetune_siglip2, cc3m and cc12m do"
    )
  kept = {key: x for key, x in values["model"].items() if key in KEPT}
  own = {*Square._fields, *Captions._fields}
  sets = sets_of(data, zero_shot, data_dir)
  if data:
    own |= OF_SETS
  of_recipe = {key: x for key, x in values["data"].items() if key not in own}
  log.info("%s: trained as %s says", source, name)
  return values | {
    "model": kept | spec,
    "data": of_recipe | published.data | sets,
    "objective": _begin(values["objective"], published, bias),
  }


def sets_of(
  data: Sequence[str],
  zero_shot: Sequence[str],
  data_dir: str | os.PathLike | None,
) -> dict[str, Any]:
  """Returns the keys of `config.data` that train on sets and score them.

  Args:
    data: Captioned sets, see `config_of_training`; without any, none are named.
    zero_shot: Labelled sets to classify at the end; likewise.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If one is not there, or has no pairs to train on.
  """
  classified = {"zero_shot": tuple(zero_shot)} if zero_shot else {}
  if not data:
    return classified
  if tar_files.are_tars(whole := ",".join(data)):
    return {"train": whole} | classified
  train, scored = [], {"validation": [], "test": []}
  for place, known in untrained.places_of(data, data_dir):
    if place.split is None and untrained.TRAIN not in known:
      raise ConfigError(
        f"{place.source} has no split {untrained.TRAIN} to train on; it has "
        f"{', '.join(known)}: name one, as in --data={place.source}:{known[0]}"
      )
    split = f":{place.split}" if place.split else ""
    train.append(f"{place.source}{split}")
    for name in known if place.split is None else ():
      key = "validation" if name in untrained.VALIDATION else name
      if key in scored:
        scored[key].append(f"{place.name}={place.source}:{name}")
  lists = {key: tuple(names) for key, names in scored.items()}
  return {"train": ",".join(train)} | lists | classified


def _begin(
  objective: Mapping[str, Any], published: Published, bias: float | None
) -> dict[str, Any]:
  """Returns an objective that begins with the model's scale of logits."""
  begun, tau = dict(objective), published.temperature
  bound = bind("objective", TABLES["objective"], objective)
  rule = objective.get("temperature")
  if tau is None:
    log.warning(
      "the model has no temperature; training begins with that of the config"
    )
  elif bound.takes("init_scale"):
    begun["init_scale"] = 1 / tau
    if bias is not None:
      begun["init_bias"] = bias
  elif bound.takes("temperature") and isinstance(rule, float | int | None):
    begun["temperature"] = tau
  elif isinstance(rule, Mapping) and "name" in rule:  # such as learned
    begun["temperature"] = {**rule, "temperature": tau}
  else:
    log.warning(
      "training begins with the temperature of the config, and not with the "
      "model's, %.4g",
      tau,
    )
  return begun
