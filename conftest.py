"""Settings of all tests: 8 virtual CPU devices, strict shapes."""

import contextlib
import fcntl
import functools
import gc
import importlib.metadata
import logging
import os
import pathlib
import shutil
import signal
import zlib

# What is compiled lives long: looking for garbage in it again and again, and in
# what is being imported, took a tenth of the time.
gc.set_threshold(100_000)
# `python -m experiments.accelerator` runs numerical tests on its device, where
# tests of several devices are skipped.
ON_DEVICE = os.environ.get("NUCLR_TESTS_ON") == "device"
os.environ.setdefault("NPROC", "2")  # XLA's thread count decides the last bits
# No test needs the hub. Where it cannot be reached, its client tries for 23 s.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Where a shell has started the tests in the background, Ctrl-C is ignored, also
# by the processes that they send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)
# What has been compiled is kept for the next time, which then takes a quarter
# less. Code that changes leaves programs that nothing asks for any more.
CACHE = pathlib.Path(__file__).parent / ".jax_cache"
if "PYTEST_XDIST_WORKER" not in os.environ and CACHE.exists():
  if sum(1 for _ in CACHE.iterdir()) > 30_000:  # 400 MB; 75 MB are in use
    shutil.rmtree(CACHE)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Compiling is most of what these tests do: quickly, not well.
QUICK = ["--xla_backend_optimization_level=0"]
QUICK += ["--xla_cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
  QUICK += ["--xla_cpu_use_fusion_emitters=false"]  # later ones know no other
if not ON_DEVICE:
  os.environ.setdefault("XLA_FLAGS", " ".join(QUICK))

from absl import flags
import jax
from jax._src.interpreters import mlir

if not ON_DEVICE:
  jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
flags.FLAGS.mark_as_parsed()
if not ON_DEVICE:
  import hypothesis

  hypothesis.settings.register_profile("long", max_examples=5_000)

import numpy as np
import pytest
import tiny_config
import warm

from nuclr_jax import Pairs, Sides
from nuclr_jax.lab.config import load_config
from nuclr_jax.types import Sizes

# Files that take longest, in the order of their times.
LONG = """
  runs own_loops towers notebooks finetune chaos fuzz buckets objectives
  accelerator at_scale step_time train hooks stateless smoke labelled_run
  icons_study processes published commands popularity tar_stream
  popularity_page harness long_runs diagnostics batch_statistics main nuclr
  report streamed_run pretrained hubs_and_suspects when_it_pays golden program
  microbatch structure documents_run killed sentence_encoder_run average_run
  cached_run own_processes your_data your_loop
""".split()


def pytest_collection_modifyitems(items):
  """Long files begin, so that no worker is alone with one at the end."""

  def place(item):
    name = item.path.stem.removesuffix("_test")
    return LONG.index(name) if name in LONG else len(LONG)

  items.sort(key=place)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  """Skips tests that need more devices than an accelerator has."""
  report = (yield).get_result()
  error = str(call.excinfo.value) if call.excinfo else ""
  if ON_DEVICE and "num_devices must be in" in error:
    report.outcome = "skipped"
    report.longrepr = (str(item.path), item.location[1] or 0, "one device")


def pytest_collection_finish():
  """Leaves libraries and tests out of the garbage that is looked for."""
  gc.collect()
  gc.freeze()


def pytest_sessionfinish():
  """Looks for no garbage when all ends, which pytest does five times."""
  gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def one_context():
  """Programs of a file share a context of MLIR, which takes 5 ms to make."""
  with pytest.MonkeyPatch.context() as patch:
    if hasattr(mlir, "make_ir_context"):  # not public
      shared = functools.cache(mlir.make_ir_context)
      patch.setattr(mlir, "make_ir_context", shared)
    yield


@pytest.fixture(scope="module", autouse=True)
def forget():
  """Forgets what files compiled once it takes much memory."""
  yield
  if resident() > 2e9:
    jax.clear_caches()
    gc.collect()


def resident():
  """The bytes of this process in memory; 0 where that is not known."""
  statm = pathlib.Path("/proc/self/statm")
  pages = int(statm.read_text().split()[1]) if statm.exists() else 0
  return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session", autouse=True)
def small_diagnostics():
  """Runs are diagnosed and recalibrated with few pairs."""
  from nuclr_jax.lab.train import diagnostics, recalibrate

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(diagnostics, "SAMPLE", warm.SAMPLE)
    patch.setattr(recalibrate, "SAMPLE", warm.SAMPLE)
    yield


@pytest.fixture(scope="module")
def no_diagnostics():
  """Runs are not diagnosed at all: a fifth of what a short one compiles."""
  from nuclr_jax.lab.train import diagnostics

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(diagnostics, "of_run", lambda parts, mesh: lambda state: {})
    yield


@pytest.fixture(autouse=True)
def no_flags_are_left():
  """The flags that a test has parsed are not those of the next test."""
  yield
  for name in flags.FLAGS:
    if flags.FLAGS[name].present:
      flags.FLAGS[name].unparse()


@pytest.fixture(autouse=True)
def no_log_is_left():
  """What a command in a test logs, and where to, is not so in the next test."""
  logger = logging.getLogger("nuclr_jax")
  before, level, propagate = logger.handlers[:], logger.level, logger.propagate
  yield
  logger.handlers[:], logger.propagate = before, propagate
  logger.setLevel(level)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
  """A folder that the examples in docstrings share."""
  return tmp_path_factory.mktemp("examples")


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace, scratch):
  """Names that the examples in docstrings use without an import."""
  import math

  import jax.numpy as jnp

  from nuclr_jax import Batch

  doctest_namespace.update(
    jax=jax,
    jnp=jnp,
    np=np,
    math=math,
    Batch=Batch,
    Pairs=Pairs,
    Sides=Sides,
    Sizes=Sizes,
    tmp_path=scratch,
  )


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
  """A folder with the glyphs, rendered small; all workers share it.

  They are rendered again when the code that renders them has changed.
  """
  from nuclr_jax.lab.data import glyphs

  code = pathlib.Path(glyphs.__file__).read_bytes()
  kept = CACHE / f"glyphs-{zlib.crc32(code):08x}"
  folder = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    folder = folder.parent
  with open(folder / "data.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not kept.exists():
      new = kept.with_suffix(f".{os.getpid()}")
      glyphs.prepare_glyphs(new, size=16)
      with contextlib.suppress(OSError):  # another session has been faster
        new.rename(kept)
    if not (folder / "data").exists():
      shutil.copytree(kept, folder / "data")
  return folder / "data"


@pytest.fixture
def x64():
  """Computes in float64."""
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope="session")
def tiny():
  """Makes a small config of `configs/glyphs.py`: 20 steps of 64 pairs.

  Texts are bags of words, which compile sooner.
  """

  def make(arg="smoke", **overrides):
    config = load_config(f"glyphs:{arg}")
    config.update_from_flattened_dict(
      tiny_config.changes(20, log_every=5, checkpoint_every=5, num_devices=1)
    )
    config.model.text_layers = 0
    config.update_from_flattened_dict(overrides)
    return config

  return make


@pytest.fixture(scope="session")
def few_pairs(data_dir):
  """The first 6,400 glyphs as a data set, without evaluations."""
  from nuclr_jax.lab.train import build

  spec = dict(name="glyphs", size=16, shift=1.0)
  data = build.load_data(spec, data_dir=data_dir)
  sizes = data.train.sizes._replace(num_pairs=6_400, num_images=6_400)
  return data._replace(
    train=data.train._replace(sizes=sizes, keys=None), held_out={}
  )


@pytest.fixture(scope="session")
def few_characters(few_pairs):
  """1,280 of them, of 1,200 characters: exact popularities take no time."""
  train = few_pairs.train
  texts = train.ids(np.arange(6_400)).text
  chosen = np.flatnonzero(texts < 1_200)[:1_280]
  assert len(chosen) == 1_280

  def fetch(ids, random=None):
    batch = train.fetch(chosen[ids], random)
    return batch._replace(pair_id=np.asarray(ids, np.int32), image_id=None)

  return few_pairs._replace(
    train=train._replace(
      sizes=Sizes(len(chosen), len(chosen), 1_200),
      fetch=fetch,
      ids=lambda ids: Sides(np.asarray(ids), texts[chosen[ids]]),
      fingerprint="characters",
    )
  )


@pytest.fixture(scope="session")
def scored_glyphs(tiny, data_dir):
  """The glyphs with 100 held-out images for retrieval, and no classes."""
  from nuclr_jax.lab.data.source import HeldOut, ImageTextSet
  from nuclr_jax.lab.train import build

  def some(images):
    chosen = images.image_group < 100
    return ImageTextSet(
      images.image[chosen],
      images.image_group[chosen],
      images.captions[:100],
      images.caption_group[:100],
    )

  data = build.load_data(tiny().data, data_dir=data_dir)
  held_out = {
    split: HeldOut({"": some(sets.retrieval[""])})
    for split, sets in data.held_out.items()
  }
  return data._replace(held_out=held_out)
