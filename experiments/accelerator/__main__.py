"""The first hour on an accelerator: one command that measures everything.

python -m experiments.accelerator --out=experiments/accelerator/h200

Parts run by priority, each in a process of its own and with a limit, and each
writes `OUT/NAME.json` as soon as it is done, or `OUT/NAME.error.json`, where a
part that was cut off has what it had measured by then, in `so_far`. The same
command goes on where it was interrupted; parts that failed, or were measured on
another device or of other code, are run again. At the end, `OUT/table.md` says
what was measured and what was not. It needs neither grain nor
tensorflow-datasets, array_record or ml_collections.
"""

import argparse
import contextlib
import datetime
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from experiments.accelerator import parts, table
from experiments.harness import runner
from nuclr_jax.lab import files, progress

ROOT = pathlib.Path(__file__).parents[2]
tables = table.tables  # of README.md
LETTERS = {".": "passed", "F": "failed", "E": "error", "s": "skipped"}
AGAIN = ("failed", "error")  # tests of a result that is not the last word
# Of its limit, what a part needs at least to be worth starting.
LEAST_SHARE = 0.3
OF_GPUS = ("name", "driver_version", "clocks.sm", "clocks.max.sm")
OF_GPUS += ("clocks.max.mem", "power.limit", "memory.total", "mig.mode.current")
FACTS = """
import importlib.metadata as m, json, jax
def version(name):
  try: return m.version(name)
  except m.PackageNotFoundError: return None
d = jax.devices()
jax.numpy.ones((8, 8)).dot(jax.numpy.ones(8)).block_until_ready()
names = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformers")
print(json.dumps(dict(
  device=d[0].device_kind, platform=d[0].platform, count=len(d),
  memory=(d[0].memory_stats() or {}).get("bytes_limit"),
  versions={x: version(x) for x in names})))
"""


def environment(part: parts.Part | None = None) -> dict[str, str]:
  """Returns the environment of a part, or of the question for devices."""
  tests = part is not None and part.module == "pytest"
  if part is None or tests or any("torch" in x for x in part.flags):
    # Several processes, or PyTorch and JAX, share the device.
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  else:
    own = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
  if tests:
    # What tests compare with are true float32 products.
    own |= {"JAX_DEFAULT_MATMUL_PRECISION": "float32"}
    own |= {"NUCLR_TESTS_ON": "device"}
  return os.environ | {
    # A part that is cut off finds its programs compiled the next time.
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
    "PYTHONPATH": os.pathsep.join(
      x for x in (str(ROOT), os.environ.get("PYTHONPATH")) if x
    ),
    "PYTHONUNBUFFERED": "1",
    **own,
  }


def find_devices(short: bool) -> dict:
  """Asks a process of its own, since who asks keeps the device's memory."""
  done = execute([sys.executable, "-c", FACTS], environment(), seconds=300)
  if done.late or done.code:
    sys.exit(f"{done.errors}\nJAX finds no device that works")
  facts = json.loads(done.said.splitlines()[-1]) | {"gpus": ask_gpus()}
  if facts["platform"] == "cpu" and not short:
    sys.exit(
      f"{done.errors}\nJAX finds no accelerator, only the CPU; install JAX for "
      "the accelerator, or try the command with --short"
    )
  return facts | {
    "commit": runner.commit(),
    "code": fingerprint(),
    "short": short,
  }


def ask_gpus() -> list[dict[str, str]]:
  """Asks NVIDIA's driver for its version and clocks; [] where there is none."""
  words = ["nvidia-smi", f"--query-gpu={','.join(OF_GPUS)}"]
  words.append("--format=csv,noheader")
  try:
    done = subprocess.run(
      words, capture_output=True, text=True, timeout=30, check=True
    )
  except (OSError, subprocess.SubprocessError):
    return []
  return [
    dict(zip(OF_GPUS, (x.strip() for x in line.split(",")), strict=False))
    for line in done.stdout.splitlines()
  ]


def fingerprint() -> str:
  """Hashes the code that parts run, which a commit may not tell."""
  digest = hashlib.sha256()
  for folder in ("nuclr_jax", "experiments", "tests"):
    for path in sorted((ROOT / folder).rglob("*.py")):
      digest.update(path.read_bytes())
  return digest.hexdigest()[:12]


class Done(NamedTuple):
  """How a process ended."""

  code: int
  said: str
  errors: str
  late: bool = False  # whether it was stopped


def execute(words: list[str], environment: dict, seconds: float) -> Done:
  """Runs a process and all that it starts, at most so long."""
  process = subprocess.Popen(
    words,
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  late = False
  try:
    said, errors = process.communicate(timeout=seconds)
  except subprocess.TimeoutExpired:
    late = True
  finally:  # an interrupt, too, must not leave it on the device
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
  if late:
    said, errors = process.communicate()
  return Done(process.returncode, said, errors, late)


def run(part: parts.Part, out: pathlib.Path, seconds: float) -> dict:
  """Runs a part; returns its result or why there is none."""
  lacking = [x for x in part.needs if importlib.util.find_spec(x) is None]
  if lacking:
    return {"error": f"not installed: {', '.join(lacking)}"}
  words = [sys.executable, "-m", part.module, *part.flags]
  if part.module.startswith("experiments.accelerator."):
    words.append(f"--cache={out / parts.CACHE}")
  done = execute(words, environment(part), seconds)
  if done.late:
    error = f"not done after {seconds:.0f} s\n{done.errors[-10_000:]}"
    return {"error": error} | so_far(part, done)
  if part.module == "pytest":
    return result_of_tests(done.said, done.errors)
  if done.code:
    return {"error": last_lines(done.errors)}
  # A library may have printed something before.
  try:
    return {"result": json.loads(done.said[done.said.find("{\n") :])}
  except json.JSONDecodeError:
    return {"error": f"no JSON was printed: {last_lines(done.said)}"}


def so_far(part: parts.Part, done: Done) -> dict:
  """Returns what a part that was cut off had measured, if anything."""
  if part.module == "pytest":
    # Lines of letters, one for each test.
    lines = re.findall(r"^([.FEsxX]+)(?:\s+\[ *\d+%\])?$", done.said, re.M)
    letters = "".join(lines)
    counts = {name: letters.count(x) for x, name in LETTERS.items()}
    return {"so_far": counts} if letters else {}
  for line in reversed(done.errors.splitlines()):
    with contextlib.suppress(json.JSONDecodeError):
      if isinstance(found := json.loads(line), dict):
        return {"so_far": found}
  return {}


def result_of_tests(said: str, warned: str = "") -> dict:
  """Counts tests by their outcome, and names those that failed."""
  lines = said.strip().splitlines() or [""]
  counts = re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])
  if not {"passed", "failed"} & {kind for _, kind in counts}:
    return {"error": last_lines(f"{warned}\n{said}")}
  failed = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
  return {"result": {k: int(n) for n, k in counts} | {"which": failed}}


def last_lines(said: str) -> str:
  """Returns the end of an error message, which says the most."""
  memory = [x for x in said.splitlines() if table.lacks_memory(x)]
  return "\n".join(memory[:1] or said.strip().splitlines()[-5:])[:2000]


def is_done(path: pathlib.Path, record: dict) -> bool:
  """Returns whether this has been measured, of this code and on this device."""
  found = table.read_record(path)
  same = all(
    found.get(key) == x for key, x in record.items() if key != "commit"
  )
  result = found.get("result")
  return same and result is not None and not any(map(result.get, AGAIN))


def save(out: pathlib.Path, name: str, record: dict) -> None:
  """Writes a result, or an error, which leaves an earlier result alone."""
  error = out / f"{name}.error.json"
  if "error" in record:
    files.write_json(error, record)
  else:
    files.write_json(out / f"{name}.json", record)
    error.unlink(missing_ok=True)


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
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  out = pathlib.Path(options.out).resolve()
  try:
    out.mkdir(parents=True, exist_ok=True)
    with files.locked(out):
      measure(options, out)
  except OSError as error:
    sys.exit(f"--out={options.out}: {error}")


def measure(options: argparse.Namespace, out: pathlib.Path) -> None:
  """Runs the parts that are not done yet in a folder, and writes the table."""
  start, short = time.monotonic(), options.short
  only = [x for x in options.only.split(",") if x]
  before = table.read_record(out / "device.json")
  if before.get("short", short) != short:
    sys.exit(f"{out} has results {'without' if short else 'of'} --short")
  facts, todo = find_devices(short), parts.short() if short else parts.full()
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
      "count": facts["count"],
      "versions": facts["versions"],
      "commit": facts["commit"],
      "code": facts["code"],
      "short": short,
    }
    if is_done(path, record):
      print(f"{part.name}: done before")
      continue
    left = 60 * options.minutes - (time.monotonic() - start)
    if left < LEAST_SHARE * 60 * part.minutes:
      print(f"{part.name}: no time left")
      continue
    begun = time.monotonic()
    found = run(part, out, min(60 * part.minutes, left))
    when = datetime.datetime.now(datetime.UTC)
    record |= {
      "gpus": facts["gpus"],
      "at": when.isoformat(timespec="seconds"),
      "seconds": round(time.monotonic() - begun, 1),
    }
    save(out, part.name, record | found)
    outcome = found.get("error", "done").splitlines()[-1:]
    print(f"{part.name}: {record['seconds']:.0f} s, {''.join(outcome)}")
  text = table.of_folders([out])
  files.write_atomically(out / "table.md", text + "\n")
  print(text)
  if not any((out / f"{part.name}.json").exists() for part in todo):
    sys.exit("nothing was measured; the errors are in *.error.json")


if __name__ == "__main__":
  main()
