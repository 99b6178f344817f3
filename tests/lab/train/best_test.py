"""The best state of a run whose validation, or whose score, has changed."""

import contextlib
import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax.lab.data.source import HeldOut, ImageTextSet
from nuclr_jax.lab.train import best, build, checkpoint, resume

SCORE, OTHER = "validation/recall", "validation/top1"
META = {"config": {"seed": 3}, "validation": {"retrieval/": "1"}}
CHANGED = META | {"validation": {"retrieval/": "2"}}


def state_of(step):
  return {"step": jnp.array(step)}


def keep(workdir, scores, *, meta=META, score=SCORE):
  """Offers states, by step, as a run does that is started now."""
  with best.open_best(workdir, score=score, meta=meta) as keep_if_best:
    for step, values in scores.items():
      keep_if_best(step, state_of(step), values)


def kept(workdir):
  """Returns the step that is kept, and its meta."""
  manager, step = checkpoint.open_to_read(workdir, name=checkpoint.BEST)
  with contextlib.closing(manager):
    return step, checkpoint.read_meta(manager, step)


@pytest.fixture
def workdir(tmp_path, caplog):
  """A workdir that keeps step 8 for its recall of 0.4."""
  caplog.set_level(logging.WARNING, "nuclr_jax")
  keep(
    tmp_path,
    {4: {SCORE: 0.3, OTHER: 0.9}, 8: {SCORE: np.float32(0.4), OTHER: 0.5}},
  )
  assert kept(tmp_path)[0] == 8
  return tmp_path


def test_a_resumed_run_knows_the_score_to_beat(workdir, caplog):
  keep(workdir, {12: {SCORE: 0.35, OTHER: 0.8}})
  assert kept(workdir)[0] == 8
  keep(workdir, {16: {SCORE: 0.45, OTHER: 0.1}})
  assert kept(workdir)[0] == 16
  assert not caplog.records


@pytest.mark.parametrize("step", [6, 8, 12])
def test_a_score_of_other_validation_sets_is_not_one_to_beat(
  step, workdir, caplog
):
  """Step 6 is that of a run that goes on from before its best step."""
  keep(workdir, {step: {SCORE: 0.3, OTHER: 0.5}}, meta=CHANGED)
  found, meta = kept(workdir)
  assert found == step and meta["validation"] == CHANGED["validation"]
  assert "scored best on other validation sets than there" in caplog.text
  assert "(retrieval/), so it is replaced at the next vali" in caplog.text
  caplog.clear()
  keep(workdir, {16: {SCORE: 0.29}, 20: {SCORE: 0.31}}, meta=CHANGED)
  assert kept(workdir)[0] == 20 and not caplog.records


def test_the_kept_state_stays_until_the_next_validation(workdir):
  keep(workdir, {}, meta=CHANGED)
  assert kept(workdir)[0] == 8


def test_another_score_is_compared_with_that_of_the_kept_state(workdir, caplog):
  keep(workdir, {12: {SCORE: 0.9, OTHER: 0.45}}, score=OTHER)
  assert kept(workdir)[0] == 8  # its own was 0.5
  assert (
    f"kept for {SCORE}, and keep_best is {OTHER} now: a later state with more "
    "than its 0.5000 replaces it. Earlier states that history.jsonl shows"
  ) in caplog.text
  keep(workdir, {16: {SCORE: 0.1, OTHER: 0.6}}, score=OTHER)
  assert kept(workdir)[0] == 16
  caplog.clear()
  keep(workdir, {}, score=OTHER)
  assert not caplog.records


def test_a_best_state_of_an_earlier_version_goes_on_as_before(tmp_path, caplog):
  """It has neither the identity of its sets nor its other scores."""
  caplog.set_level(logging.WARNING, "nuclr_jax")
  old = {"config": {"seed": 3}, "best": {SCORE: 0.4}}
  to = checkpoint.open_to_write(tmp_path, name=checkpoint.BEST)
  with contextlib.closing(to):
    checkpoint.save(to, 8, state_of(8), old)
  keep(tmp_path, {12: {SCORE: 0.35}})
  assert kept(tmp_path) == (8, json.loads(json.dumps(old)))
  assert not caplog.records
  keep(tmp_path, {16: {SCORE: 0.3, OTHER: 0.1}}, score=OTHER)
  assert kept(tmp_path)[0] == 16
  assert "now: the next validation replaces it. Earlier" in caplog.text


def test_the_meta_of_a_run_identifies_its_validation_sets(tiny, few_pairs):
  ids = np.arange(2)
  one = ImageTextSet(np.zeros((2, 16, 16, 1)), ids, ["a", "b"], ids)
  found = []
  for x in (one, one._replace(captions=["a", "c"])):
    sets = {"validation": HeldOut({"": x}), "test": HeldOut({"": one})}
    data = few_pairs._replace(held_out=sets)
    found.append(resume.meta(build.build(tiny(), data=data))["validation"])
  assert [list(x) for x in found] == [["retrieval/"]] * 2
  assert found[0] != found[1]
  nothing = build.build(tiny(), data=few_pairs)
  assert resume.meta(nothing)["validation"] == {}
