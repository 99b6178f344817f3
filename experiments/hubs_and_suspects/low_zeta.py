r"""Does a low popularity point to a wrong caption?

python -m experiments.hubs_and_suspects.low_zeta \
  > experiments/hubs_and_suspects/low_zeta.json

Prints the area under the ROC curve of wrong captions (1, 5 and 10 % of the
pairs) by minus the exact zeta and by the weight of the positive pair: 0.5 is
chance, 1 finds all. Models are CLIP and NUCLR trained on the errors, and a CLIP
trained without errors, for data in fonts that it has seen and in others.
"""

from collections.abc import Iterator
import pathlib
import tempfile

from absl import app
from sklearn.metrics import roc_auc_score

from experiments.harness import Place, Run, benchmark, command
from experiments.harness.statistics import statistics
from experiments.hubs_and_suspects import data, measure, plan
from experiments.hubs_and_suspects.__main__ import STUDY
from nuclr_jax import popularity

KINDS = {k: x for k, x in plan.kinds().items() if x["wrong"]}
KINDS = {k: x for k, x in KINDS.items() if not x["exponent"]}
OWN = [
  plan.with_errors(arm, kind)
  for kind in KINDS
  for arm in plan.TRAINED_ON_ERRORS
]
CLEAN = plan.clean("CLIP", 0.0)
SCORES = ("minus zeta, images", "minus zeta, texts", "match probability")


def areas(model: measure.Model, drawn: data.Drawn) -> dict[str, float]:
  """Returns the area under the ROC curve of wrong captions, by score."""
  image, text = model.embed.image(drawn.image), model.embed.text(drawn.captions)
  solved = popularity.solve(image, text, temperature=model.temperature)
  scores = measure.own_scores(image, text, solved, model.temperature)
  scores["minus zeta, images"] = -solved.zeta.image
  scores["minus zeta, texts"] = -solved.zeta.text
  return {
    x: round(float(roc_auc_score(drawn.wrong, scores[x])), 4) for x in SCORES
  }


def of_run(run: Run, trained: measure.Trained) -> Iterator[tuple[str, dict]]:
  """Yields the settings that a run's model is scored in, and the areas."""
  if run.setting in OWN:
    yield run.setting, areas(trained.model, trained.drawn)
    return
  for name, (fonts, number) in measure.DRAWS.items():
    for kind, planted in KINDS.items():
      drawn = data.draw(
        trained.alphabet,
        dict(run.values)["num_pairs"],
        seed=(run.seed, number),
        fonts=fonts,
        wrong=planted["wrong"],
      )
      yield f"{name}, {kind}", areas(trained.model, drawn)


def summary(found: dict[str, list[dict]]) -> dict:
  """Returns means over seeds, and the least and the most of them by models."""
  means, groups = {}, {}
  for setting, rows in found.items():
    means[setting] = {x: statistics(y[x] for y in rows).show(3) for x in SCORES}
    group = "trained on them" if setting in OWN else "trained without"
    groups.setdefault(group, []).append(rows)
  spread = {}
  for group, settings in groups.items():
    for name in SCORES:
      every = [statistics(y[name] for y in rows).mean for rows in settings]
      both = {"least": min(every), "most": max(every)}
      spread.setdefault(group, {})[name] = both
  seeds = len(next(iter(found.values())))
  return {"seeds": seeds, "of_means": spread, "means": means, "areas": found}


def main(argv) -> None:
  """Trains the models and scores them."""
  del argv
  found = {}
  for run in plan.plan(command.parse_arguments(STUDY, ["--tables"]), {}):
    if run.setting in (*OWN, CLEAN):
      with tempfile.TemporaryDirectory() as folder:
        place = Place(pathlib.Path(folder) / "run", pathlib.Path(folder))
        with measure.train(run, place) as trained:
          for setting, row in of_run(run, trained):
            found.setdefault(setting, []).append(row)
  benchmark.show(benchmark.machine(), summary(found))


if __name__ == "__main__":
  app.run(main)
