"""CC12M: `configs/cc3m.py` on a larger data set.

nuclr ingest --input='cc12m/*.tar' --dataset=cc12m
nuclr train --config=configs/cc12m.py --workdir=runs/cc12m

The argument after a colon is the same as for `configs/cc3m.py`.
"""

import pathlib

from ml_collections import ConfigDict

from nuclr_jax.lab.config import load_config


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  path = pathlib.Path(__file__).with_name("cc3m.py")
  config = load_config(f"{path}:{arg}")
  if config.data.train == "cc3m":  # not the smoke run
    config.data.train = "cc12m"
    if config.objective.get("zeta", {}).get("init"):
      config.objective.zeta.init = 0.0
  return config
