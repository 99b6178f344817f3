"""Sanity limits of what a config may ask for.

A forged or mistyped size would otherwise fill the memory, or take forever,
before anything else could notice it. Limits are far above published models.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from nuclr_jax.checks import Range, one_of


def up_to(most: int, *, least: int = 1) -> Any:
  """Makes the type of a whole number with a sanity limit."""
  return Annotated[
    int,
    Range(
      f"a whole number from {least} to {most:,}",
      lambda x: least <= x <= most and x % 1 == 0,
    ),
  ]


Workers = up_to(1_024, least=0)  # processes of a machine
Tracker = one_of(("mlflow", "trackio", "wandb"))
Layers = up_to(1_000)  # of a tower, or of one of its stages
Blocks = up_to(1_000, least=0)  # of a tower that may have none
Width = up_to(2**17)  # of features, and the number of heads
HiddenWidth = up_to(2**17, least=0)  # width of a hidden layer; 0 leaves it out
Length = up_to(2**17)  # of a text, in tokens
Ids = up_to(2**24)  # of a vocabulary; published ones have up to 2**18
Side = up_to(2**12)  # of a square image, or of a patch, in pixels
FEWEST_PIXELS, MOST_PIXELS = 8, 512  # of the side of an image that is drawn
Pixels = up_to(MOST_PIXELS, least=FEWEST_PIXELS)
MAX_PATCHES = 2**14  # of an image; attention takes their square
Stages = Annotated[
  Sequence[Layers],
  Range(
    "1 to 8 whole numbers, each from 1 to 1,000", lambda x: 0 < len(x) <= 8
  ),
]
# Of the channels of images on the scale [0, 1].
Mean = Annotated[
  float, Range("a number from -1,000 to 1,000", lambda x: abs(x) <= 1_000)
]
Std = Annotated[
  float,
  Range("a number from 0.0001 to 10,000", lambda x: 1e-4 <= x <= 1e4),
]
UpToOne = Annotated[float, Range("in (0, 1]", lambda x: 0 < x <= 1)]
StepSize = Annotated[  # a larger one only overflows
  float,
  Range("a number of at least 0, and at most 1,000", lambda x: 0 <= x <= 1_000),
]
Eps = Annotated[  # of a normalization
  float, Range("a number from 1e-20 to 1", lambda x: 1e-20 <= x <= 1)
]
