"""Fine-tune SigLIP 2 on your own pairs of images and captions.

nuclr ingest --input=captions.csv --images=photos --dataset=mine
nuclr ingest --input=others.csv --images=photos --dataset=mine \
  --split=validation
nuclr train --config=configs/finetune_siglip2.py --workdir=runs/finetuned

docs/guides/finetuning.md explains the settings. After a colon, `smoke` chooses
tiny towers with random weights on the data set `smoke`, a minute on a CPU.

The settings are those of configs/finetune_clip.py with SigLIP's loss and Adam's
b2 as in the paper (Zhai et al., ICCV 2023). It disables the weight decay of
pretrained weights, and so does this config.
"""

from ml_collections import ConfigDict, config_dict

from nuclr_jax.config import blank, choose

SOURCE = "google/siglip2-base-patch16-224"


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  (smoke,) = choose(arg, {"smoke": True})
  config = blank()  # all keys, with their defaults
  config.data = dict(
    name="image_text",
    train="mine",
    size=224,
    tokenizer=SOURCE,
    resize="squash",
    kernel="bilinear",
    length=64,
    clean="lower",
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
    dim=768,
    image=dict(name="siglip_vit_b16"),
    text=dict(name="siglip_text"),
    pretrained=SOURCE,
    projected=("text",),
    dtype="bfloat16",
    normalize=True,
  )
  # Near those of SigLIP 2: its demo prints 109.9 and -15.9 for So400m/16. Those
  # of a checkpoint are exp(logit_scale) and logit_bias.
  config.objective = dict(name="siglip", init_scale=110.0, init_bias=-16.0)
  config.optimizer = dict(
    learning_rate=dict(
      value=1e-5, warmup_epochs=0.5, decay="cosine", stable_fraction=0.0
    ),
    weight_decay=0.0,
    clip_norm=1.0,
    b2=0.95,
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
  """Shrinks everything: 200 images, towers of 40,000 parameters each."""
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
  config.objective.update(dict(init_scale=10.0, init_bias=-2.7))  # log(1 / 15)
  config.optimizer.learning_rate.value = 3e-3
  config.batch_size = 16
  config.num_epochs = 20.0
  config.log_every = 40
  config.eval_every_epochs = 10.0
  config.checkpoint_every = 120
