"""What is trained: hosts with and without difference alignment."""

from typing import NamedTuple

from experiments.labelled_runs import Run, held_out, plan, small

AT_HAND = ("digits", "glyphs")
HOSTS = ("npair", "proxy_anchor")  # of metric learning; classes are unseen
VIEWS = ("ntxent", "swav")  # of two views
WEIGHTS = (0.0, 0.1, 0.5)
SWEEP = (0.01, 0.1, 0.5, 1.5, 5.0)  # Table 9
WEIGHT = "terms.difference_alignment.weight"
LABELS = "terms.difference_alignment.labels"  # for hosts that learn from them
VIEW_PARTS, CLASS_PARTS = ("batches", "sweep", "curves"), ("unseen",)


class Size(NamedTuple):
  """How much is trained on a data set, and on which parts of the study."""

  epochs: float
  batches: tuple[int, ...]
  parts: tuple[str, ...]
  changes: dict  # of the config, for all runs


SMALL, LARGE = (32, 64, 128, 256), (64, 128, 256, 512)
SIZES = {
  "digits": Size(30.0, SMALL, VIEW_PARTS, {"data.size": 8, "model.dim": 32}),
  "glyphs": Size(
    20.0, (32, 128), CLASS_PARTS, {"data.classes": 400, "model.dim": 64}
  ),
  "mnist": Size(10.0, LARGE, VIEW_PARTS, {"model.dim": 128}),
  "fashion_mnist": Size(10.0, LARGE, VIEW_PARTS, {"model.dim": 128}),
  "cifar10": Size(100.0, LARGE, VIEW_PARTS, {"model.dim": 512}),
  "cifar100": Size(100.0, LARGE, VIEW_PARTS, {"model.dim": 512}),
  "stl10": Size(100.0, LARGE, VIEW_PARTS, {"model.dim": 512}),
  "caltech_birds2011": Size(500.0, (64, 128), CLASS_PARTS, {"model.dim": 512}),
  "cars196": Size(500.0, (64, 128), CLASS_PARTS, {"model.dim": 512}),
}


def make(data: str, *, seeds: int, smoke: bool = False) -> list[Run]:
  """All runs on one data set."""
  size = SIZES[data]
  if smoke:
    size = size._replace(
      epochs=2.0, batches=(20, 32), changes=size.changes | small(data)
    )
  common = size.changes | {
    "num_epochs": size.epochs,
    "eval_every_epochs": 0.0,
    "data.scores": ("classes", "recall", "variation"),
    "data.validation_scores": (),
  }
  make = dict(batches=_batches, sweep=_sweep, curves=_curves, unseen=_unseen)
  return [
    run
    for part in size.parts
    for run in plan(f"{data}/{part}", make[part](data, size), seeds, common)
  ]


def _batches(data, size):
  """Figure 5: two-view hosts over batch sizes."""
  return {
    f"{host} {batch} {weight:g}": (
      f"{host},{data}",
      {"batch_size": batch, WEIGHT: weight, LABELS: False},
    )
    for host in VIEWS
    for batch in size.batches
    for weight in (0.0, 0.5)
  }


def _unseen(data, size):
  """Tables 1 and 2: metric learning, scored on classes it has not seen."""
  return {
    f"{host} {batch} {weight:g}": (
      f"{host},{data}",
      {
        "batch_size": batch,
        "data.unseen": True,
        "data.positive": "class",
        "data.scores": ("recall", "variation"),
        WEIGHT: weight,
        LABELS: True,
      },
    )
    for host in HOSTS
    for batch in dict.fromkeys((size.batches[0], size.batches[-1]))
    for weight in WEIGHTS
  }


def _sweep(data, size):
  """Table 9, and what chain and star differ in."""
  weights = {f"chain {x:g}": {WEIGHT: x} for x in (0.0, *SWEEP)}
  weights |= {
    f"star {x:g}": {
      WEIGHT: x,
      "terms.difference_alignment.differences": "star",
    }
    for x in SWEEP[1:]
  }
  return {
    name: (
      f"ntxent,{data}",
      {"batch_size": size.batches[-2], LABELS: False} | changes,
    )
    for name, changes in weights.items()
  }


def _curves(data, size):
  """Figure 8: the variation along training."""
  return {
    f"{host} {weight:g}": (
      f"{host},{data}",
      {
        "batch_size": size.batches[-2],
        "eval_every_epochs": size.epochs / 10,
        "data.scores": ("variation",),
        "data.validation_scores": ("variation",),
        "log_every": 10,
        WEIGHT: weight,
        LABELS: host in HOSTS,
      }
      | held_out(data, AT_HAND),
    )
    for host in ("ntxent", *HOSTS)
    for weight in (0.0, 0.5)
  }
