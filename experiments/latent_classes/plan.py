"""The runs for papers 1 (Saunshi et al.) and 2 (Merad et al.)."""

from collections.abc import Mapping
from typing import NamedTuple

from experiments import labelled
from experiments.harness import Options, Run
from experiments.latent_classes import counter_examples, sentences, theorem

AT_HAND = ("digits", "glyphs")  # data sets that need no download
BLOCKS = (1, 2, 5, 10)
MANY = (15, 25, 35)  # numbers of negatives in Lemma 2
PAIRED = (1, 4)  # numbers of negatives in training, for Theorem 4.5
CURVE_SEEDS = 5  # as in the figures of paper 2
# Parts of the study that train nothing.
SECTION_5_1, APPENDIX_C, THEOREM_1 = "section 5.1", "appendix C", "theorem 1"
RATE_BY_WIDTH = "theorem 1, rate 1/m"  # added after the rows of `THEOREM_1`


class Size(NamedTuple):
  """How much is trained on a data set."""

  epochs: float  # over all images; a subset gets the same number of steps
  batch: int
  dim: int
  classes: int
  per_class: int  # training images per class, approximately
  negatives: tuple[int, ...]
  values: dict  # values of all runs, in the words of `labelled.KEYS`

  @property
  def warmup(self) -> float:
    """The epochs of warm-up: one, or less in a smoke run."""
    return min(1.0, self.epochs / 4)


CLASSES = {"positive": "class"}  # the papers draw positives from the class
FRACTIONS = (0.2, 0.5, 1.0)  # fractions of the training images
LABELLED = (0.1, 0.2)  # fractions of the training images that have labels
FEW, MORE = (1, 4, 16, 64), (1, 4, 16, 64, 256)
SIZES = {
  "digits": Size(30.0, 100, 32, 10, 119, FEW, {"image_size": 8}),
  "glyphs": Size(20.0, 100, 64, 200, 10, FEW, {"classes": 200}),
  "mnist": Size(10.0, 500, 32, 10, 6_000, MORE, {}),
  "fashion_mnist": Size(10.0, 500, 32, 10, 6_000, MORE, {}),
  "cifar10": Size(100.0, 500, 100, 10, 5_000, MORE, {}),
  "cifar100": Size(100.0, 500, 100, 100, 500, MORE, {}),  # as in paper 1
  "stl10": Size(100.0, 500, 100, 10, 500, MORE, {}),
  "caltech_birds2011": Size(100.0, 100, 128, 200, 30, FEW, {}),
  "cars196": Size(100.0, 100, 128, 196, 41, FEW, {}),
}


def size_of(data: str, *, smoke: bool) -> Size:
  """Returns how much is trained on a data set; just enough in a smoke run."""
  size = SIZES[data]
  if smoke:
    size = size._replace(
      epochs=2.0,
      batch=50,
      dim=8,
      negatives=(1, 8),
      values=size.values | labelled.small(data),
    )
  return size


def configs(options: Options) -> dict[str, dict]:
  """Returns the configs of typical runs."""
  runs = plan(options, {})
  return labelled.configs(runs) | sentences.configs(runs)


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans all runs; none depends on the results of another."""
  del rows
  runs = [run for data in options.data for run in training_runs(data, options)]
  return runs + sentences.plan(options) + exact(options)


def training_runs(data: str, options: Options) -> list[Run]:
  """Plans all training runs on one data set."""
  size = size_of(data, smoke=options.smoke)
  common = size.values | {
    "warmup_epochs": size.warmup,
    "batch_size": size.batch,
    "num_epochs": size.epochs,
    "dim": size.dim,
    "eval_every_epochs": 0.0,
    "scores": ("classes",),
    "validation_scores": (),
  }
  contrastive = {"num_negatives": 4, "loss": "logistic"}
  parts = {
    "table 1": {
      "supervised": (f"softmax,{data}", CLASSES),
      "contrastive": (f"latent_class,{data}", CLASSES | contrastive),
    },
    "table 2": _blocks(data, size),
    "table 2b": _as_many(data, size),
    "figure 2": {
      f"{fraction:g} {k}": (
        f"latent_class,{data}",
        CLASSES
        | {
          "num_negatives": k,
          "loss": "logistic",
          "num_epochs": size.epochs / fraction,
        }
        | _images(size, fraction),
      )
      for fraction in FRACTIONS
      for k in size.negatives
    },
  }
  runs = [
    run
    for part, settings in parts.items()
    for run in labelled.plan(options, f"{data}/{part}", settings, common)
  ]
  runs += labelled.plan(
    options, f"{data}/few labels", _few_labels(data, size), common
  )
  return runs + curves(data, size, common, options)


def _blocks(data, size):
  """Makes the settings with equally many pairs per batch.

  Larger blocks are then fewer blocks.
  """
  return {
    f"{name} {b}": (
      f"{name},{data}",
      CLASSES
      | {"block_size": b}
      | ({"num_negatives": 4} if name == "curl" else {}),
    )
    for name in ("curl", "quick_thought")
    for b in BLOCKS
    if size.batch % b == 0
  }


def _as_many(data, size):
  """Makes the settings with equally many blocks per batch and equal steps."""
  unit = size.batch // 5
  return {
    name: (
      argument,
      values
      | {
        "batch_size": unit * values["block_size"],
        "num_epochs": size.epochs * values["block_size"] / 5,
        "warmup_epochs": size.warmup * values["block_size"] / 5,
      },
    )
    for name, (argument, values) in _blocks(data, size).items()
  }


def _few_labels(data, size):
  """Makes the settings with labels of some images: paper 1, Section 8.1.

  The supervised model trains on these images only, for equally many steps. The
  contrastive one trains on all; its classifiers learn from these.
  """
  settings = {}
  for fraction in LABELLED:
    count = max(round(fraction * size.per_class), 1)
    settings[f"supervised {fraction:g}"] = (
      f"softmax,{data}",
      CLASSES
      | {
        "per_class": count,
        "num_epochs": size.epochs / fraction,
        "warmup_epochs": size.warmup / fraction,
      },
    )
    settings[f"contrastive {fraction:g}"] = (
      f"latent_class,{data}",
      CLASSES | {"num_negatives": 4, "loss": "logistic", "known_labels": count},
    )
  return settings


def curves(data: str, size: Size, common: dict, options: Options) -> list[Run]:
  """Plans runs whose losses, bounds and norms are recorded along training."""
  # Lemma 2 needs negatives of all classes, so there must be at least as many
  # negatives as classes.
  many = [n for n in MANY if size.classes <= n < size.batch]
  settings = {
    str(n): (
      f"latent_class,{data}",
      CLASSES
      | {
        "num_negatives": n,
        "loss": "cross_entropy",
        "scored_negatives": (1, n) if n > 1 else (1,),
        "validation_scores": ("losses",),
        "scores": ("losses",),
        "eval_every_epochs": size.epochs / 20,
      }
      | labelled.held_out(data, AT_HAND),
    )
    for n in (1, *many)
  }
  return labelled.plan(
    options,
    f"{data}/curves",
    settings,
    common | {"num_epochs": size.epochs / 2},
    seeds=2 if options.smoke else CURVE_SEEDS,
  ) + labelled.plan(
    options,
    f"{data}/deviation",
    {
      str(k): (
        f"latent_class,{data}",
        CLASSES
        | {"num_negatives": k, "loss": "cross_entropy"}
        | {"validation_scores": ("losses",), "scores": ("losses",)}
        | {"eval_every_epochs": size.epochs / 20}
        | labelled.held_out(data, AT_HAND),
      )
      for k in PAIRED
    },
    common | {"num_epochs": size.epochs / 2},
  )


def exact(options: Options) -> list[Run]:
  """Plans the runs without training: counter-examples, fixed triplets."""
  radii = (("radius", counter_examples.RADII),)
  negatives = (
    ("classes", counter_examples.NUM_CLASSES),
    ("radius", counter_examples.RADIUS),
    ("negatives", counter_examples.NEGATIVES),
  )
  steps = 50 if options.smoke else theorem.NUM_STEPS
  return [
    *(Run(SECTION_5_1, x, 0, radii) for x in counter_examples.FIGURE_1),
    *(Run(APPENDIX_C, x, 0, negatives) for x in counter_examples.APPENDIX_C),
    *(
      Run(THEOREM_1, str(width), seed, (("width", width), ("steps", steps)))
      for width in theorem.WIDTHS
      for seed in range(options.seeds)
    ),
    *wider(options, steps),
  ]


def wider(options: Options, steps: int) -> list[Run]:
  """Plans fixed triplets at large widths, and with the theorem's rate."""
  large = theorem.LARGE_WIDTHS[: 0 if options.smoke else None]
  same = theorem.RATE * theorem.RATE_WIDTH
  by_width = {
    width: (("width", width), ("steps", steps), ("rate", same / width))
    for width in (*theorem.WIDTHS, *large)
  }
  return [
    *(
      Run(THEOREM_1, str(width), 0, (("width", width), ("steps", steps)))
      for width in large
    ),
    *(
      Run(RATE_BY_WIDTH, str(width), seed, values)
      for width, values in by_width.items()
      for seed in range(1 if width in large else options.seeds)
    ),
  ]


def _images(size: Size, fraction: float) -> dict[str, int]:
  if fraction == 1:
    return {}
  return {"per_class": max(round(fraction * size.per_class), 1)}
