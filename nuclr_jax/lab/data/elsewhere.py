"""How other libraries prepare images for an exported model.

The files of an export have the size, the kernel, the mode, the mean and the
standard deviation that a run was trained with, and both libraries then compute
the same pixels, but for what their files cannot say.
"""

from collections.abc import Sequence

from nuclr_jax.lab.data.source import Resize

HUGGING_FACE, OPEN_CLIP = "hugging_face", "open_clip"
LAYOUTS = (HUGGING_FACE, OPEN_CLIP)  # of exports
# Library, its rule for margins of a crop, the mode that has the same rule.
_RULES = {
  (HUGGING_FACE, "crop_torchvision"): (
    "transformers rounds the margins of a crop down",
    "crop",
  ),
  (OPEN_CLIP, "crop"): (
    "OpenCLIP rounds the margins of a crop as torchvision does",
    "crop_torchvision",
  ),
}


def differences(
  how: Resize, layouts: Sequence[str] = LAYOUTS, *, labelled: bool = True
) -> list[str]:
  """Says which images another library prepares in another way, and what to do.

  Args:
    how: How a run prepares images that are not augmented.
    layouts: The layouts of the export.
    labelled: Whether the run has labelled sets.

  Returns:
    A text for each difference; none if all pixels are the same.

  Example:
    >>> differences(Resize("squash")), differences(Resize("crop"), LAYOUTS[:1])
    ([], [])
    >>> (text,) = differences(Resize("crop"))
    >>> text.split("; ")[-1]
    "config.data.resize='crop_torchvision' is its rule"
  """
  found = [
    f"with config.data.resize={how.mode!r}, an export for {layout} prepares "
    f"some images otherwise: {rule}, one pixel off where a side of the resized "
    "image and the crop differ by an odd number; "
    f"config.data.resize={same!r} is its rule"
    for layout in layouts
    for rule, same in [_RULES.get((layout, how.mode), (None, None))]
    if rule
  ]
  if how.mode is None and labelled:
    found.append(
      "config.data.resize is None: labelled sets (zero-shot, probes) are "
      "cropped here, and an export squashes all images, so that their scores "
      "differ elsewhere; 'squash' prepares both kinds as the export does"
    )
  return found
