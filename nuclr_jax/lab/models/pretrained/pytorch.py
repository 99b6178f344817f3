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
# Its arguments are the file, the one to write, and the keys of the model.
CONVERT = (
  "import functools, sys, torch; from safetensors.torch import save_file; "
  "path, target, *keys = sys.argv[1:]; "
  'x = torch.load(path, map_location="cpu", weights_only=True); '
  'own = any(getattr(v, "ndim", 0) for v in x.values()); '
  "found = [k for k, v in x.items() if not torch.is_tensor(v) and "
  '"tensor(" in str(v) and "param_groups" not in str(v)]; '
  "found[not own:] and not keys and "
  'sys.exit(f"add one of these, the model that is meant: {found}"); '
  "x = functools.reduce(dict.get, keys or found, x); "
  "x = {k: v.contiguous().clone() for k, v in x.items() "
  "if torch.is_tensor(v)}; "
  'x or sys.exit("no tensors there; add the keys that lead to them"); '
  "save_file(x, target)"
)
SEVERAL = 3  # the exit code for a file of several models


def convert(path: pathlib.Path, target: pathlib.Path) -> None:
  """Writes the tensors of a `.bin`, `.pt` or `.pth` file as safetensors.

  The file holds a dict of tensors, or a checkpoint with one of them under any
  key, such as "state_dict" or "model"; what is not a tensor in it is left out.

  Args:
    path: The file, a zip archive as PyTorch has written it since version 1.6.
      (In older files nothing says how many numbers there are of each array, and
      PyTorch itself makes up those that are missing.)
    target: The file to write.

  Raises:
    ValueError: If PyTorch is not installed or cannot read the file, or if the
      file holds several models, such as a moving average beside the last
      weights.
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
    if result.returncode == SEVERAL:
      raise ValueError(
        f"it holds weights under several keys ({said}), such as a moving "
        f"average beside those of the last step; make {CONVERTED} of the ones "
        f"that you mean, with their key for KEY, and give that file or its "
        f"folder: {command} KEY"
      )
    if "Unsupported global" in said:
      said += "; save nothing but the model's state_dict()"
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
  models = list(_models(content, torch))
  if len(models) > 1:
    names = [shlex.join(map(str, keys)) or "its top level" for keys in models]
    print(", ".join(x[:100] for x in names[:10]), file=sys.stderr)
    sys.exit(SEVERAL)
  for key in models[0] if models else ():
    content = content[key]
  # Quantized weights may have no floats; what reads them says what they are.
  if not models and isinstance(content, dict):
    content = content.get("state_dict", content)
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


def _models(content, torch, keys=()):
  """Yields the keys that lead to each dict or list with weights of its own.

  Weights are arrays of floats: counters and metrics are scalars, and states of
  random numbers integers. Optimizers have such arrays, too, and are left out.
  """
  if not isinstance(content, (dict, list, tuple)):
    return
  if isinstance(content, dict) and "param_groups" in content:
    return
  named = isinstance(content, dict)
  items = list(content.items() if named else enumerate(content))
  arrays = [x for _, x in items if isinstance(x, torch.Tensor) and x.ndim]
  if any(x.is_floating_point() for x in arrays):
    yield keys
  for key, x in items:
    yield from _models(x, torch, (*keys, key))


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
