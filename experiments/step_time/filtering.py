"""Times `nuclr filter`, and measures its memory.

python -m experiments.step_time.filtering --runs=100000:similarity,1000000:exact

Prints JSON. The embeddings are in DataComp's layout, in half precision and in
shards of 50,000 pairs; texts are images with noise, of topics whose sizes
follow Zipf's law. A run is PAIRS:SCORE or PAIRS:SCORE:BATCH, where BATCH is the
batch of negCLIPLoss, in one partition, the sample of exact weights, or the
number of images in the target of NormSim.
`seconds` and the rest are as `timed_command.timed` says.
"""

import json
import pathlib
import tempfile

from absl import app, flags
import numpy as np

from experiments.harness import benchmark, timed_command

RUNS = flags.DEFINE_list("runs", ["100000:similarity"], "What to run.")
DIM = flags.DEFINE_integer("dim", 768, "Width of the embeddings.")
TEMPERATURE = flags.DEFINE_float("temperature", 0.03, "Temperature.")
FOLDER = flags.DEFINE_string("folder", None, "Where shards are kept.")
SHARD, TOPICS = 50_000, 2_000
TARGET = 10**6  # the number of the shard that is NormSim's target


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
    where = f"--embeddings={folder}", f"--output={output}"
    took = timed_command.timed("filter", *where, *how)
    summary = json.loads((output / "summary.json").read_text())
  return took | {"iterations": summary.get("iterations")}


def main(argv) -> None:
  """Makes every run, and prints the JSON."""
  del argv
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
