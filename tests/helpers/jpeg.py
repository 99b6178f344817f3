"""Skips tests of golden JPEG pixels where libjpeg-turbo is too old."""

import PIL.features
import pytest

# The golden pixels of JPEG files are those of libjpeg-turbo 3.2, which Pillow
# has from version 13 on. Those of older ones differ by a level in some files.
NEEDED = (3, 2)
_FOUND = PIL.features.version("libjpeg_turbo") or "0"

golden_pixels = pytest.mark.skipif(
  tuple(map(int, _FOUND.split(".")[:2])) < NEEDED,
  reason=f"libjpeg-turbo {_FOUND} decodes some JPEG files otherwise",
)
