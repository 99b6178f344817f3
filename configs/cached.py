"""Projections of cached embeddings, trained in minutes without towers.

nuclr embed --config=configs/cc3m.py:clip_b16 --features --input=tfds:cc3m \
  --output=cached/train
nuclr embed ... --input=tfds:coco:validation --output=cached/coco_validation
nuclr train --config=configs/cached.py --workdir=runs/cached \
  --config.data.train=cached/train \
  --config.data.validation="('cached/coco_validation',)"

The argument after a colon is a name in `ALGORITHMS` of `configs/cc3m.py`.
"""

import pathlib

from ml_collections import ConfigDict

from nuclr_jax.lab.config import load_config


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  path = pathlib.Path(__file__).with_name("cc3m.py")
  config = load_config(f"{path}:{arg}")
  config.data = ConfigDict(
    dict(name="embeddings", train="cached/train", validation=(), test=())
  )
  config.model = ConfigDict(
    dict(
      name="heads",
      dim=256,
      hidden=1024,
      dropout=0.1,
      projection_bias=True,
      normalize=config.model.normalize,
    )
  )
  config.optimizer.learning_rate.update(
    dict(value=1e-3, warmup_epochs=0.1, warmup_steps=0)
  )
  config.batch_size = 4096
  config.num_epochs = 20.0
  return config
