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

import pathlib

from ml_collections import ConfigDict

from nuclr_jax.lab.config import choose, load_config

SOURCE = "google/siglip2-base-patch16-224"


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  (smoke,) = choose(arg, {"smoke": True})
  path = pathlib.Path(__file__).with_name("finetune_clip.py")
  config = load_config(f"{path}:{arg}")
  data = dict(resize="squash", kernel="bilinear", clean="lower")
  config.data = config.data.to_dict() | data
  config.model.image.name = "siglip_vit_b16"
  config.model.text.name = "siglip_text"
  config.model.projected = ("text",)
  del config.model.projection_bias
  config.optimizer.update(dict(weight_decay=0.0, b2=0.95))
  objective = dict(init_scale=10.0, init_bias=-2.7)  # log(1 / 15)
  if not smoke:
    config.data.update(dict(tokenizer=SOURCE, length=64))
    config.model.update(dict(dim=768, pretrained=SOURCE))
    config.optimizer.learning_rate.value = 1e-5
    # Near those of SigLIP 2: its demo prints 109.9 and -15.9 for So400m/16.
    # Those of a checkpoint are exp(logit_scale) and logit_bias.
    objective = dict(init_scale=110.0, init_bias=-16.0)
  config.objective = dict(name="siglip") | objective
  return config
