"""The config with which `nuclr train --data` trains without a published model.

By default it is the config `own`, sized by the number of pairs.
"""

from collections.abc import Sequence
import logging
import os
import pathlib
from typing import Any

from nuclr_jax.lab.config import ConfigError, complete, load_config
from nuclr_jax.lab.data import image_text, tar_files
from nuclr_jax.lab.train import finetune

log = logging.getLogger(__name__)

FEW = 100_000  # pairs, which teach less than a published model knows


def config_of_pairs(
  data: Sequence[str],
  *,
  recipe: str | None = None,
  zero_shot: Sequence[str] = (),
  data_dir: str | os.PathLike | None = None,
) -> dict[str, Any]:
  """Makes the config that trains on captioned sets.

  Args:
    data: The sets, see `finetune.config_of_training`.
    recipe: A config for `config.load_config`, on photos; by default `own` with
      the number of pairs as its argument.
    zero_shot: Labelled sets to classify at the end, see `data.sets`.
    data_dir: Folder of prepared data sets.

  Returns:
    A complete config.

  Raises:
    ValueError: If there is no such data set or recipe, or the recipe is for
      other data.
  """
  sets = finetune.sets_of(data, zero_shot, data_dir)
  is_stream = tar_files.are_tars(sets["train"])
  if recipe is None and is_stream:
    raise ConfigError(
      f"--data={sets['train']} is a stream of tars, whose captions are not "
      "known in advance, as the config own needs them; name another one, such "
      "as --config=cc3m:own,clip"
    )
  pairs = None if is_stream else image_text.num_pairs(sets["train"], data_dir)
  name = recipe
  if name is None:
    name = f"own:{pairs}"
  elif pairs is not None and pairs < FEW:
    log.info(
      "--config=%s has the sizes and the temperature of its own data, and %s "
      "has %s pairs; without --config, the config own is sized by them",
      name,
      sets["train"],
      f"{pairs:,}",
    )
  try:
    values = complete(load_config(name))
  except ConfigError as error:
    if recipe is None:  # it says how many pairs it takes
      raise ConfigError(
        f"{sets['train']} has {pairs} pairs: {error}; ingest more, or name "
        "another config with --config"
      ) from error
    raise
  if values["data"]["name"] != "image_text":
    raise ConfigError(
      f"--config={name} trains on {values['data']['name']}, and --data names "
      "images with captions; leave --data out, or take the config own or cc3m"
    )
  if recipe is None:
    _say(sets["train"], pairs, values)
  is_own = pathlib.Path(name.partition(":")[0]).stem == "own"
  if is_own and (held_out := sets.get("validation")):
    first = held_out[0].partition("=")[0]
    values["keep_best"] = f"validation/{first}/mean_recall@1"
    log.info("--best takes the state with the best %s", values["keep_best"])
  kept = values["data"].items()
  of_recipe = {key: x for key, x in kept if key not in finetune.OF_SETS}
  return values | {"data": of_recipe | sets}


def _say(train: str, pairs: int, values: dict[str, Any]) -> None:
  """Says what the config own has chosen, and why."""
  batch, epochs = values["batch_size"], values["num_epochs"]
  log.info(
    "%s has %s pairs, for which the config own:%d has batches of %d, as many "
    "as leave an epoch some steps, %g epochs (%s steps), fewer for more pairs, "
    "a temperature that is learned, and small towers with random weights; "
    "--config.KEY=VALUE changes any of it",
    train,
    f"{pairs:,}",
    pairs,
    batch,
    epochs,
    f"{int(epochs * (pairs // batch)):,}",
  )
  if pairs < FEW:
    log.info(
      "a published model knows more than %s pairs can teach: try --model="
      "openai/clip-vit-base-patch32 beside --data, too",
      f"{pairs:,}",
    )
