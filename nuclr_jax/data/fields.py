"""Which feature of a TFDS data set is the image, and which are the captions."""

from collections.abc import Mapping, Sequence
from typing import Any

CAPTIONS = (  # usual names, the likeliest first
  "caption",
  "captions",
  "captions/text",
  "caption/text",
  "text",
  "texts",
  "title",
  "sentence",
  "sentences",
  "sentences/raw",
  "description",
)


def image_field(features: Any) -> str:
  """Name of the feature that holds encoded images.

  Args:
    features: `builder.info.features` of a TFDS data set.

  Returns:
    "image" if it is one, else the only image feature.

  Raises:
    ValueError: If there is none, or it is not clear which.

  Example:
    >>> import tensorflow_datasets as tfds
    >>> image_field(
    ...   {"photo": tfds.features.Image(), "id": tfds.features.Text()}
    ... )
    'photo'
  """
  import tensorflow_datasets as tfds

  images = [
    name
    for name, feature in features.items()
    if isinstance(feature, tfds.features.Image)
  ]
  if "image" in images:
    return "image"
  if len(images) != 1:
    raise ValueError(
      "the data set needs a feature image, or only one image feature; its "
      f"image features are {images} of {sorted(features)}"
    )
  return images[0]


def caption_field(features: Any) -> str:
  """Name of the feature that holds captions, one or several an image.

  Args:
    features: `builder.info.features` of a TFDS data set.

  Returns:
    The name; "captions/text" is the text of a sequence of dicts.

  Raises:
    ValueError: If no feature of a usual name holds text.

  Example:
    >>> import tensorflow_datasets as tfds
    >>> caption_field({"title": tfds.features.Text()})
    'title'
  """
  for name in CAPTIONS:
    if _is_text(_find(features, name)):
      return name
  raise ValueError(
    f"no text among the features {sorted(features)} is a caption by its name; "
    f"known names are {', '.join(CAPTIONS)}"
  )


def captions_of(row: Mapping[str, Any], field: str) -> list[str]:
  """The captions of a row, whatever they are stored as.

  Args:
    row: A row of a data source, of JSON or of a table.
    field: See `caption_field`.

  Returns:
    Captions; what is missing is "", if not the whole field.

  Example:
    >>> captions_of({"caption": b"a dog"}, "caption")
    ['a dog']
    >>> captions_of({"captions": [{"text": "a dog"}, None]}, "captions/text")
    ['a dog', '']
  """
  value = row
  for name in field.split("/"):
    if isinstance(value, Mapping):
      value = value.get(name)
    else:  # a sequence of dicts comes back as either
      value = [x.get(name) if x else None for x in _listed(value)]
  return [_text(x) for x in _listed(value)]


def _find(features, name):
  """The feature of a path; a sequence stands for what it is made of."""
  for part in name.split("/"):
    features = getattr(features, "feature", features)
    features = features[part] if part in _names(features) else None
    if features is None:
      return None
  return features


def _names(features) -> Sequence[str]:
  return list(features.keys()) if hasattr(features, "keys") else ()


def _is_text(feature) -> bool:
  import tensorflow_datasets as tfds

  feature = getattr(feature, "feature", feature)
  return isinstance(feature, tfds.features.Text)


def _listed(value) -> list:
  """One value or many, as a list."""
  if value is None:
    return []
  if isinstance(value, str | bytes | Mapping):
    return [value]
  return list(value) if hasattr(value, "__iter__") else [value]


def _text(value) -> str:
  if isinstance(value, bytes):
    return value.decode("utf-8", "replace")
  return value if isinstance(value, str) else ""
