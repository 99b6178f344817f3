"""Reads the npm package `@iconify/json`, a .tgz, without unpacking it.

The package has one JSON file for each set of icons. It is not trusted: members
of the tar are found by `tar_members`, and sizes are bounded.
"""

from collections.abc import Collection, Iterator, Mapping
import gzip
import os
import pathlib
import re
from typing import Any, NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.data.icons.render import Icon
from nuclr_jax.lab.data.tar_members import END, members_of

NAME = "@iconify/json"
MAX_SET = 2**28  # bytes of a set's JSON; the largest published has 103,665,449
CHUNK = 2**20
LATEST = "package/package.json"
SET = re.compile(r"package/json/([a-z0-9]+(?:-[a-z0-9]+)*)\.json")
BOX = (("left", 0), ("top", 0), ("width", 16), ("height", 16))  # and defaults


class Package(NamedTuple):
  """A package whose sets have been found, but not read."""

  path: pathlib.Path
  version: str
  places: Mapping[str, tuple[int, int]]  # of the sets: first byte, bytes


class IconSet(NamedTuple):
  """A set of icons by one designer."""

  prefix: str  # its identifier
  name: str
  author: str
  license: str  # SPDX identifier
  license_url: str
  author_url: str
  category: str | None
  hidden: bool  # whether it is no longer shown to users
  suffixes: tuple[str, ...]  # that its names may have, such as "outline"
  prefixes: tuple[str, ...]
  # Those that are drawn, by name. Hidden icons, which the set has replaced, and
  # aliases, which are other names of icons, are not among them.
  icons: list[Icon]


def file_name(version: str) -> str:
  """Returns the name that npm gives the package's file."""
  return f"iconify-json-{version}.tgz"


def command(version: str | None = None) -> str:
  """Returns the command that downloads the package.

  Example:
    >>> command("2.2.535"), command()
    ('npm pack @iconify/json@2.2.535', 'npm pack @iconify/json')
  """
  return f"npm pack {NAME}@{version}" if version else f"npm pack {NAME}"


def open_package(
  path: str | os.PathLike, version: str | None = None
) -> Package:
  """Finds the sets of a package, and its version.

  Args:
    path: The .tgz file that `npm pack @iconify/json` downloads.
    version: The version that it has to be; None takes any.

  Raises:
    ValueError: If it cannot be read, is damaged, is another package, or has
      another version.
  """
  remedy = f"download it again, with {command(version)}"
  with files.reading(path, remedy=remedy) as path:
    with gzip.open(path) as file:
      _check_length(file, path.stat().st_size)
      file.seek(0)
      places = {}
      for member in members_of(file):
        if member.key is None:
          if member.name != END:
            raise ValueError(f"its tar is a {member.name}")
          continue
        flaw = member.flaw
        if member.size > MAX_SET:
          flaw = f"more than {MAX_SET:,} bytes"
        if flaw and SET.fullmatch(member.name):
          raise ValueError(f"its set {member.name} cannot be read: {flaw}")
        if not flaw:
          places[member.name] = member.place, member.size
      if LATEST not in places:
        raise ValueError(f"it has no {LATEST}; it is not the package {NAME}")
      about = _read_json(file, LATEST, places[LATEST])
  if about.get("name") != NAME:
    raise ValueError(f"{path} is the package {about.get('name')}, not {NAME}")
  actual = about.get("version")
  if not re.fullmatch(r"\d+\.\d+\.\d+", str(actual)):
    raise ValueError(f"{path} has the version {actual!r}, which is none")
  if version not in (None, actual):
    raise ValueError(
      f"{path} is version {actual} of {NAME}, and version {version} is asked "
      f"for; get that one with {command(version)}, or ask for {actual} "
      f"(--config.data.version={actual}), which makes another data set"
    )
  found = {name: SET.fullmatch(name) for name in places}
  sets = {m[1]: places[name] for name, m in found.items() if m}
  return Package(path, actual, sets)


def read_sets(
  package: Package, prefixes: Collection[str] | None = None
) -> Iterator[IconSet]:
  """Reads sets one after another, in the order of the file.

  Args:
    package: The package.
    prefixes: Which sets to read; None reads all.

  Raises:
    ValueError: If a set is not in the package, or is not as sets are.
  """
  if unknown := sorted(set(prefixes or ()) - set(package.places)):
    raise ValueError(
      f"{package.path} has no set {unknown[0]!r}; it has {len(package.places)} "
      f"sets, such as {', '.join(sorted(package.places)[:5])}; their names are "
      "listed at https://icon-sets.iconify.design"
    )
  chosen = package.places if prefixes is None else prefixes
  order = sorted(chosen, key=lambda prefix: package.places[prefix])
  with files.reading(package.path), gzip.open(package.path) as file:
    for prefix in order:
      name = f"package/json/{prefix}.json"
      content = _read_json(file, name, package.places[prefix])
      try:
        icon_set = _parse(prefix, content)
      except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} is not a set of icons ({reason})") from error
      yield icon_set


def _check_length(file: gzip.GzipFile, compressed: int) -> None:
  """Reads a file to its end, where its checksum is, if it is not too long."""
  most, length = max(files.MAX_EXPANSION * compressed, files.LITTLE), 0
  while chunk := file.read(CHUNK):
    length += len(chunk)
    if length > most:
      raise ValueError(f"it expands to more than {most:,} bytes")


def _read_json(
  file: gzip.GzipFile, name: str, place: tuple[int, int]
) -> dict[str, Any]:
  """Reads a member that holds a JSON object."""
  start, size = place
  file.seek(start)
  try:
    content = files.parse_json(file.read(size))
  except ValueError as error:
    raise ValueError(f"{name} is not JSON ({error})") from error
  if not isinstance(content, dict):
    raise ValueError(f"{name} holds no object, but a {type(content).__name__}")
  return content


def _parse(prefix: str, content: dict[str, Any]) -> IconSet:
  """Takes from a set's JSON what is needed of it."""
  info = content.get("info") or {}
  author, terms = info.get("author") or {}, info.get("license") or {}
  default = {key: content.get(key, value) for key, value in BOX}

  def icon(name: str, about: dict[str, Any]) -> Icon:
    box = tuple(float(about.get(key, default[key])) for key, _ in BOX)
    body = about["body"]
    if not isinstance(body, str):
      raise TypeError(f"the body of {name[:40]!r} is no text")
    return Icon(name, body, box)

  return IconSet(
    prefix,
    *(
      str(x)
      for x in (
        info.get("name") or prefix,
        author.get("name") or prefix,
        terms.get("spdx") or terms.get("title") or "unknown",
        terms.get("url") or "",
        author.get("url") or "",
      )
    ),
    category=info.get("category"),
    hidden=bool(info.get("hidden")),
    suffixes=tuple(x for x in content.get("suffixes") or {} if x),
    prefixes=tuple(x for x in content.get("prefixes") or {} if x),
    icons=[
      icon(name, about)
      for name, about in sorted(content["icons"].items())
      if not about.get("hidden")
    ],
  )
