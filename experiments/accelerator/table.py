"""The table of what an accelerator has shown, and of what it has not.

python -m experiments.accelerator.table  # writes it into README.md
"""

from collections.abc import Callable, Mapping
import json
import logging
import pathlib
from typing import Any

from experiments import harness
from experiments.accelerator import parts
from experiments.harness import markdown

log = logging.getLogger(__name__)

HERE = pathlib.Path(__file__).parent

NOT_MEASURED = "not measured"
SAME_LOSS = 1e-3  # of losses of about 1.5, added up in another order
Results = Mapping[str, Mapping[str, Any]]


def _of(part: str, read: Callable[[dict], str]) -> Callable[[Results], str]:
  """Reads a cell from the result of a part, or says why it is empty."""

  def cell(results):
    record = results.get(part, {})
    if "result" in record:
      try:
        return read(record["result"])
      except (LookupError, TypeError, ValueError):
        return "unreadable"
    error = results.get(f"{part}.error", {}).get("error", "")
    return "does not fit" if lacks_memory(error) else NOT_MEASURED

  return cell


def read_record(path: pathlib.Path) -> dict[str, Any]:
  """Reads what a part left; {}, with a warning, if it is no record."""
  if not path.exists():
    return {}
  try:
    record = json.loads(path.read_text(encoding="utf-8"))
  except ValueError:
    record = None
  if isinstance(record, dict):
    return record
  log.warning("%s is damaged; its part counts as not measured", path)
  return {}


def lacks_memory(said: str) -> bool:
  """Returns whether JAX or PyTorch says that the device's memory is full."""
  return "RESOURCE_EXHAUSTED" in said or "out of memory" in said


def _tests(result):
  failed = result.get("failed", 0) + result.get("error", 0)
  return f"{result.get('passed', 0)} passed, {failed} failed"


def _step(form):
  def read(result):
    found = result["forms"].get(form)
    return NOT_MEASURED if found is None else f"{found['pairs_per_s']:,.0f}"

  return read


def _against(form):
  def read(result):
    found = result["forms"].get(form)
    if found is None:
      return NOT_MEASURED
    return f"{found['time_to_nuclr']:.2f}"

  return read


def _mfu(form):
  def read(result):
    mfu = result["forms"].get(form, {}).get("mfu")
    return NOT_MEASURED if mfu is None else f"{100 * mfu:.0f} %"

  return read


def _memory(library):
  def read(result):
    peak = result.get(f"peak_bytes_of_{library}")
    return NOT_MEASURED if peak is None else f"{peak / 2**30:.1f} GiB"

  return read


def _loss(result):
  return "; ".join(
    f"{row['batch_size']:,} x {row['dim']}: "
    + ", ".join(
      f"{name} {form['ms']:.2f}"
      for name, form in row["forms"].items()
      if "ms" in form
    )
    for row in result["rows"]
  )


def _popularity(result):
  peak = result.get("peak_bytes")
  memory = "" if peak is None else f", {peak / 2**30:.2f} GiB"
  return (
    f"{result['seconds']:.1f} s, {result['iterations']} iterations, residual "
    f"{result['residual']:.1e}{memory}"
  )


def _state(result):
  return ", ".join(
    f"{x['num_pairs']:.0e}: {x['ms']:.2f}" for x in result["rows"]
  )


def _glyphs(result):
  found = f"{result['pairs_per_s']:,.0f} pairs/s, R@1 {result['recall']:.1f}"
  if "cpu" not in result:
    return found
  difference = result["greatest_difference"]
  verdict = "the same" if difference < SAME_LOSS else "NOT the same"
  return (
    f"{found} (on the CPU {result['cpu']['recall']:.1f}); {verdict} losses in "
    f"the first 20 steps (they differ by {difference:.1e})"
  )


CELLS: dict[str, Callable[[Results], str]] = {
  **{
    f"numerical tests on the device: {name}": _of(f"tests_{name}", _tests)
    for name in parts.TESTS
  },
  **{
    f"full step of CC3M, batch {batch}: {what}": _of(f"full_step_{batch}", read)
    for batch in (512, 1536)
    for what, read in {
      "NUCLR, pairs/s": _step("nuclr"),
      "CLIP's time / NUCLR's": _against("clip"),
      "time with the queue / without": _against("nuclr_queue"),
      "MFU": _mfu("nuclr"),
      "memory of JAX, all its forms together": _memory("jax"),
    }.items()
  },
  "full step of CC3M, batch 512: PyTorch, pairs/s": _of(
    "full_step_512", _step("torch")
  ),
  "full step of CC3M, batch 512: PyTorch's time / NUCLR's": _of(
    "full_step_512", _against("torch")
  ),
  **{
    f"full step of CC3M, batch 512: PyTorch, {what}": _of("full_step_512", read)
    for what, read in {"MFU": _mfu("torch"), "memory": _memory("torch")}.items()
  },
  **{
    f"full step of CC3M, batch {batch}: NUCLR, pairs/s": _of(
      f"full_step_{batch}", _step("nuclr")
    )
    for batch in (1024, 2048)
  },
  **{
    f"full step of CC3M, batch {batch}, remat=full: NUCLR, pairs/s": _of(
      f"full_step_{batch}_remat", _step("nuclr")
    )
    for batch in (512, 2048, 4096)
  },
  "loss step by precision, ms": _of("loss_step_precisions", _loss),
  "loss step of large batches, ms": _of("loss_step_large", _loss),
  **{
    f"loss step with tiles of {tile}, ms": _of(f"loss_step_tile_{tile}", _loss)
    for tile in (1024, 2048, 8192)
  },
  "exact popularity of 50,000 pairs": _of("popularity_50k", _popularity),
  "exact popularity of 1,000,000 pairs": _of("popularity_1m", _popularity),
  "loss step by pairs of state, ms": _of("state_rows", _state),
  "the same with offload_rows, ms": _of("state_rows_offload", _state),
  "glyphs from end to end": _of("glyphs", _glyphs),
}


def of_folder(folder: pathlib.Path) -> str:
  """Makes the table of a folder of results.

  Args:
    folder: What `python -m experiments.accelerator` wrote; it need not exist.
  """
  results = {
    path.stem: read_record(path) for path in sorted(folder.glob("*.json"))
  }
  device = results.pop("device", {})
  rows = [[name, cell(results)] for name, cell in CELLS.items()]
  empty = sum(row[1] == NOT_MEASURED for row in rows)
  text = markdown.table(["what", "found"], rows)
  where = ""
  if device:
    short = ", a trial with tiny sizes" if device.get("short") else ""
    where = f" on {device['count']} x {device['device']}{short}"
    where += f", commit {device['commit'] or 'unknown'}"
  return f"{text}\n\n{len(rows) - empty} of {len(rows)} measured{where}."


def tables() -> dict[str, str]:
  """Returns the tables of README.md, by mark."""
  return {"h200": of_folder(HERE / "h200")}


if __name__ == "__main__":
  harness.report(HERE, tables(), {})
