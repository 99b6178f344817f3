"""Counts how much of the package a newcomer has to hold in mind.

python tests/indicators.py [--package=nuclr_jax] [--data_dir=DIR] [--json]

`--package` is the folder of the package, in this checkout or in another one;
`configs/` and `pyproject.toml` lie beside it. `--static` leaves out the traced
step, and with it JAX. `--list` prints what was counted, not the numbers alone.
A *unit* is a module or package directly in the package or in its `lab`, except
`__init__.py`, and a *module* is any Python file in the package. The numbers
count the following.

top_level_names: Modules and packages directly in the package.
units: Units.
layers: Units on the longest chain of imports from unit to unit, both ends
  included. None if the imports form a circle, which `circle` then lists.
  Imports inside functions count here and in all other numbers.
arrows: Pairs of different units of which the first imports from the second.
config_arguments: Calls that hand on a config: the name `config`, an attribute
  such as `parts.config`, or a part such as `config["model"]`, as a whole
  argument, positional or by keyword.
config_modules: The modules that have such a call.
checks_per_step: Calls of a function in `CHECKS` while the train step is traced
  once: from the entry of the function that JAX traces to its return.
files_to_loss: Modules between the command `nuclr train` and the loss: those
  with a frame on the stack when the step enters the objective's `apply`, and
  those with a function that runs inside `apply`. Values are lines of code.
lines_to_loss: The sum of these lines. Whole files are counted.
small_modules: Modules of fewer than 100 lines (of any kind) that only one other
  module imports, with that module. A reader judges whether such a module's name
  is a concept.
repeated_names: Names of public functions and classes that two or more modules
  define at their top level. Re-exports are not definitions.
referring_args: Entries under `Args:` that begin with "Likewise", "See",
  "As in", "As for" or "As there"; `args` is the number of all entries.
core_lines, lab_lines, contrib_lines: `code_lines` of the packages `lab` and
  `contrib`, and of everything else.
code_lines: Lines that have a letter or a digit outside comments and docstrings.
  Lines that only close brackets are not counted.
comments_per_code_line: Lines with a comment, divided by `code_lines`.
modules: Modules, including each `__init__.py`.

The step is that of `configs/glyphs.py:smoke` with small towers. It is reached
through the function that `pyproject.toml` names for the script `nuclr`. The
glyphs are drawn first, which takes a minute, unless `--data_dir` has them.
"""

import argparse
import ast
from collections.abc import Callable, Iterator
import contextlib
import graphlib
import importlib
import io
import json
import pathlib
import re
import sys
import tempfile
import tokenize
import tomllib
from types import FrameType
from typing import NamedTuple

CHECKS = ("check_pairs",)  # what checks a batch
SMALL = 100  # lines
NOT_CODE = {
  tokenize.COMMENT,
  tokenize.NL,
  tokenize.NEWLINE,
  tokenize.INDENT,
  tokenize.DEDENT,
  tokenize.ENDMARKER,
}
REFERS = re.compile(r"(Likewise|See|As (in|for|there))\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
  """A Python file of the package."""

  path: pathlib.Path
  name: tuple[str, ...]  # ("objectives", "clip"); a package's is its folder's
  text: str
  tree: ast.Module

  @property
  def unit(self) -> str:
    """The unit of the module; "" is the package, or one with units."""
    return unit_of(self.name)


def unit_of(name: tuple[str, ...]) -> str:
  """The unit of a module, or of something in one."""
  if name[:1] == ("lab",):
    return ".".join(name[:2]) if len(name) > 1 else ""
  return name[0] if name else ""


def modules_of(package: pathlib.Path) -> list[Module]:
  """All modules, by path."""
  modules = []
  for path in sorted(package.rglob("*.py")):
    name = path.relative_to(package).with_suffix("").parts
    name = name[:-1] if name[-1] == "__init__" else name
    text = path.read_text(encoding="utf-8")
    modules.append(Module(path, name, text, ast.parse(text)))
  return modules


def imports_of(module: Module, package: str) -> Iterator[tuple[str, ...]]:
  """What a module imports from its own package, as the parts of dotted names.

  The last part may be a module or something defined in one.
  """
  is_package = module.path.name == "__init__.py"
  for node in ast.walk(module.tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        first, *rest = alias.name.split(".")
        if first == package:
          yield tuple(rest)
    elif isinstance(node, ast.ImportFrom):
      parts = tuple(node.module.split(".")) if node.module else ()
      if node.level:
        here = module.name if is_package else module.name[:-1]
        parts = here[: len(here) - node.level + 1] + parts
      elif parts[:1] == (package,):
        parts = parts[1:]
      else:
        continue
      for alias in node.names:
        yield (*parts, alias.name)


def importers_of(
  modules: list[Module], package: str
) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
  """The modules that import each module, by name."""
  importers = {module.name: set() for module in modules}
  for module in modules:
    for name in imports_of(module, package):
      target = name if name in importers else name[:-1]
      if target in importers and target != module.name:
        importers[target].add(module.name)
  return importers


def units_of(modules: list[Module], package: str) -> dict[str, set[str]]:
  """The units that each unit imports from."""
  units = {module.unit: set() for module in modules if module.unit}
  for module in modules:
    for name in imports_of(module, package):
      unit = unit_of(name)
      if module.unit and unit in units.keys() - {module.unit}:
        units[module.unit].add(unit)
  return units


def layers_of(units: dict[str, set[str]]) -> dict[str, int]:
  """The length of the longest chain of imports below each unit, it included.

  Raises:
    graphlib.CycleError: If the imports form a circle.
  """
  depth = {}
  for unit in graphlib.TopologicalSorter(units).static_order():
    depth[unit] = 1 + max((depth[x] for x in units[unit]), default=0)
  return depth


def small_modules(modules: list[Module], package: str) -> dict[str, str]:
  """The only importer of each small module that has just one."""
  importers = importers_of(modules, package)
  return {
    ".".join(module.name): ".".join(*importers[module.name]) or package
    for module in modules
    if module.name
    and len(module.text.splitlines()) < SMALL
    and len(importers[module.name]) == 1
  }


def is_config(node: ast.expr) -> bool:
  """Whether an expression is a config, or a part of one."""
  if isinstance(node, ast.Subscript):
    return is_config(node.value)
  name = getattr(node, "id", getattr(node, "attr", ""))
  return isinstance(node, ast.Name | ast.Attribute) and name == "config"


def config_arguments(modules: list[Module]) -> list[tuple[str, int]]:
  """The calls that hand on a config, as modules and lines."""
  return [
    (".".join(module.name), node.lineno)
    for module in modules
    for node in ast.walk(module.tree)
    if isinstance(node, ast.Call)
    and any(map(is_config, [*node.args, *(x.value for x in node.keywords)]))
  ]


def repeated_names(modules: list[Module]) -> dict[str, list[str]]:
  """The modules of each public name that several define."""
  places = {}
  for module in modules:
    for node in module.tree.body:
      if isinstance(
        node, ast.FunctionDef | ast.ClassDef
      ) and not node.name.startswith("_"):
        places.setdefault(node.name, set()).add(".".join(module.name))
  return {k: sorted(v) for k, v in sorted(places.items()) if len(v) > 1}


def args_of(module: Module) -> Iterator[tuple[str, str]]:
  """Name and text of each entry under `Args:` in the docstrings."""
  for node in ast.walk(module.tree):
    if not isinstance(node, DOCUMENTED):
      continue
    section = re.search(
      r"^Args:\n((?:  .*\n|\n)*)", (ast.get_docstring(node) or "") + "\n", re.M
    )
    for entry in re.findall(
      r"^  (\*{0,2}\w[\w*, `]*):((?:.*\n)(?:   .*\n|\n)*)",
      section[1] if section else "",
      re.M,
    ):
      yield entry[0], " ".join(entry[1].split())


def lines_of(module: Module) -> tuple[int, int]:
  """Lines of code and lines with a comment."""
  docstrings = set()
  for node in ast.walk(module.tree):
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
      text = node.body[0]
      docstrings |= set(range(text.lineno, text.end_lineno + 1))
  code, comments = set(), set()
  for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
    line = token.start[0]
    if token.type == tokenize.COMMENT:
      comments.add(line)
    elif token.type not in NOT_CODE and re.search(r"[^\W_]", token.string):
      code.add(line)
  return len(code - docstrings), len(comments)


class Traced(BaseException):
  """Ends the launcher once the step is traced; it only catches `Exception`."""


class Watch:
  """A profile function that follows the traced step to its return.

  Attributes:
    stack: Files with a frame between the launcher and the loss, in the order of
      the calls.
    inside: Files of which a function ran inside the objective's `apply`.
    checks: How often a batch was checked.
  """

  def __init__(self, package: pathlib.Path):
    self.prefix = f"{package}/"
    self.stack, self.inside, self.checks = [], set(), 0
    self._step = self._apply = None

  def differentiating(self, value_and_grad: Callable) -> Callable:
    """`jax.value_and_grad`, which begins to watch where a step calls it.

    Earlier there is nothing to see, and watching makes Python slow.
    """

    def wrapped(*args, **options):
      frames = list(_frames(sys._getframe(1)))
      # The step is what JAX traces: the innermost function that JAX called.
      called_by_jax = [
        frame
        for frame, caller in zip(frames, frames[1:], strict=False)
        if self._is_own(frame) and "/jax/" in caller.f_code.co_filename
      ]
      if self._is_own(frames[0]) and called_by_jax:
        self._step = called_by_jax[0]
        sys.setprofile(self)
      return value_and_grad(*args, **options)

    return wrapped

  def __call__(self, frame: FrameType, event: str, _) -> None:
    if event not in ("call", "return") or not self._is_own(frame):
      return
    code = frame.f_code
    if event == "call":
      self.checks += code.co_name in CHECKS
      if code.co_name == "apply" and not self.stack:
        self._enter(frame)
      if self._apply is not None:
        self.inside.add(code.co_filename)
    elif frame is self._apply:
      self._apply = None
    elif frame is self._step:
      raise Traced

  def _enter(self, frame: FrameType) -> None:
    """Remembers the stack, if this is `apply` of an objective."""
    if frame.f_code.co_filename.startswith(f"{self.prefix}objectives/"):
      own = [x.f_code.co_filename for x in _frames(frame) if self._is_own(x)]
      self.stack, self._apply = list(dict.fromkeys(reversed(own))), frame

  def _is_own(self, frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(self.prefix)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
  """A frame and those above it."""
  while frame is not None:
    yield frame
    frame = frame.f_back


def trace(package: pathlib.Path, data_dir: str | None) -> Watch:
  """Runs `nuclr train` until its step is traced.

  Args:
    package: Folder of the package; `sys.path` finds it.
    data_dir: Folder of the glyphs; None draws them.

  Raises:
    RuntimeError: If another copy of the package was imported, if no step was
      traced, or if the step checked no batch.
  """
  import jax
  import tiny_config

  root = package.parent
  project = tomllib.loads((root / "pyproject.toml").read_text())
  name, function = project["project"]["scripts"]["nuclr"].split(":")
  launcher = importlib.import_module(name)
  if not launcher.__file__.startswith(f"{package}/"):
    raise RuntimeError(f"{launcher.__file__} is not of {package}")
  watch, argv, function_of_jax = Watch(package), sys.argv, jax.value_and_grad
  jax.value_and_grad = watch.differentiating(function_of_jax)
  with tempfile.TemporaryDirectory() as folder:
    sys.argv = [
      "nuclr",
      "train",
      f"--config={root}/configs/glyphs.py:smoke",
      f"--workdir={folder}/run",
      f"--data_dir={data_dir or folder}",
      *tiny_config.as_flags(tiny_config.changes(1)),
    ]
    try:
      getattr(launcher, function)()
    except Traced:
      pass
    finally:
      sys.setprofile(None)
      sys.argv, jax.value_and_grad = argv, function_of_jax
  if not watch.stack or not watch.checks:
    raise RuntimeError(
      f"the step entered {watch.stack or 'no objective'} and ran the checks "
      f"{CHECKS} {watch.checks} times; name what checks a batch in CHECKS"
    )
  return watch


def static(package: pathlib.Path) -> dict:
  """The indicators that need no step."""
  modules = modules_of(package)
  units = units_of(modules, package.name)
  try:
    layers, circle = max(layers_of(units).values()), None
  except graphlib.CycleError as error:
    layers, circle = None, error.args[1]
  handed_on = config_arguments(modules)
  code, comments = map(sum, zip(*map(lines_of, modules), strict=True))
  part = {"lab": 0, "contrib": 0, "core": 0}
  for module in modules:
    first = module.name[0] if module.name else ""
    part[first if first in part else "core"] += lines_of(module)[0]
  args = [entry for module in modules for entry in args_of(module)]
  referring = [text for _, text in args if REFERS.match(text)]
  return {
    "top_level_names": sorted({x.name[0] for x in modules if x.name}),
    "units": sorted(units),
    "layers": layers,
    "circle": circle,
    "arrows": sorted(f"{a} -> {b}" for a in units for b in units[a]),
    "config_arguments": [f"{name}:{line}" for name, line in handed_on],
    "config_modules": sorted({name for name, _ in handed_on}),
    "small_modules": small_modules(modules, package.name),
    "repeated_names": repeated_names(modules),
    "referring_args": referring,
    "args": len(args),
    **{f"{name}_lines": count for name, count in part.items()},
    "code_lines": code,
    "comments_per_code_line": round(comments / code, 4),
    "modules": len(modules),
  }


def traced(package: pathlib.Path, data_dir: str | None) -> dict:
  """The indicators that need one; the launcher prints to the error stream."""
  with contextlib.redirect_stdout(sys.stderr):
    watch = trace(package, data_dir)
  files = list(dict.fromkeys([*watch.stack, *sorted(watch.inside)]))
  lines = {
    module.path.relative_to(package).as_posix(): lines_of(module)[0]
    for module in modules_of(package)
    if str(module.path) in files
  }
  return {
    "checks_per_step": watch.checks,
    "files_to_loss": {
      name: lines[name]
      for name in (x.removeprefix(watch.prefix) for x in files)
    },
    "lines_to_loss": sum(lines.values()),
  }


def numbers(indicators: dict) -> dict:
  """The indicators, with the length of each list or mapping in its place."""
  return {
    name: len(x) if isinstance(x, list | dict) else x
    for name, x in indicators.items()
  }


def main() -> None:
  """Prints the indicators."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  here = pathlib.Path(__file__).resolve().parents[1]
  parser.add_argument(
    "--package", type=pathlib.Path, default=here / "nuclr_jax"
  )
  parser.add_argument("--data_dir")
  parser.add_argument("--json", action="store_true")
  parser.add_argument("--static", action="store_true")
  parser.add_argument("--list", action="store_true")
  flags = parser.parse_args()
  package = flags.package.resolve()
  indicators = static(package)
  if not flags.static:
    sys.path[:0] = [str(package.parent), str(here / "tests" / "helpers")]
    indicators |= traced(package, flags.data_dir)
  if flags.json:
    print(json.dumps(indicators if flags.list else numbers(indicators)))
    return
  width = max(map(len, indicators))
  for name, number in numbers(indicators).items():
    print(f"{name:<{width}}  {number}")
    entries = indicators[name]
    if flags.list and isinstance(entries, list | dict):
      pairs = (
        entries.items()
        if isinstance(entries, dict)
        else ((x, "") for x in entries)
      )
      for key, value in pairs:
        print(f"  {key}  {value}".rstrip())


if __name__ == "__main__":
  main()
