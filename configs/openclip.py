"""OpenCLIP's models, from random weights, as papers on denominators train them.

nuclr ingest --input='cc3m/*.tar' --dataset=cc3m
nuclr train --config=configs/openclip.py:cc3m,sogclr --workdir=runs/sogclr
nuclr export --workdir=runs/sogclr --output=sogclr --layout=open_clip

experiments/cc3m/README.md has all commands, and the published results. The
argument after a colon is a comma-separated list of

- a name in `SCALES`, cc3m by default: the data, the model and the recipe,
- a name in `ALGORITHMS`, nuclr by default,
- tokens: a linear layer predicts the tokens of captions, too (`clip,tokens` is
  SuperCLIP).

DataComp fixes the samples seen, not the epochs: for another subset than its
filtered ones (1.4 and 14 million pairs), change `num_epochs`. `drrho` is
relative to a reference model:

nuclr embed --model=openai/clip-vit-base-patch32 --input=tfds:cc3m \
  --output=reference
nuclr train --config=configs/openclip.py:cc3m,drrho --workdir=runs/drrho \
  --config.reference=reference
"""

from ml_collections import ConfigDict

from nuclr_jax.lab.config import blank, choose

SOURCE = "openai/clip-vit-base-patch32"  # of the tokenizer
VIT_B32 = dict(image="clip_vit_b32", dim=512)
VIT_B16 = dict(image="clip_vit_b16", dim=512)
RN50 = dict(image="clip_resnet50", dim=1024)
REFERENCE = "reference"  # a folder that nuclr embed wrote
# Recipes of FastCLIP (cc3m), AmorLIP (cc12m), DRRho-CLIP (dfn192m), SCENT
# (dfn14m) and DataComp; `pairs` is about how many there are. rho, the last
# gamma, the part of the run over which it falls, and the rate of a learned
# temperature as a factor of the others are FastCLIP-v3's, by the README of its
# code (cc3m, cc12m), of DRRho-CLIP's (dfn192m) and of SCENT's (dfn14m, whose
# gamma it has wrong: here it is `gamma_of`). DataComp is in none of them: its
# gamma is `gamma_of`, too, and its factor that of dfn14m, where the rate and
# the batch size are the same.
SCALES = dict(
  cc3m=dict(
    model=RN50,
    pairs=2_723_840,
    batch_size=1024,
    num_epochs=37.0,
    rate=1e-3,
    warmup=10_000,
    weight_decay=0.1,
    rho=6.5,
    gamma=0.2,
    gamma_fraction=0.5,
    tau_rate=0.2,
  ),
  cc12m=dict(
    model=VIT_B32,
    pairs=8_059_642,
    batch_size=2048,
    num_epochs=33.0,
    rate=4e-4,
    warmup=10_000,
    weight_decay=0.1,
    rho=8.5,
    gamma=0.2,
    gamma_fraction=0.5,
    tau_rate=0.25,
  ),
  dfn192m=dict(
    model=VIT_B16,
    pairs=192_160_462,
    batch_size=5120,
    num_epochs=7.0,
    rate=3.125e-4,
    warmup=500,
    weight_decay=0.2,
    rho=11.0,
    gamma=1.0,
    gamma_fraction=1.0,
    tau_rate=0.25,
  ),
  dfn14m=dict(
    model=VIT_B32,
    pairs=13_710_637,
    batch_size=4096,
    num_epochs=24.0,
    rate=5e-4,
    warmup=500,
    weight_decay=0.2,
    rho=11.0,
    gamma=0.415,
    gamma_fraction=1.0,
    tau_rate=0.125,
  ),
  datacomp_small=dict(
    model=VIT_B32,
    pairs=1_400_000,
    batch_size=4096,
    num_epochs=12.8 / 1.4,
    rate=5e-4,
    warmup=500,
    weight_decay=0.2,
    rho=6.5,
    gamma=0.84,
    gamma_fraction=1.0,
    tau_rate=0.125,
  ),
  datacomp_medium=dict(
    model=VIT_B32,
    pairs=14_000_000,
    batch_size=4096,
    num_epochs=128 / 14,
    rate=5e-4,
    warmup=500,
    weight_decay=0.2,
    rho=8.5,
    gamma=0.84,
    gamma_fraction=1.0,
    tau_rate=0.125,
  ),
)
TEMPERATURE = 0.01  # fixed, where the algorithm does not learn it


def learned(scale):
  """The rule of FastCLIP-v3."""
  return dict(name="learned", temperature=0.07, rho=scale["rho"])


def gamma_of(scale):
  """The last gamma that DRRho-CLIP's authors give for a number of epochs.

  They let it fall over all of them.
  """
  return min(1.0, 4.177 * scale["num_epochs"] ** -0.7265)


def falling(last, fraction):
  """A gamma that falls from 1 over a part of the run, as FastCLIP's does."""
  decay = dict(decay="cosine", decay_fraction=fraction)
  return dict(value=1.0, end_value=last, **decay)


def gamma_of_fastclip(scale):
  """The gamma of FastCLIP."""
  return falling(scale["gamma"], scale["gamma_fraction"])


# Objectives by scale. Constants are the published ones, where a paper has them.
ALGORITHMS = dict(
  amorlip=lambda scale: dict(
    name="contrib:amorlip",
    temperature=TEMPERATURE,  # where its rho, of 8.5, drives it
    hidden=1.0,
    beta=dict(value=0.0, decay="cosine", decay_fraction=0.5, end_value=0.8),
  ),
  clip=lambda scale: dict(temperature=0.07, learn_temperature=True),
  drrho=lambda scale: dict(
    name="sogclr",
    temperature=TEMPERATURE,
    gamma=falling(gamma_of(scale), 1.0),
    positive_weight=1e-4 * scale["pairs"],  # epsilon = 1e-4
  ),
  fastclip_v3=lambda scale: dict(
    name="sogclr", temperature=learned(scale), gamma=gamma_of_fastclip(scale)
  ),
  fastclip_released=lambda scale: dict(
    name="contrib:fastclip_released",
    temperature=0.07,
    rho=scale["rho"],
    gamma=gamma_of_fastclip(scale),
  ),
  neuclip=lambda scale: dict(
    name="contrib:neuclip", temperature=learned(scale)
  ),
  nuclr=lambda scale: dict(
    temperature=TEMPERATURE,
    gamma=0.8,
    zeta=dict(
      name="queue", size=16_384, rate=dict(value=0.3, freeze_epochs=1.0)
    ),
  ),
  scent=lambda scale: dict(
    name="sogclr",
    temperature=learned(scale),
    gamma=dict(name="adaptive", log_alpha=10.0),
    positive_weight=1e-6 * scale["pairs"],  # epsilon = 1e-6
  ),
  siglip=lambda scale: dict(init_scale=10.0, init_bias=-10.0),
  sogclr=lambda scale: dict(temperature=TEMPERATURE, gamma=0.8),
  tempnet=lambda scale: dict(
    name="sogclr",
    temperature=dict(name="contrib:tempnet", rate=dict(value=3e-5), rho=7.0),
    gamma=0.8,
  ),
)
# Whose code has a rate for the temperature alone. (NeuCLIP's was not at hand;
# it has FastCLIP-v3's.) OpenCLIP's own objectives, `clip` and `siglip`, do not.
OWN_TAU_RATE = ("fastclip_v3", "fastclip_released", "neuclip", "scent")
LEARNED_TAU = "objective/([^/]+/)?log_scale"  # beside a term, of one objective
# Objectives in units of similarity: 2 temperature times the gradient of clip.
UNSCALED = ("clip", "siglip")


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  names = choose(arg, SCALES, ALGORITHMS, {"tokens": True})
  data, name, tokens = names[0] or "cc3m", names[1] or "nuclr", names[2]
  scale = SCALES[data]
  model = scale["model"]
  is_vit = model is not RN50
  config = blank()  # all keys, with their defaults
  config.data = dict(
    name="image_text",
    train=data,
    size=224,
    resize="crop_torchvision",
    kernel="bicubic",
    tokenizer=SOURCE,
    length=77,
    clean=False,
    repair=True,
    scale=(0.9, 1.0),
    flip=False,
    num_ops=0,
    level=0.0,
    validation=(),
    validation_zero_shot=(),
    test=(),
    zero_shot=(),
    probes=(),
  )
  gelu = dict(activation="gelu")  # OpenCLIP's, where OpenAI has quick ones
  config.model = dict(
    name="towers",
    dim=model["dim"],
    image={"name": model["image"]} | (gelu if is_vit else {}),
    text={"name": "clip_text"} | gelu,
    dtype="bfloat16",
    projection_bias=False,
    projected=("image", "text") if is_vit else ("text",),
    normalize=True,
  )
  config.objective = {"name": name} | ALGORITHMS[name](scale)
  if name == "drrho":
    config.reference = REFERENCE
  config.optimizer = dict(
    learning_rate=dict(
      value=scale["rate"], warmup_steps=scale["warmup"], decay="cosine"
    ),
    weight_decay=scale["weight_decay"],
    clip_norm=0.0,
    b2=0.98 if is_vit else 0.999,
    freeze=(),
  )
  if name in OWN_TAU_RATE:
    config.optimizer.rate_factors = {LEARNED_TAU: scale["tau_rate"]}
  tau = config.objective.get("temperature")
  tau = getattr(tau, "temperature", tau)  # the first of a learned one
  tau = TEMPERATURE if name == "tempnet" else tau
  scale_of_loss = 1.0 if name in UNSCALED else 2 * tau
  config.optimizer.eps = 1e-6 * scale_of_loss if is_vit else 1e-8
  config.batch_size = scale["batch_size"]
  config.num_epochs = scale["num_epochs"]
  config.log_every = 100
  config.checkpoint_every = 2000
  if tokens:
    config.terms = {"contrib:token_prediction": dict(weight=scale_of_loss)}
  return config
