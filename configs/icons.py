"""Icons of many designers and their names: real pairs, on a laptop.

npm pack @iconify/json@2.2.535
nuclr train --config=configs/icons.py --workdir=runs/icons \
  --config.data.package=iconify-json-2.2.535.tgz

The first run draws the icons, which takes `pip install "nuclr_jax[icons]"` and
some minutes; later ones need neither the package nor the extra. The argument
after a colon has at most one word of each kind, with commas between them: a
name in `ALGORITHMS` of `configs/glyphs.py` (nuclr by default); `tokens`, to
predict the tokens of names, too; a text tower; and `smoke`, for a run of a
minute:

nuclr train --config=configs/icons.py:sogclr,smoke --workdir=runs/smoke

The settings of the algorithms and the image tower are those of the glyphs; a
name is the mean of its words, unless the text tower is the sentence encoder
all-MiniLM-L6-v2, in the folder `minilm`: fine-tuned after `minilm`, locked
after `lit`. "Sentence encoders" in docs/guides/published_models.md says how to
get it. Without an accelerator, a step then takes more than ten times as long.
"""

import pathlib

from ml_collections import ConfigDict, config_dict

from nuclr_jax.lab.config import choose, load_config

ENCODER = "minilm"  # the folder of the sentence encoder
# Of 236,283 pairs, see drrho in `configs/glyphs.py`.
DRRHO_POSITIVE = 1e-4 * 236_282 * 128 / 127
TEXT_TOWERS = dict(
  minilm=dict(rate_factors={"model/text": 0.05}),
  lit=dict(freeze=("model/text",)),
)


def get_config(arg: str = "") -> ConfigDict:
  """Makes the config; see the module's docstring."""
  path = pathlib.Path(__file__).with_name("glyphs.py")
  words = arg.split(",")
  rest = ",".join(x for x in words if x not in TEXT_TOWERS)
  towers = ",".join(x for x in words if x in TEXT_TOWERS)
  (tower,) = choose(towers, TEXT_TOWERS)
  config = load_config(f"{path}:{rest}")
  config.data = dict(
    name="icons",
    package=config_dict.placeholder(str),
    version="2.2.535",
    sets=(),
    processes=config_dict.placeholder(int),
    size=32,
    caption="name",
    tokenizer="build",
    length=12,
    min_count=1,
    shift=1.0,
    scale=0.0,
    share_texts=True,
  )
  # Names have few words: a layer of attention over them made training slower
  # and retrieval worse, see experiments/icons.
  config.model.text_layers = 0
  if config.reference:
    config.objective.positive_weight = DRRHO_POSITIVE
  config.num_epochs = 3.0
  config.eval_every = 0
  config.eval_every_epochs = 1.0
  config.log_every = 200
  config.checkpoint_every = 2000
  if tower:
    # The first and the last token, and pieces of rare words.
    config.data.update(tokenizer=ENCODER, length=16)
    small = config.model
    config.model = dict(
      name="towers",
      dim=small.dim,
      normalize=small.normalize,
      projection_bias=False,
      image=dict(
        name="convnet",
        stages=small.image_stages,
        num_features=small.image_features,
      ),
      text=dict(name="minilm_l6", pretrained=ENCODER),
    )
    config.optimizer.update(TEXT_TOWERS[tower])
  if "smoke" in words:
    config.num_epochs = 0.1
    config.log_every = config.checkpoint_every = 50
  return config
