"""What is run, of papers 1 (Saunshi et al.) and 2 (Merad et al.)."""

from typing import NamedTuple

from experiments.labelled_runs import Run, held_out, plan, small

AT_HAND = ("digits", "glyphs")
BLOCKS = (1, 2, 5, 10)
MANY = (15, 25, 35)  # negatives, of Lemma 2
CURVE_SEEDS = 5  # of the figures of paper 2


class Size(NamedTuple):
  """How much is trained on a data set."""

  epochs: float  # on all pictures; fewer pictures get as many steps
  batch: int
  dim: int
  classes: int
  per_class: int  # training pictures of a class, about
  negatives: tuple[int, ...]
  changes: dict  # of the config, for all runs

  @property
  def warmup(self) -> float:
    """An epoch, and less in short."""
    return min(1.0, self.epochs / 4)


CLASSES = {"data.positive": "class"}  # the papers' draw of a positive
FRACTIONS = (0.2, 0.5, 1.0)  # of the training pictures
FEW, MORE = (1, 4, 16, 64), (1, 4, 16, 64, 256)
SIZES = {
  "digits": Size(30.0, 100, 32, 10, 119, FEW, {"data.size": 8}),
  "glyphs": Size(20.0, 100, 64, 200, 10, FEW, {"data.classes": 200}),
  "mnist": Size(10.0, 500, 32, 10, 6_000, MORE, {}),
  "fashion_mnist": Size(10.0, 500, 32, 10, 6_000, MORE, {}),
  "cifar10": Size(100.0, 500, 100, 10, 5_000, MORE, {}),
  "cifar100": Size(100.0, 500, 100, 100, 500, MORE, {}),  # as paper 1
  "stl10": Size(100.0, 500, 100, 10, 500, MORE, {}),
  "caltech_birds2011": Size(100.0, 100, 128, 200, 30, FEW, {}),
  "cars196": Size(100.0, 100, 128, 196, 41, FEW, {}),
}


def size_of(data: str, *, smoke: bool) -> Size:
  """How much is trained on a data set; in short just enough to run."""
  size = SIZES[data]
  if smoke:
    size = size._replace(
      epochs=2.0,
      batch=50,
      dim=8,
      negatives=(1, 8),
      changes=size.changes | small(data),
    )
  return size


def make(data: str, *, seeds: int, smoke: bool = False) -> list[Run]:
  """All runs on one data set."""
  size = size_of(data, smoke=smoke)
  common = size.changes | {
    "optimizer.learning_rate.warmup_epochs": size.warmup,
    "batch_size": size.batch,
    "num_epochs": size.epochs,
    "model.dim": size.dim,
    "eval_every_epochs": 0.0,
    "data.scores": ("classes",),
    "data.validation_scores": (),
  }
  runs = plan(
    f"{data}/table 1",
    {
      "supervised": (f"softmax,{data}", CLASSES),
      "contrastive": (
        f"latent_class,{data}",
        CLASSES | {"objective.num_negatives": 4, "objective.loss": "logistic"},
      ),
    },
    seeds,
    common,
  )
  runs += plan(f"{data}/table 2", _blocks(data, size), seeds, common)
  runs += plan(f"{data}/table 2b", _as_many(data, size), seeds, common)
  runs += plan(
    f"{data}/figure 2",
    {
      f"{fraction:g} {k}": (
        f"latent_class,{data}",
        CLASSES
        | {
          "objective.num_negatives": k,
          "objective.loss": "logistic",
          "num_epochs": size.epochs / fraction,
        }
        | _pictures(size, fraction),
      )
      for fraction in FRACTIONS
      for k in size.negatives
    },
    seeds,
    common,
  )
  return runs + curves(data, size, common, 2 if smoke else CURVE_SEEDS)


def _blocks(data, size):
  """Batches of so many pairs: larger blocks are fewer."""
  return {
    f"{name} {b}": (
      f"{name},{data}",
      CLASSES
      | {"data.block_size": b, "objective.block_size": b}
      | ({"objective.num_negatives": 4} if name == "curl" else {}),
    )
    for name in ("curl", "quick_thought")
    for b in BLOCKS
    if size.batch % b == 0
  }


def _as_many(data, size):
  """Batches of so many blocks, for as many steps: larger ones are larger."""
  unit = size.batch // 5
  return {
    name: (
      argument,
      changes
      | {
        "batch_size": unit * changes["data.block_size"],
        "num_epochs": size.epochs * changes["data.block_size"] / 5,
        "optimizer.learning_rate.warmup_epochs": (
          size.warmup * changes["data.block_size"] / 5
        ),
      },
    )
    for name, (argument, changes) in _blocks(data, size).items()
  }


def curves(data: str, size: Size, common: dict, seeds: int) -> list[Run]:
  """Runs whose losses, bounds and norms are recorded along training."""
  # Fewer negatives than classes never are of all of them.
  many = [n for n in MANY if size.classes <= n < size.batch]
  return plan(
    f"{data}/curves",
    {
      str(n): (
        f"latent_class,{data}",
        CLASSES
        | {
          "objective.num_negatives": n,
          "objective.loss": "cross_entropy",
          "data.num_negatives": (1, n) if n > 1 else (1,),
          "data.validation_scores": ("losses",),
          "data.scores": ("losses",),
          "eval_every_epochs": size.epochs / 20,
        }
        | held_out(data, AT_HAND),
      )
      for n in (1, *many)
    },
    seeds,
    common | {"num_epochs": size.epochs / 2},
  )


def _pictures(size: Size, fraction: float) -> dict[str, int]:
  if fraction == 1:
    return {}
  return {"data.per_class": max(round(fraction * size.per_class), 1)}
