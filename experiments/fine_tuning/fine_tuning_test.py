"""The study of fine-tuning: what it runs, and how rows become tables."""

import numpy as np

from experiments.fine_tuning import __main__ as main
from experiments.fine_tuning import measure, plan, tables
from experiments.harness import Results, command
from nuclr_jax.lab.data.source import ImageTextSet
from nuclr_jax.lab.train.settings import resolve

OPTIONS = command.parse_arguments(main.STUDY, [])


def row(start, lowest, last):
  curve = [start, lowest] + (len(plan.STEPS) - 3) * [start] + [last]
  names = [f"{x} R@{k}" for x in tables.SETS for k in (1, 10)]
  mixed = {f"{x:g}": dict.fromkeys(names, start + x) for x in plan.SHARES}
  return {
    "curve": dict.fromkeys(names, curve),
    "steps": list(plan.STEPS),
    "mixed": mixed,
    "recovery_seconds": 1.0,
  }


def test_one_model_is_trained_first_and_tuned_from_every_start():
  (first,) = plan.plan(OPTIONS, {})
  runs = plan.plan(OPTIONS, {first.key: {}})
  assert len(runs) == 1 + 3 * (len(tables.arms()) + len(plan.STARTS))
  for run in runs:
    settings = resolve(measure.make_config(dict(run.values), run.seed))
    assert settings.batch_size == 128
    warm = dict(run.values).get("start") not in (None, plan.COLD, plan.WARM_UP)
    assert (settings.warm_start is not None) == warm


def test_tables_compare_starts_by_seed():
  first, *runs = plan.plan(OPTIONS, {("pre-training", "CLIP", 0): {}})
  rows = {first.key: row(10.0, 10.0, 10.0)}
  rows |= {
    run.key: row(10.0, 9.0, 11.0 + run.seed + ("moments" in run.setting))
    for run in runs
  }
  made = tables.tables(OPTIONS, Results(rows))
  (line,) = (x for x in made["starts"].splitlines() if "| CLIP | mom" in x)
  assert "| 13.0 ± 2.5 |" in line and "+1.0 [+1.0, +1.0] *" in line
  assert "-1.00 ± 0.00" in line
  assert "| CLIP | new | 10.0 ± 0.0 | 10.2 ± 0.0 |" in made["mixtures"]
  assert tables.figures(OPTIONS, Results(rows))["curves.png"].axes
  outcomes = made["predictions"].splitlines()
  (line,) = (x for x in outcomes if "7: SogCLR, (moments) − (cold)" in x)
  assert line.endswith("| +1.00 [+1.00, +1.00] | holds |")
  (line,) = (x for x in outcomes if "4: CLIP, (moments)" in x)
  assert line.endswith("| fails |")
  numbers = tables.numbers(OPTIONS, Results(rows))
  key = "CLIP, cold: step 2 − first, new"
  assert numbers[key] == "-1.00 [-1.00, -1.00] *"
  assert numbers["CLIP, moments: dip − cold, new"] == "+0.00 [+0.00, +0.00]"
  assert tables.tables(OPTIONS, Results({}))["first"] == "Not pre-trained yet."


def test_some_drawings_keep_their_captions():
  image = np.arange(4).reshape(4, 1, 1, 1)
  data = ImageTextSet(image, np.array([0, 2, 2, 1]), ["a", "b", "c"], None)
  found = measure.some(data, np.array([2, 0]))
  assert [found.captions[i] for i in found.image_group] == ["c", "a"]
  assert found.image.ravel().tolist() == [2, 0]
