"""Every flag of a command is used or refused: all verbs, flags and pairs.

Stand-ins take the place of what the verbs call, and record how they are called.
A flag that is used changes that record; any other ends the command at once, in
one line that names it.
"""

import contextlib
import functools
import io
import itertools
import re
import sys
import types

from absl.testing import flagsaver
import jax
import pytest

from nuclr_jax.lab import distributed, evaluate, export, progress
from nuclr_jax.lab import ingest as ingest_room
from nuclr_jax.lab import report as report_room
from nuclr_jax.lab.cli import doctor, flags, main, push, scoring
from nuclr_jax.lab.config import complete, load_config
from nuclr_jax.lab.data import embeddings, other_sets, tfds_reader
from nuclr_jax.lab.ingest import convert, publish
from nuclr_jax.lab.report import (
  compare,
  compare_files,
  filtering,
  popularity,
  subject,
)
from nuclr_jax.lab.train import (
  build,
  finetune,
  hooks,
  interpolate,
  loop,
  own_pairs,
  settings,
  untrained,
)
from nuclr_jax.lab.user_files import inputs, items

VALUES = dict(
  arch="b32",
  architecture="ViT-B-32",
  batch_size="64",
  beam_pipeline_options="runner=A",
  caption_column="text",
  config="glyphs:clip",
  coordinator="10.0.0.1:8476",
  data="mine",
  data_dir="d",
  dataset="mine",
  embeddings="x.npz",
  hubs="csls,zeta",
  image_column="jpg",
  images="photos",
  input="photos",
  interpolate="0.5",
  keep="0.5,0.4,0.3",
  layout="open_clip",
  license="mit",
  max_pairs="10",
  max_pixels="1000",
  max_size="64",
  model="clip",
  norm="2",
  num_processes="2",
  once="image",
  output="out",
  partitions="3",
  prior="counts",
  process_id="1",
  repo="me/photos",
  score="negcliploss,exact,normsim",
  split="test",
  split_column="part",
  target="z.npy",
  temperature="0.5",
  threshold="0.1,0.2,0.3",
  workdir="run",
  workers="2",
  zero_shot="pets",
)
VALUES["config.seed"] = "7"
SWITCHES = {"average": "--noaverage"}  # without a value; others are turned on
ALL = sorted(
  {x for verb in main.VERBS.values() for x in verb.flags}
  | {"config.seed", "debug"}
)
# What a verb reads, in all its forms: flags that must be there.
FORMS = [
  ("ingest", "input", "dataset"),
  ("convert", "input"),
  ("train", "config", "workdir"),
  *[
    ("train", "config", "workdir", "coordinator", "num_processes", "process_id")
  ],
  ("train", "workdir", "data"),
  ("train", "config", "workdir", "data"),
  ("train", "model", "workdir", "data"),
  ("train", "model", "workdir", "config"),
  ("evaluate", "workdir"),
  ("evaluate", "workdir", "hubs"),
  ("evaluate", "workdir", "prior"),
  ("evaluate", "workdir", "data"),
  ("evaluate", "workdir", "zero_shot"),
  ("evaluate", "workdir", "input"),
  ("evaluate", "config"),
  ("evaluate", "config", "input"),
  ("evaluate", "model", "data"),
  ("evaluate", "model", "zero_shot"),
  ("evaluate", "model", "input"),
  ("evaluate", "embeddings"),
  ("report", "workdir"),
  ("report", "workdir", "interpolate"),
  ("report", "workdir", "interpolate", "data"),
  ("compare",),
  ("popularity", "workdir"),
  ("popularity", "workdir", "embeddings", "temperature"),
  ("popularity", "workdir", "config"),
  ("popularity", "workdir", "config", "input"),
  ("popularity", "workdir", "model", "data"),
  ("popularity", "workdir", "model", "input"),
  *[("embed", x, "input", "output") for x in ("workdir", "config", "model")],
  *[("embed", x, "output") for x in ("workdir", "config")],
  ("filter", "embeddings", "output", "score", "target", "keep"),
  ("filter", "embeddings", "output", "score", "target", "threshold"),
  ("filter", "workdir", "output", "score", "target", "keep", "temperature"),
  ("filter", "config", "output", "score", "target", "keep"),
  ("filter", "model", "input", "output", "score", "target", "keep"),
  ("export", "workdir", "output"),
  ("push", "workdir", "repo"),
  ("push", "workdir", "repo", "output"),
  ("doctor",),
]


WORDS = {"compare": ["run"]}  # that follow a verb


def word(flag):
  if flag in VALUES:
    return f"--{flag}={VALUES[flag]}"
  return SWITCHES.get(flag, f"--{flag}")


class Recorder:
  """What a command called, and with which arguments."""

  def __init__(self):
    self.calls = []

  def stand_in(self, name, result=None):
    def called(*args, **kwargs):
      call = f"{name}{args}{sorted(kwargs.items())}"
      self.calls.append(re.sub(r" at 0x\w+", "", call))  # of functions
      return result(*args, **kwargs) if callable(result) else result

    return called


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Runs a command with stand-ins: its calls, or how it was refused."""
  recorder, base = Recorder(), load_config("glyphs:clip")
  folder = tmp_path_factory.mktemp("flags")
  (folder / "summary.json").write_text("{}")

  class Settings(dict):
    data = types.SimpleNamespace(name="image_text")
    objective = property(
      lambda self: types.SimpleNamespace(arguments=self["objective"])
    )

  class Parts(types.SimpleNamespace):
    def _replace(self, **kwargs):
      return Parts(**vars(self) | kwargs)

  data = types.SimpleNamespace(
    sets=["train"], train="pairs", held_out={}, tokenizer=None, inputs=None
  )
  held_out = {"name": "image_text", "train": "pairs"}
  held_out |= {"validation": (), "test": ()}
  chosen = types.SimpleNamespace(data=settings.bind_data(held_out))
  opened = Parts(settings=chosen, data=data, evaluators="suites")
  opened = opened, "mesh", types.SimpleNamespace(step=3)
  readout = types.SimpleNamespace(zeta=None)

  def stop(message, code=1):
    print(message, file=sys.stderr)
    raise SystemExit(code)

  def config_of_published(source, **data):
    config, what = complete(base), (source, data.get("architecture"))
    return config | {"data": config["data"] | data | {"source": what}}

  def plan(text, *, split, **how):
    """An input whose files do not tell splits apart."""
    if split == "train":
      raise ValueError("no splits")
    return inputs.Plan([items.Part(split or "train", list)], [])

  pairs = types.SimpleNamespace(of_texts=False)
  pairs.pairs = types.SimpleNamespace(text="rows")
  pairs.as_set = lambda: types.SimpleNamespace(image=[], caption_group=[])

  def embedder_of_config(config, **how):
    """It reads no data."""
    config = config | {"data": config["data"].get("source")}
    recorder.stand_in("embedder_of_config")(config, **how)
    return contextlib.nullcontext("embedder")

  def write_filtered(request, output, *, embed=None, **how):
    recorder.stand_in("filter")(request, output, **how)
    if embed is not None:
      embed("out/embeddings")
    return {}

  counts = dict.fromkeys(export.embed.COUNTED, 0)
  results = [
    (distributed, "join", None),
    (progress, "hide_what_threads_say", None),
    (ingest_room, "ingest", folder),
    (convert, "convert", folder),
    (inputs, "plan", plan),
    (loop, "fit", loop.Result(None, {}, True)),
    (loop, "load", opened),
    (loop, "evaluate", {}),
    (interpolate, "curve", {0.5: {}}),
    (untrained, "open_untrained", opened),
    (other_sets, "open_sets", other_sets.OtherSets({}, {})),
    (scoring, "_recall", {}),
    (scoring, "write", None),
    (evaluate, "correct_hubs", "hubs"),
    (evaluate, "make_prior", "prior"),
    (evaluate, "add_prior", "with prior"),
    (report_room, "write", folder),
    (compare, "open_all", "runs"),
    (compare_files, "lines", []),
    (compare_files, "write", None),
    (popularity, "write", folder / "page.html"),
    (subject, "from_run", "pairs"),
    (subject, "from_files", pairs),
    (subject, "from_state", "pairs"),
    (export, "embedder_of_run", contextlib.nullcontext("embedder")),
    (export, "write_embeddings", counts),
    (export, "write_training_pairs", counts),
    (export, "model_of_run", "model"),
    (export, "exported", "model"),
    (export, "write_model", folder),
    (push, "check_with_hub", None),
    (push, "upload", "address"),
    (doctor, "examine", True),
  ]
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    for module, name, result in results:
      patch.setattr(module, name, recorder.stand_in(name, result))
    for module, name, quiet in [
      (flags, "load_config", lambda _: base),  # which takes a while
      (settings, "resolve", Settings),
      (untrained, "config_of_published", config_of_published),
      (finetune, "config_of_training", config_of_published),
      (own_pairs, "config_of_pairs", config_of_published),
      (untrained, "check_kept", lambda *_: None),
      (untrained, "train_of", lambda data, **_: data),
      (untrained, "scored_in_train", lambda *_, **__: []),
      (tfds_reader, "split_names", lambda *_: []),
      (export, "embedder_of_config", embedder_of_config),
      (filtering, "write", write_filtered),
      (publish, "split_counts", lambda _: {}),
      (build, "score_on", lambda parts, _: parts),
      (export, "embedder_of", lambda *_: "embedder"),
      (embeddings, "open_embeddings", lambda _: pairs.pairs),
      (embeddings, "set_of_rows", lambda _: "rows"),
      (scoring, "_warn_of_rejected", lambda _: None),
      (distributed, "exit_at_once", stop),
      (progress, "log_to_stderr", lambda process: None),
      (loop, "readout", lambda *_: readout),
      (loop, "embedder", lambda *_: lambda _: "embed"),
      (evaluate, "bank_for", lambda *_, **__: "bank"),
      (evaluate, "doubt_prior", lambda *_, **__: None),
      (hooks, "one_temperature", lambda *_: 0.1),
      (interpolate, "has_statistics", lambda _: False),
      (jax, "set_mesh", lambda _: contextlib.nullcontext()),
    ]:
      patch.setattr(module, name, quiet)

    @functools.cache
    def run(verb, *given):
      recorder.calls.clear()
      flags._base.cache_clear()
      words = ["nuclr", verb, *WORDS.get(verb, ()), *map(word, sorted(given))]
      said = io.StringIO()
      try:
        with (
          flagsaver.flagsaver(),
          contextlib.redirect_stdout(io.StringIO()),
          contextlib.redirect_stderr(said),
        ):
          main.main(main.parse_flags(words))
      except SystemExit as ended:
        assert ended.code == main.WRONG_USE, said.getvalue()
        return said.getvalue()
      return tuple(recorder.calls)

    yield run


def is_refused(outcome, *names):
  """Whether a command was refused, in a line that names one of these flags."""
  if isinstance(outcome, tuple):
    return False
  assert len(outcome.splitlines()) == 1
  assert any(f"--{name}" in outcome for name in names), outcome
  return True


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_each_flag_is_used_or_refused(form, run):
  verb, *base = form
  plain = run(verb, *base)
  assert isinstance(plain, tuple) and plain, plain
  for flag in set(ALL) - set(base):
    outcome = run(verb, *base, flag)
    assert is_refused(outcome, flag) or outcome != plain, flag


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_each_pair_of_flags_is_used_or_refused(form, run):
  """Neither of two flags makes the other one useless."""
  verb, *base = form
  others = [x for x in main.VERBS[verb].flags if x not in base]
  others += ["config.seed"] if "config" in main.VERBS[verb].flags else []
  for pair in itertools.combinations(others, 2):
    outcome = run(verb, *base, *pair)
    if not is_refused(outcome, *pair):
      for flag in pair:
        assert outcome != run(verb, *base, flag), pair


def test_every_flag_is_used_by_some_command(run):
  """The table allows nothing that all forms of a verb refuse."""
  for name, verb in main.VERBS.items():
    forms = [form[1:] for form in FORMS if form[0] == name]
    for flag in verb.flags:
      outcomes = [run(name, *{*form, flag}) for form in forms]
      assert any(isinstance(x, tuple) for x in outcomes), (name, flag)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (
      ["embed", f"--model={'a' * 5_000}"],
      "--model=a{80}... is too long: .* 5,",
    ),
    (["train", f"--workdir={'b/' * 3_000}"], "--workdir=.* it has 1 and 6,000"),
    (["train", f"--config={'c' * 300}"], "--config=c.* is too long"),
    (
      ["evaluate", f"--zero_shot=a,x={'d' * 300}"],
      "--zero_shot=x=d.* too long",
    ),
    (["train", "--config=glyphs", "--workdir=\udcff"], "is not UTF-8"),
    (
      ["train", "--config=glyphs", "--config.warm_start=\udcff"],
      "--config.warm_start='.*' is not UTF-8",
    ),
  ],
)
def test_texts_that_are_no_name_of_a_file(words, message, capsys):
  with pytest.raises(SystemExit) as stopped:
    main.parse_flags(["nuclr", *words])
  assert stopped.value.code == main.WRONG_USE
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(message, line)
