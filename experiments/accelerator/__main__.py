"""The first hour on an accelerator: one command that measures everything.

python -m experiments.accelerator --out=results/h200 --minutes=40

Parts run by priority, each in a process of its own and with a limit, and each
writes `OUT/NAME.json` as soon as it is done. The same command goes on where it
was interrupted; parts that failed are tried again. At the end, `OUT/table.md`
says what was measured and what was not. It needs neither grain nor
tensorflow-datasets, array_record or ml_collections.
"""

import datetime
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from absl import app, flags

from experiments.accelerator import parts, table
from nuclr_jax import files, progress

OUT = flags.DEFINE_string("out", None, "Folder of the results.", required=True)
MINUTES = flags.DEFINE_float("minutes", 40.0, "When to stop.", lower_bound=0)
SHORT = flags.DEFINE_bool("short", False, "A trial with tiny sizes.")
ONLY = flags.DEFINE_list("only", [], "Names of parts; none = all.")
ROOT = pathlib.Path(__file__).parents[2]
tables = table.tables  # of README.md
# What a process needs at least: to start, and to compile.
LEAST_SECONDS = 20.0
FACTS = """
import importlib.metadata as m, json, jax
def version(name):
  try: return m.version(name)
  except m.PackageNotFoundError: return None
d = jax.devices()
names = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformers")
print(json.dumps(dict(
  device=d[0].device_kind, platform=d[0].platform, count=len(d),
  memory=(d[0].memory_stats() or {}).get("bytes_limit"),
  versions={x: version(x) for x in names})))
"""


def environment() -> dict[str, str]:
  """Returns the environment of a part."""
  # PyTorch and JAX share the device; products of tests are true float32.
  return os.environ | {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NUCLR_TESTS_ON": "device",
    "JAX_DEFAULT_MATMUL_PRECISION": "float32",
    "PYTHONPATH": os.pathsep.join(
      x for x in (str(ROOT), os.environ.get("PYTHONPATH")) if x
    ),
    "PYTHONUNBUFFERED": "1",
  }


def find_devices() -> dict:
  """Asks a process of its own, since who asks keeps the device's memory."""
  done = subprocess.run(
    [sys.executable, "-c", FACTS],
    env=environment(),
    capture_output=True,
    text=True,
  )
  if done.returncode:
    sys.exit(f"JAX finds no device: {done.stderr.strip().splitlines()[-1:]}")
  return json.loads(done.stdout.splitlines()[-1]) | {"commit": commit()}


def commit() -> str | None:
  """Returns the commit that is measured; None outside a repository."""
  done = subprocess.run(
    ["git", "describe", "--always", "--dirty", "--exclude=*"],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  return done.stdout.strip() or None


def run(part: parts.Part, out: pathlib.Path, seconds: float) -> dict:
  """Runs a part; returns its result or why there is none."""
  lacking = [x for x in part.needs if importlib.util.find_spec(x) is None]
  if lacking:
    return {"error": f"not installed: {', '.join(lacking)}"}
  words = [sys.executable, "-m", part.module, *part.flags]
  if part.module.startswith("experiments.accelerator."):
    words.append(f"--cache={out / parts.CACHE}")
  try:
    done = subprocess.run(
      words,
      cwd=ROOT,
      env=environment(),
      capture_output=True,
      text=True,
      timeout=seconds,
    )
  except subprocess.TimeoutExpired:
    return {"error": f"not done after {seconds:.0f} s"}
  if part.module == "pytest":
    return result_of_tests(done.stdout)
  if done.returncode:
    return {"error": last_lines(done.stderr)}
  return {"result": json.loads(done.stdout)}


def result_of_tests(said: str) -> dict:
  """Counts tests by their outcome, and names those that failed."""
  lines = said.strip().splitlines()
  counts = re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])
  if not counts:
    return {"error": last_lines(said)}
  failed = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
  return {"result": {k: int(n) for n, k in counts} | {"which": failed}}


def last_lines(said: str) -> str:
  """Returns the end of an error message, which says the most."""
  memory = [x for x in said.splitlines() if "RESOURCE_EXHAUSTED" in x]
  return "\n".join(memory[:1] or said.strip().splitlines()[-5:])[:2000]


def main(argv) -> None:
  """Runs the parts that are not done yet, and writes the table."""
  del argv
  progress.log_to_stderr()
  start, out = time.monotonic(), pathlib.Path(OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  facts, todo = find_devices(), parts.short() if SHORT.value else parts.full()
  files.write_json(out / "device.json", facts)
  print(f"{facts['count']} x {facts['device']}, commit {facts['commit']}")
  if unknown := set(ONLY.value) - {part.name for part in todo}:
    names = ", ".join(part.name for part in todo)
    sys.exit(f"unknown parts {sorted(unknown)}; choose from {names}")
  for part in todo:
    path = out / f"{part.name}.json"
    if ONLY.value and part.name not in ONLY.value:
      continue
    if path.exists() and "result" in files.read_json(path):
      print(f"{part.name}: done before")
      continue
    left = 60 * MINUTES.value - (time.monotonic() - start)
    if left < LEAST_SECONDS:
      print(f"{part.name}: no time left")
      continue
    begun = time.monotonic()
    found = run(part, out, min(60 * part.minutes, left))
    when = datetime.datetime.now(datetime.UTC)
    record = {
      "command": " ".join(["python", "-m", part.module, *part.flags]),
      "device": facts["device"],
      "versions": facts["versions"],
      "commit": facts["commit"],
      "at": when.isoformat(timespec="seconds"),
      "seconds": round(time.monotonic() - begun, 1),
    }
    files.write_json(path, record | found)
    outcome = found.get("error", "done").splitlines()[-1:]
    print(f"{part.name}: {record['seconds']:.0f} s, {''.join(outcome)}")
  text = table.of_folder(out)
  files.write_atomically(out / "table.md", text + "\n")
  print(text)


if __name__ == "__main__":
  app.run(main)
