"""Writes small files by `torch.save`, and what is in them.

.venv-parity/bin/python -m experiments.parity.torch_files

`read_tensors` must read the same, or say why it does not; the tests compare.
"""

import argparse
import collections
import pathlib

import numpy as np
import torch
import transformers

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
OUT = GOLDEN / "torch_files"


def tensors() -> dict[str, torch.Tensor]:
  """Makes a tensor of each kind: transposed, strided, shared and empty ones."""
  numbers = torch.arange(12.0)
  made = collections.OrderedDict(
    transposed=numbers.reshape(3, 4).T,
    every_second=numbers[2:8:2],
    scalar=torch.tensor(4.5),
    empty=torch.empty(0, 3),
    parameter=torch.nn.Parameter(torch.ones(2)),
    double=torch.arange(3, dtype=torch.float64) / 3,
    half=(numbers / 7).half(),
    bfloat16=(numbers / 7).bfloat16(),
    int64=torch.arange(5),
    int32=torch.arange(5, dtype=torch.int32),
    int16=torch.arange(5, dtype=torch.int16),
    int8=-torch.arange(5, dtype=torch.int8),
    uint8=torch.arange(5, dtype=torch.uint8),
    bool=torch.tensor([True, False]),
  )
  made._metadata = collections.OrderedDict({"": {"version": 1}})
  return made


def main() -> None:
  """Writes the files."""
  argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  ).parse_args()
  OUT.mkdir(parents=True, exist_ok=True)
  made = tensors()
  torch.save(made, OUT / "zip.bin")
  torch.save(made, OUT / "legacy.bin", _use_new_zipfile_serialization=False)
  # As OpenCLIP's training does on several devices.
  several = {f"module.{name}": x for name, x in made.items()}
  checkpoint = {"epoch": 3, "state_dict": several, "optimizer": {"lr": 1e-3}}
  torch.save(checkpoint, OUT / "checkpoint.pt")
  torch.save(torch.nn.Linear(2, 1), OUT / "module.pt")
  program = torch.jit.script(torch.nn.Linear(2, 1))
  torch.jit.save(program, OUT / "program.pt")
  expected = {name: x.detach().float().numpy() for name, x in made.items()}
  np.savez_compressed(OUT / "expected.npz", **expected)
  clip = GOLDEN / "published" / "hf_clip"
  model = transformers.CLIPModel.from_pretrained(clip)
  torch.save(model.state_dict(), OUT / "clip.bin")


if __name__ == "__main__":
  main()
