"""`nuclr compare`: runs that other code wrote, and what is said of them."""

import csv
import json
import math

import numpy as np
import pytest
from scipy import stats

from nuclr_jax.lab.cli import flags, main, usage
from nuclr_jax.lab.config import complete, load_config
from nuclr_jax.lab.report import compare, compare_files

CONFIGS = {x: complete(load_config(f"glyphs:{x}")) for x in ("clip", "sogclr")}
CONFIGS["own"] = complete(load_config("cc3m:clip"))
SCORE = "test/mean_recall@1"
VALIDATION = "validation/mean_recall@1"
# By objective and seed.
SCORES = {
  ("clip", 0): 0.50,
  ("clip", 1): 0.54,
  ("clip", 2): 0.53,
  ("sogclr", 0): 0.55,
  ("sogclr", 1): 0.57,
  ("sogclr", 2): 0.59,
}


def write_run(folder, objective, seed, *, final=None, last=200, **changes):
  """Writes what a run leaves: its config, history, times and final metrics."""
  folder.mkdir(parents=True)
  config = json.loads(json.dumps(CONFIGS[objective])) | {"seed": seed}
  for key, value in changes.items():
    *path, name = key.split("__")
    part = config
    for x in path:
      part = part[x]
    part[name] = value
  (folder / "config.json").write_text(json.dumps(config))
  history = [
    {"step": step, "train/loss": 1 / step, VALIDATION: seed / 100 + step / 1e4}
    for step in range(100, last + 1, 100)
  ]
  times = [{"step": 100}]
  times += [{"step": 200, "pairs_per_second": 1000.0, "share/evaluation": 0.5}]
  for name, rows in (("history", history), ("times", times)):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(text)
  if final is not None:
    (folder / "metrics.json").write_text(json.dumps({SCORE: final, "x/y": 3}))
  return str(folder)


@pytest.fixture
def runs(tmp_path):
  return [
    write_run(tmp_path / f"{name}-{seed}", name, seed, final=x)
    for (name, seed), x in SCORES.items()
  ]


def test_differences_are_those_of_runs_with_the_same_seed(runs):
  found = compare.open_all(runs)
  assert [x.label for x in found.settings] == ["clip", "sogclr"]
  assert found.notes == []
  first, second = compare.compare(found.settings, compare.final(SCORE))
  clip, sogclr = (
    np.array([SCORES[name, i] for i in range(3)]) for name in ("clip", "sogclr")
  )
  low, high = stats.ttest_rel(sogclr, clip).confidence_interval(0.95)
  gain = second.difference
  assert first.difference is None and gain.count == 3
  assert gain.mean - gain.half_width == pytest.approx(low)
  assert gain.mean + gain.half_width == pytest.approx(high)
  low, high = stats.ttest_1samp(clip, 0).confidence_interval(0.95)
  assert first.score.mean + first.score.half_width == pytest.approx(high)


def test_only_common_seeds_are_compared(runs):
  found = compare.open_all([*runs[:2], *runs[4:]])  # seeds 0, 1 and 1, 2
  _, line = compare.compare(found.settings, compare.final(SCORE))
  assert line.difference.count == 1 and math.isnan(line.difference.half_width)
  assert line.difference.mean == pytest.approx(0.57 - 0.54)
  assert line.score.mean == pytest.approx((0.57 + 0.59) / 2)


def test_what_does_not_change_a_run_makes_no_setting(runs, tmp_path):
  other = write_run(tmp_path / "z", "clip", 3, final=0.5, log_every=7)
  again = write_run(tmp_path / "zz", "clip", 3, final=0.9)
  rate = write_run(
    tmp_path / "r", "clip", 0, final=0.4, objective__temperature=0.1
  )
  found = compare.open_all([*runs, other, again, rate])
  labels = {x.label: len(x.runs) for x in found.settings}
  assert labels == {
    "clip objective.temperature=0.08": 4,
    "sogclr": 3,
    "clip objective.temperature=0.1": 1,
  }
  assert found.notes == [f"left out {again}: the config and seed of {other}"]


def test_runs_that_are_not_there_damaged_or_unfinished_are_named(
  runs, tmp_path
):
  short = write_run(tmp_path / "short", "sogclr", 5, last=100)
  (tmp_path / "damaged").mkdir()
  (tmp_path / "damaged" / "config.json").write_text("{")
  patterns = [*runs[:2], short, f"{tmp_path}/damaged", f"{tmp_path}/none*"]
  found = compare.open_all(patterns)
  notes = "\n".join(found.notes)
  assert f"left out {tmp_path}/damaged: " in notes
  assert f"left out {tmp_path}/none*: " in notes
  assert f"{short} has not finished: it is at step 100" in notes
  assert compare.last_common(found.settings) == (100, [VALIDATION])
  text = "\n".join(compare_files.lines(found))
  assert f"{VALIDATION} at step 100, the last that all have, %" in text
  with pytest.raises(ValueError, match=r"none: .* holds no run"):
    compare.open_all([f"{tmp_path}/none"])


def test_other_data_are_named(runs, tmp_path):
  other = write_run(tmp_path / "small", "clip", 0, final=0.4, data__size=16)
  notes = compare.open_all([*runs[:1], other]).notes
  assert notes == [
    "clip data.size=16 has other data: data.size is 16, 32 in clip "
    "data.size=32. Scores of one name may be of other sets"
  ]


def test_runs_that_are_scored_on_other_sets_are_not_averaged(tmp_path):
  """Seed 0 on one half, and seed 1 on the other one, have no mean."""
  halves = ["mine:test[:50%]"], ["mine:test[50%:]"], ["mine:test[:50%]"]
  runs = [
    write_run(tmp_path / str(i), "own", i, final=0.5, data__test=half)
    for i, half in enumerate(halves)
  ]
  found = compare.open_all(runs)
  assert [(x.label, list(x.runs)) for x in found.settings] == [
    ("clip data.test=('mine:test[:50%]',)", [0, 2]),
    ("clip data.test=('mine:test[50%:]',)", [1]),
  ]
  (note,) = found.notes
  assert "has other data: data.test is ('mine:test[50%:]',), " in note
  assert note.endswith("Scores of one name may be of other sets")
  for key in ("zero_shot", "probes"):
    runs = [
      write_run(tmp_path / key / str(i), "own", i, **{f"data__{key}": sets})
      for i, sets in enumerate(([], ["cifar100"]))
    ]
    assert len(compare.open_all(runs).settings) == 2


def test_runs_that_were_extended_are_named(runs, tmp_path):
  rows = {"step": 90, "num_epochs": 3}, {"step": 99, "num_pairs": "<b>"}
  text = "".join(json.dumps(row) + "\n" for row in rows)
  (tmp_path / "clip-1" / "extended.jsonl").write_text(text + "[1]\n")
  found = compare.open_all(runs)
  (note,) = found.notes
  assert note.startswith(
    f"{runs[1]}: The run was extended at step 90; it was to have 3 epochs "
    "before. The data changed at step 99; "
  )
  assert "such as a cosine, were planned anew there" in note


def test_hours_count_evaluation_and_not_compiling(runs):
  (run,) = compare.open_all(runs[:1]).settings[0].runs.values()
  pairs = 100 * run.config["batch_size"]
  assert compare.hours(run) == pytest.approx(
    {100: 0.0, 200: pairs / 1000 / 0.5 / 3600}
  )


@pytest.mark.parametrize("last", [250, None])
def test_hours_count_the_first_line_of_a_resumed_run(runs, last):
  """It has no speed of its own, and the speed may be unknown at the end."""
  (run,) = compare.open_all(runs[:1]).settings[0].runs.values()
  speeds = {50: None, 100: 100.0, 150: 100.0, 200: None, 250: last and 50.0}
  times = [
    {"step": step, **({"pairs_per_second": x} if x else {})}
    for step, x in speeds.items()
  ]
  run = run._replace(times=times, config=run.config | {"batch_size": 100})
  expected = {50: 0, 100: 50, 150: 100, 200: 150, 250: 200}
  if last:
    expected |= {200: 200, 250: 300}
  found = {step: 3600 * x for step, x in compare.hours(run).items()}
  assert found == pytest.approx(expected)


def test_the_command(runs, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  argv = ["nuclr", "compare", ".", "--output=out"]  # all that is in a folder
  assert main.parse_flags(argv)[1:] == ["compare", "."]
  usage.VERBS["compare"].run(".")
  printed = capsys.readouterr().out.splitlines()
  at = printed.index(f"{SCORE}, %")
  assert [x.split() for x in printed[at + 1 : at + 4]] == [
    ["runs", "−", "clip"],
    ["clip", "3", "52.33", "±", "5.17"],
    ["sogclr", "3", "57.00", "±", "4.97", "+4.67", "[+0.87,", "+8.46]", "*"],
  ]
  assert max(map(len, printed)) <= 100
  with (tmp_path / "out" / "runs.csv").open() as file:
    rows = list(csv.DictReader(file))
  assert [float(x[SCORE]) for x in rows] == list(SCORES.values())
  with (tmp_path / "out" / "scores.csv").open() as file:
    (row,) = [
      x
      for x in csv.DictReader(file)
      if x["metric"] == SCORE and x["setting"] == "sogclr"
    ]
  assert float(row["difference"]) == pytest.approx(0.14 / 3)
  page = (tmp_path / "out" / "compare.html").read_text()
  assert "objective.name" in page and "+4.67 [+0.87, +8.46] *" in page
  flags.parse(["nuclr"])


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["compare"], "compare needs the workdirs of runs, such as nuclr compare"),
    (
      ["report", "x"],
      "takes one verb, and flags that begin with --; got ['x']",
    ),
    (["comapre"], "got comapre; did you mean compare?"),
    (["x", "compare"], "takes a verb first, and flags that begin with --"),
  ],
)
def test_words_that_are_missing_or_too_many(argv, message, capsys):
  with pytest.raises(SystemExit):
    main.parse_flags(["nuclr", *argv])
  assert message in capsys.readouterr().err
