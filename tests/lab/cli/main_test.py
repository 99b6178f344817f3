"""The launcher, as a user types it."""

import logging
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types

from absl.testing import flagsaver
import pytest
from repository import ROOT
import warm

import nuclr_jax
from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import flags, interrupts, main, usage, verbs
from nuclr_jax.lab.config import load_config, path_of
from nuclr_jax.lab.train import loop, settings


def nuclr(*args):
  return warm.run(["-m", "nuclr_jax.lab.cli.main", *args], cwd=ROOT)


WRONG = [  # exit code 2
  (
    [],
    "needs one of the verbs ingest, convert, train, evaluate, report, compare, "
    "popularity, embed, filter, export, push, doctor; see nuclr --help",
  ),
  (["trian"], "got trian; did you mean train?"),
  (["train", "again"], "one verb, and flags that begin with --; got "),
  (["train", "--workdir=x"], "train needs --config"),
  (["ingest", "--input=x.tar"], "ingest needs --input and --dataset"),
  (["train", "--config=configs/glyphs.py"], "--workdir is missing"),
  (["train", "--config=glyphs"], "--workdir is missing"),
  (
    ["train", "--config=configs/glyphs.py:clop"],
    "nuclr: the config's argument must be one of",
  ),
  (
    ["train", "--config=configs/glyphs.py", "--config.batch_sze=1"],
    "nuclr: --config.batch_sze=1: unknown config keys ['batch_sze']; known are "
    "['batch_size', ",
  ),
  (
    ["train", "--config=configs/glyphs.py", "--config.objective.colour=1"],
    "nuclr: --config.objective.colour=1: unknown keys ['colour'] of objective "
    "'nuclr'; known are [",
  ),
  (
    ["train", "--config=cc3m", "--config.model.text.colour=1", "--workdir=x"],
    "nuclr: --config.model.text.colour=1: unknown keys ['colour'] of "
    "model.text 'distilbert'; known are ['activation', ",
  ),
  (
    ["train", "--config=glyphs", "--config.objective.gamma.vale=1"],
    "--config.objective.gamma.vale=1: unknown keys ['vale'] of objective.gamma",
  ),
  (
    [
      *("train", "--config=glyphs", "--config.seed=1"),
      *("--config.objective.name=clip", "--config.objective.gamma=0.5"),
    ],
    "nuclr: --config.objective.gamma=0.5: unknown keys ['gamma'] of objective "
    "'clip'; known are ['learn_temperature', 'temperature']",
  ),
  (
    ["train", "--config=glyphs", "--config.objective.name", "clop"],
    "--config.objective.name=clop: config.objective.name is 'clop'; known ",
  ),
  (
    ["train", "--config=glyphs", "--config.batch_size=1.5"],
    "--config.batch_size=1.5: batch_size takes a whole number such as 128",
  ),
  (
    ["train", "--config=configs/no.py", "--workdir=x"],
    "is not a config file; ",
  ),
  (["train", "--config", "no", "--workdir=x"], "no is not a config file; "),
  (["ingest", "--input=x", "--workers=0"], "0 is not a positive integer"),
  (
    ["popularity", "--workdir=x", "--embeddings=x.npz"],
    "popularity needs --temperature with --embeddings",
  ),
  (
    ["train", "--config=configs/no.py", "--config.seed=1", "--workdir=x"],
    "configs/no.py is not a config file; the library ships the configs cached, "
    "cc12m, cc3m, documents, finetune_clip, finetune_siglip2, glyphs, icons, "
    "labelled, openclip, own and sentences",
  ),
  (
    ["report", "--workdir=x", "--hubs=csls"],
    "report does not take --hubs; it takes --workdir, --data_dir, "
    "--interpolate, --data, --zero_shot, --import",
  ),
  (
    ["evaluate", "--workdir=x", "--temperature=0.1"],
    "--temperature is for --hubs=zeta and --prior only",
  ),
  (
    ["evaluate", "--workdir=x", "--hubs=csls", "--temperature=0.1"],
    "--temperature is for --hubs=zeta and --prior only",
  ),
  (
    ["report", "--workdir=x", "--config=glyphs", "--config.seed=1"],
    "report does not take --config",
  ),
  (
    ["report", "--workdir=x", "--config.seed=1"],
    "report does not take --config.seed",
  ),
  (
    ["evaluate", "--workdir=x", "--hubs=nan"],
    "--hubs=nan: 'nan' must be csls, zeta, or a strength of zeta that is at "
    "least 0 and finite",
  ),
  (["evaluate", "--workdir=x", "--hubs="], "--hubs=: it is empty; give csls, "),
  (
    ["embed", "--workdir=x", "--input=x", "--output=y", "--config.seed=1"],
    "--config.seed needs --config as well",
  ),
  (
    ["train", "--config=glyphs", "--workdir=x", "--verbosity=1"],
    "train does not take --verbosity; it takes --config, ",
  ),
  (
    ["evaluate", "--workdir=x", "--data="],
    "--data= is empty; give a value, or leave it out",
  ),
  (["report", "--workdir=x", "--data_dir="], "--data_dir= is empty; give a "),
  (
    ["evaluate", "--workdir=x", "--data=a", "--data=b"],
    "--data is given 2 times; give it once, with commas between several values",
  ),
  (
    ["popularity", "--workdir=x", "--data=mine"],
    "popularity takes --data with --model only",
  ),
  (
    ["evaluate", "--config=glyphs", "--zero_shot=pets"],
    "evaluate takes --zero_shot with --workdir or --model only",
  ),
  (
    ["evaluate", "--model=x", "--data=a", "--config.data.test=('b',)"],
    "give either --data or --config.data.test, not both",
  ),
  (
    ["popularity", "--config=glyphs", "--workdir=x", "--split=test"],
    "popularity takes --split with --input only",
  ),
  (
    ["train", "--config=glyphs", "--workdir=x", "--process_id=0"],
    "train takes --process_id with --coordinator only",
  ),
]
FAILING = [  # exit code 1
  (
    ["ingest", "--input=no/*.tar", "--dataset=x"],
    "--input: no/*.tar does not exist",
  ),
  (["evaluate", "--workdir=missing"], "missing holds no run"),
  (["report", "--workdir=missing"], "missing holds no run"),
  (
    ["evaluate", "--workdir=x", "--workdir=missing"],
    "--workdir is given 2 times; the last one counts, missing",
  ),
  (["popularity", "--workdir=missing"], "missing holds no run"),
  (
    ["popularity", "--workdir=x", "--embeddings=no.npz", "--temperature=1"],
    "no.npz does not exist",
  ),
]
ERRORS = [(2, *x) for x in WRONG] + [(1, *x) for x in FAILING]


@pytest.mark.parametrize("code, args, message", ERRORS)
def test_errors_say_what_to_do(code, args, message):
  done = nuclr(*args)
  said = done.stdout + done.stderr
  assert message in said
  assert done.returncode == code
  assert "Traceback" not in said
  if code == 2:
    loading = f" nuclr {args[0]}: loading" if args else ""  # after the time
    assert len([x for x in said.splitlines() if x[8:] != loading]) == 1


def test_hubs_of_data_without_captions(monkeypatch):
  data = types.SimpleNamespace(sets={}, held_out={}, tokenizer=None)
  bound = settings.bind_data({"name": "glyphs"})
  parts = types.SimpleNamespace(
    data=data, settings=types.SimpleNamespace(data=bound)
  )
  monkeypatch.setattr(loop, "load", lambda *_, **__: (parts, None, None))
  with (
    flagsaver.flagsaver(hubs=[0.5], workdir="x"),
    pytest.raises(flags.UsageError, match="--hubs needs data with images and"),
  ):
    verbs.evaluate()


def test_corrections_for_hubs_are_words_and_numbers():
  with flagsaver.flagsaver():
    flags.parse(["nuclr", "evaluate", "--hubs=csls,zeta,1"])
    assert flags.HUBS.value == ["csls", "zeta", 1.0]


def test_options_of_beam_have_no_dashes_or_two():
  with flagsaver.flagsaver():
    flags.parse(["nuclr", "--beam_pipeline_options=runner=A,--flag,x=1=2"])
    expected = ["--runner=A", "--flag", "--x=1=2"]
    assert flags.BEAM_PIPELINE_OPTIONS.value == expected


def test_help(capsys):
  shown = usage.overview()
  assert max(map(len, shown.splitlines())) <= 80
  for name, verb in main.VERBS.items():
    assert f"  {name} " in shown
    for flag in verb.flags:
      assert f"--{flag}: " in usage.help_of(name)
    for flag in verb.needs:
      text = usage.help_of(name).split(f"\n--{flag}: ")[1]
      assert "Only with --" in " ".join(text.split("\n--")[0].split())
    assert max(map(len, usage.help_of(name).splitlines())) <= 80
  for words, expected in (
    (["--help"], shown),
    (["train", "-h"], "sogclr,smoke"),
    (["help"], shown),
    (["help", "train"], "sogclr,smoke"),
    (["--version"], nuclr_jax.__version__),
  ):
    with pytest.raises(SystemExit) as ended:
      main.parse_flags(["nuclr", *words])
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("name", main.VERBS)
def test_examples_have_flags_of_their_verb(name):
  verb = main.VERBS[name]
  example = verb.example.replace("\\\n", "")
  lines = [x for x in example.splitlines() if x[:1].strip()]
  assert lines
  for line in lines:
    program, word, *words = shlex.split(line)
    assert (program, word) == ("nuclr", name)
    given = [x for x in words if x.startswith("--")]
    assert given == words or verb.words
    for flag in given:
      key = flag.removeprefix("--").split("=")[0].split(".")[0]
      assert key in verb.flags


@pytest.mark.parametrize(
  "text, message",
  [
    ("x = 1\nx = = 2", "mine.py, line 2: invalid syntax"),
    ("import no_such_thing", "line 1: ModuleNotFoundError: No module named"),
    ("\ndef get_config():\n  return 1 / 0", "line 3: ZeroDivisionError: div"),
    ("x = 1", "mine.py has no function get_config"),
  ],
)
def test_a_config_file_that_fails_is_a_wrong_command(
  text, message, tmp_path, capsys
):
  (tmp_path / "mine.py").write_text(text)
  with pytest.raises(SystemExit) as ended:
    main.parse_flags(["nuclr", "train", f"--config={tmp_path}/mine.py"])
  assert ended.value.code == 2
  said = capsys.readouterr().err
  assert message in said and "Traceback" not in said


def test_errors_of_the_file_system_name_the_remedy(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(OSError) as found:
    (tmp_path / "file" / "run").mkdir()
  assert "choose another folder" in main.remedy(found.value)
  full = RuntimeError("RESOURCE_EXHAUSTED: ...: No space left on device")
  assert main.remedy(full).startswith("; free some space and run the same ")
  assert main.remedy(OSError("read error")) == ""


def test_configs_of_the_library(tmp_path, monkeypatch):
  folder = str(ROOT / "configs")
  monkeypatch.chdir(tmp_path)
  (tmp_path / "glyphs").mkdir()  # a folder of that name is no config
  assert load_config("glyphs:clip").objective.name == "clip"
  for name in ("glyphs", "configs/glyphs.py", "glyphs.py"):
    expected = f"{folder}/glyphs.py:smoke"
    assert path_of(f"{name}:smoke") == expected
  (tmp_path / "glyphs.py").write_text("")  # one's own goes first
  assert path_of("glyphs.py:smoke") == "glyphs.py:smoke"
  assert path_of("mine/glyphs.py") == "mine/glyphs.py"
  with pytest.raises(ValueError, match="is not a config file"):
    load_config(str(tmp_path))


@pytest.mark.parametrize(
  ("verb", "message"),
  [
    ("ingest", "interrupted; run the same command again to continue"),
    ("popularity", "interrupted; nothing was written"),
  ],
)
def test_an_interrupted_command_says_what_is_left(monkeypatch, verb, message):
  def interrupted():
    raise KeyboardInterrupt

  said = []
  stub = main.VERBS[verb]._replace(run=interrupted)
  monkeypatch.setitem(main.VERBS, verb, stub)
  monkeypatch.setattr(
    main.distributed, "exit_at_once", lambda text, code: said.append(text)
  )
  with flagsaver.flagsaver():
    main.main(["nuclr", verb])
  assert said == [f"\nnuclr: {message}"]


def test_an_error_that_a_signal_became_is_an_interruption(monkeypatch):
  """An extension that is being imported makes an ImportError of Ctrl-C."""

  def interrupted():
    raise ImportError("Encountered an error while initializing the extension.")

  def ends(text, code):
    raise SystemExit(text, code)

  stub = main.VERBS["report"]._replace(run=interrupted)
  monkeypatch.setitem(main.VERBS, "report", stub)
  monkeypatch.setattr(main.distributed, "exit_at_once", ends)
  monkeypatch.setattr(interrupts, "_raised", [signal.SIGTERM])
  with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
    main.main(["nuclr", "report"])
  assert end.value.args == ("\nnuclr: interrupted; nothing was written", 130)


# One call, from which the main thread does not come back for many seconds.
BUSY = """
import hashlib, signal
from nuclr_jax.lab.cli import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupts.listen()
def busy():
  print("ready", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)
{}
"""
LONG = BUSY.format("with interrupts.work('stopping'): busy()")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("code", [LONG, BUSY.format("busy()")])
def test_a_signal_is_answered_at_once(code, sent):
  """While the main thread is busy; the second one ends the process."""
  process = subprocess.Popen(
    [sys.executable, "-c", code],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == "ready\n"
  time.sleep(0.5)  # until it is in that one call
  process.send_signal(sent)
  assert process.stderr.readline() == "\n"
  name = "Ctrl-C" if sent == signal.SIGINT else "SIGTERM"
  line = process.stderr.readline()
  if code != LONG:  # nothing is begun
    assert line == f"nuclr: {name} was heard: stopped\n"
  else:
    assert line.endswith("heard: stopping; a second one stops at once\n")
    process.send_signal(sent)  # the same one, from a parent
    time.sleep(4 * interrupts.ECHO)
    assert process.poll() is None
    process.send_signal(sent)
    assert process.stderr.read() == "\nnuclr: stopped at once\n"
  assert process.wait(20) == 130
  process.communicate()


LOOP = """
import time
from nuclr_jax.lab.cli import interrupts
interrupts.listen()
with interrupts.work("stopping"):
  try:
    print("ready", flush=True)
    while True:
      time.sleep(0.01)
  finally:
    time.sleep(0.5)  # what cleans up is not interrupted
    print("cleaned up", flush=True)
"""


@pytest.mark.skipif(not shutil.which("timeout"), reason="needs GNU timeout")
def test_a_signal_that_comes_twice_at_once_stops_what_is_done():
  """As that of GNU timeout and of schedulers, which also signal the group."""
  command = ["timeout", "8", sys.executable, "-c", LOOP]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert done.stdout == "ready\ncleaned up\n"
  assert done.stderr.count("SIGTERM was heard: stopping") == 1
  assert done.stderr.count("Traceback") == 1
  assert "stopped at once" not in done.stderr


EXIT = """
import threading
from nuclr_jax.lab import distributed
threading.Thread(target=threading.Event().wait).start()  # never ends
print("written before")
distributed.exit_at_once("why", code=130)
"""


def test_an_exit_at_once_waits_for_no_thread():
  command = [sys.executable, "-c", EXIT]
  result = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert result.returncode == 130
  assert (result.stdout, result.stderr) == ("written before\n", "why\n")


def test_small_numbers_keep_their_digits(capsys):
  metrics = {"residual": 0.00025, "top1": 0.5, "none": 0.0, "pairs": 3}
  progress.print_table(metrics)
  lines = capsys.readouterr().out.splitlines()
  assert [x.split()[1] for x in lines] == ["0.00025", "0.5000", "0.0000", "3"]


# Clears the screen, sets the title of the window, turns the direction of text,
# and goes back to the beginning of the line.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp\u2066\u200f\r\x08\x7f\udcff"
FORGED = "\n12:00:00 all is well\u2028nuclr train: done"
OBEYED = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def shown_lines(said):
  """The lines of what was said, as a terminal would show them."""
  assert not OBEYED.search(said), ascii(said)
  return said.splitlines()


@pytest.mark.parametrize(
  "words",
  [
    ["report", "--workdir=no{}"],
    ["no{}"],
  ],
)
def test_names_in_errors_do_not_reach_the_terminal_as_they_are(words):
  text = HOSTILE.replace("\udcff", "") + FORGED
  done = nuclr(*(x.format(text) for x in words))
  assert done.returncode in (1, 2)
  said = shown_lines(done.stdout + done.stderr)
  first, *rest = [x for x in said if not x.endswith(": loading")]
  assert first.startswith("nuclr ") or first.startswith("nuclr:")
  assert r"\x1b[2J" in done.stderr and r"\u202e" in done.stderr
  assert all(x.startswith(("  ", "(--debug")) for x in rest)


def test_a_command_speaks_before_it_loads(tmp_path):
  """Flax, Orbax and Grain alone take seconds."""
  code = (
    "import logging, sys\n"
    "from nuclr_jax.lab import progress\n"
    "from nuclr_jax.lab.cli import main\n"
    "def say(*args): print({'flax', 'orbax', 'grain'} & sys.modules.keys())\n"
    "progress.log.info = say\n"
    "main.parse_flags(sys.argv)\n"
  )
  words = ["train", "--config=glyphs:smoke", f"--workdir={tmp_path}"]
  command = [sys.executable, "-c", code, *words]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.stdout.splitlines()[:1] == ["set()"], done.stderr


def test_names_in_the_log(capfd):
  # Without what is no Unicode, which pytest-xdist cannot send.
  text = HOSTILE.replace("\udcff", "") + FORGED
  log = logging.getLogger("nuclr_jax")
  progress.log_to_stderr()
  log.warning("left out %s of %s", text, "a\tb")
  try:
    raise ValueError(text)
  except ValueError:
    log.exception("failed")
  lines = shown_lines(capfd.readouterr().err)
  assert len([x for x in lines if re.match(r"\d\d:\d\d:\d\d ", x)]) == 2
  assert r"\u202e" in lines[0] and "a\tb" in lines[1]
  assert all(x.startswith("  ") for x in lines[1:] if "failed" not in x)


def test_whatever_is_printed_is_harmless():
  """Also by libraries: warnings, tracebacks, and absl's log."""
  code = (
    "import logging, sys, warnings\n"
    "from nuclr_jax.lab import progress\n"
    f"text = {HOSTILE!r}\n"
    "progress.guard_terminal(); progress.guard_terminal()\n"
    "print(text); sys.stdout.writelines([text, '\\n'])\n"
    "warnings.warn(text); logging.warning(text)\n"
    "raise ValueError(text)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )
  assert done.returncode == 1 and "ValueError" in done.stderr
  for said in (done.stdout, done.stderr):
    shown_lines(said)
    assert said.count(r"\x1b[2J") >= 2


@pytest.mark.parametrize(
  "texts, shown",
  [
    (["\r 10 %", "", "\r 20 %", "\n", "\rdone", "\n"], None),  # of a library
    (["wrote ", "\rx"], r"wrote \rx"),  # would replace "wrote"
    (["\r1 %\nwrote", "\rx"], "\r1 %\nwrote\\rx"),
    (["\r1 %\r\x1b[A"], "\r1 %\\r\\x1b[A"),
  ],
)
def test_a_line_is_replaced_only_by_progress_bars(texts, shown, tmp_path):
  path = tmp_path / "said"
  with path.open("w", newline="") as stream:
    progress.Guarded(stream).writelines(texts)
  expected = "".join(texts) if shown is None else shown
  assert path.read_bytes().decode() == expected


@pytest.mark.parametrize(
  "text",
  ["", "a\nb\tc", "Größe", "日本語", "می\u200cخواهم", "👩\u200d🚀", "a\u00a0b"],
)
def test_ordinary_text_is_shown_as_it_is(text):
  assert progress.plain(text) == text
