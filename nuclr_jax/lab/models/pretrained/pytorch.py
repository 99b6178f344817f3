"""Rewrites a file by `torch.save` as safetensors, with PyTorch itself.

Such a file is a pickle, which may run any code. `torch.load` with
`weights_only=True` runs none, but a file of a few hundred bytes can keep it
busy forever or fill the memory, and a mistake in it would be one in the
process that calls it. Another process therefore calls it, within limits that
the size of the file sets: this module, run as a script. It imports nothing of
this library.
"""

import importlib.util
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys

SUFFIXES = (".bin", ".pt", ".pth")
ZIP = b"PK\3\4"
# Before 2.10, `weights_only` lets a file write to memory that is not its own.
OLDEST = (2, 10)
SECONDS, SPEED = 10, 2**25  # of computing, and bytes in each further second
MEMORY, COPIES = 2**29, 4  # bytes, and further ones by the size of the file
STATM = pathlib.Path("/proc/self/statm")  # pages of memory; Linux only
MAX_TIES = 4  # times its own size that a file with shared arrays may fill
UNPICKLER = "WeightsUnpickler error: "  # before the reason, in a page of text
CONVERTED = "model.safetensors"
CONVERT = (
  "import sys, torch; from safetensors.torch import save_file; "
  'x = torch.load(sys.argv[1], weights_only=True); x = x.get("state_dict", x); '
  "save_file({k: v.contiguous().clone() for k, v in x.items()}, sys.argv[2])"
)


def convert(path: pathlib.Path, target: pathlib.Path) -> None:
  """Writes the tensors of a `.bin`, `.pt` or `.pth` file as safetensors.

  The file holds a dict of tensors or, as a checkpoint of OpenCLIP's training,
  one under the key "state_dict"; what is not a tensor in it is left out.

  Args:
    path: The file, a zip archive as PyTorch has written it since version 1.6.
      (In older files nothing says how many numbers there are of each array, and
      PyTorch itself makes up those that are missing.)
    target: The file to write.

  Raises:
    ValueError: If PyTorch is not installed, or cannot read the file.
  """
  command = shlex.join(
    ["python", "-c", CONVERT, str(path), str(path.with_name(CONVERTED))]
  )
  with path.open("rb") as file:
    if file.read(len(ZIP)) != ZIP:
      raise ValueError(
        "it is not a zip archive, as torch.save has made since version 1.6 of "
        f"PyTorch; if you trust it, make {CONVERTED} of it, and give that file "
        f"or its folder: {command}"
      )
  if importlib.util.find_spec("torch") is None:
    raise ValueError(
      "reading it takes PyTorch, which is not installed: pip install "
      f'"nuclr_jax[torch]"; or, where PyTorch is, make {CONVERTED} of it, and '
      f"give that file or its folder: {command}"
    )
  # With -P, the folder in which the user happens to be has no modules for it.
  result = subprocess.run(
    [sys.executable, "-P", __file__, path, target],
    env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
  )
  if result.returncode == -signal.SIGXCPU:
    raise ValueError("PyTorch takes too long for a file of its size")
  if result.returncode:
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    said = ascii(lines[-1])[1:-1] if lines else f"exit {result.returncode}"
    raise ValueError(f"PyTorch does not read it: {said}")


def _limit(size: int) -> None:
  """Limits the time, memory and output that a file of this size may take.

  The memory is limited on Linux only: macOS has no file that says how much of
  it a process has from the beginning.
  """
  used = resource.getrusage(resource.RUSAGE_SELF)
  seconds = int(used.ru_utime + used.ru_stime) + SECONDS + size // SPEED
  limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
  if STATM.exists():
    in_use = int(STATM.read_text().split()[0]) * resource.getpagesize()
    limits[resource.RLIMIT_AS] = in_use + MEMORY + COPIES * size
  for kind, limit in limits.items():
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
      limit = min(limit, hard)
    resource.setrlimit(kind, (limit, hard))


def _rewrite(path: str, target: str) -> None:
  """Loads and saves; whatever goes wrong is an error."""
  from safetensors import torch as safetensors
  import torch

  version = tuple(map(int, torch.__version__.split(".")[:2]))
  if version < OLDEST:
    raise ValueError(
      f"version {torch.__version__} is installed; 2.10 or newer is needed, "
      "since older ones are not safe with files of others"
    )
  torch.set_num_threads(1)
  size = os.path.getsize(path)
  _limit(size)
  # Without `mmap`, PyTorch compares the length of every storage with the file.
  content = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
  if isinstance(content, dict) and "state_dict" in content:
    content = content["state_dict"]
  if not isinstance(content, dict):
    raise ValueError(f"it holds a {type(content).__name__}, no dict of tensors")
  found = {k: x for k, x in content.items() if isinstance(x, torch.Tensor)}
  if not found:
    raise ValueError("it has no tensors")
  for name, x in found.items():
    if not isinstance(name, str):
      raise ValueError(f"a tensor is named by a {type(name).__name__}")
    if x.layout != torch.strided or x.device.type != "cpu" or x.is_quantized:
      raise ValueError(f"{name[:200]!r} is not an ordinary tensor")
    if x.nbytes > x.untyped_storage().nbytes():
      raise ValueError(f"{name[:200]!r} is larger than its storage")
  if sum(x.nbytes for x in found.values()) > MAX_TIES * size:
    raise ValueError("it has the same numbers too often")
  # Of views and shared tensors, each becomes one of its own.
  copies = {
    name: torch.empty(x.shape, dtype=x.dtype).copy_(x.detach())
    for name, x in found.items()
  }
  safetensors.save_file(copies, target)


def _reason(error: Exception) -> str:
  """Returns the sentence that says what is wrong.

  PyTorch's advice around it says how to run the code of the file.
  """
  rows = [row.strip() for row in str(error).splitlines() if row.strip()]
  said = [x for x in rows if UNPICKLER in x or x.startswith("Trying to load")]
  reason = (said or rows or [type(error).__name__])[0].split(UNPICKLER)[-1]
  return re.split(r"(?<=\w)\. (?=[A-Z])", reason[:500])[0]


if __name__ == "__main__":
  try:
    _rewrite(*sys.argv[1:])
  except MemoryError:
    sys.exit("it needs more memory than a file of its size should")
  except Exception as error:
    sys.exit(_reason(error))
