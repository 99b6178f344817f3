"""Compares the towers with PyTorch: outputs, gradients, batch statistics.

python -m experiments.parity.towers                  # prints JSON
python -m experiments.parity.towers --size=tiny      # not the published sizes
python -m experiments.parity.towers --write-golden   # tiny ones, for the tests

PyTorch writes random weights to model.safetensors and computes in float64. This
library reads them through `pretrained` and computes in float32. Exits with 1 if
an error is above the tolerance.
"""

import argparse
import copy
import json
import pathlib
import re
import sys
import tempfile

import numpy as np
from safetensors import numpy as safetensors
import torch
import transformers

from experiments.harness import benchmark
from experiments.parity import (
  cases,
  open_clip_cases,
  optional,
  optional_cases,
)
from nuclr_jax.lab import progress
from nuclr_jax.lab.models import pretrained
from tests.helpers import jax_side

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "towers"
TOLERANCE = 1e-4
# All tokens have type 0 here, so BERT's token types are part of the positions.
# The bias of SigLIP's logits belongs to the objective.
NOT_COMPARED = re.compile(
  r"(.*\.)?embeddings\.token_type_embeddings\.weight|logit_bias"
)


def save(model: torch.nn.Module) -> dict[str, np.ndarray]:
  """Returns the arrays that the model's library writes to a file."""
  if not hasattr(model, "save_pretrained"):
    return {k: x.numpy().copy() for k, x in model.state_dict().items()}
  with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    return safetensors.load_file(f"{folder}/model.safetensors")


def theirs(case: cases.Case) -> dict[str, dict[str, np.ndarray]]:
  """Computes weights, outputs, gradients and statistics with PyTorch."""
  torch.manual_seed(0)
  model = cases.randomized(case.make())
  computed = {"weights": save(model)}
  model.double()
  outputs = case.forward(model, case.inputs)
  computed["outputs"] = {
    side: x.detach().numpy() for side, x in outputs.items()
  }
  directions = (jax_side.direction(x.shape) for x in outputs.values())
  pairs = zip(outputs.values(), map(torch.from_numpy, directions), strict=True)
  sum((x * direction).sum() for x, direction in pairs).backward()
  # Gradients are saved in place of the parameters, to get the file's keys.
  gradients = copy.deepcopy(model)
  for old, new in zip(model.parameters(), gradients.parameters(), strict=True):
    new.data = torch.zeros_like(old) if old.grad is None else old.grad
  computed["gradients"] = save(gradients)
  if case.train:
    with torch.no_grad():
      trained = case.forward(model.train(), case.inputs)
    computed["trained"] = {side: x.numpy() for side, x in trained.items()}
    computed["statistics"] = save(model)
  prefix = pretrained.LAYOUTS[case.layout].prefix
  return {
    part: {
      key if part == "weights" else key.removeprefix(prefix): x.astype(
        np.float32
      )
      for key, x in arrays.items()
    }
    for part, arrays in computed.items()
  }


def compare(case: cases.Case) -> tuple[dict, dict]:
  """Returns the errors of a case, and what PyTorch computed."""
  expected = theirs(case)
  with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/model.safetensors"
    safetensors.save_file(expected["weights"], path)
    ours = jax_side.compute(
      case.towers, case.inputs, path, layout=case.layout, train=case.train
    )
  ours["gradients"] = {
    key: x
    for key, x in ours["gradients"].items()
    if "running" not in key and not NOT_COMPARED.fullmatch(key)
  }
  return jax_side.errors(ours, expected), expected


def write_golden(case: cases.Case, expected: dict) -> None:
  """Writes a tiny case for the tests, with every third gradient only."""
  keys = sorted(
    key
    for key in expected["gradients"]
    if re.search("weight|bias|embed|proj", key)
    and not re.search("running|tracked", key)
    and not NOT_COMPARED.fullmatch(key)
  )
  parts = expected | {
    "inputs": case.inputs,
    "gradients": {key: expected["gradients"][key] for key in keys[::3]},
  }
  if case.train:
    parts["statistics"] = {
      k: x for k, x in parts["statistics"].items() if "running" in k
    }
  arrays = {
    f"{part}:{key}": x
    for part, group in parts.items()
    for key, x in group.items()
  }
  spec = dict(towers=case.towers, layout=case.layout, train=case.train)
  GOLDEN.mkdir(parents=True, exist_ok=True)
  name = re.sub(r"\W+", "_", case.name).lower()
  np.savez_compressed(GOLDEN / f"{name}.npz", spec=json.dumps(spec), **arrays)


def main() -> None:
  """Prints the errors as JSON; exits 1 if one is above the tolerance."""
  parser = argparse.ArgumentParser()
  parser.add_argument(
    "--size", choices=("tiny", "full", "both"), default="both"
  )
  parser.add_argument("--write-golden", action="store_true")
  parser.add_argument("--only", default="", help="part of a case's name")
  args = parser.parse_args()
  sizes = {"tiny": [True], "full": [False], "both": [True, False]}[args.size]
  if args.write_golden:
    sizes = [True]
  transformers.utils.logging.disable_progress_bar()
  chosen = [
    ("tiny" if tiny else "full", case)
    for tiny in sizes
    for source in (cases, optional_cases, open_clip_cases)
    for case in source.cases(tiny=tiny)
    if args.only in case.name
  ]
  rows, failed = [], []
  show_progress = progress.reporter("encoders", len(chosen))
  for size, case in chosen:
    errors, expected = compare(case)
    largest = {part: error for part, (error, _) in errors.items()}
    rows.append({"encoder": case.name, "size": size} | largest)
    failed += [
      f"FAILED: {case.name}, {size}: {part} off by {error:.1e}, most in {key}"
      for part, (error, key) in errors.items()
      if not error < TOLERANCE
    ]
    if args.write_golden and case.golden:
      write_golden(case, expected)
    show_progress(len(rows))
  benchmark.show(benchmark.machine(), optional.versions(), {"rows": rows})
  sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
  main()
