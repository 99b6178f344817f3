"""Draws the loss step's time and memory and the state's time, from the JSON.

python experiments/step_time/plot.py
"""

import json
import pathlib

from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).parent
FORMS = {
  "torch": ("PyTorch, dense", "C3"),
  "dense": ("one tile (dense)", "C1"),
  "tiles": ("tiles", "C0"),
  "products": ("products only", "0.6"),
}
DIM = 256


def read(name: str) -> dict:
  """One JSON file of this folder."""
  return json.loads((HERE / f"{name}.json").read_text())


def draw_forms(axes, key: str, loss: dict) -> None:
  """One line for each form, against the batch size."""
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


def main() -> None:
  """Writes cpu.png."""
  loss, state = read("loss_step_cpu"), read("state_rows_cpu")
  figure = Figure(figsize=(12, 3.6), layout="constrained")
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
  rows.set_ylim(bottom=0)
  rows.set_xlabel("pairs of the data set")
  rows.set_ylabel(f"loss step, ms (batch {state['batch_size']})")
  for axes in (time, memory, rows):
    axes.grid(alpha=0.3)
  figure.savefig(HERE / "cpu.png", dpi=110)


if __name__ == "__main__":
  main()
