"""What the first hour measures: commands of other benchmarks, by priority."""

from typing import NamedTuple

# Numbers, against closed forms and the official PyTorch losses.
TESTS = (
  "table",
  "pairwise",
  "tiles",
  "golden",
  "nuclr",
  "queue",
  "temperature",
  "stateless",
  "objectives",
  "popularity",
  "state",
)
CACHE = "glyphs.npz"  # in the folder of results, or carried there


class Part(NamedTuple):
  """A command that prints JSON, or runs tests."""

  name: str  # of the result's file
  module: str  # what `python -m` runs
  flags: tuple[str, ...] = ()
  minutes: float = 5.0  # longest time
  needs: tuple[str, ...] = ()  # modules without which it is left out


def full_step(batch: int, *forms: str, **flags) -> Part:
  """Times the whole step of the CC3M recipe."""
  chosen = dict(
    batch_size=batch, forms=",".join(forms), dtype="bfloat16", **flags
  )
  against = "" if "torch" in forms else "_alone"
  needs = ("torch", "transformers") if "torch" in forms else ()
  return Part(
    f"full_step_{batch}{against}",
    "experiments.step_time.real_towers",
    as_flags(**chosen),
    needs=needs,
  )


def loss_step(name: str, **flags) -> Part:
  """Times the loss step on given embeddings."""
  module = "experiments.step_time.loss_step"
  return Part(f"loss_step_{name}", module, as_flags(**flags))


def as_flags(**flags) -> tuple[str, ...]:
  """Returns the flags of a command line."""
  return tuple(f"--{name}={value}" for name, value in flags.items())


def tests(*names: str) -> Part:
  """Runs test files; `conftest.py` leaves the device to them."""
  options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfE")
  files = tuple(f"tests/{name}_test.py" for name in names)
  return Part("tests", "pytest", (*options, *files), 10, ("pytest", "chex"))


def full() -> list[Part]:
  """Returns all parts, the most important first."""
  step_time = "experiments.step_time"
  precisions = "BF16_BF16_F32_X6,BF16_BF16_F32_X3"
  return [
    tests(*TESTS),
    full_step(512, "nuclr", "clip", "torch"),
    full_step(1536, "nuclr", "clip", "torch"),
    loss_step(
      "precisions",
      batch_sizes="512,2048,8192",
      dims="256,512",
      precisions=precisions,
    ),
    *(
      full_step(batch, "nuclr", steps=5, rounds=2)
      for batch in (1024, 2048, 3072, 4096)
    ),
    loss_step("large", batch_sizes="16384,32768", dims="512", rounds=3),
    *(
      loss_step(
        f"tile_{tile}",
        batch_sizes="8192,32768",
        dims="512",
        tile=tile,
        max_dense=0,
        rounds=3,
      )
      for tile in (1024, 2048, 8192)
    ),
    Part(
      "popularity_50k",
      f"{step_time}.exact_popularity",
      as_flags(num_pairs=50_000),
    ),
    Part(
      "popularity_1m",
      f"{step_time}.exact_popularity",
      as_flags(num_pairs=1_000_000, max_iterations=3),
    ),
    Part("state_rows", f"{step_time}.state_rows", as_flags(rounds=5)),
    Part(
      "state_rows_offload",
      f"{step_time}.state_rows",
      as_flags(rounds=5, steps=50, offload_rows=True),
    ),
    Part("glyphs", "experiments.accelerator.glyphs", needs=("matplotlib",)),
    *(full_step(batch, "nuclr", steps=5, rounds=2) for batch in (6144, 8192)),
  ]


def short() -> list[Part]:
  """Returns one small part of each kind, for a trial on any machine."""
  tiny = dict(tiny=True, size=32, steps=1, rounds=1, num_pairs=100)
  few = dict(rounds=1, num_pairs=100)
  step_time = "experiments.step_time"
  return [
    tests("table"),
    full_step(4, "nuclr", "clip", **tiny),
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
      "state_rows",
      f"{step_time}.state_rows",
      as_flags(num_pairs="100,1000", batch_size=16, rounds=1, steps=2),
    ),
    Part(
      "glyphs",
      "experiments.accelerator.glyphs",
      as_flags(steps=2, batch_size=16),
    ),
  ]
