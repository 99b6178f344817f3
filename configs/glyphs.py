"""Glyphs and their names, the built-in data set: minutes on two CPU cores.

nuclr train --config=configs/glyphs.py --workdir=runs/glyphs

The argument after a colon has at most one word of each kind, with commas
between them: a name in `ALGORITHMS` below (nuclr by default); `tokens`, to
predict the tokens of captions, too (`clip,tokens` is SuperCLIP); and `smoke`,
for a run of less than a minute:

nuclr train --config=configs/glyphs.py:sogclr,smoke --workdir=runs/smoke

`drrho` is relative to a reference model, here another run:

nuclr embed --workdir=runs/smoke --output=reference
nuclr train --config=configs/glyphs.py:drrho --workdir=runs/drrho \
  --config.reference=reference
"""

from ml_collections import ConfigDict

from nuclr_jax.lab.config import blank, choose

FALLING_GAMMA = dict(
  value=1.0, decay="cosine", decay_fraction=0.5, end_value=0.5
)
ZETA_RATE = dict(value=0.3, freeze_epochs=0.0, decay="constant")
INDIVIDUAL = dict(
  temperature=0.07,
  bounds=(0.01, 0.3),
  rate=3e-3 / 0.07,
  momentum=0.5,
  rho=4.5,
)
REFERENCE = "reference"  # a folder that nuclr embed wrote
# By config name; the objective has the same name unless `name` says otherwise.
# They were tuned in experiments/bimodal (smaller towers, 8 epochs), except for
# ntxent, the rate of ζ of nuclr_individual (taken from "unbiased" there), the
# rule of nuclr, which experiments/popularity compares, decoupled (SogCLR
# without memory) and decoupled_cyclic, tuned in experiments/icons, and amorlip,
# drrho, neuclip, scent and tempnet, which have published constants (but for
# tempnet's bounds, within which it starts near the τ of the others, and rho;
# and the published epsilon of scent bounds its gamma, but is not added to the
# loss. The rows of experiments/icons have neither). Rates are in units of the
# first temperature, tempnet's excepted.
ALGORITHMS = dict(
  amorlip=dict(
    name="contrib:amorlip",
    temperature=0.08,
    beta=dict(value=0.0, decay="cosine", decay_fraction=0.5, end_value=0.8),
  ),
  clip=dict(temperature=0.08, learn_temperature=False),
  cyclip=dict(
    temperature=0.07, learn_temperature=False, in_modal=0.05, cross_modal=0.05
  ),
  debiased=dict(temperature=0.07, tau_plus=0.001),
  decoupled=dict(
    name="sogclr", temperature=0.05, gamma=1.0, anchor_average="pair"
  ),
  decoupled_cyclic=dict(
    name="sogclr", temperature=0.08, gamma=1.0, anchor_average="pair"
  ),
  drrho=dict(
    name="sogclr",
    temperature=0.08,
    gamma=1.0,
    # epsilon = 1e-4 for 43,172 pairs, see `objectives.relative_to`
    positive_weight=4.35,
    anchor_average="pair",
  ),
  fastclip_v1=dict(
    name="sogclr",
    temperature=0.1,
    gamma=FALLING_GAMMA | dict(end_value=0.8),
    anchor_average="pair",
  ),
  fastclip_v3=dict(
    name="sogclr",
    temperature=dict(name="learned", temperature=0.07, rho=3.0),
    gamma=FALLING_GAMMA,
    anchor_average="pair",
  ),
  isogclr=dict(**INDIVIDUAL, gamma=0.8),
  neuclip=dict(name="contrib:neuclip", temperature=0.08, num_prototypes=4096),
  ntxent=dict(temperature=0.07, learn_temperature=True),
  nuclr=dict(
    temperature=0.07,
    gamma=0.8,
    zeta=dict(name="queue", size=4096, rate=ZETA_RATE),
  ),
  nuclr_individual=dict(
    name="nuclr",
    temperature=dict(name="individual", **INDIVIDUAL),
    gamma=0.8,
    zeta=dict(name="batch", rate=ZETA_RATE | dict(value=1e-2 / 0.07)),
  ),
  scent=dict(
    name="sogclr",
    temperature=0.08,
    gamma=dict(name="adaptive", log_alpha=10.0),
    anchor_average="pair",
  ),
  siglip=dict(init_scale=10.0, init_bias=-10.0),
  sogclr=dict(temperature=0.08, gamma=0.8, anchor_average="pair"),
  spectral=dict(),
  tempnet=dict(
    name="sogclr",
    temperature=dict(
      name="contrib:tempnet",
      num_prototypes=64,
      bounds=(0.01, 0.15),
      rate=dict(value=3e-5),
      rho=4.5,
    ),
    gamma=0.8,
    anchor_average="pair",
  ),
  vicreg=dict(
    name="contrib:vicreg", invariance=1.0, variance=1.0, covariance=1.0
  ),
)
# Added to the objective: the second half of CyCLIP, times 2 τ as in `SCALED`.
TERMS = dict(
  decoupled_cyclic=dict(
    cyclic_consistency=dict(weight=2 * 0.08, in_modal=0.05, cross_modal=0.05)
  )
)
# Algorithms that need a learning rate other than 2e-3.
LEARNING_RATES = dict(spectral=1e-3, vicreg=1e-3)
# Objectives in units of similarity: 2 temperature times the gradient of clip.
SCALED = ("isogclr", "nuclr", "sogclr", "contrib:neuclip", "contrib:amorlip")


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  words = {"tokens": True}, {"smoke": True}
  name, tokens, smoke = choose(arg, ALGORITHMS, *words)
  name = name or "nuclr"
  config = blank()  # all keys, with their defaults
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
  if name == "drrho":
    config.reference = REFERENCE
  config.model.normalize = name != "vicreg"
  config.objective = {"name": name} | ALGORITHMS[name]
  config.terms = TERMS.get(name, {})
  if tokens:
    tau = config.objective.get("temperature")
    tau = getattr(tau, "temperature", tau)  # the first of a learned one
    tau = sum(tau.bounds) / 2 if name == "tempnet" else tau
    weight = 2 * tau if config.objective.name in SCALED else 1.0
    config.terms["contrib:token_prediction"] = dict(weight=weight)
  config.optimizer = dict(
    learning_rate=dict(
      value=LEARNING_RATES.get(name, 2e-3),
      warmup_epochs=0.5,
      decay="cosine",
    ),
    weight_decay=0.5,
    clip_norm=1.0,
    b2=0.98,
    freeze=(),
  )
  config.batch_size = 128
  config.num_epochs = 16.0
  config.log_every = 100
  config.eval_every = 1000
  config.checkpoint_every = 1000
  if smoke:
    config.num_epochs = 0.5
    config.optimizer.learning_rate.warmup_epochs = 0.1
    config.log_every = 20
    config.eval_every = config.checkpoint_every = 80
  return config
