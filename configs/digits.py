"""Labelled pictures: two views, one encoder; scikit-learn's digits by default.

nuclr train --config=configs/digits.py --workdir=runs/digits
nuclr train --config=configs/digits.py:proxy_anchor --workdir=runs/proxies
nuclr train --config=configs/digits.py --workdir=runs/cifar \
  --config.data.train=cifar10:train --config.data.size=32

The argument after a colon is a name in `ALGORITHMS`.
"""

from ml_collections import ConfigDict, config_dict

from nuclr_jax import settings

# By name; the objective's is the same.
ALGORITHMS = dict(
  arcface=dict(scale=16.0, margin=0.3),
  clip=dict(temperature=0.2, learn_temperature=False),
  latent_class=dict(num_negatives=10, loss="cross_entropy"),
  npair=dict(l2=0.002),
  ntxent=dict(temperature=0.2),
  nuclr=dict(temperature=0.2, gamma=0.9),
  proxy_anchor=dict(alpha=16.0, margin=0.1),
  quick_thought=dict(block_size=1),
  sogclr=dict(temperature=0.2, gamma=0.9),
  sphereface=dict(margin=2, plain=1.0),
  swav=dict(num_prototypes=64),
  vicreg=dict(),
)
# Of these, embeddings have any norm.
RAW = ("latent_class", "npair", "quick_thought", "sphereface", "vicreg")


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config, see the module's docstring."""
  name = arg or "ntxent"
  if name not in ALGORITHMS:
    raise ValueError(
      f"the config's argument must be one of {sorted(ALGORITHMS)}, got {arg!r}"
    )
  config = settings.blank()  # all keys, with their defaults
  config.data = dict(
    name="labelled",
    train="digits",
    validation=config_dict.placeholder(str),
    test=config_dict.placeholder(str),
    size=16,
    shift=1.0,
    scale=0.15,
    flip=False,
    positive="view",  # or "class"
    ways=(2, 10),
    num_negatives=(1,),
  )
  config.model = dict(
    name="views",
    encoder=dict(name="convnet", stages=((2, 2, 32), (2, 2, 64))),
    dim=32,
    hidden=0,
    normalize=name not in RAW,
  )
  config.objective = {"name": name} | ALGORITHMS[name]
  config.optimizer = dict(
    learning_rate=dict(value=2e-3, warmup_epochs=1.0, decay="cosine"),
    weight_decay=0.01,
    clip_norm=0.0,
    b2=0.999,
    freeze=(),
  )
  config.batch_size = 64
  config.num_epochs = 40.0
  config.log_every = 100
  config.eval_every_epochs = 10.0
  config.checkpoint_every = 400
  return config
