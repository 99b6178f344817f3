"""The flags of `nuclr filter`, and the request that they make."""

import math
from typing import Any

from absl import flags as absl_flags

from nuclr_jax.lab.cli import chosen, flags, parsers
from nuclr_jax.lab.cli.flags import UsageError


class ScoresParser(absl_flags.ListParser):
  """Parses --score: names of scores, with commas between several."""

  def parse(self, argument):
    names = super().parse(argument)
    for name in names:
      if name not in SCORES:
        raise ValueError(f"{name!r} must be one of {', '.join(SCORES)}")
    if len(set(names)) < len(names):
      raise ValueError("a score is there twice")
    return names


SCORES = ("similarity", "negcliploss", "exact", "normsim", "confidence")
SCORE = absl_flags.DEFINE(
  ScoresParser(),
  "score",
  None,
  "What chooses pairs: similarity (CLIPScore), negcliploss (as published), "
  "exact (the weight of the pair with exact popularities), normsim (how near "
  "the image is to those of --target), or confidence (for captions that are "
  "names of classes); with commas between several, in the order in which they "
  "choose.",
)
KEEP = absl_flags.DEFINE(
  parsers.NumbersParser(0, 1, "a share greater than 0, and at most 1"),
  "keep",
  None,
  "The share of all pairs that each score keeps, such as 0.3. Of several "
  "scores, each chooses from what those before it have kept.",
)
THRESHOLD = absl_flags.DEFINE(
  parsers.NumbersParser(-math.inf, math.inf, "a finite number"),
  "threshold",
  None,
  "The least value of each score that is kept, in place of --keep.",
)
INTERSECT = absl_flags.DEFINE_bool(
  "intersect",
  False,
  "Let every score choose from all pairs, and keep what all of them choose.",
)
ONCE = absl_flags.DEFINE_enum(
  "once",
  None,
  ["pair", "image", "text"],
  "Of pairs with the same image, the same text, or both (pair), keep only the "
  "one with the best score.",
)
ARCH = absl_flags.DEFINE_string(
  "arch",
  None,
  "Which arrays of DataComp's .npz files to use: l14 (the default) for l14_img "
  "and l14_txt, or b32.",
)
BATCH_SIZE = absl_flags.DEFINE_integer(
  "batch_size",
  32_768,
  "The pairs of a random batch, for negcliploss.",
  lower_bound=32,
)
PARTITIONS = absl_flags.DEFINE_integer(
  "partitions",
  10,
  "Over how many random partitions in batches negcliploss is averaged.",
  lower_bound=1,
)
TARGET = absl_flags.DEFINE_string(
  "target",
  None,
  "Embeddings of the images that training is for, by the model of the pairs, "
  "for normsim: image.npy, an .npz file with image or l14_img, or a folder of "
  "nuclr embed, DataComp or clip-retrieval.",
)
NORM = absl_flags.DEFINE_enum(
  "norm",
  "inf",
  ["inf", "2"],
  "What normsim makes of the cosines with the target's images: inf takes the "
  "greatest absolute one, 2 the root of the sum of their squares.",
)


def request():
  """Returns what the flags of `nuclr filter` ask for, a `filtering.Request`.

  Raises:
    UsageError: If flags do not fit the scores.
  """
  from nuclr_jax.lab.report.filter_steps import WITH_TEMPERATURE, Request

  scores, given = SCORE.value, set(flags.present())
  keep, threshold = KEEP.value, THRESHOLD.value
  with_temperature = WITH_TEMPERATURE & set(scores)
  for name, used, what in (
    ("temperature", bool(with_temperature), "negcliploss and exact"),
    ("batch_size", "negcliploss" in scores, "negcliploss"),
    ("partitions", "negcliploss" in scores, "negcliploss"),
    ("max_pairs", "exact" in scores, "exact"),
    ("target", "normsim" in scores, "normsim"),
    ("norm", "normsim" in scores, "normsim"),
    ("intersect", len(scores) > 1 and bool(keep), "several scores and --keep"),
  ):
    if name in given and not used:
      raise UsageError(f"--{name} is for {what} only; leave it out")
  if "normsim" in scores and TARGET.value is None:
    raise UsageError(
      "--score=normsim needs --target, the embeddings of the images that "
      "training is for, such as --target=imagenet/image.npy"
    )
  if keep is None and threshold is None:
    raise UsageError("give --keep, such as --keep=0.3, or --threshold")
  name, values = ("keep", keep) if keep else ("threshold", threshold)
  if len(values) != len(scores):
    raise UsageError(
      f"--{name} must have a number for each of {len(scores)} scores, got "
      f"{len(values)}"
    )
  falling = all(a > b for a, b in zip(values, values[1:], strict=False))
  if keep and not falling and not INTERSECT.value:
    raise UsageError(
      "--keep must fall from score to score, since these are shares of all "
      "pairs, such as --keep=0.5,0.3; or give --intersect"
    )
  tau = flags.TEMPERATURE.value
  if tau is None and with_temperature and not flags.EMBEDDINGS.value:
    if flags.WORKDIR.value:
      raise UsageError(
        f"--score={','.join(with_temperature)} of a run needs --temperature, "
        "such as the one in its metrics"
      )
    tau = chosen.temperature_of_model()
  return Request(
    scores,
    keep,
    threshold,
    INTERSECT.value,
    ONCE.value,
    tau,
    BATCH_SIZE.value,
    PARTITIONS.value,
    flags.MAX_PAIRS.value,
    ARCH.value,
    TARGET.value,
    NORM.value,
  )


def to_embed() -> dict[str, Any]:
  """Returns the arguments of `filtering.write` for pairs that are embedded."""
  plan = chosen.plan_of_input(one_split=True)
  return {
    "embed": lambda x: chosen.embed_inputs(x, pairs=True, plan=plan),
    "source": source(),
    "state": chosen.state_of_source(plan),
  }


def source() -> dict[str, Any]:
  """Returns the flags that say which pairs are embedded, and by what."""
  values = {
    "input": flags.INPUT.value,
    "workdir": flags.WORKDIR.value,
    "config": flags.CONFIG.value,
    "model": flags.MODEL.value,
    "architecture": flags.ARCHITECTURE.value,
    "changes": flags.CHANGES.value,
    "best": flags.BEST.value,
    "average": flags.AVERAGE.value,
    **chosen.how_to_read(),
  }
  return {name: x for name, x in values.items() if x is not None}
