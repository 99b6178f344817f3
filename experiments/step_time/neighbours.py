"""Times `nuclr popularity` of a whole data set, beside an earlier commit.

python -m experiments.step_time.neighbours --pairs=20000,100000 --before=96bf22f

Prints JSON. The embeddings are in clusters whose sizes follow Zipf's law. Two
per cent of the rows are copies of others with noise, so that their cosine
similarities are between 0.96 and 1: `planted` are those that are linked at the
temperature, `found` is the share of them that images.csv has in one cluster.
`seconds` and `processor_seconds` are of the whole command, with the imports and
all tables; `solving` are the seconds that the solver took. A command that is
stopped after `--limit` seconds has no more than that.
"""

import csv
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
from tests.helpers import peak_memory

PAIRS = flags.DEFINE_list("pairs", ["20000"], "Pairs of the data sets.")
DIMS = flags.DEFINE_list("dims", ["512"], "Widths of the embeddings.")
BEFORE = flags.DEFINE_string("before", None, "An earlier commit to run, too.")
MAX_PAIRS = flags.DEFINE_integer("max_pairs", 20_000, "Pairs to solve for.")
TEMPERATURE = flags.DEFINE_float("temperature", 0.05, "Temperature.")
LIMIT = flags.DEFINE_float("limit", 3600.0, "Seconds after which to stop.")
ROOT = pathlib.Path(__file__).resolve().parents[2]
TOPICS, COPIES = 1000, 0.02
BLOCK = 2**15  # rows at a time
RUN = "import sys; from nuclr_jax.lab.cli import run; sys.exit(run())"


def write_embeddings(folder: pathlib.Path, pairs: int, dim: int) -> np.ndarray:
  """Writes `image.npy` and `text.npy`; returns the planted copies [2, copies].

  Texts are images with noise.
  """
  rng = np.random.default_rng(0)
  share = 1 / np.arange(1, TOPICS + 1)
  topic = rng.choice(TOPICS, pairs, p=share / share.sum())
  topics = rng.standard_normal((TOPICS, dim), np.float32)
  common = 1.5 * rng.standard_normal(dim, np.float32)
  shape = dict(mode="w+", dtype=np.float32, shape=(pairs, dim))
  image, text = (
    np.lib.format.open_memmap(folder / f"{x}.npy", **shape)
    for x in ("image", "text")
  )

  def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)

  def noise(rows: int, scale) -> np.ndarray:
    x = rng.standard_normal((rows, dim), np.float32)
    return np.float32(scale) / np.sqrt(np.float32(dim)) * x

  for start in range(0, pairs, BLOCK):
    rows = slice(start, start + BLOCK)
    x = topics[topic[rows]] + common
    image[rows] = unit(x + rng.standard_normal(x.shape, np.float32))
  copies = rng.permutation(pairs)[: 2 * int(COPIES * pairs)].reshape(2, -1)
  scale = rng.uniform(0.02, 0.28, (copies.shape[1], 1))
  image[copies[1]] = unit(image[copies[0]] + noise(copies.shape[1], scale))
  for start in range(0, pairs, BLOCK):
    x = image[start : start + BLOCK]
    text[start : start + BLOCK] = unit(x + noise(len(x), 0.6))
  sim = np.einsum("nd,nd->n", image[copies[0]], image[copies[1]], dtype=float)
  return copies[:, sim >= 1 - TEMPERATURE.value / 2 + 1e-6]


def measure(code: pathlib.Path, folder: pathlib.Path, planted) -> dict:
  """Runs the command with the code in a folder."""
  workdir = pathlib.Path(tempfile.mkdtemp(dir=folder))
  command = [
    *(sys.executable, "-c", RUN, "popularity"),
    f"--embeddings={folder / 'image.npy'},{folder / 'text.npy'}",
    f"--temperature={TEMPERATURE.value}",
    f"--max_pairs={MAX_PAIRS.value}",
    f"--workdir={workdir}",
  ]
  began = time.perf_counter()
  process = subprocess.Popen(
    command,
    cwd=folder,
    env=os.environ | {"PYTHONPATH": str(code)},
    stdout=subprocess.DEVNULL,
  )
  stopped, pid = False, 0
  while not pid:
    time.sleep(0.1)
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    seconds = time.perf_counter() - began
    if seconds > LIMIT.value and not pid and not stopped:
      stopped = True
      process.kill()
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode and not stopped:
    raise RuntimeError(f"{' '.join(command)} failed in {code}")
  row = {
    "seconds": round(seconds, 1),
    "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
    "peak_mib": peak_memory.peak_bytes(usage) // 2**20,
    "stopped": stopped,
  }
  if stopped:
    return row
  summary = json.loads((workdir / "popularity" / "summary.json").read_text())
  with (workdir / "popularity" / "images.csv").open(encoding="utf-8") as file:
    cluster = np.array([int(x["cluster"]) for x in csv.DictReader(file)])
  both = cluster[planted]
  return row | {
    "solving": summary["seconds"],
    "clusters": summary["duplicate_clusters"],
    "near_copies": summary["near_copies"],
    "recall": summary.get("duplicates_recall"),
    "found": float(np.mean((both[0] == both[1]) & (both[0] > 0))),
  }


def git(*arguments: str) -> bytes:
  """Returns what git prints about this repository."""
  command = ["git", "-C", str(ROOT), *arguments]
  return subprocess.run(command, check=True, capture_output=True).stdout


def main(argv) -> None:
  """Runs every size with every commit, and prints the JSON."""
  del argv
  commit = git("rev-parse", "--short", "HEAD").decode().strip()
  rows, codes = [], {}
  with tempfile.TemporaryDirectory() as temporary:
    for name in filter(None, (commit, BEFORE.value)):
      codes[name] = pathlib.Path(temporary) / name
      codes[name].mkdir()
      tar = git("archive", name, "nuclr_jax")
      extract = ["tar", "-x", "-C", str(codes[name])]
      subprocess.run(extract, check=True, input=tar)
    for pairs in map(int, PAIRS.value):
      for dim in map(int, DIMS.value):
        with tempfile.TemporaryDirectory() as folder:
          folder = pathlib.Path(folder)
          planted = write_embeddings(folder, pairs, dim)
          for commit, code in codes.items():
            facts = measure(code, folder, planted)
            size = {"pairs": pairs, "dim": dim, "planted": planted.shape[1]}
            size |= {"max_pairs": MAX_PAIRS.value}
            rows.append({"commit": commit} | size | facts)
            benchmark.show_so_far({"rows": rows})
  names = ("temperature", "limit")
  settings = {name: flags.FLAGS[name].value for name in names}
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)
