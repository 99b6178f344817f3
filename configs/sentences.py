"""Sentences without labels; dropout makes two views of each (SimCSE).

nuclr train --config=configs/sentences.py --workdir=runs/sentences \
  --config.data.train=wiki.txt --config.data.test='("sts.tsv",)'
nuclr train --config=configs/sentences.py:nuclr,small ... \
  --config.terms.contrib:difference_alignment.weight=0.5

The argument after a colon is a name in `ALGORITHMS`, a name in `ENCODERS`, or
both with a comma between them. `bert` starts from published weights, with their
tokenizer (`model.pretrained` is a name on the Hugging Face hub); `small` is a
transformer with random weights.
"""

from ml_collections import ConfigDict, config_dict

from nuclr_jax.lab.config import blank, choose

# A term that can be added to any objective; of weight 0, it is left out.
TERM = dict(weight=0.0, differences="chain", norm="l2", labels=False)
ALGORITHMS = dict(
  clip=dict(temperature=0.05, learn_temperature=False),
  ntxent=dict(temperature=0.05),
  nuclr=dict(temperature=0.05, gamma=0.9),
  sogclr=dict(temperature=0.05, gamma=0.9),
)
ENCODERS = dict(
  bert=dict(
    model=dict(
      encoder=dict(name="bert", pooler=True),
      dim=768,
      pretrained="google-bert/bert-base-uncased",
    ),
    tokenizer="google-bert/bert-base-uncased",
    learning_rate=3e-5,
    batch_size=64,
  ),
  small=dict(
    model=dict(
      encoder=dict(name="transformer", width=128, num_layers=2, dropout=0.1),
      dim=128,
      pretrained=config_dict.placeholder(str),
    ),
    tokenizer="build",
    learning_rate=1e-3,
    batch_size=128,
  ),
)


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  name, encoder = choose(arg, ALGORITHMS, ENCODERS)
  name, spec = name or "clip", ENCODERS[encoder or "bert"]
  config = blank()  # all keys, with their defaults
  config.data = dict(
    name="sentences",
    train=config_dict.placeholder(str),
    validation=(),
    test=(),
    tokenizer=spec["tokenizer"],
    length=32,
    min_count=1,
  )
  config.model = dict(name="views", hidden=0, normalize=True, **spec["model"])
  config.objective = {"name": name} | ALGORITHMS[name]
  config.terms = {"contrib:difference_alignment": TERM}
  config.optimizer = dict(
    learning_rate=dict(
      value=spec["learning_rate"], warmup_epochs=0.1, decay="cosine"
    ),
    weight_decay=0.01,
    clip_norm=1.0,
    b2=0.999,
    freeze=(),
  )
  config.batch_size = spec["batch_size"]
  config.num_epochs = 1.0
  config.log_every = 50
  config.eval_every = 250
  config.checkpoint_every = 1000
  return config
