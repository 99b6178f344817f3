"""CC12M: as `configs/cc3m.py`, on more pairs.

nuclr ingest --input='cc12m/*.tar' --dataset=cc12m
nuclr train --config=configs/cc12m.py --workdir=runs/cc12m

The argument after a colon is that of `configs/cc3m.py`.
"""

import pathlib

from ml_collections import ConfigDict

from nuclr_jax import settings


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config, see the module's docstring."""
  path = pathlib.Path(__file__).with_name("cc3m.py")
  config = settings.load(f"{path}:{arg}")
  if config.data.train == "cc3m":  # not the smoke run
    config.data.train = "cc12m"
    if config.objective.get("zeta_init"):
      config.objective.zeta_init = 0.0
  return config
