"""Near-duplicate captions: a share of them paraphrases 20 boilerplates.

Every letter is drawn equally often, but a share of the captions says nothing
about the image. Nothing marks these captions, and temperatures are low, so that
popularities can be large in units of the temperature.
"""

import numpy as np

from experiments.harness import Options, Place, Row, Run
from experiments.when_it_pays import data
from experiments.when_it_pays.letters import (
  COMMON,
  SMOKE,
  by_caption,
  fit,
  make_config,
)

PART = "near-duplicates"
SHARES = (0.0, 0.2, 0.5)  # of the captions
TAUS = (0.03, 0.06)
BASE = "SogCLR"
ARMS = (
  *("CLIP", BASE, "ζ = 0", "ζ learned, batch"),
  *("ζ learned, queue", "ζ exact, each epoch"),
)
VALUES = COMMON | {"exponent": 0.0, "num_items": 200}


def plan(options: Options) -> list[Run]:
  """Plans the runs, seed by seed."""
  small = SMOKE if options.smoke else {}
  settings = [(share, tau) for share in SHARES for tau in TAUS]
  return [
    Run(
      PART,
      setting_of(arm, share, tau),
      seed,
      tuple(
        (
          VALUES | small | {"arm": arm, "share": share, "temperature": tau}
        ).items()
      ),
    )
    for seed in range(options.seeds)
    for share, tau in settings[-1 if options.smoke else 0 :]
    for arm in ARMS
  ]


def setting_of(arm: str, share: float, tau: float) -> str:
  """Returns how rows name a setting."""
  return f"{arm}, share {share}, τ {tau}"


def measure(run: Run, place: Place) -> Row:
  """Trains, and asks for the names of letters in fonts never seen."""
  values = dict(run.values)
  tau = values["temperature"]
  tails = data.make_tails(
    seed=run.seed,
    exponent=values["exponent"],
    num_items=values["num_items"],
    num_pairs=values["num_pairs"],
    boilerplate=values["share"],
  )
  config = make_config(values)
  config.seed = run.seed
  fitted = fit(config, place, tails)
  shifts = {"E": 0.0, "E - ζ exact": -by_caption(fitted.exact.text, tails)}
  row = {"train_seconds": round(fitted.seconds, 1)}
  if fitted.zeta is not None:
    shifts["E - ζ"] = -by_caption(fitted.zeta.text, tails)
    row["zeta_sd"] = {
      side: float(np.std(x) / tau) for side, x in fitted.zeta._asdict().items()
    }
  row["exact_sd"] = {
    side: float(np.std(x) / tau) for side, x in fitted.exact._asdict().items()
  }
  row["scores"] = {
    name: accuracies(fitted.similarity + shift, tails)
    for name, shift in shifts.items()
  }
  return row


def accuracies(score: np.ndarray, tails: data.Tails) -> dict[str, float]:
  """Returns how often the best score is right, in percent, by pool.

  "names": an image is asked for its name among the names of all letters; "all
  captions": among all distinct training captions, too; "text to image": a name
  is asked for one of its letter's images. "boilerplates" is the share of images
  for which a boilerplate is the best of all captions.
  """
  num_names = len(tails.p)
  best = np.argmax(score, axis=1)
  best_name = np.argmax(score[:, :num_names], axis=1)
  image = np.argmax(score[:, :num_names], axis=0)
  found = {
    "names": best_name == tails.test_item,
    "all captions": best == tails.test_item,
    "boilerplates": best >= num_names,
    "text to image": tails.test_item[image] == np.arange(num_names),
  }
  return {name: float(100 * np.mean(x)) for name, x in found.items()}
