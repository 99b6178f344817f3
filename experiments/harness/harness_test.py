"""The harness of the studies: rows, runs, statistics, commands in pages."""

from concurrent import futures
import doctest
import importlib
import json
import os
import pathlib
import re
import signal
import textwrap
import time

from matplotlib.figure import Figure
import numpy as np
import pytest
from scipy import stats
import warm

from experiments import harness
from experiments.harness import (
  command,
  fingerprint,
  rows,
  runner,
  training,
)
from experiments.harness.statistics import paired, statistics
from nuclr_jax.lab import distributed

ROOT = pathlib.Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
STUDIES = (
  "bimodal",
  "difference_alignment",
  "filtering",
  "fine_tuning",
  "hubs_and_suspects",
  "icons",
  "latent_classes",
  "normalizers",
  "popularity",
  "popularity.at_scale",
  "popularity.over_training",
  "toy_dpm",
  "when_it_pays",
)
# Their plans are longer than what has been run so far.
UNFINISHED = ("icons",)
FINISHED = tuple(x for x in STUDIES if x not in UNFINISHED)


def study_of(name):
  return importlib.import_module(f"experiments.{name}.__main__").STUDY


@pytest.mark.parametrize("name", STUDIES)
def test_workers_can_import_what_measures(name):
  """Processes of a pool do not import a package's `__main__`."""
  assert not study_of(name).measure.__module__.endswith("__main__")


@pytest.mark.parametrize("name", FINISHED)
def test_help_says_how_long_it_takes_and_what_there_is(name, capsys):
  study = study_of(name)
  with pytest.raises(SystemExit) as ended:
    command.parse_arguments(study, ["--help"])
  assert not ended.value.code
  said = capsys.readouterr().out
  assert re.search(r"took \d+:\d\d(:\d\d)? on \d+ cores", said)
  assert "the same command goes on" in said
  stored = rows.index(rows.read(study.home / rows.FILE))
  part = next(iter(stored))[0]
  assert re.search(rf"Parts, for --only: .*{re.escape(part)}", said)


class InThisProcess:
  """A pool that runs things when they are submitted."""

  def __init__(self, workers, compiled):
    del compiled
    POOLS.append(workers)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return None

  def submit(self, function, *arguments):
    future = futures.Future()
    try:
      future.set_result(function(*arguments))
    except (ValueError, KeyboardInterrupt) as error:
      future.set_exception(error)
    return future

  def shutdown(self, **_):
    return None


POOLS = []  # the workers of each pool


@pytest.fixture
def pool(monkeypatch):
  """Runs are executed in this process."""
  POOLS.clear()
  monkeypatch.setattr(runner.distributed, "worker_pool", InThisProcess)


class Tiny:
  """A study of runs that return their seed, and what it did."""

  def __init__(self, folder, **parts):
    self.measured = []
    self.options = harness.Options(
      output=folder / "out", workdir=folder / "work", seeds=2
    )
    self.study = harness.Study(
      home=folder / "tiny",
      doc="A study of nothing.",
      plan=self.plan,
      measure=self.measure,
      tables=lambda options, results: {"seeds": str(len(results.rows))},
      figures=lambda options, results: {"none.png": Figure()},
      seeds=2,
    )._replace(**parts)

  @staticmethod
  def plan(options, stored):
    """The best seed is run again, once all are done."""
    runs = [harness.Run("first", "a", seed) for seed in range(options.seeds)]
    if all(run.key in stored for run in runs):
      best = max(runs, key=lambda x: stored[x.key].get("score", 0)).seed
      timed = harness.Run("timed", f"seed {best}", 0, (), alone=True)
      runs = [timed, harness.Run("again", f"seed {best}", 0), *runs]
    return runs

  def measure(self, run, place):
    self.measured.append(run)
    (place.folder / "file").write_text("left by the run")
    return {"score": run.seed}

  def complete(self, **options):
    runner.complete(self.study, self.options._replace(**options))
    return rows.read(self.options.output / rows.FILE)


class TestRuns:
  def test_what_is_done_is_not_run_again(self, tmp_path, pool, capsys):
    tiny = Tiny(tmp_path)
    found = tiny.complete()
    names = [run.name for run in tiny.measured]
    assert names == [
      "first: a, seed 0",
      "first: a, seed 1",
      "again: seed 1, seed 0",
      "timed: seed 1, seed 0",
    ]
    assert POOLS == [2, 1]  # what is timed has all cores
    assert not any(tiny.options.workdir.rglob("file"))
    *runs, record = found
    assert [row["score"] for row in runs] == [0, 1, 0, 0]
    assert record["part"] == "command" and record["runs"] == 4
    assert tiny.complete() == found and len(tiny.measured) == 4
    more = tiny.complete(seeds=3)
    assert [run.name for run in tiny.measured[4:]] == [
      "first: a, seed 2",
      "again: seed 2, seed 0",
      "timed: seed 2, seed 0",
    ]
    options = tiny.options._replace(seeds=3)
    results = runner.results(tiny.study, options)
    assert "5 of 5  timed: seed 2, seed 0" in capsys.readouterr().out
    assert [row["score"] for row in results.rows.values()] == [0, 0, 0, 1, 2]
    assert [row["setting"] for row in results.earlier] == ["seed 1"] * 2
    assert results.commands == [record, more[-1]]
    assert results.planned == 5

  def test_rows_go_into_the_file_that_replaced_theirs(self, tmp_path, pool):
    """As `git stash` and `git checkout` replace it."""
    tiny = Tiny(tmp_path)

    def measure(run, place):
      path = tiny.options.output / rows.FILE
      copy = path.with_name("copy")
      copy.write_bytes(path.read_bytes())
      copy.replace(path)
      return tiny.measure(run, place)

    tiny.study = tiny.study._replace(measure=measure)
    assert [row.get("score") for row in tiny.complete()] == [0, 1, 0, 0, None]

  def test_no_two_runs_share_a_folder(self, tmp_path):
    options = Tiny(tmp_path).options
    runs = [
      harness.Run("part", "rate=0.1 " * 20 + end, seed, (("end", end),))
      for end in "ab"
      for seed in (0, 1)
    ]
    folders = {runner.place_of(run, options).folder for run in runs}
    assert len(folders) == 4
    assert all(len(folder.name) < 120 for folder in folders)

  def test_a_part_of_the_plan(self, tmp_path, pool):
    tiny = Tiny(tmp_path)
    assert len(tiny.complete(only="^first.* 1$")) == 2
    assert [run.seed for run in tiny.measured] == [1]

  def test_a_pattern_of_what_is_done(self, tmp_path, pool, capsys):
    tiny = Tiny(tmp_path)
    tiny.complete(only="^first")
    tiny.complete(only="^first")
    assert "--only chooses 2 of the runs planned by now; 2 done" in (
      capsys.readouterr().out
    )

  @pytest.mark.parametrize("only", ["^first.* 2$", "a$", "("])
  def test_a_pattern_that_chooses_nothing(self, tmp_path, pool, only):
    message = "not a regular" if only == "(" else "such as first: a, seed 0"
    with pytest.raises(ValueError, match=re.escape(message)):
      Tiny(tmp_path).complete(only=only)

  def test_failed_runs_are_named_and_the_others_kept(self, tmp_path, pool):
    tiny = Tiny(tmp_path)

    def measure(run, place):
      if run.seed == 0:
        raise ValueError("no fonts")
      return tiny.measure(run, place)

    broken = tiny.study._replace(measure=measure)
    with pytest.raises(RuntimeError, match="1 runs failed.*first: a, seed 0"):
      runner.complete(broken, tiny.options)
    assert [run.seed for run in tiny.measured] == [1]
    assert len(tiny.complete()) == 4 + 2 and len(tiny.measured) == 4

  def test_an_interrupted_run_keeps_its_files(self, tmp_path, pool):
    tiny = Tiny(tmp_path)

    def measure(run, place):
      if run.seed == 1:
        tiny.measure(run, place)
        raise KeyboardInterrupt
      return tiny.measure(run, place)

    stopped = tiny.study._replace(measure=measure)
    with pytest.raises(KeyboardInterrupt):
      runner.complete(stopped, tiny.options)
    assert len(list(tiny.options.workdir.rglob("file"))) == 1
    tiny.complete()
    assert not any(tiny.options.workdir.rglob("file"))

  def test_rows_of_other_values_are_refused(self, tmp_path, pool):
    tiny = Tiny(tmp_path)
    tiny.complete()
    other = tiny.study._replace(
      plan=lambda *_: [harness.Run("first", "a", 0, (("rate", 0.1),))]
    )
    for use in (runner.complete, runner.results):
      with pytest.raises(ValueError, match="1 rows of runs with other values"):
        use(other, tiny.options)

  def test_two_commands_at_once_are_refused(self, tmp_path, pool):
    tiny = Tiny(tmp_path)
    tiny.complete()
    with (
      runner._locked(tiny.options.output / rows.FILE),
      pytest.raises(ValueError, match="another command is writing"),
    ):
      tiny.complete()

  def test_configs_must_not_change(self, tmp_path, pool):
    configs = {"a": {"rate": 0.1, "dims": (1, 2)}, "b": {"rate": 0.2}}
    tiny = Tiny(tmp_path, configs=lambda options: configs)
    tiny.complete()
    path = tiny.options.output / runner.CONFIGS
    stored = json.loads(path.read_text())
    assert stored["a"] == {"rate": 0.1, "dims": [1, 2]} and not stored["all"]
    tiny.complete()
    configs["b"] = {"rate": 0.3}
    with pytest.raises(ValueError, match="b.rate is 0.2 there, 0.3 here"):
      tiny.complete()
    tiny.complete(configs=True)
    tiny.complete()

  def test_tables_and_figures(self, tmp_path, pool):
    tiny = Tiny(tmp_path)
    tiny.complete()
    command.write(tiny.study, tiny.options)
    page = tiny.options.output / "tables.md"
    assert page.read_text() == "**seeds**\n\n4\n"
    assert not (tiny.options.output / "none.png").exists()  # it is empty
    readme = tiny.options.output / "README.md"
    readme.write_text("Of <!-- seeds --> 0 <!-- end --> runs.")
    command.write(tiny.study, tiny.options)
    assert readme.read_text() == "Of <!-- seeds -->\n4\n<!-- end --> runs."


KILLED = """
import pathlib, sys, time
from matplotlib.figure import Figure
from experiments import harness

def plan(options, stored):
  return [harness.Run("part", "a", seed) for seed in range(options.seeds)]

def measure(run, place):
  if run.seed == 1 and not (place.folder / "begun").exists():
    (place.folder / "begun").touch()
    time.sleep(60)
  return {"score": run.seed}

STUDY = harness.Study(
  home=pathlib.Path(__file__).parent, doc="A study.", plan=plan,
  measure=measure, tables=lambda *_: {}, figures=lambda *_: {}, seeds=3)

if __name__ == "__main__":
  harness.main(STUDY)
"""


def test_a_killed_study_goes_on(tmp_path):
  script = tmp_path / "killed.py"
  script.write_text(KILLED)
  command = [script, "--workers=1", "--workdir=work"]
  first = warm.Process(command, cwd=tmp_path)
  try:
    wait_until(lambda: any((tmp_path / "work").rglob("begun")), 60)
  finally:
    first.send_signal(signal.SIGKILL)
    first.wait()
  path = tmp_path / rows.FILE
  path.write_text(path.read_text() + '{"part": "pa')  # cut off
  done = warm.run(command, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert re.search(r"2 of 3  part: a, seed 1  0 s  ETA 0:0\d", done.stdout)
  assert "seed 0" not in done.stdout
  *runs, record = rows.read(path)
  assert [row["seed"] for row in runs] == [0, 1, 2] and record["runs"] == 2


class TestRows:
  ROW = {"part": "a", "setting": "τ\u2028", "seed": 0, "x": float("nan")}

  def test_they_come_back(self, tmp_path):
    path = tmp_path / rows.FILE
    assert rows.read(path) == []
    values = [0.1, 1e-300, 3.0, 2, None, [1.0, "é"]]
    written = [self.ROW | {"seed": i, "x": x} for i, x in enumerate(values)]
    rows.write(path, written)
    found = rows.read(path)
    assert found == written
    assert list(map(repr, found)) == list(map(repr, written))

  @pytest.mark.parametrize(
    "damage", [lambda x: x[:-9], lambda x: x.replace("seed", "sead")]
  )
  def test_damage_is_refused_but_for_a_last_line(self, tmp_path, damage):
    path = tmp_path / rows.FILE
    line = rows.as_line(self.ROW)
    path.write_text(line + damage(line[:-1]) + "\n" + line)
    with pytest.raises(ValueError, match="line 2 is damaged"):
      rows.read(path)
    path.write_text(line + line[:-9])
    assert len(rows.read(path)) == 1
    with path.open("a") as file:
      rows.cut_torn_line(file)
    assert path.read_text() == line

  def test_a_run_has_one_row(self):
    with pytest.raises(ValueError, match="1 runs have two rows"):
      rows.index([self.ROW, self.ROW])


class TestStatistics:
  """Against SciPy."""

  def test_of_a_sample(self):
    x = np.random.default_rng(0).normal(size=7)
    found = statistics(x)
    assert found.mean == pytest.approx(x.mean())
    assert found.std == pytest.approx(stats.tstd(x))
    assert found.standard_error == pytest.approx(stats.sem(x))
    interval = stats.t.interval(0.95, 6, x.mean(), stats.sem(x))
    low, high = found.mean - found.half_width, found.mean + found.half_width
    np.testing.assert_allclose((low, high), interval, rtol=1e-12)

  def test_paired_differences(self):
    a, b = np.random.default_rng(1).normal(size=(2, 5))
    ours = dict(enumerate(a)) | {9: 100.0}  # a seed that the others lack
    found = paired(ours, dict(enumerate(b)) | {7: -100.0})
    test = stats.ttest_rel(a, b)
    low, high = test.confidence_interval(0.95)
    assert found.count == 5
    np.testing.assert_allclose(
      (found.mean - found.half_width, found.mean + found.half_width),
      (low, high),
      rtol=1e-12,
    )
    assert ("*" in found.show_interval()) == (test.pvalue < 0.05)
    shifted = paired({k: x + 9 for k, x in ours.items()}, dict(enumerate(b)))
    assert shifted.show_interval().endswith(" *")

  def test_of_arrays(self):
    x = np.random.default_rng(2).normal(size=(4, 3))
    found = statistics(x)
    for i in range(3):
      one = statistics(x[:, i])
      assert found.mean[i] == pytest.approx(one.mean)
      assert found.half_width[i] == pytest.approx(one.half_width)

  def test_cells(self):
    assert statistics([1, 2, 3]).show(2) == "2.00 ± 2.48"
    assert statistics([1.0, 2.0, 6.0]).show() == "3.0 ± 6.6"  # t = 4.303
    assert statistics([50.0]).show() == "50.0"
    assert statistics([]).show() == "–"
    assert statistics([0.5, float("nan")]).show() == "–"
    assert statistics([2.0]).show_interval() == "–"

  def test_predictions_are_judged_by_the_mean(self):
    found = statistics([1.0, 2.0, 3.0])  # 2.0 ± 2.5
    assert found.outcome(low=-1) == "holds"
    assert found.outcome(high=1.5) == "fails, open"
    assert found.outcome(5, 6) == "fails"
    assert found.outcome(-1, 3) == "holds, open"
    assert statistics([2.0]).outcome(low=1.9) == "holds"


class TestStudies:
  @pytest.mark.parametrize("name", STUDIES)
  def test_the_page_has_all_tables(self, name):
    study = study_of(name)
    options = command.parse_arguments(study, ["--tables"])
    results = runner.results(study, options)
    assert len(results.rows) == results.planned or name in UNFINISHED
    assert results.planned > 20
    tables = study.tables(options, results)
    page = (study.home / "README.md").read_text()
    marks = {x.strip() for x in re.findall("<!--(?!=)(.*?)-->", page)}
    assert marks == {*tables, "end"} and all(tables.values())

  @pytest.mark.parametrize("name", STUDIES)
  def test_the_figures_of_the_page_are_drawn(self, name):
    study = study_of(name)
    options = command.parse_arguments(study, ["--tables"])
    figures = study.figures(options, runner.results(study, options))
    page = (study.home / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+\.png)\)", page)) == set(figures)
    for file, figure in figures.items():
      assert figure.get_axes() and (study.home / file).exists()

  @pytest.mark.parametrize("name", STUDIES)
  def test_half_of_the_rows_have_tables_too(self, name):
    study = study_of(name)
    options = command.parse_arguments(study, ["--tables"])
    results = runner.results(study, options)
    for part in (
      {},
      dict(list(results.rows.items())[::2]),
      dict(list(results.rows.items())[: len(results.rows) // 2]),
    ):
      some = results._replace(rows=part, commands=[])
      study.tables(options, some)
      study.figures(options, some)

  @pytest.mark.parametrize("name", STUDIES)
  def test_configs_are_those_of_the_rows(self, name):
    """If only names have changed: python -m experiments.NAME --configs."""
    study = study_of(name)
    options = command.parse_arguments(study, ["--tables"])
    if study.configs is not None:
      runner.check_configs(study, options)

  @pytest.mark.parametrize("name", STUDIES)
  def test_plans_differ_only_in_what_they_say(self, name):
    """Distinct keys; what is shortened is not the full run."""
    study = study_of(name)
    for arguments in ([], ["--smoke"]):
      options = command.parse_arguments(study, arguments)
      runs = study.plan(options, {})
      if len(runs) == 1:  # which all others begin with
        runs = study.plan(options, {runs[0].key: {}})
      assert len({run.key for run in runs}) == len(runs) > 1
      assert all(len(fingerprint(run)) == 8 for run in runs)
      assert (options.output == study.home) == (not arguments)


def test_a_new_key_changes_nothing_by_its_default_alone(monkeypatch):
  study = study_of("bimodal")
  options = command.parse_arguments(study, ["--tables"])
  stored = json.loads((study.home / "configs.json").read_text())
  assert "trackers" not in stored["all"]  # it is younger than these rows
  runner.check_configs(study, options)
  others = runner.DEFAULTS | {"trackers": ("wandb",)}
  monkeypatch.setattr(runner, "DEFAULTS", others)
  with pytest.raises(ValueError, match="trackers is absent there"):
    runner.check_configs(study, options)


def test_words_without_a_key_are_refused():
  with pytest.raises(ValueError, match=r"no keys for \['rate'\]"):
    training.change(None, {"rate": 0.1}, {"tau": "objective.temperature"})


@pytest.mark.parametrize(
  "name",
  [
    *(
      f"harness.{x.stem}"
      for x in (EXPERIMENTS / "harness").glob("*.py")
      if not x.stem.endswith("_test")
    ),
    "latent_classes.triplets",
    "popularity.network",
  ],
)
def test_examples(name, tmp_path):
  module = importlib.import_module(f"experiments.{name}")
  import jax
  import jax.numpy as jnp

  names = dict(vars(module), tmp_path=tmp_path, jax=jax, jnp=jnp)
  found = doctest.testmod(module, extraglobs=names)
  assert not found.failed


PAGES = [
  ROOT / "README.md",
  ROOT / "Makefile",
  *(ROOT / "docs").rglob("*.md"),
  *(ROOT / "tests").rglob("*.md"),
  *(ROOT / "configs").glob("*.py"),
  *EXPERIMENTS.rglob("*.md"),
  *(x for x in EXPERIMENTS.rglob("*.py") if not x.stem.endswith("_test")),
]


def commands():
  """Every `python -m experiments...` of a page, with its flags."""
  pattern = r"-m\s(experiments\.\w[\w.]*)([^\n`#>;)]*)"
  for page in PAGES:
    text = page.read_text().replace("\\\n", " ")
    for module, rest in re.findall(pattern, text):
      if module == "experiments.NAME":  # of any study
        continue
      words = rest.split()
      name = f"{page.relative_to(ROOT)}: {module} {' '.join(words)}"
      yield pytest.param(module.rstrip("."), words, id=name[:90])


@pytest.mark.parametrize(("module", "words"), list(commands()))
def test_commands_of_pages_are_there(module, words):
  path = ROOT / pathlib.Path(*module.split("."))
  file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
  text = file.read_text()
  assert 'if __name__ == "__main__":' in text
  name = module.split(".")[1]
  if "STUDY = " in text:
    command.parse_arguments(study_of(name), words)
    return
  # Flags of modules beside it count, too.
  for names in re.findall(rf"from experiments.{name} import (.*)", text):
    for other in names.split(", "):
      beside = file.with_name(f"{other}.py")
      text += beside.read_text() if beside.exists() else ""
  # DEFINE_bool("plain", ...) is --plain and --noplain.
  known = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text))
  known |= {f"no{x}" for x in re.findall(r'DEFINE_bool\(\s*"(\w+)"', text)}
  known |= set(re.findall(r'add_argument\(\s*"--([\w-]+)"', text))
  for flag in (word for word in words if word.startswith("--")):
    assert flag.removeprefix("--").split("=")[0] in known, flag


def test_no_page_runs_a_file_of_experiments():
  """They are modules of one package: `python -m`."""
  run = r"python3?\s(?!tests/)[\w/]+\.py\b"
  found = [x for x in PAGES if re.search(run, x.read_text())]
  assert not found


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
  script = tmp_path / "parent.py"
  script.write_text(
    textwrap.dedent(
      """
      import os, time

      from nuclr_jax.lab import distributed

      def work(path):
        open(path, "w").write(str(os.getpid()))
        time.sleep(60)

      if __name__ == "__main__":
        with distributed.worker_pool(1) as pool:
          pool.submit(work, "worker").result()
      """
    )
  )
  parent = warm.Process([script], cwd=tmp_path)
  worker = tmp_path / "worker"
  try:
    wait_until(lambda: worker.exists() and worker.read_text(), 60)
    pid = int(worker.read_text())
  finally:
    parent.send_signal(signal.SIGKILL)
    parent.wait()
  wait_until(lambda: not is_running(pid), 20)


def test_a_pool_leaves_the_environment_as_it_was(monkeypatch):
  monkeypatch.setenv("NPROC", "7")
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  before = dict(os.environ)
  with distributed.worker_pool(1, compiled="folder") as pool:
    found = pool.submit(os.getenv, "NPROC").result()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "folder"
    assert found == str(distributed.num_cores())
  assert dict(os.environ) == before


def wait_until(condition, seconds):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, "nothing happened"
    time.sleep(0.1)


def is_running(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  state = pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
  return state != "Z"
