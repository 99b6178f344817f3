"""Icons of many designers and their names: real pairs, on a laptop.

npm pack @iconify/json@2.2.535
nuclr train --config=configs/icons.py --workdir=runs/icons \
  --config.data.package=iconify-json-2.2.535.tgz

The first run draws the icons, which takes `pip install "nuclr_jax[icons]"` and
some minutes; later ones need neither the package nor the extra. The argument
after a colon is a name in `ALGORITHMS` of `configs/glyphs.py` (nuclr by
default), `smoke` for a run of a minute, or both with a comma between them:

nuclr train --config=configs/icons.py:sogclr,smoke --workdir=runs/smoke

The towers and the settings of the algorithms are those of the glyphs.
"""

import pathlib

from ml_collections import ConfigDict, config_dict

from nuclr_jax.lab.config import load_config


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  path = pathlib.Path(__file__).with_name("glyphs.py")
  config = load_config(f"{path}:{arg}")
  config.data = dict(
    name="icons",
    package=config_dict.placeholder(str),
    version="2.2.535",
    sets=(),
    processes=config_dict.placeholder(int),
    size=32,
    caption="name",
    length=12,
    min_count=1,
    shift=1.0,
    scale=0.0,
    share_texts=True,
  )
  config.num_epochs = 3.0
  config.eval_every = 0
  config.eval_every_epochs = 1.0
  config.log_every = 200
  config.checkpoint_every = 2000
  if "smoke" in arg.split(","):
    config.num_epochs = 0.1
    config.log_every = config.checkpoint_every = 50
  return config
