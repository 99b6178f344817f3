"""The first screen of a report: chance, and what a curve calls for."""

import itertools
import json
import types

import numpy as np
import pytest

from nuclr_jax.lab.data.source import HeldOut, ImageTextSet, LabelledSet
from nuclr_jax.lab.evaluate import retrieval
from nuclr_jax.lab.report import opening
from nuclr_jax.lab.train import build, journal
from nuclr_jax.types import Sides

CAPTIONS = ["a", "b", "a", "c"]
GROUP = np.array([0, 0, 1, 2])  # of captions; the images are 0, 1, 2


def brute(data):
  """The mean recall@1 over all orders of the candidates."""
  sizes = len(data.image), len(data.captions)
  found = []
  for k in itertools.permutations(range(sizes[1])):
    text = np.zeros((sizes[1], 1))
    text[list(k), 0] = np.arange(sizes[1], 0, -1)  # the same order for all
    ones = np.ones((sizes[0], 1))
    found.append(
      retrieval.recall(
        *(ones, text, data.image_group, data.caption_group), same=data.same
      )["image_to_text/recall@1"]
    )
  return np.mean(found)


def test_chance_is_the_mean_over_all_rankings():
  data = ImageTextSet(np.zeros((3, 2)), np.arange(3), CAPTIONS, GROUP)
  found = opening.chance(data)
  assert found.image == pytest.approx(brute(data)) == pytest.approx(4 / 3 / 4)
  assert found.text == pytest.approx(1 / 3)


def test_equal_captions_are_one_candidate():
  """Image 0 is right for a and b, image 1 for a, image 2 for c; of a, b, c."""
  same = Sides(np.arange(3), np.array([0, 1, 0, 2]))
  data = ImageTextSet(np.zeros((3, 2)), np.arange(3), CAPTIONS, GROUP)
  found = opening.chance(data._replace(same=same))
  assert found.image == pytest.approx((2 + 1 + 1) / 3 / 3)
  assert found.text == pytest.approx((2 + 1 + 2 + 1) / 4 / 3)


def test_chances_have_the_names_of_metrics():
  ids = np.arange(4)
  data = ImageTextSet(np.zeros((4, 2)), ids, list("abcd"), ids)
  classes = LabelledSet(np.zeros((4, 2)), ids % 2, ("x", "y"))
  held_out = {
    "test": HeldOut({"": data, "coco": data}, {"pets": lambda: classes})
  }
  found = opening.chances(held_out)
  assert found["test/mean_recall@1"] == found["test/coco/mean_recall@1"] == 0.25
  assert found["test/zero_shot_pets/top1"] == 0.5


@pytest.mark.parametrize(
  ("curve", "chance", "words"),
  [
    (
      [(10, 0.011), (20, 0.012), (30, 0.012)],
      0.01,
      "hardly better than chance",
    ),
    ([(10, 0.3), (20, 0.4)], 0.01, "scored too rarely"),
    ([(10, 0.3), (50, 0.4), (100, 0.45)], None, "still rising (+5 %"),
    ([(10, 0.3), (50, 0.5), (100, 0.4)], 0.01, "best at step 50, and 20 % low"),
    ([(10, 0.3), (80, 0.4), (100, 0.401)], 0.01, "level at the end"),
    ([], 0.1, ""),
  ],
)
def test_what_a_curve_calls_for(curve, chance, words):
  assert opening.verdict(curve, chance).startswith(words)


def parts():
  ids = np.arange(4)
  data = ImageTextSet(np.zeros((4, 2)), ids, list("abcd"), ids)
  recorded = {
    "objective": {"name": "nuclr", "temperature": 0.07},
    "data": {"name": "image_text", "train": "mine"},
  }
  settings = types.SimpleNamespace(
    recorded=recorded, batch_size=8, num_epochs=2.0
  )
  held_out = {"test": HeldOut({"": data}), "validation": HeldOut({"": data})}
  sizes = types.SimpleNamespace(num_pairs=1234)
  train = types.SimpleNamespace(sizes=sizes)
  data = types.SimpleNamespace(train=train, held_out=held_out)
  return build.Experiment(settings, data, *[None] * 3, num_steps=30)


def section(workdir, metrics, alarms=()):
  history = [
    {"step": step, "validation/mean_recall@1": x}
    for step, x in ((10, 0.6), (20, 0.7), (30, 0.8))
  ]
  run = parts()
  return opening.section(
    workdir,
    run,
    metrics=metrics,
    history=history,
    before={"test/mean_recall@1": 0.26},
    random=opening.chances(run.data.held_out),
    alarms=alarms,
  )


def test_a_finished_run(tmp_path):
  lines = [
    {
      "event": "begin",
      "device": "TPU <v5>",
      "devices": 8,
      "versions": {"nuclr_jax": "0.1"},
      "commit": "abc",
    },
    {"event": "end", "seconds": 65},
  ]
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / journal.JOURNAL).write_text(text)
  metrics = {"step": 30, "test/mean_recall@1": 0.5}
  metrics["validation/mean_recall@1"] = 0.8
  shown = section(tmp_path, metrics, alarms=[f"alarm {i}" for i in range(6)])
  assert "nuclr, temperature 0.07; 1,234 pairs of mine; batch 8" in shown
  assert "1:05 on 8 x TPU &lt;v5&gt;; nuclr_jax 0.1, commit abc" in shown
  row = "<td>test/mean_recall@1<td>50.0 %<td>26.0 %<td>25.0 %"
  assert row in shown
  assert "still rising" in shown and "alarm 3" in shown
  assert "alarm 4" not in shown and "2 more warnings" in shown


def test_the_time_of_a_killed_process_is_not_known(tmp_path):
  begin = {"event": "begin", "device": "cpu", "devices": 1}
  lines = [begin, begin, {"event": "end", "seconds": 65}]
  text = "".join(json.dumps(x) + "\n" for x in lines)
  (tmp_path / journal.JOURNAL).write_text(text)
  assert "at least 1:05 on 1 x cpu; begun 2 times" in section(tmp_path, None)


def test_a_run_that_has_not_finished(tmp_path):
  shown = section(tmp_path, None)
  assert "30 of 30 steps" in shown and "has not finished" in shown
  assert "<td>validation/mean_recall@1<td>80.0 %<td>–<td>25.0 %" in shown
