"""Your own images and captions, from random weights, sized by their number.

nuclr ingest --input=captions.csv --images=photos --dataset=mine
nuclr train --data=mine --workdir=runs/mine

`nuclr train --data` counts the pairs, and takes this config for as many; it
names the sets, too. By hand, the number is the argument after a colon:

nuclr train --config=own:5000 --workdir=runs/mine --config.data.train=mine

The argument is a comma-separated list of the number of pairs and a name in
`ALGORITHMS`, such as 5000,sogclr. The towers are small, nothing is downloaded,
and a laptop will do. To start from what a published model knows, which is more
than some thousand pairs can teach, see docs/guides/finetuning.md:

nuclr train --model=openai/clip-vit-base-patch32 --data=mine --workdir=runs/mine
"""

import math

from ml_collections import ConfigDict

from nuclr_jax.lab.config import ConfigError, blank, choose

PAIRS = 5_000  # unless the argument says how many there are
BATCHES = 16, 256  # the smallest and the largest batch
# An epoch has 8 steps or more, within these limits: of 634 captioned pictures,
# batches of 64 made better models than batches of 16 in as many epochs.
BATCHES_PER_EPOCH = 8
# Epochs = this, divided by the root of the number of pairs, within limits. R@1
# of these pictures rose for 40 epochs or more, of 4,779 others for 30.
EPOCHS_TIMES_ROOT = 2_500
EPOCHS = 5.0, 60.0
TEMPERATURE = 0.07
ALGORITHMS = dict(
  clip=dict(temperature=TEMPERATURE, learn_temperature=True),
  nuclr=dict(
    temperature=TEMPERATURE,
    gamma=0.8,
    zeta=dict(name="queue", size=4096, rate=dict(value=0.3, freeze_epochs=1.0)),
  ),
  siglip=dict(init_scale=10.0, init_bias=-10.0),
  sogclr=dict(temperature=TEMPERATURE, gamma=0.8),
)


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  words = [word for word in arg.split(",") if word]
  numbers = [word for word in words if word.isdecimal()]
  (name,) = choose(",".join(x for x in words if x not in numbers), ALGORITHMS)
  pairs, name = int(numbers[0]) if numbers else PAIRS, name or "clip"
  if len(numbers) > 1 or pairs < BATCHES[0]:
    raise ConfigError(
      f"own takes one number of pairs, of at least {BATCHES[0]}; got {arg!r}"
    )
  batch, epochs = batch_size(pairs), num_epochs(pairs)
  config = blank()  # all keys, with their defaults
  config.data = dict(
    name="image_text",
    train="mine",
    size=64,
    tokenizer="build",
    length=32,
    clean=False,
    scale=(0.5, 1.0),
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
    name="small",
    dim=128,
    image_stages=((4, 2, 64), (2, 1, 128), (2, 1, 256)),
    image_features=384,
    text_width=128,
    text_layers=1,
    text_heads=4,
    dropout=0.0,
    normalize=True,
  )
  config.objective = {"name": name} | ALGORITHMS[name]
  if name == "nuclr":
    config.objective.zeta.size = min(4096, pairs // batch * batch)
  config.optimizer = dict(
    learning_rate=dict(
      value=2e-3 * min(1.0, math.sqrt(batch / 128)),
      warmup_epochs=min(epochs / 20, 1.0),
      decay="cosine",
    ),
    weight_decay=0.1,
    clip_norm=1.0,
    b2=0.98,
    freeze=(),
  )
  config.batch_size = batch
  config.num_epochs = epochs
  config.log_every = 10 if pairs < 10_000 else 50
  config.eval_every_epochs = max(round(epochs / 10, 1), 0.5)
  config.checkpoint_every = max(int(epochs * (pairs // batch)) // 5, 1)
  return config


def batch_size(pairs: int) -> int:
  """Returns a power of two that gives an epoch enough steps."""
  least, most = BATCHES
  fitting = 2 ** int(math.log2(max(pairs // BATCHES_PER_EPOCH, 1)))
  return max(least, min(most, fitting))


def num_epochs(pairs: int) -> float:
  """Returns how often to see a pair: less often, the more there are."""
  least, most = EPOCHS
  return max(least, min(most, round(EPOCHS_TIMES_ROOT / math.sqrt(pairs), 1)))
