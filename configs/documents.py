"""Documents: two sentences of a document are a pair, and one encoder for both.

nuclr train --config=configs/documents.py --workdir=runs/documents \
  --config.data.train=articles
nuclr train --config=configs/documents.py:quick_thought --workdir=runs/imdb \
  --config.data.train=imdb_reviews:unsupervised \
  --config.data.classify='("imdb_reviews:train", "imdb_reviews:test")'

`articles` is a folder with a text file for each document, a sentence on each
line. The argument after the colon is a name in `ALGORITHMS`; `softmax` learns
the documents as labels. The encoder is a bag of words; more layers make it a
transformer (`--config.model.encoder.num_layers=1`).
"""

from ml_collections import ConfigDict, config_dict

from nuclr_jax.lab.config import blank, choose

ALGORITHMS = dict(
  curl=dict(block_size=5, num_negatives=8, loss="logistic"),
  latent_class=dict(num_negatives=8, loss="logistic"),
  quick_thought=dict(block_size=5),
  softmax=dict(),
)


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  (name,) = choose(arg, ALGORITHMS)
  name = name or "curl"
  config = blank()  # all keys, with their defaults
  config.data = dict(
    name="contrib:documents",
    train=config_dict.placeholder(str),
    classify=(),
    tokenizer="build",
    length=32,
    min_count=1,
    block_size=ALGORITHMS[name].get("block_size", 1),
    per_class=config_dict.placeholder(int),
    scores=("classes",),
    validation_scores=("classes",),
    ways=(2, 10),
    num_negatives=(1,),
  )
  config.model = dict(
    name="views",
    encoder=dict(name="transformer", width=128, num_layers=0, dropout=0.0),
    dim=64,
    hidden=0,
    normalize=False,
  )
  config.objective = {"name": f"contrib:{name}"} | ALGORITHMS[name]
  config.optimizer = dict(
    learning_rate=dict(value=2e-3, warmup_epochs=1.0, decay="cosine"),
    weight_decay=0.01,
    clip_norm=1.0,
    b2=0.999,
    freeze=(),
  )
  config.batch_size = 200
  config.num_epochs = 20.0
  config.log_every = 100
  config.eval_every_epochs = 5.0
  config.checkpoint_every = 1000
  return config
