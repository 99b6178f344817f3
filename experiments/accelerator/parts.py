"""What the first hour measures: commands of other benchmarks, by priority."""

from collections.abc import Sequence
import importlib.util
from typing import NamedTuple

from experiments.step_time.common import ALGORITHMS

# Numbers, against closed forms and the official PyTorch losses.
TESTS = (
  "objectives/objectives",
  "popularity/popularity",
  "objectives/nuclr",
  "sample_state/queue",
  "objectives/golden",
  "objectives/stateless",
  "objectives/temperature",
  "pairwise/pairwise",
  "pairwise/tiles",
  "sample_state/state",
  "sample_state/table",
)
WORKERS = 12  # processes of pytest-xdist, which share the device
# Besides jax; those of tests come on top.
NEEDS = ("chex", "flax", "matplotlib", "optax", "scipy", "tokenizers")
CACHE = "glyphs.npz"  # in the folder of results, or carried there


class Part(NamedTuple):
  """A command that prints JSON, or runs tests."""

  name: str  # of the result's file
  module: str  # what `python -m` runs
  flags: tuple[str, ...] = ()
  minutes: float = 5.0  # longest time
  needs: tuple[str, ...] = NEEDS  # modules without which it is left out


def full_step(
  name: str, batch: int, forms: str, minutes: float = 5.0, **flags
) -> Part:
  """Times the whole step of the CC3M recipe."""
  chosen = dict(batch_size=batch, forms=forms, dtype="bfloat16", **flags)
  module = "experiments.step_time.real_towers"
  return Part(f"full_step_{name}", module, as_flags(**chosen), minutes)


def loss_step(name: str, minutes: float = 5.0, **flags) -> Part:
  """Times the loss step on given embeddings."""
  module = "experiments.step_time.loss_step"
  return Part(f"loss_step_{name}", module, as_flags(**flags), minutes)


def as_flags(**flags) -> tuple[str, ...]:
  """Returns the flags of a command line."""
  return tuple(f"--{name}={value}" for name, value in flags.items())


def tests(files: Sequence[str], workers: int = 0) -> Part:
  """Runs test files; `conftest.py` leaves the device to them.

  Compiling hundreds of small programs is most of their time, so several
  processes share the work where pytest-xdist is installed.
  """
  options = ("-q", "-rfE", "-p", "no:cacheprovider")
  # Without the options of pyproject.toml, which need more libraries.
  options += ("-o", "addopts=", "--continue-on-collection-errors")
  if workers and importlib.util.find_spec("xdist"):
    options += ("-n", str(workers))
  paths = tuple(f"tests/{file}_test.py" for file in files)
  return Part("tests", "pytest", (*options, *paths), 4, ("pytest", *NEEDS))


def full() -> list[Part]:
  """Returns all parts, the most important first."""
  step_time = "experiments.step_time"
  once = dict(steps=5, rounds=2, minutes=3)
  of_clip = dict(towers="clip_b16", size=224, length=77)
  every = "nuclr,nuclr_queue,clip"
  return [
    tests(TESTS, WORKERS),
    # The next part finds the first of these three programs in the cache.
    full_step("512", 512, every, minutes=6, steps=10, rounds=4),
    full_step("512_torch", 512, "nuclr,torch", steps=10, rounds=4),
    Part("precision", f"{step_time}.precision", as_flags(on_device=True)),
    loss_step(
      "precisions",
      batch_sizes="512,2048,8192",
      dims="512",
      precisions=",".join(ALGORITHMS),
      rounds=3,
      seconds=0.3,
    ),
    Part(
      "popularity_50k",
      f"{step_time}.exact_popularity",
      as_flags(num_pairs=50_000),
    ),
    # As many as the icons.
    Part(
      "popularity_300k",
      f"{step_time}.exact_popularity",
      as_flags(num_pairs=300_000, rounds=1),
    ),
    Part("state_rows", f"{step_time}.state_rows", as_flags(rounds=5)),
    Part(
      "state_rows_offload",
      f"{step_time}.state_rows",
      as_flags(rounds=5, steps=50, offload_rows=True),
    ),
    Part("glyphs", "experiments.accelerator.glyphs"),
    loss_step(
      "large",
      batch_sizes="32768,65536",
      dims="512",
      precisions=",".join(ALGORITHMS),
      rounds=2,
      seconds=0.3,
    ),
    # The towers take 59 MiB a pair, and 17 if their blocks are computed again.
    full_step("2048_remat", 2048, "nuclr", remat="full", **once),
    # 197 patches and 77 tokens attend to each other.
    *(
      full_step(f"clip_b16_{x}", 256, "nuclr", attention=x, **of_clip, **once)
      for x in ("xla", "cudnn")
    ),
    *(
      loss_step(
        f"tile_{tile}",
        3,
        batch_sizes="8192,32768",
        dims="512",
        tile=tile,
        max_dense=0,
        rounds=2,
        seconds=0.3,
      )
      for tile in (1024, 2048, 8192)
    ),
    Part(
      "popularity_1m",
      f"{step_time}.exact_popularity",
      as_flags(num_pairs=1_000_000, max_iterations=3, rounds=1),
      8,
    ),
    full_step("1024", 1024, "nuclr", **once),
    full_step("2048", 2048, "nuclr", **once),
    full_step("4096_remat", 4096, "nuclr", remat="full", **once),
    full_step("512_remat", 512, "nuclr", remat="full", **once),
    # Where both libraries at once do not fit.
    full_step("256", 256, "nuclr,torch", **once | dict(minutes=5)),
    full_step("1536", 1536, every),
  ]


def short() -> list[Part]:
  """Returns one small part of each kind, for a trial on any machine."""
  tiny = dict(tiny=True, size=32, steps=1, rounds=1, num_pairs=100)
  few = dict(rounds=1, num_pairs=100)
  few_steps = dict(batch_size=16, rounds=1, steps=2)
  step_time = "experiments.step_time"
  return [
    tests(("sample_state/table",)),
    full_step("512", 4, "nuclr,clip", remat="full", **tiny),
    full_step("clip_b16_xla", 4, "nuclr", towers="clip_b16", **tiny),
    loss_step(
      "precisions",
      batch_sizes="16",
      dims=8,
      seconds=0.01,
      **few,
    ),
    Part(
      "popularity_50k",
      f"{step_time}.exact_popularity",
      as_flags(num_pairs=256, dim=8, rounds=1),
    ),
    Part(
      "precision",
      f"{step_time}.precision",
      as_flags(on_device=True, rows=16, dims=8),
    ),
    Part(
      "state_rows",
      f"{step_time}.state_rows",
      as_flags(num_pairs="100,1000", **few_steps),
    ),
    Part(
      "state_rows_offload",
      f"{step_time}.state_rows",
      as_flags(num_pairs="100,1000", offload_rows=True, **few_steps),
    ),
    Part(
      "glyphs",
      "experiments.accelerator.glyphs",
      as_flags(steps=2, batch_size=16),
    ),
  ]
