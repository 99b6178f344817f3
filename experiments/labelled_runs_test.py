"""Studies of labelled runs: plans, scores, tables, figures, examples."""

import math

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np
import pytest

from experiments import labelled
from experiments.difference_alignment import __main__ as alignment
from experiments.difference_alignment import clusters
from experiments.difference_alignment import figures as alignment_figures
from experiments.difference_alignment import tables as alignment_tables
from experiments.harness import Place, Results, Run, command
from experiments.latent_classes import __main__ as classes
from experiments.latent_classes import (
  counter_examples,
  figures,
  plan,
  tables,
  theorem,
  triplets,
)
from nuclr_jax.contrib import latent_classes

STUDIES = {"latent_classes": classes, "difference_alignment": alignment}


def runs_of(name, *arguments):
  """The training runs that a study plans."""
  study = STUDIES[name].STUDY
  options = command.parse_arguments(study, arguments)
  return list(filter(labelled.is_training, study.plan(options, {})))


def test_a_run(tmp_path):
  """Of a second and a compilation."""
  values = {
    "config": "ntxent",
    "image_size": 8,
    "scores": ("recall",),
    "validation_scores": ("recall",),
    "encoder_stages": ((8, 1, 4),),
    "num_epochs": 0.2,
    "eval_every_epochs": 0.0,
    "warmup_epochs": 0.0,
  }
  run = Run("digits/part", "one", 0, tuple(values.items()))
  row = labelled.measure(run, Place(tmp_path, tmp_path)) | {"part": run.part}
  assert 0 < labelled.score(row, "recall@1") <= 1
  assert np.isnan(labelled.score(row, "mu/top_1"))
  (steps, losses) = labelled.course(row, "train/loss", plain=True)
  assert len(steps) == 1 and losses[0] > 0


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_has_a_config(name):
  for data in STUDIES[name].plan.SIZES:
    for smoke in ([], ["--smoke"]):
      runs = runs_of(name, "--data", data, *smoke)
      assert len({run.key for run in runs}) == len(runs) > 8
      for run in runs:
        if run.seed == 0:
          config = labelled.make_config(run)
          assert config.batch_size % config.data.block_size == 0
          assert config.data.train.split(":")[0] == data


@pytest.mark.parametrize("name", STUDIES)
def test_short_runs_can_be_built(name, tmp_path):
  place = Place(tmp_path, tmp_path)
  for run in runs_of(name, "--smoke", "--data", "digits"):
    if run.seed == 0:
      config = labelled.make_config(run)
      assert labelled.training.prepare(config, place).num_steps > 0


def test_prepared_data_sets_tell_runs_apart():
  runs = [
    runs_of("latent_classes", *more, "--data", "cifar10")[0]
    for more in ([], ["--data_dir=a"], ["--data_dir=b"])
  ]
  assert len(set(runs)) == 3
  configs = [labelled.make_config(run).to_dict() for run in runs]
  assert configs[0] == configs[1] == configs[2]


def _invented(runs):
  """Rows of runs that were not run, with all scores there are."""
  rng, results = np.random.default_rng(0), {}
  for run in runs:
    data = run.part.split("/")[0]
    names = [
      *(f"{a}/{b}" for a in tables.KINDS for b in tables.SCORES),
      *("recall@1", "variation_chain", "variation_star"),
    ]
    metrics = {f"test/classes_{data}/{x}": rng.uniform() for x in names}
    losses = ["mean_classifier", "bound", "min_norm", "max_norm"]
    losses += ["variation_chain"]
    losses += [
      f"{x}_{n}" for x in ("unsupervised", "bound") for n in (1, 15, 25, 35)
    ]
    host = run.setting.split()[0]
    curve = [
      {"step": step, "train/loss": 1.0, f"train/{host}/loss": 1.0}
      | {f"validation/classes_{data}/{x}": rng.uniform(1, 2) for x in losses}
      for step in (1, 2, 3)
    ]
    results[run.key] = {
      **dict(zip(("part", "setting", "seed"), run.key, strict=True)),
      "metrics": metrics,
      "curve": curve,
      "seconds": 1.0,
    }
  return Results(results)


def test_data_sets_with_other_numbers_of_negatives():
  runs = runs_of("latent_classes", "--data", "digits", "mnist", "--seeds=2")
  found = labelled.trained(_invented(runs))
  found = [x for x in found if x["part"] != "mnist/table 2b"]
  for table in (tables.table_2(found), tables.figure_2(found)):
    assert len({line.count("|") for line in table.splitlines()}) == 1
  header, _, *lines = tables.figure_2(found).splitlines()
  assert header.endswith("| k = 1 | k = 4 | k = 16 | k = 64 | k = 256 |")
  assert lines[0].startswith("| digits") and lines[0].endswith("| – |")
  assert lines[-1].startswith("| mnist") and "–" not in lines[-1]
  for draw in (figures.draw_amounts, figures.draw_lemmas, figures.draw_norms):
    assert len(draw(Figure(), found).axes) >= 2


def test_tables_and_figures_of_difference_alignment_on_other_data():
  runs = runs_of(
    "difference_alignment", "--data", "mnist", "cars196", "--seeds=2"
  )
  found = _invented(runs)
  text = alignment_tables.tables(None, found)
  assert text["batches"].count("mnist") == 48
  assert text["unseen"].count("cars196") == 16
  assert not text["clusters"] and not text["overhead"]
  alignment_figures.draw_batches(Figure(), labelled.trained(found))
  alignment_figures.draw_curves(Figure(), labelled.trained(found))
  step = {"host_ms": 2.0, "with_ms": 3.0, "ratio": 1.5}
  table = alignment_tables.overhead([{"hosts": {"ntxent": {"64": step}}}])
  assert "| ntxent | 64 | 2.0 | 3.0 | 1.50 |" in table


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


class TestClusters:
  def test_neighbours_by_brute_force(self):
    rng = np.random.default_rng(0)
    case = clusters.wider(clusters.CASES["a"], 3.0, clusters.KINDS[0])
    x, label = clusters.draw(rng, case, 20)
    test, _ = clusters.draw(rng, clusters.CASES["b"], 10)
    found = clusters.nearest_neighbours(x, label, test, 5)
    for point, guess in zip(test, found, strict=True):
      near = label[np.argsort(np.linalg.norm(x - point, axis=1))[:5]]
      counts = np.bincount(near, minlength=3)
      assert counts[guess] == counts.max()
    others = clusters.nearest_neighbours(x, label, x, 1, leave_out=True)
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    np.testing.assert_array_equal(others, label[distance.argmin(axis=1)])

  @pytest.mark.parametrize("name", clusters.CASES)
  def test_comparable_cases(self, name):
    for kind, size in zip(clusters.KINDS[1:], (np.min, np.mean), strict=True):
      case = clusters.wider(clusters.CASES[name], 2.0, kind)
      assert size(clusters.pdist(case.mean)) == pytest.approx(12)
      np.testing.assert_allclose(case.covariance, [16 * np.eye(2)] * 3)

  @pytest.mark.parametrize("name", clusters.CASES)
  def test_published_accuracies_are_not_those_of_the_distributions(self, name):
    for k in (1, 8):
      found = [
        clusters.measure_case(clusters.CASES[name], seed=i, train=1_000, k=k)
        for i in range(2)
      ]
      mean = np.mean([x["test"] for x in found])
      assert mean > 99.7 > clusters.PUBLISHED[name][1] + 10


def test_wide_networks_fit_triplets_faster():
  losses = []
  for width in theorem.WIDTHS:
    run = Run("theorem 1", "", 0, (("width", width), ("steps", 60)))
    losses.append(theorem.measure(run)["last"])
  assert losses == sorted(losses, reverse=True)
  x = theorem.separated(np.random.default_rng(0), 12)
  distance = np.linalg.norm(x[:, None] - x[None], axis=2)
  assert distance[np.triu_indices(12, 1)].min() > theorem.SEPARATION


def test_the_theorems_rate_falls_with_the_width():
  options = command.parse_arguments(classes.STUDY, [])
  runs = plan.wider(options, 1_000)
  values = [dict(run.values) for run in runs]
  rates = {(x["width"], x.get("rate", theorem.RATE)) for x in values}
  assert {w for w, _ in rates} == {*theorem.WIDTHS, *theorem.LARGE_WIDTHS}
  falling = {w * rate for w, rate in rates if rate != theorem.RATE}
  assert falling == {theorem.RATE * 512}
  assert (512, theorem.RATE) in rates
  # 30^24 8 / (30 0.01), in digits.
  assert f"{theorem.width_of_theorem(0.01):.3e}" == "7.531e+36"


class TestTriplets:
  """Merad et al., Theorem 1: a wide ReLU network, separated unit vectors."""

  @staticmethod
  def problem(width, count=20, dim=10):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, count, dim))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    shapes = ((dim, width), (width, width), (width, dim))
    gain = (2 / dim, 2 / width, 1 / width)
    params = [
      jnp.asarray(g**0.5 * rng.normal(size=s))
      for s, g in zip(shapes, gain, strict=True)
    ]
    return params, triplets.Triplets(*map(jnp.asarray, x))

  @staticmethod
  def encode(params, x):
    for w in params[:-1]:
      x = jax.nn.relu(x @ w)
    return x @ params[-1]

  def test_the_loss_vanishes(self):
    params, inputs = self.problem(256)
    found = triplets.descend(
      self.encode, params, inputs, learning_rate=0.02, num_steps=600
    )
    assert found.loss[-1] < 0.05 < found.loss[0] / 100
    assert np.all(np.diff(found.loss) < 0)
    assert found.min_norm.min() > 0.1 and found.max_norm.max() < 10

  def test_a_step_against_numpy(self, x64):
    w = np.random.default_rng(1).normal(size=(3, 2))
    x, p, n = np.random.default_rng(2).normal(size=(3, 5, 3))
    found = triplets.descend(
      lambda w, x: x @ w,
      jnp.asarray(w),
      triplets.Triplets(*map(jnp.asarray, (x, p, n))),
      learning_rate=0.1,
      num_steps=1,
    )
    v = np.sum((x @ w) * ((n - p) @ w), axis=1)
    s = 1 / (1 + np.exp(-v))
    gradient = sum(
      s[i] * (np.outer(x[i], (n - p)[i]) + np.outer((n - p)[i], x[i])) @ w
      for i in range(5)
    )
    np.testing.assert_allclose(found.loss, [np.sum(np.log1p(np.exp(v)))])
    np.testing.assert_allclose(found.params, w - 0.1 * gradient, rtol=1e-10)
    np.testing.assert_allclose(
      found.gradient_norm, [np.linalg.norm(gradient)], rtol=1e-10
    )

  def test_errors(self):
    with pytest.raises(ValueError, match="learning_rate must be greater"):
      triplets.descend(
        self.encode, *self.problem(4), learning_rate=0.0, num_steps=1
      )
