"""Studies of labelled runs: lines of a file, tables, figures, examples."""

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

from matplotlib.figure import Figure
import numpy as np
import pytest

from experiments import labelled_reports, labelled_runs
from experiments.difference_alignment import figures as alignment_figures
from experiments.difference_alignment import report as alignment_report
from experiments.difference_alignment import study as alignment_study
from experiments.difference_alignment import toy
from experiments.latent_classes import (
  counter_examples,
  figures,
  report,
  study,
  theorem,
)
from nuclr_jax import experiment, host, latent_classes

ROOT = pathlib.Path(__file__).parents[1]
STUDIES = {"latent_classes": study, "difference_alignment": alignment_study}


def short(seed=0, **changes):
  """A run of a second and a compilation."""
  common = {
    "data.size": 8,
    "data.scores": ("recall",),
    "data.validation_scores": ("recall",),
    "model.encoder.stages": ((8, 1, 4),),
    "num_epochs": 0.2,
    "eval_every_epochs": 0.0,
    "optimizer.learning_rate.warmup_epochs": 0.0,
  }
  return labelled_runs.Run(
    "digits/part", "one", seed, "ntxent", tuple((common | changes).items())
  )


class TestLines:
  def test_what_is_there_is_not_run_again(self, tmp_path, monkeypatch):
    path = tmp_path / "folder" / "lines.jsonl"
    done = []
    monkeypatch.setattr(labelled_runs.host, "worker_pool", _InThisProcess)
    monkeypatch.setattr(
      labelled_runs,
      "execute",
      lambda run, data_dir: done.append(run) or _line(run),
    )
    complete = lambda *runs: labelled_runs.complete(runs, path, workers=1)
    first = complete(short(1), short(0))
    assert [x["seed"] for x in first] == [1, 0] and len(done) == 2
    assert complete(short(0), short(2))[0] == first[1]
    assert [run.seed for run in done] == [1, 0, 2]
    # Another config is another run; the old line stays.
    complete(short(0, batch_size=32))
    assert done[-1] == short(0, batch_size=32)
    assert len(path.read_text().splitlines()) == 4
    complete(short(0), short(1), short(2), short(0, batch_size=32))
    assert len(done) == 4

  def test_a_line_that_was_cut_off_is_run_again(self, tmp_path, monkeypatch):
    monkeypatch.setattr(labelled_runs.host, "worker_pool", _InThisProcess)
    monkeypatch.setattr(
      labelled_runs, "execute", lambda run, data_dir: _line(run)
    )
    path = tmp_path / "lines.jsonl"
    runs = [short(seed) for seed in range(3)]
    lines = labelled_runs.complete(runs[:2], path, workers=1)
    path.write_text(path.read_text()[:-30])
    assert labelled_runs.complete(runs, path, workers=1)[:2] == lines
    found = [json.loads(x)["seed"] for x in path.read_text().splitlines()]
    assert sorted(found) == [0, 1, 2]

  def test_a_failed_run_is_named(self, tmp_path, monkeypatch):
    def execute(run, data_dir):
      if run.seed:
        raise ValueError("no fonts")
      return _line(run)

    monkeypatch.setattr(labelled_runs.host, "worker_pool", _InThisProcess)
    monkeypatch.setattr(labelled_runs, "execute", execute)
    path = tmp_path / "lines.jsonl"
    with pytest.raises(RuntimeError, match=r"'one', 1\) failed: .*no fonts"):
      labelled_runs.complete([short(0), short(1)], path, workers=1)
    assert len(path.read_text().splitlines()) == 1

  def test_a_run(self):
    line = labelled_runs.execute(short())
    assert 0 < labelled_reports.score(line, "recall@1") <= 1
    assert np.isnan(labelled_reports.score(line, "mu/top_1"))
    (steps, losses) = labelled_reports.course(line, "train/loss", plain=True)
    assert len(steps) == 1 and losses[0] > 0
    assert line["config"] == labelled_runs.fingerprint(short())


class _InThisProcess:
  """A pool that runs things when they are submitted."""

  def __init__(self, workers, compiled):
    del workers, compiled

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return None

  def submit(self, function, *arguments):
    future = labelled_runs.futures.Future()
    try:
      future.set_result(function(*arguments))
    except ValueError as error:
      future.set_exception(error)
    return future

  def shutdown(self, **_):
    return None


def _line(run, **metrics):
  return {
    "part": run.part,
    "setting": run.setting,
    "seed": run.seed,
    "config": labelled_runs.fingerprint(run),
    "metrics": metrics,
    "curve": [],
    "seconds": 1.0,
    "jax": "0",
  }


def test_summaries():
  found = labelled_reports.summarise([1.0, 2.0, 6.0])
  assert found.mean == 3.0
  assert found.error == pytest.approx(np.std([1, 2, 6], ddof=1) / 3**0.5)
  assert str(labelled_reports.summarise([4.0])) == "4.0"


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_has_a_config(name):
  for data in STUDIES[name].SIZES:
    for smoke in (False, True):
      runs = STUDIES[name].make(data, seeds=3, smoke=smoke)
      assert len({run.key for run in runs}) == len(runs) > 8
      for run in runs:
        if run.seed == 0:
          config = labelled_runs.make_config(run)
          assert config.batch_size % config.data.block_size == 0
          assert config.data.train.split(":")[0] == data


@pytest.mark.parametrize("name", STUDIES)
def test_short_runs_can_be_built(name):
  for run in STUDIES[name].make("digits", seeds=2, smoke=True):
    if run.seed == 0:
      config = labelled_runs.make_config(run)
      data = labelled_runs.load_data(repr(config.data.to_dict()), None)
      assert experiment.build(config, data=data).num_steps > 0


def _invented(runs):
  """Lines of runs that were not run, with all scores there are."""
  rng, lines = np.random.default_rng(0), []
  for run in runs:
    data = run.part.split("/")[0]
    names = [
      *(f"{a}/{b}" for a in report.KINDS for b in report.SCORES),
      *("recall@1", "variation_chain", "variation_star"),
    ]
    metrics = {f"test/classes_{data}/{x}": rng.uniform() for x in names}
    losses = ["mean_classifier", "bound", "min_norm", "max_norm"]
    losses += ["variation_chain"]
    losses += [
      f"{x}_{n}" for x in ("unsupervised", "bound") for n in (1, 15, 25, 35)
    ]
    curve = [
      {"step": step, "train/loss": 1.0, "train/host/loss": 1.0}
      | {f"validation/classes_{data}/{x}": rng.uniform(1, 2) for x in losses}
      for step in (1, 2, 3)
    ]
    lines.append(_line(run, **metrics) | {"curve": curve})
  return lines


def _readme_marks(name):
  text = (ROOT / "experiments" / name / "README.md").read_text()
  return {x.split("-->")[0].strip() for x in text.split("<!--")[1:]} - {"end"}


def test_tables_and_figures_of_latent_classes():
  lines = _invented(
    run for x in study.AT_HAND for run in study.make(x, seeds=2)
  )
  measured = {
    "counter-examples": counter_examples.measure(),
    "theorem 1": theorem.measure(seeds=2, num_steps=3),
    **{"trained seconds": 60, "jax": "0", "cores": 2},
  }
  tables = report.tables(lines, measured)
  assert set(tables) == _readme_marks("latent_classes")
  assert "±" in tables["table 1"] and "b = 10" in tables["table 2"]
  for draw in (figures.draw_amounts, figures.draw_lemmas, figures.draw_norms):
    draw(figure := Figure(), lines, measured)
    assert len(figure.axes) >= 2
  figures.draw_exact(Figure(), lines, measured)


def test_data_sets_with_other_numbers_of_negatives():
  lines = _invented(
    run for x in ("digits", "mnist") for run in study.make(x, seeds=2)
  )
  lines = [x for x in lines if x["part"] != "mnist/table 2b"]
  for table in (report.table_2(lines), report.figure_2(lines)):
    assert len({row.count("|") for row in table.splitlines()}) == 1
  header, _, *rows = report.figure_2(lines).splitlines()
  assert header.endswith("| k = 1 | k = 4 | k = 16 | k = 64 | k = 256 |")
  assert rows[0].startswith("| digits") and rows[0].endswith("| – |")
  assert rows[-1].startswith("| mnist") and "–" not in rows[-1]


def test_tables_and_figures_of_difference_alignment():
  lines = _invented(
    run
    for x in alignment_study.AT_HAND
    for run in alignment_study.make(x, seeds=2)
  )
  step = {"host_ms": 2.0, "with_ms": 3.0, "ratio": 1.5}
  measured = {
    "toy": toy.measure(seeds=2),
    "overhead": {"device": "CPU", "hosts": {"ntxent": {"64": step}}},
    **{"trained seconds": 60, "jax": "0", "cores": 2},
  }
  tables = alignment_report.tables(lines, measured)
  assert set(tables) == _readme_marks("difference_alignment")
  assert "| ntxent | 64 | 2.0 | 3.0 | 1.50 |" in tables["overhead"]
  alignment_figures.draw_clusters(Figure(), lines, measured)
  alignment_figures.draw_batches(Figure(), lines, measured)
  alignment_figures.draw_curves(Figure(), lines, measured)


class TestCounterExamples:
  def test_section_5_1(self):
    """A linear classifier is perfect; L_un grows with r^2 beyond that of 0."""
    for make in (counter_examples.one_point, counter_examples.two_points):
      assert counter_examples.separable(make(4.0)) == 0
      losses = [counter_examples.loss(make(r)) for r in (4.0, 8.0)]
      assert losses[0] > 1
      assert losses[1] / losses[0] == pytest.approx(4, rel=0.2)
    one, two = counter_examples.one_point(4.0), counter_examples.two_points(4.0)
    assert latent_classes.deviation(*one) == 0
    assert latent_classes.deviation(*two) > 4
    assert counter_examples.supervised(two) == 0

  def test_appendix_c_1(self):
    """With r = 2: no loss without a collision, else that of the class."""
    n, k = 8, 3
    example = counter_examples.scaled_points(n, 2.0)
    expected = 0.0
    for m in range(1, k + 1):  # negatives of the anchor's class
      p = math.comb(k, m) * (1 / n) ** m * (1 - 1 / n) ** (k - m)
      best = {3.0: 1 - 0.5**m, 1.0: 0.5**m}  # of those, times f(x)
      loss = np.mean(
        [
          sum(q * max(0.0, 1 + x * (b - y)) for b, q in best.items())
          for x in (3.0, 1.0)
          for y in (3.0, 1.0)
        ]
      )
      expected += p * loss
    found = counter_examples.loss(example, k)
    assert found == pytest.approx(expected, rel=1e-9)

  def test_clusters_have_the_loss_of_a_class_each(self):
    for k in (1, 5):
      one = counter_examples.loss(counter_examples.scaled_points(4, 2.0), k)
      many = counter_examples.clusters(4, 2.0)
      assert counter_examples.loss(many, k) == pytest.approx(one)
    assert int(many.label.max()) == 15


class TestToy:
  def test_neighbours_by_brute_force(self):
    rng = np.random.default_rng(0)
    x, label = toy.draw(rng, toy.wider(toy.CASES["a"], 3.0, toy.KINDS[0]), 20)
    test, _ = toy.draw(rng, toy.CASES["b"], 10)
    found = toy.nearest_neighbours(x, label, test, 5)
    for point, guess in zip(test, found, strict=True):
      near = label[np.argsort(np.linalg.norm(x - point, axis=1))[:5]]
      counts = np.bincount(near, minlength=3)
      assert counts[guess] == counts.max()
    own = toy.nearest_neighbours(x, label, x, 1, own=True)
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    np.testing.assert_array_equal(own, label[distance.argmin(axis=1)])

  @pytest.mark.parametrize("name", toy.CASES)
  def test_comparable_cases(self, name):
    for kind, size in zip(toy.KINDS[1:], (np.min, np.mean), strict=True):
      case = toy.wider(toy.CASES[name], 2.0, kind)
      assert size(toy.pdist(case.mean)) == pytest.approx(12)
      np.testing.assert_allclose(case.covariance, [16 * np.eye(2)] * 3)

  @pytest.mark.parametrize("name", toy.CASES)
  def test_published_accuracies_are_not_those_of_the_distributions(self, name):
    for k in (1, 8):
      found = toy.measure_case(toy.CASES[name], seeds=2, train=1_000, k=k)
      assert np.mean(found["test"]) > 99.7 > toy.PUBLISHED[name][1] + 10


def test_wide_networks_fit_triplets_faster():
  found = theorem.measure(seeds=1, num_steps=200)["widths"]
  losses = [found[str(width)]["last"][0] for width in theorem.WIDTHS]
  assert losses == sorted(losses, reverse=True)
  x = theorem.separated(np.random.default_rng(0), 12)
  distance = np.linalg.norm(x[:, None] - x[None], axis=2)
  assert distance[np.triu_indices(12, 1)].min() > theorem.SEPARATION


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
  script = tmp_path / "parent.py"
  script.write_text(
    textwrap.dedent(
      """
      import os, time
      from nuclr_jax import host

      def work(path):
        open(path, "w").write(str(os.getpid()))
        time.sleep(60)

      if __name__ == "__main__":
        with host.worker_pool(1) as pool:
          pool.submit(work, "worker").result()
      """
    )
  )
  command = [sys.executable, str(script)]
  parent = subprocess.Popen(command, cwd=tmp_path)
  worker = tmp_path / "worker"
  try:
    _wait(lambda: worker.exists() and worker.read_text(), 60)
    pid = int(worker.read_text())
  finally:
    parent.send_signal(signal.SIGKILL)
    parent.wait()
  _wait(lambda: not _runs(pid), 20)


def test_a_pool_leaves_the_environment_as_it_was(monkeypatch):
  monkeypatch.setenv("NPROC", "7")
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  before = dict(os.environ)
  with host.worker_pool(1, compiled="folder") as pool:
    found = pool.submit(os.getenv, "NPROC").result()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "folder"
    assert found == str(host.num_cores())
  assert dict(os.environ) == before


def _wait(condition, seconds):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, "nothing happened"
    time.sleep(0.1)


def _runs(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  state = pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
  return state != "Z"
