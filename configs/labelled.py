"""Labelled images: two views, one encoder; scikit-learn's digits by default.

nuclr train --config=configs/labelled.py --workdir=runs/digits
nuclr train --config=configs/labelled.py:proxy_anchor,glyphs \
  --workdir=runs/proxies --config.data.unseen=True
nuclr train --config=configs/labelled.py:ntxent,cifar10 --workdir=runs/cifar \
  --config.terms.contrib:difference_alignment.weight=0.5

The argument after a colon is a name in `ALGORITHMS`, one in `DATA`, or both
with a comma between them. Digits and glyphs come with the library; all other
names are TFDS data sets that have to be prepared first.
"""

from ml_collections import ConfigDict, config_dict

from nuclr_jax.lab.config import blank, choose

# By name, which is also the name of the objective.
# A term that can be added to any objective; of weight 0, it is left out.
TERM = dict(weight=0.0, differences="chain", norm="l2", labels=False)
ALGORITHMS = dict(
  arcface=dict(scale=16.0, margin=0.3),
  clip=dict(temperature=0.2, learn_temperature=False),
  curl=dict(block_size=2, num_negatives=4, loss="logistic"),
  debiased=dict(temperature=0.2, tau_plus=0.1, hardness=1.0),
  latent_class=dict(num_negatives=10, loss="cross_entropy"),
  npair=dict(l2=0.002),
  ntxent=dict(temperature=0.2),
  nuclr=dict(temperature=0.2, gamma=0.9, zeta=dict(name="batch")),
  proxy_anchor=dict(alpha=16.0, margin=0.1),
  quick_thought=dict(block_size=1),
  softmax=dict(),
  sogclr=dict(temperature=0.2, gamma=0.9),
  sphereface=dict(margin=2, plain=1.0),
  swav=dict(num_prototypes=64, num_iterations=3),
  vicreg=dict(),
)
# The others are of `nuclr_jax.contrib`.
CORE = {"clip", "debiased", "ntxent", "nuclr", "sogclr"}
# Algorithms for embeddings that are not normalized.
RAW = (
  "curl",
  "latent_class",
  "npair",
  "quick_thought",
  "softmax",
  "sphereface",
  "vicreg",
)
CONVNET = dict(name="convnet", stages=((2, 2, 32), (2, 2, 64)))
VGG, RESNET = dict(name="vgg16"), dict(name="resnet50")
# Image size, augmentation and encoder of each data set, as in the papers.
DATA = dict(
  digits=dict(size=16, shift=1.0, scale=0.15, encoder=CONVNET),
  glyphs=dict(size=16, shift=1.0, scale=0.15, encoder=CONVNET),
  mnist=dict(size=28, shift=2.0, scale=0.15, encoder=CONVNET),
  fashion_mnist=dict(
    size=28, shift=2.0, scale=0.15, flip=True, encoder=CONVNET
  ),
  cifar10=dict(size=32, shift=4.0, scale=0.2, flip=True, encoder=VGG),
  cifar100=dict(size=32, shift=4.0, scale=0.2, flip=True, encoder=VGG),
  stl10=dict(size=96, shift=12.0, scale=0.2, flip=True, encoder=RESNET),
  caltech_birds2011=dict(
    size=224, shift=28.0, scale=0.2, flip=True, encoder=RESNET
  ),
  cars196=dict(size=224, shift=28.0, scale=0.2, flip=True, encoder=RESNET),
)
BUILT_IN = ("digits", "glyphs")


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  name, data = choose(arg, ALGORITHMS, DATA)
  name, data = name or "ntxent", data or "digits"
  images = {"flip": False} | DATA[data]
  config = blank()  # all keys, with their defaults
  encoder = images.pop("encoder")
  block_size = ALGORITHMS[name].get("block_size", 1)
  config.data = dict(
    name="contrib:labelled",
    train=data if data in BUILT_IN else f"{data}:train",
    validation=config_dict.placeholder(str),
    test=config_dict.placeholder(str),
    positive="class" if name == "curl" else "view",  # curl needs blocks
    block_size=block_size,
    classes=config_dict.placeholder(int),
    per_class=config_dict.placeholder(int),
    labels_per_class=config_dict.placeholder(int),
    unseen=False,
    scores=("classes", "recall", "losses", "probe"),
    validation_scores=("classes", "recall", "losses"),
    ways=(2, 10),
    num_negatives=(1,),
    **images,
  )
  config.model = dict(
    name="views",
    encoder=encoder,
    dim=32,
    hidden=0,
    normalize=name not in RAW,
  )
  where = "" if name in CORE else "contrib:"
  config.objective = {"name": where + name} | ALGORITHMS[name]
  config.terms = {"contrib:difference_alignment": TERM}
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
