"""The table of what an accelerator has shown, and of what it has not.

python -m experiments.accelerator.table  # writes it into README.md
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import json
import logging
import pathlib
from typing import Any, NamedTuple

from experiments import harness
from experiments.harness import markdown

log = logging.getLogger(__name__)

HERE = pathlib.Path(__file__).parent
DEVICE = "*/device.json"  # in every folder of results

NOT_MEASURED = "not measured"
CUT_OFF = " (cut off)"
# A copy of all rows of state, read and written, takes longer than this on any
# host. Fewer bytes would tell nothing.
FASTEST_COPY, LEAST_BYTES = 1e12, 1e8  # bytes/s, bytes
SAME_LOSS = 1e-3  # of losses of about 1.5, added up in another order
Results = Mapping[str, Mapping[str, Any]]


def _of(part: str, read: Callable[[dict], str]) -> Callable[[Results], str]:
  """Reads a cell from the result of a part, or says why it is empty."""

  def cell(results):
    record, error = results.get(part, {}), results.get(f"{part}.error", {})
    for found, end in (
      (record.get("result"), ""),
      (error.get("so_far"), CUT_OFF),
    ):
      if found is not None:
        try:
          text = read(found)
        except (LookupError, TypeError, ValueError):
          return "unreadable"
        return text if text == NOT_MEASURED else text + end
    return failure(error.get("error", ""))

  cell.part = part
  return cell


def failure(error: str) -> str:
  """Says in a cell why there is no number."""
  return "does not fit" if lacks_memory(error) else NOT_MEASURED


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


def _of_form(form, key, show):
  """Reads a number of a form of the whole step, or why there is none."""

  def read(result):
    found = result["forms"].get(form, {})
    if found.get(key) is None:
      return failure(found.get("error", ""))
    return show(found[key])

  return read


def _step(form):
  return _of_form(form, "pairs_per_s", "{:,.0f}".format)


def _against(form):
  return _of_form(form, "time_to_nuclr", "{:.2f}".format)


def _mfu(form):
  return _of_form(form, "mfu", lambda x: f"{100 * x:.0f} %")


def _memory(library):
  def read(result):
    peak = result.get(f"peak_bytes_of_{library}")
    return NOT_MEASURED if peak is None else f"{peak / 2**30:.1f} GiB"

  return read


def _product_rate(result):
  return f"{result['product_rate'] / 1e12:.0f}"


def _loss(result):
  """Shows times, and the products' share of them."""

  def show(name, form, products):
    share = ""
    if name != "products":
      share = products["ratio_to_tiles"] / form["ratio_to_tiles"]
      share = f" ({100 * share:.0f} %)"
    return f"{name} {form['ms']:.2f}{share}"

  return "; ".join(
    f"{row['batch_size']:,} x {row['dim']}: "
    + ", ".join(
      show(name, form, row["forms"]["products"])
      for name, form in row["forms"].items()
      if "ms" in form
    )
    for row in result["rows"]
  )


def _precision(result):
  """Shows errors of the products that the device has."""

  def show(row):
    if "refused" in row:
      return f"{row['precision']} refused"
    return f"{row['precision']} {row['relative_error_of_exp']:.1e}"

  widest = max(row["dim"] for row in result["rows"])
  return ", ".join(map(show, (x for x in result["rows"] if x["dim"] == widest)))


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


def _in_place(result):
  """Says whether a step's time tells of a copy of all rows."""
  first, *_, last = result["rows"]
  size = result["bytes_per_pair"] * (last["num_pairs"] - first["num_pairs"])
  if size < LEAST_BYTES:
    return "too few rows to tell"
  growth = last["ms"] - first["ms"]
  verdict = "yes" if growth < 2e3 * size / FASTEST_COPY else "NO"
  return (
    f"{verdict}: {growth:+.2f} ms for {size / 1e9:.1f} GB more, which take "
    f"{2e3 * size / FASTEST_COPY:.1f} ms to copy at 1 TB/s"
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
  "numerical tests on the device": _of("tests", _tests),
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
  **{
    f"full step of CC3M, batch {batch}: PyTorch{what}": _of(part, read)
    for batch, part in {
      512: "full_step_512_torch",
      256: "full_step_256",
    }.items()
    for what, read in {
      ", pairs/s": _step("torch"),
      "'s time / NUCLR's": _against("torch"),
      ", MFU": _mfu("torch"),
      ", memory": _memory("torch"),
    }.items()
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
  **{
    f"full step of CLIP ViT-B/16, batch 256, attention by {name}: {what}": _of(
      f"full_step_clip_b16_{name.lower()}", read
    )
    for what, read in {
      "NUCLR, pairs/s": _step("nuclr"),
      "a large matrix product at its start, Tflop/s": _product_rate,
      "memory of JAX": _memory("jax"),
    }.items()
    for name in ("XLA", "cuDNN")
  },
  **{
    f"loss step {what}, ms (the products' share)": _of(
      f"loss_step_{part}", _loss
    )
    for part, what in {
      "precisions": "by precision",
      "large": "of large batches",
      **{f"tile_{x}": f"with tiles of {x}" for x in (1024, 2048, 8192)},
    }.items()
  },
  "greatest relative error of exp(similarity / 0.01), width 512": _of(
    "precision", _precision
  ),
  "exact popularity of 50,000 pairs": _of("popularity_50k", _popularity),
  "exact popularity of 300,000 pairs": _of("popularity_300k", _popularity),
  "exact popularity of 1,000,000 pairs": _of("popularity_1m", _popularity),
  "loss step by pairs of state, ms": _of("state_rows", _state),
  "the same with offload_rows, ms": _of("state_rows_offload", _state),
  "offload_rows: are rows in the host's memory written in place?": _of(
    "state_rows_offload", _in_place
  ),
  "glyphs from end to end": _of("glyphs", _glyphs),
}


class Origin(NamedTuple):
  """What a result is of."""

  device: str
  commit: str

  def __str__(self) -> str:
    return f"{self.device}, commit {self.commit}"


def origin(record: Mapping[str, Any]) -> Origin:
  """Says what a result is of; each part has a record of its own."""
  device = f"{record.get('count', 1)} x {record.get('device', 'unknown')}"
  return Origin(device, record.get("commit") or "unknown")


def read_folder(folder: pathlib.Path) -> Results:
  """Reads what `python -m experiments.accelerator` wrote; {} if nothing."""
  paths = sorted(folder.glob("*.json"))
  return {x.stem: read_record(x) for x in paths if x.stem != "device"}


def column(results: Results) -> tuple[list[str], str]:
  """Makes the cells of a folder, and a sentence on what they are of.

  Cells of another device or commit than most say so.
  """
  cells, origins = [], []
  for cell in CELLS.values():
    text, part = cell(results), cell.part
    record = results.get(part) or results.get(f"{part}.error", {})
    cells.append(text)
    origins.append(None if text == NOT_MEASURED else origin(record))
  counts = collections.Counter(filter(None, origins))
  measured = f"{counts.total()} of {len(cells)} measured"
  if not counts:
    return cells, f"{measured}."
  (usual, _), *others = counts.most_common()
  cells = [
    text if of in (None, usual) else f"{text} [{of}]"
    for text, of in zip(cells, origins, strict=True)
  ]
  sentence = f"{measured} on {usual}"
  if others:
    sentence += ", except where a cell says otherwise"
  if any(record.get("short") for record in results.values()):
    sentence += "; a trial with tiny sizes"
  return cells, f"{sentence}."


def of_folders(folders: Sequence[pathlib.Path]) -> str:
  """Makes a table with a column for each folder of results.

  Args:
    folders: What `python -m experiments.accelerator` wrote, each named after a
      device. Without any, the table says that nothing was measured.
  """
  columns = {x.name: column(read_folder(x)) for x in folders}
  columns = columns or {"found": column({})}
  rows = zip(CELLS, *(cells for cells, _ in columns.values()), strict=True)
  text = markdown.table(["what", *columns], [list(x) for x in rows])
  sentences = (
    f"{name}: {sentence}" if len(columns) > 1 else sentence
    for name, (_, sentence) in columns.items()
  )
  return "\n\n".join([text, *sentences])


def tables() -> dict[str, str]:
  """Returns the table of README.md, by mark."""
  return {"found": of_folders([x.parent for x in sorted(HERE.glob(DEVICE))])}


if __name__ == "__main__":
  harness.report(HERE, tables(), {})
