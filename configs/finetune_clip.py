"""Fine-tune a published CLIP on your own pairs of images and captions.

nuclr ingest --input=captions.csv --images=photos --dataset=mine
nuclr ingest --input=others.csv --images=photos --dataset=mine \
  --split=validation
nuclr train --config=configs/finetune_clip.py --workdir=runs/finetuned

docs/guides/finetuning.md explains the settings. The argument after a colon is a
comma-separated list of

- b16, the default, or b32: OpenAI's CLIP with ViT-B/16 or ViT-B/32,
- sogclr, the default, clip or nuclr: the objective (experiments/fine_tuning
  compares them on small towers),
- smoke: tiny towers with random weights on the data set `smoke`, a minute on a
  CPU.

The settings are for 10,000 to 1,000,000 pairs. They are those of other people
for similar tasks: batches, epochs, learning rate, weight decay and clipping are
near those of WiSE-FT (Wortsman et al., CVPR 2022), crops are those of OpenCLIP,
and Dong et al. (arXiv:2212.06138) find that CLIP needs layer decay and an
average of the weights.
"""

from ml_collections import ConfigDict, config_dict

from nuclr_jax.lab.config import blank, choose

MODELS = dict(
  b16=dict(image="clip_vit_b16", source="openai/clip-vit-base-patch16"),
  b32=dict(image="clip_vit_b32", source="openai/clip-vit-base-patch32"),
)
TEMPERATURE = 0.01  # that of OpenAI's models
ALGORITHMS = dict(
  clip=dict(temperature=TEMPERATURE, learn_temperature=True),
  nuclr=dict(
    temperature=TEMPERATURE,
    gamma=0.8,
    zeta=dict(name="queue", size=4096, rate=dict(value=0.3, freeze_epochs=1.0)),
  ),
  sogclr=dict(temperature=TEMPERATURE, gamma=0.8),
)


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  model, name, smoke = choose(arg, MODELS, ALGORITHMS, {"smoke": True})
  model, name = MODELS[model or "b16"], name or "sogclr"
  config = blank()  # all keys, with their defaults
  config.data = dict(
    name="image_text",
    train="mine",
    size=224,
    resize="crop",
    kernel="bicubic",
    tokenizer=model["source"],
    length=77,
    clean=False,
    scale=(0.9, 1.0),
    flip=False,  # captions may speak of left and right
    num_ops=0,
    level=7.0,
    validation=("mine",),
    validation_zero_shot=(),
    test=(),
    zero_shot=(),
    probes=(),
  )
  config.model = dict(
    name="towers",
    dim=512,
    image=dict(name=model["image"]),
    text=dict(name="clip_text"),
    pretrained=model["source"],
    dtype="bfloat16",
    projection_bias=False,
    normalize=True,
  )
  config.objective = {"name": name} | ALGORITHMS[name]
  config.optimizer = dict(
    learning_rate=dict(
      value=3e-5, warmup_epochs=0.5, decay="cosine", stable_fraction=0.0
    ),
    weight_decay=0.1,
    clip_norm=1.0,
    b2=0.98,
    freeze=(),
    rate_factors={},
    layer_decay=0.75,
    weight_average=0.9998,
  )
  config.batch_size = 256
  config.num_epochs = 10.0
  config.log_every = 20
  config.eval_every_epochs = 1.0
  config.checkpoint_every = 500
  if smoke:
    shrink(config)
  return config


def shrink(config: ConfigDict) -> None:
  """Shrinks everything: 200 images, towers of 30,000 parameters each."""
  sets = dict.fromkeys(("validation", "test"), ("smoke",))
  sets |= dict(train="smoke", zero_shot=("smoke_classes",))
  config.data.update(sets | dict(size=32, tokenizer="build", length=16))
  small = dict(width=32, layers=2, heads=2)
  config.model.update(
    dict(
      dim=32,
      image=dict(patch=8, **small),
      text=dict(max_length=16, **small),
      pretrained=config_dict.placeholder(str),
    )
  )
  config.objective.temperature = 0.07  # these towers have learned nothing yet
  if "zeta" in config.objective:
    config.objective.zeta.size = 64
  config.optimizer.learning_rate.value = 3e-3
  config.batch_size = 16
  config.num_epochs = 20.0
  config.log_every = 40
  config.eval_every_epochs = 10.0
  config.checkpoint_every = 120
