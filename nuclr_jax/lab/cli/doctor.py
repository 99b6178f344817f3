"""Checks that a machine is set up correctly, and times a step on it."""

from collections.abc import Callable, Iterator
import importlib
import importlib.metadata
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nuclr_jax import Batch, objectives, sharding
from nuclr_jax.lab import distributed, files, models
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.train import optimizer
from nuclr_jax.lab.train.step import init_state, make_train_step
from nuclr_jax.pairwise import tiles

# The states of a finding; LOOK asks for attention, BROKEN has to be repaired.
FINE, LOOK, BROKEN = "ok", "look", "BROKEN"
LIBRARIES = "jax jaxlib flax optax orbax-checkpoint grain tensorflow-datasets"
INPUT = "grain tensorflow_datasets array_record cv2 tokenizers"  # import names
# A low temperature magnifies the rounding errors of matrix products.
TEMPERATURE = 0.01
LARGEST_ERROR = 1e-3  # relative, of the exponentials
FREE_SPACE = 2.0  # GB
STEP = dict(batch=256, size=32, length=16, vocab=1_000)


class Finding(NamedTuple):
  """One result of a check."""

  state: str  # FINE, LOOK or BROKEN
  text: str  # with a remedy, if one is needed


def examine(
  *,
  data_dir: str | os.PathLike | None = None,
  show: Callable[[str], None] = print,
) -> bool:
  """Runs all checks and shows what they find, a line for each finding.

  Args:
    data_dir: The folder of prepared data sets.
    show: Called with each line.

  Returns:
    True if nothing is broken.

  Example:
    >>> is_fine = examine()  # doctest: +SKIP
  """
  checks = (
    ("versions", _versions),
    ("host", _host),
    ("devices", _devices),
    ("precision", _precision),
    ("data folder", lambda: _folder(cache_dir(data_dir))),
    ("compilation cache", _cache),
    ("input libraries", _input),
    ("fonts", _fonts),
    ("a training step", _step),
  )
  broken = 0
  for name, check in checks:
    try:
      findings = list(check())
    except Exception as error:
      findings = [Finding(BROKEN, f"{type(error).__name__}: {error}")]
    for state, text in findings:
      broken += state == BROKEN
      show(f"{state:<6}  {name}: {text}")
  show("all is well" if not broken else f"{broken} broken, see above")
  return not broken


def is_known(version: tuple[int, int]) -> bool:
  """Returns whether a version of Python is supported."""
  return (3, 11) <= version <= (3, 14)


def _versions() -> Iterator[Finding]:
  version = platform.python_version()
  known = is_known(sys.version_info[:2])
  hint = "" if known else " (3.11 to 3.14 are supported)"
  nuclr = importlib.metadata.version("nuclr_jax")
  yield Finding(
    FINE if known else LOOK, f"nuclr_jax {nuclr}, Python {version}{hint}"
  )
  installed, missing = [], []
  for name in LIBRARIES.split():
    try:
      installed.append(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
      missing.append(name)
  yield Finding(FINE, ", ".join(installed))
  if missing:
    yield Finding(
      BROKEN, f"{', '.join(missing)} missing; install nuclr_jax again"
    )


def _host() -> Iterator[Finding]:
  cores = distributed.num_cores()
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
  yield Finding(
    FINE if memory > 4 else LOOK, f"{cores} cores, {memory:.0f} GiB memory"
  )


def _devices() -> Iterator[Finding]:
  devices = jax.devices()
  first = devices[0]
  limit = (first.memory_stats() or {}).get("bytes_limit")
  memory = f", {limit / 2**30:.0f} GiB each" if limit else ""
  yield Finding(
    FINE, f"{len(devices)} {first.platform} ({first.device_kind}{memory})"
  )
  gpu = pathlib.Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")
  if first.platform == "cpu" and gpu:
    yield Finding(
      LOOK,
      "there seems to be an NVIDIA GPU that JAX does not use; run pip install "
      "'jax[cuda12]', and make sure that JAX_PLATFORMS is not set to cpu",
    )
  if sharding.ROW_MULTIPLE % len(devices):
    yield Finding(
      LOOK,
      f"{sharding.ROW_MULTIPLE} is not a multiple of their number; train with "
      f"--config.num_devices={sharding.largest_count(len(devices))}",
    )


def _precision() -> Iterator[Finding]:
  """Measures the error of exp(similarity / temperature), ours and JAX's."""
  x, y = np.random.default_rng(0).normal(size=(2, 512, 256))
  x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
  exact = x @ y.T

  def error(product):
    sim = np.asarray(product(np.float32(x), np.float32(y.T)), float)
    return np.abs(np.expm1((sim - exact) / TEMPERATURE)).max()

  ours, default = error(jax.jit(tiles.product)), error(jax.jit(jnp.matmul))
  text = (
    f"exponentials at temperature {TEMPERATURE} are off by {ours:.0e} here, "
    f"with JAX's default precision by {default:.0e}"
  )
  yield Finding(FINE if ours < LARGEST_ERROR else BROKEN, text)


def _folder(folder: pathlib.Path) -> Iterator[Finding]:
  with tempfile.TemporaryFile(dir=files.folder_in(folder)):
    pass
  free = shutil.disk_usage(folder).free / 1e9
  hint = "" if free > FREE_SPACE else "; --data_dir chooses another folder"
  yield Finding(
    FINE if free > FREE_SPACE else LOOK, f"{folder}, {free:.0f} GB free{hint}"
  )


def _cache() -> Iterator[Finding]:
  folder = jax.config.jax_compilation_cache_dir
  hint = "none; set JAX_COMPILATION_CACHE_DIR to a folder to start faster"
  yield Finding(FINE, folder or hint)


def _input() -> Iterator[Finding]:
  for name in INPUT.split():
    importlib.import_module(name)
  yield Finding(FINE, ", ".join(INPUT.split()))


def _fonts() -> Iterator[Finding]:
  from nuclr_jax.lab.data import glyphs

  for font in glyphs.FONTS:
    glyphs.font_path(font)  # raises an error that says what to do
  yield Finding(FINE, f"all {len(glyphs.FONTS)} of the glyphs")


def _step() -> Iterator[Finding]:
  """Times a step of NUCLR with small encoders on the first device."""
  batch, size, length, vocab = STEP.values()
  rng = np.random.default_rng(0)
  inputs = Batch(
    rng.integers(0, 256, (batch, size, size, 1), np.uint8),
    rng.integers(0, vocab, (batch, length), np.int32),
    np.arange(batch, dtype=np.int32),
  )
  model = models.small(
    image_shape=(size, size, 1), vocab_size=vocab, length=length
  )
  objective = objectives.nuclr(num_pairs=100 * batch)
  adam = optimizer.make_optimizer(1e-3)
  with jax.set_mesh(sharding.make_mesh(1)):
    key = jax.random.key(0)
    state = jax.jit(lambda: init_state(model, objective, adam, key))()
    step = make_train_step(model, objective, adam, key)
    began = time.monotonic()
    step = jax.jit(step, donate_argnums=0).lower(state, inputs).compile()
    compiled = time.monotonic() - began
    took = []
    for _ in range(6):
      began = time.monotonic()
      state, metrics = jax.block_until_ready(step(state, inputs))
      took.append(time.monotonic() - began)
  loss, fastest = float(metrics["train/loss"]), min(took)
  text = (
    f"NUCLR, {batch} pairs, small encoders: {1e3 * fastest:.0f} ms, "
    f"{batch / fastest:,.0f} pairs/s; compiled in {compiled:.0f} s"
  )
  yield Finding(FINE if np.isfinite(loss) else BROKEN, text)
