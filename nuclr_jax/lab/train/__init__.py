"""Training: from a config to a trained model, and the pieces of a custom loop.

`fit` is all that `nuclr train` runs. To write your own loop, use `init_state`
and `make_train_step` instead. The modules are: `build` (makes the parts of a
run from its config), `step`, `loop`, `resume` (the state that a run starts
from), `checkpoint`, `records` (the files of a workdir), `optimizer`,
`microbatch`, `average` (of the weights), `hooks` and `diagnostics`.
"""

from nuclr_jax.lab.train.hooks import Hook, refresh_popularity
from nuclr_jax.lab.train.loop import Result, embedder, evaluate, fit, load
from nuclr_jax.lab.train.optimizer import make_optimizer, make_schedule
from nuclr_jax.lab.train.step import (
  TrainState,
  init_state,
  make_train_step,
  shardings,
)

__all__ = [
  "Hook",
  "Result",
  "TrainState",
  "embedder",
  "evaluate",
  "fit",
  "init_state",
  "load",
  "make_optimizer",
  "make_schedule",
  "make_train_step",
  "refresh_popularity",
  "shardings",
]
