"""Counts what a program consists of: in its jaxpr, and once it is compiled."""

from collections.abc import Iterator
import math
import re
from typing import Any

from jax.extend.core import jaxprs_in_params

COLLECTIVES = (
  "all-gather",
  "all-reduce",
  "all-to-all",
  "collective-permute",
  "reduce-scatter",
)
# Instructions that do no work of their own, or whose work is counted elsewhere:
# the second half of an asynchronous one, and calls.
FREE = frozenset(
  "parameter constant tuple get-tuple-element bitcast after-all partition-id "
  "replica-id call conditional async-start async-done async-update opt-barrier "
  "domain add-dependency".split()
)
ARRAY = r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\]"  # its kind and its shape


def count_products(jaxpr, repeats: int = 1) -> int:
  """Returns the flops of matrix products, on all devices together."""
  return sum(
    times * _flops_of_product(eqn)
    for eqn, times in equations(jaxpr, repeats)
    if eqn.primitive.name == "dot_general"
  )


def count_convolutions(jaxpr, repeats: int = 1) -> int:
  """Returns the flops of convolutions, on all devices together."""
  return sum(
    times * _flops_of_convolution(eqn)
    for eqn, times in equations(jaxpr, repeats)
    if eqn.primitive.name == "conv_general_dilated"
  )


def equations(jaxpr, repeats: int = 1) -> Iterator[tuple[Any, int]]:
  """Yields all equations, and how often they are executed on all devices."""
  for eqn in jaxpr.eqns:
    yield eqn, repeats
    times = repeats
    if eqn.primitive.name == "scan":
      times *= eqn.params["length"]
    elif eqn.primitive.name == "shard_map":
      times *= math.prod(eqn.params["mesh"].shape.values())
    for inner in jaxprs_in_params(eqn.params):
      yield from equations(getattr(inner, "jaxpr", inner), times)


def _flops_of_product(eqn) -> int:
  (contracted, _), _ = eqn.params["dimension_numbers"]
  shape = eqn.invars[0].aval.shape
  inner = math.prod(shape[i] for i in contracted)
  return 2 * inner * math.prod(eqn.outvars[0].aval.shape)


def _flops_of_convolution(eqn) -> int:
  """Counts no products with the zeros between dilated inputs."""
  _, inputs, *spatial = eqn.params["dimension_numbers"].rhs_spec
  kernel = eqn.invars[1].aval.shape
  inner = kernel[inputs] * math.prod(kernel[i] for i in spatial)
  zeros = math.prod(eqn.params["lhs_dilation"])
  return 2 * inner * math.prod(eqn.outvars[0].aval.shape) // zeros


def computations(hlo: str) -> dict[str, list[str]]:
  """Splits the text of a compiled program into its computations' lines."""
  found, name = {}, None
  for line in hlo.splitlines():
    if head := re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
      name = head[1]
      found[name] = []
      if line.startswith("ENTRY"):
        found["ENTRY"] = found[name]
    elif line.startswith("}"):
      name = None
    elif name:
      found[name].append(line.strip())
  return found


def instructions(
  parts: dict[str, list[str]], name: str = "ENTRY", repeats: int = 1
) -> Iterator[tuple[str, str, int]]:
  """Yields (opcode, line, executions) of all that a program runs."""
  for line in parts[name]:
    match = re.search(r"= (?:\(.*?\)|\S+) ([\w-]+)\(", line)
    if not match:
      continue
    kind, times = match[1], repeats
    yield kind, line, repeats
    if kind == "while":
      trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
      times *= int(trips[1]) if trips else 1
    if kind in ("while", "call", "conditional", "async-start"):
      for inner in re.findall(
        r"(?:body|to_apply|calls|true_computation|false_computation)="
        r"%?([\w.-]+)",
        line,
      ):
        yield from instructions(parts, inner, times)
      for some in re.findall(r"branch_computations=\{(.*?)\}", line):
        for inner in re.findall(r"[\w.-]+", some):
          yield from instructions(parts, inner, times)


def count_tiles(hlo: str, tile: int) -> dict[str, int]:
  """Counts the instructions of a program for TPUs that make an array of a tile.

  Those within a loop count once. What a fusion makes within itself is in no
  memory, and does not count.

  Args:
    hlo: The text of the program.
    tile: Rows and columns of a tile.

  Returns:
    By the memory of the array, "memory" for the main one and "vmem" for the
    core's own.
  """
  counts = {"memory": 0, "vmem": 0}
  for kind, line, _ in instructions(computations(hlo)):
    result, _, _ = line.partition(f" {kind}(")
    if kind not in FREE | {"while", "copy-start", "copy-done"}:
      for layout in re.findall(rf"\[{tile},{tile}\]\{{(.*?)\}}", result):
        counts["vmem" if "S(1)" in layout else "memory"] += 1
  return counts


def result_bytes(line: str) -> int:
  """Returns the bytes of an instruction's result."""
  shapes = re.search(r"= (\(.*?\)|\S+) [\w-]+\(", line)[1]
  arrays = [
    math.ceil(
      _bits(kind) * math.prod(map(int, filter(None, dims.split(",")))) / 8
    )
    for kind, dims in re.findall(ARRAY, shapes)
  ]
  # The start of an all-reduce has the results only, others the operands before.
  if "-start(" in line and "all-reduce-start(" not in line:
    arrays = arrays[len(arrays) // 2 :]
  return sum(arrays)


def _bits(kind: str) -> int:
  """Returns the bits of a number, such as 16 of bf16 and 8 of f8e4m3fn."""
  return 8 if kind == "pred" else int(re.search(r"\d+", kind)[0])


def bytes_moved(hlo: str) -> int:
  """Returns the bytes that a device's kernels read and write."""
  parts, total = computations(hlo), 0
  sizes = {
    found[1]: result_bytes(line)
    for lines in parts.values()
    for line in lines
    if (found := re.match(r"(?:ROOT )?%?([\w.-]+) = ", line))
  }
  for kind, line, times in instructions(parts):
    if kind in FREE or kind == "while" or kind.endswith("-done"):
      continue
    operands = re.search(rf" {kind}\((.*?)\)", line)[1]
    read = sum(sizes.get(x, 0) for x in re.findall(r"%([\w.-]+)", operands))
    total += times * (read + result_bytes(line))
  return total


def _is_scalar(line: str, kind: str, parts: dict[str, list[str]]) -> bool:
  """Returns whether an operation only deals with single numbers."""
  lines = [line]
  if kind == "fusion":
    lines = parts[re.search(r"calls=%?([\w.-]+)", line)[1]]
  elif kind in ("reduce", "custom-call"):  # the text has no operands' shapes
    return False
  return not any(re.search(r"\w\[\d", x.split("metadata=")[0]) for x in lines)


def count(hlo: str) -> dict:
  """Counts what a compiled program consists of.

  Returns:
    `kernels` are the operations, and `launches` counts those in loops as often
    as they run. `copies`, `sorts` and `scalars` are among them; the latter deal
    with single numbers, which cost a launch on a GPU and nearly nothing on a
    TPU or CPU. `prefetches` copy to a faster memory while something else runs.
  """
  kernels = launches = loops = copies = sorts = scalars = prefetches = 0
  collectives, bytes_sent = {}, 0
  parts = computations(hlo)
  for kind, line, times in instructions(parts):
    base = kind.removesuffix("-start")
    if kind in FREE or kind.endswith("-done"):
      continue
    if base == "while":
      loops += 1
    elif base in COLLECTIVES:
      collectives[base] = collectives.get(base, 0) + 1
      bytes_sent += times * result_bytes(line)
    elif kind in ("copy-start", "slice-start"):
      prefetches += 1
    else:
      kernels += 1
      scalars += _is_scalar(line, kind, parts)
      launches += times
      copies += base == "copy"
      sorts += base == "sort"
  return {
    "kernels": kernels,
    "launches": launches,
    "loops": loops,
    "copies": copies,
    "sorts": sorts,
    "scalars": scalars,
    "prefetches": prefetches,
    "num_collectives": sum(collectives.values()),
    "collectives": collectives,
    "collective_bytes": bytes_sent,
  }


def bound(traced, flops_per_s: float, bytes_per_s: float, devices: int) -> dict:
  """Counts a program's flops and bytes per device, and its least time.

  Args:
    traced: What `jax.jit(...).trace` returns.
    flops_per_s: The peak of a device.
    bytes_per_s: The bandwidth of its memory.
    devices: How many devices share the flops.
  """
  jaxpr, compiled = traced.jaxpr.jaxpr, traced.lower().compile()
  flops = (count_products(jaxpr) + count_convolutions(jaxpr)) / devices
  text = compiled.as_text()
  moved, crossing = bytes_moved(text), count(text)
  times = {"flops": flops / flops_per_s, "bytes": moved / bytes_per_s}
  return {
    "tflop": flops / 1e12,
    "gb": moved / 1e9,
    "ms": 1e3 * max(times.values()),
    "ms_of_flops": 1e3 * times["flops"],
    "bound_by": max(times, key=times.get),
    "collectives": crossing["num_collectives"],
    "collective_mb": crossing["collective_bytes"] / 1e6,
    "temporary_gib": compiled.memory_analysis().temp_size_in_bytes / 2**30,
  }
