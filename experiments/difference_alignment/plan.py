"""The runs: hosts with and without difference alignment, and clusters."""

from collections.abc import Mapping
from typing import NamedTuple

from experiments import labelled
from experiments.difference_alignment import clusters, overhead, sentences
from experiments.harness import Options, Run

AT_HAND = ("digits", "glyphs")  # data sets that need no download
HOSTS = ("npair", "proxy_anchor")  # metric learning, tested on unseen classes
VIEWS = ("ntxent", "swav")  # hosts of two views
# Hosts of Table 3: the names of their configs, and the values they change.
# SphereFace needs more of the plain cosine for many classes: its authors begin
# with nothing else.
MARGINS = {
  "arcface": ("arcface", {}),
  "sphereface": ("sphereface", {}),
  "sphereface_20": ("sphereface", {"plain": 20.0}),
}
WEIGHTS = (0.0, 0.1, 0.5)
SWEEP = (0.01, 0.1, 0.5, 1.5, 5.0)  # the weights of Table 9
FAINT = (0.001, 0.01, 0.03, 0.1, 0.2)  # more weights for SwAV
PICTURES = {"ntxent": (0.0, 0.5), "swav": (0.0, 0.03)}  # weights in Figure 4
VIEW_PARTS = ("batches", "faint", "sweep", "as_sum", "curves", "pictures")
CLASS_PARTS = ("unseen", "margins", "as_sum")
DIGIT_PARTS = (*VIEW_PARTS, "margins")
# Parts of the study that train nothing.
TABLE_7, WIDER, FEW, OVERHEAD = "table 7", "clusters", "few points", "overhead"


class Size(NamedTuple):
  """How much is trained on a data set, and on which parts of the study."""

  epochs: float
  batches: tuple[int, ...]
  parts: tuple[str, ...]
  values: dict  # values of all runs, in the words of `labelled.KEYS`


SMALL, LARGE = (32, 64, 128, 256), (64, 128, 256, 512)
SIZES = {
  "digits": Size(30.0, SMALL, DIGIT_PARTS, {"image_size": 8, "dim": 32}),
  "glyphs": Size(20.0, (32, 128), CLASS_PARTS, {"classes": 400, "dim": 64}),
  "mnist": Size(10.0, LARGE, VIEW_PARTS, {"dim": 128}),
  "fashion_mnist": Size(10.0, LARGE, VIEW_PARTS, {"dim": 128}),
  "cifar10": Size(100.0, LARGE, VIEW_PARTS, {"dim": 512}),
  "cifar100": Size(100.0, LARGE, VIEW_PARTS, {"dim": 512}),
  "stl10": Size(100.0, LARGE, VIEW_PARTS, {"dim": 512}),
  "caltech_birds2011": Size(500.0, (64, 128), CLASS_PARTS, {"dim": 512}),
  "cars196": Size(500.0, (64, 128), CLASS_PARTS, {"dim": 512}),
}


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans all runs; none depends on the results of another."""
  del rows
  runs = [
    run
    for data in options.data
    for run in (
      sentences.plan(data, options, as_sum)
      if data in sentences.TEXTS
      else training_runs(data, options)
    )
  ]
  return runs + untrained(options)


def as_sum(weight: float, batch: int) -> float:
  """Converts a weight of the paper's sum to one of the mean."""
  return weight * (batch - 1) * (batch - 2) / 2


def training_runs(data: str, options: Options) -> list[Run]:
  """Plans all training runs on one data set."""
  size = SIZES[data]
  if options.smoke:
    size = size._replace(
      epochs=2.0,
      batches=(20, 32),
      values=size.values | labelled.small(data),
    )
  common = size.values | {
    "num_epochs": size.epochs,
    "eval_every_epochs": 0.0,
    "scores": ("classes", "recall", "variation"),
    "validation_scores": (),
  }
  make = dict(
    as_sum=_as_sum,
    batches=_batches,
    curves=_curves,
    faint=_faint,
    margins=_margins,
    pictures=_pictures,
    sweep=_sweep,
    unseen=_unseen,
  )
  once = {"as_sum": 1}  # seeds of parts that are run less often
  return [
    run
    for part in size.parts
    for run in labelled.plan(
      options,
      f"{data}/{part}",
      make[part](data, size),
      common,
      once.get(part),
    )
  ]


def untrained(options: Options) -> list[Run]:
  """Plans the runs without training: clusters, and the time of a step."""
  table = (("points", clusters.TRAIN), ("neighbours", clusters.NEIGHBOURS))
  wider = (
    ("points", clusters.TRAIN),
    ("neighbours", 8),
    ("spreads", clusters.SPREADS),
  )
  few = (("points", clusters.SAMPLES), ("neighbours", 1), ("spread", 2.0))
  steps = (
    ("batches", (64,) if options.smoke else overhead.BATCHES),
    ("repetitions", 2 if options.smoke else overhead.REPETITIONS),
  )
  seeds = range(options.seeds)
  return [
    *(Run(TABLE_7, "all cases", seed, table) for seed in seeds),
    *(Run(WIDER, "all cases", seed, wider) for seed in seeds),
    *(Run(FEW, "all cases", seed, few) for seed in range(10 * options.seeds)),
    Run(OVERHEAD, "all hosts", 0, steps, alone=True),
  ]


def _batches(data, size):
  """Makes the settings of Figure 5: two-view hosts over batch sizes."""
  return {
    f"{host} {batch} {weight:g}": (
      f"{host},{data}",
      {"batch_size": batch, "weight": weight, "labels": False},
    )
    for host in (*VIEWS, "debiased")
    for batch in size.batches
    for weight in (0.0, 0.5)
  }


def _faint(data, size):
  """Makes the settings of SwAV at small weights."""
  return {
    f"swav {batch} {weight:g}": (
      f"swav,{data}",
      {"batch_size": batch, "weight": weight, "labels": False},
    )
    for batch in (size.batches[1], size.batches[-1])
    for weight in FAINT
  }


def _as_sum(data, size):
  """Makes the settings of every host at 0.5 as the weight of a sum.

  With labels there are slightly fewer pairs of differences than `as_sum` has.
  """
  batch = _batch_of_all(size)
  weight = as_sum(0.5, batch)
  hosts = (*VIEWS, "debiased")
  common = {"weight": weight, "batch_size": batch, "labels": False}
  if "unseen" in size.parts:
    hosts, common = (*HOSTS, *MARGINS), common | LABELLED
  return {
    f"{host} {batch} {weight:g}": (f"{name},{data}", common | values)
    for host in hosts
    for name, values in [MARGINS.get(host, (host, {}))]
  }


def _pictures(data, size):
  """Makes the settings of Figure 4: embeddings in the plane."""
  batch = _batch_of_all(size)
  return {
    f"{host} {batch} {weight:g}": (
      f"{host},{data}",
      {
        "batch_size": batch,
        "scores": ("recall", "variation"),
        "weight": weight,
        "labels": False,
      },
    )
    for host, weights in PICTURES.items()
    for weight in weights
  }


# Metric learning: positives by class, tests on classes not trained on.
LABELLED = {
  "unseen": True,
  "positive": "class",
  "scores": ("recall", "variation"),
  "labels": True,
}


def _batch_of_all(size):
  """Returns the batch size at which all hosts are compared."""
  return size.batches[-2] if "batches" in size.parts else size.batches[-1]


def _margins(data, size):
  """Makes the settings of Table 3: angular margins, and softmax without."""
  batch = _batch_of_all(size)
  hosts = {"softmax": (0.0,), **dict.fromkeys(MARGINS, WEIGHTS)}
  return {
    f"{host} {batch} {weight:g}": (
      f"{name},{data}",
      LABELLED | {"batch_size": batch, "weight": weight} | values,
    )
    for host, weights in hosts.items()
    for name, values in [MARGINS.get(host, (host, {}))]
    for weight in weights
  }


def _unseen(data, size):
  """Makes the settings of Tables 1 and 2: metric learning, unseen classes."""
  return {
    f"{host} {batch} {weight:g}": (
      f"{host},{data}",
      LABELLED | {"batch_size": batch, "weight": weight},
    )
    for host in HOSTS
    for batch in dict.fromkeys((size.batches[0], size.batches[-1]))
    for weight in WEIGHTS
  }


def _sweep(data, size):
  """Makes the settings of Table 9, for chain and for star."""
  weights = {f"chain {x:g}": {"weight": x} for x in (0.0, *SWEEP)}
  weights |= {
    f"star {x:g}": {"weight": x, "differences": "star"} for x in SWEEP[1:]
  }
  return {
    name: (
      f"ntxent,{data}",
      {"batch_size": size.batches[-2], "labels": False} | values,
    )
    for name, values in weights.items()
  }


def _curves(data, size):
  """Makes the settings of Figure 8: the variation along training."""
  return {
    f"{host} {weight:g}": (
      f"{host},{data}",
      {
        "batch_size": size.batches[-2],
        "eval_every_epochs": size.epochs / 10,
        "scores": ("variation",),
        "validation_scores": ("variation",),
        "log_every": 10,
        "weight": weight,
        "labels": host in HOSTS,
      }
      | labelled.held_out(data, AT_HAND),
    )
    for host in (*VIEWS, *HOSTS)
    for weight in (0.0, 0.5)
  }
