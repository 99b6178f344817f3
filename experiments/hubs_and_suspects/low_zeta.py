r"""Does a low popularity point to a wrong caption?

python -m experiments.hubs_and_suspects.low_zeta \
  > experiments/hubs_and_suspects/low_zeta.json

Trains the study's models of wrong captions (CLIP and NUCLR; 1, 5 and 10 %
wrong) and prints the area under the ROC curve of minus the exact zeta and of
the weight of the positive pair, means over seeds: 0.5 is chance, 1 finds all.
"""

import pathlib
import tempfile

from absl import app
from sklearn.metrics import roc_auc_score

from experiments.harness import Place, benchmark, command
from experiments.harness.statistics import statistics
from experiments.hubs_and_suspects import measure, plan
from experiments.hubs_and_suspects.__main__ import STUDY
from nuclr_jax import popularity


def areas(trained: measure.Trained) -> dict[str, float]:
  """Returns the area under the ROC curve of wrong captions, by score."""
  model, _, drawn, _ = trained
  image, text = model.embed.image(drawn.image), model.embed.text(drawn.captions)
  solved = popularity.solve(image, text, temperature=model.temperature)
  scores = {
    "minus zeta, images": -solved.zeta.image,
    "minus zeta, texts": -solved.zeta.text,
  } | measure.own_scores(image, text, solved, model.temperature)
  return {
    name: round(float(roc_auc_score(drawn.wrong, scores[name])), 4)
    for name in (*list(scores)[:2], "own weight", "own similarity")
  }


def main(argv) -> None:
  """Measures every kind of wrong captions that has no long tail."""
  del argv
  options = command.parse_arguments(STUDY, ["--tables"])
  kinds = [
    k for k, x in plan.kinds().items() if x["wrong"] and not x["exponent"]
  ]
  settings = [
    plan.with_errors(arm, kind)
    for kind in kinds
    for arm in plan.TRAINED_ON_ERRORS
  ]
  found = {setting: [] for setting in settings}
  for run in plan.plan(options, {}):
    if run.setting in found:
      with tempfile.TemporaryDirectory() as folder:
        place = Place(pathlib.Path(folder) / "run", pathlib.Path(folder))
        with measure.train(run, place) as trained:
          found[run.setting].append(areas(trained))
  means = {
    setting: {x: statistics(y[x] for y in rows).show(3) for x in rows[0]}
    for setting, rows in found.items()
  }
  spread = {}
  for name in means[settings[0]]:
    mean = [statistics(x[name] for x in rows).mean for rows in found.values()]
    spread[name] = {"least": min(mean), "most": max(mean)}
  seeds = len(found[settings[0]])
  facts = {"seeds": seeds, "means": means, "of_means": spread, "areas": found}
  benchmark.show(benchmark.machine(), facts)


if __name__ == "__main__":
  app.run(main)
