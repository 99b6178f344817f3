"""Options of captioned images, in groups that functions hand on as one value.

A config does not show the groups: `flat` makes their fields arguments of the
function that takes them, as in `--config.data.length=77`.
"""

from collections.abc import Callable, Mapping
import functools
import inspect
from typing import Any, NamedTuple, TypeVar

from nuclr_jax import checks
from nuclr_jax.checks import Count, Natural, Positive
from nuclr_jax.lab.data import patches
from nuclr_jax.lab.data.cleaning import Clean
from nuclr_jax.lab.data.source import Resize
from nuclr_jax.lab.data.tokenizer import BUILD
from nuclr_jax.lab.ranges import Ids, Length, Side

ResizeMode = (
  checks.one_of(("squash", "crop", "crop_torchvision", patches.NAFLEX)) | None
)
Kernel = checks.one_of(("bicubic", "bilinear"))
Function = TypeVar("Function", bound=Callable)
Group = TypeVar("Group", bound=tuple)


class Square(NamedTuple):
  """The squares that images become."""

  size: Side = 256  # Height and width, in pixels
  # How images that are not augmented become squares: "squash" resizes the whole
  # image, "crop" its shorter side and then crops the centre, as CLIP does
  # ("crop_torchvision" as OpenCLIP, see `images.resize`), and "naflex" keeps
  # the image's shape, in patches as many as in the square. None squashes
  # captioned images and crops labelled ones, as in the published CC3M recipe
  resize: ResizeMode = None
  kernel: Kernel = "bicubic"  # The kernel of this, "bicubic" or "bilinear"
  # The side of a patch of the image tower, in pixels: with "naflex" only
  patch: Side | None = None

  @property
  def how(self) -> Resize:
    """How images that are not augmented become squares."""
    return Resize(self.resize, self.kernel, self.patch)

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """The shape of images as models get them.

    Raises:
      ValueError: If there is a patch, but no need for it, or the reverse; or if
        it does not fit the size.
    """
    is_naflex = self.resize == patches.NAFLEX
    if is_naflex != (self.patch is not None):
      raise ValueError(
        f"data.resize is {self.resize!r} and data.patch is {self.patch}: "
        f"{patches.NAFLEX!r} needs the image tower's patch, and nothing else "
        "has one; set both or neither"
      )
    if is_naflex:
      return patches.packed_shape(self.size, self.patch)
    return self.size, self.size, 3


class Augmentation(NamedTuple):
  """How training images are augmented."""

  # Smallest and largest share of the area that a random crop takes
  scale: tuple[Positive, Positive] = (0.5, 1.0)
  flip: bool = True  # Whether to mirror half of the images
  # How many operations RandAugment draws, at most 3; 0 = none
  num_ops: Natural = 2
  # The strength of these operations, in [0, 10]
  level: checks.NonNegative = 7.0


class Captions(NamedTuple):
  """How captions become token ids."""

  # A file, a folder or a hub name, see `tokenizer.pretrained_tokenizer`; or
  # "build", to build one from the training captions
  tokenizer: str = BUILD
  length: Length = 30  # Token ids per caption
  # How a pretrained tokenizer cleans captions, see
  # `tokenizer.pretrained_tokenizer`; True is the published CC3M recipe
  clean: Clean = True
  # Whether broken encodings, typographic quotes and HTML entities in captions
  # are repaired first, as OpenCLIP does, see `cleaning.repaired`
  repair: bool = False
  # The id that a pretrained tokenizer pads with; SigLIP has 1
  pad_id: Natural = 0
  # Which tokens a pretrained tokenizer adds to a caption, $A, if not its own,
  # such as "eng_Latn $A </s>"
  template: str | None = None
  # The number of ids of a pretrained text tower, if it is not that of the
  # tokenizer
  vocab_size: Ids | None = None
  # The number of captions in which a word must occur to become a token of a
  # built tokenizer
  min_count: Count = 1


class HeldOutNames(NamedTuple):
  """The names of the sets that a run is scored on."""

  # Captioned sets for retrieval during training, `NAME` (its validation split)
  # or `NAME:SPLIT`
  validation: tuple[str, ...] = ()
  # Labelled sets, see `data.sets`, to classify during training. The published
  # recipe uses a test split here; name another split if you select models by
  # its scores
  validation_zero_shot: tuple[str, ...] = ()
  # Captioned sets for retrieval at the end, `NAME` (its test split) or
  # `NAME:SPLIT`
  test: tuple[str, ...] = ()
  zero_shot: tuple[str, ...] = ()  # Labelled sets to classify at the end
  # Labelled sets on whose frozen features classifiers are trained and scored at
  # the end
  probes: tuple[str, ...] = ()


def flat(*groups: str) -> Callable[[Function], Function]:
  """Decorates a function, so that fields of its groups are arguments of it.

  Args:
    *groups: The keyword arguments that are groups: NamedTuples, as their
      annotations say, whose fields all have defaults. The signature has their
      fields in their place. A group may still be given as a whole.

  Example:
    >>> @flat("augmentation")
    ... def show(*, size: int, augmentation: Augmentation):
    ...   return size, augmentation.flip, augmentation.num_ops
    >>> show(size=8, num_ops=0)
    (8, True, 0)
    >>> show(size=8, augmentation=Augmentation(flip=False))
    (8, False, 2)
    >>> list(inspect.signature(show).parameters)
    ['size', 'scale', 'flip', 'num_ops', 'level']
  """

  def decorate(function):
    signature = inspect.signature(function)
    types = {name: signature.parameters[name].annotation for name in groups}
    parameters = []
    for name, parameter in signature.parameters.items():
      fields = [parameter]
      if name in types:
        fields = inspect.signature(types[name]).parameters.values()
      parameters += [x.replace(kind=parameter.kind) for x in fields]

    @functools.wraps(function)
    def call(*args, **arguments):
      for name, group in types.items():
        given = {x: arguments.pop(x) for x in group._fields if x in arguments}
        arguments[name] = arguments.get(name, group())._replace(**given)
      return function(*args, **arguments)

    call.__signature__ = signature.replace(parameters=parameters)
    return call

  return decorate


def group_in(spec: Mapping[str, Any], group: type[Group]) -> Group:
  """Returns the fields of a group that a flat mapping has, as the group.

  Example:
    >>> spec = {"name": "image_text", "train": "cc3m", "num_ops": 0}
    >>> group_in(spec, Augmentation).num_ops
    0
  """
  return group(**{x: spec[x] for x in group._fields if x in spec})
