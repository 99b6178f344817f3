"""A small package of drawn icons with the layout of `@iconify/json`."""

import io
import json
import pathlib
import tarfile

VERSION = "1.0.0"
SHAPES = (
  *("circle", "square", "triangle", "bar", "cross", "ring", "arrow-left"),
  *("arrow-right", "plus", "hours-24", "house", "star"),
)
BAD = {  # by name, and a word of the reason
  "remote": ('<image href="https://example.org/a.png"/>', "image"),
  "file": ('<use href="file:///etc/passwd#a"/>', "outside"),
  "script": ("<script>alert(1)</script>", "script"),
  "foreign": ("<foreignObject/>", "foreignObject"),
  "entity": ('<!DOCTYPE x [<!ENTITY a "b">]><path d="M0 0"/>', "XML"),
  "style": ("<style>@import url(a.css);</style>", "style"),
  "paint": ('<path fill="url(http://a.b/c#d)" d="M0 0h9v9"/>', "outside"),
  "broken": ('<path d="M0 0"', "XML"),
  "white": ('<path fill="#fff" d="M0 0h24v24H0z"/>', "white"),
}


def body(number: int, shape: int) -> str:
  """Draws a shape, a little differently for each designer."""
  w = 3 + number % 4
  paths = (
    f'<circle cx="12" cy="12" r="{6 + w / 2}"/>',
    f'<path d="M{w} {w}h{24 - 2 * w}v{24 - 2 * w}H{w}z"/>',
    f'<path d="M12 {w}L{24 - w} 22H{w}z"/>',
    f'<path d="M{9 + w / 3} 2h{w}v20h-{w}z"/>',
    f'<path stroke="currentColor" stroke-width="{w}" '
    'd="M4 4l16 16M20 4L4 20"/>',
    f'<circle cx="12" cy="12" r="8" fill="none" stroke="red" '
    f'stroke-width="{w}"/>',
    f'<path d="M{w} 12L18 4v16z"/>',
    f'<path d="M{24 - w} 12L6 4v16z"/>',
    f'<path d="M12 2v20M2 12h20" stroke="#000" stroke-width="{w}"/>',
    f'<path d="M2 2h{w}v{w}H2zM14 14h8v{w}h-8z"/>',
    f'<path d="M12 2L22 12h-3v{6 + w}H5v-{6 + w}H2z"/>',
    f'<path d="M12 2l{w} 7 7 1-5 5 1 8-6-4-6 4 1-8-5-5 7-1z"/>',
  )
  return paths[shape]


def make_set(prefix: str, number: int, **more) -> dict:
  """Makes the JSON of a set."""
  styled = "suffixes" in more
  icons = {}
  for i, name in enumerate(SHAPES):
    icons[name] = {"body": body(number, i)}
    if styled:
      icons[f"{name}-24-filled"] = {"body": f"<g>{body(number + 1, i)}</g>"}
  icons["old"] = {"body": body(number, 0), "hidden": True}
  return {
    "prefix": prefix,
    "info": {
      "name": prefix.title(),
      "author": {"name": f"Author of {prefix}", "url": "https://example.org"},
      "license": {"title": "MIT", "spdx": "MIT", "url": ""},
      "category": "UI 24px",
    },
    "icons": icons,
    "aliases": {"disc": {"parent": "circle"}},
    "width": 24,
    "height": 24,
    **more,
  }


def sets() -> dict[str, dict]:
  """All sets of the package, by prefix."""
  made = {}
  for number in range(12):
    prefix = f"set{number}"
    more = {"suffixes": {"": "Line", "24-filled": "Filled"}}
    made[prefix] = make_set(prefix, number, **(more if number % 3 == 0 else {}))
  made["set0"]["icons"] |= {k: {"body": x} for k, (x, _) in BAD.items()}
  made["set1"]["icons"]["flat"] = {"body": body(0, 0), "height": 0}
  made["set2"]["icons"]["wide"] = {"body": body(0, 1), "width": 48}
  logos = make_set("brands", 1)
  logos["info"]["category"] = "Logos"
  animated = make_set("animated", 2)
  for icon in animated["icons"].values():
    icon["body"] += '<path d="M0 0"><animate values="0;1"/></path>'
  return made | {"brands": logos, "animated": animated}


def write_package(
  path: pathlib.Path,
  content: dict[str, dict | bytes] | None = None,
  *,
  version: str = VERSION,
  name: str = "@iconify/json",
) -> pathlib.Path:
  """Writes the .tgz; `content` replaces the sets, by prefix."""
  about = {"name": name, "version": version}
  files = {"package/package.json": json.dumps(about).encode()}
  for prefix, x in (sets() if content is None else content).items():
    x = x if isinstance(x, bytes) else json.dumps(x).encode()
    files[f"package/json/{prefix}.json"] = x
  with tarfile.open(path, "w:gz") as tar:
    for member, data in files.items():
      info = tarfile.TarInfo(member)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))
  return path
