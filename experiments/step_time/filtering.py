"""Times `nuclr filter`, and measures its memory.

python -m experiments.step_time.filtering --runs=100000:similarity,1000000:exact

Prints JSON. The embeddings are in DataComp's layout, in half precision and in
shards of 50,000 pairs; texts are images with noise, of topics whose sizes
follow Zipf's law. A run is PAIRS:SCORE or PAIRS:SCORE:BATCH, where BATCH is the
batch of negCLIPLoss, in one partition, the sample of exact weights, or the
number of images in the target of NormSim.
`seconds` and `processor_seconds` are of the whole command, `peak_mib` is its
resident memory, with JAX and the pages of files that it maps.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import numpy as np

from experiments.harness import benchmark

RUNS = flags.DEFINE_list("runs", ["100000:similarity"], "What to run.")
DIM = flags.DEFINE_integer("dim", 768, "Width of the embeddings.")
TEMPERATURE = flags.DEFINE_float("temperature", 0.03, "Temperature.")
FOLDER = flags.DEFINE_string("folder", None, "Where shards are kept.")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARD, TOPICS = 50_000, 2_000
TARGET = 10**6  # the number of the shard that is NormSim's target
# The peak of this program alone: ru_maxrss has that of its parent in it.
RUN = """
import atexit, pathlib, re, sys
from nuclr_jax.lab.cli import run

def note():
  text = pathlib.Path("/proc/self/status").read_text()
  pathlib.Path("peak").write_text(re.search(r"VmHWM:\\s+(\\d+)", text)[1])

atexit.register(note)
sys.exit(run())
"""


def write_shard(folder: pathlib.Path, number: int, size: int) -> None:
  """Writes one shard, unless it is there."""
  import pyarrow
  from pyarrow import parquet

  path = folder / f"{number:08d}.parquet"
  if path.exists():
    return
  rng = np.random.default_rng(0)
  topics = rng.standard_normal((TOPICS, DIM.value), np.float32)
  share = 1 / np.arange(1, TOPICS + 1)
  rng = np.random.default_rng([1, number])
  topic = rng.choice(TOPICS, size, p=share / share.sum())

  def near(x, scale):
    x = x + scale * rng.standard_normal(x.shape, np.float32)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float16)

  x = topics[topic] + rng.standard_normal((size, DIM.value), np.float32)
  noise = rng.gamma(2, 0.6, (size, 1)).astype(np.float32)
  np.savez(
    path.with_suffix(".npz"), l14_img=near(x, 0.7), l14_txt=near(x, noise)
  )
  uids = [f"{number:016x}{i:016x}" for i in range(size)]
  texts = [f"text {i} of topic {x}" for i, x in enumerate(topic)]
  parquet.write_table(pyarrow.table({"uid": uids, "text": texts}), path)


def measure(folder: pathlib.Path, score: str, batch: str) -> dict:
  """Runs the command on the shards of a folder."""
  how = [f"--score={score}", "--keep=0.3"]
  if score == "normsim":
    target = folder.with_name(f"target{batch}")
    target.mkdir(exist_ok=True)
    write_shard(target, TARGET, int(batch))
    how += [f"--target={target}"]
  elif score != "similarity":
    how += [f"--temperature={TEMPERATURE.value}"]
  if score == "negcliploss":
    how += ["--partitions=1", f"--batch_size={batch or 32_768}"]
  if score == "exact" and batch:
    how += [f"--max_pairs={batch}"]
  with tempfile.TemporaryDirectory() as place:
    output = pathlib.Path(place) / "kept"
    command = [sys.executable, "-c", RUN, "filter", f"--embeddings={folder}"]
    began = time.perf_counter()
    process = subprocess.Popen(
      [*command, *how, f"--output={output}"],
      cwd=place,
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
      raise RuntimeError(f"{' '.join(command)} failed")
    summary = json.loads((output / "summary.json").read_text())
    peak = int(pathlib.Path(place, "peak").read_text())  # KiB
  return {
    "seconds": round(time.perf_counter() - began, 1),
    "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
    "peak_mib": peak // 2**10,
    "iterations": summary.get("iterations"),
  }


def main(argv) -> None:
  """Makes every run, and prints the JSON."""
  del argv
  if not pathlib.Path("/proc/self/status").exists():
    raise app.UsageError(
      "the peak of memory is read from /proc; run it on Linux"
    )
  rows = []
  with tempfile.TemporaryDirectory() as temporary:
    place = pathlib.Path(FOLDER.value or temporary)
    for run in RUNS.value:
      pairs, score, *batch = run.split(":")
      folder = place / pairs
      folder.mkdir(parents=True, exist_ok=True)
      for number, start in enumerate(range(0, int(pairs), SHARD)):
        write_shard(folder, number, min(SHARD, int(pairs) - start))
      row = {"pairs": int(pairs), "score": score, "batch": "".join(batch)}
      rows.append(row | measure(folder, score, row["batch"]))
      benchmark.show_so_far({"rows": rows})
  names = ("dim", "temperature")
  settings = {name: flags.FLAGS[name].value for name in names}
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)
