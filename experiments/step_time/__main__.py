"""Writes the tables and the figure of README.md from the JSON files.

python -m experiments.step_time

Each benchmark is a separate command, such as
`python -m experiments.step_time.loss_step`, and prints its JSON.
"""

import pathlib

from matplotlib.figure import Figure

from experiments import harness
from experiments.harness import markdown
from experiments.harness.plots import new_figure
from experiments.harness.statistics import MISSING
from experiments.step_time import common
from nuclr_jax.lab import files

HERE = pathlib.Path(__file__).parent
FORMS = {
  "torch": ("PyTorch, dense", "C3"),
  "dense": ("one tile (dense)", "C1"),
  "tiles": ("tiles", "C0"),
  "products": ("products only", "0.6"),
}
DIM = 256  # the width shown in the plot


def read(name: str) -> dict:
  """Reads a JSON file of this folder."""
  return files.read_json(HERE / f"{name}.json")


def cell(value: float | None, digits: int = 1) -> str:
  """Formats a number, or a dash where nothing was measured."""
  return MISSING if value is None else f"{value:,.{digits}f}"


def loss_table(loss: dict) -> str:
  """Shows times, ratios and memory for every batch size and width."""
  rows = []
  for row in loss["rows"]:
    forms = row["forms"]
    ms = [cell(forms.get(name, {}).get("ms")) for name in FORMS]
    ratio = cell(forms.get("torch", {}).get("ratio_to_tiles"), 2)
    memory = [
      cell(forms[name]["temporary_mib"], 0) for name in ("tiles", "dense")
    ]
    size = [f"{row['batch_size']:,}", str(row["dim"])]
    rows.append([*size, *ms, ratio, *memory])
  header = ["batch", "d", *(f"{label}: ms" for label, _ in FORMS.values())]
  header += ["PyTorch / tiles", "tiles: MiB", "dense: MiB"]
  return markdown.table(header, rows)


def state_table(state: dict) -> str:
  """Shows times against the number of pairs."""
  rows = [
    [
      f"{row['num_pairs']:,}",
      cell(row["ms"], 2),
      cell(row["ratio_to_first"], 2),
    ]
    for row in state["rows"]
  ]
  return markdown.table(["pairs", "ms", "ratio to the first"], rows)


def full_table(results: list[tuple[str, dict]]) -> str:
  """Shows whole training steps, one row per objective."""
  names = list(results[0][1])
  header, rows = ["objective"], [[name] for name in names]
  for tower, forms in results:
    header += [f"{tower}: ms", "pairs/s", "ratio to CLIP"]
    for row, name in zip(rows, names, strict=True):
      form = forms.get(name)
      row += [
        cell(form and form["ms"]),
        cell(form and form["pairs_per_s"], 0),
        cell(form and form["ratio_to_clip"], 2),
      ]
  return markdown.table(header, rows)


def precision_table(precision: dict) -> str:
  """Shows errors of similarities and of their exponentials."""
  rows = [
    [
      row["precision"],
      str(row["dim"]),
      f"{row['error']:.1e}",
      f"{row['relative_error_of_exp']:.1e}",
    ]
    for row in precision["rows"]
  ]
  header = ["precision", "d", "similarity", "exp(similarity / 0.01), relative"]
  return markdown.table(header, rows)


def algorithms_table(found: dict, precision: dict) -> str:
  """Shows what bounds the loss of a large batch, by the algorithm."""
  errors = {
    row["precision"]: row["relative_error_of_exp"]
    for row in precision["rows"]
    if row["dim"] == found["dim"]
  }
  lines = {}
  for row in found["rows"]:
    algorithm = row["algorithm"]
    if algorithm == "library":  # its passes are counted
      name, unit, passes, known = "library", "bf16", 1, "bf16 x 3"
    else:
      unit, passes, name = common.ALGORITHMS[algorithm]
      known = name
    start = [name, f"{errors[known]:.1e}", unit]
    start.append(cell(passes * row["tflop"], 1))
    line = lines.setdefault(name, [*start, cell(row["ms_of_flops"], 0)])
    line += [cell(row["gb"], 0), cell(row["ms_of_bytes"], 0)]
    line.append(cell(row["ms"], 0))
  header = ["precision", "exp(similarity / 0.01), relative", "unit", "Tflop"]
  header.append("ms of flops")
  for name in dict.fromkeys(row["objective"] for row in found["rows"]):
    header += [f"{name}: GB", f"{name}: ms of bytes", f"{name}: bound, ms"]
  return markdown.table(header, list(lines.values()))


def target_table(results: list[dict]) -> str:
  """Shows memory per device for machines that were not available."""
  rows = [
    [
      row["target"],
      f"{row['batch_size']:,}",
      f"{result['num_pairs']:,}",
      cell(row["temporary_mib"], 0),
      cell(row["arguments_mib"], 0),
      cell(row["host_mib"], 0),
    ]
    for result in results
    for row in result["rows"]
  ]
  header = ["devices", "batch", "pairs", "temporary: MiB", "arguments: MiB"]
  return markdown.table([*header, "in the host's memory: MiB"], rows)


# (target, batch size) of the columns.
PROGRAMS = (("h200", 512), ("h200", 8192), ("8xh200", 512), ("8xh200", 8192))
OTHER_MACHINES = ("cpu", "8xcpu", "v5e", "v5e:2x4")
SEVERAL = ("8xcpu", "v5e:2x4")


def program_table(program: dict) -> str:
  """Shows kernels, products and collectives of every objective's loss step."""
  found = {
    (row["target"], row["batch_size"], row["objective"]): row
    for row in program["rows"]
  }
  header, lines = ["objective"], []
  for target, batch in PROGRAMS:
    header += [f"{target}, {batch:,}: kernels", "MiB"]
    if target == "h200":
      header.append("products")
    else:
      header += ["collectives", "MB received"]
  for name in dict.fromkeys(row["objective"] for row in program["rows"]):
    line = [name]
    for target, batch in PROGRAMS:
      row = found[target, batch, name]
      line += [str(row["kernels"]), cell(row["temporary_mib"], 0)]
      if target == "h200":
        line.append(f"{row['products']:g}")
      else:
        line.append(str(row["num_collectives"]))
        line.append(cell(row["collective_bytes"] / 1e6, 2))
    lines.append(line)
  return markdown.table(header, lines)


def budget_table(program: dict) -> str:
  """Shows NUCLR's kernels beside their budget, which is set by CLIP's."""
  kernels = {
    (row["target"], row["batch_size"], row["objective"]): row["kernels"]
    for row in program["rows"]
  }
  lines = []
  for batch in (512, 8192):
    for target in dict.fromkeys(row["target"] for row in program["rows"]):
      clip, nuclr, queue = (
        kernels[target, batch, name]
        for name in ("clip", "nuclr", "nuclr_queue")
      )
      budget = 1.5 * clip + 40
      lines.append(
        [
          f"{batch:,}",
          target,
          f"{budget:g}",
          *(
            text
            for x in (nuclr, queue)
            for text in (str(x), f"{x - budget:+g}")
          ),
        ]
      )
  header = ["batch", "devices", "budget", "nuclr", "nuclr: over"]
  header += ["nuclr_queue", "nuclr_queue: over"]
  return markdown.table(header, lines)


def other_programs_table(program: dict) -> str:
  """Shows kernels of the loss step at a batch of 512 on other machines."""
  rows = [row for row in program["rows"] if row["batch_size"] == 512]
  found = {(row["target"], row["objective"]): row for row in rows}
  header, lines = ["objective"], []
  for target in OTHER_MACHINES:
    header += [f"{target}: kernels", "on one number"]
    header += ["collectives"] * (target in SEVERAL)
  for name in dict.fromkeys(row["objective"] for row in rows):
    line = [name]
    for target in OTHER_MACHINES:
      row = found[target, name]
      line += [str(row["kernels"]), str(row["scalars"])]
      line += [str(row["num_collectives"])] * (target in SEVERAL)
    lines.append(line)
  return markdown.table(header, lines)


def kernels_table(found: dict) -> str:
  """Shows what the step on a TPU consists of, with and without kernels."""
  rows = [
    [
      f"{row['batch_size']:,}",
      f"{row['dim']:,}",
      name,
      str(form["mosaic"]),
      *(str(form["tiles"][x]) for x in ("memory", "vmem")),
      cell(form["temporary_mib"], 0),
    ]
    for row in found["rows"]
    for name, form in row["forms"].items()
  ]
  header = ["batch", "d", "form", "kernels of Mosaic"]
  header += ["tiles in the main memory", "tiles in VMEM", "temporary: MiB"]
  return markdown.table(header, rows)


def roofline_table(roofline: dict) -> str:
  """Shows what bounds the whole step, by part."""
  lines = []
  for row in roofline["rows"]:
    parts = row["parts"]
    towers = parts["towers"]
    lines.append(
      [
        row["target"],
        f"{row['batch_size']:,}",
        cell(towers["tflop"], 1),
        cell(towers["ms_of_flops"], 1),
        cell(towers["gb"], 0),
        *(
          cell(parts[name]["ms"], 2)
          for name in ("towers", "loss", "optimizer", "input")
        ),
        cell(row["pairs_per_s"], 0),
      ]
    )
  header = ["devices", "batch", "towers: Tflop", "ms of flops", "GB"]
  header += [f"{x}: ms" for x in ("towers", "loss", "optimizer", "input")]
  return markdown.table([*header, "bound: pairs/s"], lines)


def shares_table(roofline: dict) -> str:
  """Shows each part's share of the bound, and what crosses the network."""
  lines = []
  for row in roofline["rows"]:
    parts = row["parts"]
    shares = (
      100 * parts[name]["ms"] / row["ms"]
      for name in ("towers", "loss", "optimizer", "input")
    )
    crossing = []
    for name in ("towers", "loss"):
      crossing.append(str(parts[name]["collectives"]))
      crossing.append(cell(parts[name]["collective_mb"], 1))
    lines.append(
      [
        row["target"],
        f"{row['batch_size']:,}",
        *(f"{x:.1f} %" for x in shares),
        *crossing,
      ]
    )
  header = ["devices", "batch", "towers", "loss", "optimizer"]
  header.append("input, beside them")
  header += ["towers: collectives", "towers: MB", "loss: collectives"]
  return markdown.table([*header, "loss: MB"], lines)


def remat_table(results: list[dict]) -> str:
  """Shows what computing blocks again does to memory and to the bound."""
  row_of = {result["remat"]: result["rows"][0] for result in results}
  base = row_of["none"]
  lines = []
  for name, row in row_of.items():
    if (row["target"], row["batch_size"]) != (
      base["target"],
      base["batch_size"],
    ):
      raise ValueError("remat is compared on the same devices and batch")
    towers = row["parts"]["towers"]
    lines.append(
      [
        name,
        cell(towers["temporary_gib"], 1),
        cell(towers["ms"], 1),
        cell(row["pairs_per_s"], 0),
        MISSING
        if row is base
        else f"{100 * (row['pairs_per_s'] / base['pairs_per_s'] - 1):+.0f} %",
      ]
    )
  header = ["remat", "towers: temporary GiB", "towers: ms"]
  return markdown.table([*header, "bound: pairs/s", "change"], lines)


def loading_table(loading: dict) -> str:
  """Shows pairs per second against cores."""
  rows = [
    [str(row["cores"]), cell(row["pairs_per_s"], 0)] for row in loading["rows"]
  ]
  return markdown.table(["cores", "pairs/s"], rows)


def towers_table(results: list[dict]) -> str:
  """Shows the full model beside PyTorch."""
  rows = []
  for result in results:
    for name, row in result["forms"].items():
      rows.append(
        [
          result["device"],
          f"{result['batch_size']} x {result['size']} px",
          result["dtype"],
          name,
          cell(row["ms"], 0),
          cell(row["pairs_per_s"], 2),
          cell(row["time_to_nuclr"], 2),
          cell(100 * row["of_products"], 0),
          cell(row["mfu"] and 100 * row["mfu"], 0),
        ]
      )
  header = "device, batch, type, form, ms, pairs/s, time / nuclr".split(", ")
  header += ["% of a product's rate", "MFU, %"]
  return markdown.table(header, rows)


def photos_table(photos: dict) -> str:
  """Shows image rates for the steps from JPEG to batch."""
  rows = [
    [name, cell(rate, 0)] for name, rate in photos["images_per_s"].items()
  ]
  return markdown.table(["", "images/s"], rows)


def in_place_table(measured: dict) -> str:
  """Shows what a copy of tars, and an index of them, cost and give."""
  labels = {
    "copy": "copy",
    "index": "index",
    "slow": f"index, {measured['latency_ms']:.0f} ms more a read",
    "tars alone": "tars alone, read from one end to the other",
  }
  rows = []
  for name, label in labels.items():
    share = measured["share_of_size"].get(name)
    rows.append(
      [
        label,
        cell(measured["seconds_per_gigabyte"].get(name), 0),
        cell(share and 100 * share, 2),
        cell(measured["reads_per_s"].get(name), 0),
        cell(measured["stream_per_s"][name], 0),
        cell(measured["stream_to_copy"][name], 2),
      ]
    )
  headers = ["", "s / GB to make", "size, % of the tars", "images read/s"]
  headers += ["stream, images/s", "stream / copy"]
  return markdown.table(headers, rows)


def draw_forms(axes, key: str, loss: dict) -> None:
  """Draws time or memory of each form against the batch size."""
  for name, (label, color) in FORMS.items():
    points = [
      (row["batch_size"], row["forms"][name][key])
      for row in loss["rows"]
      if row["dim"] == DIM and row["forms"].get(name, {}).get(key)
    ]
    if points:
      axes.plot(*zip(*points, strict=True), "o-", color=color, label=label)
  axes.set_xscale("log", base=2)
  axes.set_yscale("log")
  axes.set_xlabel(f"batch size (d = {DIM})")
  axes.legend()


def recalibration_table(found: dict) -> str:
  """Shows validation scores by the pairs of the statistics, and their time."""
  samples = list(found["rows"][0])[2:]
  lines = [
    [
      f"{row['step']:,}",
      *(f"{100 * row[name]['score']:.1f}" for name in ("running", *samples)),
    ]
    for row in found["rows"]
  ]
  seconds = [found["rows"][-1][name]["seconds"] for name in samples]
  lines.append(["seconds", MISSING, *(f"{x:.2f}" for x in seconds)])
  header = ["step", "running averages", *(f"{int(x):,} pairs" for x in samples)]
  return markdown.table(header, lines)


def checkpoint_table(checkpoints: dict) -> str:
  """Shows the seconds of saving and restoring."""
  headers = {
    "wait": "wait",
    "save": "save, all of it",
    "digests": "of this, digests",
    "verify": "verify",
    "restore": "restore",
  }
  line = [f"{checkpoints['seconds'][name]:.2f}" for name in headers]
  return markdown.table(list(headers.values()), [line])


def draw(loss: dict, state: dict) -> Figure:
  """Draws time and memory of the loss step, and time over data set sizes."""
  figure = new_figure((12, 3.6), dpi=110)
  time, memory, rows = figure.subplots(1, 3)
  draw_forms(time, "ms", loss)
  time.set_ylabel("loss step, ms")
  draw_forms(memory, "temporary_mib", loss)
  memory.set_ylabel("temporary memory, MiB")
  rows.plot(
    [row["num_pairs"] for row in state["rows"]],
    [row["ms"] for row in state["rows"]],
    "o-",
  )
  rows.set_xscale("log")
  rows.set_ylim(0, 1.1 * max(row["ms"] for row in state["rows"]))
  rows.set_xlabel("pairs of the data set")
  rows.set_ylabel(f"loss step, ms (batch {state['batch_size']})")
  for axes in (time, memory, rows):
    axes.grid(alpha=0.3)
  return figure


def embedding_table(measured: dict) -> str:
  """Shows the seconds of whole commands that embed photos and captions."""
  row = [
    f"{measured['photos']}",
    *(f"{measured['seconds'][x]:.0f} s" for x in ("nuclr", "transformers")),
    f"{measured['ratio']:.2f}",
    f"{measured['largest_difference']:.0e}",
  ]
  headers = ["photos", "nuclr embed", "transformers", "ratio", "difference"]
  return markdown.table(headers, [row])


def neighbours_table(measured: dict) -> str:
  """Shows whole runs of `nuclr popularity`, and earlier ones beside them."""
  rows = []
  for row in measured["rows"]:
    rest = None if row["stopped"] else row["seconds"] - row["solving"]
    share = None if row["stopped"] else 100 * row["found"]
    rows.append(
      [
        f"{row['pairs']:,}",
        str(row["dim"]),
        row["commit"],
        f"{row['max_pairs']:,}",
        cell(row["seconds"], 0) + " (stopped)" * row["stopped"],
        cell(row.get("solving"), 0),
        cell(rest, 0),
        cell(row["processor_seconds"], 0),
        cell(row["peak_mib"] / 1024, 1),
        cell(share, 2),
      ]
    )
  header = ["pairs", "d", "commit", "solved", "s", "solving: s", "rest: s"]
  header += ["processor: s", "peak: GiB", "planted copies found, %"]
  return markdown.table(header, rows)


def filtering_table(measured: dict) -> str:
  """Shows whole runs of `nuclr filter`."""
  rows = []
  for row in measured["rows"]:
    batch = f"{int(row['batch']):,}" if row["batch"] else "–"
    rows.append(
      [
        f"{row['pairs']:,}",
        row["score"],
        batch,
        cell(row["seconds"], 0),
        cell(row["processor_seconds"], 0),
        cell(row["peak_mib"] / 1024, 2),
      ]
    )
  header = ["pairs", "score", "batch, sample or target"]
  header += ["s", "processor: s", "peak: GiB"]
  return markdown.table(header, rows)


def tables() -> dict[str, str]:
  """Returns all tables, by mark."""
  full = read("full_step_cpu")
  towers = [(name, full[name]) for name in ("prototype", "glyphs")]
  large = read("full_step_large_cpu")
  return {
    "loss step": loss_table(read("loss_step_cpu")),
    "state": state_table(read("state_rows_cpu")),
    "full step": full_table(towers),
    "large": full_table([("large", large["large"])]),
    "real towers": towers_table([read("real_towers_cpu")]),
    "loading": loading_table(read("loading_cpu")),
    "photos": photos_table(read("photos_cpu")),
    "in place": in_place_table(read("in_place_cpu")),
    "recalibration": recalibration_table(read("recalibration_cpu")),
    "embedding": embedding_table(read("embedding_cpu")),
    "checkpoints": checkpoint_table(read("checkpoints_cpu")),
    "neighbours": neighbours_table(read("neighbours_cpu")),
    "filtering": filtering_table(read("filtering_cpu")),
    "precision": precision_table(read("precision")),
    "algorithms": algorithms_table(read("algorithms"), read("precision")),
    "kernels": kernels_table(read("kernels")),
    "program": program_table(read("program")),
    "other programs": other_programs_table(read("program")),
    "budget": budget_table(read("program")),
    "roofline": roofline_table(read("roofline")),
    "shares": shares_table(read("roofline")),
    "remat": remat_table([read("roofline"), read("roofline_remat")]),
    "not at hand": target_table(
      [read("not_at_hand"), read("not_at_hand_offload")]
    ),
  }


def figures() -> dict[str, Figure]:
  """Returns the figure, by file name."""
  return {"cpu.png": draw(read("loss_step_cpu"), read("state_rows_cpu"))}


if __name__ == "__main__":
  harness.report(HERE, tables(), figures())
