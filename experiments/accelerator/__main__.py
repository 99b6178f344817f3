"""The first hour on an accelerator: one command that measures everything.

python -m experiments.accelerator --out=experiments/accelerator/h200

Parts run by priority, each in a process of its own and with a limit, and each
writes `OUT/NAME.json` as soon as it is done. The same command goes on where it
was interrupted; parts that failed are tried again. At the end, `OUT/table.md`
says what was measured and what was not. It needs neither grain nor
tensorflow-datasets, array_record or ml_collections.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from experiments.accelerator import parts, table
from experiments.harness import runner
from nuclr_jax import files, progress

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


def environment(part: parts.Part | None = None) -> dict[str, str]:
  """Returns the environment of a part, or of the question for devices."""
  if part is None or any("torch" in x for x in part.flags):
    # PyTorch and JAX share the device.
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  else:
    own = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
  if part is not None and part.module == "pytest":
    # What tests compare with are true float32 products.
    own |= {"JAX_DEFAULT_MATMUL_PRECISION": "float32"}
    own |= {"NUCLR_TESTS_ON": "device"}
  return os.environ | {
    "PYTHONPATH": os.pathsep.join(
      x for x in (str(ROOT), os.environ.get("PYTHONPATH")) if x
    ),
    "PYTHONUNBUFFERED": "1",
    **own,
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
  return json.loads(done.stdout.splitlines()[-1]) | {"commit": runner.commit()}


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
      env=environment(part),
      capture_output=True,
      text=True,
      timeout=seconds,
    )
  except subprocess.TimeoutExpired as late:
    said = late.stderr or b""  # bytes, though text was asked for
    said = said if isinstance(said, str) else said.decode(errors="replace")
    return {"error": f"not done after {seconds:.0f} s\n{said[-10_000:]}"}
  if part.module == "pytest":
    return result_of_tests(done.stdout, done.stderr)
  if done.returncode:
    return {"error": last_lines(done.stderr)}
  # A library may have printed something before.
  try:
    return {"result": json.loads(done.stdout[done.stdout.find("{\n") :])}
  except json.JSONDecodeError:
    return {"error": f"no JSON was printed: {last_lines(done.stdout)}"}


def result_of_tests(said: str, warned: str = "") -> dict:
  """Counts tests by their outcome, and names those that failed."""
  lines = said.strip().splitlines() or [""]
  counts = re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])
  if "passed" not in [kind for _, kind in counts]:
    return {"error": last_lines(f"{warned}\n{said}")}
  failed = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
  return {"result": {k: int(n) for n, k in counts} | {"which": failed}}


def last_lines(said: str) -> str:
  """Returns the end of an error message, which says the most."""
  memory = [x for x in said.splitlines() if table.lacks_memory(x)]
  return "\n".join(memory[:1] or said.strip().splitlines()[-5:])[:2000]


def is_done(path: pathlib.Path, record: dict) -> bool:
  """Returns whether this has been measured, of this code and on this device."""
  if not path.exists():
    return False
  found = files.read_json(path)
  same = all(found.get(key) == x for key, x in record.items())
  return same and "result" in found


def read_arguments() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    prog="python -m experiments.accelerator",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--out", required=True, help="folder of the results")
  parser.add_argument(
    "--minutes", type=float, default=40.0, help="when to stop"
  )
  parser.add_argument(
    "--short", action="store_true", help="a trial with tiny sizes"
  )
  parser.add_argument(
    "--only", default="", help="names of parts, with commas; none = all"
  )
  return parser.parse_args()


def main() -> None:
  """Runs the parts that are not done yet, and writes the table."""
  options = read_arguments()
  progress.log_to_stderr()
  start, out = time.monotonic(), pathlib.Path(options.out)
  only = [x for x in options.only.split(",") if x]
  out.mkdir(parents=True, exist_ok=True)
  facts, todo = find_devices(), parts.short() if options.short else parts.full()
  files.write_json(out / "device.json", facts)
  print(f"{facts['count']} x {facts['device']}, commit {facts['commit']}")
  if unknown := set(only) - {part.name for part in todo}:
    names = ", ".join(part.name for part in todo)
    sys.exit(f"unknown parts {sorted(unknown)}; choose from {names}")
  for part in todo:
    path = out / f"{part.name}.json"
    if only and part.name not in only:
      continue
    record = {
      "command": " ".join(["python", "-m", part.module, *part.flags]),
      "device": facts["device"],
      "versions": facts["versions"],
      "commit": facts["commit"],
    }
    if is_done(path, record):
      print(f"{part.name}: done before")
      continue
    left = 60 * options.minutes - (time.monotonic() - start)
    if left < LEAST_SECONDS:
      print(f"{part.name}: no time left")
      continue
    begun = time.monotonic()
    found = run(part, out, min(60 * part.minutes, left))
    when = datetime.datetime.now(datetime.UTC)
    record |= {
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
  main()
