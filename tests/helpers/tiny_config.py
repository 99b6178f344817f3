"""A config that is done in seconds: small images, small towers."""

BATCH, NUM_PAIRS = 64, 43_000
NUM_DIGITS = 1_197
TOWERS = {
  "data.size": 16,
  "model.dim": 16,
  "model.image_stages": ((4, 1, 16),),
  "model.image_features": 32,
  "model.text_width": 16,
}


def changes(num_steps, **more):
  """What to change in `configs/glyphs.py:smoke`."""
  steps = {
    "batch_size": BATCH,
    "num_epochs": num_steps * BATCH / NUM_PAIRS,
    "optimizer.learning_rate.warmup_epochs": 0.0,
    "log_every": 1,
    "eval_every": 0,
  }
  return TOWERS | steps | more


def of_digits(num_steps, **more):
  """What to change in `configs/labelled.py:nuclr,digits`, which starts soon."""
  steps = {
    "data.size": 8,
    "data.scores": ("recall",),
    "data.validation_scores": (),
    "model.encoder.stages": ((8, 1, 4),),
    "num_epochs": num_steps / (NUM_DIGITS // BATCH),
    "batch_size": BATCH,
    "optimizer.learning_rate.warmup_epochs": 0.0,
    "log_every": 1,
    "eval_every_epochs": 0.0,
    "checkpoint_every": 0,
  }
  return steps | more


def shrink(monkeypatch, measure):
  """Gives the image tower of a study's runs on glyphs a single stage."""
  make_config = measure.make_config

  def tiny(values):
    config = make_config(values)
    config.model.image_stages = TOWERS["model.image_stages"]
    return config

  monkeypatch.setattr(measure, "make_config", tiny)


def as_flags(changes):
  """The same on the command line."""
  return [f"--config.{name}={x}" for name, x in changes.items()]
