"""Glyphs and their names: the embedded data set, minutes on two CPU cores.

nuclr train --config=configs/glyphs.py --workdir=runs/glyphs

The argument after a colon is a comma-separated list of an objective's name
(nuclr by default) and `smoke` (a run of under a minute):

nuclr train --config=configs/glyphs.py:sogclr,smoke --workdir=runs/smoke
"""

from ml_collections import ConfigDict, config_dict

OBJECTIVES = dict(
  clip=dict(temperature=0.07, learn_temperature=True),
  sogclr=dict(temperature=0.07, gamma=0.8, anchor_average="pair"),
  nuclr=dict(
    temperature=0.07,
    gamma=0.8,
    zeta_init=0.0,
    zeta_estimator="unbiased",
    own_pair="xi",
    anchor_average="pair",
    zeta_learning_rate=dict(value=1e-3, freeze_epochs=0.0, decay="constant"),
    zeta_momentum=0.1,
  ),
)


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config, see the module's docstring."""
  words = [word for word in arg.split(",") if word]
  names = [word for word in words if word != "smoke"] or ["nuclr"]
  if len(names) > 1 or names[0] not in OBJECTIVES:
    raise ValueError(
      f"the config's argument must be one of {sorted(OBJECTIVES)} and "
      f"optionally smoke, separated by a comma; got {arg!r}"
    )
  config = ConfigDict()
  config.data = dict(
    name="glyphs", size=32, length=12, min_count=1, shift=1.0, scale=0.0
  )
  config.model = dict(
    name="small",
    dim=128,
    image_stages=((2, 2, 32), (2, 1, 64), (2, 1, 128)),
    image_features=384,
    text_width=128,
    text_layers=1,
    text_heads=4,
    dropout=0.0,
  )
  config.objective = dict(name=names[0], **OBJECTIVES[names[0]])
  config.optimizer = dict(
    learning_rate=dict(value=2e-3, warmup_epochs=0.5, decay="cosine"),
    weight_decay=0.5,
    clip_norm=1.0,
    b2=0.98,
    freeze=(),
  )
  config.batch_size = 128
  config.num_epochs = 16.0
  config.seed = 0
  config.num_devices = config_dict.placeholder(int)  # None = all
  config.log_every = 100
  config.eval_every = 1000
  config.checkpoint_every = 1000
  config.max_checkpoints = 2
  if "smoke" in words:
    config.num_epochs = 0.5
    config.optimizer.learning_rate.warmup_epochs = 0.1
    config.log_every = 20
    config.eval_every = config.checkpoint_every = 80
  return config
